package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// Reading is repeated when the ruleset changes under it, this often and this long.
const (
	readAttempts = 3
	readTime     = 50 * time.Millisecond
)

// Table is our table in one network namespace. Its methods may be called at the same time.
type Table struct {
	conn *nlconn.Conn
	mu   sync.Mutex // held while writing and checking, so that a Check does not see our own change in motion
}

// Open opens a socket in the namespace and keeps it. It reads and changes nothing.
//
// The Table borrows h, which has to stay open for as long as the Table is used.
func Open(h *netns.Handle) (*Table, error) {
	conn, err := nlconn.Open(h, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &Table{conn: conn}, nil
}

// Netfilter is the Table's socket, lent for what else there is to ask netfilter in the namespace.
func (t *Table) Netfilter() *nlconn.Conn { return t.conn }

// Close gives the socket up; it keeps the namespace alive until then. Calling it again does nothing.
func (t *Table) Close() error { return t.conn.Close() }

// request is a message of the nf_tables subsystem. Its payload begins with a header.
func request(kind, flags uint16, payload []byte) nlconn.Message {
	return nlconn.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: flags, Payload: payload}
}

// header is the start of a request about tables of family inet.
func header() []byte { return nlconn.NetfilterHeader(unix.NFPROTO_INET) }

// named is a request's payload that names one object.
func named(kind uint16, name string) []byte { return nlconn.AppendText(header(), kind, name) }

// ask sends a request and calls each with the attributes of each answer.
func (t *Table) ask(ctx context.Context, kind, flags uint16, payload []byte, each func(nlconn.Attrs) error) error {
	m := request(kind, flags, payload)
	return t.conn.Request(ctx, m.Kind, m.Flags, m.Payload, func(reply []byte) error {
		if len(reply) < nlconn.NetfilterHeaderSize {
			return fmt.Errorf("an answer of %d bytes", len(reply))
		}
		attrs, err := nlconn.ParseAttrs(reply[nlconn.NetfilterHeaderSize:])
		if err != nil {
			return err
		}
		return each(attrs)
	})
}

// each dumps objects that match the attributes, of one family or all, and tells of which family each is.
func (t *Table) each(ctx context.Context, kind uint16, family uint8, attrs []byte, take func(family uint8, a nlconn.Attrs) error) error {
	m := request(kind, unix.NLM_F_DUMP, append(nlconn.NetfilterHeader(family), attrs...))
	return t.conn.Request(ctx, m.Kind, m.Flags, m.Payload, func(reply []byte) error {
		if len(reply) < nlconn.NetfilterHeaderSize {
			return fmt.Errorf("an answer of %d bytes", len(reply))
		}
		a, err := nlconn.ParseAttrs(reply[nlconn.NetfilterHeaderSize:])
		if err != nil {
			return err
		}
		return take(reply[0], a)
	})
}

// number is an attribute's value, 0 if there is none.
func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// Port is the number by which the kernel's notifications name our socket as the one that asked for a change.
func (t *Table) Port() (uint32, error) { return t.conn.Port() }

// Generation is the number of the namespace's nftables ruleset. Every change of it, by anybody and of any table, makes
// another number: as long as it stays, Check would find what it found before.
func (t *Table) Generation() (uint32, error) { return t.generation(context.Background()) }

func (t *Table) generation(ctx context.Context) (uint32, error) {
	var id uint32
	err := t.ask(ctx, unix.NFT_MSG_GETGEN, 0, header(), func(a nlconn.Attrs) error {
		value := a.Value(unix.NFTA_GEN_ID)
		if value == nil {
			return errors.New("the kernel gives it none")
		}
		id = number(value)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("cannot read the number of the ruleset: %w", err)
	}
	return id, nil
}

// Apply replaces the whole table by the wanted one in one transaction, whatever it was before. When it fails nothing has
// changed.
//
// If the wanted one redirects, what istio-cni left goes in the same transaction. Before ours redirect it would open the pod up.
func (t *Table) Apply(ctx context.Context, want ruleset.Ruleset) error {
	steps, err := replacement(want)
	if err != nil {
		return err
	}
	if redirects(want) {
		return t.takeOver(ctx, steps)
	}
	return t.run(ctx, steps)
}

// Remove removes the table, and what istio-cni left. That there is none is fine.
func (t *Table) Remove(ctx context.Context) error {
	stands, err := t.Stands(ctx)
	if err != nil {
		return err
	}
	var steps []step
	if stands {
		steps = []step{{what: "the table's removal", message: request(unix.NFT_MSG_DELTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table))}}
	}
	if err = t.takeOver(ctx, steps); errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Stands says whether our table is there, whatever is in it.
func (t *Table) Stands(ctx context.Context) (bool, error) {
	err := t.ask(ctx, unix.NFT_MSG_GETTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table), func(nlconn.Attrs) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look for table inet %s: %w", ruleset.Table, err)
	}
	return true, nil
}

// Check reads the table and says how it differs from the wanted one. A table that is changed again and again while it is
// read counts as one that differs.
func (t *Table) Check(ctx context.Context, want ruleset.Ruleset) (ruleset.Diff, error) {
	var r *reader
	settled, err := t.settled(ctx, func() error {
		r = &reader{Table: t, want: want}
		return r.read(ctx)
	})
	switch {
	case err != nil:
		return nil, err
	case !settled:
		return ruleset.Diff{{Kind: ruleset.InMotion, Where: "table inet " + ruleset.Table}}, nil
	}
	return ruleset.Compare(want, r.got), nil
}

// settled reads between two looks at the ruleset's number, until it is the same, and says whether it has ever been.
func (t *Table) settled(ctx context.Context, read func() error) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	deadline := time.Now().Add(readTime)
	for attempt := 1; ; attempt++ {
		err := t.between(ctx, read)
		if !errors.Is(err, nlconn.ErrInterrupted) {
			return err == nil, err
		}
		if attempt == readAttempts || time.Now().After(deadline) {
			return false, nil
		}
	}
}

func (t *Table) between(ctx context.Context, read func() error) error {
	before, err := t.generation(ctx)
	if err != nil {
		return err
	}
	if err := read(); err != nil {
		return err
	}
	after, err := t.generation(ctx)
	if err == nil && after != before {
		err = nlconn.ErrInterrupted
	}
	return err
}
