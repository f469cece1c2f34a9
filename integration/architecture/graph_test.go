package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const (
	module = "github.com/fairlead-mesh/fairlead"
	root   = "../.."
)

// A node is a package as `go list -json` shows it.
type node struct {
	ImportPath   string
	Name         string
	Doc          string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// A graph is a set of packages by import path.
type graph map[string]node

// load returns this module's packages and all they depend on, as they are built for
// a node.
func load() (graph, error) {
	cmd := exec.Command("go", "list", "-deps",
		"-json=ImportPath,Name,Doc,Standard,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	listing, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the packages: %w: %s", err, stderr.Bytes())
	}
	g := graph{}
	for decoder := json.NewDecoder(bytes.NewReader(listing)); ; {
		var n node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read the list of packages: %w", err)
		}
		g[n.ImportPath] = n
	}
}

// own returns the import paths of this module's packages, in order.
func (g graph) own() []string {
	var paths []string
	for path := range g {
		if matches(path, []string{"./..."}) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// violations returns a line for each subject that breaks the ban.
func (g graph) violations(b ban) []string {
	var lines []string
	for _, subject := range g.own() {
		if !matches(subject, b.subjects) || matches(subject, b.except) {
			continue
		}
		if way := g.way(subject, b); way != nil {
			lines = append(lines, fmt.Sprintf("%s must not import %s: %s\n\tthe way: %s",
				short(subject), short(way[len(way)-1]), b.reason, short(strings.Join(way, " → "))))
		}
	}
	return lines
}

// way returns the shortest way from a subject to one of the ban's targets, or nil.
func (g graph) way(subject string, b ban) []string {
	imports := g[subject].Imports
	if b.tests {
		imports = slices.Concat(imports, g[subject].TestImports, g[subject].XTestImports)
	}
	seen := map[string]bool{subject: true}
	ways := [][]string{{subject}}
	for len(ways) > 0 {
		way := ways[0]
		ways = ways[1:]
		if last := way[len(way)-1]; last != subject {
			imports = g[last].Imports
		}
		for _, next := range imports {
			if seen[next] {
				continue
			}
			seen[next] = true
			onward := append(slices.Clone(way), next)
			if g.banned(next, b) {
				return onward
			}
			if b.how == reach || b.how == touch && matches(next, []string{"./..."}) {
				ways = append(ways, onward)
			}
		}
	}
	return nil
}

func (g graph) banned(path string, b ban) bool {
	target := matches(path, b.targets) || slices.Contains(b.targets, notStd) && !g[path].Standard
	return target && !matches(path, b.allow)
}

// matches says whether an import path matches one of the patterns.
func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if rest, ok := strings.CutPrefix(pattern, "./"); ok {
			pattern = module + "/" + rest
		}
		prefix, tree := strings.CutSuffix(pattern, "/...")
		return path == prefix || tree && strings.HasPrefix(path, prefix+"/")
	})
}

// short leaves the module's own path out.
func short(text string) string { return strings.ReplaceAll(text, module+"/", "") }
