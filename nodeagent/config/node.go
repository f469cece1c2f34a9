package config

import "fmt"

// Node is what the agent writes of its own node into the API; not used with --pods-from.
type Node struct {
	// Taint is what becomes of the startup taint fairlead.io/agent-not-ready, which keeps pods
	// from being scheduled to a node (and of cni.istio.io/not-ready, with which a cluster's
	// nodes may still be born): none, it is not touched; remove, it is removed when the agent
	// is ready; start, and put there when an agent starts before which the runtime does not
	// have the plugin, as after the boot of a node whose /etc is not kept; unready, and put
	// there when the agent has not been ready for half a minute.
	Taint Taint `json:"taint"`
	// Condition has the node's condition fairlead.io/Ready say whether the agent is ready.
	Condition bool `json:"condition"`
}

// A Taint is what becomes of the startup taint.
type Taint string

// Each of these does what the one before it does, too.
const (
	TaintNone    Taint = "none"
	TaintRemove  Taint = "remove"
	TaintStart   Taint = "start"
	TaintUnready Taint = "unready"
)

func (n Node) validate() error {
	switch n.Taint {
	case TaintNone, TaintRemove, TaintStart, TaintUnready:
		return nil
	}
	return fmt.Errorf("node.taint: %q is neither %s, %s, %s nor %s", n.Taint, TaintNone, TaintRemove, TaintStart, TaintUnready)
}
