package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// A plugin is a CNI plugin that answers ADD with a result.
type plugin struct {
	version.PluginDecoder
	result string
}

func (p *plugin) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return []byte(p.result), nil
}

func (p *plugin) FindInPath(string, []string) (string, error) { return "/opt/cni/bin/primary", nil }

// What is read is what libcni itself writes, whatever version its results are of; and
// after DEL there is nothing.
func TestReadsWhatLibcniWrites(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, b, _ := pods(t)
	for cniVersion, result := range map[string]string{
		"0.2.0": `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}`,
		"0.4.0": `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"version":"4","interface":0,"address":"10.0.0.1/24"}]}`,
		"1.0.0": `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":0,"address":"10.0.0.1/24"}]}`,
	} {
		t.Run(cniVersion, func(t *testing.T) {
			dir := t.TempDir()
			cni := libcni.NewCNIConfigWithCacheDir(nil, dir, &plugin{result: result})
			list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"net","plugins":[{"type":"primary"}]}`, cniVersion))
			if err != nil {
				t.Fatal(err)
			}
			conf := &libcni.RuntimeConf{ContainerID: "c1", NetNS: a.Path, IfName: "eth0", Args: [][2]string{
				{"K8S_POD_UID", "u1"}, {"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"},
			}}
			other := *conf
			other.ContainerID, other.NetNS, other.Args = "c2", b.Path, [][2]string{{"K8S_POD_UID", "u2"}}
			for _, conf := range []*libcni.RuntimeConf{conf, &other} {
				if _, err := cni.AddNetworkList(t.Context(), list, conf); err != nil {
					t.Fatal(err)
				}
			}
			n := newNode(t)
			n.finder.CNICache = filepath.Join(dir, "results")
			found, missing := n.finder.Search(t.Context(), []sandbox.Wanted{wanted()})
			if got := outcome(found, missing, "u1"); got != "a by libcni cache c1/eth0 [10.0.0.1] checked:false 0" {
				t.Error(got)
			}
			attached(t, n.finder, a.Path, b.Path)
			if err := cni.DelNetworkList(t.Context(), list, conf); err != nil {
				t.Fatal(err)
			}
			found, missing = n.finder.Search(t.Context(), []sandbox.Wanted{wanted()})
			if len(found) != 0 || missing["u1"] == nil {
				t.Errorf("after DEL: %v, %v", found, missing)
			}
			attached(t, n.finder, b.Path)
		})
	}
}

// attached fails the test unless these are all the sandboxes' namespaces. A result of
// version 0.4.0 names one that is none.
func attached(t *testing.T, f *sandbox.Finder, want ...string) {
	t.Helper()
	places, unread, err := f.Attached(t.Context())
	if err := errors.Join(append(unread, err)...); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range places {
		got = append(got, p.Path)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("attached are %q, want %q", got, want)
	}
}
