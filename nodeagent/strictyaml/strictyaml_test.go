package strictyaml_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/strictyaml"
)

type part struct {
	Wait  metav1.Duration `json:"wait"`
	Count int             `json:"count"`
}

type sample struct {
	metav1.TypeMeta `json:",inline"`

	Name   string            `json:"name"`
	On     bool              `json:"enabled"`
	Level  slog.Level        `json:"level"`
	Addr   netip.Addr        `json:"addr"`
	Part   part              `json:"part"`
	Other  *part             `json:"other"`
	Labels map[string]string `json:"labels"`
	Names  []string          `json:"names"`
	Parts  []part            `json:"parts"`
	Hidden string            `json:"-"`
}

func decode(t *testing.T, text string, into any) string {
	t.Helper()
	d, err := strictyaml.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return fmt.Sprint(errors.Join(d.Decode(into)...))
}

func TestValues(t *testing.T) {
	got := sample{Name: "kept", Hidden: "kept", Names: []string{"a", "b", "c"}, Part: part{Count: 1}, Labels: map[string]string{"old": "1"}}
	if errs := decode(t, `
kind: Sample
enabled: true
level: warn
addr: fd00::1
part: {wait: 1m30s}
other: {count: 3}
labels: {a: "1"}
names: [d]
parts: [{count: 1}, {wait: 2s}]
name: # left out
`, &got); errs != "<nil>" {
		t.Fatal(errs)
	}
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	want := sample{
		TypeMeta: metav1.TypeMeta{Kind: "Sample"}, Name: "kept", Hidden: "kept", On: true, Level: slog.LevelWarn,
		Addr: netip.MustParseAddr("fd00::1"), Part: part{Wait: seconds(90), Count: 1}, Other: &part{Count: 3},
		Labels: map[string]string{"a": "1"}, Names: []string{"d"}, Parts: []part{{Count: 1}, {Wait: seconds(2)}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProblems(t *testing.T) {
	for text, want := range map[string]string{
		`level: verbose`:                      `level: "verbose" is not debug, info, warn or error`,
		`addr: 10.0.0`:                        `addr: "10.0.0" is not an IP address`,
		`part: {wait: 5 minutes}`:             `part.wait: "5 minutes" is not a duration such as 10s or 1m30s`,
		`part: {wait: 10}`:                    `part.wait: 10 is not a duration such as 10s or 1m30s`,
		`part: {count: 99999999999999999999}`: `part.count: 100000000000000000000 is not a number that fits here`,
		`enabled: 3`:                          `enabled: 3 is not true or false`,
		`name: 3`:                             `name: 3 is not a string: put it in quotes`,
		`name: [a]`:                           `name: ["a"] is not a string`,
		`labels: {a/b: on}`:                   `labels[a/b]: true is not a string: put it in quotes`,
		`labels: {a: }`:                       `labels[a]: null is not a string: put it in quotes`,
		`labels: []`:                          `labels: [] is not a mapping`,
		`names: a`:                            `names: "a" is not a list`,
		`names: [a, ]`:                        `<nil>`,
		`names: [a, null]`:                    `names[1]: null is not a string: put it in quotes`,
		`parts: [{}, 3]`:                      `parts[1]: 3 is not a mapping`,
		`part: [1]`:                           `part: [1] is not a mapping`,
		`part: {cuont: 1}`:                    `unknown field "part.cuont" (did you mean "count"?)`,
		`other: {Wait: 1s}`:                   `unknown field "other.Wait" (did you mean "wait"?)`,
		`part: {speed: 1}`:                    `unknown field "part.speed" (known here: count, wait)`,
		`NAME: a`:                             `unknown field "NAME" (did you mean "name"?)`,
		`"-": a`:                              `unknown field "-" (known here: addr, apiVersion, enabled, kind, labels, level, name, names, other, part, parts)`,
		"name: a\nenabled: true\nname: b":     `line 3: the field "name" stands here for the second time`,
		"part:\n  count: 1\n  count: 2":       `line 3: the field "count" stands here for the second time`,
		`name: {"` + strings.Repeat("x", 100) + `": 1}`: `name: {"` + strings.Repeat("x", 58) + `… is not a string`,
	} {
		if got := decode(t, text, &sample{}); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	got := decode(t, "name: a\nnaem: b\nname: c\nenabled: maybe\npart: {wait: x, count: z}\n", &sample{})
	want := `line 3: the field "name" stands here for the second time
enabled: "maybe" is not true or false
unknown field "naem" (did you mean "name"?)
part.count: "z" is not a number that fits here
part.wait: "x" is not a duration such as 10s or 1m30s`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestProblemsWithoutEnd(t *testing.T) {
	d, err := strictyaml.Parse([]byte("names: [" + strings.Repeat("1, ", 100_000) + "]"))
	if err != nil {
		t.Fatal(err)
	}
	errs := d.Decode(&sample{})
	if len(errs) != strictyaml.MaxProblems+1 || errs[strictyaml.MaxProblems].Error() != "and 99980 more" {
		t.Errorf("%d problems, the last: %v", len(errs), errs[len(errs)-1])
	}
}

func TestNoDocument(t *testing.T) {
	for text, want := range map[string]string{
		"\t{":           "not YAML: found character that cannot start any token",
		"a: b: c":       "not YAML: mapping values are not allowed in this context",
		"- a":           `not a mapping of fields: ["a"]`,
		"hello":         `not a mapping of fields: "hello"`,
		"a: 1\na: b: c": "not YAML: line 2: mapping values are not allowed in this context",
	} {
		if _, err := strictyaml.Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestHeads(t *testing.T) {
	d, err := strictyaml.Parse([]byte("kind: Pod\nversion: 1\nApiVersion: v1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d.Empty() || d.Text("kind") != "Pod" || d.Text("version") != "" || d.Text("apiVersion") != "" {
		t.Errorf("%q %q %q", d.Text("kind"), d.Text("version"), d.Text("apiVersion"))
	}
	d, err = strictyaml.Parse([]byte("# nothing\n"))
	if err != nil || !d.Empty() || d.Text("kind") != "" {
		t.Errorf("a comment: %v", err)
	}
	if errs := d.Decode(&sample{}); errs != nil {
		t.Error(errs)
	}
}

// A Pod as the API shows it has types that read themselves, inline structs, maps of
// named types and pointers.
func TestAPod(t *testing.T) {
	const text = `
apiVersion: v1
kind: Pod
metadata:
  name: a
  creationTimestamp: "2026-01-02T03:04:05Z"
  managedFields: [{manager: m, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {}}}]
spec:
  hostUsers: false
  containers:
  - name: c
    ports: [{containerPort: 80, protocol: TCP}]
    resources: {limits: {memory: 1Gi, cpu: 2}}
    livenessProbe: {httpGet: {port: http}, periodSeconds: 3}
  volumes: [{name: v, configMap: {name: m}}]
status: {podIPs: [{ip: 10.0.0.1}], startTime: null}
`
	var pod corev1.Pod
	if errs := decode(t, text, &pod); errs != "<nil>" {
		t.Fatal(errs)
	}
	c := pod.Spec.Containers[0]
	if *pod.Spec.HostUsers || c.Ports[0].ContainerPort != 80 || c.Resources.Limits.Memory().String() != "1Gi" ||
		c.LivenessProbe.HTTPGet.Port.StrVal != "http" || pod.Spec.Volumes[0].ConfigMap.Name != "m" || pod.CreationTimestamp.Year() != 2026 {
		t.Errorf("got %+v", pod)
	}
	const wrong = `
metadata: {name: a, lables: {a: b}}
spec: {containers: [{name: c, ports: [{containerPort: "80"}]}], nonsense: 1}
status: {startTime: yesterday}
`
	want := `unknown field "metadata.lables" (did you mean "labels"?)
spec.containers[0].ports[0].containerPort: "80" is not a number that fits here
unknown field "spec.nonsense"
status.startTime: "yesterday" is not a time such as 2026-01-02T15:04:05Z`
	if got := decode(t, wrong, &pod); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Whatever the text is, it is refused, or problems are named, or it is read.
func FuzzDecode(f *testing.F) {
	f.Add("name: a\npart: {count: 1}\nlabels: {a: b}\n")
	f.Add("spec: {containers: [{name: c}]}\nmetadata: {labels: {a: null}}\n")
	f.Add("a: &a [1]\nb: [*a, *a]\n? [x]\n: 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := strictyaml.Parse([]byte(text))
		if err != nil {
			return
		}
		for _, errs := range [][]error{d.Decode(&sample{}), d.Decode(&corev1.Pod{})} {
			if len(errs) > strictyaml.MaxProblems+1 {
				t.Errorf("%d problems", len(errs))
			}
			for _, err := range errs {
				if len(err.Error()) > 2000 {
					t.Errorf("a problem of %d bytes: %.100s", len(err.Error()), err)
				}
			}
		}
	})
}
