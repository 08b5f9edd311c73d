package bench

import (
	"math"
	"sync/atomic"
	"time"
)

// histogram counts durations in buckets, each 2 % wider than the one before, from
// a microsecond to beyond an hour. Safe from any goroutine; the zero value is
// empty.
type histogram struct {
	buckets [bucketsMax]atomic.Int64
}

const (
	bucketsMax = 1200
	bucketStep = 1.02
)

var logStep = math.Log(bucketStep)

func (h *histogram) add(d time.Duration) {
	micros := float64(d) / float64(time.Microsecond)
	place := 0
	if micros > 1 {
		place = min(int(math.Ceil(math.Log(micros)/logStep)), bucketsMax-1)
	}
	h.buckets[place].Add(1)
}

func (h *histogram) count() (n int64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// millis is the smallest duration that a share of all do not exceed, rounded up to
// its bucket; 0 if there are none.
func (h *histogram) millis(share float64) float64 {
	all := h.count()
	if all == 0 {
		return 0
	}
	want := max(int64(math.Ceil(share*float64(all))), 1)
	for place := range h.buckets {
		if want -= h.buckets[place].Load(); want <= 0 {
			micros := math.Pow(bucketStep, float64(place))
			return math.Round(micros) / 1000
		}
	}
	return math.Inf(1) // not reached: the buckets hold all
}
