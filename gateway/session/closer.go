package session

import (
	"context"
	"sync"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// closer reports closed sessions, many in one call when many close at once. A
// worker that is gone should stop being offered work now and not with the next
// report; the report finds what is lost here.
type closer struct {
	hub  *Hub
	wake chan struct{} // capacity 1: pending has something new

	mu      sync.Mutex
	pending map[schema.ID]closing
}

const (
	closesPendingMax = 65536 // beyond it the report does the work
	closesInBatchMax = 256
	closeTriesMax    = 5
	closeWithin      = 5 * time.Second
	closeRetryFirst  = 200 * time.Millisecond // doubled with every try
)

func (c *closer) init(h *Hub) {
	c.hub = h
	c.wake = make(chan struct{}, 1)
	c.pending = make(map[schema.ID]closing)
}

// closing is a session whose connection is gone.
type closing struct {
	session
	undeliverable bool // work came for it since
}

// add notes a session whose connection is gone.
func (c *closer) add(s closing) {
	c.mu.Lock()
	fits := len(c.pending) < closesPendingMax
	if fits {
		s.undeliverable = s.undeliverable || c.pending[s.id].undeliverable
		c.pending[s.id] = s
	}
	c.mu.Unlock()
	if !fits {
		c.hub.counters.ClosesGivenUp.Add(1)
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends. What is pending then is covered by the report that
// the gateway is leaving.
func (c *closer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		for batch := c.take(); len(batch) > 0; batch = c.take() {
			c.close(ctx, batch)
		}
	}
}

func (c *closer) take() []closing {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch []closing
	for id, s := range c.pending {
		if len(batch) == closesInBatchMax {
			break
		}
		batch = append(batch, s)
		delete(c.pending, id)
	}
	return batch
}

// close submits a batch until everything in it is answered, within bounds.
func (c *closer) close(ctx context.Context, batch []closing) {
	for try, pause := 0, closeRetryFirst; ; try, pause = try+1, 2*pause {
		left := c.submit(ctx, batch)
		c.hub.counters.ClosesReported.Add(uint64(len(batch) - len(left)))
		if len(left) == 0 || ctx.Err() != nil {
			return
		}
		if try+1 == closeTriesMax {
			c.hub.counters.ClosesGivenUp.Add(uint64(len(left)))
			c.hub.cfg.Logger.Warn("closed sessions could not be reported, the gateway's report will show them missing", "sessions", len(left))
			return
		}
		batch = left
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// submit returns the sessions without an answer.
func (c *closer) submit(ctx context.Context, batch []closing) (left []closing) {
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	cmds := make([]*pb.Command, len(batch))
	for i, s := range batch {
		cmds[i] = &pb.Command{
			Id: idBytes(newID()), NamespaceId: idBytes(s.namespace), Caller: c.hub.caller,
			Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: s.ref(), Undeliverable: s.undeliverable}},
		}
	}
	results, err := c.hub.cfg.Backend.Submit(ctx, cmds)
	for i, s := range batch {
		if _, refusal := outcome(results, i, len(batch), err); refusal != nil && undecided(refusal.Code) {
			left = append(left, s)
		}
	}
	return left
}

// undecided says that the state has not looked at the command, or that nobody
// knows. Any other refusal is an answer: the session is not what it was.
func undecided(code schema.Code) bool {
	switch code {
	case schema.NotLeader, schema.NoLeader, schema.Unavailable, schema.DeadlineExpired, schema.ResultUnknown, schema.RateLimited:
		return true
	default:
		return false
	}
}
