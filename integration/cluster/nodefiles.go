package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairlead-mesh/fairlead/integration/cluster/machine"
)

// plugins are the CNI plugins of a node.
var plugins = []string{"bridge", "host-local", "loopback", "portmap", "ptp"}

// writeFiles writes what a node reads when it starts. What stands on its disk is
// written once: later it may have been changed, by an agent, say.
func (n *Node) writeFiles() error {
	err := os.Mkdir(n.path(), 0o755)
	if err == nil {
		err = n.writeDisk()
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"containerd.toml": strings.ReplaceAll(containerdConfig, "CONTAINERS", n.cluster.path(containersName)),
		"kubelet.yaml":    n.kubeletConfig(),
		"proxy.yaml":      n.proxyConfig(),
		"resolv.conf":     "nameserver " + dnsService.String() + "\n",
	} {
		if err := os.WriteFile(n.path(name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	// A socket that nobody listens at any more.
	if err := os.Remove(n.init.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeJSON(n.machineFile(), machine.Config{
		Name: n.Name, BootID: machine.NewBootID(), Disk: n.disk(), Cgroup: n.cgroup(), Socket: n.init.Socket,
	})
}

func (n *Node) writeDisk() error {
	inside := func(path string) string { return filepath.Join(n.disk(), path) }
	for _, dir := range []string{"etc/cni/net.d", "etc/kubernetes/manifests", "opt/cni/bin"} {
		if err := os.MkdirAll(inside(dir), 0o755); err != nil {
			return err
		}
	}
	for _, name := range plugins {
		content, err := os.ReadFile(filepath.Join(n.cluster.state.Programs, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(inside("opt/cni/bin/"+name), content, 0o755); err != nil {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(inside("etc/cni/net.d/10-bridge.conflist"), []byte(n.conflist()), 0o600),
		os.WriteFile(inside("etc/hostname"), []byte(n.Name+"\n"), 0o644),
	)
}

func (n *Node) conflist() string {
	var ranges, routes []string
	for _, f := range n.cluster.families() {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": "%s"}]`, f.podsOf(n.number)))
		routes = append(routes, fmt.Sprintf(`{"dst": "%s"}`, f.anywhere))
	}
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, strings.Join(ranges, ", "), strings.Join(routes, ", "))
}

// services are the arguments of the programs that make a machine a node.
func (n *Node) services() map[string][]string {
	return map[string][]string{
		"containerd": {"-c", n.path("containerd.toml")},
		"kubelet": {"--config=" + n.path("kubelet.yaml"), "--kubeconfig=" + n.cluster.path(pkiDir, n.Name+".conf"),
			"--hostname-override=" + n.Name, "--node-ip=" + list(n.cluster.families(), func(f family) netip.Addr { return f.node(n.number) }),
			"--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki", "--v=2"},
		"kube-proxy": {"--config=" + n.path("proxy.yaml"), "--v=2"},
	}
}

// ContainerdMetricsPort is where each node's containerd serves its metrics, at /v1/metrics.
const ContainerdMetricsPort = "1338"

// restrict_oom_score_adj: where root has no CAP_SYS_RESOURCE, no process can be made
// less likely to be killed than we are.
const containerdConfig = `version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = [
  'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper',
  'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.erofs',
  'io.containerd.tracing.processor.v1.otlp', 'io.containerd.internal.v1.tracing']

[grpc]
address = '/run/containerd/containerd.sock'

[metrics]
address = '0.0.0.0:` + ContainerdMetricsPort + `'

[plugins.'io.containerd.cri.v1.images']
snapshotter = 'overlayfs'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '` + PauseImage + `'

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
base_runtime_spec = 'CONTAINERS'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/opt/cni/bin']
conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.nri.v1.nri']
disable = true
`

// containersName is the file of what all containers have in common.
const containersName = "containers.json"

// writeContainers writes what all containers have in common: what containerd gives them
// anyway, and a hook with which they see their node's boot ID in their /proc, as on any
// machine. It runs where the node's /proc is still seen, in the container's root directory.
func (c *Cluster) writeContainers(ctx context.Context) error {
	args := []string{"oci", "spec"}
	text, err := output(command(ctx, filepath.Join(c.state.Programs, "ctr"), args...), "ctr", args)
	if err != nil {
		return err
	}
	var common map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&common); err != nil {
		return fmt.Errorf("cannot read what containerd gives containers: %w", err)
	}
	mount, err := exec.LookPath("mount")
	if err != nil {
		return err
	}
	const bootID = "proc/sys/kernel/random/boot_id"
	common["hooks"] = map[string]any{"createContainer": []map[string]any{
		{"path": mount, "args": []string{"mount", "--bind", "/" + bootID, bootID}},
	}}
	return writeJSON(c.path(containersName), common)
}

// What a node shares with the machine is not for the kubelet to judge: swap, a disk
// that is nearly full, the limit of open files.
func (n *Node) kubeletConfig() string {
	return strings.NewReplacer("PKI", n.cluster.path(pkiDir), "NODE", n.Name, "ADDR", n.Addrs[0].String(),
		"RESOLV", n.path("resolv.conf"), "DNS", dnsService.String()).Replace(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ADDR
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: PKI/NODE.crt
tlsPrivateKeyFile: PKI/NODE.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
maxOpenFiles: 20000
clusterDNS: [DNS]
clusterDomain: cluster.local
resolvConf: RESOLV
staticPodPath: /etc/kubernetes/manifests
volumePluginDir: /var/lib/kubelet/volumeplugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`)
}

// The connection tracking limits are the whole machine's: they are left alone.
func (n *Node) proxyConfig() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
bindAddress: %s
clientConnection: {kubeconfig: %s}
clusterCIDR: %s
detectLocalMode: ClusterCIDR
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.Name, n.Addrs[0], n.cluster.path(pkiDir, "proxy.conf"), list(n.cluster.families(), func(f family) netip.Prefix { return f.pods }))
}
