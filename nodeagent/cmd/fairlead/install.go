package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

// newInstaller makes what keeps the plugin on the node, if the configuration has it.
func (a *agent) newInstaller(c *config.Install) error {
	if c == nil {
		return nil
	}
	plugin := c.Plugin
	if plugin == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("cannot tell where this program's binary is, and the plugin's beside it: %w; name it as install.plugin", err)
		}
		plugin = filepath.Join(filepath.Dir(self), install.PluginName)
	}
	var err error
	a.installer, err = install.New(install.Config{
		Plugin: plugin, BinDir: c.CNIBinDir, ConfDir: c.CNIConfDir, Mode: c.Mode, RuntimeConfigs: c.RuntimeConfigs, Proc: "/proc",
		AgentSocket: c.AgentSocket, AllowWithoutAgent: c.AllowWithoutAgent, Status: c.Status, OrphanAfter: c.OrphanAfter.Duration,
		Hold: a.turnstile.hold, Ready: a.announced, Poll: pollInterval, Logger: a.logger,
	})
	return err
}

// keepInstalled runs the installer, if there is one.
func (a *agent) keepInstalled(ctx context.Context) error {
	if a.installer == nil {
		return nil
	}
	return a.unlessUninstalled(ctx, a.installer.Run, a.installer.Remove)
}

// installed says why the plugin is not installed, or nil if it is, or need not be.
func (a *agent) installed() error {
	if a.installer == nil {
		return nil
	}
	return a.installer.State().Problem
}

// statusProblem says why STATUS does not hold although it was asked for; empty if it does.
func (a *agent) statusProblem() string {
	if a.installer == nil || a.installer.State().NoStatus == nil {
		return ""
	}
	return a.installer.State().NoStatus.Error()
}
