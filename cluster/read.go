package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// nudgeAfter is how long a read waits for its index before it asks for an entry
// to be proposed: the newest committed entry may be one of raft's own, which
// never reaches apply.
const nudgeAfter = 50 * time.Millisecond

// Query answers from this node's state, as fresh as the query asks. Errors are
// *schema.Error: not_leader, unavailable, deadline_expired.
func (n *Node) Query(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	age := time.Duration(0)
	switch q.GetConsistency() {
	case pb.Consistency_CONSISTENCY_STALE:
		n.counters.ReadsStale.Add(1)
		age = n.sinceContact()
	default:
		n.counters.ReadsVerified.Add(1)
		if err := n.linearize(ctx); err != nil {
			return nil, err
		}
	}
	if err := n.awaitIndex(ctx, q.GetMinIndex()); err != nil {
		return nil, err
	}
	answer := n.cfg.Machine.Query(q)
	answer.AgeMs = age.Milliseconds()
	return answer, nil
}

// linearize returns once the state here holds everything that was acknowledged
// anywhere before the call: what was committed when the call arrived has to be
// applied, and this node must still have been the leader after that moment, in
// a term whose opening entry is applied.
func (n *Node) linearize(ctx context.Context) error {
	o := n.office.Load()
	if o == nil {
		return n.notLeader()
	}
	index := n.raft.CommitIndex()
	if err := n.verifier.verify(ctx); err != nil {
		if ctx.Err() != nil {
			return expired(ctx, "before leadership was verified")
		}
		return readError(err)
	}
	if n.office.Load() != o || n.raft.CurrentTerm() != o.term {
		return n.notLeader()
	}
	nudge := time.AfterFunc(nudgeAfter, o.proposer.wantEntry)
	defer nudge.Stop()
	if err := n.applier.seen.wait(ctx, index); err != nil {
		return expired(ctx, "before what is committed was applied")
	}
	return nil
}

// awaitIndex waits until the index, as clients see it, is applied here. One
// below the fence base is of an older incarnation and long past.
func (n *Node) awaitIndex(ctx context.Context, index uint64) error {
	base := n.cfg.Machine.FenceBase()
	if index <= base {
		return nil
	}
	if err := n.applier.seen.wait(ctx, index-base); err != nil {
		return expired(ctx, "before the index asked for was applied here")
	}
	return nil
}

// sinceContact is how old the state here may be: 0 in office.
func (n *Node) sinceContact() time.Duration {
	if n.raft.State() == raft.Leader {
		return 0
	}
	last := n.raft.LastContact()
	if last.IsZero() {
		last = n.started
	}
	return time.Since(last)
}

func (n *Node) notLeader() *schema.Error {
	_, leader := n.raft.LeaderWithID()
	switch {
	case leader == "":
		return failf(schema.NotLeader, "this node does not lead, and knows no leader")
	case string(leader) == n.cfg.ID:
		return failf(schema.NotLeader, "this node is still opening its term")
	}
	return failf(schema.NotLeader, "this node does not lead, %s does", leader)
}

// verifier shares verifications of leadership among reads. A read joins the
// next verification, never one that is under way: that one may have been
// answered by the others before the read arrived.
type verifier struct {
	ask    func(ctx context.Context) error
	rounds func() // counts
	wake   chan struct{}

	mu   sync.Mutex
	next *round
	over error // set at the end of run
}

type round struct {
	done chan struct{}
	err  error // readable once done is closed
}

// verify returns after a verification that began during the call.
func (v *verifier) verify(ctx context.Context) error {
	v.mu.Lock()
	if v.over != nil {
		v.mu.Unlock()
		return v.over
	}
	if v.next == nil {
		v.next = &round{done: make(chan struct{})}
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
	r := v.next
	v.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run holds one verification after the other until the context ends, and then
// fails those who still wait.
func (v *verifier) run(ctx context.Context) {
	for {
		select {
		case <-v.wake:
		case <-ctx.Done():
			v.finish(errors.New("the node is shutting down"))
			return
		}
		v.mu.Lock()
		r := v.next
		v.next = nil
		v.mu.Unlock()
		v.rounds()
		r.err = v.ask(ctx)
		close(r.done)
	}
}

func (v *verifier) finish(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = err
	if v.next != nil {
		v.next.err = err
		close(v.next.done)
		v.next = nil
	}
}
