package conformance

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

// beat is how long the shortest things last within which a test has to act: an
// offer that it starts, a deadline that something has to be under way by. It is
// some hundred times what that takes on a quiet machine.
const beat = pace * 4 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	// A test here mostly waits: for a lease to end, for a ping, for the ten
	// seconds of a hello. More of them wait side by side than there are
	// processors, but not all begin at once.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := flag.Set("test.parallel", "24"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := closeShared(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "the shared node:", err)
		code = max(code, 1)
	}
	// Whatever was sent to a node, it must never have met a fault of its own.
	for _, line := range faults.all() {
		_, _ = fmt.Fprintln(os.Stderr, "a node logged an error:", line)
		code = max(code, 1)
	}
	os.Exit(code)
}
