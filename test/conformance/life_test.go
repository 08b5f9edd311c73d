package conformance

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Section 4, the table: what each event does to a task in each state.

// quick are queue settings under which leases and offers end soon.
func quick(members object) object {
	return merged(object{"lease_duration_ms": beat.Milliseconds(), "offer_duration_ms": beat.Milliseconds()}, members)
}

// once is a retry policy without a second attempt.
var once = object{"max_attempts": 1, "initial_delay_ms": 0, "max_delay_ms": 0}

// again is one with as many attempts as a test may want, at once. later is one
// whose second attempt no test lives to see.
var (
	again = object{"max_attempts": 9, "initial_delay_ms": 0, "max_delay_ms": 0}
	later = object{"max_attempts": 9, "initial_delay_ms": 3_600_000, "max_delay_ms": 3_600_000}
)

func checkTask(t *testing.T, got task, state, revision string, attempts int, uncertain bool) {
	t.Helper()
	if got.State != state || revision != "" && got.Revision != revision || got.AttemptCount != attempts || got.EffectUncertain != uncertain {
		t.Errorf("the task is %s, revision %s, %d attempts, uncertain %v; want %s, %s, %d, %v",
			got.State, got.Revision, got.AttemptCount, got.EffectUncertain, state, revision, attempts, uncertain)
	}
}

func TestASubmittedTaskWaits(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	task := p.submit(nil)
	checkTask(t, task, "WAITING", "1", 0, false)
	if !task.AvailableAt.Equal(task.CreatedAt) || task.Waiting.Reason != "no_capable_worker" {
		t.Errorf("available at %s, created at %s, waiting for %s", task.AvailableAt, task.CreatedAt, task.Waiting.Reason)
	}
	if span := task.DeadlineAt.Sub(task.AvailableAt); span != 30*24*time.Hour {
		t.Errorf("the deadline is %s after the task is available, want the queue's 30 days", span)
	}
}

func TestAvailableAtMayBeInTheFuture(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	byDelay := p.submit(object{"delay_ms": 700})
	byTime := p.submit(object{"available_at": soon(700 * time.Millisecond)})
	for _, task := range []task{byDelay, byTime} {
		checkTask(t, task, "WAITING", "1", 0, false)
		if task.Waiting.Reason != "delayed" || !task.Waiting.Until.Equal(task.AvailableAt) {
			t.Errorf("waiting for %+v", task.Waiting)
		}
		a := w.take(task.ID)
		if at := p.attempt(task.ID); at.LeasedAt.Before(task.AvailableAt) {
			t.Errorf("leased at %s, available at %s", at.LeasedAt, task.AvailableAt)
		}
		w.start(a)
		// It was WAITING and is: becoming available is no change of its own.
		checkTask(t, p.task(task.ID), "RUNNING", "3", 1, false)
	}
	if span := byDelay.AvailableAt.Sub(byDelay.CreatedAt); span != 700*time.Millisecond {
		t.Errorf("a delay of 700 ms became %s", span)
	}
}

func TestAnAssignedTaskIsLeasedForTheOffer(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 30_000, "offer_duration_ms": 9000})
	w := p.worker(nil)
	sent := p.submit(object{"payload": object{"n": 1}, "business_key": "b", "priority": 7})
	a := w.take(sent.ID)
	checkTask(t, a.Task, "LEASED", "2", 1, false)
	row := p.attempt(sent.ID)
	if span := row.LeaseUntil.Sub(row.LeasedAt); row.State != "LEASED" || span != 9*time.Second || !a.LeaseUntil.Equal(row.LeaseUntil) {
		t.Errorf("attempt %+v, assigned until %s", row, a.LeaseUntil)
	}
	got := p.task(sent.ID)
	if l := got.Lease; got.State != "LEASED" || l.AttemptID != a.AttemptID || l.Epoch != a.Epoch || l.InstanceID != w.id() || !l.LeaseUntil.Equal(a.LeaseUntil) {
		t.Errorf("lease %+v, assignment %+v", l, a)
	}
	if a.Task.ID != sent.ID || a.Task.NamespaceID != sent.NamespaceID || a.Task.QueueID != p.queueID || a.Task.BusinessKey != "b" ||
		!sameText(a.Task.Payload, sent.Payload) || a.Task.Priority != 7.0 || !a.Task.DeadlineAt.Equal(sent.DeadlineAt) {
		t.Errorf("assigned %+v, submitted %+v", a.Task, sent)
	}
}

func TestStartMakesALeasedTaskRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 30_000, "offer_duration_ms": 9000})
	w := p.worker(nil)
	task := p.submit(nil)
	r := w.start(w.take(task.ID))
	row := p.attempt(task.ID)
	checkTask(t, p.task(task.ID), "RUNNING", "3", 1, false)
	want := receipt{"start", "RUNNING", "RUNNING", "3", row.StartedAt.Add(30 * time.Second), "APPLIED"}
	if r.Receipt != want || r.Deduplicated {
		t.Errorf("receipt %+v, want %+v", r.Receipt, want)
	}
	if l := r.Lease; !l.Active || l.State != "RUNNING" || !l.LeaseUntil.Equal(row.LeaseUntil) || !l.ServerTime.Equal(row.StartedAt) || !l.CancelRequestedAt.IsZero() {
		t.Errorf("lease %+v, attempt %+v", l, row)
	}
}

func TestAnOfferThatRunsOutCostsNoAttemptAndLeavesNoUncertainty(t *testing.T) {
	t.Parallel()
	p := newPlace(t, quick(nil))
	w := p.worker(nil)
	task := p.submit(nil)
	w.take(task.ID)
	got := p.reaches(task.ID, "WAITING")
	checkTask(t, got, "WAITING", "3", 0, false)
	row := p.attempt(task.ID)
	if row.State != "EXPIRED" || row.EndCause != "lease" || row.EndedAt.Before(row.LeaseUntil) {
		t.Errorf("attempt %+v", row)
	}
	// The session has to be heard before it is offered work again.
	if got.Waiting.Reason != "workers_busy" {
		t.Errorf("waiting for %s, want workers_busy", got.Waiting.Reason)
	}
	w.capacity(1, 4, false)
	second := w.take(task.ID)
	checkTask(t, second.Task, "LEASED", "4", 1, false)
	if !less(row.Epoch, second.Epoch) {
		t.Errorf("epoch %s follows %s", second.Epoch, row.Epoch)
	}
}

func TestARefusalIsAFailureAllowedBeforeTheStart(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": again})
	r := w.finish(retryable(w.take(task.ID)))
	if r.Receipt.TaskState != "WAITING" || r.Receipt.AttemptState != "FAILED" || r.Lease.Active {
		t.Errorf("a retryable refusal: %+v", r)
	}
	second := w.take(task.ID)
	if second.Task.AttemptCount != 2 || second.Task.EffectUncertain {
		t.Errorf("after a refusal: %+v", second.Task)
	}
	r = w.finish(failed(second))
	if r.Receipt.TaskState != "FAILED" {
		t.Errorf("a final refusal: %+v", r)
	}
	checkTask(t, p.task(task.ID), "FAILED", "", 2, false)
}

func TestBeforeTheStartOnlyFailedIsAnOutcome(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	w.refused("not_started", "task.finish", succeeded(a))
	w.refused("not_started", "task.finish", unknown(a))
	w.refused("cancel_not_requested", "task.finish", cancelled(a))
	checkTask(t, p.task(task.ID), "LEASED", "2", 1, false)
}

func TestARunningTaskSucceeds(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.run(task.ID)
	r := w.finish(finish(a, "SUCCEEDED", object{"result": object{"sum": 7}, "error_code": ""}))
	got := p.task(task.ID)
	checkTask(t, got, "SUCCEEDED", "4", 1, false)
	row := p.attempt(task.ID)
	want := receipt{"finish", "SUCCEEDED", "SUCCEEDED", "4", row.LeaseUntil, "APPLIED"}
	if r.Receipt != want || r.Lease.Active || r.Lease.State != "SUCCEEDED" {
		t.Errorf("%+v, want %+v", r, want)
	}
	if string(got.Result) != `{"sum":7}` || got.ErrorCode != "" || !got.CompletedAt.Equal(row.EndedAt) || got.Lease.AttemptID != "" {
		t.Errorf("task %+v", got)
	}
}

func TestARetryableFailureWaitsTwiceAsLongEachTime(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": object{"max_attempts": 4, "initial_delay_ms": 200, "max_delay_ms": 500}})
	for i, ms := range []int{200, 400, 500} {
		want := time.Duration(ms) * time.Millisecond
		a := w.run(task.ID)
		r := w.finish(retryable(a))
		if r.Receipt.TaskState != "WAITING" || r.Receipt.AttemptState != "FAILED" {
			t.Errorf("failure %d: %+v", i+1, r.Receipt)
		}
		got, row := p.task(task.ID), p.row(a)
		// Jitter is within 20 % and never above max_delay.
		delay := got.AvailableAt.Sub(row.EndedAt)
		if delay < want*8/10 || delay > want*12/10 || delay > 500*time.Millisecond {
			t.Errorf("after failure %d it waits %s, want %s", i+1, delay, want)
		}
		if got.State == "WAITING" && (got.Waiting.Reason != "retry_backoff" || !got.Waiting.Until.Equal(got.AvailableAt)) {
			t.Errorf("waiting for %+v", got.Waiting)
		}
		if row.ErrorCode != "failed" || !row.Retryable || string(row.Result) != "{}" {
			t.Errorf("attempt %+v", row)
		}
	}
	r := w.finish(finish(w.run(task.ID), "FAILED", object{"retryable": true, "error_code": "last", "result": object{"why": "x"}}))
	if r.Receipt.TaskState != "FAILED" {
		t.Errorf("the last failure: %+v", r.Receipt)
	}
	got := p.task(task.ID)
	checkTask(t, got, "FAILED", "", 4, false)
	if got.ErrorCode != "last" || string(got.Result) != `{"why":"x"}` || got.CompletedAt.IsZero() {
		t.Errorf("task %+v", got)
	}
}

func TestAFailureIsFinalWhenItIsNotRetryableOrTheDeadlineComesFirst(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for name, c := range map[string]struct {
		members object
		body    func(attempt) object
	}{
		"not retryable":             {object{"retry": again}, failed},
		"no second attempt":         {object{"retry": once}, retryable},
		"no time":                   {object{"retry": object{"initial_delay_ms": 10 * patience.Milliseconds(), "max_delay_ms": 10 * patience.Milliseconds()}, "deadline_at": soon(2 * patience)}, retryable},
		"it ran and must not again": {object{"retry": again, "recovery_safety": "RECONCILE_ONLY"}, retryable},
	} {
		task := p.submit(c.members)
		r := w.finish(c.body(w.run(task.ID)))
		if r.Receipt.TaskState != "FAILED" || r.Receipt.AttemptState != "FAILED" {
			t.Errorf("%s: %+v", name, r.Receipt)
		}
		checkTask(t, p.task(task.ID), "FAILED", "4", 1, false)
	}
}

func TestCancelledIsAnOutcomeOnlyAfterACancelRequest(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.run(task.ID)
	w.refused("cancel_not_requested", "task.finish", cancelled(a))
	checkTask(t, p.task(task.ID), "RUNNING", "3", 1, false)
	p.cancel(task.ID)
	r := w.finish(finish(a, "CANCELLED", object{"error_code": "stopped", "result": object{"half": true}}))
	if r.Receipt.TaskState != "CANCELLED" || r.Receipt.AttemptState != "CANCELLED" {
		t.Errorf("%+v", r.Receipt)
	}
	got := p.task(task.ID)
	checkTask(t, got, "CANCELLED", "5", 1, false)
	if got.ErrorCode != "stopped" || string(got.Result) != `{"half":true}` || got.CompletedAt.IsZero() {
		t.Errorf("task %+v", got)
	}
}

// uncertainEnd is how a RUNNING attempt may end without a word on its effect.
type uncertainEnd struct {
	name     string
	settings object
	members  func() object // of the task
	end      func(w *worker, a attempt)
	attempt  string // its state
	cause    string
	overdue  bool // no time is left afterwards
}

var uncertainEnds = []uncertainEnd{
	{"finish UNKNOWN", nil, func() object { return object{"retry": later} }, func(w *worker, a attempt) { w.finish(unknown(a)) }, "UNKNOWN", "unknown_outcome", false},
	{"lease runs out", quick(nil), func() object { return object{"retry": later} }, nil, "EXPIRED", "lease", false},
	{"attempt timeout", nil, func() object {
		return object{"retry": merged(later, object{"attempt_timeout_ms": beat.Milliseconds()})}
	}, nil, "EXPIRED", "attempt_timeout", false},
	{"deadline", nil, func() object { return object{"retry": again, "deadline_at": soon(beat)} }, nil, "EXPIRED", "deadline", true},
}

func TestAfterAnUncertainEndOfARunningAttempt(t *testing.T) {
	t.Parallel()
	for _, u := range uncertainEnds {
		for _, safety := range []string{"IDEMPOTENT", "RECONCILE_ONLY"} {
			for _, asked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, cancel asked %v", u.name, safety, asked), func(t *testing.T) {
					t.Parallel()
					p := newPlace(t, u.settings)
					w := p.worker(nil)
					task := p.submit(merged(object{"recovery_safety": safety}, u.members()))
					a := w.run(task.ID)
					if asked {
						p.cancel(task.ID)
					}
					if u.end != nil {
						u.end(w, a)
					}
					p.until("the end of the attempt", func() (bool, any) {
						row := p.row(a)
						return row.State == u.attempt, row.State
					})
					want := "NEEDS_REVIEW"
					switch {
					case safety == "IDEMPOTENT" && asked:
						want = "CANCELLED"
					case safety == "IDEMPOTENT" && !u.overdue:
						want = "WAITING"
					}
					checkTask(t, p.task(task.ID), want, "", 1, true)
					if row := p.row(a); row.EndCause != u.cause {
						t.Errorf("the cause is %s, want %s", row.EndCause, u.cause)
					}
				})
			}
		}
	}
}

func TestAnIdempotentTaskWithoutAttemptsLeftNeedsAReview(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": object{"max_attempts": 2, "initial_delay_ms": 100, "max_delay_ms": 100}})
	a := w.run(task.ID)
	r := w.finish(unknown(a))
	if r.Receipt.TaskState != "WAITING" || r.Receipt.AttemptState != "UNKNOWN" {
		t.Errorf("%+v", r.Receipt)
	}
	got, row := p.task(task.ID), p.row(a)
	if delay := got.AvailableAt.Sub(row.EndedAt); delay < 80*time.Millisecond || delay > 120*time.Millisecond {
		t.Errorf("it waits %s, want its backoff of 100 ms", delay)
	}
	second := w.run(task.ID)
	if !second.Task.EffectUncertain {
		t.Error("the second attempt does not know that the first is uncertain")
	}
	r = w.finish(unknown(second))
	if r.Receipt.TaskState != "NEEDS_REVIEW" {
		t.Errorf("%+v", r.Receipt)
	}
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "", 2, true)
}

// A task that ends the process of every worker that starts it costs an attempt each
// time and comes to an end, and other tasks go on.
func TestATaskThatKillsItsWorkersComesToAnEnd(t *testing.T) {
	t.Parallel()
	for safety, starts := range map[string]int{"IDEMPOTENT": 3, "RECONCILE_ONLY": 1} {
		t.Run(safety, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, quick(nil))
			task := p.submit(object{"recovery_safety": safety, "concurrency_key": "k", "retry": object{"max_attempts": 3, "initial_delay_ms": 200, "max_delay_ms": 10_000}})
			for n := 1; n <= starts; n++ {
				w := p.worker(nil) // a process that is new has another instance
				a := w.run(task.ID)
				w.drop()
				p.until("the end of the attempt", func() (bool, any) { row := p.row(a); return row.State == "EXPIRED", row.State })
				got, row := p.task(task.ID), p.row(a)
				if n == starts {
					checkTask(t, got, "NEEDS_REVIEW", "", starts, true)
					break
				}
				checkTask(t, got, "WAITING", "", n, true)
				want := 200 * time.Millisecond << (n - 1)
				if delay := got.AvailableAt.Sub(row.EndedAt); delay < want*8/10 || delay > want*12/10 {
					t.Errorf("after start %d it waits %s, want %s", n, delay, want)
				}
			}
			other := p.submit(nil)
			w := p.worker(nil)
			w.finish(succeeded(w.run(other.ID)))
			checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "", starts, true)
		})
	}
}

func TestADefiniteFailureAfterAnUncertainAttemptNeedsAReview(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for name, body := range map[string]func(attempt) object{"final": failed, "retryable, none left": retryable} {
		task := p.submit(object{"retry": merged(again, object{"max_attempts": 2})})
		w.finish(unknown(w.run(task.ID)))
		r := w.finish(body(w.run(task.ID)))
		if r.Receipt.TaskState != "NEEDS_REVIEW" || r.Receipt.AttemptState != "FAILED" {
			t.Errorf("%s: %+v", name, r.Receipt)
		}
		checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "", 2, true)
		if row := p.attempt(task.ID); row.State != "FAILED" || row.ErrorCode != "failed" {
			t.Errorf("%s: attempt %+v", name, row)
		}
	}
}

func TestALaterSuccessDoesNotClearTheUncertainty(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": again})
	w.finish(unknown(w.run(task.ID)))
	w.finish(succeeded(w.run(task.ID)))
	checkTask(t, p.task(task.ID), "SUCCEEDED", "", 2, true)
}

func TestCancelEndsAWaitingTask(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for _, members := range []object{nil, {"delay_ms": 60_000}} {
		got := p.cancel(p.submit(members).ID)
		checkTask(t, got, "CANCELLED", "2", 0, false)
		if got.CompletedAt.IsZero() {
			t.Errorf("task %+v", got)
		}
	}
}

func TestCancelEndsALeasedTaskAndTellsWhoAskedForNotifications(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for _, wants := range []bool{true, false} {
		w := p.worker(object{"cancellation_notifications": wants})
		task := p.submit(nil)
		a := w.take(task.ID)
		checkTask(t, p.cancel(task.ID), "CANCELLED", "3", 0, false)
		if row := p.attempt(task.ID); row.State != "CANCELLED" || row.EndedAt.IsZero() {
			t.Errorf("attempt %+v", row)
		}
		if wants {
			w.cancelled(a)
		}
		w.refused("lease_lost", "task.start", a.ref())
		w.refused("lease_lost", "task.finish", cancelled(a))
		if told := w.hints(); !wants && told > 0 {
			t.Errorf("%d cancellations for a session that did not ask for them", told)
		}
		w.drop()
	}
}

func TestCancelOfARunningTaskAsksItsWorker(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for _, wants := range []bool{true, false} {
		w := p.worker(object{"cancellation_notifications": wants})
		task := p.submit(nil)
		a := w.run(task.ID)
		asked := p.cancel(task.ID)
		checkTask(t, asked, "RUNNING", "4", 1, false)
		if asked.CancelRequestedAt.IsZero() {
			t.Error("no cancel_requested_at")
		}
		if wants {
			if c := w.cancelled(a); !c.RequestedAt.Equal(asked.CancelRequestedAt) {
				t.Errorf("told %s, asked %s", c.RequestedAt, asked.CancelRequestedAt)
			}
		}
		// Every later lease shows it.
		if l := w.renew(a).Lease; !l.Active || !l.CancelRequestedAt.Equal(asked.CancelRequestedAt) {
			t.Errorf("after a renewal: %+v", l)
		}
		if l := w.resume(a); !l.CancelRequestedAt.Equal(asked.CancelRequestedAt) {
			t.Errorf("after a resume: %+v", l)
		}
		if told := w.hints(); !wants && told > 0 {
			t.Errorf("%d cancellations for a session that did not ask for them", told)
		}
		// The worker's word decides: it may have been done already.
		if r := w.finish(succeeded(a)); r.Receipt.TaskState != "SUCCEEDED" {
			t.Errorf("%+v", r.Receipt)
		}
		w.drop()
	}
}

func TestAfterACancelRequestNothingIsRetried(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": again})
	a := w.run(task.ID)
	p.cancel(task.ID)
	r := w.finish(retryable(a))
	if r.Receipt.TaskState != "CANCELLED" || r.Receipt.AttemptState != "FAILED" {
		t.Errorf("%+v", r.Receipt)
	}
	checkTask(t, p.task(task.ID), "CANCELLED", "5", 1, false)

	// A failure that would have been final anyway stays one.
	task = p.submit(object{"retry": again})
	a = w.run(task.ID)
	p.cancel(task.ID)
	w.finish(failed(a))
	checkTask(t, p.task(task.ID), "FAILED", "5", 1, false)
}

func TestCancelOfACancelledOrAskedTaskChangesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	waiting := p.cancel(p.submit(object{"delay_ms": 60_000}).ID)
	running := p.submit(nil)
	a := w.run(running.ID)
	asked := p.cancel(running.ID)
	for _, first := range []task{waiting, asked} {
		second := p.cancel(first.ID)
		if second.Revision != first.Revision || second.State != first.State || !second.CancelRequestedAt.Equal(first.CancelRequestedAt) {
			t.Errorf("first %+v, then %+v", first, second)
		}
	}
	w.finish(cancelled(a))
	checkTask(t, p.cancel(running.ID), "CANCELLED", "5", 1, false)
}

func TestCancelOfAnyOtherTerminalTaskIsAConflict(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for _, c := range []struct {
		state string
		body  func(attempt) object
	}{{"SUCCEEDED", succeeded}, {"FAILED", failed}, {"NEEDS_REVIEW", unknown}} {
		task := p.submit(object{"recovery_safety": "RECONCILE_ONLY"})
		w.finish(c.body(w.run(task.ID)))
		p.act(task.ID, "cancel", object{}).refused("conflict")
		checkTask(t, p.task(task.ID), c.state, "4", 1, c.state == "NEEDS_REVIEW")
	}
}

func TestAStartDeadlineFailsWhatNeverStarted(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	nobody := p.submit(object{"start_deadline_at": soon(beat)})
	q := p.beside("offered", nil)
	w := q.worker(nil)
	offered := q.submit(object{"start_deadline_at": soon(beat)})
	a := w.take(offered.ID)
	for _, task := range []task{nobody, offered} {
		got := p.settled(task.ID)
		checkTask(t, got, "FAILED", "", 0, false)
		if got.ErrorCode != "start_deadline_exceeded" || got.CompletedAt.Before(got.StartDeadlineAt) {
			t.Errorf("task %+v", got)
		}
	}
	if row := p.attempt(offered.ID); row.State != "EXPIRED" || row.EndCause != "start_deadline" {
		t.Errorf("attempt %+v", row)
	}
	w.refused("lease_lost", "task.start", a.ref())
}

func TestAStartDeadlineSparesWhatHasStartedOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{
		"start_deadline_at": soon(beat),
		"retry":             object{"max_attempts": 2, "initial_delay_ms": 2 * beat.Milliseconds(), "max_delay_ms": 2 * beat.Milliseconds()},
	})
	w.finish(retryable(w.run(task.ID)))
	a := w.run(task.ID) // long after the start deadline
	if row := p.attempt(task.ID); !row.StartedAt.After(task.StartDeadlineAt) {
		t.Errorf("started at %s, the start deadline was %s", row.StartedAt, task.StartDeadlineAt)
	}
	w.finish(succeeded(a))
	checkTask(t, p.task(task.ID), "SUCCEEDED", "", 2, false)
}

func TestADeadlineFailsWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	nobody := p.submit(object{"deadline_at": soon(beat)})
	q := p.beside("offered", nil)
	w := q.worker(nil)
	offered := q.submit(object{"deadline_at": soon(beat)})
	a := w.take(offered.ID)
	if a.LeaseUntil.After(offered.DeadlineAt) {
		t.Errorf("the offer lasts until %s, the deadline is %s", a.LeaseUntil, offered.DeadlineAt)
	}
	for _, task := range []task{nobody, offered} {
		got := p.settled(task.ID)
		checkTask(t, got, "FAILED", "", 0, false)
		if got.ErrorCode != "deadline_exceeded" || got.CompletedAt.Before(got.DeadlineAt) {
			t.Errorf("task %+v", got)
		}
	}
	w.refused("lease_lost", "task.start", a.ref())
}

func TestADeadlineOfAnUncertainTaskNeedsAReview(t *testing.T) {
	t.Parallel()
	for _, offered := range []bool{false, true} {
		t.Run(map[bool]string{false: "WAITING", true: "LEASED"}[offered], func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, nil)
			w := p.worker(nil)
			task := p.submit(object{"retry": again, "deadline_at": soon(beat), "concurrency_key": "k"})
			a := w.run(task.ID)
			if !offered {
				w.capacity(1, 0, false)
			}
			w.finish(unknown(a))
			if offered {
				w.take(task.ID)
			}
			got := p.settled(task.ID)
			checkTask(t, got, "NEEDS_REVIEW", "", 1, true)
			if got.ErrorCode != "deadline_exceeded" {
				t.Errorf("error code %s", got.ErrorCode)
			}
			// Nothing of the last attempt ran, so no key is kept.
			if k := p.key("k"); k.HolderTaskID != "" {
				t.Errorf("key %+v", k)
			}
		})
	}
}

func TestAStartDeadlineOfAnUncertainTaskNeedsAReview(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	first := p.submit(object{"start_deadline_at": soon(beat)})
	a := w.run(first.ID)
	p.cancel(first.ID)
	w.finish(unknown(a))
	checkTask(t, p.task(first.ID), "CANCELLED", "", 1, true)
	w.capacity(1, 0, false)
	second := p.act(first.ID, "retry", object{}).ok(http.StatusCreated).task()
	checkTask(t, second, "WAITING", "1", 0, true)
	got := p.settled(second.ID)
	checkTask(t, got, "NEEDS_REVIEW", "2", 0, true)
	if got.ErrorCode != "start_deadline_exceeded" {
		t.Errorf("error code %s", got.ErrorCode)
	}
}

func TestRenewGivesTheFullLease(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 20_000, "offer_duration_ms": 10_000})
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	for _, state := range []string{"LEASED", "RUNNING"} {
		r := w.renew(a)
		want := receipt{"renew", state, state, r.Receipt.TaskRevision, r.Lease.ServerTime.Add(20 * time.Second), "APPLIED"}
		if r.Receipt != want || !r.Lease.Active || !r.Lease.LeaseUntil.Equal(want.LeaseUntil) {
			t.Errorf("%+v, want %+v", r, want)
		}
		if state == "LEASED" {
			w.start(a)
		}
	}
	// Renewals are no change of the task.
	checkTask(t, p.task(task.ID), "RUNNING", "3", 1, false)
	if row := p.attempt(task.ID); row.Renewals != 2 {
		t.Errorf("%d renewals", row.Renewals)
	}
}

func TestRenewNeverReachesBeyondTheAttemptTimeoutOrTheDeadline(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 60_000, "offer_duration_ms": 20_000})
	w := p.worker(nil)
	byTimeout := p.submit(object{"retry": object{"attempt_timeout_ms": 5000}})
	byDeadline := p.submit(object{"deadline_at": soon(30 * time.Second)})
	for _, task := range []task{byTimeout, byDeadline} {
		a := w.take(task.ID)
		before := w.renew(a).Lease // before the start there is no timeout yet
		started := w.start(a).Lease
		renewed := w.renew(a).Lease
		row, limit := p.attempt(task.ID), task.DeadlineAt
		if task.ID == byTimeout.ID {
			limit = row.TimeoutAt
			if span := row.TimeoutAt.Sub(row.StartedAt); span != 5*time.Second {
				t.Errorf("the timeout comes %s after the start", span)
			}
			if !before.LeaseUntil.After(limit) {
				t.Errorf("the offer's end %s is not beyond the timeout %s", before.LeaseUntil, limit)
			}
		}
		if !started.LeaseUntil.Equal(limit) || !renewed.LeaseUntil.Equal(limit) || before.LeaseUntil.After(task.DeadlineAt) {
			t.Errorf("leased until %s, started until %s, renewed until %s, the limit is %s",
				before.LeaseUntil, started.LeaseUntil, renewed.LeaseUntil, limit)
		}
	}
}

func TestAttemptsAreCountedFromZeroToAHundred(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": object{"max_attempts": 100, "initial_delay_ms": 0, "max_delay_ms": 0}})
	for n := 1; n < 100; n++ {
		a := w.take(task.ID)
		if a.Task.AttemptCount != n {
			t.Fatalf("attempt %d is counted as %d", n, a.Task.AttemptCount)
		}
		w.finish(retryable(a))
	}
	w.finish(unknown(w.run(task.ID)))
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "", 100, true)
	p.act(task.ID, "review", object{"decision": "RETRY", "note": "once more"}).refused("conflict")
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "", 100, true)
}

func TestTerminalTasksAreRemovedAfterTheRetentionAndReviewsNever(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"retention_ms": 500})
	w := p.worker(nil)
	kept := p.submit(object{"recovery_safety": "RECONCILE_ONLY"})
	w.finish(unknown(w.run(kept.ID)))
	gone := p.submit(nil)
	w.finish(succeeded(w.run(gone.ID)))
	never := p.submit(object{"delay_ms": 60_000})
	p.cancel(never.ID)
	for _, task := range []task{gone, never} {
		p.until("the end of the retention", func() (bool, any) {
			a := p.call("GET", "/tasks/"+task.ID, nil)
			return a.status == http.StatusNotFound, a.status
		})
		p.call("GET", "/tasks/"+task.ID+"/attempts", nil).refused("not_found")
		p.act(task.ID, "retry", object{}).refused("not_found")
	}
	checkTask(t, p.task(kept.ID), "NEEDS_REVIEW", "", 1, true)
	if len(p.attempts(kept.ID)) != 1 {
		t.Error("the attempt of the task in review is gone")
	}
}
