package architecture

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestBans(t *testing.T) {
	g, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bans {
		for _, line := range g.violations(b) {
			t.Error(line)
		}
	}
	for _, line := range g.vacuous(named(), later) {
		t.Error(line)
	}
}

// Package comments are what a reader meets first.
func TestPackageComments(t *testing.T) {
	g, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range g.own() {
		begin := "Package " + g[path].Name + " "
		if g[path].Name == "main" {
			begin = "Command " + filepath.Base(path) + " "
		}
		if !strings.HasPrefix(g[path].Doc, begin) {
			t.Errorf("%s: the package comment does not begin with %q: %q", short(path), begin, g[path].Doc)
		}
	}
}

func TestPlaces(t *testing.T) {
	err := walk(func(file string) error {
		if !strings.HasSuffix(file, ".go") || strings.Contains(file, "/testdata/") {
			return nil
		}
		lines, err := misplaced(file, nil)
		for _, line := range lines {
			t.Error(line)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A new folder or file at the top is a decision, not an accident. What begins with a
// dot is the tools' own.
func TestTopLevel(t *testing.T) {
	allowed := []string{
		"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "go.mod", "go.sum",
		"bin", "charts", "cni", "docs", "integration", "iptables", "nodeagent", "ztunnelproto",
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") && !slices.Contains(allowed, name) {
			t.Errorf("%s: not one of the things that stand at the top: %v", name, allowed)
		}
	}
}

// hosts are those a build gets things from by a machine's own settings.
var hosts = regexp.MustCompile(`(?i)\b((proxy|sum|index)\.golang\.org|goproxy\.(io|cn)|deb\.debian\.org|security\.debian\.org|` +
	`registry-1\.docker\.io|registry\.npmjs\.org|files\.pythonhosted\.org)\b`)

// Where modules and packages come from is the machine's to say: a file that names a
// proxy or a mirror works on one machine and fails on the next.
func TestNoRegistryIsNamed(t *testing.T) {
	mirrors := regexp.MustCompile(hosts.String() + goproxyHosts(t))
	err := walk(func(file string) error {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		if host := mirrors.Find(content); host != nil {
			t.Errorf("%s names the host %s", file, host)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// goproxyHosts returns, as alternatives of a regular expression, the hosts that this
// machine gets modules from. Addresses and bare names mean nothing elsewhere.
func goproxyHosts(t *testing.T) string {
	t.Helper()
	setting, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatalf("cannot ask go for its settings: %v", err)
	}
	var alternatives strings.Builder
	for _, match := range goproxyHost.FindAllSubmatch(setting, -1) {
		alternatives.WriteString("|" + regexp.QuoteMeta(string(match[1])))
	}
	return alternatives.String()
}

var goproxyHost = regexp.MustCompile(`://(?:[^@/,|\s]*@)?((?:[[:alnum:]-]+\.)+[[:alpha:]]{2,})\b`)
