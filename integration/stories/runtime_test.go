package stories

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A sandbox is what the runtime has made of a pod: a network namespace, which the
// plugins were told of.
type sandbox struct {
	net   *netlab.NS
	conf  *libcni.RuntimeConf
	added chan struct{} // closed when the ADD has ended
	err   error         // of the ADD
	gone  bool          // it was deleted
	app   app
}

// primary stands in for the plugin that makes the interface: it prints a result that
// stands beside it.
const primary = `#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
ADD) cat "$0.$CNI_CONTAINERID" ;;
esac
`

const cniVersion = "1.0.0"

func (n *node) furnishRuntime() error {
	// What the plugins say on stderr is in cni.log, too.
	silent := &invoke.DefaultExec{RawExec: &invoke.RawExec{}, PluginDecoder: version.PluginDecoder{}}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.dir, n.bin}, n.file("cni"), silent)
	return os.WriteFile(n.file("primary"), []byte(primary), 0o700)
}

// list is the runtime's list of plugins as it is now.
func (n *node) list() (*libcni.NetworkConfigList, error) {
	plugins := `{"type": "primary"}`
	if !n.unchained {
		plugins += fmt.Sprintf(`, {"type": "fairlead-cni", "agentSocket": %q}`, n.file("run/agent.sock"))
	}
	return libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": %q, "name": "net", "plugins": [%s]}`, cniVersion, plugins))
}

// chain puts fairlead-cni into the list, or takes it out.
func (n *node) chain(where string) error {
	n.unchained = where == "out"
	if where != "in" && where != "out" {
		return errUsage
	}
	return nil
}

// add starts a pod: add POD [SANDBOX] [&].
func (n *node) add(args []string) error {
	background := args[len(args)-1] == "&"
	if background {
		args = args[:len(args)-1]
	}
	if len(args) == 0 || len(args) > 2 {
		return errUsage
	}
	sandbox := args[len(args)-1]
	if err := n.begin(args[0], sandbox); err != nil || background {
		return err
	}
	return n.finish(sandbox)
}

// begin begins to start a pod: its sandbox has a namespace of its own, which is on the
// node's bridge, and the plugins are told of it.
func (n *node) begin(pod, name string) error {
	m := n.manifests[pod]
	if m == nil {
		return fmt.Errorf("there is no pod %s", pod)
	}
	if s := n.sandboxes[name]; s != nil && !s.gone {
		return fmt.Errorf("there is a sandbox %s already", name)
	}
	list, err := n.list()
	if err != nil {
		return err
	}
	n.made++ // each try has a namespace and a container id of its own
	container := fmt.Sprintf("%s-%d", name, n.made)
	ns, err := netlab.Create(n.name + "-" + container)
	if err != nil {
		return err
	}
	s := &sandbox{net: ns, added: make(chan struct{}), conf: &libcni.RuntimeConf{
		ContainerID: container, NetNS: ns.Path, IfName: "eth0", Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", podNamespace}, {"K8S_POD_NAME", pod},
			{"K8S_POD_UID", m.UID}, {"K8S_POD_INFRA_CONTAINER_ID", container},
		},
	}}
	addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88, 0, byte(10 + n.made)}), 24)
	if err := errors.Join(
		n.net.Plug(fmt.Sprintf("pod%d", n.made), netlab.Port{NS: ns, Addrs: []netip.Prefix{addr}}),
		n.writeResult(s, addr),
	); err != nil {
		return errors.Join(err, ns.Close())
	}
	n.sandboxes[name] = s
	go func() {
		defer close(s.added)
		_, s.err = n.cni.AddNetworkList(n.ctx, list, s.conf)
	}()
	return nil
}

// writeResult writes what the primary plugin prints.
func (n *node) writeResult(s *sandbox, addr netip.Prefix) error {
	text, err := json.Marshal(map[string]any{
		"cniVersion": cniVersion,
		"interfaces": []any{map[string]string{"name": "eth0", "sandbox": s.net.Path}},
		"ips":        []any{map[string]any{"address": addr.String(), "interface": 0}},
	})
	return errors.Join(err, os.WriteFile(n.file("primary."+s.conf.ContainerID), text, 0o600))
}

// finish waits for the end of an ADD. One that has failed is followed by a DEL, as a
// runtime does it.
func (n *node) finish(name string) error {
	s, err := n.sandbox(name)
	if err != nil {
		return err
	}
	<-s.added // the plugin gives up after ten seconds
	if s.err != nil {
		return errors.Join(s.err, n.del(name))
	}
	return nil
}

// del has the runtime delete a sandbox. It may do so again, when the namespace is gone.
func (n *node) del(name string) error {
	s := n.sandboxes[name]
	if s == nil {
		return fmt.Errorf("there is no sandbox %s", name)
	}
	list, err := n.list()
	if err != nil {
		return err
	}
	if s.gone {
		s.conf.NetNS = ""
		return n.cni.DelNetworkList(n.ctx, list, s.conf)
	}
	s.app.end()
	return errors.Join(n.cni.DelNetworkList(n.ctx, list, s.conf), s.close())
}

// sandbox is one that has not been deleted.
func (n *node) sandbox(name string) (*sandbox, error) {
	s := n.sandboxes[name]
	if s == nil || s.gone {
		return nil, fmt.Errorf("there is no sandbox %s", name)
	}
	return s, nil
}

// close ends what is left of a sandbox.
func (s *sandbox) close() error {
	if s.gone {
		return nil
	}
	s.gone = true
	<-s.added
	s.app.end()
	return s.net.Close()
}
