package status_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// REASONS.md lists every state and every reason, and says the remedies as they are.
func TestReasonsAreListed(t *testing.T) {
	text, err := os.ReadFile("REASONS.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{} // the remedy, by the word
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|[^|]+\\|(?: ([^|]*)\\|)?$").FindAllStringSubmatch(string(text), -1) {
		if _, twice := listed[row[1]]; twice {
			t.Errorf("%s is listed twice", row[1])
		}
		listed[row[1]] = strings.TrimSpace(row[2])
	}
	want := map[string]string{}
	for _, word := range slices.Concat(constants(t, "report.go", "State"), constants(t, "reason.go", "Reason"), constants(t, "../intent/intent.go", "Reason")) {
		want[word] = status.Reason(word).Remedy()
	}
	for _, word := range slices.Sorted(maps.Keys(want)) {
		got, ok := listed[word]
		switch {
		case !ok:
			t.Errorf("%s is not listed", word)
		case got != want[word]:
			t.Errorf("%s: the remedy is listed as %q, and is %q", word, got, want[word])
		}
		delete(listed, word)
	}
	for word := range listed {
		t.Errorf("%s is listed, and is neither a state nor a reason", word)
	}
}

// REASONS.md lists the words that stand in the columns of a report.
func TestColumnsAreListed(t *testing.T) {
	text, err := os.ReadFile("REASONS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, columns, _ := strings.Cut(string(text), "## The columns")
	columns, _, _ = strings.Cut(columns, "\n## ")
	words := slices.Concat([]string{status.Unknown, "none", "marks", "syn", "full", "+dns", "-"},
		constants(t, "../proxylink/verdict.go", "State"), constants(t, "../proxylink/session.go", "SessionState"))
	for _, word := range words {
		if word == "noProxy" || word == "gone" { // a verdict's only, no proxy says them
			continue
		}
		if !strings.Contains(columns, "`"+word+"`") {
			t.Errorf("%s is not listed", word)
		}
	}
	for _, column := range []string{"RULES", "LISTENERS", "PROXIES", "SINCE"} {
		if !strings.Contains(columns, "\n| "+column+" |") {
			t.Errorf("column %s is not listed", column)
		}
	}
}

// constants are the values of a type's constants in a file.
func constants(t *testing.T, file, of string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == of {
			literal, _ := spec.Values[0].(*ast.BasicLit)
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
		return false
	})
	if len(values) == 0 {
		t.Fatalf("%s has no constants of type %s", file, of)
	}
	return values
}
