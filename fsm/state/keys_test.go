package state

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// A table that is added and not on the list would make every store that has rows of it
// one of a newer version.
func TestEveryTableIsKnown(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || lit.Kind != token.CHAR {
			return true
		}
		value, _, _, err := strconv.UnquoteChar(strings.Trim(lit.Value, "'"), '\'')
		if err != nil {
			t.Fatal(err)
		}
		name, key := spec.Names[0].Name, []byte{byte(value), 0}
		if strings.HasPrefix(name, "access") {
			key = append([]byte{tableAccess}, key...)
		} else if name == "tableAccess" {
			return true
		}
		tables++
		if !knownTable(tableOf(key)) {
			t.Errorf("%s is not known", name)
		}
		return true
	})
	if want := len(knownTables) + 1; tables != want {
		t.Errorf("%d tables were found in keys.go, %d are known", tables, want)
	}
}
