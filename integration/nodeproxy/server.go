package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// environment is what all workloads of a proxy share.
type environment struct {
	dns        []netip.AddrPort
	dnsTimeout time.Duration // for one of them
	log        *slog.Logger
	relayed    *counters              // by all workloads, also those that have ended
	untagged   *atomic.Uint64         // as relayed
	refuse     func(uid string) error // see Faults.Nack

	refuseUntagged bool
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// acceptPause gives the process time to get file descriptors back.
const acceptPause = 100 * time.Millisecond

// A server is what is open in one pod: listeners, and the connections they took.
type server struct {
	env      environment
	netns    *netns.Handle // the workload's
	relayed  counters
	untagged atomic.Uint64

	stop      context.CancelFunc
	listeners []*listener
	accepting sync.WaitGroup
	relaying  sync.WaitGroup

	mu      sync.Mutex
	conns   map[*connection]bool // nil once closed
	inbound map[netip.AddrPort]int
	probes  map[netip.AddrPort]chan struct{} // see handOver
}

// A port is where a server listens.
type port struct {
	kind      int // unix.SOCK_STREAM or unix.SOCK_DGRAM
	addr      netip.AddrPort
	direction direction
	route     route // of connections
}

func (p port) String() string {
	return map[int]string{unix.SOCK_STREAM: "tcp ", unix.SOCK_DGRAM: "udp "}[p.kind] + p.addr.String()
}

// A listener is what is open on a port.
type listener struct {
	port
	tcp *net.TCPListener // one of the two
	udp *net.UDPConn
}

func (l *listener) socket() interface {
	io.Closer
	syscall.Conn
} {
	if l.tcp != nil {
		return l.tcp
	}
	return l.udp
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
		conns: map[*connection]bool{}, inbound: map[netip.AddrPort]int{}, probes: map[netip.AddrPort]chan struct{}{},
	}
	if err := s.listen(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// ports are those that the workload is served on.
func (s *server) ports() ([]port, error) {
	ipv6, err := hasIPv6(s.netns)
	if err != nil {
		return nil, err
	}
	everywhere, loopback := netip.IPv4Unspecified(), []netip.Addr{loopback4}
	if ipv6 {
		everywhere, loopback = netip.IPv6Unspecified(), append(loopback, netip.IPv6Loopback())
	}
	tcp := func(addr netip.Addr, number uint16, d direction, r route) port {
		return port{unix.SOCK_STREAM, netip.AddrPortFrom(addr, number), d, r}
	}
	ports := []port{
		tcp(everywhere, ruleset.OutboundPort, outbound, s.toOriginal),
		tcp(everywhere, ruleset.InboundPort, inbound, s.toApp),
		tcp(everywhere, ruleset.HBONEPort, hbone, s.toConnected),
	}
	if len(s.env.dns) == 0 {
		return ports, nil
	}
	for _, addr := range loopback {
		ports = append(ports, tcp(addr, ruleset.DNSPort, dns, s.toNameServer))
	}
	for _, addr := range loopback {
		ports = append(ports, port{unix.SOCK_DGRAM, netip.AddrPortFrom(addr, ruleset.DNSPort), dns, nil})
	}
	return ports, nil
}

// listen opens all ports, or fails. All are bound before one of them listens: while
// another proxy serves the pod, what listens takes some of its connections, and
// would reset them if it had to be closed again.
func (s *server) listen(ctx context.Context) error {
	ports, err := s.ports()
	if err != nil {
		return err
	}
	files := make([]*os.File, len(ports))
	defer func() {
		for _, f := range files {
			_ = f.Close() // package net has made copies, or it was never used
		}
	}()
	var errs []error
	for i, p := range ports {
		files[i], err = bound(s.netns, p.kind, p.addr)
		if err == nil && p.direction == inbound && s.env.refuseUntagged {
			err = keepSYN(files[i])
		}
		if err != nil {
			errs = append(errs, p.cannotListen(err))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	for i, p := range ports {
		l := &listener{port: p}
		if p.kind == unix.SOCK_STREAM {
			l.tcp, err = listen(files[i])
		} else {
			l.udp, err = receive(files[i])
		}
		if err != nil {
			return p.cannotListen(err)
		}
		s.listeners = append(s.listeners, l)
	}
	// None of them is served unless all of them are there.
	for _, l := range s.listeners {
		s.accepting.Go(func() {
			if l.tcp != nil {
				s.accept(ctx, l)
			} else {
				s.answerQueries(ctx, l.udp)
			}
		})
	}
	return nil
}

func (p port) cannotListen(err error) error {
	return fmt.Errorf("cannot listen on %s in the pod: %w%s", p, err, remedy(err))
}

// accept takes connections until l is closed.
func (s *server) accept(ctx context.Context, l *listener) {
	for {
		conn, err := l.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.env.log.Error("cannot accept connections, trying again", "direction", l.direction, "error", err)
			pause(ctx, acceptPause)
			continue
		}
		c := &connection{TCPConn: conn, direction: l.direction, client: remoteAddr(conn)}
		if s.isProbe(c.client) {
			reset(conn)
			continue
		}
		s.relaying.Go(func() { s.serve(ctx, c, l.route) })
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

// close cuts what is open. When it returns, nothing is left.
func (s *server) close() {
	s.stop()
	for _, l := range s.listeners {
		_ = l.socket().Close() // closed before, or nothing to lose
	}
	s.accepting.Wait()
	s.mu.Lock()
	for c := range s.conns {
		reset(c.TCPConn)
	}
	s.conns = nil
	s.mu.Unlock()
	s.relaying.Wait()
}
