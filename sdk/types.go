package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pulse/schema"
)

// State is the state of a task.
type State string

// The states of a task. FAILED means known not to have succeeded; NEEDS_REVIEW
// means not known, and waits for a person to say.
const (
	StateWaiting     State = "WAITING"
	StateLeased      State = "LEASED"
	StateRunning     State = "RUNNING"
	StateSucceeded   State = "SUCCEEDED"
	StateFailed      State = "FAILED"
	StateCancelled   State = "CANCELLED"
	StateNeedsReview State = "NEEDS_REVIEW"
)

// Terminal says whether a task in this state changes no more. NEEDS_REVIEW is
// not terminal: a review can send the task back to WAITING.
func (s State) Terminal() bool {
	return s == StateSucceeded || s == StateFailed || s == StateCancelled
}

// Settled says whether the cluster will do nothing more by itself: the state is
// terminal or NEEDS_REVIEW. It is what Client.Wait waits for.
func (s State) Settled() bool { return s.Terminal() || s == StateNeedsReview }

// RecoverySafety says what may happen to a task whose run ended without a known
// outcome.
type RecoverySafety string

// The two kinds of tasks.
const (
	// Idempotent tasks are run again: doing the work twice does no harm.
	Idempotent RecoverySafety = "IDEMPOTENT"
	// ReconcileOnly tasks are never run again by the system itself once they
	// have started; without a known outcome they go to NEEDS_REVIEW.
	ReconcileOnly RecoverySafety = "RECONCILE_ONLY"
)

// RetryPolicy says how often and how fast a task is tried.
type RetryPolicy struct {
	MaxAttempts          int   `json:"max_attempts"`
	InitialDelayMillis   int64 `json:"initial_delay_ms"` // before the second attempt; doubles with each
	MaxDelayMillis       int64 `json:"max_delay_ms"`
	AttemptTimeoutMillis int64 `json:"attempt_timeout_ms"` // counted from start
}

// TaskInfo is a task as a reader sees it at one revision. Payload and Result
// are the very bytes that were sent, so a number keeps its text.
type TaskInfo struct {
	ID                string          `json:"id"`
	NamespaceID       string          `json:"namespace_id,omitempty"`
	QueueID           string          `json:"queue_id,omitempty"`
	Namespace         string          `json:"namespace,omitempty"`
	Queue             string          `json:"queue,omitempty"`
	State             State           `json:"state"`
	Revision          uint64          `json:"revision,string"`
	Handler           string          `json:"handler"`
	HandlerVersion    string          `json:"handler_version"`
	PayloadVersion    string          `json:"payload_version"`
	Payload           json.RawMessage `json:"payload,omitempty"`
	Result            json.RawMessage `json:"result,omitempty"`
	ErrorCode         string          `json:"error_code,omitempty"`
	BusinessKey       string          `json:"business_key,omitempty"`
	ConcurrencyKey    string          `json:"concurrency_key,omitempty"`
	Priority          int             `json:"priority,omitempty"`
	RecoverySafety    RecoverySafety  `json:"recovery_safety"`
	Retry             RetryPolicy     `json:"retry"`
	AttemptCount      int             `json:"attempt_count"`
	EffectUncertain   bool            `json:"effect_uncertain,omitempty"` // some run may have had an effect nobody confirmed
	RetryOf           string          `json:"retry_of,omitempty"`         // the task this one was made from by a manual retry
	RetriedAs         string          `json:"retried_as,omitempty"`       // the task that the last manual retry of this one made
	HoldsKey          bool            `json:"holds_key,omitempty"`        // its concurrency key, also in NEEDS_REVIEW until that is settled or the key freed
	ReviewSince       time.Time       `json:"review_since,omitzero"`      // while in NEEDS_REVIEW
	ReviewCause       string          `json:"review_cause,omitempty"`     // while in NEEDS_REVIEW: as an attempt's EndCause
	Decision          *Decision       `json:"decision,omitempty"`         // the last one
	Scheduled         *Scheduled      `json:"scheduled,omitempty"`        // of a run of a schedule
	AvailableAt       time.Time       `json:"available_at,omitzero"`
	StartDeadlineAt   time.Time       `json:"start_deadline_at,omitzero"`
	DeadlineAt        time.Time       `json:"deadline_at,omitzero"`
	CancelRequestedAt time.Time       `json:"cancel_requested_at,omitzero"`
	CompletedAt       time.Time       `json:"completed_at,omitzero"`
	CreatedAt         time.Time       `json:"created_at,omitzero"`
	UpdatedAt         time.Time       `json:"updated_at,omitzero"`
	Waiting           *WaitingInfo    `json:"waiting,omitempty"`   // while WAITING
	Lease             *LeaseInfo      `json:"lease,omitempty"`     // while LEASED or RUNNING
	Duplicate         bool            `json:"duplicate,omitempty"` // the submission found this task under its business key
	// Replayed says that this is the remembered answer to an earlier call under the
	// same Idempotency-Key: nothing was done now. The earlier call may be a try of
	// this one whose answer was lost.
	Replayed bool `json:"replayed,omitempty"`
}

func (t *TaskInfo) replayed() { t.Replayed = true }

// UnmarshalResult decodes the result of a task.
func (t *TaskInfo) UnmarshalResult(v any) error {
	if len(t.Result) == 0 {
		return fmt.Errorf("pulse: task %s in state %s has no result", t.ID, t.State)
	}
	return json.Unmarshal(t.Result, v)
}

// Decision is what somebody, not a worker, decided about a task, and why: a review,
// or that it be cancelled.
type Decision struct {
	Decision ReviewDecision `json:"decision"` // of a review, or DecisionCancel
	By       string         `json:"by"`       // in whose name, like token/ID or client/NAME
	ByName   string         `json:"by_name,omitempty"`
	At       time.Time      `json:"at"`
	Note     string         `json:"note,omitempty"`
}

// DecisionCancel in a Decision asked that the task be cancelled. It is none of a
// review.
const DecisionCancel ReviewDecision = "CANCEL"

// WaitingInfo says why a task waits and, where that is known, until when.
type WaitingInfo struct {
	Reason       string    `json:"reason"` // e.g. ready, delayed, retry_backoff, key_held, queue_paused, no_capable_worker
	Until        time.Time `json:"until,omitzero"`
	HolderTaskID string    `json:"holder_task_id,omitempty"` // with key_held
}

// LeaseInfo is the live attempt of a task.
type LeaseInfo struct {
	AttemptID  string    `json:"attempt_id"`
	Epoch      uint64    `json:"epoch,string"`
	InstanceID string    `json:"instance_id"`
	LeaseUntil time.Time `json:"lease_until"`
}

// NoDelay in a Retry asks for none, where zero leaves it to the queue.
const NoDelay time.Duration = -1

// Retry is what a submission says about retries; what is zero comes from the
// queue's default.
type Retry struct {
	MaxAttempts    int           // 1..100
	InitialDelay   time.Duration // or NoDelay
	MaxDelay       time.Duration // or NoDelay
	AttemptTimeout time.Duration
}

// TaskSpec is a submission. Handler, HandlerVersion and PayloadVersion choose
// the workers that may run it; what is zero is left to the queue.
type TaskSpec struct {
	Queue          string // of Submit; default ClientOptions.Queue
	Handler        string
	HandlerVersion string // default "1"
	PayloadVersion string // default "1"

	// Payload becomes JSON. json.RawMessage is sent byte for byte; nil is {}.
	Payload any

	// BusinessKey names the work itself, e.g. an order: a second submission
	// with equal content finds the first task (TaskInfo.Duplicate), one with
	// other content is refused with conflict and Error.ExistingTaskID.
	BusinessKey string
	// ConcurrencyKey names a resource that only one task may work on at a time.
	ConcurrencyKey string

	Priority        int // 0..9, 9 first
	Delay           time.Duration
	AvailableAt     time.Time // instead of Delay
	StartDeadlineAt time.Time
	DeadlineAt      time.Time
	RecoverySafety  RecoverySafety // default Idempotent
	Retry           Retry

	// TraceParent and TraceState are W3C Trace Context of this task, for a batch
	// whose tasks belong to different traces. Without them a task belongs to the
	// span in the context that it is submitted with.
	TraceParent string
	TraceState  string
}

// submission is a TaskSpec as the API takes it, less the payload.
type submission struct {
	Handler         string           `json:"handler"`
	HandlerVersion  string           `json:"handler_version"`
	PayloadVersion  string           `json:"payload_version"`
	BusinessKey     string           `json:"business_key,omitempty"`
	ConcurrencyKey  string           `json:"concurrency_key,omitempty"`
	Priority        int              `json:"priority,omitempty"`
	AvailableAt     *schema.Time     `json:"available_at,omitempty"`
	DelayMillis     int64            `json:"delay_ms,omitempty"`
	StartDeadlineAt *schema.Time     `json:"start_deadline_at,omitempty"`
	DeadlineAt      *schema.Time     `json:"deadline_at,omitempty"`
	RecoverySafety  RecoverySafety   `json:"recovery_safety,omitempty"`
	Retry           *submissionRetry `json:"retry,omitempty"`
	TraceParent     string           `json:"traceparent,omitempty"`
	TraceState      string           `json:"tracestate,omitempty"`
}

type submissionRetry struct {
	MaxAttempts          *int   `json:"max_attempts,omitempty"`
	InitialDelayMillis   *int64 `json:"initial_delay_ms,omitempty"`
	MaxDelayMillis       *int64 `json:"max_delay_ms,omitempty"`
	AttemptTimeoutMillis *int64 `json:"attempt_timeout_ms,omitempty"`
}

func (s *TaskSpec) encode() ([]byte, error) {
	if s.Handler == "" {
		return nil, errors.New("pulse: a task needs a handler")
	}
	payload, err := toJSON(s.Payload)
	if err != nil {
		return nil, fmt.Errorf("pulse: payload of %s: %w", s.Handler, err)
	}
	out := submission{
		Handler: s.Handler, HandlerVersion: orDefault(s.HandlerVersion, "1"), PayloadVersion: orDefault(s.PayloadVersion, "1"),
		BusinessKey: s.BusinessKey, ConcurrencyKey: s.ConcurrencyKey, Priority: s.Priority,
		AvailableAt: wireTime(s.AvailableAt), DelayMillis: wireMillis(s.Delay),
		StartDeadlineAt: wireTime(s.StartDeadlineAt), DeadlineAt: wireTime(s.DeadlineAt),
		RecoverySafety: s.RecoverySafety, TraceParent: s.TraceParent, TraceState: s.TraceState,
	}
	if s.Retry != (Retry{}) {
		out.Retry = s.Retry.wire()
	}
	return withMember(out, "payload", payload)
}

func (r Retry) wire() *submissionRetry {
	out := &submissionRetry{}
	if r.MaxAttempts != 0 {
		out.MaxAttempts = &r.MaxAttempts
	}
	for _, d := range []struct {
		value time.Duration
		field **int64
	}{
		{r.InitialDelay, &out.InitialDelayMillis}, {r.MaxDelay, &out.MaxDelayMillis}, {r.AttemptTimeout, &out.AttemptTimeoutMillis},
	} {
		if d.value != 0 {
			millis := wireMillis(max(d.value, 0))
			*d.field = &millis
		}
	}
	return out
}

// wireMillis rounds up, so that a short delay does not become none.
func wireMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func wireTime(t time.Time) *schema.Time {
	if t.IsZero() {
		return nil
	}
	wire := schema.TimeOf(t)
	return &wire
}

func orDefault(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// Attempt is one run, or offered run, of a task.
type Attempt struct {
	ID                string          `json:"id"`
	Epoch             uint64          `json:"epoch,string"`
	State             string          `json:"state"`
	Number            int             `json:"number"`
	InstanceID        string          `json:"instance_id"`
	SessionEpoch      uint64          `json:"session_epoch,string"`
	LeasedAt          time.Time       `json:"leased_at"`
	StartedAt         time.Time       `json:"started_at,omitzero"`
	EndedAt           time.Time       `json:"ended_at,omitzero"`
	LeaseUntil        time.Time       `json:"lease_until"`
	TimeoutAt         time.Time       `json:"timeout_at,omitzero"`
	CancelRequestedAt time.Time       `json:"cancel_requested_at,omitzero"`
	ConcurrencyKey    string          `json:"concurrency_key,omitempty"`
	ConcurrencyToken  uint64          `json:"concurrency_token,omitempty,string"`
	Renewals          int             `json:"renewals"`
	ErrorCode         string          `json:"error_code,omitempty"`
	Retryable         bool            `json:"retryable"`
	EndCause          string          `json:"end_cause,omitempty"` // why it ended without a finish
	Result            json.RawMessage `json:"result,omitempty"`
	Receipts          []Receipt       `json:"receipts"`
	Evidence          []Evidence      `json:"evidence"`
}

// Receipt is the first outcome of a worker's operation on an attempt.
type Receipt struct {
	MessageID    string    `json:"message_id"`
	Operation    string    `json:"operation"`
	TaskState    State     `json:"task_state"`
	AttemptState string    `json:"attempt_state"`
	TaskRevision uint64    `json:"task_revision,string"`
	LeaseUntil   time.Time `json:"lease_until"`
	Disposition  string    `json:"disposition"` // APPLIED, or EVIDENCE_ONLY for a finish that came too late
	At           time.Time `json:"at"`
	Index        uint64    `json:"index,string"` // of the log entry
}

// Evidence is what a worker reported after its attempt was over. It changed
// nothing; a reviewer decides with it.
type Evidence struct {
	MessageID  string          `json:"message_id"`
	Outcome    string          `json:"outcome"`
	ErrorCode  string          `json:"error_code,omitempty"`
	Retryable  bool            `json:"retryable"`
	Result     json.RawMessage `json:"result,omitempty"`
	InstanceID string          `json:"instance_id"`
	At         time.Time       `json:"at"`
}
