package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// What linux/netfilter/nfnetlink_conntrack.h calls these.
const (
	conntrackGet = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1

	ctTupleOrig  = 1
	ctTupleReply = 2

	tupleIP    = 1
	tupleProto = 2

	ipSrc4, ipDst4 = 1, 2
	ipSrc6, ipDst6 = 3, 4

	protoNum     = 1
	protoSrcPort = 2
	protoDstPort = 3
)

// redirects asks conntrack about connections. It opens its socket when it is first
// needed, which is seldom.
type redirects struct {
	namespace *netns.Handle
	conn      *nlconn.Conn
}

func (r *redirects) close() error {
	if r.conn == nil {
		return nil
	}
	return r.conn.Close()
}

// source says whether a connection that a socket made was redirected to the proxy,
// and as whose it came there.
func (r *redirects) source(ctx context.Context, s socket) (as netip.AddrPort, redirected bool, err error) {
	if r.conn == nil {
		if r.conn, err = nlconn.Open(r.namespace, unix.NETLINK_NETFILTER); err != nil {
			return netip.AddrPort{}, false, err
		}
	}
	asked := tuple{s.local, s.remote}
	var original, reply tuple
	err = r.conn.Request(ctx, conntrackGet, 0, trackedAs(asked), func(message []byte) (err error) {
		original, reply, err = parseEntry(message)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return netip.AddrPort{}, false, nil
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("%w: the kernel lacks conntrack over netlink (module nf_conntrack_netlink)", err)
		fallthrough
	case err != nil:
		return netip.AddrPort{}, false, fmt.Errorf("cannot ask conntrack about the connection of %s with %s: %w", s.local, s.remote, err)
	}
	port := reply.local.Port()
	redirected = original == asked && reply.local != asked.remote && (port == ruleset.OutboundPort || port == ruleset.DNSPort)
	return reply.remote, redirected, nil
}

// trackedAs is the payload of a request for the entry of a TCP connection.
func trackedAs(t tuple) []byte {
	const nested = unix.NLA_F_NESTED
	family, src, dst := uint8(unix.AF_INET), uint16(ipSrc4), uint16(ipDst4)
	if t.local.Addr().Is6() {
		family, src, dst = unix.AF_INET6, ipSrc6, ipDst6
	}
	ip := nlconn.AppendAttr(nil, src, t.local.Addr().AsSlice())
	ip = nlconn.AppendAttr(ip, dst, t.remote.Addr().AsSlice())
	proto := nlconn.AppendAttr(nil, protoNum, []byte{unix.IPPROTO_TCP})
	proto = nlconn.AppendAttr(proto, protoSrcPort, binary.BigEndian.AppendUint16(nil, t.local.Port()))
	proto = nlconn.AppendAttr(proto, protoDstPort, binary.BigEndian.AppendUint16(nil, t.remote.Port()))
	both := nlconn.AppendAttr(nil, nested|tupleIP, ip)
	both = nlconn.AppendAttr(both, nested|tupleProto, proto)
	return nlconn.AppendAttr(nlconn.NetfilterHeader(family), nested|ctTupleOrig, both)
}

// parseEntry reads the two directions of an entry. The local end of each is where its
// packets come from.
func parseEntry(message []byte) (original, reply tuple, err error) {
	if len(message) < nlconn.NetfilterHeaderSize {
		return tuple{}, tuple{}, fmt.Errorf("a conntrack entry of %d bytes", len(message))
	}
	attrs, err := nlconn.ParseAttrs(message[nlconn.NetfilterHeaderSize:])
	if err == nil {
		if original, err = parseDirection(attrs.Value(ctTupleOrig)); err == nil {
			reply, err = parseDirection(attrs.Value(ctTupleReply))
		}
	}
	if err != nil {
		return tuple{}, tuple{}, fmt.Errorf("a conntrack entry: %w", err)
	}
	return original, reply, nil
}

func parseDirection(b []byte) (tuple, error) {
	attrs, err := nlconn.ParseAttrs(b)
	if err != nil {
		return tuple{}, err
	}
	ip, err := nlconn.ParseAttrs(attrs.Value(tupleIP))
	if err != nil {
		return tuple{}, err
	}
	proto, err := nlconn.ParseAttrs(attrs.Value(tupleProto))
	if err != nil {
		return tuple{}, err
	}
	end := func(port uint16, addrs ...uint16) netip.AddrPort {
		for _, kind := range addrs {
			addr, ok := netip.AddrFromSlice(ip.Value(kind))
			if number := proto.Value(port); ok && len(number) == 2 {
				return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(number))
			}
		}
		return netip.AddrPort{}
	}
	t := tuple{local: end(protoSrcPort, ipSrc4, ipSrc6), remote: end(protoDstPort, ipDst4, ipDst6)}
	if !t.local.IsValid() || !t.remote.IsValid() {
		return tuple{}, errors.New("a direction without addresses and ports")
	}
	return t, nil
}
