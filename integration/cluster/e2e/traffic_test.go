//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const trafficManifest = meshManifest + "---" + `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: mesh}
spec:
  replicas: 4
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [pod-template-hash]}
      containers: [CONTAINER]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: mesh}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: echo, port: 7777}
`

// On each node a client, and a pod that bypasses on purpose.
const trafficNodeManifest = `
apiVersion: v1
kind: Pod
metadata: {name: client-NODE, namespace: mesh, labels: {app: client}}
spec: {nodeName: NODE, terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
---
apiVersion: v1
kind: Pod
metadata: {name: bypasser-NODE, namespace: mesh, labels: ` + bypassLabels + `}
spec: {nodeName: NODE, terminationGracePeriodSeconds: 1, containers: [CONTAINER]}
`

// Pods that each ask once, as soon as they may, and end; some at a time.
const comingManifest = `
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, namespace: mesh}
spec:
  parallelism: 4
  completions: COUNT
  backoffLimit: 0
  template:
    metadata: {labels: {app: coming}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - {name: app, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [get, "http://SERVICE/NAME"]}
`

// What changes on a node under traffic costs no request, and none goes past the proxy.
func TestUnderTraffic(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 2)
	release(t, c, "install", "fairlead")
	release(t, c, "install", "nodeproxy", "verbose=true") // it tells what it refuses, and what broke
	trial := startTrial(t, c)
	applyPods(t, c, trafficManifest)
	for _, n := range c.Nodes {
		applyPods(t, c, strings.ReplaceAll(trafficNodeManifest, "NODE", n.Name))
	}
	rolledOut(t, c, "deployment/web", "mesh")
	waitFor(t, c, "condition=Ready", "pods", "--all", "-n", "mesh")
	waitFor(t, c, "condition=fairlead.io/Captured", "pods", "--all", "-n", "mesh")
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster, *load)
	}{
		{"a rollout of the server", serverRollout},
		{"a rolling update of the agent", agentRollout},
		{"a rolling update of the proxy", proxyRollout},
	} {
		t.Run(step.name, func(t *testing.T) {
			load := startLoad(t)
			request(t, c, load)
			step.run(t, c, load)
			load.check(t)
			if t.Failed() {
				t.Log(broken(t, c))
			}
		})
	}
	v := trial.verdict(t, c)
	for _, n := range c.Nodes {
		if v.Tagged["mesh/client-"+n.Name] == 0 {
			t.Errorf("nothing was seen of mesh/client-%s, which was to be judged", n.Name)
		}
	}
	if t.Failed() {
		t.Log(trouble(t, c))
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// broken is what the proxies say of connections that failed.
func broken(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	out := kubectl(t, c, "logs", "-n", system, "-l", "app.kubernetes.io/name=nodeproxy", "--tail=-1", "--prefix")
	var lines strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "level=INFO") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// request has the client on each node ask the server by its Service's address.
func request(t *testing.T, c *cluster.Cluster, l *load) {
	t.Helper()
	for _, p := range clients(t, c) {
		l.request(inPod(t, c, p), "http://"+service(t, c, "80")+"/load")
	}
}

func clients(t *testing.T, c *cluster.Cluster) []apiPod {
	t.Helper()
	pods, err := list[apiPod](t, c, "pods", "-n", "mesh", "-l", "app=client")
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// service is where the Service has a port.
func service(t *testing.T, c *cluster.Cluster, port string) string {
	t.Helper()
	return net.JoinHostPort(kubectl(t, c, "get", "service", "web", "-n", "mesh", "-o", "jsonpath={.spec.clusterIP}"), port)
}

// serverRollout replaces the server's pods, all of them, and waits until those before
// are gone.
func serverRollout(t *testing.T, c *cluster.Cluster, _ *load) {
	servers := func() []string {
		return strings.Fields(kubectl(t, c, "get", "pods", "-n", "mesh", "-l", "app=web", "-o", "name"))
	}
	before := servers()
	if err := rollout(t, c, "deployment/web", "mesh"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the servers", "4, of which 0 from before", func() (string, error) {
		now := servers()
		old := slices.DeleteFunc(slices.Clone(now), func(name string) bool { return !slices.Contains(before, name) })
		return fmt.Sprintf("%d, of which %d from before", len(now), len(old)), nil
	})
}

// agentRollout replaces the agents. Connections that are open stay so.
func agentRollout(t *testing.T, c *cluster.Cluster, l *load) {
	for _, p := range clients(t, c) {
		l.converse(t, inPod(t, c, p), service(t, c, "7777"))
	}
	whilePodsCome(t, c, "agent", func() error { return rollout(t, c, "daemonset/fairlead", system) })
}

// proxyRollout replaces the proxies. What goes on longer than they drain is cut.
func proxyRollout(t *testing.T, c *cluster.Cluster, _ *load) {
	whilePodsCome(t, c, "proxy", func() error { return rollout(t, c, "daemonset/nodeproxy", system) })
}

// rollout restarts what has pods, and waits until that is done.
func rollout(t *testing.T, c *cluster.Cluster, what, namespace string) error {
	t.Helper()
	_, err := c.Kubectl(t.Context(), "rollout", "restart", what, "-n", namespace)
	if err == nil {
		_, err = c.Kubectl(t.Context(), "rollout", "status", what, "-n", namespace, "--timeout="+patience.String())
	}
	return err
}

// rolledOut waits until all pods of what has them are as it wants them.
func rolledOut(t *testing.T, c *cluster.Cluster, what, namespace string) {
	t.Helper()
	kubectl(t, c, "rollout", "status", what, "-n", namespace, "--timeout="+patience.String())
}

// whilePodsCome does something while new pods come and go. Each has to start, and its first
// request to succeed.
func whilePodsCome(t *testing.T, c *cluster.Cluster, name string, do func() error) {
	t.Helper()
	const count = 20
	done := make(chan error, 1)
	go func() { done <- do() }()
	for last := false; !last; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			last = true // another one, with all at rest again
		default:
		}
		apply(t, c, strings.NewReplacer("NAME", name, "COUNT", strconv.Itoa(count), "SERVICE", service(t, c, "80")).Replace(comingManifest))
		waitFor(t, c, "condition=Complete", "job/"+name, "-n", "mesh")
		out := kubectl(t, c, "logs", "-n", "mesh", "-l", "job-name="+name, "--tail=-1")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		for _, line := range lines {
			if !strings.HasPrefix(line, "pod=web-") {
				t.Errorf("a new pod says %q", line)
			}
		}
		if len(lines) != count {
			t.Errorf("%d new pods have said something, want %d", len(lines), count)
		}
		kubectl(t, c, "delete", "job", name, "-n", "mesh", "--cascade=foreground")
	}
}
