package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// A link is a network interface.
type link struct {
	index uint32
	name  string
	up    bool
	ipv6  bool // it may have IPv6 addresses
}

func (r *Router) links(ctx context.Context) ([]link, error) {
	links, err := dump(ctx, r, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), func(reply []byte) (link, bool, error) {
		l, err := parseLink(reply)
		return l, true, err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list interfaces: %w", err)
	}
	return links, nil
}

func parseLink(message []byte) (link, error) {
	if len(message) < unix.SizeofIfInfomsg {
		return link{}, fmt.Errorf("an interface of %d bytes", len(message))
	}
	l := link{
		index: binary.NativeEndian.Uint32(message[4:]),
		up:    binary.NativeEndian.Uint32(message[8:])&unix.IFF_UP != 0,
	}
	attrs, err := nlconn.ParseAttrs(message[unix.SizeofIfInfomsg:])
	if err != nil {
		return link{}, fmt.Errorf("an interface: %w", err)
	}
	for _, a := range attrs {
		switch a.Kind {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_AF_SPEC:
			if l.ipv6, err = hasIPv6(a.Value); err != nil {
				return link{}, fmt.Errorf("interface %d: %w", l.index, err)
			}
		}
	}
	return l, nil
}

// hasIPv6 looks for disable_ipv6 in what an interface says about its families.
func hasIPv6(families []byte) (bool, error) {
	const (
		inet6Conf   = 2  // IFLA_INET6_CONF: the interface's settings, numbered, 4 bytes each
		disableIPv6 = 26 // DEVCONF_DISABLE_IPV6
	)
	outer, err := nlconn.ParseAttrs(families)
	if err != nil {
		return false, err
	}
	inner, err := nlconn.ParseAttrs(outer.Value(unix.AF_INET6))
	if err != nil {
		return false, err
	}
	settings := inner.Value(inet6Conf)
	return len(settings) >= 4*(disableIPv6+1) && binary.NativeEndian.Uint32(settings[4*disableIPv6:]) == 0, nil
}

// EnsureLoopback brings lo up. Container runtimes do so at the same time, and do not
// mind that it is up already.
func (r *Router) EnsureLoopback(ctx context.Context) error {
	up, err := r.loopbackUp(ctx)
	if up || err != nil {
		return err
	}
	return r.bringUpLoopback(ctx)
}

func (r *Router) loopbackUp(ctx context.Context) (bool, error) {
	var lo link
	err := r.conn.Request(ctx, unix.RTM_GETLINK, 0, loopback(0), func(reply []byte) (err error) {
		lo, err = parseLink(reply)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cannot look at lo: %w", err)
	}
	if lo.index != loIndex {
		return false, errors.New("cannot look at lo: the kernel answered with another interface")
	}
	return lo.up, nil
}

func (r *Router) bringUpLoopback(ctx context.Context) error {
	if err := r.conn.Request(ctx, unix.RTM_NEWLINK, unix.NLM_F_ACK, loopback(unix.IFF_UP), nil); err != nil {
		return fmt.Errorf("cannot bring up lo: %w", err)
	}
	return nil
}

// loopback is the header of a request about lo that sets flags.
func loopback(flags uint32) []byte {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], loIndex)
	binary.NativeEndian.PutUint32(header[8:], flags)
	binary.NativeEndian.PutUint32(header[12:], flags) // which of them to change
	return header
}
