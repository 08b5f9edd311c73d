package httpapi

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pulse/schema"
	"pulse/schema/apiv1"
)

// The shapes of the API. The OpenAPI document is made from them; of the answers,
// those without business JSON are written through them too. All others are
// written by hand, and tests hold every answer to its shape here.

// schemaPrefix is where the document keeps shapes.
const schemaPrefix = "#/components/schemas/"

// ID is 32 lower-case hexadecimal digits.
type ID string

// Schema describes an ID.
func (ID) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Ref: schemaPrefix + "ID"} }

// Number is a 64-bit number, which JSON readers in the world do not keep exactly:
// a decimal string.
type Number uint64

// MarshalJSON writes the string.
func (n Number) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatUint(uint64(n), 10)), nil
}

// Schema describes a Number.
func (Number) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Ref: schemaPrefix + "Number"} }

// Revision is a Number from 1.
type Revision string

// Schema describes a Revision.
func (Revision) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Ref: schemaPrefix + "Revision"}
}

// Time is an instant as the API writes it.
type Time schema.Time

// TimeOf drops what is finer than a microsecond; the zero time stays zero.
func TimeOf(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(schema.TimeOf(t))
}

// MarshalText writes RFC 3339.
func (t Time) MarshalText() ([]byte, error) { return schema.Time(t).MarshalText() }

// Schema describes a Time.
func (Time) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Ref: schemaPrefix + "Time"} }

// BusinessJSON is a payload or a result.
type BusinessJSON json.RawMessage

// Schema describes BusinessJSON.
func (BusinessJSON) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Ref: schemaPrefix + "BusinessJSON"}
}

// scalars are the shapes that are no objects.
func scalars() map[string]*huma.Schema {
	text := func(pattern, about string) *huma.Schema {
		return &huma.Schema{Type: huma.TypeString, Pattern: pattern, Description: about}
	}
	when := text(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z$`,
		"An instant in UTC, RFC 3339 with at most microseconds. Requests take the years 2000 to 2999.")
	when.Format = "date-time"
	return map[string]*huma.Schema{
		"ID":       text(`^[0-9a-f]{32}$`, "32 lower-case hexadecimal digits."),
		"Number":   text(`^(?:0|[1-9][0-9]{0,19})$`, "A 64-bit number as a decimal string without leading zero."),
		"Revision": text(`^[1-9][0-9]{0,19}$`, "A 64-bit number from 1 as a decimal string without leading zero."),
		"Time":     when,
		"BusinessJSON": {
			Not: &huma.Schema{Type: "null"},
			Description: "Any JSON value but null, at most 256 KiB as sent. It is kept and given back byte for byte: 1.50 stays 1.50. " +
				"Numbers have at most 64 characters and the range of an IEEE 754 double.",
		},
	}
}

// RetryPolicy says how often and how fast a task is tried.
type RetryPolicy struct {
	MaxAttempts          int   `json:"max_attempts" minimum:"1" maximum:"100"`
	InitialDelayMillis   int64 `json:"initial_delay_ms" minimum:"0" maximum:"9223372036854" doc:"Delay before the second attempt; it doubles with each."`
	MaxDelayMillis       int64 `json:"max_delay_ms" minimum:"0" maximum:"9223372036854"`
	AttemptTimeoutMillis int64 `json:"attempt_timeout_ms" minimum:"1" maximum:"2592000000" doc:"Counted from the start of an attempt."`
}

// RetryWish is a RetryPolicy of which what is absent is left to the queue.
type RetryWish struct {
	MaxAttempts          int   `json:"max_attempts,omitempty" minimum:"1" maximum:"100"`
	InitialDelayMillis   int64 `json:"initial_delay_ms,omitempty" minimum:"0" maximum:"9223372036854"`
	MaxDelayMillis       int64 `json:"max_delay_ms,omitempty" minimum:"0" maximum:"9223372036854"`
	AttemptTimeoutMillis int64 `json:"attempt_timeout_ms,omitempty" minimum:"1" maximum:"2592000000"`
}

// Submission is a task to be done.
type Submission struct {
	Handler         string       `json:"handler" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:-]*$" minLength:"1" maxLength:"128"`
	HandlerVersion  string       `json:"handler_version" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:-]*$" minLength:"1" maxLength:"64"`
	PayloadVersion  string       `json:"payload_version" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:-]*$" minLength:"1" maxLength:"32" doc:"A worker gets the task only if it offers exactly this handler, handler version and payload version."`
	Payload         BusinessJSON `json:"payload"`
	BusinessKey     string       `json:"business_key,omitempty" minLength:"1" maxLength:"191" doc:"Names the work itself, uniquely in the namespace among the tasks it keeps. A repeat with equal content answers 200 with the first task and duplicate; other content is a conflict that names it."`
	ConcurrencyKey  string       `json:"concurrency_key,omitempty" minLength:"1" maxLength:"191" doc:"Names a resource that only one task may work on at a time. No control character, no blank at its ends."`
	Priority        int          `json:"priority,omitempty" minimum:"0" maximum:"9" default:"0" doc:"9 goes first."`
	AvailableAt     Time         `json:"available_at,omitempty" doc:"Not to be run earlier. Excludes delay_ms."`
	DelayMillis     int64        `json:"delay_ms,omitempty" minimum:"0" maximum:"315360000000" default:"0" doc:"Not to be run earlier than so much after its submission."`
	StartDeadlineAt Time         `json:"start_deadline_at,omitempty" doc:"A task that has not started by then fails."`
	DeadlineAt      Time         `json:"deadline_at,omitempty" doc:"Default: when it becomes available, plus the queue's default_deadline_ms."`
	RecoverySafety  string       `json:"recovery_safety,omitempty" enum:"IDEMPOTENT,RECONCILE_ONLY" default:"IDEMPOTENT" doc:"RECONCILE_ONLY is never run again by the system once it has started; without a known outcome it goes to NEEDS_REVIEW."`
	Retry           *RetryWish   `json:"retry,omitempty" doc:"What is absent comes from the queue's default_retry."`
	TraceParent     string       `json:"traceparent,omitempty" maxLength:"110" doc:"W3C Trace Context of this task: the worker that runs it goes on from there. Absent: that of the request's header."`
	TraceState      string       `json:"tracestate,omitempty" maxLength:"512"`
}

// Batch is many tasks for one queue.
type Batch struct {
	Tasks []Submission `json:"tasks" maxItems:"1000" nullable:"false" doc:"Not atomic: each stands for itself, and under an Idempotency-Key each is keyed by it and its place."`
}

// Waiting says why a task waits.
type Waiting struct {
	Reason       string `json:"reason" enum:"ready,delayed,retry_backoff,key_held,queue_paused,queue_limit,no_capable_worker,workers_busy"`
	Until        Time   `json:"until,omitempty" doc:"Where the end is known."`
	HolderTaskID ID     `json:"holder_task_id,omitempty" doc:"With key_held, the task that holds the key."`
}

// Lease is the live attempt of a task.
type Lease struct {
	AttemptID  ID       `json:"attempt_id"`
	Epoch      Revision `json:"epoch"`
	InstanceID ID       `json:"instance_id"`
	LeaseUntil Time     `json:"lease_until"`
}

// HeldLease is a live attempt of a worker.
type HeldLease struct {
	TaskID     ID       `json:"task_id"`
	AttemptID  ID       `json:"attempt_id"`
	Epoch      Revision `json:"epoch"`
	State      string   `json:"state" enum:"LEASED,RUNNING"`
	Handler    string   `json:"handler"`
	LeasedAt   Time     `json:"leased_at"`
	StartedAt  Time     `json:"started_at,omitempty"`
	LeaseUntil Time     `json:"lease_until"`
}

// Decision is what somebody decided about a task, and why.
type Decision struct {
	Decision string `json:"decision" enum:"CANCEL,SUCCEEDED,FAILED,CANCELLED,RETRY" doc:"CANCEL asked that it be cancelled; the others are those of a review."`
	By       string `json:"by" doc:"In whose name, like token/ID or client/NAME."`
	ByName   string `json:"by_name,omitempty" doc:"What the access token is called."`
	At       Time   `json:"at"`
	Note     string `json:"note,omitempty" doc:"Why. A review always says so."`
}

// Task is a task at one revision.
type Task struct {
	ID                ID           `json:"id"`
	NamespaceID       ID           `json:"namespace_id"`
	QueueID           ID           `json:"queue_id"`
	Namespace         string       `json:"namespace"`
	Queue             string       `json:"queue"`
	State             string       `json:"state" enum:"WAITING,LEASED,RUNNING,SUCCEEDED,FAILED,CANCELLED,NEEDS_REVIEW" doc:"FAILED means known not to have succeeded, NEEDS_REVIEW not known."`
	Revision          Revision     `json:"revision" doc:"Grows by one with every change."`
	Handler           string       `json:"handler"`
	HandlerVersion    string       `json:"handler_version"`
	PayloadVersion    string       `json:"payload_version"`
	Payload           BusinessJSON `json:"payload"`
	Result            BusinessJSON `json:"result,omitempty"`
	ErrorCode         string       `json:"error_code,omitempty"`
	BusinessKey       string       `json:"business_key,omitempty"`
	ConcurrencyKey    string       `json:"concurrency_key,omitempty"`
	Priority          int          `json:"priority" minimum:"0" maximum:"9"`
	AvailableAt       Time         `json:"available_at"`
	StartDeadlineAt   Time         `json:"start_deadline_at,omitempty"`
	DeadlineAt        Time         `json:"deadline_at"`
	RecoverySafety    string       `json:"recovery_safety" enum:"IDEMPOTENT,RECONCILE_ONLY"`
	Retry             RetryPolicy  `json:"retry"`
	AttemptCount      int          `json:"attempt_count" minimum:"0" maximum:"100" doc:"Attempts that started or were refused, and the current one."`
	CancelRequestedAt Time         `json:"cancel_requested_at,omitempty"`
	CompletedAt       Time         `json:"completed_at,omitempty"`
	CreatedAt         Time         `json:"created_at"`
	UpdatedAt         Time         `json:"updated_at"`
	EffectUncertain   bool         `json:"effect_uncertain" doc:"Some run may have had an effect that nobody has confirmed; only a review clears it."`
	RetryOf           ID           `json:"retry_of,omitempty" doc:"The task this one was made from by a manual retry."`
	RetriedAs         ID           `json:"retried_as,omitempty" doc:"The task that the last manual retry of this one made. Not a change of this one: its revision stays."`
	HoldsKey          bool         `json:"holds_key,omitempty" doc:"It holds its concurrency key: while LEASED or RUNNING, and in NEEDS_REVIEW until it is settled or somebody frees the key."`
	ReviewSince       Time         `json:"review_since,omitempty" doc:"While in NEEDS_REVIEW."`
	ReviewCause       string       `json:"review_cause,omitempty" enum:"lease,attempt_timeout,deadline,start_deadline,unknown_outcome,uncertain_failure,restored" doc:"While in NEEDS_REVIEW: what brought it there, as end_cause of an attempt."`
	Decision          *Decision    `json:"decision,omitempty" doc:"The last thing that somebody, not a worker, decided about it."`
	Scheduled         *Scheduled   `json:"scheduled,omitempty" doc:"Of a run of a schedule."`
	Waiting           *Waiting     `json:"waiting,omitempty" doc:"While WAITING."`
	Lease             *Lease       `json:"lease,omitempty" doc:"While LEASED or RUNNING."`
	Duplicate         bool         `json:"duplicate,omitempty" doc:"In the answer to a submission: the business key found this task."`
}

// BatchResult is the outcome of one task of a batch.
type BatchResult struct{}

// Schema is either of two.
func (BatchResult) Schema(r huma.Registry) *huma.Schema {
	refused := r.Schema(typeOf[BatchRefusal](), true, "")
	return &huma.Schema{OneOf: []*huma.Schema{r.Schema(typeOf[Task](), true, ""), refused}}
}

// BatchRefusal is the outcome of a task that was not taken.
type BatchRefusal struct {
	Error Problem `json:"error"`
}

// BatchAnswer has a result for each task, in order.
type BatchAnswer struct {
	Results []BatchResult `json:"results" nullable:"false"`
}

// TaskList is a page of tasks.
type TaskList struct {
	Tasks      []Task `json:"tasks" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Absent on the last page."`
}

// Change is what may be said with a change of a task.
type Change struct {
	ExpectedRevision Revision `json:"expected_revision,omitempty" doc:"Refuse with revision_conflict if it is at another."`
	Note             string   `json:"note,omitempty" maxLength:"1024"`
}

// Expectation is what may be said with a change of a queue.
type Expectation struct {
	ExpectedRevision Revision `json:"expected_revision,omitempty" doc:"Refuse with revision_conflict if it is at another."`
}

// Note says why.
type Note struct {
	Note string `json:"note" minLength:"1" maxLength:"1024" doc:"Recorded."`
}

// Nothing has no members.
type Nothing struct{}

// Review is what an operator found out about a task in NEEDS_REVIEW.
type Review struct {
	Decision         string       `json:"decision" enum:"SUCCEEDED,FAILED,CANCELLED,RETRY"`
	Note             string       `json:"note" minLength:"1" maxLength:"1024" doc:"Why; recorded."`
	Result           BusinessJSON `json:"result,omitempty" doc:"With SUCCEEDED alone."`
	ErrorCode        string       `json:"error_code,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:-]*$" maxLength:"64" doc:"With FAILED, and needed there."`
	DeadlineAt       Time         `json:"deadline_at,omitempty" doc:"With RETRY alone; needed when the task's own has passed."`
	ExpectedRevision Revision     `json:"expected_revision,omitempty"`
}

// TaskFilter selects tasks; what is absent selects all.
type TaskFilter struct {
	Queue          string    `json:"queue,omitempty"`
	State          StateWish `json:"state,omitempty" doc:"One or several. Absent, cancel selects WAITING, LEASED and RUNNING, and retry FAILED."`
	Handler        string    `json:"handler,omitempty"`
	BusinessKey    string    `json:"business_key,omitempty"`
	ConcurrencyKey string    `json:"concurrency_key,omitempty"`
	WaitingReason  string    `json:"waiting_reason,omitempty" enum:"ready,delayed,retry_backoff,key_held,queue_paused,queue_limit,no_capable_worker,workers_busy"`
	ErrorCode      string    `json:"error_code,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:-]*$" maxLength:"64"`
	CreatedFrom    Time      `json:"created_from,omitempty" doc:"At this time or later."`
	CreatedUntil   Time      `json:"created_until,omitempty" doc:"Before this time."`
}

// StateWish is a state or several.
type StateWish struct{}

// Schema is either of two.
func (StateWish) Schema(huma.Registry) *huma.Schema {
	state := &huma.Schema{Type: huma.TypeString}
	for _, name := range taskStates[1:] {
		state.Enum = append(state.Enum, name)
	}
	return &huma.Schema{OneOf: []*huma.Schema{state, {Type: huma.TypeArray, Items: state}}}
}

// Bulk does one thing to many tasks.
type Bulk struct {
	Action string      `json:"action" enum:"cancel,retry"`
	IDs    []ID        `json:"ids,omitempty" nullable:"false" maxItems:"10000" doc:"Either these tasks ..."`
	Filter *TaskFilter `json:"filter,omitempty" doc:"... or those it selects, newest first, at most 10,000. To retry, those that were retried already are left out; name them to retry them again."`
	Note   string      `json:"note,omitempty" maxLength:"1024"`
	DryRun bool        `json:"dry_run,omitempty" doc:"Only say which tasks it would meet."`
	Cursor string      `json:"cursor,omitempty" maxLength:"128" doc:"With a filter: go on behind an earlier answer."`
}

// BulkResult is the outcome for one task.
type BulkResult struct {
	TaskID ID     `json:"task_id"`
	State  string `json:"state,omitempty" doc:"In a dry run."`
	// What speaks against a repeat.
	RecoverySafety  string   `json:"recovery_safety,omitempty" enum:"IDEMPOTENT,RECONCILE_ONLY" doc:"In a dry run. The work of a RECONCILE_ONLY task that was done, or may have been, is not to be repeated on suspicion."`
	EffectUncertain bool     `json:"effect_uncertain,omitempty" doc:"In a dry run: some run may have had an effect that nobody has confirmed."`
	Revision        Number   `json:"revision,omitempty"`
	NewTaskID       ID       `json:"new_task_id,omitempty" doc:"The task a retry made."`
	Error           *Problem `json:"error,omitempty"`
}

// BulkAnswer has a result for each task.
type BulkAnswer struct {
	Action     string       `json:"action" enum:"cancel,retry"`
	DryRun     bool         `json:"dry_run"`
	Matched    int          `json:"matched" minimum:"0"`
	Done       int          `json:"done" minimum:"0"`
	Failed     int          `json:"failed" minimum:"0"`
	Results    []BulkResult `json:"results" nullable:"false"`
	NextCursor string       `json:"next_cursor,omitempty" doc:"The filter selects more than one request acts on; send it again with this, and another Idempotency-Key."`
}

// Receipt is the first outcome of a worker's operation.
type Receipt struct {
	MessageID    ID       `json:"message_id"`
	Operation    string   `json:"operation" enum:"START,RENEW,FINISH"`
	TaskState    string   `json:"task_state"`
	AttemptState string   `json:"attempt_state"`
	TaskRevision Revision `json:"task_revision"`
	LeaseUntil   Time     `json:"lease_until"`
	Disposition  string   `json:"disposition" enum:"APPLIED,EVIDENCE_ONLY"`
	At           Time     `json:"at"`
	Index        Number   `json:"index"`
}

// Evidence is what a worker reported after its attempt was over.
type Evidence struct {
	MessageID  ID           `json:"message_id"`
	Outcome    string       `json:"outcome" enum:"SUCCEEDED,FAILED,UNKNOWN,CANCELLED"`
	ErrorCode  string       `json:"error_code,omitempty"`
	Retryable  bool         `json:"retryable"`
	Result     BusinessJSON `json:"result,omitempty"`
	InstanceID ID           `json:"instance_id"`
	At         Time         `json:"at"`
}

// Attempt is one run, or offered run, of a task.
type Attempt struct {
	ID                ID           `json:"id"`
	Epoch             Revision     `json:"epoch"`
	State             string       `json:"state" enum:"LEASED,RUNNING,SUCCEEDED,FAILED,CANCELLED,EXPIRED,UNKNOWN"`
	Number            int          `json:"number" minimum:"0"`
	InstanceID        ID           `json:"instance_id"`
	SessionEpoch      Number       `json:"session_epoch"`
	LeasedAt          Time         `json:"leased_at"`
	StartedAt         Time         `json:"started_at,omitempty"`
	EndedAt           Time         `json:"ended_at,omitempty"`
	LeaseUntil        Time         `json:"lease_until"`
	TimeoutAt         Time         `json:"timeout_at,omitempty"`
	CancelRequestedAt Time         `json:"cancel_requested_at,omitempty"`
	ConcurrencyKey    string       `json:"concurrency_key,omitempty"`
	ConcurrencyToken  Number       `json:"concurrency_token,omitempty"`
	Renewals          int          `json:"renewals" minimum:"0"`
	ErrorCode         string       `json:"error_code,omitempty"`
	Retryable         bool         `json:"retryable"`
	EndCause          string       `json:"end_cause,omitempty" enum:"lease,attempt_timeout,deadline,start_deadline,session_lost,undeliverable,unknown_outcome,uncertain_failure,restored" doc:"Why it ended without a finish."`
	Result            BusinessJSON `json:"result,omitempty"`
	Receipts          []Receipt    `json:"receipts" nullable:"false" doc:"Of start, finish and the latest renewals."`
	Evidence          []Evidence   `json:"evidence" nullable:"false" doc:"Finishes that came too late. They changed nothing; a reviewer decides with them."`
}

// AttemptList is all attempts of a task.
type AttemptList struct {
	Attempts []Attempt `json:"attempts" nullable:"false"`
}

// Fact is one named event, with members of its own.
type Fact struct {
	_    struct{} `additionalProperties:"true"` //nolint:unused // read by its tag
	Type string   `json:"type"`
}

// Event is one change of a task.
type Event struct {
	Index         Number   `json:"index"`
	Place         int64    `json:"place" minimum:"0" doc:"Among the changes of this index."`
	TaskID        ID       `json:"task_id"`
	Revision      Revision `json:"revision"`
	Type          string   `json:"type" doc:"What came of it: the last fact that is not about timers, or state for the first event of a history whose beginning is no longer kept."`
	State         string   `json:"state"`
	Time          Time     `json:"time"`
	Operator      string   `json:"operator,omitempty" doc:"In whose name; absent for what fell due."`
	CommandType   string   `json:"command_type,omitempty"`
	CommandID     ID       `json:"command_id,omitempty"`
	CausationID   ID       `json:"causation_id,omitempty"`
	CorrelationID ID       `json:"correlation_id,omitempty"`
	Facts         []Fact   `json:"facts" nullable:"false"`
}

// EventList is a page of events.
type EventList struct {
	Events     []Event `json:"events" nullable:"false"`
	NextCursor string  `json:"next_cursor,omitempty" doc:"Absent on the last page."`
}

// WatchEvent is the data of a server-sent event.
type WatchEvent struct {
	Index    Number   `json:"index"`
	TaskID   ID       `json:"task_id"`
	Revision Revision `json:"revision"`
	Type     string   `json:"type"`
	State    string   `json:"state"`
}

// QueueSettings are what a PUT sets; what is absent takes its default.
type QueueSettings struct {
	LeaseDurationMillis   int64      `json:"lease_duration_ms,omitempty" minimum:"1000" maximum:"120000" default:"30000"`
	OfferDurationMillis   int64      `json:"offer_duration_ms,omitempty" minimum:"1000" maximum:"120000" default:"10000" doc:"At most lease_duration_ms."`
	MaxActive             int        `json:"max_active,omitempty" minimum:"0" maximum:"1000000" default:"0" doc:"Attempts at a time; 0 = no cap."`
	MaxWaiting            CountWish  `json:"max_waiting,omitempty" doc:"Beyond it submissions are refused with queue_full."`
	RetentionMillis       int64      `json:"retention_ms,omitempty" minimum:"1" maximum:"315360000000" default:"259200000" doc:"How long a task is kept when it is over."`
	DefaultDeadlineMillis int64      `json:"default_deadline_ms,omitempty" minimum:"1" maximum:"315360000000" default:"2592000000"`
	AgeingMillis          int64      `json:"ageing_ms,omitempty" minimum:"0" maximum:"315360000000" default:"0" doc:"A waiting task gains a priority with each such step; 0 = off."`
	DefaultRetry          *RetryWish `json:"default_retry,omitempty" doc:"Defaults: 3 attempts, 1 s, 60 s, 1 h."`
	Paused                bool       `json:"paused,omitempty" default:"false"`
	ExpectedRevision      Revision   `json:"expected_revision,omitempty"`
}

// CountWish is a count as a number, or as answers spell it.
type CountWish struct{}

// Schema is either of two.
func (CountWish) Schema(huma.Registry) *huma.Schema {
	low, high := 1.0, 1e9
	return &huma.Schema{
		Default: 1_000_000,
		OneOf: []*huma.Schema{
			{Type: huma.TypeInteger, Minimum: &low, Maximum: &high}, {Ref: schemaPrefix + "Revision"},
		},
	}
}

// Queue is a queue with its settings and how it stands.
type Queue struct {
	ID                    ID          `json:"id"`
	Name                  string      `json:"name"`
	Namespace             string      `json:"namespace"`
	Revision              Revision    `json:"revision"`
	LeaseDurationMillis   int64       `json:"lease_duration_ms"`
	OfferDurationMillis   int64       `json:"offer_duration_ms"`
	MaxActive             int         `json:"max_active"`
	MaxWaiting            Number      `json:"max_waiting"`
	RetentionMillis       int64       `json:"retention_ms"`
	DefaultDeadlineMillis int64       `json:"default_deadline_ms"`
	AgeingMillis          int64       `json:"ageing_ms"`
	DefaultRetry          RetryPolicy `json:"default_retry"`
	Paused                bool        `json:"paused"`
	CreatedAt             Time        `json:"created_at"`
	UpdatedAt             Time        `json:"updated_at"`
	Waiting               Number      `json:"waiting" doc:"Tasks that wait now."`
	Active                Number      `json:"active" doc:"Tasks leased or running now."`
	NeedsReview           Number      `json:"needs_review" doc:"Tasks that wait for a review."`
	Deleted               bool        `json:"deleted,omitempty" doc:"In the answer to a DELETE."`
}

// QueueList is all queues of a namespace.
type QueueList struct {
	Queues []Queue `json:"queues" nullable:"false"`
}

// ScheduleTimes is when a schedule runs.
type ScheduleTimes struct {
	Cron          string   `json:"cron,omitempty" maxLength:"256" doc:"Minute, hour, day of the month, month and day of the week, with a second before them if there are six; or @hourly, @daily, @weekly, @monthly, @yearly. Excludes every_ms; one of them is needed."`
	TimeZone      string   `json:"time_zone,omitempty" maxLength:"64" default:"UTC" doc:"IANA name; with cron."`
	EveryMillis   int64    `json:"every_ms,omitempty" minimum:"1000" maximum:"315360000000" doc:"Every multiple of it since start_at, or since 1970."`
	StartAt       Time     `json:"start_at,omitempty" doc:"No time is before it."`
	EndAt         Time     `json:"end_at,omitempty" doc:"All times are before it."`
	MaxFires      CountCap `json:"max_fires,omitempty" doc:"It ends after as many runs; 0 = never."`
	JitterMillis  int64    `json:"jitter_ms,omitempty" minimum:"0" maximum:"86400000" default:"0" doc:"Its times are late by a part of it that the schedule's id decides, so that schedules of one time spread."`
	Overlap       string   `json:"overlap,omitempty" enum:"skip,allow,buffer_one" default:"skip" doc:"What happens to a time while a run is not over."`
	CatchUpMillis int64    `json:"catch_up_window_ms,omitempty" minimum:"10000" maximum:"315360000000" default:"3600000" doc:"A time that cannot be dealt with within it is missed."`
}

// ScheduleSettings are what a PUT sets; what is absent takes its default.
type ScheduleSettings struct {
	ScheduleTimes
	Task             ScheduleTask `json:"task"`
	Paused           bool         `json:"paused,omitempty" default:"false"`
	ExpectedRevision Revision     `json:"expected_revision,omitempty"`
}

// ScheduleTask is the task that a schedule submits.
type ScheduleTask struct {
	Queue               string       `json:"queue,omitempty" default:"default"`
	Handler             string       `json:"handler"`
	HandlerVersion      string       `json:"handler_version"`
	PayloadVersion      string       `json:"payload_version"`
	Payload             BusinessJSON `json:"payload,omitempty" doc:"Needed in a request; lists leave it out."`
	ConcurrencyKey      string       `json:"concurrency_key,omitempty"`
	Priority            int          `json:"priority,omitempty" minimum:"0" maximum:"9" default:"0"`
	RecoverySafety      string       `json:"recovery_safety,omitempty" enum:"IDEMPOTENT,RECONCILE_ONLY" default:"IDEMPOTENT"`
	Retry               *RetryWish   `json:"retry,omitempty"`
	StartDeadlineMillis int64        `json:"start_deadline_ms,omitempty" minimum:"1" maximum:"315360000000" doc:"Counted from the submission."`
	DeadlineMillis      int64        `json:"deadline_ms,omitempty" minimum:"1" maximum:"315360000000" doc:"Counted from the submission; the queue's default if absent."`
}

// SchedulePreview asks for the times of a schedule that need not exist.
type SchedulePreview struct {
	ScheduleTimes
	Limit int `json:"limit,omitempty" minimum:"1" maximum:"100" default:"10"`
}

// Upcoming are the next times.
type Upcoming struct {
	Upcoming []Time `json:"upcoming" nullable:"false"`
}

// CountCap is a count from 0 as a number, or as answers spell it.
type CountCap struct{}

// Schema is either of two.
func (CountCap) Schema(huma.Registry) *huma.Schema {
	low, high := 0.0, 1e9
	return &huma.Schema{
		Default: 0,
		OneOf: []*huma.Schema{
			{Type: huma.TypeInteger, Minimum: &low, Maximum: &high}, {Ref: schemaPrefix + "Number"},
		},
	}
}

// Schedule is a schedule with how it stands.
type Schedule struct {
	ID            ID             `json:"id"`
	Name          string         `json:"name"`
	Namespace     string         `json:"namespace"`
	Revision      Revision       `json:"revision" doc:"Grows with what people change, not with its runs."`
	State         string         `json:"state" enum:"active,paused,ended"`
	Cron          string         `json:"cron,omitempty"`
	TimeZone      string         `json:"time_zone,omitempty"`
	EveryMillis   int64          `json:"every_ms,omitempty"`
	StartAt       Time           `json:"start_at,omitempty"`
	EndAt         Time           `json:"end_at,omitempty"`
	MaxFires      Number         `json:"max_fires,omitempty"`
	JitterMillis  int64          `json:"jitter_ms"`
	Overlap       string         `json:"overlap" enum:"skip,allow,buffer_one"`
	CatchUpMillis int64          `json:"catch_up_window_ms"`
	Paused        bool           `json:"paused"`
	Task          ScheduleTask   `json:"task"`
	NextAt        Time           `json:"next_at,omitempty" doc:"The next time."`
	NextDueAt     Time           `json:"next_due_at,omitempty" doc:"When it is dealt with: next_at and jitter."`
	LastAt        Time           `json:"last_at,omitempty" doc:"The time dealt with last."`
	BufferedAt    Time           `json:"buffered_at,omitempty" doc:"A time that waits for a run to be over."`
	Upcoming      []Time         `json:"upcoming" nullable:"false" doc:"The next times; none in lists."`
	OpenTasks     Number         `json:"open_tasks" doc:"Runs that are not over."`
	Fired         Number         `json:"fired" doc:"Tasks submitted because their time came."`
	Ordered       Number         `json:"ordered" doc:"Tasks submitted by a trigger or a backfill."`
	Skipped       Number         `json:"skipped" doc:"Times left out by the overlap policy, or because they had a task."`
	Missed        Number         `json:"missed" doc:"Times that were too late."`
	Refused       Number         `json:"refused" doc:"Times whose task could not be submitted."`
	Recent        []ScheduleFire `json:"recent" nullable:"false" doc:"What became of the last ten times, newest first."`
	CreatedAt     Time           `json:"created_at"`
	UpdatedAt     Time           `json:"updated_at" doc:"By people."`
	Deleted       bool           `json:"deleted,omitempty" doc:"In the answer to a DELETE."`
}

// ScheduleFire is what became of a time, or of several that were missed or
// backfilled.
type ScheduleFire struct {
	NominalAt Time   `json:"nominal_at" doc:"The time, or the first of several."`
	Until     Time   `json:"until,omitempty" doc:"The last of several."`
	At        Time   `json:"at" doc:"When it was dealt with."`
	Outcome   string `json:"outcome" enum:"fired,skipped,buffered,missed,refused,triggered,backfilled"`
	TaskID    ID     `json:"task_id,omitempty"`
	Reason    string `json:"reason,omitempty" doc:"Of a skip: overlap, repeated or paused. Of a refusal: the code of its error."`
	Message   string `json:"message,omitempty"`
	Times     Number `json:"times,omitempty" doc:"How many, of several."`
}

// ScheduleList is a page of schedules.
type ScheduleList struct {
	Schedules  []Schedule `json:"schedules" nullable:"false"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// TriggerOrder asks for a run now.
type TriggerOrder struct {
	AllowOverlap bool   `json:"allow_overlap,omitempty" default:"false" doc:"Run although another run is not over."`
	Note         string `json:"note,omitempty" maxLength:"1024"`
}

// BackfillOrder asks for the runs of past times.
type BackfillOrder struct {
	From   Time   `json:"from" doc:"The first time that counts."`
	Until  Time   `json:"until" doc:"All times are before it. Not in the future."`
	DryRun bool   `json:"dry_run,omitempty" default:"false" doc:"Only tell the times."`
	Note   string `json:"note,omitempty" maxLength:"1024"`
}

// BackfillAnswer is what became of each time, or would.
type BackfillAnswer struct {
	DryRun    bool           `json:"dry_run"`
	Times     int            `json:"times" minimum:"0"`
	Missing   int            `json:"missing" minimum:"0" doc:"Times that had no task: a backfill submits theirs."`
	Submitted int            `json:"submitted" minimum:"0" doc:"Times that got a task; 0 in a dry run."`
	Results   []BackfillTime `json:"results" nullable:"false"`
}

// BackfillTime is one time of a backfill.
type BackfillTime struct {
	NominalAt Time     `json:"nominal_at"`
	TaskID    ID       `json:"task_id,omitempty"`
	Existed   bool     `json:"existed" doc:"The time had a task before."`
	Error     *Problem `json:"error,omitempty"`
}

// Scheduled says which run of which schedule a task is.
type Scheduled struct {
	Schedule   string `json:"schedule,omitempty" doc:"Absent when the schedule was deleted."`
	ScheduleID ID     `json:"schedule_id"`
	NominalAt  Time   `json:"nominal_at" doc:"The time it is for."`
}

// Namespace is a namespace.
type Namespace struct {
	ID        ID       `json:"id"`
	Name      string   `json:"name"`
	Revision  Revision `json:"revision"`
	Queues    int      `json:"queues" minimum:"0"`
	CreatedAt Time     `json:"created_at"`
	UpdatedAt Time     `json:"updated_at"`
	Quota     Bounds   `json:"quota" doc:"What it may hold; 0 is no bound."`
	Usage     Bounds   `json:"usage" doc:"What it holds."`
}

// Bounds are what a quota bounds.
type Bounds struct {
	TasksWaiting Number `json:"tasks_waiting"`
	PayloadBytes Number `json:"payload_bytes" doc:"Of the payloads of tasks that are not over."`
	Workers      Number `json:"workers" doc:"Connected ones."`
}

// NamespaceSettings is the body of PUT.
type NamespaceSettings struct {
	Quota *NewQuota `json:"quota,omitempty" doc:"Replaced as a whole. Without it the quota stays as it is."`
}

// NewQuota is a quota as it is set.
type NewQuota struct {
	TasksWaiting CountWish `json:"tasks_waiting,omitempty" doc:"0 is no bound."`
	PayloadBytes CountWish `json:"payload_bytes,omitempty" doc:"Of the payloads of tasks that are not over. 0 is no bound."`
	Workers      CountWish `json:"workers,omitempty" doc:"Connected at a time. 0 is no bound."`
}

// Grant is a role and where it holds.
type Grant struct {
	Role      string   `json:"role" enum:"reader,submitter,operator,worker,admin"`
	Namespace string   `json:"namespace" doc:"A name, or * for all namespaces."`
	Queues    []string `json:"queues,omitempty" nullable:"false" doc:"The only ones a worker may serve; without them all."`
}

// NewToken is the body of POST /v1/tokens.
type NewToken struct {
	Name      string  `json:"name" minLength:"1" maxLength:"128" doc:"What it is for."`
	Grants    []Grant `json:"grants" nullable:"false" minItems:"1" maxItems:"64"`
	ExpiresAt *Time   `json:"expires_at,omitempty" doc:"Without it, never."`
}

// Token is an access token.
type Token struct {
	ID        ID      `json:"id"`
	Name      string  `json:"name"`
	Token     string  `json:"token,omitempty" doc:"Only in the answer that makes it: nobody can show it again."`
	Grants    []Grant `json:"grants" nullable:"false"`
	CreatedAt Time    `json:"created_at"`
	CreatedBy string  `json:"created_by"`
	ExpiresAt *Time   `json:"expires_at,omitempty"`
	RevokedAt *Time   `json:"revoked_at,omitempty"`
	RevokedBy string  `json:"revoked_by,omitempty"`
	UsedAt    *Time   `json:"used_at,omitempty" doc:"Within some ten minutes."`
}

// TokenList is a page of access tokens.
type TokenList struct {
	Tokens     []Token `json:"tokens" nullable:"false"`
	NextCursor string  `json:"next_cursor,omitempty"`
}

// Caller is in whose name a request speaks.
type Caller struct {
	Principal string   `json:"principal" doc:"anonymous, client/NAME or token/ID."`
	Grants    []Grant  `json:"grants" nullable:"false"`
	Methods   []string `json:"methods,omitempty" nullable:"false" doc:"With namespace: the operationIds that the caller may use there, of any queue."`
}

// AuditEntry is one change by a caller.
type AuditEntry struct {
	Position       Number   `json:"position"`
	Index          Number   `json:"index" doc:"Of the log entry that made the change."`
	At             Time     `json:"at"`
	Namespaces     []string `json:"namespaces" nullable:"false" doc:"Those it concerns; * is the cluster."`
	Principal      string   `json:"principal"`
	TokenID        ID       `json:"token_id,omitempty"`
	TokenName      string   `json:"token_name,omitempty"`
	Roles          []string `json:"roles,omitempty" nullable:"false"`
	Action         string   `json:"action" doc:"Like pulse.queue.Pause."`
	Target         string   `json:"target,omitempty" doc:"A task, queue, worker, key, namespace, token or node."`
	Detail         string   `json:"detail,omitempty"`
	Note           string   `json:"note,omitempty" doc:"Why, as the caller said in the body or in X-Pulse-Note."`
	RequestID      string   `json:"request_id,omitempty" doc:"X-Request-Id as the caller sent it."`
	CommandID      ID       `json:"command_id,omitempty"`
	IdempotencyKey string   `json:"idempotency_key,omitempty"`
}

// AuditList is a page of the record of changes.
type AuditList struct {
	Changes    []AuditEntry `json:"changes" nullable:"false"`
	NextCursor string       `json:"next_cursor,omitempty"`
}

// Refused is an attempt that was refused because of who made it.
type Refused struct {
	At        Time   `json:"at"`
	Code      string `json:"code"`
	Principal string `json:"principal,omitempty"`
	Address   string `json:"address"`
	Method    string `json:"method" doc:"An operationId, or the type of a worker's frame."`
	Detail    string `json:"detail"`
}

// RefusedList is what one node has refused since its start.
type RefusedList struct {
	Unauthenticated Number    `json:"unauthenticated"`
	Forbidden       Number    `json:"forbidden"`
	RateLimited     Number    `json:"rate_limited"`
	Newest          []Refused `json:"newest" nullable:"false" doc:"At most 200, the newest first."`
}

// NamespaceList is all namespaces the caller may see.
type NamespaceList struct {
	Namespaces []Namespace `json:"namespaces" nullable:"false"`
}

// Capability is what a worker can run.
type Capability struct {
	Handler        string `json:"handler"`
	HandlerVersion string `json:"handler_version"`
	PayloadVersion string `json:"payload_version"`
}

// Worker is a worker instance.
type Worker struct {
	InstanceID                ID           `json:"instance_id"`
	Namespace                 string       `json:"namespace"`
	Queue                     string       `json:"queue"`
	State                     string       `json:"state" enum:"connected,draining,disconnected,ended"`
	Capacity                  int          `json:"capacity" minimum:"0"`
	Active                    int          `json:"active" minimum:"0"`
	Draining                  bool         `json:"draining"`
	Capabilities              []Capability `json:"capabilities" nullable:"false"`
	CancellationNotifications bool         `json:"cancellation_notifications"`
	ConcurrencyKeys           bool         `json:"concurrency_keys"`
	SessionID                 ID           `json:"session_id,omitempty"`
	SessionEpoch              Number       `json:"session_epoch"`
	GatewayID                 string       `json:"gateway_id"`
	Peer                      string       `json:"peer,omitempty"`
	CreatedAt                 Time         `json:"created_at"`
	ConnectedAt               Time         `json:"connected_at,omitempty"`
	DisconnectedAt            Time         `json:"disconnected_at,omitempty"`
	ExpiresAt                 Time         `json:"expires_at,omitempty"`
	HeardAt                   Time         `json:"heard_at,omitempty" doc:"When its last frame arrived, as its gateway reports every two seconds; absent if the node that answers has heard no report yet."`
	Leases                    []HeldLease  `json:"leases,omitempty" nullable:"false" doc:"Its live attempts; only when one worker is read."`
}

// WorkerList is a page of workers.
type WorkerList struct {
	Workers    []Worker `json:"workers" nullable:"false"`
	NextCursor string   `json:"next_cursor,omitempty" doc:"Absent on the last page."`
}

// Key is a concurrency key.
type Key struct {
	Key          string `json:"key"`
	HolderTaskID ID     `json:"holder_task_id,omitempty" doc:"Absent if nobody holds it."`
	AttemptID    ID     `json:"attempt_id,omitempty"`
	Token        Number `json:"token,omitempty"`
	AcquiredAt   Time   `json:"acquired_at,omitempty"`
	InReview     bool   `json:"in_review,omitempty" doc:"Kept by a task in NEEDS_REVIEW."`
	Waiters      Number `json:"waiters"`
}

// KeyList is a page of keys.
type KeyList struct {
	Keys       []Key  `json:"keys" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Absent on the last page."`
}

// Activity is how the queues of a namespace stand, and what their tasks did in
// the last quarter of an hour.
type Activity struct {
	At           Time            `json:"at" doc:"The cluster clock."`
	Since        Time            `json:"since" doc:"The node that answers has counted since then: from its own start, and with some hundred queues that are always busy from less than a quarter of an hour ago."`
	StepMillis   int64           `json:"step_ms"`
	LatelyMillis int64           `json:"lately_ms" doc:"The time that lately speaks of, up to now."`
	KeysHeld     Number          `json:"keys_held" doc:"Of the whole namespace."`
	Total        Standing        `json:"total" doc:"Of all queues listed."`
	Queues       []QueueActivity `json:"queues" nullable:"false"`
	Steps        []ActivityStep  `json:"steps" nullable:"false" doc:"Of all queues listed, oldest first; the last one is still running."`
}

// QueueActivity is how one queue stands.
type QueueActivity struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
	Standing
}

// Standing is how a queue, or all of them, stand.
type Standing struct {
	Waiting             Number         `json:"waiting"`
	Reasons             []ReasonCount  `json:"reasons" nullable:"false" doc:"Why they wait; none with zero."`
	OldestWaitingSince  Time           `json:"oldest_waiting_since,omitempty" doc:"Since when the oldest task that waits is available; tasks that wait for a time of their own do not count."`
	OldestWaitingTaskID ID             `json:"oldest_waiting_task_id,omitempty"`
	Leased              Number         `json:"leased"`
	Running             Number         `json:"running"`
	NeedsReview         Number         `json:"needs_review"`
	WorkersConnected    int64          `json:"workers_connected" minimum:"0" doc:"Those that drain not counted."`
	WorkersDraining     int64          `json:"workers_draining" minimum:"0"`
	WorkersLost         int64          `json:"workers_lost" minimum:"0" doc:"Disconnected, and may still come back."`
	Slots               Number         `json:"slots" doc:"Capacity of the connected workers."`
	SlotsUsed           Number         `json:"slots_used" doc:"Attempts with workers, draining ones too: it may be above slots."`
	Lately              ActivityCounts `json:"lately"`
	Errors              []ErrorCount   `json:"errors" nullable:"false" doc:"Of all steps, the most frequent first, at most 32."`
}

// ReasonCount is how many tasks wait for a reason.
type ReasonCount struct {
	Reason string `json:"reason" enum:"ready,delayed,retry_backoff,key_held,queue_paused,queue_limit,no_capable_worker,workers_busy"`
	Tasks  Number `json:"tasks"`
}

// ErrorCount is how many attempts ended with an error.
type ErrorCount struct {
	Code     string `json:"code" doc:"As the worker gave it, or an end_cause; other for those beyond 32 in a step."`
	Attempts Number `json:"attempts"`
}

// ActivityCounts is what happened to tasks in a time.
type ActivityCounts struct {
	Submitted       Number   `json:"submitted"`
	Started         Number   `json:"started"`
	Succeeded       Number   `json:"succeeded"`
	Failed          Number   `json:"failed"`
	Cancelled       Number   `json:"cancelled"`
	ReviewsNeeded   Number   `json:"reviews_needed"`
	AttemptsFailed  Number   `json:"attempts_failed" doc:"Failed, unknown or expired; also those whose task was tried again."`
	PickupP50Millis *float64 `json:"pickup_p50_ms,omitempty" minimum:"0" doc:"From when a task was available to its start; absent if nothing started. Exact within a quarter."`
	PickupP99Millis *float64 `json:"pickup_p99_ms,omitempty" minimum:"0"`
}

// ActivityStep is what happened in one step.
type ActivityStep struct {
	At Time `json:"at" doc:"Its beginning."`
	ActivityCounts
	Waiting Number `json:"waiting" doc:"At its end."`
	Active  Number `json:"active" doc:"Leased or running, at its end."`
}

// Violation names one fault of a request.
type Violation struct {
	Path    string `json:"path" doc:"A JSON Pointer into the body; /query/…, /path/… and /header/… for what is not in it."`
	Message string `json:"message"`
}

// Problem is an error (RFC 9457).
type Problem struct {
	Type            string      `json:"type" doc:"urn:pulse:error:<code>"`
	Title           string      `json:"title"`
	Status          int         `json:"status"`
	Detail          string      `json:"detail"`
	Code            string      `json:"code" doc:"Stable; decide by it."`
	Retryable       bool        `json:"retryable" doc:"The same request, with the same Idempotency-Key, may succeed later."`
	Violations      []Violation `json:"violations,omitempty" nullable:"false"`
	ExistingTaskID  ID          `json:"existing_task_id,omitempty" doc:"With conflict on a business key."`
	CurrentRevision Number      `json:"current_revision,omitempty" doc:"With revision_conflict."`
}

// Health says that the process answers.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// Readiness says whether this node can serve.
type Readiness struct {
	Status  string   `json:"status" enum:"ready,not_ready"`
	Reasons []string `json:"reasons,omitempty" nullable:"false"`
}

// Home is where to go from here.
type Home struct {
	Name    string `json:"name"`
	Docs    string `json:"docs"`
	OpenAPI string `json:"openapi"`
}

// ClusterStatus is what a node says of itself and of the cluster.
type ClusterStatus struct {
	Node  NodeStatus   `json:"node"`
	State *StateStatus `json:"state,omitempty" doc:"As of what this node has applied."`
}

// NodeStatus is filled by cmd/node.
type NodeStatus struct {
	ID            string         `json:"id"`
	Version       string         `json:"version,omitempty"`
	Role          string         `json:"role" doc:"leader, follower, candidate, shutdown or gateway"`
	Term          Number         `json:"term"`
	LeaderID      string         `json:"leader_id,omitempty" doc:"Absent if none is known."`
	LeaderAddress string         `json:"leader_address,omitempty"`
	SourceID      string         `json:"source_id,omitempty" doc:"Of a gateway: the server that it hears of changes from and reads stale at; absent if none can be reached."`
	Ready         bool           `json:"ready"`
	NotReady      []string       `json:"not_ready,omitempty" nullable:"false"`
	AppliedIndex  Number         `json:"applied_index" doc:"These four are log indexes as clients see them, as X-Pulse-Index is: with the fence base of the cluster."`
	CommitIndex   Number         `json:"commit_index"`
	LastLogIndex  Number         `json:"last_log_index"`
	SnapshotIndex Number         `json:"snapshot_index" doc:"Of the newest snapshot; 0 if there is none."`
	SnapshotAt    Time           `json:"snapshot_at,omitempty" doc:"Cluster clock of the newest snapshot; absent if there is none."`
	Servers       []ServerStatus `json:"servers" nullable:"false"`
	Duties        []DutyStatus   `json:"duties,omitempty" nullable:"false" doc:"Of the leader."`
	Alarms        []string       `json:"alarms,omitempty" nullable:"false" doc:"What somebody should look at; the leader raises them."`
	ClusterClock  Time           `json:"cluster_clock,omitempty"`
	WallOffsetMs  int64          `json:"wall_offset_ms" doc:"Of the leader: how far its wall clock is ahead of the cluster's."`
	LastContactMs int64          `json:"last_contact_ms" doc:"Since the leader was heard of."`
	DiskFree      Number         `json:"disk_free_bytes,omitempty"`
	DiskTotal     Number         `json:"disk_total_bytes,omitempty"`
	DiskLow       bool           `json:"disk_low" doc:"Submissions are refused until there is room."`
}

// ServerStatus is a member of the cluster.
type ServerStatus struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
}

// MemberList are the nodes of a cluster.
type MemberList struct {
	Members []MemberStatus `json:"members" nullable:"false"`
}

// MemberStatus is a node as gossip and the log know it.
type MemberStatus struct {
	ID      string `json:"id"`
	Role    string `json:"role" enum:"voter,learner,gateway,outside" doc:"A learner keeps the state and gets a vote when it keeps up; one outside is alive, and not or no longer a server of this cluster."`
	HTTP    string `json:"http,omitempty" doc:"Where it serves clients and workers; unknown of one that is not alive, as are rpc and version."`
	RPC     string `json:"rpc,omitempty"`
	Raft    string `json:"raft,omitempty"`
	Version string `json:"version,omitempty"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader" doc:"As far as the node that answers knows."`
	Alive   bool   `json:"alive" doc:"It has been heard of lately."`

	AppliedIndex  *Number `json:"applied_index,omitempty" doc:"How far its state is; of a server that answers."`
	LastContactMs *int64  `json:"last_contact_ms,omitempty" minimum:"-1" doc:"Since it heard of the leader; 0 of the leader, -1 never."`
	SnapshotAt    Time    `json:"snapshot_at,omitempty" doc:"Cluster clock of its newest snapshot."`
}

// Transfer says who is to lead.
type Transfer struct {
	NodeID string `json:"node_id,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"`
}

// LogLevel is what a node writes to its log.
type LogLevel struct {
	Level  string `json:"level" enum:"debug,info,warn,error"`
	NodeID string `json:"node_id,omitempty" doc:"The node that was asked, and whose level it is."`
}

// LogLevelWish is what its log is to have from now on.
type LogLevelWish struct {
	Level string `json:"level" enum:"debug,info,warn,error"`
}

// ClusterSettings are what is set for a cluster as a whole.
type ClusterSettings struct {
	EventRetentionMillis int64  `json:"event_retention_ms" doc:"How long events stay in the feeds of namespaces."`
	IdempotencyKeysMax   Number `json:"idempotency_keys_max" doc:"Remembered in a namespace at a time; beyond it a request that carries a new one is refused with rate_limited."`
}

// ClusterSettingsWish changes settings; what is absent stays as it is.
type ClusterSettingsWish struct {
	EventRetentionMillis int64    `json:"event_retention_ms,omitempty" minimum:"60000" maximum:"315360000000" doc:"How long events stay in the feeds of namespaces; older ones go when it gets shorter."`
	IdempotencyKeysMax   KeysWish `json:"idempotency_keys_max,omitempty" doc:"Remembered in a namespace at a time. What is remembered already stays, also under a lower one."`
}

// KeysWish is a number of keys as a number, or as answers spell it.
type KeysWish struct{}

// Schema is either of two.
func (KeysWish) Schema(huma.Registry) *huma.Schema {
	low, high := 1.0, float64(apiv1.IdempotencyKeysMaxMax)
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeInteger, Minimum: &low, Maximum: &high}, {Ref: schemaPrefix + "Revision"},
	}}
}

// Backlog is the work that a queue has for workers. Its numbers are JSON numbers,
// for programs that read one of them and know nothing of Pulse; a queue's bound on
// waiting tasks keeps them small.
type Backlog struct {
	Backlog  int64 `json:"backlog" doc:"runnable and active: divide it by what a worker takes at a time."`
	Runnable int64 `json:"runnable" doc:"Tasks that a worker could start now: ready, workers_busy or no_capable_worker."`
	Active   int64 `json:"active" doc:"Tasks that workers have."`
	Waiting  int64 `json:"waiting" doc:"All tasks in WAITING, those that wait for a time, a key or their queue too."`
}

// Transferred says who leads.
type Transferred struct {
	LeaderID string `json:"leader_id"`
}

// Removal says which server is to go.
type Removal struct {
	NodeID string `json:"node_id" pattern:"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"`
	Force  bool   `json:"force,omitempty" doc:"Even if fewer than three voters, or too few that are up, are left."`
}

// DutyStatus is a duty of the leader.
type DutyStatus struct {
	Name      string `json:"name"`
	Running   bool   `json:"running"`
	Restarts  int    `json:"restarts"`
	LastError string `json:"last_error,omitempty"`
}

// StateStatus is the replicated state in numbers.
type StateStatus struct {
	Index             Number          `json:"index"`
	Term              Number          `json:"term"`
	Clock             Time            `json:"clock"`
	ClusterID         string          `json:"cluster_id"`
	StateHash         string          `json:"state_hash"`
	FenceBase         Number          `json:"fence_base"`
	FormatLevel       uint32          `json:"format_level" doc:"The newest commands and rows in use; raised once every server understands them."`
	Openings          Number          `json:"openings"`
	TasksWaiting      Number          `json:"tasks_waiting"`
	TasksInReview     Number          `json:"tasks_in_review"`
	AttemptsLeased    Number          `json:"attempts_leased"`
	AttemptsRunning   Number          `json:"attempts_running"`
	SessionsConnected Number          `json:"sessions_connected"`
	KeysHeld          Number          `json:"keys_held"`
	TimersNear        Number          `json:"timers_near"`
	Gateways          []GatewayStatus `json:"gateways" nullable:"false"`
}

// GatewayStatus is a gateway that reports.
type GatewayStatus struct {
	ID        string `json:"id"`
	LiveUntil Time   `json:"live_until"`
	StartedAt Time   `json:"started_at"`
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
