package sockets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A Squatter is a process that lives in the pod and holds a port of the proxy's.
type Squatter struct {
	Port     uint16
	Protocol ruleset.Protocol
	PID      int    // its number in /proc
	Command  string // what it calls itself, made fit to print
}

func (s Squatter) String() string {
	return fmt.Sprintf("port %d/%s: %s (pid %d)", s.Port, s.Protocol, s.Command, s.PID)
}

// Squatters looks which of the proxy's ports a process holds that itself lives in the
// pod's network namespace: listening, at any address and beside whomever, or for UDP
// bound. Of several processes on one port it names one.
//
// A proxy lives elsewhere, only its sockets are in the pod. A socket whose owner is not
// seen, or lives elsewhere, has no squatter.
func (c *Conn) Squatters(ctx context.Context, processes *Processes) ([]Squatter, error) {
	held, err := c.holdings(ctx)
	s := search{held: held, left: maxFiles}
	if err == nil && len(held) > 0 {
		err = c.namespace.File(func(f *os.File) (err error) { // while it is open, no other has its inode number
			if s.at, err = nsfsAt(int(f.Fd()), ""); err == nil {
				err = s.run(ctx, processes)
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find who holds the proxy's ports: %w", err)
	}
	return s.found, nil
}

// A search is one for the owners of sockets.
type search struct {
	at    nsfs               // the pod's namespace
	held  map[uint64]holding // by inode number, without the ports that have a name by now
	left  int                // files that may still be looked at
	found []Squatter
}

// maxFiles is how many open files of a pod's processes are looked at.
const maxFiles = 1 << 16

func (s *search) run(ctx context.Context, processes *Processes) error {
	pids, err := processes.in(ctx, s.at)
	for _, pid := range pids {
		if len(s.held) == 0 || s.left <= 0 || ctx.Err() != nil {
			break
		}
		if p := processes.open(pid); p != nil {
			s.look(ctx, p)
			p.close()
		}
	}
	slices.SortFunc(s.found, func(a, b Squatter) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return cmp.Or(err, ctx.Err())
}

// look looks for the sockets among the files of a process.
func (s *search) look(ctx context.Context, p *process) {
	in, thread, err := p.home()
	if err != nil || in != s.at {
		return // it has ended, and its number been given to another, since they were listed
	}
	holds := map[holding]bool{}
	p.sockets(thread, func(inode uint64) error {
		if h, ok := s.held[inode]; ok {
			holds[h] = true
		}
		if s.left--; s.left <= 0 {
			return errEnough
		}
		return ctx.Err()
	})
	if len(holds) == 0 || !p.lives(s.at) {
		return
	}
	for h := range holds {
		s.found = append(s.found, Squatter{Port: h.port, Protocol: h.protocol, PID: p.pid, Command: p.command()})
	}
	maps.DeleteFunc(s.held, func(_ uint64, h holding) bool { return holds[h] })
}

// A holding is one of the proxy's ports.
type holding struct {
	protocol ruleset.Protocol
	port     uint16
}

var proxyPorts = []uint16{ruleset.OutboundPort, ruleset.InboundPort, ruleset.HBONEPort, ruleset.DNSPort}

// errEnough ends a list of which enough has been seen.
var errEnough = errors.New("enough")

// holdings lists the sockets at the proxy's ports by their inode numbers. To ask for
// exactly one socket at a port would not do: several may share it.
func (c *Conn) holdings(ctx context.Context) (map[uint64]holding, error) {
	held := map[uint64]holding{}
	for _, look := range []struct {
		protocol ruleset.Protocol
		kind     uint16
		request  []byte
	}{
		{ruleset.TCP, tcpSockets, nlconn.AppendAttr(listTCP(1<<stateListen), attrBytecode, localPorts(ruleset.OutboundPort, ruleset.DNSPort))},
		{ruleset.UDP, sockDiagByFamily, list(unix.AF_INET, unix.IPPROTO_UDP, ^uint32(0), localPorts(ruleset.DNSPort, ruleset.DNSPort))},
		{ruleset.UDP, sockDiagByFamily, list(unix.AF_INET6, unix.IPPROTO_UDP, ^uint32(0), localPorts(ruleset.DNSPort, ruleset.DNSPort))},
	} {
		if err := c.probe(ctx, uint8(look.protocol)); err != nil {
			return nil, err
		}
		err := c.conn.Request(ctx, look.kind, unix.NLM_F_DUMP, look.request, func(reply []byte) error {
			s, err := parse(reply)
			if err != nil {
				return err
			}
			port := s.local.Port()
			if s.inode != 0 && slices.Contains(proxyPorts, port) {
				held[uint64(s.inode)] = holding{look.protocol, port}
			}
			if len(held) >= c.max {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return nil, err
		}
	}
	return held, nil
}
