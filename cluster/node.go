package cluster

import (
	"context"
	"errors"
	"io"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// Node is one raft server.
type Node struct{}

var errNotYet = errors.New("cluster: under construction")

// Open starts a node on its directory. The machine stays the caller's, who
// closes it after the node.
func Open(cfg Config) (*Node, error) { return nil, errNotYet }

// Propose commits commands and returns their results in order, once applied
// here. Errors are *schema.Error: not_leader, unavailable, too_large and
// deadline_expired promise that nothing happened, result_unknown promises
// nothing. When the call needed several entries and they fared differently, the
// Results say so one by one. The commands belong to the node from now on.
func (n *Node) Propose(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	return nil, errNotYet
}

// Query answers from this node's state, as fresh as the query asks. Errors are
// *schema.Error.
func (n *Node) Query(ctx context.Context, q *pb.Query) (*pb.Answer, error) { return nil, errNotYet }

// Backup writes a snapshot of the state as a stream and verifies what it wrote.
// After an error w holds nothing that is to be kept.
func (n *Node) Backup(ctx context.Context, w io.Writer) (state.Header, error) {
	return state.Header{}, errNotYet
}

// Status describes the node.
func (n *Node) Status() Status { return Status{} }

// Close leaves office and stops the node.
func (n *Node) Close(ctx context.Context) error { return nil }
