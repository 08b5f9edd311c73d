package httpapi

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strconv"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// read asks the backend and tells the freshness of its answer in headers. A
// refusal comes back as an error.
func (e *exchange) read(q *pb.Query) (*pb.Answer, error) {
	e.freshness(q)
	if err := e.query.err(); err != nil {
		return nil, err
	}
	answer, err := e.ask(q)
	if answer != nil {
		e.freshnessHeaders(answer, q.Consistency)
	}
	return answer, err
}

// ask is read without parameters and headers, for reads behind the first.
func (e *exchange) ask(q *pb.Query) (*pb.Answer, error) {
	if q.Namespace == "" {
		q.Namespace = e.ns
	}
	q.Caller = e.from
	ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
	defer cancel()
	answer, err := e.h.opt.Backend.Read(ctx, q)
	if err != nil {
		return nil, e.callError(err)
	}
	e.index = max(e.index, answer.Index)
	if answer.Code != "" {
		return answer, &schema.Error{Code: schema.Code(answer.Code), Message: answer.Message}
	}
	return answer, nil
}

// follow is a read behind an earlier one, after a wake-up. What this node has
// applied is enough: it is never older than what was read before, and what woke
// us is in it. Asking the leader each time would cost every waiter a round trip
// for every change.
func (e *exchange) follow(q *pb.Query) (*pb.Answer, error) {
	q.Consistency, q.MinIndex = pb.Consistency_CONSISTENCY_STALE, e.index
	return e.ask(q)
}

// freshnessHeaders name the level of an answer and what it was read at.
func (e *exchange) freshnessHeaders(answer *pb.Answer, level pb.Consistency) {
	header := e.w.Header()
	header["X-Pulse-Term"] = []string{strconv.FormatUint(answer.Term, 10)}
	if level == pb.Consistency_CONSISTENCY_STALE {
		header["X-Pulse-Consistency"] = []string{"stale"}
		header["X-Pulse-Age-Ms"] = []string{strconv.FormatInt(answer.AgeMs, 10)}
		return
	}
	header["X-Pulse-Consistency"] = []string{"linearizable"}
}

// command begins a command of this caller. The Idempotency-Key, if there is one,
// and the content go with it.
func (e *exchange) command(id []byte, content apiv1.Content) *pb.Command {
	return &pb.Command{Id: id, Namespace: e.ns, Caller: e.from, IdempotencyKey: e.retryKey, ContentHash: content[:], Note: e.note, RequestId: e.requestID()}
}

// newIDs makes the ids of n commands, side by side.
func newIDs(n int) []byte {
	ids := make([]byte, 16*n)
	_, _ = rand.Read(ids) // it cannot fail
	return ids
}

// submit hands over one command and returns its result, or its refusal as an
// error.
func (e *exchange) submit(c *pb.Command) (*pb.Result, error) {
	results, err := e.submitAll([]*pb.Command{c}, e.h.opt.CallTimeout)
	if err != nil {
		return nil, err
	}
	result := results[0]
	if refusal := refusalOf(result); refusal != nil {
		return nil, refusal
	}
	if result.Replayed {
		e.w.Header()["Idempotency-Replayed"] = []string{"true"}
	}
	return result, nil
}

// submitAll hands over commands and returns their results in order.
func (e *exchange) submitAll(cmds []*pb.Command, within time.Duration) ([]*pb.Result, error) {
	want := len(cmds)
	ctx, cancel := context.WithTimeout(e.r.Context(), within)
	defer cancel()
	ctx, end := e.committing(ctx, want)
	results, err := e.h.opt.Backend.Submit(ctx, cmds)
	end(results, err)
	if err != nil {
		return nil, e.callError(err)
	}
	if len(results) != want {
		e.h.opt.Logger.Error("results do not match their commands", "route", e.pattern(), "commands", want, "results", len(results))
		return nil, schema.Errorf(schema.ResultUnknown, "the outcome of the request is not known")
	}
	for _, r := range results {
		e.index = max(e.index, r.GetIndex())
	}
	return results, nil
}

// callError keeps what the backend's error means, and makes one of an error
// that has no code.
func (e *exchange) callError(err error) error {
	var refusal *schema.Error
	switch {
	case errors.As(err, &refusal):
		return refusal
	case e.route.changes():
		// It promises nothing, so the outcome is not known.
		e.h.opt.Logger.Warn("call failed without a code", "route", e.pattern(), "error", err)
		return schema.Errorf(schema.ResultUnknown, "the outcome of the request is not known")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return schema.Errorf(schema.DeadlineExpired, "there was no answer in time")
	}
	return err
}

// changes says whether a route is more than a read.
func (r *route) changes() bool { return r.method != http.MethodGet }

// keyed says whether a repeat under an Idempotency-Key gets the first answer.
func (r *route) keyed() bool { return r.changes() && !r.unkeyed }
