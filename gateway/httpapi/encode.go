package httpapi

import (
	"strconv"
	"strings"
	"sync"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// writer appends JSON. It puts the commas; opening and closing in the right
// order is the caller's part.
type writer struct {
	buf   []byte
	comma bool // a member or element came before at this level
}

func (w *writer) next() {
	if w.comma {
		w.buf = append(w.buf, ',')
	}
	w.comma = true
}

func (w *writer) open()       { w.buf, w.comma = append(w.buf, '{'), false }
func (w *writer) close()      { w.buf, w.comma = append(w.buf, '}'), true }
func (w *writer) openArray()  { w.buf, w.comma = append(w.buf, '['), false }
func (w *writer) closeArray() { w.buf, w.comma = append(w.buf, ']'), true }

// name begins a member whose name needs no escaping.
func (w *writer) name(name string) {
	w.next()
	w.buf = append(w.buf, '"')
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, '"', ':')
}

// text is a member with any string, plain one whose string needs no
// escaping. The opt forms leave an empty value out.
func (w *writer) text(name, value string) {
	w.name(name)
	w.buf = apiv1.AppendString(w.buf, value)
}

func (w *writer) optText(name, value string) {
	if value != "" {
		w.text(name, value)
	}
}

func (w *writer) plain(name, value string) {
	w.name(name)
	w.buf = append(w.buf, '"')
	w.buf = append(w.buf, value...)
	w.buf = append(w.buf, '"')
}

func (w *writer) id(name string, id []byte) {
	w.name(name)
	w.buf = append(w.buf, '"')
	w.buf = appendID(w.buf, id)
	w.buf = append(w.buf, '"')
}

func (w *writer) optID(name string, id []byte) {
	if len(id) > 0 {
		w.id(name, id)
	}
}

func appendID(dst, id []byte) []byte {
	if parsed, ok := idOf(id); ok {
		dst, _ = parsed.AppendText(dst)
	}
	return dst
}

func (w *writer) integer(name string, n int64) {
	w.name(name)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}

// uint64 is a number that clients see as a decimal string.
func (w *writer) uint64(name string, n uint64) {
	w.name(name)
	w.buf = append(w.buf, '"')
	w.buf = strconv.AppendUint(w.buf, n, 10)
	w.buf = append(w.buf, '"')
}

func (w *writer) bool(name string, b bool) {
	w.name(name)
	w.buf = strconv.AppendBool(w.buf, b)
}

// time is an instant in microseconds.
func (w *writer) time(name string, micros int64) {
	w.name(name)
	w.buf = append(w.buf, '"')
	w.buf, _ = schema.Time(micros).AppendText(w.buf)
	w.buf = append(w.buf, '"')
}

func (w *writer) optTime(name string, micros int64) {
	if micros != 0 {
		w.time(name, micros)
	}
}

// raw is a member with JSON as it stands.
func (w *writer) raw(name string, value []byte) {
	w.name(name)
	w.buf = append(w.buf, value...)
}

func (w *writer) optRaw(name string, value []byte) {
	if len(value) > 0 {
		w.raw(name, value)
	}
}

// buffer is memory for one answer, used again for the next.
type buffer struct{ b []byte }

// bufferBytesKept is the largest buffer that is kept.
const bufferBytesKept = 2 << 20

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 4<<10)} }}

func getBuffer() *buffer {
	b := buffers.Get().(*buffer)
	b.b = b.b[:0]
	return b
}

func putBuffer(b *buffer) {
	if cap(b.b) <= bufferBytesKept {
		buffers.Put(b)
	}
}

// Names of enumerations as clients see them: the proto name without its prefix,
// in capitals for states and decisions, in small letters for reasons and causes.
var (
	taskStates     = names(pb.TaskState_name, "TASK_STATE_")
	attemptStates  = names(pb.AttemptState_name, "ATTEMPT_STATE_")
	safeties       = names(pb.RecoverySafety_name, "RECOVERY_SAFETY_")
	operations     = names(pb.Operation_name, "OPERATION_")
	dispositions   = names(pb.Disposition_name, "DISPOSITION_")
	outcomes       = names(pb.Outcome_name, "OUTCOME_")
	decisionNames  = append([]string{"CANCEL"}, names(pb.ReviewDecision_name, "REVIEW_DECISION_")[1:]...)
	waitingReasons = small(names(pb.WaitingReason_name, "WAITING_REASON_"))
	endCauses      = small(names(pb.EndCause_name, "END_CAUSE_"))
)

func names(of map[int32]string, prefix string) []string {
	out := make([]string, len(of))
	for number, name := range of {
		out[number] = strings.TrimPrefix(name, prefix)
	}
	return out
}

func small(words []string) []string {
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}

// nameOf is a name, or UNSPECIFIED for a number of a newer version.
func nameOf[T ~int32](words []string, value T) string {
	if int(value) < len(words) && value >= 0 {
		return words[value]
	}
	return words[0]
}

// task writes the members of a task; the caller opens and closes the object.
// payload stands in where the view has none, as in the answer to a submission.
func (w *writer) task(v *pb.TaskView, payload []byte) {
	t := v.GetTask()
	w.id("id", t.GetId())
	w.id("namespace_id", t.GetNamespaceId())
	w.id("queue_id", t.GetQueueId())
	w.text("namespace", v.GetNamespace())
	w.text("queue", v.GetQueue())
	w.plain("state", nameOf(taskStates, t.GetState()))
	w.uint64("revision", t.GetRevision())
	w.text("handler", t.GetHandler())
	w.text("handler_version", t.GetHandlerVersion())
	w.text("payload_version", t.GetPayloadVersion())
	if len(v.GetPayload()) > 0 {
		payload = v.Payload
	}
	w.optRaw("payload", payload)
	w.optRaw("result", v.GetResult())
	w.optText("error_code", t.GetErrorCode())
	w.optText("business_key", t.GetBusinessKey())
	w.optText("concurrency_key", t.GetConcurrencyKey())
	w.integer("priority", int64(t.GetPriority()))
	w.time("available_at", t.GetAvailableAtUs())
	w.optTime("start_deadline_at", t.GetStartDeadlineAtUs())
	w.time("deadline_at", t.GetDeadlineAtUs())
	w.plain("recovery_safety", nameOf(safeties, t.GetRecoverySafety()))
	w.retry("retry", t.GetRetry())
	w.integer("attempt_count", int64(t.GetAttemptCount()))
	w.optTime("cancel_requested_at", t.GetCancelRequestedAtUs())
	w.optTime("completed_at", t.GetCompletedAtUs())
	w.time("created_at", t.GetCreatedAtUs())
	w.time("updated_at", t.GetUpdatedAtUs())
	w.bool("effect_uncertain", t.GetEffectUncertain())
	w.optID("retry_of", t.GetRetryOf())
	w.optID("retried_as", t.GetRetriedAs())
	if t.GetKeyToken() != 0 {
		w.bool("holds_key", true)
	}
	w.optTime("review_since", t.GetReviewSinceUs())
	if cause := t.GetReviewCause(); cause != pb.EndCause_END_CAUSE_UNSPECIFIED {
		w.plain("review_cause", nameOf(endCauses, cause))
	}
	w.decision(t.GetDecision())
	if t.GetNominalAtUs() != 0 {
		w.name("scheduled")
		w.open()
		w.optText("schedule", v.GetSchedule())
		w.id("schedule_id", t.GetScheduleId())
		w.time("nominal_at", t.GetNominalAtUs())
		w.close()
	}
	if wait := v.GetWaiting(); wait != nil && t.GetState() == pb.TaskState_TASK_STATE_WAITING {
		w.name("waiting")
		w.open()
		w.plain("reason", nameOf(waitingReasons, wait.Reason))
		w.optTime("until", wait.UntilUs)
		w.optID("holder_task_id", wait.HolderTaskId)
		w.close()
	}
	if lease := v.GetLease(); lease != nil {
		w.name("lease")
		w.open()
		w.id("attempt_id", lease.AttemptId)
		w.uint64("epoch", lease.Epoch)
		w.id("instance_id", lease.InstanceId)
		w.time("lease_until", lease.LeaseUntilUs)
		w.close()
	}
}

// decision writes what somebody decided about a task, if anybody did.
func (w *writer) decision(d *pb.Decision) {
	if d == nil {
		return
	}
	w.name("decision")
	w.open()
	w.plain("decision", nameOf(decisionNames, d.GetReview()))
	w.text("by", d.GetBy())
	w.optText("by_name", d.GetByName())
	w.time("at", d.GetAtUs())
	w.optText("note", d.GetNote())
	w.close()
}

func (w *writer) retry(name string, p *pb.RetryPolicy) {
	w.name(name)
	w.open()
	w.integer("max_attempts", int64(p.GetMaxAttempts()))
	w.integer("initial_delay_ms", p.GetInitialDelayMs())
	w.integer("max_delay_ms", p.GetMaxDelayMs())
	w.integer("attempt_timeout_ms", p.GetAttemptTimeoutMs())
	w.close()
}

// attempt writes one attempt with its receipts and evidence.
func (w *writer) attempt(v *pb.AttemptView) {
	a := v.GetAttempt()
	w.next()
	w.open()
	w.id("id", a.GetId())
	w.uint64("epoch", a.GetEpoch())
	w.plain("state", nameOf(attemptStates, a.GetState()))
	w.integer("number", int64(a.GetNumber()))
	w.id("instance_id", a.GetInstanceId())
	w.uint64("session_epoch", a.GetSessionEpoch())
	w.time("leased_at", a.GetLeasedAtUs())
	w.optTime("started_at", a.GetStartedAtUs())
	w.optTime("ended_at", a.GetEndedAtUs())
	w.time("lease_until", a.GetLeaseUntilUs())
	w.optTime("timeout_at", a.GetTimeoutAtUs())
	w.optTime("cancel_requested_at", a.GetCancelRequestedAtUs())
	w.optText("concurrency_key", a.GetConcurrencyKey())
	if a.GetConcurrencyToken() != 0 {
		w.uint64("concurrency_token", a.ConcurrencyToken)
	}
	w.integer("renewals", int64(a.GetRenewals()))
	w.optText("error_code", a.GetErrorCode())
	w.bool("retryable", a.GetRetryable())
	if a.GetEndCause() != pb.EndCause_END_CAUSE_UNSPECIFIED {
		w.plain("end_cause", nameOf(endCauses, a.GetEndCause()))
	}
	w.optRaw("result", v.GetResult())
	w.name("receipts")
	w.openArray()
	for _, r := range v.GetReceipts() {
		w.receipt(r)
	}
	w.closeArray()
	w.name("evidence")
	w.openArray()
	for _, ev := range v.GetEvidence() {
		w.evidence(ev)
	}
	w.closeArray()
	w.close()
}

func (w *writer) receipt(r *pb.ReceiptRow) {
	w.next()
	w.open()
	w.id("message_id", r.GetMessageId())
	w.plain("operation", nameOf(operations, r.GetOperation()))
	w.plain("task_state", nameOf(taskStates, r.GetTaskState()))
	w.plain("attempt_state", nameOf(attemptStates, r.GetAttemptState()))
	w.uint64("task_revision", r.GetTaskRevision())
	w.time("lease_until", r.GetLeaseUntilUs())
	w.plain("disposition", nameOf(dispositions, r.GetDisposition()))
	w.time("at", r.GetTimeUs())
	w.uint64("index", r.GetIndex())
	w.close()
}

func (w *writer) evidence(v *pb.EvidenceView) {
	ev := v.GetEvidence()
	w.next()
	w.open()
	w.id("message_id", ev.GetMessageId())
	w.plain("outcome", nameOf(outcomes, ev.GetOutcome()))
	w.optText("error_code", ev.GetErrorCode())
	w.bool("retryable", ev.GetRetryable())
	w.optRaw("result", v.GetResult())
	w.id("instance_id", ev.GetInstanceId())
	w.time("at", ev.GetTimeUs())
	w.close()
}
