package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// What the memory row simulates: nodes without a kubelet, whose pods are objects in the
// API and nothing else; but for the crowded one's, each of which has a network namespace.
const (
	crowd       = "crowd" // the namespace
	crowdedNode = "crowded"
	otherNodes  = 20
)

// memory runs an agent for the crowded node, at first with its pods alone in the API,
// and then with all the others.
func (b *bencher) memory(ctx context.Context) ([]figures.Measure, error) {
	err := b.api.newNamespace(ctx, crowd)
	for i := 0; err == nil && i <= otherNodes; i++ {
		err = b.api.create(ctx, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": nodeName(i)}}, nil)
	}
	if err != nil {
		return nil, err
	}
	uids, err := b.crowdNodes(ctx, 0, b.Near)
	if err != nil {
		return nil, err
	}
	alone, err := b.agentMemory(ctx, "alone", uids)
	if err != nil {
		return nil, err
	}
	if _, err := b.crowdNodes(ctx, b.Near, b.All); err != nil {
		return nil, err
	}
	among, err := b.agentMemory(ctx, "among", uids)
	if err != nil {
		return nil, err
	}
	return []figures.Measure{{
		What: fmt.Sprintf("resident memory with %d pods on the node and %d in the API", b.Near, b.All), Value: among, Unit: "MiB", Budget: figures.AtMost(40),
		Others: []figures.Other{{Name: fmt.Sprintf("with those %d alone in the API", b.Near), Value: alone}},
		Note: fmt.Sprintf("VmRSS %s after the last pod's ADD. Simulated: the nodes, whose pods are objects without containers; the %d have real network namespaces, "+
			"are captured and served by the reference proxy. The agent runs outside of a pod, by a kubeconfig", b.Settle, b.Near),
	}}, nil
}

func nodeName(i int) string {
	if i == 0 {
		return crowdedNode
	}
	return fmt.Sprintf("other-%d", i)
}

// crowdNodes makes the pods from first to last, which excludes it, of the crowded node if
// there are none yet, and of the others. It returns their UIDs.
func (b *bencher) crowdNodes(ctx context.Context, first, last int) ([]string, error) {
	uids := make([]string, last-first)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range uids {
		group.Go(func() error {
			node := nodeName(0)
			if first > 0 {
				node = nodeName(1 + i%otherNodes)
			}
			var made object
			err := b.api.create(ctx, "/api/v1/namespaces/"+crowd+"/pods", crowdPod(podName(first+i), node), &made)
			uids[i] = made.Metadata.UID
			return err
		})
	}
	return uids, group.Wait()
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

// crowdPod is a pod of about the size that they have. Nobody evicts it from a node that
// does not answer.
func crowdPod(name, node string) map[string]any {
	var env, containers []any
	for i := range 20 {
		env = append(env, map[string]any{"name": fmt.Sprintf("VARIABLE_%d", i), "value": strings.Repeat("value ", 10)})
	}
	for _, container := range []string{"app", "helper"} {
		containers = append(containers, map[string]any{
			"name": container, "image": "registry.example/team/" + container + ":1.2.3", "env": env,
			"resources": map[string]any{"requests": map[string]any{"cpu": "10m", "memory": "16Mi"}},
		})
	}
	return map[string]any{
		"metadata": map[string]any{
			"name": name, "labels": map[string]any{"app": "app", "pod-template-hash": "5d4f8c7b9", modeLabel: captured},
			"annotations": map[string]any{"example.com/checksum": strings.Repeat("0123456789abcdef", 4)},
		},
		"spec": map[string]any{"nodeName": node, "containers": containers, "tolerations": []any{map[string]any{"operator": "Exists"}}},
	}
}

// agentMemory runs an agent and a proxy of its own, adds the pods, and returns what the
// agent has in memory some time after, in MiB.
func (b *bencher) agentMemory(ctx context.Context, name string, uids []string) (mib float64, err error) {
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	agent, proxy, err := b.startAgent(ctx, dir)
	for _, p := range []*netlab.Process{agent, proxy} {
		if p != nil {
			defer p.Kill()
		}
	}
	if err != nil {
		return 0, err
	}
	namespaces := make([]*netlab.NS, len(uids))
	defer func() {
		for _, n := range namespaces {
			if n != nil {
				err = errors.Join(err, n.Close())
			}
		}
	}()
	group, adding := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i, uid := range uids {
		group.Go(func() (err error) {
			if namespaces[i], err = netlab.Create(name + "-" + podName(i)); err != nil {
				return err
			}
			return b.add(adding, dir, namespaces[i], podName(i), uid)
		})
	}
	if err := group.Wait(); err != nil {
		return 0, errors.Join(err, agent.Alive())
	}
	b.say("cluster-memory: %d pods are added, %s to wait", len(uids), b.Settle)
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(b.Settle):
	}
	return figures.Memory(agent.PID(), "VmRSS")
}

// startAgent starts both.
func (b *bencher) startAgent(ctx context.Context, dir string) (agent, proxy *netlab.Process, err error) {
	config, socket := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "zds.sock")
	text := fmt.Sprintf(`apiVersion: agent.fairlead.io/v1alpha1
kind: AgentConfig
kubeconfig: %s
nodeName: %s
runDir: %s
proxySocket: %s
cniCache: %s
httpAddress: ""
`, b.cluster.Kubeconfig(), crowdedNode, filepath.Join(dir, "run"), socket, filepath.Join(dir, "results"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, nil, err
	}
	// From the cluster's network namespace the API server can be reached.
	cmd, err := b.cluster.Command(ctx, b.bin("fairlead"), "agent", "--config", config)
	if err != nil {
		return nil, nil, err
	}
	if agent, err = netlab.Start(dir, "agent", cmd.Path, cmd.Args[1:]...); err != nil {
		return nil, nil, err
	}
	// Nobody asks it anything.
	proxy, err = netlab.Start(dir, "nodeproxy", b.bin("nodeproxy"), "--zds", socket, "--admin", "", "--dns", "192.0.2.53")
	return agent, proxy, err
}

// add executes the plugin, as the runtime does when the plugins before it are done. It
// waits for an agent, and a proxy, that have just been started.
func (b *bencher) add(ctx context.Context, dir string, pod *netlab.NS, name, uid string) error {
	cmd := exec.CommandContext(ctx, b.bin("fairlead-cni"))
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + pod.Name, "CNI_NETNS=" + pod.Path, "CNI_IFNAME=eth0", "CNI_PATH=" + b.bin(""),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + crowd + ";K8S_POD_NAME=" + name + ";K8S_POD_UID=" + uid,
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": "fairlead-cni", "agentSocket": %q,
	"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"address": "10.77.0.1/16", "interface": 0}]}}`,
		filepath.Join(dir, "run/agent.sock"), pod.Path))
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("cannot add pod %s: %w: %s", name, err, out)
	}
	return err
}
