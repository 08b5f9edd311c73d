package model

import (
	"slices"

	pb "pulse/proto/pulse/v1"
)

// assign leases ready tasks to sessions with room, best task first, at most
// AssignMax of them.
func (m *Model) assign() {
	for m.place < AssignMax {
		t, i := m.bestMatch()
		if t == nil {
			return
		}
		m.place++
		m.leaseTo(t, i)
	}
}

// bestMatch is the first task in order that is ready and has an eligible
// session, with the best of these sessions.
func (m *Model) bestMatch() (*Task, *Instance) {
	var best *Task
	for _, t := range m.Tasks {
		if m.ready(t) && m.sessionFor(t) != nil && (best == nil || m.taskBefore(t, best)) {
			best = t
		}
	}
	if best == nil {
		return nil, nil
	}
	return best, m.sessionFor(best)
}

func (m *Model) ready(t *Task) bool {
	return t.State == waiting && t.Park == pb.Park_PARK_UNSPECIFIED && !t.Queue.Paused &&
		(t.Key == "" || m.holderOf(t.Namespace, t.Key) == nil) && !m.full(t.Queue)
}

// full says that a queue's cap on active attempts is reached.
func (m *Model) full(q *Queue) bool {
	return q.Settings.MaxActive > 0 && m.count(q, leased)+m.count(q, running) >= uint64(q.Settings.MaxActive)
}

// effective is the priority raised by ageing.
func (m *Model) effective(t *Task) int64 {
	p := int64(t.Priority)
	if step := t.Queue.Settings.AgeingMS * millis; step > 0 {
		p += max(0, m.Clock-t.AvailableAt) / step
	}
	return min(9, p)
}

func (m *Model) taskBefore(a, b *Task) bool {
	if pa, pb := m.effective(a), m.effective(b); pa != pb {
		return pa > pb
	}
	if a.AvailableAt != b.AvailableAt {
		return a.AvailableAt < b.AvailableAt
	}
	return a.seq < b.seq
}

// active counts the live attempts of an instance.
func (m *Model) active(i *Instance) (n uint32) {
	for _, t := range m.Tasks {
		if t.Live != nil && t.Live.Instance == i.ID && t.Namespace == i.Namespace {
			n++
		}
	}
	return n
}

// capable says that a session could ever take the task.
func (m *Model) capable(i *Instance, t *Task) bool {
	return i.Connected && !i.Draining && i.Queue == t.Queue && (t.Key == "" || i.Keys) &&
		slices.Contains(i.Capabilities, t.Handler+"\x00"+t.HandlerVersion+"\x00"+t.PayloadVersion)
}

// eligible says that a capable session has room now.
func (m *Model) eligible(i *Instance, t *Task) bool {
	room := i.Capacity
	if i.Hold { // nothing was heard since an offer lapsed: one at a time
		room = min(room, 1)
	}
	return m.capable(i, t) && m.active(i) < room && i.HoldUntil <= m.Clock
}

func (m *Model) sessionFor(t *Task) *Instance {
	var best *Instance
	for _, i := range m.Instances {
		if m.eligible(i, t) && (best == nil || m.sessionBefore(i, best)) {
			best = i
		}
	}
	return best
}

// sessionBefore prefers the lower load, then the one that has waited longer.
func (m *Model) sessionBefore(a, b *Instance) bool {
	la, lb := uint64(m.active(a))*uint64(b.Capacity), uint64(m.active(b))*uint64(a.Capacity)
	if la != lb {
		return la < lb
	}
	if a.assignedIndex != b.assignedIndex {
		return a.assignedIndex < b.assignedIndex
	}
	if a.assignedPlace != b.assignedPlace {
		return a.assignedPlace < b.assignedPlace
	}
	return a.seq < b.seq
}

func (m *Model) leaseTo(t *Task, i *Instance) {
	t.AttemptCount++
	a := &Attempt{Task: t, Epoch: m.fence(), State: pb.AttemptState_ATTEMPT_STATE_LEASED, Instance: i.ID,
		LeasedAt: m.Clock, LeaseUntil: min(m.Clock+t.Queue.Settings.OfferMS*millis, t.Deadline),
		Number: t.AttemptCount, renewedOpening: m.opening(), seq: m.next()}
	if t.Key != "" {
		a.Token = m.fence()
		t.KeyToken = a.Token
		m.Keys = append(m.Keys, &Key{Namespace: t.Namespace, Name: t.Key, Task: t, Attempt: a,
			Token: a.Token, AcquiredAt: m.Clock})
	}
	t.State = leased
	t.Live = a
	t.LastEpoch = a.Epoch
	m.changed(t)
	i.assignedIndex, i.assignedPlace = m.Index, m.place
	m.Attempts = append(m.Attempts, a)
	m.fresh.attempts = append(m.fresh.attempts, a)
}

// Waiting says why a WAITING task is not running, when that ends by itself,
// and who holds its key.
func (m *Model) Waiting(t *Task) (reason pb.WaitingReason, until int64, holder *Task) {
	var key *Key
	if t.Key != "" {
		key = m.holderOf(t.Namespace, t.Key)
	}
	capable, room := false, false
	for _, i := range m.Instances {
		capable = capable || m.capable(i, t)
		room = room || m.eligible(i, t)
	}
	switch {
	case t.Park == pb.Park_PARK_DELAYED:
		return pb.WaitingReason_WAITING_REASON_DELAYED, t.AvailableAt, nil
	case t.Park == pb.Park_PARK_BACKOFF:
		return pb.WaitingReason_WAITING_REASON_RETRY_BACKOFF, t.AvailableAt, nil
	case t.Queue.Paused:
		return pb.WaitingReason_WAITING_REASON_QUEUE_PAUSED, 0, nil
	case key != nil:
		return pb.WaitingReason_WAITING_REASON_KEY_HELD, 0, key.Task
	case m.full(t.Queue):
		return pb.WaitingReason_WAITING_REASON_QUEUE_LIMIT, 0, nil
	case !capable:
		return pb.WaitingReason_WAITING_REASON_NO_CAPABLE_WORKER, 0, nil
	case !room:
		return pb.WaitingReason_WAITING_REASON_WORKERS_BUSY, 0, nil
	}
	return pb.WaitingReason_WAITING_REASON_READY, 0, nil
}
