package cluster

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// A term that could not be opened, or a duty that failed, is tried again
	// after a pause that doubles between these.
	pauseMin = 100 * time.Millisecond
	pauseMax = 30 * time.Second
	// steadyAfter is how long a duty has to run for its pause to start small
	// again.
	steadyAfter = time.Minute
	// patience is how long a duty may take to end before it is complained of.
	patience = 5 * time.Second
)

// office is one term of leadership of this node. It exists from the moment raft
// reports leadership until all that ran in its name has ended; it serves between
// the application of its opening entry and the loss.
type office struct {
	node     *Node
	term     uint64
	proposer *proposer
	returned chan struct{} // capacity 1: an entry has come back, for the due items
	applied  chan struct{} // the same for the herald
	logger   *slog.Logger
	duties   []*dutyState
}

// dutyState is what Status tells of a duty.
type dutyState struct {
	Duty
	running  atomic.Bool
	restarts atomic.Int64
	failure  atomic.Pointer[string]
}

// follow opens an office whenever raft reports leadership and closes it when it
// reports the loss. Reports coalesce: leadership after leadership means that it
// was lost in between, so the office is closed and opened anew.
func (n *Node) follow(ctx context.Context) {
	leads := n.cfg.leads(n.raft)
	leave := func() {}
	defer func() { leave() }()
	for {
		select {
		case <-ctx.Done():
			return
		case leading := <-leads:
			leave()
			leave = func() {}
			if leading {
				leave = n.enter(ctx)
			}
		}
	}
}

// enter starts an office and returns what ends and awaits it.
func (n *Node) enter(ctx context.Context) (leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	n.applier.inOffice.Store(true)
	var running sync.WaitGroup
	running.Go(func() { n.hold(ctx) })
	return func() {
		n.applier.inOffice.Store(false)
		cancel()
		running.Wait()
	}
}

// hold opens the term, trying until it succeeds or leadership ends, and serves.
func (n *Node) hold(ctx context.Context) {
	for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
		o := n.newOffice()
		err := o.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		n.logger.Warn("the term could not be opened, trying again", "term", o.term, "error", err, "pause", pause)
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (n *Node) newOffice() *office {
	// Should this be the term of a newer leader already, apply refuses what is
	// proposed in it: the log's entries can only carry a term of ours.
	term := n.raft.CurrentTerm()
	n.applier.era.begin(term, 0) // what is of it is our own
	o := &office{
		node:     n,
		term:     term,
		returned: make(chan struct{}, 1),
		applied:  make(chan struct{}, 1),
		logger:   n.logger.With("term", term),
	}
	o.proposer = &proposer{
		term:        term,
		log:         n.raft,
		now:         n.clock.Now,
		admission:   n.cfg.IsAdmission,
		counters:    &n.counters,
		returned:    o.entryReturned,
		judge:       n.judge,
		inFlightMax: n.cfg.EntriesInFlight,
		commandsMax: n.cfg.QueueCommands,
		bytesMax:    n.cfg.QueueBytes,
		work:        make(chan struct{}, 1),
		queue:       list.New(),
		inFlight:    map[*entry]struct{}{},
	}
	own := []Duty{{Name: "due items", Run: o.tick}, {Name: "commit index", Run: o.herald}}
	if n.cfg.Members != nil {
		own = append(own, Duty{Name: "servers", Run: o.lookAfterServers})
	}
	for _, d := range slices.Concat(own, n.cfg.Duties) {
		o.duties = append(o.duties, &dutyState{Duty: d})
	}
	return o
}

// refusals remembers since when raft has refused every entry because of a
// transfer of leadership.
type refusals struct {
	mu    sync.Mutex
	since time.Time // zero: it has not
}

// transferTerms is how many election timeouts a transfer may take. Raft gives
// one up after a single one; but one that failed at the wrong moment leaves a
// leader that refuses every entry for good, and only a restart helps it.
const transferTerms = 3

// judge looks at how raft answered an entry and ends the process of a leader
// that can never write again.
func (n *Node) judge(err error) {
	r := &n.refused
	r.mu.Lock()
	switch {
	case !errors.Is(err, raft.ErrLeadershipTransferInProgress):
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = time.Now()
	}
	stuck := !r.since.IsZero() && time.Since(r.since) > transferTerms*n.cfg.ElectionTimeout
	r.mu.Unlock()
	if stuck && !n.closing.Load() {
		n.watchdog.Fatal("take an entry", err)
	}
}

func (o *office) entryReturned() {
	for _, c := range []chan struct{}{o.returned, o.applied} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// serve opens the term and then works until the context ends. It returns after
// everything it started. An error means that the term was not opened.
func (o *office) serve(ctx context.Context) error {
	defer o.node.clock.Close() // after the proposer, which reads it
	// The proposer runs under a context of its own: it has to finish what the
	// duties wait for.
	proposing, stop := context.WithCancel(context.Background())
	var proposer sync.WaitGroup
	proposer.Go(func() { o.proposer.run(proposing) })
	defer proposer.Wait()
	defer stop()
	defer o.proposer.close(failf(schema.NotLeader, "this node no longer leads"), false)

	if err := o.open(ctx); err != nil {
		return err
	}
	o.node.counters.Offices.Add(1)
	o.node.office.Store(o)
	o.logger.Info("leading")

	var duties sync.WaitGroup
	for _, d := range o.duties {
		duties.Go(func() { o.work(ctx, d) })
	}
	<-ctx.Done()
	o.node.office.CompareAndSwap(o, nil)
	o.logger.Info("no longer leading")
	o.proposer.close(failf(schema.NotLeader, "this node no longer leads"), false)
	o.awaitDuties(&duties)
	return nil
}

// open applies everything of earlier terms, reads the clock, and commits the
// opening entry.
func (o *office) open(ctx context.Context) error {
	err := await(ctx, o.node.raft.Barrier(0))
	o.node.judge(err)
	if err != nil {
		return fmt.Errorf("apply the entries of earlier terms: %w", err)
	}
	if err := o.checkWall(ctx); err != nil {
		return err
	}
	o.node.clock.Open()
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return fmt.Errorf("make a command id: %w", err)
	}
	results, err := o.proposer.propose(ctx, []*pb.Command{{
		Id:     id,
		Caller: &pb.Caller{Principal: "node/" + o.node.cfg.ID},
		Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{
			NodeId:    o.node.cfg.ID,
			ClusterId: o.node.cfg.ClusterID,
		}},
	}})
	if err != nil {
		return fmt.Errorf("opening entry: %w", err)
	}
	if r := results[0]; r.Code != "" {
		return fmt.Errorf("opening entry refused: %w", &schema.Error{Code: schema.Code(r.Code), Message: r.Message})
	}
	return nil
}

// awaitDuties waits for the duties, however long it takes: two of one kind must
// never run at once.
func (o *office) awaitDuties(duties *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		duties.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		case <-time.After(patience):
			for _, d := range o.duties {
				if d.running.Load() {
					o.logger.Warn("a duty does not end after the loss of leadership", "duty", d.Name)
				}
			}
		}
	}
}

// work runs a duty for as long as the office lasts.
func (o *office) work(ctx context.Context, d *dutyState) {
	pause := pauseMin
	for {
		began := time.Now()
		d.running.Store(true)
		err := d.Run(ctx, o.term)
		d.running.Store(false)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		text := err.Error()
		d.failure.Store(&text)
		d.restarts.Add(1)
		o.node.counters.DutyRestarts.Add(1)
		if time.Since(began) >= steadyAfter {
			pause = pauseMin
		}
		o.logger.Warn("a duty failed and is run again", "duty", d.Name, "error", err, "pause", pause)
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, pauseMax)
	}
}

const (
	// tickLook is how often a far due time is looked at again: the leader's
	// clock is slewed while a timer runs, by 8 ms in this time.
	tickLook = 10 * time.Second
	// tickRest is kept between two ticks for the same due time: should one not
	// have settled it, the log is not flooded.
	tickRest = 100 * time.Millisecond
)

// tick is the duty that lets time pass: it proposes an empty entry when
// something is due, or was left over by the bounds of an entry, and nothing
// else flows that would do the same. At most one tick is on its way.
func (o *office) tick(ctx context.Context, _ uint64) error {
	lastDue := int64(0)
	for {
		wait, due := o.untilTick()
		if wait == 0 && due != 0 {
			if due == lastDue && !sleep(ctx, tickRest) {
				return nil
			}
			lastDue = due
		}
		if wait == 0 {
			o.proposer.wantEntry()
		}
		if !o.awaitEntry(ctx, wait) {
			return nil
		}
	}
}

// forEver waits for the next entry alone.
const forEver = time.Duration(math.MaxInt64)

// untilTick is how long to wait before an entry is wanted; 0 is now. due is the
// item it is wanted for, 0 if something was left over.
func (o *office) untilTick() (wait time.Duration, due int64) {
	m := o.node.cfg.Machine
	if o.proposer.busy() {
		return forEver, 0 // that entry will do, and is followed by another look
	}
	if m.Pending() {
		return 0, 0
	}
	due, ok := m.NextDue()
	if !ok {
		return tickLook, 0
	}
	ahead := time.Duration(due-o.node.clock.Now()) * time.Microsecond
	return min(max(ahead, 0), tickLook), due
}

// awaitEntry waits until an entry has come back or the time has passed; after a
// wait of 0 an entry was asked for and is waited for. It returns false at the
// end of the context.
func (o *office) awaitEntry(ctx context.Context, wait time.Duration) bool {
	if wait == 0 {
		wait = forEver
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-o.returned:
		return true
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep waits and returns false if the context ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
