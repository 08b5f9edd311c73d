package state

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	pb "pulse/proto/pulse/v1"
)

// key of a table without an index, so that a test may put what it likes.
func blobKey(n byte) []byte { return key1(tablePayload, ID{n}) }

func openState(t *testing.T) *State {
	t.Helper()
	s, err := Open(t.TempDir(), Tuning{MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// entry applies one entry that does nothing but change.
func entry(t *testing.T, s *State, change func(*Tx)) {
	t.Helper()
	tx := s.Begin(s.Meta().AppliedIndex+1, 1, 0)
	change(tx)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, s *State, key []byte) bool {
	t.Helper()
	_, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = closer.Close() // read only
	return true
}

func seen(t *testing.T, s *State, key []byte) string {
	t.Helper()
	value, _, err := getRaw(s, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

func TestWhatIsPendingIsReadWithoutTheStore(t *testing.T) {
	t.Parallel()
	s := openState(t)
	entry(t, s, func(tx *Tx) { tx.PutPayload(ID{1}, []byte("one")); tx.PutPayload(ID{2}, []byte("two")) })
	if stored(t, s, blobKey(1)) {
		t.Fatal("an entry went straight to the store")
	}
	if got := seen(t, s, blobKey(1)); got != "one" {
		t.Errorf("pending row reads %q", got)
	}
	entry(t, s, func(tx *Tx) {
		if got := string(tx.Payload(ID{2})); got != "two" {
			t.Errorf("the next entry reads %q", got)
		}
		tx.del(blobKey(1))
	})
	if got := seen(t, s, blobKey(1)); got != "" {
		t.Errorf("deleted row reads %q", got)
	}
	var keys int
	if err := s.RowsFrom([]byte{tablePayload}, func(key, _ []byte) bool {
		keys++
		return key[0] == tablePayload
	}); err != nil || keys != 1 {
		t.Errorf("%d payloads are found by a scan: %v", keys, err)
	}
	if !stored(t, s, blobKey(2)) || !stored(t, s, MetaKey) {
		t.Error("a scan left rows pending")
	}
}

// A row that comes and goes while it is pending never reaches the store; one that
// the store has is deleted there, whatever happened to it in between.
func TestOnlyTheLastChangeOfARowReachesTheStore(t *testing.T) {
	t.Parallel()
	s := openState(t)
	put := func(n byte, fresh bool) func(*Tx) {
		return func(tx *Tx) {
			if fresh {
				tx.putRawNew(blobKey(n), []byte{n})
				return
			}
			tx.putRaw(blobKey(n), []byte{n})
		}
	}
	del := func(n byte) func(*Tx) { return func(tx *Tx) { tx.del(blobKey(n)) } }

	entry(t, s, put(1, true))
	entry(t, s, del(1))
	if c := s.pending.rows[string(blobKey(1))]; c != nil {
		t.Error("a row that came and went is still pending")
	}
	entry(t, s, put(2, true))
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Tx){del(2), put(2, true), del(2), put(3, true), del(3), put(3, false)} {
		entry(t, s, change)
	}
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[byte]bool{1: false, 2: false, 3: true} {
		if got := stored(t, s, blobKey(n)); got != want {
			t.Errorf("row %d is in the store: %t", n, got)
		}
	}
}

func TestPendingIsBounded(t *testing.T) {
	t.Parallel()
	s := openState(t)
	for n := range byte(8) {
		entry(t, s, func(tx *Tx) { tx.PutPayload(ID{n}, make([]byte, s.pending.bytesMax/4)) })
		if s.pending.bytes >= s.pending.bytesMax {
			t.Fatalf("%d bytes are pending after entry %d", s.pending.bytes, n)
		}
	}
	if !stored(t, s, blobKey(0)) {
		t.Error("nothing has reached the store")
	}
}

// A checkpoint is of the entry it was begun at, however many follow before it is
// finished, and they see each other meanwhile.
func TestEntriesGoOnWhileACheckpointIsMade(t *testing.T) {
	t.Parallel()
	s := openState(t)
	entry(t, s, func(tx *Tx) { tx.PutPayload(ID{1}, []byte("one")); tx.PutPayload(ID{2}, []byte("two")) })
	begun, dir := s.Header(), filepath.Join(t.TempDir(), "checkpoint")
	finish, err := s.Checkpoint(dir)
	if err != nil {
		t.Fatal(err)
	}

	entry(t, s, func(tx *Tx) { tx.del(blobKey(1)); tx.PutPayload(ID{3}, []byte("three")) })
	for n := range byte(2) { // more than is let gather at other times
		entry(t, s, func(tx *Tx) { tx.PutPayload(ID{4 + n}, make([]byte, s.pending.bytesMax)) })
	}
	if stored(t, s, blobKey(3)) || !stored(t, s, blobKey(1)) {
		t.Error("the store has changed while a checkpoint of it is made")
	}
	keys := func() (keys string) {
		t.Helper()
		if err := s.RowsFrom([]byte{tablePayload}, func(key, _ []byte) bool {
			if key[0] == tablePayload {
				keys += string('0' + key[1])
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return keys
	}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			if got := keys(); got != "2345" {
				t.Errorf("a scan finds %s", got)
			}
		})
	}
	readers.Wait()
	meta := &pb.MetaRow{}
	if _, err := getRow(s, MetaKey, meta); err != nil || meta.AppliedIndex != begun.AppliedIndex+3 {
		t.Errorf("the meta row is of entry %d: %v", meta.AppliedIndex, err)
	}
	if s.pending.full() {
		t.Errorf("the next entry would wait behind %d bytes", s.pending.bytes)
	}
	entry(t, s, func(tx *Tx) { tx.PutPayload(ID{6}, make([]byte, s.pending.bytesMax)) })
	if got := keys(); got != "23456" {
		t.Errorf("a scan finds %s", got)
	}

	if err := finish(); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCheckpoint(dir, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !c.Header().SameState(begun) || c.Header().Rows != 3 {
		t.Errorf("the checkpoint is of %+v, begun at %+v", c.Header(), begun)
	}
	if got := keys(); got != "23456" || !stored(t, s, blobKey(6)) || stored(t, s, blobKey(1)) {
		t.Errorf("afterwards a scan finds %s, and not what was pending is in the store", got)
	}
}

// More than its bound does not gather while a checkpoint is made.
func TestAnEntryWaitsForACheckpointWhenTooMuchIsPending(t *testing.T) {
	t.Parallel()
	s := openState(t)
	finish, err := s.Checkpoint(filepath.Join(t.TempDir(), "checkpoint"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range byte(heldTimes - 1) {
		entry(t, s, func(tx *Tx) { tx.PutPayload(ID{n}, make([]byte, s.pending.bytesMax)) })
	}
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		entry(t, s, func(tx *Tx) { tx.PutPayload(ID{100}, make([]byte, s.pending.bytesMax)) })
	}()
	select {
	case <-applied:
		t.Error("an entry found no bound")
	case <-s.Held():
		t.Error("the checkpoint is over")
	default: // the entry may be on its way; that it ends is what counts
	}
	if err := finish(); err != nil {
		t.Fatal(err)
	}
	<-applied
	if s.pending.bytes != 0 || !stored(t, s, blobKey(100)) {
		t.Errorf("%d bytes are pending after the checkpoint", s.pending.bytes)
	}
}
