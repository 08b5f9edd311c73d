package session

import (
	"context"
	"runtime"
	"sync"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Reply takes the answer to one command: a result that succeeded, or why there
// is none. It is called once, must not wait for the peer, and may be called
// before the command's method has returned.
type Reply func(*pb.Result, *schema.Error)

// pipeline carries the commands of one connection. A commit takes as long for
// one command as for many, so a worker with many slots must not wait for one
// answer before the next question is asked. What arrived together goes out
// together; a batch under way does not hold up the next, except for commands
// about the same attempt, whose order is the order in which they were given.
type pipeline struct {
	hub   *Hub
	slots chan struct{} // taken by every unanswered command
	group sync.WaitGroup

	mu       sync.Mutex
	shut     bool
	queue    []*call           // in the order given
	busy     map[schema.ID]int // keys with commands under way
	running  int               // goroutines that carry batches
	starting int               // those of them that have not looked at the queue yet
}

// call is one command on its way. Calls with equal keys keep their order.
type call struct {
	key   schema.ID
	cmd   *pb.Command // the backend's once submitted
	reply Reply
	calm  bool // it may wait for those of other connections, see gathering
}

const (
	callsInBatchMax = 64
	batchesMax      = 8 // under way for one connection
)

func (p *pipeline) init(h *Hub) {
	p.hub = h
	p.slots = make(chan struct{}, h.cfg.InFlightMax)
	p.busy = make(map[schema.ID]int)
}

// add takes a command in, as soon as the connection has a slot free. ctx ends
// the wait, and carries the command; it should outlive the connection's
// request, because a finish counts even if nobody waits for its answer.
func (p *pipeline) add(ctx context.Context, c *call) {
	if refusal := p.enter(ctx); refusal != nil {
		c.reply(nil, refusal)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, c)
	if p.busy[c.key] == 0 {
		p.start(ctx)
	}
}

// aside runs fn beside the commands, in a slot of its own.
func (p *pipeline) aside(ctx context.Context, reply Reply, fn func() (*pb.Result, *schema.Error)) {
	if refusal := p.enter(ctx); refusal != nil {
		reply(nil, refusal)
		return
	}
	p.group.Go(func() {
		reply(fn())
		p.leave()
	})
}

// enter takes a slot, which counts in group until leave.
func (p *pipeline) enter(ctx context.Context) *schema.Error {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return schema.Errorf(schema.Unavailable, "the connection is closing")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		<-p.slots
		return schema.Errorf(schema.Unavailable, "the connection is closing")
	}
	p.group.Add(1)
	return nil
}

func (p *pipeline) leave() {
	<-p.slots
	p.group.Done()
}

// start adds a goroutine if the queue holds more than those on their way to it
// can carry. Called with mu held.
func (p *pipeline) start(ctx context.Context) {
	if p.running < batchesMax && p.starting*callsInBatchMax < len(p.queue) {
		p.running++
		p.starting++
		p.group.Go(func() { p.run(ctx) })
	}
}

// run carries batches until there is nothing to carry.
func (p *pipeline) run(ctx context.Context) {
	runtime.Gosched() // the reader may have more at hand; it is not waited for
	for first := true; ; first = false {
		batch := p.take(first)
		if len(batch) == 0 {
			return
		}
		cmds := make([]*pb.Command, len(batch))
		for i, c := range batch {
			cmds[i] = c.cmd
		}
		if len(batch) == 1 && batch[0].calm {
			all, place := p.hub.gathering.submit(ctx, cmds[0])
			batch[0].reply(outcome(all.results, place, len(all.cmds), all.err))
			p.done(batch)
			continue
		}
		results, err := p.hub.carry(ctx, cmds)
		for i, c := range batch {
			c.reply(outcome(results, i, len(batch), err))
		}
		p.done(batch)
	}
}

// carry submits a batch of what workers say, and counts it.
func (h *Hub) carry(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	h.counters.Commands.Add(uint64(len(cmds)))
	h.counters.Batches.Add(1)
	return h.submit(ctx, cmds)
}

func (h *Hub) submit(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.CommandWithin)
	defer cancel()
	return h.cfg.Backend.Submit(ctx, cmds)
}

// take picks what can go now, in order. A call whose key is under way in
// another batch stays, and with it all later ones of that key.
func (p *pipeline) take(first bool) []*call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first {
		p.starting--
	}
	var batch []*call
	rest := p.queue[:0]
	for _, c := range p.queue {
		if len(batch) < callsInBatchMax && (p.busy[c.key] == 0 || holds(batch, c.key)) {
			batch = append(batch, c)
			p.busy[c.key]++
		} else {
			rest = append(rest, c)
		}
	}
	clear(p.queue[len(rest):])
	p.queue = rest
	if len(batch) == 0 {
		p.running-- // whoever has the busy keys comes back here
	}
	return batch
}

func holds(batch []*call, key schema.ID) bool {
	for _, c := range batch {
		if c.key == key {
			return true
		}
	}
	return false
}

// done frees the keys and slots of a batch.
func (p *pipeline) done(batch []*call) {
	p.mu.Lock()
	for _, c := range batch {
		if p.busy[c.key]--; p.busy[c.key] == 0 {
			delete(p.busy, c.key)
		}
	}
	p.mu.Unlock()
	for range batch {
		p.leave()
	}
}

// drain takes nothing new and waits until everything is answered.
func (p *pipeline) drain() {
	p.mu.Lock()
	p.shut = true
	p.mu.Unlock()
	p.group.Wait()
}
