package conformance

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Section 6: operations and receipts.

// operations are start, renew and finish of an attempt, in their order.
func operations(a attempt) []struct {
	kind string
	body object
} {
	return []struct {
		kind string
		body object
	}{{"task.start", a.ref()}, {"task.renew", a.ref()}, {"task.finish", succeeded(a)}}
}

// repeats checks that an operation sent again gets the receipt of the first time.
func repeats(t *testing.T, kind string, first, second result) {
	t.Helper()
	if !second.Deduplicated || second.Receipt != first.Receipt || first.Deduplicated {
		t.Errorf("%s: first %+v, then %+v", kind, first, second)
	}
}

func TestARepeatGetsTheReceiptOfTheFirstOutcome(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	for _, op := range operations(a) {
		id := newID()
		first := w.operateAs(id, op.kind, op.body)
		before := p.task(task.ID)
		second := w.operateAs(id, op.kind, op.body)
		repeats(t, op.kind, first, second)
		// The lease beside the receipt is verified anew.
		if second.Lease.ServerTime.Before(first.Lease.ServerTime) || second.Lease.Active != first.Lease.Active {
			t.Errorf("%s: lease %+v, then %+v", op.kind, first.Lease, second.Lease)
		}
		if after := p.task(task.ID); after.Revision != before.Revision {
			t.Errorf("%s: the repeat changed the task", op.kind)
		}
	}
}

func TestTheLeaseOfARepeatIsThatOfToday(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	id := newID()
	first := w.operateAs(id, "task.start", a.ref())
	p.cancel(task.ID)
	w.finish(cancelled(a))
	second := w.operateAs(id, "task.start", a.ref())
	repeats(t, "task.start", first, second)
	if l := second.Lease; l.Active || l.State != "CANCELLED" || second.Receipt.AttemptState != "RUNNING" {
		t.Errorf("%+v", second)
	}
}

func TestARepeatOnAnotherConnectionGetsTheSameReceipt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.take(p.submit(nil).ID)
	for _, op := range operations(a) {
		id := newID()
		first := w.operateAs(id, op.kind, op.body)
		w.drop()
		w.connect(nil)
		repeats(t, op.kind, first, w.operateAs(id, op.kind, op.body))
	}
}

func TestARepeatAfterARestartGetsTheSameReceipt(t *testing.T) {
	t.Parallel()
	h := own(t, nil)
	p := h.place(t, nil)
	w := p.worker(nil)
	a := w.take(p.submit(nil).ID)
	for _, op := range operations(a) {
		id := newID()
		first := w.operateAs(id, op.kind, op.body)
		h.restart(t)
		w.connect(nil)
		repeats(t, op.kind, first, w.operateAs(id, op.kind, op.body))
	}
	checkTask(t, p.task(a.Task.ID), "SUCCEEDED", "4", 1, false)
}

func TestEvidenceHasAReceiptToo(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a, task := w.inReview(nil)
	id := newID()
	first := w.operateAs(id, "task.finish", succeeded(a))
	repeats(t, "task.finish", first, w.operateAs(id, "task.finish", succeeded(a)))
	if n := len(p.attempt(task.ID).Evidence); n != 1 {
		t.Errorf("%d pieces of evidence", n)
	}
}

func TestTheSameIDWithOtherContentIsAnOperationConflict(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	start, renew, end := newID(), newID(), newID()
	conflict := func(id, kind string, body object) {
		t.Helper()
		w.ask(id, kind, body).refusal(t, "operation_conflict")
	}
	w.operateAs(start, "task.start", a.ref())
	conflict(start, "task.renew", a.ref())
	conflict(start, "task.finish", succeeded(a))
	w.operateAs(renew, "task.renew", a.ref())
	conflict(renew, "task.start", a.ref())
	w.operateAs(end, "task.finish", succeeded(a))
	conflict(end, "task.finish", failed(a))
	conflict(end, "task.finish", finish(a, "SUCCEEDED", object{"result": object{"other": 1}}))
	conflict(end, "task.start", a.ref())
	checkTask(t, p.task(task.ID), "SUCCEEDED", "4", 1, false)
}

func TestARefusedOperationLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	id := newID()
	w.ask(id, "task.finish", succeeded(a)).refusal(t, "not_started")
	w.start(a)
	w.ask(id, "task.finish", cancelled(a)).refusal(t, "cancel_not_requested") // other content, and no conflict
	p.cancel(task.ID)
	if r := w.operateAs(id, "task.finish", cancelled(a)); r.Deduplicated || r.Receipt.Disposition != "APPLIED" {
		t.Errorf("%+v", r)
	}
}

func TestReceiptsOfTheLatestSixteenRenewalsAreKept(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.take(p.submit(nil).ID)
	start := newID()
	started := w.operateAs(start, "task.start", a.ref())
	ids := make([]string, 18)
	first := make([]result, len(ids))
	for i := range ids {
		ids[i] = newID()
		first[i] = w.operateAs(ids[i], "task.renew", a.ref())
	}
	for i := 2; i < len(ids); i++ {
		repeats(t, "task.renew", first[i], w.operateAs(ids[i], "task.renew", a.ref()))
	}
	// Those before are forgotten: the id is new again.
	if r := w.operateAs(ids[1], "task.renew", a.ref()); r.Deduplicated {
		t.Errorf("the seventeenth renewal back: %+v", r)
	}
	// Start is remembered for the life of the attempt.
	repeats(t, "task.start", started, w.operateAs(start, "task.start", a.ref()))
	if n := len(p.attempt(a.Task.ID).Receipts); n != 17 {
		t.Errorf("%d receipts are shown", n)
	}
}

// request is one that changes something, and may be keyed.
type request struct {
	name, method, path string
	body               any
	status             int
}

// keyed is the header of an Idempotency-Key.
func keyed(name string) string { return "Idempotency-Key: " + strings.ReplaceAll(name, " ", "-") }

// equal says whether two answers mean the same.
func (a answer) equal(b answer) bool {
	return a.status == b.status && string(a.body) == string(b.body)
}

func TestARequestRepeatedUnderItsIdempotencyKeyGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	h := own(t, nil)
	p := h.place(t, object{"retention_ms": 3_600_000})
	w := p.worker(nil)
	_, review := w.inReview(object{"concurrency_key": "k"})
	_, held := w.inReview(object{"concurrency_key": "held"})
	done := p.submit(nil)
	w.finish(succeeded(w.run(done.ID)))
	drained := p.worker(object{"capabilities": []object{capability("other", "1", "1")}})
	sound := work(object{"delay_ms": 60_000})
	requests := []request{
		{"submit", "POST", p.tasks(), sound, 201},
		{"batch", "POST", p.tasks() + ":batch", object{"tasks": []object{sound, work(object{"handler": ""}), sound}}, 200},
		{"cancel", "POST", "/tasks/" + p.submit(object{"delay_ms": 60_000}).ID + ":cancel", object{}, 200},
		{"retry", "POST", "/tasks/" + done.ID + ":retry", object{}, 201},
		{"review", "POST", "/tasks/" + review.ID + ":review", object{"decision": "SUCCEEDED", "note": "n"}, 200},
		{"bulk", "POST", "/tasks:bulk", object{"action": "cancel", "ids": []string{p.submit(object{"delay_ms": 60_000}).ID}}, 200},
		{"put queue", "PUT", "/queues/made", object{"max_active": 3}, 201},
		{"pause", "POST", "/queues/made:pause", object{}, 200},
		{"resume", "POST", "/queues/made:resume", object{}, 200},
		{"delete queue", "DELETE", "/queues/made", nil, 200},
		{"drain", "POST", "/workers/" + drained.id() + ":drain", object{}, 200},
		{"free", "POST", keyPath("held") + ":free", object{"note": "n"}, 200},
	}
	first := map[string]answer{}
	for round, when := range []string{"at first", "at once", "after the thing has changed", "after a restart"} {
		switch round {
		case 2:
			p.act(held.ID, "review", object{"decision": "CANCELLED", "note": "n"}).ok(0)
			p.call("PUT", "/queues/made", object{}).ok(0)
			var list struct{ Tasks []task }
			p.call("GET", "/tasks?state=WAITING", nil).ok(0).into(&list)
			for _, each := range list.Tasks {
				p.cancel(each.ID)
			}
		case 3:
			h.restart(t)
		}
		for _, r := range requests {
			a := p.call(r.method, r.path, r.body, keyed(r.name)).ok(r.status)
			replayed := a.header.Get("Idempotency-Replayed")
			if round == 0 {
				first[r.name] = a
			}
			if (round > 0) != (replayed == "true") {
				t.Errorf("%s, %s: Idempotency-Replayed is %q", r.name, when, replayed)
			}
			if !a.equal(first[r.name]) {
				t.Errorf("%s, %s: %s\nat first: %s", r.name, when, a.body, first[r.name].body)
			}
		}
	}
	for _, r := range requests {
		other := p.call("PUT", "/queues/again", object{}, keyed(r.name))
		if r.name == "batch" || r.name == "bulk" {
			continue // keyed by the place of each item
		}
		other.refused("operation_conflict")
	}
}

func TestOtherContentUnderAnIdempotencyKeyIsAnOperationConflict(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	text := func(payload, more string) string {
		return `{"handler":"work","handler_version":"1","payload_version":"1","payload":` + payload + more + `}`
	}
	for name, c := range map[string]struct {
		first, second string
		equal         bool
	}{
		"members in another order": {text("1", `,"priority":2,"delay_ms":5`), text("1", `,"delay_ms":5,"priority":2`), true},
		"the default priority":     {text("1", ""), text("1", `,"priority":0`), true},
		"the default safety":       {text("1", ""), text("1", `,"recovery_safety":"IDEMPOTENT"`), true},
		"no delay":                 {text("1", ""), text("1", `,"delay_ms":0`), true},
		"an empty retry":           {text("1", ""), text("1", `,"retry":{}`), true},
		"an escaped name":          {text("1", `,"priority":2`), text("1", `,"\u0070riority":2`), true},
		"blanks around":            {text("1", ""), " " + text("1", "") + "\n", true},
		"payload byte for byte":    {text(`{"a":1}`, ""), text(`{"a": 1}`, ""), false},
		"a number's text":          {text("1.0", ""), text("1.00", ""), false},
		"another delay":            {text("1", `,"delay_ms":5`), text("1", `,"delay_ms":6`), false},
		"a priority":               {text("1", ""), text("1", `,"priority":1`), false},
		"the queue's retry, said":  {text("1", ""), text("1", `,"retry":{"max_attempts":3}`), false},
		"a deadline":               {text("1", ""), text("1", `,"deadline_at":"`+at+`"`), false},
		"a business key":           {text("1", ""), text("1", `,"business_key":"other"`), false},
	} {
		key := keyed(name)
		first := p.call("POST", p.tasks(), c.first, key).ok(http.StatusCreated)
		second := p.call("POST", p.tasks(), c.second, key)
		if !c.equal {
			if second.status != http.StatusConflict {
				t.Errorf("%s: %d %s", name, second.status, second.body)
			} else {
				second.refused("operation_conflict")
			}
		} else if !second.equal(first) {
			t.Errorf("%s: %d %s", name, second.status, second.body)
		}
		// A business key compares the same contents.
		tag := `{"business_key":"` + strings.ReplaceAll(name, " ", "-") + `",`
		if name == "a business key" {
			continue
		}
		one := p.call("POST", p.tasks(), tag+strings.TrimPrefix(c.first, "{")).ok(http.StatusCreated).task()
		two := p.call("POST", p.tasks(), tag+strings.TrimPrefix(strings.TrimSpace(c.second), "{"))
		if c.equal {
			if got := two.ok(http.StatusOK).task(); got.ID != one.ID || !got.Duplicate {
				t.Errorf("%s: %+v", name, got)
			}
		} else if problem := two.refused("conflict"); problem.ExistingTaskID != one.ID {
			t.Errorf("%s: %+v", name, problem)
		}
	}
}

func TestAnIdempotencyKeyBelongsToItsNamespaceAndToAcceptedRequests(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	const key = "Idempotency-Key: one"
	p.call("POST", "/queues/later/tasks", work(nil), key).refused("not_found")
	p.call("POST", p.tasks(), work(object{"handler": "no good"}), key).refused("invalid_argument")
	first := p.call("POST", p.tasks(), work(nil), key).ok(http.StatusCreated)
	if first.header.Get("Idempotency-Replayed") != "" {
		t.Error("a refused request left an answer")
	}
	elsewhere := p.elsewhere(nil)
	if other := elsewhere.call("POST", elsewhere.tasks(), work(object{"payload": 2}), key).ok(http.StatusCreated); other.header.Get("Idempotency-Replayed") != "" {
		t.Error("the key reaches into another namespace")
	}
	for _, bad := range []string{"Idempotency-Key: ", "Idempotency-Key: " + strings.Repeat("k", 256), "Idempotency-Key: a b"} {
		p.call("POST", p.tasks(), work(nil), bad).refused("invalid_argument")
	}
}

// What is asked about a namespace is remembered in the default one, which stays.
func TestANamespaceIsPutAndDeletedOnceUnderAKey(t *testing.T) {
	t.Parallel()
	h := own(t, nil)
	p := h.lobby(t)
	ask := func(method, ns, key string) answer {
		t.Helper()
		a, err := p.try(method, "/v1/namespaces/"+ns, nil, keyed(key))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	put := ask("PUT", "made", "put").ok(http.StatusOK)
	gone := ask("DELETE", "made", "delete").ok(http.StatusOK)
	for range 2 {
		for _, again := range []struct {
			answer
			first answer
		}{
			{ask("PUT", "made", "put"), put},
			{ask("DELETE", "made", "delete"), gone},
		} {
			if !again.equal(again.first) || again.header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%d %s, at first %s", again.status, again.body, again.first.body)
			}
		}
		ask("GET", "made", "read").refused("not_found") // the repeats did nothing
		ask("PUT", "other", "put").refused("operation_conflict")
		ask("PUT", "made", "delete").refused("operation_conflict")
		h.restart(t)
	}
}

func TestABusinessKeyIsUniqueAmongTheRetainedTasksOfItsNamespace(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"retention_ms": beat.Milliseconds()})
	w := p.worker(nil)
	sent := work(object{"business_key": "order/1", "payload": object{"n": 1}})
	first := p.call("POST", p.tasks(), sent).ok(http.StatusCreated).task()
	if first.Duplicate {
		t.Error("the first is no duplicate")
	}
	again := func() task { t.Helper(); return p.call("POST", p.tasks(), sent).ok(http.StatusOK).task() }
	if got := again(); got.ID != first.ID || !got.Duplicate {
		t.Errorf("a repeat: %+v", got)
	}
	conflict := func(q *place, members object) {
		t.Helper()
		if p := q.call("POST", q.tasks(), merged(sent, members)).refused("conflict"); p.ExistingTaskID != first.ID {
			t.Errorf("the conflict names %s, not %s", p.ExistingTaskID, first.ID)
		}
	}
	conflict(p, object{"payload": object{"n": 2}})
	conflict(p.beside("other", nil), nil)
	elsewhere := p.elsewhere(nil)
	elsewhere.call("POST", elsewhere.tasks(), merged(sent, object{"payload": 3})).ok(http.StatusCreated)

	w.finish(succeeded(w.run(first.ID)))
	if got := again(); got.ID != first.ID || got.State != "SUCCEEDED" { // it is over and still kept
		t.Errorf("a repeat after the end: %+v", got)
	}
	p.until("the end of the retention", func() (bool, any) {
		a := p.call("POST", p.tasks(), merged(sent, object{"delay_ms": 60_000}))
		if a.status == http.StatusCreated {
			return a.task().ID != first.ID, a.status
		}
		a.refused("conflict")
		return false, a.status
	})
}

func TestABatchKeysEachOfItsTasks(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	type outcome struct {
		task
		Error *problem
	}
	send := func(bodies []object, headers ...string) []outcome {
		t.Helper()
		a := p.call("POST", p.tasks()+":batch", object{"tasks": bodies}, headers...).ok(http.StatusOK)
		var list struct{ Results []json.RawMessage }
		a.into(&list)
		out := make([]outcome, len(list.Results))
		for i, text := range list.Results {
			err := json.Unmarshal(text, &out[i])
			var refusal struct{ Error *problem }
			if err = errors.Join(err, json.Unmarshal(text, &refusal)); err != nil {
				t.Fatal(err)
			}
			if out[i].Error = refusal.Error; refusal.Error != nil {
				a.sound(*refusal.Error)
			}
		}
		if len(out) != len(bodies) {
			t.Fatalf("%d results for %d tasks", len(out), len(bodies))
		}
		return out
	}
	bodies := []object{work(object{"payload": 1}), work(object{"handler": ""}), work(object{"payload": 3, "business_key": "b"}), work(object{"business_key": "b"})}
	first := send(bodies, "Idempotency-Key: batch")
	if first[0].Error != nil || first[1].Error == nil || first[1].Error.Code != "invalid_argument" || first[2].Error != nil ||
		first[3].Error == nil || first[3].Error.Code != "conflict" || first[3].Error.ExistingTaskID != first[2].ID {
		t.Fatalf("results %+v", first)
	}
	if first[0].ID >= first[2].ID {
		t.Error("ids do not rise in the order of the batch")
	}
	// A repeat whose refused item has been made good repeats the others.
	bodies[1] = work(object{"payload": 2})
	second := send(bodies, "Idempotency-Key: batch")
	if second[0].ID != first[0].ID || second[2].ID != first[2].ID || second[1].Error != nil {
		t.Errorf("results %+v", second)
	}
}
