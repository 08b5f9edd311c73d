package property

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pulse/fsm"
)

// replayEnv names a file with entries; a process that finds it applies them
// and prints the state hash after each.
const replayEnv = "PULSE_PROPERTY_REPLAY"

// TestSecondProcess: another process, with another number of threads and other
// seeds of its maps, comes to the same state hash at every index (C1).
func TestSecondProcess(t *testing.T) {
	gen := rapid.Custom(func(rt *rapid.T) *world {
		w, v := history(rt)
		if v != nil {
			t.Fatal(v) // TestMachine finds it too, and cuts it down
		}
		return w
	})
	for seed := range 3 {
		w := gen.Example(seed)
		path := filepath.Join(t.TempDir(), "entries")
		var file bytes.Buffer
		for _, s := range w.history {
			if s.kind != stepApply {
				continue
			}
			data, err := fsm.EncodeEntry(s.entry)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&file, "%d %d %x\n", s.index, s.term, data)
		}
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), replayEnv+"="+path, fmt.Sprintf("GOMAXPROCS=%d", 1+3*(seed%2)))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("the second process: %v\n%s", err, &said)
		}
		if want := strings.Join(w.hashes, "\n") + "\n"; string(out) != want {
			t.Errorf("C1: the second process came to other state hashes:\n%s", difference(want, string(out)))
		}
	}
}

func replayProcess(path string) int {
	fail := func(err error) int {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	dir, err := os.MkdirTemp(scratch(), "pulse-property-")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	m, err := fsm.Open(fsm.Options{Dir: dir, FormatLevel: 2})
	if err != nil {
		return fail(err)
	}
	for line := range strings.Lines(string(data)) {
		var index, term uint64
		var entry []byte
		if _, err := fmt.Sscanf(line, "%d %d %x", &index, &term, &entry); err != nil {
			return fail(err)
		}
		m.Apply(index, term, entry)
		if _, err := fmt.Fprintf(os.Stdout, "%x\n", m.StateHash()); err != nil {
			return fail(err)
		}
	}
	if err := m.Close(); err != nil {
		return fail(err)
	}
	return 0
}
