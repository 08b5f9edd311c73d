// Package model is a second, independent reading of what Pulse promises: the
// life of tasks, attempts, sessions, keys and receipts on one machine, written
// for obviousness. State is plain structs, every question is answered by a scan
// over all of them, nothing is indexed and nothing is remembered that could be
// computed. It shares no code with the machine it is held against; the only
// common ground is the wire form of commands.
//
// Two things the model does not decide. Ids: a new object has none until the
// test tells it (Bind), because how ids are made is the machine's business and
// only their order, which is the order of creation, matters here. Jitter: a
// retry delay is known to the model as a range, and the test tells it which
// instant the machine chose (SettleBackoff).
//
// A Model is not safe for concurrent use.
package model

import (
	"fmt"
	"slices"

	pb "pulse/proto/pulse/v1"
)

// ID is the identity of a task, attempt, session, instance, queue or namespace.
type ID = [16]byte

// The bounds of one entry.
const (
	DueMax    = 1024 // due items processed
	AssignMax = 1024 // assignments made
)

const (
	millis = int64(1000) // microseconds
	second = 1000 * millis
	hour   = 3600 * second
)

// Opening is the first entry of a term.
type Opening struct {
	Count uint64
	Time  int64
}

// Namespace is a tenant.
type Namespace struct {
	ID       ID
	Name     string
	Revision uint64
	Quota    Quota
	seq      int
}

// Quota bounds what a namespace may hold; 0 is no bound.
type Quota struct {
	TasksWaiting, PayloadBytes, Workers uint64
}

// Settings of a queue.
type Settings struct {
	LeaseMS, OfferMS  int64
	MaxActive         uint32
	MaxWaiting        uint64
	RetentionMS       int64
	DefaultDeadlineMS int64
	AgeingMS          int64
	Retry             Retry
}

// Retry is a task's retry policy.
type Retry struct {
	MaxAttempts                        uint32
	InitialMS, MaxMS, AttemptTimeoutMS int64
}

// Queue is a queue with its settings.
type Queue struct {
	ID        ID
	Namespace *Namespace
	Name      string
	Revision  uint64
	Paused    bool
	Deleted   bool
	Settings  Settings
	seq       int
}

// Task is a task with its whole past.
type Task struct {
	ID        ID
	Namespace *Namespace
	Queue     *Queue

	State    pb.TaskState
	Revision uint64

	Handler, HandlerVersion, PayloadVersion string
	Payload, Result                         string
	BusinessKey, Key                        string
	Priority                                uint32
	AvailableAt, StartDeadline, Deadline    int64
	Safety                                  pb.RecoverySafety
	Retry                                   Retry

	AttemptCount, Extra            uint32
	CancelRequestedAt, CompletedAt int64
	CreatedAt, UpdatedAt           int64
	Uncertain                      bool
	RetryOf                        ID
	RetriedAs                      *Task // removed ones too
	ErrorCode                      string
	Park                           pb.Park
	Started                        bool
	Unstarted                      uint32
	Live                           *Attempt
	LastEpoch                      uint64
	KeyToken                       uint64
	Schedule                       *Schedule // whose run it is, deleted ones too
	NominalAt                      int64
	Trace                          string // W3C Trace Context that it came with
	ReviewCause                    pb.EndCause
	ReviewSince                    int64
	Decision                       Decision
	RetentionMS                    int64
	RememberedUntil                int64

	// Backoff is set while the machine's choice of AvailableAt is unknown: the
	// delay without jitter, counted from the entry's time.
	Backoff *Backoff

	hash    string
	runKind string // of a schedule's run: what its business key begins with
	seq     int
}

// Backoff is a delay whose jitter is the machine's to choose.
type Backoff struct {
	From, DelayMS, MaxMS int64
}

// Attempt is one lease of a task.
type Attempt struct {
	ID        ID
	Task      *Task
	Epoch     uint64
	State     pb.AttemptState
	Instance  ID
	LeasedAt  int64
	StartedAt int64
	EndedAt   int64
	LeaseUntil,
	TimeoutAt int64
	Number    uint32
	Counted   bool
	Token     uint64
	ErrorCode string
	Retryable bool
	Result    string
	Cause     pb.EndCause
	Receipts  []*Receipt // in order of arrival
	Evidence  []Evidence

	CancelRequestedAt int64 // asked for while it was live

	renewedOpening uint64
	seq            int
}

// Receipt is the immutable first outcome of an operation.
type Receipt struct {
	MessageID    ID
	Operation    pb.Operation
	TaskState    pb.TaskState
	AttemptState pb.AttemptState
	TaskRevision uint64
	LeaseUntil   int64
	Disposition  pb.Disposition
	Time         int64
	Index        uint64

	content string
}

// Evidence is a finish that came for an attempt that was over.
type Evidence struct {
	MessageID ID
	Outcome   pb.Outcome
	ErrorCode string
	Retryable bool
	Result    string
	Instance  ID
	Time      int64
}

// Instance is one worker process with its current session.
type Instance struct {
	ID                                   ID
	Namespace                            *Namespace
	Queue                                *Queue
	SessionID                            ID
	Epoch                                uint64
	Capabilities                         []string
	Notify, Keys                         bool
	Capacity                             uint32
	Draining                             bool
	Sequence                             uint64
	SeqCapacity                          uint32
	SeqDrain                             bool
	GatewayID                            string
	Incarnation                          string
	Connected                            bool
	ConnectedAt, DisconnectedAt, EndedAt int64
	Hold                                 bool
	HoldUntil                            int64
	HoldMS                               int64
	HeldAt                               int64
	GraceOver                            bool

	secret            string
	renewedOpening    uint64
	disconnectedIndex uint64 // entry that disconnected it
	Undeliverable     bool   // because work could not be delivered to it
	assignedIndex     uint64
	assignedPlace     int
	seq               int // of its session
}

// Gateway is a gateway process as its reports show it.
type Gateway struct {
	ID          string
	Incarnation string
	LiveUntil   int64

	renewedOpening uint64
}

// Key is a concurrency key while somebody holds it.
type Key struct {
	Namespace  *Namespace
	Name       string
	Task       *Task
	Attempt    *Attempt
	Token      uint64
	AcquiredAt int64
	InReview   bool
}

// Remembered is the answer kept under an Idempotency-Key.
type Remembered struct {
	Namespace *Namespace
	Key       string
	Hash      string
	ExpiresAt int64
	Result    Result

	kind string // of command
}

// Model is the whole state.
type Model struct {
	Index     uint64
	FenceBase uint64
	Clock     int64
	Openings  []Opening

	Namespaces []*Namespace
	Queues     []*Queue
	Tasks      []*Task
	Attempts   []*Attempt
	Instances  []*Instance
	Gateways   []*Gateway
	Keys       []*Key
	Remembered []*Remembered
	Tokens     []*Token
	Changes    []*Change // the record of who did what, oldest first
	hadToken   bool
	Schedules  []*Schedule
	Zones      []*Zone

	DefaultQueue       Settings // of the queue every cluster begins with
	IdempotencyKeysMax uint64
	FormatLevel        uint32

	seq        int
	place      int
	cmd        *pb.Command // being executed
	registered []ID        // instances, in this entry
	remembers  bool        // the command being executed leaves a remembered answer
	due        int         // processed in this entry
	feed       *feed
	fresh      fresh
}

// fresh is what this entry made and the test has not named yet.
type fresh struct {
	namespaces []*Namespace
	queues     []*Queue
	tasks      []*Task
	attempts   []*Attempt
	sessions   []*Instance
	schedules  []*Schedule
}

// New is the state before the first entry.
func New() *Model { return &Model{} }

// Fence is the fencing number of the entry being applied.
func (m *Model) fence() uint64 { return m.FenceBase + m.Index }

func (m *Model) next() int { m.seq++; return m.seq }

// Apply applies one entry and answers its commands.
func (m *Model) Apply(index, term uint64, e *pb.Entry) []Result {
	m.Index = index
	m.fresh, m.registered, m.place, m.due = fresh{}, nil, 0, 0
	if e.Term != term {
		// What an old office prepared has no effect: no time passes either.
		results := make([]Result, len(e.Commands))
		for i := range results {
			results[i] = refuse(notLeader)
		}
		return results
	}
	m.Clock = max(m.Clock, e.TimeUs)
	var results []Result
	for _, c := range e.Commands {
		results = append(results, m.command(c))
	}
	m.fireDue()
	m.assign()
	return results
}

// Pending says that due items were left over by the bound.
func (m *Model) Pending() bool {
	item, ok := m.nextDue()
	return ok && item.at <= m.Clock
}

func (m *Model) command(c *pb.Command) Result {
	if id := c.Caller.GetTokenId(); len(id) > 0 {
		if t := m.token(id); t == nil || !t.Lives(m.Clock) {
			return refuse(unauthenticated)
		}
	}
	of := "*"
	if ns := m.namespaceOf(c); ns != nil {
		of = ns.Name
	}
	m.cmd = c
	res := m.execute(c)
	m.record(c, res, of)
	return res
}

func (m *Model) execute(c *pb.Command) Result {
	switch body := c.Body.(type) {
	case *pb.Command_OpenTerm:
		return m.openTerm()
	case *pb.Command_SetCluster:
		return m.setCluster(body.SetCluster)
	case *pb.Command_CompareStates:
		// Whether a replica has to stop is beyond one machine.
		if body.CompareStates.Voters == 0 || len(body.CompareStates.Reports) == 0 {
			return refuse(invalidArgument)
		}
		return Result{}
	case *pb.Command_PutZones:
		return m.putZones(body.PutZones)
	case *pb.Command_ReportGateway:
		return m.reportGateway(body.ReportGateway)
	case *pb.Command_RegisterSession:
		return m.registerSession(body.RegisterSession)
	case *pb.Command_PutNamespace:
		return m.remembering(m.namespaceNamed("default"), c, func() Result { return m.putNamespace(body.PutNamespace) })
	case *pb.Command_TouchTokens:
		return m.touchTokens(body.TouchTokens)
	case *pb.Command_RecordAction:
		if c.Namespace != "" && m.namespaceOf(c) == nil {
			return refuse(notFound)
		}
		return Result{}
	case *pb.Command_CreateToken:
		return m.remembering(m.namespaceNamed("default"), c, func() Result { return m.createToken(c, body.CreateToken) })
	case *pb.Command_RevokeToken:
		return m.remembering(m.namespaceNamed("default"), c, func() Result { return m.revokeToken(c, body.RevokeToken) })
	case *pb.Command_DeleteNamespace:
		return m.remembering(m.namespaceNamed("default"), c, func() Result { return m.deleteNamespace(body.DeleteNamespace) })
	}
	ns := m.namespaceOf(c)
	if ns == nil {
		return refuse(notFound)
	}
	switch body := c.Body.(type) {
	case *pb.Command_SetCapacity:
		return m.setCapacity(ns, body.SetCapacity)
	case *pb.Command_CloseSession:
		return m.closeSession(ns, body.CloseSession)
	case *pb.Command_StartAttempt:
		return m.start(ns, c, body.StartAttempt)
	case *pb.Command_RenewAttempt:
		return m.renew(ns, c, body.RenewAttempt)
	case *pb.Command_FinishAttempt:
		return m.finish(ns, c, body.FinishAttempt)
	case *pb.Command_ResumeAttempt:
		return m.resume(ns, body.ResumeAttempt)
	}
	return m.remembering(ns, c, func() Result {
		switch body := c.Body.(type) {
		case *pb.Command_SubmitTask:
			return m.submit(ns, c, body.SubmitTask)
		case *pb.Command_CancelTask:
			return m.cancel(ns, body.CancelTask)
		case *pb.Command_RetryTask:
			return m.retry(ns, body.RetryTask)
		case *pb.Command_RunTask:
			return m.runNow(ns, body.RunTask)
		case *pb.Command_ReviewTask:
			return m.review(ns, body.ReviewTask)
		case *pb.Command_BulkTasks:
			return m.bulk(ns, body.BulkTasks)
		case *pb.Command_PutQueue:
			return m.putQueue(ns, body.PutQueue)
		case *pb.Command_DeleteQueue:
			return m.deleteQueue(ns, body.DeleteQueue)
		case *pb.Command_PauseQueue:
			return m.pauseQueue(ns, body.PauseQueue)
		case *pb.Command_DrainWorker:
			return m.drainWorker(ns, body.DrainWorker)
		case *pb.Command_FreeKey:
			return m.freeKey(ns, body.FreeKey)
		case *pb.Command_PutSchedule:
			return m.putSchedule(ns, body.PutSchedule)
		case *pb.Command_DeleteSchedule:
			return m.deleteSchedule(ns, body.DeleteSchedule)
		case *pb.Command_PauseSchedule:
			return m.pauseSchedule(ns, body.PauseSchedule)
		case *pb.Command_TriggerSchedule:
			return m.trigger(ns, body.TriggerSchedule)
		case *pb.Command_BackfillSchedule:
			return m.backfill(ns, body.BackfillSchedule)
		}
		panic("model: unknown command")
	})
}

// remembering answers a request that carries an Idempotency-Key from memory if
// it was accepted before, and remembers it if it is accepted now.
func (m *Model) remembering(ns *Namespace, c *pb.Command, do func() Result) Result {
	if c.IdempotencyKey == "" || ns == nil {
		return do()
	}
	for _, r := range m.Remembered {
		if r.Namespace == ns && r.Key == c.IdempotencyKey {
			if r.Hash != string(c.ContentHash) || r.kind != fmt.Sprintf("%T", c.Body) {
				return refuse(operationConflict)
			}
			again := r.Result
			again.Replayed = true
			return again
		}
	}
	if m.IdempotencyKeysMax > 0 && m.rememberedOf(ns) >= m.IdempotencyKeysMax {
		return refuse(rateLimited)
	}
	m.remembers = true
	res := do()
	m.remembers = false
	if res.Code == "" {
		if res.Task != nil { // the bytes of the answer stay with the task
			res.Task.RememberedUntil = m.Clock + 24*hour
		}
		m.Remembered = append(m.Remembered, &Remembered{Namespace: ns, Key: c.IdempotencyKey,
			Hash: string(c.ContentHash), ExpiresAt: m.Clock + 24*hour, Result: res, kind: fmt.Sprintf("%T", c.Body)})
	}
	return res
}

func (m *Model) rememberedOf(ns *Namespace) (n uint64) {
	for _, r := range m.Remembered {
		if r.Namespace == ns {
			n++
		}
	}
	return n
}

func (m *Model) openTerm() Result {
	count := uint64(len(m.Openings)) + 1
	m.Openings = append(m.Openings, Opening{Count: count, Time: m.Clock})
	if count == 1 {
		ns := m.newNamespace("default")
		m.newQueue(ns, "default", m.DefaultQueue, false)
	}
	return Result{}
}

func (m *Model) setCluster(b *pb.SetCluster) Result {
	if b.FormatLevel != 0 && b.FormatLevel < m.FormatLevel {
		return refuse(conflict)
	}
	m.FormatLevel = max(m.FormatLevel, b.FormatLevel)
	if b.IdempotencyKeysMax != 0 {
		m.IdempotencyKeysMax = b.IdempotencyKeysMax
	}
	return Result{}
}

// honoured is the time of the newest opening that something last really renewed
// at an opening count may count from: its workers could reach nobody during the
// election. Three openings at most are honoured.
func (m *Model) honoured(renewed uint64) (int64, bool) {
	last := min(uint64(len(m.Openings)), renewed+3)
	if last <= renewed {
		return 0, false
	}
	return m.Openings[last-1].Time, true
}

// rearm is the new end of something that falls due although there was an
// election: the opening plus one full duration, never past limit. It answers
// false when the end stands.
func (m *Model) rearm(until int64, renewed uint64, duration, limit int64) (int64, bool) {
	from, ok := m.honoured(renewed)
	if !ok {
		return 0, false
	}
	again := from + duration
	if limit != 0 {
		again = min(again, limit)
	}
	return again, again > until && again > m.Clock
}

func (m *Model) opening() uint64 { return uint64(len(m.Openings)) }

// Bind names what the last entry made, each kind in its order of creation.
func (m *Model) Bind(namespaces, queues, tasks, attempts, sessions []ID) (ok bool) {
	f := m.fresh
	if len(namespaces) != len(f.namespaces) || len(queues) != len(f.queues) || len(tasks) != len(f.tasks) ||
		len(attempts) != len(f.attempts) || len(sessions) != len(f.sessions) {
		return false
	}
	for i, o := range f.namespaces {
		o.ID = namespaces[i]
	}
	for i, o := range f.queues {
		o.ID = queues[i]
	}
	for i, o := range f.tasks {
		o.ID = tasks[i]
	}
	for i, o := range f.attempts {
		o.ID = attempts[i]
	}
	for i, o := range f.sessions {
		o.SessionID = sessions[i]
	}
	return true
}

// BindSchedules names the schedules the last entry made, in their order of creation.
func (m *Model) BindSchedules(schedules []ID) (ok bool) {
	if len(schedules) != len(m.fresh.schedules) {
		return false
	}
	for i, c := range m.fresh.schedules {
		c.ID = schedules[i]
		m.nameRuns(c)
	}
	return true
}

// SettleBackoff tells the model the instant the machine chose for a retry. It
// answers false if the choice is outside of what is promised.
func (t *Task) SettleBackoff(at int64) bool {
	b := t.Backoff
	t.Backoff = nil
	t.AvailableAt = at
	delay := at - b.From
	low, high := b.DelayMS*800, b.DelayMS*1200 // within 20 %, in microseconds
	return low <= delay && delay <= high && delay <= b.MaxMS*millis
}

// Counts of fresh objects, for the message when Bind fails.
func (m *Model) Fresh() (namespaces, queues, tasks, attempts, sessions int) {
	f := m.fresh
	return len(f.namespaces), len(f.queues), len(f.tasks), len(f.attempts), len(f.sessions)
}

func remove[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return x == y })
}
