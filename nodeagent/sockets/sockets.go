// Package sockets asks the kernel, over sock_diag, about the sockets in a pod's
// network namespace: does a proxy listen there, does the app hold a port that a proxy
// needs, how many connections does a proxy still carry, which connections of the app
// bypass it. Those it destroys on request.
//
// Whether somebody listens is asked as the kernel asks itself when a packet comes
// in, for one port and one address: a microsecond each, where a list of all sockets
// walks the tables of the whole machine. [Listeners] of a pod take 0.012 ms.
//
// Whose a socket is the kernel does not say: [Conn.Squatters] looks through the open
// files of the processes that live in the pod, if there is a socket at all. That takes
// 0.07 ms, 0.001 more for each open file of the app's, and once a second at most a walk
// of /proc for all pods together, 0.002 ms for each process of the node. A port that is
// only bound, and not listened on, is not seen for TCP.
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
//   - An app that listens beside a proxy, at one address or by SO_REUSEPORT, or on a
//     socket with the proxy's mark, or calls itself something to spoil a terminal.
//   - Processes that end while they are looked at, are hidden from us, or have more open
//     files than are looked at: who is not seen is not accused. Nor is a proxy or an
//     agent, whose threads enter the pod for a moment.
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
//   - A pod with a great many sockets or local routes: the look ends, and says so.
//   - Lengths in a reply that lie.
package sockets

import (
	"context"
	"fmt"
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
