package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// dueItemsMax and assignmentsMax bound the work of one entry. What is left
	// over is pending (Machine.Pending) and done by the next entries.
	dueItemsMax    = 1024
	assignmentsMax = 1024
	// BulkMax bounds the tasks one bulk command acts on.
	BulkMax = 500
	// renewalsKept is how many receipts of renewals an attempt keeps.
	renewalsKept = 16
	// evidenceMax bounds the late finishes kept with one attempt.
	evidenceMax = 16
	// openingsKept bounds the remembered term openings: more than can fall into
	// the longest lease.
	openingsKept = 64
	// openingsHonoured is how many openings since the last real renewal re-arm
	// a lease, so that a flapping leader cannot keep a dead worker's task.
	openingsHonoured = 3
	// unstartedMax is how many unstarted offers in a row a task gets before it
	// waits with its backoff.
	unstartedMax = 5
	// idempotencyKeptUs is how long an answer is remembered: 24 h.
	idempotencyKeptUs = 24 * 3600e6

	gatewayLiveUs = 6e6
	holdMinMs     = 1_000
	holdMaxMs     = 60_000
	attemptsLimit = 100
	// namespacesMax and queuesMax bound what is always in memory.
	namespacesMax = 10_000
	queuesMax     = 10_000
	schedulesMax  = 10_000 // of a namespace
)

// run is the application of one entry.
type run struct {
	tx     *state.Tx
	s      *state.State
	now    int64  // cluster clock of the entry
	number uint64 // fencing number of the entry
	out    Outcome
	nodeID string // of this replica: decides whether it stops, never what is so
	// understood is the highest format level of this replica; the same goes for it.
	understood uint32

	cmd        *pb.Command      // being executed; nil for due items and assignment
	ns         *state.Namespace // of cmd
	cause      cause            // of the commits being made
	told       string           // what the record of changes is to say besides, of cmd
	born       int              // commands born in this entry so far
	registered map[ID]struct{}  // instances that registered in this entry
}

// cause is in whose name and why commits are made.
type cause struct {
	commandID   []byte
	commandType string
	requestID   string
	operator    string
	appID       string
	own         bool // a caller's own command: the root of its chain
}

func applyEntry(s *state.State, nodeID string, understood uint32, index, term uint64, e *pb.Entry) Outcome {
	if e.Term != term {
		return refuseEntry(s, index, term, e)
	}
	r := &run{tx: s.Begin(index, term, e.TimeUs), s: s, nodeID: nodeID, understood: understood, registered: map[ID]struct{}{}}
	r.now, r.number = r.tx.Now(), r.tx.Number()
	r.out = Outcome{Index: index, Time: r.now, Results: make([]*pb.Result, 0, len(e.Commands))}
	for _, c := range e.Commands {
		r.out.Results = append(r.out.Results, r.command(c))
	}
	r.cmd, r.ns = nil, nil
	r.due()
	r.assign()
	if err := r.tx.Commit(); err != nil {
		panic(err)
	}
	return r.out
}

// refuseEntry is the fence by term: what an old office prepared has no effect,
// whoever carries it to the log.
func refuseEntry(s *state.State, index, term uint64, e *pb.Entry) Outcome {
	tx := s.Begin(index, term, 0)
	out := Outcome{Index: index, Time: tx.Now()}
	for range e.Commands {
		out.Results = append(out.Results, &pb.Result{
			Code: string(schema.NotLeader), Index: tx.Number(),
			Message: "the node that proposed this was no longer the leader; nothing happened",
		})
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	return out
}

// command executes one command, or answers from what is remembered.
func (r *run) command(c *pb.Command) *pb.Result {
	if c.Body == nil {
		// A newer version wrote this entry; one without a namespace must not end
		// as a refusal here. Going on would make this replica differ.
		panic("fsm: a command is not known to this version")
	}
	r.cmd, r.told = c, ""
	r.cause = cause{commandID: c.Id, operator: c.Caller.GetPrincipal(), appID: c.Caller.GetAppId(), own: true}
	r.cause.requestID = c.IdempotencyKey
	res := r.refuseToken(c)
	if res == nil {
		res = r.guarded(c)
		r.audit(c, res)
	}
	res.Index = r.number
	return res
}

func (r *run) guarded(c *pb.Command) *pb.Result {
	if res := r.resolveNamespace(c); res != nil {
		return res
	}
	if c.IdempotencyKey == "" || r.ns == nil {
		return r.dispatch(c)
	}
	home := r.ns // the command may go on to another one
	kind := commandType(c)
	if row := r.tx.Idempotency(r.nsID(), c.IdempotencyKey); row != nil {
		if row.CommandType != kind || !bytes.Equal(row.ContentHash, c.ContentHash) {
			return refuse(schema.OperationConflict, "this Idempotency-Key was used for another request")
		}
		return r.replay(row)
	}
	if r.ns.Row.IdempotencyKeys >= r.tx.Meta().IdempotencyKeysMax {
		return refuse(schema.RateLimited, "the namespace remembers too many Idempotency-Keys; they are forgotten after 24 hours")
	}
	res := r.dispatch(c)
	if res.Code == "" {
		r.remember(home, c, kind, res)
	}
	return res
}

// resolveNamespace finds the namespace a command names. Commands about the
// whole cluster name none; those about a namespace belong to the default one,
// which is always there to remember their answers.
func (r *run) resolveNamespace(c *pb.Command) *pb.Result {
	r.ns = nil
	switch {
	case len(c.NamespaceId) == 16:
		r.ns = r.s.Namespace(ID(c.NamespaceId))
	case c.Namespace != "":
		r.ns = r.s.NamespaceByName(c.Namespace)
	default:
		switch c.Body.(type) {
		case *pb.Command_OpenTerm, *pb.Command_ReportGateway, *pb.Command_RegisterSession,
			*pb.Command_SetCluster, *pb.Command_CompareStates, *pb.Command_PutZones:
			return nil
		case *pb.Command_TouchTokens, *pb.Command_RecordAction:
			return nil
		case *pb.Command_PutNamespace, *pb.Command_DeleteNamespace, *pb.Command_CreateToken, *pb.Command_RevokeToken:
			r.ns = r.s.NamespaceByName(DefaultName)
			return nil
		}
	}
	if r.ns == nil {
		return refuse(schema.NotFound, "no such namespace")
	}
	return nil
}

func (r *run) nsID() ID { return ID(r.ns.Row.Id) }

// dispatch is the table of contents of the system: one line for each command.
func (r *run) dispatch(c *pb.Command) *pb.Result {
	switch b := c.Body.(type) {
	case *pb.Command_OpenTerm:
		return r.openTerm(b.OpenTerm)
	case *pb.Command_SubmitTask:
		return r.submitTask(b.SubmitTask)
	case *pb.Command_CancelTask:
		return r.cancelTask(b.CancelTask)
	case *pb.Command_RetryTask:
		return r.retryTask(b.RetryTask, false)
	case *pb.Command_RunTask:
		return r.runTask(b.RunTask)
	case *pb.Command_ReviewTask:
		return r.reviewTask(b.ReviewTask)
	case *pb.Command_BulkTasks:
		return r.bulkTasks(b.BulkTasks)
	case *pb.Command_PutQueue:
		return r.putQueue(b.PutQueue)
	case *pb.Command_DeleteQueue:
		return r.deleteQueue(b.DeleteQueue)
	case *pb.Command_PauseQueue:
		return r.pauseQueue(b.PauseQueue)
	case *pb.Command_PutSchedule:
		return r.putSchedule(b.PutSchedule)
	case *pb.Command_DeleteSchedule:
		return r.deleteSchedule(b.DeleteSchedule)
	case *pb.Command_PauseSchedule:
		return r.pauseSchedule(b.PauseSchedule)
	case *pb.Command_TriggerSchedule:
		return r.triggerSchedule(b.TriggerSchedule)
	case *pb.Command_BackfillSchedule:
		return r.backfillSchedule(b.BackfillSchedule)
	case *pb.Command_PutZones:
		return r.putZones(b.PutZones)
	case *pb.Command_PutNamespace:
		return r.putNamespace(b.PutNamespace)
	case *pb.Command_DeleteNamespace:
		return r.deleteNamespace(b.DeleteNamespace)
	case *pb.Command_RegisterSession:
		return r.registerSession(b.RegisterSession)
	case *pb.Command_SetCapacity:
		return r.setCapacity(b.SetCapacity)
	case *pb.Command_CloseSession:
		return r.closeSession(b.CloseSession)
	case *pb.Command_DrainWorker:
		return r.drainWorker(b.DrainWorker)
	case *pb.Command_ReportGateway:
		return r.reportGateway(b.ReportGateway)
	case *pb.Command_StartAttempt:
		return r.startAttempt(b.StartAttempt)
	case *pb.Command_RenewAttempt:
		return r.renewAttempt(b.RenewAttempt)
	case *pb.Command_FinishAttempt:
		return r.finishAttempt(b.FinishAttempt)
	case *pb.Command_ResumeAttempt:
		return r.resumeAttempt(b.ResumeAttempt)
	case *pb.Command_FreeKey:
		return r.freeKey(b.FreeKey)
	case *pb.Command_SetCluster:
		return r.setCluster(b.SetCluster)
	case *pb.Command_CompareStates:
		return r.compareStates(b.CompareStates)
	case *pb.Command_CreateToken:
		return r.createToken(b.CreateToken)
	case *pb.Command_RevokeToken:
		return r.revokeToken(b.RevokeToken)
	case *pb.Command_TouchTokens:
		return r.touchTokens(b.TouchTokens)
	case *pb.Command_RecordAction:
		return r.recordAction(b.RecordAction)
	}
	// A newer version wrote this entry. Going on would make this replica differ.
	panic(fmt.Sprintf("fsm: command %T is not known to this version", c.Body))
}

// commandType is the stable name of a command, as facts and remembered answers
// carry it.
func commandType(c *pb.Command) string {
	field := c.ProtoReflect().WhichOneof(c.ProtoReflect().Descriptor().Oneofs().ByName("body"))
	if name, ok := commandTypes[string(field.Name())]; ok {
		return name
	}
	return "pulse." + string(field.Name())
}

var commandTypes = map[string]string{
	"submit_task":       "pulse.task.Submit",
	"cancel_task":       "pulse.task.Cancel",
	"retry_task":        "pulse.task.Retry",
	"review_task":       "pulse.task.Review",
	"run_task":          "pulse.task.Run",
	"bulk_tasks":        "pulse.task.Bulk",
	"start_attempt":     "pulse.task.Start",
	"renew_attempt":     "pulse.task.Renew",
	"finish_attempt":    "pulse.task.Finish",
	"resume_attempt":    "pulse.task.Resume",
	"free_key":          "pulse.task.FreeKey",
	"put_queue":         "pulse.queue.Put",
	"delete_queue":      "pulse.queue.Delete",
	"pause_queue":       "pulse.queue.Pause",
	"put_namespace":     "pulse.namespace.Put",
	"delete_namespace":  "pulse.namespace.Delete",
	"register_session":  "pulse.worker.Register",
	"set_capacity":      "pulse.worker.SetCapacity",
	"close_session":     "pulse.worker.Close",
	"drain_worker":      "pulse.worker.Drain",
	"report_gateway":    "pulse.gateway.Report",
	"open_term":         "pulse.cluster.OpenTerm",
	"set_cluster":       "pulse.cluster.Set",
	"compare_states":    "pulse.cluster.CompareStates",
	"create_token":      "pulse.token.Create",
	"revoke_token":      "pulse.token.Revoke",
	"touch_tokens":      "pulse.token.Touch",
	"record_action":     "pulse.cluster.Record",
	"put_schedule":      "pulse.schedule.Put",
	"delete_schedule":   "pulse.schedule.Delete",
	"pause_schedule":    "pulse.schedule.Pause",
	"trigger_schedule":  "pulse.schedule.Trigger",
	"backfill_schedule": "pulse.schedule.Backfill",
	"put_zones":         "pulse.cluster.PutZones",
}

// remember keeps the answer of an accepted request under its key in namespace
// home, without the payload and result bytes, which stay where they are.
func (r *run) remember(home *state.Namespace, c *pb.Command, kind string, res *pb.Result) {
	small := res
	if t := res.GetTask(); t != nil {
		v := withoutBodies(t.Task)
		v.Task = state.Moving(v.Task) // the rest is in the task's row, which outlasts the answer
		v.Task.Id = t.Task.Task.Id
		small = &pb.Result{Body: &pb.Result_Task{Task: &pb.TaskResult{Task: v, Duplicate: t.Duplicate}}}
	}
	if c := res.GetSchedule(); c != nil {
		small = &pb.Result{Body: &pb.Result_Schedule{Schedule: withoutPayload(c)}}
	}
	answer, err := proto.MarshalOptions{Deterministic: true}.Marshal(small)
	if err != nil {
		panic(fmt.Errorf("encode a remembered answer: %w", err))
	}
	r.tx.PutIdempotency(&pb.IdempotencyRow{
		Format: state.RowFormat, NamespaceId: home.Row.Id, Key: c.IdempotencyKey, ContentHash: c.ContentHash,
		ExpiresAtUs: r.now + idempotencyKeptUs, Answer: answer, CommandType: kind,
	})
	if v := res.GetTask().GetTask(); v != nil {
		r.outlast(ID(v.Task.Id))
	}
	n := state.CopyNamespace(home.Row)
	n.IdempotencyKeys++
	r.tx.PutNamespace(n)
}

// outlast keeps a task at least as long as the answer that refers to its bytes.
func (r *run) outlast(id ID) {
	t := r.tx.Task(r.nsID(), id)
	if until := r.now + idempotencyKeptUs; t.RememberedUntilUs < until {
		next := state.CopyTask(t)
		next.RememberedUntilUs = until
		r.tx.PutTask(t, next)
	}
}

// replay renders a remembered answer again.
func (r *run) replay(row *pb.IdempotencyRow) *pb.Result {
	res := &pb.Result{}
	if err := proto.Unmarshal(row.Answer, res); err != nil {
		panic(fmt.Errorf("remembered answer %q is damaged: %w", row.Key, err))
	}
	res.Replayed = true
	if v := res.GetTask().GetTask(); v != nil {
		t := r.tx.Task(r.nsID(), ID(v.Task.Id))
		if t == nil {
			panic(fmt.Sprintf("fsm: remembered answer %q is about task %x, which is gone", row.Key, v.Task.Id))
		}
		state.MakeWhole(v.Task, t)
		v.Payload = r.tx.Payload(ID(v.Task.Id))
		if v.Task.ResultBytes > 0 {
			v.Result = r.tx.Result(ID(v.Task.Id))
		}
	}
	if v := res.GetSchedule(); v != nil && len(v.Schedule.GetId()) == 16 {
		v.Payload = r.tx.SchedulePayload(ID(v.Schedule.Id))
	}
	return res
}

func withoutBodies(v *pb.TaskView) *pb.TaskView {
	return &pb.TaskView{Task: v.Task, Namespace: v.Namespace, Queue: v.Queue, Waiting: v.Waiting, Lease: v.Lease, Schedule: v.Schedule}
}

func refuse(code schema.Code, format string, args ...any) *pb.Result {
	return &pb.Result{Code: string(code), Message: fmt.Sprintf(format, args...)}
}

// are says of how many something is true: "1 task is", "2 tasks are".
func are[N int | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one + " is"
	}
	return fmt.Sprintf("%d %ss are", n, one)
}

// openTerm is the first command of a leader's term. It writes the opening;
// leases, offers and sessions that fall due are re-armed by it, because workers
// could reach nobody during the election.
func (r *run) openTerm(c *pb.OpenTerm) *pb.Result {
	m := r.tx.Meta()
	if len(m.ClusterId) == 0 {
		m.ClusterId = c.ClusterId
		r.firstTerm()
	}
	count := r.opening() + 1
	m.Openings = append(m.Openings, &pb.Opening{Count: count, TimeUs: r.now, Term: m.AppliedTerm})
	if extra := len(m.Openings) - openingsKept; extra > 0 {
		m.Openings = m.Openings[extra:]
	}
	return &pb.Result{}
}

// DefaultName is the name of the namespace and of the queue that every cluster
// begins with.
const DefaultName = "default"

func (r *run) firstTerm() {
	if res := r.putNamespace(&pb.PutNamespace{Name: DefaultName}); res.Code != "" {
		panic("fsm: an empty cluster refuses its default namespace: " + res.Message)
	}
	r.ns = r.s.NamespaceByName(DefaultName)
	if res := r.putQueue(&pb.PutQueue{Name: DefaultName, Settings: defaultQueueSettings()}); res.Code != "" {
		panic("fsm: an empty cluster refuses its default queue: " + res.Message)
	}
	r.ns = nil
}

// opening is the count of the newest term opening.
func (r *run) opening() uint64 {
	o := r.tx.Meta().Openings
	if len(o) == 0 {
		return 0
	}
	return o[len(o)-1].Count
}

// rearmed gives the time until which something that lasts durationUs and was
// last heard of at opening count renewed holds out because of elections: a full
// duration from the newest opening that is honoured. 0 means no opening counts.
func (r *run) rearmed(renewed uint64, durationUs int64) int64 {
	last := renewed + openingsHonoured
	o := r.tx.Meta().Openings
	for i := len(o) - 1; i >= 0; i-- {
		if o[i].Count <= renewed {
			return 0
		}
		if o[i].Count <= last {
			return o[i].TimeUs + durationUs
		}
	}
	return 0
}

func (r *run) setCluster(c *pb.SetCluster) *pb.Result {
	m := r.tx.Meta()
	if err := checkLevel(c.FormatLevel, r.understood); err != nil {
		panic(err) // every voter has said that it understands it; this one is older now
	}
	if c.FormatLevel != 0 && c.FormatLevel < m.FormatLevel {
		return refuse(schema.Conflict, "the format level is %d and is only ever raised", m.FormatLevel)
	}
	if c.EventRetentionMs > 0 {
		m.EventRetentionMs = c.EventRetentionMs
		if m.FeedTrimAtUs != 0 {
			r.tx.LookAtFeed(r.now) // with the new measure
		}
	}
	if c.IdempotencyKeysMax > 0 {
		m.IdempotencyKeysMax = c.IdempotencyKeysMax
	}
	m.FormatLevel = max(m.FormatLevel, c.FormatLevel)
	return &pb.Result{}
}

// newID makes the next id: UUIDv7 without dashes. Its time is the cluster
// clock, then come the place in the entry, low bits of the index and a hash;
// inside one millisecond ids continue above the last one issued.
func (r *run) newID() ID {
	m := r.tx.Meta()
	place := r.born
	r.born++
	var seed [28]byte
	binary.BigEndian.PutUint64(seed[0:], m.FenceBase)
	binary.BigEndian.PutUint64(seed[8:], m.AppliedIndex)
	binary.BigEndian.PutUint64(seed[16:], uint64(place))
	sum := sha256.Sum256(append(m.ClusterId[:len(m.ClusterId):len(m.ClusterId)], seed[:]...))

	ms := uint64(r.now / 1000)
	high := uint64(min(place, 0xfff))                                                      // 12 bits
	low := m.AppliedIndex<<32&0x3fffffffffffffff | uint64(binary.BigEndian.Uint32(sum[:])) // 62 bits
	if last := m.LastId; binary.BigEndian.Uint64(last)>>16 >= ms {
		ms = binary.BigEndian.Uint64(last) >> 16
		lastHigh := binary.BigEndian.Uint64(last) & 0xfff
		lastLow := binary.BigEndian.Uint64(last[8:]) & 0x3fffffffffffffff
		if high < lastHigh || (high == lastHigh && low <= lastLow) {
			high, low = lastHigh, lastLow+1+uint64(sum[4])
			if low > 0x3fffffffffffffff {
				low &= 0x3fffffffffffffff
				if high++; high > 0xfff {
					high, ms = 0, ms+1
				}
			}
		}
	}
	var id ID
	binary.BigEndian.PutUint64(id[:], ms<<16|7<<12|high)
	binary.BigEndian.PutUint64(id[8:], 1<<63|low)
	m.LastId = id[:]
	return id
}

// bornID is the command id of what is born in apply: due items and assignments.
func (r *run) bornID() []byte {
	var seed [16]byte
	binary.BigEndian.PutUint64(seed[:], r.number)
	binary.BigEndian.PutUint64(seed[8:], uint64(r.born))
	r.born++
	sum := sha256.Sum256(seed[:])
	return sum[:16]
}

// causedBy sets the cause of commits that no caller asked for.
func (r *run) causedBy(commandType string) {
	r.cause = cause{commandID: r.bornID(), commandType: commandType}
}

func (r *run) effect(e Effect) { r.out.Effects = append(r.out.Effects, e) }
