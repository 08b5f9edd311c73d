package sdk

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	// vitalEvery is how long a call waits before it asks whether its node still
	// runs, and how long the answer is good for all calls.
	vitalEvery = 3 * time.Second
	// vitalPatience bounds the answer: a node that runs gives it at once.
	vitalPatience = 3 * time.Second
)

var errSilent = errors.New("the node does not answer its health check: it may be paused or cut off")

// vital is what is known of a node: whether its process answers. A call may
// rightly take long (an election, a long poll), and a process that was paused
// or cut off keeps its connections open; its health check tells the two apart.
type vital struct {
	mu      sync.Mutex // held during a check: the others wait for its outcome
	checked time.Time
	alive   bool
}

// whileAlive is a context that ends with errSilent when the node in use answers
// nothing at all any more, so that the call can go to another one. With one
// address there is no other, and the call's own limit is all there is. The
// caller calls release when the call is over.
func (a *api) whileAlive(ctx context.Context) (alive context.Context, release func()) {
	if len(a.addrs) == 1 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	_, place := a.addr()
	watch := time.AfterFunc(vitalEvery, func() {
		for a.answers(ctx, place) {
			if !pause(ctx, vitalEvery) {
				return
			}
		}
		cancel(errSilent)
	})
	return ctx, func() {
		watch.Stop()
		cancel(nil)
	}
}

// answers asks a node's process for a sign of life, unless somebody just has.
func (a *api) answers(ctx context.Context, place uint64) bool {
	n := place % uint64(len(a.addrs))
	v := &a.vitals[n]
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.checked) < vitalEvery {
		return v.alive
	}
	limited, cancel := context.WithTimeout(ctx, vitalPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodGet, a.addrs[n].String()+"/healthz", nil)
	if err != nil {
		return true
	}
	answer, err := a.http.Do(req)
	if err == nil {
		answer.Body.Close()
	} else if ctx.Err() != nil {
		return true // the call is over; nothing was learnt
	}
	v.checked, v.alive = time.Now(), err == nil
	return v.alive
}
