package sdk

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"pulse/schema"
	"pulse/schema/workerv1"
)

func TestATaskIsStartedRunAndFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		var seen *Task
		w := g.work(func(_ context.Context, task *Task) (any, error) {
			seen = task
			return task.Payload(), nil
		})
		c, hello := g.accept()
		if hello.QueueID != g.queueID || hello.Capacity != 16 || !hello.CancellationNotifications || !hello.ConcurrencyKeys {
			t.Errorf("hello: %+v", hello)
		}
		<-w.Ready()
		offer := c.offer(func(a *workerv1.Assign) { a.Task.ConcurrencyKey, a.ConcurrencyToken = "account/1", 99 })
		start, body := expect[*workerv1.Start](c)
		want := workerv1.AttemptRef{TaskID: offer.Task.ID, AttemptID: offer.AttemptID, Epoch: offer.Epoch, LeaseSecret: offer.LeaseSecret}
		if body.Ref != want || start.SessionID != c.session {
			t.Errorf("start names another attempt or session: %+v", start)
		}
		synctest.Wait()
		if seen != nil {
			t.Error("the handler ran before the start was answered")
		}
		c.accepted(start, leaseFor(30*time.Second))
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeSucceeded || string(done.Result) != `{ "amount": 2.50 }` || done.Ref != want {
			t.Errorf("finish: %+v %s", done, done.Result)
		}
		if seen.FencingToken() != 99 || seen.AttemptCount != 1 || seen.ID != offer.Task.ID.String() {
			t.Errorf("the handler saw %+v", seen)
		}
		if limit := time.Until(seen.Deadline()); limit > 10*time.Minute || limit < 9*time.Minute {
			t.Errorf("deadline in %s, the attempt timeout is 10 minutes", limit)
		}
		c.finished(frame)
		if err := w.end(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if stats := w.Stats(); stats.Assigned != 1 || stats.Started != 1 || stats.Succeeded != 1 || stats.Running != 0 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestAPayloadStaysWhatItIsWhenLaterFramesAreRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(func(_ context.Context, task *Task) (any, error) {
			time.Sleep(time.Second) // until the other offer and both answers were read
			return task.Payload(), nil
		})
		c, _ := g.accept()
		sent := map[workerv1.ID]string{}
		for _, payload := range []string{`{"n":"first"}`, `{"n":"later"}`} {
			offer := c.offer(func(a *workerv1.Assign) { a.Task.Payload = []byte(payload) })
			sent[offer.AttemptID] = payload
		}
		for range sent {
			start, _ := expect[*workerv1.Start](c)
			c.accepted(start, leaseFor(30*time.Second))
		}
		for range sent {
			frame, done := expect[*workerv1.Finish](c)
			if want := sent[done.Ref.AttemptID]; string(done.Result) != want {
				t.Errorf("the handler saw %s, was sent %s", done.Result, want)
			}
			c.finished(frame)
		}
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestALeaseIsRenewedWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(func(ctx context.Context, _ *Task) (any, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(100 * time.Second):
				return nil, nil
			}
		})
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		last := time.Now()
		renewals := 0
		for {
			frame := c.next()
			if _, ok := frame.Body.(*workerv1.Renew); !ok {
				if done := frame.Body.(*workerv1.Finish); done.Outcome != workerv1.OutcomeSucceeded {
					t.Errorf("finish: %+v", done)
				}
				c.finished(frame)
				break
			}
			if waited := time.Since(last); waited < 10*time.Second || waited > 15*time.Second {
				t.Errorf("renewed after %s of a lease of 30s", waited)
			}
			renewals++
			last = time.Now()
			c.accepted(frame, leaseFor(30*time.Second))
		}
		if renewals < 6 || renewals > 10 {
			t.Errorf("%d renewals in 100 s", renewals)
		}
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
}

// whenEnded is a handler that notes when and why its context ended, and returns
// what it is told to.
type whenEnded struct {
	at     time.Time
	cause  error
	result any
	err    error
}

func (h *whenEnded) handle(ctx context.Context, _ *Task) (any, error) {
	<-ctx.Done()
	h.at, h.cause = time.Now(), context.Cause(ctx)
	return h.result, h.err
}

func TestTheContextEndsBeforeTheLeaseDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		h := &whenEnded{err: errors.New("stopped half way")}
		w := g.work(h.handle)
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		sent := time.Now()
		time.Sleep(time.Second) // on its way back the answer grows old
		lease := leaseFor(9 * time.Second)
		lease.ServerTime -= 1e6 // and the cluster looked at its clock before that
		c.accepted(start, lease)
		c.g.setDown(true) // no renewal can get through from here on
		c.cut()
		// The lease is over 10 s after the server looked at its clock, which was
		// at the earliest when the start was sent.
		for w.Stats().LeasesLost == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if took := h.at.Sub(sent); took > 10*time.Second-leaseMarginMax/2 || took < 8*time.Second || h.cause != ErrLeaseLost {
			t.Errorf("the context ended after %s with %v", took, h.cause)
		}
		// What the handler said is still reported, to whoever listens later.
		g.setDown(false)
		c, _ = g.accept()
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeFailed || !done.Retryable {
			t.Errorf("finish: %+v", done)
		}
		c.receipt(frame, leaseOver(), workerv1.EvidenceOnly)
		c.nothing(20 * time.Second) // once
		if stats := w.Stats(); stats.Evidence != 1 || stats.LeasesLost != 1 || stats.Failed != 0 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestTheContextEndsBeforeTheAttemptTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		h := &whenEnded{result: "as far as it got"}
		var deadline time.Time
		g.work(func(ctx context.Context, task *Task) (any, error) {
			deadline, _ = ctx.Deadline()
			return h.handle(ctx, task)
		})
		c, _ := g.accept()
		c.offer(func(a *workerv1.Assign) { a.Task.Retry.AttemptTimeoutMillis = 5000 })
		start, _ := expect[*workerv1.Start](c)
		sent := time.Now()
		c.accepted(start, leaseFor(30*time.Second)) // however long the lease
		frame, done := expect[*workerv1.Finish](c)
		if took := h.at.Sub(sent); took > 4500*time.Millisecond || h.cause != ErrLeaseLost || done.Outcome != workerv1.OutcomeSucceeded {
			t.Errorf("after %s, cause %v, finish: %+v", took, h.cause, done)
		}
		if !deadline.Equal(h.at) {
			t.Errorf("the context said it would end at %s, not %s", deadline, h.at)
		}
		c.finished(frame)
	})
}

func TestAnAnswerThatComesAfterTheLeaseRunsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		ran := false
		g.work(func(context.Context, *Task) (any, error) { ran = true; return nil, nil })
		c, _ := g.accept()
		c.offer(reconcileOnly)
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseOver())
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeFailed || done.ErrorCode != CodeNotRun || !done.Retryable || ran {
			t.Errorf("finish: %+v, ran: %t", done, ran)
		}
		c.receipt(frame, leaseOver(), workerv1.EvidenceOnly)
	})
}

func TestAfterAReconnectLiveAttemptsAreResumedAndGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		release := make(chan struct{})
		w := g.work(func(ctx context.Context, task *Task) (any, error) {
			select {
			case <-release:
				return task.Payload(), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		})
		c, first := g.accept()
		offer := c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		synctest.Wait()
		addr := w.Health().Addr
		c.cut()

		c, second := g.accept()
		synctest.Wait()
		if w.Health().Addr == addr {
			t.Error("it came back at the address that had failed")
		}
		if first.InstanceID != second.InstanceID || first.InstanceSecret != second.InstanceSecret {
			t.Error("a reconnect changed the identity")
		}
		resume, body := expect[*workerv1.Resume](c)
		if body.Ref.AttemptID != offer.AttemptID || resume.SessionID != c.session {
			t.Errorf("resume: %+v", resume)
		}
		lease := leaseFor(25 * time.Second)
		c.reply(resume, &workerv1.Ack{Lease: &lease})
		renew, _ := expect[*workerv1.Renew](c)
		c.accepted(renew, leaseFor(30*time.Second))
		close(release)
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeSucceeded {
			t.Errorf("finish: %+v", done)
		}
		c.finished(frame)
		if err := w.end(); err != nil {
			t.Error(err)
		}
		if stats := w.Stats(); stats.Started != 1 || stats.Sessions != 2 || stats.LeasesLost != 0 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestAResumedAttemptThatIsOverEndsItsContext(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*gatewayConn, workerv1.ClientFrame){
		"inactive":  func(c *gatewayConn, f workerv1.ClientFrame) { l := leaseOver(); c.reply(f, &workerv1.Ack{Lease: &l}) },
		"refused":   func(c *gatewayConn, f workerv1.ClientFrame) { c.refuse(f, schema.StaleEpoch) },
		"forgotten": func(c *gatewayConn, f workerv1.ClientFrame) { c.refuse(f, schema.NotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				h := &whenEnded{result: map[string]int{"charged": 1}}
				g.work(h.handle)
				c, _ := g.accept()
				c.offer(reconcileOnly)
				start, _ := expect[*workerv1.Start](c)
				c.accepted(start, leaseFor(30*time.Second))
				c.cut()
				c, _ = g.accept()
				resume, _ := expect[*workerv1.Resume](c)
				answer(c, resume)
				frame, done := expect[*workerv1.Finish](c)
				if h.cause != ErrLeaseLost || done.Outcome != workerv1.OutcomeSucceeded {
					t.Errorf("cause %v, finish: %+v", h.cause, done)
				}
				c.refuse(frame, schema.LeaseLost)
				c.nothing(time.Minute / 2) // a refusal is an answer
			})
		})
	}
}

func TestARefusedCapacityReportIsRepeatedWithABrake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		release := make(chan struct{})
		w := g.work(func(context.Context, *Task) (any, error) { <-release; return nil, nil })
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		w.stopIt()
		began := time.Now()
		reports := 0
		for time.Since(began) < 20*time.Second {
			frame := c.next()
			switch frame.Body.(type) {
			case *workerv1.Capacity:
				reports++
				c.refuse(frame, schema.Forbidden)
			case *workerv1.Renew:
				c.accepted(frame, leaseFor(30*time.Second))
			}
		}
		if reports < 2 || reports > 40 {
			t.Errorf("%d reports in 20 s", reports)
		}
		close(release)
		for {
			frame := c.next()
			if _, ok := frame.Body.(*workerv1.Finish); ok {
				c.finished(frame)
				return
			}
			c.refuse(frame, schema.Forbidden)
		}
	})
}

func TestAnUnansweredOperationIsRepeatedUnderItsMessageID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(echo)
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.cut() // the start may have got through

		c, _ = g.accept()
		again, _ := expect[*workerv1.Start](c)
		if again.MessageID != start.MessageID || again.SessionID != c.session {
			t.Errorf("start %+v repeated as %+v", start, again)
		}
		c.refuse(again, schema.ResultUnknown) // no answer either
		third, _ := expect[*workerv1.Start](c)
		if third.MessageID != start.MessageID {
			t.Error("a passing refusal changed the message id")
		}
		c.accepted(third, leaseFor(30*time.Second))

		frame, done := expect[*workerv1.Finish](c)
		c.cut()
		for range 3 { // however often
			c, _ = g.accept()
			next, body := expect[*workerv1.Finish](c)
			if next.MessageID != frame.MessageID || string(body.Result) != string(done.Result) {
				t.Errorf("finish %+v repeated as %+v", frame, next)
			}
			c.cut()
		}
		c, _ = g.accept()
		last, _ := expect[*workerv1.Finish](c)
		c.finished(last)
		c.nothing(20 * time.Second)
		if err := w.end(); err != nil {
			t.Error(err)
		}
		if stats := w.Stats(); stats.Started != 1 || stats.Succeeded != 1 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestAConnectionThatLeavesOperationsUnansweredIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		asked := time.Now()
		c.closedBy() // although it answers every ping
		if waited := time.Since(asked); waited > silenceMax+silenceMax/2 {
			t.Errorf("gave up after %s", waited)
		}
		c, _ = g.accept()
		again, _ := expect[*workerv1.Start](c)
		if again.MessageID != start.MessageID {
			t.Error("another message id")
		}
		c.refuse(again, schema.LeaseLost)
	})
}

func TestAnIdleWorkerFindsOutThatItsGatewayIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, _ := g.accept()
		connected := time.Now()
		frame, body := expect[*workerv1.Capacity](c)
		if waited := time.Since(connected); waited < 50*time.Second || body.Sequence != 1 || body.Capacity != 16 || body.Drain {
			t.Errorf("after %s: %+v", waited, body)
		}
		c.closedBy()
		c, _ = g.accept()
		again, _ := expect[*workerv1.Capacity](c)
		if again.MessageID != frame.MessageID {
			t.Error("the report was not the same")
		}
		c.reply(again, &workerv1.Ack{Welcome: c.welcome()})
		c.nothing(30 * time.Second)
	})
}

func TestADeadGatewayIsFoundOutInTimeToKeepTheLease(t *testing.T) {
	t.Parallel()
	for range 20 { // renewals and back-off are random
		synctest.Test(t, func(t *testing.T) {
			g := newGateway(t)
			w := g.work(func(ctx context.Context, _ *Task) (any, error) {
				select {
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				case <-time.After(50 * time.Second):
					return nil, nil
				}
			})
			c, _ := g.accept()
			c.offer()
			start, _ := expect[*workerv1.Start](c)
			c.accepted(start, leaseFor(30*time.Second))
			synctest.Wait()
			g.freeze()
			c, _ = g.accept()
			for finished := false; !finished; {
				frame := c.next()
				switch body := frame.Body.(type) {
				case *workerv1.Resume:
					lease := leaseFor(10 * time.Second)
					c.reply(frame, &workerv1.Ack{Lease: &lease})
				case *workerv1.Renew:
					c.accepted(frame, leaseFor(30*time.Second))
				case *workerv1.Finish:
					if body.Outcome != workerv1.OutcomeSucceeded {
						t.Errorf("finish: %+v %s", body, body.Result)
					}
					c.finished(frame)
					finished = true
				}
			}
			if stats := w.Stats(); stats.LeasesLost != 0 || stats.Sessions != 2 {
				t.Errorf("stats: %+v", stats)
			}
		})
	}
}

func TestAnIdleWorkerFindsOutThatItsGatewayIsDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		g.accept()
		g.freeze()
		began := time.Now()
		g.accept()
		if waited := time.Since(began); waited > 15*time.Second+reconnectFirst {
			t.Errorf("found out after %s", waited)
		}
	})
}

// Pings that thousands of workers send, each at a time of its own, are what an idle
// gateway would be busy with; its own go out together.
func TestAWorkerThatIsPingedDoesNotPing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, _ := g.accept()
		ctx := c.ws.CloseRead(t.Context())
		for range 4 { // a heartbeat comes after a minute
			time.Sleep(10 * time.Second)
			if err := c.ws.Ping(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if n := g.pings.Load(); n != 0 {
			t.Errorf("it pinged %d times all the same", n)
		}
		time.Sleep(pingAfter + time.Second)
		synctest.Wait()
		if n := g.pings.Load(); n != 1 {
			t.Errorf("silent for %s, and asked %d times", pingAfter, n)
		}
	})
}

func TestASecondAnswerChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(echo)
		c, _ := g.accept()
		for range 3 {
			c.offer()
			start, _ := expect[*workerv1.Start](c)
			c.accepted(start, leaseFor(30*time.Second))
			c.accepted(start, leaseFor(30*time.Second))
			c.refuse(start, schema.LeaseLost)
			frame, _ := expect[*workerv1.Finish](c)
			c.finished(frame)
			c.finished(frame)
		}
		c.nothing(time.Second)
		if stats := w.Stats(); stats.Succeeded != 3 || stats.Sessions != 1 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestAGatewayThatDoesNotWelcomeIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		began := time.Now()
		c, _, _ := g.greet() // and no answer
		c.closedBy()
		if waited := time.Since(began); waited != handshakeTimeout {
			t.Errorf("gave up after %s", waited)
		}
		g.accept()
	})
}

func TestARepeatedOfferIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(echo)
		c, _ := g.accept()
		offer := c.offer()
		repeat := func() { c.send(workerv1.ServerFrame{Body: offer}) }
		repeat()
		start, _ := expect[*workerv1.Start](c)
		repeat()
		c.accepted(start, leaseFor(30*time.Second))
		frame, _ := expect[*workerv1.Finish](c)
		repeat()
		c.finished(frame)
		c.nothing(time.Second)
		repeat() // long over
		c.nothing(20 * time.Second)
		if stats := w.Stats(); stats.Assigned != 1 || stats.Repeated != 4 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestACancellationEndsTheContext(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(*gatewayConn, *workerv1.Assign){
		"by a push": func(c *gatewayConn, a *workerv1.Assign) {
			c.send(workerv1.ServerFrame{Body: &workerv1.Cancel{TaskID: a.Task.ID, AttemptID: a.AttemptID, Epoch: a.Epoch, RequestedAt: serverNow()}})
		},
		"by the lease": func(c *gatewayConn, _ *workerv1.Assign) {
			renew, _ := expect[*workerv1.Renew](c)
			lease := leaseFor(30 * time.Second)
			lease.CancelRequestedAt = workerv1.Some(serverNow())
			c.accepted(renew, lease)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				h := &whenEnded{err: Cancelled()}
				g.work(h.handle)
				c, _ := g.accept()
				offer := c.offer(reconcileOnly)
				start, _ := expect[*workerv1.Start](c)
				c.accepted(start, leaseFor(30*time.Second))
				synctest.Wait() // the handler runs
				tell(c, offer)
				frame, done := expect[*workerv1.Finish](c)
				if h.cause != ErrCancelRequested || done.Outcome != workerv1.OutcomeCancelled || done.ErrorCode != CodeCancelled {
					t.Errorf("cause %v, finish: %+v", h.cause, done)
				}
				c.finished(frame)
			})
		})
	}
}

func TestTheLeaseIsKeptWhileACancelledHandlerCleansUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(func(ctx context.Context, _ *Task) (any, error) {
			<-ctx.Done()
			time.Sleep(40 * time.Second)
			return nil, Cancelled()
		})
		c, _ := g.accept()
		offer := c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		synctest.Wait() // the handler runs
		c.send(workerv1.ServerFrame{Body: &workerv1.Cancel{TaskID: offer.Task.ID, AttemptID: offer.AttemptID, Epoch: offer.Epoch, RequestedAt: serverNow()}})
		renewals := 0
		for {
			frame := c.next()
			if _, ok := frame.Body.(*workerv1.Renew); ok {
				renewals++
				c.accepted(frame, leaseFor(30*time.Second))
				continue
			}
			c.finished(frame)
			break
		}
		if renewals < 2 {
			t.Errorf("%d renewals in 40 s", renewals)
		}
	})
}

func TestACancellationNobodyAskedForIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(func(context.Context, *Task) (any, error) { return nil, Cancelled() })
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		first, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeCancelled {
			t.Errorf("finish: %+v", done)
		}
		c.refuse(first, schema.CancelNotRequested)
		second, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeFailed || done.Retryable || second.MessageID == first.MessageID {
			t.Errorf("finish: %+v", done)
		}
		c.finished(second)
	})
}

func TestAnOfferWithdrawnBeforeTheHandlerRanIsNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		ran := false
		g.work(func(context.Context, *Task) (any, error) { ran = true; return nil, nil })
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		lease := leaseFor(30 * time.Second)
		lease.CancelRequestedAt = workerv1.Some(serverNow())
		c.accepted(start, lease)
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeCancelled || ran {
			t.Errorf("ran: %t, finish: %+v", ran, done)
		}
		c.finished(frame)
	})
}

func TestATaskWithoutAHandlerIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, _ := g.accept()
		c.offer(func(a *workerv1.Assign) { a.Task.HandlerVersion = "2" })
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeFailed || !done.Retryable || done.ErrorCode != CodeNoHandler {
			t.Errorf("finish: %+v", done)
		}
		c.finished(frame)
	})
}

func TestNoMoreHandlersRunThanTheCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		release := make(chan struct{})
		w := g.work(func(context.Context, *Task) (any, error) { <-release; return nil, nil }, func(o *WorkerOptions) { o.Capacity = 1 })
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		c.offer() // more than was asked for
		c.nothing(9 * time.Second)
		synctest.Wait()
		if running := w.Stats().Running; running != 1 {
			t.Errorf("%d handlers run", running)
		}
		close(release)
		kinds := map[workerv1.Type]workerv1.ClientFrame{}
		for len(kinds) < 2 {
			frame := c.next()
			kinds[frame.Body.ClientType()] = frame
		}
		c.finished(kinds[workerv1.TypeFinish])
		c.refuse(kinds[workerv1.TypeStart], schema.LeaseLost)
	})
}

func TestAHandlerThatOutlivesItsLeaseKeepsItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		release := make(chan struct{})
		g.work(func(context.Context, *Task) (any, error) { <-release; return nil, nil })
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		renew, _ := expect[*workerv1.Renew](c)
		c.refuse(renew, schema.LeaseLost)
		frame, report := expect[*workerv1.Capacity](c)
		if report.Capacity != 15 || report.Sequence != 1 {
			t.Errorf("report: %+v", report)
		}
		c.reply(frame, &workerv1.Ack{Welcome: c.welcome()})
		close(release)
		kinds := map[workerv1.Type]workerv1.ClientFrame{}
		for len(kinds) < 2 {
			frame := c.next()
			kinds[frame.Body.ClientType()] = frame
		}
		if report := kinds[workerv1.TypeCapacity].Body.(*workerv1.Capacity); report.Capacity != 16 || report.Sequence != 2 {
			t.Errorf("report: %+v", report)
		}
		c.reply(kinds[workerv1.TypeCapacity], &workerv1.Ack{Welcome: c.welcome()})
		c.receipt(kinds[workerv1.TypeFinish], leaseOver(), workerv1.EvidenceOnly)
	})
}

func TestDrainLetsHandlersFinishAndTellsTheCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(func(ctx context.Context, _ *Task) (any, error) {
			select {
			case <-time.After(20 * time.Second):
				return "done", nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		})
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		synctest.Wait()
		w.stopIt()
		frame, report := expect[*workerv1.Capacity](c)
		if !report.Drain || report.Capacity != 16 {
			t.Errorf("report: %+v", report)
		}
		c.reply(frame, &workerv1.Ack{Welcome: c.welcome()})
		c.offer() // crossed the report: it is left to lapse
		for {
			frame := c.next()
			if _, ok := frame.Body.(*workerv1.Renew); ok {
				c.accepted(frame, leaseFor(30*time.Second))
				continue
			}
			if done, ok := frame.Body.(*workerv1.Finish); !ok || done.Outcome != workerv1.OutcomeSucceeded {
				t.Errorf("%s: %+v", frame.Body.ClientType(), frame.Body)
			}
			c.finished(frame)
			break
		}
		if err := w.end(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if code := c.closedBy(); code != websocket.StatusNormalClosure {
			t.Errorf("closed with %d", code)
		}
		if health := w.Health(); health.Connected || !health.Draining {
			t.Errorf("health: %+v", health)
		}
	})
}

func TestDrainEndsHandlersThatTakeTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		h := &whenEnded{err: errors.New("not finished")}
		w := g.work(h.handle, func(o *WorkerOptions) { o.DrainTimeout = 7 * time.Second })
		c, _ := g.accept()
		c.offer(reconcileOnly)
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		synctest.Wait()
		stopped := time.Now()
		w.stopIt()
		frame, _ := expect[*workerv1.Capacity](c)
		c.reply(frame, &workerv1.Ack{Welcome: c.welcome()})
		frame, done := expect[*workerv1.Finish](c)
		if h.at.Sub(stopped) != 7*time.Second || h.cause != ErrWorkerStopped || done.Outcome != workerv1.OutcomeUnknown {
			t.Errorf("after %s, cause %v, finish: %+v", h.at.Sub(stopped), h.cause, done)
		}
		c.finished(frame)
		if err := w.end(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestRunSaysWhenAHandlerWouldNotReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		release := make(chan struct{})
		defer close(release)
		w := g.work(func(context.Context, *Task) (any, error) { <-release; return nil, nil }, func(o *WorkerOptions) { o.DrainTimeout = -1 })
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		synctest.Wait()
		if err := w.end(); err == nil {
			t.Error("Run returned no error")
		}
	})
}

func TestReconnectsBackOffAndNeverEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.setDown(true)
		w := g.work(echo)
		time.Sleep(3 * time.Hour)
		if health := w.Health(); health.Connected || health.LastError == nil {
			t.Errorf("health: %+v", health)
		}
		g.setDown(false)
		began := time.Now()
		c, _ := g.accept()
		if waited := time.Since(began); waited > reconnectMax {
			t.Errorf("came back after %s", waited)
		}
		<-w.Ready()
		time.Sleep(time.Second)
		if health := w.Health(); !health.Connected || health.LastError != nil || health.SessionID != c.session.String() {
			t.Errorf("health: %+v", health)
		}
		// A stable minute makes the next reconnect a quick one.
		frame, _ := expect[*workerv1.Capacity](c)
		c.reply(frame, &workerv1.Ack{Welcome: c.welcome()})
		time.Sleep(stableAfter)
		_ = c.ws.Close(websocket.StatusGoingAway, "")
		began = time.Now()
		g.accept()
		if waited := time.Since(began); waited > reconnectFirst {
			t.Errorf("came back after %s", waited)
		}
	})
}

func TestARefusedHelloIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, frame, first := g.greet()
		g.queueID = newID() // the queue was deleted and made again
		c.refuse(frame, schema.NotFound)
		c, frame, hello := g.greet()
		if hello.QueueID != g.queueID || hello.InstanceID != first.InstanceID {
			t.Errorf("hello: %+v", hello)
		}
		c.refuse(frame, schema.IdentityConflict) // the instance is known on the old queue
		_, hello = g.accept()
		if hello.InstanceID == first.InstanceID || hello.InstanceSecret == first.InstanceSecret {
			t.Error("the identity that did not fit was kept")
		}
	})
}

func TestAnIdentityThatIsContestedIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		h := &whenEnded{err: errors.New("stopped")}
		w := g.work(h.handle)
		supersede := func(c *gatewayConn) {
			c.send(workerv1.ServerFrame{Body: &workerv1.Error{Code: schema.SessionSuperseded, Message: "another registration"}})
			c.closedBy()
		}
		c, first := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		synctest.Wait()
		supersede(c)
		for range contestedMax - 1 { // once or twice may be our own doing
			var hello *workerv1.Hello
			c, hello = g.accept()
			if hello.InstanceID != first.InstanceID {
				t.Fatal("gave up too early")
			}
			resume, _ := expect[*workerv1.Resume](c)
			lease := leaseFor(30 * time.Second)
			c.reply(resume, &workerv1.Ack{Lease: &lease})
			synctest.Wait()
			supersede(c)
		}
		c, hello := g.accept()
		if hello.InstanceID == first.InstanceID {
			t.Fatal("kept fighting for the identity")
		}
		resume, _ := expect[*workerv1.Resume](c)
		c.refuse(resume, schema.Forbidden) // not its attempt any more
		frame, _ := expect[*workerv1.Finish](c)
		c.receipt(frame, leaseOver(), workerv1.EvidenceOnly)
		synctest.Wait()
		if h.cause != ErrLeaseLost || w.Stats().Evidence != 1 {
			t.Errorf("cause %v, stats %+v", h.cause, w.Stats())
		}
	})
}

func TestAFatalErrorInAnAnswerEndsTheSessionNotTheOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.refuse(start, schema.SessionSuperseded) // about the session, not the start
		c.closedBy()
		c, _ = g.accept()
		again, _ := expect[*workerv1.Start](c)
		if again.MessageID != start.MessageID {
			t.Error("another message id")
		}
		c.refuse(again, schema.LeaseLost)
	})
}

func TestAFrameOfAnotherSessionEndsTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		w := g.work(echo)
		c, _ := g.accept()
		other := newID()
		real := c.session
		c.session = other
		c.offer()
		c.session = real
		c.closedBy()
		g.accept()
		if stats := w.Stats(); stats.Assigned != 0 {
			t.Errorf("stats: %+v", stats)
		}
	})
}

func TestAResultTheClusterRefusesBecomesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.work(echo)
		c, _ := g.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		frame, _ := expect[*workerv1.Finish](c)
		c.refuse(frame, schema.TooLarge) // a limit of the cluster's own
		frame, done := expect[*workerv1.Finish](c)
		if done.Outcome != workerv1.OutcomeUnknown || done.ErrorCode != CodeBadResult {
			t.Errorf("finish: %+v", done)
		}
		c.finished(frame)
	})
}

func TestRunRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	if err := NewWorker(WorkerOptions{}).Run(t.Context()); err == nil {
		t.Error("a worker without handlers ran")
	}
	for name, options := range map[string]WorkerOptions{
		"address":  {Addrs: []string{"localhost:7400"}},
		"capacity": {Capacity: 257},
	} {
		w := NewWorker(options)
		w.Handle("echo", "1", "1", echo)
		if err := w.Run(t.Context()); err == nil {
			t.Errorf("a worker with a wrong %s ran", name)
		}
	}
	for name, handle := range map[string]func(*Worker){
		"a bad name": func(w *Worker) { w.Handle("no blanks", "1", "1", echo) },
		"no version": func(w *Worker) { w.Handle("echo", "", "1", echo) },
		"no handler": func(w *Worker) { w.Handle("echo", "1", "1", nil) },
		"a repeat":   func(w *Worker) { w.Handle("echo", "1", "1", echo); w.Handle("echo", "1", "1", echo) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Handle took %s", name)
				}
			}()
			handle(NewWorker(WorkerOptions{}))
		}()
	}
}
