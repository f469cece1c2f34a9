//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/image"
)

// system is the namespace that Fairlead is installed in.
const system = "fairlead-system"

// What "make e2e" has built, and what it is installed with.
const (
	builtDir  = "../../../bin"
	chartsDir = "../../../charts"
)

// startLoaded starts a cluster whose nodes have the images of the agent and of the
// reference proxy. Nothing is installed.
func startLoaded(t *testing.T, nodes int) *cluster.Cluster {
	t.Helper()
	c := start(t, nodes)
	for _, name := range []string{"fairlead", "nodeproxy"} {
		if _, err := c.LoadArchive(t.Context(), archive(name)); err != nil {
			t.Fatalf("%v; remedy: make image", err)
		}
	}
	kubectl(t, c, "create", "namespace", system)
	kubectl(t, c, "label", "namespace", system, "pod-security.kubernetes.io/enforce=privileged")
	return c
}

func archive(name string) string { return filepath.Join(builtDir, name+".tar") }

// install installs the agent, with values as "name=value", and the reference proxy, and
// waits until both are ready.
func install(t *testing.T, c *cluster.Cluster, values ...string) {
	t.Helper()
	release(t, c, "install", "fairlead", values...)
	release(t, c, "install", "nodeproxy")
}

// release installs or upgrades one of the charts, whose release has its name.
func release(t *testing.T, c *cluster.Cluster, verb, chart string, values ...string) {
	t.Helper()
	if out, err := helm(t, c, releaseArgs(t, verb, chart, values...)...); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, trouble(t, c))
	}
}

func releaseArgs(t *testing.T, verb, chart string, values ...string) []string {
	t.Helper()
	name := imageName(t, chart)
	colon := strings.LastIndex(name, ":")
	args := []string{
		verb, chart, filepath.Join(chartsDir, chart), "--namespace", system, "--wait", "--timeout", patience.String(),
		"--set", "image.repository=" + name[:colon], "--set-string", "image.tag=" + name[colon+1:],
	}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return args
}

// imageName is the name of one of our images.
func imageName(t *testing.T, name string) string {
	t.Helper()
	file, err := os.Open(archive(name))
	if err != nil {
		t.Fatalf("%v; remedy: make image", err)
	}
	defer file.Close()
	full, err := image.Name(file)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// helm runs Helm.
func helm(t *testing.T, c *cluster.Cluster, args ...string) (string, error) {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(builtDir, "tools/helm"))
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := c.Command(t.Context(), append([]string{program}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// trouble is what a person would look at first if an installation does not get ready.
func trouble(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	var all strings.Builder
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector=type=Warning"},
		{"-n", system, "logs", "-l", "app.kubernetes.io/name in (fairlead, nodeproxy)", "--all-containers", "--tail=20", "--prefix"},
	} {
		out, err := c.Kubectl(t.Context(), args...)
		all.WriteString(out)
		if err != nil {
			all.WriteString(err.Error() + "\n")
		}
	}
	return all.String()
}

// apiPod is what the tests read of a pod in the API.
type apiPod struct {
	Metadata struct {
		Namespace, Name, UID string
		Labels, Annotations  map[string]string
		DeletionTimestamp    string
	}
	Spec struct {
		NodeName    string
		HostNetwork bool
	}
	Status struct {
		Phase      string
		PodIPs     []struct{ IP string }
		Conditions []struct{ Type, Status, Reason, Message string }
	}
}

// runtimeUID is the UID that the runtime, and so the agent and the proxy, know it by.
func (p apiPod) runtimeUID() string {
	if hash := p.Metadata.Annotations["kubernetes.io/config.hash"]; hash != "" {
		return hash
	}
	return p.Metadata.UID
}

func (p apiPod) String() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// over says that none of its containers will run again.
func (p apiPod) over() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// condition is the status and the reason of one of its conditions, or "no".
func (p apiPod) condition(kind string) string {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status + " (" + c.Reason + ")"
		}
	}
	return "no"
}

// list reads objects from the API. The arguments are those of kubectl get.
func list[T any](t *testing.T, c *cluster.Cluster, args ...string) ([]T, error) {
	t.Helper()
	out, err := c.Kubectl(t.Context(), append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var all struct{ Items []T }
	err = json.Unmarshal([]byte(out), &all)
	return all.Items, err
}

// podsOf returns the running pods of a DaemonSet of ours, by their nodes.
func podsOf(pods []apiPod, chart string) map[string][]apiPod {
	byNode := map[string][]apiPod{}
	for _, p := range pods {
		if p.Metadata.Namespace == system && p.Metadata.Labels["app.kubernetes.io/name"] == chart && p.Status.Phase == "Running" {
			byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
		}
	}
	return byNode
}

// sorted is a set as text.
func sorted[V any](set map[string]V) string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
