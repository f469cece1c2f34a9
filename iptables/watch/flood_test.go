package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestFloodIsBounded(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	hostile, quiet := netlab.NewNS(t, "hostile"), netlab.NewNS(t, "quiet")
	c := newChanger(t, hostile)
	var begun, seen, calls atomic.Int64
	begin := time.Now()
	if _, err := w.Add(hostile.Handle, func(c Change) {
		seen.Store(begun.Load())
		calls.Add(1)
	}); err != nil {
		t.Fatal(err)
	}
	_, other := add(t, w, quiet.Handle)
	stop := make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() { c.loop(t, stop, func(n int) { begun.Store(int64(n)) }) })

	netlab.Eventually(t, func() error { // the flood is on, and is heard at its pace
		if n := calls.Load(); n < int64(credit/interval)+5 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	run(t, quiet, "nft add table ip t")
	other.wait(t, Ruleset, "nft")
	close(stop)
	loop.Wait()
	netlab.Eventually(t, func() error { // the last change is not lost
		if begun, seen := begun.Load(), seen.Load(); begun != seen {
			return fmt.Errorf("%d changes, the last call came after %d", begun, seen)
		}
		return nil
	})
	most := int64((time.Since(begin) + credit) / interval)
	t.Logf("%d changes in %v: %d calls", begun.Load(), time.Since(begin).Round(time.Millisecond), calls.Load())
	if n := calls.Load(); n > most+1 {
		t.Errorf("%d calls, more than %d", n, most+1)
	}
}

// Before Run nothing is read, so that the buffers overflow.
func TestOverflowIsAChange(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	watch, r := add(t, w, n.Handle)
	c := newChanger(t, n)
	for i := range 1000 {
		if err := c.change(i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	var batch strings.Builder
	for i := range 500 {
		fmt.Fprintf(&batch, "rule add pref %d lookup 100\n", i+1)
	}
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, n, "ip -batch "+file)

	// What stands in the buffers is of the first changes alone, and of ip rules.
	change, heard := watch.hear()
	if !heard || change.What != Ruleset|allOfRoute {
		t.Errorf("%t, changes of %s", heard, change.What)
	}
	for heard { // in a bounded number of turns
		_, heard = watch.hear()
	}
	ended := make(chan error)
	go func() { ended <- w.Run(t.Context()) }()
	run(t, n, "nft add table ip after")
	r.wait(t, Ruleset, "nft")
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCloseUnderFlood(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	hostile := netlab.NewNS(t, "hostile")
	c := newChanger(t, hostile)
	stop := make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() { c.loop(t, stop, func(int) {}) })
	for i := range 30 { // some within the credit, some at rest
		var calls atomic.Int32
		watch, err := w.Add(hostile.Handle, func(Change) { calls.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		netlab.Eventually(t, func() error {
			if n := calls.Load(); n <= int32(i)%8 {
				return fmt.Errorf("%d calls", n)
			}
			return nil
		})
		if err := watch.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.Add(hostile.Handle, func(Change) {}); err != nil { // the Watcher closes it
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	loop.Wait()
}

func TestManyComeAndGo(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	var workers sync.WaitGroup
	for i := range 8 {
		n := netlab.NewNS(t, fmt.Sprintf("n%d", i))
		c := newChanger(t, n)
		workers.Go(func() {
			for i := range 20 {
				called := make(chan Change, 10)
				watch, err := w.Add(n.Handle, func(c Change) {
					select {
					case called <- c:
					default:
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.change(i%2 == 0); err != nil {
					t.Error(err)
				}
				if got := <-called; got.What != Ruleset {
					t.Errorf("changes of %s", got.What)
				}
				if err := watch.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}
