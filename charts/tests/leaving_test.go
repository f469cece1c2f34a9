package charts

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	leaving = "DaemonSet fairlead-uninstall"
	waiting = "Job fairlead-uninstall"
)

// What helm uninstall does comes in this order, and before anything is deleted.
func TestLeavingIsAHook(t *testing.T) {
	objects := installation{}.objects(t)
	var got []string
	for _, key := range []string{"ServiceAccount fairlead-uninstall", "Role fairlead-uninstall", "RoleBinding fairlead-uninstall", leaving, waiting} {
		at := func(name string) any { return objects[key].at("metadata", "annotations", "helm.sh/"+name) }
		got = append(got, fmt.Sprintf("%s: %v at %v, deleted %v", key, at("hook"), at("hook-weight"), at("hook-delete-policy")))
	}
	want := []string{
		"ServiceAccount fairlead-uninstall: pre-delete at -5, deleted before-hook-creation,hook-succeeded",
		"Role fairlead-uninstall: pre-delete at -5, deleted before-hook-creation,hook-succeeded",
		"RoleBinding fairlead-uninstall: pre-delete at -4, deleted before-hook-creation,hook-succeeded",
		"DaemonSet fairlead-uninstall: pre-delete at 0, deleted before-hook-creation,hook-succeeded",
		"Job fairlead-uninstall: pre-delete at 5, deleted before-hook-creation,hook-succeeded",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What uninstalls a node can do what the agent can, where the agent does it, whatever the
// agent's own pods are kept to: one may have run on any node.
func TestLeavingDoesTheAgentsWork(t *testing.T) {
	objects := installation{values: "{global: {platform: openshift}, nodeSelector: {a: b}, tolerations: []}"}.objects(t)
	agent, init := objects[daemonSet].at("spec", "template", "spec", "containers", 0), objects[leaving].at("spec", "template", "spec", "initContainers", 0)
	for _, same := range []string{"image", "imagePullPolicy", "securityContext", "volumeMounts"} {
		if diff := cmp.Diff(object{"c": agent}.at("c", same), object{"c": init}.at("c", same)); diff != "" {
			t.Errorf("%s (-agent +uninstall):\n%s", same, diff)
		}
	}
	spec := func(key, what string) any { return objects[key].at("spec", "template", "spec", what) }
	for _, same := range []string{"hostNetwork", "hostPID", "volumes"} {
		if diff := cmp.Diff(spec(daemonSet, same), spec(leaving, same)); diff != "" {
			t.Errorf("%s (-agent +uninstall):\n%s", same, diff)
		}
	}
	got := fmt.Sprintln(spec(leaving, "tolerations"), spec(leaving, "nodeSelector"), spec(leaving, "automountServiceAccountToken"))
	if want := "[map[operator:Exists]] map[kubernetes.io/os:linux] false\n"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// The Job waits for the DaemonSet's pods by name and labels.
func TestLeavingIsWaitedFor(t *testing.T) {
	objects := installation{values: "{uninstall: {timeoutSeconds: 7, force: true}}"}.objects(t)
	got := fmt.Sprint(objects[waiting].at("spec", "template", "spec", "containers", 0, "args"))
	if want := "[await fairlead-uninstall --timeout=7s --selector=app.kubernetes.io/name=fairlead-uninstall,app.kubernetes.io/instance=fairlead]"; got != want {
		t.Errorf("the Job is told %s", got)
	}
	labels := objects[leaving].at("spec", "template", "metadata", "labels").(map[string]any)
	for _, part := range strings.Split("app.kubernetes.io/name=fairlead-uninstall,app.kubernetes.io/instance=fairlead", ",") {
		if name, value, _ := strings.Cut(part, "="); labels[name] != value {
			t.Errorf("its pods have %s %v", name, labels[name])
		}
	}
	got = fmt.Sprint(objects[leaving].at("spec", "template", "spec", "initContainers", 0, "args"))
	if want := "[uninstall --config=/etc/fairlead/config.yaml --copy-to=/dev/termination-log --force]"; got != want {
		t.Errorf("the DaemonSet is told %s", got)
	}
}

// The Job ends even if its node dies, and goes to none that has; nodes that are leaving, and
// so not ready, do.
func TestWaitingEnds(t *testing.T) {
	job := installation{values: "{uninstall: {timeoutSeconds: 7}}"}.objects(t)[waiting]
	got := fmt.Sprintln(job.at("spec", "activeDeadlineSeconds"), job.at("spec", "template", "spec", "tolerations"))
	if want := "67 [map[effect:NoSchedule operator:Exists] map[effect:NoExecute key:node.kubernetes.io/not-ready operator:Exists]]\n"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Nodes on which no pod of the chart's can run are left out.
func TestLeavingOfSomeNodes(t *testing.T) {
	objects := installation{values: "{uninstall: {nodeSelector: {a: b}, affinity: {nodeAffinity: {some: thing}}}}"}.objects(t)
	for _, key := range []string{leaving, waiting} {
		at := func(what string) any { return objects[key].at("spec", "template", "spec", what) }
		got := fmt.Sprintln(at("nodeSelector"), at("affinity"))
		if want := "map[a:b kubernetes.io/os:linux] map[nodeAffinity:map[some:thing]]\n"; got != want {
			t.Errorf("%s: got %s\nwant %s", key, got, want)
		}
	}
}

// A DaemonSet that has outlived its helm would uninstall what is installed. It is named; an
// upgrade, by which somebody changes how nodes are left, is not refused.
func TestInstallationBesideALeavingDaemonSet(t *testing.T) {
	there := true
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/apis/apps/v1":
			fmt.Fprint(w, `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1", "resources": [{"name": "daemonsets", "namespaced": true, "kind": "DaemonSet"}]}`)
		case r.URL.Path == "/apis/apps/v1/namespaces/fairlead-system/daemonsets/fairlead-uninstall" && there:
			fmt.Fprint(w, `{"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": {"name": "fairlead-uninstall"}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		}
	}))
	defer api.Close()
	_, err := installation{cluster: api.URL}.render()
	if want := "kubectl -n fairlead-system delete daemonset fairlead-uninstall"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to say %q", err, want)
	}
	if _, err := (installation{cluster: api.URL, upgrade: true}).render(); err != nil {
		t.Errorf("an upgrade: %v", err)
	}
	there = false
	if _, err := (installation{cluster: api.URL}).render(); err != nil {
		t.Errorf("without it: %v", err)
	}
}

func TestLeavingCanBeLeftOut(t *testing.T) {
	manifests, notes := installation{values: "{uninstall: {enabled: false}}"}.rendered(t)
	if strings.Contains(manifests, "uninstall") || !strings.Contains(notes, "leaves everything else") {
		t.Errorf("it is there even so, or not said:\n%s", notes)
	}
}
