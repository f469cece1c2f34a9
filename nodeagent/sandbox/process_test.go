package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// The process by which a namespace was found ends; the namespace lives on.
func TestPlaceOfAProcessThatEnds(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	n := newNode(t)
	stop := start(t, pod.Handle)
	n.write("20/cgroup", "0::"+cgroupOf+"c1\n")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/ns", stop.pid), filepath.Join(n.finder.Proc, "20/ns")); err != nil {
		t.Fatal(err)
	}
	found, missing := n.finder.Search(t.Context(), []sandbox.Wanted{wanted()})
	if got := outcome(found, missing, "u1"); got != "net by process 20 / [] checked:false 20" || found["u1"].ID != pod.Handle.ID() {
		t.Fatal(got)
	}
	checkOpens(t, n.finder, found)
	stop.kill()
	if place := found["u1"].Place; !place.Gone() {
		t.Error("the process has ended, and its path is not gone")
	} else if h, err := n.finder.Open(place); !errors.Is(err, sandbox.ErrNotAPods) {
		t.Errorf("opened %v, %v", h, err)
	}
	// Its number may still be listed.
	if _, missing := n.finder.Search(t.Context(), []sandbox.Wanted{wanted()}); !errors.Is(missing["u1"], sandbox.ErrNotFound) {
		t.Error(missing["u1"])
	}
	// Another process leads there.
	n.process(21, cgroupOf+"c2", pod.Path)
	n.mount(pod.Path)
	found, missing = n.finder.Search(t.Context(), []sandbox.Wanted{wanted()})
	if got := outcome(found, missing, "u1"); got != "pod by process 21 / [] checked:false 0" || found["u1"].ID != pod.Handle.ID() {
		t.Error(got)
	}
}

func TestRefusesProxies(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	proxy, pod := netlab.NewNS(t, "proxy"), netlab.NewNS(t, "pod")
	f := finder(t)
	before, err := f.Told(proxy.Path)
	if err != nil {
		t.Fatal(err)
	}
	child := start(t, proxy.Handle)
	connected := []int{child.pid}
	f.Proxies = func() []int { return connected }
	want := fmt.Sprintf("the network namespace of a connected proxy (process %d)", child.pid)
	if _, err := f.Told(proxy.Path); !errors.Is(err, sandbox.ErrNotAPods) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if h, err := f.Open(before); !errors.Is(err, sandbox.ErrNotAPods) {
		t.Errorf("opened %v, %v", h, err)
	}
	if _, err := f.Told(pod.Path); err != nil {
		t.Errorf("another's namespace: %v", err)
	}
	child.kill()
	if _, err := f.Told(proxy.Path); err != nil {
		t.Errorf("the proxy has ended: %v", err)
	}
	connected = nil
	if _, err := f.Told(proxy.Path); err != nil {
		t.Errorf("the proxy has gone: %v", err)
	}
}

// A child is a process in a namespace.
type child struct {
	pid  int
	kill func()
}

func start(t *testing.T, h *netns.Handle) child {
	t.Helper()
	return startBy(t, h.Do, nil)
}

func startBy(t *testing.T, do func(func() error) error, attr *syscall.SysProcAttr) child {
	t.Helper()
	in, out, err := os.Pipe() // cat lives as long as this is open, or until it is killed
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var p *os.Process
	if err := do(func() (err error) {
		p, err = os.StartProcess("/bin/cat", []string{"cat"}, &os.ProcAttr{Files: []*os.File{in, null, null}, Sys: attr})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	killed := false
	c := child{p.Pid, func() {
		if killed {
			return
		}
		killed = true
		err := p.Kill()
		_, waited := p.Wait()
		if err := errors.Join(err, waited, in.Close(), out.Close(), null.Close()); err != nil {
			t.Error(err)
		}
	}}
	t.Cleanup(c.kill)
	return c
}
