package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	callers := []string{"m/a", "m/b"}
	for _, test := range []struct {
		name, report, sum, problem string
	}{
		{name: "all ran", report: "m/a 3 3\nm/b 60 60\n", sum: "kernel tests: 63 ran, 63 expected"},
		{
			name: "one package too few, another too many", report: "m/a 2 3\nm/b 4 3\n",
			sum:     "kernel tests: 6 ran, 6 expected",
			problem: "m/a: 2 ran, 3 expected\nm/b: 4 ran, 3 expected",
		},
		{
			name: "a package is silent", report: "m/a 3 3\n", sum: "kernel tests: 3 ran, 3 expected",
			problem: "m/b calls netlab.Main and did not report: see its result above",
		},
		{
			name: "nobody reports", sum: "kernel tests: 0 ran, 0 expected",
			problem: "m/a calls netlab.Main and did not report: see its result above\n" +
				"m/b calls netlab.Main and did not report: see its result above",
		},
		{
			name: "twice", report: "m/a 1 1\nm/b 1 1\nm/a 1 1\n", sum: "kernel tests: 3 ran, 3 expected",
			problem: "m/a reported twice",
		},
		{
			name: "a stranger", report: "m/a 1 1\nm/b 1 1\nm/c 1 1\n", sum: "kernel tests: 3 ran, 3 expected",
			problem: "m/c reported, but no test file of it calls netlab.Main",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			counts, err := parse(strings.NewReader(test.report))
			if err != nil {
				t.Fatal(err)
			}
			sum, problem := compare(counts, callers)
			if sum != test.sum {
				t.Errorf("sum %q, want %q", sum, test.sum)
			}
			if got := text(problem); got != test.problem {
				t.Errorf("problem %q, want %q", got, test.problem)
			}
		})
	}
}

func TestParseRefusesDamage(t *testing.T) {
	for _, test := range []struct{ report, problem string }{
		{"m/a 3\n", `line 1: "m/a 3" is not <import path> <ran> <wanted>`},
		{"m/a 3 3\n\n", `line 2: "" is not <import path> <ran> <wanted>`},
		{"m/a 3 3m/b 1 1\n", `line 1: "m/a 3 3m/b 1 1" is not <import path> <ran> <wanted>`},
		{"m/a x 3\n", `line 1: "x" is not a number of tests`},
		{"m/a 3 -3\n", `line 1: "-3" is not a number of tests`},
	} {
		if _, err := parse(strings.NewReader(test.report)); text(err) != test.problem {
			t.Errorf("%q: %q, want %q", test.report, text(err), test.problem)
		}
	}
}

func TestCallsMain(t *testing.T) {
	const imports = "import (\n\t\"testing\"\n\n\t%\"" + netlabPath + "\"\n)\n\n"
	for _, test := range []struct {
		name, pkg, src string
		want           bool
	}{
		{"called", "m/a", "package a_test\n" + strings.Replace(imports, "%", "", 1) + "func TestMain(m *testing.M) { netlab.Main(m, 3) }", true},
		{"renamed", "m/a", "package a\n" + strings.Replace(imports, "%", "lab ", 1) + "func TestMain(m *testing.M) { lab.Main(m, 3) }", true},
		{"in a branch", "m/a", "package a\n" + strings.Replace(imports, "%", "", 1) + "func TestMain(m *testing.M) { if true { netlab.Main(m, 3) } }", true},
		{"imported only", "m/a", "package a\n" + strings.Replace(imports, "%", "", 1) + "func f(t *testing.T) { netlab.Kernel(t) }", false},
		{"another netlab", "m/a", "package a\nimport \"example.com/netlab\"\nfunc TestMain() { netlab.Main() }", false},
		{"another Main", "m/a", "package a\nfunc TestMain() { Main() }", false},
		{"inside netlab", netlabPath, "package netlab\nfunc TestMain() { Main() }", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := callsMain("x_test.go", test.src, test.pkg)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("calls netlab.Main: %v, want %v", got, test.want)
			}
		})
	}
	if _, err := callsMain("x_test.go", "package", "m/a"); err == nil {
		t.Error("a file that does not parse is passed over")
	}
}

// A module of one package that calls netlab.Main, from listing to verdict.
func TestRun(t *testing.T) {
	module := t.TempDir()
	write(t, module, "go.mod", "module example.com/m\n\ngo 1.26\n")
	write(t, module, "a.go", "package a\n")
	write(t, module, "b/b.go", "package b\n")
	write(t, module, "a_test.go", "package a\n\nimport (\n\t\"testing\"\n\n\t\""+netlabPath+
		"\"\n)\n\nfunc TestMain(m *testing.M) { netlab.Main(m, 3) }\n")

	for _, test := range []struct {
		name, report string
		lenient      bool
		out, problem string
	}{
		{name: "all ran", report: "example.com/m 3 3\n", out: "kernel tests: 3 ran, 3 expected\n"},
		{
			name: "none ran", report: "example.com/m 0 3\n", out: "kernel tests: 0 ran, 3 expected\n",
			problem: "not the kernel tests that there should be: example.com/m: 0 ran, 3 expected",
		},
		{
			name: "none ran, without root", report: "example.com/m 0 3\n", lenient: true,
			out: "kernel tests: 0 ran, 3 expected\n" +
				"WARNING: kernel tests were left out, they need root:\nexample.com/m: 0 ran, 3 expected\n",
		},
		{
			name: "did not build", out: "kernel tests: 0 ran, 0 expected\n",
			problem: "not the kernel tests that there should be: " +
				"example.com/m calls netlab.Main and did not report: see its result above",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report")
			if err := os.WriteFile(report, []byte(test.report), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err := run(&out, report, []string{module}, test.lenient)
			if out.String() != test.out || text(err) != test.problem {
				t.Errorf("printed %q and returned %q, want %q and %q", out.String(), text(err), test.out, test.problem)
			}
		})
	}

	if err := run(&bytes.Buffer{}, filepath.Join(module, "nothing"), []string{module}, true); err == nil {
		t.Error("a report that is not there is taken for an empty one")
	}
	if err := run(&bytes.Buffer{}, filepath.Join(module, "go.mod"), []string{filepath.Join(module, "nothing")}, true); err == nil {
		t.Error("a module that is not there is passed over")
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
