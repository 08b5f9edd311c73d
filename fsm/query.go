package fsm

import (
	"encoding/binary"
	"fmt"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// pageMax bounds what one query returns, pageDefault is used for limit 0.
	pageMax     = 1000
	pageDefault = 100
	// scanMax bounds the rows one list query looks at; a page may then be short
	// and says where to go on.
	scanMax = 20_000
)

// view is the state as of one index, for one query. The machine's lock is held
// for its life, so indexes and rows agree.
type view struct {
	s   *state.State
	ns  *state.Namespace
	ans *pb.Answer

	activity *activity
}

// Query answers one read from what this node has applied.
func (m *Machine) Query(q *pb.Query) *pb.Answer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	meta := m.state.Meta()
	v := &view{s: m.state, activity: m.activity, ans: &pb.Answer{
		Index: meta.FenceBase + meta.AppliedIndex, ClockUs: meta.ClockUs, Term: meta.AppliedTerm,
	}}
	switch {
	case len(q.NamespaceId) == 16:
		v.ns = m.state.Namespace(ID(q.NamespaceId))
	case q.Namespace != "":
		v.ns = m.state.NamespaceByName(q.Namespace)
	}
	if err := v.answer(q); err != nil {
		v.refuse(schema.Internal, "the state could not be read: %v", err)
	}
	return v.ans
}

func (v *view) refuse(code schema.Code, format string, args ...any) {
	v.ans.Code, v.ans.Message, v.ans.Body = string(code), fmt.Sprintf(format, args...), nil
}

func (v *view) answer(q *pb.Query) error {
	switch b := q.Body.(type) {
	case *pb.Query_ReadNamespace:
		v.getNamespace(b.ReadNamespace)
		return nil
	case *pb.Query_ListNamespaces:
		v.listNamespaces()
		return nil
	case *pb.Query_GetStats:
		v.ans.Body = &pb.Answer_Stats{Stats: stats(v.s)}
		return nil
	case *pb.Query_GetQueue:
		v.getQueue(b.GetQueue) // by id it needs no namespace
		return nil
	case *pb.Query_ReadTokens:
		v.readTokens(b.ReadTokens)
		return nil
	case *pb.Query_ListTokens:
		v.listTokens(b.ListTokens)
		return nil
	case *pb.Query_ListAudit:
		return v.listAudit(b.ListAudit)
	}
	if v.ns == nil {
		v.refuse(schema.NotFound, "no such namespace")
		return nil
	}
	switch b := q.Body.(type) {
	case *pb.Query_GetTask:
		return v.getTask(b.GetTask)
	case *pb.Query_ListTasks:
		return v.listTasks(b.ListTasks)
	case *pb.Query_ListAttempts:
		return v.listAttempts(b.ListAttempts)
	case *pb.Query_GetAttempt:
		return v.getAttempt(b.GetAttempt)
	case *pb.Query_ListTaskEvents:
		return v.listTaskEvents(b.ListTaskEvents)
	case *pb.Query_ReadFeed:
		return v.readFeed(b.ReadFeed)
	case *pb.Query_ListQueues:
		v.listQueues()
	case *pb.Query_GetWorker:
		v.getWorker(b.GetWorker)
	case *pb.Query_ListWorkers:
		v.listWorkers(b.ListWorkers)
	case *pb.Query_GetKey:
		v.ans.Body = &pb.Answer_Key{Key: viewKey(b.GetKey.Key, v.s.Key(v.nsID(), b.GetKey.Key))}
	case *pb.Query_ListKeys:
		v.listKeys(b.ListKeys)
	case *pb.Query_GetActivity:
		v.getActivity(b.GetActivity)
	case *pb.Query_GetSchedule:
		return v.getSchedule(b.GetSchedule)
	case *pb.Query_ListSchedules:
		v.listSchedules(b.ListSchedules)
	case *pb.Query_PreviewSchedule:
		v.previewSchedule(b.PreviewSchedule)
	case *pb.Query_PreviewBackfill:
		return v.previewBackfill(b.PreviewBackfill)
	default:
		v.refuse(schema.UnknownCommand, "this version does not know the query")
	}
	return nil
}

func (v *view) nsID() ID { return ID(v.ns.Row.Id) }

func page(limit uint32) int {
	if limit == 0 {
		return pageDefault
	}
	return int(min(limit, pageMax))
}

// task finds a row by id, or refuses.
func (v *view) task(id []byte) (*pb.TaskRow, error) {
	if len(id) == 16 {
		t, err := state.ReadTask(v.s, v.nsID(), ID(id))
		if err != nil || t != nil {
			return t, err
		}
	}
	v.refuse(schema.NotFound, "no such task")
	return nil, nil
}

func (v *view) getTask(b *pb.GetTask) error {
	t, err := v.task(b.TaskId)
	if err != nil || t == nil {
		return err
	}
	full, err := v.full(t)
	v.ans.Body = &pb.Answer_Task{Task: full}
	return err
}

func (v *view) full(t *pb.TaskRow) (*pb.TaskView, error) {
	out := viewTask(v.s, t)
	var err error
	if out.Payload, err = state.ReadPayload(v.s, ID(t.Id)); err != nil {
		return nil, err
	}
	if t.ResultBytes > 0 {
		out.Result, err = state.ReadResult(v.s, ID(t.Id))
	}
	return out, err
}

// filter is what a task list asks for.
type filter struct {
	*pb.ListTasks
	queue *state.Queue
}

func (f filter) match(s *state.State, t *pb.TaskRow) bool {
	if f.queue != nil && ID(t.QueueId) != f.queue.ID() {
		return false
	}
	if len(f.States) > 0 {
		found := false
		for _, want := range f.States {
			found = found || want == t.State
		}
		if !found {
			return false
		}
	}
	if (f.Handler != "" && t.Handler != f.Handler) ||
		(f.BusinessKey != "" && t.BusinessKey != f.BusinessKey) ||
		(f.ConcurrencyKey != "" && t.ConcurrencyKey != f.ConcurrencyKey) ||
		(f.ErrorCode != "" && t.ErrorCode != f.ErrorCode) ||
		(f.CreatedFromUs != 0 && t.CreatedAtUs < f.CreatedFromUs) ||
		(f.CreatedUntilUs != 0 && t.CreatedAtUs >= f.CreatedUntilUs) ||
		(f.NotRetried && len(t.RetriedAs) > 0) {
		return false
	}
	if f.WaitingReason != pb.WaitingReason_WAITING_REASON_UNSPECIFIED {
		return t.State == pb.TaskState_TASK_STATE_WAITING && s.Waiting(t).Reason == f.WaitingReason
	}
	return true
}

func (v *view) listTasks(b *pb.ListTasks) error {
	f := filter{ListTasks: b}
	v.ans.Body = &pb.Answer_Tasks{Tasks: &pb.TaskList{}}
	if b.Queue != "" {
		if f.queue = v.s.QueueByName(v.nsID(), b.Queue); f.queue == nil {
			v.refuse(schema.NotFound, "no queue %q in this namespace", b.Queue)
			return nil
		}
	}
	var before ID
	if len(b.Before) == 16 {
		before = ID(b.Before)
	}
	if b.CreatedUntilUs != 0 {
		// Ids begin with the millisecond in which they were made.
		var bound ID
		binary.BigEndian.PutUint64(bound[:], uint64(b.CreatedUntilUs/1000+1)<<16)
		if before == (ID{}) || string(bound[:]) < string(before[:]) {
			before = bound
		}
	}
	list := &taskPage{v: v, filter: f, limit: page(b.Limit), out: v.ans.GetTasks()}
	var err error
	switch {
	case b.BusinessKey != "":
		err = list.byBusinessKey(before)
	case only(b.States, state.Active):
		v.ns.ActiveIDs(before, func(id ID) bool { return list.add(v.s.ActiveTask(id)) })
	case only(b.States, func(s pb.TaskState) bool { return s == pb.TaskState_TASK_STATE_NEEDS_REVIEW }):
		v.ns.ReviewIDs(before, func(id ID) bool {
			t, rerr := state.ReadTask(v.s, v.nsID(), id)
			if rerr != nil {
				err = rerr
				return false
			}
			return list.add(t)
		})
	default:
		waiting := b.WaitingReason != pb.WaitingReason_WAITING_REASON_UNSPECIFIED
		want := state.TaskTables{
			Live: !only(b.States, state.Terminal),
			Done: !waiting && !only(b.States, func(s pb.TaskState) bool { return !state.Terminal(s) }),
		}
		err = state.ScanTasks(v.s, v.nsID(), before, want, list.add)
	}
	if err == nil {
		err = list.err
	}
	return err
}

// only says whether states are given and all of them are of a kind.
func only(states []pb.TaskState, is func(pb.TaskState) bool) bool {
	for _, s := range states {
		if !is(s) {
			return false
		}
	}
	return len(states) > 0
}

// taskPage collects one page. It asks for one task more than fits, so that the
// last page says that it is the last.
type taskPage struct {
	v      *view
	filter filter
	limit  int
	seen   int
	last   []byte
	out    *pb.TaskList
	err    error
}

func (p *taskPage) add(t *pb.TaskRow) bool {
	if from := p.filter.CreatedFromUs; from != 0 && t.CreatedAtUs < from {
		return false // all that follow are older still
	}
	if p.seen++; p.seen > scanMax {
		p.out.NextBefore = p.last
		return false
	}
	if !p.filter.match(p.v.s, t) {
		p.last = t.Id
		return true
	}
	if len(p.out.Tasks) == p.limit {
		p.out.NextBefore = p.last
		return false
	}
	p.last = t.Id
	if p.filter.IdsOnly {
		p.out.Tasks = append(p.out.Tasks, &pb.TaskView{Task: &pb.TaskRow{
			Id: t.Id, State: t.State, Revision: t.Revision, RecoverySafety: t.RecoverySafety, EffectUncertain: t.EffectUncertain,
		}})
		return true
	}
	full, err := p.v.full(t)
	if err != nil {
		p.err = err
		return false
	}
	p.out.Tasks = append(p.out.Tasks, full)
	return true
}

func (p *taskPage) byBusinessKey(before ID) error {
	id, ok, err := state.ReadBusiness(p.v.s, p.v.nsID(), p.filter.BusinessKey)
	if err != nil || !ok {
		return err
	}
	if before != (ID{}) && string(id[:]) >= string(before[:]) {
		return nil
	}
	t, err := state.ReadTask(p.v.s, p.v.nsID(), id)
	if err == nil && t != nil {
		p.add(t)
	}
	return err
}

func (v *view) listAttempts(b *pb.ListAttempts) error {
	t, err := v.task(b.TaskId)
	if err != nil || t == nil {
		return err
	}
	list, err := state.ReadAttempts(v.s, ID(t.Id))
	v.ans.Body = &pb.Answer_Attempts{Attempts: &pb.AttemptList{Attempts: list}}
	return err
}

func (v *view) getAttempt(b *pb.GetAttempt) error {
	t, err := v.task(b.TaskId)
	if err != nil || t == nil {
		return err
	}
	if len(b.AttemptId) == 16 {
		a, err := state.ReadAttempt(v.s, ID(t.Id), ID(b.AttemptId))
		if err != nil {
			return err
		}
		if a != nil {
			v.ans.Body = &pb.Answer_Attempt{Attempt: a}
			return nil
		}
	}
	v.refuse(schema.NotFound, "no such attempt")
	return nil
}

// listTaskEvents tells a task's story. If its beginning has left the feed, the
// story begins with one event of the row as it is.
func (v *view) listTaskEvents(b *pb.ListTaskEvents) error {
	if len(b.TaskId) != 16 {
		v.refuse(schema.NotFound, "no such task")
		return nil
	}
	t, err := state.ReadTask(v.s, v.nsID(), ID(b.TaskId))
	if err != nil {
		return err
	}
	events, more, err := state.ReadHistory(v.s, ID(b.TaskId), t, b.AfterVersion, page(b.Limit))
	if err != nil {
		return err
	}
	if len(events) > 0 && ID(events[0].NamespaceId) != v.nsID() {
		events, more = nil, false // an id of another namespace is no task here
	}
	if t == nil && len(events) == 0 && b.AfterVersion == 0 {
		v.refuse(schema.NotFound, "no such task")
		return nil
	}
	if t != nil && lacksBeginning(t, events, b.AfterVersion) {
		events = []*pb.EventRow{{
			Aggregate: pb.Aggregate_AGGREGATE_TASK, NamespaceId: t.NamespaceId, AggregateId: t.Id,
			Version: t.Revision, TimeUs: t.UpdatedAtUs, TaskAfter: t, CommandType: "state", Index: v.ans.Index,
		}}
		more = false
	}
	list := &pb.EventList{Events: events, More: more}
	if n := len(events); n > 0 {
		list.NextIndex, list.NextPlace = events[n-1].Index, events[n-1].Place
	}
	v.ans.Body = &pb.Answer_Events{Events: list}
	return nil
}

func lacksBeginning(t *pb.TaskRow, events []*pb.EventRow, after uint64) bool {
	if after >= t.Revision {
		return false
	}
	return len(events) == 0 || events[0].Version > after+1
}

func (v *view) readFeed(b *pb.ReadFeed) error {
	meta := v.s.Meta()
	index, place := b.AfterIndex, b.AfterPlace
	list := &pb.EventList{NextIndex: index, NextPlace: place}
	v.ans.Body = &pb.Answer_Events{Events: list}
	if b.Limit == 0 { // where is now?
		var err error
		list.NextIndex, list.NextPlace, err = state.FeedHead(v.s, v.nsID())
		return err
	}
	floor := meta.FeedFloorIndex
	if index < floor || (index == floor && place < meta.FeedFloorPlace) || index < meta.FenceBase {
		v.refuse(schema.NotFound, "the position is too old: events after it have left the feed; list again and go on from now")
		return nil
	}
	events, more, err := state.ReadFeed(v.s, v.nsID(), index, place, page(b.Limit))
	if err != nil {
		return err
	}
	if n := len(events); n > 0 {
		list.NextIndex, list.NextPlace = events[n-1].Index, events[n-1].Place
	}
	list.More = more
	for _, e := range events {
		if len(b.TaskId) != 16 || string(e.AggregateId) == string(b.TaskId) {
			list.Events = append(list.Events, e)
		}
	}
	return nil
}

func (v *view) getQueue(b *pb.GetQueue) {
	var q *state.Queue
	switch {
	case len(b.Id) == 16:
		if q = v.s.Queue(ID(b.Id)); q != nil && q.Row.DeletedAtUs != 0 {
			q = nil
		}
	case v.ns != nil:
		q = v.s.QueueByName(v.nsID(), b.Name)
	}
	if q == nil {
		v.refuse(schema.NotFound, "no queue %q in this namespace", b.Name)
		return
	}
	v.ans.Body = &pb.Answer_Queue{Queue: viewQueue(v.s, q)}
}

func (v *view) listQueues() {
	list := &pb.QueueList{}
	for _, q := range v.s.Queues(v.nsID()) {
		list.Queues = append(list.Queues, viewQueue(v.s, q))
	}
	v.ans.Body = &pb.Answer_Queues{Queues: list}
}

func (v *view) getNamespace(b *pb.GetNamespace) {
	n := v.s.NamespaceByName(b.Name)
	if n == nil {
		v.refuse(schema.NotFound, "no namespace %q", b.Name)
		return
	}
	v.ans.Body = &pb.Answer_Namespace{Namespace: viewNamespace(n)}
}

func (v *view) listNamespaces() {
	list := &pb.NamespaceList{}
	for _, n := range v.s.Namespaces() {
		list.Namespaces = append(list.Namespaces, viewNamespace(n))
	}
	v.ans.Body = &pb.Answer_Namespaces{Namespaces: list}
}

func (v *view) getWorker(b *pb.GetWorker) {
	var i *state.Instance
	if len(b.InstanceId) == 16 {
		i = v.s.Instance(v.nsID(), ID(b.InstanceId))
	}
	if i == nil {
		v.refuse(schema.NotFound, "no such worker")
		return
	}
	w := v.worker(i)
	for _, id := range i.Attempts {
		a := v.s.LiveAttempt(id).Row
		lease := &pb.HeldLease{
			TaskId: a.TaskId, AttemptId: a.Id, Epoch: a.Epoch, State: a.State,
			LeasedAtUs: a.LeasedAtUs, StartedAtUs: a.StartedAtUs, LeaseUntilUs: a.LeaseUntilUs,
		}
		if t := v.s.ActiveTask(ID(a.TaskId)); t != nil {
			lease.Handler = t.Handler
		}
		w.Leases = append(w.Leases, lease)
	}
	v.ans.Body = &pb.Answer_Worker{Worker: w}
}

// worker is a worker with when it was heard of.
func (v *view) worker(i *state.Instance) *pb.WorkerView {
	w := viewWorker(v.s, i.Row)
	if i.Row.Connected {
		w.HeardAtUs = v.activity.heard[i.Row.GatewayId][ID(i.Row.Id)]
	}
	return w
}

func (v *view) listWorkers(b *pb.ListWorkers) {
	var after ID
	if len(b.After) == 16 {
		after = ID(b.After)
	}
	list := &pb.WorkerList{}
	limit := page(b.Limit)
	for _, i := range v.s.Instances(v.nsID(), after) {
		w := v.worker(i)
		if b.Queue != "" && w.Queue != b.Queue {
			continue
		}
		if len(list.Workers) == limit {
			list.NextAfter = list.Workers[limit-1].Instance.Id
			break
		}
		list.Workers = append(list.Workers, w)
	}
	v.ans.Body = &pb.Answer_Workers{Workers: list}
}

func (v *view) listKeys(b *pb.ListKeys) {
	list := &pb.KeyList{}
	limit := page(b.Limit)
	for _, name := range v.s.KeyNames(v.nsID(), b.After) {
		if len(list.Keys) == limit {
			list.NextAfter = list.Keys[limit-1].Key
			break
		}
		list.Keys = append(list.Keys, viewKey(name, v.s.Key(v.nsID(), name)))
	}
	v.ans.Body = &pb.Answer_Keys{Keys: list}
}
