package charts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What an operator brings along from istio-cni, by name, and that works here: what is
// set and where it arrives.
func TestIstioValuesThatWork(t *testing.T) {
	template := []any{"spec", "template", "spec"}
	pod := func(path ...any) []any { return append(template[:len(template):len(template)], path...) }
	for values, place := range map[string]struct {
		path []any
		want string
	}{
		"{cniBinDir: /x/bin}":                                      {pod("volumes", 4, "hostPath", "path"), "/x/bin"},
		"{cniConfDir: /x/conf}":                                    {pod("volumes", 5, "hostPath", "path"), "/x/conf"},
		"{cniNetnsDir: /x/ns}":                                     {pod("volumes", 3, "hostPath", "path"), "/x/ns"},
		"{resources: {requests: {cpu: 1m}}}":                       {pod("containers", 0, "resources", "requests", "cpu"), "1m"},
		"{tolerations: [{key: a, operator: Exists}]}":              {pod("tolerations"), "- key: a\n  operator: Exists"},
		"{affinity: {nodeAffinity: {a: b}}}":                       {pod("affinity"), "nodeAffinity:\n  a: b"},
		"{updateStrategy: {type: OnDelete}}":                       {[]any{"spec", "updateStrategy"}, "type: OnDelete"},
		"{updateStrategy: {rollingUpdate: {maxUnavailable: 20%}}}": {[]any{"spec", "updateStrategy", "rollingUpdate", "maxUnavailable"}, "20%"},
	} {
		got := strings.TrimSpace(text(t, installation{values: values}.objects(t)[daemonSet].at(place.path...)))
		if diff := cmp.Diff(place.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", values, diff)
		}
	}
	for values, want := range map[string]string{
		"{excludeNamespaces: [a]}":       "excludeNamespaces:\n- a\n",
		"{ambient: {dnsCapture: false}}": "dnsCapture: false\n",
		"{ambient: {enablementSelectors: [{podSelector: {matchLabels: {a: b}}}]}}": "enablementSelectors:\n- podSelector:\n    matchLabels:\n      a: b\n",
		"{logging: {level: warn}}":  "logLevel: warn\n",
		"{global: {platform: k3s}}": "cniBinDir: /var/lib/rancher/k3s/data/cni\n",
	} {
		file, _ := installation{values: values}.objects(t)[configMap].at("data", "config.yaml").(string)
		if !strings.Contains(file, want) {
			t.Errorf("%s: the configuration lacks %q:\n%s", values, want, file)
		}
	}
}

// Those that ask for what is done anyway change nothing.
func TestIstioValuesThatAreSoAnyway(t *testing.T) {
	usual, _ := installation{}.rendered(t)
	got, _ := installation{values: `
chained: true
provider: default
istioOwnedCNIConfig: true
ambient: {enabled: true, ipv6: true, reconcileIptablesOnStartup: true, enableAmbientDetectionRetry: true}
global: {nativeNftables: true}
`}.rendered(t)
	if diff := cmp.Diff(usual, got); diff != "" {
		t.Errorf("(-without +with):\n%s", diff)
	}
}

// Those that have no meaning here: all are named at once, one line for each says why.
func TestIstioValuesThatAreRefused(t *testing.T) {
	_, err := installation{values: `
cniConfFileName: 10-calico.conflist
istioOwnedCNIConfig: false
istioOwnedCNIConfigFileName: 02-istio-cni.conflist
chained: false
provider: multus
repair: {enabled: true}
ambient: {enabled: false, ipv6: false, reconcileIptablesOnStartup: false, enableAmbientDetectionRetry: false}
global: {nativeNftables: false}
`}.render()
	if err == nil {
		t.Fatal("nothing is refused")
	}
	_, lines, found := strings.Cut(err.Error(), "\n")
	if !found {
		t.Fatal(err)
	}
	golden(t, "istio-refused.txt", lines+"\n")
	for _, line := range strings.Split(lines, "\n") {
		if len(line) > 180 {
			t.Errorf("too long for one line: %s", line)
		}
	}
}
