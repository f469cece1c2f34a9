//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// helm uninstall takes the pods out of the mesh without restarting one, leaves nothing on
// the node, and pods that ask for the mesh start without it.
func TestLeaving(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	applyPods(t, c, earlierManifest)
	waitFor(t, c, "condition=Available", "deployment/web", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all")
	node := c.Nodes[0]
	apps := tasks(t, node)
	install(t, c)
	agree(t, c)
	if left := onNode(t, node); len(left) != 3 {
		t.Fatalf("on the node are %q, and should be the list, the plugin and the table", left)
	}

	if out, err := helm(t, c, "uninstall", "fairlead", "--namespace", system, "--wait", "--timeout", "3m"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, trouble(t, c))
	}
	if left := onNode(t, node); len(left) != 0 {
		t.Errorf("left on the node: %q", left)
	}
	if gone := ended(t, node, apps); len(gone) != 0 {
		t.Errorf("containers have ended: %q", gone)
	}
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
	applyPods(t, c, strings.ReplaceAll(earlierManifest, "name: labelled", "name: later"))
	waitFor(t, c, "condition=Ready", "pod/later")
	if err := c.Close(); err != nil {
		t.Fatal(err)
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
