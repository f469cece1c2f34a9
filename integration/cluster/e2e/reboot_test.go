//go:build e2e

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Two nodes lose their power, and when they boot the primary CNI writes its list anew before
// anything of ours runs. The kubelet makes all sandboxes again, with the UIDs and the
// annotations of before: none goes past the proxy, and both nodes get ready. On n1 the ADDs
// alone see to that; on n2, whose list is of CNI 1.1, STATUS does, too.
func TestReboot(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 2)
	defer func() {
		if t.Failed() {
			t.Log(trouble(t, c))
		}
	}()
	status := owner{c.Nodes[1], onNodeShell(t, c.Nodes[1], `sed -i 's/"cniVersion": "1.0.0"/"cniVersion": "1.1.0"/' "$1"; cat "$1"`, primaryList)}
	owners := []owner{{c.Nodes[0], onNodeShell(t, c.Nodes[0], "cat "+primaryList)}, status}
	install(t, c)
	tr := startMeshTrial(t, c)
	var pods []string
	for _, n := range c.Nodes {
		applyAskers(t, c, n, "asker-"+n.Name)
		pods = append(pods, "asker-"+n.Name, addStaticAsker(t, n, "static"))
	}
	waitAskers(t, c, 0, pods...)
	agree(t, c)
	tr.bypass(t, c) // it will have other addresses

	onAll(t, c, func(ctx context.Context, n *cluster.Node) error { return errors.Join(n.Down(ctx), n.Boot(ctx)) })
	for _, o := range owners {
		if err := tr.capture(t, o.n); err != nil {
			t.Fatal(err)
		}
		o.write(t, inItsPlace, o.marked(mark(1)))
		o.write(t, byRename, o.marked(mark(2)))
		ready, err := o.n.NetworkReady(t.Context())
		if want := o.n.Name == "n1"; err != nil || ready != want {
			t.Errorf("before there is an agent the runtime of %s says that its network is ready: %t, %v, want %t", o.n.Name, ready, err, want)
		}
	}
	onAll(t, c, func(ctx context.Context, n *cluster.Node) error { return n.Join(ctx) })
	waitAskers(t, c, 1, pods...)
	agree(t, c)
	tr.allTagged(t, c)
	for _, o := range owners {
		if list := onNodeShell(t, o.n, "cat "+ourList); !strings.Contains(list, mark(2)) {
			t.Errorf("our list on %s is not made of what the primary is now: %s", o.n.Name, list)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// onAll does something with all nodes at once.
func onAll(t *testing.T, c *cluster.Cluster, do func(context.Context, *cluster.Node) error) {
	t.Helper()
	all, ctx := errgroup.WithContext(t.Context())
	for _, n := range c.Nodes {
		all.Go(func() error { return do(ctx, n) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}
