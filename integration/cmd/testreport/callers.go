package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const netlabPath = "github.com/fairlead-mesh/fairlead/integration/netlab"

// testPackage is what `go list -json` says of a package.
type testPackage struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
}

// findCallers returns the import paths of the module's packages whose test files
// call netlab.Main.
func findCallers(moduleDir string) ([]string, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = moduleDir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	listing, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the packages of %s: %w: %s", moduleDir, err, stderr.Bytes())
	}
	var callers []string
	for decoder := json.NewDecoder(bytes.NewReader(listing)); ; {
		var pkg testPackage
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return callers, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read the packages of %s: %w", moduleDir, err)
		}
		for _, file := range append(pkg.TestGoFiles, pkg.XTestGoFiles...) {
			calls, err := callsMain(filepath.Join(pkg.Dir, file), nil, pkg.ImportPath)
			if err != nil {
				return nil, err
			}
			if calls {
				callers = append(callers, pkg.ImportPath)
				break
			}
		}
	}
}

// callsMain says whether a file of package pkg calls netlab.Main. src is nil, or the
// file's content as for parser.ParseFile.
func callsMain(file string, src any, pkg string) (bool, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
	if err != nil {
		return false, fmt.Errorf("cannot parse a test file: %w", err)
	}
	name := netlabName(parsed)
	inside := pkg == netlabPath && !strings.HasSuffix(parsed.Name.Name, "_test")
	found := false
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return !found
		}
		switch fun := call.Fun.(type) {
		case *ast.SelectorExpr:
			x, ok := fun.X.(*ast.Ident)
			found = found || ok && name != "" && x.Name == name && fun.Sel.Name == "Main"
		case *ast.Ident:
			found = found || (inside || name == ".") && fun.Name == "Main"
		}
		return !found
	})
	return found, nil
}

// netlabName returns what the file calls the package netlab, or "".
func netlabName(file *ast.File) string {
	for _, spec := range file.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err != nil || path != netlabPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return "netlab"
	}
	return ""
}
