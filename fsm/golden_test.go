package fsm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulse/fsm/state"
)

// Golden logs and snapshots are what a version of Pulse has written: each later
// one has to make the same state of them, bit by bit, for as long as it reads the
// format. There is a directory for each release and one, "unreleased", for what
// is in the making, which alone may be written anew:
//
//	go test ./fsm -run Golden -golden unreleased
//
// A directory holds, for each story of story_test.go, its log, a snapshot from
// the middle of it, and a line in hashes.txt: the story, the snapshot's index,
// the last index, and the state hash and the hash over all rows at both.
const goldenDir = "testdata/golden"

var writeGolden = flag.String("golden", "", "write the golden logs and snapshots of this version, by the name of the release")

// goldenEntry is an entry of a golden log.
type goldenEntry struct {
	index, term uint64
	data        []byte
}

func appendGolden(b []byte, e goldenEntry) []byte {
	b = binary.AppendUvarint(b, e.index)
	b = binary.AppendUvarint(b, e.term)
	b = binary.AppendUvarint(b, uint64(len(e.data)))
	return append(b, e.data...)
}

func readGolden(t *testing.T, path string) (entries []goldenEntry) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := bufio.NewReader(file)
	for {
		var e goldenEntry
		var length uint64
		for _, into := range []*uint64{&e.index, &e.term, &length} {
			if *into, err = binary.ReadUvarint(r); errors.Is(err, io.EOF) && into == &e.index {
				return entries
			} else if err != nil {
				t.Fatal(err)
			}
		}
		e.data = make([]byte, length)
		if _, err := io.ReadFull(r, e.data); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
}

// hashes are the two of a state: over its history and over its rows.
func hashes(t *testing.T, m *Machine) string {
	t.Helper()
	scan, err := m.ScanHash()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x %x", m.StateHash(), scan)
}

func openMachine(t *testing.T) *Machine {
	t.Helper()
	m, err := Open(Options{Dir: t.TempDir(), MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func goldenName(story string) string {
	return strings.ReplaceAll(strings.ReplaceAll(story, " ", "-"), ",", "")
}

func writeGoldens(t *testing.T, dir string) {
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name, tell := range stories {
		s := newStory(t)
		tell(s)
		if s.restored {
			continue // its log does not begin with nothing
		}
		name = goldenName(name)
		m := openMachine(t)
		var log []byte
		var middle string
		half := s.log[len(s.log)/2].index
		for _, e := range s.log {
			m.Apply(e.index, e.term, e.data)
			log = appendGolden(log, e)
			if e.index != half {
				continue
			}
			checkpoint := filepath.Join(t.TempDir(), "checkpoint")
			if _, err := m.Checkpoint(checkpoint); err != nil {
				t.Fatal(err)
			}
			var stream bytes.Buffer
			if _, err := state.WriteStream(checkpoint, &stream); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name+".snapshot"), stream.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			middle = hashes(t, m)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".log"), log, 0o644); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %d %s %d %s\n", name, half, middle, m.AppliedIndex(), hashes(t, m)))
	}
	slices.Sort(lines)
	if err := os.WriteFile(filepath.Join(dir, "hashes.txt"), []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGoldenLogsAndSnapshotsMakeTheSameState(t *testing.T) {
	if *writeGolden != "" {
		writeGoldens(t, filepath.Join(goldenDir, *writeGolden))
	}
	lists, err := filepath.Glob(filepath.Join(goldenDir, "*", "hashes.txt"))
	if err != nil || len(lists) == 0 {
		t.Fatalf("no golden logs: %v", err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) < 5 {
			t.Errorf("%s has %d logs", list, len(lines))
		}
		for _, line := range lines {
			f := strings.Fields(line)
			if len(f) != 7 {
				t.Fatalf("%s: %q", list, line)
			}
			base := filepath.Join(filepath.Dir(list), f[0])
			t.Run(filepath.Base(filepath.Dir(list))+"/"+f[0], func(t *testing.T) {
				t.Parallel()
				replayGolden(t, base, f[1], f[2]+" "+f[3], f[5]+" "+f[6])
			})
		}
	}
}

// replayGolden makes the last state from the log alone, and from the snapshot and
// the rest of the log.
func replayGolden(t *testing.T, base, half, middle, last string) {
	const advice = "a released format must go on making the same state; of an unreleased one, look at the change and write it anew with -golden unreleased"
	log := readGolden(t, base+".log")
	whole, rest := openMachine(t), openMachine(t)
	snapshot, err := os.Open(base + ".snapshot")
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	if err := rest.Restore(snapshot, 0); err != nil {
		t.Fatalf("the snapshot: %v; %s", err, advice)
	}
	if got := hashes(t, rest); got != middle || fmt.Sprint(rest.AppliedIndex()) != half {
		t.Errorf("the snapshot is of index %d, %s, want %s, %s; %s", rest.AppliedIndex(), got, half, middle, advice)
	}
	for _, e := range log {
		whole.Apply(e.index, e.term, e.data)
		rest.Apply(e.index, e.term, e.data)
	}
	if got := hashes(t, whole); got != last {
		t.Errorf("the log makes %s, want %s; %s", got, last, advice)
	}
	if got := hashes(t, rest); got != last {
		t.Errorf("the snapshot and the rest of the log make %s, want %s; %s", got, last, advice)
	}
}
