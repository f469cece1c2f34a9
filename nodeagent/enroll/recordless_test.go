package enroll_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A primary is the CNI plugin that made a pod's network.
type primary struct{ version.PluginDecoder }

func (*primary) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return []byte(`{"cniVersion":"1.0.0"}`), nil
}

func (*primary) FindInPath(string, []string) (string, error) { return "/opt/cni/bin/primary", nil }

func (w *world) cache(s *slot) {
	cache(w.dir.cni(), s.box.container, s.box.pod.Path, s.name, s.box.uid)
}

// cache has libcni write down a pod's sandbox, as it does for a container runtime.
func cache(dir, container, path, name, uid string) {
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"primary"}]}`))
	must("parse a list of plugins", err)
	conf := &libcni.RuntimeConf{ContainerID: container, NetNS: path, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", uid},
	}}
	_, err = libcni.NewCNIConfigWithCacheDir(nil, dir, &primary{}).AddNetworkList(context.Background(), list, conf)
	must("add a pod to a network", err)
}

// loseAgent kills the agent, and its records are lost.
func (w *world) loseAgent() {
	w.agent.kill()
	w.stopAgent()
	must("remove the records", os.RemoveAll(w.dir.pods()))
}

// inWorldOfItsOwn tells a story of a node that has an agent and a proxy.
func inWorldOfItsOwn(t *testing.T, story func(*world)) {
	t.Helper()
	w, err := newWorld(nodeDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w.sweep = 100 * time.Millisecond
	w.tell(t, t.Name(), func() {
		w.begin()
		story(w)
		w.end()
	})
	if err := w.close(); err != nil {
		t.Error(err)
	}
}

// do has events happen to a slot.
func (w *world) do(s *slot, names ...string) {
	for _, name := range names {
		w.step(columnOf(name), s, matrix{})
	}
}

// An agent that has no record of the pods it finds asks proxies to keep them, looks for
// their namespaces, and takes them over where they are: no connection is cut. A pod that
// it does not find is shown as one, and goes on as it was.
func TestAgentWithoutARecord(t *testing.T) {
	netlab.Kernel(t)
	inWorldOfItsOwn(t, func(w *world) {
		a, b, lost := w.slots[0], w.slots[1], w.slots[2]
		w.do(a, "labelled object", "ADD", "connect")
		w.do(b, "plain object", "ADD", "connect", "label")
		w.do(lost, "labelled object", "ADD", "connect")
		w.loseAgent()
		w.cache(a)
		w.cache(b)

		w.charge = &charge{calls: 1 << 30} // to see what is done, and in which order
		w.startAgent()
		left := lost.box
		lost.box = nil
		w.until("the pods are taken over", func() error {
			got, err := w.observe()
			want := append(w.expect(), left.uid+" served by the proxy, 1 connections", left.exemption())
			if diff := differ(want, got); err == nil && diff != "" {
				err = errors.New(diff)
			}
			return err
		})
		lost.box = left
		must("use the lost pod's connection", left.conn.ping(patience))
		done := strings.Split(w.agent.calls(), ", ")
		for _, s := range []*slot{a, b} {
			keep, announce := slices.Index(done, "keep "+s.box.uid), slices.Index(done, "announce "+s.box.uid)
			if keep < 0 || announce < keep {
				t.Errorf("pod %s was to be kept and then announced: %s", s.name, done)
			}
		}
		w.agent.arm(nil)
		for _, p := range w.agent.reconciler.Report() {
			if p.UID == left.uid && (p.State != status.Pending || p.Reason != status.NetnsUnknown || p.Remedy == "") {
				t.Errorf("the lost pod is reported as %+v", p)
			}
		}
	})
}

// Redirects that stand are left standing: a pod that nothing leaves while there is no
// proxy is not opened up by an agent that knows nothing of it.
func TestAgentWithoutARecordAndWithoutAProxy(t *testing.T) {
	netlab.Kernel(t)
	for name, recipe := range map[string][]string{
		"full": traitsOf[blocked].recipe,
		"syn":  traitsOf[blockedOld].recipe,
	} {
		t.Run(name, func(t *testing.T) {
			inWorldOfItsOwn(t, func(w *world) {
				s := w.slots[0]
				w.do(s, recipe...)
				w.loseAgent()
				w.cache(s)
				w.startAgent()
				w.settle()
				if _, err := s.box.connect(false, false); !errors.Is(err, unix.ECONNREFUSED) {
					fail("a blocked pod connects: %w", err)
				}
				w.do(s, "proxy back")
			})
		})
	}
}
