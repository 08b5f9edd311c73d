package state

import (
	"strings"
	"testing"
	"time"
)

// Two restores must never issue the same number: not of one backup twice, not
// of a backup of a restored cluster, and not soon after each other.
func TestALaterRestoreHasTheLargerFenceBase(t *testing.T) {
	t.Parallel()
	clock := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	first := Header{ClockUs: clock.UnixMicro(), AppliedIndex: 1000}
	must := func(h Header, at time.Time) uint64 {
		t.Helper()
		base, err := FenceBaseAfter(h, at)
		if err != nil {
			t.Fatal(err)
		}
		if promised := max(h.FenceBase+1<<40, uint64(at.UnixMilli())<<20); base < promised {
			t.Errorf("%d is below what was promised, %d", base, promised)
		}
		return base
	}
	// A cluster writes at most a few entries in a millisecond.
	issuedBy := func(base uint64, lived time.Duration) uint64 { return base + uint64(lived.Milliseconds())*100 }

	one := must(first, clock.Add(time.Hour))
	two := must(first, clock.Add(time.Hour+time.Minute))
	if two <= issuedBy(one, time.Minute) {
		t.Errorf("the second restore starts at %d, the first was at %d", two, issuedBy(one, time.Minute))
	}
	// A backup of the restored cluster, restored twice within minutes, where
	// neither 2^40 nor the milliseconds alone would tell the two apart.
	again := Header{FenceBase: one, AppliedIndex: 1010, ClockUs: clock.Add(time.Hour + time.Minute).UnixMicro()}
	three := must(again, clock.Add(time.Hour+2*time.Minute))
	four := must(again, clock.Add(time.Hour+2*time.Minute+time.Second))
	if four <= issuedBy(three, time.Second) || three <= one+1<<40 {
		t.Errorf("restores at %d, %d and %d", one, three, four)
	}
	// A wall clock that is a little behind the cluster's is no reason to stop, and
	// one that is hours behind is.
	five := must(again, clock.Add(time.Hour))
	six := must(again, clock.Add(time.Hour+time.Second))
	if six <= issuedBy(five, time.Second) {
		t.Errorf("behind the backup's clock: %d then %d", five, six)
	}
	if _, err := FenceBaseAfter(again, clock); err == nil || !strings.Contains(err.Error(), "wall clock") {
		t.Errorf("an hour behind: %v", err)
	}
}
