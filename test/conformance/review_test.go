package conformance

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Section 4, what people decide: reviews and manual retries.

// inReview is a task of a worker that could not tell what it had done.
func (w *worker) inReview(members object) (attempt, task) {
	w.t.Helper()
	sent := w.place.submit(merged(object{"recovery_safety": "RECONCILE_ONLY"}, members))
	a := w.run(sent.ID)
	w.finish(unknown(a))
	return a, w.place.task(sent.ID)
}

func TestAReviewSettlesATask(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for _, c := range []struct {
		decision, state string
		members         object
		code, result    string
	}{
		{"SUCCEEDED", "SUCCEEDED", object{"result": object{"ledger": 1}}, "", `{"ledger":1}`},
		{"SUCCEEDED", "SUCCEEDED", nil, "", ""},
		{"FAILED", "FAILED", object{"error_code": "not_paid"}, "not_paid", ""},
		{"CANCELLED", "CANCELLED", nil, "", ""},
	} {
		_, before := w.inReview(nil)
		checkTask(t, before, "NEEDS_REVIEW", "4", 1, true)
		if !before.CompletedAt.IsZero() {
			t.Errorf("a task in review is not over: %+v", before)
		}
		got := p.act(before.ID, "review", merged(object{"decision": c.decision, "note": "looked it up"}, c.members)).ok(http.StatusOK).task()
		checkTask(t, got, c.state, "5", 1, false)
		if got.ErrorCode != c.code || string(got.Result) != c.result || got.CompletedAt.IsZero() {
			t.Errorf("%s: %+v", c.decision, got)
		}
		recorded := p.facts(got.ID, "reviewed")
		if len(recorded) != 1 || recorded[0]["decision"] != c.decision || recorded[0]["note"] != "looked it up" || recorded[0]["operator"] == "" || recorded[0]["by"] == nil {
			t.Errorf("recorded: %v", recorded)
		}
		if d := got.Decision; d.Decision != c.decision || d.By == "" || d.Note != "looked it up" || !d.At.Equal(got.CompletedAt) {
			t.Errorf("the task says that somebody decided %+v", d)
		}
		p.act(got.ID, "review", object{"decision": c.decision, "note": "again", "error_code": nil}).refused("invalid_argument")
		p.act(got.ID, "review", object{"decision": "CANCELLED", "note": "again"}).refused("conflict")
	}
}

func TestAReviewNeedsANoteAlwaysAndAnErrorCodeWithFailed(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	_, task := p.worker(nil).inReview(nil)
	for _, decision := range []string{"SUCCEEDED", "FAILED", "CANCELLED", "RETRY"} {
		for _, note := range []any{nil, "", "  "} {
			body := merged(object{"decision": decision, "error_code": "e"}, object{"note": note})
			if decision != "FAILED" {
				delete(body, "error_code")
			}
			p.act(task.ID, "review", body).refused("invalid_argument")
		}
	}
	p.act(task.ID, "review", object{"decision": "FAILED", "note": "n"}).refused("invalid_argument")
	p.act(task.ID, "review", object{"decision": "MAYBE", "note": "n"}).violates("/decision")
	p.act(task.ID, "review", object{"decision": "RETRY", "note": "n", "result": 1}).violates("/result")
	p.act(task.ID, "review", object{"decision": "SUCCEEDED", "note": "n", "error_code": "e"}).violates("/error_code")
	p.act(task.ID, "review", object{"decision": "CANCELLED", "note": "n", "expected_revision": "3"}).refused("revision_conflict")
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "4", 1, true)
}

func TestOnlyATaskInReviewCanBeReviewed(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	waiting := p.submit(nil)
	w := p.worker(object{"capabilities": []object{capability("other", "1", "1")}})
	running := p.submit(object{"handler": "other"})
	w.run(running.ID)
	for _, id := range []string{waiting.ID, running.ID, p.cancel(waiting.ID).ID} {
		p.act(id, "review", object{"decision": "CANCELLED", "note": "n"}).refused("conflict")
	}
}

func TestAReviewedRetryClearsTheUncertaintyAndAllowsOneAttemptMore(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	first, task := w.inReview(object{"retry": once})
	got := p.act(task.ID, "review", object{"decision": "RETRY", "note": "nothing was paid"}).ok(http.StatusOK).task()
	checkTask(t, got, "WAITING", "5", 1, false)
	second := w.run(task.ID)
	if second.Task.AttemptCount != 2 || second.Task.EffectUncertain || !less(first.Epoch, second.Epoch) {
		t.Errorf("second attempt %+v", second)
	}
	// One more, not two: a failure that could be retried is final now.
	if r := w.finish(retryable(second)); r.Receipt.TaskState != "FAILED" {
		t.Errorf("%+v", r.Receipt)
	}
}

func TestAReviewedRetryPastTheDeadlineNeedsANewOne(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	sent := p.submit(object{"deadline_at": soon(beat)})
	w.run(sent.ID)
	checkTask(t, p.settled(sent.ID), "NEEDS_REVIEW", "", 1, true)
	p.act(sent.ID, "review", object{"decision": "RETRY", "note": "n"}).violates("/deadline_at")
	p.act(sent.ID, "review", object{"decision": "RETRY", "note": "n", "deadline_at": soon(-time.Second)}).violates("/deadline_at")
	until := soon(patience)
	got := p.act(sent.ID, "review", object{"decision": "RETRY", "note": "n", "deadline_at": until}).ok(http.StatusOK).task()
	if want, _ := time.Parse(time.RFC3339, until); !got.DeadlineAt.Equal(want) {
		t.Errorf("the deadline is %s, want %s", got.DeadlineAt, want)
	}
	w.finish(succeeded(w.run(sent.ID)))
	checkTask(t, p.task(sent.ID), "SUCCEEDED", "", 2, false)
}

func TestAManualRetryIsANewTask(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for state, body := range map[string]func(attempt) object{"SUCCEEDED": succeeded, "FAILED": failed, "CANCELLED": cancelled} {
		old := p.submit(object{
			"business_key": "b-" + state, "concurrency_key": "k", "priority": 4, "payload": object{"n": 1}, "delay_ms": 100,
			"start_deadline_at": soon(patience), "deadline_at": soon(2 * patience),
		})
		a := w.run(old.ID)
		if state == "CANCELLED" {
			p.cancel(old.ID)
		}
		w.finish(body(a))
		made := p.act(old.ID, "retry", object{"note": "once more"}).ok(http.StatusCreated).task()
		checkTask(t, made, "WAITING", "1", 0, false)
		if made.ID == old.ID || made.RetryOf != old.ID || made.BusinessKey != "" || made.ConcurrencyKey != "k" ||
			made.Priority != 4.0 || !sameText(made.Payload, old.Payload) {
			t.Errorf("of %+v came %+v", old, made)
		}
		for name, span := range map[string][2]time.Duration{
			"deadline":       {old.DeadlineAt.Sub(old.CreatedAt), made.DeadlineAt.Sub(made.CreatedAt)},
			"start deadline": {old.StartDeadlineAt.Sub(old.CreatedAt), made.StartDeadlineAt.Sub(made.CreatedAt)},
		} {
			if span[0] != span[1] {
				t.Errorf("the span of the %s was %s and is %s", name, span[0], span[1])
			}
		}
		if !made.AvailableAt.Equal(made.CreatedAt) {
			t.Errorf("available at %s, created at %s", made.AvailableAt, made.CreatedAt)
		}
		checkTask(t, p.task(old.ID), state, old.Revision[:0], 1, false) // as it was
		w.finish(succeeded(w.run(made.ID)))
	}
}

func TestAManualRetryIsOnlyForTasksThatAreOver(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	_, review := w.inReview(nil)
	p.act(review.ID, "retry", object{}).refused("conflict")
	running := p.submit(nil)
	a := w.run(running.ID)
	p.act(running.ID, "retry", object{}).refused("conflict")
	w.finish(succeeded(a))
	waiting := p.submit(object{"delay_ms": 60_000})
	p.act(waiting.ID, "retry", object{}).refused("conflict")
	problem := p.act(running.ID, "retry", object{"expected_revision": "1"}).refused("revision_conflict")
	if problem.CurrentRevision != "4" {
		t.Errorf("the current revision is %s", problem.CurrentRevision)
	}
}

func TestAManualRetryOfAnUncertainTaskStartsUncertain(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	first := p.submit(object{"retry": again})
	w.finish(unknown(w.run(first.ID)))
	w.finish(succeeded(w.run(first.ID)))
	checkTask(t, p.task(first.ID), "SUCCEEDED", "", 2, true)
	second := p.act(first.ID, "retry", object{}).ok(http.StatusCreated).task()
	checkTask(t, second, "WAITING", "1", 0, true)
	// So its definite failure is none of the whole.
	if r := w.finish(failed(w.run(second.ID))); r.Receipt.TaskState != "NEEDS_REVIEW" {
		t.Errorf("%+v", r.Receipt)
	}
}

func TestLateEvidenceDoesNotClearTheUncertaintyButReachesTheReviewer(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a, task := w.inReview(nil)
	w.finish(finish(a, "SUCCEEDED", object{"result": object{"receipt": strings.Repeat("x", 100)}}))
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "4", 1, true)
	if e := p.attempt(task.ID).Evidence; len(e) != 1 || !strings.Contains(string(e[0].Result), "xxx") {
		t.Errorf("evidence %+v", e)
	}
}
