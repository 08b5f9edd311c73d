package sim

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	callWithin  = 10 * second
	retryFirst  = 100 * millis
	retryMax    = 3 * second
	retryFor    = 90 * second // after which a client gives up on an answer
	dialTimeout = 2 * second
)

var (
	handlerNames = []string{"h1", "h2", "h3"}
	keyNames     = []string{"k1", "k2", "k3"}
)

// client is a program that submits tasks and looks after them, and an operator
// at times. It does one thing after the other and remembers what it was told.
type client struct {
	s      *sim
	number int
	p      *proc
	newest uint64 // index of the newest linearizable answer
	acked  []id   // tasks it was told of
	sent   []*request
	token  []byte // that it shows; nil: none
}

// request is one change that a client wants, with what identifies it.
type request struct {
	name     string
	commands []*pb.Command // without ids
	key      string
	business string
	tries    int
	begun    int64
	first    []*pb.Result // the first answer

	wholeCluster bool // of no namespace
}

func (s *sim) newClient(number int, h *host) *client {
	return &client{s: s, number: number, p: &proc{name: fmt.Sprintf("c%d", number), host: h}}
}

func (c *client) next() {
	think := c.s.between(0, 2*c.s.knobs.think)
	c.s.after(c.p, think, c.act)
}

// act is the next thing the client does.
func (c *client) act() {
	s := c.s
	if s.settling() {
		return
	}
	switch n := s.rng.IntN(1000); {
	case n < 460:
		c.submit()
	case n < 510:
		c.submitMany()
	case n < 590:
		c.cancel()
	case n < 620:
		c.retryTask()
	case n < 690:
		c.review()
	case n < 710:
		c.freeKey()
	case n < 730:
		c.pause()
	case n < 750:
		c.settings()
	case n < 760:
		c.drain()
	case n < 780:
		c.bulk()
	case n < 840:
		c.schedule()
	case n < 870:
		c.access()
	case n < 900:
		c.sayAgain()
	default:
		c.look()
	}
}

// request calls a gateway over a connection of its own. lost is told if no
// reply comes; then the call may have been carried out if it was sent.
func (s *sim) request(from *proc, gateway int, within int64, run func(g *gateway, reply func(func())), lost func(sent bool)) {
	over := false
	end := func(run func()) {
		if !over {
			over = true
			run()
		}
	}
	g := s.gateways[gateway]
	switch {
	case g == nil || !g.p.up:
		s.after(from, s.delay(), func() { lost(false) })
		return
	case !s.reaches(from.host, g.p.host), !s.reaches(g.p.host, from.host):
		s.after(from, dialTimeout, func() { lost(false) })
		return
	}
	c := s.connect(from, g.p, within, func() { end(func() { lost(true) }) }, nil)
	s.after(from, within, func() {
		end(func() { lost(true) })
		c.close(0)
	})
	c.send(1, func() {
		run(s.gateways[gateway], func(answer func()) {
			c.send(0, func() { end(answer) })
		})
	})
}

// do carries a request out: it repeats it until there is an answer, as far as
// its identity allows.
func (c *client) do(r *request, then func(results []*pb.Result)) {
	s := c.s
	if r.tries == 0 {
		r.begun = s.now
	}
	r.tries++
	commands := make([]*pb.Command, len(r.commands))
	for i, cmd := range r.commands {
		commands[i] = proto.CloneOf(cmd)
		commands[i].Id = bytesOf(s.newID())
		if !r.wholeCluster {
			commands[i].Namespace = "default"
		}
		commands[i].Caller = &pb.Caller{Principal: "client/" + c.p.name, TokenId: c.token}
		if r.key != "" {
			commands[i].IdempotencyKey = r.key
			if len(r.commands) > 1 {
				commands[i].IdempotencyKey = fmt.Sprintf("%s#%d", r.key, i)
			}
		}
	}
	again := func(nothing bool) {
		if !nothing && r.key == "" || s.now-r.begun > retryFor {
			s.judge.count("given up")
			then(nil)
			return
		}
		wait := min(retryFirst<<min(r.tries, 6), retryMax)
		s.after(c.p, s.between(wait/2, wait), func() { c.do(r, then) })
	}
	s.request(c.p, s.rng.IntN(len(s.gateways)), callWithin+second, func(g *gateway, reply func(func())) {
		g.send(commands, callWithin, func(results []*pb.Result, refused *refusal) {
			reply(func() {
				if refused != nil {
					again(promisesNothing(refused.code))
					return
				}
				unknown, nothing := false, false
				for _, res := range results {
					code := schema.Code(res.Code)
					unknown = unknown || undecided(code) && !promisesNothing(code)
					nothing = nothing || promisesNothing(code)
					if code == schema.Unauthenticated {
						c.token = nil
					}
				}
				s.judge.answered(c, r, results)
				if unknown || nothing {
					again(!unknown && len(results) == 1)
					return
				}
				if r.first == nil {
					r.first = results
				}
				then(results)
			})
		})
	}, func(sent bool) { again(!sent) })
}

// promisesNothing: an error with this code says that nothing happened.
func promisesNothing(code schema.Code) bool {
	switch code {
	case schema.NotLeader, schema.NoLeader, schema.DeadlineExpired, schema.Unavailable:
		return true
	default:
		return false
	}
}

// done notes the tasks of an answer.
func (c *client) done(results []*pb.Result) {
	for _, r := range results {
		if t := r.GetTask(); t != nil && r.Code == "" {
			c.acked = append(c.acked, toID(t.Task.Task.Id))
		}
		if r.Code == "" {
			c.newest = max(c.newest, r.Index)
		}
	}
	if len(c.acked) > 40 {
		c.acked = c.acked[len(c.acked)-40:]
	}
	c.next()
}

func (c *client) key(percent int) string {
	if !c.s.chance(percent) {
		return ""
	}
	return fmt.Sprintf("%s-%d", c.p.name, c.s.rng.Uint64())
}

func (c *client) spec() *pb.SubmitTask {
	s := c.s
	t := &pb.SubmitTask{
		Queue: pick(s, queueNames), Handler: pick(s, handlerNames), HandlerVersion: "1", PayloadVersion: "1",
		Payload: fmt.Appendf(nil, `{"n":%d}`, s.rng.IntN(1000)), Source: "api",
	}
	if s.chance(4) {
		t.Handler = "nobody"
	}
	if s.chance(30) {
		t.Priority = uint32(s.rng.IntN(10))
	}
	if s.chance(45) {
		t.ConcurrencyKey = pick(s, keyNames)
	}
	if s.chance(40) {
		t.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY
	}
	if s.chance(25) {
		t.DelayMs = s.between(1, 20_000)
	}
	if s.chance(30) {
		t.MaxAttempts = proto.Uint32(uint32(s.between(1, 6)))
	}
	if s.chance(20) {
		t.InitialDelayMs = proto.Int64(s.between(0, 3000))
	}
	if s.chance(20) {
		t.AttemptTimeoutMs = proto.Int64(s.between(500, 60_000))
	}
	if s.chance(10) {
		t.DeadlineAtUs = s.judge.clock() + s.between(500*millis, 60*second) + t.DelayMs*1000
	}
	if s.chance(20) {
		t.Trace = &pb.TraceContext{Parent: fmt.Sprintf("00-%016x%016x-%016x-01", s.rng.Uint64(), s.rng.Uint64(), s.rng.Uint64())}
	}
	if s.chance(8) {
		t.StartDeadlineAtUs = s.judge.clock() + s.between(500*millis, 30*second) + t.DelayMs*1000
	}
	return t
}

// hashOf is the identity of a request's content.
func hashOf(m proto.Message) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	must(err)
	sum := sha256.Sum256(data)
	return sum[:]
}

func submission(t *pb.SubmitTask) *pb.Command {
	return &pb.Command{ContentHash: hashOf(t), Body: &pb.Command_SubmitTask{SubmitTask: t}}
}

func (c *client) submit() {
	s := c.s
	t := c.spec()
	if s.chance(20) {
		// Several clients want the same thing done once, or other things under one name.
		t.BusinessKey = fmt.Sprintf("b%d", s.rng.IntN(40))
		if s.chance(70) {
			t = &pb.SubmitTask{Queue: queueNames[0], Handler: "h1", HandlerVersion: "1", PayloadVersion: "1",
				Payload: []byte(`{}`), BusinessKey: t.BusinessKey, Source: "api"}
		}
	}
	r := &request{name: "submit", commands: []*pb.Command{submission(t)}, key: c.key(70), business: t.BusinessKey}
	c.sent = append(c.sent, r)
	c.do(r, c.done)
}

func (c *client) submitMany() {
	r := &request{name: "submit many", key: c.key(80)}
	for range c.s.between(2, 15) {
		r.commands = append(r.commands, submission(c.spec()))
	}
	c.sent = append(c.sent, r)
	c.do(r, c.done)
}

// sayAgain repeats a request that was answered, as a caller would that had
// lost the answer.
func (c *client) sayAgain() {
	s := c.s
	if len(c.sent) == 0 {
		c.next()
		return
	}
	old := pick(s, c.sent)
	if old.key == "" || old.first == nil {
		c.next()
		return
	}
	again := &request{name: old.name + " again", commands: old.commands, key: old.key, business: old.business, first: old.first}
	if s.chance(15) && len(old.commands) == 1 && old.commands[0].GetSubmitTask() != nil && old.first[0].Code == "" {
		t := proto.CloneOf(old.commands[0].GetSubmitTask())
		t.Payload = []byte(`"other"`)
		again = &request{name: "other content", commands: []*pb.Command{submission(t)}, key: old.key, first: old.first}
	}
	c.do(again, func([]*pb.Result) { c.next() })
}

// known is a task the client knows of.
func (c *client) known() (id, bool) {
	if len(c.acked) == 0 {
		return id{}, false
	}
	return pick(c.s, c.acked), true
}

func (c *client) about(name string, make func(task []byte) *pb.Command) {
	task, ok := c.known()
	if !ok {
		c.next()
		return
	}
	c.change(name, make(bytesOf(task)))
}

func (c *client) change(name string, cmd *pb.Command) {
	cmd.ContentHash = hashOf(cmd)
	c.do(&request{name: name, commands: []*pb.Command{cmd}, key: c.key(60)}, c.done)
}

func (c *client) cancel() {
	c.about("cancel", func(task []byte) *pb.Command {
		return &pb.Command{Body: &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: task, Note: "stop"}}}
	})
}

func (c *client) retryTask() {
	c.about("retry", func(task []byte) *pb.Command {
		return &pb.Command{Body: &pb.Command_RetryTask{RetryTask: &pb.RetryTask{TaskId: task}}}
	})
}

func (c *client) bulk() {
	b := &pb.BulkTasks{Action: pick(c.s, []pb.BulkAction{pb.BulkAction_BULK_ACTION_CANCEL, pb.BulkAction_BULK_ACTION_RETRY})}
	for range c.s.between(1, 4) {
		if task, ok := c.known(); ok {
			b.TaskIds = append(b.TaskIds, bytesOf(task))
		}
	}
	c.change("bulk", &pb.Command{Body: &pb.Command_BulkTasks{BulkTasks: b}})
}

// review decides about a task that needs it.
func (c *client) review() {
	s := c.s
	q := &pb.Query{Namespace: "default", Body: &pb.Query_ListTasks{ListTasks: &pb.ListTasks{
		States: []pb.TaskState{pb.TaskState_TASK_STATE_NEEDS_REVIEW}, Limit: 20}}}
	c.read(q, func(a *pb.Answer) {
		list := a.GetTasks().GetTasks()
		if len(list) == 0 {
			c.next()
			return
		}
		t := pick(s, list).Task
		r := &pb.ReviewTask{TaskId: t.Id, ExpectedRevision: t.Revision, Note: "looked at it"}
		switch s.rng.IntN(5) {
		case 0:
			r.Decision = pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED
		case 1:
			r.Decision, r.ErrorCode = pb.ReviewDecision_REVIEW_DECISION_FAILED, "judged"
		case 2:
			r.Decision = pb.ReviewDecision_REVIEW_DECISION_CANCELLED
		default:
			r.Decision = pb.ReviewDecision_REVIEW_DECISION_RETRY
			r.DeadlineAtUs = a.ClockUs + 60*second
		}
		c.change("review", &pb.Command{Body: &pb.Command_ReviewTask{ReviewTask: r}})
	})
}

func (c *client) freeKey() {
	c.change("free key", &pb.Command{Body: &pb.Command_FreeKey{FreeKey: &pb.FreeKey{Key: pick(c.s, keyNames), Note: "let it go"}}})
}

func (c *client) pause() {
	queue := pick(c.s, queueNames)
	body := func(paused bool) *pb.Command {
		return &pb.Command{Body: &pb.Command_PauseQueue{PauseQueue: &pb.PauseQueue{Name: queue, Paused: paused}}}
	}
	cmd := body(true)
	cmd.ContentHash = hashOf(cmd)
	c.do(&request{name: "pause", commands: []*pb.Command{cmd}, key: c.key(60)}, func([]*pb.Result) {
		c.s.after(c.p, c.s.between(0, 5*second), func() { c.change("go on", body(false)) })
	})
}

func (c *client) settings() {
	s := c.s
	queue := pick(s, queueNames)
	set := proto.CloneOf(s.knobs.queues[queue])
	if s.chance(50) {
		set.MaxActive = uint32(s.between(0, 4))
	}
	if s.chance(30) {
		set.AgeingMs = s.between(0, 3000)
	}
	c.change("settings", &pb.Command{Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: queue, Settings: set}}})
}

func (c *client) drain() {
	w := pick(c.s, c.s.workers)
	c.change("drain", &pb.Command{Body: &pb.Command_DrainWorker{DrainWorker: &pb.DrainWorker{InstanceId: bytesOf(w.instance)}}})
}

// look reads a task, at times from a replica that may be behind.
func (c *client) look() {
	task, ok := c.known()
	if !ok {
		c.next()
		return
	}
	q := &pb.Query{Namespace: "default", Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: bytesOf(task)}}}
	if c.s.chance(40) {
		q.Consistency = pb.Consistency_CONSISTENCY_STALE
		if c.s.chance(50) {
			q.MinIndex = c.newest // at least what I have seen
		}
	}
	c.read(q, func(a *pb.Answer) { c.next() })
}

func (c *client) read(q *pb.Query, then func(*pb.Answer)) {
	s := c.s
	floor := s.judge.acknowledged // everything that was told to anybody before this read
	stale := q.Consistency == pb.Consistency_CONSISTENCY_STALE
	fail := func() {
		s.judge.count("failed reads")
		c.next()
	}
	s.request(c.p, s.rng.IntN(len(s.gateways)), callWithin, func(g *gateway, reply func(func())) {
		g.read(q, callWithin, func(a *pb.Answer, refused *refusal) {
			reply(func() {
				if refused != nil {
					fail()
					return
				}
				s.judge.read(c, q, a, floor)
				if !stale {
					c.newest = max(c.newest, a.Index)
				}
				then(a)
			})
		})
	}, func(bool) { fail() })
}

// watcher follows the feed of events from its beginning, asking a gateway here
// and a gateway there.
type watcher struct {
	s     *sim
	p     *proc
	index uint64
	place uint32
}

func (s *sim) newWatcher(p *proc) *watcher { return &watcher{s: s, p: p} }

func (w *watcher) poll() {
	s := w.s
	next := func() { s.after(w.p, s.between(100*millis, 1500*millis), w.poll) }
	feed := &pb.ReadFeed{AfterIndex: w.index, AfterPlace: w.place, Limit: uint32(s.between(1, 60))}
	q := &pb.Query{Namespace: "default", Body: &pb.Query_ReadFeed{ReadFeed: feed}}
	if s.chance(50) {
		q.Consistency = pb.Consistency_CONSISTENCY_STALE
	}
	s.request(w.p, s.rng.IntN(len(s.gateways)), callWithin, func(g *gateway, reply func(func())) {
		g.read(q, callWithin, func(a *pb.Answer, refused *refusal) {
			reply(func() {
				switch {
				case refused != nil:
				case a.Code != "":
					s.judge.tooOld(a)
					if a.Index > w.index {
						w.index, w.place = a.Index, ^uint32(0) // go on from what this node has
					}
				default:
					s.judge.watched(w, a)
					if list := a.GetEvents(); len(list.Events) > 0 {
						w.index, w.place = list.NextIndex, list.NextPlace
					}
				}
				next()
			})
		})
	}, func(bool) { next() })
}

// same says whether two answers mean the same, the mark of a repeat aside.
func same(a, b *pb.Result) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	for _, r := range []*pb.Result{a, b} {
		r.Replayed, r.Index = false, 0
		if v := r.GetTask().GetTask(); v != nil {
			v.Payload, v.Result = nil, nil
		}
	}
	x, errX := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	y, errY := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	must(errX)
	must(errY)
	return bytes.Equal(x, y)
}
