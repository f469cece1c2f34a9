package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// toOriginal is the route of captured outbound connections.
func (s *server) toOriginal(ctx context.Context, c *connection) (*net.TCPConn, error) {
	to, err := originalDst(c.TCPConn)
	if err != nil {
		return nil, err
	}
	s.heading(c, to)
	return s.dial(ctx, to)
}

// toApp is the route of captured inbound connections.
func (s *server) toApp(ctx context.Context, c *connection) (*net.TCPConn, error) {
	if s.env.refuseUntagged {
		if err := s.wantTag(c); err != nil {
			return nil, err
		}
	}
	to, err := originalDst(c.TCPConn)
	if err != nil {
		return nil, err
	}
	s.heading(c, to)
	if own(to.Port()) {
		return nil, fmt.Errorf("%s is the proxy itself", to)
	}
	return s.dialAs(ctx, c.client.Addr(), to)
}

// own says whether a port is one of those that the proxy has in each pod.
func own(port uint16) bool {
	return port == ruleset.OutboundPort || port == ruleset.InboundPort || port == ruleset.HBONEPort
}

// dial connects from the pod's own address.
func (s *server) dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	f, err := open(s.netns, familyOf(to.Addr()), unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	return s.connect(ctx, f, to)
}

func (s *server) connect(ctx context.Context, f *os.File, to netip.AddrPort) (*net.TCPConn, error) {
	conn, err := connectTCP(ctx, f, to)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", to, err)
	}
	return conn, nil
}

// dialAs connects to the app from the address of its client.
//
// The port cannot be the client's too: conntrack would take the proxy's packets for
// the client's, and redirect them back here. For the same reason it must not be one
// that the client has another connection from. The kernel picks it when the socket is
// bound: first from that half of the range which it gives clients that connect last.
func (s *server) dialAs(ctx context.Context, client netip.Addr, to netip.AddrPort) (*net.TCPConn, error) {
	if client.Is4() != to.Addr().Is4() {
		return nil, fmt.Errorf("cannot connect to %s: its client %s is of the other IP version", to, client)
	}
	const tries = 32
	for range tries {
		f, from, err := s.openFrom(client)
		if err != nil {
			return nil, fmt.Errorf("cannot connect to %s as %s: %w", to, client, err)
		}
		if !s.taken(from) {
			return s.connect(ctx, f, to)
		}
		// Open until the end, so that the kernel picks another port.
		defer func() { _ = f.Close() }() // it was never used
	}
	return nil, fmt.Errorf("cannot connect to %s as %s: the client seems to use all ports itself", to, client)
}

// openFrom opens a socket that is bound to an address of somebody else's.
func (s *server) openFrom(client netip.Addr) (f *os.File, from netip.AddrPort, err error) {
	f, err = open(s.netns, familyOf(client), unix.SOCK_STREAM)
	if err != nil {
		return nil, from, err
	}
	err = control(f, func(fd int) error {
		err := makeTransparent(fd, familyOf(client))
		if err == nil {
			err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(client, 0)))
		}
		if err != nil {
			return fmt.Errorf("cannot use this address: %w", err)
		}
		name, err := unix.Getsockname(fd)
		if err == nil {
			from = netip.AddrPortFrom(client, portOf(name))
		}
		return err
	})
	if err != nil {
		_ = f.Close() // it was never used
		return nil, from, err
	}
	return f, from, nil
}

func portOf(name unix.Sockaddr) uint16 {
	switch sa := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port)
	case *unix.SockaddrInet6:
		return uint16(sa.Port)
	}
	return 0
}

// taken says whether a client has an inbound connection from an address and port.
func (s *server) taken(client netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbound[client] > 0
}

// relay copies both ways until both have ended, or one of them has broken. It closes
// both connections.
func relay(a, b *net.TCPConn) error {
	other := make(chan error)
	go func() { other <- forward(b, a) }()
	err := errors.Join(forward(a, b), <-other)
	// Each has ended both ways, or was reset.
	_ = a.Close()
	_ = b.Close()
	return err
}

// forward copies until the end of from, and passes the end on. Where that is not
// possible it resets both: an end that is not one must not look like one.
func forward(to, from *net.TCPConn) error {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to)
		reset(from)
	}
	return err
}

// reset closes a connection in such a way that the peer sees that it was cut.
func reset(c *net.TCPConn) {
	// Both fail on a connection that is closed already.
	_ = c.SetLinger(0)
	_ = c.Close()
}
