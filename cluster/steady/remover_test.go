package steady

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestADirectoryIsRemovedAndWhatElseNamesItsFilesKeepsThemWhole(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), random(t, 3*freedBytes+7)
	doomed, kept := filepath.Join(dir, "doomed"), filepath.Join(dir, "kept")
	if err := os.MkdirAll(filepath.Join(doomed, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stream", "shared", "below/other", "empty"} {
		content := want
		if name == "empty" {
			content = nil
		}
		if err := os.WriteFile(filepath.Join(doomed, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(doomed, "shared"), kept); err != nil {
		t.Fatal(err)
	}
	r := NewRemover(slog.New(slog.DiscardHandler))
	r.Remove(doomed)
	r.Wait()
	if _, err := os.Stat(doomed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if got, err := os.ReadFile(kept); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file of two names comes back as %d bytes of %d: %v", len(got), len(want), err)
	}
	if err := r.remove(doomed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed again: %v", err)
	}
}

func TestWhatAClosedRemoverHasNotComeToStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for _, path := range []string{first, second} {
		if err := os.WriteFile(path, make([]byte, 3*freedBytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := NewRemover(slog.New(slog.DiscardHandler))
	r.turn.Lock() // as if something large were under way
	r.Remove(first)
	closed := make(chan error)
	go func() { closed <- r.Close() }()
	<-r.stop
	r.turn.Unlock()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	r.Remove(second)
	for _, path := range []string{first, second} {
		if info, err := os.Stat(path); err != nil || info.Size() != 3*freedBytes {
			t.Errorf("%s: %v", path, err)
		}
	}
}
