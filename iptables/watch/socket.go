package watch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

const (
	// receiveBuffer is for some dozens of messages; the kernel doubles it.
	receiveBuffer = 16 << 10
	// maxMessages are read at a time.
	maxMessages = 64
)

// A source is what a kind of socket hears.
type source struct {
	protocol int
	groups   []int
	filter   []unix.SockFilter
	parse    func(*Change, message)
	all      What
}

var (
	nftables = source{unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, onlyGenerations(), parseGeneration, Ruleset}
	rtnl     = source{unix.NETLINK_ROUTE, []int{
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	}, nil, parseRoute, allOfRoute}
)

// onlyGenerations lets pass what the kernel sends at the end of each transaction, and
// not what it sends before: a message for each object that was added or deleted.
func onlyGenerations() []unix.SockFilter {
	const kindOffset = 4
	// The filter reads numbers as big-endian; the kernel has written this one as its own.
	kind := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, newGeneration))
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kindOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(kind), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// A socket hears one source in one namespace.
type socket struct {
	*source
	fd int
}

func openSockets(h *netns.Handle) (sockets [2]socket, err error) {
	for i, src := range []*source{&nftables, &rtnl} {
		s := socket{source: src}
		if s.fd, err = nlconn.Socket(h, src.protocol); err == nil {
			sockets[i] = s
			err = s.subscribe()
		}
		if err != nil {
			return sockets, errors.Join(err, closeAll(sockets))
		}
	}
	return sockets, nil
}

// subscribe joins the groups, after what makes the messages few.
func (s socket) subscribe() error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer); err != nil {
		return fmt.Errorf("cannot limit the buffer for notifications: %w", err)
	}
	if s.filter != nil {
		program := unix.SockFprog{Len: uint16(len(s.filter)), Filter: &s.filter[0]}
		if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
			return fmt.Errorf("cannot attach a filter for notifications: %w", err)
		}
	}
	for _, group := range s.groups {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			return fmt.Errorf("cannot join group %d of netlink protocol %d: %w", group, s.protocol, err)
		}
	}
	return nil
}

// closeAll closes those of the sockets that were opened.
func closeAll(sockets [2]socket) error {
	var errs []error
	for _, s := range sockets {
		if s.source != nil {
			errs = append(errs, unix.Close(s.fd))
		}
	}
	return errors.Join(errs...)
}

// read adds to a Change what the socket has heard. It reads a bounded number of
// messages: if there are more, the socket stays readable. The kernel sends no more
// ENOBUFS until all are read.
func (s socket) read(c *Change) (heard bool) {
	var buf [256]byte // more than the begin of a message is not needed
	for range maxMessages {
		n, from, err := unix.Recvfrom(s.fd, buf[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		heard = true
		if err != nil {
			c.What |= s.all
			continue
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel
		}
		s.take(c, buf[:min(n, len(buf))], n)
	}
	return heard
}

// take adds to a Change what a datagram of size bytes says, of which begin is the begin.
func (s *source) take(c *Change, begin []byte, size int) {
	if m, ok := parse(begin, size); ok {
		s.parse(c, m)
	} else {
		c.What |= s.all
	}
}
