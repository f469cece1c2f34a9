//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// An agent that the API does not answer lets no pod start of which it does not know what
// is asked for, and "kubectl describe pod" says what the API said and what helps. When the
// API answers again the pod starts.
func TestAgentWithoutTheAPI(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	install(t, c)
	const role = "fairlead-" + system
	kubectl(t, c, "delete", "clusterrolebinding", role)
	kubectl(t, c, "-n", system, "delete", "pod", "-l", "app.kubernetes.io/name=fairlead")
	applyPods(t, c, podOf("name: late, labels: {istio.io/dataplane-mode: ambient}"))
	described(t, c, "default", "late", `type="fairlead-cni" failed`, "cannot get pod default/late from the API at https://",
		`User "system:serviceaccount:fairlead-system:fairlead" cannot get resource "pods"`, "(let the agent's service account get pods and namespaces (its ClusterRole")
	release(t, c, "upgrade", "fairlead")
	waitFor(t, c, "condition=Ready", "pod", "late")
	agree(t, c)
	kubectl(t, c, "delete", "pod", "late")
	agree(t, c)
	if events := kubectl(t, c, "get", "events", "-o", "jsonpath={.items[*].reason}"); strings.Contains(events, "RulesRepaired") {
		t.Errorf("the end of the pod was taken for drift: %s", events)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
