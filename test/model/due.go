package model

import pb "pulse/proto/pulse/v1"

// A due item is something that happens when the cluster clock passes an
// instant. There is no table of them: they are read off the objects anew each
// time one is wanted.
type dueItem struct {
	at   int64
	kind int
	seq  int // order of the ids inside one kind
	name string
	of   any // what it happens to
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
	kindFeed
	kindSchedule
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
	return a.name < b.name
}

// feed is a look at the front of the event feed.
type feed struct {
	at    int64
	left  int  // events that left
	ended bool // by events that are old enough and did not fit into the entry
}

// feedRow is the most events that leave the feed only together.
const feedRow = 256

// SeeFeed tells the model, which has no event feed, whether a look at the feed's
// front was due in the entry it is about to apply, and how many events left: each
// of them takes one of the due items of the entry. Both show in the machine's rows
// before and after it, and now is the clock after it.
func (m *Model) SeeFeed(before, after *pb.MetaRow, in *pb.Entry, results []*pb.Result, now int64) {
	m.feed = nil
	at := before.GetFeedTrimAtUs()
	if at == 0 {
		return // there was nothing in the feed
	}
	for i, c := range in.Commands {
		if c.GetSetCluster().GetEventRetentionMs() > 0 && results[i].Code == "" && !results[i].Replayed {
			at = now // the new measure is laid on at once
		}
	}
	left := 0
	for i, p := range after.Feed {
		left += int(p.Low - before.Feed[i].Low)
	}
	if at <= now {
		m.feed = &feed{at, left, after.FeedTrimAtUs != 0 && after.FeedTrimAtUs <= now}
	}
}

// look counts a look at the feed. Events that did not fit end the due items of the
// entry, if there was no room for as many as may have to leave together.
func (m *Model) look(f *feed) {
	m.feed, m.due = nil, m.due+f.left
	if f.ended && DueMax-m.due < feedRow {
		m.due = DueMax
	}
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
		m.fire(item)
	}
}

func (m *Model) fire(item dueItem) {
	switch of := item.of.(type) {
	case *Task:
		m.fireTask(of, item.kind)
	case *Attempt:
		m.leaseRanOut(of)
	case *Gateway:
		m.gatewayRanOut(of)
	case *Instance:
		m.fireInstance(of, item.at)
	case *Remembered:
		m.Remembered = remove(m.Remembered, of)
	case *Schedule:
		m.fireSchedule(of, item.at)
	case *feed:
		m.look(of)
	}
}

func (m *Model) fireTask(t *Task, kind int) {
	switch kind {
	case kindStartDeadline:
		m.outOfTime(t, pb.EndCause_END_CAUSE_START_DEADLINE, "start_deadline_exceeded")
	case kindAvailable:
		t.Park = pb.Park_PARK_UNSPECIFIED
	case kindRetention:
		m.purge(t)
	case kindDeadline:
		if t.State == running {
			m.runEnds(t.Live, pb.EndCause_END_CAUSE_DEADLINE, "deadline_exceeded")
			return
		}
		m.outOfTime(t, pb.EndCause_END_CAUSE_DEADLINE, "deadline_exceeded")
	}
}

// fireInstance does the first of what an instance has for an instant.
func (m *Model) fireInstance(i *Instance, at int64) {
	switch {
	case i.HoldUntil == at:
		i.HoldUntil = 0
	case i.EndedAt != 0:
		m.Instances = remove(m.Instances, i)
	case !i.GraceOver && i.DisconnectedAt+grace == at:
		m.graceOver(i)
	default:
		m.sessionRanOut(i)
	}
}

// NextDue is the next instant at which something happens by itself.
func (m *Model) NextDue() (int64, bool) {
	item, ok := m.nextDue()
	return item.at, ok
}

func (m *Model) nextDue() (best dueItem, ok bool) {
	add := func(at int64, kind, seq int, name string, of any) {
		item := dueItem{at: at, kind: kind, seq: seq, name: name, of: of}
		if !ok || item.before(best) {
			best, ok = item, true
		}
	}
	for _, t := range m.Tasks {
		if t.Terminal() {
			add(max(t.CompletedAt+t.RetentionMS*millis, t.RememberedUntil), kindRetention, t.seq, "", t)
			continue
		}
		if a := t.Live; a != nil {
			add(a.endsAt(), kindAttempt, a.seq, "", a)
		}
		if t.State == waiting || t.State == leased || t.State == running {
			add(t.Deadline, kindDeadline, t.seq, "", t)
		}
		if (t.State == waiting || t.State == leased) && t.StartDeadline != 0 && !t.Started {
			add(t.StartDeadline, kindStartDeadline, t.seq, "", t)
		}
		if t.State == waiting && t.Park != pb.Park_PARK_UNSPECIFIED {
			add(t.AvailableAt, kindAvailable, t.seq, "", t)
		}
	}
	if f := m.feed; f != nil {
		add(f.at, kindFeed, 0, "", f)
	}
	for _, g := range m.Gateways {
		add(g.LiveUntil, kindGateway, 0, g.ID, g)
	}
	for _, i := range m.Instances {
		name := string(i.ID[:]) + string(i.Namespace.ID[:])
		if i.HoldUntil != 0 {
			add(i.HoldUntil, kindInstance, 0, name, i)
		}
		if !i.Connected && i.EndedAt == 0 {
			if !i.GraceOver {
				add(i.DisconnectedAt+grace, kindInstance, 0, name, i)
			}
			add(i.DisconnectedAt+sessionLife, kindInstance, 0, name, i)
		}
		if i.EndedAt != 0 && m.active(i) == 0 {
			add(i.EndedAt+instanceKept, kindInstance, 0, name, i)
		}
	}
	for _, c := range m.Schedules {
		if at := c.due(); at != 0 {
			add(at, kindSchedule, c.seq, "", c)
		}
	}
	for _, r := range m.Remembered {
		add(r.ExpiresAt, kindRemembered, 0, r.Key, r)
	}
	return best, ok
}

// endsAt is when an attempt ends if nothing more is heard: with its lease, or
// with its time.
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
			m.hold(i, a)
		}
		m.release(a, pb.EndCause_END_CAUSE_LEASE)
	}
}

// hold gives a session whose offer lapsed a rest. Offers that were made before
// the last one are the same incident.
func (m *Model) hold(i *Instance, a *Attempt) {
	if a.LeasedAt > i.HeldAt {
		m.rest(i)
		i.Hold = true
	}
}

// rest begins a pause without new work, unless one is under way.
func (m *Model) rest(i *Instance) {
	if i.HoldUntil == 0 {
		i.HoldMS = min(max(2*i.HoldMS, holdFirstMS), holdLastMS)
		i.HeldAt = m.Clock
		i.HoldUntil = m.Clock + i.HoldMS*millis
	}
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
	cause := pb.EndCause_END_CAUSE_SESSION_LOST
	if i.Undeliverable {
		cause = pb.EndCause_END_CAUSE_UNDELIVERABLE
	}
	for _, t := range m.Tasks {
		if a := t.Live; a != nil && a.Instance == i.ID && t.Namespace == i.Namespace && t.State == leased {
			m.release(a, cause)
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
