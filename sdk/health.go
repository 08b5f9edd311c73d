package sdk

import (
	"sync/atomic"
	"time"

	"pulse/schema/workerv1"
)

// Health is how a worker stands with the cluster.
type Health struct {
	Connected  bool      // registered, and as far as known alive
	Since      time.Time // of Connected being what it is
	Addr       string    // of the current or last connection
	InstanceID string
	SessionID  string
	Draining   bool  // gets no new tasks: Run's context has ended, or an operator asked for it
	LastError  error // why it is not, or was last not, connected
}

// Stats count what a worker has done since it was made.
type Stats struct {
	Assigned   uint64 // offers received, less repeats
	Repeated   uint64 // offers received again and dropped
	Started    uint64
	Succeeded  uint64 // outcomes the cluster has taken, by kind
	Failed     uint64
	Unknown    uint64
	Cancelled  uint64
	Evidence   uint64 // outcomes that came too late and changed nothing
	LeasesLost uint64
	Sessions   uint64
	Running    int // handlers running now
}

type counters struct {
	assigned, repeated, started, succeeded, failed, unknown, cancelled, evidence, leasesLost, sessions atomic.Uint64
}

func (c *counters) finished(outcome workerv1.Outcome) {
	switch outcome {
	case workerv1.OutcomeSucceeded:
		c.succeeded.Add(1)
	case workerv1.OutcomeFailed:
		c.failed.Add(1)
	case workerv1.OutcomeUnknown:
		c.unknown.Add(1)
	case workerv1.OutcomeCancelled:
		c.cancelled.Add(1)
	}
}

// Ready is closed when the worker has registered for the first time.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Health tells how the worker stands now.
func (w *Worker) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

// Stats tells what the worker has done so far.
func (w *Worker) Stats() Stats {
	c := &w.stats
	return Stats{
		Assigned: c.assigned.Load(), Repeated: c.repeated.Load(), Started: c.started.Load(),
		Succeeded: c.succeeded.Load(), Failed: c.failed.Load(), Unknown: c.unknown.Load(), Cancelled: c.cancelled.Load(),
		Evidence: c.evidence.Load(), LeasesLost: c.leasesLost.Load(), Sessions: c.sessions.Load(), Running: len(w.places),
	}
}

func (w *Worker) connected(l *link, instance workerv1.ID) {
	w.stats.sessions.Add(1)
	w.log.Info("connected", "addr", l.addr, "session", l.welcome.SessionID.String(), "epoch", l.welcome.Epoch)
	w.mu.Lock()
	w.health.Connected, w.health.Since, w.health.LastError = true, time.Now(), nil
	w.health.Addr, w.health.InstanceID, w.health.SessionID = l.addr, instance.String(), l.welcome.SessionID.String()
	if !closed(w.ready) {
		close(w.ready)
	}
	w.mu.Unlock()
	w.drainedByOperator(l.welcome.Draining)
}

func (w *Worker) disconnected(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.health.Connected {
		w.health.Connected, w.health.Since = false, time.Now()
	}
	w.health.LastError = err
}

func (w *Worker) drainedByOperator(draining bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if draining && !w.health.Draining && !w.drains {
		w.log.Warn("drained by an operator: this worker gets no more tasks; restart it to take up work again")
	}
	w.health.Draining = draining || w.drains
}
