package property

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// compareQueries asks everything a reader can ask and holds the answers against
// the rows and the events seen so far. It is slow, so not every entry gets it.
func (w *world) compareQueries(s *seen) string {
	r := rand.New(rand.NewPCG(s.step.index, 5))
	for _, ns := range w.model.Namespaces {
		for _, part := range []func(*seen, *rand.Rand, *model.Namespace) string{
			w.queryTasks, w.queryTask, w.queryFeed, w.queryQueues, w.queryWorkers, w.queryKeys, w.queryActivity, w.querySchedules,
		} {
			if d := part(s, r, ns); d != "" {
				return d
			}
		}
	}
	return w.queryCluster(s)
}

func (w *world) ask(ns *model.Namespace, q *pb.Query) *pb.Answer {
	if ns != nil {
		q.NamespaceId = ns.ID[:]
	}
	return w.m.Query(q)
}

// queryTasks reads a filtered list page by page.
func (w *world) queryTasks(s *seen, r *rand.Rand, ns *model.Namespace) string {
	b := &pb.ListTasks{Limit: uint32(1 + r.IntN(5)), IdsOnly: oneIn(r, 3)}
	switch r.IntN(8) {
	case 0:
		b.States = []pb.TaskState{needsReview}
	case 1:
		b.States = []pb.TaskState{leased, running}
	case 2:
		b.States = []pb.TaskState{succeeded, failed, cancelled}
	case 3:
		b.States = []pb.TaskState{waiting, failed}
	case 4:
		b.WaitingReason = pick(r, pb.WaitingReason_WAITING_REASON_KEY_HELD, pb.WaitingReason_WAITING_REASON_WORKERS_BUSY,
			pb.WaitingReason_WAITING_REASON_NO_CAPABLE_WORKER, pb.WaitingReason_WAITING_REASON_RETRY_BACKOFF)
	case 5:
		b.BusinessKey = fmt.Sprintf("order-%d", r.IntN(5))
	}
	if oneIn(r, 3) {
		b.Handler = "charge"
	}
	if oneIn(r, 4) {
		b.ConcurrencyKey = "k1"
	}
	if oneIn(r, 4) {
		b.ErrorCode = pick(r, "start_deadline_exceeded", "card_refused", "no_luck")
	}
	if n := len(w.model.Tasks); n > 0 && oneIn(r, 3) {
		// Bounds that some task lies on exactly.
		b.CreatedFromUs, b.CreatedUntilUs = w.model.Tasks[r.IntN(n)].CreatedAt, w.model.Tasks[r.IntN(n)].CreatedAt
	}
	var queue *model.Queue
	if oneIn(r, 3) {
		queue = anyQueue(w, r)
		b.Queue = queue.Name
	}
	var want []string
	known := queue == nil
	for _, q := range w.model.Queues {
		known = known || q.Name == b.Queue && q.Namespace == ns && !q.Deleted
	}
	for _, t := range slices.Backward(w.model.Tasks) {
		reason, _, _ := w.model.Waiting(t)
		if t.Namespace == ns && (len(b.States) == 0 || slices.Contains(b.States, t.State)) &&
			(b.WaitingReason == 0 || t.State == waiting && reason == b.WaitingReason) &&
			(b.BusinessKey == "" || t.BusinessKey == b.BusinessKey) && (b.Handler == "" || t.Handler == b.Handler) &&
			(b.ErrorCode == "" || t.ErrorCode == b.ErrorCode) && t.CreatedAt >= b.CreatedFromUs &&
			(b.CreatedUntilUs == 0 || t.CreatedAt < b.CreatedUntilUs) &&
			(b.ConcurrencyKey == "" || t.Key == b.ConcurrencyKey) && (b.Queue == "" || t.Queue.Name == b.Queue && !t.Queue.Deleted) {
			want = append(want, fmt.Sprintf("%x %s %d", t.ID, t.State, t.Revision))
		}
	}
	var got []string
	for pages := 0; ; pages++ {
		ans := w.ask(ns, &pb.Query{Body: &pb.Query_ListTasks{ListTasks: b}})
		if !known {
			if ans.Code != "not_found" {
				return fmt.Sprintf("tasks of an unknown queue: %q", ans.Code)
			}
			return ""
		}
		list := ans.GetTasks()
		if ans.Code != "" || list == nil || len(list.Tasks) > int(b.Limit) || pages > len(want)+1 {
			return fmt.Sprintf("list %v: %q, page %d of %v", b, ans.Code, pages, list)
		}
		for _, v := range list.Tasks {
			got = append(got, fmt.Sprintf("%x %s %d", v.Task.Id, v.Task.State, v.Task.Revision))
		}
		if b.Before = list.NextBefore; len(b.Before) == 0 {
			break
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Sprintf("list %v:\n%v\nthere are\n%v", b, got, want)
	}
	return ""
}

// queryTask reads one task's attempts with everything that came of them, and
// its story.
func (w *world) queryTask(s *seen, r *rand.Rand, ns *model.Namespace) string {
	stranger := newMessageID(r)
	for _, q := range []*pb.Query{
		{Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: stranger}}},
		{Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: stranger}}},
		{Body: &pb.Query_GetAttempt{GetAttempt: &pb.GetAttempt{TaskId: stranger, AttemptId: stranger}}},
		{Body: &pb.Query_ListTaskEvents{ListTaskEvents: &pb.ListTaskEvents{TaskId: stranger}}},
	} {
		if ans := w.ask(ns, q); ans.Code != "not_found" {
			return fmt.Sprintf("%v answers %q", q, ans.Code)
		}
	}
	if len(w.model.Tasks) == 0 {
		return ""
	}
	t := pick(r, w.model.Tasks...)
	if t.Namespace != ns {
		if ans := w.ask(ns, &pb.Query{Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: t.ID[:]}}}); ans.Code != "not_found" {
			return fmt.Sprintf("a task of another namespace answers %q", ans.Code)
		}
		return ""
	}
	list := w.ask(ns, &pb.Query{Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: t.ID[:]}}}).GetAttempts().GetAttempts()
	at := 0
	for _, a := range w.model.Attempts {
		if a.Task != t {
			continue
		}
		if at == len(list) {
			return fmt.Sprintf("task %x lists %d attempts", t.ID, len(list))
		}
		if d := w.unequalAttempt(list[at], a); d != "" {
			return d
		}
		one := w.ask(ns, &pb.Query{Body: &pb.Query_GetAttempt{GetAttempt: &pb.GetAttempt{TaskId: t.ID[:], AttemptId: a.ID[:]}}}).GetAttempt()
		if !proto.Equal(one, list[at].Attempt) {
			return fmt.Sprintf("attempt %x reads otherwise alone: %v", a.ID, one)
		}
		at++
	}
	if at != len(list) {
		return fmt.Sprintf("task %x lists %d attempts, there are %d", t.ID, len(list), at)
	}
	return w.queryStory(s, r, ns, t)
}

func (w *world) unequalAttempt(v *pb.AttemptView, a *model.Attempt) string {
	if toID(v.Attempt.Id) != a.ID || string(v.Result) != a.Result || len(v.Receipts) != len(a.Receipts) || len(v.Evidence) != len(a.Evidence) {
		return fmt.Sprintf("attempt %x reads %v; the model has result %q, %d receipts, %d late finishes", a.ID, v, a.Result, len(a.Receipts), len(a.Evidence))
	}
	// Receipts of one entry have no order among different operations.
	for _, r := range a.Receipts {
		found := false
		for _, row := range v.Receipts {
			found = found || toID(row.MessageId) == r.MessageID && unequalReceipt(row, r) == ""
		}
		if !found {
			return fmt.Sprintf("attempt %x does not show receipt %x", a.ID, r.MessageID)
		}
	}
	for _, e := range a.Evidence {
		found := false
		for _, x := range v.Evidence {
			found = found || toID(x.Evidence.MessageId) == e.MessageID && string(x.Result) == e.Result
		}
		if !found {
			return fmt.Sprintf("attempt %x does not show the late finish %x", a.ID, e.MessageID)
		}
	}
	return ""
}

// kept says that an event has not left the feed.
func keptEvent(s *seen, e *pb.EventRow) bool {
	return e.Position >= s.after.meta.Feed[e.Partition].Low
}

// queryStory reads a task's events in pages: all that are kept, or the row as
// it is if the beginning has left the feed.
func (w *world) queryStory(s *seen, r *rand.Rand, ns *model.Namespace, t *model.Task) string {
	after, limit := uint64(0), 1+r.IntN(4)
	if oneIn(r, 2) {
		after = r.Uint64N(t.Revision + 1)
	}
	var want, got []*pb.EventRow
	gap := false
	for v := after + 1; v <= t.Revision; v++ {
		e := w.events[eventName(t.ID, v)]
		if e == nil || !keptEvent(s, e) {
			gap = true
			continue
		}
		want = append(want, e)
	}
	for {
		ans := w.ask(ns, &pb.Query{Body: &pb.Query_ListTaskEvents{ListTaskEvents: &pb.ListTaskEvents{TaskId: t.ID[:], AfterVersion: after, Limit: uint32(limit)}}})
		list := ans.GetEvents()
		if ans.Code != "" || len(list.GetEvents()) > limit {
			return fmt.Sprintf("events of task %x: %q, %v", t.ID, ans.Code, list)
		}
		if gap {
			if len(list.Events) != 1 || list.Events[0].CommandType != "state" || list.Events[0].Version != t.Revision || list.More {
				return fmt.Sprintf("the story of task %x has lost its beginning and reads %v", t.ID, list)
			}
			return ""
		}
		for _, e := range list.Events {
			got = append(got, e)
			after = e.Version
		}
		if !list.More {
			break
		}
	}
	if !sameEvents(got, want) {
		return fmt.Sprintf("events of task %x: %v, there are %v", t.ID, got, want)
	}
	return ""
}

// sameEvents holds events that were read against those that entries made, with
// everything in them.
func sameEvents(got, want []*pb.EventRow) bool {
	return slices.EqualFunc(got, want, func(a, b *pb.EventRow) bool { return proto.Equal(a, b) })
}

func eventName(aggregate id, version uint64) string { return fmt.Sprintf("%x/%d", aggregate, version) }

// queryFeed reads a namespace's events from a random position.
func (w *world) queryFeed(s *seen, r *rand.Rand, ns *model.Namespace) string {
	meta := s.after.meta
	index, place := r.Uint64N(s.step.index+2), uint32(r.IntN(3))
	b := &pb.ReadFeed{AfterIndex: index, AfterPlace: place, Limit: uint32(1 + r.IntN(20))}
	tooOld := index < meta.FeedFloorIndex || index == meta.FeedFloorIndex && place < meta.FeedFloorPlace
	var want, got []*pb.EventRow
	for _, e := range w.feed {
		if toID(e.NamespaceId) == ns.ID && (e.Index > index || e.Index == index && e.Place > place) {
			want = append(want, e)
		}
	}
	for {
		ans := w.ask(ns, &pb.Query{Body: &pb.Query_ReadFeed{ReadFeed: b}})
		if tooOld {
			if ans.Code != "not_found" || !strings.Contains(ans.Message, "too old") {
				return fmt.Sprintf("the feed from %d.%d, before its front %d.%d: %q", index, place, meta.FeedFloorIndex, meta.FeedFloorPlace, ans.Code)
			}
			break
		}
		if ans.Code != "" {
			return fmt.Sprintf("the feed from %d.%d: %q", index, place, ans.Code)
		}
		got = append(got, ans.GetEvents().Events...)
		b.AfterIndex, b.AfterPlace = ans.GetEvents().NextIndex, ans.GetEvents().NextPlace
		if !ans.GetEvents().More {
			break
		}
	}
	if !tooOld && !sameEvents(got, want) {
		return fmt.Sprintf("the feed from %d.%d: %v, there are %v", index, place, got, want)
	}
	head := w.ask(ns, &pb.Query{Body: &pb.Query_ReadFeed{ReadFeed: &pb.ReadFeed{}}}).GetEvents()
	var last *pb.EventRow
	for _, e := range w.feed {
		if toID(e.NamespaceId) == ns.ID && keptEvent(s, e) {
			last = e
		}
	}
	if head.GetNextIndex() != last.GetIndex() || head.GetNextPlace() != last.GetPlace() {
		return fmt.Sprintf("the feed ends at %v, the last event is %d.%d", head, last.GetIndex(), last.GetPlace())
	}
	return ""
}

func (w *world) queryQueues(_ *seen, _ *rand.Rand, ns *model.Namespace) string {
	var want, got []string
	for _, q := range w.model.Queues {
		if q.Namespace == ns && !q.Deleted {
			want = append(want, q.Name)
			ans := w.m.Query(&pb.Query{Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Id: q.ID[:]}}})
			if ans.GetQueue().GetQueue().GetName() != q.Name {
				return fmt.Sprintf("queue %x reads %v", q.ID, ans)
			}
		}
	}
	for _, q := range w.ask(ns, &pb.Query{Body: &pb.Query_ListQueues{ListQueues: &pb.ListQueues{}}}).GetQueues().GetQueues() {
		got = append(got, q.Queue.Name)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("queues %v, there are %v", got, want)
	}
	if ans := w.ask(ns, &pb.Query{Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: "nobody"}}}); ans.Code != "not_found" {
		return fmt.Sprintf("an unknown queue answers %q", ans.Code)
	}
	return ""
}

func (w *world) queryWorkers(_ *seen, r *rand.Rand, ns *model.Namespace) string {
	var want, got []string
	b := &pb.ListWorkers{Limit: uint32(1 + r.IntN(3))}
	if oneIn(r, 2) {
		b.Queue = anyQueue(w, r).Name
	}
	for _, i := range w.model.Instances {
		if i.Namespace == ns && (b.Queue == "" || i.Queue.Name == b.Queue) {
			want = append(want, fmt.Sprintf("%x %s", i.ID, workerState(i)))
			v := w.ask(ns, &pb.Query{Body: &pb.Query_GetWorker{GetWorker: &pb.GetWorker{InstanceId: i.ID[:]}}}).GetWorker()
			if v.GetState() != workerState(i) || len(v.GetInstance().GetSecretHash()) > 0 || v.GetQueue() != i.Queue.Name {
				return fmt.Sprintf("worker %x reads %v, it is %s", i.ID, v, workerState(i))
			}
		}
	}
	for pages := 0; pages <= len(want); pages++ {
		list := w.ask(ns, &pb.Query{Body: &pb.Query_ListWorkers{ListWorkers: b}}).GetWorkers()
		for _, v := range list.GetWorkers() {
			got = append(got, fmt.Sprintf("%x %s", v.Instance.Id, v.State))
		}
		if b.After = list.GetNextAfter(); len(b.After) == 0 {
			break
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("workers of %q: %v, there are %v", b.Queue, got, want)
	}
	if ans := w.ask(ns, &pb.Query{Body: &pb.Query_GetWorker{GetWorker: &pb.GetWorker{InstanceId: newMessageID(r)}}}); ans.Code != "not_found" {
		return fmt.Sprintf("an unknown worker answers %q", ans.Code)
	}
	return ""
}

func workerState(i *model.Instance) string {
	switch {
	case i.EndedAt != 0:
		return "ended"
	case !i.Connected:
		return "disconnected"
	case i.Draining:
		return "draining"
	}
	return "connected"
}

func (w *world) queryKeys(_ *seen, r *rand.Rand, ns *model.Namespace) string {
	keys := map[string]string{}
	waiters := map[string]int{}
	for _, t := range w.model.Tasks {
		if t.Namespace == ns && t.Key != "" && t.State == waiting && t.Park == pb.Park_PARK_UNSPECIFIED {
			waiters[t.Key]++
			keys[t.Key] = fmt.Sprintf("%s free %d", t.Key, waiters[t.Key])
		}
	}
	for _, k := range w.model.Keys {
		if k.Namespace == ns {
			keys[k.Name] = fmt.Sprintf("%s %x %d %t %d", k.Name, k.Task.ID, k.Token, k.InReview, waiters[k.Name])
		}
	}
	show := func(v *pb.KeyView) string {
		if len(v.HolderTaskId) == 0 {
			return fmt.Sprintf("%s free %d", v.Key, v.Waiters)
		}
		return fmt.Sprintf("%s %x %d %t %d", v.Key, v.HolderTaskId, v.Token, v.InReview, v.Waiters)
	}
	var want, got []string
	for name, k := range keys {
		want = append(want, k)
		if v := w.ask(ns, &pb.Query{Body: &pb.Query_GetKey{GetKey: &pb.GetKey{Key: name}}}).GetKey(); show(v) != k {
			return fmt.Sprintf("key %q reads %v, it is %s", name, v, k)
		}
	}
	b := &pb.ListKeys{Limit: uint32(1 + r.IntN(2))}
	for pages := 0; pages <= len(want); pages++ {
		list := w.ask(ns, &pb.Query{Body: &pb.Query_ListKeys{ListKeys: b}}).GetKeys()
		for _, v := range list.GetKeys() {
			got = append(got, show(v))
		}
		if b.After = list.GetNextAfter(); b.After == "" {
			break
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("keys %v, there are %v", got, want)
	}
	return ""
}

// queryActivity adds up why tasks wait, who has which, and what workers could take.
func (w *world) queryActivity(_ *seen, r *rand.Rand, ns *model.Namespace) string {
	b := &pb.GetActivity{}
	if oneIn(r, 3) {
		b.Queue = anyQueue(w, r).Name
	}
	type sums struct {
		reasons                                  [9]uint64
		waiting, leased, running, review         uint64
		connected, draining, lost, slots, active uint64
		oldest                                   int64
	}
	want := map[string]*sums{}
	for _, q := range w.model.Queues {
		if q.Namespace == ns && !q.Deleted && (b.Queue == "" || q.Name == b.Queue) {
			want[q.Name] = &sums{}
		}
	}
	for _, t := range w.model.Tasks {
		s := want[t.Queue.Name]
		if s == nil || t.Namespace != ns || t.Queue.Deleted {
			continue
		}
		switch t.State {
		case waiting:
			reason, _, _ := w.model.Waiting(t)
			s.reasons[reason]++
			s.waiting++
			if t.Park == pb.Park_PARK_UNSPECIFIED && (s.oldest == 0 || t.AvailableAt < s.oldest) {
				s.oldest = t.AvailableAt
			}
		case leased:
			s.leased++
		case running:
			s.running++
		case needsReview:
			s.review++
		}
	}
	for _, i := range w.model.Instances {
		s := want[i.Queue.Name]
		if s == nil || i.Namespace != ns || i.Queue.Deleted {
			continue
		}
		switch workerState(i) {
		case "connected":
			s.connected++
			s.slots += uint64(i.Capacity)
			s.active += uint64(activeOf(w.model, i))
		case "draining":
			s.draining++
			s.active += uint64(activeOf(w.model, i))
		case "disconnected":
			s.lost++
		}
	}
	ans := w.ask(ns, &pb.Query{Body: &pb.Query_GetActivity{GetActivity: b}})
	if b.Queue != "" && len(want) == 0 {
		if ans.Code != "not_found" {
			return fmt.Sprintf("activity of an unknown queue answers %q", ans.Code)
		}
		return ""
	}
	a := ans.GetActivity()
	if len(a.GetQueues()) != len(want) {
		return fmt.Sprintf("activity of %d queues (%s), there are %d", len(a.GetQueues()), ans.Code, len(want))
	}
	var total, all sums
	for _, q := range a.Queues {
		got := sums{
			waiting: q.Waiting, leased: q.Leased, running: q.Running, review: q.NeedsReview, connected: uint64(q.WorkersConnected),
			draining: uint64(q.WorkersDraining), lost: uint64(q.WorkersLost), slots: q.Slots, active: q.SlotsUsed, oldest: q.OldestWaitingUs,
		}
		for _, c := range q.Reasons {
			got.reasons[c.Reason] = c.Tasks
		}
		s := want[q.Queue.Queue.Name]
		if s == nil || got != *s {
			return fmt.Sprintf("activity of queue %s: %+v, it is %+v", q.Queue.Queue.Name, got, s)
		}
		total.waiting += s.waiting
		total.slots += s.slots
	}
	all.waiting, all.slots = a.Total.GetWaiting(), a.Total.GetSlots()
	if n := len(a.Steps); n > 0 && b.Queue == "" {
		all.active, total.active = a.Steps[n-1].Active, 0
		for _, s := range want {
			total.active += s.leased + s.running
		}
		all.review, total.review = a.Steps[n-1].Waiting, total.waiting
	}
	if all != total {
		return fmt.Sprintf("activity in total %+v, the queues have %+v", all, total)
	}
	return ""
}

func activeOf(m *model.Model, i *model.Instance) (n int) {
	for _, t := range m.Tasks {
		if (t.State == leased || t.State == running) && t.Namespace == i.Namespace && t.Live != nil && t.Live.Instance == i.ID {
			n++
		}
	}
	return n
}

// queryCluster reads what belongs to no namespace.
func (w *world) queryCluster(s *seen) string {
	var want, got []string
	for _, ns := range w.model.Namespaces {
		want = append(want, ns.Name)
		if row := w.m.Query(&pb.Query{Body: &pb.Query_ReadNamespace{ReadNamespace: &pb.GetNamespace{Name: ns.Name}}}).GetNamespace(); toID(row.GetId()) != ns.ID {
			return fmt.Sprintf("namespace %s reads %v", ns.Name, row)
		}
	}
	for _, ns := range w.m.Query(&pb.Query{Body: &pb.Query_ListNamespaces{ListNamespaces: &pb.ListNamespaces{}}}).GetNamespaces().GetNamespaces() {
		got = append(got, ns.Name)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("namespaces %v, there are %v", got, want)
	}
	if ans := w.m.Query(&pb.Query{Body: &pb.Query_ReadNamespace{ReadNamespace: &pb.GetNamespace{Name: "nowhere"}}}); ans.Code != "not_found" {
		return fmt.Sprintf("an unknown namespace answers %q", ans.Code)
	}
	if ans := w.m.Query(&pb.Query{Namespace: "nowhere", Body: &pb.Query_ListQueues{ListQueues: &pb.ListQueues{}}}); ans.Code != "not_found" {
		return fmt.Sprintf("queues of an unknown namespace answer %q", ans.Code)
	}
	stats := w.m.Query(&pb.Query{Body: &pb.Query_GetStats{GetStats: &pb.GetStats{}}}).GetStats()
	var connected, offered, active uint64
	for _, i := range w.model.Instances {
		if i.Connected {
			connected++
		}
	}
	for _, t := range w.model.Tasks {
		switch t.State {
		case leased:
			offered++
		case running:
			active++
		}
	}
	if stats.SessionsConnected != connected || stats.AttemptsLeased != offered || stats.AttemptsRunning != active ||
		stats.KeysHeld != uint64(len(w.model.Keys)) || stats.Openings != uint64(len(w.model.Openings)) || len(stats.Gateways) != len(w.model.Gateways) ||
		stats.AppliedIndex != s.step.index || stats.ClockUs != w.model.Clock || !bytes.Equal(stats.StateHash, w.m.StateHash()) {
		return fmt.Sprintf("overview %v; there are %d sessions, %d leased, %d running, %d keys, %d gateways", stats, connected, offered, active,
			len(w.model.Keys), len(w.model.Gateways))
	}
	return ""
}
