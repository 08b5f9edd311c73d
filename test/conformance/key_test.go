package conformance

import (
	"net/http"
	"strings"
	"testing"
)

// Section 5: concurrency keys.

func TestAKeyIsHeldFromTheLeaseToTheEndOfTheAttempt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	token := "0"
	for name, end := range map[string]func(attempt){
		"success":         func(a attempt) { w.start(a); w.finish(succeeded(a)) },
		"failure":         func(a attempt) { w.start(a); w.finish(failed(a)) },
		"retry":           func(a attempt) { w.start(a); w.finish(retryable(a)) },
		"refusal":         func(a attempt) { w.finish(failed(a)) },
		"unknown":         func(a attempt) { w.start(a); w.finish(unknown(a)) },
		"cancelled offer": func(a attempt) { p.cancel(a.Task.ID) },
		"cancelled":       func(a attempt) { w.start(a); p.cancel(a.Task.ID); w.finish(cancelled(a)) },
	} {
		// A second attempt, if there is one, waits for a minute.
		task := p.submit(object{"concurrency_key": "k", "retry": object{"initial_delay_ms": 60_000}})
		a := w.take(task.ID)
		held := p.key("k")
		if held.HolderTaskID != task.ID || held.Token != a.ConcurrencyToken || held.InReview {
			t.Errorf("%s: key %+v, assignment %+v", name, held, a)
		}
		// The token of a key only grows.
		if !less(token, held.Token) {
			t.Errorf("%s: token %s follows %s", name, held.Token, token)
		}
		token = held.Token
		end(a)
		if k := p.key("k"); k.HolderTaskID != "" || k.Waiters != "0" {
			t.Errorf("after %s: %+v", name, k)
		}
	}
}

func TestAnOfferThatRunsOutFreesItsKey(t *testing.T) {
	t.Parallel()
	p := newPlace(t, quick(nil))
	w := p.worker(nil)
	task := p.submit(object{"concurrency_key": "k"})
	first := w.take(task.ID)
	p.reaches(task.ID, "WAITING")
	if k := p.key("k"); k.HolderTaskID != "" {
		t.Errorf("key %+v", k)
	}
	w.capacity(1, 4, false)
	if second := w.take(task.ID); !less(first.ConcurrencyToken, second.ConcurrencyToken) {
		t.Errorf("token %s follows %s", second.ConcurrencyToken, first.ConcurrencyToken)
	}
}

func TestATaskWaitsForItsKeyAndIsToldWhoHoldsIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	first := p.submit(object{"concurrency_key": "k"})
	a := w.run(first.ID)
	second := p.submit(object{"concurrency_key": "k"})
	other := p.beside("other", nil)
	third := other.submit(object{"concurrency_key": "k"}) // a key is the namespace's, not the queue's
	for _, id := range []string{second.ID, third.ID} {
		if got := p.waits(id, "key_held"); got.Waiting.HolderTaskID != first.ID {
			t.Errorf("waiting for %+v", got.Waiting)
		}
	}
	if k := p.key("k"); k.Waiters != "2" {
		t.Errorf("key %+v", k)
	}
	// What waits for a key holds up nobody behind it.
	free := w.run(p.submit(object{"concurrency_key": "free"}).ID)
	w.finish(succeeded(a))
	b := w.run(second.ID)
	if !less(a.ConcurrencyToken, b.ConcurrencyToken) {
		t.Errorf("token %s follows %s", b.ConcurrencyToken, a.ConcurrencyToken)
	}
	w.finish(succeeded(b))
	w.finish(succeeded(free))
}

func TestAKeyIsByteExactInsideItsNamespace(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(object{"capacity": 16})
	keys := []string{"k", "K", "k/1", "\u00e9", "e\u0301", "a b", "%6B", strings.Repeat("\U0001F511", 191)}
	for _, key := range keys {
		a := w.run(p.submit(object{"concurrency_key": key}).ID)
		if a.Task.ConcurrencyKey != key {
			t.Errorf("%q became %q", key, a.Task.ConcurrencyKey)
		}
		if k := p.key(key); k.HolderTaskID != a.Task.ID || k.Key != key {
			t.Errorf("%q: %+v", key, k)
		}
	}
	elsewhere := p.elsewhere(nil)
	elsewhere.worker(nil).run(elsewhere.submit(object{"concurrency_key": "k"}).ID)
}

func TestAKeyHasOneTo191CharactersWithoutBlanksAtItsEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for _, key := range []string{
		"", strings.Repeat("k", 192), " k", "k ", "\u00a0k", "k\u3000", "a\x00b", "a\tb", "a\u007fb", "a\u0085b", "\n",
	} {
		p.call("POST", p.tasks(), work(object{"concurrency_key": key})).violates("/concurrency_key")
	}
	p.call("POST", p.tasks(), `{"handler":"work","handler_version":"1","payload_version":"1","payload":{},"concurrency_key":"\ud800"}`).refused("invalid_argument")
	p.call("GET", "/keys/%20k", nil).refused("invalid_argument")
	p.call("GET", "/keys/%ff", nil).refused("invalid_argument")
}

func TestATokenIsHandedOutWithAKeyAndOnlyThen(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	if a := w.take(p.submit(nil).ID); a.ConcurrencyToken != "" {
		t.Errorf("a token without a key: %+v", a)
	}
	a := w.take(p.submit(object{"concurrency_key": "k"}).ID)
	// The entry that leased it granted the key.
	if a.ConcurrencyToken == "" || a.ConcurrencyToken != a.Epoch {
		t.Errorf("token %q, epoch %q", a.ConcurrencyToken, a.Epoch)
	}
}

func TestATaskInReviewKeepsItsKeyUntilTheReview(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	for _, decision := range []string{"SUCCEEDED", "FAILED", "CANCELLED", "RETRY"} {
		a, task := w.inReview(object{"concurrency_key": "k"})
		if k := p.key("k"); k.HolderTaskID != task.ID || !k.InReview || k.Token != a.ConcurrencyToken {
			t.Errorf("%s: key %+v", decision, k)
		}
		next := p.submit(object{"concurrency_key": "k"})
		if got := p.waits(next.ID, "key_held"); got.Waiting.HolderTaskID != task.ID {
			t.Errorf("%s: waiting for %+v", decision, got.Waiting)
		}
		if decision == "RETRY" { // goes back to WAITING, and the other was there first
			w.capacity(1, 0, false)
		}
		body := object{"decision": decision, "note": "n"}
		if decision == "FAILED" {
			body["error_code"] = "e"
		}
		p.act(task.ID, "review", body).ok(http.StatusOK)
		if decision == "RETRY" {
			if k := p.key("k"); k.HolderTaskID != "" || k.Waiters != "2" {
				t.Errorf("%s: key %+v", decision, k)
			}
			w.capacity(2, 4, false)
		}
		w.finish(succeeded(w.run(next.ID)))
		if decision == "RETRY" { // available since its review, so behind the other
			w.finish(succeeded(w.run(task.ID)))
		}
	}
}

func TestATaskEntersReviewWithItsKeyByADefiniteFailureToo(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"retry": again, "concurrency_key": "k"})
	w.finish(unknown(w.run(task.ID)))
	second := w.run(task.ID)
	w.finish(failed(second))
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "", 2, true)
	if k := p.key("k"); k.HolderTaskID != task.ID || !k.InReview || k.Token != second.ConcurrencyToken {
		t.Errorf("key %+v", k)
	}
}

func TestAnOperatorFreesAKeyWithANote(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	_, task := w.inReview(object{"concurrency_key": "a/b"})
	free := keyPath("a/b") + ":free"
	for _, body := range []any{object{}, object{"note": ""}, object{"note": " "}, nil} {
		p.call("POST", free, body).refused("invalid_argument")
	}
	next := p.submit(object{"concurrency_key": "a/b"})
	p.waits(next.ID, "key_held")
	p.call("POST", free, object{"note": "the account is closed"}).ok(http.StatusOK)
	w.finish(succeeded(w.run(next.ID)))
	recorded := p.facts(task.ID, "key_freed")
	if len(recorded) != 1 || recorded[0]["note"] != "the account is closed" || recorded[0]["key"] != "a/b" || recorded[0]["by"] == nil {
		t.Errorf("recorded: %v", recorded)
	}
	checkTask(t, p.task(task.ID), "NEEDS_REVIEW", "5", 1, true)
	// It has lost the key, so its review frees nothing of another's.
	holder := w.run(p.submit(object{"concurrency_key": "a/b"}).ID)
	p.act(task.ID, "review", object{"decision": "SUCCEEDED", "note": "n"}).ok(http.StatusOK)
	if k := p.key("a/b"); k.HolderTaskID != holder.Task.ID {
		t.Errorf("key %+v", k)
	}
}

func TestAKeyThatNobodyHoldsOrWaitsForHasNoHolder(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	if k := p.key("nobody"); k.Key != "nobody" || k.HolderTaskID != "" || k.Waiters != "0" {
		t.Errorf("key %+v", k)
	}
	var k keyView
	p.call("POST", keyPath("nobody")+":free", object{"note": "n"}).ok(http.StatusOK).into(&k)
	if k.Key != "nobody" || k.HolderTaskID != "" {
		t.Errorf("key %+v", k)
	}
}
