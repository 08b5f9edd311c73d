package session

import (
	"context"

	pb "pulse/proto/pulse/v1"
)

// Backend is the way from a gateway to the replicated state. cmd/node fills it
// with rpc.Router; tests write their own.
type Backend interface {
	// Submit hands commands to the leader and waits until they are applied.
	// The results are in the order of the commands, one each; a refusal is a
	// Result with a code. An error is a *schema.Error for the whole call:
	// result_unknown if anything may have happened, any other code if nothing
	// has. When only some outcomes are unknown, those Results carry the code
	// result_unknown. Commands of one call are applied in their order. When ctx
	// ends Submit returns, whatever becomes of the commands. The commands belong
	// to the callee from now on.
	Submit(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error)

	// Read answers one query as fresh as its consistency level asks. A refusal
	// is an Answer with a code, an error a *schema.Error (no_leader,
	// unavailable, deadline_expired).
	Read(ctx context.Context, q *pb.Query) (*pb.Answer, error)

	// Subscribe wakes the caller after entries that committed a change of the
	// task, or of anything if taskID is empty. Wake-ups coalesce; the caller
	// then reads. cancel releases the subscription.
	Subscribe(taskID []byte) (wake <-chan struct{}, cancel func())

	// AppliedIndex is the newest index (fence_base + log index) this node
	// knows to be applied; it only grows. A command submitted after the call
	// is applied at a larger one.
	AppliedIndex() uint64
}
