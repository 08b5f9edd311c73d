package cluster

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Bounds of one entry. A single command above the byte limit forms an entry of
// its own, up to commandBytesMax: what is larger is no command of ours, and
// raft would carry it to every node in one piece.
const (
	entryCommandsMax = 512
	entryBytesMax    = 256 << 10
	commandBytesMax  = 16 << 20
)

// companyWait is how long what every gateway or idle worker says now and then waits for
// the same of the others, if nothing else is to be written: what comes at one moment
// is one entry, and none for each.
const companyWait = 25 * time.Millisecond

// isPatient says that nobody minds if all of these commands are written a moment later.
func isPatient(commands []*pb.Command) bool {
	for _, cmd := range commands {
		switch body := cmd.GetBody().(type) {
		case *pb.Command_ReportGateway:
			if body.ReportGateway.GetLeaving() {
				return false
			}
		case *pb.Command_SetCapacity:
		default:
			return false
		}
	}
	return true
}

// entryLog is raft as the proposer sees it.
type entryLog interface {
	Apply(data []byte, timeout time.Duration) raft.ApplyFuture
}

// proposer joins the commands that arrived while the entry before was on its
// way into the next one: batches grow with the load, and a lone command never
// waits for company, unless it is one that may (isPatient). There is one proposer for
// each office; its term is in
// every entry, and apply refuses an entry that meets another term in the log.
//
// Commands of one call stay in order, over several entries if need be; once one
// of these entries fails, the rest of the call is not proposed any more.
type proposer struct {
	term      uint64
	log       entryLog
	now       func() int64
	admission func(*pb.Command) bool
	counters  *Counters
	returned  func()      // called after each entry has come back
	judge     func(error) // told how the log answered

	inFlightMax int
	commandsMax int
	bytesMax    int

	work    chan struct{} // capacity 1: look again
	sending sync.Mutex    // held from taking an entry until the log has it: entries keep their order

	mu       sync.Mutex
	queue    *list.List  // of *call: those with commands not handed over yet
	commands int         // waiting in queue
	bytes    int         // waiting in queue
	urgent   int         // calls in queue that are not patient
	company  *time.Timer // makes what is patient wanted; nil: it is not set
	wanted   bool        // what is patient has waited
	tick     bool        // an entry is wanted even without commands
	inFlight map[*entry]struct{}
	closed   *schema.Error // what newcomers are told; nil while open
	idle     chan struct{} // closed once nothing is queued or in flight; nil: nobody waits
}

// call is one caller's commands. All fields are guarded by proposer.mu until
// done is closed or the caller has abandoned the call.
type call struct {
	commands []*pb.Command
	sizes    []int
	results  []*pb.Result
	next     int  // first command not handed over
	open     int  // commands without result
	failed   int  // results that say what became of the proposal, not what apply said
	gone     bool // nobody waits any more
	patient  bool
	place    *list.Element
	done     chan struct{}
}

// part is a run of commands of a call inside an entry.
type part struct {
	call    *call
	from, n int
}

// entry is one on its way.
type entry struct {
	parts    []part
	commands []*pb.Command
}

func newCall(commands []*pb.Command) (*call, *schema.Error) {
	c := &call{
		commands: commands,
		sizes:    make([]int, len(commands)),
		results:  make([]*pb.Result, len(commands)),
		open:     len(commands),
		patient:  isPatient(commands),
		done:     make(chan struct{}),
	}
	for i, cmd := range commands {
		if c.sizes[i] = proto.Size(cmd); c.sizes[i] > commandBytesMax {
			return nil, failf(schema.TooLarge, "a command of %d bytes is above the limit of %d", c.sizes[i], commandBytesMax)
		}
	}
	return c, nil
}

func (c *call) bytes() int {
	n := 0
	for _, size := range c.sizes[c.next:] {
		n += size
	}
	return n
}

// settle gives the commands of [from, to) that have no result the same one.
func (c *call) settle(from, to int, e *schema.Error) {
	for i := from; i < to; i++ {
		if c.results[i] == nil {
			c.results[i] = &pb.Result{Code: string(e.Code), Message: e.Message}
			c.open--
			c.failed++
		}
	}
}

// outcome is what the caller gets: an error if the whole call failed in one
// way, else the results one by one.
func (c *call) outcome() ([]*pb.Result, error) {
	if c.failed < len(c.results) {
		return c.results, nil
	}
	first := c.results[0]
	for _, r := range c.results[1:] {
		if r.Code != first.Code {
			return c.results, nil
		}
	}
	return nil, failf(schema.Code(first.Code), "%s", first.Message)
}

// propose queues commands and waits for their results.
func (p *proposer) propose(ctx context.Context, commands []*pb.Command) ([]*pb.Result, error) {
	c, refusal := newCall(commands)
	if refusal != nil {
		return nil, refusal
	}
	atOnce, refusal := p.enqueue(ctx, c)
	if refusal != nil {
		return nil, refusal
	}
	if atOnce {
		p.forward() // here, instead of waking the goroutine of run
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		p.abandon(ctx, c)
	}
	return c.outcome()
}

// enqueue says whether an entry may be on its way at once. If not, the return of one
// that is on its way is what the call waits for.
func (p *proposer) enqueue(ctx context.Context, c *call) (atOnce bool, refusal *schema.Error) {
	bytes := c.bytes()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return false, expired(ctx, "before the command was proposed")
	case p.closed != nil:
		return false, p.closed
	case p.full(c, len(c.commands), bytes):
		p.counters.QueueRefused.Add(uint64(len(c.commands)))
		return false, failf(schema.Unavailable, "%d commands wait for the log already; try again", p.commands)
	}
	c.place = p.queue.PushBack(c)
	p.commands += len(c.commands)
	p.bytes += bytes
	switch {
	case !c.patient:
		p.urgent++
	case p.company == nil:
		p.company = time.AfterFunc(companyWait, p.companyCame)
	}
	return p.wants() && len(p.inFlight) < p.inFlightMax, nil
}

// companyCame is called when what is patient has waited.
func (p *proposer) companyCame() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.company, p.wanted = nil, true
	p.signal()
}

// wants says that there is something for an entry that does not wait longer. mu is held.
func (p *proposer) wants() bool {
	return p.tick || p.urgent > 0 || p.wanted && p.queue.Len() > 0
}

// unqueue takes a call out of the queue. mu is held.
func (p *proposer) unqueue(c *call) {
	p.queue.Remove(c.place)
	c.place = nil
	if !c.patient {
		p.urgent--
	}
}

// full says whether the queue has no room. A quarter of it is kept for what
// finishes work: an overload of submissions must not cost anybody's lease. An
// empty queue takes any call, however large.
func (p *proposer) full(c *call, commands, bytes int) bool {
	commandsMax, bytesMax := p.commandsMax, p.bytesMax
	for _, cmd := range c.commands {
		if p.admission(cmd) {
			commandsMax, bytesMax = commandsMax/4*3, bytesMax/4*3
			break
		}
	}
	return p.commands > 0 && (p.commands+commands > commandsMax || p.bytes+bytes > bytesMax)
}

// abandon settles what the caller will not wait for: commands not handed over
// never will be, the others are in the log's hands.
func (p *proposer) abandon(ctx context.Context, c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(c, expired(ctx, "before the command was proposed"))
	if c.open > 0 {
		p.counters.Unknown.Add(uint64(c.open))
	}
	c.settle(0, c.next, failf(schema.ResultUnknown, "the call ended while the command was on its way"))
	c.gone = true
	p.announceIdle()
}

// drop takes what is left of a call out of the queue.
func (p *proposer) drop(c *call, e *schema.Error) {
	if c.place == nil {
		return
	}
	p.unqueue(c)
	p.commands -= len(c.commands) - c.next
	p.bytes -= c.bytes()
	c.settle(c.next, len(c.commands), e)
}

// wantEntry asks for an entry even if no command waits.
func (p *proposer) wantEntry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed == nil {
		p.tick = true
		p.signal()
	}
}

// busy says that something is queued or on its way.
func (p *proposer) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Len() > 0 || p.tick || len(p.inFlight) > 0
}

func (p *proposer) signal() {
	select {
	case p.work <- struct{}{}:
	default:
	}
}

// run forms entries and hands them to the log until the context ends. Once it has
// returned, after close, nobody else does either.
func (p *proposer) run(ctx context.Context) {
	for {
		p.forward()
		select {
		case <-p.work:
		case <-ctx.Done():
			p.sending.Lock() // a caller may be at it
			defer p.sending.Unlock()
			return
		}
	}
}

// forward forms entries and hands them to the log while some are wanted and allowed.
// It does not wait for the log, which has room for all that may be on their way.
func (p *proposer) forward() {
	p.sending.Lock()
	defer p.sending.Unlock()
	for e := p.take(); e != nil; e = p.take() {
		p.send(e)
	}
}

// take forms the next entry, or returns nil if none is wanted or allowed now.
func (p *proposer) take() *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.inFlight) >= p.inFlightMax || !p.wants() {
		return nil
	}
	e := &entry{}
	bytes := 0
	var registered map[string]bool
	for p.queue.Len() > 0 && len(e.commands) < entryCommandsMax {
		c := p.queue.Front().Value.(*call)
		from := c.next
		for c.next < len(c.commands) && len(e.commands) < entryCommandsMax {
			cmd, size := c.commands[c.next], c.sizes[c.next]
			if len(e.commands) > 0 && bytes+size > entryBytesMax || !once(&registered, cmd) {
				break
			}
			e.commands = append(e.commands, cmd)
			bytes += size
			c.next++
		}
		n := c.next - from
		if n > 0 {
			e.parts = append(e.parts, part{c, from, n})
			p.commands -= n
		}
		if c.next < len(c.commands) {
			break // the entry is full, or this command has to go into the next one
		}
		p.unqueue(c)
	}
	p.bytes -= bytes
	p.tick = false
	p.wanted = p.queue.Len() > 0 // what is left over has waited for its place
	if p.company != nil {
		p.company.Stop()
		p.company = nil
	}
	p.inFlight[e] = struct{}{}
	p.counters.entry(len(e.commands), bytes)
	return e
}

// once says whether the command may share an entry with those before. A
// session's epoch is the index of its entry, so one entry registers an
// instance once; the second registration begins the next entry.
func once(registered *map[string]bool, cmd *pb.Command) bool {
	r := cmd.GetRegisterSession()
	if r == nil {
		return true
	}
	id := string(r.GetInstanceId())
	if (*registered)[id] {
		return false
	}
	if *registered == nil {
		*registered = map[string]bool{}
	}
	(*registered)[id] = true
	return true
}

// send hands the entry to raft. From here on its outcome is raft's to tell.
func (p *proposer) send(e *entry) {
	data, err := fsm.EncodeEntry(&pb.Entry{
		Format:   fsm.EntryFormat,
		Term:     p.term,
		TimeUs:   p.now(),
		Commands: e.commands,
	})
	if err != nil {
		p.complete(e, nil, failf(schema.Internal, "%v", err))
		return
	}
	began := time.Now()
	future := p.log.Apply(data, 0)
	go func() {
		// This goroutine ends with the future. See await for the only ones that
		// have no end; complete is then called by forget.
		err := future.Error()
		p.judge(err)
		if err != nil {
			p.complete(e, nil, proposalError(err))
			return
		}
		p.counters.Commit.observe(time.Since(began))
		o, ok := future.Response().(*fsm.Outcome)
		if !ok || o.Skipped || len(o.Results) != len(e.commands) {
			p.complete(e, nil, failf(schema.ResultUnknown, "the entry was committed, but its results are missing"))
			return
		}
		p.complete(e, o.Results, nil)
	}()
}

// complete hands results, or the same failure, to all callers of an entry.
func (p *proposer) complete(e *entry, results []*pb.Result, failure *schema.Error) {
	p.mu.Lock()
	if _, ok := p.inFlight[e]; !ok {
		p.mu.Unlock()
		return // forgotten
	}
	delete(p.inFlight, e)
	if failure != nil && failure.Code == schema.ResultUnknown {
		p.counters.Unknown.Add(uint64(len(e.commands)))
	}
	for _, part := range e.parts {
		c := part.call
		if failure == nil {
			if !c.gone {
				copy(c.results[part.from:], results[:part.n])
				c.open -= part.n
			}
			results = results[part.n:]
		} else {
			p.drop(c, failf(schema.NotLeader, "not proposed, because the command before it failed: %s", failure.Message))
			if !c.gone {
				c.settle(part.from, part.from+part.n, failure)
			}
		}
		if c.open == 0 && !c.gone {
			c.gone = true
			close(c.done)
		}
	}
	p.signal()
	p.announceIdle()
	p.mu.Unlock()
	p.returned()
}

// close refuses newcomers with e and, unless drain is wanted, fails what is
// queued with it. Entries on their way keep their outcome.
func (p *proposer) close(e *schema.Error, drain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = e
	if drain {
		return
	}
	p.tick = false
	for p.queue.Len() > 0 {
		c := p.queue.Front().Value.(*call)
		p.drop(c, e)
		if c.open == 0 && !c.gone {
			c.gone = true
			close(c.done)
		}
	}
	p.announceIdle()
}

// awaitIdle waits until nothing is queued or on its way.
func (p *proposer) awaitIdle(ctx context.Context) error {
	p.mu.Lock()
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.announceIdle()
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *proposer) announceIdle() {
	if p.idle != nil && p.queue.Len() == 0 && !p.tick && len(p.inFlight) == 0 {
		close(p.idle)
		p.idle = nil
	}
}

// forget gives up on entries that raft, being shut down, will not answer for.
func (p *proposer) forget() {
	p.mu.Lock()
	left := make([]*entry, 0, len(p.inFlight))
	for e := range p.inFlight {
		left = append(left, e)
	}
	p.mu.Unlock()
	for _, e := range left {
		p.complete(e, nil, proposalError(raft.ErrRaftShutdown))
	}
}
