package sdk

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"pulse/schema/workerv1"
)

// lingerAfter is how long a handler may go on after its lease was lost before
// the worker offers the cluster one place less.
const lingerAfter = time.Second

// hold is what an attempt's goroutine keeps in hand while the handler runs: the
// lease, the questions about it that are under way, and the end of the
// handler's context. Only that goroutine touches it.
type hold struct {
	*attempt
	end context.CancelCauseFunc // ends the handler's context; the first cause counts

	lost             bool
	expiry, renewal  *time.Timer
	lingering        <-chan time.Time // after a lost lease, until the handler returns
	lingers          bool             // counted as a lost place
	renewing, asking bool             // a Renew, a Resume is under way
	answers          chan leaseAnswer // room for both
	questions        sync.WaitGroup
	stopAsking       context.CancelFunc
}

// leaseAnswer is the answer to a Renew or a Resume.
type leaseAnswer struct {
	resume bool
	answer
}

func (l *leaseAnswer) lease() *workerv1.Lease {
	if l.resume {
		return l.ack.Lease
	}
	return &l.ack.Result.Lease
}

// run keeps the lease while the handler runs, ends its context when there is a
// reason to, and returns what the handler's end means. Nil means that life
// ended first.
func (a *attempt) run(life context.Context, handler Handler, laterSession <-chan struct{}) (outcome *workerv1.Finish) {
	// The handler's context does not end with life: only run ends it, with a cause.
	ctx, end := context.WithCancelCause(context.WithoutCancel(life))
	defer end(nil)
	ctx, endSpan := a.beginSpan(ctx)
	defer func() { endSpan(outcome) }()
	ended := make(chan workerv1.Finish, 1)
	go a.handle(ctx, handler, ended)

	askCtx, stopAsking := context.WithCancel(life)
	h := &hold{
		attempt: a, end: end, answers: make(chan leaseAnswer, 2), stopAsking: stopAsking,
		expiry: time.NewTimer(time.Until(a.lease.until)), renewal: time.NewTimer(time.Until(a.lease.renew)),
	}
	defer h.close()
	cancelAsked, stop := a.cancelAsked, a.w.stop
	for {
		select {
		case outcome := <-ended:
			return &outcome
		case <-h.renewal.C:
			h.ask(askCtx, &h.renewing, &workerv1.Renew{Ref: a.ref})
		case <-laterSession:
			laterSession = a.w.ops.nextSession()
			h.ask(askCtx, &h.asking, &workerv1.Resume{Ref: a.ref})
		case got := <-h.answers:
			h.learn(got)
		case <-h.expiry.C:
			h.lose("no renewal in time")
		case <-cancelAsked:
			cancelAsked = nil
			a.log().Info("cancellation requested")
			end(ErrCancelRequested)
		case <-stop:
			stop = nil
			end(ErrWorkerStopped)
		case <-h.lingering:
			h.linger()
		case <-life.Done():
			a.log().Error("the handler has not returned; its outcome is not reported")
			return nil
		}
	}
}

// ask puts a question about the lease unless it is under way already.
func (h *hold) ask(ctx context.Context, underWay *bool, body workerv1.ClientBody) {
	if h.lost || *underWay {
		return
	}
	*underWay = true
	_, resume := body.(*workerv1.Resume)
	h.questions.Go(func() {
		if got, err := h.w.ops.ask(ctx, body); err == nil {
			h.answers <- leaseAnswer{resume, got}
		}
	})
}

func (h *hold) learn(got leaseAnswer) {
	if got.resume {
		h.asking = false
	} else {
		h.renewing = false
	}
	if got.refused != nil {
		h.lose("refused by the cluster", "code", got.refused.Code)
		return
	}
	granted := got.lease()
	if !granted.Active {
		h.lose("the attempt is over", "state", string(granted.State))
		return
	}
	if h.lost {
		return
	}
	h.lease.learn(granted, got.sentAt)
	h.expiry.Reset(time.Until(h.lease.until))
	h.renewal.Reset(time.Until(h.lease.renew))
	if granted.CancelRequestedAt.Set {
		h.askCancel()
	}
}

// lose gives the lease up for good: a handler that was told to stop cannot be
// told to go on.
func (h *hold) lose(why string, more ...any) {
	if h.lost {
		return
	}
	h.lost = true
	h.w.stats.leasesLost.Add(1)
	h.log().Warn("lease lost: "+why, more...)
	h.end(ErrLeaseLost)
	h.stopAsking()
	h.lingering = time.After(lingerAfter)
}

// linger: the cluster counts the attempt as over and would fill its place,
// which the handler still has. So it is told that there is one place less.
func (h *hold) linger() {
	h.lingers = true
	h.log().Warn("the handler goes on although its lease is lost; it keeps its place")
	h.w.linger(+1)
}

func (h *hold) close() {
	h.expiry.Stop()
	h.renewal.Stop()
	h.stopAsking()
	h.questions.Wait()
	if h.lingers {
		h.w.linger(-1)
	}
}

// handle runs the handler and sends what its end means, whatever kind of end it
// is. A panic stops a handler at a place nobody chose, so nothing is known about
// its effect: UNKNOWN, not FAILED, for every kind of task.
func (a *attempt) handle(ctx context.Context, handler Handler, ended chan<- workerv1.Finish) {
	ctx, cancel := context.WithDeadlineCause(ctx, a.task.deadline, ErrLeaseLost)
	defer cancel()
	var outcome workerv1.Finish
	returned := false
	defer func() {
		if fault := recover(); fault != nil {
			a.log().Error("handler panicked", "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
			outcome = finish(workerv1.OutcomeUnknown, false, CodePanic, errorJSON(fmt.Errorf("panic: %v", fault)))
		} else if !returned { // it ended the goroutine, as testing.T.FailNow does
			outcome = finish(workerv1.OutcomeUnknown, false, CodeExit, errorJSON(errors.New("the handler ended its goroutine")))
		}
		ended <- outcome
	}()
	result, err := handler(ctx, a.task)
	outcome = conclude(a.task, context.Cause(ctx), result, err)
	returned = true
}
