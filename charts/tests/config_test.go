package charts

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

// agentConfig returns the rendered file as the agent reads it.
func (i installation) agentConfig(t *testing.T) config.Config {
	t.Helper()
	file, _ := i.objects(t)[configMap].at("data", "config.yaml").(string)
	c, err := config.Parse([]byte(file))
	if err != nil {
		t.Fatalf("the agent refuses it: %v\n%s", err, file)
	}
	if warnings := c.Warnings(); len(warnings) > 0 {
		t.Errorf("the agent warns: %q", warnings)
	}
	return c
}

// Without values the agent does what it does without a file, and installs the plugin.
func TestDefaultConfigurationIsTheAgents(t *testing.T) {
	want := config.Default()
	want.Install = &config.Install{
		CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d", AgentSocket: "/run/fairlead/agent.sock", Mode: install.Owned, Status: install.StatusAuto,
		OrphanAfter: metav1.Duration{Duration: 30 * time.Minute}, // as the plugin has it
		RuntimeConfigs: []string{
			"/proc/1/root/etc/containerd/config.toml", "/proc/1/root/etc/containerd/conf.d", "/proc/1/root/etc/crio/crio.conf", "/proc/1/root/etc/crio/crio.conf.d",
		},
		AllowWithoutAgent: []string{"kube-system", "fairlead-system"},
	}
	got := installation{}.agentConfig(t)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-agent's +chart's):\n%s", diff)
	}
}

// everyValue sets all that ends in the agent's configuration.
const everyValue = `
cniBinDir: /opt/other/bin
cniConfDir: /etc/other/net.d
cniMode: dropin
cniStatus: never
cniOrphanAfter: 45m
runtimeConfigs: [/etc/other.toml]
cniCache: /var/lib/other
node: {taint: unready, condition: true}
excludeNamespaces: [infra, other]
allowWithoutAgent: [repair]
ambient:
  dnsCapture: false
  enablementSelectors:
  - podSelector: {matchExpressions: [{key: mesh, operator: In, values: ["on"]}]}
    namespaceSelector: {matchLabels: {team: a}}
logging: {level: debug}
httpPort: 15099
config:
  ackTimeout: 7s
  drainTimeout: 1m
  existingConnections: keep
  installed: 2026-01-02T15:04:05Z
  probeAddresses: {ipv4: 169.254.7.1, ipv6: "fd16::1"}
  kubeletProcesses: [other]
  probeMark: 0x40000000
  probes: "off"
  releaseGrace: 2s
  sweepInterval: 20s
  unsupportedRuntimeClasses: [strange]
  waits: {pod: 1s, proxy: 2s, ack: 3s}
`

func TestEveryValueReachesTheAgent(t *testing.T) {
	c := installation{values: everyValue}.agentConfig(t)
	got, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "every-value.yaml", string(got))
}

// A field that comes to the agent's configuration comes to the chart too, or is named
// here with the reason.
func TestEveryFieldCanBeSet(t *testing.T) {
	not := map[string]string{
		"kubeconfig":  "the agent runs in the cluster",
		"nodeName":    "it is told by NODE_NAME",
		"runDir":      "other programs know it",
		"proxySocket": "other programs know it",
	}
	usual, set := fields(t, config.Default()), fields(t, installation{values: everyValue}.agentConfig(t))
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if same := reflect.DeepEqual(usual[name], set[name]); same != (not[name] != "") {
			t.Errorf("%s: as in the default: %v; either everyValue sets it, or the reason why it is not a value stands here", name, same)
		}
	}
}

// fields are those of a configuration by their names in the file.
func fields(t *testing.T, c config.Config) map[string]any {
	t.Helper()
	found := map[string]any{}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name != "" {
			found[name] = v.Field(i).Interface()
		}
	}
	return found
}

// A changed configuration makes new pods, anything else does not.
func TestChecksum(t *testing.T) {
	checksum := func(values string) any {
		return installation{values: values}.objects(t)[daemonSet].at("spec", "template", "metadata", "annotations", "fairlead.io/config-checksum")
	}
	usual := checksum("")
	for values, same := range map[string]bool{
		"{logging: {level: debug}}":             false,
		"{config: {drainTimeout: 31s}}":         false,
		"{global: {platform: k3s}}":             false,
		"{admissionPolicies: {enabled: false}}": true,
		"{logging: {level: info}}":              true,
	} {
		if got := checksum(values); (got == usual) != same {
			t.Errorf("%s: checksum %v, of the default %v", values, got, usual)
		}
	}
}
