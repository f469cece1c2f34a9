//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A node that is born with the startup taint gets no pods until its agent is ready, and none
// while it is not; the taints of others stay. Whether the runtime asks for the STATUS of our
// plugin, too, is another matter: that keeps no node from being ready once an agent was. What
// is uninstalled leaves nothing of this.
func TestNodeInTheAPI(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	node := c.Nodes[0]
	kubectl(t, c, "taint", "node", node.Name, "fairlead.io/agent-not-ready=:NoSchedule", "other=theirs:PreferNoSchedule")
	applyPods(t, c, podOf("name: waits, labels: {istio.io/dataplane-mode: ambient}"))
	eventually(t, "the pod's place", "Unschedulable", func() (string, error) {
		return c.Kubectl(t.Context(), "get", "pod", "waits", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
	})
	install(t, c, "node.taint=unready", "node.condition=true", "cniStatus=always")
	eventually(t, "our list's version", `"cniVersion": "1.1.0"`, func() (string, error) {
		out, err := node.Run(t.Context(), "grep", "-o", `"cniVersion": "[0-9.]*"`, ourList)
		return strings.TrimSpace(out), err
	})
	waitFor(t, c, "condition=Ready", "pod/waits")
	waitFor(t, c, "condition=fairlead.io/Captured", "pod/waits")
	shows(t, c, node, "other True OK, Ready True")

	const first = "/etc/cni/net.d/00-first.conflist" // goes before ours
	onNodeShell(t, node, "cp "+primaryList+" "+first)
	shows(t, c, node, "other fairlead.io/agent-not-ready False NotInstalled, Ready True")
	onNodeShell(t, node, "rm "+first)
	shows(t, c, node, "other True OK, Ready True")
	if err := rollout(t, c, "daemonset/fairlead", system); err != nil {
		t.Fatal(err)
	}
	shows(t, c, node, "other True OK, Ready True")

	uninstall(t, c)
	shows(t, c, node, "other  , Ready True")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// shows waits until the API shows of a node these taints, and our condition and the
// kubelet's.
func shows(t *testing.T, c *cluster.Cluster, n *cluster.Node, want string) {
	t.Helper()
	eventually(t, "what the API shows of the node", want, func() (string, error) {
		return c.Kubectl(t.Context(), "get", "node", n.Name, "-o", fmt.Sprintf(
			`jsonpath={.spec.taints[*].key} {.status.conditions[?(@.type=="%[1]s")].status} {.status.conditions[?(@.type=="%[1]s")].reason}, Ready {.status.conditions[?(@.type=="Ready")].status}`,
			"fairlead.io/Ready"))
	})
}
