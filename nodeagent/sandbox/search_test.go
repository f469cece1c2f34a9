package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// pods are two namespaces on one switch: a has 10.0.0.1 and fd00::1, b 10.0.0.2, and
// c none.
func pods(t *testing.T) (a, b, c *netlab.NS) {
	t.Helper()
	a, b, c = netlab.NewNS(t, "a"), netlab.NewNS(t, "b"), netlab.NewNS(t, "c")
	netlab.Connect(t,
		netlab.Port{NS: a, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: b, Addrs: netlab.Prefixes("10.0.0.2/24")})
	return a, b, c
}

const cgroupOf = "/kubepods/burstable/podu1/"

func TestSearch(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, b, c := pods(t)
	dead := filepath.Join(t.TempDir(), "cni-dead")
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		node func(*node)
		want sandbox.Wanted
		say  []string // one: the outcome; more: parts of the error
	}{
		{"the cache", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
		}, wanted("10.0.0.1"), []string{"a by libcni cache c1/eth0 [10.0.0.1] checked:true 0"}},
		{"by the other address", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
		}, wanted("10.0.0.9", "fd00::1"), []string{"a by libcni cache c1/eth0 [] checked:true 0"}},
		{"a mapped address", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
		}, wanted("::ffff:10.0.0.1"), []string{"a by libcni cache c1/eth0 [] checked:true 0"}},
		{"no IP known", func(n *node) {
			n.cached("u1", "c1", "eth0", c.Path)
		}, wanted(), []string{"c by libcni cache c1/eth0 [] checked:false 0"}},
		{"the cache's IP", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
		}, wanted(), []string{"a by libcni cache c1/eth0 [10.0.0.1] checked:false 0"}},
		{"not the cache's IP", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.7/24")
		}, wanted(), []string{"not the pod's", a.Path, "10.0.0.1", "the pod 10.0.0.7"}},
		{"not the pod's IP", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
		}, wanted("10.0.0.7"), []string{"shop/web (u1)", "not the pod's", a.Path, a.Handle.ID().String(), "it has 10.0.0.1 fd00::1, the pod 10.0.0.7"}},
		{"no address at all", func(n *node) {
			n.cached("u1", "c1", "eth0", c.Path)
		}, wanted("10.0.0.7"), []string{"not the pod's", "it has no address, the pod 10.0.0.7"}},
		{"entries of sandboxes before", func(n *node) {
			n.cached("u1", "c0", "eth0", "/run/netns/gone", "10.0.0.1/24")
			n.cached("u1", "c1", "eth0", dead, "10.0.0.1/24")
			n.cached("u1", "c2", "eth0", a.Path, "10.0.0.1/24")
		}, wanted(), []string{"a by libcni cache c2/eth0 [10.0.0.1] checked:false 0"}},
		{"only entries of sandboxes before", func(n *node) {
			n.cached("u1", "c0", "eth0", "/run/netns/gone")
			n.cached("u1", "c1", "eth0", dead)
		}, wanted(), []string{"nothing leads to it", "/run/netns/gone", "no such file", dead, "nothing is mounted there"}},
		{"an entry by process id", func(n *node) {
			n.cached("u1", "c0", "eth0", fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
		}, wanted(), []string{"nothing leads to it", "nothing is mounted there"}},
		{"an entry per interface", func(n *node) {
			n.cached("u1", "c1", "net1", a.Path, "192.168.0.1/24")
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
			n.cached("u1", "c1", "net2", a.Path, "192.168.1.1/24")
		}, wanted("10.0.0.1"), []string{"a by libcni cache c1/eth0 [10.0.0.1] checked:true 0"}},
		{"the pod's interface has another name", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "192.168.0.1/24")
			n.cached("u1", "c1", "pod0", a.Path, "10.0.0.1/24")
		}, wanted("10.0.0.1"), []string{"a by libcni cache c1/pod0 [10.0.0.1] checked:true 0"}},
		{"another pod's entry under its UID", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
		}, sandbox.Wanted{UID: "u1", Namespace: "shop", Name: "db"}, []string{"nothing leads to it", "another pod, shop/web"}},
		{"the host's", func(n *node) {
			host := filepath.Join(t.TempDir(), "host")
			bind(t, "/proc/self/ns/net", host)
			n.cached("u1", "c1", "eth0", host)
			n.process(9, cgroupOf+"c1", "/proc/1/ns/net")
		}, wanted(), []string{"nothing leads to it", "the node's own network namespace", "process 9"}},
		{"a proxy's", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
			n.process(77, "/", a.Path)
			n.finder.Proxies = func() []int { return []int{78, 77} }
		}, wanted(), []string{"nothing leads to it", "a connected proxy (process 77)"}},

		{"two namespaces in the cache", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
			n.cached("u1", "c2", "eth0", b.Path, "10.0.0.2/24")
		}, wanted(), []string{"it may be any of", a.Path, a.Handle.ID().String(), b.Path, b.Handle.ID().String(), "IPs, which would tell, are not known"}},
		{"two, one has the IP", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
			n.cached("u1", "c2", "eth0", b.Path, "10.0.0.2/24")
		}, wanted("10.0.0.2"), []string{"b by libcni cache c2/eth0 [10.0.0.2] checked:true 0"}},
		{"two, each has one of the IPs", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
			n.cached("u1", "c2", "eth0", b.Path)
		}, wanted("10.0.0.2", "10.0.0.1"), []string{"it may be any of", a.Path, b.Path, "each holds one of the pod's IPs (10.0.0.2 10.0.0.1)"}},
		{"two, one has the pod's processes", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
			n.cached("u1", "c2", "eth0", b.Path)
			n.process(20, cgroupOf+"c2", b.Path)
		}, wanted(), []string{"b by libcni cache c2/eth0 [] checked:false 0"}},
		{"two, and the processes are in a third", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path)
			n.cached("u1", "c2", "eth0", b.Path)
			n.process(20, cgroupOf+"c3", c.Path)
		}, wanted(), []string{"it may be any of", a.Path, b.Path, "process 20"}},

		{"a process", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
		}, wanted("10.0.0.1"), []string{"net by process 20 / [10.0.0.1] checked:true 20"}},
		{"a process, no IP known", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
		}, wanted(), []string{"net by process 20 / [] checked:false 20"}},
		{"a process, and where its namespace is mounted", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
			n.mount(a.Path)
		}, wanted(), []string{"a by process 20 / [] checked:false 0"}},
		{"a process, and a mount that is over", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
			n.mountAs(a.Path, dead)
		}, wanted(), []string{"net by process 20 / [] checked:false 20"}},
		{"a process, not the IP", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
		}, wanted("10.0.0.2"), []string{"not the pod's", "process 20", "10.0.0.1", "the pod 10.0.0.2"}},
		{"a process, and the cache without a path", func(n *node) {
			n.cached("u1", "c0", "eth0", "", "10.0.0.9/24")
			n.cached("u1", "c1", "eth0", "", "10.0.0.1/24")
			n.process(20, "/kubepods.slice/kubepods-podu1.slice/cri-containerd-c1.scope", a.Path)
			n.process(21, "/kubepods.slice/kubepods-podu1.slice/cri-containerd-app.scope", a.Path)
		}, wanted("10.0.0.1"), []string{"net by process 20 c1/eth0 [10.0.0.1] checked:true 20"}},
		{"the cache names the old sandbox, whose IP is another's", func(n *node) {
			n.cached("u1", "c1", "eth0", a.Path, "10.0.0.1/24")
			n.process(20, cgroupOf+"c2", b.Path)
		}, wanted("10.0.0.2"), []string{"net by process 20 / [10.0.0.2] checked:true 20"}},
		{"an engine in the pod", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
			n.process(10, cgroupOf+"c1/docker/x", b.Path)
		}, wanted(), []string{"net by process 20 / [] checked:false 20"}},
		{"an engine that shares the pod's namespace, and a container of its own", func(n *node) {
			n.process(10, cgroupOf+"c1/docker/x", a.Path)
			n.process(11, cgroupOf+"c1/container", b.Path)
			n.process(20, cgroupOf+"c1", a.Path)
		}, wanted(), []string{"net by process 20 / [] checked:false 20"}},
		{"a process, and a mount of another namespace", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
			n.mountAs(a.Path, b.Path)
		}, wanted(), []string{"net by process 20 / [] checked:false 20"}},
		{"an engine in the pod, the pod deeper", func(n *node) {
			n.process(10, cgroupOf+"c1", b.Path)
			n.process(20, cgroupOf+"c1/container", a.Path)
		}, wanted("10.0.0.1"), []string{"net by process 20 / [10.0.0.1] checked:true 20"}},
		{"processes in two namespaces", func(n *node) {
			n.process(20, cgroupOf+"c1", a.Path)
			n.process(21, cgroupOf+"c1", b.Path)
		}, wanted(), []string{"it may be any of", "process 20", a.Handle.ID().String(), "process 21", b.Handle.ID().String()}},
		{"another pod's processes", func(n *node) {
			n.process(20, "/kubepods/burstable/podu2/c1", a.Path)
			n.process(21, "/system.slice/podu1/c1", a.Path)
		}, wanted(), []string{"nothing leads to it", "has no entry", "no process"}},
		{"what is no namespace", func(n *node) {
			n.process(20, cgroupOf+"c1", dead)
		}, wanted(), []string{"nothing leads to it", "process 20", "not a namespace"}},
		{"a zombie, whose namespace is closed", func(n *node) {
			n.process(19, cgroupOf+"c1", "/nowhere")
			n.write("18/x", "no cgroup")
			n.process(20, cgroupOf+"c1", a.Path)
		}, wanted(), []string{"net by process 20 / [] checked:false 20"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			test.node(n)
			found, missing := n.finder.Search(t.Context(), []sandbox.Wanted{test.want})
			got := outcome(found, missing, "u1")
			if len(test.say) == 1 && got != test.say[0] {
				t.Errorf("got  %s\nwant %s", got, test.say[0])
			}
			for _, part := range test.say {
				if !strings.Contains(got, part) {
					t.Errorf("got %s\nwithout %q", got, part)
				}
			}
			if err := missing["u1"]; err != nil && errors.Is(err, sandbox.ErrNotFound) != (test.say[0] == "nothing leads to it") {
				t.Errorf("ErrNotFound: %v", err)
			}
			checkOpens(t, n.finder, found)
		})
	}
}

// A batch: what the cache has is found without a look at the processes, the rest with
// one; each pod by itself.
func TestSearchOfMany(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, b, c := pods(t)
	n := newNode(t)
	n.cached("u1", "c1", "eth0", a.Path)
	want := []sandbox.Wanted{{UID: "u1"}, {UID: "u1"}}
	if err := os.RemoveAll(n.finder.Proc); err != nil {
		t.Fatal(err)
	}
	found, missing := n.finder.Search(t.Context(), want)
	if got := outcome(found, missing, "u1"); got != "a by libcni cache c1/eth0 [] checked:false 0" {
		t.Error(got)
	}

	n.write("self/cgroup", "0::/\n")
	n.write("self/mountinfo", "")
	n.process(20, "/../../podu-2/c1", b.Path)
	n.process(21, "/../../../besteffort/podu3/c1", c.Path)
	n.process(22, "/kubepods.slice/kubepods-podu_5.slice/c1", a.Path)
	n.cached("u_2", "c1", "eth0", a.Path) // in cgroups alone this is the same as u-2
	want = append(want, sandbox.Wanted{UID: "u-2"}, sandbox.Wanted{UID: "u3"}, sandbox.Wanted{UID: "u4"}, sandbox.Wanted{UID: "u_5"})
	found, missing = n.finder.Search(t.Context(), want)
	got := map[string]string{}
	for _, w := range want {
		got[w.UID] = outcome(found, missing, w.UID)
	}
	if !errors.Is(missing["u4"], sandbox.ErrNotFound) {
		t.Error(missing["u4"])
	}
	delete(got, "u4")
	if diff := cmp.Diff(map[string]string{
		"u1":  "a by libcni cache c1/eth0 [] checked:false 0",
		"u-2": "net by process 20 / [] checked:false 20",
		"u3":  "net by process 21 / [] checked:false 21",
		"u_5": "net by process 22 / [] checked:false 22",
	}, got); diff != "" {
		t.Error(diff)
	}
	if found["u3"].ID != c.Handle.ID() {
		t.Errorf("u3 is in %s, want %s", found["u3"].ID, c.Handle.ID())
	}
	checkOpens(t, n.finder, found)
}

// A failure of our own is no word about any pod that is not found.
func TestSearchThatFails(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod := netlab.NewNS(t, "pod")
	n := newNode(t)
	n.cached("u1", "c1", "eth0", pod.Path)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		node func()
		want string
	}{
		"ended":        {ended, func() {}, "context canceled"},
		"no processes": {t.Context(), func() { n.finder.CNICache, n.finder.Proc = "/nowhere", "/nowhere" }, "cannot read this process's own cgroups"},
		"a proxy that cannot be identified": {t.Context(), func() {
			n.finder.Proc = t.TempDir()
			n.write("7/ns/net", "")
			n.finder.Proxies = func() []int { return []int{7} }
		}, "connected proxy (process 7)"},
	} {
		before := *n.finder
		c.node()
		found, missing := n.finder.Search(c.ctx, []sandbox.Wanted{wanted()})
		*n.finder = before
		if got := outcome(found, missing, "u1"); !strings.Contains(got, c.want) || !strings.Contains(got, "shop/web (u1)") {
			t.Errorf("%s: %s; want %q", name, got, c.want)
		}
		if errors.Is(missing["u1"], sandbox.ErrNotFound) {
			t.Errorf("%s: passes for not found: %v", name, missing["u1"])
		}
	}
}

// Being out of descriptors at any point says nothing about any pod, and leaves nothing
// open.
func TestSearchOutOfDescriptors(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, b, _ := pods(t)
	n := newNode(t)
	n.cached("u1", "c1", "eth0", a.Path)
	n.process(20, "/kubepods/podu2/c1", b.Path)
	want := []sandbox.Wanted{wanted("10.0.0.1"), {UID: "u2", IPs: wanted("10.0.0.2").IPs}}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(0) // the lowest that is free
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	for spare := uint64(0); ; spare++ {
		few := limit
		few.Cur = uint64(fd) + spare
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		found, missing := n.finder.Search(t.Context(), want)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		for uid, err := range missing {
			if errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("with %d to spare, %s passes for not found: %v", spare, uid, err)
			}
		}
		if len(found)+len(missing) != 2 {
			t.Errorf("with %d to spare: %v, %v", spare, found, missing)
		}
		if len(found) == 2 {
			break
		}
		if spare > 50 {
			t.Fatalf("still not found: %v", missing)
		}
	}
}

// What an agent on this machine sees: no pods.
func TestSearchOfTheRealProcesses(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	f := finder(t)
	f.CNICache = t.TempDir()
	found, missing := f.Search(t.Context(), []sandbox.Wanted{wanted()})
	if !errors.Is(missing["u1"], sandbox.ErrNotFound) || len(found) != 0 {
		t.Errorf("%v, %v", found, missing)
	}
}
