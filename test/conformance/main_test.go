package conformance

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A test here mostly waits: for a lease to end, for a ping, for the ten
	// seconds of a hello. As many as there are may wait side by side, whatever
	// the number of processors.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := flag.Set("test.parallel", "256"); err != nil {
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
