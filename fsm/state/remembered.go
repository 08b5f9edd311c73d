package state

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// remembered says of most Idempotency-Keys that nobody has used them, without
// asking the store, which is what a submission with a new key would spend a
// good part of its time on. It is a row of Bloom filters. Keys are forgotten in the
// order in which they came, so a filter is dropped as a whole once the last of its
// keys has been forgotten, and never has to be built again. A key that is forgotten
// earlier, with its namespace, costs a look into the store at the worst.
type remembered struct {
	filters []keyFilter // by the time their last key is forgotten
	unread  []byte      // the key of the first timer that has not been looked at since the start; nil: all were
}

// keyFilter holds the hashes of keys: a bit in each of the eight words of one block.
type keyFilter struct {
	blocks []filterBlock
	room   int   // for how many more keys
	until  int64 // when the last of them is forgotten, Unix microseconds
}

type filterBlock [8]uint32

const (
	// filterKeys and filterKeysMax are how many keys the first and the largest
	// filter hold; each is twice as large as the one before.
	filterKeys    = 16 << 10
	filterKeysMax = 16 << 20
	// blockKeys is how many keys a block of 32 bytes is for: 12.8 bits for each,
	// with which some 0.5 % of unused keys are looked up all the same.
	blockKeys = 20
)

// add notes a key, by its hash, that is remembered until some time.
func (r *remembered) add(hash ID, until int64) {
	last := len(r.filters) - 1
	if last < 0 || r.filters[last].room == 0 {
		size := filterKeys
		if last >= 0 {
			size = min(2*blockKeys*len(r.filters[last].blocks), filterKeysMax)
		}
		r.filters = append(r.filters, keyFilter{blocks: make([]filterBlock, (size+blockKeys-1)/blockKeys), room: size})
		last++
	}
	f := &r.filters[last]
	b, bits := f.place(hash)
	for i := range b {
		b[i] |= 1 << (bits >> (5 * i) & 31)
	}
	f.room--
	f.until = max(f.until, until)
}

// place is the block of a key and five bits for each word of it.
func (f *keyFilter) place(hash ID) (*filterBlock, uint64) {
	at := binary.LittleEndian.Uint64(hash[:8]) % uint64(len(f.blocks))
	return &f.blocks[at], binary.LittleEndian.Uint64(hash[8:])
}

// may says that a key is perhaps remembered; if not, it certainly is not.
func (r *remembered) may(hash ID) bool {
	if r.unread != nil {
		return true
	}
	for i := range r.filters {
		b, bits := r.filters[i].place(hash)
		all := uint32(1)
		for w := range b {
			all &= b[w] >> (bits >> (5 * w) & 31)
		}
		if all == 1 {
			return true
		}
	}
	return false
}

// forget drops what is about keys alone that are remembered until before a time. The
// caller has deleted the rows of all of them.
func (r *remembered) forget(before int64) {
	n := 0
	for n < len(r.filters) && r.filters[n].until < before {
		n++
	}
	r.filters = slices.Delete(r.filters, 0, n)
}

// timersRead is how many timers an entry looks at for the keys of before the start.
// It takes about half a millisecond; a million would be half a second of the start.
const timersRead = 2_048

// readRemembered goes on finding the keys that were there at the start: each has a
// timer with its hash. Until all are found, the store is asked.
func (s *State) readRemembered() error {
	r := &s.remembered
	if r.unread == nil {
		return nil
	}
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: r.unread, UpperBound: []byte{tableTimer + 1}})
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	n := 0
	for iter.First(); iter.Valid() && n < timersRead; iter.Next() {
		n++
		key := iter.Key()
		if len(key) != timerKeyBytes {
			_ = iter.Close()
			return fmt.Errorf("timer row %x is damaged", key)
		}
		if TimerKind(key[9]) == TimerIdempotency {
			r.add(ID(key[10:]), int64(binary.BigEndian.Uint64(key[1:])))
		}
	}
	if iter.Valid() {
		r.unread = slices.Clone(iter.Key())
	} else {
		r.unread = nil
	}
	if err := iter.Close(); err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	return nil
}
