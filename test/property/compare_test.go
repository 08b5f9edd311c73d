package property

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// compare holds the machine against the model: the answers to the entry's
// commands, every row, what readers are told, and what is due next.
func (w *world) compare(s *seen) *violation {
	for _, part := range []struct {
		name string
		diff func(*seen) string
	}{
		{"model/results", w.compareResults},
		{"model/tasks", w.compareTasks},
		{"model/attempts", w.compareAttempts},
		{"model/instances", w.compareInstances},
		{"model/queues", w.compareQueues},
		{"model/keys", w.compareKeys},
		{"model/remembered", w.compareRemembered},
		{"model/schedules", w.compareSchedules},
		{"model/views", w.compareViews},
		{"model/effects", w.compareEffects},
		{"model/due", w.compareDue},
		{"model/access", w.compareAccess},
	} {
		if d := part.diff(s); d != "" {
			return &violation{part.name, d}
		}
	}
	return nil
}

// taskFacts is what machine and model must agree on about a task.
type taskFacts struct {
	Queue                                            id
	State                                            pb.TaskState
	Revision                                         uint64
	Handler, HandlerVersion, PayloadVersion          string
	BusinessKey, Key                                 string
	Priority                                         uint32
	AvailableAt, StartDeadline, Deadline             int64
	Safety                                           pb.RecoverySafety
	MaxAttempts                                      uint32
	InitialMS, MaxMS, TimeoutMS                      int64
	AttemptCount, Extra                              uint32
	CancelRequestedAt, CompletedAt, Created, Updated int64
	Uncertain                                        bool
	RetryOf, RetriedAs                               id
	ErrorCode                                        string
	Park                                             pb.Park
	Started                                          bool
	Unstarted                                        uint32
	Live                                             id
	LastEpoch, KeyToken                              uint64
	ReviewCause                                      pb.EndCause
	ReviewSince                                      int64
	Decision                                         model.Decision
	RetentionMS, RememberedUntil                     int64
	Schedule                                         id
	NominalAt                                        int64
	Payload, Result                                  [32]byte
}

func toID(b []byte) (x id) {
	copy(x[:], b)
	return x
}

func digest(b string) (d [32]byte) {
	if b != "" {
		d = sha256.Sum256([]byte(b))
	}
	return d
}

func toDigest(b []byte) (d [32]byte) {
	copy(d[:], b)
	return d
}

func rowFacts(t *pb.TaskRow) taskFacts {
	return taskFacts{
		Queue: toID(t.QueueId), State: t.State, Revision: t.Revision, Handler: t.Handler,
		HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion, BusinessKey: t.BusinessKey,
		Key: t.ConcurrencyKey, Priority: t.Priority, AvailableAt: t.AvailableAtUs,
		StartDeadline: t.StartDeadlineAtUs, Deadline: t.DeadlineAtUs, Safety: t.RecoverySafety,
		MaxAttempts: t.Retry.GetMaxAttempts(), InitialMS: t.Retry.GetInitialDelayMs(),
		MaxMS: t.Retry.GetMaxDelayMs(), TimeoutMS: t.Retry.GetAttemptTimeoutMs(),
		AttemptCount: t.AttemptCount, Extra: t.AttemptsExtra, CancelRequestedAt: t.CancelRequestedAtUs,
		CompletedAt: t.CompletedAtUs, Created: t.CreatedAtUs, Updated: t.UpdatedAtUs,
		Uncertain: t.EffectUncertain, RetryOf: toID(t.RetryOf), RetriedAs: toID(t.RetriedAs), ErrorCode: t.ErrorCode, Park: t.Park,
		Started: t.Started, Unstarted: t.UnstartedOffers, Live: toID(t.AttemptId),
		LastEpoch: t.AttemptEpoch, KeyToken: t.KeyToken, ReviewCause: t.ReviewCause,
		ReviewSince: t.ReviewSinceUs, Decision: model.Decision{
			Review: t.Decision.GetReview(), By: t.Decision.GetBy(), ByName: t.Decision.GetByName(), At: t.Decision.GetAtUs(), Note: t.Decision.GetNote(),
		},
		RetentionMS: t.RetentionMs, RememberedUntil: t.RememberedUntilUs,
		Schedule: toID(t.ScheduleId), NominalAt: t.NominalAtUs,
		Payload: toDigest(t.PayloadDigest), Result: toDigest(t.ResultDigest),
	}
}

func modelFacts(t *model.Task) taskFacts {
	f := taskFacts{
		Queue: t.Queue.ID, State: t.State, Revision: t.Revision, Handler: t.Handler,
		HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion, BusinessKey: t.BusinessKey,
		Key: t.Key, Priority: t.Priority, AvailableAt: t.AvailableAt, StartDeadline: t.StartDeadline,
		Deadline: t.Deadline, Safety: t.Safety, MaxAttempts: t.Retry.MaxAttempts,
		InitialMS: t.Retry.InitialMS, MaxMS: t.Retry.MaxMS, TimeoutMS: t.Retry.AttemptTimeoutMS,
		AttemptCount: t.AttemptCount, Extra: t.Extra, CancelRequestedAt: t.CancelRequestedAt,
		CompletedAt: t.CompletedAt, Created: t.CreatedAt, Updated: t.UpdatedAt, Uncertain: t.Uncertain,
		RetryOf: t.RetryOf, ErrorCode: t.ErrorCode, Park: t.Park, Started: t.Started,
		Unstarted: t.Unstarted, LastEpoch: t.LastEpoch, KeyToken: t.KeyToken,
		ReviewCause: t.ReviewCause, ReviewSince: t.ReviewSince, Decision: t.Decision, RetentionMS: t.RetentionMS, RememberedUntil: t.RememberedUntil,
		Payload: digest(t.Payload), Result: digest(t.Result), NominalAt: t.NominalAt,
	}
	if t.Schedule != nil {
		f.Schedule = t.Schedule.ID
	}
	if t.Live != nil {
		f.Live = t.Live.ID
	}
	if t.RetriedAs != nil {
		f.RetriedAs = t.RetriedAs.ID
	}
	return f
}

// unequal prints the fields in which two facts differ.
func unequal[T comparable](what string, x id, machine, model T) string {
	if machine == model {
		return ""
	}
	a := strings.Split(fmt.Sprintf("%+v", machine), " ")
	b := strings.Split(fmt.Sprintf("%+v", model), " ")
	var diff []string
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			diff = append(diff, fmt.Sprintf("%s (model %s)", a[i], b[i]))
		}
	}
	return fmt.Sprintf("%s %x: %s", what, x, strings.Join(diff, ", "))
}

func (w *world) compareTasks(s *seen) string {
	rows := s.after.tasks.vals
	if len(rows) != len(w.model.Tasks) {
		return fmt.Sprintf("%d tasks, the model has %d", len(rows), len(w.model.Tasks))
	}
	for _, t := range w.model.Tasks {
		row := s.after.task(t.ID)
		if row == nil {
			return fmt.Sprintf("task %x is missing; the model has it %s", t.ID, t.State)
		}
		if d := unequal("task", t.ID, rowFacts(row), modelFacts(t)); d != "" {
			return d
		}
		if payload, _ := s.after.blobs.get("p" + string(t.ID[:])); payload != t.Payload {
			return fmt.Sprintf("task %x: payload %q, sent was %q", t.ID, payload, t.Payload)
		}
		trace := ""
		if raw, ok := s.after.blobs.get("w" + string(t.ID[:])); ok {
			c, err := decodeAs[pb.TraceContext]([]byte(raw))
			if err != nil {
				return err.Error()
			}
			trace = model.TraceOf(c)
		}
		if trace != t.Trace || row.Traced != (trace != "") {
			return fmt.Sprintf("task %x: trace context %q (noted: %t), it came with %q", t.ID, trace, row.Traced, t.Trace)
		}
		if result, _ := s.after.blobs.get("r" + string(t.ID[:])); result != t.Result {
			return fmt.Sprintf("task %x: result %q, sent was %q", t.ID, result, t.Result)
		}
	}
	return ""
}

type attemptFacts struct {
	Task, Instance                            id
	Epoch                                     uint64
	State                                     pb.AttemptState
	Leased, Started, Ended, LeaseUntil, Times int64
	Number                                    uint32
	Counted                                   bool
	Token                                     uint64
	ErrorCode                                 string
	Retryable                                 bool
	Cause                                     pb.EndCause
	Receipts, Evidence                        int
}

func (w *world) compareAttempts(s *seen) string {
	if len(s.after.attempts.vals) != len(w.model.Attempts) {
		return fmt.Sprintf("%d attempts, the model has %d", len(s.after.attempts.vals), len(w.model.Attempts))
	}
	receipts, evidence := map[string]int{}, map[string]int{}
	for _, k := range s.after.receipts.keys {
		receipts[k[1:33]]++
	}
	for _, k := range s.after.evidence.keys {
		evidence[k[1:33]]++
	}
	for _, a := range w.model.Attempts {
		key := string(a.Task.ID[:]) + string(a.ID[:])
		row, ok := s.after.attempts.get("a" + key)
		if !ok {
			return fmt.Sprintf("attempt %x is missing", a.ID)
		}
		is := attemptFacts{
			Task: toID(row.TaskId), Instance: toID(row.InstanceId), Epoch: row.Epoch, State: row.State,
			Leased: row.LeasedAtUs, Started: row.StartedAtUs, Ended: row.EndedAtUs,
			LeaseUntil: row.LeaseUntilUs, Times: row.TimeoutAtUs, Number: row.Number, Counted: row.Counted,
			Token: row.ConcurrencyToken, ErrorCode: row.ErrorCode, Retryable: row.Retryable,
			Cause: row.EndCause, Receipts: receipts[key], Evidence: evidence[key],
		}
		want := attemptFacts{
			Task: a.Task.ID, Instance: a.Instance, Epoch: a.Epoch, State: a.State, Leased: a.LeasedAt,
			Started: a.StartedAt, Ended: a.EndedAt, LeaseUntil: a.LeaseUntil, Times: a.TimeoutAt,
			Number: a.Number, Counted: a.Counted, Token: a.Token, ErrorCode: a.ErrorCode,
			Retryable: a.Retryable, Cause: a.Cause, Receipts: len(a.Receipts), Evidence: len(a.Evidence),
		}
		if d := unequal("attempt", a.ID, is, want); d != "" {
			return d
		}
		for _, r := range a.Receipts {
			row, ok := s.after.receipts.get("c" + key + string(r.MessageID[:]))
			if !ok {
				return fmt.Sprintf("attempt %x: receipt of %x is missing", a.ID, r.MessageID)
			}
			if d := unequalReceipt(row, r); d != "" {
				return d
			}
		}
		for _, e := range a.Evidence {
			row, ok := s.after.evidence.get("v" + key + string(e.MessageID[:]))
			if !ok || row.Outcome != e.Outcome || row.ErrorCode != e.ErrorCode || row.Retryable != e.Retryable ||
				toID(row.InstanceId) != e.Instance || row.TimeUs != e.Time || toDigest(row.ResultDigest) != digest(e.Result) {
				return fmt.Sprintf("attempt %x: evidence %+v, the model has %+v", a.ID, row, e)
			}
		}
	}
	return ""
}

type receiptFacts struct {
	Operation   pb.Operation
	Task        pb.TaskState
	Attempt     pb.AttemptState
	Revision    uint64
	LeaseUntil  int64
	Disposition pb.Disposition
	Time        int64
	Index       uint64
}

func unequalReceipt(row *pb.ReceiptRow, r *model.Receipt) string {
	return unequal("receipt", r.MessageID,
		receiptFacts{row.Operation, row.TaskState, row.AttemptState, row.TaskRevision, row.LeaseUntilUs, row.Disposition, row.TimeUs, row.Index},
		receiptFacts{r.Operation, r.TaskState, r.AttemptState, r.TaskRevision, r.LeaseUntil, r.Disposition, r.Time, r.Index})
}

type instanceFacts struct {
	Queue, Session                 id
	Epoch                          uint64
	Notify, Keys                   bool
	Capacity                       uint32
	Draining                       bool
	Sequence                       uint64
	Gateway, Incarnation           string
	Connected                      bool
	ConnectedAt, Disconnected, End int64
	Hold                           bool
	HoldUntil, HoldMS, HeldAt      int64
	GraceOver                      bool
}

func (w *world) compareInstances(s *seen) string {
	if len(s.after.instances.vals) != len(w.model.Instances) {
		return fmt.Sprintf("%d instances, the model has %d", len(s.after.instances.vals), len(w.model.Instances))
	}
	for _, i := range w.model.Instances {
		row, ok := s.after.instances.get("i" + string(i.Namespace.ID[:]) + string(i.ID[:]))
		if !ok {
			return fmt.Sprintf("instance %x is missing", i.ID)
		}
		is := instanceFacts{
			Queue: toID(row.QueueId), Session: toID(row.SessionId), Epoch: row.SessionEpoch,
			Notify: row.CancellationNotifications, Keys: row.ConcurrencyKeys, Capacity: row.Capacity,
			Draining: row.Draining, Sequence: row.Sequence, Gateway: row.GatewayId,
			Incarnation: string(row.GatewayIncarnation), Connected: row.Connected, ConnectedAt: row.ConnectedAtUs,
			Disconnected: row.DisconnectedAtUs, End: row.EndedAtUs, Hold: row.Hold,
			HoldUntil: row.HoldUntilUs, HoldMS: row.HoldMs, HeldAt: row.HeldAtUs, GraceOver: row.GraceOver,
		}
		want := instanceFacts{
			Queue: i.Queue.ID, Session: i.SessionID, Epoch: i.Epoch, Notify: i.Notify, Keys: i.Keys,
			Capacity: i.Capacity, Draining: i.Draining, Sequence: i.Sequence, Gateway: i.GatewayID,
			Incarnation: i.Incarnation, Connected: i.Connected, ConnectedAt: i.ConnectedAt,
			Disconnected: i.DisconnectedAt, End: i.EndedAt, Hold: i.Hold, HoldUntil: i.HoldUntil,
			HoldMS: i.HoldMS, HeldAt: i.HeldAt, GraceOver: i.GraceOver,
		}
		if d := unequal("instance", i.ID, is, want); d != "" {
			return d
		}
	}
	if len(s.after.gateways.vals) != len(w.model.Gateways) {
		return fmt.Sprintf("%d gateways, the model has %d", len(s.after.gateways.vals), len(w.model.Gateways))
	}
	for _, g := range w.model.Gateways {
		row, ok := s.after.gateways.get("g" + g.ID)
		if !ok || string(row.Incarnation) != g.Incarnation || row.LiveUntilUs != g.LiveUntil {
			return fmt.Sprintf("gateway %s: %v, the model has it live until %d", g.ID, row, g.LiveUntil)
		}
	}
	return ""
}

func (w *world) compareQueues(s *seen) string {
	queues := len(s.after.queues.vals)
	if queues != len(w.model.Queues) || len(s.after.namespaces.vals) != len(w.model.Namespaces) {
		return fmt.Sprintf("%d queues in %d namespaces, the model has %d in %d", queues,
			len(s.after.namespaces.vals), len(w.model.Queues), len(w.model.Namespaces))
	}
	for _, n := range w.model.Namespaces {
		row, ok := s.after.namespaces.get("n" + string(n.ID[:]))
		if !ok || row.Name != n.Name {
			return fmt.Sprintf("namespace %s is missing", n.Name)
		}
		quota := model.Quota{TasksWaiting: row.Quota.GetTasksWaiting(), PayloadBytes: row.Quota.GetPayloadBytes(), Workers: row.Quota.GetWorkers()}
		if quota != n.Quota {
			return fmt.Sprintf("namespace %s has the quota %+v, the model %+v", n.Name, quota, n.Quota)
		}
	}
	for _, q := range w.model.Queues {
		row, ok := s.after.queues.get("q" + string(q.ID[:]))
		if !ok {
			return fmt.Sprintf("queue %s is missing", q.Name)
		}
		is, want := fmt.Sprint(row.Name, row.Revision, row.Paused, row.DeletedAtUs != 0, row.Settings.LeaseDurationMs, row.Settings.MaxActive, row.Settings.MaxWaiting),
			fmt.Sprint(q.Name, q.Revision, q.Paused, q.Deleted, q.Settings.LeaseMS, q.Settings.MaxActive, q.Settings.MaxWaiting)
		if is != want {
			return fmt.Sprintf("queue %s: %s, the model has %s", q.Name, is, want)
		}
	}
	return ""
}

func (w *world) compareKeys(s *seen) string {
	if len(s.after.keys.vals) != len(w.model.Keys) {
		return fmt.Sprintf("%d keys are held, in the model %d", len(s.after.keys.vals), len(w.model.Keys))
	}
	for _, k := range w.model.Keys {
		row, ok := s.after.keys.get("k" + string(k.Namespace.ID[:]) + k.Name)
		if !ok {
			return fmt.Sprintf("key %q is free; the model has it held by %x", k.Name, k.Task.ID)
		}
		if toID(row.TaskId) != k.Task.ID || toID(row.AttemptId) != k.Attempt.ID || row.Token != k.Token ||
			row.AcquiredAtUs != k.AcquiredAt || row.InReview != k.InReview {
			return fmt.Sprintf("key %q: %v; the model has task %x, attempt %x, token %d, since %d, in review %t",
				k.Name, row, k.Task.ID, k.Attempt.ID, k.Token, k.AcquiredAt, k.InReview)
		}
	}
	return ""
}

func (w *world) compareRemembered(s *seen) string {
	if len(s.after.remembered.vals) != len(w.model.Remembered) {
		return fmt.Sprintf("%d answers are remembered, in the model %d", len(s.after.remembered.vals), len(w.model.Remembered))
	}
	for _, r := range w.model.Remembered {
		row, ok := s.after.remembered.get("I" + string(r.Namespace.ID[:]) + r.Key)
		if !ok || string(row.ContentHash) != r.Hash || row.ExpiresAtUs != r.ExpiresAt {
			return fmt.Sprintf("answer under %q: %v, the model has it until %d", r.Key, row, r.ExpiresAt)
		}
	}
	return ""
}

// compareResults holds the answers to the commands against the model's.
func (w *world) compareResults(s *seen) string {
	for i, r := range s.out.Results {
		want := s.model[i]
		if d := w.compareResult(r, &want); d != "" {
			return fmt.Sprintf("command %d (%T): %s", i, s.step.entry.Commands[i].Body, d)
		}
	}
	return ""
}

func (w *world) compareResult(r *pb.Result, want *model.Result) string {
	if r.Code != want.Code {
		return fmt.Sprintf("answered %q (%s), the model %q", r.Code, r.Message, want.Code)
	}
	if r.Replayed != want.Replayed || r.CurrentRevision != want.CurrentRevision {
		return fmt.Sprintf("replayed %t, current revision %d; the model %t, %d", r.Replayed, r.CurrentRevision, want.Replayed, want.CurrentRevision)
	}
	if want.Existing != nil && toID(r.ExistingTaskId) != want.Existing.ID {
		return fmt.Sprintf("names existing task %x, the model %x", r.ExistingTaskId, want.Existing.ID)
	}
	if want.Task != nil {
		v := r.GetTask()
		if v == nil {
			return "carries no task, the model's does"
		}
		row := v.Task.Task
		after := want.After
		if toID(row.Id) != want.Task.ID || row.State != after.State || row.Revision != after.Revision ||
			v.Duplicate != want.Duplicate || row.CancelRequestedAtUs != after.CancelRequestedAt || row.DeadlineAtUs != after.Deadline {
			return fmt.Sprintf("task %x %s revision %d duplicate %t; the model %x %s %d %t", row.Id, row.State, row.Revision, v.Duplicate,
				want.Task.ID, after.State, after.Revision, want.Duplicate)
		}
	}
	if want.Receipt != nil {
		op := r.GetOperation()
		if op == nil || op.Deduplicated != want.Deduplicated {
			return fmt.Sprintf("operation %v, the model deduplicates: %t", op, want.Deduplicated)
		}
		if d := unequalReceipt(op.Receipt, want.Receipt); d != "" {
			return d
		}
	}
	if want.Lease != nil {
		l := r.GetLease()
		if op := r.GetOperation(); op != nil {
			l = op.Lease
		}
		if l == nil || l.Active != want.Lease.Active || l.State != want.Lease.State || l.LeaseUntilUs != want.Lease.LeaseUntil ||
			l.CancelRequestedAtUs != want.Lease.CancelRequestedAt || l.ServerTimeUs != w.model.Clock {
			return fmt.Sprintf("lease %v, the model %+v", l, *want.Lease)
		}
	}
	if want.Session != nil {
		x := r.GetSession()
		if x == nil || x.Epoch != want.Session.Epoch || x.Capacity != want.Session.Capacity || x.Draining != want.Session.Draining ||
			x.LeaseDurationMs != want.Session.LeaseMS || x.ServerTimeUs != w.model.Clock || x.ExpiresAtUs != want.Session.ExpiresAt {
			return fmt.Sprintf("session %v, the model %+v", x, *want.Session)
		}
	}
	if want.Queue != nil {
		q := r.GetQueue()
		if q == nil || toID(q.Queue.Id) != want.Queue.ID || q.Queue.Revision != want.QueueAt.Revision || q.Queue.Paused != want.QueueAt.Paused {
			return fmt.Sprintf("queue %v, the model has revision %d", q, want.QueueAt.Revision)
		}
	}
	if want.Schedule != nil {
		v := r.GetSchedule()
		if v == nil || toID(v.Schedule.GetId()) != want.Schedule.ID && want.Schedule.ID != (id{}) || v.Schedule.Revision != want.ScheduleAt.Revision ||
			v.Schedule.Paused != want.ScheduleAt.Paused || v.Schedule.NextUs != want.ScheduleAt.Next {
			return fmt.Sprintf("schedule %v, the model has revision %d, next %d", v, want.ScheduleAt.Revision, want.ScheduleAt.Next)
		}
	}
	if d := compareBackfill(r.GetBackfill(), want.Backfill); d != "" {
		return d
	}
	if len(r.GetBulk().GetItems()) != len(want.Items) {
		return fmt.Sprintf("%d items, the model %d", len(r.GetBulk().GetItems()), len(want.Items))
	}
	for i, item := range r.GetBulk().GetItems() {
		x := want.Items[i]
		var made id
		if x.New != nil {
			made = x.New.ID
		}
		if item.Code != x.Code || toID(item.TaskId) != x.TaskID || toID(item.NewTaskId) != made || item.Revision != x.Revision {
			return fmt.Sprintf("item %d: %v, the model %+v", i, item, x)
		}
	}
	if want.Key != nil {
		k := r.GetKey()
		if k == nil || k.Key != want.Key.Name || len(k.HolderTaskId) != 0 {
			return fmt.Sprintf("key %v, the model has it free", k)
		}
	}
	if list := r.GetGateway().GetList(); list != want.List {
		return fmt.Sprintf("the list is asked for: %t, the model %t", list, want.List)
	}
	var gone, wantGone []string
	for _, g := range r.GetGateway().GetGone() {
		gone = append(gone, fmt.Sprintf("%x %s", g.SessionId, g.Code))
	}
	for _, g := range want.Gone {
		wantGone = append(wantGone, fmt.Sprintf("%x %s", g.SessionID, g.Code))
	}
	slices.Sort(gone)
	slices.Sort(wantGone)
	if !slices.Equal(gone, wantGone) {
		return fmt.Sprintf("gone %v, the model %v", gone, wantGone)
	}
	return ""
}

// compareViews asks as readers do.
func (w *world) compareViews(s *seen) string {
	for i, t := range w.model.Tasks {
		// Those that changed, and of the others each in turn: its waiting reason
		// may be another one.
		key := taskKey(t)
		row, _ := s.after.tasks.raw(key)
		if old, was := s.before.tasks.raw(key); was && old == row && (i+w.entries)%8 != 0 {
			continue
		}
		ans := w.m.Query(&pb.Query{NamespaceId: t.Namespace.ID[:], Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: t.ID[:]}}})
		v := ans.GetTask()
		if ans.Code != "" || v == nil {
			return fmt.Sprintf("task %x cannot be read: %q", t.ID, ans.Code)
		}
		if rowFacts(v.Task) != modelFacts(t) || string(v.Payload) != t.Payload || string(v.Result) != t.Result ||
			v.Queue != t.Queue.Name || v.Namespace != t.Namespace.Name {
			return fmt.Sprintf("task %x reads otherwise than its row", t.ID)
		}
		if (v.Waiting != nil) != (t.State == pb.TaskState_TASK_STATE_WAITING) {
			return fmt.Sprintf("task %x is %s, its waiting reason %v", t.ID, t.State, v.Waiting)
		}
		if v.Waiting != nil {
			reason, until, holder := w.model.Waiting(t)
			var holderID id
			if holder != nil {
				holderID = holder.ID
			}
			if v.Waiting.Reason != reason || v.Waiting.UntilUs != until || toID(v.Waiting.HolderTaskId) != holderID {
				return fmt.Sprintf("task %x waits for %v; the model says %s until %d, holder %x", t.ID, v.Waiting, reason, until, holderID)
			}
		}
		if (v.Lease != nil) != t.Active() {
			return fmt.Sprintf("task %x is %s, its lease %v", t.ID, t.State, v.Lease)
		}
		if l := v.Lease; l != nil && (toID(l.AttemptId) != t.Live.ID || l.Epoch != t.Live.Epoch || toID(l.InstanceId) != t.Live.Instance ||
			l.LeaseUntilUs != t.Live.LeaseUntil || l.StartedAtUs != t.Live.StartedAt || l.ConcurrencyToken != t.Live.Token) {
			return fmt.Sprintf("task %x reads lease %v", t.ID, l)
		}
	}
	for _, q := range w.model.Queues {
		if q.Deleted {
			continue
		}
		ans := w.m.Query(&pb.Query{NamespaceId: q.Namespace.ID[:], Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: q.Name}}})
		v := ans.GetQueue()
		if v == nil {
			return fmt.Sprintf("queue %s cannot be read: %q", q.Name, ans.Code)
		}
		waiting := count(s.after, q.ID[:], pb.TaskState_TASK_STATE_WAITING)
		active := count(s.after, q.ID[:], pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING)
		review := count(s.after, q.ID[:], pb.TaskState_TASK_STATE_NEEDS_REVIEW)
		if v.Waiting != waiting || v.Active != active || v.NeedsReview != review {
			return fmt.Sprintf("queue %s counts %d waiting, %d active, %d in review; there are %d, %d, %d",
				q.Name, v.Waiting, v.Active, v.NeedsReview, waiting, active, review)
		}
	}
	return ""
}

// compareEffects: a lease made now is told to its gateway, and what a new
// leader would find undelivered is exactly the LEASED attempts of connected
// sessions and the cancels wanted by sessions that asked for them.
func (w *world) compareEffects(s *seen) string {
	assigned := map[id]bool{}
	for _, e := range s.out.Effects {
		if e.Kind == fsm.EffectAssign {
			assigned[e.AttemptID] = true
		}
	}
	var problem string
	fresh(s, func(a *pb.AttemptRow) {
		if !assigned[id(a.Id)] {
			problem = fmt.Sprintf("attempt %x was leased and nobody is told", a.Id)
		}
	})
	if problem != "" {
		return problem
	}
	if d := w.compareHints(s); d != "" {
		return d
	}
	var want, got []string
	for _, t := range w.model.Tasks {
		if t.Live == nil {
			continue
		}
		i := w.instanceOf(t)
		switch {
		case !i.Connected:
		case t.State == pb.TaskState_TASK_STATE_LEASED:
			want = append(want, fmt.Sprintf("assign %x to %x", t.Live.ID, i.SessionID))
		case t.CancelRequestedAt != 0 && i.Notify:
			want = append(want, fmt.Sprintf("cancel %x to %x", t.Live.ID, i.SessionID))
		}
	}
	for _, e := range w.m.Undelivered() {
		d := w.m.Delivery(e)
		if d == nil {
			return fmt.Sprintf("undelivered effect %+v has no delivery", e)
		}
		switch {
		case d.GetAssign() != nil:
			a := d.GetAssign()
			t := w.model.Task(toID(a.Task.Task.Id))
			if t == nil || t.Live == nil || t.Live.ID != toID(a.AttemptId) || t.Live.Epoch != a.Epoch || t.Live.LeaseUntil != a.LeaseUntilUs ||
				a.ConcurrencyToken != t.Live.Token || string(a.Task.Payload) != t.Payload || a.ServerTimeUs != w.model.Clock ||
				model.TraceOf(a.Trace) != t.Trace {
				return fmt.Sprintf("assignment %v is not what the model leased", a)
			}
			got = append(got, fmt.Sprintf("assign %x to %x", a.AttemptId, d.SessionId))
		case d.GetCancel() != nil:
			got = append(got, fmt.Sprintf("cancel %x to %x", d.GetCancel().AttemptId, d.SessionId))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Sprintf("undelivered are %v, the model has %v", got, want)
	}
	return ""
}

// compareHints looks at what an entry with one command has to tell sessions
// beside new leases.
func (w *world) compareHints(s *seen) string {
	if len(s.step.entry.Commands) != 1 || s.out.Results[0].Code != "" || !s.quiet {
		return ""
	}
	var want, got []string
	c, r := s.step.entry.Commands[0], s.out.Results[0]
	for _, a := range s.after.attempts.vals {
		old := s.before.attempt(id(a.Id))
		i, _ := s.after.instances.get("i" + string(a.NamespaceId) + string(a.InstanceId))
		if old != nil && old.CancelRequestedAtUs == 0 && a.CancelRequestedAtUs != 0 && i.Connected && i.CancellationNotifications {
			want = append(want, fmt.Sprintf("cancel %x at %x", a.Id, i.SessionId))
		}
	}
	if b := c.GetRegisterSession(); b != nil {
		for _, i := range s.before.instances.vals {
			replaced := i.GatewayId == b.GatewayId && !bytes.Equal(i.GatewayIncarnation, b.GatewayIncarnation) // its connection is gone anyway
			if i.Connected && !replaced && bytes.Equal(i.Id, b.InstanceId) && bytes.Equal(i.NamespaceId, r.GetSession().NamespaceId) {
				want = append(want, fmt.Sprintf("close %x session_superseded", i.SessionId))
			}
		}
	}
	for _, e := range s.out.Effects {
		d := w.m.Delivery(e)
		switch e.Kind {
		case fsm.EffectCancel:
			// A reconnect is told again what is still wanted; a task may be gone
			// at once with a retention of 0.
			if s.before.attempt(e.AttemptID).CancelRequestedAtUs != 0 || s.after.attempt(e.AttemptID) == nil {
				continue
			}
			if toID(d.GetCancel().GetAttemptId()) != e.AttemptID || d.GetCancel().RequestedAtUs != w.model.Clock {
				return fmt.Sprintf("the delivery of %+v is %v", e, d)
			}
			got = append(got, fmt.Sprintf("cancel %x at %x", e.AttemptID, e.SessionID))
		case fsm.EffectClose:
			if d.GetClose().GetCode() != e.Code || toID(d.SessionId) != e.SessionID {
				return fmt.Sprintf("the delivery of %+v is %v", e, d)
			}
			got = append(got, fmt.Sprintf("close %x %s", e.SessionID, e.Code))
		case fsm.EffectAssign:
			if toID(d.GetAssign().GetAttemptId()) != e.AttemptID || toID(d.SessionId) != e.SessionID {
				return fmt.Sprintf("the delivery of %+v is %v", e, d)
			}
			w.told = append(w.told, e)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Sprintf("sessions are told %v, to tell are %v", got, want)
	}
	return w.compareOldHints()
}

// compareOldHints: an effect that is no longer true has no delivery.
func (w *world) compareOldHints() string {
	if len(w.told) > 20 {
		w.told = w.told[len(w.told)-20:]
	}
	for _, e := range w.told {
		var current bool
		if t := w.model.Task(e.TaskID); t != nil && t.Live != nil && t.Live.ID == e.AttemptID && t.State == leased {
			i := w.instanceOf(t)
			current = i.Connected && i.SessionID == e.SessionID
		}
		if d := w.m.Delivery(e); (d != nil) != current {
			return fmt.Sprintf("effect %+v is current: %t, its delivery is %v", e, current, d)
		}
	}
	return ""
}

func taskKey(t *model.Task) string {
	if t.Terminal() {
		return "d" + string(t.Namespace.ID[:]) + string(t.ID[:])
	}
	return "t" + string(t.Namespace.ID[:]) + string(t.ID[:])
}

func (w *world) instanceOf(t *model.Task) *model.Instance {
	for _, i := range w.model.Instances {
		if i.ID == t.Live.Instance && i.Namespace == t.Namespace {
			return i
		}
	}
	return nil
}

// compareDue: the machine has one more due item than the model, the front of
// the event feed.
func (w *world) compareDue(s *seen) string {
	at, any := w.m.NextDue()
	want, wantAny := w.model.NextDue()
	if trim := s.after.meta.FeedTrimAtUs; trim != 0 && (!wantAny || trim < want) {
		want, wantAny = trim, true
	}
	if any != wantAny || any && at != want {
		return fmt.Sprintf("next due at %d (%t), in the model at %d (%t)", at, any, want, wantAny)
	}
	return ""
}

// difference shows the lines in which two texts differ.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out bytes.Buffer
	for _, l := range x {
		if !slices.Contains(y, l) {
			fmt.Fprintf(&out, "- %s\n", l)
		}
	}
	for _, l := range y {
		if !slices.Contains(x, l) {
			fmt.Fprintf(&out, "+ %s\n", l)
		}
	}
	return out.String()
}
