package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// dir holds all that the node writes, on the private tmpfs.
const dir = "/run/demo"

const (
	podNamespace = "demo"
	modeLabel    = "istio.io/dataplane-mode"
)

// config is the agent's. The waits are short so that the demo is.
const config = `apiVersion: agent.fairlead.io/v1alpha1
kind: AgentConfig
waits: {proxy: 1s, ack: 2s}
releaseGrace: 500ms
sweepInterval: 500ms
`

// A node is a machine of its own: the private namespaces, the daemons in them and
// the pods that were started.
type node struct {
	bin     string
	self    *netlab.NS
	web     *web // outside the mesh
	runtime *runtime
	agent   *netlab.Process
	proxy   *netlab.Process
	http    http.Client
	pods    map[string]*pod

	// Where the node proxy answers: two at a time cannot at the same address.
	admin string

	// What a sabotage may change.
	labelKey    string
	proxyFaults []string
	goodbye     syscall.Signal // with which a proxy that was replaced is ended
}

// A pod is one that the story speaks of.
type pod struct {
	name, uid string
	addrs     []netip.Addr // one of each IP version
	net       *netlab.NS
	app       *web
	took      time.Duration // for the ADD
	stop      func(context.Context) error
}

// startNode furnishes the private namespaces and starts the agent and the proxy.
func startNode(ctx context.Context, bin string) (*node, error) {
	for _, program := range []string{"fairlead", "fairlead-cni", "nodeproxy", "cni/bridge", "cni/host-local"} {
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			return nil, fmt.Errorf("%w: build it with make build demo-parts", err)
		}
	}
	handle, err := netns.Current()
	if err != nil {
		return nil, err
	}
	n := &node{
		bin: bin, self: &netlab.NS{Handle: handle, Name: "the node"}, runtime: newRuntime(bin, dir),
		pods: map[string]*pod{}, labelKey: modeLabel, goodbye: unix.SIGTERM, admin: admins[0],
	}
	if err := os.MkdirAll(filepath.Join(dir, "pods"), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	// So that the bridge's address can be used as soon as it is there.
	if err := n.self.Sysctl("net/ipv6/conf/default/accept_dad", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if n.web, err = serveWeb(n.self); err != nil {
		return nil, err
	}
	// It ends with this process.
	if _, err := netlab.ServeNames(n.self, "0.0.0.0:53", gateway4); err != nil {
		return nil, err
	}
	if err := n.startAgent(); err != nil {
		return nil, err
	}
	if err := n.startProxy(); err != nil {
		return n, err
	}
	return n, n.awaitProxy(ctx)
}

func (n *node) startAgent() (err error) {
	n.agent, err = netlab.Start(dir, "agent", filepath.Join(n.bin, "fairlead"), "agent",
		"--pods-from", filepath.Join(dir, "pods"), "--config", filepath.Join(dir, "config.yaml"))
	return err
}

// admins are the addresses that node proxies answer at, in turn.
var admins = [2]string{"127.0.0.1:15000", "127.0.0.1:15002"}

func (n *node) nextAdmin() {
	if n.admin == admins[0] {
		n.admin = admins[1]
	} else {
		n.admin = admins[0]
	}
}

// startProxy starts the node proxy, with the faults that are asked for.
func (n *node) startProxy() (err error) {
	args := append([]string{"--dns", gateway4.String(), "--admin", n.admin}, n.proxyFaults...)
	n.proxy, err = netlab.Start(dir, "nodeproxy", filepath.Join(n.bin, "nodeproxy"), args...)
	return err
}

// awaitProxy waits until agent and proxy talk to each other.
func (n *node) awaitProxy(ctx context.Context) error {
	return await(ctx, func(ctx context.Context) error {
		if err := errors.Join(n.agent.Alive(), n.proxy.Alive()); err != nil {
			return err
		}
		report, err := n.status(ctx)
		if err == nil && len(report.Node.Proxies) == 0 {
			err = errors.New("the node proxy has not connected to the agent")
		}
		return err
	})
}

// write puts the pod's manifest, with or without the label, in the place of the one
// before.
func (n *node) write(p *pod, labelled bool) error {
	labels := map[string]string{"app": p.name}
	if labelled {
		labels[n.labelKey] = "ambient"
	}
	manifest, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"namespace": podNamespace, "name": p.name, "uid": p.uid, "labels": labels},
	}, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, "pods", "."+p.name)
	if err := os.WriteFile(temporary, manifest, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, "pods", p.name+".json"))
}

// create makes a pod's object; the runtime has not started it yet.
func (n *node) create(name string, labelled bool) (*pod, error) {
	p := &pod{name: name, uid: "uid-of-" + name}
	n.pods[name] = p
	return p, n.write(p, labelled)
}

// report is what the story needs of "fairlead status -o json".
type report struct {
	Node struct {
		Proxies []struct{ PID int }
	}
	Pods []podReport
}

type podReport struct {
	Name, State, Reason, Message string
}

// status asks the agent as a person would.
func (n *node) status(ctx context.Context) (report, error) {
	var r report
	out, err := exec.CommandContext(ctx, filepath.Join(n.bin, "fairlead"), "status", "-o", "json").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(out) == 0 {
		return r, fmt.Errorf("fairlead status: %w: %s", err, exit.Stderr)
	}
	if err != nil && exit == nil {
		return r, err
	}
	return r, json.Unmarshal(out, &r)
}

// state asks for one pod.
func (n *node) state(ctx context.Context, p *pod) (podReport, error) {
	r, err := n.status(ctx)
	for _, candidate := range r.Pods {
		if candidate.Name == p.name {
			return candidate, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("fairlead status does not know pod %s", p.name)
	}
	return podReport{}, err
}

// becomes waits until fairlead status shows the pod in a state, for one of the
// reasons if there are any.
func (n *node) becomes(ctx context.Context, p *pod, state string, reasons ...string) (podReport, error) {
	var now podReport
	err := await(ctx, func(ctx context.Context) (err error) {
		if now, err = n.state(ctx, p); err != nil {
			return err
		}
		if now.State == state && (len(reasons) == 0 || slices.Contains(reasons, now.Reason)) {
			return nil
		}
		return fmt.Errorf("%s is still %s (%s): %s", p.name, now.State, now.Reason, now.Message)
	})
	return now, err
}

// relayed is what a proxy counts of one pod.
type relayed struct{ Outbound, Inbound, DNS int }

// counters asks the proxy what it has relayed for a pod.
func (n *node) counters(ctx context.Context, p *pod) (relayed, error) {
	var dump struct {
		WorkloadState map[string]struct{ Relayed relayed }
	}
	err := n.askProxy(ctx, "/config_dump", func(answer io.Reader) error {
		if err := json.NewDecoder(answer).Decode(&dump); err != nil {
			return fmt.Errorf("cannot read the node proxy's answer: %w", err)
		}
		return nil
	})
	return dump.WorkloadState[p.uid].Relayed, err
}

// proxyReady waits until the proxy says that it serves all that the agent wants.
func (n *node) proxyReady(ctx context.Context) error {
	return await(ctx, func(ctx context.Context) error {
		if err := n.proxy.Alive(); err != nil {
			return err
		}
		return n.askProxy(ctx, "/healthz/ready", func(io.Reader) error { return nil })
	})
}

// askProxy has the answer to a successful request to the node proxy read.
func (n *node) askProxy(ctx context.Context, path string, read func(answer io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		return err
	}
	response, err := n.http.Do(request)
	if err != nil {
		return fmt.Errorf("cannot ask the node proxy: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // was only read
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(response.Body) // as much of it as there is
		return fmt.Errorf("the node proxy answers %s: %s", response.Status, bytes.TrimSpace(why))
	}
	return read(response.Body)
}
