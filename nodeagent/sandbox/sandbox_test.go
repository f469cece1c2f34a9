package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

func TestMain(m *testing.M) { netlab.Main(m, 20) }

func finder(t testing.TB) *sandbox.Finder {
	t.Helper()
	f, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOpensWhatTheRuntimeNamed(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod := netlab.NewNS(t, "pod")
	f := finder(t)
	place, err := f.Told(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	if place.ID != pod.Handle.ID() || place.Source != sandbox.SourceADD || place.Gone() {
		t.Errorf("%+v, gone %v; want %s", place, place.Gone(), pod.Handle.ID())
	}
	h, err := f.Open(place)
	if err != nil {
		t.Fatal(err)
	}
	if h.ID() != pod.Handle.ID() {
		t.Errorf("opened %s, want %s", h.ID(), pod.Handle.ID())
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	f := finder(t)
	leftover := filepath.Join(t.TempDir(), "cni-1")
	if err := os.WriteFile(leftover, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/proc/self/ns/net": "the node's own network namespace",
		"/proc/1/ns/net":    "the node's own network namespace",
		leftover:            "not a namespace",
		"/run/netns/gone":   "no such file",
	} {
		place, err := f.Told(path)
		if err == nil {
			t.Errorf("%s was taken: %+v", path, place)
			continue
		}
		if !errors.Is(err, sandbox.ErrNotAPods) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want it to name the path and %q", path, err, want)
		}
	}
}

// The path outlives the namespace: as a plain file, as another namespace, or not.
func TestNoticesThatANamespaceIsGone(t *testing.T) {
	netlab.Kernel(t)
	f := finder(t)
	for name, replace := range map[string]func(*netlab.NS) error{
		"unmounted": func(pod *netlab.NS) error { return pod.Unmount() },
		"removed": func(pod *netlab.NS) error {
			return errors.Join(pod.Unmount(), os.Remove(pod.Path), os.WriteFile(pod.Path+"x", nil, 0o600))
		},
		"another": func(pod *netlab.NS) error {
			other, err := netlab.Create("other")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = other.Close() })
			return errors.Join(pod.Unmount(), unix.Mount(other.Path, pod.Path, "", unix.MS_BIND, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := netlab.Create("pod")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pod.Close() })
			place, err := f.Told(pod.Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := replace(pod); err != nil {
				t.Fatal(err)
			}
			if !place.Gone() {
				t.Error("not noticed")
			}
			if h, err := f.Open(place); !errors.Is(err, sandbox.ErrNotAPods) {
				t.Errorf("opened %v, %v", h, err)
			}
		})
	}
}

// Being out of file descriptors says nothing about the namespace.
func TestOutOfDescriptors(t *testing.T) {
	netlab.Kernel(t)
	f := finder(t)
	pod := netlab.NewNS(t, "pod")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := f.Told(pod.Path)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, sandbox.ErrNotAPods) {
		t.Errorf("got %v", err)
	}
}
