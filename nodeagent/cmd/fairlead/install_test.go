package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

// The plugin is installed, and only then is the agent ready; until then status says
// what is waited for.
func TestAgentInstallsThePlugin(t *testing.T) {
	netlab.Kernel(t)
	dir := t.TempDir()
	c, _ := settings(t)
	c.Install = &config.Install{
		CNIBinDir: filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "net.d"), Mode: install.Owned, Plugin: filepath.Join(dir, "plugin"), AgentSocket: c.File("agent.sock"),
	}
	if _, err := newAgent(c, t.TempDir(), false, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "there is no binary to install") {
		t.Errorf("without the plugin's binary: %v", err)
	}
	if err := errors.Join(os.Mkdir(c.Install.CNIBinDir, 0o755), os.Mkdir(c.Install.CNIConfDir, 0o755), os.WriteFile(c.Install.Plugin, []byte("plugin"), 0o600)); err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(c, t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx) }()
	netlab.Eventually(t, func() error {
		if err := a.ready(); err == nil || !strings.Contains(err.Error(), "there is no primary network configuration") {
			return fmt.Errorf("ready: %v", err)
		}
		return nil
	})
	if problems := a.node().Problems; len(problems) != 1 || !strings.Contains(problems[0], "there is no primary network configuration") {
		t.Errorf("status names %q", problems)
	}
	list := filepath.Join(c.Install.CNIConfDir, "02-fairlead.conflist")
	if _, err := os.Stat(list); !os.IsNotExist(err) {
		t.Errorf("a list without a primary: %v", err)
	}
	primary := `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`
	if err := os.WriteFile(filepath.Join(c.Install.CNIConfDir, "10-net.conflist"), []byte(primary), 0o600); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, a.ready)
	if problems := a.node().Problems; len(problems) != 0 {
		t.Errorf("status names %q", problems)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, file := range []string{list, filepath.Join(c.Install.CNIBinDir, "fairlead-cni")} {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("after the agent's end: %v", err)
		}
	}
}

// The runtime is told that the agent is ready before our list may be put in place: at version
// 1.1.0 that has STATUS asked of the plugin, which would have a new node not ready. The try comes
// first even where it fails.
func TestReadyComesBeforeTheList(t *testing.T) {
	netlab.Kernel(t)
	for name, inTheWay := range map[string]string{"at once": "", "not at once": "ready/full"} {
		t.Run(name, func(t *testing.T) {
			c := installing(t)
			if err := os.MkdirAll(c.File(inTheWay), 0o700); err != nil {
				t.Fatal(err)
			}
			var a *agent
			var err error
			refused := make(chan struct{}, 1)
			logger := slog.New(heard{slog.DiscardHandler, func(message string) {
				switch message {
				case "cannot tell the runtime that the agent is ready": // and it is done within this call
					select {
					case <-a.announced:
						t.Error("the list may be put in place before the runtime is told")
					default:
					}
					refused <- struct{}{}
				case "network configuration written":
					if err := agentapi.CheckReady(c.File("agent.sock")); err != nil && inTheWay == "" {
						t.Errorf("the list is there, and %v", err)
					}
				}
			}})
			a, err = newAgent(c, t.TempDir(), false, logger)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- a.run(ctx) }()
			if inTheWay != "" {
				select {
				case <-refused:
				case err := <-done:
					t.Fatal(err)
				}
				if err := os.RemoveAll(c.File("ready")); err != nil {
					t.Error(err)
				}
			}
			netlab.Eventually(t, func() error {
				_, err := os.Stat(filepath.Join(c.Install.CNIConfDir, install.ListName))
				return errors.Join(err, agentapi.CheckReady(c.File("agent.sock")))
			})
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// installing is the configuration of an agent on a node that has all for the plugin.
func installing(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	c, _ := settings(t)
	c.Install = &config.Install{
		CNIBinDir: filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "net.d"), Mode: install.Owned, Plugin: filepath.Join(dir, "plugin"), AgentSocket: c.File("agent.sock"),
	}
	const primary = `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bridge"}]}`
	if err := errors.Join(os.Mkdir(c.Install.CNIBinDir, 0o755), os.Mkdir(c.Install.CNIConfDir, 0o755), os.WriteFile(c.Install.Plugin, []byte("plugin"), 0o600),
		os.WriteFile(filepath.Join(c.Install.CNIConfDir, "10-net.conflist"), []byte(primary), 0o600)); err != nil {
		t.Fatal(err)
	}
	return c
}

// heard hands each message of a log on, before it is written.
type heard struct {
	slog.Handler
	message func(string)
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }

func (h heard) Handle(_ context.Context, r slog.Record) error {
	h.message(r.Message)
	return nil
}

// Without the block in the configuration nothing is installed, and ready does not wait
// for it.
func TestAgentLeavesTheNodeAlone(t *testing.T) {
	c, _ := settings(t)
	a := agent{config: c}
	if err := errors.Join(a.newInstaller(c.Install), a.keepInstalled(t.Context()), a.installed()); err != nil || a.installer != nil {
		t.Errorf("%v, %v", a.installer, err)
	}
}
