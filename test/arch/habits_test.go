package arch

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageOpensWithAParagraph(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 || generatedOnly(t, p) {
			continue
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + p.rel()[strings.LastIndex(p.rel(), "/")+1:] + " "
			// "Pulse is ..." reads well too on the one binary.
			if strings.HasPrefix(p.Doc, "Pulse ") {
				continue
			}
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: the package comment is %q, want one that begins %q", p.rel(), p.Doc, want)
		}
	}
}

func generatedOnly(t *testing.T, p pkg) bool {
	t.Helper()
	for _, s := range sources(t) {
		if s.pkg.ImportPath == p.ImportPath && !s.test && !ast.IsGenerated(s.file) {
			return false
		}
	}
	return true
}

func TestNothingPrintsPastItsWriter(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		// test/bench is a program too.
		if s.test || within(s.pkg.rel(), "cmd") || within(s.pkg.rel(), "examples") || within(s.pkg.rel(), "test/bench") {
			continue
		}
		selectors(s.file, imported(s.file, "fmt"), func(sel *ast.SelectorExpr) {
			if slices.Contains([]string{"Print", "Printf", "Println"}, sel.Sel.Name) {
				t.Errorf("%s prints with fmt.%s; only cmd talks to the terminal", s.at(sel), sel.Sel.Name)
			}
		})
		selectors(s.file, imported(s.file, "os"), func(sel *ast.SelectorExpr) {
			// The watchdog ends a process that its disk has stopped.
			watchdog := s.name == "cluster/watchdog.go" && sel.Sel.Name == "Exit"
			if !watchdog && slices.Contains([]string{"Stdout", "Stderr", "Stdin", "Exit", "Args"}, sel.Sel.Name) {
				t.Errorf("%s uses os.%s; that belongs to cmd", s.at(sel), sel.Sel.Name)
			}
		})
		// log.Logger is a type some libraries ask for; its functions write to
		// wherever the process happens to.
		selectors(s.file, imported(s.file, "log"), func(sel *ast.SelectorExpr) {
			if sel.Sel.Name != "Logger" && sel.Sel.Name != "New" {
				t.Errorf("%s uses log.%s; a logger comes by the constructor and is slog", s.at(sel), sel.Sel.Name)
			}
		})
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "println" || id.Name == "print") {
					t.Errorf("%s prints with the built-in %s", s.at(call), id.Name)
				}
			}
			return true
		})
	}
}

func TestNoTestSleepsToBeRight(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		// In a synctest bubble sleeping is exact and costs nothing.
		if !s.test || imported(s.file, "testing/synctest") != "" {
			continue
		}
		selectors(s.file, imported(s.file, "time"), func(sel *ast.SelectorExpr) {
			if sel.Sel.Name == "Sleep" && !says(s, sel, "//nolint:forbidigo // ") {
				t.Errorf("%s sleeps; wait for a condition with a deadline, or use a synctest bubble", s.at(sel))
			}
		})
	}
}

func TestContextsComeFirstAndAreNotStored(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		ctx := imported(s.file, "context")
		if s.test || ctx == "" || ast.IsGenerated(s.file) {
			continue
		}
		isContext := func(e ast.Expr) bool {
			sel, ok := e.(*ast.SelectorExpr)
			if !ok {
				return false
			}
			id, ok := sel.X.(*ast.Ident)
			return ok && id.Name == ctx && sel.Sel.Name == "Context"
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, f := range n.Fields.List {
					if isContext(f.Type) && f.Comment == nil {
						t.Errorf("%s stores a context and does not say on its line whose it is", s.at(f))
					}
				}
			case *ast.FuncDecl:
				params := n.Type.Params.List
				for i, f := range params {
					if i > 0 && isContext(f.Type) && !isTesting(params[0].Type) {
						t.Errorf("%s takes a context that is not its first parameter", s.at(f))
					}
				}
			}
			return true
		})
	}
}

// isTesting says whether a parameter is the *testing.T of a helper.
func isTesting(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == "testing"
}

// says whether the line of n carries a comment that begins with a word.
func says(s source, n ast.Node, word string) bool {
	line := s.fset.Position(n.Pos()).Line
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			if s.fset.Position(c.Pos()).Line == line && strings.HasPrefix(strings.TrimPrefix(c.Text, "// "), word) {
				return true
			}
		}
	}
	return false
}
