package sdk

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"pulse/schema"
	"pulse/schema/workerv1"
)

// attempt is one offer of a task and what became of it. Its goroutine, in live,
// goes from top to bottom: wait for a place, start, run, settle. The handler has
// a goroutine of its own. Connections may come and go meanwhile.
type attempt struct {
	w    *Worker
	ref  workerv1.AttemptRef
	task *Task

	traceparent, tracestate string // where the task was submitted; empty: not known

	offered     time.Duration // how long the offer was good for when it was made
	cancelAsked chan struct{} // closed by askCancel
	cancelOnce  sync.Once

	// Owned by the goroutine in live.
	lease lease
}

func newAttempt(w *Worker, offer *workerv1.Assign) *attempt {
	return &attempt{
		w:    w,
		ref:  workerv1.AttemptRef{TaskID: offer.Task.ID, AttemptID: offer.AttemptID, Epoch: offer.Epoch, LeaseSecret: offer.LeaseSecret},
		task: taskOf(offer), offered: offer.LeaseUntil.Time().Sub(offer.ServerTime.Time()),
		cancelAsked: make(chan struct{}),
		traceparent: offer.Trace.Parent, tracestate: offer.Trace.State,
	}
}

// log names the attempt in what it says. Most attempts have nothing to say.
func (a *attempt) log() *slog.Logger {
	return a.w.log.With("task", a.task.ID, "attempt", a.task.AttemptID, "handler", a.task.Handler)
}

func (a *attempt) askCancel() { a.cancelOnce.Do(func() { close(a.cancelAsked) }) }

// live brings the attempt to its end, or returns early when life ends.
func (a *attempt) live(life context.Context) {
	handler := a.w.handlers[workerv1.Capability{Handler: a.task.Handler, HandlerVersion: a.task.HandlerVersion, PayloadVersion: a.task.PayloadVersion}]
	if handler == nil {
		// The cluster matches capabilities, so this is a fault somewhere. A
		// refusal before start leaves no doubt: another worker may have it.
		a.log().Error("given a task this worker cannot run", "version", a.task.HandlerVersion, "payload_version", a.task.PayloadVersion)
		a.settle(life, finish(workerv1.OutcomeFailed, true, CodeNoHandler, errorJSON(errors.New("the worker has no such handler"))))
		return
	}
	if !a.takePlace() {
		return
	}
	laterSession, outcome := a.start(life)
	if laterSession != nil {
		outcome = a.run(life, handler, laterSession)
	}
	<-a.w.places
	if outcome != nil {
		a.settle(life, *outcome)
	}
}

// takePlace waits until a handler may run. It gives up when the offer has
// lapsed, was withdrawn, or the worker drains: nothing has run, and the cluster
// offers the task to somebody else.
func (a *attempt) takePlace() bool {
	if closed(a.w.draining) {
		return false
	}
	select {
	case a.w.places <- struct{}{}: // as ever, but for handlers that outlived their leases
		return true
	default:
	}
	lapsed := time.NewTimer(a.offered)
	defer lapsed.Stop()
	select {
	case a.w.places <- struct{}{}:
		return true
	case <-lapsed.C:
	case <-a.cancelAsked:
	case <-a.w.draining:
	}
	a.log().Info("offer not taken")
	return false
}

// start tells the cluster that the handler is about to run; only a granted lease
// lets it. Then the channel is not nil, and is closed when a session begins after
// the one that granted it. If the attempt has to be settled without running, the
// finish says how.
func (a *attempt) start(life context.Context) (laterSession <-chan struct{}, outcome *workerv1.Finish) {
	began := time.Now()
	got, err := a.w.ops.ask(life, &workerv1.Start{Ref: a.ref})
	if err != nil {
		return nil, nil
	}
	if got.refused != nil {
		a.log().Info("start refused", "code", got.refused.Code)
		return nil, nil
	}
	granted := &got.ack.Result.Lease
	longest := a.longest(granted)
	a.lease.limit = began.Add(longest - margin(longest))
	a.lease.learn(granted, got.sentAt)
	a.task.deadline = a.lease.limit
	if granted.CancelRequestedAt.Set {
		a.askCancel()
	}
	switch {
	case !granted.Active || granted.State != workerv1.AttemptRunning || !time.Now().Before(a.lease.until):
		// The answer took longer than the lease. The cluster believes that the
		// handler has run; say that it has not, as evidence if it is too late.
		f := finish(workerv1.OutcomeFailed, true, CodeNotRun, errorJSON(errors.New("the lease was over before the handler began")))
		return nil, &f
	case closed(a.cancelAsked):
		f := finish(workerv1.OutcomeCancelled, false, CodeCancelled, errorJSON(ErrCancelRequested))
		return nil, &f
	}
	a.w.stats.started.Add(1)
	return got.later, nil
}

// longest is how long the attempt may run at most.
func (a *attempt) longest(granted *workerv1.Lease) time.Duration {
	timeout := time.Duration(a.task.Retry.AttemptTimeoutMillis) * time.Millisecond
	return min(timeout, a.task.DeadlineAt.Sub(granted.ServerTime.Time()))
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// settle reports how the attempt ended, until the cluster has taken it. After a
// lost lease it does so too: the report then changes nothing, but a reviewer
// may need it.
func (a *attempt) settle(life context.Context, outcome workerv1.Finish) {
	outcome.Ref = a.ref
	for {
		said := outcome
		got, err := a.w.ops.ask(life, &said)
		if err != nil {
			a.log().Error("the worker stopped before the cluster took the outcome", "outcome", string(outcome.Outcome))
			return
		}
		if got.refused == nil {
			a.settled(&outcome, &got.ack.Result.Receipt)
			return
		}
		second, ok := instead(outcome, got.refused)
		if !ok {
			a.log().Warn("outcome refused", "outcome", string(outcome.Outcome), "code", got.refused.Code, "error", got.refused.Message)
			return
		}
		outcome = second
	}
}

// instead is another way to say what the cluster refused to hear.
func instead(said workerv1.Finish, refused *Error) (workerv1.Finish, bool) {
	switch refused.Code {
	case schema.CancelNotRequested:
		said.Outcome, said.Retryable = workerv1.OutcomeFailed, false
		return said, true
	case schema.InvalidFrame, schema.InvalidArgument, schema.TooLarge:
		if said.ErrorCode == CodeBadResult {
			return said, false
		}
		if said.Outcome == workerv1.OutcomeSucceeded {
			said.Outcome = workerv1.OutcomeUnknown // the work is done: calling it failed would be a lie
		}
		said.ErrorCode, said.Result = CodeBadResult, errorJSON(refused)
		return said, true
	}
	return said, false
}

func (a *attempt) settled(outcome *workerv1.Finish, receipt *workerv1.Receipt) {
	if receipt.Disposition == workerv1.EvidenceOnly {
		a.w.stats.evidence.Add(1)
		a.log().Warn("the outcome came too late and is kept as evidence", "outcome", string(outcome.Outcome), "task_state", string(receipt.TaskState))
		return
	}
	a.w.stats.finished(outcome.Outcome)
	if !a.w.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	a.log().Debug("attempt finished", "outcome", string(outcome.Outcome), "code", outcome.ErrorCode, "task_state", string(receipt.TaskState))
}
