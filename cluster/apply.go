package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"pulse/cluster/clock"
	"pulse/fsm"
)

// applier stands between raft and the machine. Raft calls it from its one
// apply goroutine; before raft exists Open uses it to restore a snapshot.
type applier struct {
	machine  Machine
	snaps    *snapshotStore
	clock    *clock.Leader
	watchdog *Watchdog
	counters *Counters
	logger   *slog.Logger
	onApply  func(fsm.Outcome, bool)
	restored func()
	durable  func(index uint64) error // waits until the log has the entry on this disk

	// replayTo is the last index of the log when the process started: entries
	// up to there are not news.
	replayTo uint64
	era      era
	inOffice atomic.Bool           // written by the goroutine that follows leadership
	last     atomic.Pointer[place] // the last entry that the machine has applied in office
	seen     gate
}

var (
	_ raft.BatchingFSM = (*applier)(nil)
	_ raft.FSMSnapshot = (*checkpoint)(nil)
)

// era tells which entries were made while this process lived: those that the first
// leader it heard of had not committed by then, and those of later terms. Others may
// be as old as their time says, and new to this server for all that: it was away when
// they were made, or nobody led for long and they were not committed.
type era struct {
	mu    sync.Mutex
	term  uint64 // 0: it has heard of no leader
	after uint64
}

// begin notes that a leader in a term is heard of, and what it has committed.
func (e *era) begin(term, committed uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == 0 {
		e.term, e.after = term, committed
	}
}

func (e *era) made(l *raft.Log) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term != 0 && (l.Term > e.term || l.Term == e.term && l.Index > e.after)
}

// ApplyBatch applies committed entries in order. The answer to a command is
// *fsm.Outcome. What this server as a leader has yet to write itself is waited for:
// see aheadLog. If it never will be, nothing is applied any more and no answer given.
func (a *applier) ApplyBatch(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	if err := a.durable(logs[len(logs)-1].Index); err != nil {
		return answers
	}
	for i, l := range logs {
		answers[i] = a.Apply(l)
	}
	return answers
}

// Apply applies one committed entry. Configurations are raft's own business;
// other kinds never get here.
func (a *applier) Apply(l *raft.Log) any {
	if l.Type != raft.LogCommand {
		a.seen.advance(l.Index)
		return nil
	}
	if l.Index <= a.machine.AppliedIndex() {
		a.counters.EntriesSkipped.Add(1)
		return nil
	}
	end := a.watchdog.Begin("apply an entry")
	defer a.brokenStore()
	began := time.Now()
	o := a.machine.Apply(l.Index, l.Term, l.Data)
	a.counters.Apply.observe(time.Since(began))
	end()
	a.counters.EntriesApplied.Add(1)
	a.clock.Applied(o.Time, l.Index > a.replayTo && a.era.made(l))
	inOffice := a.inOffice.Load()
	if inOffice {
		a.last.Store(&place{l.Index, l.Term})
	}
	a.onApply(o, inOffice)
	a.seen.advance(l.Index)
	return &o
}

// brokenStore turns a panic of the machine that comes from its disk into the end
// that every failed store has: connections are closed, and the log says what to
// do instead of where the code was. Any other panic is a broken invariant and
// goes on as it is.
func (a *applier) brokenStore() {
	r := recover()
	if r == nil {
		return
	}
	var errno syscall.Errno
	if err, ok := r.(error); ok && errors.As(err, &errno) {
		a.watchdog.Fatal("write the state", err)
	}
	panic(r)
}

// checkpoint is a snapshot between the apply goroutine, which made it, and
// raft's snapshot goroutine, which persists it.
type checkpoint struct{ staged *staged }

// Snapshot begins a checkpoint of the state as it is after the last entry.
func (a *applier) Snapshot() (raft.FSMSnapshot, error) {
	began := time.Now()
	s, err := a.snaps.stage(a.machine)
	if err != nil {
		return nil, err
	}
	a.counters.SnapshotTime.observe(time.Since(began))
	a.counters.Snapshots.Add(1)
	return &checkpoint{staged: s}, nil
}

// Persist makes the snapshot durable. The machine's own store went first, with the
// checkpoint: once the snapshot is reported raft drops entries from the log, and
// what they changed must not be in memory alone.
func (c *checkpoint) Persist(sink raft.SnapshotSink) error {
	into, ok := sink.(*snapshotSink)
	if !ok {
		return fmt.Errorf("snapshot sink is a %T", sink)
	}
	return into.adopt(c.staged)
}

// Release drops a checkpoint that was not persisted.
func (c *checkpoint) Release() { c.staged.discard() }

// Restore replaces the state by a snapshot from the store, sent by the leader
// or handed in by an operator.
func (a *applier) Restore(rc io.ReadCloser) error {
	for {
		w, ok := rc.(raft.ReadCloserWrapper)
		if !ok {
			break
		}
		rc = w.WrappedReadCloser()
	}
	s, ok := rc.(*snapshotReader)
	if !ok {
		return fmt.Errorf("snapshot reader is a %T", rc)
	}
	var err error
	if dir, header, ok := s.fresh(); ok {
		err = a.machine.RestoreStore(dir, header, s.meta.Index)
	} else {
		// Without the pace of a copy: this server takes part in nothing before it has its state.
		err = a.machine.Restore(s.ReadCloser, s.meta.Index)
	}
	if err != nil {
		if errors.Is(err, fsm.ErrFormatLevel) {
			panic(err) // as an entry of that level would: the leader must not send it for ever
		}
		return errors.Join(err, s.damage())
	}
	a.counters.Restores.Add(1)
	a.logger.Info("state restored from a snapshot", "snapshot", s.meta.ID, "index", s.meta.Index)
	a.clock.Applied(a.machine.Clock(), false)
	a.restored()
	a.seen.advance(s.meta.Index)
	return nil
}

// gate lets callers wait until an index has been applied.
type gate struct {
	index atomic.Uint64

	mu      sync.Mutex
	waiting map[*gateWait]struct{}
}

type gateWait struct {
	index uint64
	open  chan struct{}
}

// advance is called by the apply goroutine, after the state can be read.
func (g *gate) advance(index uint64) {
	if index <= g.index.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.index.Store(index)
	for w := range g.waiting {
		if w.index <= index {
			delete(g.waiting, w)
			close(w.open)
		}
	}
}

// wait returns once the index is applied. How many wait is bounded by those
// who bound their callers.
func (g *gate) wait(ctx context.Context, index uint64) error {
	if g.index.Load() >= index {
		return nil
	}
	g.mu.Lock()
	if g.index.Load() >= index {
		g.mu.Unlock()
		return nil
	}
	w := &gateWait{index, make(chan struct{})}
	if g.waiting == nil {
		g.waiting = map[*gateWait]struct{}{}
	}
	g.waiting[w] = struct{}{}
	g.mu.Unlock()
	select {
	case <-w.open:
		return nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.waiting, w)
		return ctx.Err()
	}
}
