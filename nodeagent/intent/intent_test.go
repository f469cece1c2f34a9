package intent_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

type set = map[string]string

var (
	ambient = set{intent.LabelMode: intent.ModeAmbient}
	none    = set{intent.LabelMode: intent.ModeNone}
)

// policy is that of a node whose configuration says nothing.
func policy() intent.Policy {
	p, err := config.Default().Policy()
	if err != nil {
		panic(err) // constants
	}
	return p
}

func TestWhichPods(t *testing.T) {
	for _, test := range []struct {
		name   string
		pod    intent.Pod
		ns     set
		want   intent.Reason
		detail string
	}{
		{name: "no label at all", want: intent.NotLabelled},
		{name: "another value", pod: intent.Pod{Labels: set{intent.LabelMode: "sidecar"}}, want: intent.NotLabelled},
		{name: "pod labelled", pod: intent.Pod{Labels: ambient}, want: intent.Selected, detail: "selector 1"},
		{name: "pod labelled, namespace opts out", pod: intent.Pod{Labels: ambient}, ns: none, want: intent.Selected},
		{name: "namespace labelled", ns: ambient, want: intent.Selected, detail: "selector 2"},
		{name: "namespace labelled, pod opts out", pod: intent.Pod{Labels: none}, ns: ambient, want: intent.OptedOut},
		{name: "pod opts out of nothing", pod: intent.Pod{Labels: none}, want: intent.OptedOut},
		{name: "both labelled", pod: intent.Pod{Labels: ambient}, ns: ambient, want: intent.Selected},
		{name: "host network", pod: intent.Pod{Labels: ambient, HostNetwork: true}, ns: ambient, want: intent.HostNetwork},
		{name: "sidecar", pod: intent.Pod{Annotations: set{intent.AnnotationSidecar: "{}"}}, ns: ambient, want: intent.Sidecar},
		{name: "sidecar, empty annotation", pod: intent.Pod{Annotations: set{intent.AnnotationSidecar: ""}}, ns: ambient, want: intent.Sidecar},
		{name: "excluded namespace", pod: intent.Pod{Namespace: "kube-system", Labels: ambient}, ns: ambient, want: intent.NamespaceExcluded, detail: "kube-system"},
		{name: "succeeded", pod: intent.Pod{Labels: ambient, Phase: "Succeeded"}, want: intent.Terminated, detail: "Succeeded"},
		{name: "failed", pod: intent.Pod{Labels: ambient, Phase: "Failed"}, want: intent.Terminated},
		{name: "own network stack", pod: intent.Pod{Labels: ambient, RuntimeClass: "kata-qemu"}, want: intent.OwnNetworkStack, detail: "selector 1 matches, but pods of runtime class kata-qemu"},
		{name: "own network stack, another runtime", pod: intent.Pod{RuntimeClass: "gvisor"}, ns: ambient, want: intent.OwnNetworkStack},
		{name: "own network stack, not labelled", pod: intent.Pod{RuntimeClass: "runsc"}, want: intent.NotLabelled},
		{name: "own network stack, opted out", pod: intent.Pod{Labels: none, RuntimeClass: "runsc"}, ns: ambient, want: intent.OptedOut},
		{name: "own network stack, by the handler", pod: intent.Pod{Labels: ambient, RuntimeClass: "sandboxed", RuntimeHandler: "runsc"}, want: intent.OwnNetworkStack, detail: "pods of runtime class sandboxed (handler runsc)"},
		{name: "another handler", pod: intent.Pod{Labels: ambient, RuntimeClass: "sandboxed", RuntimeHandler: "crun"}, want: intent.Selected},
		{name: "another runtime class", pod: intent.Pod{Labels: ambient, RuntimeClass: "crun"}, want: intent.Selected},
		{name: "pending is not over", pod: intent.Pod{Labels: ambient, Phase: "Pending"}, want: intent.Selected},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := policy().Decide(test.pod, intent.Namespace{Labels: test.ns})
			if got.Reason != test.want || got.Capture != (test.want == intent.Selected) {
				t.Errorf("got %+v, want reason %s", got, test.want)
			}
			if got.Message == "" || !strings.Contains(got.Message, test.detail) {
				t.Errorf("message %q does not say %q", got.Message, test.detail)
			}
		})
	}
}

// A label that asks for something, spelt wrong, leaves no pod alone without a word.
func TestModesThatAreNone(t *testing.T) {
	const (
		ofPod       = `label istio.io/dataplane-mode has value %q: it is ambient or none; ignored`
		ofNamespace = `label of its namespace istio.io/dataplane-mode has value %q: it is ambient or none; ignored`
	)
	mode := func(value string) set { return set{intent.LabelMode: value} }
	for name, test := range map[string]struct {
		pod, ns set
		want    intent.Reason
		warns   []string
	}{
		"no label":                      {want: intent.NotLabelled},
		"the pod's, in upper case":      {pod: mode("Ambient"), want: intent.NotLabelled, warns: []string{fmt.Sprintf(ofPod, "Ambient")}},
		"the pod's, empty":              {pod: mode(""), want: intent.NotLabelled, warns: []string{fmt.Sprintf(ofPod, "")}},
		"the namespace's":               {ns: mode("true"), want: intent.NotLabelled, warns: []string{fmt.Sprintf(ofNamespace, "true")}},
		"both":                          {pod: mode("None"), ns: mode("on"), want: intent.NotLabelled, warns: []string{fmt.Sprintf(ofPod, "None"), fmt.Sprintf(ofNamespace, "on")}},
		"namespace none":                {ns: none, want: intent.NotLabelled},
		"the pod's does not matter":     {pod: mode("Ambient"), ns: ambient, want: intent.Selected},
		"the namespace's does not":      {pod: ambient, ns: mode("Ambient"), want: intent.Selected},
		"the pod opts out all the same": {pod: none, ns: mode("Ambient"), want: intent.OptedOut},
	} {
		got := policy().Decide(intent.Pod{Labels: test.pod}, intent.Namespace{Labels: test.ns})
		if diff := cmp.Diff(test.warns, got.Warnings); diff != "" || got.Reason != test.want {
			t.Errorf("%s: reason %s, want %s; warnings (-want +got):\n%s", name, got.Reason, test.want, diff)
		}
	}
}

func TestOwnSelectors(t *testing.T) {
	parse := func(text string) labels.Selector {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	p := intent.Policy{Selectors: []intent.Selector{{Pod: parse("mesh in (yes,on)"), Namespace: parse("env=prod")}}}
	for _, test := range []struct {
		pod, ns set
		want    bool
	}{
		{set{"mesh": "on"}, set{"env": "prod"}, true},
		{set{"mesh": "on"}, set{"env": "dev"}, false},
		{set{"mesh": "no"}, set{"env": "prod"}, false},
		{ambient, ambient, false},
	} {
		if got := p.Decide(intent.Pod{Labels: test.pod}, intent.Namespace{Labels: test.ns}); got.Capture != test.want {
			t.Errorf("pod %v in namespace %v: %+v, want capture %v", test.pod, test.ns, got, test.want)
		}
	}
	if got := (intent.Policy{}).Decide(intent.Pod{Labels: ambient}, intent.Namespace{}); got.Capture {
		t.Errorf("without selectors: %+v", got)
	}
}

func TestAnnotationsThatChangeTheRules(t *testing.T) {
	for _, test := range []struct {
		name        string
		annotations set
		want        intent.Redirect
		warnings    []string // what each warning must contain
	}{
		{name: "none", want: intent.Redirect{CaptureDNS: true}},
		{name: "dns off", annotations: set{intent.AnnotationDNS: "false"}},
		{name: "dns, not a bool", annotations: set{intent.AnnotationDNS: "off"}, want: intent.Redirect{CaptureDNS: true}, warnings: []string{intent.AnnotationDNS}},
		{name: "ingress", annotations: set{intent.AnnotationIngress: "true"}, want: intent.Redirect{CaptureDNS: true, Ingress: true}},
		{name: "ingress, empty", annotations: set{intent.AnnotationIngress: ""}, want: intent.Redirect{CaptureDNS: true}, warnings: []string{intent.AnnotationIngress}},
		{
			name:        "interfaces, with blanks, twice, in order",
			annotations: set{intent.AnnotationVirtual: " tap1, tap0,,tap1"},
			want:        intent.Redirect{CaptureDNS: true, VirtualInterfaces: []string{"tap1", "tap0"}},
		},
		{
			name:        "one bad interface of two",
			annotations: set{intent.AnnotationVirtual: `tap0,a/b`},
			want:        intent.Redirect{CaptureDNS: true, VirtualInterfaces: []string{"tap0"}},
			warnings:    []string{`"a/b"`},
		},
		{
			name:        "names that would change a rule's meaning",
			annotations: set{intent.AnnotationVirtual: `eth*,a"b,0123456789abcdef,..,a b`},
			want:        intent.Redirect{CaptureDNS: true},
			warnings:    []string{"eth*", `a\"b`, "0123456789abcdef", `".."`, "a b"},
		},
		{
			name:        "two bad bools, always in the same order",
			annotations: set{intent.AnnotationIngress: "2", intent.AnnotationDNS: "2"},
			want:        intent.Redirect{CaptureDNS: true},
			warnings:    []string{intent.AnnotationDNS, intent.AnnotationIngress},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := policy().Decide(intent.Pod{Labels: ambient, Annotations: test.annotations}, intent.Namespace{})
			if diff := cmp.Diff(test.want, got.Redirect); diff != "" {
				t.Errorf("redirect (-want +got):\n%s", diff)
			}
			if len(got.Warnings) != len(test.warnings) {
				t.Fatalf("warnings %q, want %d", got.Warnings, len(test.warnings))
			}
			for i, want := range test.warnings {
				if !strings.Contains(got.Warnings[i], want) {
					t.Errorf("warning %q does not name %s", got.Warnings[i], want)
				}
			}
		})
	}
}

// names is n interface names in a list.
func names(format string, n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return strings.Join(all, ",")
}

// An author of pods can write a quarter of a megabyte into an annotation. What
// comes of it is a ruleset that can be built, and few and short warnings.
func TestHugeAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		annotations set
		interfaces  int
		warnings    []string // what each warning must contain
	}{
		"as many good names as may be": {
			annotations: set{intent.AnnotationVirtual: names("if%d", 64)}, interfaces: 64,
		},
		"one name too many": {
			annotations: set{intent.AnnotationVirtual: names("if%d", 65)}, interfaces: 64,
			warnings: []string{`more than 64 interfaces; "if64" and what follows it are ignored`},
		},
		"the last name again is not too many": {
			annotations: set{intent.AnnotationVirtual: names("if%d", 64) + ",if63,if0"}, interfaces: 64,
		},
		"20000 good names": {
			annotations: set{intent.AnnotationVirtual: names("if%d", 20000)}, interfaces: 64,
			warnings: []string{`"if64"`},
		},
		"700 bad names, and a good one behind them": {
			annotations: set{intent.AnnotationVirtual: names("bad/%d", 700) + ",tap0"}, interfaces: 1,
			warnings: []string{"bad/0", "bad/1", "bad/2", "bad/3", "bad/4", "… 695 more"},
		},
		"both": {
			annotations: set{intent.AnnotationVirtual: names("bad/%d", 6) + "," + names("if%d", 70)}, interfaces: 64,
			warnings: []string{"bad/0", "bad/1", "bad/2", "bad/3", "bad/4", `"if64"`, "… 1 more"},
		},
		"one endless name": {
			annotations: set{intent.AnnotationVirtual: strings.Repeat("a", 256<<10)},
			warnings:    []string{"longer than 15 characters"},
		},
		"one endless name that is no text": {
			annotations: set{intent.AnnotationVirtual: strings.Repeat("\xff", 256<<10)},
			warnings:    []string{"ignored"},
		},
		"a name of wide characters": {
			annotations: set{intent.AnnotationVirtual: strings.Repeat("€", 100)},
			warnings:    []string{"€…\" is longer than 15 characters"},
		},
		"endless bools": {
			annotations: set{intent.AnnotationDNS: strings.Repeat("\x00", 100<<10), intent.AnnotationIngress: strings.Repeat("a", 100<<10)},
			warnings:    []string{intent.AnnotationDNS, "aaa…\" is neither true nor false; ignored"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := policy().Decide(intent.Pod{Labels: ambient, Annotations: test.annotations}, intent.Namespace{})
			if len(got.VirtualInterfaces) != test.interfaces {
				t.Errorf("%d interfaces, want %d", len(got.VirtualInterfaces), test.interfaces)
			}
			if _, err := ruleset.Build(ruleset.Config{IPv4: true, Form: ruleset.FormFull, VirtualInterfaces: got.VirtualInterfaces}); err != nil {
				t.Errorf("no ruleset can be built of it: %v", err)
			}
			if len(got.Warnings) != len(test.warnings) {
				t.Fatalf("%d warnings, want %d: %.2000q", len(got.Warnings), len(test.warnings), got.Warnings)
			}
			for i, want := range test.warnings {
				if w := got.Warnings[i]; !strings.Contains(w, want) || len(w) > maxWarning {
					t.Errorf("warning %.500q, want at most %d bytes that hold %s", w, maxWarning, want)
				}
			}
		})
	}
}

// maxWarning and maxWarnings bound what annotations can put into a report.
const (
	maxWarning  = 400
	maxWarnings = 9
)

func TestExistingConnections(t *testing.T) {
	for _, test := range []struct {
		node     intent.Existing
		text     string
		want     intent.Existing
		warnings int
	}{
		{intent.ByCause, "", intent.ByCause, 0},
		{intent.ByCause, "reset", intent.Reset, 0},
		{intent.Reset, "", intent.Reset, 0},
		{intent.Reset, "keep", intent.Keep, 0},
		{intent.Keep, "Reset", intent.Keep, 1},
	} {
		p := policy()
		p.Existing = test.node
		d := p.Decide(intent.Pod{Labels: ambient}, intent.Namespace{Annotations: set{intent.AnnotationExisting: test.text}})
		if d.Existing != test.want || len(d.Warnings) != test.warnings {
			t.Errorf("node %q, namespace %q: %q, warnings %q; want %q", test.node, test.text, d.Existing, d.Warnings, test.want)
		}
	}
}

func TestRuntimeUID(t *testing.T) {
	for want, pod := range map[string]intent.Pod{
		"":     {},
		"a":    {UID: "a"},
		"hash": {UID: "mirror", Annotations: set{intent.AnnotationConfigHash: "hash"}},
	} {
		if got := pod.RuntimeUID(); got != want || !pod.Is(got) && want != "" {
			t.Errorf("%+v is %q to the runtime, want %q", pod, got, want)
		}
	}
}

func TestWhoseUID(t *testing.T) {
	for _, test := range []struct {
		name string
		pod  intent.Pod
		uid  string
		want bool
	}{
		{"the same", intent.Pod{UID: "a"}, "a", true},
		{"an older pod of the same name", intent.Pod{UID: "a"}, "b", false},
		{"an object without a UID takes the ADD's", intent.Pod{}, "b", true},
		{"static pod", intent.Pod{UID: "mirror", Annotations: set{intent.AnnotationConfigHash: "hash"}}, "hash", true},
		{"static pod, by its mirror", intent.Pod{UID: "mirror", Annotations: set{intent.AnnotationConfigHash: "hash"}}, "mirror", true},
		{"no UID on either side of an annotation", intent.Pod{UID: "a"}, "", false},
	} {
		if got := test.pod.Is(test.uid); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// Whatever stands in the annotations, a decision is made, and an interface name
// that gets through cannot change a rule's meaning.
func FuzzAnnotations(f *testing.F) {
	f.Add("true", "false", "tap0,tap1")
	f.Add("", "maybe", `a"; drop; #,\`)
	f.Add(strings.Repeat("\x01", 99), "", names("a/%d", 99)+","+names("if%d", 99))
	f.Add("TRUE", "0", strings.Repeat("x", 300)+",\x00,\n,eth0 ")
	f.Fuzz(func(t *testing.T, ingress, dns, interfaces string) {
		d := policy().Decide(intent.Pod{Labels: ambient, Annotations: set{
			intent.AnnotationIngress: ingress, intent.AnnotationDNS: dns, intent.AnnotationVirtual: interfaces,
		}}, intent.Namespace{})
		if !d.Capture {
			t.Fatalf("an annotation switched capture off: %+v", d)
		}
		if len(d.VirtualInterfaces) > 64 || len(d.Warnings) > maxWarnings {
			t.Errorf("%d interfaces and %d warnings got through", len(d.VirtualInterfaces), len(d.Warnings))
		}
		for _, warning := range d.Warnings {
			if len(warning) > maxWarning {
				t.Errorf("a warning of %d bytes: %s", len(warning), warning)
			}
		}
		for _, name := range d.VirtualInterfaces {
			if len(name) == 0 || len(name) > 15 || strings.ContainsFunc(name, func(r rune) bool {
				return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`"/\*`, r)
			}) {
				t.Errorf("interface name %q got through", name)
			}
		}
	})
}

// A drained node changes what is done, and forgets nothing of what was decided.
func TestOn(t *testing.T) {
	captured := intent.Decision{Capture: true, Reason: intent.Selected, Message: "enablement selector 1 matches", Redirect: intent.Redirect{CaptureDNS: true}, Existing: intent.Keep}
	drained := captured.On(true)
	if drained.Capture || drained.Reason != intent.NodeDrained || !drained.Asked() || !drained.CaptureDNS {
		t.Errorf("on a drained node: %+v", drained)
	}
	for name, d := range map[string]intent.Decision{"captured": captured, "drained": drained} {
		if diff := cmp.Diff(captured, d.On(false)); diff != "" {
			t.Errorf("%s, on another (-want +got):\n%s", name, diff)
		}
	}
	other := intent.Decision{Reason: intent.NotLabelled}
	if diff := cmp.Diff(other, other.On(true)); diff != "" || other.Asked() {
		t.Errorf("of a pod that does not ask (-want +got):\n%s", diff)
	}
}
