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

// Without the block in the configuration nothing is installed, and ready does not wait
// for it.
func TestAgentLeavesTheNodeAlone(t *testing.T) {
	c, _ := settings(t)
	a := agent{config: c}
	if err := errors.Join(a.newInstaller(c.Install), a.keepInstalled(t.Context()), a.installed()); err != nil || a.installer != nil {
		t.Errorf("%v, %v", a.installer, err)
	}
}
