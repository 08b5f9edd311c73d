package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/hashicorp/raft"
)

// sealedStable puts a checksum around every vote and term, and counts their
// changes. The file beneath has neither, and a server that forgets for whom it
// voted can help two leaders into one term.
type sealedStable struct {
	raft.StableStore
	marks *marks // nil while there are none

	// raft notes a term in the goroutine of a heartbeat, too, while its main one
	// may be at a vote. A change has its number for itself, and its mark is that
	// of a durable one: a server that was killed with the mark of the next change
	// would refuse its own disk.
	mu     sync.Mutex
	change uint64 // of the newest value
}

const (
	// sealMark begins a sealed value. One without it is of a version that did not
	// seal: a number, whose first byte is zero, or an address.
	sealMark = 1
	// countMark begins one that has the number of its change, too.
	countMark   = 2
	numberBytes = 8
)

var sealTable = crc32.MakeTable(crc32.Castagnoli)

// stableKeys are all that raft keeps.
var stableKeys = [][]byte{currentTermKey, []byte("LastVoteTerm"), []byte("LastVoteCand")}

func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, sealTable), sealTable, value)
}

// newSealedStable finds the newest change in a store. Values that cannot be read
// are found again by whoever wants them.
func newSealedStable(under raft.StableStore) *sealedStable {
	s := &sealedStable{StableStore: under}
	for _, key := range stableKeys {
		if _, change, err := s.read(key); err == nil {
			s.change = max(s.change, change)
		}
	}
	return s
}

// Set makes a change, and marks it once it is durable.
func (s *sealedStable) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change++
	sealed := binary.BigEndian.AppendUint64([]byte{countMark}, s.change)
	sealed = append(sealed, value...)
	if err := s.StableStore.Set(key, binary.BigEndian.AppendUint32(sealed, sum(key, sealed))); err != nil {
		return err
	}
	if s.marks == nil {
		return nil
	}
	return s.marks.set(true, func(m *marked) { m.change = s.change })
}

// Get returns a value as it was set, or says that it is not.
func (s *sealedStable) Get(key []byte) ([]byte, error) {
	value, _, err := s.read(key)
	return value, err
}

func (s *sealedStable) read(key []byte) (value []byte, change uint64, err error) {
	sealed, err := s.StableStore.Get(key)
	if err != nil || len(sealed) == 0 {
		return sealed, 0, err
	}
	end := len(sealed) - crc32.Size
	switch {
	case sealed[0] == countMark && end >= 1+numberBytes && binary.BigEndian.Uint32(sealed[end:]) == sum(key, sealed[:end]):
		return sealed[1+numberBytes : end], binary.BigEndian.Uint64(sealed[1:]), nil
	case sealed[0] == sealMark && end >= 1 && binary.BigEndian.Uint32(sealed[end:]) == sum(key, sealed[1:end]):
		return sealed[1:end], 0, nil
	// Nothing that was not sealed looks otherwise: a term has no other size and an
	// address begins with a letter, a digit or a bracket.
	case sealed[0] != sealMark && sealed[0] != countMark && (len(sealed) <= numberBytes || printable(sealed[0])):
		return sealed, 0, nil
	}
	return nil, 0, damagedStable(key)
}

func printable(b byte) bool { return b > ' ' && b < 0x7f }

func (s *sealedStable) SetUint64(key []byte, value uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

func (s *sealedStable) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil || len(value) == 0 {
		return 0, err
	}
	if len(value) != numberBytes {
		return 0, damagedStable(key)
	}
	return binary.BigEndian.Uint64(value), nil
}

var errStable = errors.New("the votes and terms on this disk are damaged" + startEmpty)

func damagedStable(key []byte) error {
	return fmt.Errorf("%w (%s in %s)", errStable, key, stableFile)
}

// checkStable reads what raft will read, before it does. A log without a term is
// not possible: the term is written first.
func (s *stores) checkStable(used bool) error {
	for _, key := range stableKeys {
		value, err := s.stable.Get(key)
		if err == nil || err.Error() == errNotFound {
			err = nil
			if used && bytes.Equal(key, currentTermKey) && (len(value) != numberBytes || binary.BigEndian.Uint64(value) == 0) {
				err = damagedStable(key)
			}
		}
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	return nil
}

// errNotFound is the text by which raft, too, knows that nothing is stored.
const errNotFound = "not found"
