package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// Each rule of determinism is shown to catch its offence, and to leave alone
// what only looks like it.
func TestTheDeterminismCheckCatchesWhatItIsFor(t *testing.T) {
	t.Parallel()
	exports := exportsOf(t, "time", "os", "maps", "slices", "math/rand/v2", "log/slog", "net/http", "sync", "runtime", "math")
	for _, c := range []struct {
		name string
		code string
		want string // part of the finding; empty = fine
	}{
		{"the clock", `import "time"; func f() int64 { return time.Now().UnixMicro() }`, "time.Now"},
		{"the clock under another name", `import clock "time"; func f() any { return clock.Since }`, "time.Since"},
		{"a duration", `import "time"; func f(d time.Duration) int64 { return d.Milliseconds() }`, ""},
		{"a time as value", `import "time"; func f(t, u time.Time) time.Duration { return t.Sub(u) }`, ""},
		{"chance", `import "math/rand/v2"; func f() int { return rand.Int() }`, "chance"},
		{"a log line", `import "log/slog"; func f() { slog.Info("x") }`, "log/slog"},
		{"the network", `import "net/http"; var c http.Client`, "net/http"},
		{"the environment", `import "os"; func f() string { return os.Getenv("X") }`, "os.Getenv"},
		{"a file", `import "os"; func f() error { return os.Remove("x") }`, ""},
		{"elsewhere: a file", `import "os"; func f() error { return os.Remove("x") }`, "files are the store's"},
		{"a goroutine", `func f() { go f() }`, "goroutine"},
		{"a choice of channels", `func f(a, b chan int) { select { case <-a: case <-b: } }`, "chance picks"},
		{"a single channel", `func f(a chan int) { select { case <-a: } }`, ""},
		{"the processors", `import "runtime"; func f() int { return runtime.NumCPU() }`, "runtime"},
		{"a map's order", "func f(m map[string]int) (n []int) {\n for _, v := range m { n = append(n, v) }\n return n }", "ranges over a map"},
		{"a named map's order", "type ids map[int]bool\nfunc f(m ids) { for range m {} }", "ranges over a map"},
		{"a map with a reason", "func f(m map[string]int) (n int) {\n for _, v := range m { // order-free: addition does not care\n n += v }\n return n }", ""},
		{"a map with a reason above", "func f(m map[string]int) (n int) {\n // order-free: addition does not care\n for _, v := range m { n += v }\n return n }", ""},
		{"a map with an empty reason", "func f(m map[string]int) (n int) {\n for _, v := range m { // order-free: \n n += v }\n return n }", "ranges over a map"},
		{"a slice", "func f(s []int) (n int) {\n for _, v := range s { n += v }\n return n }", ""},
		{"keys as they come", "import \"maps\"\nfunc f(m map[string]int) (n []string) {\n for k := range maps.Keys(m) { n = append(n, k) }\n return n }", "maps.Keys"},
		{"sorted keys", "import (\"maps\"; \"slices\")\nfunc f(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }", ""},
		{"a float", "func f(a, b int64) int64 { return int64(float64(a) / float64(b)) }", "floats"},
		{"a float by name", "func f(x float64) float64 { y := x; return y }", "floats"},
		{"a round constant", "const second = 1e6\nfunc f(a int64) int64 { return a * second }", ""},
		{"a lock", `import "sync"; var mu sync.Mutex`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, "x.go", "package x\n"+c.code, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			info, err := typeCheck(fset, "x", []*ast.File{file}, exports)
			if err != nil {
				t.Fatal(err)
			}
			name := "fsm/state/x.go"
			if strings.HasPrefix(c.name, "elsewhere: ") {
				name = "fsm/x.go"
			}
			found := check(fset, info, file, name)
			var all []string
			for _, f := range found {
				all = append(all, f.at+" "+f.what)
			}
			got := strings.Join(all, "; ")
			if c.want == "" && got != "" {
				t.Errorf("found %s", got)
			}
			if c.want != "" && !strings.Contains(got, c.want) {
				t.Errorf("found %q, want something about %q", got, c.want)
			}
		})
	}
}
