package conformance

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Section 4, what comes too late, and which error says so.

// less compares two numbers in text.
func less(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x < y
}

// expired is an attempt that was started and whose lease has run out; its task is
// in the state that follows.
func (w *worker) expired(members object, state string) (attempt, task) {
	w.t.Helper()
	sent := w.place.submit(members)
	a := w.run(sent.ID)
	return a, w.place.reaches(sent.ID, state)
}

func TestALateFinishIsKeptAsEvidence(t *testing.T) {
	t.Parallel()
	p := newPlace(t, quick(nil))
	w := p.worker(nil)
	a, before := w.expired(object{"recovery_safety": "RECONCILE_ONLY"}, "NEEDS_REVIEW")
	id := newID()
	r := w.operateAs(id, "task.finish", finish(a, "SUCCEEDED", object{"result": object{"paid": true}}))
	want := receipt{"finish", "NEEDS_REVIEW", "EXPIRED", before.Revision, r.Receipt.LeaseUntil, "EVIDENCE_ONLY"}
	if r.Receipt != want || r.Lease.Active || r.Lease.State != "EXPIRED" {
		t.Errorf("%+v, want %+v", r, want)
	}
	after := p.task(before.ID)
	if after.Revision != before.Revision || after.State != "NEEDS_REVIEW" || !after.EffectUncertain || after.Result != nil {
		t.Errorf("the task was touched: %+v", after)
	}
	evidence := p.attempt(before.ID).Evidence
	if len(evidence) != 1 || evidence[0].MessageID != id || evidence[0].Outcome != "SUCCEEDED" ||
		string(evidence[0].Result) != `{"paid":true}` || evidence[0].InstanceID != w.id() {
		t.Errorf("evidence %+v", evidence)
	}
}

func TestEvidenceIsTakenForAnAttemptThatEndedUnknown(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"recovery_safety": "RECONCILE_ONLY"})
	a := w.run(task.ID)
	w.finish(unknown(a))
	if r := w.finish(failed(a)); r.Receipt.Disposition != "EVIDENCE_ONLY" || r.Receipt.AttemptState != "UNKNOWN" {
		t.Errorf("%+v", r.Receipt)
	}
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "4", 1, true)
}

func TestEvidenceIsTakenForAnOfferThatRanOut(t *testing.T) {
	t.Parallel()
	p := newPlace(t, quick(nil))
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	p.reaches(task.ID, "WAITING")
	if r := w.finish(succeeded(a)); r.Receipt.Disposition != "EVIDENCE_ONLY" || r.Receipt.AttemptState != "EXPIRED" {
		t.Errorf("%+v", r.Receipt)
	}
}

func TestEvidenceDoesNotTouchALaterAttempt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": again})
	first := w.run(task.ID)
	w.finish(unknown(first))
	second := w.run(task.ID)
	r := w.finish(succeeded(first))
	if r.Receipt.Disposition != "EVIDENCE_ONLY" || r.Receipt.TaskState != "RUNNING" || r.Lease.Active {
		t.Errorf("%+v", r)
	}
	if l := w.renew(second).Lease; !l.Active {
		t.Errorf("the later attempt: %+v", l)
	}
	if all := p.attempts(task.ID); len(all) != 2 || len(all[0].Evidence) != 1 || len(all[1].Evidence) != 0 {
		t.Errorf("attempts %+v", all)
	}
}

func TestAnotherInstanceMayLeaveEvidenceWhateverTheAttemptsState(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	first := p.worker(nil)
	task := p.submit(nil)
	a := first.take(task.ID)
	notes := p.worker(object{"capabilities": []object{capability("other", "1", "1")}}) // the process after a restart
	for _, state := range []string{"LEASED", "RUNNING", "SUCCEEDED"} {
		switch state {
		case "RUNNING":
			first.start(a)
		case "SUCCEEDED":
			first.finish(succeeded(a))
		}
		before := p.task(task.ID)
		r := notes.finish(succeeded(a))
		if r.Receipt.Disposition != "EVIDENCE_ONLY" || r.Receipt.AttemptState != state || r.Lease.Active {
			t.Errorf("%s: %+v", state, r)
		}
		if after := p.task(task.ID); after.State != before.State || after.Revision != before.Revision {
			t.Errorf("%s: the task was touched", state)
		}
	}
}

func TestTheEvidenceOfAnAttemptIsBounded(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"recovery_safety": "RECONCILE_ONLY"})
	a := w.run(task.ID)
	w.finish(unknown(a))
	n := 0
	for ; n < 100; n++ {
		f := w.ask(newID(), "task.finish", succeeded(a))
		if f.Error != nil {
			f.refusal(t, "lease_lost")
			break
		}
	}
	if n != 16 || len(p.attempt(task.ID).Evidence) != n {
		t.Errorf("%d late finishes were taken, %d are shown", n, len(p.attempt(task.ID).Evidence))
	}
}

func TestASecondFinishOfAnAttemptThatEndedOtherwiseIsLeaseLost(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for _, c := range []struct {
		state string
		body  func(attempt) object
		stop  bool
	}{{"SUCCEEDED", succeeded, false}, {"FAILED", failed, false}, {"CANCELLED", cancelled, true}} {
		task := p.submit(nil)
		a := w.run(task.ID)
		if c.stop {
			p.cancel(task.ID)
		}
		w.finish(c.body(a))
		w.refused("lease_lost", "task.finish", succeeded(a))
		if got := p.task(task.ID); got.State != c.state || len(p.attempt(task.ID).Evidence) != 0 {
			t.Errorf("task %+v", got)
		}
	}
}

func TestALateStartOrRenewIsLeaseLost(t *testing.T) {
	t.Parallel()
	p := newPlace(t, quick(nil))
	w := p.worker(nil)
	a, before := w.expired(object{"recovery_safety": "RECONCILE_ONLY"}, "NEEDS_REVIEW")
	w.refused("lease_lost", "task.start", a.ref())
	w.refused("lease_lost", "task.renew", a.ref())
	if after := p.task(before.ID); after.Revision != before.Revision {
		t.Errorf("the task was touched: %+v", after)
	}
}

func TestALateCommandIsAStaleEpochOnceALaterAttemptExists(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": again})
	first := w.run(task.ID)
	w.finish(retryable(first))
	second := w.run(task.ID)
	if !less(first.Epoch, second.Epoch) {
		t.Errorf("epoch %s follows %s", second.Epoch, first.Epoch)
	}
	w.refused("stale_epoch", "task.start", first.ref())
	w.refused("stale_epoch", "task.renew", first.ref())
	w.refused("stale_epoch", "task.finish", succeeded(first))
	checkTask(t, p.task(task.ID), "RUNNING", "", 2, false)
	if l := w.resume(first); l.Active || l.State != "FAILED" {
		t.Errorf("the first attempt: %+v", l)
	}
	w.finish(succeeded(second))
}

func TestAStartUnderAnotherIDIsAlreadyStarted(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.run(p.submit(nil).ID)
	w.refused("already_started", "task.start", a.ref())
	w.finish(succeeded(a))
}

// attemptFrames are the frames about an attempt, with a body for each.
func attemptFrames(a attempt) map[string]object {
	return map[string]object{
		"task.start": a.ref(), "task.renew": a.ref(), "worker.resume": a.ref(), "task.finish": succeeded(a),
	}
}

func TestAnUnknownIDIsNotFound(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	known := w.run(p.submit(nil).ID)
	elsewhere := p.elsewhere(nil)
	foreign := elsewhere.worker(nil)
	noTask, noAttempt := known, known
	noTask.Task.ID, noAttempt.AttemptID = newID(), newID()
	for name, c := range map[string]struct {
		w *worker
		a attempt
	}{"the task": {w, noTask}, "the attempt": {w, noAttempt}, "in this namespace": {foreign, known}} {
		for kind, body := range attemptFrames(c.a) {
			t.Logf("%s: %s", name, kind)
			c.w.refused("not_found", kind, body)
		}
	}
	for _, path := range []string{"/tasks/" + newID(), "/tasks/" + newID() + "/attempts", "/tasks/" + newID() + "/events"} {
		p.call("GET", path, nil).refused("not_found")
	}
	elsewhere.call("GET", "/tasks/"+known.Task.ID, nil).refused("not_found")
	for _, action := range []string{"cancel", "retry"} {
		elsewhere.act(known.Task.ID, action, object{}).refused("not_found")
	}
	elsewhere.act(known.Task.ID, "review", object{"decision": "CANCELLED", "note": "n"}).refused("not_found")
}

func TestAWrongSecretOrEpochIsForbidden(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.take(p.submit(nil).ID)
	wrongSecret, wrongEpoch := a, a
	wrongSecret.LeaseSecret = newSecret()
	wrongEpoch.Epoch = "1"
	for name, wrong := range map[string]attempt{"secret": wrongSecret, "epoch": wrongEpoch} {
		for kind, body := range attemptFrames(wrong) {
			t.Logf("%s: %s", name, kind)
			w.refused("forbidden", kind, body)
		}
	}
	checkTask(t, p.task(a.Task.ID), "LEASED", "2", 1, false)
	w.start(a)
}

func TestTheSecretOfAnotherAttemptIsForbidden(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a, b := w.take(p.submit(nil).ID), w.take(p.submit(nil).ID)
	a.LeaseSecret, b.LeaseSecret = b.LeaseSecret, a.LeaseSecret
	w.refused("forbidden", "task.start", a.ref())
	w.refused("forbidden", "task.start", b.ref())
}

func TestAForeignInstanceIsForbidden(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.run(p.submit(nil).ID)
	foreign := p.worker(object{"capabilities": []object{capability("other", "1", "1")}})
	for _, kind := range []string{"task.start", "task.renew", "worker.resume"} {
		foreign.refused("forbidden", kind, a.ref())
	}
	if l := w.renew(a).Lease; !l.Active {
		t.Errorf("the owner's lease: %+v", l)
	}
}

func TestResumeTellsTheFinalStateOfAnAttemptThatIsOver(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	if l := w.resume(a); !l.Active || l.State != "LEASED" || !l.LeaseUntil.Equal(a.LeaseUntil) {
		t.Errorf("before the start: %+v", l)
	}
	until := w.start(a).Lease.LeaseUntil
	l := w.resume(a)
	if !l.Active || l.State != "RUNNING" || !l.LeaseUntil.Equal(until) || l.ServerTime.IsZero() || l.LeaseUntil.Sub(l.ServerTime) > 30*time.Second {
		t.Errorf("running: %+v", l)
	}
	w.finish(succeeded(a))
	if l := w.resume(a); l.Active || l.State != "SUCCEEDED" {
		t.Errorf("after the finish: %+v", l)
	}
	checkTask(t, p.task(task.ID), "SUCCEEDED", "4", 1, false)
}

// An id of another namespace is answered word for word as one that nobody has, on
// every route that takes one, in the list of a bulk request and behind which a stream
// goes on: no answer tells that it is there, and nothing happens to it.
func TestAnIDOfAnotherNamespaceIsLikeOneThatNobodyHas(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	running := w.run(p.submit(object{"concurrency_key": "account/1"}).ID)
	waiting := p.submit(object{"business_key": "order/1", "delay_ms": 3_600_000})
	over := p.submit(object{"delay_ms": 3_600_000})
	p.cancel(over.ID)
	p.call("PUT", "/schedules/nightly", object{"cron": "0 3 * * *", "task": work(object{"queue": p.queue})}).ok(0)
	ids := []string{running.Task.ID, waiting.ID, over.ID}
	before := []task{p.task(ids[0]), p.task(ids[1]), p.task(ids[2])}
	elsewhere := p.elsewhere(nil)

	// equal holds two answers to each other, each without the id that was asked for.
	equal := func(what string, foreign, unknown answer, id, nobody string) {
		t.Helper()
		said := func(a answer, id string) string { return strings.ReplaceAll(string(a.body), id, "ID") }
		if foreign.status != unknown.status || said(foreign, id) != said(unknown, nobody) {
			t.Errorf("%s: of another namespace: %d %s\nof nobody: %d %s", what, foreign.status, foreign.body, unknown.status, unknown.body)
		}
	}
	for _, id := range ids {
		for _, route := range []struct {
			method, path string
			body         any
		}{
			{"GET", "", nil}, {"GET", "/attempts", nil}, {"GET", "/events", nil}, {"GET", "/watch", nil},
			{"GET", "?wait_state=terminal&timeout_ms=1000", nil}, {"GET", "?consistency=stale", nil},
			{"POST", ":cancel", object{}}, {"POST", ":retry", object{}}, {"POST", ":run", object{}},
			{"POST", ":review", object{"decision": "CANCELLED", "note": "n"}},
		} {
			nobody := newID()
			foreign := elsewhere.call(route.method, "/tasks/"+id+route.path, route.body)
			foreign.refused("not_found")
			equal(route.method+" "+route.path, foreign, elsewhere.call(route.method, "/tasks/"+nobody+route.path, route.body), id, nobody)
		}
		for _, action := range []string{"cancel", "retry"} {
			for _, dry := range []bool{true, false} {
				nobody := newID()
				bulk := func(id string) answer {
					return elsewhere.call("POST", "/tasks:bulk", object{"action": action, "ids": []string{id}, "dry_run": dry})
				}
				equal("bulk "+action, bulk(id), bulk(nobody), id, nobody)
			}
		}
	}
	nobody := newID()
	for _, route := range []struct{ method, path, id, nobody string }{
		{"GET", "/workers/%", w.id(), nobody}, {"POST", "/workers/%:drain", w.id(), nobody},
		{"GET", "/schedules/%", "nightly", "weekly"}, {"POST", "/schedules/%:trigger", "nightly", "weekly"},
		{"POST", "/schedules/%:pause", "nightly", "weekly"}, {"DELETE", "/schedules/%", "nightly", "weekly"},
		{"GET", "/keys/%", "account%2F1", "account%2F2"},
	} {
		var body any
		if route.method == "POST" {
			body = object{}
		}
		call := func(id string) answer {
			return elsewhere.call(route.method, strings.Replace(route.path, "%", id, 1), body)
		}
		foreign, unknown := call(route.id), call(route.nobody)
		for _, a := range []*answer{&foreign, &unknown} {
			a.body = []byte(strings.ReplaceAll(string(a.body), "%2F", "/"))
		}
		equal(route.method+" "+route.path, foreign, unknown, strings.ReplaceAll(route.id, "%2F", "/"), strings.ReplaceAll(route.nobody, "%2F", "/"))
	}
	// A business key is of its namespace: it finds nothing here and takes nothing.
	if mine := elsewhere.submit(object{"business_key": "order/1", "delay_ms": 3_600_000}); mine.ID == waiting.ID {
		t.Error("a business key reaches into another namespace")
	}
	for i, id := range ids {
		if after := p.task(id); after.Revision != before[i].Revision {
			t.Errorf("task %d was touched: %+v", i, after)
		}
	}
	if v := p.workerView(w.id()); v.Draining {
		t.Errorf("its worker drains: %+v", v)
	}
	p.call("GET", "/schedules/nightly", nil).ok(http.StatusOK)
}
