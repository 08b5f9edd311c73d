package sdk

import (
	"context"
	"sync"
	"time"

	"pulse/schema/workerv1"
)

// capacityReport is what a worker wants the cluster to know about its room, and
// what it has been told. The goroutine in reportCapacity brings the second in
// line with the first, one report at a time.
type capacityReport struct {
	changed chan struct{} // holds one: look again
	told    chan struct{} // closed when the cluster has heard of the drain

	mu       sync.Mutex
	capacity int // of all places
	lost     int // places of handlers that outlived their leases
	drains   bool
	last     *workerv1.Capacity // acknowledged under this identity; nil: only the hello
}

func newCapacityReport(capacity int) capacityReport {
	return capacityReport{changed: make(chan struct{}, 1), told: make(chan struct{}), capacity: capacity}
}

func (r *capacityReport) lookAgain() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// lose counts places that are taken without the cluster knowing.
func (r *capacityReport) lose(places int) {
	r.mu.Lock()
	r.lost += places
	r.mu.Unlock()
	r.lookAgain()
}

// drain asks for no more work. The channel is closed when the cluster knows.
func (r *capacityReport) drain() (told <-chan struct{}) {
	r.mu.Lock()
	r.drains = true
	r.mu.Unlock()
	r.lookAgain()
	return r.told
}

// forget: a new identity, of which the cluster knows the hello alone.
func (r *capacityReport) forget() {
	r.mu.Lock()
	r.last = nil
	r.mu.Unlock()
	r.lookAgain()
}

// wanted is the next report, but for its sequence, and whether it says anything
// new.
func (r *capacityReport) wanted() (report workerv1.Capacity, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report = workerv1.Capacity{Capacity: uint32(max(r.capacity-r.lost, 0)), Drain: r.drains}
	known := workerv1.Capacity{Capacity: uint32(r.capacity)}
	if r.last != nil {
		known = workerv1.Capacity{Capacity: r.last.Capacity, Drain: r.last.Drain}
	}
	return report, report != known
}

func (r *capacityReport) acknowledged(report *workerv1.Capacity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = report
	if report.Drain && !closed(r.told) {
		close(r.told)
	}
}

// reportCapacity tells the cluster about each change, and otherwise, when a
// connection has been idle for long, the same again: pings show that a gateway
// lives, only an operation shows that it still reaches the cluster. One that
// gets no answer ends the connection (link.watch), and the next goes elsewhere.
func (w *Worker) reportCapacity(life context.Context) {
	var heartbeat <-chan time.Time
	if w.options.Heartbeat > 0 {
		ticker := time.NewTicker(w.options.Heartbeat)
		defer ticker.Stop()
		heartbeat = ticker.C
	}
	refusals := 0 // in a row
	for sequence := uint64(1); ; {
		due := false
		select {
		case <-life.Done():
			return
		case <-w.report.changed:
		case <-heartbeat:
			_, quiet := w.ops.silence()
			due = quiet >= w.options.Heartbeat
		}
		report, news := w.report.wanted()
		if !news && !due {
			continue
		}
		report.Sequence = sequence
		sequence++
		got, err := w.ops.ask(life, &report)
		switch {
		case err != nil:
			return
		case got.refused != nil:
			w.log.Warn("capacity report refused", "code", got.refused.Code, "error", got.refused.Message)
			// Some refusals pass, some never will: neither is asked about in a rush.
			if !pause(life, backoff(refusals, retryDelayFirst, retryDelayMax)) {
				return
			}
			refusals++
		default:
			refusals = 0
			w.report.acknowledged(&report)
			w.drainedByOperator(got.ack.Welcome.Draining)
		}
		w.report.lookAgain() // it may have changed meanwhile
	}
}

// linger counts places that are taken without the cluster knowing.
func (w *Worker) linger(places int) { w.report.lose(places) }
