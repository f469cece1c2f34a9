package config

import (
	"errors"
	"slices"
)

// Install has the agent put the CNI plugin onto its node, and into the runtime's
// configuration. The directories are the runtime's, where the agent sees them.
type Install struct {
	// CNIBinDir is where the runtime finds plugins, CNIConfDir where it finds network
	// configurations.
	CNIBinDir  string `json:"cniBinDir"`
	CNIConfDir string `json:"cniConfDir"`
	// Plugin is the binary that is installed; left out, it is the one beside the agent's
	// own.
	Plugin string `json:"plugin,omitempty"`
	// AgentSocket is the path of the agent's socket on the node, by which the plugin
	// finds it; left out, it is in runDir.
	AgentSocket string `json:"agentSocket"`
	// AllowWithoutAgent are the namespaces whose pods start, uncaptured, while no agent
	// runs: those that may be needed to repair it.
	AllowWithoutAgent []string `json:"allowWithoutAgent"`
}

// complete fills in what a configuration with install: has left out.
func (i *Install) complete(c Config) {
	for field, value := range map[*string]string{
		&i.CNIBinDir: "/opt/cni/bin", &i.CNIConfDir: "/etc/cni/net.d", &i.AgentSocket: c.File("agent.sock"),
	} {
		if *field == "" {
			*field = value
		}
	}
	if i.AllowWithoutAgent == nil {
		i.AllowWithoutAgent = []string{"kube-system", "fairlead-system"}
	}
}

func (i *Install) validate() error {
	if i == nil {
		return nil
	}
	errs := []error{
		absolute("install.cniBinDir", i.CNIBinDir),
		absolute("install.cniConfDir", i.CNIConfDir),
		socket("install.agentSocket", i.AgentSocket, i.AgentSocket),
		optional("install.plugin", i.Plugin),
	}
	if slices.Contains(i.AllowWithoutAgent, "") {
		errs = append(errs, errors.New("install.allowWithoutAgent: a namespace's name is empty"))
	}
	return errors.Join(errs...)
}
