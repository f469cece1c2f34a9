// Package sockets asks the kernel, over sock_diag, about the sockets in a pod's
// network namespace: does a proxy listen there, how many connections does one still
// carry, which connections of the app bypass it. Those it destroys on request.
//
// Whether somebody listens is asked as the kernel asks itself when a packet comes
// in, for one port and one address: a few microseconds each, where a list of all
// sockets walks the tables of the whole machine.
//
// A connection bypasses the proxy if it is open and no socket of the proxy's, which
// the mark tells, mirrors it. That is read from the kernel alone, and so holds after
// a crash, and of connections from before anything of ours was there. Marks are told
// only to who has CAP_NET_ADMIN.
//
// # Failures it survives
//
//   - A kernel without sock_diag for TCP or UDP answers like one on which nobody
//     listens: it is told apart, and is an error that names the module.
//   - A socket that only looks like a listener: bound and not listening, bound to a
//     device or to one address where all are needed, connected.
//   - Connections of a proxy that is gone from them, which the kernel keeps for a
//     minute: they do not hold up the end of a drain.
//   - A connection that is being made, accepted or closed while the sockets are
//     listed: it does not pass for one that bypasses. Nor does one that the proxy
//     does not get round to accepting.
//   - Several connections from one port, of which the proxy sees all but one with
//     another: conntrack says which is which.
//   - A connection that is gone, or replaced by another of the same addresses and
//     ports, before it is destroyed: the other lives, as do listeners.
//   - A kernel that cannot destroy sockets ([ErrCannotDestroy]).
//   - A pod with a great many sockets or local routes: the look ends ([ErrTooMany]).
//   - Lengths in a reply that lie.
package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A Conn asks about the sockets of one network namespace, which it keeps alive.
type Conn struct {
	namespace *netns.Handle // borrowed
	conn      *nlconn.Conn
	probed    [unix.IPPROTO_UDP + 1]atomic.Bool // the protocols that sock_diag is known to have
	max       int                               // sockets that are looked at
}

// Open opens a Conn on a namespace. The caller closes it, and keeps the Handle.
func Open(h *netns.Handle) (*Conn, error) {
	conn, err := nlconn.Open(h, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	return &Conn{namespace: h, conn: conn, max: maxSockets}, nil
}

// Close gives the Conn up. It is idempotent.
func (c *Conn) Close() error { return c.conn.Close() }

// Listeners says which of the proxy's ports are listened on in a namespace.
type Listeners struct {
	Outbound, Inbound, HBONE bool // TCP, on all addresses of IPv4 or of IPv6
	DNS                      bool // UDP and TCP, on 127.0.0.1
	DNS6                     bool // UDP and TCP, on ::1
}

// Listeners looks for the proxy's listeners. Whose they are it does not say.
func (c *Conn) Listeners(ctx context.Context) (Listeners, error) {
	var (
		failed   error
		any4     = netip.IPv4Unspecified()
		any6     = netip.IPv6Unspecified()
		loop4    = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		loop6    = netip.IPv6Loopback()
		tcp, udp = uint8(unix.IPPROTO_TCP), uint8(unix.IPPROTO_UDP)
	)
	look := func(protocol uint8, addr netip.Addr, port uint16) bool {
		if failed != nil {
			return false
		}
		local := netip.AddrPortFrom(addr, port)
		found, err := c.find(ctx, protocol, local)
		if err != nil {
			failed = fmt.Errorf("cannot look for a listener on %s: %w", local, err)
		}
		return found
	}
	everywhere := func(port uint16) bool { return look(tcp, any4, port) || look(tcp, any6, port) }
	l := Listeners{
		Outbound: everywhere(ruleset.OutboundPort),
		Inbound:  everywhere(ruleset.InboundPort),
		HBONE:    everywhere(ruleset.HBONEPort),
		DNS:      look(udp, loop4, ruleset.DNSPort) && look(tcp, loop4, ruleset.DNSPort),
		DNS6:     look(udp, loop6, ruleset.DNSPort) && look(tcp, loop6, ruleset.DNSPort),
	}
	if failed != nil {
		return Listeners{}, failed
	}
	return l, nil
}

// find says whether somebody listens at an address: it looks the socket up that a
// packet to it, from nowhere, would reach. At the unspecified address that is one
// which listens on all addresses.
func (c *Conn) find(ctx context.Context, protocol uint8, local netip.AddrPort) (bool, error) {
	var found socket
	err := c.conn.Request(ctx, sockDiagByFamily, 0, exact(protocol, local), func(reply []byte) (err error) {
		found, err = parse(reply)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, c.probe(ctx, protocol)
	case err != nil:
		return false, err
	case protocol == unix.IPPROTO_TCP:
		return found.state == stateListen && found.local.Port() == local.Port(), nil
	}
	return found.local.Port() == local.Port(), nil
}

// probe tells a socket that does not exist from a protocol that sock_diag does not
// know: both are ENOENT to a request for one socket, but not to one for a list.
func (c *Conn) probe(ctx context.Context, protocol uint8) error {
	if c.probed[protocol].Load() {
		return nil
	}
	const noState = 0
	err := c.conn.Request(ctx, sockDiagByFamily, unix.NLM_F_DUMP, list(unix.AF_INET, protocol, noState, nil),
		func([]byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		module := map[uint8]string{unix.IPPROTO_TCP: "tcp_diag", unix.IPPROTO_UDP: "udp_diag"}[protocol]
		return fmt.Errorf("the kernel does not tell about sockets (modules inet_diag and %s): %w", module, err)
	}
	if err == nil {
		c.probed[protocol].Store(true)
	}
	return err
}

// Proxied returns how many TCP connections of the pod a proxy carries: those whose
// local port is one of the proxy's, and which are neither over nor, given up by
// the proxy, only waited for by the kernel until the peer is done too. One that the
// proxy has closed and the kernel is still delivering data of is counted.
func (c *Conn) Proxied(ctx context.Context) (int, error) {
	count := 0
	low, high := ruleset.OutboundPort, ruleset.HBONEPort
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // IPv4 over IPv6 sockets is in the latter
		request := list(family, unix.IPPROTO_TCP, carriedStates, localPorts(low, high))
		err := c.conn.Request(ctx, sockDiagByFamily, unix.NLM_F_DUMP, request, func(reply []byte) error {
			s, err := parse(reply)
			if err == nil && s.proxied() {
				count++
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("cannot count proxied connections: %w", err)
		}
	}
	return count, nil
}

// proxied says whether a socket that has a peer is a connection that a proxy carries.
func (s socket) proxied() bool {
	switch s.local.Port() {
	case ruleset.OutboundPort, ruleset.InboundPort, ruleset.HBONEPort:
		// Without an owner this state means that nothing can be sent or received any
		// more, and goes on until the peer closes, or for a minute.
		abandoned := s.state == stateFinWait2 && s.inode == 0
		return carriedStates&(1<<s.state) != 0 && !abandoned
	}
	return false
}
