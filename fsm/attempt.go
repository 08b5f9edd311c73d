package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// call is a worker's command on an attempt: who sent it and what it is about.
type call struct {
	instance *state.Instance
	task     *pb.TaskRow
	attempt  *pb.AttemptRow
}

// session finds the current session a frame was sent on.
func (r *run) session(ref *pb.SessionRef) (*state.Instance, *pb.Result) {
	if len(ref.GetInstanceId()) != 16 || len(ref.GetSessionId()) != 16 {
		return nil, refuse(schema.SessionExpired, "the session is over")
	}
	i := r.s.Instance(r.nsID(), ID(ref.InstanceId))
	switch {
	case i == nil:
		return nil, refuse(schema.SessionExpired, "the session is over")
	case !bytes.Equal(i.Row.SessionId, ref.SessionId):
		return nil, refuse(schema.SessionSuperseded, "a newer session of this worker has taken over")
	case i.Row.EndedAtUs != 0:
		return nil, refuse(schema.SessionExpired, "the session is over")
	}
	return i, nil
}

// call resolves session and attempt. The gateway has checked the lease secret,
// which covers attempt and epoch.
func (r *run) call(s *pb.SessionRef, ref *pb.AttemptRef) (call, *pb.Result) {
	i, res := r.session(s)
	if res != nil {
		return call{}, res
	}
	if len(ref.GetTaskId()) != 16 || len(ref.GetAttemptId()) != 16 {
		return call{}, refuse(schema.NotFound, "no such attempt")
	}
	t := r.tx.Task(r.nsID(), ID(ref.TaskId))
	if t == nil {
		return call{}, refuse(schema.NotFound, "no such task")
	}
	a := r.tx.Attempt(ID(ref.TaskId), ID(ref.AttemptId))
	switch {
	case a == nil:
		return call{}, refuse(schema.NotFound, "no such attempt")
	case a.Epoch != ref.Epoch:
		return call{}, refuse(schema.Forbidden, "the epoch is not this attempt's")
	}
	return call{instance: i, task: t, attempt: a}, nil
}

func (c call) foreign() bool { return !bytes.Equal(c.attempt.InstanceId, c.instance.Row.Id) }

// repeated answers an operation whose message id has a receipt already.
func (r *run) repeated(c call, op pb.Operation, hash []byte) *pb.Result {
	given := c.attempt.Receipts
	at := slices.IndexFunc(given, func(row *pb.ReceiptRow) bool { return bytes.Equal(row.MessageId, r.cmd.Id) })
	if at < 0 {
		return nil
	}
	row := given[at]
	if row.Operation != op || !bytes.Equal(row.ContentHash, hash) {
		return refuse(schema.OperationConflict, "this message_id was used for another operation")
	}
	r.heard(c.instance)
	return r.operationResult(c, row, c.attempt, true)
}

// ownCall is call for everything but a finish: an attempt is its instance's
// alone, a repeat included.
func (r *run) ownCall(s *pb.SessionRef, ref *pb.AttemptRef) (call, *pb.Result) {
	c, res := r.call(s, ref)
	if res == nil && c.foreign() {
		return call{}, refuse(schema.Forbidden, "the attempt belongs to another worker")
	}
	return c, res
}

func (r *run) refuseOver(c call) *pb.Result {
	if c.task.AttemptEpoch > c.attempt.Epoch {
		return refuse(schema.StaleEpoch, "a later attempt with epoch %d exists", c.task.AttemptEpoch)
	}
	if r.ofLostCluster(c.attempt) {
		return refuse(schema.LeaseLost, "the cluster was restored from a backup; this attempt is of the one that was lost, and is over")
	}
	return refuse(schema.LeaseLost, "the attempt is over: it is %s", AttemptStateName(c.attempt.State))
}

// outOfTime refuses start and renew once a deadline has come, although its due
// item is processed later in the entry.
func (r *run) outOfTime(c call) *pb.Result {
	t, a := c.task, c.attempt
	switch {
	case t.DeadlineAtUs <= r.now:
		return refuse(schema.LeaseLost, "the task's deadline has passed")
	case !t.Started && t.StartDeadlineAtUs != 0 && t.StartDeadlineAtUs <= r.now:
		return refuse(schema.LeaseLost, "the task's start deadline has passed")
	case a.TimeoutAtUs != 0 && a.TimeoutAtUs <= r.now:
		return refuse(schema.LeaseLost, "the attempt has timed out")
	}
	return nil
}

func (r *run) startAttempt(cmd *pb.StartAttempt) *pb.Result {
	c, res := r.ownCall(cmd.Session, cmd.Ref)
	if res != nil {
		return res
	}
	hash := contentHash(pb.Operation_OPERATION_START, cmd.Ref, nil)
	if res := r.repeated(c, pb.Operation_OPERATION_START, hash); res != nil {
		return res
	}
	if !r.counts(c.attempt) {
		return r.refuseOver(c)
	}
	if c.attempt.State == pb.AttemptState_ATTEMPT_STATE_RUNNING {
		return refuse(schema.AlreadyStarted, "the attempt was started under another message_id")
	}
	if res := r.outOfTime(c); res != nil {
		return res
	}
	a := state.CopyAttempt(c.attempt)
	a.State = pb.AttemptState_ATTEMPT_STATE_RUNNING
	a.StartedAtUs, a.Counted = r.now, true
	a.TimeoutAtUs = r.now + c.task.Retry.AttemptTimeoutMs*1000
	a.LeaseCapUs = min(a.TimeoutAtUs, c.task.DeadlineAtUs)
	r.extend(a)
	r.tx.PutAttempt(c.attempt, a)

	t := state.CopyTask(c.task)
	t.State = pb.TaskState_TASK_STATE_RUNNING
	t.Started, t.UnstartedOffers = true, 0
	r.commitTask(c.task, t, &pb.Fact{Kind: &pb.Fact_Started{
		Started: &pb.Started{AttemptId: a.Id, Epoch: a.Epoch, AttemptCount: t.AttemptCount},
	}})
	r.delivered(c.instance)
	return r.receipt(c, pb.Operation_OPERATION_START, hash, t, a, pb.Disposition_DISPOSITION_APPLIED)
}

func (r *run) renewAttempt(cmd *pb.RenewAttempt) *pb.Result {
	c, res := r.ownCall(cmd.Session, cmd.Ref)
	if res != nil {
		return res
	}
	hash := contentHash(pb.Operation_OPERATION_RENEW, cmd.Ref, nil)
	if res := r.repeated(c, pb.Operation_OPERATION_RENEW, hash); res != nil {
		return res
	}
	if !r.counts(c.attempt) {
		return r.refuseOver(c)
	}
	if res := r.outOfTime(c); res != nil {
		return res
	}
	a := state.CopyAttempt(c.attempt)
	a.Renewals++
	r.extend(a)
	r.tx.PutAttempt(c.attempt, a)
	r.heard(c.instance)
	return r.receipt(c, pb.Operation_OPERATION_RENEW, hash, c.task, a, pb.Disposition_DISPOSITION_APPLIED)
}

// extend gives an attempt a full lease from now, never shorter than it was and
// never past its cap. A start sets the cap: an offer that would have lasted
// longer than the attempt may take ends with the attempt's own time.
func (r *run) extend(a *pb.AttemptRow) {
	lease := r.s.Queue(ID(a.QueueId)).Row.Settings.LeaseDurationMs * 1000
	a.LeaseUntilUs = min(max(a.LeaseUntilUs, r.now+lease), a.LeaseCapUs)
	a.RenewedOpening = r.opening()
}

func (r *run) finishAttempt(cmd *pb.FinishAttempt) *pb.Result {
	c, res := r.call(cmd.Session, cmd.Ref)
	if res != nil {
		return res
	}
	hash := contentHash(pb.Operation_OPERATION_FINISH, cmd.Ref, cmd)
	if res := r.repeated(c, pb.Operation_OPERATION_FINISH, hash); res != nil {
		return res
	}
	ended := c.attempt.State
	switch {
	case c.foreign(), r.ofLostCluster(c.attempt), ended == pb.AttemptState_ATTEMPT_STATE_EXPIRED, ended == pb.AttemptState_ATTEMPT_STATE_UNKNOWN:
		return r.keepEvidence(c, cmd, hash)
	case !state.AttemptLive(ended):
		return r.refuseOver(c)
	}
	if res := r.refuseOutcome(c, cmd.Outcome); res != nil {
		return res
	}
	a := state.CopyAttempt(c.attempt)
	a.ErrorCode, a.Retryable, a.Counted = cmd.ErrorCode, cmd.Retryable, true
	sum := sha256.Sum256(cmd.Result)
	a.ResultDigest, a.ResultBytes = sum[:], uint32(len(cmd.Result))
	t := r.settle(c.task, a, cmd)
	if a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING || a.State == pb.AttemptState_ATTEMPT_STATE_LEASED {
		panic("fsm: a finish left its attempt alive")
	}
	if cmd.Outcome == pb.Outcome_OUTCOME_FAILED && c.attempt.State == pb.AttemptState_ATTEMPT_STATE_LEASED {
		r.heard(c.instance)
	} else {
		r.delivered(c.instance)
	}
	return r.receipt(c, pb.Operation_OPERATION_FINISH, hash, t, a, pb.Disposition_DISPOSITION_APPLIED)
}

func (r *run) refuseOutcome(c call, o pb.Outcome) *pb.Result {
	switch {
	case o == pb.Outcome_OUTCOME_CANCELLED && c.task.CancelRequestedAtUs == 0:
		return refuse(schema.CancelNotRequested, "nobody asked to cancel this task")
	case c.attempt.State == pb.AttemptState_ATTEMPT_STATE_LEASED &&
		(o == pb.Outcome_OUTCOME_SUCCEEDED || o == pb.Outcome_OUTCOME_UNKNOWN):
		return refuse(schema.NotStarted, "the attempt has not been started")
	case o == pb.Outcome_OUTCOME_UNSPECIFIED:
		return violation("/outcome", "outcome is missing")
	}
	return nil
}

// settle ends the attempt a (a changed copy) by a finish and moves its task on.
func (r *run) settle(t *pb.TaskRow, a *pb.AttemptRow, cmd *pb.FinishAttempt) *pb.TaskRow {
	next := state.CopyTask(t)
	next.KeyToken = 0
	switch cmd.Outcome {
	case pb.Outcome_OUTCOME_SUCCEEDED:
		r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_SUCCEEDED)
		r.setResult(next, cmd.Result)
		return r.finishTask(t, next, pb.TaskState_TASK_STATE_SUCCEEDED, "", &pb.Fact{Kind: &pb.Fact_Succeeded{
			Succeeded: &pb.Succeeded{AttemptId: a.Id, Epoch: a.Epoch, EffectUncertain: next.EffectUncertain},
		}})
	case pb.Outcome_OUTCOME_CANCELLED:
		r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_CANCELLED)
		r.setResult(next, cmd.Result)
		return r.finishTask(t, next, pb.TaskState_TASK_STATE_CANCELLED, cmd.ErrorCode, factCancelled(a.Id, ""))
	case pb.Outcome_OUTCOME_FAILED:
		return r.settleFailed(t, next, a, cmd)
	case pb.Outcome_OUTCOME_UNKNOWN:
	}
	r.tx.PutAttemptResult(ID(t.Id), ID(a.Id), cmd.Result)
	return r.uncertain(t, a, pb.AttemptState_ATTEMPT_STATE_UNKNOWN, pb.EndCause_END_CAUSE_UNKNOWN_OUTCOME,
		&pb.Fact{Kind: &pb.Fact_AttemptUnknown{
			AttemptUnknown: &pb.AttemptUnknown{AttemptId: a.Id, Epoch: a.Epoch, ErrorCode: cmd.ErrorCode},
		}})
}

// settleFailed: the worker says that the work definitely did not succeed.
func (r *run) settleFailed(t, next *pb.TaskRow, a *pb.AttemptRow, cmd *pb.FinishAttempt) *pb.TaskRow {
	failed := &pb.Fact{Kind: &pb.Fact_AttemptFailed{AttemptFailed: &pb.AttemptFailed{
		AttemptId: a.Id, Epoch: a.Epoch, ErrorCode: cmd.ErrorCode, Retryable: cmd.Retryable,
	}}}
	at, allowed := r.canRetry(t)
	if t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY && a.StartedAtUs != 0 {
		allowed = false // it has run; only a person may let it run again
	}
	switch {
	case cmd.Retryable && t.CancelRequestedAtUs != 0:
		r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_FAILED)
		r.setResult(next, cmd.Result)
		return r.finishTask(t, next, pb.TaskState_TASK_STATE_CANCELLED, cmd.ErrorCode, failed, factCancelled(a.Id, ""))
	case cmd.Retryable && allowed:
		r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_FAILED)
		r.tx.PutAttemptResult(ID(t.Id), ID(a.Id), cmd.Result)
		next.UnstartedOffers = 0
		return r.park(t, next, at, failed, factRetryScheduled(at, t.AttemptCount+1), factScheduleSet("retry", at))
	case next.EffectUncertain:
		held := r.endAttemptForReview(a, pb.AttemptState_ATTEMPT_STATE_FAILED)
		r.tx.PutAttemptResult(ID(t.Id), ID(a.Id), cmd.Result)
		next.KeyToken = held
		return r.needsReview(t, next, cmd.ErrorCode, pb.EndCause_END_CAUSE_UNCERTAIN_FAILURE, held != 0, failed)
	}
	r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_FAILED)
	r.setResult(next, cmd.Result)
	return r.finishTask(t, next, pb.TaskState_TASK_STATE_FAILED, cmd.ErrorCode, failed, factFailed(cmd.ErrorCode))
}

// uncertain ends a RUNNING attempt (a is a changed copy) whose effect is not
// known and decides what becomes of its task.
func (r *run) uncertain(t *pb.TaskRow, a *pb.AttemptRow, to pb.AttemptState, cause pb.EndCause, fact *pb.Fact) *pb.TaskRow {
	next := state.CopyTask(t)
	next.EffectUncertain = true
	next.KeyToken = 0
	a.EndCause = cause
	idempotent := t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT
	at, allowed := r.canRetry(t)
	switch {
	case idempotent && t.CancelRequestedAtUs != 0:
		r.endAttempt(a, to)
		return r.finishTask(t, next, pb.TaskState_TASK_STATE_CANCELLED, a.ErrorCode, fact, factCancelled(a.Id, ""))
	case idempotent && allowed:
		r.endAttempt(a, to)
		return r.park(t, next, at, fact, factRetryScheduled(at, t.AttemptCount+1), factScheduleSet("retry", at))
	}
	held := r.endAttemptForReview(a, to)
	next.KeyToken = held
	return r.needsReview(t, next, a.ErrorCode, cause, held != 0, fact)
}

// release takes an attempt that never started back: nothing ran, so it costs
// no attempt, leaves no uncertainty, and the task keeps its place among those
// that wait. After too many in a row it waits longer.
func (r *run) release(t *pb.TaskRow, old *pb.AttemptRow, cause pb.EndCause) *pb.TaskRow {
	a := state.CopyAttempt(old)
	if r.mayHaveRun(t) {
		// It may have been started after the backup.
		return r.uncertain(t, a, pb.AttemptState_ATTEMPT_STATE_EXPIRED, pb.EndCause_END_CAUSE_RESTORED,
			factExpired(a, pb.EndCause_END_CAUSE_RESTORED))
	}
	a.EndCause = cause
	r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_EXPIRED)
	next := state.CopyTask(t)
	next.AttemptCount--
	next.KeyToken = 0
	next.UnstartedOffers++
	at := t.AvailableAtUs
	if next.UnstartedOffers >= unstartedMax {
		// Its initial delay may be 0; a task that nobody starts waits all the same.
		at = r.now + max(backoff(t.Retry, next.UnstartedOffers-unstartedMax+1), holdMinMs*1000)
	}
	return r.park(t, next, at, factReleased(a, cause))
}

// endAttempt ends a live attempt (a is a changed copy of its row): the slot and
// the key are free again.
func (r *run) endAttempt(a *pb.AttemptRow, to pb.AttemptState) {
	r.closeAttempt(a, to)
	if a.ConcurrencyKey != "" {
		r.tx.FreeKey(ID(a.NamespaceId), a.ConcurrencyKey)
	}
}

// endAttemptForReview ends it but lets the task keep the key, and returns the
// token under which it does (0 without a key).
func (r *run) endAttemptForReview(a *pb.AttemptRow, to pb.AttemptState) uint64 {
	r.closeAttempt(a, to)
	if a.ConcurrencyKey == "" {
		return 0
	}
	k := r.s.Key(ID(a.NamespaceId), a.ConcurrencyKey).Row
	r.tx.HoldKey(&pb.KeyRow{
		Format: state.RowFormat, NamespaceId: k.NamespaceId, Key: k.Key, TaskId: k.TaskId, AttemptId: k.AttemptId,
		Token: k.Token, AcquiredAtUs: k.AcquiredAtUs, InReview: true,
	})
	return k.Token
}

func (r *run) closeAttempt(a *pb.AttemptRow, to pb.AttemptState) {
	old := r.s.LiveAttempt(ID(a.Id)).Row
	a.State, a.EndedAtUs = to, r.now
	r.tx.PutAttempt(old, a)
	i := state.CopyInstance(r.s.Instance(ID(a.NamespaceId), ID(a.InstanceId)).Row)
	i.Active--
	r.tx.PutInstance(i)
}

// keepEvidence keeps a finish that can no longer have an effect, for the
// reviewer. The task is not touched.
func (r *run) keepEvidence(c call, cmd *pb.FinishAttempt, hash []byte) *pb.Result {
	task, attempt := ID(c.task.Id), ID(c.attempt.Id)
	if r.tx.EvidenceCount(task, attempt) >= evidenceMax {
		return refuse(schema.LeaseLost, "the attempt is over and holds %d late finishes already", evidenceMax)
	}
	sum := sha256.Sum256(cmd.Result)
	r.tx.PutEvidence(task, attempt, &pb.EvidenceRow{
		Format: state.RowFormat, MessageId: r.cmd.Id, Outcome: cmd.Outcome, ErrorCode: cmd.ErrorCode,
		Retryable: cmd.Retryable, ResultDigest: sum[:], ResultBytes: uint32(len(cmd.Result)),
		InstanceId: c.instance.Row.Id, TimeUs: r.now,
	}, cmd.Result)
	r.heard(c.instance)
	return r.receipt(c, pb.Operation_OPERATION_FINISH, hash, c.task, c.attempt, pb.Disposition_DISPOSITION_EVIDENCE_ONLY)
}

func (r *run) resumeAttempt(cmd *pb.ResumeAttempt) *pb.Result {
	c, res := r.ownCall(cmd.Session, cmd.Ref)
	if res != nil {
		return res
	}
	r.heard(c.instance)
	return &pb.Result{Body: &pb.Result_Lease{Lease: r.lease(c.attempt)}}
}

// receipt records the first outcome of an operation, for the life of the attempt.
func (r *run) receipt(c call, op pb.Operation, hash []byte, t *pb.TaskRow, a *pb.AttemptRow, d pb.Disposition) *pb.Result {
	row := &pb.ReceiptRow{
		Format: state.RowFormat, MessageId: r.cmd.Id, Operation: op, ContentHash: hash,
		TaskState: t.State, AttemptState: a.State, TaskRevision: t.Revision,
		LeaseUntilUs: a.LeaseUntilUs, Disposition: d, TimeUs: r.now, Index: r.number,
	}
	if op == pb.Operation_OPERATION_RENEW {
		row.Number = a.Renewals
	}
	r.tx.PutReceipt(a, row, renewalsKept)
	return r.operationResult(c, row, a, false)
}

func (r *run) operationResult(c call, row *pb.ReceiptRow, a *pb.AttemptRow, deduplicated bool) *pb.Result {
	lease := r.lease(a)
	lease.Active = lease.Active && !c.foreign() // a late finish from somebody else gives it no authority
	return &pb.Result{Body: &pb.Result_Operation{Operation: &pb.OperationResult{
		Receipt: row, Lease: lease, Deduplicated: deduplicated,
	}}}
}

// lease is the authority an attempt has now.
func (r *run) lease(a *pb.AttemptRow) *pb.Lease {
	return &pb.Lease{
		Active: r.counts(a), State: a.State, LeaseUntilUs: a.LeaseUntilUs,
		ServerTimeUs: r.now, CancelRequestedAtUs: a.CancelRequestedAtUs,
	}
}

// contentHash is the identity of an operation's content under its message id.
func contentHash(op pb.Operation, ref *pb.AttemptRef, f *pb.FinishAttempt) []byte {
	h := sha256.New()
	put := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = h.Write(b)
	}
	var head [10]byte
	head[0] = byte(op)
	binary.BigEndian.PutUint64(head[1:], ref.Epoch)
	put(head[:])
	put(ref.TaskId)
	put(ref.AttemptId)
	if f != nil {
		flags := []byte{byte(f.Outcome), 0}
		if f.Retryable {
			flags[1] = 1
		}
		put(flags)
		put(f.Result)
		put([]byte(f.ErrorCode))
	}
	return h.Sum(nil)
}

// AttemptStateName is the wire name of an attempt state.
func AttemptStateName(s pb.AttemptState) string { return s.String()[len("ATTEMPT_STATE_"):] }
