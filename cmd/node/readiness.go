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
type readiness struct {
	status func() cluster.Status
	read   func(context.Context) error // returns nil when a linearizable read here does
	level  atomic.Bool
}

// amend adds what raft does not know to what it says.
func (r *readiness) amend(s cluster.Status) cluster.Status {
	switch {
	case !s.Ready:
		r.level.Store(false)
	case s.LeaderID != s.ID && !r.level.Load():
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
		if time.Since(seen) > levelGap {
			r.level.Store(false)
		}
		seen = time.Now()
		s := r.status()
		switch {
		case !s.Ready:
			r.level.Store(false)
			wait = levelPoll
		case s.LeaderID == s.ID:
			r.level.Store(true)
		case !r.level.Load():
			if !r.try(ctx) {
				wait = levelPoll
			}
			seen = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (r *readiness) try(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, levelTimeout)
	defer cancel()
	if r.read(ctx) != nil {
		return false
	}
	r.level.Store(true)
	return true
}
