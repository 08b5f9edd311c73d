package sdk

import (
	"math/rand/v2"
	"time"

	"pulse/schema/workerv1"
)

const (
	leaseMarginPart = 10 // a tenth of what is left, but
	leaseMarginMax  = 2 * time.Second
	renewAfterMin   = 200 * time.Millisecond // also the brake when no renewal extends the lease any more
)

// lease is what a worker may believe about its hold on an attempt, by its own
// monotonic clock: it need not agree with the cluster about the time of day.
type lease struct {
	until time.Time // no right to work from here on
	renew time.Time // when to ask for more
	limit time.Time // until never goes past it; zero = no limit
}

// margin is for clocks that run at different speeds, and for the handler to
// notice that its time is over and say what it knows while that still counts.
func margin(left time.Duration) time.Duration { return min(left/leaseMarginPart, leaseMarginMax) }

// learn takes in an answer to a frame that was sent at sentAt. When the cluster
// looked at its clock (ServerTime) the frame had been sent already, so counting
// what was left then from sentAt errs on the safe side only. An older answer
// never shortens what a newer one granted, because leases are never shortened.
func (l *lease) learn(granted *workerv1.Lease, sentAt time.Time) {
	left := granted.LeaseUntil.Time().Sub(granted.ServerTime.Time())
	until := sentAt.Add(left - margin(left))
	if !l.limit.IsZero() && until.After(l.limit) {
		until = l.limit
	}
	if until.After(l.until) {
		l.until = until
	}
	// Between a third and half of what was left: early enough for a second
	// chance, and not all workers at the same time.
	l.renew = sentAt.Add(max(left/3+rand.N(max(left/6, 1)), renewAfterMin))
}
