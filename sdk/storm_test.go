package sdk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pulse/schema"
	"pulse/schema/workerv1"
)

// storm is a cluster in bad weather: it answers late, twice or not at all,
// breaks connections, falls silent, refuses for the moment. It keeps the books
// of a real one: operations by message id, leases that end.
type storm struct {
	*gateway

	mu       sync.Mutex
	rng      *rand.Rand
	calm     bool
	attempts map[workerv1.ID]*stormAttempt
}

type stormAttempt struct {
	start, finish workerv1.ID // message ids; zero before
	until         workerv1.Time
	outcome       workerv1.Finish
	evidence      bool
	ran           int
	overlong      time.Duration // the handler's context outlived the lease by that
}

func (s *storm) dice() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm {
		return 1000
	}
	return s.rng.IntN(100)
}

// serve offers work on a connection and answers what comes, until it ends.
func (s *storm) serve(c *gatewayConn, done <-chan struct{}) {
	hello, ok := c.await(done)
	if !ok {
		return
	}
	c.session = newID()
	c.reply(hello, c.welcome())
	more := time.NewTicker(2 * time.Second)
	defer more.Stop()
	for {
		select {
		case <-more.C:
			s.offerAnother(c)
		case frame := <-c.frames:
			s.take(c, frame)
		case <-c.gone:
			return
		case <-done:
			return
		}
	}
}

// await is the next frame, unless the connection or the test ends first.
func (c *gatewayConn) await(done <-chan struct{}) (workerv1.ClientFrame, bool) {
	select {
	case frame := <-c.frames:
		return frame, true
	case <-c.gone:
	case <-done:
	}
	return workerv1.ClientFrame{}, false
}

func (s *storm) offerAnother(c *gatewayConn) {
	if s.dice() == 1000 {
		return
	}
	offer := c.makeOffer()
	s.mu.Lock()
	s.attempts[offer.AttemptID] = &stormAttempt{}
	s.mu.Unlock()
	c.send(workerv1.ServerFrame{Body: offer})
}

func (s *storm) take(c *gatewayConn, frame workerv1.ClientFrame) {
	dice := s.dice()
	if dice < 5 { // before anything has happened
		if _, first := frame.Body.(*workerv1.Capacity); !first {
			c.refuse(frame, schema.NoLeader)
			return
		}
	}
	answer := s.apply(c, frame)
	switch {
	case dice < 8:
		c.cut()
	case dice < 9:
		s.freeze()
	case dice < 14: // no answer
	case dice < 22:
		time.Sleep(time.Duration(dice) * 100 * time.Millisecond)
		answer()
	case dice < 30:
		answer()
		answer()
	default:
		answer()
	}
}

// apply does what a frame asks for and returns how to answer it.
func (s *storm) apply(c *gatewayConn, frame workerv1.ClientFrame) (answer func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := serverNow()
	switch body := frame.Body.(type) {
	case *workerv1.Start:
		a := s.attempts[body.Ref.AttemptID]
		if a.start == (workerv1.ID{}) {
			a.until = now + 30e6
		}
		s.once(&a.start, frame)
		lease := a.lease(now)
		return func() { c.accepted(frame, lease) }
	case *workerv1.Renew:
		a := s.attempts[body.Ref.AttemptID]
		lease := a.lease(now)
		if !lease.Active {
			return func() { c.refuse(frame, schema.LeaseLost) }
		}
		a.until = now + 30e6
		lease.LeaseUntil = a.until
		return func() { c.accepted(frame, lease) }
	case *workerv1.Resume:
		lease := s.attempts[body.Ref.AttemptID].lease(now)
		return func() { c.reply(frame, &workerv1.Ack{Lease: &lease}) }
	case *workerv1.Finish:
		a := s.attempts[body.Ref.AttemptID]
		if a.finish == (workerv1.ID{}) {
			a.evidence, a.outcome = !a.lease(now).Active, *body
		}
		s.once(&a.finish, frame)
		disposition := workerv1.Applied
		if a.evidence {
			disposition = workerv1.EvidenceOnly
		}
		return func() { c.receipt(frame, leaseOver(), disposition) }
	}
	return func() { c.reply(frame, &workerv1.Ack{Welcome: c.welcome()}) }
}

func (s *storm) once(known *workerv1.ID, frame workerv1.ClientFrame) {
	if *known != (workerv1.ID{}) && *known != frame.MessageID {
		s.t.Errorf("%s came under two message ids", frame.Body.ClientType())
	}
	*known = frame.MessageID
}

func (a *stormAttempt) lease(now workerv1.Time) workerv1.Lease {
	if a.finish != (workerv1.ID{}) || now >= a.until {
		return workerv1.Lease{State: workerv1.AttemptExpired, LeaseUntil: a.until, ServerTime: now}
	}
	return workerv1.Lease{Active: true, State: workerv1.AttemptRunning, LeaseUntil: a.until, ServerTime: now}
}

// handle works for a while and watches that its context does not outlive the
// lease that the cluster has in its books.
func (s *storm) handle(ctx context.Context, t *Task) (any, error) {
	id, _ := schema.ParseID(t.AttemptID)
	s.mu.Lock()
	a := s.attempts[id]
	a.ran++
	work := time.Duration(s.rng.IntN(60)) * time.Second
	s.mu.Unlock()
	for end := time.Now().Add(work); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.mu.Lock()
		a.overlong = max(a.overlong, time.Duration(serverNow()-a.until)*time.Microsecond)
		s.mu.Unlock()
	}
	return t.AttemptID, nil
}

func TestEveryAttemptRunsOnceAndIsReportedWhateverTheWeather(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { weather(t, seed) })
		})
	}
}

func weather(t *testing.T, seed uint64) {
	s := &storm{gateway: newGateway(t), rng: rand.New(rand.NewPCG(seed, seed)), attempts: map[workerv1.ID]*stormAttempt{}}
	done := make(chan struct{})
	var crew sync.WaitGroup
	crew.Go(func() {
		for {
			select {
			case c := <-s.conns:
				crew.Go(func() { s.serve(c, done) })
			case <-done:
				return
			}
		}
	})
	w := s.work(s.handle)
	time.Sleep(20 * time.Minute)
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	time.Sleep(5 * time.Minute) // more than any back-off and any handler takes
	if err := w.end(); err != nil {
		t.Errorf("Run: %v", err)
	}
	close(done)
	crew.Wait()

	started, late := 0, 0
	for id, a := range s.attempts {
		switch {
		case a.start == (workerv1.ID{}):
			if a.ran != 0 || a.finish != (workerv1.ID{}) {
				t.Errorf("attempt %s: ran %d times without a start", id, a.ran)
			}
			continue
		case a.ran > 1:
			t.Errorf("attempt %s ran %d times", id, a.ran)
		case a.finish == (workerv1.ID{}):
			t.Errorf("attempt %s was never reported", id)
		case a.ran == 0 && a.outcome.ErrorCode != CodeNotRun:
			t.Errorf("attempt %s did not run and was reported as %+v", id, a.outcome)
		case a.overlong > 0:
			t.Errorf("attempt %s: the context outlived the lease by %s", id, a.overlong)
		}
		started++
		if a.evidence {
			late++
		}
	}
	stats := w.Stats()
	t.Logf("%d attempts started, %d reported late, %+v", started, late, stats)
	if started < 100 || stats.Sessions < 10 {
		t.Errorf("the storm did not blow: %d attempts in %d sessions", started, stats.Sessions)
	}
	if stats.Running != 0 {
		t.Errorf("%d handlers still run", stats.Running)
	}
}
