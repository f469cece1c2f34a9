package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A namespace that nobody else holds any more goes with the Watch, and takes its end
// of a veth pair along.
func TestCloseLetsTheNamespaceGo(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	pod, err := netlab.Create("pod")
	if err != nil {
		t.Fatal(err)
	}
	host := netlab.NewNS(t, "host")
	netlab.Connect(t, netlab.Port{NS: pod, Link: "eth0"}, netlab.Port{NS: host, Link: "veth0"})
	watch, r := add(t, w, pod.Handle)
	_, hostRecord := add(t, w, host.Handle)
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, host, "ip link set veth0 down") // the pod's end loses its carrier
	r.wait(t, Links, "")
	hostRecord.wait(t, Links, "")
	for range 2 {
		if err := watch.Close(); err != nil {
			t.Error(err)
		}
	}
	netlab.Eventually(t, func() error {
		if links := netlab.MustRun(t, host, "ip", "-o", "link"); strings.Contains(links, "veth0") {
			return fmt.Errorf("still there: %s", links)
		}
		return nil
	})
}

func TestCloseInsideACall(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n := netlab.NewNS(t, "a")
	closed := make(chan error)
	var watch *Watch
	ready := make(chan struct{})
	watch, err := w.Add(n.Handle, func(Change) {
		<-ready
		closed <- watch.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	close(ready)
	run(t, n, "nft add table ip t")
	if err := <-closed; err != nil {
		t.Error(err)
	}
	_, r := add(t, w, n.Handle)
	run(t, n, "nft delete table ip t")
	r.wait(t, Ruleset, "nft")
}

func TestAddFails(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n := netlab.NewNS(t, "a")
	gone, err := n.Handle.Dup()
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	unexpected := func(c Change) { t.Errorf("changes of %s", c.What) }
	want := fmt.Sprintf("cannot watch network namespace %s: ", gone.ID())
	if _, err := w.Add(gone, unexpected); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("in a closed namespace: %v", err)
	}
	limited(t, func() {
		if _, err := w.Add(n.Handle, unexpected); !errors.Is(err, unix.EMFILE) {
			t.Errorf("without a free file descriptor: %v", err)
		}
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add(n.Handle, unexpected); !errors.Is(err, os.ErrClosed) {
		t.Errorf("in a closed Watcher: %v", err)
	}
}

// limited runs fn while no more files can be opened than there are, and a few: enough
// for one socket, not for two.
func limited(t *testing.T, fn func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	defer func() {
		for _, f := range held {
			_ = f.Close() // nothing was written
		}
	}()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	const free = 2 // the thread's own namespace, and the first socket, which stays
	for _, f := range held[len(held)-free:] {
		_ = f.Close() // nothing was written
	}
	held = held[:len(held)-free]
	fn()
}

func TestRunEndsWithItsContext(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"cancelled before": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx, cancel
		},
		"cancelled later": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 10*time.Millisecond)
		},
	} {
		w, err := New()
		if err != nil {
			t.Fatal(err)
		}
		watch, _ := add(t, w, n.Handle)
		ctx, cancel := ctx()
		if err := w.Run(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		if err := watch.Close(); err != nil {
			t.Errorf("%s: closing what is closed: %v", name, err)
		}
		if err := w.Run(context.Background()); err != nil {
			t.Errorf("%s: running what is closed: %v", name, err)
		}
	}
}
