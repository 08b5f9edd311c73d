package model

import (
	"bytes"
	"slices"

	pb "pulse/proto/pulse/v1"
)

// A due item is something that happens when the cluster clock passes an
// instant. There is no table of them: they are read off the objects anew each
// time one is wanted.
type dueItem struct {
	at   int64
	kind int
	seq  int // order of the ids inside one kind
	name []byte
	fire func()
}

// Kinds in the order in which items of one instant are processed.
const (
	kindDeadline = iota + 1
	kindStartDeadline
	kindAvailable
	kindAttempt // lease, offer and attempt timeout
	kindGateway
	kindInstance // grace, session expiry, removal
	kindRetention
	kindRemembered
)

func (a dueItem) before(b dueItem) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	if a.seq != b.seq {
		return a.seq < b.seq
	}
	return bytes.Compare(a.name, b.name) < 0
}

// fireDue processes what is due, in the order (instant, kind, id), at most
// DueMax items.
func (m *Model) fireDue() {
	for m.due < DueMax {
		item, ok := m.nextDue()
		if !ok || item.at > m.Clock {
			return
		}
		m.due++
		item.fire()
	}
}

// NextDue is the next instant at which something happens by itself.
func (m *Model) NextDue() (int64, bool) {
	item, ok := m.nextDue()
	return item.at, ok
}

func (m *Model) nextDue() (best dueItem, ok bool) {
	add := func(at int64, kind, seq int, name []byte, fire func()) {
		item := dueItem{at: at, kind: kind, seq: seq, name: name, fire: fire}
		if !ok || item.before(best) {
			best, ok = item, true
		}
	}
	for _, t := range m.Tasks {
		if a := t.Live; a != nil {
			add(a.endsAt(), kindAttempt, a.seq, nil, func() { m.leaseRanOut(a) })
		}
		if t.State == waiting || t.State == leased {
			if t.StartDeadline != 0 && !t.Started {
				add(t.StartDeadline, kindStartDeadline, t.seq, nil, func() {
					m.outOfTime(t, pb.EndCause_END_CAUSE_START_DEADLINE, "start_deadline_exceeded")
				})
			}
			add(t.Deadline, kindDeadline, t.seq, nil, func() {
				m.outOfTime(t, pb.EndCause_END_CAUSE_DEADLINE, "deadline_exceeded")
			})
		}
		if t.State == running {
			add(t.Deadline, kindDeadline, t.seq, nil, func() {
				m.runEnds(t.Live, pb.EndCause_END_CAUSE_DEADLINE, "deadline_exceeded")
			})
		}
		if t.State == waiting && t.Park != pb.Park_PARK_UNSPECIFIED {
			add(t.AvailableAt, kindAvailable, t.seq, nil, func() { t.Park = pb.Park_PARK_UNSPECIFIED })
		}
		if t.Terminal() {
			add(max(t.CompletedAt+t.RetentionMS*millis, t.RememberedUntil), kindRetention, t.seq, nil, func() { m.purge(t) })
		}
	}
	for _, g := range m.Gateways {
		add(g.LiveUntil, kindGateway, 0, []byte(g.ID), func() { m.gatewayRanOut(g) })
	}
	for _, i := range m.Instances {
		name := append(slices.Clone(i.ID[:]), i.Namespace.ID[:]...)
		if i.HoldUntil != 0 {
			add(i.HoldUntil, kindInstance, 0, name, func() { i.HoldUntil = 0 })
		}
		if !i.Connected && i.EndedAt == 0 {
			if !i.GraceOver {
				add(i.DisconnectedAt+grace, kindInstance, 0, name, func() { m.graceOver(i) })
			}
			add(i.DisconnectedAt+sessionLife, kindInstance, 0, name, func() { m.sessionRanOut(i) })
		}
		if i.EndedAt != 0 && m.active(i) == 0 {
			add(i.EndedAt+instanceKept, kindInstance, 0, name, func() { m.Instances = remove(m.Instances, i) })
		}
	}
	for _, r := range m.Remembered {
		add(r.ExpiresAt, kindRemembered, 0, []byte(r.Key), func() { m.Remembered = remove(m.Remembered, r) })
	}
	return best, ok
}

// endsAt is when an attempt ends if nothing more is heard: with its lease, or
// with its time, which an offer may reach beyond (leases are never shortened).
func (a *Attempt) endsAt() int64 {
	if a.TimeoutAt != 0 {
		return min(a.LeaseUntil, a.TimeoutAt)
	}
	return a.LeaseUntil
}

func (m *Model) leaseRanOut(a *Attempt) {
	durationMS := a.Task.Queue.Settings.LeaseMS
	if a.State == pb.AttemptState_ATTEMPT_STATE_LEASED {
		durationMS = a.Task.Queue.Settings.OfferMS
	}
	limit := a.Task.Deadline
	if a.TimeoutAt != 0 {
		limit = min(limit, a.TimeoutAt)
	}
	timedOut := a.TimeoutAt != 0 && a.TimeoutAt == a.endsAt()
	if until, ok := m.rearm(a.LeaseUntil, a.renewedOpening, durationMS*millis, limit); ok && !timedOut {
		a.LeaseUntil = until
		return
	}
	switch {
	case timedOut:
		m.runEnds(a, pb.EndCause_END_CAUSE_ATTEMPT_TIMEOUT, "")
	case a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING:
		m.runEnds(a, pb.EndCause_END_CAUSE_LEASE, "")
	default:
		if i := m.instance(a.Task.Namespace, a.Instance); i.Connected {
			m.hold(i)
		}
		m.release(a, pb.EndCause_END_CAUSE_LEASE)
	}
}

// hold gives a session whose offer lapsed a rest. Offers that were made before
// it and lapse meanwhile are the same incident.
func (m *Model) hold(i *Instance) {
	if !i.Hold && i.HoldUntil == 0 {
		i.HoldMS = min(max(2*i.HoldMS, holdFirstMS), holdLastMS)
		i.HoldUntil = m.Clock + i.HoldMS*millis
	}
	i.Hold = true
}

// runEnds is the end of a RUNNING attempt without a word from its worker.
func (m *Model) runEnds(a *Attempt, cause pb.EndCause, errorCode string) {
	m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_EXPIRED, cause)
	a.ErrorCode = errorCode
	m.uncertainEnd(a.Task, cause, errorCode)
}

func (m *Model) gatewayRanOut(g *Gateway) {
	if until, ok := m.rearm(g.LiveUntil, g.renewedOpening, gatewayLife, 0); ok {
		g.LiveUntil = until
		return
	}
	m.loseGateway(g)
}

func (m *Model) loseGateway(g *Gateway) {
	m.Gateways = remove(m.Gateways, g)
	for _, i := range m.Instances {
		if i.GatewayID == g.ID {
			m.disconnect(i)
		}
	}
}

// graceAnew counts the time since a disconnect from an election: until then
// the worker could reach nobody.
func (m *Model) graceAnew(i *Instance) bool {
	from, ok := m.honoured(i.renewedOpening)
	if !ok || from <= i.DisconnectedAt {
		return false
	}
	i.DisconnectedAt = from
	return true
}

func (m *Model) graceOver(i *Instance) {
	if m.graceAnew(i) {
		return
	}
	i.GraceOver = true
	for _, t := range m.Tasks {
		if a := t.Live; a != nil && a.Instance == i.ID && t.Namespace == i.Namespace && t.State == leased {
			m.release(a, pb.EndCause_END_CAUSE_SESSION_LOST)
		}
	}
}

func (m *Model) sessionRanOut(i *Instance) {
	if !m.graceAnew(i) {
		i.EndedAt = m.Clock
	}
}

func (m *Model) purge(t *Task) {
	m.Tasks = remove(m.Tasks, t)
	kept := m.Attempts[:0:0]
	for _, a := range m.Attempts {
		if a.Task != t {
			kept = append(kept, a)
		}
	}
	m.Attempts = kept
}
