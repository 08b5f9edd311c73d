package conformance

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Section 7: sessions.

func TestHelloHasToBeTheFirstFrame(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	var a attempt
	a.Task.ID, a.AttemptID, a.Epoch, a.LeaseSecret = newID(), newID(), "1", newSecret()
	frames := attemptFrames(a)
	frames["worker.capacity"] = capacityBody(1, 1, false)
	for kind, body := range frames {
		l := p.dial()
		f := l.envelope(newID(), kind, body)
		f["session_id"] = newID()
		l.answer(f["message_id"].(string), l.send(f)).refusal(t, "session_required")
		l.closes("", 1008)
	}
}

func TestWithoutAHelloWithinTenSecondsTheConnectionIsClosed(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	silent, wrong := p.dial(), p.dial()
	began := time.Now()
	wrong.refused("not_found", "worker.hello", someHello()) // buys no time
	for _, l := range []*link{silent, wrong} {
		l.closes("session_required", 1008)
		if took := time.Since(began); took < 9*time.Second {
			t.Errorf("closed after %s", took)
		}
	}
}

func TestAHelloForAnUnknownQueueIsNotFoundAndMayBeRepeated(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	gone := p.beside("gone", nil)
	p.call("DELETE", "/queues/gone", nil).ok(http.StatusOK)
	l := p.dial()
	l.refused("not_found", "worker.hello", someHello())
	l.refused("not_found", "worker.hello", gone.newHello(nil))
	l.acked(newID(), "worker.hello", p.newHello(nil))
}

func TestASecondHelloIsAConflict(t *testing.T) {
	t.Parallel()
	w := newPlace(t, nil).worker(nil)
	w.refused("conflict", "worker.hello", w.hello)
	w.capacity(1, 4, false)
}

func TestAWelcomeTellsTheSession(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 7000, "offer_duration_ms": 7000})
	w := p.worker(nil)
	if w.LeaseDuration != 7000 || w.Draining || w.Epoch == "0" {
		t.Errorf("welcome %+v", w.welcome)
	}
	// A session outlives the last word of its gateway by 60 s.
	if left := w.ExpiresAt.Sub(w.ServerTime); left < 60*time.Second || left > 70*time.Second {
		t.Errorf("the session would end in %s", left)
	}
	if v := p.workerView(w.id()); v.SessionID != w.SessionID || v.State != "connected" || v.Capacity != 4 {
		t.Errorf("worker %+v", v)
	}
}

func TestANewRegistrationOfAnInstanceReplacesItsSession(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	old, epoch := w.link, w.Epoch
	w.connect(nil)
	// Frames of the old connection change nothing, whenever they arrive.
	old.send(old.envelope(newID(), "task.start", a.ref()))
	old.closes("session_superseded", 1008)
	if !less(epoch, w.Epoch) {
		t.Errorf("epoch %s follows %s", w.Epoch, epoch)
	}
	checkTask(t, p.task(task.ID), "LEASED", "2", 1, false)
	w.start(a)
}

func TestAnInstanceWithAnotherSecretIsForbidden(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	l := p.dial()
	l.refused("forbidden", "worker.hello", merged(w.hello, object{"instance_secret": newSecret()}))
	w.alive()
	if v := p.workerView(w.id()); v.SessionID != w.SessionID {
		t.Errorf("worker %+v", v)
	}
	l.acked(newID(), "worker.hello", w.hello) // with the right one it may
}

func TestAReconnectHasToRepeatQueueCapabilitiesAndFlags(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	a, b := capability("a", "1", "1"), capability("b", "1", "1")
	w := p.worker(object{"capabilities": []object{a, b}, "cancellation_notifications": false, "concurrency_keys": true})
	other := p.beside("other", nil)
	l := p.dial()
	for name, members := range map[string]object{
		"another queue":      {"queue_id": other.queueID},
		"one more":           {"capabilities": []object{a, b, capability("c", "1", "1")}},
		"one less":           {"capabilities": []object{a}},
		"another version":    {"capabilities": []object{a, capability("b", "2", "1")}},
		"wants cancels":      {"cancellation_notifications": true},
		"cannot use keys":    {"concurrency_keys": false},
		"says nothing of it": {"concurrency_keys": nil},
	} {
		t.Log(name)
		l.refused("identity_conflict", "worker.hello", merged(w.hello, members))
	}
	w.alive()
	// As a set, and absent is false.
	w.connect(object{"capabilities": []object{b, a}, "cancellation_notifications": nil})
	w.alive()
}

func TestAnInstanceIsRegisteredAtMostOnceInAnEntry(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	hello := p.newHello(nil)
	links := make([]*link, 8)
	for i := range links {
		links[i] = p.dial()
	}
	answers := make([]frame, len(links))
	var asking sync.WaitGroup
	for i, l := range links {
		asking.Go(func() { answers[i] = l.ask(newID(), "worker.hello", hello) })
	}
	asking.Wait()
	epochs, newest := map[string]bool{}, welcome{}
	for _, f := range answers {
		if f.Error != nil {
			f.refusal(t, "unavailable")
			continue
		}
		var w welcome
		f.into(t, &w)
		if epochs[w.Epoch] {
			t.Errorf("two sessions have epoch %s", w.Epoch)
		}
		epochs[w.Epoch] = true
		if newest.Epoch == "" || less(newest.Epoch, w.Epoch) {
			newest = w
		}
	}
	for _, l := range links {
		if l.session == newest.SessionID {
			l.alive()
		} else if l.session != "" {
			l.closes("session_superseded", 1008)
		}
	}
}

func TestDrainCarriesOverAndIsFinal(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.run(p.submit(nil).ID)
	if v := w.capacity(1, 4, true); !v.Draining {
		t.Errorf("%+v", v)
	}
	w.refused("drain_is_final", "worker.capacity", capacityBody(2, 4, false))
	w.connect(nil)
	if !w.Draining {
		t.Error("the new session does not drain")
	}
	w.refused("drain_is_final", "worker.capacity", capacityBody(2, 4, false))
	waiting := p.submit(nil)
	p.waits(waiting.ID, "no_capable_worker")
	w.finish(succeeded(a)) // what it has it may end
	if v := p.workerView(w.id()); !v.Draining || v.State != "draining" {
		t.Errorf("worker %+v", v)
	}
}

func TestADrainByAnOperatorShowsInTheNextCapacityAnswerAndWelcome(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	p.call("POST", "/workers/"+w.id()+":drain", nil).ok(http.StatusOK)
	if v := w.capacity(1, 4, false); !v.Draining {
		t.Errorf("%+v", v)
	}
	w.connect(nil)
	if !w.Draining {
		t.Error("the new session does not drain")
	}
	p.waits(p.submit(nil).ID, "no_capable_worker")
}

func TestACapacityReplacesTheOneBefore(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(object{"capacity": 1})
	first, second, third := p.submit(nil), p.submit(nil), p.submit(nil)
	a := w.take(first.ID)
	p.waits(second.ID, "workers_busy")
	v := w.capacity(1, 2, false)
	if v.SessionID != w.SessionID || v.Epoch != w.Epoch || v.Draining || v.LeaseDuration != w.LeaseDuration || v.ServerTime.Before(w.ServerTime) {
		t.Errorf("%+v after welcome %+v", v, w.welcome)
	}
	w.take(second.ID)
	p.waits(third.ID, "workers_busy")
	w.capacity(7, 0, false) // takes no new work for now
	w.finish(failed(a))
	p.waits(third.ID, "workers_busy")
	if v := p.workerView(w.id()); v.Capacity != 0 || v.Active != 1 {
		t.Errorf("worker %+v", v)
	}
	w.capacity(8, 256, false)
	w.take(third.ID)
}

func TestTheSequenceOfCapacitiesBelongsToTheInstance(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	w.capacity(5, 3, false)
	for range 2 { // on this connection, and on the next
		w.capacity(5, 3, false) // equal content is acknowledged again
		w.refused("operation_conflict", "worker.capacity", capacityBody(5, 4, false))
		w.refused("operation_conflict", "worker.capacity", capacityBody(5, 3, true))
		w.refused("stale_sequence", "worker.capacity", capacityBody(4, 3, false))
		if v := p.workerView(w.id()); v.Capacity != 3 || v.Draining {
			t.Errorf("worker %+v", v)
		}
		w.connect(nil)
	}
	w.capacity(6, 4, false)
}

func TestACapacityThatWasSetWinsOverTheOneInTheNewHello(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(object{"capacity": 4})
	w.connect(object{"capacity": 9})
	if v := p.workerView(w.id()); v.Capacity != 9 {
		t.Errorf("without worker.capacity the hello counts: %+v", v)
	}
	w.capacity(1, 2, false)
	w.connect(object{"capacity": 9})
	if v := p.workerView(w.id()); v.Capacity != 2 {
		t.Errorf("worker %+v", v)
	}
}

func TestAnAttemptBelongsToTheInstance(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	started, offered := p.submit(nil), p.submit(nil)
	a := w.run(started.ID)
	b := w.take(offered.ID)
	w.drop()
	w.connect(nil)
	// The new session may act at once, and what has not started is delivered again.
	w.renew(a)
	w.await("the offer again", func() bool { return len(w.assigns) > 0 })
	if again := w.told(b.AttemptID); len(again) != 1 || again[0].Epoch != b.Epoch || again[0].LeaseSecret != b.LeaseSecret || again[0].messageID == b.messageID {
		t.Errorf("first %+v, again %+v", b, again)
	}
	if n := len(w.told(a.AttemptID)); n != 0 {
		t.Errorf("what runs was delivered %d times", n)
	}
	w.start(b)
	w.finish(succeeded(a))
	w.finish(succeeded(b))
}

func TestAnOldSessionIDIsSuperseded(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.run(p.submit(nil).ID)
	old := w.SessionID
	w.connect(nil)
	f := w.envelope(newID(), "task.finish", succeeded(a))
	f["session_id"] = old
	w.answer(f["message_id"].(string), w.send(f)).refusal(t, "session_superseded")
	w.closes("", 1008)
	w.connect(nil)
	w.finish(succeeded(a))
}

func TestACancelIsToldAgainOnTheNextConnection(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.run(task.ID)
	p.cancel(task.ID)
	w.cancelled(a)
	w.connect(nil)
	w.cancelled(a)
	w.finish(cancelled(a))
}

func TestAClosedConnectionStopsBeingEligibleAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for name, leave := range map[string]func(*worker){
		"cut": func(w *worker) { w.drop() },
		"closed": func(w *worker) {
			_ = w.sock.write(wire(fin|opClose, []byte{1000 >> 8, 1000 & 0xff}))
			w.closes("", 1000)
		},
	} {
		w := p.worker(nil)
		began := time.Now()
		leave(w)
		p.until("the loss", func() (bool, any) {
			v := p.workerView(w.id())
			return v.State == "disconnected", v.State
		})
		if took := time.Since(began); took > 25*time.Second { // who says nothing is given up after thirty
			t.Errorf("%s: reported after %s", name, took)
		}
		p.waits(p.submit(nil).ID, "no_capable_worker")
	}
}

func TestUnstartedAttemptsOfALostSessionAreReleasedAfterTwoSecondsAndRunningOnesKeepTheirLease(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	running, offered := p.submit(nil), p.submit(nil)
	a := w.run(running.ID)
	w.take(offered.ID)
	w.drop()
	p.reaches(offered.ID, "WAITING")
	lost := p.workerView(w.id())
	row := p.attempt(offered.ID)
	if row.State != "EXPIRED" || row.EndCause != "session_lost" || lost.State != "disconnected" {
		t.Errorf("attempt %+v, worker %+v", row, lost)
	}
	checkTask(t, p.task(offered.ID), "WAITING", "3", 0, false)
	checkTask(t, p.task(running.ID), "RUNNING", "3", 1, false)
	w.connect(nil)
	w.finish(succeeded(a))
	w.take(offered.ID)
}

func TestAnInstanceThatIsBackWithinTheGraceKeepsItsOffers(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	var kept task
	var a attempt
	p.until("a way back that is shorter than the grace", func() (bool, any) {
		kept = p.submit(nil)
		a = w.take(kept.ID)
		began := time.Now()
		w.drop()
		w.connect(nil)
		took := time.Since(began)
		return took < 1500*time.Millisecond, took
	})
	// Longer than the grace after the loss, it still has the offer.
	p.until("the end of what would have been the grace", func() (bool, any) {
		return time.Since(a.heard) > 2500*time.Millisecond, nil
	})
	checkTask(t, p.task(kept.ID), "LEASED", "2", 1, false)
	w.start(a)
}

func TestAGatewayPingsAndGivesUpWhoIsSilentForThirtySeconds(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	deaf := connect(t, p.house.addr)
	deaf.deaf = true
	mute := &worker{link: listen(t, deaf), place: p, hello: p.newHello(nil), taken: map[string]bool{}}
	began := time.Now()
	mute.acked(newID(), "worker.hello", mute.hello)
	lively := p.worker(nil) // answers pings and says nothing else
	var end error
	mute.within(2*patience, func() bool { end = mute.end; return end != nil })
	if took := time.Since(began); end == nil || took < 28*time.Second || took > patience {
		t.Fatalf("it ended with %v after %s, want 30 s", end, took)
	}
	p.until("the loss", func() (bool, any) {
		v := p.workerView(mute.id())
		return v.State == "disconnected", v.State
	})
	lively.alive()
	if v := p.workerView(lively.id()); v.State != "connected" {
		t.Errorf("worker %+v", v)
	}
}

func TestABadOrLateCommandIsAnsweredOnTheConnection(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.take(task.ID)
	wrong := a
	wrong.LeaseSecret = newSecret()
	w.refused("not_started", "task.finish", succeeded(a))
	w.refused("forbidden", "task.start", wrong.ref())
	w.start(a)
	w.refused("already_started", "task.start", a.ref())
	w.refused("cancel_not_requested", "task.finish", cancelled(a))
	w.finish(succeeded(a))
	w.refused("lease_lost", "task.renew", a.ref())
	w.refused("conflict", "worker.hello", w.hello)
	w.alive()
}

func TestFramesAreAnsweredWhileOthersAreUnderWay(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(object{"capacity": 64})
	var bodies []object
	for range 64 {
		bodies = append(bodies, work(nil))
	}
	var list struct{ Results []task }
	p.call("POST", p.tasks()+":batch", object{"tasks": bodies}).ok(0).into(&list)
	type sent struct {
		id string
		n  int
	}
	var all []sent
	for _, task := range list.Results {
		a := w.take(task.ID)
		for _, op := range operations(a) { // the order of frames about one attempt is kept
			id := newID()
			all = append(all, sent{id, w.send(w.envelope(id, op.kind, op.body))})
		}
	}
	for _, s := range all {
		if f := w.answer(s.id, s.n); f.Error != nil {
			t.Fatalf("refused: %s", f)
		}
	}
	for _, task := range list.Results {
		checkTask(t, p.task(task.ID), "SUCCEEDED", "4", 1, false)
	}
}

func TestAGatewayThatShutsDownClosesWith1001AfterItsAnswers(t *testing.T) {
	t.Parallel()
	h := own(t, nil)
	p := h.place(t, nil)
	w := p.worker(object{"capacity": 64})
	idle := p.worker(object{"capabilities": []object{capability("other", "1", "1")}})
	var attempts []attempt
	for range 32 {
		attempts = append(attempts, w.run(p.submit(nil).ID))
	}
	unknown := p.dial()
	ids := make([]string, len(attempts))
	for i, a := range attempts {
		ids[i] = newID()
		w.send(w.envelope(ids[i], "task.finish", succeeded(a)))
	}
	w.answer(ids[0], 0) // the others are on their way
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }()
	for _, l := range []*link{w.link, idle.link, unknown} {
		l.closes("", 1001)
	}
	if err := errors.Join(<-stopped, h.start()); err != nil {
		t.Fatal(err)
	}
	if err := h.ready(); err != nil {
		t.Fatal(err)
	}
	answered := 0
	for i, a := range attempts {
		got := p.task(a.Task.ID).State
		if len(w.asked[ids[i]].answers) == 0 {
			continue // it was not read any more
		}
		answered++
		f := w.asked[ids[i]].answers[0]
		if f.Error != nil {
			f.refusal(t, "unavailable")
		}
		if (f.Error == nil) != (got == "SUCCEEDED") {
			t.Errorf("finish %d was answered with %s, the task is %s", i, f, got)
		}
	}
	if answered == 0 {
		t.Error("nothing was answered")
	}
}

func TestOffersAndRunningAttemptsOutlastARestart(t *testing.T) {
	t.Parallel()
	h := own(t, nil)
	p := h.place(t, nil)
	w := p.worker(nil)
	offered, running := p.submit(nil), p.submit(object{"recovery_safety": "RECONCILE_ONLY"})
	a, b := w.take(offered.ID), w.run(running.ID)
	epoch := w.Epoch
	h.restart(t)
	w.connect(nil)
	if !less(epoch, w.Epoch) || !less(a.Epoch, w.Epoch) {
		t.Errorf("epoch %s follows %s and %s", w.Epoch, epoch, a.Epoch)
	}
	w.await("the offer again", func() bool { return len(w.assigns) > 0 })
	if again := w.told(a.AttemptID); len(again) == 0 || again[0].Epoch != a.Epoch || again[0].LeaseSecret != a.LeaseSecret {
		t.Errorf("first %+v, again %+v", a, again)
	}
	if l := w.resume(b); !l.Active || l.State != "RUNNING" {
		t.Errorf("%+v", l)
	}
	w.start(a)
	w.finish(succeeded(a))
	w.finish(succeeded(b))
	checkTask(t, p.task(running.ID), "SUCCEEDED", "4", 1, false)
	if fresh := p.submit(nil); !(fresh.ID > offered.ID && fresh.ID > running.ID) {
		t.Error("ids do not rise over a restart")
	}
}
