package nodeproxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// environment is what all workloads of a proxy share.
type environment struct {
	dns        []netip.AddrPort
	dnsTimeout time.Duration // for one of them
	log        *slog.Logger
	relayed    *counters              // by all workloads, also those that have ended
	refuse     func(uid string) error // see Faults.Nack
}

// acceptPause gives the process time to get file descriptors back.
const acceptPause = 100 * time.Millisecond

// A server is what is open in one pod: listeners, and the connections they took.
type server struct {
	env     environment
	netns   *netns.Handle // the workload's
	relayed counters

	stop      context.CancelFunc
	listeners []io.Closer
	accepting sync.WaitGroup
	relaying  sync.WaitGroup

	mu      sync.Mutex
	conns   map[*connection]bool // nil once closed
	inbound map[netip.AddrPort]int
}

// A connection is one that was accepted in the pod.
type connection struct {
	*net.TCPConn
	direction direction
	client    netip.AddrPort
	to        netip.AddrPort // where it wants to go; under the server's mutex
}

// A route finds the other end of a connection. After an error the connection is
// reset, unless the error is a refusal, which its client has been told of.
type route func(ctx context.Context, c *connection) (*net.TCPConn, error)

// startServer opens everything that a workload listens on, or nothing.
func startServer(h *netns.Handle, env environment) (*server, error) {
	ctx, stop := context.WithCancel(context.Background())
	s := &server{
		env: env, netns: h, stop: stop,
		conns: map[*connection]bool{}, inbound: map[netip.AddrPort]int{},
	}
	if err := s.listen(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) listen(ctx context.Context) error {
	ipv6, err := hasIPv6(s.netns)
	if err != nil {
		return err
	}
	everywhere, loopback := netip.IPv4Unspecified(), []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	if ipv6 {
		everywhere, loopback = netip.IPv6Unspecified(), append(loopback, netip.IPv6Loopback())
	}
	var loops []func()
	tcp := func(addr netip.Addr, port uint16, d direction, r route) error {
		l, err := listenTCP(s.netns, netip.AddrPortFrom(addr, port))
		if err == nil {
			s.listeners = append(s.listeners, l)
			loops = append(loops, func() { s.accept(ctx, l, d, r) })
		}
		return err
	}
	err = errors.Join(
		tcp(everywhere, ruleset.OutboundPort, outbound, s.toOriginal),
		tcp(everywhere, ruleset.InboundPort, inbound, s.toApp),
		tcp(everywhere, ruleset.HBONEPort, hbone, s.toConnected))
	for _, addr := range loopback {
		if len(s.env.dns) == 0 {
			break
		}
		l, udpErr := listenUDP(s.netns, netip.AddrPortFrom(addr, ruleset.DNSPort))
		if udpErr == nil {
			s.listeners = append(s.listeners, l)
			loops = append(loops, func() { s.answerQueries(ctx, l) })
		}
		err = errors.Join(err, udpErr, tcp(addr, ruleset.DNSPort, dns, s.toNameServer))
	}
	if err != nil {
		return err
	}
	// None of them is served unless all of them are there.
	for _, loop := range loops {
		s.accepting.Go(loop)
	}
	return nil
}

// accept takes connections until l is closed.
func (s *server) accept(ctx context.Context, l *net.TCPListener, d direction, r route) {
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.env.log.Error("cannot accept connections, trying again", "direction", d, "error", err)
			pause(ctx, acceptPause)
			continue
		}
		c := &connection{TCPConn: conn, direction: d, client: remoteAddr(conn)}
		s.relaying.Go(func() { s.serve(ctx, c, r) })
	}
}

// serve relays one connection until it has ended.
func (s *server) serve(ctx context.Context, c *connection, r route) {
	if !s.enter(c) {
		reset(c.TCPConn)
		return
	}
	defer s.leave(c)
	other, err := r(ctx, c)
	if err != nil {
		s.env.log.Debug("refused a connection", "direction", c.direction, "client", c.client, "error", err)
		if !errors.As(err, new(refusal)) {
			reset(c.TCPConn)
		}
		return
	}
	s.count(c.direction)
	if err := relay(c.TCPConn, other); err != nil {
		s.env.log.Debug("a connection broke", "direction", c.direction, "client", c.client, "error", err)
	}
}

// enter lists a connection, unless the server is closed.
func (s *server) enter(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = true
	if c.direction == inbound {
		s.inbound[c.client]++
	}
	return true
}

// leave closes a connection and takes it off the list.
func (s *server) leave(c *connection) {
	_ = c.Close() // it may have been reset
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if c.direction != inbound {
		return
	}
	if s.inbound[c.client]--; s.inbound[c.client] == 0 {
		delete(s.inbound, c.client)
	}
}

// heading notes where a connection wants to go.
func (s *server) heading(c *connection, to netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.to = to
}

func (s *server) count(d direction) {
	s.relayed[d].Add(1)
	s.env.relayed[d].Add(1)
}

// stopAccepting closes the listeners and leaves connections alone. When it returns,
// relaying counts all there are.
func (s *server) stopAccepting() {
	for _, l := range s.listeners {
		_ = l.Close() // closed before, or nothing to lose
	}
	s.accepting.Wait()
}

// close cuts what is open. When it returns, nothing is left.
func (s *server) close() {
	s.stop()
	s.stopAccepting()
	s.mu.Lock()
	for c := range s.conns {
		reset(c.TCPConn)
	}
	s.conns = nil
	s.mu.Unlock()
	s.relaying.Wait()
}
