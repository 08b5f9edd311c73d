package apiv1

import (
	"pulse/schema"
)

const (
	// MaxActiveMax and MaxWaitingMax bound what a queue can be set to.
	MaxActiveMax  = 1_000_000
	MaxWaitingMax = 1_000_000_000
	// RetentionMillisMax bounds retention and ageing: 10 years.
	RetentionMillisMax = schema.DeadlineMsMax
)

// Queue is the body of PUT …/queues/{queue}: the whole of a queue's settings,
// with defaults for what was absent.
type Queue struct {
	LeaseDurationMillis   int64
	OfferDurationMillis   int64
	MaxActive             int64 // 0 = no cap
	MaxWaiting            int64
	RetentionMillis       int64
	DefaultDeadlineMillis int64
	AgeingMillis          int64 // 0 = off
	DefaultRetry          Retry // complete
	Paused                bool
	ExpectedRevision      uint64 // 0 = any
}

// DecodeQueue reads the settings of a queue.
func DecodeQueue(body []byte) (Queue, *schema.Error) {
	q := Queue{
		LeaseDurationMillis: schema.LeaseDurationMsDefault, OfferDurationMillis: Absent,
		MaxWaiting: schema.MaxWaitingDefault, RetentionMillis: schema.RetentionMsDefault,
		DefaultDeadlineMillis: schema.DeadlineMsDefault,
		DefaultRetry: Retry{
			MaxAttempts:          schema.RetryMaxAttemptsDefault,
			InitialDelayMillis:   schema.RetryInitialDelayMsDefault,
			MaxDelayMillis:       schema.RetryMaxDelayMsDefault,
			AttemptTimeoutMillis: schema.RetryAttemptTimeoutMsDefault,
		},
	}
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return Queue{}, refusal
	}
	r.queue(&q)
	return q, r.refusal()
}

func (r *reader) queue(q *Queue) {
	if !r.enter() {
		return
	}
	offerAt := -1
	for r.member() {
		switch string(r.name) {
		case "lease_duration_ms":
			r.integer(&q.LeaseDurationMillis, schema.LeaseDurationMsMin, schema.LeaseDurationMsMax)
		case "offer_duration_ms":
			offerAt = r.at
			r.integer(&q.OfferDurationMillis, schema.OfferDurationMsMin, schema.LeaseDurationMsMax)
		case "max_active":
			r.integer(&q.MaxActive, 0, MaxActiveMax)
		case "max_waiting":
			r.count(&q.MaxWaiting, 1, MaxWaitingMax)
		case "retention_ms":
			r.integer(&q.RetentionMillis, 1, RetentionMillisMax)
		case "default_deadline_ms":
			r.integer(&q.DefaultDeadlineMillis, 1, schema.DeadlineMsMax)
		case "ageing_ms":
			r.integer(&q.AgeingMillis, 0, RetentionMillisMax)
		case "default_retry":
			r.retry(&q.DefaultRetry)
		case "paused":
			r.bool(&q.Paused)
		case "expected_revision":
			r.revision(&q.ExpectedRevision)
		default:
			r.unknown()
		}
	}
	switch {
	case q.OfferDurationMillis == Absent:
		q.OfferDurationMillis = min(schema.OfferDurationMsDefault, q.LeaseDurationMillis)
	case q.OfferDurationMillis > q.LeaseDurationMillis:
		r.fault(offerAt, "must not be longer than lease_duration_ms, which is %d", q.LeaseDurationMillis)
	}
}

// count reads a number that answers spell as a decimal string and people as a
// number: both are taken.
func (r *reader) count(dst *int64, low, high int64) {
	if r.data[r.at] != '"' {
		r.integer(dst, low, high)
		return
	}
	text, start, ok := r.text(20)
	if !ok {
		return
	}
	n, ok := schema.ParseUint64(text)
	if string(text) == "0" {
		n, ok = 0, true // no id or fence is 0, so ParseUint64 refuses it; a count may well be
	}
	if !ok || n < uint64(low) || n > uint64(high) {
		r.fault(start, "must be a whole number from %d to %d", low, high)
		return
	}
	*dst = int64(n)
}

// Content is what two PUTs of a queue have in common if they are equal.
func (q *Queue) Content(name string) Content {
	c := begin("pulse.queue.put")
	c.text("queue", name)
	c.number("lease_duration_ms", q.LeaseDurationMillis)
	c.number("offer_duration_ms", q.OfferDurationMillis)
	c.number("max_active", q.MaxActive)
	c.number("max_waiting", q.MaxWaiting)
	c.number("retention_ms", q.RetentionMillis)
	c.number("default_deadline_ms", q.DefaultDeadlineMillis)
	c.number("ageing_ms", q.AgeingMillis)
	c.number("default_retry.max_attempts", q.DefaultRetry.MaxAttempts)
	c.number("default_retry.initial_delay_ms", q.DefaultRetry.InitialDelayMillis)
	c.number("default_retry.max_delay_ms", q.DefaultRetry.MaxDelayMillis)
	c.number("default_retry.attempt_timeout_ms", q.DefaultRetry.AttemptTimeoutMillis)
	c.bool("paused", q.Paused)
	c.optRevision(q.ExpectedRevision)
	return c.sum()
}

// DecodeNothing reads the body of a request that takes none: empty or {}.
func DecodeNothing(body []byte) *schema.Error {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return refusal
	}
	if r.enter() {
		for r.member() {
			r.unknown()
		}
	}
	return r.refusal()
}

// TargetContent is that of a request that its operation and its target say all about.
func TargetContent(operation, target string, expectedRevision uint64) Content {
	c := begin(operation)
	c.text("target", target)
	c.optRevision(expectedRevision)
	return c.sum()
}
