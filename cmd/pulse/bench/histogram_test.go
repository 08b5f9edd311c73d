package bench

import (
	"math"
	"testing"
	"time"
)

func TestPercentilesAreWithinTwoPercent(t *testing.T) {
	t.Parallel()
	var h histogram
	if got := h.millis(0.5); got != 0 {
		t.Errorf("an empty histogram says %v", got)
	}
	for ms := 1; ms <= 1000; ms++ {
		h.add(time.Duration(ms) * time.Millisecond)
	}
	for share, want := range map[float64]float64{0: 1, 0.5: 500, 0.99: 990, 1: 1000} {
		if got := h.millis(share); math.Abs(got-want) > 0.021*want {
			t.Errorf("share %v is %v ms, want %v", share, got, want)
		}
	}
	if h.count() != 1000 {
		t.Errorf("%d counted", h.count())
	}
}

func TestExtremesHaveABucket(t *testing.T) {
	t.Parallel()
	var h histogram
	h.add(-time.Second)
	h.add(0)
	h.add(math.MaxInt64)
	if h.count() != 3 {
		t.Errorf("%d counted", h.count())
	}
	if got := h.millis(0.5); got != 0.001 {
		t.Errorf("the smallest are %v ms", got)
	}
}
