package fsm

import (
	"math"
	"runtime"
	"testing"

	pb "pulse/proto/pulse/v1"
	"pulse/test/allocs"
)

// TestAllocationsOfAnEntryStayWhereTheyAre holds the memory that the hot path asks
// for, for one command of an entry of 128 in which a task is submitted and leased,
// started or finished, to committed figures: it depends on the code and, unlike time, not on the
// machine. A change that needs more has to say so by
// `go test ./fsm -run Allocations -update-allocations`.
func TestAllocationsOfAnEntryStayWhereTheyAre(t *testing.T) { // not parallel: what others allocate would count
	l := newLife(t)
	var encode, decode, apply [3]float64
	const rounds = 8
	each := func(kind int, cmds []*pb.Command) (out Outcome) {
		e, data := l.entry(t, cmds)
		share := 1 / float64(rounds*l.width)
		encode[kind] += share * allocations(func() { _, _ = EncodeEntry(e) }) // it has been encoded before
		decode[kind] += share * allocations(func() { _, _ = DecodeEntry(data) })
		apply[kind] += share * allocations(func() { out = l.apply(data) })
		return out
	}
	for range rounds {
		start, finish := l.answers(each(0, l.submissions()))
		each(1, start)
		if r := each(2, finish).Results[0]; r.Code != "" {
			t.Fatal(r)
		}
	}
	var got []allocs.Figure
	for i, name := range []string{"submit", "start", "finish"} {
		got = append(got, allocs.Figure{Name: name + "_encode", Is: encode[i]}, allocs.Figure{Name: name + "_decode", Is: decode[i]},
			allocs.Figure{Name: name + "_apply", Is: apply[i]})
	}
	// A tenth more or less, or two: maps and arrays grow at their own time.
	allocs.Compare(t, "testdata/allocations.txt", got, func(is, want float64) bool { return math.Abs(is-want) <= max(want/10, 2) })
}

// allocations counts those that f makes.
func allocations(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}
