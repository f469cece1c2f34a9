package architecture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// vacuous returns a line for each of this module's patterns that matches nothing and
// is not expected later, and for each that is expected and there already.
func (g graph) vacuous(patterns, later []string) []string {
	exists := func(pattern string) bool {
		return slices.ContainsFunc(g.own(), func(path string) bool { return matches(path, []string{pattern}) })
	}
	var lines []string
	for _, pattern := range patterns {
		if !exists(pattern) && !slices.Contains(later, pattern) {
			lines = append(lines, pattern+" is named by a ban and does not exist: correct the ban")
		}
	}
	for _, pattern := range later {
		switch {
		case exists(pattern):
			lines = append(lines, pattern+" exists now: take it off the list of those to come")
		case !slices.Contains(patterns, pattern):
			lines = append(lines, pattern+" is expected, but no ban names it: take it off the list")
		}
	}
	return lines
}

// named returns the patterns for this module's packages in all bans and places.
func named() []string {
	var all []string
	for _, b := range bans {
		all = slices.Concat(all, b.subjects, b.except, b.targets, b.allow)
	}
	for _, p := range places {
		all = append(all, p.homes...)
	}
	all = slices.DeleteFunc(all, func(pattern string) bool { return !strings.HasPrefix(pattern, "./") })
	slices.Sort(all)
	return slices.Compact(all)
}

// sample returns an import path that matches a pattern.
func sample(pattern string) string {
	if pattern == notStd {
		return "example.com/sample"
	}
	if rest, ok := strings.CutPrefix(pattern, "./"); ok {
		pattern = module + "/" + rest
	}
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return prefix + "/sample"
	}
	return pattern
}

// makeGraph returns a graph of one way: each package imports the next. What is not
// of a domain is taken for standard.
func makeGraph(way ...string) graph {
	g := graph{}
	for i, path := range way {
		first, _, _ := strings.Cut(path, "/")
		n := node{ImportPath: path, Standard: !strings.Contains(first, ".")}
		if i+1 < len(way) {
			n.Imports = []string{way[i+1]}
		}
		g[path] = n
	}
	return g
}

// Each ban, broken on purpose: every subject with every target, as directly and as
// indirectly as the ban says.
func TestEachBanCanFail(t *testing.T) {
	const stranger, neighbour = "example.com/middle", module + "/middle"
	for _, b := range bans {
		for _, s := range b.subjects {
			for _, target := range b.targets {
				subject, banned := sample(s), sample(target)
				expect := func(broken bool, way ...string) {
					t.Helper()
					g := makeGraph(way...)
					lines := g.violations(ban{
						subjects: []string{s}, except: b.except, targets: b.targets, allow: b.allow, how: b.how, reason: b.reason,
					})
					lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, short(subject)+" ") })
					if (len(lines) == 1) != broken {
						t.Errorf("%s: violations %q, want one: %v", short(strings.Join(way, " → ")), lines, broken)
					}
				}
				expect(true, subject, banned)
				expect(b.how != state, subject, neighbour, banned)
				expect(b.how == reach, subject, stranger, banned)
				for _, allowed := range b.allow {
					expect(false, subject, sample(allowed))
				}
			}
		}
		for _, free := range b.except {
			if lines := makeGraph(sample(free), sample(b.targets[0])).violations(b); lines != nil {
				t.Errorf("%s is exempt: %q", free, lines)
			}
		}
	}
}

func TestTestImportsCountWhereTheBanSaysSo(t *testing.T) {
	g := graph{
		module + "/a":   {XTestImports: []string{module + "/lab"}, TestImports: []string{"fmt"}},
		module + "/lab": {Imports: []string{module + "/banned"}},
		"fmt":           {Standard: true},
	}
	b := ban{subjects: []string{"./a"}, targets: []string{"./banned"}, reason: "of this"}
	if lines := g.violations(b); lines != nil {
		t.Errorf("without tests: %q", lines)
	}
	b.tests = true
	want := "a must not import banned: of this\n\tthe way: a → lab → banned"
	if lines := g.violations(b); !slices.Equal(lines, []string{want}) {
		t.Errorf("with tests: %q, want %q", lines, want)
	}
}

func TestTheShortestWayIsShown(t *testing.T) {
	g := graph{
		module + "/a": {Imports: []string{module + "/b", module + "/c"}},
		module + "/b": {Imports: []string{"x.org/d"}},
		module + "/c": {Imports: []string{module + "/b", "x.org/banned"}},
		"x.org/d":     {Imports: []string{"x.org/banned", module + "/a"}},
	}
	lines := g.violations(ban{subjects: []string{"./a"}, targets: []string{"x.org/banned"}, reason: "of this"})
	want := "a must not import x.org/banned: of this\n\tthe way: a → c → x.org/banned"
	if !slices.Equal(lines, []string{want}) {
		t.Errorf("%q, want %q", lines, want)
	}
}

func TestVacuousBansAreFound(t *testing.T) {
	g := makeGraph(module+"/here", module+"/tree/leaf")
	for _, test := range []struct {
		patterns, later, want []string
	}{
		{[]string{"./here", "./tree/...", "./..."}, nil, nil},
		{[]string{"./gone"}, nil, []string{"./gone is named by a ban and does not exist: correct the ban"}},
		{[]string{"./gone/..."}, []string{"./gone/..."}, nil},
		{[]string{"./here"}, []string{"./here"}, []string{"./here exists now: take it off the list of those to come"}},
		{nil, []string{"./gone"}, []string{"./gone is expected, but no ban names it: take it off the list"}},
	} {
		if got := g.vacuous(test.patterns, test.later); !slices.Equal(got, test.want) {
			t.Errorf("%v, later %v: %q, want %q", test.patterns, test.later, got, test.want)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, test := range []struct {
		path, pattern string
		want          bool
	}{
		{"os", "os", true},
		{"os/exec", "os", false},
		{"os/exec", "os/...", true},
		{"os", "os/...", true},
		{"osx", "os/...", false},
		{"net/netip", "net", false},
		{module + "/cni/plugin", "./cni/plugin", true},
		{module + "/cni/plugin", "./...", true},
		{module + "-fork/cni", "./...", false},
		{"cni/plugin", "./cni/plugin", false},
	} {
		if got := matches(test.path, []string{test.pattern}); got != test.want {
			t.Errorf("%s matches %s: %v, want %v", test.path, test.pattern, got, test.want)
		}
	}
}

// Each name of each place, used elsewhere, at home, and under another import.
func TestEachPlaceCanFail(t *testing.T) {
	for _, p := range places {
		for _, name := range p.names {
			src := fmt.Sprintf("package a\n\nimport other %q\n\nvar _ = other.%s\n", p.pkg, name)
			lines, err := misplaced("cni/plugin/a.go", src)
			if err != nil {
				t.Fatal(err)
			}
			begin := fmt.Sprintf("cni/plugin/a.go:5: %s.%s belongs in ", p.pkg, name)
			if len(lines) != 1 || !strings.HasPrefix(lines[0], begin) || !strings.Contains(lines[0], p.reason) {
				t.Errorf("%s.%s elsewhere: %q, want %q and the reason", p.pkg, name, lines, begin)
			}
			if lines, err := misplaced("cni/plugin/a_test.go", src); err != nil || (len(lines) == 1) != p.tests {
				t.Errorf("%s.%s in a test: %q, %v; tests count: %v", p.pkg, name, lines, err, p.tests)
			}
			home := strings.TrimPrefix(sample(p.homes[0]), module+"/") + "/a.go"
			if lines, err := misplaced(home, src); err != nil || lines != nil {
				t.Errorf("%s.%s at home in %s: %q, %v", p.pkg, name, home, lines, err)
			}
			stranger := strings.Replace(src, p.pkg, "example.com/stranger", 1)
			if lines, err := misplaced("cni/plugin/a.go", stranger); err != nil || lines != nil {
				t.Errorf("%s of another package: %q, %v", name, lines, err)
			}
		}
	}
	if _, err := misplaced("cni/plugin/a.go", "package"); err == nil {
		t.Error("a file that does not parse is passed over")
	}
}

func TestRegistryHostsAreFound(t *testing.T) {
	// Put together here, so that this file names none.
	for _, host := range []string{"proxy.golang" + ".org", "SUM.golang" + ".org", "deb.debian" + ".org"} {
		if !hosts.MatchString("GOPROXY=https://" + host + ",direct") {
			t.Errorf("%s is not found", host)
		}
	}
	for _, text := range []string{"golang.org/x/sys", "github.com/fairlead-mesh/fairlead", "proxy-golang-org"} {
		if hosts.MatchString(text) {
			t.Errorf("%s is found", text)
		}
	}
}

func TestSurvives(t *testing.T) {
	for doc, want := range map[string]bool{
		"Package a is.\n\n# Failures it survives\n\n  - This one.\n":                       true,
		"Package a is.\n\n# More\n\nText.\n\n# Failures it survives\n\nSome:\n  - This.\n": true,
		"Package a is.\n": false,
		"Package a is.\n\n# Failures it survives\n":                                 false,
		"Package a is.\n\nFailures it survives: none.\n":                            false,
		"Package a is.\n\n# Failures it survives\n\nNone.\n":                        false,
		"Package a is.\n\n# Failures it survives\n\n  - This.\n\n# More\n\nText.\n": false,
	} {
		if got := survives(doc); got != want {
			t.Errorf("%q: %v, want %v", doc, got, want)
		}
	}
}

func TestPackageDocsAreFound(t *testing.T) {
	docs, err := packageDocs()
	if err != nil {
		t.Fatal(err)
	}
	if doc := docs["integration/architecture"]; !strings.HasPrefix(doc, "Package architecture ") {
		t.Errorf("of this package: %q", doc)
	}
	if doc, ok := docs["nodeagent/cmd/fairlead"]; ok {
		t.Errorf("of a command: %q", doc)
	}
}
