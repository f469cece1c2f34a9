//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// Two pods whose containers each ask the server once: init containers, a sidecar (by its
// startup probe), and a Job's container.
const firstManifest = `
apiVersion: batch/v1
kind: Job
metadata: {name: job, namespace: mesh}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: init, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [get, "SERVER/job/init"]}
      - name: sidecar
        restartPolicy: Always
        image: localhost/fairlead/testapp:1
        imagePullPolicy: Never
        startupProbe: {exec: {command: [/testapp, get, "SERVER/job/sidecar"]}, timeoutSeconds: 15}
      containers:
      - {name: app, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [get, "SERVER/job/app"]}
---
apiVersion: v1
kind: Pod
metadata: {name: first, namespace: mesh}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: init, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [get, "SERVER/pod/init"]}
  containers: [CONTAINER]
`

// Whatever the server has been asked, the proxy has relayed: what it did not was sent
// before the pod was captured, or beside the redirects.
func firstRequests(t *testing.T, c *cluster.Cluster) {
	server := "http://" + net.JoinHostPort(podIPs(t, c, "plain")[0].String(), "8080")
	before := relayed(t, c)
	applyPods(t, c, strings.ReplaceAll(firstManifest, "SERVER", server))
	waitFor(t, c, "condition=Complete", "job/job", "-n", "mesh")
	waitFor(t, c, "condition=Ready", "pod/first", "-n", "mesh")
	agree(t, c)
	asked, err := get(t, c, server+"/clients")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for line := range strings.Lines(asked) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		paths = append(paths, path)
	}
	slices.Sort(paths)
	got := fmt.Sprintf("asked %s, relayed %d", strings.Join(paths, " "), relayed(t, c)-before)
	if want := "asked /job/app /job/init /job/sidecar /pod/init, relayed 4"; got != want {
		t.Errorf("the server and the proxy say %q, want %q", got, want)
	}
	kubectl(t, c, "delete", "job/job", "pod/first", "-n", "mesh", "--cascade=foreground")
}

// relayed is how many outbound connections all proxies have relayed.
func relayed(t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	w, err := look(t, c)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, node := range w.nodes {
		for _, proxy := range node.proxies {
			n += proxy.Relayed.Outbound
		}
	}
	return n
}

const restrictedManifest = `
apiVersion: v1
kind: Namespace
metadata:
  name: restricted
  labels: {istio.io/dataplane-mode: ambient, pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: v1
kind: Pod
metadata: {name: humble, namespace: restricted}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: app
    image: localhost/fairlead/testapp:1
    imagePullPolicy: Never
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// A captured pod needs no right that its namespace does not give.
func restrictedNamespace(t *testing.T, c *cluster.Cluster) {
	applyPods(t, c, restrictedManifest)
	waitFor(t, c, "condition=Ready", "pod/humble", "-n", "restricted")
	waitFor(t, c, "condition=fairlead.io/Captured", "pod/humble", "-n", "restricted")
	agree(t, c)
	before := relayed(t, c)
	server := "http://" + net.JoinHostPort(podIPs(t, c, "plain")[0].String(), "8080")
	kubectl(t, c, "exec", "-n", "restricted", "humble", "--", "/testapp", "get", server+"/humble")
	if n := relayed(t, c) - before; n != 1 {
		t.Errorf("the proxy has relayed %d connections, want 1", n)
	}
	kubectl(t, c, "delete", "namespace", "restricted")
}

const gatedManifest = `
apiVersion: v1
kind: Pod
metadata: {name: gated, namespace: mesh}
spec:
  terminationGracePeriodSeconds: 1
  readinessGates: [{conditionType: fairlead.io/Captured}]
  containers: [CONTAINER]
---
apiVersion: v1
kind: Pod
metadata: {name: gated-out, namespace: mesh, labels: {istio.io/dataplane-mode: none}}
spec:
  terminationGracePeriodSeconds: 1
  readinessGates: [{conditionType: fairlead.io/Captured}]
  containers: [CONTAINER]
`

// A pod with the gate is ready when it is captured, and only then.
func readinessGate(t *testing.T, c *cluster.Cluster) {
	applyPods(t, c, gatedManifest)
	gates := func(want string) {
		t.Helper()
		eventually(t, "pods with the gate", want, func() (string, error) {
			pods, err := list[apiPod](t, c, "pods", "-n", "mesh", "gated", "gated-out")
			var s strings.Builder
			for _, p := range pods {
				fmt.Fprintf(&s, "%s: containers %s, captured %s, ready %s\n", p.Metadata.Name,
					p.condition("ContainersReady"), p.condition("fairlead.io/Captured"), p.condition("Ready"))
			}
			return s.String(), err
		})
	}
	gates("gated: containers True (), captured True (OK), ready True ()\n" +
		"gated-out: containers True (), captured False (OptedOut), ready False (ReadinessGatesNotReady)\n")
	kubectl(t, c, "label", "pod", "-n", "mesh", "gated-out", "istio.io/dataplane-mode-")
	kubectl(t, c, "label", "pod", "-n", "mesh", "gated", "istio.io/dataplane-mode=none")
	gates("gated: containers True (), captured False (OptedOut), ready False (ReadinessGatesNotReady)\n" +
		"gated-out: containers True (), captured True (OK), ready True ()\n")
	agree(t, c)
	kubectl(t, c, "delete", "pods", "-n", "mesh", "gated", "gated-out")
}

const staticManifest = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: mesh}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never}]
`

func staticPod(t *testing.T, c *cluster.Cluster) {
	on := func(command string) {
		t.Helper()
		if _, err := c.Nodes[0].Run(t.Context(), "sh", "-c", command, "sh", staticManifest); err != nil {
			t.Fatal(err)
		}
	}
	on(`printf %s "$1" >/etc/kubernetes/manifests/static.yaml`)
	eventually(t, "the mirror pod", "enabled Running", func() (string, error) {
		return c.Kubectl(t.Context(), "get", "pod", "-n", "mesh", "static-n1", "-o",
			`jsonpath={.metadata.annotations.ambient\.istio\.io/redirection} {.status.phase}`)
	})
	agree(t, c)
	on("rm /etc/kubernetes/manifests/static.yaml")
	waitFor(t, c, "delete", "pod/static-n1", "-n", "mesh")
}

const setManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set, namespace: mesh}
spec:
  replicas: 3
  serviceName: set
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec: {terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`

// A forced deletion lets the new pod start while the old one still ends.
func sameName(t *testing.T, c *cluster.Cluster) {
	applyPods(t, c, setManifest)
	seen := map[string]bool{}
	for _, how := range [][]string{{"--wait=false"}, {"--force"}, {"--force"}, nil} {
		rolledOut(t, c, "statefulset/set", "mesh")
		pods, err := list[apiPod](t, c, "pods", "-n", "mesh", "-l", "app=set")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			seen[p.Metadata.UID] = true
		}
		if how != nil {
			kubectl(t, c, append([]string{"delete", "pods", "-n", "mesh", "-l", "app=set"}, how...)...)
		}
	}
	if len(seen) != 4*3 {
		t.Errorf("%d pods have been seen, want 12: three names, four times", len(seen))
	}
	agree(t, c)
	kubectl(t, c, "delete", "statefulset/set", "-n", "mesh", "--cascade=foreground")
}
