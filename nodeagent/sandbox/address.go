package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// addressTime bounds one look at a namespace's addresses, of which there may be as
// many as the pod likes.
const addressTime = 100 * time.Millisecond

// errNone says that a namespace holds none of the addresses.
var errNone = errors.New("not the pod's")

// holds fails with errNone unless the namespace holds one of the addresses.
func holds(ctx context.Context, h *netns.Handle, want []netip.Addr) error {
	held, err := addresses(ctx, h)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(held, func(a netip.Addr) bool { return slices.Contains(want, a) }) {
		return nil
	}
	has := "no address"
	if len(held) > 0 {
		has = list(held)
	}
	return fmt.Errorf("%w: it has %s, the pod %s (its status may be older than its sandbox)", errNone, has, list(want))
}

// addresses lists a namespace's addresses that can be a pod's.
func addresses(ctx context.Context, h *netns.Handle) ([]netip.Addr, error) {
	conn, err := nlconn.Open(h, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, addressTime)
	defer cancel()
	request := make([]byte, unix.SizeofIfAddrmsg) // of any family, on any link
	held, err := nlconn.List(limited, conn, unix.RTM_GETADDR, request, parseAddress)
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, fmt.Errorf("cannot list its addresses: %w", err)
	}
	return held, nil
}

func parseAddress(reply []byte) (addr netip.Addr, wanted bool, err error) {
	if len(reply) < unix.SizeofIfAddrmsg {
		return addr, false, fmt.Errorf("a netlink address of %d bytes", len(reply))
	}
	attrs, err := nlconn.ParseAttrs(reply[unix.SizeofIfAddrmsg:])
	if err != nil {
		return addr, false, err
	}
	value := attrs.Value(unix.IFA_LOCAL)
	if value == nil { // IPv6; on a point-to-point link IFA_ADDRESS is the other end's
		value = attrs.Value(unix.IFA_ADDRESS)
	}
	addr, ok := netip.AddrFromSlice(value)
	return addr, ok && !addr.IsLoopback() && !addr.IsLinkLocalUnicast(), nil
}

// list is the first few of addresses for an error.
func list(addrs []netip.Addr) string {
	const few = 4
	text := fmt.Sprint(addrs[:min(few, len(addrs))])
	text = text[1 : len(text)-1]
	if more := len(addrs) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
