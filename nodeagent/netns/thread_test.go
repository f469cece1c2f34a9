package netns_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

func cgroupSpace(t *testing.T) string {
	t.Helper()
	space, err := os.Readlink("/proc/thread-self/ns/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return space
}

// newCgroupSpace makes a cgroup namespace on a thread that ends with it.
func newCgroupSpace(t *testing.T) (space *os.File, name string) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		err := unix.Unshare(unix.CLONE_NEWCGROUP)
		if err == nil {
			space, err = os.Open("/proc/thread-self/ns/cgroup")
			name = cgroupSpace(t)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() }) // it was only looked at
	return space, name
}

func TestInCgroupEntersAndComesBack(t *testing.T) {
	netlab.Kernel(t)
	home := cgroupSpace(t)
	space, want := newCgroupSpace(t)
	if want == home {
		t.Fatal("the new cgroup namespace is the old one")
	}
	for range 20 {
		if err := netns.InCgroup(space, func() error {
			if got := cgroupSpace(t); got != want {
				t.Errorf("inside: %s, want %s", got, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got := cgroupSpace(t); got != home {
			t.Errorf("outside: %s, want %s", got, home)
		}
	}
	other, err := os.Open("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }() // it was only looked at
	err = netns.InCgroup(other, func() error { t.Error("it was entered"); return nil })
	if err == nil || !strings.Contains(err.Error(), "cannot enter the cgroup namespace /proc/self/ns/uts: invalid argument") {
		t.Errorf("another kind of namespace: %v", err)
	}
}
