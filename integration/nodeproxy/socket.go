package nodeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// tag is in the traffic class of all that the proxy sends, DSCP 0x2e: whoever
// captures packets can tell them from those that bypass the proxy.
const tag = 0x2e << 2

// connectTimeout is how long the other end of a relay may take to accept.
const connectTimeout = 10 * time.Second

// open opens a socket in a namespace and gives it what every socket of the proxy
// has: the mark that exempts it from redirection, and the tag.
func open(h *netns.Handle, family, kind int) (*os.File, error) {
	var fd int
	err := h.Do(func() (err error) {
		// Not by package net, which asks for MPTCP.
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open a socket in the pod: %w", err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	if err := control(f, func(fd int) error { return equip(fd, family, h.ID()) }); err != nil {
		_ = f.Close() // it was never used
		return nil, err
	}
	return f, nil
}

func equip(fd, family int, home netns.ID) error {
	// IPv4 options too: a socket of family IPv6 serves both.
	err := setOptions(fd,
		option{unix.SOL_SOCKET, unix.SO_MARK, int(ruleset.ProxyMark)},
		option{unix.SOL_IP, unix.IP_TOS, tag})
	if err == nil && family == unix.AF_INET6 {
		err = setOptions(fd,
			option{unix.SOL_IPV6, unix.IPV6_V6ONLY, 0},
			option{unix.SOL_IPV6, unix.IPV6_TCLASS, tag})
	}
	if err != nil {
		return err
	}
	id, err := netns.SocketID(fd)
	if err == nil && id != home {
		err = fmt.Errorf("a socket for network namespace %s is in %s", home, id)
	}
	return err
}

// makeTransparent lets a socket use addresses that are not the pod's.
func makeTransparent(fd, family int) error {
	err := setOptions(fd, option{unix.SOL_IP, unix.IP_TRANSPARENT, 1})
	if err == nil && family == unix.AF_INET6 {
		err = setOptions(fd, option{unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1})
	}
	return err
}

type option struct{ level, name, value int }

func setOptions(fd int, options ...option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("cannot set socket option %d of level %d (is CAP_NET_ADMIN missing?): %w", o.name, o.level, err)
		}
	}
	return nil
}

// bound opens a socket that other proxies may be bound to the address of, too.
func bound(h *netns.Handle, kind int, addr netip.AddrPort) (*os.File, error) {
	f, err := open(h, familyOf(addr.Addr()), kind)
	if err != nil {
		return nil, err
	}
	err = control(f, func(fd int) error {
		err := setOptions(fd, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
		if err == nil && kind == unix.SOCK_STREAM {
			// Connections of a proxy that has ended are no obstacle. For UDP it would mean
			// to share the port with anybody.
			err = setOptions(fd, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
		}
		if err == nil && addr.Addr().IsUnspecified() {
			// Not for loopback, which could then be bound to where there is none.
			err = makeTransparent(fd, familyOf(addr.Addr()))
		}
		if err != nil {
			return err
		}
		return unix.Bind(fd, sockaddr(addr))
	})
	if err != nil {
		_ = f.Close() // it was never used
		return nil, err
	}
	return f, nil
}

// listen has a bound socket take connections. It does not own f.
func listen(f *os.File) (*net.TCPListener, error) {
	const backlog = 4096
	if err := control(f, func(fd int) error { return unix.Listen(fd, backlog) }); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// receive has a bound socket's datagrams received. It does not own f.
func receive(f *os.File) (*net.UDPConn, error) {
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return " (a process in the pod has this port: it must choose another)"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return " (bring lo up and give it this address, or switch IPv6 off in all of the pod)"
	}
	return ""
}

// hasIPv6 says whether IPv6 exists in a namespace: the kernel may not have it, and it
// may be switched off for the namespace as a whole.
func hasIPv6(h *netns.Handle) (bool, error) {
	var off []byte
	err := h.Do(func() (err error) {
		off, err = os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether the pod has IPv6: %w", err)
	}
	return strings.TrimSpace(string(off)) == "0", nil
}

// connectTCP connects a socket, which it owns, to an address.
func connectTCP(ctx context.Context, f *os.File, to netip.AddrPort) (*net.TCPConn, error) {
	defer func() { _ = f.Close() }() // net.FileConn makes a copy
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, unix.ETIMEDOUT)
	defer cancel()
	// Fails only where there are no deadlines, which sockets have.
	defer context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })()
	if err := connect(f, sockaddr(to)); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		// The peer may have accepted meanwhile: it must not see an orderly end. A socket
		// of which that cannot be asked is not connected.
		_ = control(f, func(fd int) error {
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// dialUDP opens a socket, in a namespace, for datagrams from and to one address.
func dialUDP(h *netns.Handle, to netip.AddrPort) (net.Conn, error) {
	f, err := open(h, familyOf(to.Addr()), unix.SOCK_DGRAM)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // net.FileConn makes a copy
	if err := connect(f, sockaddr(to)); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// connect waits until f is connected, or its deadline is over.
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

// originalDst returns where a connection was going before it was redirected. That
// is the listener itself if it was not redirected.
func originalDst(c *net.TCPConn) (netip.AddrPort, error) {
	const soOriginalDst = 80 // SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST
	var to netip.AddrPort
	local := localAddr(c)
	err := control(c, func(fd int) error {
		// Not made for socket addresses, but of the right size.
		if local.Addr().Is4() {
			sa, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, soOriginalDst)
			if err == nil {
				b := sa.Multiaddr // family, port, address
				to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
			}
			return err
		}
		sa, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, soOriginalDst)
		if err == nil {
			var port [2]byte
			binary.NativeEndian.PutUint16(port[:], sa.Addr.Port)
			to = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr.Addr), binary.BigEndian.Uint16(port[:]))
		}
		return err
	})
	if err != nil {
		return to, fmt.Errorf("cannot tell where a connection to %s was going: %w", local, err)
	}
	if to == local {
		return to, fmt.Errorf("a connection to %s was not redirected: somebody dialled the proxy itself", local)
	}
	return to, nil
}

// control runs fn with the number of an open socket.
func control(c syscall.Conn, fn func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = fn(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}

func localAddr(c net.Conn) netip.AddrPort  { return plain(c.LocalAddr()) }
func remoteAddr(c net.Conn) netip.AddrPort { return plain(c.RemoteAddr()) }

// plain writes an address in one way only: an IPv4 address is never an IPv6 one.
func plain(a net.Addr) netip.AddrPort {
	addr := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
