package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An Option sets something on a socket before it is bound or connected.
type Option func(fd int) error

// Mark sets the mark that the socket's packets carry.
func Mark(mark int) Option {
	return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark) }
}

// ReusePort lets several sockets be bound to one address.
func ReusePort(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }

// Device binds the socket to an interface.
func Device(name string) Option {
	return func(fd int) error { return unix.BindToDevice(fd, name) }
}

// From binds a socket that is going to dial to an address, which need not be one
// of the namespace's own.
func From(addr string) Option {
	return func(fd int) error {
		ap, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		if err := Transparent(fd); err != nil {
			return err
		}
		return unix.Bind(fd, sockaddr(ap))
	}
}

// Transparent lets the socket use addresses that are not the namespace's own.
func Transparent(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain == unix.AF_INET {
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
}

// Dial connects from inside the namespace. network is tcp or udp, addr a literal
// address and port. It gives up when ctx ends.
//
// The socket is made inside, the waiting is done outside: nothing of Go's resolver
// or of its probes for IPv6 ever runs in the namespace.
func (n *NS) Dial(ctx context.Context, network, addr string, options ...Option) (net.Conn, error) {
	f, ap, err := n.socket(network, addr, options)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %s %s from %s: %w", network, addr, n.Name, err)
	}
	defer func() { _ = f.Close() }() // net.FileConn made a copy
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = connect(f, sockaddr(ap))
	if err == nil {
		var conn net.Conn
		if conn, err = net.FileConn(f); err == nil {
			return conn, nil
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, fmt.Errorf("cannot dial %s %s from %s: %w", network, addr, n.Name, err)
}

// Listen listens for TCP connections inside the namespace.
func (n *NS) Listen(addr string, options ...Option) (net.Listener, error) {
	f, err := n.bound("tcp", addr, options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // net.FileListener made a copy
	if err := control(f, func(fd int) error { return unix.Listen(fd, 128) }); err != nil {
		return nil, fmt.Errorf("cannot listen on %s in %s: %w", addr, n.Name, err)
	}
	return net.FileListener(f)
}

// ListenPacket opens a UDP socket inside the namespace.
func (n *NS) ListenPacket(addr string, options ...Option) (*net.UDPConn, error) {
	f, err := n.bound("udp", addr, options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // net.FilePacketConn made a copy
	conn, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on udp %s in %s: %w", addr, n.Name, err)
	}
	return conn.(*net.UDPConn), nil
}

// bound opens a socket inside the namespace and binds it.
func (n *NS) bound(network, addr string, options []Option) (*os.File, error) {
	f, ap, err := n.socket(network, addr, options)
	if err == nil {
		err = control(f, func(fd int) error { return unix.Bind(fd, sockaddr(ap)) })
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot bind %s %s in %s: %w", network, addr, n.Name, err)
	}
	return f, nil
}

// socket opens a socket inside the namespace and sets its options.
func (n *NS) socket(network, addr string, options []Option) (*os.File, netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, ap, err
	}
	kind := unix.SOCK_STREAM
	switch network {
	case "tcp":
	case "udp":
		kind = unix.SOCK_DGRAM
	default:
		return nil, ap, fmt.Errorf("network %q is neither tcp nor udp", network)
	}
	family := unix.AF_INET6
	if ap.Addr().Is4() {
		family = unix.AF_INET
	}
	var fd int
	if err := n.Handle.Do(func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	}); err != nil {
		return nil, ap, err
	}
	f := os.NewFile(uintptr(fd), strings.Join([]string{network, addr}, " "))
	err = control(f, func(fd int) error {
		if network == "tcp" { // two UDP sockets would get one port, and each other's answers
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return err
			}
		}
		for _, option := range options {
			if err := option(fd); err != nil {
				return fmt.Errorf("cannot set a socket option: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, ap, errors.Join(err, f.Close())
	}
	return f, ap, nil
}

// connect connects f and waits until that is done, or f's deadline is over.
func connect(f *os.File, to unix.Sockaddr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	waited := raw.Write(func(fd uintptr) bool {
		failed = unix.Connect(int(fd), to)
		switch failed {
		case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
			return false
		case unix.EISCONN:
			failed = nil
		}
		return true
	})
	if waited != nil {
		return waited
	}
	return failed
}

// control runs fn with the number of an open socket.
func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = fn(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}
