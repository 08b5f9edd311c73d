package apiv1

import (
	"pulse/schema"
)

const (
	// BatchTasksMax bounds the tasks of one batch.
	BatchTasksMax = 1000

	// PriorityMax is the most urgent priority.
	PriorityMax = 9
	// DelayMillisMax bounds delay_ms: 10 years.
	DelayMillisMax = schema.DeadlineMsMax

	// The ranges of a retry policy are those of the worker contract.
	attemptsMax       = 100
	retryDelayMax     = 9_223_372_036_854
	attemptTimeoutMax = 2_592_000_000

	// batchDepthMax lets a task be as deep in a batch as it may be alone.
	batchDepthMax = schema.DepthMax + 2
)

// Submission is the body of POST …/tasks, and an element of a batch. Times and
// DelayMillis are 0 when absent, keys are empty.
type Submission struct {
	Handler        string
	HandlerVersion string
	PayloadVersion string
	Payload        []byte // as sent; a subslice of the body

	BusinessKey     string
	ConcurrencyKey  string
	Priority        int64 // 0..9
	AvailableAt     schema.Time
	DelayMillis     int64 // never beside AvailableAt
	StartDeadlineAt schema.Time
	DeadlineAt      schema.Time
	ReconcileOnly   bool
	Retry           Retry

	// Trace context of this task; no part of its content, so that a repeat from
	// another span is a repeat. Empty: that of the request, if it has one.
	TraceParent string
	TraceState  string
}

// Absent is a number of a Retry that was left to the queue.
const Absent = -1

// Retry is what a submission says about retries.
type Retry struct {
	MaxAttempts          int64
	InitialDelayMillis   int64
	MaxDelayMillis       int64
	AttemptTimeoutMillis int64
}

var noRetry = Retry{Absent, Absent, Absent, Absent}

// Words of recovery_safety.
const (
	Idempotent    = "IDEMPOTENT"
	ReconcileOnly = "RECONCILE_ONLY"
)

// DecodeSubmission reads the body of a single submission.
func DecodeSubmission(body []byte) (Submission, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return Submission{}, refusal
	}
	var s Submission
	r.submission(&s)
	return s, r.refusal()
}

// BatchItem is a task of a batch, or why it is none.
type BatchItem struct {
	Submission Submission
	Refusal    *schema.Error
}

// DecodeBatch reads the body of a batch. An item that is refused stands for
// itself; a refusal of the batch means that its frame is wrong.
func DecodeBatch(body []byte) ([]BatchItem, *schema.Error) {
	r, refusal := open(body, batchDepthMax, false)
	if refusal != nil {
		return nil, refusal
	}
	start, seen := r.at, false
	var items []BatchItem
	if r.enter() {
		for r.member() {
			if string(r.name) != "tasks" {
				r.unknown()
				continue
			}
			seen = true
			items = r.batch()
		}
		if !seen {
			r.missing(start, "tasks")
		}
	}
	if refusal := r.refusal(); refusal != nil {
		return nil, refusal
	}
	return items, nil
}

func (r *reader) batch() []BatchItem {
	start := r.at
	if !r.enterArray() {
		return nil
	}
	// The names of a batch are mostly the same, so each item begins with those
	// of the one before; see named.
	var last Submission
	items := make([]BatchItem, 0, 16)
	for r.element() {
		if len(items) == BatchTasksMax {
			r.fault(start, "must have at most %d elements", BatchTasksMax)
			r.rest()
			return nil
		}
		item := BatchItem{Submission: Submission{
			Handler: last.Handler, HandlerVersion: last.HandlerVersion, PayloadVersion: last.PayloadVersion,
		}}
		item.Refusal = r.item(&item.Submission, len(items))
		last = item.Submission
		items = append(items, item)
	}
	return items
}

// item reads one task of a batch. Its faults are its own, and their paths are
// found from its own beginning: from the batch's they would cost its size each.
func (r *reader) item(s *Submission, place int) *schema.Error {
	own := reader{data: r.data, at: r.at, scratch: r.scratch, base: r.at, place: place}
	own.submission(s)
	r.at, r.scratch = own.at, own.scratch
	return own.refusal()
}

// submission reads the object at hand.
func (r *reader) submission(s *Submission) {
	start := r.at
	s.Retry = noRetry
	if !r.enter() {
		return
	}
	const handler, handlerVersion, payloadVersion, payload, all = 1, 2, 4, 8, 15
	seen := 0
	availableAt, delay := -1, -1 // where they stand
	for r.member() {
		switch string(r.name) {
		case "handler":
			seen |= handler
			r.named(&s.Handler, schema.HandlerCharsMax)
		case "handler_version":
			seen |= handlerVersion
			r.named(&s.HandlerVersion, schema.HandlerVersionCharsMax)
		case "payload_version":
			seen |= payloadVersion
			r.named(&s.PayloadVersion, schema.PayloadVersionCharsMax)
		case "payload":
			seen |= payload
			r.json(&s.Payload)
		case "business_key":
			r.key(&s.BusinessKey, schema.CheckBusinessKey)
		case "concurrency_key":
			r.key(&s.ConcurrencyKey, schema.CheckConcurrencyKey)
		case "priority":
			r.integer(&s.Priority, 0, PriorityMax)
		case "available_at":
			availableAt = r.at
			r.time(&s.AvailableAt)
		case "delay_ms":
			delay = r.at
			r.integer(&s.DelayMillis, 0, DelayMillisMax)
		case "start_deadline_at":
			r.time(&s.StartDeadlineAt)
		case "deadline_at":
			r.time(&s.DeadlineAt)
		case "recovery_safety":
			var word string
			r.word(&word, Idempotent, ReconcileOnly)
			s.ReconcileOnly = word == ReconcileOnly
		case "retry":
			r.retry(&s.Retry)
		case "traceparent":
			r.trace(&s.TraceParent, schema.ValidTraceParent, "must be a traceparent of W3C Trace Context")
		case "tracestate":
			r.trace(&s.TraceState, schema.ValidTraceState, "must be a tracestate of W3C Trace Context, at most 512 characters")
		default:
			r.unknown()
		}
	}
	if availableAt >= 0 && delay >= 0 {
		r.fault(max(availableAt, delay), "available_at and delay_ms exclude each other")
	}
	if seen != all {
		for i, name := range [...]string{"handler", "handler_version", "payload_version", "payload"} {
			if seen&(1<<i) == 0 {
				r.missing(start, name)
			}
		}
	}
}

func (r *reader) trace(dst *string, valid func(string) bool, rule string) {
	start := r.at
	r.chars(dst, schema.TraceStateCharsMax)
	if *dst != "" && !valid(*dst) {
		r.fault(start, "%s", rule)
	}
}

func (r *reader) retry(p *Retry) {
	if !r.enter() {
		return
	}
	for r.member() {
		switch string(r.name) {
		case "max_attempts":
			r.integer(&p.MaxAttempts, 1, attemptsMax)
		case "initial_delay_ms":
			r.integer(&p.InitialDelayMillis, 0, retryDelayMax)
		case "max_delay_ms":
			r.integer(&p.MaxDelayMillis, 0, retryDelayMax)
		case "attempt_timeout_ms":
			r.integer(&p.AttemptTimeoutMillis, 1, attemptTimeoutMax)
		default:
			r.unknown()
		}
	}
}

// Content is what two submissions to a queue have in common if they are equal,
// whether they came alone or in a batch.
func (s *Submission) Content(queue string) Content {
	c := begin("pulse.task.submit")
	c.text("queue", queue)
	c.text("handler", s.Handler)
	c.text("handler_version", s.HandlerVersion)
	c.text("payload_version", s.PayloadVersion)
	c.bytes("payload", s.Payload)
	c.optText("business_key", s.BusinessKey)
	c.optText("concurrency_key", s.ConcurrencyKey)
	c.number("priority", s.Priority)
	c.optTime("available_at", s.AvailableAt)
	c.number("delay_ms", s.DelayMillis)
	c.optTime("start_deadline_at", s.StartDeadlineAt)
	c.optTime("deadline_at", s.DeadlineAt)
	safety := Idempotent
	if s.ReconcileOnly {
		safety = ReconcileOnly
	}
	c.text("recovery_safety", safety)
	c.optNumber("retry.max_attempts", s.Retry.MaxAttempts)
	c.optNumber("retry.initial_delay_ms", s.Retry.InitialDelayMillis)
	c.optNumber("retry.max_delay_ms", s.Retry.MaxDelayMillis)
	c.optNumber("retry.attempt_timeout_ms", s.Retry.AttemptTimeoutMillis)
	return c.sum()
}
