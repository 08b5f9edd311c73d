package state

import (
	"cmp"
	"encoding/binary"
	"errors"
)

const (
	// aheadBytes is about how much is read before it is handed over, and aheadBlocks
	// how often that: enough that neither side waits for the other when it is slow for
	// a moment.
	aheadBytes  = 256 << 10
	aheadBlocks = 4
)

// rowBlock is rows one behind the other: the lengths of a key and a value, and both.
type rowBlock []byte

func (b rowBlock) add(key, value []byte) rowBlock {
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(append(b, key...), value...)
}

func (b rowBlock) each(fn func(key, value []byte) error) error {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		value, m := binary.Uvarint(b[n:])
		row := b[n+m:]
		if err := fn(row[:key], row[key:key+value]); err != nil {
			return err
		}
		b = row[key+value:]
	}
	return nil
}

// errNotWanted ends the reading of rows that nobody waits for any more.
var errNotWanted = errors.New("no more rows are wanted")

// scanAhead is scanRaw with the reading done beside what fn does, which is as much
// work again. Rows come in key order all the same.
func scanAhead(r Reader, prefix []byte, beside func(func()), fn func(key, value []byte) error) error {
	if beside == nil {
		return scanRaw(r, prefix, fn)
	}
	// Both have room for all blocks, so that only taking one waits.
	filled, empty := make(chan rowBlock, aheadBlocks), make(chan rowBlock, aheadBlocks)
	for range aheadBlocks {
		empty <- nil
	}
	var failed error // of the reading; good once filled is closed
	beside(func() {
		defer close(filled)
		var b rowBlock
		wanted := true
		failed = scanRaw(r, prefix, func(key, value []byte) error {
			if len(b) == 0 {
				if b, wanted = <-empty; !wanted {
					return errNotWanted
				}
			}
			if b = b.add(key, value); len(b) >= aheadBytes {
				filled <- b
				b = nil
			}
			return nil
		})
		if failed == nil && len(b) > 0 {
			filled <- b
		}
	})
	var err error
	for b := range filled {
		if err != nil {
			continue // until the reading has ended
		}
		if err = b.each(fn); err != nil {
			close(empty)
			continue
		}
		empty <- b[:0]
	}
	return cmp.Or(err, failed)
}
