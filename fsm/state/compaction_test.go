package state

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func openStore(t *testing.T, in vfs.FS, change func(*pebble.Options)) *pebble.DB {
	t.Helper()
	options := small.in(in).options()
	options.FS = in
	change(options)
	db, err := pebble.Open(storeDir, options)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// unmerged is a store with tables that overlap, and more of them than are left so.
func unmerged(t *testing.T) vfs.FS {
	t.Helper()
	mem := vfs.NewMem()
	db := openStore(t, mem, func(o *pebble.Options) { o.DisableAutomaticCompactions = true })
	for i := range 20 {
		for _, n := range []byte{1, 255} {
			if err := db.Set(blobKey(n), fmt.Append(nil, i), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return mem
}

// merging counts the compactions of a store, begun or over.
func merging(db *pebble.DB) int64 {
	m := db.Metrics()
	return m.Compact.Count + m.Compact.NumInProgress
}

// A store that has much to merge is left alone until it is told that it is loaded, and
// merged then without waiting for anything else to happen.
func TestAStoreIsMergedOnceItIsLoaded(t *testing.T) {
	t.Parallel()
	compacting := newCompactions()
	db := openStore(t, unmerged(t), func(o *pebble.Options) { o.Experimental.CompactionScheduler = compacting })
	if n := merging(db); n != 0 {
		t.Errorf("%d compactions before it is loaded", n)
	}
	compacting.begin()
	if merging(db) == 0 {
		t.Error("no compaction once it is loaded")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	s, err := Open(storeDir, small.in(unmerged(t)))
	if err != nil {
		t.Fatal(err)
	}
	if merging(s.db) == 0 {
		t.Error("no compaction once a state is open")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
