package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// Standing is how every queue of every namespace stands. It tells only what is
// state, so that every replica at one index says the same.
type Standing struct {
	ClockUs  int64
	KeysHeld uint64
	Queues   []*pb.QueueActivity // by namespace and name; without what they did lately
	Tokens   uint64              // access tokens that are good
}

// Standing is what metrics are made of. It costs a step for each queue, held
// key, worker and live attempt, and none for a waiting task.
func (m *Machine) Standing() Standing {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.state
	var queues []*state.Queue
	for _, n := range s.Namespaces() {
		queues = append(queues, s.Queues(ID(n.Row.Id))...)
	}
	tokens := uint64(0)
	for _, t := range s.Tokens(ID{}) {
		if state.TokenLives(t, s.Meta().ClockUs) {
			tokens++
		}
	}
	return Standing{ClockUs: s.Meta().ClockUs, KeysHeld: s.KeysHeld(), Queues: standing(s, queues), Tokens: tokens}
}

// standing says, queue by queue, how many tasks, workers and slots are where.
func standing(s *state.State, queues []*state.Queue) []*pb.QueueActivity {
	out := make([]*pb.QueueActivity, len(queues))
	of := make(map[*state.Queue]*pb.QueueActivity, len(queues))
	backlogs := s.Backlogs(queues)
	for i, q := range queues {
		out[i] = &pb.QueueActivity{Queue: viewQueue(s, q), Waiting: q.Waiting, NeedsReview: q.NeedsReview}
		standBacklog(out[i], backlogs[q])
		of[q] = out[i]
	}
	s.EachInstance(func(i *state.Instance) {
		if view := of[s.Queue(ID(i.Row.QueueId))]; view != nil {
			standWorker(view, i.Row)
		}
	})
	s.EachLiveAttempt(func(a *state.Attempt) {
		view := of[s.Queue(ID(a.Row.QueueId))]
		switch {
		case view == nil:
		case a.Row.State == pb.AttemptState_ATTEMPT_STATE_LEASED:
			view.Leased++
		default:
			view.Running++
		}
	})
	return out
}

func standBacklog(view *pb.QueueActivity, b *state.Backlog) {
	for reason, tasks := range b.By {
		if tasks > 0 {
			view.Reasons = append(view.Reasons, &pb.ReasonCount{Reason: pb.WaitingReason(reason), Tasks: tasks})
		}
	}
	if b.Oldest != (state.Waiter{}) {
		view.OldestWaitingUs, view.OldestWaitingTaskId = b.Oldest.AvailableAt, b.Oldest.ID[:]
	}
}

func standWorker(view *pb.QueueActivity, i *pb.InstanceRow) {
	switch {
	case i.EndedAtUs != 0:
		return
	case !i.Connected:
		view.WorkersLost++
		return
	case i.Draining:
		view.WorkersDraining++
	default:
		view.WorkersConnected++
		view.Slots += uint64(i.Capacity)
	}
	view.SlotsUsed += uint64(i.Active)
}

// NamespaceName finds the name of a namespace by its id; ok is false if it is not there.
func (m *Machine) NamespaceName(id ID) (name string, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.state.Namespace(id)
	if n == nil {
		return "", false
	}
	return n.Row.Name, true
}

// QueueName finds the names of a queue by its id; ok is false if it is not there.
func (m *Machine) QueueName(id ID) (namespace, queue string, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	q := m.state.Queue(id)
	if q == nil {
		return "", "", false
	}
	if n := m.state.Namespace(ID(q.Row.NamespaceId)); n != nil {
		namespace = n.Row.Name
	}
	return namespace, q.Row.Name, true
}
