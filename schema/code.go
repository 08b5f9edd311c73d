package schema

// Code is a stable public error code. Clients decide by it; the message beside
// it is for people and may change.
type Code string

// The codes. Codes and Lookup tell what each means for a connection, a retry and
// an HTTP status.
const (
	InvalidFrame       Code = "invalid_frame"
	InvalidArgument    Code = "invalid_argument"
	UnsupportedVersion Code = "unsupported_version"
	Unauthenticated    Code = "unauthenticated"
	Forbidden          Code = "forbidden"
	NotFound           Code = "not_found"
	Conflict           Code = "conflict"
	OperationConflict  Code = "operation_conflict"
	IdentityConflict   Code = "identity_conflict"
	SessionRequired    Code = "session_required"
	SessionSuperseded  Code = "session_superseded"
	SessionExpired     Code = "session_expired"
	StaleEpoch         Code = "stale_epoch"
	LeaseLost          Code = "lease_lost"
	NotStarted         Code = "not_started"
	AlreadyStarted     Code = "already_started"
	CancelNotRequested Code = "cancel_not_requested"
	DrainIsFinal       Code = "drain_is_final"
	StaleSequence      Code = "stale_sequence"
	RevisionConflict   Code = "revision_conflict"
	QueueFull          Code = "queue_full"
	RateLimited        Code = "rate_limited"
	TooLarge           Code = "too_large"
	NotLeader          Code = "not_leader"
	NoLeader           Code = "no_leader"
	DeadlineExpired    Code = "deadline_expired"
	UnknownCommand     Code = "unknown_command"
	ResultUnknown      Code = "result_unknown"
	Unavailable        Code = "unavailable"
	Internal           Code = "internal"
)

// Violation names one fault of an input: Path is a JSON Pointer.
type Violation struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// Error is a refusal with a public code. It crosses package seams as an error
// value; errors.AsType finds it, and errors.Is(err, code) decides by its code.
type Error struct {
	Code            Code
	Message         string
	Violations      []Violation
	ExistingTaskID  string // 32 hex digits, with conflict on a business key
	CurrentRevision uint64 // with revision_conflict
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }
