package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// storeOf n rows of one table, of up to 9 KB each, with a neighbour on either side.
func storeOf(t *testing.T, n int) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	batch := db.NewBatch()
	err = errors.Join(batch.Set([]byte{tableTask - 1}, nil, nil), batch.Set([]byte{tableTask + 1}, nil, nil))
	for i := range n {
		key := binary.BigEndian.AppendUint32([]byte{tableTask}, uint32(i))
		err = errors.Join(err, batch.Set(key, bytes.Repeat([]byte{byte(i)}, i*37%9000), nil))
	}
	if err = errors.Join(err, batch.Commit(pebble.NoSync)); err != nil {
		t.Fatal(err)
	}
	return db
}

func beside(read func()) { go read() }

func TestRowsThatAreReadAheadAreThoseOfTheTableInOrder(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 1000} {
		var want, got []string
		list := func(into *[]string) func(key, value []byte) error {
			return func(key, value []byte) error {
				*into = append(*into, fmt.Sprintf("%x=%x", key, value))
				return nil
			}
		}
		db := storeOf(t, n)
		if err := scanRaw(db, []byte{tableTask}, list(&want)); err != nil {
			t.Fatal(err)
		}
		if err := scanAhead(db, []byte{tableTask}, beside, list(&got)); err != nil {
			t.Fatal(err)
		}
		if len(got) != n || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("of %d rows %d are read ahead", n, len(got))
		}
	}
}

// Whoever does not want to go on gets that error, and the reading has ended.
func TestReadingAheadEndsWithTheFirstError(t *testing.T) {
	t.Parallel()
	db, enough := storeOf(t, 1000), errors.New("enough")
	for _, after := range []int{1, 500, 1000} {
		ended, n := make(chan struct{}), 0
		err := scanAhead(db, []byte{tableTask}, func(read func()) { go func() { defer close(ended); read() }() }, func(_, _ []byte) error {
			if n++; n == after {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || n != after {
			t.Errorf("after %d rows, not %d: %v", n, after, err)
		}
		<-ended
	}
}

// cannotRead fails where rows are read.
type cannotRead struct{ Reader }

var errUnreadable = errors.New("unreadable")

func (cannotRead) NewIter(*pebble.IterOptions) (*pebble.Iterator, error) { return nil, errUnreadable }

func TestReadingAheadSaysWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	err := scanAhead(cannotRead{}, []byte{tableTask}, beside, func(_, _ []byte) error { return nil })
	if !errors.Is(err, errUnreadable) {
		t.Errorf("it says %v", err)
	}
}
