package state

import (
	pb "pulse/proto/pulse/v1"
)

// Backlog is why the WAITING tasks of a queue wait.
type Backlog struct {
	By     [pb.WaitingReason_WAITING_REASON_WORKERS_BUSY + 1]uint64 // tasks for each reason
	Oldest Waiter                                                   // of those that are not parked; zero if there is none
}

func (b *Backlog) older(w Waiter) {
	if b.Oldest == (Waiter{}) || waiterLess(w, b.Oldest) {
		b.Oldest = w
	}
}

// Backlogs explains these queues: for each WAITING task the reason that Waiting
// gives, added up without looking at the tasks. It costs a step for each
// capability, and for each held key of the whole state.
func (s *State) Backlogs(of []*Queue) map[*Queue]*Backlog {
	out := make(map[*Queue]*Backlog, len(of))
	behind := map[*class]uint64{} // tasks behind a held key
	for _, q := range of {
		out[q] = &Backlog{}
	}
	for _, k := range s.held { // order-free: sums and a minimum
		for _, g := range k.groups {
			if b := out[g.queue]; b != nil {
				behind[g.class] += uint64(g.lists.n)
				g.lists.oldest(b)
			}
		}
	}
	for q, b := range out { // order-free: each for itself
		b.By[pb.WaitingReason_WAITING_REASON_DELAYED] = q.Delayed
		b.By[pb.WaitingReason_WAITING_REASON_RETRY_BACKOFF] = q.Backoff
		for _, c := range q.order {
			c.plain.oldest(b)
			c.keyed.oldest(b)
			held := behind[c]
			b.By[q.reason(c, false)] += uint64(c.plain.n)
			b.By[q.reason(c, true)] += uint64(c.waiting) - held
			if q.Row.Paused {
				b.By[pb.WaitingReason_WAITING_REASON_QUEUE_PAUSED] += held
			} else {
				b.By[pb.WaitingReason_WAITING_REASON_KEY_HELD] += held
			}
		}
	}
	return out
}

// oldest tells the backlog of the heads of the lists.
func (l *lists) oldest(b *Backlog) {
	for p := range uint32(priorities) {
		if w, ok := l.min(p); ok {
			b.older(w)
		}
	}
}

// reason is why the ready tasks of a class whose key is free, or who have none,
// are not running.
func (q *Queue) reason(c *class, keyed bool) pb.WaitingReason {
	switch {
	case q.Row.Paused:
		return pb.WaitingReason_WAITING_REASON_QUEUE_PAUSED
	case q.limited():
		return pb.WaitingReason_WAITING_REASON_QUEUE_LIMIT
	case c == nil || (keyed && c.capableKeys == 0) || (!keyed && c.capable == 0):
		return pb.WaitingReason_WAITING_REASON_NO_CAPABLE_WORKER
	case c.keys.Len() == 0 && (keyed || c.any.Len() == 0):
		return pb.WaitingReason_WAITING_REASON_WORKERS_BUSY
	}
	return pb.WaitingReason_WAITING_REASON_READY
}

// EachInstance calls fn for every worker instance, in no order.
func (s *State) EachInstance(fn func(*Instance)) {
	for _, i := range s.instances { // order-free: fn may not mind
		fn(i)
	}
}

// EachLiveAttempt calls fn for every attempt that is LEASED or RUNNING, in no
// order.
func (s *State) EachLiveAttempt(fn func(*Attempt)) {
	for _, a := range s.attempts { // order-free: fn may not mind
		fn(a)
	}
}
