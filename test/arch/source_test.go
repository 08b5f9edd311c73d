package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const (
	module = "pulse"
	root   = "../.."
)

// pkg is what `go list -json` tells of one of our packages.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Doc          string
	Export       string
	Standard     bool
	Module       *struct{ Path, Dir string }
	GoFiles      []string
	CgoFiles     []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	Error        *struct{ Err string }
}

// rel is the package's path inside the module: "fsm/state".
func (p pkg) rel() string { return rel(p.ImportPath) }

func rel(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

func ours(importPath string) bool {
	return importPath == module || strings.HasPrefix(importPath, module+"/")
}

// within says whether path is dir or lies in it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// goList runs the go command at the module's root.
func goList(args ...string) ([]pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-e", "-json"}, args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New(err.Error() + ": " + stderr.String())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
}

var listed = sync.OnceValues(func() ([]pkg, error) { return goList("./...") })

// packages returns every package of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("go list found only %d packages; the rules would hold for nothing", len(all))
	}
	return all
}

// source is one parsed file.
type source struct {
	pkg  pkg
	name string // inside the module: "fsm/apply.go"
	test bool
	file *ast.File
	fset *token.FileSet
}

func (s source) at(n ast.Node) string {
	return s.name + ":" + itoa(s.fset.Position(n.Pos()).Line)
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

var parsed = sync.OnceValues(func() ([]source, error) {
	all, err := listed()
	if err != nil {
		return nil, err
	}
	var files []source
	for _, p := range all {
		fset := token.NewFileSet()
		for _, list := range []struct {
			names []string
			test  bool
		}{{p.GoFiles, false}, {p.CgoFiles, false}, {p.TestGoFiles, true}, {p.XTestGoFiles, true}} {
			for _, name := range list.names {
				f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
				if err != nil {
					return nil, err
				}
				files = append(files, source{pkg: p, name: filepath.Join(p.rel(), name), test: list.test, file: f, fset: fset})
			}
		}
	}
	return files, nil
})

// sources returns every Go file that this platform compiles, tests included.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// imported returns the name under which the file knows a package, or "".
func imported(f *ast.File, path string) string {
	for _, spec := range f.Imports {
		if strings.Trim(spec.Path.Value, `"`) != path {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path[strings.LastIndex(path, "/")+1:]
	}
	return ""
}

// calls yields every selector "name.sel" in the file.
func selectors(f *ast.File, name string, visit func(sel *ast.SelectorExpr)) {
	if name == "" {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == name {
				visit(sel)
			}
		}
		return true
	})
}
