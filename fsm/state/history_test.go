package state

import (
	"math"
	"testing"

	pb "pulse/proto/pulse/v1"
)

// appendEvents puts n events of two namespaces, in turn, into one entry.
func appendEvents(t *testing.T, s *State, n int, now int64) (index uint64) {
	t.Helper()
	tx := s.Begin(s.Meta().AppliedIndex+1, 1, now)
	for i := range n {
		ns := ID{1 + byte(i%2)}
		tx.AppendEvent(&pb.EventRow{Aggregate: pb.Aggregate_AGGREGATE_QUEUE, NamespaceId: ns[:], AggregateId: ns[:], Version: uint64(i)})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return tx.Number()
}

// readPlaces reads a namespace's feed in pages from a position on.
func readPlaces(t *testing.T, s *State, ns ID, index uint64, place uint32) (places []uint32) {
	t.Helper()
	for {
		events, more, err := ReadFeed(s, ns, index, place, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			places = append(places, e.Place)
			index, place = e.Index, e.Place
		}
		if !more {
			return places
		}
	}
}

func TestAFeedIsReadAcrossTheBlocksOfAnEntry(t *testing.T) {
	t.Parallel()
	const events = 2*blockEvents + 90
	s := openState(t)
	index := appendEvents(t, s, events, 1)
	for ns, first := range map[ID]uint32{{1}: 0, {2}: 1} {
		places := readPlaces(t, s, ns, 0, 0)
		if len(places) != events/2 {
			t.Fatalf("namespace %d has %d events", ns[0], len(places))
		}
		for i, place := range places {
			if want := first + 2*uint32(i); place != want {
				t.Fatalf("event %d of namespace %d has place %d, want %d", i, ns[0], place, want)
			}
		}
		if at, place, err := FeedHead(s, ns); err != nil || at != index || place != places[len(places)-1] {
			t.Errorf("the feed of namespace %d ends at %d.%d: %v", ns[0], at, place, err)
		}
	}
	for from, want := range map[uint32]int{0: events/2 - 1, 1: events/2 - 1, 300: events/2 - 151, events - 1: 0, math.MaxUint32: 0} {
		if got := len(readPlaces(t, s, ID{1}, index, from)); got != want {
			t.Errorf("%d events follow place %d, want %d", got, from, want)
		}
	}
	for _, place := range []uint32{0, blockEvents - 1, blockEvents, events - 1} {
		if e, err := readEvent(s, index, place); err != nil || e.GetVersion() != uint64(place) {
			t.Errorf("at place %d there is %v: %v", place, e, err)
		}
	}
	if e, err := readEvent(s, index, events); err == nil {
		t.Errorf("at place %d there is %v", events, e)
	}
}

func TestEventsLeaveByBlocksFromTheFront(t *testing.T) {
	t.Parallel()
	s := openState(t)
	first := appendEvents(t, s, 2*blockEvents+10, 1)
	later := s.Meta().EventRetentionMs*1000 + 10
	second := appendEvents(t, s, 4, 5)
	look := func(limit, left, kept int, all bool) {
		t.Helper()
		entry(t, s, func(tx *Tx) {
			tx.meta.ClockUs = later
			if got, whole := tx.TrimFeed(limit); got != left || whole != all {
				t.Errorf("%d events left, all that may %t; want %d, %t", got, whole, left, all)
			}
		})
		if got := len(readPlaces(t, s, ID{1}, 0, 0)) + len(readPlaces(t, s, ID{2}, 0, 0)); got != kept {
			t.Errorf("%d events are kept, want %d", got, kept)
		}
	}
	due := s.Meta().FeedTrimAtUs
	look(blockEvents-1, 0, 2*blockEvents+14, false) // no row fits
	if at := s.Meta().FeedTrimAtUs; at != due {
		t.Errorf("a look without room went from %d to %d among what is due", due, at)
	}
	look(blockEvents+1, blockEvents, blockEvents+14, false)
	if m := s.Meta(); m.FeedFloorIndex != first || m.FeedFloorPlace != blockEvents-1 || m.FeedTrimAtUs != later {
		t.Errorf("after one block the front is %d.%d and looked at again at %d", m.FeedFloorIndex, m.FeedFloorPlace, m.FeedTrimAtUs)
	}
	if e, err := readEvent(s, first, 5); e != nil || err != nil {
		t.Errorf("an event that left is %v: %v", e, err)
	}
	look(blockEvents+10, blockEvents+10, 4, false)
	look(100, 4, 0, true)
	if m := s.Meta(); m.FeedFloorIndex != second || m.FeedTrimAtUs != 0 {
		t.Errorf("an empty feed has its front at %d and is looked at again at %d", m.FeedFloorIndex, m.FeedTrimAtUs)
	}
	for n, p := range s.Meta().Feed {
		if p.Low != p.Next {
			t.Errorf("partition %d keeps %d to %d of an empty feed", n, p.Low, p.Next)
		}
	}
	if err := s.RowsFrom([]byte{tableEvent}, func(key, _ []byte) bool {
		if key[0] <= tableHistory {
			t.Errorf("row %x is left", key)
		}
		return key[0] <= tableHistory
	}); err != nil {
		t.Error(err)
	}
}
