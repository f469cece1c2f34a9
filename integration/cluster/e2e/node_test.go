//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const waitingManifest = `
apiVersion: v1
kind: Pod
metadata: {name: waits, labels: {istio.io/dataplane-mode: ambient}}
spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`

// A node that is born with the startup taint gets no pods until its agent is ready, and none
// while it is not; the taints of others stay. Whether the runtime asks for the STATUS of our
// plugin, too, is another matter: that keeps no node from being ready once an agent was. What
// is uninstalled leaves nothing of this.
func TestNodeInTheAPI(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	node := c.Nodes[0]
	kubectl(t, c, "taint", "node", node.Name, "fairlead.io/agent-not-ready=:NoSchedule", "other=theirs:PreferNoSchedule")
	applyPods(t, c, waitingManifest)
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
	if _, err := node.Run(t.Context(), "sh", "-c", "cp /etc/cni/net.d/10-*.conflist "+first); err != nil {
		t.Fatal(err)
	}
	shows(t, c, node, "other fairlead.io/agent-not-ready False NotInstalled, Ready True")
	if _, err := node.Run(t.Context(), "rm", first); err != nil {
		t.Fatal(err)
	}
	shows(t, c, node, "other True OK, Ready True")
	kubectl(t, c, "-n", system, "rollout", "restart", "daemonset/fairlead")
	kubectl(t, c, "-n", system, "rollout", "status", "daemonset/fairlead", "--timeout", patience.String())
	shows(t, c, node, "other True OK, Ready True")

	if out, err := helm(t, c, "uninstall", "fairlead", "--namespace", system, "--wait", "--timeout", "3m"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, trouble(t, c))
	}
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
		text, err := c.Kubectl(t.Context(), "get", "node", n.Name, "-o", fmt.Sprintf(
			`jsonpath={.spec.taints[*].key} {.status.conditions[?(@.type=="%[1]s")].status} {.status.conditions[?(@.type=="%[1]s")].reason}, Ready {.status.conditions[?(@.type=="Ready")].status}`,
			"fairlead.io/Ready"))
		return text, err
	})
}
