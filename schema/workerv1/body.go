package workerv1

import (
	"slices"
	"unicode/utf8"

	"pulse/schema"
)

// The bodies, one function each, in the order of the schema. Names stand in the
// order of their bits.

const (
	capacityMax      = 256
	capabilitiesMax  = 32
	leaseMillisMin   = 1_000
	leaseMillisMax   = 120_000
	attemptsMax      = 100
	delayMillisMax   = 9_223_372_036_854
	timeoutMillisMax = 2_592_000_000
	priorityMax      = 9
)

var (
	outcomes         = []Outcome{OutcomeSucceeded, OutcomeFailed, OutcomeUnknown, OutcomeCancelled}
	attemptStates    = []AttemptState{AttemptLeased, AttemptRunning, AttemptSucceeded, AttemptFailed, AttemptCancelled, AttemptExpired, AttemptUnknown}
	taskStates       = []TaskState{TaskWaiting, TaskLeased, TaskRunning, TaskSucceeded, TaskFailed, TaskCancelled, TaskNeedsReview}
	recoverySafeties = []RecoverySafety{Idempotent, ReconcileOnly}
	operations       = []Operation{OperationStart, OperationRenew, OperationFinish}
	dispositions     = []Disposition{Applied, EvidenceOnly}
	assignedStates   = []TaskState{TaskLeased}
)

func runeCount(text []byte) int { return utf8.RuneCount(text) }

var helloNames = []string{"instance_id", "instance_secret", "queue_id", "capabilities", "capacity"}

func (r *reader) hello() *Hello {
	h := new(Hello)
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "instance_id":
			seen |= 1 << 0
			r.id(&h.InstanceID)
		case "instance_secret":
			seen |= 1 << 1
			r.secret(&h.InstanceSecret)
		case "queue_id":
			seen |= 1 << 2
			r.id(&h.QueueID)
		case "capabilities":
			seen |= 1 << 3
			h.Capabilities = r.capabilities()
		case "capacity":
			seen |= 1 << 4
			h.Capacity = uint32(r.integer(1, capacityMax))
		case "cancellation_notifications":
			r.bool(&h.CancellationNotifications)
		case "concurrency_keys":
			r.bool(&h.ConcurrencyKeys)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<5-1, helloNames)
	return h
}

func (r *reader) capabilities() []Capability {
	if r.failed() {
		return nil
	}
	start := r.at
	if r.data[start] != '[' {
		r.fail(start, "must be an array")
		return nil
	}
	r.at++
	var list []Capability
	for r.element() {
		element := r.at
		if len(list) == capabilitiesMax {
			r.fail(start, "must have at most 32 elements")
			return nil
		}
		capability := r.capability()
		if !r.failed() && slices.Contains(list, capability) {
			r.fail(element, "must not repeat an earlier element")
			return nil
		}
		list = append(list, capability)
	}
	if len(list) == 0 {
		r.fail(start, "must have at least one element")
	}
	return list
}

var capabilityNames = []string{"handler", "handler_version", "payload_version"}

func (r *reader) capability() (c Capability) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "handler":
			seen |= 1 << 0
			r.named(&c.Handler, schema.HandlerCharsMax)
		case "handler_version":
			seen |= 1 << 1
			r.named(&c.HandlerVersion, schema.HandlerVersionCharsMax)
		case "payload_version":
			seen |= 1 << 2
			r.named(&c.PayloadVersion, schema.PayloadVersionCharsMax)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<3-1, capabilityNames)
	return c
}

var capacityNames = []string{"sequence", "capacity", "drain"}

func (r *reader) capacity() *Capacity {
	c := new(Capacity)
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "sequence":
			seen |= 1 << 0
			r.uint64(&c.Sequence)
		case "capacity":
			seen |= 1 << 1
			c.Capacity = uint32(r.integer(0, capacityMax))
		case "drain":
			seen |= 1 << 2
			r.bool(&c.Drain)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<3-1, capacityNames)
	return c
}

var attemptRefNames = []string{"task_id", "attempt_id", "epoch", "lease_secret"}

func (r *reader) attemptRef(ref *AttemptRef) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "task_id":
			seen |= 1 << 0
			r.id(&ref.TaskID)
		case "attempt_id":
			seen |= 1 << 1
			r.id(&ref.AttemptID)
		case "epoch":
			seen |= 1 << 2
			r.uint64(&ref.Epoch)
		case "lease_secret":
			seen |= 1 << 3
			r.secret(&ref.LeaseSecret)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<4-1, attemptRefNames)
}

var finishNames = []string{"ref", "outcome", "result", "error_code"}

func (r *reader) finish() *Finish {
	f := new(Finish)
	start, seen := r.at, uint32(0)
	codeAt, retryableAt := 0, 0
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "ref":
			seen |= 1 << 0
			r.attemptRef(&f.Ref)
		case "outcome":
			seen |= 1 << 1
			oneOf(r, &f.Outcome, outcomes)
		case "result":
			seen |= 1 << 2
			r.json(&f.Result)
		case "error_code":
			seen |= 1 << 3
			codeAt = r.at
			r.chars(&f.ErrorCode, schema.ErrorCodeCharsMax)
		case "retryable":
			retryableAt = r.at
			r.bool(&f.Retryable)
		default:
			r.unknown()
		}
	}
	required := uint32(1<<4 - 1)
	if f.Outcome == OutcomeSucceeded {
		required = 1<<3 - 1
	}
	r.require(start, seen, required, finishNames)
	switch {
	case f.Outcome == OutcomeSucceeded && f.ErrorCode != "":
		r.fail(codeAt, "must be empty or absent with SUCCEEDED")
	case f.Outcome != OutcomeSucceeded && !schema.ValidName(f.ErrorCode, schema.ErrorCodeCharsMax):
		r.fail(codeAt, "must be 1 to 64 letters, digits or _ . : - and begin with a letter or digit")
	case f.Outcome != OutcomeFailed && f.Retryable:
		r.fail(retryableAt, "must be false or absent unless the outcome is FAILED")
	}
	return f
}

var welcomeNames = []string{"session_id", "epoch", "server_time", "expires_at", "lease_duration_ms", "draining"}

func (r *reader) welcome() *Welcome {
	w := new(Welcome)
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "session_id":
			seen |= 1 << 0
			r.id(&w.SessionID)
		case "epoch":
			seen |= 1 << 1
			r.uint64(&w.Epoch)
		case "server_time":
			seen |= 1 << 2
			r.time(&w.ServerTime)
		case "expires_at":
			seen |= 1 << 3
			r.time(&w.ExpiresAt)
		case "lease_duration_ms":
			seen |= 1 << 4
			w.LeaseDurationMillis = r.integer(leaseMillisMin, leaseMillisMax)
		case "draining":
			seen |= 1 << 5
			r.bool(&w.Draining)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<6-1, welcomeNames)
	return w
}

var leaseNames = []string{"active", "state", "lease_until", "server_time"}

func (r *reader) lease(l *Lease) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "active":
			seen |= 1 << 0
			r.bool(&l.Active)
		case "state":
			seen |= 1 << 1
			oneOf(r, &l.State, attemptStates)
		case "lease_until":
			seen |= 1 << 2
			r.time(&l.LeaseUntil)
		case "server_time":
			seen |= 1 << 3
			r.time(&l.ServerTime)
		case "cancel_requested_at":
			r.optTime(&l.CancelRequestedAt)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<4-1, leaseNames)
	if l.Active && !l.State.live() {
		r.fail(start, "an active lease has state LEASED or RUNNING")
	}
}

// live says whether an attempt in this state can hold a lease.
func (s AttemptState) live() bool { return s == AttemptLeased || s == AttemptRunning }

var receiptNames = []string{"operation", "task_state", "attempt_state", "task_revision", "lease_until", "disposition"}

func (r *reader) receipt(t *Receipt) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "operation":
			seen |= 1 << 0
			oneOf(r, &t.Operation, operations)
		case "task_state":
			seen |= 1 << 1
			oneOf(r, &t.TaskState, taskStates)
		case "attempt_state":
			seen |= 1 << 2
			oneOf(r, &t.AttemptState, attemptStates)
		case "task_revision":
			seen |= 1 << 3
			r.uint64(&t.TaskRevision)
		case "lease_until":
			seen |= 1 << 4
			r.time(&t.LeaseUntil)
		case "disposition":
			seen |= 1 << 5
			oneOf(r, &t.Disposition, dispositions)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<6-1, receiptNames)
}

var commandResultNames = []string{"receipt", "lease", "deduplicated"}

func (r *reader) commandResult() *CommandResult {
	c := new(CommandResult)
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "receipt":
			seen |= 1 << 0
			r.receipt(&c.Receipt)
		case "lease":
			seen |= 1 << 1
			r.lease(&c.Lease)
		case "deduplicated":
			seen |= 1 << 2
			r.bool(&c.Deduplicated)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<3-1, commandResultNames)
	return c
}

var retryNames = []string{"max_attempts", "initial_delay_ms", "max_delay_ms", "attempt_timeout_ms"}

func (r *reader) retry(p *Retry) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "max_attempts":
			seen |= 1 << 0
			p.MaxAttempts = uint32(r.integer(1, attemptsMax))
		case "initial_delay_ms":
			seen |= 1 << 1
			p.InitialDelayMillis = r.integer(0, delayMillisMax)
		case "max_delay_ms":
			seen |= 1 << 2
			p.MaxDelayMillis = r.integer(0, delayMillisMax)
		case "attempt_timeout_ms":
			seen |= 1 << 3
			p.AttemptTimeoutMillis = r.integer(1, timeoutMillisMax)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<4-1, retryNames)
}

var taskNames = []string{
	"id", "namespace_id", "queue_id", "state", "revision", "handler", "handler_version", "payload_version", "payload",
	"available_at", "deadline_at", "recovery_safety", "retry", "attempt_count", "created_at", "updated_at",
}

func (r *reader) task(t *Task) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "id":
			seen |= 1 << 0
			r.id(&t.ID)
		case "namespace_id":
			seen |= 1 << 1
			r.id(&t.NamespaceID)
		case "queue_id":
			seen |= 1 << 2
			r.id(&t.QueueID)
		case "state":
			seen |= 1 << 3
			var state TaskState
			oneOf(r, &state, assignedStates)
		case "revision":
			seen |= 1 << 4
			r.uint64(&t.Revision)
		case "handler":
			seen |= 1 << 5
			r.named(&t.Handler, schema.HandlerCharsMax)
		case "handler_version":
			seen |= 1 << 6
			r.named(&t.HandlerVersion, schema.HandlerVersionCharsMax)
		case "payload_version":
			seen |= 1 << 7
			r.named(&t.PayloadVersion, schema.PayloadVersionCharsMax)
		case "payload":
			seen |= 1 << 8
			r.json(&t.Payload)
		case "available_at":
			seen |= 1 << 9
			r.time(&t.AvailableAt)
		case "deadline_at":
			seen |= 1 << 10
			r.time(&t.DeadlineAt)
		case "recovery_safety":
			seen |= 1 << 11
			oneOf(r, &t.RecoverySafety, recoverySafeties)
		case "retry":
			seen |= 1 << 12
			r.retry(&t.Retry)
		case "attempt_count":
			seen |= 1 << 13
			t.AttemptCount = uint32(r.integer(1, attemptsMax))
		case "created_at":
			seen |= 1 << 14
			r.time(&t.CreatedAt)
		case "updated_at":
			seen |= 1 << 15
			r.time(&t.UpdatedAt)
		default:
			r.taskOption(t)
		}
	}
	r.require(start, seen, 1<<16-1, taskNames)
}

// taskOption reads a member that a task need not have.
func (r *reader) taskOption(t *Task) {
	switch string(r.name) {
	case "result":
		r.json(&t.Result)
	case "business_key":
		r.chars(&t.BusinessKey, schema.KeyCharsMax)
	case "start_deadline_at":
		r.optTime(&t.StartDeadlineAt)
	case "cancel_requested_at":
		r.optTime(&t.CancelRequestedAt)
	case "completed_at":
		r.optTime(&t.CompletedAt)
	case "effect_uncertain":
		r.bool(&t.EffectUncertain)
	case "concurrency_key":
		start := r.at
		r.chars(&t.ConcurrencyKey, schema.KeyCharsMax)
		if fault := schema.CheckConcurrencyKey(t.ConcurrencyKey); fault != "" {
			r.fail(start, fault)
		}
	case "priority":
		t.Priority = uint32(r.integer(0, priorityMax))
	case "retry_of":
		t.RetryOf.Set = true
		r.id(&t.RetryOf.V)
	default:
		r.unknown()
	}
}

var assignNames = []string{"task", "attempt_id", "epoch", "lease_secret", "lease_until", "server_time", "concurrency_token"}

func (r *reader) assign() *Assign {
	a := new(Assign)
	start, seen := r.at, uint32(0)
	tokenAt := 0
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "task":
			seen |= 1 << 0
			r.task(&a.Task)
		case "attempt_id":
			seen |= 1 << 1
			r.id(&a.AttemptID)
		case "epoch":
			seen |= 1 << 2
			r.uint64(&a.Epoch)
		case "lease_secret":
			seen |= 1 << 3
			r.secret(&a.LeaseSecret)
		case "lease_until":
			seen |= 1 << 4
			r.time(&a.LeaseUntil)
		case "server_time":
			seen |= 1 << 5
			r.time(&a.ServerTime)
		case "concurrency_token":
			seen |= 1 << 6
			tokenAt = r.at
			r.uint64(&a.ConcurrencyToken)
		case "trace":
			if !r.traced {
				r.unknown()
				continue
			}
			r.trace(&a.Trace)
		default:
			r.unknown()
		}
	}
	required := uint32(1<<6 - 1)
	if a.Task.ConcurrencyKey != "" {
		required = 1<<7 - 1
	}
	r.require(start, seen, required, assignNames)
	if a.Task.ConcurrencyKey == "" && a.ConcurrencyToken != 0 {
		r.fail(tokenAt, "belongs to a task with a concurrency key")
	}
	return a
}

func (r *reader) trace(t *TraceContext) {
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "traceparent":
			seen |= 1 << 0
			at := r.at
			r.chars(&t.Parent, schema.TraceStateCharsMax)
			if !schema.ValidTraceParent(t.Parent) {
				r.fail(at, "must be a traceparent of W3C Trace Context")
			}
		case "tracestate":
			at := r.at
			r.chars(&t.State, schema.TraceStateCharsMax)
			if !schema.ValidTraceState(t.State) {
				r.fail(at, "must be a tracestate of W3C Trace Context")
			}
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1, []string{"traceparent"})
}

// ack finds out which of its three shapes a body has by the first member that
// only one of them knows.
func (r *reader) ack() *Ack {
	start := r.at
	shape := ""
	r.enter()
	for shape == "" && r.member() {
		switch string(r.name) {
		case "active", "state", "lease_until", "cancel_requested_at":
			shape = "lease"
		case "receipt", "lease", "deduplicated":
			shape = "result"
		case "session_id", "epoch", "expires_at", "lease_duration_ms", "draining":
			shape = "welcome"
		default:
			r.skip()
		}
	}
	r.at = start
	a := new(Ack)
	switch shape {
	case "lease":
		a.Lease = new(Lease)
		r.lease(a.Lease)
	case "result":
		a.Result = r.commandResult()
	case "welcome":
		a.Welcome = r.welcome()
	default:
		r.fail(start, "must be a welcome, a lease or a command result")
	}
	return a
}

var errorNames = []string{"code", "message"}

func (r *reader) error() *Error {
	e := new(Error)
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "code":
			seen |= 1 << 0
			var code string
			r.named(&code, schema.ErrorCodeCharsMax)
			e.Code = schema.Code(code)
		case "message":
			seen |= 1 << 1
			r.chars(&e.Message, schema.ErrorMessageCharsMax)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<2-1, errorNames)
	return e
}

var cancelNames = []string{"task_id", "attempt_id", "epoch", "requested_at"}

func (r *reader) cancel() *Cancel {
	c := new(Cancel)
	start, seen := r.at, uint32(0)
	r.enter()
	for r.member() {
		switch string(r.name) {
		case "task_id":
			seen |= 1 << 0
			r.id(&c.TaskID)
		case "attempt_id":
			seen |= 1 << 1
			r.id(&c.AttemptID)
		case "epoch":
			seen |= 1 << 2
			r.uint64(&c.Epoch)
		case "requested_at":
			seen |= 1 << 3
			r.time(&c.RequestedAt)
		default:
			r.unknown()
		}
	}
	r.require(start, seen, 1<<4-1, cancelNames)
	return c
}
