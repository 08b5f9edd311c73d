package conformance

import (
	"slices"
	"testing"
)

func TestOneLifeHasEveryFrame(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	task := p.submit(object{"concurrency_key": "k", "business_key": "b", "priority": 3, "start_deadline_at": soon(patience)})
	a := w.take(task.ID)
	w.renew(a)
	w.start(a)
	w.capacity(1, 4, false)
	w.resume(a)
	p.cancel(task.ID)
	w.cancelled(a)
	w.refused("already_started", "task.start", a.ref())
	w.finish(cancelled(a))
	want := []string{"ack", "error", "task.assign", "task.cancel", "worker.welcome"}
	if got := w.kinds(); !slices.Equal(got, want) {
		t.Errorf("frames of the server: %v, want %v", got, want)
	}
}
