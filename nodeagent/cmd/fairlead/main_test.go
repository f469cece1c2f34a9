package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(dials); socket != "" {
		if err := beProxy(socket); err != nil {
			panic(err)
		}
		return
	}
	netlab.Main(m, 27)
}

// run executes a command line and returns what it printed.
func run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// settings is the configuration of an agent that shares nothing; more are lines of
// its file.
func settings(t *testing.T, more ...string) (config.Config, string) {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.RunDir, c.ProxySocket, c.HTTPAddress = filepath.Join(dir, "run"), filepath.Join(dir, "zds", "ztunnel.sock"), ""
	text := "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\nrunDir: " + c.RunDir +
		"\nproxySocket: " + c.ProxySocket + "\nhttpAddress: \"\"\n" + strings.Join(more, "\n") + "\n"
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c, file
}

// start runs an agent until the end of the test, or until stop is called.
func start(t *testing.T, file, pods string) (stop func() (string, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := run(ctx, "agent", "--config", file, "--pods-from", pods)
		done <- result{out, err}
	}()
	var r result
	ended := false
	stop = func() (string, error) {
		cancel()
		if !ended {
			r, ended = <-done, true
		}
		return r.out, r.err
	}
	t.Cleanup(func() { _, _ = stop() })
	return stop
}

const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {istio.io/dataplane-mode: ambient}}\nspec: {containers: []}\n"

func TestAgentAnswersStatus(t *testing.T) {
	netlab.Kernel(t)
	c, file := settings(t)
	pods := t.TempDir()
	if err := os.WriteFile(filepath.Join(pods, "web.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := start(t, file, pods)
	var out string
	netlab.Eventually(t, func() error {
		var err error
		out, err = run(t.Context(), "status", "--run-dir", c.RunDir)
		if err == nil && !strings.Contains(out, "web") {
			err = errors.New("the pod is not shown yet: " + out)
		}
		return err
	})
	for _, want := range []string{"shop", "web", "Pending", "NetworkNamespaceUnknown", "none connected", "remedy: if the pod runs, restart it"} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not show %q:\n%s", want, out)
		}
	}
	out, err := run(t.Context(), "status", "-o", "json", "--run-dir", c.RunDir)
	if err != nil { // it has not been pending for a minute
		t.Errorf("status -o json: %v", err)
	}
	if !strings.Contains(out, `"reason": "NetworkNamespaceUnknown"`) {
		t.Errorf("no JSON: %s", out)
	}
	// The plugin's STATUS finds that an agent has been ready.
	netlab.Eventually(t, func() error {
		_, err := os.Stat(filepath.Join(c.RunDir, "ready"))
		return err
	})
	log, err := stop()
	if err != nil || !strings.Contains(log, "every pod stays as it is") {
		t.Errorf("the agent ended with %v:\n%s", err, log)
	}
}

func TestSecondAgentIsKeptOut(t *testing.T) {
	netlab.Kernel(t)
	c, file := settings(t)
	pods := t.TempDir()
	start(t, file, pods)
	netlab.Eventually(t, func() error {
		_, err := run(t.Context(), "status", "--run-dir", c.RunDir)
		return err
	})
	if _, err := run(t.Context(), "agent", "--config", file, "--pods-from", pods); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("got %v", err)
	}
}

// A pod that the agent was not told of is found where the configuration says.
func TestAgentFindsPodsInTheCache(t *testing.T) {
	netlab.Kernel(t)
	cache, pods := t.TempDir(), t.TempDir()
	c, file := settings(t, "cniCache: "+cache)
	pod := netlab.NewNS(t, "pod")
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","netns":%q,"cniArgs":[["K8S_POD_UID","u1"]]}`, pod.Path)
	if err := errors.Join(
		os.WriteFile(filepath.Join(cache, "net-c1-eth0"), []byte(entry), 0o600),
		os.WriteFile(filepath.Join(pods, "web.yaml"), []byte(strings.Replace(manifest, "{name: web", "{uid: u1, name: web", 1)), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	start(t, file, pods)
	netlab.Eventually(t, func() error {
		out, err := run(t.Context(), "status", "-o", "json", "--run-dir", c.RunDir)
		if want := `"source": "libcni cache"`; !strings.Contains(out, want) {
			return fmt.Errorf("status does not show %s: %v\n%s", want, err, out)
		}
		return nil
	})
}

func TestAgentThatCannotRunSaysWhy(t *testing.T) {
	netlab.Kernel(t)
	_, file := settings(t)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, both := settings(t, "kubeconfig: "+kubeconfig(t, "http://127.0.0.1:1"))
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("kind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no source":          {[]string{"agent", "--config", file}, "does not run in a pod; name a kubeconfig file in the configuration (kubeconfig), or a directory of manifests (--pods-from)"},
		"two sources":        {[]string{"agent", "--config", both, "--pods-from", t.TempDir()}, "leave one of them out"},
		"no node's name":     {[]string{"agent", "--config", both}, "set nodeName in the configuration, or NODE_NAME"},
		"no such directory":  {[]string{"agent", "--config", file, "--pods-from", "/nowhere"}, "/nowhere"},
		"no such config":     {[]string{"agent", "--config", "/nowhere.yaml", "--pods-from", t.TempDir()}, "/nowhere.yaml"},
		"not a config":       {[]string{"agent", "--config", bad, "--pods-from", t.TempDir()}, "AgentConfig"},
		"unknown output":     {[]string{"status", "-o", "xml"}, "xml"},
		"nobody to ask":      {[]string{"status", "--run-dir", "/nowhere"}, "/nowhere/agent.sock"},
		"no such command":    {[]string{"frobnicate"}, "frobnicate"},
		"unexpected operand": {[]string{"version", "1"}, "version"},
	} {
		if _, err := run(t.Context(), test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want it to say %q", name, err, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		if out, err := run(t.Context(), arg); err != nil || out != version+"\n" {
			t.Errorf("%s: %q, %v", arg, out, err)
		}
	}
}

// An agent that hangs does not hang who asks.
func TestStatusOfAnAgentThatHangs(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // patience is longer
	defer cancel()
	_, err = run(ctx, "status", "--run-dir", filepath.Dir(socket))
	if err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("got %v", err)
	}
}

// All metrics are good ones, and those that METRICS.md lists.
func TestMetricsAreListed(t *testing.T) {
	netlab.Kernel(t)
	_, file := settings(t, "nodeName: node1", "kubeconfig: "+kubeconfig(t, "http://127.0.0.1:1"))
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(c, "", false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	described := make(chan *prometheus.Desc, 1000)
	a.registry.Describe(described)
	close(described)
	have := map[string]string{} // what it is, by its name
	for d := range described {
		said := regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]+)"`).FindStringSubmatch(d.String())
		if strings.HasPrefix(said[1], "fairlead_") {
			have[said[1]] = said[2]
		}
	}
	text, err := os.ReadFile("../../metrics/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(fairlead_[a-z_]+)` .*\\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		listed[row[1]] = row[2]
	}
	if diff := cmp.Diff(have, listed); diff != "" {
		t.Errorf("METRICS.md (-registered +listed):\n%s", diff)
	}
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// Liveness and readiness before and after the pods are known.
func TestReady(t *testing.T) {
	netlab.Kernel(t)
	c, _ := settings(t)
	a, err := newAgent(c, t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want string) {
		t.Helper()
		const head = "# HELP fairlead_node_ready 1 while pods of the node start as they ask for, else 0, by reason: OK, Starting, Drained, KernelUnsupported, NotInstalled.\n# TYPE fairlead_node_ready gauge\n"
		if err := testutil.CollectAndCompare(nodeMetrics{a}, strings.NewReader(head+want+"\n")); err != nil {
			t.Error(err)
		}
	}
	if err := a.ready(); err == nil || !strings.Contains(err.Error(), "not known yet") {
		t.Errorf("before the pods are known: %v", err)
	}
	shows(`fairlead_node_ready{reason="Starting"} 0`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error)
	go func() { done <- a.run(ctx) }()
	netlab.Eventually(t, a.ready)
	if err := a.reconciler.Healthy(); err != nil {
		t.Errorf("alive: %v", err)
	}
	shows(`fairlead_node_ready{reason="OK"} 1`)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
