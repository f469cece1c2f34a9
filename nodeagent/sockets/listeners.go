package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Listeners says which of the proxy's ports are listened on in a namespace.
type Listeners struct {
	Outbound, Inbound, HBONE bool // TCP, on all addresses of IPv4 or of IPv6
	DNS                      bool // UDP and TCP, on 127.0.0.1
	DNS6                     bool // UDP and TCP, on ::1
	// Identity says which sockets these are: as long as it is the same, no other has
	// taken the place of one.
	Identity Identity
}

// An Identity is the kernel's numbers of the sockets that were found, which it gives
// to no others until the machine is booted again. Identities are compared with ==.
//
// Of the sockets that share a port, by SO_REUSEPORT or one for each address, only the
// one is in it that a packet from nowhere would reach.
type Identity [len(awaited)]uint64

// A place is where a listener may be.
type place struct {
	protocol uint8
	local    netip.AddrPort
}

// awaited are the places of a proxy's listeners.
var awaited = [...]place{
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), ruleset.OutboundPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv6Unspecified(), ruleset.OutboundPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), ruleset.InboundPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv6Unspecified(), ruleset.InboundPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), ruleset.HBONEPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv6Unspecified(), ruleset.HBONEPort)},
	{unix.IPPROTO_UDP, netip.AddrPortFrom(loopback4, ruleset.DNSPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(loopback4, ruleset.DNSPort)},
	{unix.IPPROTO_UDP, netip.AddrPortFrom(netip.IPv6Loopback(), ruleset.DNSPort)},
	{unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv6Loopback(), ruleset.DNSPort)},
}

// awaitedRequests are sent at every look; made once.
var awaitedRequests = requests(awaited[:])

// requests are those for the sockets at some places.
func requests(places []place) []nlconn.Message {
	all := make([]nlconn.Message, len(places))
	for i, at := range places {
		all[i] = nlconn.Message{Kind: sockDiagByFamily, Payload: exact(at.protocol, at.local)}
	}
	return all
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Listeners looks for the proxy's listeners. Whose they are it does not say.
func (c *Conn) Listeners(ctx context.Context) (Listeners, error) {
	var id Identity
	if err := c.find(ctx, awaited[:], awaitedRequests, id[:]); err != nil {
		return Listeners{}, err
	}
	return Listeners{
		Outbound: id[0] != 0 || id[1] != 0,
		Inbound:  id[2] != 0 || id[3] != 0,
		HBONE:    id[4] != 0 || id[5] != 0,
		DNS:      id[6] != 0 && id[7] != 0,
		DNS6:     id[8] != 0 && id[9] != 0,
		Identity: id,
	}, nil
}

// find notes the cookies of the listeners at some places, by the requests for them, in
// the same order; 0 is none. It looks the sockets up that packets to there, from nowhere,
// would reach. At the unspecified address that is one which listens on all addresses.
func (c *Conn) find(ctx context.Context, places []place, requests []nlconn.Message, cookies []uint64) error {
	var unsure []uint8 // protocols
	err := c.conn.Gets(ctx, requests, func(i int, reply []byte, err error) error {
		at := places[i]
		if errors.Is(err, unix.ENOENT) {
			unsure = append(unsure, at.protocol)
			return nil
		}
		if errors.Is(err, unix.EINVAL) && at.local.Addr().Is6() {
			return nil // a kernel without IPv6 does not know the family
		}
		var s socket
		if err == nil {
			s, err = parse(reply)
		}
		if err != nil {
			return fmt.Errorf("cannot look for a listener on %s: %w", at.local, err)
		}
		if s.local.Port() == at.local.Port() && (at.protocol == unix.IPPROTO_UDP || s.state == stateListen) {
			cookies[i] = s.cookie
		}
		return nil
	})
	for _, protocol := range unsure {
		if err == nil {
			err = c.probe(ctx, protocol)
		}
	}
	return err
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
