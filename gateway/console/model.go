package console

import (
	"encoding/json"
	"time"
)

// What the API answers, as far as pages show it.

type activity struct {
	At           time.Time       `json:"at"`
	Since        time.Time       `json:"since"`
	StepMillis   int64           `json:"step_ms"`
	LatelyMillis int64           `json:"lately_ms"`
	KeysHeld     uint64          `json:"keys_held,string"`
	Total        standing        `json:"total"`
	Queues       []queueStanding `json:"queues"`
	Steps        []step          `json:"steps"`
}

type queueStanding struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
	standing
}

type standing struct {
	Waiting             uint64        `json:"waiting,string"`
	Reasons             []reasonCount `json:"reasons"`
	OldestWaitingSince  time.Time     `json:"oldest_waiting_since"`
	OldestWaitingTaskID string        `json:"oldest_waiting_task_id"`
	Leased              uint64        `json:"leased,string"`
	Running             uint64        `json:"running,string"`
	NeedsReview         uint64        `json:"needs_review,string"`
	WorkersConnected    int           `json:"workers_connected"`
	WorkersDraining     int           `json:"workers_draining"`
	WorkersLost         int           `json:"workers_lost"`
	Slots               uint64        `json:"slots,string"`
	SlotsUsed           uint64        `json:"slots_used,string"`
	Lately              counts        `json:"lately"`
	Errors              []errorCount  `json:"errors"`
}

// because says how many of the waiting tasks wait for a reason.
func (s *standing) because(reason string) uint64 {
	for _, r := range s.Reasons {
		if r.Reason == reason {
			return r.Tasks
		}
	}
	return 0
}

type reasonCount struct {
	Reason string `json:"reason"`
	Tasks  uint64 `json:"tasks,string"`
}

type errorCount struct {
	Code     string `json:"code"`
	Attempts uint64 `json:"attempts,string"`
}

type counts struct {
	Submitted       uint64   `json:"submitted,string"`
	Started         uint64   `json:"started,string"`
	Succeeded       uint64   `json:"succeeded,string"`
	Failed          uint64   `json:"failed,string"`
	Cancelled       uint64   `json:"cancelled,string"`
	ReviewsNeeded   uint64   `json:"reviews_needed,string"`
	AttemptsFailed  uint64   `json:"attempts_failed,string"`
	PickupP50Millis *float64 `json:"pickup_p50_ms"`
	PickupP99Millis *float64 `json:"pickup_p99_ms"`
}

type step struct {
	At time.Time `json:"at"`
	counts
	Waiting uint64 `json:"waiting,string"`
	Active  uint64 `json:"active,string"`
}

type cluster struct {
	Node  node        `json:"node"`
	State *stateShape `json:"state"`
}

type node struct {
	ID            string    `json:"id"`
	Version       string    `json:"version"`
	Role          string    `json:"role"`
	Term          uint64    `json:"term,string"`
	LeaderID      string    `json:"leader_id"`
	Ready         bool      `json:"ready"`
	NotReady      []string  `json:"not_ready"`
	AppliedIndex  uint64    `json:"applied_index,string"`
	CommitIndex   uint64    `json:"commit_index,string"`
	LastLogIndex  uint64    `json:"last_log_index,string"`
	SnapshotIndex uint64    `json:"snapshot_index,string"`
	SnapshotAt    time.Time `json:"snapshot_at"`
	Servers       []struct {
		ID    string `json:"id"`
		Voter bool   `json:"voter"`
	} `json:"servers"`
	Duties []struct {
		Name      string `json:"name"`
		Running   bool   `json:"running"`
		Restarts  int    `json:"restarts"`
		LastError string `json:"last_error"`
	} `json:"duties"`
	ClusterClock  time.Time `json:"cluster_clock"`
	WallOffsetMs  int64     `json:"wall_offset_ms"`
	LastContactMs int64     `json:"last_contact_ms"`
	DiskFree      uint64    `json:"disk_free_bytes,string"`
	DiskTotal     uint64    `json:"disk_total_bytes,string"`
	DiskLow       bool      `json:"disk_low"`
}

type stateShape struct {
	Index             uint64    `json:"index,string"`
	Term              uint64    `json:"term,string"`
	Clock             time.Time `json:"clock"`
	ClusterID         string    `json:"cluster_id"`
	StateHash         string    `json:"state_hash"`
	Openings          uint64    `json:"openings,string"`
	TasksWaiting      uint64    `json:"tasks_waiting,string"`
	TasksInReview     uint64    `json:"tasks_in_review,string"`
	AttemptsRunning   uint64    `json:"attempts_running,string"`
	SessionsConnected uint64    `json:"sessions_connected,string"`
	KeysHeld          uint64    `json:"keys_held,string"`
	Gateways          []struct {
		ID        string    `json:"id"`
		LiveUntil time.Time `json:"live_until"`
		StartedAt time.Time `json:"started_at"`
	} `json:"gateways"`
}

type member struct {
	ID            string    `json:"id"`
	Role          string    `json:"role"`
	HTTP          string    `json:"http"`
	Version       string    `json:"version"`
	Voter         bool      `json:"voter"`
	Leader        bool      `json:"leader"`
	Alive         bool      `json:"alive"`
	AppliedIndex  *uint64   `json:"applied_index,string"`
	SnapshotAt    time.Time `json:"snapshot_at"`
	LastContactMs *int64    `json:"last_contact_ms"`
}

type task struct {
	ID                string          `json:"id"`
	Namespace         string          `json:"namespace"`
	Queue             string          `json:"queue"`
	State             string          `json:"state"`
	Revision          string          `json:"revision"`
	Handler           string          `json:"handler"`
	HandlerVersion    string          `json:"handler_version"`
	PayloadVersion    string          `json:"payload_version"`
	Payload           json.RawMessage `json:"payload"`
	Result            json.RawMessage `json:"result"`
	ErrorCode         string          `json:"error_code"`
	BusinessKey       string          `json:"business_key"`
	ConcurrencyKey    string          `json:"concurrency_key"`
	Priority          int             `json:"priority"`
	AvailableAt       time.Time       `json:"available_at"`
	StartDeadlineAt   time.Time       `json:"start_deadline_at"`
	DeadlineAt        time.Time       `json:"deadline_at"`
	RecoverySafety    string          `json:"recovery_safety"`
	Retry             retry           `json:"retry"`
	AttemptCount      int             `json:"attempt_count"`
	CancelRequestedAt time.Time       `json:"cancel_requested_at"`
	CompletedAt       time.Time       `json:"completed_at"`
	CreatedAt         time.Time       `json:"created_at"`
	UpdatedAt         time.Time       `json:"updated_at"`
	EffectUncertain   bool            `json:"effect_uncertain"`
	RetryOf           string          `json:"retry_of"`
	RetriedAs         string          `json:"retried_as"`
	HoldsKey          bool            `json:"holds_key"`
	ReviewSince       time.Time       `json:"review_since"`
	Decision          *decision       `json:"decision"`
	Waiting           *waiting        `json:"waiting"`
	Lease             *lease          `json:"lease"`
}

// decision is what somebody decided about a task.
type decision struct {
	Decision string    `json:"decision"`
	By       string    `json:"by"`
	ByName   string    `json:"by_name"`
	At       time.Time `json:"at"`
	Note     string    `json:"note"`
}

// What is the decision in words.
func (d *decision) What() string {
	switch d.Decision {
	case "CANCEL":
		return "asked that it be cancelled"
	case "RETRY":
		return "reviewed it: it is to run again"
	}
	return "reviewed it: " + words(d.Decision)
}

// InReviewSince is when it came to need a review.
func (t *task) InReviewSince() time.Time {
	if t.ReviewSince.IsZero() { // a server of old does not say
		return t.UpdatedAt
	}
	return t.ReviewSince
}

// TwiceInDoubt says that a retry does again what was not to be done twice on
// suspicion, and may have been done.
func (t *task) TwiceInDoubt() bool {
	return t.RecoverySafety == "RECONCILE_ONLY" && (t.State == stateSucceeded || t.EffectUncertain)
}

// Over says that nothing will happen to the task by itself any more.
func (t *task) Over() bool {
	return t.State == stateSucceeded || t.State == stateFailed || t.State == stateCancelled
}

const (
	stateWaiting   = "WAITING"
	stateLeased    = "LEASED"
	stateRunning   = "RUNNING"
	stateSucceeded = "SUCCEEDED"
	stateFailed    = "FAILED"
	stateCancelled = "CANCELLED"
	stateReview    = "NEEDS_REVIEW"
)

var (
	states         = []string{stateWaiting, stateLeased, stateRunning, stateSucceeded, stateFailed, stateCancelled, stateReview}
	waitingReasons = []string{"ready", "delayed", "retry_backoff", "key_held", "queue_paused", "queue_limit", "no_capable_worker", "workers_busy"}
)

type retry struct {
	MaxAttempts          int   `json:"max_attempts"`
	InitialDelayMillis   int64 `json:"initial_delay_ms"`
	MaxDelayMillis       int64 `json:"max_delay_ms"`
	AttemptTimeoutMillis int64 `json:"attempt_timeout_ms"`
}

type waiting struct {
	Reason       string    `json:"reason"`
	Until        time.Time `json:"until"`
	HolderTaskID string    `json:"holder_task_id"`
}

type lease struct {
	AttemptID  string    `json:"attempt_id"`
	Epoch      string    `json:"epoch"`
	InstanceID string    `json:"instance_id"`
	LeaseUntil time.Time `json:"lease_until"`
}

type taskList struct {
	Tasks      []*task `json:"tasks"`
	NextCursor string  `json:"next_cursor"`
}

type attempt struct {
	ID                string          `json:"id"`
	Epoch             string          `json:"epoch"`
	State             string          `json:"state"`
	Number            int             `json:"number"`
	InstanceID        string          `json:"instance_id"`
	SessionEpoch      string          `json:"session_epoch"`
	LeasedAt          time.Time       `json:"leased_at"`
	StartedAt         time.Time       `json:"started_at"`
	EndedAt           time.Time       `json:"ended_at"`
	LeaseUntil        time.Time       `json:"lease_until"`
	TimeoutAt         time.Time       `json:"timeout_at"`
	CancelRequestedAt time.Time       `json:"cancel_requested_at"`
	ConcurrencyKey    string          `json:"concurrency_key"`
	ConcurrencyToken  string          `json:"concurrency_token"`
	Renewals          int             `json:"renewals"`
	ErrorCode         string          `json:"error_code"`
	Retryable         bool            `json:"retryable"`
	EndCause          string          `json:"end_cause"`
	Result            json.RawMessage `json:"result"`
	Receipts          []receipt       `json:"receipts"`
	Evidence          []evidence      `json:"evidence"`
}

type receipt struct {
	MessageID    string    `json:"message_id"`
	Operation    string    `json:"operation"`
	TaskState    string    `json:"task_state"`
	AttemptState string    `json:"attempt_state"`
	TaskRevision string    `json:"task_revision"`
	LeaseUntil   time.Time `json:"lease_until"`
	Disposition  string    `json:"disposition"`
	At           time.Time `json:"at"`
	Index        string    `json:"index"`
}

type evidence struct {
	MessageID  string          `json:"message_id"`
	Outcome    string          `json:"outcome"`
	ErrorCode  string          `json:"error_code"`
	Retryable  bool            `json:"retryable"`
	Result     json.RawMessage `json:"result"`
	InstanceID string          `json:"instance_id"`
	At         time.Time       `json:"at"`
}

type event struct {
	Index       string            `json:"index"`
	Revision    string            `json:"revision"`
	Type        string            `json:"type"`
	State       string            `json:"state"`
	Time        time.Time         `json:"time"`
	Operator    string            `json:"operator"`
	CommandType string            `json:"command_type"`
	Facts       []json.RawMessage `json:"facts"`
}

type worker struct {
	InstanceID      string       `json:"instance_id"`
	Queue           string       `json:"queue"`
	State           string       `json:"state"`
	Capacity        int          `json:"capacity"`
	Active          int          `json:"active"`
	Draining        bool         `json:"draining"`
	Capabilities    []capability `json:"capabilities"`
	ConcurrencyKeys bool         `json:"concurrency_keys"`
	CancelNotices   bool         `json:"cancellation_notifications"`
	SessionID       string       `json:"session_id"`
	SessionEpoch    string       `json:"session_epoch"`
	GatewayID       string       `json:"gateway_id"`
	Peer            string       `json:"peer"`
	CreatedAt       time.Time    `json:"created_at"`
	ConnectedAt     time.Time    `json:"connected_at"`
	DisconnectedAt  time.Time    `json:"disconnected_at"`
	ExpiresAt       time.Time    `json:"expires_at"`
	HeardAt         time.Time    `json:"heard_at"`
	Leases          []heldLease  `json:"leases"`
}

type capability struct {
	Handler        string `json:"handler"`
	HandlerVersion string `json:"handler_version"`
	PayloadVersion string `json:"payload_version"`
}

type heldLease struct {
	TaskID     string    `json:"task_id"`
	AttemptID  string    `json:"attempt_id"`
	Epoch      string    `json:"epoch"`
	State      string    `json:"state"`
	Handler    string    `json:"handler"`
	LeasedAt   time.Time `json:"leased_at"`
	StartedAt  time.Time `json:"started_at"`
	LeaseUntil time.Time `json:"lease_until"`
}

type workerList struct {
	Workers    []*worker `json:"workers"`
	NextCursor string    `json:"next_cursor"`
}

type key struct {
	Key          string    `json:"key"`
	HolderTaskID string    `json:"holder_task_id"`
	AttemptID    string    `json:"attempt_id"`
	Token        string    `json:"token"`
	AcquiredAt   time.Time `json:"acquired_at"`
	InReview     bool      `json:"in_review"`
	Waiters      uint64    `json:"waiters,string"`
}

type keyList struct {
	Keys       []*key `json:"keys"`
	NextCursor string `json:"next_cursor"`
}

type queue struct {
	Name                  string    `json:"name"`
	Revision              string    `json:"revision"`
	LeaseDurationMillis   int64     `json:"lease_duration_ms"`
	OfferDurationMillis   int64     `json:"offer_duration_ms"`
	MaxActive             int       `json:"max_active"`
	MaxWaiting            uint64    `json:"max_waiting,string"`
	RetentionMillis       int64     `json:"retention_ms"`
	DefaultDeadlineMillis int64     `json:"default_deadline_ms"`
	AgeingMillis          int64     `json:"ageing_ms"`
	DefaultRetry          retry     `json:"default_retry"`
	Paused                bool      `json:"paused"`
	CreatedAt             time.Time `json:"created_at"`
	UpdatedAt             time.Time `json:"updated_at"`
	Waiting               uint64    `json:"waiting,string"`
	Active                uint64    `json:"active,string"`
	NeedsReview           uint64    `json:"needs_review,string"`
}

type bulkAnswer struct {
	Action     string       `json:"action"`
	DryRun     bool         `json:"dry_run"`
	Matched    int          `json:"matched"`
	Done       int          `json:"done"`
	Failed     int          `json:"failed"`
	Results    []bulkResult `json:"results"`
	NextCursor string       `json:"next_cursor"`
}

type bulkResult struct {
	TaskID    string   `json:"task_id"`
	State     string   `json:"state"`
	NewTaskID string   `json:"new_task_id"`
	Error     *problem `json:"error"`

	RecoverySafety  string `json:"recovery_safety"`
	EffectUncertain bool   `json:"effect_uncertain"`
}
