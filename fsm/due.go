package fsm

import (
	"fmt"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// due processes what has fallen due by the entry's time, in the order (due
// time, kind, id), at most dueItemsMax items. Each handler changes the row the
// timer belongs to so that the timer moves or goes: nothing fires twice.
func (r *run) due() {
	for n := 0; n < dueItemsMax; n++ {
		t, ok := r.s.NextTimer()
		if !ok || t.Due > r.now {
			return
		}
		if t.Kind == state.TimerFeed {
			left, all := r.tx.TrimFeed(dueItemsMax - n - 1) // the look is an item itself
			if !all {
				return // what is due behind the events that stay waits behind them
			}
			n += left
			continue
		}
		r.fire(t)
		if again, ok := r.s.NextTimer(); ok && again == t {
			panic(fmt.Sprintf("fsm: due item %+v is still due after it was processed", t))
		}
	}
}

func (r *run) fire(t state.Timer) {
	switch t.Kind {
	case state.TimerDeadline:
		r.deadlinePassed(r.dueTask(t))
	case state.TimerStartDeadline:
		r.startDeadlinePassed(r.dueTask(t))
	case state.TimerAvailable:
		r.available(r.dueTask(t))
	case state.TimerAttempt:
		r.leaseEnded(r.s.LiveAttempt(t.ID).Row, t.Due)
	case state.TimerGateway:
		r.gatewaySilent(r.s.Gateway(t.Text))
	case state.TimerInstance:
		r.instanceDue(r.s.Instance(t.NS, t.ID), t.Due)
	case state.TimerRetention:
		r.purge(r.dueTask(t))
	case state.TimerIdempotency:
		r.forget(t.NS, t.Text)
	case state.TimerSchedule:
		r.scheduleDue(r.s.Schedule(t.ID), t.Due)
	default:
		panic(fmt.Sprintf("fsm: timer kind %d is not known", t.Kind))
	}
}

func (r *run) dueTask(t state.Timer) *pb.TaskRow {
	row := r.tx.Task(t.NS, t.ID)
	if row == nil {
		panic(fmt.Sprintf("fsm: due item %+v belongs to no task", t))
	}
	return row
}

// available makes a parked task ready. Its revision stays: it was WAITING and
// still is.
func (r *run) available(t *pb.TaskRow) {
	next := state.CopyTask(t)
	next.Park = pb.Park_PARK_UNSPECIFIED
	r.tx.PutTask(t, next)
}

// deadlinePassed ends a task whose deadline has come, whatever it is doing.
func (r *run) deadlinePassed(t *pb.TaskRow) {
	r.causedBy("pulse.task.Expire")
	switch t.State {
	case pb.TaskState_TASK_STATE_RUNNING:
		a := state.CopyAttempt(r.s.LiveAttempt(ID(t.AttemptId)).Row)
		a.ErrorCode = codeDeadline
		r.uncertain(t, a, pb.AttemptState_ATTEMPT_STATE_EXPIRED, pb.EndCause_END_CAUSE_DEADLINE,
			factExpired(a, pb.EndCause_END_CAUSE_DEADLINE))
	default:
		r.outlived(t, codeDeadline, pb.EndCause_END_CAUSE_DEADLINE)
	}
}

func (r *run) startDeadlinePassed(t *pb.TaskRow) {
	r.causedBy("pulse.task.Expire")
	r.outlived(t, codeStartDeadline, pb.EndCause_END_CAUSE_START_DEADLINE)
}

// outlived ends a WAITING or LEASED task that ran out of time. Nothing of this
// attempt ran, so the key it may hold is free.
func (r *run) outlived(t *pb.TaskRow, code string, cause pb.EndCause) {
	next := state.CopyTask(t)
	var facts []*pb.Fact
	if t.State == pb.TaskState_TASK_STATE_LEASED {
		a := state.CopyAttempt(r.s.LiveAttempt(ID(t.AttemptId)).Row)
		a.EndCause = cause
		r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_EXPIRED)
		next.AttemptCount--
		next.KeyToken = 0
		facts = append(facts, factReleased(a, cause))
	}
	r.failOrReview(t, next, code, cause, false, facts...)
}

// leaseEnded: an offer ran out, or a running attempt's lease or time.
func (r *run) leaseEnded(a *pb.AttemptRow, due int64) {
	t := r.s.ActiveTask(ID(a.TaskId))
	timedOut := a.TimeoutAtUs != 0 && a.TimeoutAtUs <= due
	if !timedOut && r.rearmLease(a) {
		return
	}
	r.causedBy("pulse.task.Expire")
	if a.State == pb.AttemptState_ATTEMPT_STATE_LEASED {
		i := r.s.Instance(ID(a.NamespaceId), ID(a.InstanceId))
		r.release(t, a, pb.EndCause_END_CAUSE_LEASE)
		if i.Row.Connected && !r.ofLostCluster(a) { // of the others it was told
			r.lapsed(i, a)
		}
		return
	}
	next := state.CopyAttempt(a)
	cause := pb.EndCause_END_CAUSE_LEASE
	if timedOut {
		cause = pb.EndCause_END_CAUSE_ATTEMPT_TIMEOUT
	}
	r.uncertain(t, next, pb.AttemptState_ATTEMPT_STATE_EXPIRED, cause, factExpired(next, cause))
}

// rearmLease extends a lease that ran out while nobody led.
func (r *run) rearmLease(a *pb.AttemptRow) bool {
	set := r.s.Queue(ID(a.QueueId)).Row.Settings
	duration := set.OfferDurationMs
	if a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING {
		duration = set.LeaseDurationMs
	}
	until := min(r.rearmed(a.RenewedOpening, duration*1000), a.LeaseCapUs)
	if until <= r.now {
		return false
	}
	next := state.CopyAttempt(a)
	next.LeaseUntilUs = until
	r.tx.PutAttempt(a, next)
	return true
}

// gatewaySilent: a gateway has not reported for too long.
func (r *run) gatewaySilent(g *pb.GatewayRow) {
	if until := r.rearmed(g.RenewedOpening, gatewayLiveUs); until > r.now {
		r.tx.PutGateway(&pb.GatewayRow{
			Format: g.Format, Id: g.Id, Incarnation: g.Incarnation, LiveUntilUs: until,
			RenewedOpening: g.RenewedOpening, StartedAtUs: g.StartedAtUs,
		})
		return
	}
	r.loseGateway(g.Id, g.Incarnation)
}

// instanceDue does what has come due for a worker instance: its hold is over,
// its grace, its session, or its whole row. What comes due for it later, though
// before the entry's time, waits for its place in the order.
func (r *run) instanceDue(i *state.Instance, due int64) {
	if i.Row.HoldUntilUs != 0 && i.Row.HoldUntilUs <= due {
		row := state.CopyInstance(i.Row)
		row.HoldUntilUs = 0
		r.tx.PutInstance(row)
	}
	row := i.Row
	switch {
	case row.EndedAtUs != 0:
		if row.Active == 0 && row.EndedAtUs+state.InstanceRemoveUs <= due {
			r.tx.DeleteInstance(i)
		}
	case row.Connected:
	case !row.GraceOver && row.DisconnectedAtUs+state.SessionGraceUs <= due:
		r.graceOver(i)
	case row.DisconnectedAtUs+state.SessionExpiryUs <= due:
		r.endSession(i)
	}
}

// rearmDisconnect counts the time since the loss anew from an election: the
// worker could reach nobody.
func (r *run) rearmDisconnect(i *state.Instance) bool {
	from := r.rearmed(i.Row.RenewedOpening, 0)
	if from <= i.Row.DisconnectedAtUs {
		return false
	}
	row := state.CopyInstance(i.Row)
	row.DisconnectedAtUs = from
	r.tx.PutInstance(row)
	return true
}

// graceOver releases what a lost session had not started.
func (r *run) graceOver(i *state.Instance) {
	if r.rearmDisconnect(i) {
		return
	}
	row := state.CopyInstance(i.Row)
	row.GraceOver = true
	r.tx.PutInstance(row)
	cause := pb.EndCause_END_CAUSE_SESSION_LOST
	if row.Undeliverable {
		cause = pb.EndCause_END_CAUSE_UNDELIVERABLE
	}
	for _, id := range append([]ID(nil), i.Attempts...) {
		a := r.s.LiveAttempt(id).Row
		if a.State == pb.AttemptState_ATTEMPT_STATE_LEASED {
			r.causedBy("pulse.task.Expire")
			r.release(r.s.ActiveTask(ID(a.TaskId)), a, cause)
		}
	}
}

func (r *run) endSession(i *state.Instance) {
	if r.rearmDisconnect(i) {
		return
	}
	r.causedBy("pulse.worker.Expire")
	row := state.CopyInstance(i.Row)
	row.EndedAtUs = r.now
	r.commitWorker(row, &pb.Fact{Kind: &pb.Fact_WorkerLost{WorkerLost: &pb.WorkerLost{
		SessionId: row.SessionId, Epoch: row.SessionEpoch,
	}}})
}

// purge removes a task that has been over for its retention.
func (r *run) purge(t *pb.TaskRow) {
	r.causedBy("pulse.task.Purge")
	r.tx.PurgeTask(t)
	gone := state.CopyTask(t)
	gone.Revision++
	gone.UpdatedAtUs = r.now
	e := r.event(pb.Aggregate_AGGREGATE_TASK, t.NamespaceId, t.Id, gone.Revision,
		[]*pb.Fact{{Kind: &pb.Fact_Purged{Purged: &pb.Purged{Reason: "retention"}}}})
	e.TaskAfter, e.Deleted = gone, true
	e.CorrelationId, e.CausationId = t.CreatedCommandId, t.CreatedCommandId
	r.append(e)
}

// forget drops a remembered answer.
func (r *run) forget(ns ID, key string) {
	row := r.tx.Idempotency(ns, key)
	if row == nil {
		panic(fmt.Sprintf("fsm: remembered answer %q is due but missing", key))
	}
	r.tx.ForgetIdempotency(row)
	n := state.CopyNamespace(r.s.Namespace(ns).Row)
	n.IdempotencyKeys--
	r.tx.PutNamespace(n)
}
