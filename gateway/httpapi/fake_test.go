package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// fakeBackend answers what a test tells it to and remembers what it was asked.
type fakeBackend struct {
	submit func(context.Context, []*pb.Command) ([]*pb.Result, error)
	read   func(context.Context, *pb.Query) (*pb.Answer, error)
	index  atomic.Uint64

	mu       sync.Mutex
	commands []*pb.Command // copies, as they were handed over
	queries  []*pb.Query
	watchers map[chan struct{}]string // wake-ups, by task; "" = anything
}

func newBackend() *fakeBackend {
	b := &fakeBackend{watchers: map[chan struct{}]string{}}
	b.index.Store(77)
	b.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
		out := make([]*pb.Result, len(cmds))
		for i, c := range cmds {
			out[i] = sampleResult(c)
		}
		return out, nil
	}
	b.read = func(_ context.Context, q *pb.Query) (*pb.Answer, error) { return sampleAnswer(q), nil }
	return b
}

var _ session.Backend = (*fakeBackend)(nil)

func (b *fakeBackend) Submit(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	b.mu.Lock()
	for _, c := range cmds {
		b.commands = append(b.commands, proto.CloneOf(c))
	}
	b.mu.Unlock()
	return b.submit(ctx, cmds)
}

func (b *fakeBackend) Read(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	b.mu.Lock()
	b.queries = append(b.queries, proto.CloneOf(q))
	b.mu.Unlock()
	return b.read(ctx, q)
}

func (b *fakeBackend) Subscribe(taskID []byte) (<-chan struct{}, func()) {
	wake := make(chan struct{}, 1)
	b.mu.Lock()
	b.watchers[wake] = string(taskID)
	b.mu.Unlock()
	return wake, func() {
		b.mu.Lock()
		delete(b.watchers, wake)
		b.mu.Unlock()
	}
}

func (b *fakeBackend) AppliedIndex() uint64 { return b.index.Load() }

// wake wakes every watcher.
func (b *fakeBackend) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for wake := range b.watchers {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (b *fakeBackend) subscribed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.watchers)
}

func (b *fakeBackend) asked() []*pb.Query {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*pb.Query(nil), b.queries...)
}

func (b *fakeBackend) commanded() []*pb.Command {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*pb.Command(nil), b.commands...)
}

// fakeCluster is a node that is up.
type fakeCluster struct {
	reasons []string
	backup  func(io.Writer) error
	refuse  error // what transfers and removals meet
	removed []string
}

func (c *fakeCluster) Members(context.Context) []MemberStatus {
	return []MemberStatus{
		{ID: "node-1", Role: "voter", HTTP: "127.0.0.1:7400", RPC: "127.0.0.1:7401", Raft: "127.0.0.1:7402", Version: "dev", Voter: true, Leader: true, Alive: true},
		{ID: "node-2", Role: "voter", Raft: "127.0.0.1:7412", Voter: true},
	}
}

func (c *fakeCluster) Transfer(_ context.Context, id string) (string, error) {
	return cmp.Or(id, "node-3"), c.refuse
}

func (c *fakeCluster) Remove(_ context.Context, id string, force bool) error {
	c.removed = append(c.removed, fmt.Sprintf("%s %t", id, force))
	return c.refuse
}

func (c *fakeCluster) Status(context.Context) NodeStatus {
	return NodeStatus{
		ID: "node-1", Version: "dev", Role: "leader", Term: 3, LeaderID: "node-1", LeaderAddress: "127.0.0.1:7402", Ready: true,
		AppliedIndex: 77, CommitIndex: 77, LastLogIndex: 77, SnapshotIndex: 12,
		Servers: []ServerStatus{{ID: "node-1", Address: "127.0.0.1:7402", Voter: true}},
		Duties:  []DutyStatus{{Name: "courier", Running: true}}, ClusterClock: testNow, DiskFree: 1 << 40, DiskTotal: 1 << 41,
	}
}

func (c *fakeCluster) Ready(context.Context) (bool, []string) { return len(c.reasons) == 0, c.reasons }

func (c *fakeCluster) Debug(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "bundle")
	return err
}
func (c *fakeCluster) Backup(_ context.Context, w io.Writer) error { return c.backup(w) }

// testNow is the cluster clock of the samples.
const testNow = 1_893_456_000_123_456 // 2030-01-01T00:00:00.123456Z

func id(b byte) []byte { return append(make([]byte, 15), b) }

const (
	idOne = "00000000000000000000000000000001"
	idTwo = "00000000000000000000000000000002"
)

func sampleTask(state pb.TaskState) *pb.TaskView {
	v := &pb.TaskView{
		Task: &pb.TaskRow{
			Id: id(1), NamespaceId: id(10), QueueId: id(11), State: state, Revision: 4,
			Handler: "charge", HandlerVersion: "1", PayloadVersion: "2", BusinessKey: `order "7"`, ConcurrencyKey: "account/7",
			Priority: 3, AvailableAtUs: testNow, StartDeadlineAtUs: testNow + 1e6, DeadlineAtUs: testNow + 2e6,
			RecoverySafety: pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY,
			Retry:          &pb.RetryPolicy{MaxAttempts: 3, InitialDelayMs: 1000, MaxDelayMs: 60000, AttemptTimeoutMs: 3600000},
			CreatedAtUs:    testNow, UpdatedAtUs: testNow + 5,
		},
		Payload: []byte(`{"amount": 1.50}`), Namespace: "default", Queue: "default",
	}
	switch state {
	case pb.TaskState_TASK_STATE_WAITING:
		v.Waiting = &pb.Waiting{Reason: pb.WaitingReason_WAITING_REASON_KEY_HELD, HolderTaskId: id(2)}
	case pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING:
		v.Task.AttemptCount = 1
		v.Lease = &pb.LeaseView{AttemptId: id(20), Epoch: 70, InstanceId: id(30), LeaseUntilUs: testNow + 30e6, ConcurrencyToken: 70}
	case pb.TaskState_TASK_STATE_SUCCEEDED:
		v.Result = []byte(`{"done" : 2.50}`)
		v.Task.CompletedAtUs, v.Task.AttemptCount, v.Task.EffectUncertain = testNow+5, 2, true
		v.Task.RetryOf, v.Task.CancelRequestedAtUs = id(3), testNow+4
		v.Task.Decision = &pb.Decision{
			Review: pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED, By: "token/7", ByName: "anna", AtUs: testNow + 5, Note: "found \"it\"",
		}
	case pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		v.Task.AttemptCount, v.Task.KeyToken, v.Task.ReviewSinceUs, v.Task.ReviewCause = 1, 70, testNow+3, pb.EndCause_END_CAUSE_LEASE
	default:
		v.Task.CompletedAtUs, v.Task.ErrorCode, v.Task.AttemptCount = testNow+5, "card_refused", 3
	}
	return v
}

func sampleQueue() *pb.QueueView {
	return &pb.QueueView{
		Queue: &pb.QueueRow{
			Id: id(11), NamespaceId: id(10), Name: "default", Revision: 2, CreatedAtUs: testNow, UpdatedAtUs: testNow + 1,
			Settings: &pb.QueueSettings{
				LeaseDurationMs: 30000, OfferDurationMs: 10000, MaxActive: 5, MaxWaiting: 1000000, RetentionMs: 259200000,
				DefaultDeadlineMs: 2592000000, AgeingMs: 60000,
				DefaultRetry: &pb.RetryPolicy{MaxAttempts: 3, InitialDelayMs: 1000, MaxDelayMs: 60000, AttemptTimeoutMs: 3600000},
			},
		},
		Namespace: "default", Waiting: 4, Active: 2, NeedsReview: 1,
	}
}

func sampleNamespace() *pb.NamespaceRow {
	return &pb.NamespaceRow{Id: id(10), Name: "default", Revision: 1, CreatedAtUs: testNow, UpdatedAtUs: testNow, Queues: 1}
}

func sampleWorker() *pb.WorkerView {
	return &pb.WorkerView{
		Instance: &pb.InstanceRow{
			Id: id(30), NamespaceId: id(10), QueueId: id(11), Capacity: 16, Active: 2, ConcurrencyKeys: true,
			Capabilities: []*pb.Capability{{Handler: "charge", HandlerVersion: "1", PayloadVersion: "2"}},
			SessionId:    id(31), SessionEpoch: 60, GatewayId: "node-1", Connected: true, ConnectedAtUs: testNow, CreatedAtUs: testNow, Peer: "127.0.0.1:40000",
		},
		Namespace: "default", Queue: "default", State: "connected", ExpiresAtUs: testNow + 60e6,
	}
}

func sampleKey(name string) *pb.KeyView {
	return &pb.KeyView{Key: name, HolderTaskId: id(1), AttemptId: id(20), Token: 70, AcquiredAtUs: testNow, Waiters: 3}
}

func sampleEvent(revision uint64, state pb.TaskState, facts ...*pb.Fact) *pb.EventRow {
	row := sampleTask(state).Task
	row.Revision = revision
	return &pb.EventRow{
		Index: 60 + revision, Place: 1, Aggregate: pb.Aggregate_AGGREGATE_TASK, NamespaceId: id(10), AggregateId: id(1), Version: revision,
		CommandId: id(40), CommandType: "pulse.task.Submit", TimeUs: testNow, Operator: "anonymous", CorrelationId: id(40), CausationId: id(40),
		Facts: facts, TaskAfter: row,
	}
}

func factSubmitted() *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_Submitted{Submitted: &pb.Submitted{Source: "api"}}}
}

func factScheduleSet() *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_ScheduleSet{ScheduleSet: &pb.ScheduleSet{Key: "deadline", DueAtUs: testNow + 2e6}}}
}

func factLeased() *pb.Fact {
	return &pb.Fact{Kind: &pb.Fact_Leased{Leased: &pb.Leased{AttemptId: id(20), Epoch: 62, InstanceId: id(30), ConcurrencyToken: 62, LeaseUntilUs: testNow + 1e6}}}
}

func sampleEvents() []*pb.EventRow {
	return []*pb.EventRow{
		sampleEvent(1, pb.TaskState_TASK_STATE_WAITING, factSubmitted(), factScheduleSet()),
		sampleEvent(2, pb.TaskState_TASK_STATE_LEASED, factLeased()),
		sampleEvent(3, pb.TaskState_TASK_STATE_WAITING,
			&pb.Fact{Kind: &pb.Fact_AttemptExpired{AttemptExpired: &pb.AttemptExpired{AttemptId: id(20), Epoch: 62, Cause: pb.EndCause_END_CAUSE_ATTEMPT_TIMEOUT}}},
			&pb.Fact{Kind: &pb.Fact_RetryScheduled{RetryScheduled: &pb.RetryScheduled{AvailableAtUs: testNow + 9, Attempt: 2}}}),
		sampleEvent(4, pb.TaskState_TASK_STATE_SUCCEEDED,
			&pb.Fact{Kind: &pb.Fact_Reviewed{Reviewed: &pb.Reviewed{Decision: pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED, Note: "seen\n\"it\"", By: "anonymous"}}}),
	}
}

func sampleAttempts() []*pb.AttemptView {
	return []*pb.AttemptView{{
		Attempt: &pb.AttemptRow{
			Id: id(20), TaskId: id(1), Epoch: 62, State: pb.AttemptState_ATTEMPT_STATE_EXPIRED, InstanceId: id(30), SessionEpoch: 60,
			LeasedAtUs: testNow, StartedAtUs: testNow + 1, EndedAtUs: testNow + 2, LeaseUntilUs: testNow + 2, TimeoutAtUs: testNow + 9,
			ConcurrencyKey: "account/7", ConcurrencyToken: 62, Number: 1, Renewals: 2, EndCause: pb.EndCause_END_CAUSE_LEASE,
		},
		Receipts: []*pb.ReceiptRow{{
			MessageId: id(50), Operation: pb.Operation_OPERATION_START, TaskState: pb.TaskState_TASK_STATE_RUNNING,
			AttemptState: pb.AttemptState_ATTEMPT_STATE_RUNNING, TaskRevision: 3, LeaseUntilUs: testNow + 2,
			Disposition: pb.Disposition_DISPOSITION_APPLIED, TimeUs: testNow + 1, Index: 63,
		}},
		Evidence: []*pb.EvidenceView{{
			Evidence: &pb.EvidenceRow{MessageId: id(51), Outcome: pb.Outcome_OUTCOME_SUCCEEDED, InstanceId: id(30), TimeUs: testNow + 3},
			Result:   []byte(`{"paid": 1.50}`),
		}},
	}, {
		Attempt: &pb.AttemptRow{
			Id: id(21), TaskId: id(1), Epoch: 70, State: pb.AttemptState_ATTEMPT_STATE_FAILED, InstanceId: id(30), LeasedAtUs: testNow,
			LeaseUntilUs: testNow, EndedAtUs: testNow, Number: 2, ErrorCode: "card_refused", Retryable: true,
		},
		Result: []byte(`[1.50]`),
	}}
}

func sampleSchedule() *pb.ScheduleView {
	attempts, delay := uint32(2), int64(500)
	return &pb.ScheduleView{
		Namespace: "default", Open: 1, UpcomingUs: []int64{testNow + 1e6, testNow + 2e6}, Payload: []byte(`{"n":1.50}`),
		Schedule: &pb.ScheduleRow{
			Id: id(50), NamespaceId: id(2), Name: "nightly", Revision: 3, Version: 9, CreatedAtUs: testNow, UpdatedAtUs: testNow,
			LastUs: testNow - 1e6, NextUs: testNow + 1e6, NextDueUs: testNow + 3e6, BufferedUs: testNow - 1e6,
			Fired: 7, Ordered: 1, Skipped: 2, Missed: 4, Refused: 1,
			Spec: &pb.ScheduleSpec{
				Cron: "0 2 * * *", TimeZone: "Europe/Berlin", EndAtUs: testNow + 9e9, MaxFires: 100, JitterMs: 5000,
				Overlap: pb.Overlap_OVERLAP_BUFFER_ONE, CatchUpMs: 3_600_000,
				Task: &pb.TaskTemplate{
					Queue: "default", Handler: "report", HandlerVersion: "1", PayloadVersion: "1", ConcurrencyKey: "report",
					Priority: 2, DeadlineMs: 60_000, MaxAttempts: &attempts, MaxDelayMs: &delay,
				},
			},
			Recent: []*pb.ScheduleFire{
				{NominalUs: testNow - 8e6, UntilUs: testNow - 5e6, AtUs: testNow - 4e6, Outcome: pb.FireOutcome_FIRE_OUTCOME_MISSED, Times: 4},
				{NominalUs: testNow - 3e6, AtUs: testNow - 3e6, Outcome: pb.FireOutcome_FIRE_OUTCOME_REFUSED, Code: "queue_full", Message: "queue \"default\" already holds 3 waiting tasks"},
				{NominalUs: testNow - 2e6, AtUs: testNow - 2e6, Outcome: pb.FireOutcome_FIRE_OUTCOME_FIRED, TaskId: id(1)},
			},
		},
	}
}

func sampleBackfill() *pb.BackfillResult {
	return &pb.BackfillResult{Items: []*pb.BackfillItem{
		{NominalUs: testNow - 3e6, TaskId: id(1), Existed: true}, {NominalUs: testNow - 2e6, TaskId: id(2)},
		{NominalUs: testNow - 1e6, Code: "queue_full", Message: "queue \"default\" already holds 3 waiting tasks"},
	}}
}

// sampleResult is how a healthy cluster answers a command.
func sampleResult(c *pb.Command) *pb.Result {
	r := &pb.Result{Index: 80}
	switch b := c.Body.(type) {
	case *pb.Command_SubmitTask:
		v := sampleTask(pb.TaskState_TASK_STATE_WAITING)
		v.Payload = nil // apply does not send it back
		r.Body = &pb.Result_Task{Task: &pb.TaskResult{Task: v}}
	case *pb.Command_CancelTask:
		r.Body = &pb.Result_Task{Task: &pb.TaskResult{Task: sampleTask(pb.TaskState_TASK_STATE_CANCELLED)}}
	case *pb.Command_RunTask:
		r.Body = &pb.Result_Task{Task: &pb.TaskResult{Task: sampleTask(pb.TaskState_TASK_STATE_WAITING)}}
	case *pb.Command_RetryTask:
		r.Body = &pb.Result_Task{Task: &pb.TaskResult{Task: sampleTask(pb.TaskState_TASK_STATE_WAITING)}}
	case *pb.Command_ReviewTask:
		r.Body = &pb.Result_Task{Task: &pb.TaskResult{Task: sampleTask(pb.TaskState_TASK_STATE_SUCCEEDED)}}
	case *pb.Command_PutSchedule:
		v := sampleSchedule()
		v.Created = b.PutSchedule.ExpectedRevision == 0
		r.Body = &pb.Result_Schedule{Schedule: v}
	case *pb.Command_PauseSchedule:
		v := sampleSchedule()
		v.Schedule.Paused = b.PauseSchedule.Paused
		r.Body = &pb.Result_Schedule{Schedule: v}
	case *pb.Command_DeleteSchedule:
		v := sampleSchedule()
		v.Deleted = true
		r.Body = &pb.Result_Schedule{Schedule: v}
	case *pb.Command_TriggerSchedule:
		v := sampleTask(pb.TaskState_TASK_STATE_WAITING)
		v.Schedule, v.Task.ScheduleId, v.Task.NominalAtUs = "nightly", id(50), testNow
		r.Body = &pb.Result_Task{Task: &pb.TaskResult{Task: v}}
	case *pb.Command_BackfillSchedule:
		r.Body = &pb.Result_Backfill{Backfill: sampleBackfill()}
	case *pb.Command_PutQueue:
		v := sampleQueue()
		v.Created = b.PutQueue.ExpectedRevision == 0
		r.Body = &pb.Result_Queue{Queue: v}
	case *pb.Command_PauseQueue:
		v := sampleQueue()
		v.Queue.Paused = b.PauseQueue.Paused
		r.Body = &pb.Result_Queue{Queue: v}
	case *pb.Command_DeleteQueue:
		v := sampleQueue()
		v.Deleted = true
		r.Body = &pb.Result_Queue{Queue: v}
	case *pb.Command_PutNamespace, *pb.Command_DeleteNamespace:
		r.Body = &pb.Result_Namespace{Namespace: sampleNamespace()}
	case *pb.Command_CreateToken, *pb.Command_RevokeToken:
		r.Body = &pb.Result_Token{Token: sampleToken(c.GetRevokeToken() != nil)}
	case *pb.Command_DrainWorker:
		v := sampleWorker()
		v.State, v.Instance.Draining = "draining", true
		r.Body = &pb.Result_Worker{Worker: v}
	case *pb.Command_FreeKey:
		r.Body = &pb.Result_Key{Key: &pb.KeyView{Key: b.FreeKey.Key, Waiters: 1}}
	case *pb.Command_BulkTasks:
		out := &pb.BulkResult{}
		for _, task := range b.BulkTasks.TaskIds {
			item := &pb.BulkItem{TaskId: task, Revision: 5}
			switch {
			case task[15]%2 == 0:
				item.Code, item.Message, item.Revision = "conflict", "the task is over", 0
			case b.BulkTasks.Action == pb.BulkAction_BULK_ACTION_RETRY:
				item.NewTaskId, item.Revision = id(99), 1
			}
			out.Items = append(out.Items, item)
		}
		r.Body = &pb.Result_Bulk{Bulk: out}
	}
	return r
}

// sampleAnswer is how a healthy cluster answers a query.
func sampleToken(revoked bool) *pb.TokenRow {
	t := &pb.TokenRow{
		Id: id(40), Name: "ci", CreatedAtUs: testNow, CreatedBy: "client/anna", ExpiresAtUs: testNow + 1e6, UsedAtUs: testNow,
		Grants: []*pb.TokenGrant{{Role: "submitter", Namespace: "default"}, {Role: "worker", Namespace: "default", Queues: []string{"default"}}},
	}
	if revoked {
		t.RevokedAtUs, t.RevokedBy = testNow, "client/anna"
	}
	return t
}

func sampleAnswer(q *pb.Query) *pb.Answer {
	a := &pb.Answer{Index: 79, ClockUs: testNow, Term: 3, AgeMs: 12}
	switch b := q.Body.(type) {
	case *pb.Query_GetTask:
		a.Body = &pb.Answer_Task{Task: sampleTask(pb.TaskState_TASK_STATE_SUCCEEDED)}
	case *pb.Query_ListTasks:
		a.Body = &pb.Answer_Tasks{Tasks: &pb.TaskList{
			Tasks:      []*pb.TaskView{sampleTask(pb.TaskState_TASK_STATE_RUNNING), sampleTask(pb.TaskState_TASK_STATE_NEEDS_REVIEW)},
			NextBefore: map[bool][]byte{true: id(1)}[b.ListTasks.Limit <= 2],
		}}
	case *pb.Query_ListAttempts:
		a.Body = &pb.Answer_Attempts{Attempts: &pb.AttemptList{Attempts: sampleAttempts()}}
	case *pb.Query_ListTaskEvents:
		a.Body = &pb.Answer_Events{Events: &pb.EventList{Events: sampleEvents(), More: b.ListTaskEvents.Limit == 4}}
	case *pb.Query_ReadFeed:
		a.Body = &pb.Answer_Events{Events: &pb.EventList{Events: sampleEvents()}}
	case *pb.Query_GetSchedule:
		a.Body = &pb.Answer_Schedule{Schedule: sampleSchedule()}
	case *pb.Query_ListSchedules:
		v := sampleSchedule()
		v.Payload, v.UpcomingUs, v.Schedule.Paused = nil, nil, true
		a.Body = &pb.Answer_Schedules{Schedules: &pb.ScheduleList{Schedules: []*pb.ScheduleView{v}, NextAfter: "nightly"}}
	case *pb.Query_PreviewSchedule:
		a.Body = &pb.Answer_Schedule{Schedule: &pb.ScheduleView{UpcomingUs: []int64{testNow + 1e6, testNow + 500_000}}}
	case *pb.Query_PreviewBackfill:
		a.Body = &pb.Answer_Backfill{Backfill: sampleBackfill()}
	case *pb.Query_GetQueue:
		a.Body = &pb.Answer_Queue{Queue: sampleQueue()}
	case *pb.Query_ListQueues:
		a.Body = &pb.Answer_Queues{Queues: &pb.QueueList{Queues: []*pb.QueueView{sampleQueue(), sampleQueue()}}}
	case *pb.Query_ReadNamespace:
		a.Body = &pb.Answer_Namespace{Namespace: sampleNamespace()}
	case *pb.Query_ListNamespaces:
		a.Body = &pb.Answer_Namespaces{Namespaces: &pb.NamespaceList{Namespaces: []*pb.NamespaceRow{sampleNamespace()}}}
	case *pb.Query_ReadTokens:
		a.Body = &pb.Answer_Tokens{Tokens: &pb.TokenList{Tokens: []*pb.TokenRow{sampleToken(false)}}}
	case *pb.Query_ListTokens:
		elsewhere := sampleToken(false)
		elsewhere.Grants = []*pb.TokenGrant{{Role: "admin", Namespace: "*"}}
		a.Body = &pb.Answer_Tokens{Tokens: &pb.TokenList{
			Tokens: []*pb.TokenRow{sampleToken(false), sampleToken(true), elsewhere}, NextAfter: map[bool][]byte{true: id(41)}[b.ListTokens.Limit <= 3],
		}}
	case *pb.Query_ListAudit:
		a.Body = &pb.Answer_Audit{Audit: &pb.AuditList{Rows: []*pb.AuditRow{{
			Position: 7, Index: 70, TimeUs: testNow, Namespaces: []string{"default"}, Principal: "token/1", TokenId: id(40), TokenName: "ci", Roles: []string{"operator@default"},
			Action: "pulse.queue.Pause", Target: "default", Detail: "d", Note: "n", RequestId: "r", CommandId: id(50), IdempotencyKey: "k",
		}, {Position: 6, Index: 60, TimeUs: testNow, Namespaces: []string{"*"}, Principal: "client/anna", Action: "pulse.cluster.Transfer"}}, NextBefore: 6}}
	case *pb.Query_GetWorker:
		v := sampleWorker()
		v.HeardAtUs = testNow - 1e6
		v.Leases = []*pb.HeldLease{{
			TaskId: id(1), AttemptId: id(20), Epoch: 70, State: pb.AttemptState_ATTEMPT_STATE_RUNNING,
			Handler: "charge", LeasedAtUs: testNow, StartedAtUs: testNow + 1, LeaseUntilUs: testNow + 30e6,
		}}
		a.Body = &pb.Answer_Worker{Worker: v}
	case *pb.Query_ListWorkers:
		a.Body = &pb.Answer_Workers{Workers: &pb.WorkerList{Workers: []*pb.WorkerView{sampleWorker()}, NextAfter: id(30)}}
	case *pb.Query_GetKey:
		a.Body = &pb.Answer_Key{Key: sampleKey(b.GetKey.Key)}
	case *pb.Query_ListKeys:
		a.Body = &pb.Answer_Keys{Keys: &pb.KeyList{Keys: []*pb.KeyView{sampleKey("account/7"), {Key: "ä", Waiters: 1}}, NextAfter: "ä"}}
	case *pb.Query_GetActivity:
		a.Body = &pb.Answer_Activity{Activity: sampleActivity()}
	case *pb.Query_GetStats:
		a.Body = &pb.Answer_Stats{Stats: &pb.Stats{
			AppliedIndex: 79, ClockUs: testNow, ClusterId: id(7), StateHash: id(8), Openings: 1, Queues: []*pb.QueueView{sampleQueue()},
			SessionsConnected: 1, AttemptsRunning: 2, KeysHeld: 1, TimersNear: 4, EventRetentionMs: 259_200_000, IdempotencyKeysMax: 10_000_000,
			Gateways: []*pb.GatewayRow{{Id: "node-1", LiveUntilUs: testNow + 6e6, StartedAtUs: testNow}},
		}}
	}
	return a
}

func sampleActivity() *pb.Activity {
	counts := &pb.ActivityCounts{Submitted: 5, Started: 4, Succeeded: 2, Failed: 1, Cancelled: 1, ReviewsNeeded: 1, AttemptsFailed: 2, PickupP50Us: 1250, PickupP99Us: 40000}
	one := &pb.QueueActivity{
		Queue: sampleQueue(), Waiting: 4, Leased: 1, Running: 1, NeedsReview: 1, OldestWaitingUs: testNow - 3e6, OldestWaitingTaskId: id(1),
		Reasons: []*pb.ReasonCount{
			{Reason: pb.WaitingReason_WAITING_REASON_KEY_HELD, Tasks: 3}, {Reason: pb.WaitingReason_WAITING_REASON_DELAYED, Tasks: 1},
		},
		WorkersConnected: 1, WorkersDraining: 1, WorkersLost: 1, Slots: 16, SlotsUsed: 2,
		Lately: counts, Errors: []*pb.ErrorCount{{Code: "card_refused", Attempts: 2}},
	}
	return &pb.Activity{
		SinceUs: testNow - 100e6, StepUs: 5e6, LatelySteps: 12, KeysHeld: 1, Queues: []*pb.QueueActivity{one}, Total: one,
		Steps: []*pb.ActivityStep{{AtUs: testNow - 5e6, Counts: &pb.ActivityCounts{}, Waiting: 3}, {AtUs: testNow, Counts: counts, Waiting: 4, Active: 2}},
	}
}

// rig is a handler over a fake backend.
type rig struct {
	*fakeBackend
	t       *testing.T
	handler *Handler
	cluster *fakeCluster
}

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{fakeBackend: newBackend(), t: t, cluster: &fakeCluster{backup: func(w io.Writer) error {
		_, err := io.WriteString(w, "the whole state")
		return err
	}}}
	opt := Options{
		Backend: r.fakeBackend, Logger: slog.New(slog.DiscardHandler), Cluster: r.cluster, Version: "1.2.3",
		Authenticate: anonymous, LogLevel: new(slog.LevelVar),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = io.WriteString(w, "pulse_up 1\n")
		}),
	}
	for _, f := range change {
		f(&opt)
	}
	handler, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	r.handler = handler
	return r
}

// request makes one; headers are pairs.
func request(method, target, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body == "" {
		r.Body, r.ContentLength = http.NoBody, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1])
	}
	return r
}

// do sends a request and holds the answer to the document.
func (r *rig) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	w := httptest.NewRecorder()
	req := request(method, target, body, headers...)
	r.handler.ServeHTTP(w, req)
	r.conforms(req, w)
	return w
}

// problemOf reads an error.
func problemOf(t *testing.T, w *httptest.ResponseRecorder) Problem {
	t.Helper()
	if got := w.Header().Get("Content-Type"); got != mediaProblem {
		t.Fatalf("status %d has Content-Type %q: %s", w.Code, got, w.Body)
	}
	return decode[Problem](t, w.Body.Bytes())
}

func anonymous(*http.Request) (session.Identity, *schema.Error) { return session.Anonymous, nil }
