package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const podNamespace = "bench"

// defaultSweep is the agent's own, when nothing else is asked for.
const defaultSweep = 10 * time.Second

// A node is an agent and a reference proxy that acks at once, in a directory.
type node struct {
	bin, dir string
	agent    *netlab.Process
	proxy    *netlab.Process
	client   agentapi.Client
	pods     []*pod // that were added to it
}

// A pod is a namespace and an entry among the manifests.
type pod struct {
	attachment agentapi.Attachment
	net        *netlab.NS
}

// startNode starts both, for pods 0 to known, whose manifests are there already.
func (b *bencher) startNode(ctx context.Context, name string, known int) (*node, error) {
	n := &node{bin: b.Bin, dir: filepath.Join(b.dir, name)}
	n.client.Socket = filepath.Join(n.dir, "run", "agent.sock")
	err := os.MkdirAll(filepath.Join(n.dir, "manifests"), 0o700)
	if err == nil {
		err = n.write(0, known)
	}
	if err == nil {
		err = n.startAgent(defaultSweep)
	}
	if err == nil {
		n.proxy, err = netlab.Start(n.dir, "nodeproxy", filepath.Join(n.bin, "nodeproxy"),
			"--zds", n.proxySocket(), "--admin", "", "--dns", "192.0.2.53") // nobody asks it
	}
	if err == nil {
		err = n.served(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) proxySocket() string { return filepath.Join(n.dir, "zds.sock") }

// startAgent starts an agent that sweeps so often.
func (n *node) startAgent(sweep time.Duration) error {
	config := fmt.Sprintf(`apiVersion: agent.fairlead.io/v1alpha1
kind: AgentConfig
runDir: %s
proxySocket: %s
httpAddress: ""
sweepInterval: %s
`, filepath.Dir(n.client.Socket), n.proxySocket(), sweep)
	path := filepath.Join(n.dir, "config.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	var err error
	n.agent, err = netlab.Start(n.dir, "agent", filepath.Join(n.bin, "fairlead"), "agent",
		"--config", path, "--pods-from", filepath.Join(n.dir, "manifests"))
	return err
}

// restartAgent kills the agent and starts another.
func (n *node) restartAgent(sweep time.Duration) error {
	n.agent.Kill()
	return n.startAgent(sweep)
}

// served waits until the agent answers, a proxy is connected and has acknowledged
// every pod.
func (n *node) served(ctx context.Context) error {
	return netlab.Await(ctx, 60*time.Second, 20*time.Millisecond, func(ctx context.Context) error {
		if err := errors.Join(n.agent.Alive(), n.proxy.Alive()); err != nil {
			return err
		}
		lines, connected, captured := 0, 0, 0
		err := n.client.Stream(ctx, agentapi.Request{Status: &agentapi.StatusRequest{}}, func(item json.RawMessage) error {
			var line struct {
				State   string
				Proxies []struct{ State string }
			}
			if lines++; lines == 1 { // about the node
				err := json.Unmarshal(item, &line)
				connected = len(line.Proxies)
				return err
			}
			err := json.Unmarshal(item, &line)
			if line.State == "Captured" {
				captured++
			}
			return err
		})
		if err == nil && (connected == 0 || captured < len(n.pods)) {
			err = fmt.Errorf("%d proxies are connected, %d of %d pods are captured", connected, captured, len(n.pods))
		}
		return err
	})
}

// write puts manifests of the pods from first to last, which excludes it, in place.
func (n *node) write(first, last int) error {
	for i := first; i < last; i++ {
		name, uid := podName(i)
		manifest := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": %q, "name": %q, "uid": %q,
	"labels": {"istio.io/dataplane-mode": "ambient"}}}`, podNamespace, name, uid)
		temporary := filepath.Join(n.dir, "manifest")
		if err := os.WriteFile(temporary, []byte(manifest), 0o600); err != nil {
			return err
		}
		if err := os.Rename(temporary, filepath.Join(n.dir, "manifests", name+".json")); err != nil {
			return err
		}
	}
	return nil
}

func podName(i int) (name, uid string) {
	return fmt.Sprintf("pod-%d", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
}

// podAddr is an address that no other pod has.
func podAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)})
}

// newPod makes the namespace of a pod, in a sandbox of its own.
func newPod(i int, sandbox string) (*pod, error) {
	name, uid := podName(i)
	container := name + "-" + sandbox
	ns, err := netlab.Create(container)
	if err != nil {
		return nil, err
	}
	return &pod{net: ns, attachment: agentapi.Attachment{
		Namespace: podNamespace, Name: name, UID: uid, ContainerID: container, Netns: ns.Path, Interface: "eth0",
		IPs: []netip.Addr{podAddr(i)},
	}}, nil
}

// add asks the agent itself, as the plugin does.
func (n *node) add(ctx context.Context, p *pod) error {
	answer, err := n.client.Call(ctx, agentapi.Request{Add: &p.attachment})
	if err == nil && answer.Error != nil {
		err = answer.Error
	}
	return err
}

// grow adds pods until there are so many, some at a time.
func (n *node) grow(ctx context.Context, count int) error {
	first := len(n.pods)
	if err := n.write(first, count); err != nil {
		return err
	}
	added := make([]*pod, max(count-first, 0))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range added {
		group.Go(func() error {
			p, err := newPod(first+i, "full")
			if err != nil {
				return err
			}
			added[i] = p
			return n.add(ctx, p)
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("cannot have %d pods: %w", count, err)
	}
	n.pods = append(n.pods, added...)
	return nil
}

// close ends the processes; namespaces end with this one.
func (n *node) close() error {
	for _, p := range []*netlab.Process{n.agent, n.proxy} {
		if p != nil {
			p.Kill()
		}
	}
	var errs []error
	for _, p := range n.pods {
		errs = append(errs, p.net.Close())
	}
	return errors.Join(errs...)
}

// cpuTime is how long the process has run on a CPU so far.
func cpuTime(p *netlab.Process) (time.Duration, error) {
	var t unix.Timespec
	// The clock of another process, as clock_getcpuclockid makes it: CPUCLOCK_SCHED.
	clock := int32(^p.PID()<<3 | 2)
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, fmt.Errorf("cannot read the CPU time of the %s: %w", p.Name, err)
	}
	return time.Duration(t.Nano()), nil
}

// openFiles is how many descriptors the process has open.
func openFiles(p *netlab.Process) (float64, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	return float64(len(entries)), err
}
