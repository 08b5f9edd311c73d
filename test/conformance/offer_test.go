package conformance

import (
	"net/http"
	"testing"
	"time"
)

// Section 3, what of assignment and delivery a worker or client can see.

func TestAnOfferIsRepeatedAfterAThirdAndTwoThirdsOfItsTime(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 12_000, "offer_duration_ms": 12_000})
	w := p.worker(nil)
	task := p.submit(nil)
	first := w.take(task.ID)
	p.reaches(task.ID, "WAITING") // the offer has ended, and with it the repeats
	told := w.told(first.AttemptID)
	if len(told) < 3 { // a fourth time if the end is noticed late
		t.Fatalf("told %d times, want 3", len(told))
	}
	for i, a := range told[1:3] {
		if a.AttemptID != first.AttemptID || a.Epoch != first.Epoch || a.LeaseSecret != first.LeaseSecret || !a.LeaseUntil.Equal(first.LeaseUntil) {
			t.Errorf("repeat %+v of %+v", a, first)
		}
		// The message ids differ: link.take sees to that.
		if after := a.heard.Sub(first.heard); after < time.Duration(i+1)*3*time.Second || after > time.Duration(i+2)*4*time.Second {
			t.Errorf("repeat %d came after %s", i+1, after)
		}
	}
}

func TestOffersAreRepeatedAtMostFiveSecondsApartUntilTheStart(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 60_000, "offer_duration_ms": 60_000})
	w := p.worker(nil)
	started, offered := w.run(p.submit(nil).ID), w.take(p.submit(nil).ID)
	w.await("a repeat", func() bool { return len(w.assigns) > 2 })
	told := w.told(offered.AttemptID)
	if len(told) != 2 {
		t.Fatalf("told %d times, want 2", len(told))
	}
	if after := told[1].heard.Sub(told[0].heard); after < 3*time.Second || after > 15*time.Second {
		t.Errorf("repeated after %s, want 5 s", after)
	}
	if n := len(w.told(started.AttemptID)); n != 1 {
		t.Errorf("what runs was told %d times", n)
	}
}

// Not a word is needed from the worker: idle, it has no reason to say one.
func TestASessionWhoseOffersLapsedRestsASecondAndIsTriedWithOne(t *testing.T) {
	t.Parallel()
	p := newPlace(t, quick(nil))
	w := p.worker(nil)
	first, second := p.submit(nil), p.submit(nil)
	w.take(first.ID)
	w.take(second.ID)
	p.waits(first.ID, "workers_busy")
	p.waits(second.ID, "workers_busy")
	lapsed := p.attempt(first.ID).EndedAt
	tried := w.take(first.ID)
	if again := p.attempt(first.ID).LeasedAt; again.Sub(lapsed) < time.Second {
		t.Errorf("offered again %s after it lapsed", again.Sub(lapsed))
	}
	p.waits(second.ID, "workers_busy") // although the worker has room for more
	w.start(tried)
	w.take(second.ID)
}

func TestAfterFiveUnstartedOffersTheTaskWaitsWithItsBackoff(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 1000, "offer_duration_ms": 1000})
	var workers []*worker
	for range 5 { // each is heard no more after its offer
		workers = append(workers, p.worker(nil))
	}
	task := p.submit(object{"retry": object{"initial_delay_ms": 60_000, "max_delay_ms": 60_000}})
	got := p.waits(task.ID, "retry_backoff")
	checkTask(t, got, "WAITING", "", 0, false)
	if all := p.attempts(task.ID); len(all) != 5 {
		t.Errorf("%d offers", len(all))
	}
	for _, w := range workers {
		if len(w.offers()) == 0 {
			t.Error("a worker was offered nothing")
		}
	}
}

func TestASessionIsOfferedExactlyWhatItCanRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(object{"capabilities": []object{capability("a", "1", "1"), capability("b", "2", "3")}, "concurrency_keys": false})
	for _, other := range []object{
		{"handler": "b", "handler_version": "1", "payload_version": "1"},
		{"handler": "a", "handler_version": "2", "payload_version": "3"},
		{"handler": "a", "handler_version": "1", "payload_version": "2"},
	} {
		p.waits(p.submit(other).ID, "no_capable_worker")
	}
	keyed := p.submit(object{"handler": "a", "concurrency_key": "k"})
	p.waits(keyed.ID, "no_capable_worker")
	// What nobody can run holds up nothing behind it.
	w.take(p.submit(object{"handler": "b", "handler_version": "2", "payload_version": "3"}).ID)
	w.take(p.submit(object{"handler": "a"}).ID)
	p.worker(object{"capabilities": []object{capability("a", "1", "1")}}).take(keyed.ID)
}

func TestTasksAreOfferedByPriorityThenTimeThenID(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(object{"capacity": 1})
	w.capacity(1, 0, false)
	early := soon(-time.Hour)
	low, first, second := p.submit(nil), p.submit(object{"priority": 5}), p.submit(object{"priority": 5})
	high := p.submit(object{"priority": 9})
	old := p.submit(object{"priority": 5, "available_at": early}) // the past counts as now
	w.capacity(2, 1, false)
	for _, want := range []task{high, first, second, old, low} {
		a := w.take(want.ID)
		if all := w.offers(); all[len(all)-1].Task.ID != want.ID {
			t.Errorf("the last offer is %s, want %s", all[len(all)-1].Task.ID, want.ID)
		}
		w.finish(failed(a))
	}
}

func TestAgeingLetsAnOldTaskPass(t *testing.T) {
	t.Parallel()
	for ageing, oldFirst := range map[int]bool{0: false, 100: true} {
		p := newPlace(t, object{"ageing_ms": ageing})
		w := p.worker(object{"capacity": 1})
		w.capacity(1, 0, false)
		old := p.submit(nil)
		p.until("the task to be old", func() (bool, any) { return time.Since(old.CreatedAt) > 600*time.Millisecond, nil })
		fresh := p.submit(object{"priority": 3})
		w.capacity(2, 1, false)
		want := fresh
		if oldFirst {
			want = old
		}
		w.take(want.ID)
		if first := w.offers()[0].Task.ID; first != want.ID {
			t.Errorf("with an ageing step of %d ms the first offer is %s", ageing, first)
		}
	}
}

func TestTheSessionWithTheLowestLoadIsNext(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	small, large := p.worker(object{"capacity": 2}), p.worker(object{"capacity": 8})
	for range 5 {
		task := p.submit(nil)
		p.reaches(task.ID, "LEASED")
	}
	if a, b := p.workerView(small.id()).Active, p.workerView(large.id()).Active; a != 1 || b != 4 {
		t.Errorf("%d of 2 and %d of 8 are used, want 1 and 4", a, b)
	}
}

func TestAPausedQueueGoesOnTakingTasks(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	p.call("POST", "/queues/work:pause", nil).ok(http.StatusOK)
	task := p.submit(nil)
	p.waits(task.ID, "queue_paused")
	p.call("POST", "/queues/work:resume", nil).ok(http.StatusOK)
	w.take(task.ID)
}

func TestAQueueCanCapItsActiveAttempts(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"max_active": 1})
	w := p.worker(nil)
	a := w.take(p.submit(nil).ID)
	second := p.submit(nil)
	p.waits(second.ID, "queue_limit")
	w.finish(failed(a))
	w.take(second.ID)
}
