package netns_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

func TestMain(m *testing.M) { netlab.Main(m, 13) }

// here returns the identity of the namespace in which a socket made by the calling
// thread lies.
func here(t *testing.T) netns.ID {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	id, err := netns.SocketID(fd)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newHandle(t *testing.T) *netns.Handle {
	t.Helper()
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// inside returns the identity of the namespace that work inside h.Do happens in.
func inside(t *testing.T, h *netns.Handle) netns.ID {
	t.Helper()
	var id netns.ID
	if err := h.Do(func() error { id = here(t); return nil }); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestDoEntersAndComesBack(t *testing.T) {
	netlab.Kernel(t)
	outside := here(t)
	h := newHandle(t)
	if h.ID() == outside {
		t.Fatalf("a new namespace has the identity of the old one: %s", h.ID())
	}
	if got := inside(t, h); got != h.ID() {
		t.Errorf("inside Do: %s, want %s", got, h.ID())
	}
	if got := here(t); got != outside {
		t.Errorf("after Do: %s, want %s", got, outside)
	}
}

func TestDoReturnsTheError(t *testing.T) {
	netlab.Kernel(t)
	h := newHandle(t)
	want := errors.New("boom")
	if got := h.Do(func() error { return want }); !errors.Is(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDoNests(t *testing.T) {
	netlab.Kernel(t)
	a, b := newHandle(t), newHandle(t)
	err := a.Do(func() error {
		if got := inside(t, b); got != b.ID() {
			t.Errorf("inside b: %s, want %s", got, b.ID())
		}
		if got := here(t); got != a.ID() {
			t.Errorf("back inside a: %s, want %s", got, a.ID())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPanicAndGoexitInsideDo(t *testing.T) {
	netlab.Kernel(t)
	outside := here(t)
	h := newHandle(t)
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v, want boom", got)
			}
		}()
		_ = h.Do(func() error { panic("boom") })
	}()
	err := h.Do(func() error { runtime.Goexit(); return nil })
	if err == nil || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("Goexit inside Do gave %v", err)
	}
	if got := here(t); got != outside {
		t.Errorf("afterwards: %s, want %s", got, outside)
	}
}

// The trap: a library is handed the bare number of a file whose last reference
// that was. The file is closed by the collector, the number is reused or means
// nothing, and the work is done in the caller's namespace, without an error.
func TestGarbageCollectionDoesNotPullTheNamespaceAway(t *testing.T) {
	netlab.Kernel(t)
	for range 50 {
		h, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		want := h.ID()
		err = h.File(func(f *os.File) error {
			h = nil // the last reference but for the call itself
			collect()
			again, err := netns.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
			if err != nil {
				return err
			}
			if again.ID() != want {
				t.Errorf("the file is now namespace %s, want %s", again.ID(), want)
			}
			return again.Close()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		h, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		want := h.ID()
		err = h.Do(func() error {
			h = nil
			collect()
			if got := here(t); got != want {
				t.Errorf("work happened in %s, want %s", got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// collect closes whatever file nobody refers to, and takes the freed numbers.
func collect() {
	runtime.GC()
	runtime.GC()
	for range 4 {
		if f, err := os.Open("/proc/self/ns/net"); err == nil {
			defer func() { _ = f.Close() }()
		}
	}
}

func TestNeverFileDescriptorZero(t *testing.T) {
	netlab.Kernel(t)
	path := netlab.NewNS(t, "zero").Path
	stdin, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(unix.Dup2(stdin, 0), unix.Close(stdin)); err != nil {
			t.Fatal(err)
		}
	}()
	if err := unix.Close(0); err != nil {
		t.Fatal(err)
	}
	h, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	if err := h.File(func(f *os.File) error {
		if f.Fd() < 3 {
			t.Errorf("the namespace's file has number %d", f.Fd())
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestOpenRefusesWhatIsNoNetworkNamespace(t *testing.T) {
	netlab.Kernel(t)
	leftover := filepath.Join(t.TempDir(), "cni-1234")
	if err := os.WriteFile(leftover, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		leftover:            "not a namespace",
		fifo:                "not a namespace",
		t.TempDir():         "not a namespace",
		"/proc/self/ns/mnt": "not a network namespace",
		"/nowhere":          "no such file",
	} {
		h, err := netns.Open(path)
		if err == nil {
			t.Errorf("Open(%s) succeeded", path)
			_ = h.Close()
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s): %v; want it to name the path and %q", path, err, want)
		}
	}
}

func TestClosedHandle(t *testing.T) {
	netlab.Kernel(t)
	h := newHandle(t)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	_, dup := h.Dup()
	for what, err := range map[string]error{
		"Do":   h.Do(func() error { t.Error("Do ran"); return nil }),
		"File": h.File(func(*os.File) error { t.Error("File ran"); return nil }),
		"Dup":  dup,
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v, want os.ErrClosed", what, err)
		}
	}
}

func TestDupHasAnOwnerOfItsOwn(t *testing.T) {
	netlab.Kernel(t)
	h := newHandle(t)
	dup, err := h.Dup()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dup.Close() }()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if dup.ID() != h.ID() || inside(t, dup) != h.ID() {
		t.Errorf("the duplicate is %s, want %s", dup.ID(), h.ID())
	}
}

// Inode numbers come back as soon as a namespace is gone; cookies do not.
func TestIdentityIsNotReused(t *testing.T) {
	netlab.Kernel(t)
	seen := map[netns.ID]bool{}
	for range 20 {
		h, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		if seen[h.ID()] {
			t.Fatalf("%s was given twice", h.ID())
		}
		seen[h.ID()] = true
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	netlab.Kernel(t)
	var wg sync.WaitGroup
	for range 8 {
		h := newHandle(t)
		for range 4 {
			wg.Go(func() {
				for range 50 {
					if err := h.Do(func() error {
						if got := here(t); got != h.ID() {
							t.Errorf("inside: %s, want %s", got, h.ID())
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestTheFirstThreadStaysWhereItIs(t *testing.T) {
	netlab.Kernel(t)
	h := newHandle(t)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			for range 50 {
				if err := h.Do(func() error {
					if unix.Gettid() == os.Getpid() {
						return errors.New("it has left its namespace")
					}
					return nil
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}
