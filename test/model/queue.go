package model

import (
	"slices"

	pb "pulse/proto/pulse/v1"
)

// SettingsOf reads a queue's settings.
func SettingsOf(s *pb.QueueSettings) Settings {
	out := Settings{LeaseMS: s.LeaseDurationMs, OfferMS: s.OfferDurationMs, MaxActive: s.MaxActive,
		MaxWaiting: s.MaxWaiting, RetentionMS: s.RetentionMs, DefaultDeadlineMS: s.DefaultDeadlineMs,
		AgeingMS: s.AgeingMs}
	if r := s.DefaultRetry; r != nil {
		out.Retry = Retry{MaxAttempts: r.MaxAttempts, InitialMS: r.InitialDelayMs, MaxMS: r.MaxDelayMs,
			AttemptTimeoutMS: r.AttemptTimeoutMs}
	}
	return out
}

func (m *Model) namespaceOf(c *pb.Command) *Namespace {
	if len(c.NamespaceId) > 0 {
		return m.namespaceByID(toID(c.NamespaceId))
	}
	return m.namespaceNamed(c.Namespace)
}

func (m *Model) namespaceByID(id ID) *Namespace {
	for _, ns := range m.Namespaces {
		if ns.ID == id {
			return ns
		}
	}
	return nil
}

func (m *Model) namespaceNamed(name string) *Namespace {
	for _, ns := range m.Namespaces {
		if ns.Name == name {
			return ns
		}
	}
	return nil
}

func (m *Model) newNamespace(name string) *Namespace {
	ns := &Namespace{Name: name, Revision: 1, seq: m.next()}
	m.Namespaces = append(m.Namespaces, ns)
	m.fresh.namespaces = append(m.fresh.namespaces, ns)
	return ns
}

func (m *Model) putNamespace(b *pb.PutNamespace) Result {
	ns := m.namespaceNamed(b.Name)
	quota := Quota{TasksWaiting: b.Quota.GetTasksWaiting(), PayloadBytes: b.Quota.GetPayloadBytes(), Workers: b.Quota.GetWorkers()}
	if ns == nil {
		m.newNamespace(b.Name).Quota = quota
	} else if b.Quota != nil && ns.Quota != quota {
		ns.Quota = quota
		ns.Revision++
	}
	return Result{}
}

// deleteNamespace removes a namespace without queues and tasks, and everything
// else that is left of it.
func (m *Model) deleteNamespace(b *pb.DeleteNamespace) Result {
	ns := m.namespaceNamed(b.Name)
	if ns == nil {
		return refuse(notFound)
	}
	if ns.Name == "default" {
		return refuse(conflict)
	}
	for _, q := range m.Queues {
		if q.Namespace == ns && !q.Deleted {
			return refuse(conflict)
		}
	}
	for _, t := range m.Tasks {
		if t.Namespace == ns {
			return refuse(conflict)
		}
	}
	for _, t := range m.Tokens {
		if t.Lives(m.Clock) && slices.Contains(t.Namespaces, ns.Name) {
			return refuse(conflict)
		}
	}
	for _, c := range m.Schedules {
		if c.Namespace == ns {
			return refuse(conflict)
		}
	}
	m.Namespaces = remove(m.Namespaces, ns)
	m.Queues = slices.DeleteFunc(m.Queues, func(q *Queue) bool { return q.Namespace == ns })
	m.Instances = slices.DeleteFunc(m.Instances, func(i *Instance) bool { return i.Namespace == ns })
	m.Remembered = slices.DeleteFunc(m.Remembered, func(r *Remembered) bool { return r.Namespace == ns })
	// What came and went in one entry is never named.
	m.fresh.namespaces = remove(m.fresh.namespaces, ns)
	m.fresh.queues = slices.DeleteFunc(m.fresh.queues, func(q *Queue) bool { return q.Namespace == ns })
	m.fresh.sessions = slices.DeleteFunc(m.fresh.sessions, func(i *Instance) bool { return i.Namespace == ns })
	return Result{}
}

func (m *Model) queueNamed(ns *Namespace, name string) *Queue {
	for _, q := range m.Queues {
		if q.Namespace == ns && q.Name == name && !q.Deleted {
			return q
		}
	}
	return nil
}

func (m *Model) newQueue(ns *Namespace, name string, s Settings, paused bool) *Queue {
	q := &Queue{Namespace: ns, Name: name, Revision: 1, Settings: s, Paused: paused, seq: m.next()}
	m.Queues = append(m.Queues, q)
	m.fresh.queues = append(m.fresh.queues, q)
	return q
}

func (m *Model) putQueue(ns *Namespace, b *pb.PutQueue) Result {
	q := m.queueNamed(ns, b.Name)
	if q == nil {
		if b.ExpectedRevision != 0 {
			return refuse(notFound)
		}
		return aboutQueue(m.newQueue(ns, b.Name, SettingsOf(b.Settings), b.Paused))
	}
	if b.ExpectedRevision != 0 && b.ExpectedRevision != q.Revision {
		return Result{Code: revisionConflict, CurrentRevision: q.Revision}
	}
	if s := SettingsOf(b.Settings); q.Settings != s || q.Paused != b.Paused {
		q.Settings, q.Paused = s, b.Paused
		q.Revision++
	}
	return aboutQueue(q)
}

func aboutQueue(q *Queue) Result { return Result{Queue: q, QueueAt: *q} }

func (m *Model) pauseQueue(ns *Namespace, b *pb.PauseQueue) Result {
	q := m.queueNamed(ns, b.Name)
	if q == nil {
		return refuse(notFound)
	}
	if b.ExpectedRevision != 0 && b.ExpectedRevision != q.Revision {
		return Result{Code: revisionConflict, CurrentRevision: q.Revision}
	}
	if q.Paused != b.Paused {
		q.Paused = b.Paused
		q.Revision++
	}
	return aboutQueue(q)
}

func (m *Model) deleteQueue(ns *Namespace, b *pb.DeleteQueue) Result {
	q := m.queueNamed(ns, b.Name)
	if q == nil {
		return refuse(notFound)
	}
	if b.ExpectedRevision != 0 && b.ExpectedRevision != q.Revision {
		return Result{Code: revisionConflict, CurrentRevision: q.Revision}
	}
	for _, t := range m.Tasks {
		if t.Queue == q && !t.Terminal() {
			return refuse(conflict)
		}
	}
	for _, i := range m.Instances {
		if i.Queue == q && i.Connected {
			return refuse(conflict)
		}
	}
	for _, c := range m.Schedules {
		if c.Namespace == ns && c.Spec.Task.Queue == q.Name {
			return refuse(conflict)
		}
	}
	q.Deleted = true // retained tasks still name it
	q.Revision++
	return aboutQueue(q)
}

// keyOf is the key a task holds, nil if none.
func (m *Model) keyOf(t *Task) *Key {
	for _, k := range m.Keys {
		if k.Task == t {
			return k
		}
	}
	return nil
}

// holderOf is the holding of a key, nil if it is free.
func (m *Model) holderOf(ns *Namespace, name string) *Key {
	for _, k := range m.Keys {
		if k.Namespace == ns && k.Name == name {
			return k
		}
	}
	return nil
}

func (m *Model) freeKeyOf(t *Task) {
	if k := m.keyOf(t); k != nil {
		m.Keys = remove(m.Keys, k)
		t.KeyToken = 0
	}
}

func (m *Model) freeKey(ns *Namespace, b *pb.FreeKey) Result {
	if b.Note == "" {
		return refuse(invalidArgument)
	}
	k := m.holderOf(ns, b.Key)
	if k == nil {
		return Result{Key: &KeyAnswer{Name: b.Key}}
	}
	if !k.InReview {
		return Result{Code: conflict}
	}
	m.freeKeyOf(k.Task)
	m.changed(k.Task)
	return Result{Key: &KeyAnswer{Name: b.Key}}
}
