package fsm

import (
	"container/heap"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// assign leases ready tasks to sessions that have room, in the entry that made
// it possible. The order is one for the whole cluster: priority (9 first, after
// ageing), then available_at, then id; among the waiters of one key, in
// whatever queues, it is the same. At most assignmentsMax leases are made; the
// queues that are not settled then are pending.
//
// A task is leased at most once here, and a key granted at most once: leasing
// takes the task out of the lists, and nothing in this phase frees a key.
func (r *run) assign() {
	h := make(queueHeap, 0, 4)
	for _, q := range r.s.Touched() {
		if c, ok := q.Best(r.now); ok {
			h = append(h, queueBest{q, c})
		} else {
			r.s.Matched(q)
		}
	}
	heap.Init(&h)
	for place := uint32(0); len(h) > 0 && place < assignmentsMax; {
		top := h[0]
		// A lease elsewhere may have taken the key this candidate waits for.
		now, ok := top.queue.Best(r.now)
		switch {
		case !ok:
			r.s.Matched(top.queue)
			heap.Pop(&h)
			continue
		case now != top.best:
			h[0].best = now
			heap.Fix(&h, 0)
			continue
		}
		r.take(top.queue, top.best, place)
		place++
	}
}

// take takes the candidate out of the waiting ones.
func (r *run) take(q *state.Queue, c state.Candidate, place uint32) {
	t := r.tx.WaitingTask(ID(q.Row.NamespaceId), c.Waiter.ID)
	if t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY && r.mayHaveRun(t) {
		r.reviewRestored(t)
		return
	}
	r.lease1(q, c.Session(), t, place)
}

// lease1 gives one task to the session that is next in turn.
func (r *run) lease1(q *state.Queue, i *state.Instance, old *pb.TaskRow, place uint32) {
	r.causedBy("pulse.task.Assign")
	id := r.newID()
	a := &pb.AttemptRow{
		Format: state.RowFormat, Id: id[:], TaskId: old.Id, NamespaceId: old.NamespaceId, QueueId: old.QueueId,
		Epoch: r.number, State: pb.AttemptState_ATTEMPT_STATE_LEASED, InstanceId: i.Row.Id,
		SessionEpoch: i.Row.SessionEpoch, LeasedAtUs: r.now, LeaseCapUs: old.DeadlineAtUs,
		LeaseUntilUs:   min(r.now+q.Row.Settings.OfferDurationMs*1000, old.DeadlineAtUs),
		RenewedOpening: r.opening(), Number: old.AttemptCount + 1, ConcurrencyKey: old.ConcurrencyKey,
	}
	t := state.CopyTask(old)
	r.doubt(old, t)
	t.State = pb.TaskState_TASK_STATE_LEASED
	t.AttemptCount++
	t.AttemptId, t.AttemptEpoch = a.Id, a.Epoch
	if t.ConcurrencyKey != "" {
		a.ConcurrencyToken, t.KeyToken = r.number, r.number
	}
	r.commitTask(old, t, &pb.Fact{Kind: &pb.Fact_Leased{Leased: &pb.Leased{
		AttemptId: a.Id, Epoch: a.Epoch, InstanceId: a.InstanceId,
		ConcurrencyToken: a.ConcurrencyToken, LeaseUntilUs: a.LeaseUntilUs,
	}}})
	if t.ConcurrencyKey != "" {
		r.tx.HoldKey(&pb.KeyRow{
			Format: state.RowFormat, NamespaceId: t.NamespaceId, Key: t.ConcurrencyKey,
			TaskId: t.Id, AttemptId: a.Id, Token: r.number, AcquiredAtUs: r.now,
		})
	}
	r.tx.PutAttempt(nil, a)
	row := state.CopyInstance(i.Row)
	row.Active++
	row.AssignedIndex, row.AssignedPlace = r.number, place
	r.tx.PutInstance(row)
	r.tellAssigned(row, a)
}

// queueBest is a queue and the task of it that goes next.
type queueBest struct {
	queue *state.Queue
	best  state.Candidate
}

type queueHeap []queueBest

func (h queueHeap) Len() int           { return len(h) }
func (h queueHeap) Less(i, j int) bool { return h[i].best.Better(h[j].best) }
func (h queueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *queueHeap) Push(x any)        { *h = append(*h, x.(queueBest)) }
func (h *queueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
