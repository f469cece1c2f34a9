package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 38) }

// binary builds the plugin as the release is built, once, and returns its path.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bin")
	if err != nil {
		return "", err
	}
	// For the test that executes it as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	return filepath.Join(dir, "fairlead-cni"), netlab.Build("../..", dir, "./cni/cmd/fairlead-cni")
})

func pluginPath(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// primary stands in for the plugin that makes the interface: it prints a result
// that stands beside it.
const primary = `#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}' ;;
ADD) cat "$0.result" ;;
esac
`

// node is a container runtime with a chain of primary and fairlead-cni, and one
// sandbox.
type node struct {
	*libcni.CNIConfig
	*recorder
	t       *testing.T
	socket  string
	list    *libcni.NetworkConfigList
	sandbox *libcni.RuntimeConf
	netns   *netlab.NS
}

var nodes atomic.Int32

func newNode(t *testing.T, cniVersion string, fields ...string) *node {
	t.Helper()
	netlab.Kernel(t)
	dir := t.TempDir()
	n := nodes.Add(1)
	netns := netlab.NewNS(t, fmt.Sprintf("sandbox-%d", n))
	result := fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"10.1.2.3/24","interface":0,"version":"4"}]}`,
		cniVersion, netns.Path)
	for name, content := range map[string]string{"primary": primary, "primary.result": result} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "run", "agent.sock")
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"net","plugins":[
		{"type":"primary"},
		{"type":"fairlead-cni","agentSocket":%q,%s"capabilities":{"io.kubernetes.cri.pod-annotations":true}}]}`,
		cniVersion, socket, strings.Join(append(fields, ""), ",")))
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{DefaultExec: &invoke.DefaultExec{RawExec: &invoke.RawExec{}, PluginDecoder: version.PluginDecoder{}}}
	node := &node{
		CNIConfig: libcni.NewCNIConfigWithCacheDir([]string{dir, filepath.Dir(pluginPath(t))}, t.TempDir(), rec),
		recorder:  rec, t: t, socket: socket, list: list, netns: netns,
	}
	node.sandbox = node.newSandbox("shop", fmt.Sprintf("web-%d", n))
	return node
}

// newSandbox is what a runtime says of a pod's sandbox.
func (n *node) newSandbox(namespace, name string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "container-" + name, NetNS: n.netns.Path, IfName: "eth0",
		Args: [][2]string{
			{"K8S_POD_UID", "uid-" + name}, {"IgnoreUnknown", "1"}, {"K8S_POD_INFRA_CONTAINER_ID", "container-" + name},
			{"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name},
		},
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"a": "b"}},
	}
}

// attachment is what the agent must be told of the node's sandbox.
func (n *node) attachment() agentapi.Attachment {
	name := strings.TrimPrefix(n.sandbox.ContainerID, "container-")
	return agentapi.Attachment{
		Namespace: "shop", Name: name, UID: "uid-" + name,
		ContainerID: n.sandbox.ContainerID, Netns: n.netns.Path, Interface: "eth0",
	}
}

func (n *node) add(ctx context.Context) error {
	_, err := n.AddNetworkList(ctx, n.list, n.sandbox)
	return err
}

func (n *node) log() string {
	n.t.Helper()
	text, err := os.ReadFile(agentapi.LogFile(n.socket))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// fails checks the error that libcni returns, as a runtime sees it.
func fails(t *testing.T, err error, code uint, says ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a CNI error with code %d", err, code)
	}
	if e.Code != code {
		t.Errorf("code %d, want %d: %v", e.Code, code, err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

// recorder keeps what went in and out of our plugin.
type recorder struct {
	*invoke.DefaultExec
	mu   sync.Mutex
	runs []run
}

type run struct {
	prevResult json.RawMessage
	stdout     string
	failed     bool
}

func (r *recorder) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	stdout, err := r.DefaultExec.ExecPlugin(ctx, path, stdin, environ)
	if filepath.Base(path) == "fairlead-cni" {
		var conf struct {
			PrevResult json.RawMessage `json:"prevResult"`
		}
		if err := json.Unmarshal(stdin, &conf); err != nil && len(stdin) > 0 {
			return nil, err
		}
		r.mu.Lock()
		r.runs = append(r.runs, run{conf.PrevResult, string(stdout), err != nil})
		r.mu.Unlock()
	}
	return stdout, err
}

// last is the newest execution of our plugin.
func (r *recorder) last(t *testing.T) run {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.runs) == 0 {
		t.Fatal("the plugin has not been executed")
	}
	return r.runs[len(r.runs)-1]
}
