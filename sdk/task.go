package sdk

import (
	"encoding/json"
	"time"

	"pulse/schema/workerv1"
)

// Task is what a handler is given: a task as it was assigned, and the attempt
// that runs it. It is read-only.
type Task struct {
	ID              string
	Handler         string
	HandlerVersion  string
	PayloadVersion  string
	BusinessKey     string
	ConcurrencyKey  string
	Priority        int
	RecoverySafety  RecoverySafety
	Retry           RetryPolicy
	RetryOf         string // the task this one was made from by a manual retry
	EffectUncertain bool   // an earlier run may have had an effect that nobody has confirmed
	CreatedAt       time.Time
	AvailableAt     time.Time
	DeadlineAt      time.Time // when the task as a whole is given up, by the cluster's clock

	AttemptID        string
	AttemptCount     int    // 1 for the first run
	Epoch            uint64 // of this attempt; larger than that of every earlier one
	ConcurrencyToken uint64 // of the concurrency key; 0 without one

	// ReceivedAt is when the assignment reached this worker, by the local clock. The
	// handler begins once the cluster has the start on record.
	ReceivedAt time.Time

	payload  json.RawMessage
	deadline time.Time
}

// Payload is the payload byte for byte as it was submitted.
func (t *Task) Payload() json.RawMessage { return t.payload }

// Unmarshal decodes the payload. Use json.Number or json.RawMessage in v where
// a number must keep its text.
func (t *Task) Unmarshal(v any) error { return json.Unmarshal(t.payload, v) }

// FencingToken is the number to hand to whatever the handler writes to, so that
// it can refuse a smaller one: the token of the concurrency key, or without a
// key the epoch of the attempt. It grows with every new holder or attempt, over
// elections, restarts and restores. A context that ends in time is a courtesy;
// the token is what keeps a paused process from writing late.
func (t *Task) FencingToken() uint64 {
	if t.ConcurrencyToken != 0 {
		return t.ConcurrencyToken
	}
	return t.Epoch
}

// Deadline is when the handler's context ends at the latest, by the local clock:
// a moment before the attempt's timeout or the task's deadline, whichever comes
// first. No renewal goes past it.
func (t *Task) Deadline() time.Time { return t.deadline }

// taskOf reads an assignment.
func taskOf(a *workerv1.Assign) *Task {
	in := &a.Task
	t := &Task{
		ReceivedAt: time.Now(),
		ID:         in.ID.String(), Handler: in.Handler, HandlerVersion: in.HandlerVersion, PayloadVersion: in.PayloadVersion,
		BusinessKey: in.BusinessKey, ConcurrencyKey: in.ConcurrencyKey, Priority: int(in.Priority),
		RecoverySafety: RecoverySafety(in.RecoverySafety), EffectUncertain: in.EffectUncertain,
		Retry: RetryPolicy{
			MaxAttempts: int(in.Retry.MaxAttempts), InitialDelayMillis: in.Retry.InitialDelayMillis,
			MaxDelayMillis: in.Retry.MaxDelayMillis, AttemptTimeoutMillis: in.Retry.AttemptTimeoutMillis,
		},
		CreatedAt: in.CreatedAt.Time(), AvailableAt: in.AvailableAt.Time(), DeadlineAt: in.DeadlineAt.Time(),
		AttemptID: a.AttemptID.String(), AttemptCount: int(in.AttemptCount), Epoch: a.Epoch,
		ConcurrencyToken: a.ConcurrencyToken, payload: in.Payload,
	}
	if in.RetryOf.Set {
		t.RetryOf = in.RetryOf.V.String()
	}
	return t
}
