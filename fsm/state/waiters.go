package state

import (
	"slices"
)

// waiters is an ordered set of waiting tasks: chunks of neighbours, in order. Most
// tasks come at the end and leave at the front, and a million of them may be
// there, so this is made for that: a chunk that is full at the end stays full,
// where a B-tree would split it into halves that are never filled, and a chunk has
// no pointers that a garbage collection would have to follow. What comes or leaves
// in the middle moves half a chunk.
type waiters struct {
	chunks [][]Waiter // none is empty
	n      int
}

// chunkMax bounds a chunk to 12 KiB, which one insertion may have to move.
const chunkMax = 512

// Len counts them.
func (s *waiters) Len() int { return s.n }

// Min is the first.
func (s *waiters) Min() (Waiter, bool) {
	if s.n == 0 {
		return Waiter{}, false
	}
	return s.chunks[0][0], true
}

// chunk is the place of the chunk that w is in, or belongs into: the last that does
// not begin behind it, or the first.
func (s *waiters) chunk(w Waiter) int {
	last := len(s.chunks) - 1
	if last <= 0 || waiterLess(w, s.chunks[1][0]) {
		return 0
	}
	if !waiterLess(w, s.chunks[last][0]) {
		return last
	}
	low, high := 2, last
	for low < high {
		middle := int(uint(low+high) >> 1)
		if waiterLess(w, s.chunks[middle][0]) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low - 1
}

// Add puts w in; it must not be there.
func (s *waiters) Add(w Waiter) {
	s.n++
	if len(s.chunks) == 0 {
		s.chunks = append(s.chunks, []Waiter{w})
		return
	}
	at := s.chunk(w)
	c := s.chunks[at]
	behind := waiterLess(c[len(c)-1], w)
	if len(c) == chunkMax {
		if behind && at == len(s.chunks)-1 {
			s.chunks = append(s.chunks, append(make([]Waiter, 0, chunkMax), w))
			return
		}
		back := append(make([]Waiter, 0, chunkMax), c[chunkMax/2:]...)
		s.chunks[at] = c[:chunkMax/2]
		s.chunks = slices.Insert(s.chunks, at+1, back)
		if !waiterLess(w, back[0]) {
			at++
		}
		c = s.chunks[at]
		behind = waiterLess(c[len(c)-1], w)
	}
	if behind {
		s.chunks[at] = append(c, w)
		return
	}
	place, _ := slices.BinarySearchFunc(c, w, waiterCompare)
	s.chunks[at] = slices.Insert(c, place, w)
}

// Delete takes w out and says whether it was there.
func (s *waiters) Delete(w Waiter) bool {
	if len(s.chunks) == 0 {
		return false
	}
	at := s.chunk(w)
	c := s.chunks[at]
	place, found := 0, c[0] == w
	if !found {
		place, found = slices.BinarySearchFunc(c, w, waiterCompare)
	}
	if !found {
		return false
	}
	s.n--
	if place == 0 {
		c = c[1:] // no copy: this is how tasks leave
	} else {
		c = slices.Delete(c, place, place+1)
	}
	s.chunks[at] = c
	switch {
	case len(c) == 0:
		s.drop(at)
	case len(c) < chunkMax/4:
		if at > 0 {
			s.join(at - 1)
		} else {
			s.join(at)
		}
	}
	return true
}

func (s *waiters) drop(at int) {
	if at == 0 {
		s.chunks[0] = nil
		s.chunks = s.chunks[1:]
		return
	}
	s.chunks = slices.Delete(s.chunks, at, at+1)
}

// join puts a chunk and the next into one if both are small, so that tasks which
// leave in the middle do not leave a chunk for each of those that stay.
func (s *waiters) join(at int) {
	if at+1 >= len(s.chunks) {
		return
	}
	c, next := s.chunks[at], s.chunks[at+1]
	if len(c)+len(next) > chunkMax/2 {
		return
	}
	s.chunks[at] = append(append(make([]Waiter, 0, chunkMax), c...), next...)
	s.drop(at + 1)
}

// Scan calls fn in order until it returns false.
func (s *waiters) Scan(fn func(Waiter) bool) {
	for _, c := range s.chunks {
		for _, w := range c {
			if !fn(w) {
				return
			}
		}
	}
}

func waiterCompare(a, b Waiter) int {
	switch {
	case waiterLess(a, b):
		return -1
	case a == b:
		return 0
	}
	return 1
}
