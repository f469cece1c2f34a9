package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// walk calls visit with the path, relative to the root, of each file that is not
// built and not the version control's.
func walk(visit func(file string) error) error {
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && (file == ".git" || file == "bin"):
			return filepath.SkipDir
		case entry.Type().IsRegular():
			return visit(filepath.ToSlash(file))
		}
		return nil
	})
}

// misplaced returns a line for each use, in one source file, of a function that has
// its place elsewhere. src is nil, or the content as for parser.ParseFile.
func misplaced(file string, src any) ([]string, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, filepath.Join(root, file), src, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("cannot parse %s: %w", file, err)
	}
	imports := importNames(parsed)
	here := module + "/" + path.Dir(file)
	var lines []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, p := range places {
			if !p.tests && strings.HasSuffix(file, "_test.go") {
				continue
			}
			if imports[x.Name] == p.pkg && slices.Contains(p.names, selector.Sel.Name) && !matches(here, p.homes) {
				lines = append(lines, fmt.Sprintf("%s:%d: %s.%s belongs in %s: %s", file,
					files.Position(n.Pos()).Line, p.pkg, selector.Sel.Name, strings.Join(p.homes, ", "), p.reason))
			}
		}
		return true
	})
	return lines, nil
}

// importNames maps the names by which a file knows its imports to import paths.
func importNames(file *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range file.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the compiler refuses it
		}
		name := path.Base(importPath)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = importPath
	}
	return names
}

const survivesHeading = "# Failures it survives"

// survives says whether a package comment ends with a list of what it survives.
func survives(doc string) bool {
	_, list, found := strings.Cut(doc, "\n"+survivesHeading+"\n")
	return found && strings.Contains(list, "\n  - ") && !strings.Contains(list, "\n# ")
}

// packageDocs returns the comments of this module's packages but commands, by directory.
func packageDocs() (map[string]string, error) {
	docs := map[string]string{}
	err := walk(func(file string) error {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return fmt.Errorf("cannot parse %s: %w", file, err)
		}
		if dir := path.Dir(file); parsed.Name.Name != "main" && !otherModule(dir) {
			docs[dir] += parsed.Doc.Text()
		}
		return nil
	})
	return docs, err
}

// otherModule says whether a directory is, or lies in, a module of its own.
func otherModule(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}
