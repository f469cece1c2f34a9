package cnitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// installOn has the plugin installed, in a mode, on a node whose primary is in a file of
// this name and content, and returns what the runtime then loads.
func (n *node) installOn(mode install.Mode, name, content string, with ...func(*install.Config)) *libcni.NetworkConfigList {
	n.t.Helper()
	dir := n.t.TempDir()
	bin, conf, ready := filepath.Join(dir, "bin"), filepath.Join(dir, "net.d"), make(chan struct{})
	close(ready)
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(conf, 0o755), os.WriteFile(filepath.Join(conf, name), []byte(content), 0o644)); err != nil {
		n.t.Fatal(err)
	}
	for _, name := range []string{"primary", "primary.result"} {
		if err := os.Symlink(filepath.Join(filepath.Dir(filepath.Dir(n.socket)), name), filepath.Join(bin, name)); err != nil {
			n.t.Fatal(err)
		}
	}
	c := install.Config{
		Plugin: pluginPath(n.t), BinDir: bin, ConfDir: conf, Mode: mode, AgentSocket: n.socket, AllowWithoutAgent: []string{"kube-system"},
		Ready: ready, Poll: time.Hour, Logger: slog.New(slog.DiscardHandler),
	}
	for _, w := range with {
		w(&c)
	}
	installer, err := install.New(c)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- installer.Run(ctx) }()
	netlab.Eventually(n.t, func() error { return installer.State().Problem })
	cancel()
	if err := <-done; err != nil {
		n.t.Fatal(err)
	}
	n.CNIConfig = libcni.NewCNIConfigWithCacheDir([]string{bin}, n.t.TempDir(), n.recorder)
	return load(n.t, conf)
}

// load loads the network of a directory as containerd does.
func load(t *testing.T, dir string) *libcni.NetworkConfigList {
	t.Helper()
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	list, err := libcni.ConfListFromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// What the installer has written is what a runtime loads and executes: the primary's
// plugins, and ours.
func TestInstalled(t *testing.T) {
	for name, test := range map[string]struct {
		mode       install.Mode
		file, text string
	}{
		"chained":        {install.Chained, "10-net.conflist", `{"cniVersion": "1.0.0", "name": "net", "plugins": [ {"type": "primary", "n": 12345678901234567890} ]}`},
		"a drop-in":      {install.DropIn, "10-net.conflist", `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "primary"}]}`},
		"a list":         {install.Owned, "10-net.conflist", `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "primary", "n": 12345678901234567890}]}`},
		"of two":         {install.Owned, "10-net.conflist", `{"cniVersion": "0.3.1", "name": "net", "plugins": [{"type": "istio-cni"}, {"type": "primary"}]}`},
		"several lists":  {install.Owned, "10-net.conflist", `{"cniVersions": ["0.4.0", "1.0.0"], "name": "net", "disableCheck": "true", "plugins": [{"type": "primary"}]}`},
		"a plugin alone": {install.Owned, "10-net.conf", `{"cniVersion": "0.4.0", "name": "net", "type": "primary"}`},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "1.0.0")
			n.list = n.installOn(test.mode, test.file, test.text)
			fails(t, n.add(t.Context()), agentapi.CodeNoAgent, "is not running")
			agent := startAgent(t, n.socket, always(nil))
			if err := n.add(t.Context()); err != nil {
				t.Fatal(err)
			}
			if add := agent.askedOnce(t).Add; add == nil || add.Netns != n.netns.Path || len(add.IPs) != 1 {
				t.Errorf("the agent was asked %+v", add)
			}
			if err := n.DelNetworkList(t.Context(), n.list, n.sandbox); err != nil {
				t.Error(err)
			}
		})
	}
}

// What the installer makes of STATUS is what a runtime sees: whether it is asked at all, and
// what our plugin says to it. No pod is kept from starting by any of that.
func TestInstalledStatus(t *testing.T) {
	const text = `{"cniVersion": "VERSION", "name": "net", "plugins": [{"type": "primary"}]}`
	for name, test := range map[string]struct {
		version string
		status  install.Status
		orphan  time.Duration
		runtime bool   // one is seen that can do with 1.1.0
		want    string // the list's version
		asked   bool   // and not ready
	}{
		"auto, without":        {"1.0.0", install.StatusAuto, 1e6 * time.Hour, true, "1.0.0", false},
		"auto, with":           {"1.1.0", install.StatusAuto, 1e6 * time.Hour, true, "1.1.0", true},
		"always":               {"0.4.0", install.StatusAlways, 1e6 * time.Hour, true, "1.1.0", true},
		"always, an orphan":    {"0.4.0", install.StatusAlways, time.Nanosecond, true, "1.1.0", false},
		"always, runtime gone": {"0.4.0", install.StatusAlways, 1e6 * time.Hour, false, "0.4.0", false},
		"never":                {"1.1.0", install.StatusNever, 1e6 * time.Hour, true, "1.1.0", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "1.0.0")
			proc := t.TempDir()
			if test.runtime {
				seen(t, proc)
			}
			n.list = n.installOn(install.Owned, "10-net.conflist", strings.Replace(text, "VERSION", test.version, 1), func(c *install.Config) {
				c.Status, c.OrphanAfter, c.Proc = test.status, test.orphan, proc
			})
			if n.list.CNIVersion != test.want {
				t.Errorf("the list has version %s, want %s", n.list.CNIVersion, test.want)
			}
			err := n.GetStatusNetworkList(t.Context(), n.list)
			if test.asked {
				fails(t, err, types.ErrPluginNotAvailable, agentapi.ReadyFile(n.socket))
			} else if err != nil {
				t.Errorf("STATUS: %v", err)
			}
			agent := startAgent(t, n.socket, always(nil))
			if err := agentapi.MarkReady(n.socket); err != nil {
				t.Fatal(err)
			}
			// A pod from before the list was raised is deleted by the list that there is then.
			now := n.list
			n.list, err = libcni.NetworkConfFromBytes(bytes.Replace(now.Bytes, []byte(test.want), []byte(test.version), 1))
			if err = errors.Join(err, n.add(t.Context()), n.DelNetworkList(t.Context(), now, n.sandbox)); err != nil {
				t.Error(err)
			}
			n.list = now
			if err := errors.Join(n.add(t.Context()), n.GetStatusNetworkList(t.Context(), n.list)); err != nil {
				t.Error(err)
			}
			agent.stop() // as for an update: the node stays ready
			if err := errors.Join(n.GetStatusNetworkList(t.Context(), n.list), n.DelNetworkList(t.Context(), n.list, n.sandbox)); err != nil {
				t.Error(err)
			}
		})
	}
}

// seen has a runtime's process be seen that is made of our own libcni: a link to the plugin.
func seen(t *testing.T, proc string) {
	t.Helper()
	dir := filepath.Join(proc, "1")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "ns"), 0o755), os.Symlink("pid:[4026531836]", filepath.Join(dir, "ns", "pid")),
		os.Symlink(pluginPath(t), filepath.Join(dir, "exe")), os.WriteFile(filepath.Join(dir, "comm"), []byte("containerd\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The installer refuses a primary of exactly those versions that the plugin does not
// speak.
func TestInstallerKnowsThePluginsVersions(t *testing.T) {
	n := newNode(t, "1.0.0")
	speaks, err := n.GetVersionInfo(t.Context(), "fairlead-cni")
	if err != nil {
		t.Fatal(err)
	}
	conf, ready := t.TempDir(), make(chan struct{})
	close(ready)
	installer, err := install.New(install.Config{
		Plugin: pluginPath(t), BinDir: t.TempDir(), ConfDir: conf, Mode: install.Owned, AgentSocket: n.socket, Ready: ready, Poll: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- installer.Run(t.Context()) }()
	t.Cleanup(func() { // before its directories go
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.2.0"} {
		file := filepath.Join(conf, version+".conflist")
		text := fmt.Sprintf(`{"cniVersion": %q, "name": "net", "plugins": [{"type": "primary"}]}`, version)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		netlab.Eventually(t, func() error {
			state := installer.State()
			refused := state.Problem != nil && strings.Contains(state.Problem.Error(), "its cniVersion is")
			if state.Primary != version+".conflist" || refused == slices.Contains(speaks.SupportedVersions(), version) {
				return fmt.Errorf("version %s, of %v: %+v", version, speaks.SupportedVersions(), state)
			}
			return nil
		})
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}
