// Command fairlead-cni is the CNI plugin that puts pods under the node's proxy.
// The container runtime executes it; see package plugin.
package main

import (
	"os"

	"github.com/fairlead-mesh/fairlead/cni/plugin"
)

// version is set by the build.
var version = "of no release"

func main() {
	os.Exit(plugin.New().Run("fairlead-cni " + version + ": asks this node's fairlead agent to capture a pod's traffic"))
}
