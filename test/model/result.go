package model

import pb "pulse/proto/pulse/v1"

// Codes the machine may answer.
const (
	invalidArgument    = "invalid_argument"
	unauthenticated    = "unauthenticated"
	forbidden          = "forbidden"
	notFound           = "not_found"
	conflict           = "conflict"
	operationConflict  = "operation_conflict"
	identityConflict   = "identity_conflict"
	sessionSuperseded  = "session_superseded"
	sessionExpired     = "session_expired"
	staleEpoch         = "stale_epoch"
	leaseLost          = "lease_lost"
	notStarted         = "not_started"
	alreadyStarted     = "already_started"
	cancelNotRequested = "cancel_not_requested"
	drainIsFinal       = "drain_is_final"
	staleSequence      = "stale_sequence"
	revisionConflict   = "revision_conflict"
	queueFull          = "queue_full"
	rateLimited        = "rate_limited"
	notLeader          = "not_leader"
	unavailable        = "unavailable"
	deadlineExpired    = "deadline_expired"
)

// Result is the outcome of one command: what a caller may rely on.
type Result struct {
	Code            string
	Task            *Task // the task the answer is about
	After           Task  // that task as the command left it
	Duplicate       bool
	Replayed        bool
	Existing        *Task // with a conflict on a business key
	CurrentRevision uint64

	Receipt      *Receipt
	Deduplicated bool
	Lease        *Lease

	Session  *Session
	Queue    *Queue
	QueueAt  Queue // as the command left it
	Items    []Item
	Key      *KeyAnswer
	Instance *Instance
	Gone     []Gone
	List     bool // a gateway's report in short is of other sessions
	Token    *Token

	Schedule   *Schedule
	ScheduleAt Schedule // as the command left it
	Backfill   []BackfillItem
}

// Lease is an authority verified anew for an answer.
type Lease struct {
	Active            bool
	State             pb.AttemptState
	LeaseUntil        int64
	CancelRequestedAt int64
}

// Session is a welcome.
type Session struct {
	Instance  *Instance
	Epoch     uint64
	Capacity  uint32
	Draining  bool
	ExpiresAt int64
	LeaseMS   int64
}

// Item is one outcome of a bulk action.
type Item struct {
	TaskID   ID
	Code     string
	New      *Task
	Revision uint64
}

// KeyAnswer is a key after an operator freed it.
type KeyAnswer struct {
	Name   string
	Holder *Task
}

// Gone is a session whose connection the gateway has to close.
type Gone struct {
	SessionID ID
	Code      string
}

func refuse(code string) Result { return Result{Code: code} }

func (m *Model) about(t *Task) Result { return Result{Task: t, After: *t} }
