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

// rooted is a Finder whose node has a root of its own, with the runtime's directory and a
// /var/run that is an absolute link, and where that root is.
func rooted(t *testing.T) (f *sandbox.Finder, root string) {
	t.Helper()
	f = finder(t)
	f.Proc = t.TempDir()
	root = filepath.Join(f.Proc, "1/root")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "run/docker/netns"), 0o700), os.Mkdir(filepath.Join(root, "var"), 0o700),
		os.Symlink("/run", filepath.Join(root, "var/run")),
	); err != nil {
		t.Fatal(err)
	}
	return f, root
}

// A namespace in a directory that is not mounted for the agent is found, opened, and seen to
// go, as the node sees it.
func TestNamespaceInTheNodesRoot(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod := netlab.NewNS(t, "pod")
	f, root := rooted(t)
	for _, path := range []string{"/var/run/docker/netns/c1", "/run/docker/netns/../../docker/netns/c1", "/../../../run/docker/netns/c1"} {
		t.Run(path, func(t *testing.T) {
			at := filepath.Join(root, "run/docker/netns/c1")
			if err := errors.Join(os.WriteFile(at, nil, 0o600), unix.Mount(pod.Path, at, "", unix.MS_BIND, "")); err != nil {
				t.Fatal(err)
			}
			place, err := f.Told(path)
			if err == nil {
				checkOpens(t, f, map[string]sandbox.Found{"": {Place: place}})
			}
			if err != nil || place.ID != pod.Handle.ID() || place.Path != path {
				t.Errorf("%+v, %v; want %s", place, err, pod.Handle.ID())
			}
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			if !place.Gone() {
				t.Error("it is not seen to be gone")
			}
			if _, err := f.Open(place); !errors.Is(err, sandbox.ErrNotAPods) {
				t.Errorf("opened what is gone: %v", err)
			}
		})
	}
}

// What is no namespace to the agent, as a file that one is mounted on elsewhere, may be one to
// the node.
func TestNamespaceThatIsAFileToTheAgent(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	f, root := rooted(t)
	file := filepath.Join(t.TempDir(), "c1")
	at := filepath.Join(root, file)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.MkdirAll(filepath.Dir(at), 0o700)); err != nil {
		t.Fatal(err)
	}
	bind(t, pod.Path, at)
	if place, err := f.Told(file); err != nil || place.ID != pod.Handle.ID() || place.Gone() {
		t.Errorf("%+v, %v; want %s", place, err, pod.Handle.ID())
	}
}

// No link leads out of the node's root, or by a process; nor is the node's own namespace
// taken because it goes by another name there.
func TestRefusalsInTheNodesRoot(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	ours := netlab.NewNS(t, "ours")
	f, root := rooted(t)
	dir := filepath.Join(root, "run/docker/netns")
	if err := errors.Join(
		os.Symlink(ours.Path, filepath.Join(dir, "absolute")),
		os.Symlink("../../../../../../../../.."+ours.Path, filepath.Join(dir, "relative")),
		os.Symlink("/proc/1/ns/net", filepath.Join(dir, "process")),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Mkdir(filepath.Join(root, "proc"), 0o700),
		unix.Mount("/proc", filepath.Join(root, "proc"), "", unix.MS_BIND, ""),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(filepath.Join(root, "proc"), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	bind(t, "/proc/self/ns/net", filepath.Join(dir, "host"))
	bind(t, "/proc/self/ns/uts", filepath.Join(dir, "uts"))
	for name, want := range map[string]string{
		"host":     "it is the node's own network namespace",
		"absolute": "no such file",
		"relative": "no such file",
		"process":  "too many levels of symbolic links",
		"file":     "not a namespace",
		"fifo":     "not a namespace",
		"uts":      "not a network namespace",
		"gone":     "no such file",
	} {
		path := "/var/run/docker/netns/" + name
		place, err := f.Told(path)
		if err == nil {
			t.Errorf("%s was taken: %+v", name, place)
			continue
		}
		if !errors.Is(err, sandbox.ErrNotAPods) || errors.Is(err, sandbox.ErrAnothers) != (name == "host") ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want it to name the path and %q", name, err, want)
		}
	}
}
