package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// viewTask is what readers see of a task, from inside an entry.
func (r *run) viewTask(t *pb.TaskRow, bodies bool) *pb.TaskView {
	v := viewTask(r.s, t)
	if bodies {
		v.Payload = r.tx.Payload(ID(t.Id))
		if t.ResultBytes > 0 {
			v.Result = r.tx.Result(ID(t.Id))
		}
	}
	return v
}

// viewTask adds the names, the waiting reason and the lease to a row.
func viewTask(s *state.State, t *pb.TaskRow) *pb.TaskView {
	v := &pb.TaskView{Task: t}
	q, n := s.Queue(ID(t.QueueId)), s.Namespace(ID(t.NamespaceId))
	if n != nil {
		v.Namespace = n.Row.Name
	}
	if q == nil { // the namespace was deleted while a reader held the row
		return v
	}
	v.Queue = q.Row.Name
	if len(t.ScheduleId) == 16 {
		if c := s.Schedule(ID(t.ScheduleId)); c != nil {
			v.Schedule = c.Row.Name
		}
	}
	if t.State == pb.TaskState_TASK_STATE_WAITING {
		v.Waiting = s.Waiting(t)
	}
	if state.Active(t.State) {
		if a := s.LiveAttempt(ID(t.AttemptId)); a != nil {
			v.Lease = &pb.LeaseView{
				AttemptId: a.Row.Id, Epoch: a.Row.Epoch, InstanceId: a.Row.InstanceId,
				LeaseUntilUs: a.Row.LeaseUntilUs, StartedAtUs: a.Row.StartedAtUs,
				ConcurrencyToken: a.Row.ConcurrencyToken,
			}
		}
	}
	return v
}

func viewQueue(s *state.State, q *state.Queue) *pb.QueueView {
	v := &pb.QueueView{
		Queue: q.Row, Waiting: q.Waiting, Active: q.Active, NeedsReview: q.NeedsReview,
		Deleted: q.Row.DeletedAtUs != 0,
	}
	if n := s.Namespace(ID(q.Row.NamespaceId)); n != nil {
		v.Namespace = n.Row.Name
	}
	return v
}

// viewNamespace adds what the namespace holds now.
func viewNamespace(n *state.Namespace) *pb.NamespaceRow {
	v := state.CopyNamespace(n.Row)
	v.Usage = n.Use()
	return v
}

func viewSchedule(s *state.State, c *pb.ScheduleRow) *pb.ScheduleView {
	v := &pb.ScheduleView{Schedule: c, Open: s.OpenRuns(ID(c.Id))}
	if n := s.Namespace(ID(c.NamespaceId)); n != nil {
		v.Namespace = n.Row.Name
	}
	return v
}

func viewKey(name string, k *state.Key) *pb.KeyView {
	v := &pb.KeyView{Key: name}
	if k == nil {
		return v
	}
	v.Waiters = uint64(k.Waiters)
	if k.Row != nil {
		v.HolderTaskId, v.AttemptId, v.Token = k.Row.TaskId, k.Row.AttemptId, k.Row.Token
		v.AcquiredAtUs, v.InReview = k.Row.AcquiredAtUs, k.Row.InReview
	}
	return v
}

// viewWorker leaves the secret's hash out.
func viewWorker(s *state.State, i *pb.InstanceRow) *pb.WorkerView {
	row := state.CopyInstance(i)
	row.SecretHash = nil
	v := &pb.WorkerView{Instance: row, ExpiresAtUs: sessionExpiry(s, i)}
	if n := s.Namespace(ID(i.NamespaceId)); n != nil {
		v.Namespace = n.Row.Name
	}
	if q := s.Queue(ID(i.QueueId)); q != nil {
		v.Queue = q.Row.Name
	}
	switch {
	case i.EndedAtUs != 0:
		v.State = "ended"
	case !i.Connected:
		v.State = "disconnected"
	case i.Draining:
		v.State = "draining"
	default:
		v.State = "connected"
	}
	return v
}

func stats(s *state.State) *pb.Stats {
	m := s.Meta()
	out := &pb.Stats{
		AppliedIndex: m.AppliedIndex, FenceBase: m.FenceBase, ClockUs: m.ClockUs, ClusterId: m.ClusterId,
		StateHash: m.StateHash, Gateways: s.Gateways(), KeysHeld: s.KeysHeld(), TimersNear: uint64(s.NearTimers()),
		FormatLevel: m.FormatLevel, EventRetentionMs: m.EventRetentionMs, IdempotencyKeysMax: m.IdempotencyKeysMax,
	}
	if n := len(m.Openings); n > 0 {
		out.Openings = m.Openings[n-1].Count
	}
	for _, n := range s.Namespaces() {
		for _, q := range s.Queues(ID(n.Row.Id)) {
			out.Queues = append(out.Queues, viewQueue(s, q))
		}
		for _, i := range s.Instances(ID(n.Row.Id), ID{}) {
			if i.Row.Connected {
				out.SessionsConnected++
			}
		}
	}
	for _, a := range s.LiveAttempts() {
		if a.Row.State == pb.AttemptState_ATTEMPT_STATE_LEASED {
			out.AttemptsLeased++
		} else {
			out.AttemptsRunning++
		}
	}
	return out
}
