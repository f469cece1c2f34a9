package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	namespace *netns.Handle // borrowed: its owner closes it after the Table

	mu     sync.Mutex
	socket *socket // nil once closed
}

// Open opens a socket in the namespace and keeps it. It reads and changes nothing.
//
// The Table borrows h, which has to stay open for as long as the Table is used.
func Open(h *netns.Handle) (*Table, error) {
	s, err := openIn(h)
	if err != nil {
		return nil, err
	}
	return &Table{namespace: h, socket: s}, nil
}

// openIn opens a socket in the namespace, and makes sure that it is there: rules written into another namespace, the
// host's perhaps, would do their work there.
func openIn(h *netns.Handle) (*socket, error) {
	var s *socket
	if err := h.Do(func() (err error) {
		s, err = openSocket()
		return err
	}); err != nil {
		return nil, fmt.Errorf("cannot reach nf_tables of network namespace %s: %w", h.ID(), err)
	}
	if err := s.checkNamespace(h.ID()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *socket) checkNamespace(want netns.ID) error {
	got, err := netns.SocketID(s.fd)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("a netfilter socket for network namespace %s is in %s: nothing was written", want, got)
	}
	return nil
}

// Close gives the socket up; it keeps the namespace alive until then. Calling it again does nothing.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.socket == nil {
		return nil
	}
	s := t.socket
	t.socket = nil
	return s.close()
}

// use runs fn with the socket, alone.
func (t *Table) use(ctx context.Context, fn func(*socket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.socket == nil {
		return fmt.Errorf("table inet %s of network namespace %s: %w", ruleset.Table, t.namespace.ID(), os.ErrClosed)
	}
	return fn(t.socket)
}

// Generation is the number of the namespace's nftables ruleset. Every change of it, by anybody and of any table, makes
// another number: as long as it stays, Check would find what it found before.
func (t *Table) Generation() (uint32, error) {
	var number uint32
	err := t.use(context.Background(), func(s *socket) (err error) {
		number, err = s.generation()
		return err
	})
	return number, err
}

func (s *socket) generation() (uint32, error) {
	answer, err := s.get(request(unix.NFT_MSG_GETGEN, 0, nil))
	if err != nil {
		return 0, fmt.Errorf("cannot read the number of the ruleset: %w", err)
	}
	a, err := decode(answer)
	if err != nil {
		return 0, err
	}
	if _, ok := a.get(unix.NFTA_GEN_ID); !ok {
		return 0, errors.New("the kernel gives the ruleset no number")
	}
	return a.uint32(unix.NFTA_GEN_ID), nil
}

// Apply replaces the whole table by the wanted one in one transaction, whatever it was before. When it fails nothing has
// changed.
func (t *Table) Apply(ctx context.Context, want ruleset.Ruleset) error {
	steps, err := replacement(want)
	if err != nil {
		return err
	}
	return t.use(ctx, func(s *socket) error { return s.run(steps) })
}

// Remove removes the table. That there is none is fine.
func (t *Table) Remove(ctx context.Context) error {
	steps := []step{{what: "the table's removal", message: request(unix.NFT_MSG_DELTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table))}}
	err := t.use(ctx, func(s *socket) error { return s.run(steps) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Check reads the table and says how it differs from the wanted one. A table that is changed again and again while it is
// read counts as one that differs.
func (t *Table) Check(ctx context.Context, want ruleset.Ruleset) (ruleset.Diff, error) {
	var diff ruleset.Diff
	err := t.use(ctx, func(s *socket) error {
		deadline := time.Now().Add(readTime)
		for attempt := 1; ; attempt++ {
			got, err := t.readOnce(want)
			switch {
			case err == nil:
				diff = ruleset.Compare(want, got)
				return nil
			case !errors.Is(err, errMotion):
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			case attempt == readAttempts || time.Now().After(deadline):
				diff = ruleset.Diff{{Kind: ruleset.InMotion, Where: "table inet " + ruleset.Table}}
				return nil
			}
		}
	})
	return diff, err
}

// readOnce reads the table between two looks at the ruleset's number.
func (t *Table) readOnce(want ruleset.Ruleset) (ruleset.Ruleset, error) {
	before, err := t.socket.generation()
	if err != nil {
		return ruleset.Ruleset{}, err
	}
	r := &reader{Table: t, want: want}
	if err := r.read(); err != nil {
		return ruleset.Ruleset{}, err
	}
	after, err := t.socket.generation()
	if err == nil && after != before {
		err = errMotion
	}
	return r.got, err
}

// reopen exchanges the socket for one on which no dump is running.
func (t *Table) reopen() error {
	s, err := openIn(t.namespace)
	if err != nil {
		return err
	}
	old := t.socket
	t.socket = s
	return old.close()
}
