package workerv1

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pulse/schema"
	"pulse/schema/internal/jsontext"
)

// AppendClient appends the frame as compact JSON. An error is a *schema.Error
// (invalid_argument with a violation, or too_large) and leaves dst as it was: what
// is appended, DecodeClient accepts.
func AppendClient(dst []byte, f ClientFrame) ([]byte, error) {
	w := writer{buf: dst}
	if f.Body == nil {
		w.refuse("/body", "is missing")
		return w.done(dst)
	}
	w.head(f.Body.ClientType(), f.MessageID)
	if _, first := f.Body.(*Hello); !first {
		w.id(`,"session_id":"`, f.SessionID)
	}
	w.raw(`,"body":`)
	switch body := f.Body.(type) {
	case *Hello:
		w.hello(body)
	case *Capacity:
		w.capacity(body)
	case *Resume:
		w.attemptRef("/body", &body.Ref)
	case *Start:
		w.attemptRef("/body", &body.Ref)
	case *Renew:
		w.attemptRef("/body", &body.Ref)
	case *Finish:
		w.finish(body)
	default:
		w.refuse("/body", fmt.Sprintf("%T is no body of this version", body))
	}
	w.raw("}")
	return w.done(dst)
}

// AppendServer is AppendClient for the other direction, except that it takes the
// inside of payload and result as it was checked at admission, and shortens the
// message of an error rather than refuse it.
func AppendServer(dst []byte, f ServerFrame) ([]byte, error) {
	w := writer{buf: dst}
	if f.Body == nil {
		w.refuse("/body", "is missing")
		return w.done(dst)
	}
	w.head(f.Body.ServerType(), f.MessageID)
	if f.SessionID.Set {
		w.id(`,"session_id":"`, f.SessionID.V)
	}
	if f.ReplyTo.Set {
		w.id(`,"reply_to":"`, f.ReplyTo.V)
	}
	session, reply := true, false
	switch body := f.Body.(type) {
	case *Welcome:
		reply = true
		w.raw(`,"body":`)
		w.welcome("/body", body)
	case *Assign:
		w.raw(`,"body":`)
		w.assign(body)
	case *Ack:
		reply = true
		w.raw(`,"body":`)
		w.ack(body)
	case *Error:
		session, reply = f.SessionID.Set, f.ReplyTo.Set
		w.raw(`,"error":`)
		w.error(body)
	case *Cancel:
		w.raw(`,"body":`)
		w.cancel(body)
	default:
		w.refuse("/body", fmt.Sprintf("%T is no body of this version", body))
	}
	w.raw("}")
	if session != f.SessionID.Set {
		w.refuse("/session_id", "is missing")
	}
	if reply != f.ReplyTo.Set {
		w.refuse("/reply_to", "is set in answers and in nothing else")
	}
	return w.done(dst)
}

// writer appends to buf. The first refusal sticks and is reported at the end.
type writer struct {
	buf     []byte
	refusal *schema.Error
}

func (w *writer) refuse(path, message string) {
	w.refuseAs(schema.InvalidArgument, path, message)
}

func (w *writer) refuseAs(code schema.Code, path, message string) {
	if w.refusal == nil {
		w.refusal = schema.Errorf(code, "the frame cannot be encoded: %s %s", path, message)
		w.refusal.Violations = []schema.Violation{{Path: path, Message: message}}
	}
}

func (w *writer) done(dst []byte) ([]byte, error) {
	if w.refusal != nil {
		return dst, w.refusal
	}
	return w.buf, nil
}

func (w *writer) raw(text string) { w.buf = append(w.buf, text...) }

func (w *writer) head(kind Type, id ID) {
	w.raw(`{"protocol_version":"1","type":"`)
	w.raw(string(kind))
	w.id(`","message_id":"`, id)
}

// The helpers below take a member as the text up to its value, the opening quote
// included, so that one append writes it. in is the path of the object it stands
// in; the path of a refusal is put together only when there is one.

func pathOf(in, member string) string {
	name := strings.TrimRight(member, `":`)
	return in + "/" + name[strings.LastIndexByte(name, '"')+1:]
}

func (w *writer) id(member string, id ID) {
	w.raw(member)
	w.buf, _ = id.AppendText(w.buf)
	w.raw(`"`)
}

func (w *writer) secret(member string, s Secret) {
	w.raw(member)
	w.buf = s.AppendBase64(w.buf)
	w.raw(`"`)
}

func (w *writer) time(member string, t Time) {
	w.raw(member)
	w.buf, _ = t.AppendText(w.buf)
	w.raw(`"`)
}

func (w *writer) optTime(member string, t Opt[Time]) {
	if t.Set {
		w.time(member, t.V)
	}
}

func (w *writer) uint64(member, in string, n uint64) {
	if n == 0 {
		w.refuse(pathOf(in, member), "must be at least 1")
	}
	w.raw(member)
	w.buf = schema.AppendUint64(w.buf, n)
	w.raw(`"`)
}

func (w *writer) integer(member, in string, n, low, high int64) {
	if n < low || n > high {
		w.refuse(pathOf(in, member), fmt.Sprintf("must be from %d to %d", low, high))
	}
	w.raw(member)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}

func (w *writer) bool(member string, b bool) {
	w.raw(member)
	w.buf = strconv.AppendBool(w.buf, b)
}

func (w *writer) named(member, in, name string, charsMax int) {
	if !schema.ValidName(name, charsMax) {
		w.refuse(pathOf(in, member), fmt.Sprintf("must be 1 to %d letters, digits or _ . : - and begin with a letter or digit", charsMax))
	}
	w.raw(member)
	w.raw(name)
	w.raw(`"`)
}

func (w *writer) quoted(member, text string) {
	w.raw(member)
	w.buf = jsontext.AppendQuoted(w.buf, text)
}

func word[T ~string](w *writer, member, in string, value T, words []T) {
	if !slices.Contains(words, value) {
		w.refuse(pathOf(in, member), "must be one of "+list(words))
	}
	w.raw(member)
	w.raw(string(value))
	w.raw(`"`)
}

func (w *writer) json(member, in string, value []byte) {
	switch {
	case len(value) == 0 || bytes.Equal(value, []byte("null")):
		w.refuse(pathOf(in, member), "must be a JSON value other than null")
	case len(value) > BusinessBytesMax:
		w.refuseAs(schema.TooLarge, pathOf(in, member), fmt.Sprintf("has more than %d bytes", BusinessBytesMax))
	}
	w.raw(member)
	w.buf = append(w.buf, value...)
}

func (w *writer) hello(h *Hello) {
	w.id(`{"instance_id":"`, h.InstanceID)
	w.secret(`,"instance_secret":"`, h.InstanceSecret)
	w.id(`,"queue_id":"`, h.QueueID)
	w.raw(`,"capabilities":[`)
	if len(h.Capabilities) == 0 || len(h.Capabilities) > capabilitiesMax {
		w.refuse("/body/capabilities", fmt.Sprintf("must have 1 to %d elements", capabilitiesMax))
	}
	for i, c := range h.Capabilities[:min(len(h.Capabilities), capabilitiesMax)] {
		if i > 0 {
			w.raw(",")
		}
		in := "/body/capabilities/" + strconv.Itoa(i)
		if slices.Contains(h.Capabilities[:i], c) {
			w.refuse(in, "repeats an earlier element")
		}
		w.named(`{"handler":"`, in, c.Handler, schema.HandlerCharsMax)
		w.named(`,"handler_version":"`, in, c.HandlerVersion, schema.HandlerVersionCharsMax)
		w.named(`,"payload_version":"`, in, c.PayloadVersion, schema.PayloadVersionCharsMax)
		w.raw("}")
	}
	w.integer(`],"capacity":`, "/body", int64(h.Capacity), 1, capacityMax)
	w.bool(`,"cancellation_notifications":`, h.CancellationNotifications)
	w.bool(`,"concurrency_keys":`, h.ConcurrencyKeys)
	w.raw("}")
}

func (w *writer) capacity(c *Capacity) {
	w.uint64(`{"sequence":"`, "/body", c.Sequence)
	w.integer(`,"capacity":`, "/body", int64(c.Capacity), 0, capacityMax)
	w.bool(`,"drain":`, c.Drain)
	w.raw("}")
}

func (w *writer) attemptRef(in string, ref *AttemptRef) {
	w.id(`{"task_id":"`, ref.TaskID)
	w.id(`,"attempt_id":"`, ref.AttemptID)
	w.uint64(`,"epoch":"`, in, ref.Epoch)
	w.secret(`,"lease_secret":"`, ref.LeaseSecret)
	w.raw("}")
}

func (w *writer) finish(f *Finish) {
	w.raw(`{"ref":`)
	w.attemptRef("/body/ref", &f.Ref)
	word(w, `,"outcome":"`, "/body", f.Outcome, outcomes)
	if err := schema.CheckResult(f.Result); err != nil {
		w.businessRefusal("/body/result", err)
	}
	w.raw(`,"result":`)
	w.buf = append(w.buf, f.Result...)
	switch {
	case f.Outcome != OutcomeSucceeded:
		w.named(`,"error_code":"`, "/body", f.ErrorCode, schema.ErrorCodeCharsMax)
	case f.ErrorCode != "":
		w.refuse("/body/error_code", "must be empty with SUCCEEDED")
	}
	if f.Outcome == OutcomeFailed {
		w.bool(`,"retryable":`, f.Retryable)
	} else if f.Retryable {
		w.refuse("/body/retryable", "must be false unless the outcome is FAILED")
	}
	w.raw("}")
}

// businessRefusal carries a fault inside business JSON over to the frame.
func (w *writer) businessRefusal(path string, err error) {
	refusal, ok := errors.AsType[*schema.Error](err)
	if w.refusal != nil || !ok {
		w.refuse(path, "is no business JSON")
		return
	}
	w.refusal = refusal
	for i := range refusal.Violations {
		refusal.Violations[i].Path = path + refusal.Violations[i].Path
	}
}

func (w *writer) welcome(in string, b *Welcome) {
	w.id(`{"session_id":"`, b.SessionID)
	w.uint64(`,"epoch":"`, in, b.Epoch)
	w.time(`,"server_time":"`, b.ServerTime)
	w.time(`,"expires_at":"`, b.ExpiresAt)
	w.integer(`,"lease_duration_ms":`, in, b.LeaseDurationMillis, leaseMillisMin, leaseMillisMax)
	w.bool(`,"draining":`, b.Draining)
	w.raw("}")
}

func (w *writer) lease(in string, l *Lease) {
	if l.Active && !l.State.live() {
		w.refuse(in+"/state", "must be LEASED or RUNNING while active")
	}
	w.bool(`{"active":`, l.Active)
	word(w, `,"state":"`, in, l.State, attemptStates)
	w.time(`,"lease_until":"`, l.LeaseUntil)
	w.time(`,"server_time":"`, l.ServerTime)
	w.optTime(`,"cancel_requested_at":"`, l.CancelRequestedAt)
	w.raw("}")
}

func (w *writer) ack(a *Ack) {
	set := 0
	if a.Welcome != nil {
		set++
		w.welcome("/body", a.Welcome)
	}
	if a.Lease != nil {
		set++
		w.lease("/body", a.Lease)
	}
	if a.Result != nil {
		set++
		w.commandResult(a.Result)
	}
	if set != 1 {
		w.refuse("/body", "must be exactly one of welcome, lease and command result")
	}
}

func (w *writer) commandResult(c *CommandResult) {
	t := &c.Receipt
	word(w, `{"receipt":{"operation":"`, "/body/receipt", t.Operation, operations)
	word(w, `,"task_state":"`, "/body/receipt", t.TaskState, taskStates)
	word(w, `,"attempt_state":"`, "/body/receipt", t.AttemptState, attemptStates)
	w.uint64(`,"task_revision":"`, "/body/receipt", t.TaskRevision)
	w.time(`,"lease_until":"`, t.LeaseUntil)
	word(w, `,"disposition":"`, "/body/receipt", t.Disposition, dispositions)
	w.raw(`},"lease":`)
	w.lease("/body/lease", &c.Lease)
	w.bool(`,"deduplicated":`, c.Deduplicated)
	w.raw("}")
}

func (w *writer) assign(a *Assign) {
	w.raw(`{"task":`)
	w.task(&a.Task)
	w.id(`,"attempt_id":"`, a.AttemptID)
	w.uint64(`,"epoch":"`, "/body", a.Epoch)
	w.secret(`,"lease_secret":"`, a.LeaseSecret)
	w.time(`,"lease_until":"`, a.LeaseUntil)
	w.time(`,"server_time":"`, a.ServerTime)
	switch {
	case a.Task.ConcurrencyKey != "":
		w.uint64(`,"concurrency_token":"`, "/body", a.ConcurrencyToken)
	case a.ConcurrencyToken != 0:
		w.refuse("/body/concurrency_token", "belongs to a task with a concurrency key")
	}
	if a.Trace.Parent != "" {
		w.trace(&a.Trace)
	}
	w.raw("}")
}

func (w *writer) trace(t *TraceContext) {
	if !schema.ValidTraceParent(t.Parent) || !schema.ValidTraceState(t.State) {
		w.refuse("/body/trace", "is no W3C Trace Context")
		return
	}
	w.quoted(`,"trace":{"traceparent":`, t.Parent)
	if t.State != "" {
		w.quoted(`,"tracestate":`, t.State)
	}
	w.raw("}")
}

func (w *writer) task(t *Task) {
	w.id(`{"id":"`, t.ID)
	w.id(`,"namespace_id":"`, t.NamespaceID)
	w.id(`,"queue_id":"`, t.QueueID)
	w.raw(`,"state":"LEASED"`)
	w.uint64(`,"revision":"`, "/body/task", t.Revision)
	w.named(`,"handler":"`, "/body/task", t.Handler, schema.HandlerCharsMax)
	w.named(`,"handler_version":"`, "/body/task", t.HandlerVersion, schema.HandlerVersionCharsMax)
	w.named(`,"payload_version":"`, "/body/task", t.PayloadVersion, schema.PayloadVersionCharsMax)
	w.json(`,"payload":`, "/body/task", t.Payload)
	if len(t.Result) > 0 {
		w.json(`,"result":`, "/body/task", t.Result)
	}
	if t.BusinessKey != "" {
		if fault := schema.CheckBusinessKey(t.BusinessKey); fault != "" {
			w.refuse("/body/task/business_key", fault)
		}
		w.quoted(`,"business_key":`, t.BusinessKey)
	}
	w.time(`,"available_at":"`, t.AvailableAt)
	w.optTime(`,"start_deadline_at":"`, t.StartDeadlineAt)
	w.time(`,"deadline_at":"`, t.DeadlineAt)
	word(w, `,"recovery_safety":"`, "/body/task", t.RecoverySafety, recoverySafeties)
	w.integer(`,"retry":{"max_attempts":`, "/body/task/retry", int64(t.Retry.MaxAttempts), 1, attemptsMax)
	w.integer(`,"initial_delay_ms":`, "/body/task/retry", t.Retry.InitialDelayMillis, 0, delayMillisMax)
	w.integer(`,"max_delay_ms":`, "/body/task/retry", t.Retry.MaxDelayMillis, 0, delayMillisMax)
	w.integer(`,"attempt_timeout_ms":`, "/body/task/retry", t.Retry.AttemptTimeoutMillis, 1, timeoutMillisMax)
	w.integer(`},"attempt_count":`, "/body/task", int64(t.AttemptCount), 1, attemptsMax)
	w.optTime(`,"cancel_requested_at":"`, t.CancelRequestedAt)
	w.optTime(`,"completed_at":"`, t.CompletedAt)
	w.time(`,"created_at":"`, t.CreatedAt)
	w.time(`,"updated_at":"`, t.UpdatedAt)
	w.bool(`,"effect_uncertain":`, t.EffectUncertain)
	if t.ConcurrencyKey != "" {
		if fault := schema.CheckConcurrencyKey(t.ConcurrencyKey); fault != "" {
			w.refuse("/body/task/concurrency_key", fault)
		}
		w.quoted(`,"concurrency_key":`, t.ConcurrencyKey)
	}
	w.integer(`,"priority":`, "/body/task", int64(t.Priority), 0, priorityMax)
	if t.RetryOf.Set {
		w.id(`,"retry_of":"`, t.RetryOf.V)
	}
	w.raw("}")
}

func (w *writer) error(e *Error) {
	w.named(`{"code":"`, "/error", string(e.Code), schema.ErrorCodeCharsMax)
	w.quoted(`,"message":`, shortened(e.Message))
	w.raw("}")
}

// shortened keeps the first ErrorMessageCharsMax code points: an error gets out
// even if its text is too long.
func shortened(message string) string {
	if len(message) <= schema.ErrorMessageCharsMax || utf8.RuneCountInString(message) <= schema.ErrorMessageCharsMax {
		return message
	}
	count := 0
	for i := range message {
		if count == schema.ErrorMessageCharsMax {
			return message[:i]
		}
		count++
	}
	return message
}

func (w *writer) cancel(c *Cancel) {
	w.id(`{"task_id":"`, c.TaskID)
	w.id(`,"attempt_id":"`, c.AttemptID)
	w.uint64(`,"epoch":"`, "/body", c.Epoch)
	w.time(`,"requested_at":"`, c.RequestedAt)
	w.raw("}")
}
