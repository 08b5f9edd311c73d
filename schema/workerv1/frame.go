// Package workerv1 holds the frames of subprotocol pulse.worker.v1 as Go values,
// with one strict decoder and one encoder that both ends share: the gateway
// decodes client frames and encodes server frames, the SDK the reverse.
//
// The decoder accepts exactly what schema.WorkerV1 accepts, with format
// date-time asserted, and what the run-time rules allow that a schema cannot
// say; they are listed on Decode's file. It refuses everything else with a
// DecodeError that knows whether the frame can be answered or ends the
// connection. Nothing is allocated for a text before it is known to be sound.
//
// Business JSON (payload, result) is never parsed into values: it stays the
// bytes that were sent, as a subslice of the frame they came in.
//
// All functions are pure and safe from any goroutine.
package workerv1

import (
	"pulse/schema"
)

const (
	// Subprotocol is the name in the HTTP Upgrade.
	Subprotocol = "pulse.worker.v1"
	// SubprotocolTraced is the same with one more member in the body of
	// task.assign: trace, the TraceContext of a task that has one. The frames of
	// the first are closed, so who wants it has to ask for it: a client offers
	// both names and goes by the one that it gets.
	SubprotocolTraced = "pulse.worker.v1.trace"
	// Version is the only protocol_version.
	Version = "1"

	// FrameBytesMax bounds one frame as sent.
	FrameBytesMax = 1 << 20
	// BusinessBytesMax bounds payload and result each, as sent.
	BusinessBytesMax = schema.BusinessBytesMax
)

// ID, Secret and Time are the shared forms of package schema.
type (
	ID     = schema.ID
	Secret = schema.Secret
	Time   = schema.Time
)

// Opt is a value that may be absent where zero is a value too.
type Opt[T any] struct {
	V   T
	Set bool
}

// Some is a present value.
func Some[T any](v T) Opt[T] { return Opt[T]{V: v, Set: true} }

// OptTime is absent for zero, which is how the rows spell it.
func OptTime(micros int64) Opt[Time] { return Opt[Time]{V: Time(micros), Set: micros != 0} }

// Type is the type member of a frame.
type Type string

// Frame types of the client, then of the server.
const (
	TypeHello    Type = "worker.hello"
	TypeCapacity Type = "worker.capacity"
	TypeResume   Type = "worker.resume"
	TypeStart    Type = "task.start"
	TypeRenew    Type = "task.renew"
	TypeFinish   Type = "task.finish"

	TypeWelcome Type = "worker.welcome"
	TypeAssign  Type = "task.assign"
	TypeAck     Type = "ack"
	TypeError   Type = "error"
	TypeCancel  Type = "task.cancel"
)

// ClientFrame is a frame from a worker.
type ClientFrame struct {
	MessageID ID
	SessionID ID // of every frame but Hello, which has none
	Body      ClientBody
}

// ClientBody is one of *Hello, *Capacity, *Resume, *Start, *Renew, *Finish.
type ClientBody interface{ ClientType() Type }

// Hello registers a worker instance; it is the first frame of a connection.
type Hello struct {
	InstanceID                ID
	InstanceSecret            Secret
	QueueID                   ID
	Capabilities              []Capability // 1..32, unique
	Capacity                  uint32       // 1..256
	CancellationNotifications bool
	ConcurrencyKeys           bool
}

// Capability is what a handler of a worker can run.
type Capability struct {
	Handler        string
	HandlerVersion string
	PayloadVersion string
}

// Capacity replaces the capacity of the session.
type Capacity struct {
	Sequence uint64 // from 1
	Capacity uint32 // 0..256
	Drain    bool
}

// AttemptRef names an attempt with the proof that it was handed to the sender.
type AttemptRef struct {
	TaskID      ID
	AttemptID   ID
	Epoch       uint64
	LeaseSecret Secret
}

// Resume asks where an attempt stands, Start and Renew act on it.
type (
	Resume struct{ Ref AttemptRef }
	Start  struct{ Ref AttemptRef }
	Renew  struct{ Ref AttemptRef }
)

// Finish reports how an attempt ended.
type Finish struct {
	Ref       AttemptRef
	Outcome   Outcome
	Result    []byte // JSON as sent, never null
	ErrorCode string // "" with SUCCEEDED, a name with any other outcome
	Retryable bool   // only with FAILED
}

func (*Hello) ClientType() Type    { return TypeHello }
func (*Capacity) ClientType() Type { return TypeCapacity }
func (*Resume) ClientType() Type   { return TypeResume }
func (*Start) ClientType() Type    { return TypeStart }
func (*Renew) ClientType() Type    { return TypeRenew }
func (*Finish) ClientType() Type   { return TypeFinish }

// ServerFrame is a frame to a worker.
type ServerFrame struct {
	MessageID ID
	SessionID Opt[ID] // absent only in an Error outside a session
	ReplyTo   Opt[ID] // set in Welcome and Ack, in an Error that answers a frame, in no other
	Body      ServerBody
}

// ServerBody is one of *Welcome, *Assign, *Ack, *Error, *Cancel.
type ServerBody interface{ ServerType() Type }

// Welcome answers Hello, and Capacity inside an Ack.
type Welcome struct {
	SessionID           ID
	Epoch               uint64
	ServerTime          Time
	ExpiresAt           Time
	LeaseDurationMillis int64 // 1,000..120,000
	Draining            bool
}

// Assign offers an attempt to the session.
type Assign struct {
	Task             Task
	AttemptID        ID
	Epoch            uint64
	LeaseSecret      Secret
	LeaseUntil       Time
	ServerTime       Time
	ConcurrencyToken uint64       // not 0 exactly when the task has a concurrency key
	Trace            TraceContext // in SubprotocolTraced alone
}

// TraceContext is W3C Trace Context; without a parent there is none.
type TraceContext struct {
	Parent string // traceparent
	State  string // tracestate, may be empty
}

// Task is a task as assigned; its state is always LEASED.
type Task struct {
	ID                ID
	NamespaceID       ID
	QueueID           ID
	Revision          uint64
	Handler           string
	HandlerVersion    string
	PayloadVersion    string
	Payload           []byte // JSON as submitted, never null
	Result            []byte // empty = absent
	BusinessKey       string // "" = absent
	AvailableAt       Time
	StartDeadlineAt   Opt[Time]
	DeadlineAt        Time
	RecoverySafety    RecoverySafety
	Retry             Retry
	AttemptCount      uint32 // 1..100
	CancelRequestedAt Opt[Time]
	CompletedAt       Opt[Time]
	CreatedAt         Time
	UpdatedAt         Time
	EffectUncertain   bool
	ConcurrencyKey    string // "" = none
	Priority          uint32 // 0..9
	RetryOf           Opt[ID]
}

// Retry is a task's retry policy.
type Retry struct {
	MaxAttempts          uint32 // 1..100
	InitialDelayMillis   int64  // 0..9,223,372,036,854
	MaxDelayMillis       int64  // 0..9,223,372,036,854
	AttemptTimeoutMillis int64  // 1..2,592,000,000
}

// Ack answers a client frame. Exactly one member is set: Welcome for Capacity,
// Lease for Resume, Result for Start, Renew and Finish.
type Ack struct {
	Welcome *Welcome
	Lease   *Lease
	Result  *CommandResult
}

// Lease is authority verified anew for this answer.
type Lease struct {
	Active            bool
	State             AttemptState // LEASED or RUNNING while active
	LeaseUntil        Time
	ServerTime        Time
	CancelRequestedAt Opt[Time]
}

// Receipt is the immutable first outcome of an operation.
type Receipt struct {
	Operation    Operation
	TaskState    TaskState
	AttemptState AttemptState
	TaskRevision uint64
	LeaseUntil   Time
	Disposition  Disposition
}

// CommandResult is a receipt with the lease as it is now.
type CommandResult struct {
	Receipt      Receipt
	Lease        Lease
	Deduplicated bool
}

// Error refuses a frame, or ends the connection when its code is fatal.
type Error struct {
	Code    schema.Code // any well-formed code, not only those of the catalogue
	Message string      // at most 1,024 code points
}

// Cancel tells that the cancellation of an attempt was asked for.
type Cancel struct {
	TaskID      ID
	AttemptID   ID
	Epoch       uint64
	RequestedAt Time
}

func (*Welcome) ServerType() Type { return TypeWelcome }
func (*Assign) ServerType() Type  { return TypeAssign }
func (*Ack) ServerType() Type     { return TypeAck }
func (*Error) ServerType() Type   { return TypeError }
func (*Cancel) ServerType() Type  { return TypeCancel }

// Outcome is how a worker says an attempt ended.
type Outcome string

// The outcomes. Unknown means that the effect may have happened.
const (
	OutcomeSucceeded Outcome = "SUCCEEDED"
	OutcomeFailed    Outcome = "FAILED"
	OutcomeUnknown   Outcome = "UNKNOWN"
	OutcomeCancelled Outcome = "CANCELLED"
)

// AttemptState is the state of an attempt.
type AttemptState string

// The attempt states.
const (
	AttemptLeased    AttemptState = "LEASED"
	AttemptRunning   AttemptState = "RUNNING"
	AttemptSucceeded AttemptState = "SUCCEEDED"
	AttemptFailed    AttemptState = "FAILED"
	AttemptCancelled AttemptState = "CANCELLED"
	AttemptExpired   AttemptState = "EXPIRED"
	AttemptUnknown   AttemptState = "UNKNOWN"
)

// TaskState is the state of a task.
type TaskState string

// The task states.
const (
	TaskWaiting     TaskState = "WAITING"
	TaskLeased      TaskState = "LEASED"
	TaskRunning     TaskState = "RUNNING"
	TaskSucceeded   TaskState = "SUCCEEDED"
	TaskFailed      TaskState = "FAILED"
	TaskCancelled   TaskState = "CANCELLED"
	TaskNeedsReview TaskState = "NEEDS_REVIEW"
)

// RecoverySafety says whether the system may run a task again by itself.
type RecoverySafety string

// The two kinds of tasks.
const (
	Idempotent    RecoverySafety = "IDEMPOTENT"
	ReconcileOnly RecoverySafety = "RECONCILE_ONLY"
)

// Operation is what a receipt is for.
type Operation string

// The operations that leave a receipt.
const (
	OperationStart  Operation = "start"
	OperationRenew  Operation = "renew"
	OperationFinish Operation = "finish"
)

// Disposition says whether an operation changed the task.
type Disposition string

// EvidenceOnly is a finish that came too late: kept for the reviewer.
const (
	Applied      Disposition = "APPLIED"
	EvidenceOnly Disposition = "EVIDENCE_ONLY"
)
