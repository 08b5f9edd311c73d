package sim

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/test/model"
)

// words is what workers, clients and the world outside were told.
type words struct {
	receipts     map[id][]byte // message: the receipt that was answered
	runner       map[id]*attempt
	holding      []*attempt            // with a key
	takers       map[id]*worker        // attempt: who was offered it first
	shared       map[id]bool           // attempt: two processes were
	offers       map[id]offer          // attempt: as it was offered first
	requests     map[string]*pb.Result // idempotency key: the first answer
	business     map[string]id         // business key: the task that was named
	tasks        map[id]uint64         // task in an answer: the answer's index
	effects      map[id]int            // task: effects in the world outside
	writes       map[string][]write    // key
	pushes       map[id]int64          // attempt: when it was pushed last
	feed         []*pb.EventRow        // all there ever was
	acknowledged uint64                // newest index in an answer that reached a caller
	welcomes     map[string]uint64     // process and instance: newest epoch of a welcome
}

type offer struct{ epoch, token uint64 }

// trusts says whether a worker's belief in its lease counts at a virtual time.
// Two processes with one identity can end each other's attempts, and a wall
// clock that a whole cluster goes by may end all leases.
func (j *judge) trusts(a *attempt, at int64) bool {
	return a.holds(at) && !j.shared[a.ref.attempt] && j.jumped < a.began
}

type write struct {
	token   uint64
	attempt id
}

func newWords() words {
	return words{receipts: map[id][]byte{}, runner: map[id]*attempt{}, takers: map[id]*worker{}, shared: map[id]bool{}, offers: map[id]offer{}, requests: map[string]*pb.Result{},
		business: map[string]id{}, tasks: map[id]uint64{}, effects: map[id]int{}, writes: map[string][]write{}, pushes: map[id]int64{},
		welcomes: map[string]uint64{}}
}

// witness is told every answer to an operation of a worker.
func (j *judge) witness(w *worker, f *frame, r *pb.Result, code schema.Code) {
	attempt := f.ref.attempt
	switch f.kind {
	case frameStart, frameRenew, frameFinish:
	default:
		return
	}
	if r != nil && r.Code == "" {
		receipt, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.GetOperation().Receipt)
		must(err)
		first, known := j.receipts[f.msg]
		switch {
		case known && !bytes.Equal(first, receipt):
			// The latest 16 renewals of an attempt are kept.
			if f.kind != frameRenew {
				j.s.fail("Q1 receipts stay", "%s was answered %s with another receipt than the first time", w.p.name, f.kind)
			}
		case !known:
			j.receipts[f.msg] = receipt
		}
		j.acknowledged = max(j.acknowledged, r.Index)
		if j.log[r.Index-1] == nil || !j.log[r.Index-1].applied {
			j.s.fail("Q4 receipts are in the state", "%s was answered from entry %d, which nobody has applied", w.p.name, r.Index)
		}
		return
	}
	l := j.leases[attempt]
	mine := l != nil && l.instance == w.instance && secretOf(attempt[:], f.ref.epoch) == f.ref.secret && f.ref.epoch == j.epochs[l.task]
	switch code {
	case schema.StaleEpoch, schema.LeaseLost:
		if _, over := j.ended[attempt]; l != nil && l.instance == w.instance && !over {
			j.s.fail("L8 nobody is sent away early", "%s was told %s about attempt %s, which nothing has ended", w.p.name, code, short(attempt[:]))
		}
	case schema.Forbidden:
		if mine {
			j.s.fail("L8 nobody is sent away early", "%s was forbidden its own attempt %s", w.p.name, short(attempt[:]))
		}
	case schema.NotFound:
		if l != nil && !j.purged[l.task] {
			j.s.fail("S1 nothing is lost", "%s was told that attempt %s does not exist", w.p.name, short(attempt[:]))
		}
	case schema.OperationConflict:
		if _, known := j.receipts[f.msg]; !known {
			j.count("conflicts about unanswered operations")
		}
	}
}

// offered is told every assignment that reaches a worker.
func (j *judge) offered(w *worker, a *pb.AssignTask) {
	attempt := toID(a.AttemptId)
	l := j.leases[attempt]
	if l == nil {
		j.s.fail("P2 nothing uncommitted is pushed", "%s is offered attempt %s, which nobody has committed", w.p.name, short(a.AttemptId))
	}
	if j.takers[attempt] == nil {
		j.takers[attempt] = w
	}
	j.shared[attempt] = j.shared[attempt] || j.takers[attempt] != w
	if t := j.model.Task(l.task); t != nil && model.TraceOf(a.Trace) != t.Trace {
		j.s.fail("O1 trace", "attempt %s is offered with trace %v, its task came with %q", short(a.AttemptId), a.Trace, t.Trace)
	}
	now := offer{a.Epoch, a.ConcurrencyToken}
	first, known := j.offers[attempt]
	switch {
	case known && first != now:
		j.s.fail("P2 repeats are equal", "attempt %s is offered with %+v, before it was %+v", short(a.AttemptId), now, first)
	case a.ConcurrencyToken != l.token || (l.key != "") != (l.token != 0):
		j.s.fail("K2 tokens rise", "attempt %s is offered with token %d, it was leased with %d", short(a.AttemptId), a.ConcurrencyToken, l.token)
	case !known:
		j.offers[attempt] = now
	}
}

func (j *judge) welcomed(w *worker, made *pb.SessionResult) {
	// Another process may have the same identity, and be told in another order.
	me := w.p.name + string(w.instance[:])
	if made.Epoch <= j.welcomes[me] {
		j.s.fail("L2 epochs rise", "%s is welcomed with epoch %d after %d", w.p.name, made.Epoch, j.welcomes[me])
	}
	j.welcomes[me] = made.Epoch
}

// running is told when a worker begins to work.
func (j *judge) running(a *attempt) {
	key := a.task.Task.ConcurrencyKey
	if key != "" {
		for _, x := range j.holding {
			if x.task.Task.ConcurrencyKey == key && x != a && j.trusts(x, j.s.now) {
				j.s.fail("K3 two holders", "%s and %s both have reason to believe that they hold %s", x.w.p.name, a.w.p.name, key)
			}
		}
		kept := j.holding[:0]
		for _, x := range j.holding {
			if x.holds(j.s.now) {
				kept = append(kept, x)
			}
		}
		j.holding = append(kept, a)
	}
	if other := j.runner[a.ref.attempt]; other != nil {
		j.s.fail("L1 one live attempt", "%s runs attempt %s, which %s was allowed to run", a.w.p.name, short(a.ref.attempt[:]), other.w.p.name)
	}
	j.runner[a.ref.attempt] = a
	if j.leases[a.ref.attempt].startedAt == 0 {
		j.s.fail("P2 nothing uncommitted is pushed", "%s runs attempt %s, whose start nobody has committed", a.w.p.name, short(a.ref.attempt[:]))
	}
}

// effect is told when something happens in the world outside.
func (j *judge) effect(a *attempt) {
	j.effects[a.ref.task]++
	if n := j.effects[a.ref.task]; n > j.started[a.ref.task] {
		j.s.fail("L9 effects", "task %s had %d effects and %d starts", short(a.ref.task[:]), n, j.started[a.ref.task])
	}
}

// wrote is told what the fenced resource accepted.
func (j *judge) wrote(a *attempt) {
	key := a.task.Task.ConcurrencyKey
	for _, w := range j.writes[key] {
		if w.token > a.token {
			j.s.fail("K3 resource", "the resource accepted token %d for %s after %d", a.token, key, w.token)
		}
		if w.token == a.token && w.attempt != a.ref.attempt {
			j.s.fail("K2 tokens rise", "attempts %s and %s wrote with the same token %d for %s", short(w.attempt[:]), short(a.ref.attempt[:]), a.token, key)
		}
	}
	j.writes[key] = append(j.writes[key], write{a.token, a.ref.attempt})
}

// pushed is told what the leader has said to a gateway.
func (j *judge) pushed(g *gateway, d *pb.Delivery) {
	if a := d.GetAssign(); a != nil {
		j.pushes[toID(a.AttemptId)] = j.s.now
		if j.leases[toID(a.AttemptId)] == nil {
			j.s.fail("P2 nothing uncommitted is pushed", "%s is told of attempt %s, which nobody has committed", g.name, short(a.AttemptId))
		}
	}
}

// answered is told what a client's call was answered.
func (j *judge) answered(c *client, r *request, results []*pb.Result) {
	for i, res := range results {
		if res.Code == string(schema.OperationConflict) && r.name != "other content" {
			j.s.fail("S3 idempotency key", "%s got a conflict for a repeat of %s", c.p.name, r.key)
		}
		if res.Code == string(schema.Conflict) && res.ExistingTaskId != nil && j.purged[toID(res.ExistingTaskId)] {
			j.count("conflicts with removed tasks")
		}
		if res.Code != "" {
			continue
		}
		j.acknowledged = max(j.acknowledged, res.Index)
		key := ""
		if r.key != "" {
			key = r.key
			if len(results) > 1 {
				key += string(rune('a' + i))
			}
		}
		if first := j.requests[key]; key != "" && !j.leapt {
			switch {
			case r.name == "other content" && first != nil:
				j.s.fail("S3 idempotency key", "%s was answered for other content under %s", c.p.name, r.key)
			case first != nil && !same(first, res):
				j.s.fail("S3 idempotency key", "%s was answered\n%v\nunder %s; the first answer was\n%v", c.p.name, res, r.key, first)
			case first == nil:
				j.requests[key] = res
			}
		}
		t := res.GetTask()
		if t == nil {
			continue
		}
		task := toID(t.Task.Task.Id)
		if _, known := j.state[task]; !known {
			j.s.fail("S1 nothing is lost", "%s was told of task %s, which is not in the log", c.p.name, short(task[:]))
		}
		if _, known := j.tasks[task]; !known {
			j.tasks[task] = res.Index
		}
		if b := r.business; b != "" {
			if other, known := j.business[b]; known && other != task && !j.purged[other] && !j.purged[task] {
				j.s.fail("S2 business key", "%s was told of task %s for %s; others were told of %s", c.p.name, short(task[:]), b, short(other[:]))
			}
			j.business[b] = task
		}
	}
}

// read is told the answer to a query. floor is what had been told to anybody
// before the query was asked.
func (j *judge) read(c *client, q *pb.Query, a *pb.Answer, floor uint64) {
	stale := q.Consistency == pb.Consistency_CONSISTENCY_STALE
	if !stale && (a.Index < floor || a.Index < c.newest) {
		j.s.fail("C9 reads go forward", "%s reads at %d; %d was told before it asked, %d to itself", c.p.name, a.Index, floor, c.newest)
	}
	if a.Index < q.MinIndex {
		j.s.fail("C9 reads go forward", "%s asked for %d at least and reads at %d", c.p.name, q.MinIndex, a.Index)
	}
	get := q.GetGetTask()
	if get == nil {
		return
	}
	want := version{}
	for _, v := range j.versions[toID(get.TaskId)] {
		if v.index <= a.Index {
			want = v
		}
	}
	got := a.GetTask().GetTask()
	switch {
	case got == nil && want.state != pb.TaskState_TASK_STATE_UNSPECIFIED:
		j.s.fail("S1 nothing is lost", "%s reads at %d that task %s does not exist; it is %s", c.p.name, a.Index, short(get.TaskId), want.state)
	case got != nil && (got.Revision != want.revision || got.State != want.state):
		j.s.fail("A1 reads", "%s reads task %s at %d as %s revision %d; it was %s revision %d", c.p.name, short(get.TaskId), a.Index, got.State, got.Revision, want.state, want.revision)
	}
}

// watched: a watch is told every event after its position, once and in order.
func (j *judge) watched(w *watcher, a *pb.Answer) {
	at, _ := slices.BinarySearchFunc(j.feed, w, func(e *pb.EventRow, w *watcher) int {
		if e.Index < w.index || e.Index == w.index && e.Place <= w.place {
			return -1
		}
		return 1
	})
	list := a.GetEvents()
	for i, e := range list.Events {
		if at+i >= len(j.feed) {
			j.s.fail("A3 watches", "a watch is told of event %d/%d, which is not in the log", e.Index, e.Place)
		}
		want := j.feed[at+i]
		if e.Index != want.Index || e.Place != want.Place || !bytes.Equal(e.AggregateId, want.AggregateId) || e.Version != want.Version {
			j.s.fail("A3 watches", "a watch at %d/%d is told of %d/%d next; the log has %d/%d", w.index, w.place, e.Index, e.Place, want.Index, want.Place)
		}
	}
	if next := at + len(list.Events); !list.More && next < len(j.feed) && j.feed[next].Index <= a.Index {
		j.s.fail("A3 watches", "a watch at %d/%d is told that nothing follows; at %d there is %d/%d", w.index, w.place, a.Index, j.feed[next].Index, j.feed[next].Place)
	}
	j.counts["watched events"] += len(list.Events)
}

// tooOld: events leave the feed after their time only.
func (j *judge) tooOld(a *pb.Answer) {
	if len(j.feed) == 0 || a.Index < j.feed[0].Index {
		return // a replica that does not know the namespace yet
	}
	j.count("watches too old")
	if j.s.knobs.retention == 0 && !j.leapt {
		j.s.fail("A3 watches", "a watch is told %q; events stay for 3 days", a.Message)
	}
}
