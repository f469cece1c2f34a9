package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A runtime does what containerd does for a pod's network: it makes a namespace and
// has libcni execute the plugins of a list.
type runtime struct {
	cni     libcni.CNIConfig
	plugins []string // the list's, each as JSON
	tries   int
}

// gateway4 and gateway6 are the node's own addresses on the pods' bridge.
var (
	gateway4 = netip.MustParseAddr("10.88.0.1")
	gateway6 = netip.MustParseAddr("fd00:88::1")
)

const bridgePlugin = `{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipam": {
	"type": "host-local", "dataDir": %q, "ranges": [%s]}}`

var subnets = map[int]string{
	unix.AF_INET:  `[{"subnet": "10.88.0.0/24"}]`,
	unix.AF_INET6: `[{"subnet": "fd00:88::/64"}]`,
}

func newRuntime(bin, dir string) *runtime {
	var ranges []string
	for _, family := range families() {
		ranges = append(ranges, subnets[family])
	}
	return &runtime{
		cni: *libcni.NewCNIConfigWithCacheDir([]string{bin, filepath.Join(bin, "cni")}, filepath.Join(dir, "cni-cache"), nil),
		plugins: []string{
			fmt.Sprintf(bridgePlugin, filepath.Join(dir, "ipam"), strings.Join(ranges, ", ")),
			`{"type": "fairlead-cni"}`,
		},
	}
}

func (r *runtime) list() (*libcni.NetworkConfigList, error) {
	return libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "demo", "plugins": [%s]}`, strings.Join(r.plugins, ", ")))
}

// start gives the pod a network, and then starts its app: a web server. Without the
// network there is no app, and nothing is left.
func (r *runtime) start(ctx context.Context, p *pod) error {
	list, err := r.list()
	if err != nil {
		return err
	}
	r.tries++ // each try has a namespace and a container id of its own
	container := fmt.Sprintf("%s-%d", p.name, r.tries)
	net, err := netlab.Create(container)
	if err != nil {
		return err
	}
	conf := &libcni.RuntimeConf{ContainerID: container, NetNS: net.Path, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", podNamespace}, {"K8S_POD_NAME", p.name},
		{"K8S_POD_UID", p.uid}, {"K8S_POD_INFRA_CONTAINER_ID", container},
	}}
	began := time.Now()
	result, err := r.cni.AddNetworkList(ctx, list, conf)
	if err != nil {
		return errors.Join(err, r.cni.DelNetworkList(ctx, list, conf), net.Close())
	}
	p.took, p.net, p.stop = time.Since(began), net, func(ctx context.Context) error {
		p.app.close()
		return errors.Join(r.cni.DelNetworkList(ctx, list, conf), net.Close())
	}
	current, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	p.addrs = nil
	for _, ip := range current.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			p.addrs = append(p.addrs, addr.Unmap())
		}
	}
	p.app, err = serveWeb(net)
	return err
}
