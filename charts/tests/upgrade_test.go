package charts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
)

// What the API server refuses to change stays the same, whatever is set.
func TestUpgradeKeepsWhatCannotChange(t *testing.T) {
	immutable := func(i installation) map[string]any {
		objects := i.objects(t)
		fixed := map[string]any{}
		for key, o := range objects {
			switch o["kind"] {
			case "DaemonSet":
				fixed[key] = o.at("spec", "selector")
			case "ClusterRoleBinding":
				fixed[key] = o["roleRef"]
			}
		}
		return fixed
	}
	for _, chart := range []string{"fairlead", "nodeproxy"} {
		usual := immutable(installation{chart: chart})
		if len(usual) == 0 {
			t.Fatal("nothing is compared")
		}
		for _, values := range []string{"{image: {tag: other}}", "{nodeSelector: {a: b}}", "{tolerations: []}"} {
			if diff := cmp.Diff(usual, immutable(installation{chart: chart, values: values})); diff != "" {
				t.Errorf("%s with %s (-before +after):\n%s", chart, values, diff)
			}
		}
	}
	usual := immutable(installation{})
	for _, values := range []string{
		everyValue, "{podLabels: {app.kubernetes.io/name: other, app.kubernetes.io/instance: other}}",
		"{global: {platform: openshift}}", "{admissionPolicies: {enabled: false}}",
	} {
		if diff := cmp.Diff(usual, immutable(installation{values: values})); diff != "" {
			t.Errorf("with %s (-before +after):\n%s", values, diff)
		}
	}
}

// Labels that somebody adds do not take ours away: the DaemonSet would not know its pods,
// and the agent's pod would be one to capture.
func TestPodLabels(t *testing.T) {
	o := installation{values: `
podLabels: {app.kubernetes.io/name: other, istio.io/dataplane-mode: ambient, team: a}
podAnnotations: {fairlead.io/config-checksum: x, team: b}
`}.objects(t)[daemonSet]
	selector, _ := o.at("spec", "selector", "matchLabels").(map[string]any)
	labels, _ := o.at("spec", "template", "metadata", "labels").(map[string]any)
	for key, value := range selector {
		if labels[key] != value {
			t.Errorf("the selector has %s=%v, the pods %v", key, value, labels[key])
		}
	}
	got := []any{labels["istio.io/dataplane-mode"], labels["team"], o.at("spec", "template", "metadata", "annotations", "team")}
	if diff := cmp.Diff([]any{"none", "a", "b"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if sum := o.at("spec", "template", "metadata", "annotations", "fairlead.io/config-checksum"); sum == "x" {
		t.Error("the checksum is not ours")
	}
}

func TestLint(t *testing.T) {
	for _, chart := range []string{"fairlead", "nodeproxy"} {
		linter := lint.RunAll("../"+chart, map[string]any{}, "fairlead-system", lint.WithKubeVersion(&common.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}))
		for _, message := range linter.Messages {
			if message.Severity >= support.WarningSev {
				t.Errorf("%s: %s", chart, message)
			}
		}
	}
}
