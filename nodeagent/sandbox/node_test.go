package sandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// A node is a cache and a /proc of files, in front of real namespaces.
type node struct {
	t      testing.TB
	finder *sandbox.Finder
	next   int
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, finder: finder(t)}
	n.finder.CNICache, n.finder.Proc = t.TempDir(), t.TempDir()
	n.write("self/cgroup", "0::/\n")
	n.write("self/mountinfo", "")
	return n
}

func (n *node) write(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.finder.Proc, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

// process adds a process in a cgroup and the namespace at a path.
func (n *node) process(pid int, cgroup, path string) {
	n.t.Helper()
	n.write(fmt.Sprintf("%d/cgroup", pid), "0::"+cgroup+"\n")
	dir := filepath.Join(n.finder.Proc, fmt.Sprint(pid), "ns")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(path, filepath.Join(dir, "net"))); err != nil {
		n.t.Fatal(err)
	}
}

// cached adds an entry of a pod's in the cache.
func (n *node) cached(uid, container, ifname, path string, ips ...string) {
	n.t.Helper()
	var list []map[string]string
	for _, ip := range ips {
		list = append(list, map[string]string{"address": ip})
	}
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": container, "ifName": ifname, "netns": path,
		"cniArgs": [][2]string{{"K8S_POD_UID", uid}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"}},
		"result":  map[string]any{"cniVersion": "1.0.0", "ips": list},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.next++
	if err := os.WriteFile(filepath.Join(n.finder.CNICache, fmt.Sprintf("net-%d", n.next)), text, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func wanted(ips ...string) sandbox.Wanted {
	w := sandbox.Wanted{UID: "u1", Namespace: "shop", Name: "web"}
	for _, ip := range ips {
		w.IPs = append(w.IPs, netip.MustParseAddr(ip))
	}
	return w
}

// outcome is a Found as text, or the error.
func outcome(found map[string]sandbox.Found, missing map[string]error, uid string) string {
	f, is := found[uid]
	if err := missing[uid]; (err != nil) == is {
		return fmt.Sprintf("found %v, and error %v", is, err)
	} else if err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(fmt.Sprintf("%s by %s %s/%s %v checked:%v %d", filepath.Base(f.Path), f.Source, f.ContainerID, f.Interface, f.IPs, f.Checked, f.Process))
}

// checkOpens checks that what was found can be opened, and is not gone.
func checkOpens(t *testing.T, f *sandbox.Finder, found map[string]sandbox.Found) {
	t.Helper()
	for _, place := range found {
		if place.Gone() {
			t.Errorf("%s is gone", place.Path)
		}
		h, err := f.Open(place.Place)
		if err != nil {
			t.Error(err)
			continue
		}
		if h.ID() != place.ID {
			t.Errorf("%s is %s, want %s", place.Path, h.ID(), place.ID)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(to, nil, 0o600), unix.Mount(from, to, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func (n *node) mount(path string) { n.mountAs(path, path) }

// mountAs writes into mountinfo that the namespace at a path is mounted somewhere.
func (n *node) mountAs(path, somewhere string) {
	n.t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		n.t.Fatal(err)
	}
	n.write("self/mountinfo", fmt.Sprintf("22 28 0:20 / /sys rw - sysfs none rw\n63 43 0:4 net:[%d] %s rw - nsfs none rw\n", stat.Ino, somewhere))
}
