package state

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

func waiterOf(n uint64) Waiter {
	w := Waiter{AvailableAt: int64(n / 7)} // several of the same time
	binary.BigEndian.PutUint64(w.ID[:], n)
	return w
}

// check compares with a sorted slice, and the chunks with their rules.
func checkWaiters(t *testing.T, s *waiters, want []Waiter) {
	t.Helper()
	var got []Waiter
	s.Scan(func(w Waiter) bool { got = append(got, w); return true })
	if !slices.Equal(got, want) || s.Len() != len(want) {
		t.Fatalf("%d waiters (Len %d), want %d", len(got), s.Len(), len(want))
	}
	if first, ok := s.Min(); ok != (len(want) > 0) || ok && first != want[0] {
		t.Fatalf("Min is %v, %v", first, ok)
	}
	for i, c := range s.chunks {
		if len(c) == 0 || len(c) > chunkMax {
			t.Fatalf("chunk %d has %d", i, len(c))
		}
	}
}

func TestWaitersAreAnOrderedSet(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		var s waiters
		var want []Waiter
		// Each round grows or shrinks it, at the ends or anywhere.
		for range 12 {
			kind := random.IntN(5)
			for range random.IntN(3 * chunkMax) {
				switch kind {
				case 0, 1, 2:
					w := waiterOf(random.Uint64N(1 << 40))
					if kind == 0 && len(want) > 0 { // behind the last, as most come
						w = want[len(want)-1]
						w.AvailableAt++
					}
					if at, found := slices.BinarySearchFunc(want, w, waiterCompare); !found {
						want = slices.Insert(want, at, w)
						s.Add(w)
					}
				case 3, 4:
					if len(want) == 0 {
						continue
					}
					at := 0 // as most leave
					if kind == 4 {
						at = random.IntN(len(want))
					}
					if !s.Delete(want[at]) {
						t.Fatalf("seed %d: %v is not there", seed, want[at])
					}
					want = slices.Delete(want, at, at+1)
				}
			}
			checkWaiters(t, &s, want)
			if s.Delete(waiterOf(1 << 41)) {
				t.Fatal("deleted what was never there")
			}
		}
		for len(want) > 0 {
			at := random.IntN(len(want))
			s.Delete(want[at])
			want = slices.Delete(want, at, at+1)
		}
		checkWaiters(t, &s, nil)
		if len(s.chunks) != 0 {
			t.Errorf("seed %d: %d chunks are left of nothing", seed, len(s.chunks))
		}
	}
}

// A backlog comes in order, and a queue of it has to fit into memory.
func TestWaitersThatComeInOrderFillTheirChunks(t *testing.T) {
	t.Parallel()
	var s waiters
	const n = 100 * chunkMax
	for i := range uint64(n) {
		s.Add(waiterOf(i))
	}
	room := 0
	for _, c := range s.chunks {
		room += cap(c)
	}
	if room > n+2*chunkMax {
		t.Errorf("there is room for %d, and %d wait", room, n)
	}
	// Every third leaves: what stays is not spread over more chunks than it needs.
	for i := range uint64(n) {
		if i%16 != 0 {
			s.Delete(waiterOf(i))
		}
	}
	if chunks := len(s.chunks); chunks > s.Len()/(chunkMax/8)+2 {
		t.Errorf("%d waiters are in %d chunks", s.Len(), chunks)
	}
}

func BenchmarkWaiters(b *testing.B) {
	var s waiters
	const n = 1_000_000
	for i := range uint64(n) {
		s.Add(waiterOf(i))
	}
	b.ReportAllocs()
	next := uint64(n)
	for b.Loop() {
		s.Add(waiterOf(next))
		next++
		first, _ := s.Min()
		s.Delete(first)
	}
}
