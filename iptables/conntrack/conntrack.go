// Package conntrack deletes those of a pod's connection tracking entries that would
// defeat a change of its redirects.
//
// A redirect is decided once, for the first packet of what conntrack takes for a
// connection, and kept in its entry. So a UDP socket that the app goes on asking
// its DNS server through keeps to the way it went before, as does a SYN that is
// sent again, until their entries are deleted.
//
// # Failures it survives
//
//   - An entry is gone before it is deleted: that is not an error, nor counted. If a
//     new one of the same addresses and ports took its place, by the rules as they
//     are now, that one goes instead: the next packet makes it again.
//   - The table changes while it is read: it is read again, what was seen is deleted
//     all the same, and an incomplete look is an error.
//   - Entries of any conntrack zone: they are deleted in their zone. Those of the
//     proxy's own DNS flows are left alone.
//   - One entry cannot be deleted: the others are.
//   - Entries by the hundred thousand, and somebody who makes them as fast as they are
//     deleted: some thousand at a time are remembered, and there is an end to it.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A Table is the connection tracking table of one network namespace.
type Table struct {
	conn *nlconn.Conn
	most int // entries that are remembered at a time
}

// A pod may fill the table, which is sized for the whole machine, with entries that are to
// be deleted.
const (
	mostEntries = 1 << 14
	rounds      = 16
)

// New borrows a netfilter socket in the namespace. One that is kept for the rules is
// best: to open another and close it right after a transaction of nftables makes the
// kernel wait until all of that transaction is done with, which takes 7 ms.
func New(conn *nlconn.Conn) *Table { return &Table{conn, mostEntries} }

// DeleteUncaptured is for the moment after redirects were put in place: it deletes
// the entries that would go on without being redirected, UDP to port 53 and TCP of
// which only a SYN was seen, and returns how many.
func (t *Table) DeleteUncaptured(ctx context.Context) (int, error) {
	return t.delete(ctx, entry.uncaptured)
}

// DeleteCaptured is for the moment after redirects and proxy are gone: it deletes
// the entries that still lead to one of the proxy's ports, and returns how many.
func (t *Table) DeleteCaptured(ctx context.Context) (int, error) {
	return t.delete(ctx, entry.captured)
}

// DeleteCapturedDNS is for the moment after the redirects of DNS alone were taken away:
// it deletes the entries of UDP that still lead to the proxy's DNS port, and returns how
// many.
func (t *Table) DeleteCapturedDNS(ctx context.Context) (int, error) {
	return t.delete(ctx, func(e entry) bool {
		return e.captured() && e.protocol == unix.IPPROTO_UDP && e.replySrcPort == ruleset.DNSPort
	})
}

// uncaptured says whether the entry keeps traffic from the proxy that it should get.
func (e entry) uncaptured() bool {
	const dns = 53
	switch {
	case e.captured(), e.zone == ruleset.DNSZone:
		return false
	case e.protocol == unix.IPPROTO_UDP:
		return e.dstPort == dns
	case e.protocol == unix.IPPROTO_TCP:
		return e.tcpState == tcpSynSent
	}
	return false
}

// captured says whether the entry is of a connection that was redirected to the
// proxy. One that was made to those ports by itself is not.
func (e entry) captured() bool {
	proxyPorts := []uint16{ruleset.OutboundPort, ruleset.InboundPort, ruleset.DNSPort}
	return e.status&statusDstNAT != 0 && slices.Contains(proxyPorts, e.replySrcPort)
}

func (t *Table) delete(ctx context.Context, which func(entry) bool) (int, error) {
	deleted := 0
	for range rounds {
		n, err := t.deleteSome(ctx, which)
		deleted += n
		if n == 0 || !errors.Is(err, errMore) {
			return deleted, err
		}
	}
	return deleted, fmt.Errorf("cannot delete all conntrack entries: there are still some after %d", deleted)
}

// errMore says that there are more entries than are remembered.
var errMore = errors.New("there are more")

func (t *Table) deleteSome(ctx context.Context, which func(entry) bool) (int, error) {
	entries, err := t.list(ctx, which)
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("cannot list conntrack entries: %w", err))
	}
	deleted := 0
	for _, e := range entries {
		err := t.conn.Request(ctx, subsystem|msgDelete, unix.NLM_F_ACK, e.key, nil)
		switch {
		case err == nil:
			deleted++
		case !errors.Is(err, unix.ENOENT):
			errs = append(errs, fmt.Errorf("cannot delete conntrack entry %s: %w", e, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return deleted, errors.Join(errs...)
}

// list returns the entries that which picks, as many as are remembered, and what there
// are of them with an error.
func (t *Table) list(ctx context.Context, which func(entry) bool) ([]entry, error) {
	picked := 0
	entries, err := nlconn.List(ctx, t.conn, subsystem|msgGet, nlconn.NetfilterHeader(unix.AF_UNSPEC), func(reply []byte) (entry, bool, error) {
		e, err := parse(reply)
		if err != nil || !which(e) {
			return e, false, err
		}
		if picked++; picked > t.most {
			return e, false, errMore
		}
		return e, true, nil
	})
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("the kernel lacks conntrack over netlink (module nf_conntrack_netlink): %w", err)
	}
	return entries, err
}
