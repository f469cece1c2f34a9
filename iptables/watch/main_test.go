package watch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

func TestMain(m *testing.M) { netlab.Main(m, 15) }

// start runs a Watcher until the end of the test, when nothing of it may be left.
func start(t testing.TB) *Watcher {
	t.Helper()
	netlab.CheckLeaks(t)
	before := goleak.IgnoreCurrent()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Errorf("closing what is closed: %v", err)
		}
		goleak.VerifyNone(t, before)
	})
	return w
}

// A record is of the calls for one namespace.
type record struct {
	mu    sync.Mutex
	calls []Change
}

func (r *record) changed(c Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// sum is all calls so far as one.
func (r *record) sum() (all Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		all.What |= c.What
		all.By = append(all.By, c.By...)
	}
	return all
}

// wait waits until a change has been seen, and for the ruleset who made it.
func (r *record) wait(t testing.TB, what What, by string) {
	t.Helper()
	netlab.Eventually(t, func() error {
		all := r.sum()
		named := by == "" || slices.ContainsFunc(all.By, func(p Process) bool { return p.Name == by && p.PID > 0 })
		if all.What&what != what || !named {
			return fmt.Errorf("changes of %s by %+v; want %s by %q", all.What, all.By, what, by)
		}
		return nil
	})
}

func add(t testing.TB, w *Watcher, h *netns.Handle) (*Watch, *record) {
	t.Helper()
	var r record
	watch, err := w.Add(h, r.changed)
	if err != nil {
		t.Fatal(err)
	}
	return watch, &r
}

// A changer changes the ruleset of a namespace, as fast as the kernel can.
type changer struct {
	conn  *nlconn.Conn
	table string
}

func newChanger(t testing.TB, n *netlab.NS) *changer {
	t.Helper()
	conn, err := nlconn.Open(n.Handle, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return &changer{conn, "changed"}
}

// change adds a table, or deletes it.
func (c *changer) change(add bool) error {
	kind, flags := uint16(unix.NFT_MSG_DELTABLE), uint16(0)
	if add {
		kind, flags = unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE
	}
	_, err := c.conn.Batch(context.Background(), unix.NFNL_SUBSYS_NFTABLES, []nlconn.Message{{
		Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: flags,
		Payload: nlconn.AppendText(nlconn.NetfilterHeader(unix.NFPROTO_INET), unix.NFTA_TABLE_NAME, c.table),
	}})
	return err
}

// loop adds and deletes until stop is closed, and returns how many times it did. It
// calls each before each time: the call may come before the changer knows it is done.
func (c *changer) loop(t testing.TB, stop <-chan struct{}, each func(n int)) (n int) {
	for {
		select {
		case <-stop:
			return n
		default:
		}
		n++
		each(n)
		if err := c.change(n%2 == 1); err != nil {
			t.Error(err)
			return n
		}
	}
}
