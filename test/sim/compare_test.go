package sim

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// follow lets the reference model apply the entry and holds the answers against
// its own.
func (j *judge) follow(n *node, e *entry, in *pb.Entry, out *fsm.Outcome) {
	s := j.s
	if len(j.model.Openings) == 0 {
		j.learnDefaults(n)
	}
	before := j.meta
	j.meta = n.m.Meta()
	j.model.SeeFeed(before, j.meta, in, out.Results, out.Time)
	want := j.model.Apply(e.index, e.term, in)
	if !j.bind(in, out) {
		a, b, c, d, f := j.model.Fresh()
		s.fail("model/new", "entry %d made other things than the model: it has %d namespaces, %d queues, %d tasks, %d attempts, %d sessions", e.index, a, b, c, d, f)
	}
	for _, t := range j.model.Tasks {
		if t.Backoff == nil {
			continue
		}
		at, b := int64(0), *t.Backoff
		for _, ev := range out.Events {
			if ev.TaskAfter != nil && toID(ev.AggregateId) == t.ID {
				at = ev.TaskAfter.AvailableAtUs
			}
		}
		if !t.SettleBackoff(at) {
			s.fail("backoff", "task %s waits until %d; promised are %d ms from %d", short(t.ID[:]), at, b.DelayMS, b.From)
		}
	}
	for i, r := range out.Results {
		if d := j.unlike(r, &want[i]); d != "" {
			s.fail("model/results", "entry %d, command %d (%T): %s", e.index, i, in.Commands[i].Body, d)
		}
	}
	// What happens next is what the model expects, and nothing else.
	at, any := n.m.NextDue()
	wantAt, wantAny := j.model.NextDue()
	if trim := j.meta.FeedTrimAtUs; trim != 0 && (!wantAny || trim < wantAt) {
		wantAt, wantAny = trim, true
	}
	if any != wantAny || any && at != wantAt {
		s.fail("T1 due items", "after entry %d the next due item is at %d (%t), in the model at %d (%t)", e.index, at, any, wantAt, wantAny)
	}
}

// learnDefaults reads the settings of the queue a cluster begins with.
func (j *judge) learnDefaults(n *node) {
	a := n.m.Query(&pb.Query{Namespace: "default", Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: "default"}}})
	if q := a.GetQueue(); q != nil {
		j.model.DefaultQueue = model.SettingsOf(q.Queue.Settings)
	}
}

// bind tells the model the ids of what the entry made, in order of creation.
func (j *judge) bind(in *pb.Entry, out *fsm.Outcome) bool {
	var namespaces, queues, tasks, attempts, sessions []model.ID
	for _, e := range out.Events {
		for _, f := range e.Facts {
			switch k := f.Kind.(type) {
			case *pb.Fact_NamespaceCreated:
				namespaces = append(namespaces, toID(e.AggregateId))
			case *pb.Fact_QueueCreated:
				queues = append(queues, toID(e.AggregateId))
			case *pb.Fact_Submitted:
				tasks = append(tasks, toID(e.AggregateId))
			case *pb.Fact_Leased:
				attempts = append(attempts, toID(k.Leased.AttemptId))
			}
		}
	}
	for i, c := range in.Commands {
		if r := out.Results[i]; c.GetRegisterSession() != nil && r.Code == "" {
			sessions = append(sessions, toID(r.GetSession().SessionId))
		}
	}
	return j.model.Bind(namespaces, queues, tasks, attempts, sessions) && j.bindSchedules(out)
}

// unlike says how an answer differs from the model's.
func (j *judge) unlike(r *pb.Result, want *model.Result) string {
	var is, should []string
	note := func(name string, a, b any) {
		if a != b {
			is = append(is, fmt.Sprintf("%s %v", name, a))
			should = append(should, fmt.Sprintf("%s %v", name, b))
		}
	}
	note("code", r.Code, want.Code)
	note("replayed", r.Replayed, want.Replayed)
	note("current revision", r.CurrentRevision, want.CurrentRevision)
	if want.Existing != nil {
		note("existing", toID(r.ExistingTaskId), want.Existing.ID)
	}
	if want.Task != nil && r.GetTask() != nil {
		row := r.GetTask().Task.Task
		note("task", toID(row.Id), want.Task.ID)
		note("state", row.State, want.After.State)
		note("revision", row.Revision, want.After.Revision)
		note("duplicate", r.GetTask().Duplicate, want.Duplicate)
		note("cancel requested", row.CancelRequestedAtUs, want.After.CancelRequestedAt)
	} else {
		note("has task", r.GetTask() != nil, want.Task != nil)
	}
	if want.Receipt != nil && r.GetOperation() != nil {
		x, y := r.GetOperation().Receipt, want.Receipt
		note("deduplicated", r.GetOperation().Deduplicated, want.Deduplicated)
		note("operation", x.Operation, y.Operation)
		note("task state", x.TaskState, y.TaskState)
		note("attempt state", x.AttemptState, y.AttemptState)
		note("task revision", x.TaskRevision, y.TaskRevision)
		note("lease until", x.LeaseUntilUs, y.LeaseUntil)
		note("disposition", x.Disposition, y.Disposition)
		note("time", x.TimeUs, y.Time)
		note("index", x.Index, y.Index)
	} else {
		note("has receipt", r.GetOperation() != nil, want.Receipt != nil)
	}
	if want.Lease != nil {
		l := r.GetLease()
		if op := r.GetOperation(); op != nil {
			l = op.Lease
		}
		note("active", l.GetActive(), want.Lease.Active)
		note("attempt", l.GetState(), want.Lease.State)
		note("verified lease", l.GetLeaseUntilUs(), want.Lease.LeaseUntil)
		note("verified cancel", l.GetCancelRequestedAtUs(), want.Lease.CancelRequestedAt)
	}
	if want.Session != nil {
		x := r.GetSession()
		note("epoch", x.GetEpoch(), want.Session.Epoch)
		note("capacity", x.GetCapacity(), want.Session.Capacity)
		note("draining", x.GetDraining(), want.Session.Draining)
		note("expires", x.GetExpiresAtUs(), want.Session.ExpiresAt)
	}
	items := r.GetBulk().GetItems()
	note("items", len(items), len(want.Items))
	for i := range min(len(items), len(want.Items)) {
		note("item", items[i].Code, want.Items[i].Code)
		note("item revision", items[i].Revision, want.Items[i].Revision)
	}
	if want.Key != nil {
		note("key held", len(r.GetKey().GetHolderTaskId()) != 0, want.Key.Holder != nil)
	}
	noteSchedule(note, r, want)
	note("list", r.GetGateway().GetList(), want.List)
	var gone, wantGone []string
	for _, g := range r.GetGateway().GetGone() {
		gone = append(gone, fmt.Sprintf("%x %s", g.SessionId, g.Code))
	}
	for _, g := range want.Gone {
		wantGone = append(wantGone, fmt.Sprintf("%x %s", g.SessionID, g.Code))
	}
	slices.Sort(gone)
	slices.Sort(wantGone)
	note("gone", strings.Join(gone, ", "), strings.Join(wantGone, ", "))
	if is == nil {
		return ""
	}
	return strings.Join(is, ", ") + "; the model: " + strings.Join(should, ", ")
}

// rows is what a machine holds, by the keys of its rows without the table.
type rows struct {
	meta       *pb.MetaRow
	queues     map[id]*pb.QueueRow
	tasks      map[id]*pb.TaskRow
	attempts   map[id]*pb.AttemptRow
	receipts   map[string]*pb.ReceiptRow // attempt, message
	evidence   map[id]int                // attempt: how many
	instances  map[id]*pb.InstanceRow
	gateways   map[string]*pb.GatewayRow
	keys       map[string]*pb.KeyRow
	remembered map[string]*pb.IdempotencyRow
	payloads   map[id][32]byte
	results    map[id][32]byte
	traces     map[id]*pb.TraceContext
	business   int
	schedules  map[id]*pb.ScheduleRow
	orders     map[id]string // payload of a schedule's tasks
	zones      map[string]*pb.ZoneRow
}

func readRows(m *fsm.Machine) *rows {
	r := &rows{meta: &pb.MetaRow{}, queues: map[id]*pb.QueueRow{}, tasks: map[id]*pb.TaskRow{}, attempts: map[id]*pb.AttemptRow{},
		receipts: map[string]*pb.ReceiptRow{}, evidence: map[id]int{}, instances: map[id]*pb.InstanceRow{}, gateways: map[string]*pb.GatewayRow{},
		keys: map[string]*pb.KeyRow{}, remembered: map[string]*pb.IdempotencyRow{}, payloads: map[id][32]byte{}, results: map[id][32]byte{}, traces: map[id]*pb.TraceContext{},
		schedules: map[id]*pb.ScheduleRow{}, orders: map[id]string{}, zones: map[string]*pb.ZoneRow{}}
	must(m.Rows(func(key, value []byte) bool {
		decode := func(m proto.Message) { must(proto.Unmarshal(value, m)) }
		switch key[0] {
		case 'M':
			decode(r.meta)
		case 'q':
			q := &pb.QueueRow{}
			decode(q)
			r.queues[toID(q.Id)] = q
		case 't', 'd':
			t := &pb.TaskRow{}
			decode(t)
			r.tasks[toID(t.Id)] = t
		case 'a':
			a := &pb.AttemptRow{}
			decode(a)
			r.attempts[toID(a.Id)] = a
			for _, c := range a.Receipts {
				r.receipts[string(key[17:])+string(c.MessageId)] = c
			}
		case 'v':
			r.evidence[toID(key[17:33])]++
		case 'i':
			i := &pb.InstanceRow{}
			decode(i)
			r.instances[toID(i.Id)] = i
		case 'g':
			g := &pb.GatewayRow{}
			decode(g)
			r.gateways[g.Id] = g
		case 'k':
			k := &pb.KeyRow{}
			decode(k)
			r.keys[k.Key] = k
		case 'I':
			i := &pb.IdempotencyRow{}
			decode(i)
			r.remembered[i.Key] = i
		case 'p':
			r.payloads[toID(key[1:])] = digestOf(string(value))
		case 'r':
			r.results[toID(key[1:])] = digestOf(string(value))
		case 'w':
			w := &pb.TraceContext{}
			decode(w)
			r.traces[toID(key[1:])] = w
		case 'b':
			r.business++
		case 's':
			c := &pb.ScheduleRow{}
			decode(c)
			r.schedules[toID(c.Id)] = c
		case 'S':
			r.orders[toID(key[1:])] = string(value)
		case 'Z':
			z := &pb.ZoneRow{}
			decode(z)
			r.zones[z.Name] = z
		}
		return true
	}))
	return r
}

// compareRows holds everything a machine has against the model, and the
// invariants that one look at the rows can show.
func (j *judge) compareRows(n *node) {
	if n.m.AppliedIndex() != j.tip {
		return
	}
	r := readRows(n.m)
	j.rowInvariants(n, r)
	for _, part := range []struct {
		name string
		diff func(*rows) string
	}{
		{"model/tasks", j.unlikeTasks},
		{"model/attempts", j.unlikeAttempts},
		{"model/instances", j.unlikeInstances},
		{"model/keys", j.unlikeKeys},
		{"model/schedules", j.unlikeSchedules},
		{"model/access", func(*rows) string { return j.unlikeAccess(n) }},
		{"model/undelivered", func(*rows) string { return j.unlikeUndelivered(n) }},
	} {
		if d := part.diff(r); d != "" {
			j.s.fail(part.name, "at %d on %s: %s", j.tip, n.p.name, d)
		}
	}
}

// differ lists the pairs that are not equal.
func differ(what string, x id, pairs ...any) string {
	var out []string
	for i := 0; i+2 < len(pairs); i += 3 {
		if pairs[i+1] != pairs[i+2] {
			out = append(out, fmt.Sprintf("%s is %v, in the model %v", pairs[i], pairs[i+1], pairs[i+2]))
		}
	}
	if out == nil {
		return ""
	}
	return what + " " + short(x[:]) + ": " + strings.Join(out, ", ")
}

func digestOf(text string) (d [32]byte) {
	if text != "" {
		d = sha256.Sum256([]byte(text))
	}
	return d
}

func (j *judge) unlikeTasks(r *rows) string {
	if len(r.tasks) != len(j.model.Tasks) {
		return fmt.Sprintf("%d tasks, the model has %d", len(r.tasks), len(j.model.Tasks))
	}
	for _, t := range j.model.Tasks {
		row := r.tasks[t.ID]
		if row == nil {
			return fmt.Sprintf("task %s is missing; the model has it %s", short(t.ID[:]), t.State)
		}
		var live id
		if t.Live != nil {
			live = t.Live.ID
		}
		var schedule id
		if t.Schedule != nil {
			schedule = t.Schedule.ID
		}
		var retried id
		if t.RetriedAs != nil {
			retried = t.RetriedAs.ID
		}
		if d := differ("task", t.ID,
			"state", row.State, t.State, "revision", row.Revision, t.Revision, "queue", toID(row.QueueId), t.Queue.ID,
			"key", row.ConcurrencyKey, t.Key, "available", row.AvailableAtUs, t.AvailableAt, "start deadline", row.StartDeadlineAtUs, t.StartDeadline,
			"deadline", row.DeadlineAtUs, t.Deadline, "attempts", row.AttemptCount, t.AttemptCount, "extra", row.AttemptsExtra, t.Extra,
			"cancel", row.CancelRequestedAtUs, t.CancelRequestedAt, "completed", row.CompletedAtUs, t.CompletedAt, "updated", row.UpdatedAtUs, t.UpdatedAt,
			"uncertain", row.EffectUncertain, t.Uncertain, "error", row.ErrorCode, t.ErrorCode, "park", row.Park, t.Park,
			"started", row.Started, t.Started, "unstarted", row.UnstartedOffers, t.Unstarted, "live", toID(row.AttemptId), live,
			"epoch", row.AttemptEpoch, t.LastEpoch, "token", row.KeyToken, t.KeyToken, "cause", row.ReviewCause, t.ReviewCause,
			"remembered", row.RememberedUntilUs, t.RememberedUntil, "business", row.BusinessKey, t.BusinessKey, "retry of", toID(row.RetryOf), t.RetryOf, "retried as", toID(row.RetriedAs), retried,
			"schedule", toID(row.ScheduleId), schedule, "nominal", row.NominalAtUs, t.NominalAt, "trace", model.TraceOf(r.traces[t.ID]), t.Trace,
			"payload", r.payloads[t.ID], digestOf(t.Payload), "result", r.results[t.ID], digestOf(t.Result),
		); d != "" {
			return d
		}
	}
	return ""
}

func (j *judge) unlikeAttempts(r *rows) string {
	if len(r.attempts) != len(j.model.Attempts) {
		return fmt.Sprintf("%d attempts, the model has %d", len(r.attempts), len(j.model.Attempts))
	}
	receipts := 0
	for _, a := range j.model.Attempts {
		row := r.attempts[a.ID]
		if row == nil {
			return fmt.Sprintf("attempt %s is missing", short(a.ID[:]))
		}
		if d := differ("attempt", a.ID,
			"task", toID(row.TaskId), a.Task.ID, "instance", toID(row.InstanceId), a.Instance, "epoch", row.Epoch, a.Epoch, "state", row.State, a.State,
			"leased", row.LeasedAtUs, a.LeasedAt, "started", row.StartedAtUs, a.StartedAt, "ended", row.EndedAtUs, a.EndedAt,
			"lease", row.LeaseUntilUs, a.LeaseUntil, "timeout", row.TimeoutAtUs, a.TimeoutAt, "number", row.Number, a.Number, "counted", row.Counted, a.Counted,
			"token", row.ConcurrencyToken, a.Token, "error", row.ErrorCode, a.ErrorCode, "cause", row.EndCause, a.Cause, "evidence", r.evidence[a.ID], len(a.Evidence),
		); d != "" {
			return d
		}
		receipts += len(a.Receipts)
		for _, m := range a.Receipts {
			row := r.receipts[string(a.ID[:])+string(m.MessageID[:])]
			if row == nil {
				return fmt.Sprintf("attempt %s: the receipt of %s is missing", short(a.ID[:]), short(m.MessageID[:]))
			}
			if row.Operation != m.Operation || row.TaskRevision != m.TaskRevision || row.LeaseUntilUs != m.LeaseUntil || row.Disposition != m.Disposition || row.Index != m.Index {
				return fmt.Sprintf("attempt %s: the receipt of %s differs", short(a.ID[:]), short(m.MessageID[:]))
			}
		}
	}
	if receipts != len(r.receipts) {
		return fmt.Sprintf("%d receipts, the model has %d", len(r.receipts), receipts)
	}
	return ""
}

func (j *judge) unlikeInstances(r *rows) string {
	if len(r.instances) != len(j.model.Instances) || len(r.gateways) != len(j.model.Gateways) {
		return fmt.Sprintf("%d instances and %d gateways, the model has %d and %d", len(r.instances), len(r.gateways), len(j.model.Instances), len(j.model.Gateways))
	}
	for _, i := range j.model.Instances {
		row := r.instances[i.ID]
		if row == nil {
			return fmt.Sprintf("instance %s is missing", short(i.ID[:]))
		}
		if d := differ("instance", i.ID,
			"session", toID(row.SessionId), i.SessionID, "epoch", row.SessionEpoch, i.Epoch, "capacity", row.Capacity, i.Capacity,
			"draining", row.Draining, i.Draining, "sequence", row.Sequence, i.Sequence, "gateway", row.GatewayId, i.GatewayID,
			"incarnation", string(row.GatewayIncarnation), i.Incarnation, "connected", row.Connected, i.Connected,
			"disconnected", row.DisconnectedAtUs, i.DisconnectedAt, "ended", row.EndedAtUs, i.EndedAt, "hold", row.Hold, i.Hold,
			"hold until", row.HoldUntilUs, i.HoldUntil, "hold for", row.HoldMs, i.HoldMS, "held at", row.HeldAtUs, i.HeldAt, "grace over", row.GraceOver, i.GraceOver,
		); d != "" {
			return d
		}
	}
	for _, g := range j.model.Gateways {
		row := r.gateways[g.ID]
		if row == nil || string(row.Incarnation) != g.Incarnation || row.LiveUntilUs != g.LiveUntil {
			return fmt.Sprintf("gateway %s: %v, the model has it live until %d", g.ID, row, g.LiveUntil)
		}
	}
	return ""
}

func (j *judge) unlikeKeys(r *rows) string {
	if len(r.keys) != len(j.model.Keys) || len(r.remembered) != len(j.model.Remembered) || len(r.queues) != len(j.model.Queues) {
		return fmt.Sprintf("%d keys held, %d answers remembered, %d queues; the model has %d, %d, %d",
			len(r.keys), len(r.remembered), len(r.queues), len(j.model.Keys), len(j.model.Remembered), len(j.model.Queues))
	}
	for _, k := range j.model.Keys {
		row := r.keys[k.Name]
		if row == nil || toID(row.TaskId) != k.Task.ID || toID(row.AttemptId) != k.Attempt.ID || row.Token != k.Token || row.InReview != k.InReview {
			return fmt.Sprintf("key %s: %v, the model has it with task %s, token %d", k.Name, row, short(k.Task.ID[:]), k.Token)
		}
	}
	for _, m := range j.model.Remembered {
		row := r.remembered[m.Key]
		if row == nil || string(row.ContentHash) != m.Hash || row.ExpiresAtUs != m.ExpiresAt {
			return fmt.Sprintf("the answer under %s: %v, the model has it until %d", m.Key, row, m.ExpiresAt)
		}
	}
	business := 0
	for _, t := range j.model.Tasks {
		if t.BusinessKey != "" {
			business++
		}
	}
	if r.business != business {
		return fmt.Sprintf("%d business keys, the model has %d", r.business, business)
	}
	for _, q := range j.model.Queues {
		row := r.queues[q.ID]
		if row == nil || row.Paused != q.Paused || row.Revision != q.Revision || row.Settings.MaxActive != q.Settings.MaxActive {
			return fmt.Sprintf("queue %s: %v, the model has revision %d", q.Name, row, q.Revision)
		}
	}
	return ""
}

// unlikeUndelivered: what a new leader would begin with is exactly what
// connected sessions have yet to be told.
func (j *judge) unlikeUndelivered(n *node) string {
	var is, want []string
	for _, e := range n.m.Undelivered() {
		if n.m.Delivery(e) == nil {
			return fmt.Sprintf("%+v has no delivery", e)
		}
		is = append(is, fmt.Sprintf("%d %x to %x", e.Kind, e.AttemptID, e.SessionID))
	}
	for _, t := range j.model.Tasks {
		if t.Live == nil {
			continue
		}
		for _, i := range j.model.Instances {
			if i.ID != t.Live.Instance || !i.Connected {
				continue
			}
			switch {
			case t.State == pb.TaskState_TASK_STATE_LEASED:
				want = append(want, fmt.Sprintf("%d %x to %x", fsm.EffectAssign, t.Live.ID, i.SessionID))
			case t.CancelRequestedAt != 0 && i.Notify:
				want = append(want, fmt.Sprintf("%d %x to %x", fsm.EffectCancel, t.Live.ID, i.SessionID))
			}
		}
	}
	slices.Sort(is)
	slices.Sort(want)
	if !slices.Equal(is, want) {
		return fmt.Sprintf("undelivered is %v, in the model %v", is, want)
	}
	return ""
}

// rowInvariants are those that do not need the model.
func (j *judge) rowInvariants(n *node, r *rows) {
	s, now := j.s, r.meta.ClockUs
	byInstance := map[id]uint32{}
	for _, x := range sortedIDs(r.attempts) {
		a := r.attempts[x]
		live := a.State == pb.AttemptState_ATTEMPT_STATE_LEASED || a.State == pb.AttemptState_ATTEMPT_STATE_RUNNING
		if !live {
			continue
		}
		byInstance[toID(a.InstanceId)]++
		t, i := r.tasks[toID(a.TaskId)], r.instances[toID(a.InstanceId)]
		switch {
		case t == nil || toID(t.AttemptId) != x:
			s.fail("L1 one live attempt", "attempt %s lives, its task names another", short(x[:]))
		case i == nil:
			s.fail("L12 a way out", "live attempt %s has no instance", short(x[:]))
		case a.LeaseUntilUs == 0 || a.LeaseUntilUs > t.DeadlineAtUs:
			s.fail("L12 a way out", "attempt %s is leased until %d, its task's deadline is %d", short(x[:]), a.LeaseUntilUs, t.DeadlineAtUs)
		case a.State == pb.AttemptState_ATTEMPT_STATE_LEASED && !i.Connected && now >= i.DisconnectedAtUs+2*second && !n.m.Pending():
			s.fail("P3 grace", "attempt %s was never started and is leased %d us after the disconnect", short(x[:]), now-i.DisconnectedAtUs)
		case a.ConcurrencyKey != "" && (r.keys[a.ConcurrencyKey] == nil || toID(r.keys[a.ConcurrencyKey].AttemptId) != x):
			s.fail("K1 one holder", "live attempt %s does not hold its key %s", short(x[:]), a.ConcurrencyKey)
		}
		if l := j.leases[x]; l != nil && l.duration > 0 {
			// Queues may have had shorter leases meanwhile, never longer ones.
			bound := l.renewed + l.duration
			for _, o := range r.meta.Openings {
				if o.Count > l.opening && o.Count <= l.opening+3 {
					bound = max(bound, o.TimeUs+l.duration)
				}
			}
			if a.LeaseUntilUs > bound {
				s.fail("L7 elections extend by a bound", "attempt %s is leased until %d; last renewed at %d, the bound is %d", short(x[:]), a.LeaseUntilUs, l.renewed, bound)
			}
		}
	}
	for _, x := range sortedIDs(r.instances) {
		i := r.instances[x]
		if i.Active != byInstance[x] {
			s.fail("P6 capacity", "instance %s counts %d attempts and has %d", short(x[:]), i.Active, byInstance[x])
		}
	}
	for _, x := range sortedIDs(r.tasks) {
		t := r.tasks[x]
		if t.KeyToken == 0 {
			continue
		}
		k := r.keys[t.ConcurrencyKey]
		if k == nil || toID(k.TaskId) != x || k.Token != t.KeyToken {
			s.fail("K4 holder", "task %s holds key %s by its own account only", short(x[:]), t.ConcurrencyKey)
		}
		if k.InReview != (t.State == pb.TaskState_TASK_STATE_NEEDS_REVIEW) || finished(t.State) || t.State == pb.TaskState_TASK_STATE_WAITING {
			s.fail("K4 holder", "task %s is %s and holds key %s", short(x[:]), t.State, t.ConcurrencyKey)
		}
	}
}

func sortedIDs[T any](m map[id]T) []id {
	out := make([]id, 0, len(m))
	for x := range m {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b id) int { return slices.Compare(a[:], b[:]) })
	return out
}
