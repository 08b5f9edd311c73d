package state

import (
	"encoding/binary"
	"testing"
)

// A key that is remembered is never taken for a new one; few others are looked up.
func TestRememberedKeysAreFoundUntilTheyAreForgotten(t *testing.T) {
	t.Parallel()
	const keys = 100_000
	var r remembered
	hash := func(n uint64) ID { return textID(string(binary.BigEndian.AppendUint64(nil, n))) }
	for n := range uint64(keys) {
		r.add(hash(n), int64(n))
	}
	for n := range uint64(keys) {
		if !r.may(hash(n)) {
			t.Fatalf("key %d has been forgotten", n)
		}
	}
	unused := 0
	for n := range uint64(keys) {
		if r.may(hash(keys + n)) {
			unused++
		}
	}
	if unused > keys/20 {
		t.Errorf("%d of %d unused keys would be looked up", unused, keys)
	}

	r.forget(keys / 2)
	for n := range uint64(keys) / 2 {
		if !r.may(hash(keys/2 + n)) {
			t.Fatalf("key %d of %d has been forgotten with those of before %d", keys/2+n, keys, keys/2)
		}
	}
	filters := len(r.filters)
	r.forget(keys)
	if len(r.filters) != 0 || filters == 0 {
		t.Errorf("of %d filters %d are left when all keys are forgotten", filters, len(r.filters))
	}
}
