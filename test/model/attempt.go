package model

import (
	"fmt"

	pb "pulse/proto/pulse/v1"
)

const (
	unstartedMax = 5  // offers in a row before a task waits
	renewalsKept = 16 // receipts of renewals of one attempt
	evidenceMax  = 16 // late finishes of one attempt
)

// Live says that the attempt holds its lease.
func (a *Attempt) Live() bool {
	return a.State == pb.AttemptState_ATTEMPT_STATE_LEASED || a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING
}

// endAttempt ends an attempt; what becomes of the task and its key is the
// caller's to say.
func (m *Model) endAttempt(a *Attempt, s pb.AttemptState, cause pb.EndCause) {
	a.State = s
	a.Cause = cause
	a.EndedAt = m.Clock
	a.Task.Live = nil
}

// release gives an attempt back that never started: it costs nothing.
func (m *Model) release(a *Attempt, cause pb.EndCause) {
	t := a.Task
	m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_EXPIRED, cause)
	t.AttemptCount--
	t.Unstarted++
	t.Park = pb.Park_PARK_UNSPECIFIED // it keeps its place, but
	if t.Unstarted >= unstartedMax {
		// a task that nobody starts waits, whatever its own delays are.
		m.parkFor(t, max(t.backOff(t.Unstarted-unstartedMax+1), holdFirstMS))
	}
	m.toWaiting(t)
}

// holder finds the instance whose current session sends a frame.
func (m *Model) holder(ns *Namespace, ref *pb.SessionRef) (*Instance, string) {
	i := m.instance(ns, toID(ref.InstanceId))
	switch {
	case i == nil:
		return nil, sessionExpired
	case i.SessionID != toID(ref.SessionId):
		return nil, sessionSuperseded
	case i.EndedAt != 0:
		return nil, sessionExpired
	}
	return i, ""
}

// attempt finds the attempt a frame is about. The epoch is part of the secret,
// so a wrong one is a wrong secret.
func (m *Model) attempt(ns *Namespace, ref *pb.AttemptRef) (*Attempt, string) {
	t := m.taskIn(ns, ref.TaskId)
	if t == nil {
		return nil, notFound
	}
	for _, a := range m.Attempts {
		if a.Task == t && a.ID == toID(ref.AttemptId) {
			if a.Epoch != ref.Epoch {
				return nil, forbidden
			}
			return a, ""
		}
	}
	return nil, notFound
}

// overCode says why an attempt that is over takes no more commands.
func (a *Attempt) overCode() string {
	if a.Task.LastEpoch > a.Epoch {
		return staleEpoch
	}
	return leaseLost
}

// repeat answers an operation that was done before.
func (m *Model) repeat(i *Instance, a *Attempt, id ID, content string) (Result, bool) {
	for _, r := range a.Receipts {
		if r.MessageID != id {
			continue
		}
		if r.content != content {
			return refuse(operationConflict), true
		}
		m.heard(i)
		return Result{Receipt: r, Deduplicated: true, Lease: m.lease(i, a)}, true
	}
	return Result{}, false
}

// lease is the authority an instance has over an attempt now: none over
// somebody else's.
func (m *Model) lease(i *Instance, a *Attempt) *Lease {
	return &Lease{Active: a.Live() && a.Instance == i.ID, State: a.State, LeaseUntil: a.LeaseUntil,
		CancelRequestedAt: a.CancelRequestedAt}
}

// done stores the receipt of an operation and answers it.
func (m *Model) done(i *Instance, a *Attempt, op pb.Operation, id ID, content string, d pb.Disposition) Result {
	r := &Receipt{MessageID: id, Operation: op, TaskState: a.Task.State, AttemptState: a.State,
		TaskRevision: a.Task.Revision, LeaseUntil: a.LeaseUntil, Disposition: d,
		Time: m.Clock, Index: m.fence(), content: content}
	a.Receipts = append(a.Receipts, r)
	if op == pb.Operation_OPERATION_RENEW {
		a.forgetRenewals()
	}
	return Result{Receipt: r, Lease: m.lease(i, a)}
}

// forgetRenewals keeps the latest receipts of renewals.
func (a *Attempt) forgetRenewals() {
	renewals := 0
	for _, r := range a.Receipts {
		if r.Operation == pb.Operation_OPERATION_RENEW {
			renewals++
		}
	}
	for i, r := range a.Receipts {
		if renewals > renewalsKept && r.Operation == pb.Operation_OPERATION_RENEW {
			a.Receipts = append(a.Receipts[:i:i], a.Receipts[i+1:]...)
			return
		}
	}
}

// extend gives the full lease from now, never less than before and never past
// the attempt timeout or the deadline: those hold for an offer that is started
// too.
func (m *Model) extend(a *Attempt) {
	until := max(a.LeaseUntil, m.Clock+a.Task.Queue.Settings.LeaseMS*millis)
	until = min(until, a.Task.Deadline)
	if a.TimeoutAt != 0 {
		until = min(until, a.TimeoutAt)
	}
	a.LeaseUntil = until
	a.renewedOpening = m.opening()
}

func (m *Model) start(ns *Namespace, c *pb.Command, b *pb.StartAttempt) Result {
	const content = "start"
	i, code := m.holder(ns, b.Session)
	if code != "" {
		return refuse(code)
	}
	a, code := m.attempt(ns, b.Ref)
	if code != "" {
		return refuse(code)
	}
	if a.Instance != i.ID {
		return refuse(forbidden)
	}
	if res, ok := m.repeat(i, a, toID(c.Id), content); ok {
		return res
	}
	t := a.Task
	switch {
	case !a.Live():
		return refuse(a.overCode())
	case a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING:
		return refuse(alreadyStarted)
	case t.Deadline <= m.Clock || !t.Started && t.StartDeadline != 0 && t.StartDeadline <= m.Clock:
		return refuse(leaseLost)
	}
	m.heard(i)
	i.HoldMS = 0
	a.State = pb.AttemptState_ATTEMPT_STATE_RUNNING
	a.StartedAt = m.Clock
	a.Counted = true
	a.TimeoutAt = m.Clock + t.Retry.AttemptTimeoutMS*millis
	m.extend(a)
	t.State = running
	t.Started = true
	t.Unstarted = 0
	m.changed(t)
	return m.done(i, a, pb.Operation_OPERATION_START, toID(c.Id), content, pb.Disposition_DISPOSITION_APPLIED)
}

func (m *Model) renew(ns *Namespace, c *pb.Command, b *pb.RenewAttempt) Result {
	const content = "renew"
	i, code := m.holder(ns, b.Session)
	if code != "" {
		return refuse(code)
	}
	a, code := m.attempt(ns, b.Ref)
	if code != "" {
		return refuse(code)
	}
	if a.Instance != i.ID {
		return refuse(forbidden)
	}
	if res, ok := m.repeat(i, a, toID(c.Id), content); ok {
		return res
	}
	t := a.Task
	switch {
	case !a.Live():
		return refuse(a.overCode())
	case t.Deadline <= m.Clock || a.TimeoutAt != 0 && a.TimeoutAt <= m.Clock,
		!t.Started && t.StartDeadline != 0 && t.StartDeadline <= m.Clock:
		return refuse(leaseLost)
	}
	m.heard(i)
	m.extend(a)
	return m.done(i, a, pb.Operation_OPERATION_RENEW, toID(c.Id), content, pb.Disposition_DISPOSITION_APPLIED)
}

func (m *Model) finish(ns *Namespace, c *pb.Command, b *pb.FinishAttempt) Result {
	content := fmt.Sprintf("finish %d %q %q %t", b.Outcome, b.Result, b.ErrorCode, b.Retryable)
	i, code := m.holder(ns, b.Session)
	if code != "" {
		return refuse(code)
	}
	a, code := m.attempt(ns, b.Ref)
	if code != "" {
		return refuse(code)
	}
	if res, ok := m.repeat(i, a, toID(c.Id), content); ok {
		return res
	}
	t := a.Task
	foreign := a.Instance != i.ID
	uncertain := a.State == pb.AttemptState_ATTEMPT_STATE_EXPIRED || a.State == pb.AttemptState_ATTEMPT_STATE_UNKNOWN
	if foreign || uncertain {
		if len(a.Evidence) >= evidenceMax {
			return refuse(leaseLost)
		}
		m.heard(i)
		a.Evidence = append(a.Evidence, Evidence{MessageID: toID(c.Id), Outcome: b.Outcome,
			ErrorCode: b.ErrorCode, Retryable: b.Retryable, Result: string(b.Result), Instance: i.ID, Time: m.Clock})
		return m.done(i, a, pb.Operation_OPERATION_FINISH, toID(c.Id), content, pb.Disposition_DISPOSITION_EVIDENCE_ONLY)
	}
	ran := a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING
	switch {
	case !a.Live():
		return refuse(a.overCode())
	case b.Outcome == pb.Outcome_OUTCOME_CANCELLED && t.CancelRequestedAt == 0:
		return refuse(cancelNotRequested)
	case !ran && (b.Outcome == pb.Outcome_OUTCOME_SUCCEEDED || b.Outcome == pb.Outcome_OUTCOME_UNKNOWN):
		return refuse(notStarted)
	}
	m.heard(i)
	if ran {
		i.HoldMS = 0
	}
	a.Counted = true
	a.Result, a.ErrorCode, a.Retryable = string(b.Result), b.ErrorCode, b.Retryable
	switch b.Outcome {
	case pb.Outcome_OUTCOME_SUCCEEDED:
		m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_SUCCEEDED, 0)
		t.Result = a.Result
		m.complete(t, succeeded, "")
	case pb.Outcome_OUTCOME_FAILED:
		m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_FAILED, 0)
		m.failedAttempt(t, ran, b.ErrorCode, a.Result, b.Retryable)
	case pb.Outcome_OUTCOME_UNKNOWN:
		m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_UNKNOWN, pb.EndCause_END_CAUSE_UNKNOWN_OUTCOME)
		m.uncertainEnd(t, pb.EndCause_END_CAUSE_UNKNOWN_OUTCOME, b.ErrorCode)
	case pb.Outcome_OUTCOME_CANCELLED:
		m.endAttempt(a, pb.AttemptState_ATTEMPT_STATE_CANCELLED, 0)
		t.Result = a.Result
		m.complete(t, cancelled, b.ErrorCode)
	}
	return m.done(i, a, pb.Operation_OPERATION_FINISH, toID(c.Id), content, pb.Disposition_DISPOSITION_APPLIED)
}

func (m *Model) resume(ns *Namespace, b *pb.ResumeAttempt) Result {
	i, code := m.holder(ns, b.Session)
	if code != "" {
		return refuse(code)
	}
	a, code := m.attempt(ns, b.Ref)
	if code != "" {
		return refuse(code)
	}
	if a.Instance != i.ID {
		return refuse(forbidden)
	}
	m.heard(i)
	return Result{Lease: m.lease(i, a)}
}
