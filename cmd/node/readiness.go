package node

import (
	"context"
	"sync/atomic"
	"time"

	"pulse/cluster"
)

const (
	levelPoll    = 20 * time.Millisecond // how often a server that is behind tries a read
	levelWatch   = 500 * time.Millisecond
	levelTimeout = 5 * time.Second // for one read
	// levelGap is how long a process may stand still without having missed much.
	levelGap = 2 * time.Second
)

// readiness knows whether this server's state has caught up with the leader's. Raft
// is content with a leader that is heard of, and a server that is new, or was away,
// hears one long before it has what it missed: a balancer would send it requests
// that wait, and whoever restarts servers one after another would go on too early.
// It is shown for each term anew, and again when the leader does not answer what
// this server reports: raft may hear a leader that requests do not reach.
type readiness struct {
	status  func() cluster.Status
	read    func(context.Context) error // returns nil when a linearizable read here does
	reports func() bool                 // the leader has answered the last report
	level   atomic.Uint64               // the newest term in which it had caught up; 0: it has not
}

// amend adds what raft does not know to what it says.
func (r *readiness) amend(s cluster.Status) cluster.Status {
	switch {
	case !s.Ready:
		r.level.Store(0)
	case s.LeaderID != s.ID && r.level.Load() != s.Term:
		s.Ready = false
		s.NotReady = append(s.NotReady, "it has not caught up with the leader yet")
	}
	return s
}

// run watches until ctx ends.
func (r *readiness) run(ctx context.Context) {
	seen := time.Now()
	for {
		wait := levelWatch
		if stoodStill(seen, time.Now()) {
			r.level.Store(0)
		}
		s := r.status()
		switch {
		case !s.Ready:
			r.level.Store(0)
			wait = levelPoll
		case s.LeaderID == s.ID:
			r.level.Store(s.Term)
		case r.level.Load() != s.Term || !r.reports():
			if !r.try(ctx, s.Term) {
				wait = levelPoll
			}
		}
		seen = time.Now()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// stoodStill says whether nothing went on here between two looks. The monotonic
// clock of a machine that was suspended has not gone on either.
func stoodStill(seen, now time.Time) bool {
	return max(now.Sub(seen), now.Round(0).Sub(seen.Round(0))) > levelGap
}

// try reads in a term and notes how that went.
func (r *readiness) try(ctx context.Context, term uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, levelTimeout)
	defer cancel()
	if r.read(ctx) != nil {
		r.level.Store(0)
		return false
	}
	r.level.Store(term)
	return true
}
