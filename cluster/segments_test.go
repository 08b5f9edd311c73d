package cluster

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Appends wait for a deletion, so it must not wait for the file system.
func TestADeletedSegmentLosesItsNameAtOnceAndGoesLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "1.wal")
	if err := os.WriteFile(path, make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	_, removing, err := openSegments(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := removing.Close(); err != nil { // the process ends before it comes to it
		t.Fatal(err)
	}
	if err := (segmentFiles{removing: removing}).Delete(dir, "1.wal"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 1 || got[0] != "1.wal"+goneSuffix {
		t.Fatalf("there are %v", got)
	}
	if err := (segmentFiles{removing: removing}).Delete(dir, "1.wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted again: %v", err)
	}
	_, removing, err = openSegments(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	removing.Wait()
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("after the next start there are %v", got)
	}
}

func TestALogOpensBesideSegmentsThatHaveLeftIt(t *testing.T) {
	t.Parallel()
	d := newDisk(t, LogStoreWAL)
	if err := d.with(func(s *stores) { term(t, s, 3); d.append(s, 1, 5) }); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(d.cfg.Dir, walDir, "00000000000000000001-0000000000000009.wal"+goneSuffix)
	if err := os.WriteFile(gone, []byte("anything"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := d.with(func(s *stores) {
		if last, err := s.logs.LastIndex(); err != nil || last != 5 {
			t.Errorf("the log ends at %d: %v", last, err)
		}
		eventually(t, "what has left the log is removed", func() bool { return !exists(gone) })
	})
	if err != nil {
		t.Fatal(err)
	}
}
