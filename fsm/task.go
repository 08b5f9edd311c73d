package fsm

import (
	"bytes"
	"cmp"
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Error codes of tasks that end without a worker's word.
const (
	codeDeadline      = "deadline_exceeded"
	codeStartDeadline = "start_deadline_exceeded"
)

func (r *run) submitTask(c *pb.SubmitTask) *pb.Result {
	q := r.s.QueueByName(r.nsID(), c.Queue)
	if q == nil {
		return refuse(schema.NotFound, "no queue %q in this namespace", c.Queue)
	}
	if c.BusinessKey != "" {
		if id, ok := r.tx.Business(r.nsID(), c.BusinessKey); ok {
			return r.repeatedBusinessKey(r.tx.Task(r.nsID(), id))
		}
	}
	if q.Waiting >= q.Row.Settings.MaxWaiting {
		return refuse(schema.QueueFull, "queue %q already holds %d waiting tasks", c.Queue, q.Waiting)
	}
	t, res := r.newTask(c, q)
	if res == nil {
		res = refuseTask(r.ns, t.PayloadBytes)
	}
	if res != nil {
		return res
	}
	if c.BusinessKey != "" {
		t.SubmissionHash = r.cmd.ContentHash
	}
	r.remembered(t)
	r.insertTask(t, c.Payload, c.Source, c.Trace)
	return taskResult(r.viewTask(t, false))
}

// repeatedBusinessKey answers a second submission under a business key: the
// first task if the content is the same, else a conflict that names it.
func (r *run) repeatedBusinessKey(t *pb.TaskRow) *pb.Result {
	if !bytes.Equal(t.SubmissionHash, r.cmd.ContentHash) {
		res := refuse(schema.Conflict, "the business key belongs to a task with other content")
		res.ExistingTaskId = t.Id
		return res
	}
	res := taskResult(r.viewTask(t, true))
	res.GetTask().Duplicate = true
	return res
}

// newTask fills in what the submission left to the queue and checks what only
// the cluster clock can tell.
func (r *run) newTask(c *pb.SubmitTask, q *state.Queue) (*pb.TaskRow, *pb.Result) {
	set := q.Row.Settings
	available := max(c.AvailableAtUs, r.now)
	if c.DelayMs > 0 {
		available = r.now + c.DelayMs*1000
	}
	deadline := c.DeadlineAtUs
	if deadline == 0 {
		deadline = available + set.DefaultDeadlineMs*1000
	}
	if deadline <= available {
		return nil, violation("/deadline_at", "deadline_at must be later than the time the task is available")
	}
	if c.StartDeadlineAtUs != 0 && c.StartDeadlineAtUs <= available {
		return nil, violation("/start_deadline_at", "start_deadline_at must be later than the time the task is available")
	}
	sum := sha256.Sum256(c.Payload)
	t := &pb.TaskRow{
		NamespaceId: q.Row.NamespaceId, QueueId: q.Row.Id, State: pb.TaskState_TASK_STATE_WAITING,
		Handler: c.Handler, HandlerVersion: c.HandlerVersion, PayloadVersion: c.PayloadVersion,
		PayloadDigest: sum[:], PayloadBytes: uint32(len(c.Payload)),
		BusinessKey: c.BusinessKey, ConcurrencyKey: c.ConcurrencyKey, Priority: c.Priority,
		AvailableAtUs: available, StartDeadlineAtUs: c.StartDeadlineAtUs, DeadlineAtUs: deadline,
		RecoverySafety: c.RecoverySafety, Retry: retryPolicy(c, set.DefaultRetry),
		CreatedAtUs: r.now, CreatedCommandId: r.cause.commandID,
	}
	if t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_UNSPECIFIED {
		t.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT
	}
	return t, nil
}

// remembered keeps a task that the command makes as long as its answer is.
func (r *run) remembered(t *pb.TaskRow) {
	if r.cmd.IdempotencyKey != "" {
		t.RememberedUntilUs = r.now + idempotencyKeptUs
	}
}

func violation(path, message string) *pb.Result {
	res := refuse(schema.InvalidArgument, "%s", message)
	res.Violations = []*pb.Violation{{Path: path, Message: message}}
	return res
}

// retryPolicy takes each member from the submission or else from the queue.
func retryPolicy(c *pb.SubmitTask, d *pb.RetryPolicy) *pb.RetryPolicy {
	p := proto.CloneOf(d)
	if c.MaxAttempts != nil {
		p.MaxAttempts = *c.MaxAttempts
	}
	if c.InitialDelayMs != nil {
		p.InitialDelayMs = *c.InitialDelayMs
	}
	if c.MaxDelayMs != nil {
		p.MaxDelayMs = *c.MaxDelayMs
	}
	if c.AttemptTimeoutMs != nil {
		p.AttemptTimeoutMs = *c.AttemptTimeoutMs
	}
	return p
}

// insertTask gives a new task its id and puts it.
func (r *run) insertTask(t *pb.TaskRow, payload []byte, source string, trace *pb.TraceContext) {
	id := r.newID()
	t.Id = id[:]
	facts := []*pb.Fact{factSubmitted(source)}
	if t.AvailableAtUs > r.now {
		t.Park = pb.Park_PARK_DELAYED
		facts = append(facts, factScheduleSet("available", t.AvailableAtUs))
	}
	if t.StartDeadlineAtUs != 0 {
		facts = append(facts, factScheduleSet("start-deadline", t.StartDeadlineAtUs))
	}
	facts = append(facts, factScheduleSet("deadline", t.DeadlineAtUs))
	r.tx.PutPayload(id, payload)
	if trace != nil {
		t.Traced = true
		r.tx.PutTrace(id, trace)
	}
	r.commitTask(nil, t, facts...)
	if t.BusinessKey != "" {
		r.tx.PutBusiness(ID(t.NamespaceId), t.BusinessKey, id)
	}
}

// findTask looks a task up for a command that changes it.
func (r *run) findTask(id []byte, expectedRevision uint64) (*pb.TaskRow, *pb.Result) {
	if len(id) != 16 {
		return nil, refuse(schema.NotFound, "no such task")
	}
	t := r.tx.Task(r.nsID(), ID(id))
	if t == nil {
		return nil, refuse(schema.NotFound, "no such task")
	}
	if expectedRevision != 0 && expectedRevision != t.Revision {
		res := refuse(schema.RevisionConflict, "the task is at revision %d", t.Revision)
		res.CurrentRevision = t.Revision
		return nil, res
	}
	return t, nil
}

func (r *run) cancelTask(c *pb.CancelTask) *pb.Result {
	t, res := r.findTask(c.TaskId, c.ExpectedRevision)
	if res != nil {
		return res
	}
	if t.CancelRequestedAtUs != 0 {
		return taskResult(r.viewTask(t, true)) // asked already, whatever has become of it
	}
	switch t.State {
	case pb.TaskState_TASK_STATE_WAITING:
		next := state.CopyTask(t)
		next.Decision = r.decision(pb.ReviewDecision_REVIEW_DECISION_UNSPECIFIED, c.Note)
		t = r.finishTask(t, next, pb.TaskState_TASK_STATE_CANCELLED, "", factCancelled(nil, c.Note))
	case pb.TaskState_TASK_STATE_LEASED:
		t = r.cancelOffer(t, c.Note)
	case pb.TaskState_TASK_STATE_RUNNING:
		t = r.requestCancel(t, c.Note)
	case pb.TaskState_TASK_STATE_CANCELLED:
	case pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		return refuse(schema.Conflict, "the task needs review; settle it with a review decision")
	default:
		return refuse(schema.Conflict, "the task is over: it is %s", StateName(t.State))
	}
	return taskResult(r.viewTask(t, true))
}

// runTask makes a task ready that waits for a time of its own. One that waits for
// anything else is left as it is: nobody can hurry a worker.
func (r *run) runTask(c *pb.RunTask) *pb.Result {
	t, res := r.findTask(c.TaskId, c.ExpectedRevision)
	switch {
	case res != nil:
		return res
	case t.State != pb.TaskState_TASK_STATE_WAITING:
		return refuse(schema.Conflict, "the task does not wait: it is %s", StateName(t.State))
	case t.Park == pb.Park_PARK_UNSPECIFIED:
		return taskResult(r.viewTask(t, true))
	}
	next := state.CopyTask(t)
	next.AvailableAtUs, next.Park = r.now, pb.Park_PARK_UNSPECIFIED
	r.commitTask(t, next, &pb.Fact{Kind: &pb.Fact_MadeAvailable{
		MadeAvailable: &pb.MadeAvailable{WasUntilUs: t.AvailableAtUs, Note: c.Note},
	}})
	return taskResult(r.viewTask(next, true))
}

// cancelOffer ends a task whose attempt has not started; its session is told.
func (r *run) cancelOffer(t *pb.TaskRow, note string) *pb.TaskRow {
	a := state.CopyAttempt(r.s.LiveAttempt(ID(t.AttemptId)).Row)
	a.CancelRequestedAtUs = r.now
	r.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_CANCELLED)
	r.tellCancel(a)
	next := state.CopyTask(t)
	next.AttemptCount--
	next.KeyToken = 0
	next.CancelRequestedAtUs = r.now
	next.Decision = r.decision(pb.ReviewDecision_REVIEW_DECISION_UNSPECIFIED, note)
	return r.finishTask(t, next, pb.TaskState_TASK_STATE_CANCELLED, "", factCancelled(a.Id, note))
}

// requestCancel asks the worker; only the worker or an expiry ends the task.
func (r *run) requestCancel(t *pb.TaskRow, note string) *pb.TaskRow {
	old := r.s.LiveAttempt(ID(t.AttemptId)).Row
	a := state.CopyAttempt(old)
	a.CancelRequestedAtUs = r.now
	r.tx.PutAttempt(old, a)
	r.tellCancel(a)
	next := state.CopyTask(t)
	next.CancelRequestedAtUs = r.now
	next.Decision = r.decision(pb.ReviewDecision_REVIEW_DECISION_UNSPECIFIED, note)
	r.commitTask(t, next, &pb.Fact{Kind: &pb.Fact_CancelRequested{
		CancelRequested: &pb.CancelRequested{RequestedAtUs: r.now, Note: note},
	}})
	return next
}

// tellCancel hints that a session that asked for notifications should hear of
// a cancel.
func (r *run) tellCancel(a *pb.AttemptRow) {
	i := r.s.Instance(ID(a.NamespaceId), ID(a.InstanceId))
	if i == nil || !i.Row.Connected || !i.Row.CancellationNotifications {
		return
	}
	r.effect(Effect{
		Kind: EffectCancel, GatewayID: i.Row.GatewayId, NamespaceID: ID(a.NamespaceId),
		SessionID: ID(i.Row.SessionId), TaskID: ID(a.TaskId), AttemptID: ID(a.Id), Once: !state.AttemptLive(a.State),
	})
}

// retryTask submits the content of a task that is over once more, as a new
// task. What is uncertain about the old one is uncertain about the new one. once
// refuses a task that was retried already: nobody named it, so nobody wants its
// work done a second time.
func (r *run) retryTask(c *pb.RetryTask, once bool) *pb.Result {
	t, res := r.findTask(c.TaskId, c.ExpectedRevision)
	if res != nil {
		return res
	}
	switch {
	case t.State == pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		return refuse(schema.Conflict, "the task needs review; settle it with a review decision")
	case !state.Terminal(t.State):
		return refuse(schema.Conflict, "the task is not over: it is %s", StateName(t.State))
	case once && len(t.RetriedAs) > 0:
		return refuse(schema.Conflict, "the task was retried already, as %x", t.RetriedAs)
	}
	q := r.s.Queue(ID(t.QueueId))
	if q.Row.DeletedAtUs != 0 {
		return refuse(schema.Conflict, "the task's queue was deleted")
	}
	if q.Waiting >= q.Row.Settings.MaxWaiting {
		return refuse(schema.QueueFull, "queue %q already holds %d waiting tasks", q.Row.Name, q.Waiting)
	}
	if res := refuseTask(r.ns, t.PayloadBytes); res != nil {
		return res
	}
	next := &pb.TaskRow{
		NamespaceId: t.NamespaceId, QueueId: t.QueueId, State: pb.TaskState_TASK_STATE_WAITING,
		Handler: t.Handler, HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion,
		PayloadDigest: t.PayloadDigest, PayloadBytes: t.PayloadBytes,
		ConcurrencyKey: t.ConcurrencyKey, Priority: t.Priority, AvailableAtUs: r.now,
		DeadlineAtUs:   r.now + t.DeadlineAtUs - t.CreatedAtUs,
		RecoverySafety: t.RecoverySafety, Retry: t.Retry, EffectUncertain: t.EffectUncertain,
		RetryOf: t.Id, CreatedAtUs: r.now, CreatedCommandId: r.cmd.Id,
		ScheduleId: t.ScheduleId, NominalAtUs: t.NominalAtUs,
	}
	if t.StartDeadlineAtUs != 0 {
		next.StartDeadlineAtUs = r.now + t.StartDeadlineAtUs - t.CreatedAtUs
	}
	r.remembered(next)
	var trace *pb.TraceContext
	if t.Traced {
		trace = r.tx.Trace(ID(t.Id))
	}
	r.insertTask(next, r.tx.Payload(ID(t.Id)), "retry", trace)
	// Its revision stays: what became of it has not changed.
	old := state.CopyTask(t)
	old.RetriedAs = next.Id
	r.tx.PutTask(t, old)
	return taskResult(r.viewTask(next, true))
}

// reviewTask is a person's decision about a task whose effect is not known.
func (r *run) reviewTask(c *pb.ReviewTask) *pb.Result {
	t, res := r.findTask(c.TaskId, c.ExpectedRevision)
	if res != nil {
		return res
	}
	if res := r.refuseReview(t, c); res != nil {
		return res
	}
	next := state.CopyTask(t)
	next.EffectUncertain = false
	next.ReviewCause, next.ReviewSinceUs = pb.EndCause_END_CAUSE_UNSPECIFIED, 0
	next.KeyToken = 0
	next.Decision = r.decision(c.Decision, c.Note)
	r.releaseReviewKey(t)
	reviewed := &pb.Fact{Kind: &pb.Fact_Reviewed{Reviewed: &pb.Reviewed{
		Decision: c.Decision, Note: c.Note, By: r.cmd.Caller.GetPrincipal(),
	}}}
	switch c.Decision {
	case pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED:
		if len(c.Result) > 0 {
			r.setResult(next, c.Result)
		}
		next = r.finishTask(t, next, pb.TaskState_TASK_STATE_SUCCEEDED, "", reviewed)
	case pb.ReviewDecision_REVIEW_DECISION_FAILED:
		next = r.finishTask(t, next, pb.TaskState_TASK_STATE_FAILED, c.ErrorCode, reviewed, factFailed(c.ErrorCode))
	case pb.ReviewDecision_REVIEW_DECISION_CANCELLED:
		next = r.finishTask(t, next, pb.TaskState_TASK_STATE_CANCELLED, "", reviewed, factCancelled(nil, c.Note))
	case pb.ReviewDecision_REVIEW_DECISION_RETRY:
		r.retryReviewed(t, next, c, reviewed)
	}
	return taskResult(r.viewTask(next, true))
}

// decision is what the caller of the command decides about a task. A note beside
// the request says why where the request itself does not.
func (r *run) decision(review pb.ReviewDecision, note string) *pb.Decision {
	who := r.cmd.GetCaller()
	d := &pb.Decision{Review: review, By: who.GetPrincipal(), AtUs: r.now, Note: cmp.Or(note, r.cmd.GetNote())}
	if t := r.token(who.GetTokenId()); t != nil {
		d.ByName = t.Name
	}
	return d
}

func (r *run) refuseReview(t *pb.TaskRow, c *pb.ReviewTask) *pb.Result {
	switch {
	case c.Note == "":
		return violation("/note", "a review needs a note")
	case t.State != pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		return refuse(schema.Conflict, "only a task in NEEDS_REVIEW can be reviewed; this one is %s", StateName(t.State))
	case c.Decision == pb.ReviewDecision_REVIEW_DECISION_FAILED && c.ErrorCode == "":
		return violation("/error_code", "FAILED needs an error_code")
	case c.Decision == pb.ReviewDecision_REVIEW_DECISION_UNSPECIFIED:
		return violation("/decision", "decision must be SUCCEEDED, FAILED, CANCELLED or RETRY")
	case c.Decision != pb.ReviewDecision_REVIEW_DECISION_RETRY:
		return nil
	case t.AttemptCount >= attemptsLimit:
		return refuse(schema.Conflict, "the task has had %d attempts, the most there can be", t.AttemptCount)
	case c.DeadlineAtUs != 0 && c.DeadlineAtUs <= r.now:
		return violation("/deadline_at", "deadline_at has passed")
	case c.DeadlineAtUs == 0 && t.DeadlineAtUs <= r.now:
		return violation("/deadline_at", "the task's deadline has passed; RETRY needs a new deadline_at")
	}
	return nil
}

// retryReviewed lets a reviewed task run once more. The person's word overrides
// an earlier cancel request and a start deadline that has passed.
func (r *run) retryReviewed(t, next *pb.TaskRow, c *pb.ReviewTask, reviewed *pb.Fact) {
	next.State = pb.TaskState_TASK_STATE_WAITING
	next.AvailableAtUs, next.Park = r.now, pb.Park_PARK_UNSPECIFIED
	next.CancelRequestedAtUs, next.ErrorCode, next.UnstartedOffers = 0, "", 0
	next.AttemptId = nil
	if next.Retry.MaxAttempts+next.AttemptsExtra < attemptsLimit {
		next.AttemptsExtra++
	}
	if c.DeadlineAtUs != 0 {
		next.DeadlineAtUs = c.DeadlineAtUs
	}
	if next.StartDeadlineAtUs != 0 && next.StartDeadlineAtUs <= r.now {
		next.StartDeadlineAtUs = 0
	}
	r.commitTask(t, next, reviewed, factRetryScheduled(r.now, next.AttemptCount+1), factScheduleSet("deadline", next.DeadlineAtUs))
}

// bulkTasks runs one action on many tasks; each stands for itself.
func (r *run) bulkTasks(c *pb.BulkTasks) *pb.Result {
	if len(c.TaskIds) > BulkMax {
		return refuse(schema.InvalidArgument, "a bulk command takes at most %d tasks", BulkMax)
	}
	if c.Action != pb.BulkAction_BULK_ACTION_CANCEL && c.Action != pb.BulkAction_BULK_ACTION_RETRY {
		return refuse(schema.InvalidArgument, "action must be CANCEL or RETRY")
	}
	out := &pb.BulkResult{}
	for _, id := range c.TaskIds {
		var res *pb.Result
		if c.Action == pb.BulkAction_BULK_ACTION_CANCEL {
			res = r.cancelTask(&pb.CancelTask{TaskId: id, Note: c.Note})
		} else {
			res = r.retryTask(&pb.RetryTask{TaskId: id, Note: c.Note}, c.Once)
		}
		item := &pb.BulkItem{TaskId: id, Code: res.Code, Message: res.Message}
		if v := res.GetTask().GetTask(); v != nil {
			item.Revision = v.Task.Revision
			if c.Action == pb.BulkAction_BULK_ACTION_RETRY {
				item.NewTaskId = v.Task.Id
			}
		}
		out.Items = append(out.Items, item)
	}
	return &pb.Result{Body: &pb.Result_Bulk{Bulk: out}}
}

// finishTask puts a task into a state in which nothing more happens by itself.
// next is a copy of t with whatever else changes.
func (r *run) finishTask(t, next *pb.TaskRow, to pb.TaskState, code string, facts ...*pb.Fact) *pb.TaskRow {
	r.doubt(t, next)
	next.State = to
	next.ErrorCode = code
	next.Park = pb.Park_PARK_UNSPECIFIED
	next.AttemptId = nil
	if state.Terminal(to) {
		next.CompletedAtUs = r.now
		next.RetentionMs = r.s.Queue(ID(t.QueueId)).Row.Settings.RetentionMs
	}
	r.commitTask(t, next, facts...)
	return next
}

// failOrReview ends a task that is known not to have succeeded by its last
// attempt: FAILED, unless an earlier attempt's effect is not known.
func (r *run) failOrReview(t, next *pb.TaskRow, code string, cause pb.EndCause, keyHeld bool, facts ...*pb.Fact) *pb.TaskRow {
	if r.doubt(t, next); next.EffectUncertain {
		return r.needsReview(t, next, code, cause, keyHeld, facts...)
	}
	return r.finishTask(t, next, pb.TaskState_TASK_STATE_FAILED, code, append(facts, factFailed(code))...)
}

func (r *run) needsReview(t, next *pb.TaskRow, code string, cause pb.EndCause, keyHeld bool, facts ...*pb.Fact) *pb.TaskRow {
	next.ReviewCause, next.ReviewSinceUs = cause, r.now
	return r.finishTask(t, next, pb.TaskState_TASK_STATE_NEEDS_REVIEW, code, append(facts, factReviewNeeded(cause, keyHeld))...)
}

// setResult records the bytes a task ended with.
func (r *run) setResult(t *pb.TaskRow, result []byte) {
	sum := sha256.Sum256(result)
	t.ResultDigest, t.ResultBytes = sum[:], uint32(len(result))
	r.tx.PutResult(ID(t.Id), result)
}

// backoff is the delay before attempt n+1 of a task, in microseconds:
// min(max_delay, initial_delay * 2^(n-1)).
func backoff(p *pb.RetryPolicy, n uint32) int64 {
	delay := p.InitialDelayMs
	for i := uint32(1); i < n && delay < p.MaxDelayMs; i++ {
		delay *= 2
	}
	return min(delay, p.MaxDelayMs) * 1000
}

// attemptsAllowed is how many attempts a task may have in all.
func attemptsAllowed(t *pb.TaskRow) uint32 {
	return min(t.Retry.MaxAttempts+t.AttemptsExtra, attemptsLimit)
}

// canRetry says whether another attempt is allowed and would be in time.
func (r *run) canRetry(t *pb.TaskRow) (availableAt int64, ok bool) {
	at := r.now + backoff(t.Retry, t.AttemptCount)
	return at, t.AttemptCount < attemptsAllowed(t) && at < t.DeadlineAtUs
}

// park sends a task back to WAITING until a time.
func (r *run) park(t, next *pb.TaskRow, at int64, facts ...*pb.Fact) *pb.TaskRow {
	next.State = pb.TaskState_TASK_STATE_WAITING
	next.AttemptId = nil
	next.AvailableAtUs, next.Park = at, pb.Park_PARK_BACKOFF
	if at <= r.now {
		next.Park = pb.Park_PARK_UNSPECIFIED
	}
	r.commitTask(t, next, facts...)
	return next
}

func taskResult(v *pb.TaskView) *pb.Result {
	return &pb.Result{Body: &pb.Result_Task{Task: &pb.TaskResult{Task: v}}}
}

// StateName is the wire name of a task state.
func StateName(s pb.TaskState) string { return s.String()[len("TASK_STATE_"):] }
