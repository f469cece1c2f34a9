package charts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// All that the service accounts may do.
func TestRoleIsTheLeast(t *testing.T) {
	var got []string
	for key, o := range (installation{}).objects(t) {
		if strings.Contains(key, "Role") {
			got = append(got, key+": "+strings.ReplaceAll(strings.TrimSpace(text(t, first(o["rules"], o["subjects"]))), "\n", " "))
		}
	}
	slices.Sort(got)
	want := []string{
		"ClusterRole fairlead-fairlead-system: " +
			`- apiGroups: - "" resources: - pods - namespaces verbs: - get - list - watch ` +
			"- apiGroups: - node.k8s.io resources: - runtimeclasses verbs: - list - watch " +
			`- apiGroups: - "" resources: - pods/status verbs: - patch ` +
			"- apiGroups: - events.k8s.io resources: - events verbs: - create - patch",
		"ClusterRoleBinding fairlead-fairlead-system: - kind: ServiceAccount name: fairlead namespace: fairlead-system",
		// Of helm uninstall's Job, which waits for the nodes.
		"Role fairlead-uninstall: - apiGroups: - apps resourceNames: - fairlead-uninstall resources: - daemonsets verbs: - get " +
			`- apiGroups: - "" resources: - pods verbs: - list`,
		"Role fairlead: - apiGroups: - apps resourceNames: - fairlead resources: - daemonsets verbs: - get",
		"RoleBinding fairlead-uninstall: - kind: ServiceAccount name: fairlead-uninstall namespace: fairlead-system",
		"RoleBinding fairlead: - kind: ServiceAccount name: fairlead namespace: fairlead-system",
	}
	squeeze := func(lines []string) []string {
		for i, line := range lines {
			lines[i] = strings.Join(strings.Fields(line), " ")
		}
		return lines
	}
	if diff := cmp.Diff(squeeze(want), squeeze(got)); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
}

// What is written of nodes is allowed only where it is asked for.
func TestNodesAreWrittenIfAskedFor(t *testing.T) {
	const get, patch, status = "[get] nodes", "[get patch] nodes", "[patch] nodes/status"
	for values, want := range map[string]string{
		"":                          "",
		"{node: {taint: none}}":     "",
		"{node: {taint: remove}}":   patch,
		"{node: {taint: unready}}":  patch,
		"{node: {condition: true}}": get + ", " + status,
		"{node: {taint: start, condition: true}}":        patch + ", " + status,
		"{global: {platform: gke}}":                      patch,
		"{global: {platform: gke}, node: {taint: none}}": "",
	} {
		objects := installation{values: values}.objects(t)
		var got []string
		rules, _ := objects["ClusterRole fairlead-fairlead-system"]["rules"].([]any)
		for _, r := range rules {
			rule := object(r.(map[string]any))
			if resource := fmt.Sprint(rule.at("resources", 0)); strings.HasPrefix(resource, "nodes") {
				got = append(got, fmt.Sprint(rule["verbs"], " ", resource))
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %s, want %s", values, strings.Join(got, ", "), want)
		}
		if policy := objects["ValidatingAdmissionPolicy fairlead-fairlead-system-nodes"]; (policy != nil) != (want != "") {
			t.Errorf("%s: there is a policy: %v", values, policy != nil)
		}
	}
}

func first(values ...any) any {
	for _, value := range values {
		if value != nil {
			return value
		}
	}
	return nil
}

// What the containers of the charts may do on the node.
func TestPrivileges(t *testing.T) {
	for _, test := range []struct{ chart, key, capabilities string }{
		{"fairlead", daemonSet, `{"add":["NET_ADMIN","SYS_ADMIN","SYS_PTRACE","DAC_READ_SEARCH"],"drop":["ALL"]}`},
		{"fairlead", "Pod fairlead-test", `{"drop":["ALL"]}`},
		{"nodeproxy", daemonSet, `{"add":["NET_ADMIN","SYS_ADMIN"],"drop":["ALL"]}`},
	} {
		o := installation{chart: test.chart}.objects(t)[test.key]
		spec, ok := o.at("spec", "template", "spec").(map[string]any)
		if !ok {
			spec, _ = o["spec"].(map[string]any)
		}
		containers, _ := spec["containers"].([]any)
		if len(containers) != 1 || spec["initContainers"] != nil {
			t.Fatalf("%s: %d containers", test.key, len(containers))
		}
		security := object{"s": containers[0]}.at("s", "securityContext").(map[string]any)
		capabilities, err := json.Marshal(security["capabilities"])
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("privileged %v, escalation %v, read-only root %v, %s",
			security["privileged"] == true, security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"], capabilities)
		if want := "privileged false, escalation false, read-only root true, " + test.capabilities; got != want {
			t.Errorf("%s of %s: %s\nwant %s", test.key, test.chart, got, want)
		}
	}
}

// OpenShift lets the agent do what it does, and no more.
func TestConstraintsAreTheContainers(t *testing.T) {
	objects := installation{values: "{global: {platform: openshift}}"}.objects(t)
	constraints := objects["SecurityContextConstraints fairlead-fairlead-system"]
	security := objects[daemonSet].at("spec", "template", "spec", "containers", 0, "securityContext").(map[string]any)
	capabilities := security["capabilities"].(map[string]any)
	got := []any{constraints["allowedCapabilities"], constraints["requiredDropCapabilities"], constraints["readOnlyRootFilesystem"], constraints["allowPrivilegedContainer"], constraints["users"]}
	want := []any{capabilities["add"], capabilities["drop"], security["readOnlyRootFilesystem"], security["privileged"], []any{"system:serviceaccount:fairlead-system:fairlead", "system:serviceaccount:fairlead-system:fairlead-uninstall"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-container +constraints):\n%s", diff)
	}
}

// Where images come from is said by who installs.
func TestImages(t *testing.T) {
	for _, chart := range []string{"fairlead", "nodeproxy"} {
		c, err := loader.LoadDir("../" + chart)
		if err != nil {
			t.Fatal(err)
		}
		if repository := object(c.Values).at("image", "repository"); repository != "" {
			t.Errorf("%s: images come from %v if nobody says otherwise", chart, repository)
		}
		manifests, _ := installation{chart: chart, values: "{image: {tag: v9}}"}.rendered(t)
		images := 0
		for _, line := range strings.Split(manifests, "\n") {
			if name, found := strings.CutPrefix(strings.TrimSpace(line), "image: "); found {
				images++
				if name != `"example.test/fairlead:v9"` {
					t.Errorf("%s: image %s", chart, name)
				}
			}
		}
		if images == 0 {
			t.Errorf("%s: no image", chart)
		}
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	manifests, _ := installation{values: "{image: {digest: '" + digest + "'}}"}.rendered(t)
	if strings.Count(manifests, "example.test/fairlead@"+digest) != 5 {
		t.Errorf("not the image of that digest:\n%s", manifests)
	}
}
