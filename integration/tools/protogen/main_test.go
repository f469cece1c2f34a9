package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	const head = "// Of this and that.\n\nsyntax = \"proto3\";\npackage test.pkg;\noption go_package = \"example.com/m/sub\";\n"
	for _, test := range []struct {
		name, source string
		code         []string // what the code has to contain
		problem      string
	}{
		{
			name: "a message", source: head + "// Thing is said.\nmessage Thing { string name = 2; }\n",
			code: []string{"// source: sub/a.proto\n", "package sub\n", "// Thing is said.\ntype Thing struct", "GetName() string"},
		},
		{name: "damaged", source: head + "message Thing { string name = ; }\n", problem: "sub/a.proto:6:31"},
		{
			name: "with an import", source: head + "import \"sub/b.proto\";\nmessage Thing { Other o = 1; }\n",
			problem: "it imports [sub/b.proto]: imports are not supported",
		},
		{
			name: "without a Go package", source: "syntax = \"proto3\";\nmessage Thing {}\n",
			problem: "cannot run protoc-gen-go",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root, out := t.TempDir(), t.TempDir()
			write(t, root, "sub/a.proto", test.source)
			write(t, root, "sub/b.proto", strings.TrimSuffix(head, "\n")+"\nmessage Other {}\n")
			err := generate(t.Context(), root, out, "sub/a.proto")
			code, readErr := os.ReadFile(filepath.Join(out, "sub/a.pb.go"))
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) || readErr == nil {
					t.Errorf("error %v and code %q, want an error with %q and no code", err, code, test.problem)
				}
				return
			}
			if err != nil || readErr != nil {
				t.Fatal(err, readErr)
			}
			for _, part := range test.code {
				if !strings.Contains(string(code), part) {
					t.Errorf("no %q in the code:\n%s", part, code)
				}
			}
		})
	}
}

func TestNoSuchFile(t *testing.T) {
	if err := generate(t.Context(), t.TempDir(), t.TempDir(), "a.proto"); err == nil {
		t.Error("a file that is not there is passed over")
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
