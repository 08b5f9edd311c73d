package sdk

import (
	"context"
	"net/url"
	"time"
)

// Activity is how the queues of a namespace stand, which is state, and what their
// tasks did in the last quarter of an hour, which the node that answers has
// counted since its start.
type Activity struct {
	At           time.Time       `json:"at"` // the cluster clock
	Since        time.Time       `json:"since"`
	StepMillis   int64           `json:"step_ms"`
	LatelyMillis int64           `json:"lately_ms"` // the time that Lately speaks of
	KeysHeld     uint64          `json:"keys_held,string"`
	Total        Standing        `json:"total"`
	Queues       []QueueActivity `json:"queues"`
	Steps        []ActivityStep  `json:"steps"` // oldest first, the last one still running
}

// QueueActivity is how one queue stands.
type QueueActivity struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
	Standing
}

// Standing is how a queue, or all of them, stand.
type Standing struct {
	Waiting             uint64         `json:"waiting,string"`
	Reasons             []ReasonCount  `json:"reasons"`
	OldestWaitingSince  time.Time      `json:"oldest_waiting_since,omitzero"` // when it became available
	OldestWaitingTaskID string         `json:"oldest_waiting_task_id,omitempty"`
	Leased              uint64         `json:"leased,string"`
	Running             uint64         `json:"running,string"`
	NeedsReview         uint64         `json:"needs_review,string"`
	WorkersConnected    int            `json:"workers_connected"` // those that drain not counted
	WorkersDraining     int            `json:"workers_draining"`
	WorkersLost         int            `json:"workers_lost"` // disconnected, and may still come back
	Slots               uint64         `json:"slots,string"` // capacity of the connected workers
	SlotsUsed           uint64         `json:"slots_used,string"`
	Lately              ActivityCounts `json:"lately"`
	Errors              []ErrorCount   `json:"errors"` // of all steps, the most frequent first
}

// ReasonCount is how many tasks wait for a reason.
type ReasonCount struct {
	Reason string `json:"reason"`
	Tasks  uint64 `json:"tasks,string"`
}

// ErrorCount is how many attempts ended with an error code, or for a cause.
type ErrorCount struct {
	Code     string `json:"code"`
	Attempts uint64 `json:"attempts,string"`
}

// ActivityCounts is what happened to tasks in a time.
type ActivityCounts struct {
	Submitted       uint64   `json:"submitted,string"`
	Started         uint64   `json:"started,string"`
	Succeeded       uint64   `json:"succeeded,string"`
	Failed          uint64   `json:"failed,string"`
	Cancelled       uint64   `json:"cancelled,string"`
	ReviewsNeeded   uint64   `json:"reviews_needed,string"`
	AttemptsFailed  uint64   `json:"attempts_failed,string"`
	PickupP50Millis *float64 `json:"pickup_p50_ms,omitempty"` // from available to started; nil if nothing started
	PickupP99Millis *float64 `json:"pickup_p99_ms,omitempty"`
}

// ActivityStep is what happened in one step, and how many tasks there were at its end.
type ActivityStep struct {
	At time.Time `json:"at"`
	ActivityCounts
	Waiting uint64 `json:"waiting,string"`
	Active  uint64 `json:"active,string"`
}

// Activity reads how a queue stands and what it did lately, or all queues of the
// namespace if queue is empty.
func (c *Client) Activity(ctx context.Context, queue string, opts ...CallOption) (*Activity, error) {
	query := url.Values{}
	if queue != "" {
		query.Set("queue", queue)
	}
	out := new(Activity)
	if err := c.read(ctx, c.path("/activity"), query, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}
