//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// One cluster, from before the installation on. After each step all that can be asked
// says the same (see agree).
func TestMesh(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{
		{"an installation captures pods that run, and leaves them running", installationCaptures},
		{"helm test", helmTests},
		{"init containers, sidecars and Jobs go through the proxy from their first request", firstRequests},
		{"a restricted namespace", restrictedNamespace},
		{"a readiness gate", readinessGate},
		{"a static pod", staticPod},
		{"pods of the same name, one after the other", sameName},
		{"labels come and go", labelsComeAndGo},
		{"thirty pods come and go", manyPods},
		{"an upgrade", upgrade},
		{"no agent", noAgent},
		{"no proxy", noProxy},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c); agree(t, c) }) {
			t.Log(trouble(t, c))
			break // the next ones stand on it
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

const earlierManifest = meshManifest + "---" + `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: mesh}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
---
apiVersion: v1
kind: Pod
metadata: {name: out, namespace: mesh, labels: {istio.io/dataplane-mode: none}}
spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
---
apiVersion: v1
kind: Pod
metadata: {name: on-the-node, namespace: mesh}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [serve]}]
---
apiVersion: v1
kind: Pod
metadata: {name: labelled, labels: {istio.io/dataplane-mode: ambient}}
spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
---
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`

// applyPods applies a manifest in which CONTAINER stands for a server that is ready when
// it answers.
func applyPods(t *testing.T, c *cluster.Cluster, manifest string) {
	t.Helper()
	apply(t, c, strings.ReplaceAll(manifest, "CONTAINER", container))
}

const container = `{name: app, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, ` +
	`readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}}`

// podOf is the manifest of a pod with such a container.
func podOf(metadata string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {` + metadata + `}
spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`
}

// waitFor waits for a condition of objects.
func waitFor(t *testing.T, c *cluster.Cluster, condition string, what ...string) {
	t.Helper()
	kubectl(t, c, append([]string{"wait", "--for=" + condition, "--timeout=" + patience.String()}, what...)...)
}

// tasks are a node's running containers, sandboxes too, with their processes.
func tasks(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	out, err := n.Run(t.Context(), "ctr", "-n", "k8s.io", "tasks", "ls")
	if err != nil {
		t.Fatal(err)
	}
	var running []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "RUNNING") {
			running = append(running, strings.Join(strings.Fields(line), " "))
		}
	}
	return running
}

// ended are those of the tasks that are not there any more. A container that was started
// again is another task.
func ended(t *testing.T, n *cluster.Node, before []string) []string {
	t.Helper()
	after := tasks(t, n)
	return slices.DeleteFunc(before, func(task string) bool { return slices.Contains(after, task) })
}

func installationCaptures(t *testing.T, c *cluster.Cluster) {
	applyPods(t, c, earlierManifest)
	waitFor(t, c, "condition=Available", "deployment/web", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all")
	before := tasks(t, c.Nodes[0])
	if len(before) != 2*6 { // with their sandboxes
		t.Fatalf("%d containers run, want 12: %q", len(before), before)
	}
	install(t, c)
	agree(t, c)
	if gone := ended(t, c.Nodes[0], before); len(gone) != 0 {
		t.Errorf("containers have ended: %q", gone)
	}
}

func helmTests(t *testing.T, c *cluster.Cluster) {
	out, err := helm(t, c, "test", "fairlead", "--namespace", system, "--logs", "--timeout", patience.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"Phase:          Succeeded", "9 pods: 3 Captured, 6 NotCaptured"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func labelsComeAndGo(t *testing.T, c *cluster.Cluster) {
	const label = "istio.io/dataplane-mode"
	before := tasks(t, c.Nodes[0])
	for _, args := range [][]string{
		{"pod", "labelled", label + "-"},
		{"pod", "labelled", "plain", label + "=ambient"},
		{"pod", "labelled", label + "=none", "--overwrite"},
		{"namespace", "mesh", label + "-"},
		{"namespace", "mesh", label + "=ambient"},
		{"pod", "plain", label + "-"},
		{"pod", "labelled", label + "=ambient", "--overwrite"},
	} {
		kubectl(t, c, append([]string{"label"}, args...)...)
		agree(t, c)
	}
	if gone := ended(t, c.Nodes[0], before); len(gone) != 0 {
		t.Errorf("containers have ended: %q", gone)
	}
}

const manyManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: many, namespace: mesh}
spec:
  replicas: 0
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`

func manyPods(t *testing.T, c *cluster.Cluster) {
	applyPods(t, c, manyManifest)
	for range 2 {
		for _, replicas := range []int{30, 0} {
			kubectl(t, c, "scale", "deployment/many", "-n", "mesh", fmt.Sprintf("--replicas=%d", replicas))
			eventually(t, "its pods", strings.Repeat("true ", replicas), func() (string, error) {
				return c.Kubectl(t.Context(), "get", "pods", "-n", "mesh", "-l", "app=many", "-o",
					`jsonpath={range .items[*]}{.status.containerStatuses[0].ready} {end}`)
			})
			agree(t, c)
		}
	}
}

func upgrade(t *testing.T, c *cluster.Cluster) {
	agent := func() string {
		return kubectl(t, c, "get", "pods", "-n", system, "-l", "app.kubernetes.io/name=fairlead", "-o", "jsonpath={.items[*].metadata.uid}")
	}
	earlier := agent()
	before := tasks(t, c.Nodes[0])
	release(t, c, "upgrade", "fairlead", "logging.level=debug")
	if now := agent(); now == earlier || strings.Contains(now, " ") {
		t.Errorf("the agents are %q after the upgrade, and were %q", now, earlier)
	}
	agree(t, c)
	if gone := ended(t, c.Nodes[0], before); len(gone) != 2 {
		t.Errorf("containers have ended: %q, want only the agent's and its sandbox", gone)
	}
}
