package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

func TestInstall(t *testing.T) {
	defaults := config.Install{
		CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d", AgentSocket: "/run/fairlead/agent.sock", Mode: install.Owned, Status: install.StatusAuto,
		AllowWithoutAgent: []string{"kube-system", "fairlead-system"},
	}
	moved := defaults
	moved.AgentSocket = "/run/other/agent.sock"
	for text, want := range map[string]*config.Install{
		"":                                  nil,
		"install:\n":                        nil,
		"install: {}\n":                     &defaults,
		"install: {}\nrunDir: /run/other\n": &moved,
		"install: {cniBinDir: /host/bin, cniConfDir: /host/net.d, plugin: /p, agentSocket: /s, allowWithoutAgent: [], mode: dropin, runtimeConfigs: [/a], status: never, orphanAfter: 1h}\n": {
			CNIBinDir: "/host/bin", CNIConfDir: "/host/net.d", Plugin: "/p", AgentSocket: "/s", AllowWithoutAgent: []string{}, Mode: install.DropIn, RuntimeConfigs: []string{"/a"}, Status: install.StatusNever, OrphanAfter: metav1.Duration{Duration: time.Hour},
		},
	} {
		got, err := config.Parse([]byte(head + text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got.Install); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestInstallRefusals(t *testing.T) {
	_, err := config.Parse([]byte(head + "install: {cniBinDir: bin, cniConfDir: net.d, plugin: p, agentSocket: s, allowWithoutAgent: [a, ''], mode: own, runtimeConfigs: [/a, b], list: x, status: perhaps, orphanAfter: -1s}\n"))
	want := `invalid configuration:
unknown field "install.list" (known here: agentSocket, allowWithoutAgent, cniBinDir, cniConfDir, mode, orphanAfter, plugin, runtimeConfigs, status)
install.cniBinDir: "bin" is not an absolute path
install.cniConfDir: "net.d" is not an absolute path
install.agentSocket: "s" is not an absolute path
install.plugin: "p" is not an absolute path
install.orphanAfter: -1s is not between 0s and 8760h0m0s
install.mode: "own" is neither owned, chained nor dropin
install.status: "perhaps" is neither auto, always nor never
install.runtimeConfigs[1]: "b" is not an absolute path
install.allowWithoutAgent: a namespace's name is empty`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// The version of somebody else's list is not ours to raise.
func TestStatusAlwaysNeedsItsOwnList(t *testing.T) {
	for _, mode := range []string{"owned", "chained", "dropin"} {
		_, err := config.Parse([]byte(head + "install: {status: always, mode: " + mode + "}\n"))
		want := "install.status: always needs install.mode owned: in the other modes the list, and its version, is the primary's"
		if refused := err != nil && strings.Contains(err.Error(), want); refused == (mode == "owned") {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
}
