package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// maxSocket is what fits into a socket address, with the byte by which the
// agent's temporary name is longer.
const maxSocket = 106

// config is our entry of the network configuration, as the runtime hands it to
// us.
type config struct {
	CNIVersion        string
	AgentSocket       string
	AllowWithoutAgent []string
	Status            string // statusNever, or empty
	OrphanAfter       string
	PrevResult        json.RawMessage // nil if there is none

	orphanAfter time.Duration // 0: the usual
}

// statusNever has STATUS succeed whatever is known of the agent.
const statusNever = "never"

// parseConfig refuses a field that it does not know, but for those that the
// specification lets a runtime add.
func parseConfig(data []byte) (*config, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("cannot decode the network configuration: %v", err)
	}
	c := &config{
		AgentSocket:       agentapi.Socket,
		AllowWithoutAgent: []string{"kube-system", "fairlead-system"},
	}
	var unknown []string
	var errs []error
	for name, value := range fields {
		var into any
		switch name {
		case "cniVersion":
			into = &c.CNIVersion
		case "agentSocket":
			into = &c.AgentSocket
		case "allowWithoutAgent":
			c.AllowWithoutAgent = nil
			into = &c.AllowWithoutAgent
		case "status":
			into = &c.Status
		case "orphanAfter":
			into = &c.OrphanAfter
		case "prevResult":
			if string(value) != "null" {
				c.PrevResult = value
			}
		case "type", "name", "capabilities", "runtimeConfig", "args":
		default:
			// With a slash it is in somebody's namespace, such as cni.dev/.
			if !strings.Contains(name, "/") {
				unknown = append(unknown, name)
			}
		}
		if into == nil {
			continue
		}
		if err := json.Unmarshal(value, into); err != nil {
			errs = append(errs, fmt.Errorf("field %q: %v", name, err))
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		errs = append(errs, fmt.Errorf("unknown field %q; the fields are agentSocket, allowWithoutAgent, orphanAfter and status", unknown))
	}
	if err := errors.Join(append(errs, c.validate())...); err != nil {
		return nil, fmt.Errorf("invalid fairlead-cni configuration: %v", err)
	}
	return c, nil
}

func (c *config) validate() error {
	if !validSocket(c.AgentSocket) {
		return fmt.Errorf("field \"agentSocket\": %q is not an absolute path of at most %d bytes", c.AgentSocket, maxSocket)
	}
	if slices.Contains(c.AllowWithoutAgent, "") {
		return errors.New("field \"allowWithoutAgent\": a namespace's name is empty")
	}
	if c.Status != "" && c.Status != statusNever {
		return fmt.Errorf("field \"status\": %q is not %q; it is left out where STATUS is to tell", c.Status, statusNever)
	}
	if c.OrphanAfter == "" {
		return nil
	}
	var err error
	if c.orphanAfter, err = time.ParseDuration(c.OrphanAfter); err != nil || c.orphanAfter <= 0 {
		return fmt.Errorf("field \"orphanAfter\": %q is not a duration such as 30m", c.OrphanAfter)
	}
	return nil
}

func validSocket(path string) bool { return filepath.IsAbs(path) && len(path) <= maxSocket }

// lenientSocket finds the agent's socket in a configuration that need not be
// worth anything else; empty if there is none.
func lenientSocket(data []byte) string {
	var c struct {
		AgentSocket string `json:"agentSocket"`
	}
	if json.Unmarshal(data, &c) != nil || !validSocket(c.AgentSocket) {
		return ""
	}
	return c.AgentSocket
}
