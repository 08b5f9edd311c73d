// Package allocs holds the allocations of hot paths to committed figures. They
// depend on the code and, unlike time, not on the machine. Tests alone use it.
package allocs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update-allocations", false, "write the files of allocations anew")

// Path is something that runs often.
type Path struct {
	Name string // one word
	Run  func() // once
}

const runs = 100

// Hold compares what each path allocates with a file, as Compare does. More than it
// says, or less by a tenth, fails: a change that needs more has to say so, and one
// that needs less keeps it that way. The test must not be parallel.
func Hold(t *testing.T, file string, paths []Path) {
	t.Helper()
	var got []Figure
	for _, p := range paths {
		got = append(got, Figure{p.Name, testing.AllocsPerRun(runs, p.Run)})
	}
	Compare(t, file, got, func(is, want float64) bool { return is <= want && is >= want-max(want/10, 1) })
}

// Figure is what something allocates.
type Figure struct {
	Name string // one word
	Is   float64
}

// Compare holds figures to a file that has a line "name allocations" for each, and
// fails where like says that they are not alike.
func Compare(t *testing.T, file string, got []Figure, like func(is, want float64) bool) {
	t.Helper()
	var lines strings.Builder
	figures := make(map[string]float64, len(got))
	for _, f := range got {
		figures[f.Name] = f.Is
		fmt.Fprintf(&lines, "%s %.0f\n", f.Name, f.Is)
	}
	if *update {
		if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var want float64
		if _, err := fmt.Sscan(line, &name, &want); err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
		is, ok := figures[name]
		delete(figures, name)
		switch {
		case !ok:
			t.Errorf("%s has a line for %s, which is not measured", file, name)
		case !like(is, want):
			t.Errorf("%s: %.0f allocations, and %s says %.0f: if that has to be, run this test with -update-allocations", name, is, file, want)
		}
	}
	for name := range figures {
		t.Errorf("%s has no line for %s: run this test with -update-allocations", file, name)
	}
}
