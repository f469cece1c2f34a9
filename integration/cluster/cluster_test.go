package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfigThatCannotWork(t *testing.T) {
	long := filepath.Join("/srv", strings.Repeat("long/", 25))
	for want, c := range map[string]Config{
		"cannot start 10 nodes: between 1 and 9 are possible":                                                                        {Nodes: 10},
		"cannot start -1 nodes: between 1 and 9 are possible":                                                                        {Nodes: -1},
		"cannot keep a cluster in " + filepath.Clean(long) + ": its sockets' names get too long; remedy: choose a shorter directory": {Dir: long},
	} {
		err := c.complete()
		if err == nil {
			err = c.checkSockets()
		}
		if err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}

func TestConfigIsCompleted(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/srv/state")
	t.Chdir("/")
	c := Config{Source: "src"}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("nodes=%d dir=%s source=%s out=%v", c.Nodes, c.Dir, c.Source, c.Out != nil)
	if want := "nodes=1 dir=/srv/state/fairlead/cluster source=/src out=true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A directory that a node would not see, or see another one in its place.
func TestDirectoriesThatANodeDoesNotSee(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/var/tmp", link); err != nil {
		t.Fatal(err)
	}
	err := seenInside(link)
	want := "cannot keep anything in /var/tmp: nodes have a /var of their own; remedy: set XDG_STATE_HOME and XDG_CACHE_HOME to directories elsewhere"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// What is built depends on each of these bytes.
func TestBuildsAreTold(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hash := func() string {
		h, err := hashSources(dir)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		write(name, "")
	}
	seen := map[string]string{hash(): "empty files"}
	for _, step := range [][2]string{{"go.mod", "a"}, {"go.sum", "a"}, {"main.go", "a"}, {"main.go", "ab"}} {
		write(step[0], step[1])
		if same := seen[hash()]; same != "" {
			t.Errorf("%v gives the hash of %s", step, same)
		}
		seen[hash()] = fmt.Sprint(step)
	}
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(hash()) {
		t.Errorf("%q is not a short name", hash())
	}
}

func TestAddresses(t *testing.T) {
	c := &Cluster{dir: "/srv/cluster", state: state{Nodes: 2, IPv6: true}}
	var got strings.Builder
	for _, f := range c.families() {
		fmt.Fprintf(&got, "control plane %s, Services %s from %s\n", f.control(), f.services, f.service(1))
		if f.pods.Overlaps(f.nodes) || f.pods.Overlaps(f.services) || f.nodes.Overlaps(f.services) {
			t.Errorf("%+v overlap", f)
		}
	}
	for _, number := range []int{1, 2, maxNodes} {
		n := c.node(number)
		fmt.Fprintln(&got, n.Name, n.Addrs, n.Pods, n.init.Socket)
	}
	c.state.IPv6 = false
	fmt.Fprintln(&got, "without IPv6", c.node(1).Addrs, c.node(1).Pods)
	want := `control plane 172.30.0.1, Services 10.96.0.0/16 from 10.96.0.1
control plane fd00:172:30::1, Services fd00:10:96::/112 from fd00:10:96::1
n1 [172.30.0.11 fd00:172:30::11] [10.244.1.0/24 fd00:10:244:1::/64] /srv/cluster/nodes/n1/socket
n2 [172.30.0.12 fd00:172:30::12] [10.244.2.0/24 fd00:10:244:2::/64] /srv/cluster/nodes/n2/socket
n9 [172.30.0.19 fd00:172:30::19] [10.244.9.0/24 fd00:10:244:9::/64] /srv/cluster/nodes/n9/socket
without IPv6 [172.30.0.11] [10.244.1.0/24]
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNodeObjection(t *testing.T) {
	for _, test := range []struct{ boot, ready, want string }{
		{"b1", "True", "<nil>"},
		{"b1", "False", "it is not ready: no network yet"},
		{"b0", "True", "its kubelet has not told yet that it was booted"},
	} {
		var n nodeObject
		n.Status.NodeInfo.BootID = test.boot
		n.Status.Conditions = append(n.Status.Conditions, struct{ Type, Status, Message string }{"Ready", test.ready, "no network yet"})
		if got := fmt.Sprint(n.objection("b1")); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
	var n nodeObject
	n.Status.NodeInfo.BootID = "b1"
	if n.objection("b1") == nil {
		t.Error("a node that has said nothing about being ready is ready")
	}
}

// A directory's lock goes with it: whoever waits for it does not get that of a
// directory that has been removed.
func TestDirectoryLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	first, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); !errors.Is(err, errLocked) {
		t.Errorf("locked twice: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	second, err := lockDir(dir)
	if err != nil {
		t.Fatalf("the new directory: %v", err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
}

func TestUntil(t *testing.T) {
	tries := 0
	if err := until(t.Context(), time.Millisecond, func() (bool, error) { tries++; return tries == 3, nil }); err != nil || tries != 3 {
		t.Errorf("%d tries, %v", tries, err)
	}
	refused := errors.New("refused")
	if err := until(t.Context(), time.Millisecond, func() (bool, error) { return false, refused }); !errors.Is(err, refused) {
		t.Errorf("an error is not the end: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(refused)
	if err := until(ctx, time.Millisecond, func() (bool, error) { return false, nil }); !errors.Is(err, refused) {
		t.Errorf("the end of the context: %v", err)
	}
}
