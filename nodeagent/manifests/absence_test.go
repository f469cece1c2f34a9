package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func namespace(name, labels string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + ", labels: {" + labels + "}}\n"
}

// knows reports whether a pod is known, in a namespace with this label.
func (d *directory) knows(namespace, name, mesh string) func() bool {
	return func() bool {
		_, ns, ok := d.dir.Lookup(namespace, name)
		return ok && ns.Name == namespace && ns.Labels["mesh"] == mesh
	}
}

func (d *directory) remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.path, name)); err != nil {
		d.t.Fatal(err)
	}
}

func TestNamespaceThatNeverHadAManifestHasNoLabels(t *testing.T) {
	d := start(t, time.Hour)
	d.write("web.yaml", pod("web", ""))
	d.until("web is known", d.knows("shop", "web", ""))
}

// Only a manifest without the label takes it away: neither the file's removal, nor
// its being written again without the namespace, nor the directory's loss.
func TestNamespaceThatVanishesKeepsItsLabels(t *testing.T) {
	const gone = "namespace shop has no manifest any more; its last labels stay in force; write one without the label to release its pods"
	for name, vanish := range map[string]func(d *directory){
		"removed":    func(d *directory) { d.remove("ns.yaml") },
		"renamed":    func(d *directory) { d.write("ns.yaml", namespace("shoq", "mesh: 'on'")) },
		"turned off": func(d *directory) { d.write("ns.yaml", "# "+namespace("shop", "")[:10]) },
		"other directory": func(d *directory) {
			if err := os.Rename(d.path, d.path+".away"); err != nil {
				d.t.Fatal(err)
			}
			if err := os.Mkdir(d.path, 0o700); err != nil {
				d.t.Fatal(err)
			}
			d.write("web.yaml", pod("web", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, 5*time.Millisecond)
			d.write("ns.yaml", namespace("shop", "mesh: 'on'"))
			d.write("web.yaml", pod("web", ""))
			d.until("web is in the mesh", d.knows("shop", "web", "on"))

			vanish(d)
			d.until("the loss shows", d.problem(gone))
			if !d.knows("shop", "web", "on")() {
				t.Error("the namespace's labels are gone")
			}

			d.write("new.yaml", namespace("shop", "mesh: 'off'"))
			d.until("the new label is in force", d.knows("shop", "web", "off"))
			if d.problem(gone)() {
				t.Errorf("problems %q: it has a manifest again", d.dir.Problems())
			}
		})
	}
}

func TestNamespaceThatGoesWithItsPodsIsNoProblem(t *testing.T) {
	d := start(t, time.Hour)
	d.write("ns.yaml", namespace("shop", "mesh: 'on'"))
	d.write("web.yaml", pod("web", ""))
	d.until("web is in the mesh", d.knows("shop", "web", "on"))
	d.remove("ns.yaml")
	d.until("the loss shows", d.problem("namespace shop"))
	d.remove("web.yaml")
	d.until("no problem is left", func() bool { return len(d.dir.Problems()) == 0 })
	d.write("web.yaml", pod("web", "app: web"))
	d.until("the last labels are still in force", d.knows("shop", "web", "on"))
}

// What the file that was never good holds is not known, so neither are the pods
// whose namespace may be in it; all others are.
func TestFileThatWasNeverGood(t *testing.T) {
	for name, test := range map[string]struct {
		file func(path string) error
		want string
	}{
		"typing error": {func(path string) error {
			return os.WriteFile(path, []byte(strings.Replace(namespace("shop", ""), "labels", "lables", 1)), 0o600)
		}, "lables"},
		"empty":      {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "the file is empty"},
		"pipe":       {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"no end":     {func(path string) error { return os.Symlink("/dev/zero", path) }, "not a regular file"},
		"dead link":  {func(path string) error { return os.Symlink("nowhere", path) }, "no such file"},
		"own link":   {func(path string) error { return os.Symlink(filepath.Base(path), path) }, "symbolic links"},
		"directory":  {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		"large":      {func(path string) error { return os.WriteFile(path, spaces(1<<20+1), 0o600) }, "larger than 1 MiB"},
		"large link": {func(path string) error { return os.Symlink("/proc/kallsyms", path) }, "larger than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			d := prepare(t, 5*time.Millisecond)
			d.write("others.yaml", pod("web", "")+"---\n"+
				strings.Replace(pod("db", ""), "shop", "back", 1)+"---\n"+namespace("back", "mesh: 'on'"))
			if err := test.file(filepath.Join(d.path, "ns.yaml")); err != nil {
				t.Fatal(err)
			}
			d.run()
			d.until("the file is named", d.problem("ns.yaml: "))
			if !d.problem(test.want)() || !d.problem("mend or remove it")() {
				t.Errorf("problems %q do not say %q and what to do", d.dir.Problems(), test.want)
			}
			if _, _, ok := d.dir.Lookup("shop", "web"); ok {
				t.Error("a pod is known whose namespace may be in the broken file")
			}
			if reason, why := d.dir.Unread("shop", "web"); reason != status.ManifestBroken || why != "what the pod's namespace asks for is not known while ns.yaml cannot be read" {
				t.Errorf("not read: %s, %s", reason, why)
			}
			if !d.knows("back", "db", "on")() {
				t.Error("a pod is not known whose namespace has a manifest")
			}

			d.remove("ns.yaml")
			d.write("ns.yaml", namespace("shop", "mesh: 'on'"))
			d.until("web is in the mesh", d.knows("shop", "web", "on"))
			if reason, why := d.dir.Unread("shop", "web"); len(d.dir.Problems()) != 0 || reason != "" {
				t.Errorf("problems %q after the repair, not read: %s", d.dir.Problems(), why)
			}
		})
	}
}

// A file with a good version says what that says, whatever stands there now; and
// what a new broken file may say does not change what was known.
func TestBrokenFileDoesNotHideWhatIsKnown(t *testing.T) {
	d := start(t, 5*time.Millisecond)
	d.write("pods.yaml", pod("web", ""))
	d.write("ns.yaml", namespace("shop", "mesh: 'on'"))
	d.until("web is in the mesh", d.knows("shop", "web", "on"))
	d.write("ns.yaml", "{")
	d.until("the problem shows", d.problem("ns.yaml: "))
	if !d.knows("shop", "web", "on")() {
		t.Error("its last good version is not in force")
	}
	d.remove("ns.yaml")
	d.write("other.yaml", "{")
	d.until("the problem shows", d.problem("other.yaml: "))
	if !d.knows("shop", "web", "on")() {
		t.Error("the namespace's last labels are not in force")
	}
}

// The same bytes that were good are good again after nobody could read them.
func TestFileThatCanBeReadAgain(t *testing.T) {
	d := start(t, time.Hour)
	d.write("web.yaml", pod("web", ""))
	d.until("web is known", d.knows("shop", "web", ""))
	file, aside := filepath.Join(d.path, "web.yaml"), filepath.Join(d.path, "aside")
	if err := os.Symlink("web.yaml", aside); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, file); err != nil {
		t.Fatal(err)
	}
	d.until("the problem shows", d.problem("web.yaml: cannot read it"))
	if !d.knows("shop", "web", "")() || !d.problem("last good version stays in force")() {
		t.Errorf("its last good version is not in force: %q", d.dir.Problems())
	}
	d.write("web.yaml", pod("web", ""))
	d.until("no problem is left", func() bool { return len(d.dir.Problems()) == 0 })
}

func spaces(n int) []byte { return []byte(strings.Repeat(" ", n)) }
