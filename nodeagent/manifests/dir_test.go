package manifests_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/manifests"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// directory is a running Dir over a directory that the test writes.
type directory struct {
	t       *testing.T
	path    string
	dir     *manifests.Dir
	log     netlab.Log
	changed chan struct{}
}

// start runs a Dir over an empty directory.
func start(t *testing.T, poll time.Duration) *directory {
	t.Helper()
	d := prepare(t, poll)
	d.run()
	return d
}

func prepare(t *testing.T, poll time.Duration) *directory {
	t.Helper()
	d := &directory{t: t, path: t.TempDir(), changed: make(chan struct{}, 100)}
	var err error
	d.dir, err = manifests.New(manifests.Config{
		Path: d.path, Poll: poll, Changed: func() { d.changed <- struct{}{} },
		Logger: slog.New(slog.NewTextHandler(&d.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs the Dir until the end of the test.
func (d *directory) run() {
	d.t.Helper()
	done := make(chan error)
	go func() { done <- d.dir.Run(d.t.Context()) }()
	d.t.Cleanup(func() {
		if err := <-done; err != nil {
			d.t.Error(err)
		}
	})
	d.until("synced", d.dir.Synced)
}

// write replaces a file by a rename.
func (d *directory) write(name, text string) {
	d.t.Helper()
	temporary := filepath.Join(d.path, "."+name)
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(d.path, name)); err != nil {
		d.t.Fatal(err)
	}
}

// until waits for a state; each change, and at the latest a second, is a look.
func (d *directory) until(what string, ok func() bool) {
	d.t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-d.changed:
		case <-time.After(time.Second):
		case <-deadline:
			d.t.Fatalf("never %s; pods %+v, problems %q", what, d.dir.Pods(), d.dir.Problems())
		}
	}
}

func (d *directory) names() string {
	var names []string
	for _, p := range d.dir.Pods() {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return strings.Join(names, " ")
}

func (d *directory) problem(contains string) func() bool {
	return func() bool { return strings.Contains(strings.Join(d.dir.Problems(), "\n"), contains) }
}

func pod(name, labels string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop, labels: {" + labels + "}}\nspec: {containers: []}\n"
}

func TestFollowsTheDirectory(t *testing.T) {
	d := start(t, time.Hour) // notifications alone
	d.write("a.yaml", pod("web", "")+"---\n# nothing here\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {mesh: \"on\"}}\n")
	d.until("web is there", func() bool { return d.names() == "shop/web" })
	_, ns, ok := d.dir.Lookup("shop", "web")
	if !ok || ns.Labels["mesh"] != "on" {
		t.Errorf("namespace %+v, found %v", ns, ok)
	}

	d.write("a.yaml", pod("web", "app: web"))
	d.until("the label is there", func() bool { p, _, _ := d.dir.Lookup("shop", "web"); return p.Labels["app"] == "web" })

	if err := os.Rename(filepath.Join(d.path, "a.yaml"), filepath.Join(d.path, "b.json.off")); err != nil {
		t.Fatal(err)
	}
	d.until("nothing is there", func() bool { return d.names() == "" })
	if _, _, ok := d.dir.Lookup("shop", "web"); ok {
		t.Error("a pod without a manifest is found")
	}
}

func TestPollsWhenNothingIsNotified(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	target := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(target, []byte(pod("one", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(d.path, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	d.until("one is there", func() bool { return d.names() == "shop/one" })
	// A write behind the link is not notified for the directory.
	if err := os.WriteFile(target, []byte(pod("two", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	d.until("two is there", func() bool { return d.names() == "shop/two" })
}

func TestBrokenFileKeepsItsLastGoodVersion(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	d.write("a.yaml", pod("web", "app: one"))
	d.until("web is there", func() bool { return d.names() == "shop/web" })
	d.write("a.yaml", pod("web", "app: [")+pod("other", ""))
	d.until("the problem shows", d.problem("a.yaml: document 1: not YAML"))
	if !d.problem("last good version stays in force")() {
		t.Errorf("problems %q do not say what is in force", d.dir.Problems())
	}
	if p, _, ok := d.dir.Lookup("shop", "web"); !ok || p.Labels["app"] != "one" {
		t.Errorf("the last good version is gone: %+v", p)
	}
	d.write("a.yaml", "\n")
	d.until("an empty file is a problem too", d.problem("a.yaml: the file is empty"))
	if d.names() != "shop/web" {
		t.Errorf("pods are forgotten: %q", d.names())
	}
	d.write("a.yaml", pod("web", "app: two"))
	d.until("mended", func() bool { return len(d.dir.Problems()) == 0 })
	d.until("the log tells of it", func() bool {
		return strings.Contains(d.log.String(), `msg="a problem of the manifests is over" problem="a.yaml: the file is empty`)
	})
	if p, _, _ := d.dir.Lookup("shop", "web"); p.Labels["app"] != "two" {
		t.Errorf("after the repair: %+v", p)
	}
}

func TestDirectoryGone(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	d.write("a.yaml", pod("web", ""))
	d.until("web is there", func() bool { return d.names() == "shop/web" })
	moved := d.path + ".away"
	if err := os.Rename(d.path, moved); err != nil {
		t.Fatal(err)
	}
	d.until("the problem shows", d.problem("stays in force"))
	if d.names() != "shop/web" {
		t.Errorf("pods are forgotten: %q", d.names())
	}
	if err := os.Rename(moved, d.path); err != nil {
		t.Fatal(err)
	}
	d.until("mended", func() bool { return len(d.dir.Problems()) == 0 })
}

func TestOnePodInTwoFiles(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	namespace := "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
	d.write("a.yaml", pod("web", "from: a")+namespace)
	d.write("b.yaml", pod("web", "from: b")+namespace)
	d.until("the pod is refused", d.problem("b.yaml: pod shop/web is in a.yaml already; that one is used"))
	d.until("the namespace is refused", d.problem("b.yaml: namespace shop is in a.yaml already; that one is used"))
	if p, _, _ := d.dir.Lookup("shop", "web"); p.Labels["from"] != "a" {
		t.Errorf("used: %+v", p)
	}
}

func TestOnePodTwiceInOneFile(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	d.write("a.yaml", pod("web", "from: first")+"---\n"+pod("web", "from: second")+"---\n"+namespace("shop", "")+"---\n"+namespace("shop", ""))
	d.until("it is there", func() bool { return d.names() == "shop/web" })
	want := []string{"a.yaml: pod shop/web is in this file twice; the first is used", "a.yaml: namespace shop is in this file twice; the first is used"}
	if diff := cmp.Diff(want, d.dir.Problems()); diff != "" {
		t.Error(diff)
	}
	if p, _, _ := d.dir.Lookup("shop", "web"); p.Labels["from"] != "first" {
		t.Errorf("used: %+v", p)
	}
}

func TestRefusedDocuments(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"label spelt wrong":   {"apiVersion: v1\nkind: Pod\nmetadata: {name: a, lables: {}}\n", `x.yml: document 1: not a Pod: unknown field "metadata.lables" (did you mean "labels"?)`},
		"field in other case": {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodename: x}\n", `document 1: not a Pod: unknown field "spec.nodename" (did you mean "nodeName"?)`},
		"two labels of another type": {
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {a: on, b: 1}}\n",
			`not a Namespace: metadata.labels[a]: true is not a string: put it in quotes; metadata.labels[b]: 1 is not a string: put it in quotes`,
		},
		"metadata in other case": {"apiVersion: v1\nkind: Pod\nMetadata: {name: a}\n", `unknown field "Metadata"`},
		"another kind":           {"apiVersion: apps/v1\nkind: Deployment\n", `"Deployment"`},
		"no name":                {"apiVersion: v1\nkind: Pod\n", "metadata.name"},
		"namespace no name":      {"apiVersion: v1\nkind: Namespace\n", "metadata.name"},
		"namespace field":        {"apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\nspce: {}\n", `unknown field "spce" (did you mean "spec"?)`},
		"bad IP":                 {pod("a", "") + "status: {podIPs: [{ip: 10.0.0.256}]}\n", `status.podIPs: "10.0.0.256" is not an IP address`},
		"second document":        {pod("a", "") + "---\nkind: Pod\n", "document 2"},
		"not an object":          {"[]", "document 1: not a mapping of fields"},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, 5*time.Millisecond)
			d.write("x.yml", test.text)
			d.until("refused", d.problem("x.yml: "))
			if !d.problem(test.want)() {
				t.Errorf("problems %q do not say %q", d.dir.Problems(), test.want)
			}
			if d.names() != "" {
				t.Errorf("a part of a refused file is used: %q", d.names())
			}
		})
	}
}

func TestWhatIsReadOfAPod(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	d.write("full.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","uid":"u1","annotations":{"a":"b"}},
		"spec":{"hostNetwork":true,"serviceAccountName":"sa","containers":[]},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.5"},{"ip":"fd00::5"}]}}`)
	d.until("web is there", func() bool { return d.names() == "default/web" })
	got, _, _ := d.dir.Lookup("default", "web")
	ips := []string{got.IPs[0].String(), got.IPs[1].String()}
	if diff := cmp.Diff([]string{"10.0.0.5", "fd00::5"}, ips); diff != "" {
		t.Error(diff)
	}
	if got.UID != "u1" || got.ServiceAccount != "sa" || !got.HostNetwork || got.Phase != "Running" || got.Annotations["a"] != "b" {
		t.Errorf("got %+v", got)
	}
	d.write("min.yaml", pod("min", ""))
	d.until("min is there", func() bool { _, _, ok := d.dir.Lookup("shop", "min"); return ok })
	if p, _, _ := d.dir.Lookup("shop", "min"); p.ServiceAccount != "default" || p.UID != "" {
		t.Errorf("got %+v", p)
	}
}

func TestNewRefuses(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	for name, c := range map[string]manifests.Config{
		"relative":      {Path: "pods", Poll: time.Second, Changed: func() {}, Logger: logger},
		"missing":       {Path: "/nowhere", Poll: time.Second, Changed: func() {}, Logger: logger},
		"not directory": {Path: plain, Poll: time.Second, Changed: func() {}, Logger: logger},
		"no poll":       {Path: t.TempDir(), Changed: func() {}, Logger: logger},
	} {
		if _, err := manifests.New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
