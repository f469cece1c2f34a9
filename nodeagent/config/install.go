package config

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/cni/install"
)

// Install has the agent put the CNI plugin onto its node, and into the runtime's
// configuration. The directories are the runtime's, where the agent sees them.
type Install struct {
	// CNIBinDir is where the runtime finds plugins, CNIConfDir where it finds network
	// configurations.
	CNIBinDir  string `json:"cniBinDir"`
	CNIConfDir string `json:"cniConfDir"`
	// Mode is how the runtime is made to execute the plugin: owned, by a list of our own,
	// derived from the primary's; chained, by an entry in the primary's list; dropin, by a
	// file in the directory of plugins of the primary's network, where only runtimes with
	// libcni 1.3 or later look.
	Mode install.Mode `json:"mode"`
	// RuntimeConfigs are the usual configuration files of containerd or CRI-O, and directories
	// of them, where the agent sees them: what they say is compared with the above, which
	// then have to be the node's own paths. What is not there is passed over. A runtime that was
	// told on its command line to read others is compared by those. Left empty, nothing is compared.
	RuntimeConfigs []string `json:"runtimeConfigs,omitempty"`
	// Plugin is the binary that is installed; left out, it is the one beside the agent's
	// own.
	Plugin string `json:"plugin,omitempty"`
	// AgentSocket is the path of the agent's socket on the node, by which the plugin
	// finds it; left out, it is in runDir.
	AgentSocket string `json:"agentSocket"`
	// AllowWithoutAgent are the namespaces whose pods start, uncaptured, while no agent
	// runs: those that may be needed to repair it.
	AllowWithoutAgent []string `json:"allowWithoutAgent"`
	// Status is what becomes of STATUS of the CNI specification, by which a node on which no
	// agent has been ready since its boot is not ready either: auto, it works where the
	// primary's list has version 1.1.0; always, our own list (mode owned) has that version,
	// too, if the runtime and the primary's plugins take it, whose own STATUS is then
	// asked as well; never, the node does not wait for the agent.
	Status install.Status `json:"status"`
	// OrphanAfter is how long after a boot STATUS keeps a node from being ready on which no
	// agent has started; left out, half an hour.
	OrphanAfter metav1.Duration `json:"orphanAfter,omitzero"`
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
	if i.Mode == "" {
		i.Mode = install.Owned
	}
	if i.Status == "" {
		i.Status = install.StatusAuto
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
		between("install.orphanAfter", i.OrphanAfter, 0, 365*24*time.Hour),
	}
	switch i.Mode {
	case install.Owned, install.Chained, install.DropIn:
	default:
		errs = append(errs, fmt.Errorf("install.mode: %q is neither %s, %s nor %s", i.Mode, install.Owned, install.Chained, install.DropIn))
	}
	switch i.Status {
	case install.StatusAuto, install.StatusNever:
	case install.StatusAlways:
		if i.Mode != install.Owned {
			errs = append(errs, fmt.Errorf("install.status: %s needs install.mode %s: in the other modes the list, and its version, is the primary's", i.Status, install.Owned))
		}
	default:
		errs = append(errs, fmt.Errorf("install.status: %q is neither %s, %s nor %s", i.Status, install.StatusAuto, install.StatusAlways, install.StatusNever))
	}
	for n, path := range i.RuntimeConfigs {
		errs = append(errs, absolute(fmt.Sprintf("install.runtimeConfigs[%d]", n), path))
	}
	if slices.Contains(i.AllowWithoutAgent, "") {
		errs = append(errs, errors.New("install.allowWithoutAgent: a namespace's name is empty"))
	}
	return errors.Join(errs...)
}
