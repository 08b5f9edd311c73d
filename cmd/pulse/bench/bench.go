// Package bench measures a cluster from outside, with clients and workers of
// package sdk: what a program that uses Pulse would see, JSON, HTTP and WebSocket
// included. One task is: submit, be picked up by a worker, start, finish; a handler
// does nothing. All that is measured was acknowledged, so it was on disk.
//
// Producers work in one of two ways. With a Rate they submit on time, whatever the
// cluster does, and a latency counts from when the submission was due: a cluster
// that falls behind cannot hide it. Without one they submit as fast as they are
// answered, with at most Window tasks open, so that latencies do not merely measure
// the length of the queue.
//
// Memory does not grow with the number of tasks. Run is called from one goroutine
// and everything it starts has ended when it returns.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pulse/schema"
	"pulse/sdk"
)

const (
	handler = "bench"
	// For done_*, about samplesPerSecond tasks are waited for one by one, evenly
	// among all; waitersMax bounds how many at a time.
	samplesPerSecond = 20
	waitersMax       = 2000
	// drainWithin is how long what is open at the end may take.
	drainWithin = 2 * time.Minute
	tidyWithin  = 15 * time.Second
	// retention keeps what a bench leaves behind from staying long.
	retention = time.Minute
	lookEvery = 5 * time.Millisecond
)

// Config of a run. Tasks or Duration ends it, whichever comes first; zero is
// without end, and one of the two is needed.
type Config struct {
	Addrs      []string
	Namespace  string
	Token      string
	HTTPClient *http.Client
	Logger     *slog.Logger

	Tasks        int
	Duration     time.Duration
	Rate         float64 // tasks a second; 0 = as fast as answered
	Window       int     // most open tasks without a Rate; 0 = twice the slots and what producers hold
	Workers      int
	Slots        int // of each worker
	Producers    int
	Batch        int // tasks of one request
	PayloadBytes int
	Keys         int // concurrency keys that tasks are spread over in turn; 0 = none

	// Usage is what the servers and this process have taken so far; nil if that
	// is not known.
	Usage func() (cpu time.Duration, serverBytes int64, err error)
}

// Validate names what is wrong and the fix.
func (c Config) Validate() error {
	for _, v := range []struct {
		name      string
		value     int
		low, high int
	}{
		{"--tasks", c.Tasks, 0, 100_000_000}, {"--workers", c.Workers, 1, 10_000}, {"--slots", c.Slots, 1, 256},
		{"--producers", c.Producers, 1, 10_000}, {"--batch", c.Batch, 1, 1000}, {"--payload-bytes", c.PayloadBytes, 0, 200_000},
		{"--window", c.Window, 0, 10_000_000}, {"--keys", c.Keys, 0, 10_000_000},
	} {
		if v.value < v.low || v.value > v.high {
			return fmt.Errorf("%s is %d: give %d to %d", v.name, v.value, v.low, v.high)
		}
	}
	switch {
	case c.Tasks == 0 && c.Duration <= 0:
		return errors.New("give --tasks or --duration")
	case c.Rate < 0:
		return errors.New("--rate is below 0")
	}
	return nil
}

// Result is what was measured. The names are stable.
type Result struct {
	TasksPerSecond float64 `json:"tasks_per_s"`
	SubmitP50      float64 `json:"submit_p50_ms"` // until the answer to the request
	SubmitP99      float64 `json:"submit_p99_ms"`
	ArrivalP50     float64 `json:"arrival_p50_ms"` // from the submission until a worker has the task
	ArrivalP99     float64 `json:"arrival_p99_ms"`
	PickupP50      float64 `json:"pickup_p50_ms"` // until its start is on record, too, and a handler has it
	PickupP99      float64 `json:"pickup_p99_ms"`
	DoneP50        float64 `json:"done_p50_ms"` // from the submission until a client has seen its end
	DoneP99        float64 `json:"done_p99_ms"`
	Errors         int64   `json:"errors"`    // tasks refused or without an answer
	Submitted      int64   `json:"submitted"` // acknowledged
	Done           int64   `json:"done"`      // ends the cluster has taken
	DoneSampled    int64   `json:"done_sampled"`
	Seconds        float64 `json:"seconds"`

	// Of the servers and this process together, and the largest server at the
	// end; left out if the servers are not this process's own.
	CPUPerTask   float64 `json:"cpu_us_per_task,omitempty"`
	ServerMemory float64 `json:"server_mem_mib,omitempty"`

	Workers      int     `json:"workers"`
	Slots        int     `json:"slots"`
	Producers    int     `json:"producers"`
	Batch        int     `json:"batch"`
	PayloadBytes int     `json:"payload_bytes"`
	Rate         float64 `json:"rate"`
	Window       int     `json:"window"`
	Keys         int     `json:"keys"`
}

// run is a bench under way.
type run struct {
	Config
	client *sdk.Client
	queue  string
	pad    string
	zero   time.Time // times in payloads count from here

	fleet   []*sdk.Worker
	next    atomic.Int64 // batch
	sent    atomic.Int64 // tasks that were or are being submitted
	acked   atomic.Int64
	failed  atomic.Int64
	begun   atomic.Int64  // handlers
	waiting atomic.Int64  // for the end of a sampled task
	room    chan struct{} // capacity 1: the window may have room
	keyed   atomic.Int64  // tasks that were given a key

	submit, arrival, pickup, done histogram
	waiters                       sync.WaitGroup
}

// Run measures once.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Window == 0 {
		cfg.Window = 2*cfg.Workers*cfg.Slots + cfg.Producers*cfg.Batch
	}
	r := &run{
		Config: cfg, queue: fmt.Sprintf("bench-%x", time.Now().UnixNano()), pad: strings.Repeat("x", cfg.PayloadBytes), room: make(chan struct{}, 1),
		client: sdk.NewClient(sdk.ClientOptions{
			Addrs: cfg.Addrs, Namespace: cfg.Namespace, Token: cfg.Token, HTTPClient: cfg.HTTPClient, Logger: cfg.Logger,
		}),
	}
	setup, cancel := context.WithTimeout(ctx, tidyWithin)
	defer cancel()
	if _, err := r.client.PutQueue(setup, r.queue, sdk.QueueSettings{RetentionMillis: retention.Milliseconds()}); err != nil {
		return nil, err
	}
	stop, err := r.startWorkers(ctx)
	defer r.tidy(ctx, stop)
	if err != nil {
		return nil, err
	}
	return r.measure(ctx)
}

// startWorkers returns when all workers are connected; stop ends them and waits.
func (r *run) startWorkers(ctx context.Context) (stop func(), err error) {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for range r.Workers {
		w := sdk.NewWorker(sdk.WorkerOptions{
			Addrs: r.Addrs, Namespace: r.Namespace, Token: r.Token, HTTPClient: r.HTTPClient, Logger: r.Logger,
			Queue: r.queue, Capacity: r.Slots,
		})
		w.Handle(handler, "1", "1", r.work)
		r.fleet = append(r.fleet, w)
		running.Go(func() {
			if err := w.Run(working); err != nil {
				r.Logger.Warn("worker", "error", err)
			}
		})
	}
	stop = func() {
		cancel()
		running.Wait()
	}
	ready, cancelReady := context.WithTimeout(ctx, tidyWithin)
	defer cancelReady()
	for _, w := range r.fleet {
		select {
		case <-w.Ready():
		case <-ready.Done():
			return stop, fmt.Errorf("the workers did not connect: %w", errors.Join(ready.Err(), w.Health().LastError))
		}
	}
	return stop, nil
}

// work is the handler. The payload says when its submission began.
func (r *run) work(_ context.Context, t *sdk.Task) (any, error) {
	var in struct {
		At int64 `json:"at"`
	}
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
	}
	r.arrival.add(t.ReceivedAt.Sub(r.zero) - time.Duration(in.At))
	r.pickup.add(r.since() - time.Duration(in.At))
	r.begun.Add(1)
	r.tellRoom()
	return nil, nil
}

func (r *run) since() time.Duration { return time.Since(r.zero) }

// measure submits until the end is reached and waits until everything is done.
func (r *run) measure(ctx context.Context) (*Result, error) {
	r.zero = time.Now()
	var before time.Duration
	if r.Usage != nil {
		var err error
		if before, _, err = r.Usage(); err != nil {
			return nil, err
		}
	}
	submitting, stop := ctx, context.CancelFunc(func() {})
	if r.Duration > 0 {
		submitting, stop = context.WithTimeout(ctx, r.Duration)
	}
	defer stop()
	var producing sync.WaitGroup
	for range r.Producers {
		producing.Go(func() {
			for r.turn(ctx, submitting) {
			}
		})
	}
	producing.Wait()
	draining, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for r.finished() < r.acked.Load() {
		select {
		case <-draining.Done():
			return nil, fmt.Errorf("%d of %d tasks are not done: %w", r.acked.Load()-r.finished(), r.acked.Load(), draining.Err())
		case <-tick.C:
		}
	}
	took := r.since()
	r.waiters.Wait()
	result := r.result(took)
	if r.Usage != nil {
		after, bytes, err := r.Usage()
		if err != nil {
			return nil, err
		}
		result.CPUPerTask = round(float64((after - before).Microseconds()) / float64(max(result.Done, 1)))
		result.ServerMemory = round(float64(bytes) / (1 << 20))
	}
	return result, nil
}

// turn submits one batch. ctx bounds a request, submitting the beginning of one.
func (r *run) turn(ctx, submitting context.Context) (more bool) {
	count := r.Batch
	if r.Tasks > 0 {
		before := int(r.sent.Add(int64(count))) - count
		if count = min(count, r.Tasks-before); count <= 0 {
			return false
		}
	} else {
		r.sent.Add(int64(count))
	}
	var due time.Duration
	if r.Rate > 0 {
		due = time.Duration(float64(r.next.Add(1)-1) * float64(r.Batch) / r.Rate * float64(time.Second))
		if !until(submitting, r.zero.Add(due)) {
			return false
		}
	} else if !r.admit(submitting) {
		return false
	} else {
		due = r.since()
	}
	if submitting.Err() != nil {
		return false
	}
	r.send(ctx, due, count)
	return true
}

// admit waits until the window has room. Producers that look at the same time may
// go over it by what they hold.
func (r *run) admit(ctx context.Context) bool {
	for r.acked.Load()-r.begun.Load() >= int64(r.Window) {
		select {
		case <-r.room:
		case <-ctx.Done():
			return false
		}
	}
	r.tellRoom() // there may be room for another
	return ctx.Err() == nil
}

// tellRoom has one of the producers that wait look again. They do not look by the
// clock, which would be a load of its own.
func (r *run) tellRoom() {
	select {
	case r.room <- struct{}{}:
	default:
	}
}

func until(ctx context.Context, at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *run) send(ctx context.Context, due time.Duration, count int) {
	spec := sdk.TaskSpec{Queue: r.queue, Handler: handler, Payload: json.RawMessage(fmt.Sprintf(`{"at":%d,"pad":%q}`, int64(due), r.pad))}
	if count == 1 && r.Batch == 1 {
		spec.ConcurrencyKey = r.key()
		task, err := r.client.Submit(ctx, spec)
		r.submit.add(r.since() - due)
		r.answer(ctx, due, task, err)
		return
	}
	specs := make([]sdk.TaskSpec, count)
	for i := range specs {
		specs[i] = spec
		specs[i].ConcurrencyKey = r.key()
	}
	items, err := r.client.SubmitBatch(ctx, r.queue, specs)
	r.submit.add(r.since() - due)
	for _, item := range items {
		r.answer(ctx, due, item.Task, item.Err)
	}
	if err != nil {
		r.failed.Add(int64(count - len(items)))
	}
}

// key is the next concurrency key.
func (r *run) key() string {
	if r.Keys == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%d", r.queue, r.keyed.Add(1)%int64(r.Keys))
}

func (r *run) answer(ctx context.Context, due time.Duration, task *sdk.TaskInfo, err error) {
	if err != nil {
		r.failed.Add(1)
		return
	}
	if !r.chosen(r.acked.Add(1)) {
		return
	}
	if r.waiting.Add(1) > waitersMax {
		r.waiting.Add(-1)
		return
	}
	r.waiters.Go(func() {
		defer r.waiting.Add(-1)
		if task, err := r.client.Wait(ctx, task.ID); err == nil && task.State.Settled() {
			r.done.add(r.since() - due)
		}
	})
}

// chosen goes by the count of tasks, not by the clock: a burst gets its share.
func (r *run) chosen(n int64) bool {
	perSecond := float64(n) / max(r.since().Seconds(), 1)
	return n%max(int64(perSecond/samplesPerSecond), 1) == 0
}

// finished counts the ends that the cluster has taken.
func (r *run) finished() (n int64) {
	for _, w := range r.fleet {
		s := w.Stats()
		n += int64(s.Succeeded + s.Failed + s.Unknown + s.Cancelled + s.Evidence)
	}
	return n
}

func (r *run) result(took time.Duration) *Result {
	done := r.finished()
	return &Result{
		TasksPerSecond: round(float64(done) / took.Seconds()),
		SubmitP50:      r.submit.millis(0.50), SubmitP99: r.submit.millis(0.99),
		ArrivalP50: r.arrival.millis(0.50), ArrivalP99: r.arrival.millis(0.99),
		PickupP50: r.pickup.millis(0.50), PickupP99: r.pickup.millis(0.99),
		DoneP50: r.done.millis(0.50), DoneP99: r.done.millis(0.99),
		Errors: r.failed.Load(), Submitted: r.acked.Load(), Done: done, DoneSampled: r.done.count(), Seconds: round(took.Seconds()),
		Workers: r.Workers, Slots: r.Slots, Producers: r.Producers, Batch: r.Batch, PayloadBytes: r.PayloadBytes, Rate: r.Rate, Window: r.Window, Keys: r.Keys,
	}
}

// tidy ends the workers and removes the queue; its tasks leave by themselves. What
// is left behind is a warning, not a failure: the measuring is done.
func (r *run) tidy(ctx context.Context, stop func()) {
	stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
	defer cancel()
	for {
		err := r.client.DeleteQueue(ctx, r.queue)
		if err == nil {
			return
		}
		// The workers have closed their connections; the cluster may have yet to
		// hear of it.
		if !errors.Is(err, schema.Conflict) || !until(ctx, time.Now().Add(20*lookEvery)) {
			r.Logger.Warn("the queue of this bench is left behind", "queue", r.queue, "error", err)
			return
		}
	}
}

func round(x float64) float64 { return float64(int64(x*10+0.5)) / 10 }
