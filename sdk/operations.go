package sdk

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"pulse/schema/workerv1"
)

const (
	askAgainFirst = 100 * time.Millisecond
	askAgainMax   = 5 * time.Second
)

// operations are the frames of a worker that want an answer. An operation keeps
// its message id until it has one, over any number of connections: the cluster
// does it once, and answers a repeat with the receipt of the first time. So
// whoever asks need not know that the connection broke in between.
//
// Safe from any goroutine; nothing here waits for the network.
type operations struct {
	mu      sync.Mutex
	link    *link // of the current session; nil between sessions
	waiting map[workerv1.ID]*operation
	begun   uint64        // operations so far, for their order
	heardAt time.Time     // when the last answer came
	next    chan struct{} // closed when the next session begins
}

type operation struct {
	id     workerv1.ID
	order  uint64
	body   workerv1.ClientBody
	answer chan answer // holds one

	// Guarded by operations.mu.
	link   *link // on which it is under way; nil if it has to be sent (again)
	sentAt time.Time
}

// answer is an ack or a refusal.
type answer struct {
	ack     *workerv1.Ack
	refused *Error
	// sentAt is when the frame it answers left at the earliest: what the answer
	// says about the cluster's clock was true then or later.
	sentAt time.Time
	// later is closed when a session begins after the one it came on.
	later <-chan struct{}
}

func newOperations() *operations {
	return &operations{waiting: map[workerv1.ID]*operation{}, next: make(chan struct{})}
}

// ask sends a frame and returns the answer. A refusal that may pass (no leader,
// an unknown result) is no answer: the same frame is sent again after a while.
// The error is that of ctx.
func (o *operations) ask(ctx context.Context, body workerv1.ClientBody) (answer, error) {
	op := o.begin(body)
	defer o.end(op)
	for tries := 0; ; tries++ {
		select {
		case <-ctx.Done():
			return answer{}, context.Cause(ctx)
		case got := <-op.answer:
			if got.refused == nil || !got.refused.Retryable {
				return got, nil
			}
		}
		if !pause(ctx, backoff(tries, askAgainFirst, askAgainMax)) {
			return answer{}, context.Cause(ctx)
		}
		o.again(op)
	}
}

func (o *operations) begin(body workerv1.ClientBody) *operation {
	op := &operation{id: newID(), body: body, answer: make(chan answer, 1)}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun++
	op.order = o.begun
	o.waiting[op.id] = op
	o.send(op)
	return op
}

func (o *operations) again(op *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.send(op)
}

func (o *operations) end(op *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.waiting, op.id)
}

// send hands an operation to the link, unless it is under way or there is none.
func (o *operations) send(op *operation) {
	if o.link == nil || op.link != nil || len(op.answer) > 0 {
		return
	}
	op.link, op.sentAt = o.link, time.Now()
	o.link.push(workerv1.ClientFrame{MessageID: op.id, SessionID: o.link.welcome.SessionID, Body: op.body})
}

// attach begins a session: what has no answer yet is sent on it, oldest first.
func (o *operations) attach(l *link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.link, o.heardAt = l, time.Now()
	for _, op := range slices.SortedFunc(maps.Values(o.waiting), func(a, b *operation) int { return cmp.Compare(a.order, b.order) }) {
		o.send(op)
	}
	close(o.next)
	o.next = make(chan struct{})
}

// detach ends the session. Answers that still come from its link are dropped.
func (o *operations) detach() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.link = nil
	for _, op := range o.waiting {
		op.link = nil
	}
}

// nextSession is closed when a session later than the current one begins.
func (o *operations) nextSession() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next
}

// deliver gives an answer to the operation that waits for it on this link. It
// says no if the answer is not of the kind that was asked for.
func (o *operations) deliver(l *link, id workerv1.ID, got answer) (fits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.waiting[id]
	if op == nil || op.link != l {
		return true // an operation that was given up, or a second answer
	}
	if got.refused == nil && !answers(op.body, got.ack) {
		return false
	}
	got.sentAt, got.later = op.sentAt, o.next
	op.link, o.heardAt = nil, time.Now()
	op.answer <- got // has room: it was empty when the operation was sent
	return true
}

func answers(body workerv1.ClientBody, ack *workerv1.Ack) bool {
	switch body.(type) {
	case *workerv1.Capacity:
		return ack.Welcome != nil
	case *workerv1.Resume:
		return ack.Lease != nil
	}
	return ack.Result != nil
}

// silence is for how long the oldest operation under way has had no answer, and
// quiet for how long none has come at all.
func (o *operations) silence() (oldest, quiet time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, op := range o.waiting {
		if op.link != nil {
			oldest = max(oldest, now.Sub(op.sentAt))
		}
	}
	return oldest, now.Sub(o.heardAt)
}

func newID() (id workerv1.ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

func newSecret() (secret workerv1.Secret) {
	_, _ = rand.Read(secret[:])
	return secret
}
