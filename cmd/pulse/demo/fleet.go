package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pulse/sdk"
)

const (
	workers  = 8
	capacity = 16 // of each worker

	drainWithin = 5 * time.Second
)

// fleet is the workers. They run in this process and see the servers come and go.
type fleet struct {
	seed     uint64
	resource *resource
	workers  []*sdk.Worker
	running  sync.WaitGroup
	stop     context.CancelFunc

	begun, ended atomic.Int64

	mu      sync.Mutex
	active  map[string]*hold // by attempt
	held    map[string]*hold // those that were active when hold was called
	lastAt  time.Time        // of the latest begin
	longest time.Duration    // between two begins, since the kill
	gap     bool             // measuring it
}

// hold is an attempt that is under way.
type hold struct {
	task, attempt string
	over          bool // the handler has returned
	kept          bool // and its context had not ended
}

// startFleet returns when all workers are connected.
func startFleet(ctx context.Context, addrs []string, seed uint64, r *resource, logger *slog.Logger) (*fleet, error) {
	f := &fleet{seed: seed, resource: r, active: map[string]*hold{}, held: map[string]*hold{}}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	for range workers {
		w := sdk.NewWorker(sdk.WorkerOptions{Addrs: addrs, Queue: queue, Capacity: capacity, Logger: logger, DrainTimeout: drainWithin})
		w.Handle(handler, "1", "1", f.work)
		f.workers = append(f.workers, w)
		f.running.Go(func() {
			if err := w.Run(working); err != nil {
				logger.Warn("worker", "error", err)
			}
		})
	}
	for _, w := range f.workers {
		select {
		case <-w.Ready():
		case <-ctx.Done():
			f.close()
			return nil, ctx.Err()
		}
	}
	return f, nil
}

func (f *fleet) close() {
	f.stop()
	f.running.Wait()
}

// work is the handler: something takes a while, then there is an effect, and then
// it takes a while until anybody hears of it.
func (f *fleet) work(ctx context.Context, t *sdk.Task) (any, error) {
	h := f.begin(t)
	defer func() { f.end(h, ctx.Err() == nil) }()
	var in struct {
		N      int         `json:"n"`
		Amount json.Number `json:"amount"`
	}
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
	}
	j := jobOf(f.seed, in.N)
	if in.Amount.String() != j.text {
		return nil, sdk.Failed("altered_payload", fmt.Errorf("%s became %s", j.text, in.Amount))
	}
	if !pause(ctx, j.work) {
		return nil, sdk.Retryable(context.Cause(ctx)) // nothing was done yet
	}
	if !f.resource.apply(effect{task: t.ID, attempt: t.AttemptID, key: j.key, token: t.FencingToken(), once: j.once}) {
		return nil, sdk.Failed("stale_token", errors.New("the resource has seen a larger fencing token"))
	}
	pause(ctx, j.rest) // the effect is there, whatever comes now
	return json.RawMessage(j.result()), nil
}

func (f *fleet) begin(t *sdk.Task) *hold {
	f.begun.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.gap && !f.lastAt.IsZero() {
		f.longest = max(f.longest, now.Sub(f.lastAt))
	}
	f.lastAt = now
	h := &hold{task: t.ID, attempt: t.AttemptID}
	f.active[t.AttemptID] = h
	return h
}

func (f *fleet) end(h *hold, kept bool) {
	f.ended.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	h.over, h.kept = true, kept
	delete(f.active, h.attempt)
}

// hold remembers what is under way, and begins to measure the time without an
// assignment.
func (f *fleet) hold() (attempts int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, h := range f.active {
		f.held[id] = h
	}
	f.gap, f.longest = true, 0
	return len(f.held)
}

// heldNow counts the attempts that were under way at the kill, and what became of
// them: those that are over with their lease, and those that lost it.
func (f *fleet) heldNow() (all, kept, lost int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.held {
		switch {
		case h.over && h.kept:
			kept++
		case h.over:
			lost++
		}
	}
	return len(f.held), kept, lost
}

// gapNow is the longest time without an assignment since the kill.
func (f *fleet) gapNow() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gap {
		return max(f.longest, time.Since(f.lastAt))
	}
	return f.longest
}

// endGap ends the measuring: from here on there may be nothing left to assign.
func (f *fleet) endGap() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gap = false
}

// stats are the sum over all workers.
func (f *fleet) stats() (connected int, finished uint64, running int) {
	for _, w := range f.workers {
		if w.Health().Connected {
			connected++
		}
		s := w.Stats()
		finished += s.Succeeded + s.Failed + s.Unknown + s.Cancelled + s.Evidence
		running += s.Running
	}
	return connected, finished, running
}

// pause says whether the time passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func jsonText(format string, args ...any) json.RawMessage { return fmt.Appendf(nil, format, args...) }
