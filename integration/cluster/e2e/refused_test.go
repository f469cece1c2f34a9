//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// refused has a pod that cannot start, until release is called, and waits until "kubectl
// describe" says of it all that is wanted.
func refused(t *testing.T, c *cluster.Cluster, release func(), wants ...string) {
	t.Helper()
	applyPods(t, c, podOf("name: late, namespace: mesh"))
	described(t, c, "mesh", "late", append([]string{`plugin type="fairlead-cni" failed (add): pod mesh/late`}, wants...)...)
	release()
	waitFor(t, c, "condition=Ready", "pod/late", "-n", "mesh")
	agree(t, c)
	kubectl(t, c, "delete", "pod", "-n", "mesh", "late")
}

// described waits until "kubectl describe" says of a pod all that is wanted.
func described(t *testing.T, c *cluster.Cluster, namespace, pod string, wants ...string) {
	t.Helper()
	eventually(t, "what kubectl describe does not say", "", func() (string, error) {
		out, err := c.Kubectl(t.Context(), "describe", "pod", "-n", namespace, pod)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				return want + "\n" + out, err
			}
		}
		_, events, _ := strings.Cut(out, "Events:")
		t.Log(events)
		return "", err
	})
}

// withoutAgent is what is said of a pod that waits for the agent, and what helps.
var withoutAgent = []string{
	"cannot start: the fairlead agent of this node is not running (last seen ",
	"the pod starts by itself once the agent is back: check the fairlead agent's pod of this node, and /run/fairlead/cni.log",
	"only pods of kube-system, fairlead-system start without it",
}

// Without an agent no pod starts unseen, and those that run stay as they are.
func noAgent(t *testing.T, c *cluster.Cluster) {
	before := len(tasks(t, c.Nodes[0]))
	release(t, c, "upgrade", "fairlead", "nodeSelector.no-node=has-this")
	waitFor(t, c, "delete", "pods", "-n", system, "-l", "app.kubernetes.io/name=fairlead")
	if now := len(tasks(t, c.Nodes[0])); now != before-2 {
		t.Errorf("%d containers run, want all %d but the agent's and its sandbox", now, before)
	}
	refused(t, c, func() { release(t, c, "upgrade", "fairlead") }, withoutAgent...)
}

// Without a proxy no labelled pod starts.
func noProxy(t *testing.T, c *cluster.Cluster) {
	if out, err := helm(t, c, "uninstall", "nodeproxy", "--namespace", system, "--wait"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	refused(t, c, func() { release(t, c, "install", "nodeproxy") },
		"not captured: no node proxy is connected to the agent", "start the node proxy (ztunnel) on this node")
}
