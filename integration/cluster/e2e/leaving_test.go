//go:build e2e

package e2e

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// helm uninstall takes the pods out of the mesh without restarting one and without one
// failing request, leaves nothing on the node, and pods that ask for the mesh start without
// it; they, and those from before, can be deleted.
func TestLeaving(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	applyPods(t, c, earlierManifest)
	waitFor(t, c, "condition=Available", "deployment/web", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all")
	node := c.Nodes[0]
	apps, before := tasks(t, node), nodeState(t, node)
	install(t, c)
	agree(t, c)
	if left := onNode(t, node); len(left) != 3 {
		t.Fatalf("on the node are %q, and should be the list, the plugin and the table", left)
	}

	load := startLoad(t)
	load.request(podNetns(t, node, podIPs(t, c, "labelled")[0]), "http://"+net.JoinHostPort(podIPs(t, c, "plain")[0].String(), "8080")+"/load")
	uninstall(t, c)
	if diff := cmp.Diff(before, nodeState(t, node)); diff != "" {
		t.Errorf("the node is not as it was before the installation (-before +after):\n%s", diff)
	}
	load.check(t)
	if gone := ended(t, node, apps); len(gone) != 0 {
		t.Errorf("containers have ended: %q", gone)
	}
	wantForgotten(t, c, node)
	applyPods(t, c, strings.ReplaceAll(earlierManifest, "name: labelled", "name: later"))
	waitFor(t, c, "condition=Ready", "pod/later")
	kubectl(t, c, "delete", "deployment/web", "-n", "mesh", "--cascade=foreground", "--timeout="+patience.String())
	for _, namespace := range []string{"mesh", "default"} {
		kubectl(t, c, "delete", "pods", "--all", "-n", namespace, "--timeout="+patience.String())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantForgotten fails unless neither the API nor the node shows that pods were captured.
func wantForgotten(t *testing.T, c *cluster.Cluster, node *cluster.Node) {
	t.Helper()
	pods, err := list[apiPod](t, c, "pods", "--all-namespaces")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if shown := p.Metadata.Annotations["ambient.istio.io/redirection"]; shown != "" {
			t.Errorf("pod %s is still shown as %s", p, shown)
		}
	}
	eventually(t, "pods of ours", "", func() (string, error) {
		return c.Kubectl(t.Context(), "-n", system, "get", "pods", "-l", "app.kubernetes.io/name=fairlead", "-o", "name")
	})
	kernel, err := askKernel(t, node)
	if err != nil {
		t.Fatal(err)
	}
	for address, found := range kernel.byAddress {
		if found != absent {
			t.Errorf("the pod with the address %s still has %s", address, found)
		}
	}
	if len(kernel.probed)+len(kernel.records) != 0 {
		t.Errorf("left are exemptions of %q and records of %q", kernel.probed, kernel.records)
	}
}

// onNode lists what the agent has put onto a node, beside its pods.
func onNode(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	var found []string
	for _, look := range []string{
		"find /etc/cni/net.d -name '*fairlead*'", "find /opt/cni/bin -name '*fairlead*'", "nft list tables | grep 'inet fairlead' || true",
	} {
		out, err := n.Run(t.Context(), "sh", "-c", look)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, strings.Fields(strings.ReplaceAll(out, " ", "_"))...)
	}
	return found
}

// uninstall takes the agent away, and everything of ours with it.
func uninstall(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if out, err := helm(t, c, "uninstall", "fairlead", "--namespace", system, "--wait", "--timeout", "3m"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, trouble(t, c))
	}
}

// nodeState is what an installation changes of a node, as text: the runtime's directories
// for CNI, and the rules of the node's own network namespace.
func nodeState(t *testing.T, n *cluster.Node) string {
	t.Helper()
	return onNodeShell(t, n, `
cd /etc/cni/net.d
find . -printf '%p %y %m %U:%G\n' | sort
find . -type f | sort | while read -r file; do echo "# $file"; cat "$file"; done
cd /opt/cni/bin
find . -type f -printf '%m ' -exec sha256sum {} + | sort
ip rule; ip -6 rule
nft --stateless list ruleset`)
}
