package stories

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A node is where one story plays.
type node struct {
	name, bin, dir string
	ctx            context.Context
	cancel         context.CancelFunc // ends what is under way

	net     *netlab.NS // of the daemons and the bridge; nil until the story says node
	outside *netlab.NS // has the web server and the name servers
	closers []func() error

	agent, proxy daemon
	cni          *libcni.CNIConfig
	unchained    bool                 // fairlead-cni is not in the runtime's list of plugins
	manifests    map[string]*manifest // by the pod's name
	sandboxes    map[string]*sandbox
	made         int // sandboxes so far
}

func newNode(ctx context.Context, name, bin, dir string) *node {
	n := &node{name: name, bin: bin, dir: dir, manifests: map[string]*manifest{}, sandboxes: map[string]*sandbox{}}
	n.ctx, n.cancel = context.WithCancel(ctx)
	n.agent.start, n.proxy.start = n.startAgent, n.startProxy
	return n
}

// What is outside. Pods ask the first for names, the proxy the second: so whose answer
// comes says who asked.
var (
	outsideAddr = netip.MustParseAddr("10.88.0.1")
	proxysNames = netip.MustParseAddr("10.88.0.2")
	webServer   = netip.AddrPortFrom(outsideAddr, 80)
	nameServer  = netip.AddrPortFrom(outsideAddr, 53)
)

// config is the agent's configuration as far as every story has the same.
const config = `apiVersion: agent.fairlead.io/v1alpha1
kind: AgentConfig
runDir: %s
proxySocket: %s
cniCache: %s
httpAddress: ""
`

// furnish makes the node's network and writes what the agent reads.
func (n *node) furnish(lines []string) error {
	if n.net != nil {
		return errors.New("there is a node already")
	}
	var err error
	if n.outside, err = netlab.Create(n.name + "-outside"); err != nil {
		return err
	}
	n.closers = append(n.closers, n.outside.Close)
	out := netlab.Port{NS: n.outside, Addrs: netlab.Prefixes(outsideAddr.String()+"/24", proxysNames.String()+"/24")}
	if n.net, err = netlab.CreateSwitch(n.name, out); err != nil {
		return err
	}
	n.closers = append(n.closers, n.net.Close)
	web, err := netlab.StartEcho(n.outside, "outside", "tcp", webServer.String())
	if err != nil {
		return err
	}
	n.closers = append(n.closers, web.Close)
	for _, addr := range []netip.Addr{outsideAddr, proxysNames} {
		names, err := netlab.ServeNames(n.outside, netip.AddrPortFrom(addr, nameServer.Port()).String(), addr)
		if err != nil {
			return err
		}
		n.closers = append(n.closers, names.Close)
	}
	text := fmt.Sprintf(config, n.file("run"), n.file("zds.sock"), n.file("cni/results")) + strings.Join(lines, "\n") + "\n"
	return errors.Join(os.Mkdir(n.file("pods"), 0o700), os.WriteFile(n.file("agent.yaml"), []byte(text), 0o600), n.furnishRuntime())
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// close ends all that the story has left.
func (n *node) close() error {
	n.cancel()
	for _, d := range []daemon{n.agent, n.proxy} {
		if d.Process != nil {
			d.Kill()
		}
	}
	var errs []error
	for _, s := range n.sandboxes {
		errs = append(errs, s.close())
	}
	for _, closer := range slices.Backward(n.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// patience is how long one line of a story may take; on a busy machine what takes
// milliseconds takes seconds.
const patience = 30 * time.Second

// await asks until there is no error, or a daemon has ended that nobody has ended.
func (n *node) await(ask func() error) error {
	return netlab.Await(n.ctx, patience, 20*time.Millisecond, func(context.Context) error {
		for _, d := range []daemon{n.agent, n.proxy} {
			if d.Process != nil && d.Alive() != nil {
				return d.Alive()
			}
		}
		return ask()
	})
}

// A daemon is the agent or the proxy.
type daemon struct {
	*netlab.Process // nil while it is not meant to run
	start           func(flags []string) error
}

func (d *daemon) do(ctx context.Context, verb string, flags []string) error {
	switch {
	case verb == "start" && d.Process != nil:
		return errors.New("it runs already")
	case verb == "start":
		return d.start(flags)
	case d.Process == nil:
		return errors.New("it does not run")
	}
	switch verb {
	case "pause":
		return d.Pause(ctx)
	case "resume":
		return d.Resume()
	case "kill":
		return d.end(ctx, unix.SIGKILL)
	case "stop":
		p := d.Process
		err := d.end(ctx, unix.SIGTERM)
		if err == nil && !p.State().Success() {
			err = fmt.Errorf("it was told to end, and did so badly: %w", p.Alive())
		}
		return err
	}
	return errUsage
}

func (d *daemon) end(ctx context.Context, s syscall.Signal) error {
	p := d.Process
	d.Process = nil
	return p.End(ctx, s)
}

// startAgent returns when the agent answers.
func (n *node) startAgent([]string) (err error) {
	n.agent.Process, err = n.net.Start(n.dir, "agent", filepath.Join(n.bin, "fairlead"),
		"agent", "--config", n.file("agent.yaml"), "--pods-from", n.file("pods"))
	if err != nil {
		return err
	}
	return n.await(func() error {
		_, err := n.status(nil)
		return err
	})
}

// startProxy returns when the proxy is connected to the agent, if there is one.
func (n *node) startProxy(flags []string) (err error) {
	n.proxy.Process, err = n.net.Start(n.dir, "nodeproxy", filepath.Join(n.bin, "nodeproxy"),
		append([]string{"--zds", n.file("zds.sock"), "--admin", "", "--dns", proxysNames.String()}, flags...)...)
	if err != nil || n.agent.Process == nil {
		return err
	}
	connected := fmt.Sprintf("node proxy: pid %d (synced", n.proxy.PID())
	return n.await(func() error {
		out, err := n.status(nil)
		if err == nil && !strings.Contains(out, connected) {
			err = fmt.Errorf("the proxy is not connected: %s", out)
		}
		return err
	})
}

// status is what fairlead status prints, whatever its exit code says of the pods.
func (n *node) status(flags []string) (string, error) {
	const unasked = 1
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(n.ctx, filepath.Join(n.bin, "fairlead"), append([]string{"status", "--run-dir", n.file("run")}, flags...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() != unasked {
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("fairlead status: %w: %s", err, stderr.String())
	}
	return stdout.String(), nil
}

// leave is what fairlead drain or uninstall prints. That something is left is an error.
func (n *node) leave(verb, flag, value string, flags []string) (string, error) {
	return n.net.Run(filepath.Join(n.bin, "fairlead"), append([]string{verb, flag, value}, flags...)...)
}

// host is what the agent has put into the node's own network namespace.
func (n *node) host() (string, error) {
	tables, err := n.net.Run("nft", "--stateless", "list", "tables")
	if err != nil || !strings.Contains(tables, "inet fairlead") {
		return nothing, err
	}
	return n.net.Run("nft", "--stateless", "list", "table", "inet", "fairlead")
}

// records are the UIDs of the pods that the agent has on record.
func (n *node) records() (string, error) {
	files, err := filepath.Glob(n.file("run/pods/*.json"))
	if len(files) == 0 {
		return nothing, err
	}
	var uids strings.Builder
	for _, file := range files {
		fmt.Fprintln(&uids, strings.TrimSuffix(filepath.Base(file), ".json"))
	}
	return uids.String(), err
}

// nothing is what a command prints that has found nothing.
const nothing = "nothing\n"

// A manifest is a pod's object, as the agent reads it from a file.
type manifest struct {
	UID         string            `json:"uid"`
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

const podNamespace = "shop"

// define writes a new manifest in the place of one of the same name.
func (n *node) define(name string, settings []string) error {
	m := &manifest{UID: "uid-of-" + name, Namespace: podNamespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		switch {
		case !ok:
			return errUsage
		case key == "uid":
			m.UID = value
		default:
			m.Labels[key] = value
		}
	}
	n.manifests[name] = m
	return n.write(m)
}

// change lets set change a manifest.
func (n *node) change(name string, set func(*manifest)) error {
	m := n.manifests[name]
	if m == nil {
		return fmt.Errorf("there is no pod %s", name)
	}
	set(m)
	return n.write(m)
}

func (n *node) label(name, setting string) error {
	key, value, ok := strings.Cut(setting, "=")
	if !ok {
		return errUsage
	}
	return n.change(name, func(m *manifest) { m.Labels[key] = value })
}

func (n *node) unlabel(name, key string) error {
	return n.change(name, func(m *manifest) { delete(m.Labels, key) })
}

func (n *node) annotate(name, setting string) error {
	key, value, ok := strings.Cut(setting, "=")
	if !ok {
		return errUsage
	}
	return n.change(name, func(m *manifest) { m.Annotations[key] = value })
}

func (n *node) write(m *manifest) error {
	text, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": m}, "", "  ")
	if err != nil {
		return err
	}
	temporary := n.file("manifest")
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, n.file(filepath.Join("pods", m.Name+".json")))
}
