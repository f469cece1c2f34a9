package architecture

import (
	"os"
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

// Each package's documentation ends with what the package survives. Commands say in
// theirs how they are used.
func TestPackagesSayWhatTheySurvive(t *testing.T) {
	docs, err := packageDocs()
	if err != nil {
		t.Fatal(err)
	}
	for dir, doc := range docs {
		if !survives(doc) {
			t.Errorf("%s: the package comment does not end with a list below the heading %q", dir, survivesHeading)
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
		"CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "README.md", "SECURITY.md", "go.mod", "go.sum",
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
	err := walk(func(file string) error {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		if host := hosts.Find(content); host != nil {
			t.Errorf("%s names the host %s", file, host)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
