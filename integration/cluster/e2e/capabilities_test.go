//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A pod that is to be captured and whose process, which is not root's, holds a port of the
// proxy's: any server does, the proxy's own image is one.
const squatterManifest = `
apiVersion: v1
kind: Pod
metadata: {name: squatter}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, runAsUser: 1000}
  containers: [{name: app, image: "NODEPROXY", imagePullPolicy: Never, args: ["-zds=/nowhere", "-admin=:15001"]}]
`

// Each of the agent's capabilities is needed: it is taken away, and what fails then is
// seen.
func TestCapabilities(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	install(t, c)
	applyPods(t, c, podOf("name: captured, labels: {istio.io/dataplane-mode: ambient}"))
	apply(t, c, strings.ReplaceAll(squatterManifest, "NODEPROXY", imageName(t, "nodeproxy")))
	waitFor(t, c, "condition=Ready", "pods", "--all")
	kubectl(t, c, "label", "pod", "squatter", "istio.io/dataplane-mode=ambient")
	const found, named = "captured: Captured (OK)", "squatter: Bypassing (ProxyPortTaken)"
	eventually(t, "with all capabilities", found+", "+named, func() (string, error) { return states(t, c) })

	for _, test := range []struct {
		dropped, want string
		ready         bool
	}{
		// Nothing of a pod's can be read or changed; so its redirects count as missing. Nor can
		// the agent try what a capture does, and it is not ready.
		{"NET_ADMIN", "captured: Bypassing (KernelRefused), squatter: Bypassing (KernelRefused)", false},
		// The process is not found by its open files, and only the proxy says what is wrong.
		{"DAC_READ_SEARCH", found + ", squatter: Bypassing (ProxyRefused)", true},
	} {
		drop(t, c, test.dropped)
		eventually(t, "without "+test.dropped, test.want, func() (string, error) { return states(t, c) })
		eventually(t, "whether the agent is ready without "+test.dropped, strconv.FormatBool(test.ready), func() (string, error) {
			return c.Kubectl(t.Context(), "get", "pods", "-n", system, "-l", "app.kubernetes.io/name=fairlead", "-o", "jsonpath={.items[*].status.containerStatuses[*].ready}")
		})
	}
	for _, test := range []struct{ dropped, want string }{
		{"SYS_ADMIN", "/proc/1/ns/net: cannot enter network namespace inode 0:0: operation not permitted\n"},
		{"SYS_PTRACE", "cannot open network namespace: open /proc/1/ns/net: permission denied\n"},
	} {
		drop(t, c, test.dropped)
		eventually(t, "without "+test.dropped, "fairlead: cannot identify the node's own network namespace: "+test.want, func() (string, error) {
			return c.Kubectl(t.Context(), "logs", "-n", system, "-l", "app.kubernetes.io/name=fairlead", "--tail=1")
		})
	}
}

// drop takes one of the agent's capabilities away.
func drop(t *testing.T, c *cluster.Cluster, dropped string) {
	t.Helper()
	kept := slices.DeleteFunc([]string{"NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"}, func(name string) bool { return name == dropped })
	patch, err := json.Marshal([]map[string]any{{
		"op": "replace", "path": "/spec/template/spec/containers/0/securityContext/capabilities/add", "value": kept,
	}})
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "patch", "daemonset/fairlead", "-n", system, "--type=json", "-p", string(patch))
}

// states are those of the default namespace's pods, as the agent says.
func states(t *testing.T, c *cluster.Cluster) (string, error) {
	t.Helper()
	pods, err := list[apiPod](t, c, "pods", "-n", system)
	if err != nil {
		return "", err
	}
	agents := podsOf(pods, "fairlead")["n1"]
	if len(agents) != 1 {
		return "", fmt.Errorf("there are %d agents", len(agents))
	}
	known, _, err := askAgent(t, c, agents[0])
	var lines []string
	for _, p := range known {
		if p.Namespace == "default" {
			lines = append(lines, fmt.Sprintf("%s: %s (%s)", p.Name, p.State, p.Reason))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", "), err
}
