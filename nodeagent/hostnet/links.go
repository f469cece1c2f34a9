package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// links are the names of the host's interfaces that are the other ends of a pod's.
// There are none of a pod whose interfaces are not pairs, as macvlan.
func (e *Exemption) links(ctx context.Context, pod *netns.Handle) ([]string, error) {
	inside, err := nlconn.Open(pod, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	names, err := peers(ctx, e.routes, inside, pod)
	if err != nil {
		err = fmt.Errorf("cannot find the host's interfaces of network namespace %s: %w", pod.ID(), err)
	}
	return names, errors.Join(err, inside.Close())
}

// peers asks the pod for the numbers of its interfaces' peers, and the host whether these
// are peers of that pod's: the numbers alone may be of any namespace.
func peers(ctx context.Context, host, pod *nlconn.Conn, handle *netns.Handle) ([]string, error) {
	number, known, err := namespaceNumber(ctx, host, handle)
	if err != nil || !known {
		return nil, err
	}
	indexes, err := nlconn.List(ctx, pod, unix.RTM_GETLINK, linkRequest(0), func(reply []byte) (uint32, bool, error) {
		a, err := linkAttrs(reply)
		peer := a.Value(unix.IFLA_LINK)
		if err != nil || len(peer) != 4 || a.Value(unix.IFLA_LINK_NETNSID) == nil {
			return 0, false, err
		}
		return binary.NativeEndian.Uint32(peer), true, nil
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, index := range indexes {
		err := host.Request(ctx, unix.RTM_GETLINK, 0, linkRequest(index), func(reply []byte) error {
			a, err := linkAttrs(reply)
			if of := a.Value(unix.IFLA_LINK_NETNSID); err == nil && len(of) == 4 && int32(binary.NativeEndian.Uint32(of)) == number {
				names = append(names, a.Text(unix.IFLA_IFNAME))
			}
			return err
		})
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return nil, err
		}
	}
	return names, nil
}

func linkRequest(index uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], index)
	return b
}

func linkAttrs(reply []byte) (nlconn.Attrs, error) {
	if len(reply) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("an interface of %d bytes", len(reply))
	}
	return nlconn.ParseAttrs(reply[unix.SizeofIfInfomsg:])
}

// The kernel's NETNSA_NSID and _FD, and its NETNSA_NSID_NOT_ASSIGNED.
const (
	netnsaNSID = 1
	netnsaFD   = 3
	unassigned = -1
)

// namespaceNumber is the host's own number of another namespace. It has one from when
// the first interface of a pair is moved there.
func namespaceNumber(ctx context.Context, host *nlconn.Conn, other *netns.Handle) (number int32, known bool, err error) {
	const header = 4 // struct rtgenmsg, padded
	err = other.File(func(f *os.File) error {
		request := nlconn.AppendUint32(make([]byte, header), netnsaFD, uint32(f.Fd()))
		return host.Request(ctx, unix.RTM_GETNSID, 0, request, func(reply []byte) error {
			a, err := nlconn.ParseAttrs(reply[min(header, len(reply)):])
			if value := a.Value(netnsaNSID); err == nil && len(value) == 4 {
				number = int32(binary.NativeEndian.Uint32(value))
				known = number != unassigned
			}
			return err
		})
	})
	return number, known, err
}
