package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"pulse/schema"
)

// waitPoll is how long one request of Wait may wait at the gateway.
const waitPoll = 25 * time.Second

// Get reads a task.
func (c *Client) Get(ctx context.Context, id string, opts ...CallOption) (*TaskInfo, error) {
	return c.getTask(ctx, id, nil, opts)
}

func (c *Client) getTask(ctx context.Context, id string, query url.Values, opts []CallOption) (*TaskInfo, error) {
	task := new(TaskInfo)
	if err := c.read(ctx, c.taskPath(id), query, task, opts); err != nil {
		return nil, err
	}
	return task, nil
}

// Wait returns the task once it is settled: SUCCEEDED, FAILED, CANCELLED, or
// NEEDS_REVIEW, which waits for a person. It outlasts restarts of the cluster.
func (c *Client) Wait(ctx context.Context, id string) (*TaskInfo, error) {
	if c.fault != nil {
		return nil, c.fault
	}
	for {
		r := request{method: http.MethodGet, path: c.taskPath(id), try: waitPoll + callTimeout, query: url.Values{
			"wait_state": {"terminal"}, "timeout_ms": {strconv.FormatInt(waitPoll.Milliseconds(), 10)},
		}}
		task := new(TaskInfo)
		started := time.Now()
		if err := c.api.call(ctx, r, task); err != nil {
			return nil, err
		}
		if task.State.Settled() {
			return task, nil
		}
		// An answer that came at once did not wait; asking again at once would
		// be a loop without a brake.
		if time.Since(started) < time.Second && !pause(ctx, time.Second) {
			return nil, context.Cause(ctx)
		}
	}
}

// Cancel asks that a task not be run, or be stopped if it is running. The task
// it returns may still be RUNNING: a handler is told and decides how it ends.
func (c *Client) Cancel(ctx context.Context, id string, opts ...CallOption) (*TaskInfo, error) {
	return c.actOn(ctx, id, "cancel", taskChange{Note: options(opts).note}, nil, opts)
}

// Retry submits a task that is SUCCEEDED, FAILED or CANCELLED again, as a new
// task, which it returns.
func (c *Client) Retry(ctx context.Context, id string, opts ...CallOption) (*TaskInfo, error) {
	return c.actOn(ctx, id, "retry", taskChange{Note: options(opts).note}, nil, opts)
}

// RunNow ends the wait of a task for a time: a delay it was submitted with, or the
// backoff before it is tried again. A task that waits for anything else is
// returned as it is; one that does not wait is a Conflict.
func (c *Client) RunNow(ctx context.Context, id string, opts ...CallOption) (*TaskInfo, error) {
	return c.actOn(ctx, id, "run", taskChange{Note: options(opts).note}, nil, opts)
}

// ReviewDecision is what an operator found out about a task in NEEDS_REVIEW.
type ReviewDecision string

// The decisions of a review.
const (
	ReviewSucceeded ReviewDecision = "SUCCEEDED"
	ReviewFailed    ReviewDecision = "FAILED"
	ReviewCancelled ReviewDecision = "CANCELLED"
	ReviewRetry     ReviewDecision = "RETRY"
)

// Review is a decision about a task in NEEDS_REVIEW. It is recorded.
type Review struct {
	Decision   ReviewDecision
	Note       string    // why; always needed
	Result     any       // with ReviewSucceeded, optional
	ErrorCode  string    // with ReviewFailed
	DeadlineAt time.Time // with ReviewRetry, when the task's own has passed
}

// Review settles a task in NEEDS_REVIEW, or sends it back to WAITING.
func (c *Client) Review(ctx context.Context, id string, review Review, opts ...CallOption) (*TaskInfo, error) {
	var result json.RawMessage
	if review.Result != nil {
		var err error
		if result, err = toJSON(review.Result); err != nil {
			return nil, err
		}
	}
	return c.actOn(ctx, id, "review", taskChange{
		Decision: review.Decision, Note: review.Note, ErrorCode: review.ErrorCode, DeadlineAt: wireTime(review.DeadlineAt),
	}, result, opts)
}

// taskChange is the body of what is done to a task; each verb uses its part.
type taskChange struct {
	ExpectedRevision uint64         `json:"expected_revision,omitempty,string"`
	Decision         ReviewDecision `json:"decision,omitempty"`
	Note             string         `json:"note,omitempty"`
	ErrorCode        string         `json:"error_code,omitempty"`
	DeadlineAt       *schema.Time   `json:"deadline_at,omitempty"`
}

func (c *Client) actOn(ctx context.Context, id, verb string, change taskChange, result json.RawMessage, opts []CallOption) (*TaskInfo, error) {
	change.ExpectedRevision = options(opts).expectedRevision
	body, err := marshal(change)
	if err == nil && result != nil {
		body, err = withMember(change, "result", result)
	}
	if err != nil {
		return nil, err
	}
	return c.changeTask(ctx, c.taskPath(id)+":"+verb, body, opts)
}

// Attempts reads every run of a task that is kept, oldest first, with the
// receipts of its operations and the evidence that arrived too late.
func (c *Client) Attempts(ctx context.Context, id string, opts ...CallOption) ([]Attempt, error) {
	var answer struct {
		Attempts []Attempt `json:"attempts"`
	}
	if err := c.read(ctx, c.taskPath(id)+"/attempts", nil, &answer, opts); err != nil {
		return nil, err
	}
	return answer.Attempts, nil
}

// TaskFilter selects tasks; what is zero selects all.
type TaskFilter struct {
	Queue          string  `json:"queue,omitempty"`
	States         []State `json:"state,omitempty"`
	Handler        string  `json:"handler,omitempty"`
	BusinessKey    string  `json:"business_key,omitempty"`
	ConcurrencyKey string  `json:"concurrency_key,omitempty"`
	WaitingReason  string  `json:"waiting_reason,omitempty"`
	ErrorCode      string  `json:"error_code,omitempty"`
	// Created at or after CreatedFrom and before CreatedUntil, to a microsecond.
	CreatedFrom  time.Time `json:"-"`
	CreatedUntil time.Time `json:"-"`
}

// MarshalJSON writes the times as the API takes them.
func (f TaskFilter) MarshalJSON() ([]byte, error) {
	type members TaskFilter
	return marshal(struct {
		members
		From  *schema.Time `json:"created_from,omitempty"`
		Until *schema.Time `json:"created_until,omitempty"`
	}{members(f), wireTime(f.CreatedFrom), wireTime(f.CreatedUntil)})
}

func (f TaskFilter) query() url.Values {
	query := url.Values{}
	for _, state := range f.States {
		query.Add("state", string(state))
	}
	for name, value := range map[string]string{
		"queue": f.Queue, "handler": f.Handler, "business_key": f.BusinessKey,
		"concurrency_key": f.ConcurrencyKey, "waiting_reason": f.WaitingReason, "error_code": f.ErrorCode,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, at := range map[string]*schema.Time{"created_from": wireTime(f.CreatedFrom), "created_until": wireTime(f.CreatedUntil)} {
		if at != nil {
			query.Set(name, at.String())
		}
	}
	return query
}

// List walks over tasks, newest first, page by page as the loop goes on:
//
//	for task, err := range client.List(ctx, sdk.TaskFilter{States: []sdk.State{sdk.StateNeedsReview}}) {
//		if err != nil { … }
//	}
//
// Tasks that arrive meanwhile are not seen and move nothing. An error ends the
// walk.
func (c *Client) List(ctx context.Context, filter TaskFilter, opts ...CallOption) iter.Seq2[*TaskInfo, error] {
	return walk[*TaskInfo](ctx, c, c.path("/tasks"), filter.query(), "tasks", opts)
}

// walk yields the members of a list that comes in pages: {name: […], next_cursor}.
func walk[T any](ctx context.Context, c *Client, path string, query url.Values, name string, opts []CallOption) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for {
			var page map[string]json.RawMessage
			var members []T
			var cursor string
			err := c.read(ctx, path, query, &page, opts)
			if err == nil {
				err = errors.Join(decodeMember(page[name], &members), decodeMember(page["next_cursor"], &cursor))
			}
			if err != nil {
				yield(none, err)
				return
			}
			for _, member := range members {
				if !yield(member, nil) {
					return
				}
			}
			if cursor == "" {
				return
			}
			if query == nil {
				query = url.Values{}
			}
			query.Set("cursor", cursor)
		}
	}
}

func decodeMember(text json.RawMessage, out any) error {
	if text == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return &answerError{err}
	}
	return nil
}

// BulkAction is what is done to each task of a Bulk.
type BulkAction string

// The bulk actions.
const (
	BulkCancel BulkAction = "cancel"
	BulkRetry  BulkAction = "retry"
)

// Bulk does one thing to many tasks, named one by one or by a filter. A filter
// without states means those that the action makes sense for: what is not yet
// over for BulkCancel, FAILED for BulkRetry.
type Bulk struct {
	Action BulkAction  `json:"action"`
	IDs    []string    `json:"ids,omitempty"`
	Filter *TaskFilter `json:"filter,omitempty"`
	Note   string      `json:"note,omitempty"`
	DryRun bool        `json:"dry_run,omitempty"` // only say what it would meet
	Cursor string      `json:"cursor,omitempty"`  // with a Filter: go on behind an earlier answer
}

// BulkAnswer says what became of each task. One request selects at most 10,000;
// if there are more, NextCursor goes on behind them.
type BulkAnswer struct {
	Action     BulkAction   `json:"action"`
	DryRun     bool         `json:"dry_run"`
	Matched    int          `json:"matched"`
	Done       int          `json:"done"`
	Failed     int          `json:"failed"`
	Results    []BulkResult `json:"results"`
	NextCursor string       `json:"next_cursor,omitempty"`
}

// BulkResult is what became of one task: a revision, or why nothing.
type BulkResult struct {
	TaskID string `json:"task_id"`
	State  State  `json:"state,omitempty"` // of a dry run
	// Of a dry run: what speaks against a repeat.
	RecoverySafety  RecoverySafety `json:"recovery_safety,omitempty"`
	EffectUncertain bool           `json:"effect_uncertain,omitempty"`

	Revision  uint64 `json:"revision,omitempty,string"`
	NewTaskID string `json:"new_task_id,omitempty"` // of a retry
	Err       error  `json:"error,omitempty"`
}

// UnmarshalJSON reads {task_id, revision, …} or {task_id, error: problem}.
func (r *BulkResult) UnmarshalJSON(text []byte) error {
	var in struct {
		TaskID          string         `json:"task_id"`
		State           State          `json:"state"`
		RecoverySafety  RecoverySafety `json:"recovery_safety"`
		EffectUncertain bool           `json:"effect_uncertain"`
		Revision        uint64         `json:"revision,string"`
		NewTaskID       string         `json:"new_task_id"`
		Error           *problem       `json:"error"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*r = BulkResult{
		TaskID: in.TaskID, State: in.State, RecoverySafety: in.RecoverySafety, EffectUncertain: in.EffectUncertain,
		Revision: in.Revision, NewTaskID: in.NewTaskID,
	}
	if in.Error != nil {
		r.Err = in.Error.refusal()
	}
	return nil
}

// Bulk acts on many tasks, each for itself: look at Results for those it was
// refused for.
func (c *Client) Bulk(ctx context.Context, bulk Bulk, opts ...CallOption) (*BulkAnswer, error) {
	body, err := marshal(bulk)
	if err != nil {
		return nil, err
	}
	if c.fault != nil {
		return nil, c.fault
	}
	answer := new(BulkAnswer)
	r := request{method: http.MethodPost, path: c.path("/tasks:bulk"), body: body, key: options(opts).key, note: bulk.Note, try: batchTimeout}
	if err := c.api.call(ctx, r, answer); err != nil {
		return nil, err
	}
	return answer, nil
}
