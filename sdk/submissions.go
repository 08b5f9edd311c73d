package sdk

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

const (
	// submitsAtOnce is how many submissions to a queue are under way, each in a
	// request of its own, before others wait for one of them to come back.
	submitsAtOnce = 8
	// joinedBytesMax is the largest submission that shares a request: a large one
	// costs what its bytes cost.
	joinedBytesMax = 64 << 10
)

// submissions joins what many goroutines submit to a queue at the same time into
// few requests. A submission goes out at once, in a request of its own, unless
// submitsAtOnce are under way. Then it waits for one of these to come back, and
// all that wait go out in one request: nothing ever waits for company.
//
// Sharing is for the first try alone. What that did not bring to a good end, each
// caller goes on with by itself, under the key that its submission had in the
// shared request, so that its errors, its repeats and its end are its own.
//
// Safe from any goroutine.
type submissions struct {
	api *api

	mu    sync.Mutex
	lanes map[string]*lane // by path; of those with something under way
}

// lane is what goes to one queue. Guarded by submissions.mu.
type lane struct {
	underWay int // requests
	waiting  []*sending
}

// sending is one submission on its way.
type sending struct {
	body []byte
	key  string // Idempotency-Key

	batch *batch // guarded by submissions.mu; nil while it waits

	// Written by the goroutine of the shared request before it closes done.
	done chan struct{}
	task *TaskInfo
	err  error
}

// batch is a shared request.
type batch struct {
	all     []*sending
	callers atomic.Int64 // who still wait
	cancel  context.CancelFunc
}

// alone says that a submission must not share a request: the caller's key is for
// others to repeat, its note is about this task, and its span is that of its own
// request.
func alone(ctx context.Context, body []byte, given callOptions) bool {
	return given.ownKey || given.note != "" || len(body) > joinedBytesMax || trace.SpanContextFromContext(ctx).IsValid()
}

// submit is api.call for a submission that may share a request.
func (s *submissions) submit(ctx context.Context, path string, body []byte, key string) (task *TaskInfo, err error) {
	own := &sending{body: body, key: key, done: make(chan struct{})}
	first := true
	err = s.api.persist(ctx, http.MethodPost+" "+path, func(ctx context.Context) error {
		if first {
			first = false
			goes := s.enter(path, own)
			if goes {
				defer s.leave(path)
			} else if task, err = s.join(ctx, path, own); err == nil || mayRetry(err) {
				return err
			}
			// A final refusal of a shared request speaks of a place in it. That of a
			// request of its own is the caller's.
		}
		task = new(TaskInfo)
		return s.api.try(ctx, request{method: http.MethodPost, path: path, body: body, key: own.key, quiet: true}, task)
	})
	if err != nil {
		return nil, err
	}
	return task, nil
}

// join waits until a shared request has come back with the submission.
func (s *submissions) join(ctx context.Context, path string, own *sending) (*TaskInfo, error) {
	select {
	case <-own.done:
		return own.task, own.err
	case <-ctx.Done():
		s.forget(path, own)
		return nil, fmt.Errorf("pulse: %w", ctx.Err()) // a later try is not made
	}
}

// enter lets a submission go, or lets it wait.
func (s *submissions) enter(path string, own *sending) (goes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[path]
	if l == nil {
		l = &lane{}
		s.lanes[path] = l
	}
	if l.underWay < submitsAtOnce {
		l.underWay++
		return true
	}
	l.waiting = append(l.waiting, own)
	return false
}

// leave is called when a request has come back: what waits goes out.
func (s *submissions) leave(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[path]
	l.underWay--
	if len(l.waiting) == 0 {
		if l.underWay == 0 {
			delete(s.lanes, path)
		}
		return
	}
	l.underWay++
	b := &batch{}
	n := min(len(l.waiting), batchTasksMax)
	bytes := 0
	for i, own := range l.waiting[:n] {
		if bytes += len(own.body) + 1; bytes > batchBytesMax {
			n = i
			break
		}
		own.batch = b
	}
	b.all, l.waiting = l.waiting[:n:n], l.waiting[n:]
	b.callers.Store(int64(n))
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go s.send(ctx, path, b) // for its callers; it ends when the last of them leaves
}

// forget is called by a caller that leaves before its submission has come back.
func (s *submissions) forget(path string, own *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.batch != nil {
		if own.batch.callers.Add(-1) == 0 {
			own.batch.cancel()
		}
		return
	}
	l := s.lanes[path]
	for i, other := range l.waiting {
		if other == own {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			return
		}
	}
}

// send sends a batch once and gives each submission what became of it.
func (s *submissions) send(ctx context.Context, path string, b *batch) {
	defer s.leave(path)
	defer b.cancel()
	r := request{method: http.MethodPost, path: path + ":batch", key: newKey(), quiet: true}
	bodies := make([][]byte, len(b.all))
	for i, own := range b.all {
		bodies[i] = own.body
	}
	r.body, _ = batchBody(bodies)
	var answer struct {
		Results []BatchItem `json:"results"`
	}
	err := s.api.try(ctx, r, &answer)
	if err == nil && len(answer.Results) != len(b.all) {
		err = &answerError{fmt.Errorf("%d results for %d tasks", len(answer.Results), len(b.all))}
	}
	for i, own := range b.all {
		// This is what the gateway makes of the request's key and the place.
		own.key = r.key + "#" + strconv.Itoa(i)
		if own.err = err; err == nil {
			own.task, own.err = answer.Results[i].Task, answer.Results[i].Err
		}
		close(own.done)
	}
}
