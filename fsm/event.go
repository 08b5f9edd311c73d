package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// commitTask puts the next revision of a task together with the facts that
// make it. old is nil for a new task.
func (r *run) commitTask(old, t *pb.TaskRow, facts ...*pb.Fact) {
	t.Format = state.RowFormat
	t.Revision++
	t.UpdatedAtUs = r.now
	r.tx.PutTask(old, t)
	e := r.event(pb.Aggregate_AGGREGATE_TASK, t.NamespaceId, t.Id, t.Revision, facts)
	e.TaskAfter = t
	if !r.cause.own {
		e.CorrelationId, e.CausationId = t.CreatedCommandId, t.CreatedCommandId
	}
	r.append(e)
	if old != nil && !state.Terminal(old.State) && state.Terminal(t.State) {
		r.runOver(t)
	}
}

func (r *run) event(kind pb.Aggregate, ns, id []byte, version uint64, facts []*pb.Fact) *pb.EventRow {
	e := &pb.EventRow{
		Aggregate: kind, NamespaceId: ns, AggregateId: id, Version: version,
		CommandId: r.cause.commandID, CommandType: r.cause.commandType, RequestId: r.cause.requestID,
		Operator: r.cause.operator, AppId: r.cause.appID, Facts: facts,
	}
	if r.cause.own {
		e.CorrelationId = r.cause.commandID
		if e.CommandType == "" {
			e.CommandType = commandType(r.cmd)
		}
	}
	return e
}

func (r *run) append(e *pb.EventRow) {
	r.tx.AppendEvent(e)
	r.out.Events = append(r.out.Events, e)
}

func (r *run) commitQueue(q *pb.QueueRow, fact *pb.Fact) {
	q.Format = state.RowFormat
	q.Revision++
	q.UpdatedAtUs = r.now
	r.tx.PutQueue(q)
	e := r.event(pb.Aggregate_AGGREGATE_QUEUE, q.NamespaceId, q.Id, q.Revision, []*pb.Fact{fact})
	e.QueueAfter, e.Deleted = q, q.DeletedAtUs != 0
	r.append(e)
}

// commitSchedule puts the next version of a schedule. What the store keeps of its
// last times is not repeated in the event.
func (r *run) commitSchedule(c *pb.ScheduleRow, fact *pb.Fact) {
	c.Format = state.RowFormat
	c.Version++
	r.tx.PutSchedule(c)
	after := state.CopySchedule(c)
	after.Recent = nil
	e := r.event(pb.Aggregate_AGGREGATE_SCHEDULE, c.NamespaceId, c.Id, c.Version, []*pb.Fact{fact})
	e.ScheduleAfter = after
	r.append(e)
}

func (r *run) commitWorker(i *pb.InstanceRow, fact *pb.Fact) {
	i.Format = state.RowFormat
	i.Revision++
	r.tx.PutInstance(i)
	r.append(r.event(pb.Aggregate_AGGREGATE_WORKER, i.NamespaceId, i.Id, i.Revision, []*pb.Fact{fact}))
}

func (r *run) commitNamespace(n *pb.NamespaceRow, fact *pb.Fact) {
	n.Format = state.RowFormat
	n.Revision++
	n.UpdatedAtUs = r.now
	r.tx.PutNamespace(n)
	e := r.event(pb.Aggregate_AGGREGATE_NAMESPACE, n.Id, n.Id, n.Revision, []*pb.Fact{fact})
	e.NamespaceAfter = n
	r.append(e)
}

// Facts, by the name their arm has.

func factSubmitted(source string) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_Submitted{Submitted: &pb.Submitted{Source: source}}}
}

func factScheduleSet(key string, due int64) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_ScheduleSet{ScheduleSet: &pb.ScheduleSet{Key: key, DueAtUs: due}}}
}

func factCancelled(attempt []byte, note string) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_Cancelled{Cancelled: &pb.Cancelled{AttemptId: attempt, Note: note}}}
}

func factFailed(code string) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_Failed{Failed: &pb.Failed{ErrorCode: code}}}
}

func factRetryScheduled(at int64, attempt uint32) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_RetryScheduled{RetryScheduled: &pb.RetryScheduled{AvailableAtUs: at, Attempt: attempt}}}
}

func factReviewNeeded(cause pb.EndCause, keyHeld bool) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_ReviewNeeded{ReviewNeeded: &pb.ReviewNeeded{Cause: cause, KeyHeld: keyHeld}}}
}

func factExpired(a *pb.AttemptRow, cause pb.EndCause) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_AttemptExpired{AttemptExpired: &pb.AttemptExpired{AttemptId: a.Id, Epoch: a.Epoch, Cause: cause}}}
}

func factReleased(a *pb.AttemptRow, cause pb.EndCause) *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_LeaseReleased{LeaseReleased: &pb.LeaseReleased{AttemptId: a.Id, Epoch: a.Epoch, Reason: cause}}}
}
