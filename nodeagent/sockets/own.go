package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// own are the addresses that are the pod's own. What goes to them stays in the pod.
// There may be thousands, and thousands of sockets to ask for.
type own struct {
	prefixes map[netip.Prefix]bool
	lengths  map[int]bool // of the prefixes: two or three, as a rule
}

func (o own) add(p netip.Prefix) {
	o.prefixes[p], o.lengths[p.Bits()] = true, true
}

func (o own) contain(a netip.Addr) bool {
	for bits := range o.lengths {
		if p, err := a.Prefix(bits); err == nil && o.prefixes[p] { // else one of the other family's
			return true
		}
	}
	return false
}

// maxOwn is how many routes are looked at.
const maxOwn = 1 << 12

// ownAddresses reads them from the kernel's table of local routes, which has what is
// local without being an interface's address, too.
func ownAddresses(ctx context.Context, h *netns.Handle) (own, error) {
	conn, err := nlconn.Open(h, unix.NETLINK_ROUTE)
	if err != nil {
		return own{}, err
	}
	defer func() { _ = conn.Close() }() // it was only read from
	all := own{map[netip.Prefix]bool{}, map[int]bool{}}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, unix.SizeofRtMsg)
		request[0] = family
		request = nlconn.AppendUint32(request, unix.RTA_TABLE, unix.RT_TABLE_LOCAL)
		seen := 0
		found, err := nlconn.List(ctx, conn, unix.RTM_GETROUTE, request, func(reply []byte) (netip.Prefix, bool, error) {
			if seen++; seen > 3*maxOwn { // the list may be read three times
				return netip.Prefix{}, false, fmt.Errorf("%w: more than %d local routes in the pod", errTooMany, maxOwn)
			}
			return parseLocalRoute(reply)
		})
		if errors.Is(err, unix.ENOENT) { // no interface has ever been up
			continue
		}
		if err != nil {
			return own{}, fmt.Errorf("cannot list the pod's own addresses: %w", err)
		}
		for _, prefix := range found {
			all.add(prefix)
		}
	}
	return all, nil
}

// parseLocalRoute also says whether it is one: there are routes of other kinds in the
// table, and old kernels list other tables, too.
func parseLocalRoute(message []byte) (netip.Prefix, bool, error) {
	if len(message) < unix.SizeofRtMsg {
		return netip.Prefix{}, false, fmt.Errorf("a route of %d bytes", len(message))
	}
	family, bits, table, kind := message[0], message[1], message[4], message[7]
	if kind != unix.RTN_LOCAL || table != unix.RT_TABLE_LOCAL {
		return netip.Prefix{}, false, nil
	}
	attrs, err := nlconn.ParseAttrs(message[unix.SizeofRtMsg:])
	if err != nil {
		return netip.Prefix{}, false, fmt.Errorf("a route: %w", err)
	}
	addr, ok := netip.AddrFromSlice(attrs.Value(unix.RTA_DST))
	if !ok { // a default
		addr = netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			addr = netip.IPv6Unspecified()
		}
	}
	prefix, err := addr.Prefix(int(bits))
	if err != nil {
		return netip.Prefix{}, false, fmt.Errorf("a route: %w", err)
	}
	return prefix, true, nil
}
