package cluster

import (
	"context"
	"strconv"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
)

// ReadIndex is the log index that another node's state has to reach for a
// linearizable read there: everything acknowledged before the call is at or
// below it. Only the node in office knows it; errors are *schema.Error.
func (n *Node) ReadIndex(ctx context.Context) (uint64, error) {
	if err := n.linearize(ctx); err != nil {
		return 0, err
	}
	// What was committed when the call came is applied here. The applied index
	// names a real entry, so every other machine reaches it too; an entry of
	// raft's own, which the commit index may name, never reaches a machine.
	return n.cfg.Machine.AppliedIndex(), nil
}

// ReadAt answers from this node's state once it has reached a log index that
// ReadIndex gave elsewhere.
func (n *Node) ReadAt(ctx context.Context, index uint64, q *pb.Query) (*pb.Answer, error) {
	if err := n.applier.seen.wait(ctx, index); err != nil {
		return nil, expired(ctx, "before what is committed was applied here")
	}
	if err := n.awaitIndex(ctx, q.GetMinIndex()); err != nil {
		return nil, err
	}
	n.counters.ReadsVerified.Add(1)
	answer := n.cfg.Machine.Query(q)
	answer.Term = n.raft.CurrentTerm()
	return answer, nil
}

// LeaderID names who leads as far as this node knows; empty if nobody does.
func (n *Node) LeaderID() string {
	_, id := n.raft.LeaderWithID()
	return string(id)
}

// LeaderChanges is told when another leader, or none, is known. One that is not waited
// for is lost: ask LeaderID for the newest. stop ends it.
func (n *Node) LeaderChanges() (changes <-chan raft.Observation, stop func()) {
	seen := make(chan raft.Observation, 1)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, is := o.Data.(raft.LeaderObservation)
		return is
	})
	n.raft.RegisterObserver(observer)
	return seen, func() { n.raft.DeregisterObserver(observer) }
}

// LastLogTerm is the term of the last entry of this node's log.
func (n *Node) LastLogTerm() uint64 {
	term, err := strconv.ParseUint(n.raft.Stats()["last_log_term"], 10, 64)
	if err != nil {
		return 0
	}
	return term
}
