package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// maxAddresses bounds a look at a namespace's addresses, of which there may be as many
// as the pod likes. A time would also tell a pod from another by the node's load.
const maxAddresses = 4096

// errNone says that a namespace holds none of the addresses.
var errNone = errors.New("not the pod's")

// holds fails with errNone unless the namespace holds one of the addresses.
func holds(ctx context.Context, h *netns.Handle, want []netip.Addr) error {
	conn, err := nlconn.Open(h, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	found := errors.New("found")
	seen := 0
	request := make([]byte, unix.SizeofIfAddrmsg) // of any family, on any link
	held, err := nlconn.List(ctx, conn, unix.RTM_GETADDR, request, func(reply []byte) (netip.Addr, bool, error) {
		addr, usable, err := parseAddress(reply)
		if seen++; err == nil && seen > maxAddresses {
			err = fmt.Errorf("there are more than %d", maxAddresses)
		} else if err == nil && usable && slices.Contains(want, addr) {
			err = found
		}
		return addr, usable, err
	})
	closed := conn.Close()
	if errors.Is(err, found) {
		return closed
	}
	if err = errors.Join(err, closed); err != nil {
		return fmt.Errorf("cannot look through its addresses: %w", err)
	}
	has := "no address"
	if len(held) > 0 {
		has = list(held)
	}
	return fmt.Errorf("%w: it has %s, the pod %s (its status may be older than its sandbox)", errNone, has, list(want))
}

// parseAddress reads an address; one that cannot be a pod's is not usable.
func parseAddress(reply []byte) (addr netip.Addr, usable bool, err error) {
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
