package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// later returns a time at which the kernel's own, coarser clock has passed now: what
// is made from then on is stamped with a later time.
func later(t *testing.T) time.Time {
	t.Helper()
	now := time.Now()
	netlab.Eventually(t, func() error {
		var coarse unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &coarse)
		if err == nil && !time.Unix(coarse.Unix()).After(now) {
			err = errors.New("the kernel's clock has not moved")
		}
		return err
	})
	return now
}

// leads makes a process of the node lead to what a child really is.
func (n *node) leads(pid int, c child) {
	n.t.Helper()
	n.write(fmt.Sprintf("%d/cgroup", pid), "0::"+cgroupOf+"c1\n")
	for _, name := range []string{"ns", "stat"} {
		if err := os.Symlink(fmt.Sprintf("/proc/%d/%s", c.pid, name), filepath.Join(n.finder.Proc, fmt.Sprint(pid), name)); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *node) born() time.Time {
	n.t.Helper()
	found, missing := n.finder.Search(n.t.Context(), []sandbox.Wanted{wanted()})
	if len(found) != 1 {
		n.t.Fatal(missing)
	}
	return found["u1"].Born
}

// A mounted namespace is as old as its mount, whatever happens to it later.
func TestBornWhenItWasMounted(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	before := later(t)
	pod := netlab.NewNS(t, "pod")
	if err := pod.Handle.Close(); err != nil { // the mount alone holds it
		t.Fatal(err)
	}
	after := later(t)
	cache := func(n *node) { n.cached("u1", "c1", "eth0", pod.Path) }
	process := func(n *node) {
		n.process(20, cgroupOf+"c1", pod.Path)
		n.mount(pod.Path)
	}
	var first time.Time
	for _, source := range []func(*node){cache, process, cache} {
		n := newNode(t)
		source(n)
		born := n.born()
		if !born.After(before) || !born.Before(after) {
			t.Errorf("born %s, want a time between %s and %s", born, before, after)
		}
		if first.IsZero() {
			first = born
		}
		if !born.Equal(first) {
			t.Errorf("born %s, and before that %s", born, first)
		}
		later(t)
		moved := filepath.Join(t.TempDir(), "moved")
		bind(t, pod.Path, moved)
		if err := os.Chtimes(moved, after, after); !errors.Is(err, unix.EPERM) {
			t.Errorf("its time can be changed: %v", err)
		}
	}
}

// A namespace that is mounted nowhere is as old as the oldest process in it.
func TestBornWithItsOldestProcess(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	stamps := []time.Time{awaitTick(t)}
	oldest := startBy(t, func(work func() error) error { return work() }, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	path := fmt.Sprintf("/proc/%d/ns/net", oldest.pid)
	stamps = append(stamps, awaitTick(t))
	younger := func() child { // in the same one
		h, err := netns.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c := start(t, h)
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		return c
	}()
	stamps = append(stamps, awaitTick(t))

	n := newNode(t)
	want := func(first, last time.Time) {
		t.Helper()
		if born := n.born(); born.Before(first) || !born.Before(last) {
			t.Errorf("born %s, want a time between %s and %s", born, first, last)
		}
	}
	n.leads(20, younger)
	want(stamps[1], stamps[2])
	n.leads(21, oldest)
	n.process(22, cgroupOf+"c1", path) // when this one started is not known
	want(stamps[0], stamps[1])
	// A mount that somebody makes later says nothing about it.
	mount := filepath.Join(t.TempDir(), "late")
	bind(t, path, mount)
	n.mount(mount)
	want(stamps[0], stamps[1])
}

// awaitTick returns a time that is some ticks, in which the starts of processes are
// counted, from what was before and from what comes.
func awaitTick(t *testing.T) time.Time {
	t.Helper()
	pass := func() {
		first := ticks(t)
		netlab.Eventually(t, func() error {
			if ticks(t) < first+2 {
				return errors.New("no tick has passed")
			}
			return nil
		})
	}
	pass()
	now := time.Now()
	pass()
	return now
}

func ticks(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() / int64(time.Second/100)
}

func TestBornIsNotKnown(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod := netlab.NewNS(t, "pod")
	n := newNode(t)
	n.process(20, cgroupOf+"c1", pod.Path)
	if born := n.born(); !born.IsZero() {
		t.Errorf("born %s", born)
	}
	if place, err := n.finder.Told(pod.Path); err != nil || !place.Born.IsZero() {
		t.Errorf("told: %+v, %v", place, err)
	}
}
