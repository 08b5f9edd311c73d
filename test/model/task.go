package model

import (
	pb "pulse/proto/pulse/v1"
)

const (
	waiting     = pb.TaskState_TASK_STATE_WAITING
	leased      = pb.TaskState_TASK_STATE_LEASED
	running     = pb.TaskState_TASK_STATE_RUNNING
	succeeded   = pb.TaskState_TASK_STATE_SUCCEEDED
	failed      = pb.TaskState_TASK_STATE_FAILED
	cancelled   = pb.TaskState_TASK_STATE_CANCELLED
	needsReview = pb.TaskState_TASK_STATE_NEEDS_REVIEW

	idempotent = pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT
)

// Terminal says that nothing more will happen to the task.
func (t *Task) Terminal() bool {
	return t.State == succeeded || t.State == failed || t.State == cancelled
}

// Active says that the task has a live attempt.
func (t *Task) Active() bool { return t.State == leased || t.State == running }

// Task finds a task by its id.
func (m *Model) Task(id ID) *Task {
	for _, t := range m.Tasks {
		if t.ID == id {
			return t
		}
	}
	return nil
}

func (m *Model) taskIn(ns *Namespace, raw []byte) *Task {
	if t := m.Task(toID(raw)); t != nil && t.Namespace == ns {
		return t
	}
	return nil
}

// TraceOf is a trace context as one text; empty without one.
func TraceOf(t *pb.TraceContext) string {
	if t == nil {
		return ""
	}
	return t.Parent + " " + t.State
}

func (m *Model) submit(ns *Namespace, c *pb.Command, b *pb.SubmitTask) Result {
	q := m.queueNamed(ns, b.Queue)
	if q == nil {
		return refuse(notFound)
	}
	if b.BusinessKey != "" {
		for _, t := range m.Tasks {
			if t.Namespace != ns || t.BusinessKey != b.BusinessKey {
				continue
			}
			if t.hash != string(c.ContentHash) {
				return Result{Code: conflict, Existing: t}
			}
			res := m.about(t)
			res.Duplicate = true
			return res
		}
	}
	if m.count(q, waiting) >= q.Settings.MaxWaiting {
		return refuse(queueFull)
	}
	t := &Task{
		Namespace: ns, Queue: q, State: waiting,
		Handler: b.Handler, HandlerVersion: b.HandlerVersion, PayloadVersion: b.PayloadVersion,
		Payload: string(b.Payload), BusinessKey: b.BusinessKey, Key: b.ConcurrencyKey,
		Priority: b.Priority, AvailableAt: m.Clock, StartDeadline: b.StartDeadlineAtUs,
		Deadline: b.DeadlineAtUs, Safety: b.RecoverySafety, Retry: q.Settings.Retry,
		hash: string(c.ContentHash), Trace: TraceOf(b.Trace),
	}
	if b.AvailableAtUs > m.Clock {
		t.AvailableAt = b.AvailableAtUs
	}
	if b.DelayMs > 0 {
		t.AvailableAt = m.Clock + b.DelayMs*millis
	}
	if t.Deadline == 0 {
		t.Deadline = t.AvailableAt + q.Settings.DefaultDeadlineMS*millis
	}
	if t.Safety == pb.RecoverySafety_RECOVERY_SAFETY_UNSPECIFIED {
		t.Safety = idempotent
	}
	if b.MaxAttempts != nil {
		t.Retry.MaxAttempts = *b.MaxAttempts
	}
	if b.InitialDelayMs != nil {
		t.Retry.InitialMS = *b.InitialDelayMs
	}
	if b.MaxDelayMs != nil {
		t.Retry.MaxMS = *b.MaxDelayMs
	}
	if b.AttemptTimeoutMs != nil {
		t.Retry.AttemptTimeoutMS = *b.AttemptTimeoutMs
	}
	if t.Deadline <= t.AvailableAt || t.StartDeadline != 0 && t.StartDeadline <= t.AvailableAt {
		return refuse(invalidArgument)
	}
	if !m.roomFor(ns, t.Payload) {
		return refuse(queueFull)
	}
	if t.AvailableAt > m.Clock {
		t.Park = pb.Park_PARK_DELAYED
	}
	m.addTask(t)
	return m.about(t)
}

func (m *Model) addTask(t *Task) {
	t.Revision = 1
	t.CreatedAt, t.UpdatedAt = m.Clock, m.Clock
	t.seq = m.next()
	if m.remembers {
		t.RememberedUntil = m.Clock + 24*hour
	}
	m.Tasks = append(m.Tasks, t)
	m.fresh.tasks = append(m.fresh.tasks, t)
}

func (m *Model) changed(t *Task) {
	t.Revision++
	t.UpdatedAt = m.Clock
}

// complete makes a task terminal.
func (m *Model) complete(t *Task, s pb.TaskState, errorCode string) {
	t.State = s
	t.ErrorCode = errorCode
	t.CompletedAt = m.Clock
	t.RetentionMS = t.Queue.Settings.RetentionMS
	t.Park = pb.Park_PARK_UNSPECIFIED
	m.freeKeyOf(t)
	m.changed(t)
	m.runOver(t)
}

// toReview leaves the decision to an operator. A key the ending attempt held
// stays held.
func (m *Model) toReview(t *Task, cause pb.EndCause, errorCode string) {
	t.State = needsReview
	t.ReviewCause, t.ReviewSince = cause, m.Clock
	t.ErrorCode = errorCode
	t.Park = pb.Park_PARK_UNSPECIFIED
	if k := m.keyOf(t); k != nil {
		k.InReview = true
	}
	m.changed(t)
}

// toWaiting makes a task wait again.
func (m *Model) toWaiting(t *Task) {
	t.State = waiting
	m.freeKeyOf(t)
	m.changed(t)
}

// backOff is min(max_delay, initial_delay * 2^(n-1)) in milliseconds.
func (t *Task) backOff(n uint32) int64 {
	d := t.Retry.InitialMS
	for i := uint32(1); i < n && d < t.Retry.MaxMS; i++ {
		d *= 2
	}
	return min(d, t.Retry.MaxMS)
}

// parkFor makes a task wait for a retry delay.
func (m *Model) parkFor(t *Task, delayMS int64) {
	t.AvailableAt = m.Clock + delayMS*millis
	t.Park = pb.Park_PARK_UNSPECIFIED
	if delayMS > 0 {
		t.Park = pb.Park_PARK_BACKOFF
		t.Backoff = &Backoff{From: m.Clock, DelayMS: delayMS, MaxMS: max(t.Retry.MaxMS, delayMS)}
	}
}

// mayRetry says whether attempts and deadline allow another run.
func (m *Model) mayRetry(t *Task) bool {
	return t.AttemptCount < min(t.Retry.MaxAttempts+t.Extra, 100) &&
		m.Clock+t.backOff(t.AttemptCount)*millis < t.Deadline
}

func (m *Model) scheduleRetry(t *Task) {
	m.parkFor(t, t.backOff(t.AttemptCount))
	m.toWaiting(t)
}

// failedAttempt is a definite failure: of a run, or a refusal before it.
func (m *Model) failedAttempt(t *Task, ran bool, errorCode, result string, retryable bool) {
	switch {
	case retryable && t.CancelRequestedAt != 0:
		t.Result = result
		m.complete(t, cancelled, errorCode)
	case retryable && m.mayRetry(t) && (t.Safety == idempotent || !ran):
		t.Unstarted = 0
		m.scheduleRetry(t)
	case t.Uncertain:
		m.toReview(t, pb.EndCause_END_CAUSE_UNCERTAIN_FAILURE, errorCode)
	default:
		t.Result = result
		m.complete(t, failed, errorCode)
	}
}

// uncertainEnd is the end of a RUNNING attempt that leaves open what happened.
func (m *Model) uncertainEnd(t *Task, cause pb.EndCause, errorCode string) {
	t.Uncertain = true
	switch {
	case t.Safety == idempotent && t.CancelRequestedAt != 0:
		m.complete(t, cancelled, errorCode)
	case t.Safety == idempotent && m.mayRetry(t):
		m.scheduleRetry(t)
	default:
		m.toReview(t, cause, errorCode)
	}
}

// outOfTime ends a task that no attempt is running for.
func (m *Model) outOfTime(t *Task, cause pb.EndCause, errorCode string) {
	if a := t.Live; a != nil {
		m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_EXPIRED, cause)
		t.AttemptCount-- // it never started
	}
	if t.Uncertain {
		m.freeKeyOf(t) // a task entering review from WAITING holds none
		m.toReview(t, cause, errorCode)
		return
	}
	m.complete(t, failed, errorCode)
}

func (m *Model) checkRevision(t *Task, expected uint64) (Result, bool) {
	if expected != 0 && expected != t.Revision {
		return Result{Code: revisionConflict, CurrentRevision: t.Revision}, false
	}
	return Result{}, true
}

func (m *Model) cancel(ns *Namespace, b *pb.CancelTask) Result {
	t := m.taskIn(ns, b.TaskId)
	if t == nil {
		return refuse(notFound)
	}
	if res, ok := m.checkRevision(t, b.ExpectedRevision); !ok {
		return res
	}
	return m.cancelTask(t, b.Note)
}

// Decision is what somebody decided about a task.
type Decision struct {
	Review           pb.ReviewDecision // unspecified: that it be cancelled
	By, ByName, Note string
	At               int64
}

func (m *Model) decision(review pb.ReviewDecision, note string) Decision {
	d := Decision{Review: review, By: m.cmd.GetCaller().GetPrincipal(), At: m.Clock, Note: note}
	if note == "" {
		d.Note = m.cmd.GetNote()
	}
	if t := m.token(m.cmd.GetCaller().GetTokenId()); t != nil {
		d.ByName = t.Name
	}
	return d
}

func (m *Model) cancelTask(t *Task, note string) Result {
	if t.State == cancelled || t.CancelRequestedAt != 0 {
		return m.about(t)
	}
	switch t.State {
	case waiting, leased:
		t.Decision = m.decision(pb.ReviewDecision_REVIEW_DECISION_UNSPECIFIED, note)
		if a := t.Live; a != nil {
			m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_CANCELLED, 0)
			t.AttemptCount--
			a.CancelRequestedAt = m.Clock
			t.CancelRequestedAt = m.Clock // what the session is told
		}
		m.complete(t, cancelled, "")
	case running:
		t.Decision = m.decision(pb.ReviewDecision_REVIEW_DECISION_UNSPECIFIED, note)
		t.CancelRequestedAt = m.Clock
		t.Live.CancelRequestedAt = m.Clock
		m.changed(t)
	default:
		return refuse(conflict)
	}
	return m.about(t)
}

func (m *Model) retry(ns *Namespace, b *pb.RetryTask) Result {
	t := m.taskIn(ns, b.TaskId)
	if t == nil {
		return refuse(notFound)
	}
	if res, ok := m.checkRevision(t, b.ExpectedRevision); !ok {
		return res
	}
	return m.retryTask(t)
}

func (m *Model) retryTask(old *Task) Result {
	if !old.Terminal() || old.Queue.Deleted {
		return refuse(conflict)
	}
	if m.count(old.Queue, waiting) >= old.Queue.Settings.MaxWaiting || !m.roomFor(old.Namespace, old.Payload) {
		return refuse(queueFull)
	}
	t := &Task{
		Namespace: old.Namespace, Queue: old.Queue, State: waiting,
		Handler: old.Handler, HandlerVersion: old.HandlerVersion, PayloadVersion: old.PayloadVersion,
		Payload: old.Payload, Key: old.Key, Priority: old.Priority, AvailableAt: m.Clock,
		Safety: old.Safety, Retry: old.Retry, Uncertain: old.Uncertain, RetryOf: old.ID, Trace: old.Trace,
		Schedule: old.Schedule, NominalAt: old.NominalAt,
	}
	if old.StartDeadline != 0 {
		t.StartDeadline = m.Clock + old.StartDeadline - old.CreatedAt
	}
	t.Deadline = m.Clock + old.Deadline - old.CreatedAt
	m.addTask(t)
	old.RetriedAs = t
	return m.about(t)
}

func (m *Model) runNow(ns *Namespace, b *pb.RunTask) Result {
	t := m.taskIn(ns, b.TaskId)
	if t == nil {
		return refuse(notFound)
	}
	if res, ok := m.checkRevision(t, b.ExpectedRevision); !ok {
		return res
	}
	if t.State != waiting {
		return refuse(conflict)
	}
	if t.Park != pb.Park_PARK_UNSPECIFIED {
		t.AvailableAt, t.Park, t.Backoff = m.Clock, pb.Park_PARK_UNSPECIFIED, nil
		m.changed(t)
	}
	return m.about(t)
}

func (m *Model) review(ns *Namespace, b *pb.ReviewTask) Result {
	t := m.taskIn(ns, b.TaskId)
	if t == nil {
		return refuse(notFound)
	}
	if res, ok := m.checkRevision(t, b.ExpectedRevision); !ok {
		return res
	}
	retry := b.Decision == pb.ReviewDecision_REVIEW_DECISION_RETRY
	switch {
	case b.Note == "":
		return refuse(invalidArgument)
	case t.State != needsReview:
		return refuse(conflict)
	case b.Decision == pb.ReviewDecision_REVIEW_DECISION_FAILED && b.ErrorCode == "":
		return refuse(invalidArgument)
	case retry && t.AttemptCount >= 100:
		return refuse(conflict)
	case retry && b.DeadlineAtUs != 0 && b.DeadlineAtUs <= m.Clock,
		retry && b.DeadlineAtUs == 0 && t.Deadline <= m.Clock:
		return refuse(invalidArgument)
	}
	t.Uncertain = false
	t.ReviewCause, t.ReviewSince = pb.EndCause_END_CAUSE_UNSPECIFIED, 0
	t.Decision = m.decision(b.Decision, b.Note)
	switch b.Decision {
	case pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED:
		t.Result = string(b.Result)
		m.complete(t, succeeded, "")
	case pb.ReviewDecision_REVIEW_DECISION_FAILED:
		m.complete(t, failed, b.ErrorCode)
	case pb.ReviewDecision_REVIEW_DECISION_CANCELLED:
		m.complete(t, cancelled, "")
	case pb.ReviewDecision_REVIEW_DECISION_RETRY:
		if t.Retry.MaxAttempts+t.Extra < 100 {
			t.Extra++
		}
		if b.DeadlineAtUs != 0 {
			t.Deadline = b.DeadlineAtUs
		}
		if t.StartDeadline <= m.Clock {
			t.StartDeadline = 0
		}
		// The operator's word overrides an earlier cancel request.
		t.CancelRequestedAt, t.ErrorCode, t.Unstarted = 0, "", 0
		t.AvailableAt = m.Clock
		m.toWaiting(t)
	}
	return m.about(t)
}

func (m *Model) bulk(ns *Namespace, b *pb.BulkTasks) Result {
	var res Result
	for _, raw := range b.TaskIds {
		item := Item{TaskID: toID(raw)}
		t := m.taskIn(ns, raw)
		switch {
		case t == nil:
			item.Code = notFound
		case b.Action == pb.BulkAction_BULK_ACTION_CANCEL:
			item.Code = m.cancelTask(t, b.Note).Code
			if item.Code == "" {
				item.Revision = t.Revision
			}
		case b.Once && t.RetriedAs != nil && t.Terminal():
			item.Code = conflict
		default:
			r := m.retryTask(t)
			item.Code, item.New = r.Code, r.Task
			if item.Code == "" {
				item.Revision = r.After.Revision
			}
		}
		res.Items = append(res.Items, item)
	}
	return res
}

// count counts a queue's tasks in one state.
func (m *Model) count(q *Queue, s pb.TaskState) (n uint64) {
	for _, t := range m.Tasks {
		if t.Queue == q && t.State == s {
			n++
		}
	}
	return n
}

func toID(raw []byte) (id ID) {
	copy(id[:], raw)
	return id
}
