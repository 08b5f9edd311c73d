package arch

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// What a replica does with a committed entry must follow from the entry and
// the state alone. These packages are held to it.
var deterministic = []string{"fsm", "fsm/state"}

// bannedImports would let something else have a say. Sub-packages included.
var bannedImports = map[string]string{
	"math/rand":     "chance decides nothing in a replica",
	"math/rand/v2":  "chance decides nothing in a replica",
	"crypto/rand":   "chance decides nothing in a replica",
	"hash/maphash":  "its seed differs from process to process",
	"log":           "a replica tells by its results and events",
	"log/slog":      "a replica tells by its results and events",
	"net":           "a replica talks to nobody",
	"os/exec":       "a replica starts nothing",
	"os/signal":     "a replica listens to nobody",
	"reflect":       "rows are plain values",
	"unsafe":        "rows are plain values",
	"math/big":      "integers of 64 bits are enough",
	"math/cmplx":    "no float arithmetic",
	"text/template": "it visits maps and calls what it is given",
}

// clockFuncs of package time read or wait for a clock.
var clockFuncs = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "LoadLocation", "Local"}

// storeFiles keep the state on disk, and only they use package os.
var storeFiles = []string{"fsm/machine.go", "fsm/state"}

// fileFuncs of package os are what the store needs; anything else of os would
// bring in the environment.
var fileFuncs = []string{"MkdirAll", "Mkdir", "MkdirTemp", "Open", "OpenFile", "Create", "Rename", "Remove", "RemoveAll", "ReadDir", "ReadFile", "WriteFile",
	"Stat", "Lstat", "Link", "File", "FileInfo", "FileMode", "DirEntry", "O_RDONLY", "O_WRONLY", "O_RDWR", "O_CREATE", "O_EXCL", "O_TRUNC", "O_APPEND",
	"ErrNotExist", "ErrExist", "IsNotExist", "IsExist", "PathError", "DirFS", "Truncate"}

const orderFree = "// order-free: "

// finding is a place that breaks a rule.
type finding struct {
	at   string
	what string
}

// check looks through one type-checked file of a deterministic package.
func check(fset *token.FileSet, info *types.Info, file *ast.File, name string) []finding {
	var found []finding
	report := func(n ast.Node, format string, args ...any) {
		found = append(found, finding{fmt.Sprintf("%s:%d", name, fset.Position(n.Pos()).Line), fmt.Sprintf(format, args...)})
	}
	reasons := map[int]bool{} // lines that carry a reason
	for _, group := range file.Comments {
		for _, c := range group.List {
			if rest, ok := strings.CutPrefix(c.Text, orderFree); ok && len(strings.TrimSpace(rest)) >= 5 {
				reasons[fset.Position(c.Pos()).Line] = true
			}
		}
	}
	reasoned := func(n ast.Node) bool {
		line := fset.Position(n.Pos()).Line
		return reasons[line] || reasons[line-1]
	}

	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		for banned, why := range bannedImports {
			if within(path, banned) {
				report(spec, "imports %s: %s", path, why)
			}
		}
		if path == "os" && !slices.ContainsFunc(storeFiles, func(dir string) bool { return within(name, dir) }) {
			report(spec, "imports os: files are the store's")
		}
	}

	sorted := map[ast.Node]bool{} // arguments of slices.Sorted and its kin
	ast.Inspect(file, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && isFloat(info.TypeOf(e)) {
			report(n, "uses floats")
			return false
		}
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "starts a goroutine")
		case *ast.SelectStmt:
			if len(n.Body.List) > 1 {
				report(n, "selects among several, and chance picks one")
			}
		case *ast.RangeStmt:
			if isMap(info.TypeOf(n.X)) && !reasoned(n) {
				report(n, "ranges over a map; sort the keys, or say on the line why any order will do (%s...)", orderFree)
			}
		case *ast.CallExpr:
			pkg, fn := calledFunc(info, n)
			switch {
			case pkg == "slices" && strings.HasPrefix(fn, "Sorted"):
				for _, arg := range n.Args {
					sorted[arg] = true
				}
			case pkg == "maps" && slices.Contains([]string{"Keys", "Values", "All"}, fn) && !sorted[n] && !reasoned(n):
				report(n, "walks a map by maps.%s; sort it, or say on the line why any order will do (%s...)", fn, orderFree)
			}
		case *ast.SelectorExpr:
			obj := info.Uses[n.Sel]
			if obj == nil || obj.Pkg() == nil || info.Selections[n] != nil {
				break
			}
			switch {
			case obj.Pkg().Path() == "time" && slices.Contains(clockFuncs, obj.Name()):
				report(n, "uses time.%s: time is an argument", obj.Name())
			case obj.Pkg().Path() == "os" && !slices.Contains(fileFuncs, obj.Name()):
				report(n, "uses os.%s: of os only files, and those in the store", obj.Name())
			case obj.Pkg().Path() == "runtime" || obj.Pkg().Path() == "runtime/debug":
				report(n, "asks the runtime (%s)", obj.Name())
			}
		}
		return true
	})
	return found
}

func isMap(t types.Type) bool {
	if t == nil {
		return false
	}
	if tp, ok := t.(*types.TypeParam); ok {
		t = tp.Constraint()
	}
	_, ok := t.Underlying().(*types.Map)
	return ok
}

func isFloat(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&(types.IsFloat|types.IsComplex) != 0 && b.Info()&types.IsUntyped == 0
}

func calledFunc(info *types.Info, call *ast.CallExpr) (pkg, name string) {
	fun := ast.Unparen(call.Fun)
	switch f := fun.(type) {
	case *ast.IndexExpr:
		fun = f.X
	case *ast.IndexListExpr:
		fun = f.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	obj := info.Uses[sel.Sel]
	if obj == nil || obj.Pkg() == nil {
		return "", ""
	}
	return obj.Pkg().Path(), obj.Name()
}

// typeCheck checks parsed files of one package against the compiler's export
// data of what they import.
func typeCheck(fset *token.FileSet, path string, files []*ast.File, exports map[string]string) (*types.Info, error) {
	lookup := func(path string) (io.ReadCloser, error) {
		file, ok := exports[path]
		if !ok {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(file)
	}
	info := &types.Info{
		Types:      map[ast.Expr]types.TypeAndValue{},
		Uses:       map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	_, err := conf.Check(path, fset, files, info)
	return info, err
}

func exportsOf(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	all, err := goList(append([]string{"-deps", "-export"}, patterns...)...)
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for _, p := range all {
		if p.Export != "" {
			exports[p.ImportPath] = p.Export
		}
	}
	return exports
}

func TestTheMachineFollowsFromEntryAndStateAlone(t *testing.T) {
	t.Parallel()
	exports := exportsOf(t, "./fsm/...")
	checked := 0
	for _, dir := range deterministic {
		var files []*ast.File
		var names []string
		var fset *token.FileSet
		for _, s := range sources(t) {
			if s.pkg.rel() == dir && !s.test {
				files, names, fset = append(files, s.file), append(names, s.name), s.fset
			}
		}
		if len(files) == 0 {
			t.Errorf("%s has no files to check", dir)
			continue
		}
		info, err := typeCheck(fset, module+"/"+dir, files, exports)
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		for i, f := range files {
			checked++
			for _, bad := range check(fset, info, f, names[i]) {
				t.Errorf("%s %s", bad.at, bad.what)
			}
		}
	}
	t.Logf("%d files checked", checked)
}
