package hostnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const kernelTests = 25

// The pod sees the probes' source for the kubelet, and the host's address for whoever
// else asks from the host, whatever MASQUERADE rules came first or come later.
func TestSourceOfProbes(t *testing.T) {
	netlab.Kernel(t)
	root, group := cgroups(t)
	n := newNode(t, 2)
	kubelet := start(t, n.host, kubeletName, filepath.Join(root, group, "kubelet.service"), 0)
	other := start(t, n.host, otherName, filepath.Join(root, group, "other.service"), 0)
	masquerade(t, n, "iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy")

	e := open(t, config(n.host))
	run(t, e)
	mode(t, e, ByCgroup)
	if got, want := e.Status().Kubelet.Cgroup, group+"/kubelet.service"; got != want {
		t.Errorf("the kubelet's cgroup is %s, want %s", got, want)
	}
	set(t, e, "web", podOf(0))
	type sight struct{ kubelet, other, elsewhere string }
	look := func() sight { return sight{kubelet.seen(t, 0), other.seen(t, 0), kubelet.seen(t, 1)} }
	want := sight{kubelet: asProbe, other: asHost, elsewhere: asHost}
	if got := look(); got != want {
		t.Errorf("with MASQUERADE rules that came before: %+v, want %+v", got, want)
	}
	for _, tool := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		netlab.MustRun(t, n.host, tool, "-t", "nat", "-F", "POSTROUTING")
	}
	masquerade(t, n, "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft")
	if got := look(); got != want {
		t.Errorf("with MASQUERADE rules that came later: %+v, want %+v", got, want)
	}
	remove(t, e, "web")
	if got := kubelet.seen(t, 0); got != asHost {
		t.Errorf("after Delete the kubelet is seen as %s, want %s", got, asHost)
	}
}

// masquerade has a CNI plugin's rules in the host.
func masquerade(t *testing.T, n *node, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		netlab.MustRun(t, n.host, tool, "-t", "nat", "-I", "POSTROUTING", "-o", "bridge", "-j", "MASQUERADE")
	}
}

// Processes that call themselves kubelet in a pod, or in the host's network but a pod's
// cgroup, are not taken for it, even if they are older.
func TestOthersNamedKubelet(t *testing.T) {
	netlab.Kernel(t)
	root, group := cgroups(t)
	n := newNode(t, 1)
	start(t, n.pods[0], kubeletName, filepath.Join(root, group, "pod"), 0)
	start(t, n.host, kubeletName, filepath.Join(root, group, "kubepods.slice/kubepods-pod1.slice/cri-1.scope"), 0)
	e := open(t, config(n.host))
	run(t, e)
	mode(t, e, AnyHostProcess)
	set(t, e, "web", podOf(0))
	want := Status{Kubelet: Kubelet{Mode: AnyHostProcess, Reason: "no process named kubelet or kubelite or k3s-server or k3s-agent is in the host's network namespace"}}
	if got := e.Status(); got.Kubelet != want.Kubelet {
		t.Errorf("status %+v, want %+v", got, want)
	}
	other := start(t, n.host, otherName, filepath.Join(root, group, "other.service"), 0)
	if got := other.seen(t, 0); got != asProbe {
		t.Errorf("any host process is seen as %s, want %s", got, asProbe)
	}
	kubelet := start(t, n.host, kubeletName, filepath.Join(root, group, "kubelet.service"), 0)
	mode(t, e, ByCgroup)
	if got, want := kubelet.seen(t, 0)+", other "+other.seen(t, 0), asProbe+", other "+asHost; got != want {
		t.Errorf("when the kubelet has come: %s, want %s", got, want)
	}
}

// The kubelet comes back in another cgroup, then in a new one of the same name.
func TestKubeletRestarts(t *testing.T) {
	netlab.Kernel(t)
	root, group := cgroups(t)
	n := newNode(t, 1)
	e := open(t, config(n.host))
	run(t, e)
	set(t, e, "web", podOf(0))
	for _, service := range []string{"kubelet.service", "system.slice/kubelet.service", "kubelet.service", "kubelet.service"} {
		dir := filepath.Join(root, group, service)
		kubelet := start(t, n.host, kubeletName, dir, 0)
		netlab.Eventually(t, func() error { return pidIs(e, kubelet.cmd.Process.Pid) })
		mode(t, e, ByCgroup)
		if got := kubelet.seen(t, 0); got != asProbe {
			t.Errorf("the kubelet in %s is seen as %s, want %s", service, got, asProbe)
		}
		kubelet.end()
		netlab.Eventually(t, func() error { return unix.Rmdir(dir) })
	}
	// While it is away the rules can be put back, and others are not let in.
	netlab.MustRun(t, n.host, "nft", "flush", "ruleset")
	e.forgetRead("")
	asWanted(t, e)
	if err := spaceIsOpen(e); err != nil {
		t.Error(err)
	}
	other := start(t, n.host, otherName, filepath.Join(root, group, "other.service"), 0)
	if got := other.seen(t, 0); got != asHost {
		t.Errorf("while the kubelet is away another process is seen as %s, want %s", got, asHost)
	}
}

// A kubelet in a cgroup namespace of its own, as on a node that is a container.
func TestCgroupNamespace(t *testing.T) {
	netlab.Kernel(t)
	root, group := cgroups(t)
	n := newNode(t, 1)
	kubelet := start(t, n.host, kubeletName, filepath.Join(root, group, "node"), unix.CLONE_NEWCGROUP)
	if got, want := kubelet.ask(t, "levels"), "relative: true"; got != want {
		t.Errorf("in a namespace below the root: %s, want %s", got, want)
	}
	if got := netlab.NftList(t, n.host); got != "" {
		t.Errorf("left behind by the question:\n%s", got)
	}
	c := config(n.host)
	for _, test := range []struct{ door, want string }{
		{"none", "the kubelet is in another cgroup namespace, which cannot be entered"},
		{"one that leads nowhere", "the kubelet is in a cgroup namespace of its own, and this kernel counts levels from the root, " +
			"which cannot be seen there (Linux 6.11 counts from the namespace)"},
	} {
		e := open(t, c)
		e.turn(t.Context())
		if got := e.Status().Kubelet; got.Mode != AnyHostProcess || got.Reason != test.want {
			t.Errorf("with the door %s: %+v, want the reason %q", test.door, got, test.want)
		}
		asWanted(t, e)
		c.Within = nowhere
	}
}

// On a node that is a container the kubelet's level counts from the node's own cgroup.
func TestNodeInContainer(t *testing.T) {
	netlab.Kernel(t)
	root, group := cgroups(t)
	n := newNode(t, 1)
	kubelet := start(t, n.host, kubeletName, filepath.Join(root, group, "node"), unix.CLONE_NEWCGROUP|unix.CLONE_NEWNS)
	other := start(t, n.host, otherName, filepath.Join(root, group, "node/other.service"), 0)
	if got, want := kubelet.ask(t, "exempt"), "the kubelet's cgroup /kubelet.slice/kubelet.service"; got != want {
		t.Fatalf("it is recognised by %s, want %s", got, want)
	}
	if got, want := kubelet.seen(t, 0)+", other "+other.seen(t, 0), asProbe+", other "+asHost; got != want {
		t.Errorf("seen as %s, want %s", got, want)
	}
}

// A kubelet that could not be recognised is looked at again.
func TestKubeletIsRecognisedLater(t *testing.T) {
	netlab.Kernel(t)
	root, group := cgroups(t)
	n := newNode(t, 0)
	start(t, n.host, kubeletName, filepath.Join(root, group, "node"), unix.CLONE_NEWCGROUP)
	c := config(n.host)
	c.Sweep = 10 * time.Millisecond
	shut := true
	c.Within = func(_ *os.File, fn func() error) error {
		if shut {
			return errors.New("the door is shut")
		}
		return fn()
	}
	e := open(t, c)
	e.turn(t.Context())
	if got := e.Status().Kubelet.Reason; got != "the door is shut" {
		t.Errorf("reason %q", got)
	}
	shut = false
	netlab.Eventually(t, func() error {
		e.turn(t.Context())
		if got := e.Status().Kubelet.Reason; !strings.HasPrefix(got, "the kubelet is in a cgroup namespace of its own") {
			return fmt.Errorf("reason %q, want that of a door that leads nowhere", got)
		}
		return nil
	})
}

// nowhere is a door into a cgroup namespace that stays where it is.
func nowhere(_ *os.File, fn func() error) error { return fn() }

func spaceIsOpen(e *Exemption) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.space == nil {
		return errors.New("the last kubelet's cgroup namespace has been let go")
	}
	_, err := e.space.Stat()
	return err
}

func pidIs(e *Exemption, want int) error {
	if got := e.Status().Kubelet.PID; got != want {
		return fmt.Errorf("the kubelet is process %d, want %d", got, want)
	}
	return nil
}
