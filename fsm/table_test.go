package fsm

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"pulse/fsm/state"
)

// withRow puts a row into the store of a machine that is closed, or takes it out.
func withRow(t *testing.T, dir, key string, put bool) {
	t.Helper()
	stores, err := filepath.Glob(filepath.Join(dir, "store-*"))
	if err != nil || len(stores) != 1 {
		t.Fatal(stores, err)
	}
	s, err := state.Open(stores[0], state.Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	db, err := s.Settled()
	if err == nil && put {
		err = db.Set([]byte(key), []byte("row"), pebble.NoSync)
	} else if err == nil {
		err = db.Delete([]byte(key), pebble.NoSync)
	}
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

// A row of a table that this version does not know was written by a newer one. What
// there is beside it is not the state, so neither a store nor a snapshot is taken
// without it; and nothing that was there before is lost.
func TestRowsOfATableThatIsNotKnownAreRefused(t *testing.T) {
	t.Parallel()
	for key, table := range map[string]string{
		"\x00first": `"\x00"`, "Lock": `"L"`, "uni": `"u"`, "\xfflast": `"\xff"`, "Kz": `"Kz"`, "K": `"K"`,
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			story := newStory(t)
			story.submit("a", nil).submit("b", nil).apply()
			dir := t.TempDir()
			newer := Options{Dir: filepath.Join(dir, "newer")}
			checkpoint := func(name string) *bytes.Buffer {
				var stream bytes.Buffer
				if _, err := state.WriteStream(filepath.Join(dir, name), &stream); err != nil {
					t.Fatal(err)
				}
				return &stream
			}
			if _, err := story.m.Checkpoint(filepath.Join(dir, "sound")); err != nil {
				t.Fatal(err)
			}
			m, err := Open(newer)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(m.Restore(checkpoint("sound"), story.index), m.Close()); err != nil {
				t.Fatal(err)
			}
			withRow(t, newer.Dir, key, true)
			named := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "table "+table) || !strings.Contains(err.Error(), "a newer version") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err = Open(newer); err == nil {
				t.Fatal("the store is opened")
			}
			named("the store", err)

			// Its snapshot, for a follower or as a backup.
			stores, err := filepath.Glob(filepath.Join(newer.Dir, "store-*"))
			if err != nil {
				t.Fatal(err)
			}
			s, err := state.Open(stores[0], state.Tuning{})
			if err != nil {
				t.Fatal(err)
			}
			finish, err := s.Checkpoint(filepath.Join(dir, "strange"))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(finish(), s.Close()); err != nil {
				t.Fatal(err)
			}
			stream := checkpoint("strange")
			_, err = state.VerifyStream(bytes.NewReader(stream.Bytes()))
			named("verifying its snapshot", err)
			if !errors.Is(err, state.ErrSnapshotFormat) {
				t.Errorf("it is no question of the format: %v", err)
			}
			before := hashes(t, story.m)
			named("restoring its snapshot", story.m.Restore(stream, 900))
			if after := hashes(t, story.m); after != before {
				t.Errorf("the state before is lost: %s, then %s", before, after)
			}
			story.submit("c", nil).apply()

			// The refusal has taken nothing from the store either.
			withRow(t, newer.Dir, key, false)
			if m, err = Open(newer); err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if got := hashes(t, m); got != before {
				t.Errorf("without the row the state is %s, want %s", got, before)
			}
		})
	}
}
