package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"pulse/schema"
)

// The two kinds of failure are never mixed up: a code of "nothing happened" is
// given only where the command has certainly not reached the log, and
// result_unknown everywhere else.

func failf(code schema.Code, format string, args ...any) *schema.Error {
	return &schema.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// proposalError gives raft's answer to a proposed entry its public meaning.
// Only three of its errors are given before the entry is dispatched. Every
// other one, an error of the log store included, leaves the outcome open: a
// write that failed may have landed, and may be replicated yet.
func proposalError(err error) *schema.Error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return failf(schema.NotLeader, "this node does not lead")
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return failf(schema.NotLeader, "this node is handing over leadership")
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return failf(schema.Unavailable, "the log takes no entries at the moment")
	}
	return failf(schema.ResultUnknown, "the entry was handed to the log and its outcome is not known: %v", err)
}

// readError gives a failed verification of leadership its public meaning. A
// read changes nothing, so nothing is ever unknown about it.
func readError(err error) *schema.Error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return failf(schema.NotLeader, "this node does not lead")
	}
	return failf(schema.Unavailable, "leadership could not be verified: %v", err)
}

// expired is the error of a call whose context ended while nothing had
// happened yet.
func expired(ctx context.Context, what string) *schema.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return failf(schema.DeadlineExpired, "the deadline passed %s", what)
	}
	return failf(schema.DeadlineExpired, "the caller gave up %s", what)
}

// await waits for a future no longer than the context allows. Raft answers no
// futures that were still queued when it shut down; the goroutine that waits
// for such a one is lost with it, at the end of the process.
func await(ctx context.Context, f raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- f.Error() }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
