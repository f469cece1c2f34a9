//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// An asker is a pod of the mesh each of whose sandboxes asks something of its node first:
// one that is made uncaptured bypasses the proxy before the pod is ready.
const askerManifest = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: mesh}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  initContainers:
  - {name: first, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [get, "http://ADDR:PORT/v1/metrics"]}
  containers: [CONTAINER]
`

const meshManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: mesh, labels: {istio.io/dataplane-mode: ambient}}
`

// bypasserManifest is a pod on a node that bypasses on purpose.
const bypasserManifest = `
apiVersion: v1
kind: Pod
metadata: {name: bypasser-NODE, namespace: mesh, labels: ` + bypassLabels + `}
spec: {nodeName: NODE, terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`

// startMeshTrial has the namespace mesh, on each node a pod that bypasses on purpose, and
// captures.
func startMeshTrial(t *testing.T, c *cluster.Cluster) *trial {
	t.Helper()
	apply(t, c, meshManifest)
	tr := startTrial(t, c)
	for _, n := range c.Nodes {
		applyPods(t, c, strings.ReplaceAll(bypasserManifest, "NODE", n.Name))
	}
	waitFor(t, c, "condition=Ready", "pods", "--all", "-n", "mesh")
	return tr
}

func asker(n *cluster.Node, name string) string {
	return strings.NewReplacer("NAME", name, "NODE", n.Name, "ADDR", n.Addrs[0].String(), "PORT", cluster.ContainerdMetricsPort,
		"CONTAINER", container).Replace(askerManifest)
}

// applyAskers makes askers on a node.
func applyAskers(t *testing.T, c *cluster.Cluster, n *cluster.Node, names ...string) {
	t.Helper()
	var manifest strings.Builder
	for _, name := range names {
		manifest.WriteString("---" + asker(n, name))
	}
	apply(t, c, manifest.String())
}

// addStaticAsker has a node's kubelet make one by itself. It returns how the API calls it.
func addStaticAsker(t *testing.T, n *cluster.Node, name string) string {
	t.Helper()
	onNodeShell(t, n, `printf %s "$1" >"/etc/kubernetes/manifests/$2.yaml"`, asker(n, name), name)
	return name + "-" + n.Name
}

// onNodeShell runs a script in a node.
func onNodeShell(t *testing.T, n *cluster.Node, script string, args ...string) string {
	t.Helper()
	out, err := n.Run(t.Context(), append([]string{"sh", "-euc", script, "sh"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// waitAskers waits until askers are ready, with so many sandboxes before.
func waitAskers(t *testing.T, c *cluster.Cluster, restarts int, names ...string) {
	t.Helper()
	type pod struct {
		Metadata struct{ Name string }
		Status   struct {
			ContainerStatuses []struct {
				RestartCount int
				Ready        bool
			}
		}
	}
	eventually(t, fmt.Sprintf("askers that are not ready, or have not been restarted %d times", restarts), "", func() (string, error) {
		missing := slices.Clone(names)
		pods, err := list[pod](t, c, "pods", "-n", "mesh")
		for _, p := range pods {
			for _, app := range p.Status.ContainerStatuses {
				if app.Ready && app.RestartCount == restarts {
					missing = slices.DeleteFunc(missing, func(name string) bool { return name == p.Metadata.Name })
				}
			}
		}
		return strings.Join(missing, " "), err
	})
}

// running has a script know what runs in containers.
const running = `running=$(ctr -n k8s.io tasks ls | awk '$3 == "RUNNING" {print $1}')
`

// killSandboxes kills what holds pods' sandboxes. The kubelet makes others.
func killSandboxes(t *testing.T, n *cluster.Node, pods ...string) {
	t.Helper()
	onNodeShell(t, n, running+`for pod; do
		ctr -n k8s.io tasks kill -s SIGKILL "$(ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.name"=='"$pod"',labels."io.cri-containerd.kind"==sandbox' | grep -Fx "$running")"
	done`, pods...)
}

// killContainers kills what runs in containers of these names. The kubelet starts them again.
func killContainers(t *testing.T, n *cluster.Node, names ...string) {
	t.Helper()
	onNodeShell(t, n, running+`for name; do
		ctr -n k8s.io tasks kill -s SIGKILL "$(ctr -n k8s.io containers ls -q 'labels."io.kubernetes.container.name"=='"$name" | grep -Fx "$running")"
	done`, names...)
}

// apps are the running containers of pods' apps, by the runtime's word: the pods are those
// of which one runs that is not among before.
func apps(t *testing.T, n *cluster.Node, before string, pods ...string) (names, ids string) {
	t.Helper()
	const script = running + `for pod; do
		ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.name"=='"$pod"',labels."io.kubernetes.container.name"==app' |
			grep -Fx "$running" | sed "s/^/$pod /"
	done`
	for line := range strings.Lines(onNodeShell(t, n, script, pods...)) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.Contains(before, id) {
			names += name + " "
			ids += id + " "
		}
	}
	return names, ids
}
