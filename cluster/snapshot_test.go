package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// names lists what is in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (n *testNode) snapshot(t *testing.T) {
	t.Helper()
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
}

// newestDir is the directory of the newest snapshot.
func (n *testNode) newestDir(t *testing.T) string {
	t.Helper()
	meta, _, ok := n.snaps.newest()
	if !ok {
		t.Fatal("there is no snapshot")
	}
	return filepath.Join(n.dir, "raft", snapshotsDir, meta.ID)
}

func TestASnapshotBringsTheStateBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, dir, nil).lead(t)
	for i := range 10 {
		n.submit(t, fmt.Sprint("a", i))
	}
	n.snapshot(t)
	for i := range 10 {
		n.submit(t, fmt.Sprint("b", i))
	}
	rows := n.machine.rows(t)
	n.shut(t)

	// The store is gone; snapshot and log have everything.
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, dir, nil).lead(t)
	if got := n.machine.rows(t); !mapsEqual(got, rows) {
		t.Fatalf("%d rows, want %d", len(got), len(rows))
	}
	if got := len(n.machine.entries()); got != 11 { // ten after the snapshot, and the opening
		t.Fatalf("%d entries were applied", got)
	}
	if n.counters.Restores.Load() != 1 {
		t.Fatal("the snapshot was not used")
	}
	eventually(t, "it is ready", func() bool { return n.Status().Ready })
}

// A snapshot lets raft drop entries, so what they changed must be on the disk.
func TestPersistingFlushesTheLiveStore(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "a")
	if tables := flushed(n.machine); tables != 0 {
		t.Fatalf("%d tables before the snapshot", tables)
	}
	n.snapshot(t)
	if tables := flushed(n.machine); tables == 0 {
		t.Fatal("the store was not flushed")
	}
}

func flushed(m *fakeMachine) int64 {
	total := m.db.Metrics().Total()
	return total.TablesCount
}

func TestOnlyTheNewestSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	for i := range 4 {
		n.submit(t, fmt.Sprint(i))
		n.snapshot(t)
	}
	n.snaps.removing.Wait()
	if got := names(t, filepath.Join(n.dir, "raft", snapshotsDir)); len(got) != snapshotsKept {
		t.Fatalf("kept %v", got)
	}
	metas, err := n.snaps.List()
	if err != nil || len(metas) != 2 || metas[0].Index <= metas[1].Index {
		t.Fatalf("list %v, %v", metas, err)
	}
}

// The process need not wait for what is being removed.
func TestAnOldSnapshotIsNoneFromTheStartAndGoesAtTheNextOne(t *testing.T) {
	t.Parallel()
	whole := stream(t)
	s := testStore(t)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(snapshotsKept + 1) {
		k, err := s.Create(1, 20+i, 3, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Write(whole); err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got := names(t, s.dir)
	if whole := slices.DeleteFunc(slices.Clone(got), func(name string) bool { return strings.HasSuffix(name, tmpSuffix) }); len(whole) != snapshotsKept || len(got) != snapshotsKept+1 {
		t.Fatalf("there are %v", got)
	}
	if _, err := openSnapshotStore(s.dir, s.logger, s.counters); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s.dir); len(got) != snapshotsKept {
		t.Fatalf("after the next start there are %v", got)
	}
}

func TestASnapshotThatIsReadStaysUntilItIsClosed(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "a")
	n.snapshot(t)
	id := filepath.Base(n.newestDir(t))
	meta, first, err := n.snaps.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := n.snaps.Open(id) // Pebble opens a directory once
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		n.submit(t, fmt.Sprint(i))
		n.snapshot(t)
	}
	for _, r := range []io.ReadCloser{first, second} {
		data, err := io.ReadAll(r)
		if err != nil || int64(len(data)) != meta.Size {
			t.Fatalf("%d bytes of %d, %v", len(data), meta.Size, err)
		}
		if _, err := state.VerifyStream(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Fatal(err)
		}
	}
	n.snaps.removing.Wait()
	if got := names(t, filepath.Join(n.dir, "raft", snapshotsDir)); len(got) != snapshotsKept {
		t.Fatalf("kept %v", got)
	}
}

func TestAStreamGivenUpHalfWayLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	c := submission("large", 8<<20)
	if _, err := n.Propose(t.Context(), []*pb.Command{c}); err != nil {
		t.Fatal(err)
	}
	n.snapshot(t)
	_, r, err := n.snaps.Open(filepath.Base(n.newestDir(t)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if snap := n.snaps.list[0]; snap.readers != 0 || snap.open != nil {
		t.Fatalf("%d readers, open %v", snap.readers, snap.open)
	}
}

func TestBackupIsAFreshVerifiedStream(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	for i := range 5 {
		n.submit(t, fmt.Sprint(i))
	}
	for range 2 { // again with nothing new
		var file bytes.Buffer
		h, err := n.Backup(t.Context(), &file)
		if err != nil {
			t.Fatal(err)
		}
		if h.AppliedIndex != n.machine.AppliedIndex() || h.Rows != 6 || fmt.Sprintf("%x", h.StateHash) != n.machine.hash() {
			t.Fatalf("header %+v", h)
		}
		dst := filepath.Join(t.TempDir(), "restored")
		if _, err := state.ReadStream(&file, dst); err != nil {
			t.Fatal(err)
		}
		m := openFake(t, dst)
		if !mapsEqual(m.rows(t), n.machine.rows(t)) {
			t.Fatal("the backup holds other rows")
		}
	}
	if _, err := n.Backup(t.Context(), failingWriter{}); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Fatalf("a backup that could not be written: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Backup(ended, io.Discard); err == nil {
		t.Fatal("a backup nobody waits for")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no room") }

// Each of these is what a crash leaves at one point of making a snapshot.
func TestUnfinishedSnapshotsAreRemovedAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, dir, nil).lead(t)
	n.submit(t, "a")
	n.snapshot(t)
	whole := n.newestDir(t)
	n.shut(t)
	snaps := filepath.Join(dir, "raft", snapshotsDir)
	for _, path := range []string{
		"checkpoint-7.tmp/000004.sst",            // while the machine makes it
		"2-9-8.tmp",                              // before it is adopted
		"2-9-9.tmp/checkpoint/000004.sst",        // before its meta is written
		"2-9-10.tmp/" + metaFile,                 // before its name
		"2-9-11.tmp/" + streamFile,               // while a stream arrived at an earlier version
		"2-9-12.tmp/checkpoint/incoming/0.sst",   // while one arrives
		filepath.Base(whole) + "x.tmp/meta.json", // while an old one is removed
	} {
		path = filepath.Join(snaps, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	startNode(t, dir, nil).lead(t)
	if got := names(t, snaps); len(got) != 1 || got[0] != filepath.Base(whole) {
		t.Fatalf("left %v", got)
	}
}

// Files that are whole and rows that are of another state than the meta says.
func TestASnapshotHoldsTheStateThatItNames(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "a")
	n.snapshot(t)
	n.snaps.list[0].header.StateHash[0]++
	dir := n.newestDir(t)
	_, _, err := n.snaps.Open(filepath.Base(dir))
	wantWayOut(t, err, dir)
}

// damageCase is a way to spoil a snapshot on the disk.
type damageCase struct {
	name  string
	spoil func(t *testing.T, dir string)
}

func flip(t *testing.T, path string, at func(size int) int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at(len(data))] ^= 1
	// A hard link shares its bytes with the live store: give it some of its own.
	if err := errors.Join(os.Remove(path), os.WriteFile(path, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func oneOf(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("nothing matches %s: %v", pattern, err)
	}
	return found[0]
}

var contentDamage = []damageCase{
	{"a flipped bit in a table", func(t *testing.T, dir string) {
		flip(t, oneOf(t, filepath.Join(dir, checkpointDir, "*.sst")), func(int) int { return 20 })
	}},
	{"a flipped bit in the manifest", func(t *testing.T, dir string) {
		flip(t, oneOf(t, filepath.Join(dir, checkpointDir, "MANIFEST-*")), func(size int) int { return size / 2 })
	}},
	{"a missing table", func(t *testing.T, dir string) {
		if err := os.Remove(oneOf(t, filepath.Join(dir, checkpointDir, "*.sst"))); err != nil {
			t.Fatal(err)
		}
	}},
	{"an empty directory", func(t *testing.T, dir string) {
		path := filepath.Join(dir, checkpointDir)
		if err := errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
	}},
}

// spoiled makes a node with a snapshot that holds a table, and spoils it.
func spoiled(t *testing.T, spoil func(t *testing.T, dir string)) *testNode {
	t.Helper()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "a")
	n.snapshot(t)
	n.submit(t, "b")
	n.snapshot(t) // the first one's flush made the table that this one links
	spoil(t, n.newestDir(t))
	return n
}

func wantWayOut(t *testing.T, err error, path string) {
	t.Helper()
	if err == nil {
		t.Fatal("a damaged snapshot was taken")
	}
	for _, part := range []string{path, "is damaged", "Move that directory away"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the message does not say %q: %v", part, err)
		}
	}
}

func TestADamagedSnapshotIsNotHandedOn(t *testing.T) {
	t.Parallel()
	for _, tc := range contentDamage {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := spoiled(t, tc.spoil)
			dir := n.newestDir(t)
			_, _, err := n.snaps.Open(filepath.Base(dir))
			wantWayOut(t, err, dir)
			// The live state is whole: a fresh snapshot is.
			n.submit(t, "c")
			if _, err := n.Backup(t.Context(), io.Discard); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestANodeThatNeedsADamagedSnapshotDoesNotStart(t *testing.T) {
	t.Parallel()
	cases := append([]damageCase{
		{"a flipped bit in the meta", func(t *testing.T, dir string) {
			flip(t, filepath.Join(dir, metaFile), func(size int) int { return size / 2 })
		}},
		{"another number in the meta", func(t *testing.T, dir string) {
			path := filepath.Join(dir, metaFile)
			data, err := os.ReadFile(path)
			changed := bytes.Replace(data, []byte(`"ConfigurationIndex":1`), []byte(`"ConfigurationIndex":2`), 1)
			if err != nil || bytes.Equal(changed, data) {
				t.Fatalf("%s, %v", data, err)
			}
			if err := os.WriteFile(path, changed, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"half a meta", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, metaFile), 100); err != nil {
				t.Fatal(err)
			}
		}},
		{"no meta", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, metaFile)); err != nil {
				t.Fatal(err)
			}
		}},
		{"no content", func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, checkpointDir)); err != nil {
				t.Fatal(err)
			}
		}},
		{"another one's meta", func(t *testing.T, dir string) {
			all, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "*", metaFile))
			other := slices.DeleteFunc(all, func(path string) bool { return filepath.Dir(path) == dir })
			if err != nil || len(other) != 1 {
				t.Fatal(all, err)
			}
			data, err := os.ReadFile(other[0])
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, metaFile), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	}, contentDamage...)
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := spoiled(t, tc.spoil)
			dir := n.newestDir(t)
			n.shut(t)
			if err := os.RemoveAll(filepath.Join(n.dir, "state")); err != nil {
				t.Fatal(err)
			}
			cfg := testConfig(t, n.dir)
			cfg.Machine = openFake(t, filepath.Join(n.dir, "state"))
			again, err := Open(cfg)
			if err == nil {
				defer (&testNode{again, cfg.Machine.(*fakeMachine), n.dir}).shut(t)
			}
			wantWayOut(t, err, dir)
		})
	}
}

// The way out that the message names.
func TestWithoutTheDamagedSnapshotTheNodeGoesOn(t *testing.T) {
	t.Parallel()
	n := spoiled(t, contentDamage[0].spoil)
	rows, dir := n.machine.rows(t), n.newestDir(t)
	n.shut(t)
	if err := os.Rename(dir, filepath.Join(n.dir, "away")); err != nil {
		t.Fatal(err)
	}
	again := startNode(t, n.dir, nil).lead(t)
	if !mapsEqual(again.machine.rows(t), rows) {
		t.Fatal("rows are missing")
	}
}

func TestStateLogAndSnapshotsHaveToFitTogether(t *testing.T) {
	t.Parallel()
	t.Run("a state that is ahead of its log", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		n := startNode(t, dir, nil).lead(t)
		n.submit(t, "a")
		n.shut(t)
		if err := os.RemoveAll(filepath.Join(dir, "raft")); err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(t, dir)
		cfg.Machine = openFake(t, filepath.Join(dir, "state"))
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "not of the same server") {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("a log whose beginning is gone", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		with := func(c *Config) { c.TrailingEntries = 1 }
		n := startNode(t, dir, with).lead(t)
		for i := range 5 {
			n.submit(t, fmt.Sprint(i))
		}
		n.snapshot(t)
		snapshot := n.newestDir(t)
		n.shut(t)
		if err := os.RemoveAll(snapshot); err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(t, dir)
		cfg.Machine = openFake(t, filepath.Join(dir, "state"))
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "entries are missing") {
			t.Fatalf("error %v", err)
		}
	})
}

func testStore(t *testing.T) *snapshotStore {
	t.Helper()
	s, err := openSnapshotStore(t.TempDir(), slog.New(slog.DiscardHandler), &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stream makes a snapshot stream of a small state.
func stream(t *testing.T) []byte {
	t.Helper()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "a")
	var b bytes.Buffer
	if _, err := n.Backup(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAReceivedStreamIsKeptAsItCameIfItIsWhole(t *testing.T) {
	t.Parallel()
	whole := stream(t)
	altered := bytes.Clone(whole)
	altered[len(altered)/2] ^= 1
	for _, tc := range []struct {
		name string
		data []byte
		kept bool
	}{
		{"whole", whole, true},
		{"cut", whole[:len(whole)-1], false},
		{"altered", altered, false},
		{"too long", append(bytes.Clone(whole), 0), false},
		{"nothing", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := testStore(t)
			k, err := s.Create(1, 20, 3, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(tc.data) && err == nil; i += 100 {
				_, err = k.Write(tc.data[i:min(i+100, len(tc.data))])
			}
			if err != nil {
				_ = k.Cancel()
			} else {
				err = k.Close()
			}
			if (err == nil) != tc.kept {
				t.Fatalf("error %v", err)
			}
			if !tc.kept {
				if left := names(t, s.dir); len(left) != 0 {
					t.Fatalf("left %v", left)
				}
				return
			}
			checkOpens(t, s, k.ID(), whole)
			checkOpens(t, reopened(t, s), k.ID(), whole)
		})
	}
}

func reopened(t *testing.T, s *snapshotStore) *snapshotStore {
	t.Helper()
	again, err := openSnapshotStore(s.dir, s.logger, s.counters)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// checkOpens reads the snapshot of index 20 and term 3, closes it unread, and reads it
// again.
func checkOpens(t *testing.T, s *snapshotStore, id string, want []byte) {
	t.Helper()
	for _, read := range []bool{true, false, true} {
		meta, r, err := s.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		data := want
		if read {
			data, err = io.ReadAll(r)
		}
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(data, want) {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		if meta.Size != int64(len(want)) || meta.Index != 20 || meta.Term != 3 {
			t.Fatalf("meta %+v", meta)
		}
	}
}

// received is a store with one snapshot that came as a stream.
func received(t *testing.T, whole []byte) (s *snapshotStore, id string) {
	t.Helper()
	s = testStore(t)
	k, err := s.Create(1, 20, 3, raft.Configuration{}, 1, nil)
	if err == nil {
		_, err = k.Write(whole)
	}
	if err == nil {
		err = k.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, k.ID()
}

func TestAStreamThatAnEarlierVersionReceivedIsRead(t *testing.T) {
	t.Parallel()
	whole := stream(t)
	s, id := received(t, whole)
	dir := filepath.Join(s.dir, id)
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, checkpointDir)), os.WriteFile(filepath.Join(dir, streamFile), whole, 0o600)); err != nil {
		t.Fatal(err)
	}
	checkOpens(t, reopened(t, s), id, whole)
}

// What has been received is restored by taking its files, and only by the process that
// has checked them: any other reads them first.
func TestWhatWasReceivedIsRestoredOfItsFiles(t *testing.T) {
	t.Parallel()
	whole := stream(t)
	s, id := received(t, whole)
	for _, mine := range []bool{true, false} {
		if !mine {
			s = reopened(t, s)
		}
		_, r, err := s.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		dir, header, fresh := r.(*snapshotReader).fresh()
		if fresh != mine {
			t.Errorf("of this process: %t, its files may be taken: %t", mine, fresh)
		}
		m := openFake(t, filepath.Join(t.TempDir(), "state"))
		if mine {
			err = m.RestoreStore(dir, header, 20)
		} else {
			err = m.Restore(r, 20)
		}
		if err = errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		if m.AppliedIndex() != 20 {
			t.Errorf("it is restored at %d", m.AppliedIndex())
		}
		checkOpens(t, s, id, whole) // it stays what it was
	}
}

func TestADamagedSnapshotThatWasReceivedIsNotHandedOn(t *testing.T) {
	t.Parallel()
	s, id := received(t, stream(t))
	flip(t, oneOf(t, filepath.Join(s.dir, id, checkpointDir, "*.sst")), func(int) int { return 20 })
	for range 2 {
		_, r, err := s.Open(id) // it is read when it is sent
		if err == nil {
			_, err = io.ReadAll(r)
			err = errors.Join(err, r.Close())
		}
		if err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("it says %v", err)
		}
		s = reopened(t, s)
	}
}

func TestACancelledSnapshotLeavesNothing(t *testing.T) {
	t.Parallel()
	s := testStore(t)
	for _, write := range []bool{false, true} {
		k, err := s.Create(1, 20, 3, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if write {
			if _, err := k.Write([]byte("pulsesnp")); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(k.Cancel(), k.Cancel(), k.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if left := names(t, s.dir); len(left) != 0 {
		t.Fatalf("left %v", left)
	}
	if _, _, err := s.Open("3-20-1"); err == nil {
		t.Fatal("it can be opened")
	}
}

// Snapshots are taken by themselves once enough has gathered in the log.
func TestSnapshotsAreTakenAndTheLogIsCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name            string
		entries, bytes  uint64
		payload, submit int
		behind          uint64 // entries that may stay
	}{
		{"by entries", 20, 1 << 30, 10, 100, 60},
		{"by bytes", 1 << 30, 1 << 20, 100 << 10, 60, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, t.TempDir(), func(c *Config) {
				c.SnapshotEntries, c.SnapshotBytes, c.SnapshotInterval = tc.entries, tc.bytes, time.Millisecond
				c.TrailingEntries = 30
			}).lead(t)
			for i := range tc.submit {
				if _, err := n.Propose(t.Context(), []*pb.Command{submission(fmt.Sprint(i), tc.payload)}); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the log is cut", func() bool {
				first, err := n.stores.logs.FirstIndex()
				return err == nil && first+tc.behind > n.raft.LastIndex()
			})
			if trailing := n.raft.ReloadableConfig().TrailingLogs; (trailing < 30) != (tc.payload > 1000) {
				t.Fatalf("%d entries trail", trailing)
			}
		})
	}
}

// What waits for the disk is not in the way of entries.
func TestEntriesAreAppliedWhileACheckpointIsFinished(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "before")
	begun, let := make(chan struct{}), make(chan struct{})
	n.machine.set(func() {
		n.machine.finish = func() error {
			close(begun)
			<-let
			return nil
		}
	})
	taken := make(chan error, 1)
	go func() {
		_, err := n.Node.snapshot(t.Context())
		taken <- err
	}()
	<-begun
	n.submit(t, "meanwhile") // answered once it is applied
	close(let)
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	_, header, found := n.snaps.newest()
	if now := n.machine.AppliedIndex(); !found || header.AppliedIndex >= now {
		t.Errorf("the snapshot is of index %d, and %d was applied meanwhile", header.AppliedIndex, now)
	}
}

func TestACheckpointThatCannotBeFinishedIsNoSnapshot(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.submit(t, "one")
	full := errors.New("no room")
	n.machine.set(func() { n.machine.finish = func() error { return full } })
	if _, err := n.Node.snapshot(t.Context()); err == nil || !strings.Contains(err.Error(), full.Error()) {
		t.Errorf("a checkpoint failed, and the snapshot says %v", err)
	}
	if list, err := n.snaps.List(); err != nil || len(list) != 0 {
		t.Errorf("%d snapshots are there: %v", len(list), err)
	}
	left, err := os.ReadDir(n.snaps.dir)
	if err != nil || len(left) != 0 {
		t.Errorf("it has left %v: %v", left, err)
	}
	n.machine.set(func() { n.machine.finish = nil })
	n.snapshot(t)
}
