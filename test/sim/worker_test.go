package sim

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Times of a worker; see the SDK.
const (
	welcomeWithin  = 10 * second
	reconnectFirst = 300 * millis // the SDK begins with up to a second
	reconnectMax   = 8 * second   // and goes up to a minute, which would be a long silence here
	workerPing     = 10 * second
	pongWithin     = 5 * second
	askAgainFirst  = 100 * millis
	askAgainMax    = 5 * second
	marginMax      = 2 * second
	contestedMost  = 3
)

// temper is what is wrong with a worker. The zero value is an honest one.
type temper struct {
	slow   bool // does not care whether its lease holds, and finishes late
	deaf   bool // does not hear that a cancel was asked for
	lazy   int  // percent of offers it ignores
	mortal int  // percent of runs it does not survive, between effect and finish
	notes  bool // its process knows after a restart what it was doing
	twin   bool // comes back under its old identity even if another has it
	rude   int  // percent of answers after which it sends something it should not
}

// worker is a worker process: what it is, and what it knows while it lives.
type worker struct {
	s      *sim
	number int
	p      *proc
	temper temper

	instance id
	secret   []byte
	queue    string
	queueID  []byte
	handlers []string
	capacity uint32
	keys     bool
	notify   bool

	conn      *conn
	handle    *handle // of conn, on the other side
	session   id
	leaseMS   int64
	heard     int64
	failures  int
	contested int
	ops       []*op
	attempts  []*attempt
	past      map[id]bool
	places    int
	sequence  uint64
	told      uint32 // capacity that was reported last

	notes []*note // on its disk
}

// note is what a worker remembers of an attempt over a restart of its process.
type note struct {
	ref    ref
	msg    id
	finish *pb.FinishAttempt
}

// op is a frame that wants an answer. It keeps its message id until it has one,
// over any number of connections.
type op struct {
	frame  frame
	conn   *conn // on which it is under way
	sentAt int64 // monotonic
	tries  int
	over   bool
	done   func(*pb.Result, schema.Code, int64)
}

// attempt is an offer and what becomes of it.
type attempt struct {
	w       *worker
	life    int // of the process
	ref     ref
	task    *pb.TaskView
	token   uint64
	offered int64 // monotonic
	offer   int64

	running   bool
	began     int64 // virtual time
	until     int64 // monotonic: no right to work from here on
	limit     int64
	lost      bool
	cancelled bool
	settled   bool
	renewing  bool
}

func (s *sim) newWorker(number int, h *host, queue string, t temper) *worker {
	w := &worker{s: s, number: number, temper: t, queue: queue, p: &proc{name: fmt.Sprintf("w%d", number), host: h}}
	w.newIdentity()
	w.capacity = uint32(s.between(1, 4))
	w.keys = s.chance(80)
	w.notify = s.chance(70)
	for _, name := range handlerNames {
		if s.chance(60) {
			w.handlers = append(w.handlers, name)
		}
	}
	if len(w.handlers) == 0 {
		w.handlers = []string{pick(s, handlerNames)}
	}
	return w
}

func (w *worker) newIdentity() {
	w.instance = w.s.newID()
	secret := w.s.newID()
	sum := sha256.Sum256(secret[:])
	w.secret = sum[:]
	w.sequence, w.told = 0, 0
}

// start is the start of its process.
func (w *worker) start() {
	s := w.s
	s.start(w.p)
	w.conn, w.handle, w.ops, w.attempts, w.places = nil, nil, nil, nil, 0
	w.past = map[id]bool{}
	w.failures, w.contested = 0, 0
	s.after(w.p, s.between(0, 500*millis), w.connect)
	s.every(w.p, fixed(500*millis), func() bool { w.watch(); return true })
	s.every(w.p, fixed(workerPing), func() bool {
		if c := w.conn; c != nil {
			c.send(1, func() { c.handled(frame{kind: framePing}) })
		}
		return true
	})
	s.every(w.p, func() int64 { return s.between(5*second, 30*second) }, func() bool { w.reportCapacity(); return true })
	for _, n := range w.notes {
		w.bringUp(n)
	}
}

func (w *worker) die(silent bool) {
	if !w.p.up {
		return
	}
	w.s.say("%s dies", w.p.name)
	w.s.kill(w.p)
	w.s.hangUp(w.p, silent)
}

// restart starts the process again: as who it was, or as somebody new.
func (w *worker) restart(after int64) {
	w.s.after(nil, after, func() {
		if w.p.up {
			return
		}
		if !w.temper.twin && !w.s.chance(30) {
			w.newIdentity()
		}
		if !w.temper.notes {
			w.notes = nil
		}
		w.s.say("%s starts as %s with %d notes", w.p.name, short(w.instance[:]), len(w.notes))
		w.start()
	})
}

// --- connection

// connect finds the queue, if that is not known yet, and says hello.
func (w *worker) connect() {
	s := w.s
	if w.conn != nil {
		return
	}
	again := func() {
		wait := min(reconnectFirst<<min(w.failures, 6), reconnectMax)
		w.failures++
		s.after(w.p, s.between(wait/2, wait), w.connect)
	}
	g := pick(s, s.gateways)
	if g == nil || !g.p.up || !s.reaches(w.p.host, g.p.host) || !s.reaches(g.p.host, w.p.host) {
		again()
		return
	}
	if w.queueID == nil {
		s.request(w.p, g.number, 5*second, func(g *gateway, reply func(func())) {
			g.read(&pb.Query{Namespace: "default", Consistency: pb.Consistency_CONSISTENCY_STALE,
				Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: w.queue}}}, 5*second, func(a *pb.Answer, refused *refusal) {
				reply(func() {
					if refused == nil && a.Code == "" {
						w.queueID = a.GetQueue().Queue.Id
					}
					again()
				})
			})
		}, func(bool) { again() })
		return
	}
	var c *conn
	lost := func() {
		if w.conn == c {
			w.disconnected()
		}
	}
	c = s.connect(w.p, g.p, pongWithin+workerPing, lost, func() {
		if c.handle != nil {
			c.handle.gone()
		}
	})
	w.conn, w.heard, w.session = c, s.mono(w.p), id{}
	hello := frame{kind: frameHello, msg: s.newID(), hello: &pb.RegisterSession{
		InstanceId: bytesOf(w.instance), SecretHash: w.secret, QueueId: w.queueID, Capabilities: w.capabilities(), Capacity: w.capacity,
		CancellationNotifications: w.notify, ConcurrencyKeys: w.keys,
	}}
	number := g.number
	c.send(1, func() {
		c.handle = s.gateways[number].attach(c, w)
		c.handle.take(hello)
	})
	s.after(w.p, welcomeWithin, func() {
		if w.conn == c && w.session == (id{}) {
			c.close(0)
			w.disconnected()
		}
	})
}

// handled gives a frame to the gateway's end of the connection.
func (c *conn) handled(f frame) {
	if c.handle != nil {
		c.handle.take(f)
	}
}

func (w *worker) capabilities() (out []*pb.Capability) {
	for _, h := range w.handlers { // in order of name
		out = append(out, &pb.Capability{Handler: h, HandlerVersion: "1", PayloadVersion: "1"})
	}
	return out
}

func (w *worker) disconnected() {
	w.conn, w.session = nil, id{}
	for _, o := range w.ops {
		o.conn = nil
	}
	wait := min(reconnectFirst<<min(w.failures, 6), reconnectMax)
	w.failures++
	w.s.after(w.p, w.s.between(wait/4, wait), w.connect)
}

// drop ends the connection from this end.
func (w *worker) drop() {
	if c := w.conn; c != nil {
		c.close(0)
		w.disconnected()
	}
}

// watch ends a connection on which nothing is heard, or operations get no
// answer.
func (w *worker) watch() {
	if w.conn == nil {
		return
	}
	now := w.s.mono(w.p)
	silent := now-w.heard > workerPing+pongWithin
	limit := min(max(w.leaseMS*millis/4, 2*second), 10*second)
	for _, o := range w.ops {
		silent = silent || o.conn != nil && now-o.sentAt > limit && w.session != (id{})
	}
	if silent {
		w.s.say("%s gives its connection up", w.p.name)
		w.drop()
	}
}

// What the gateway says. Each is called in the worker's process.

func (w *worker) ponged(c *conn) {
	if w.conn == c {
		w.heard = w.s.mono(w.p)
	}
}

func (w *worker) welcomed(c *conn, made *pb.SessionResult) {
	if w.conn != c {
		return
	}
	w.heard = w.s.mono(w.p)
	w.session, w.leaseMS = toID(made.SessionId), made.LeaseDurationMs
	w.failures, w.contested = 0, 0
	w.s.say("%s is session %s epoch %d at %s", w.p.name, short(made.SessionId), made.Epoch, c.ends[1].name)
	w.s.judge.welcomed(w, made)
	for _, o := range slices.Clone(w.ops) {
		w.send(o)
	}
	for _, a := range w.attempts {
		if a.running && w.s.chance(50) {
			a.ask(frameResume)
		}
	}
}

// shut is an error that is fatal to the connection.
func (w *worker) shut(c *conn, code schema.Code) {
	if w.conn != c {
		return
	}
	w.s.say("%s is shut out: %s", w.p.name, code)
	w.takeLesson(code)
	w.drop()
}

func (w *worker) takeLesson(code schema.Code) {
	switch code {
	case schema.SessionSuperseded:
		if w.contested++; w.contested >= contestedMost {
			w.contested = 0
			w.newIdentity()
		}
	case schema.Forbidden, schema.IdentityConflict:
		w.newIdentity()
	}
}

// answered takes the answer to an operation.
func (w *worker) answered(c *conn, msg id, r *pb.Result, code schema.Code) {
	if w.conn != c {
		return
	}
	now := w.s.mono(w.p)
	w.heard = now
	if code.Fatal() || w.session == (id{}) && code != "" {
		// The session is over or was not made; operations are sent again on the next.
		w.takeLesson(code)
		w.drop()
		return
	}
	for _, o := range w.ops {
		if o.frame.msg != msg || o.conn != c || o.over {
			continue
		}
		o.conn = nil
		if code != "" && code.Retryable() {
			wait := min(askAgainFirst<<min(o.tries, 6), askAgainMax)
			o.tries++
			w.s.after(w.p, w.s.between(wait/2, wait), func() { w.send(o) })
			return
		}
		o.over = true
		w.ops = slices.DeleteFunc(w.ops, func(x *op) bool { return x == o })
		w.s.judge.witness(w, &o.frame, r, code)
		o.done(r, code, o.sentAt)
		return
	}
}

// ask sends a frame until it has an answer.
func (w *worker) ask(f frame, done func(r *pb.Result, code schema.Code, sentAt int64)) *op {
	if f.msg == (id{}) {
		f.msg = w.s.newID()
	}
	o := &op{frame: f, done: done}
	w.ops = append(w.ops, o)
	w.send(o)
	return o
}

func (w *worker) send(o *op) {
	if w.conn == nil || w.session == (id{}) || o.conn != nil || o.over {
		return
	}
	o.conn, o.sentAt = w.conn, w.s.mono(w.p)
	c := w.conn
	c.send(1, func() { c.handled(o.frame) })
	if w.s.chance1000(w.s.knobs.frameTwice) {
		c.send(1, func() { c.handled(o.frame) })
	}
}

// --- attempts

func (w *worker) assigned(c *conn, a *pb.AssignTask, secret uint64) {
	if w.conn != c {
		return
	}
	w.heard = w.s.mono(w.p)
	r := ref{toID(a.Task.Task.Id), toID(a.AttemptId), a.Epoch, secret}
	w.s.judge.offered(w, a)
	if w.past[r.attempt] || slices.ContainsFunc(w.attempts, func(x *attempt) bool { return x.ref.attempt == r.attempt }) {
		return // a repeat
	}
	if w.s.chance(w.temper.lazy) && !w.s.healed {
		return // and perhaps it takes the next repeat
	}
	x := &attempt{w: w, life: w.p.life, ref: r, task: a.Task, token: a.ConcurrencyToken, offered: w.s.mono(w.p), offer: a.LeaseUntilUs - a.ServerTimeUs}
	w.attempts = append(w.attempts, x)
	w.s.leak(r)
	w.s.after(w.p, w.s.between(0, 30*millis), x.begin)
}

func (w *worker) cancelled(c *pb.CancelAttempt) {
	for _, a := range w.attempts {
		if a.ref.attempt == toID(c.AttemptId) {
			a.cancelled = true
		}
	}
}

func (w *worker) forget(a *attempt) {
	w.attempts = slices.DeleteFunc(w.attempts, func(x *attempt) bool { return x == a })
	w.past[a.ref.attempt] = true
}

// begin waits for a place, and says that the work starts.
func (a *attempt) begin() {
	w := a.w
	switch {
	case a.cancelled && !w.temper.deaf, w.s.mono(w.p)-a.offered > a.offer:
		w.forget(a)
		return
	case w.places >= int(w.capacity):
		w.s.after(w.p, 50*millis, a.begin)
		return
	}
	w.places++
	if w.s.chance(3) {
		a.settle(outcomeOf(pb.Outcome_OUTCOME_FAILED, w.s.chance(80), "refused"))
		return
	}
	began := w.s.mono(w.p)
	w.ask(frame{kind: frameStart, ref: a.ref}, func(r *pb.Result, code schema.Code, sentAt int64) {
		if code != "" {
			w.places--
			w.forget(a)
			return
		}
		lease := r.GetOperation().Lease
		longest := min(a.task.Task.Retry.AttemptTimeoutMs*millis, a.task.Task.DeadlineAtUs-lease.ServerTimeUs)
		a.limit = began + longest - margin(longest)
		a.learn(lease, sentAt)
		switch {
		case !lease.Active || lease.State != pb.AttemptState_ATTEMPT_STATE_RUNNING || w.s.mono(w.p) >= a.until:
			a.settle(outcomeOf(pb.Outcome_OUTCOME_FAILED, true, "not_run"))
		case a.cancelled && !w.temper.deaf:
			a.settle(outcomeOf(pb.Outcome_OUTCOME_CANCELLED, false, "cancelled"))
		default:
			a.run()
		}
	})
}

func margin(left int64) int64 { return min(left/10, marginMax) }

// learn takes in what an answer to a frame that was sent at sentAt says about
// the lease.
func (a *attempt) learn(l *pb.Lease, sentAt int64) {
	if l.CancelRequestedAtUs != 0 {
		a.cancelled = true
	}
	if !l.Active {
		return
	}
	left := l.LeaseUntilUs - l.ServerTimeUs
	a.until = max(a.until, min(sentAt+left-margin(left), a.limit))
	if !a.running {
		return
	}
	a.watchLease()
}

// holds says whether the worker thinks, at a virtual time, that it may work.
func (a *attempt) holds(at int64) bool {
	alive := a.w.p.up && a.w.p.life == a.life
	return alive && a.running && !a.settled && a.w.p.host.mono(at) < a.until
}

// run does the work.
func (a *attempt) run() {
	w, s := a.w, a.w.s
	a.running, a.began = true, s.now
	s.say("%s runs %s of %s, key %q token %d", w.p.name, short(a.ref.attempt[:]), short(a.ref.task[:]), a.task.Task.ConcurrencyKey, a.token)
	s.judge.running(a)
	long := s.between(5*millis, 3*second)
	switch {
	case s.chance(6) && !s.healed:
		long = s.between(5*second, 40*second)
	case s.chance(40):
		long = s.between(millis, 100*millis)
	}
	s.after(w.p, long, a.work)
	a.watchLease()
	s.after(w.p, s.between((a.until-s.mono(w.p))/3, (a.until-s.mono(w.p))/2), a.renew)
}

// watchLease looks when the lease ends.
func (a *attempt) watchLease() {
	a.w.s.after(a.w.p, a.until-a.w.s.mono(a.w.p), func() {
		if a.settled || a.lost || a.w.s.mono(a.w.p) < a.until {
			return
		}
		a.lost = true
		if a.w.temper.slow {
			return // it goes on all the same
		}
		if a.task.Task.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY {
			a.settle(outcomeOf(pb.Outcome_OUTCOME_UNKNOWN, false, "lease_lost"))
		} else {
			a.settle(outcomeOf(pb.Outcome_OUTCOME_FAILED, true, "lease_lost"))
		}
	})
}

func (a *attempt) renew() {
	if a.settled || !a.running {
		return
	}
	a.ask(frameRenew)
	if a.cancelled && !a.w.temper.deaf {
		a.settle(outcomeOf(pb.Outcome_OUTCOME_CANCELLED, false, "cancelled"))
		return
	}
	left := max(a.until-a.w.s.mono(a.w.p), 400*millis)
	a.w.s.after(a.w.p, a.w.s.between(left/3, left/2), a.renew)
}

// ask renews the lease, or asks where the attempt stands.
func (a *attempt) ask(kind frameKind) {
	if a.renewing {
		return
	}
	a.renewing = true
	w := a.w
	w.ask(frame{kind: kind, ref: a.ref}, func(r *pb.Result, code schema.Code, sentAt int64) {
		a.renewing = false
		if code != "" || a.settled {
			if code == "" && kind == frameRenew && w.s.chance(10) {
				w.repeat(frame{kind: kind, ref: a.ref})
			}
			return
		}
		if kind == frameResume {
			a.learn(r.GetLease(), sentAt)
		} else {
			a.learn(r.GetOperation().Lease, sentAt)
		}
	})
}

// work is the moment in which the effect happens in the world outside.
func (a *attempt) work() {
	w, s := a.w, a.w.s
	if a.settled {
		return
	}
	if a.cancelled && !w.temper.deaf {
		a.settle(outcomeOf(pb.Outcome_OUTCOME_CANCELLED, false, "cancelled"))
		return
	}
	if !s.resource.write(s, a) {
		a.settle(outcomeOf(pb.Outcome_OUTCOME_FAILED, false, "fenced")) // nothing was written
		return
	}
	s.judge.effect(a)
	f := outcomeOf(pb.Outcome_OUTCOME_SUCCEEDED, false, "")
	f.Result = fmt.Appendf(nil, `{"by":"%s"}`, w.p.name)
	switch n := s.rng.IntN(100); {
	case n < 5:
		f = outcomeOf(pb.Outcome_OUTCOME_FAILED, true, "temporary")
	case n < 9:
		f = outcomeOf(pb.Outcome_OUTCOME_FAILED, false, "final")
	case n < 14:
		f = outcomeOf(pb.Outcome_OUTCOME_UNKNOWN, false, "unclear")
	case n < 16:
		f = outcomeOf(pb.Outcome_OUTCOME_CANCELLED, false, "cancelled") // though perhaps nobody asked
	}
	if s.chance(w.temper.mortal) && !s.healed {
		n := &note{ref: a.ref, msg: s.newID(), finish: f}
		w.notes = append(w.notes, n)
		s.judge.count("deaths after the effect")
		w.die(s.chance(30))
		w.restart(s.between(200*millis, 20*second))
		return
	}
	a.settle(f)
}

func outcomeOf(o pb.Outcome, retryable bool, code string) *pb.FinishAttempt {
	return &pb.FinishAttempt{Outcome: o, Retryable: retryable, ErrorCode: code}
}

// settle reports how the attempt ended, until the cluster has taken it.
func (a *attempt) settle(f *pb.FinishAttempt) {
	w := a.w
	a.settled = true
	w.s.say("%s ends %s: %s %s", w.p.name, short(a.ref.attempt[:]), f.Outcome.String()[8:], f.ErrorCode)
	sent := frame{kind: frameFinish, ref: a.ref, finish: f, msg: w.s.newID()}
	w.ask(sent, func(_ *pb.Result, code schema.Code, _ int64) {
		switch {
		case code == schema.CancelNotRequested:
			other := proto.CloneOf(f)
			other.Outcome, other.Retryable = pb.Outcome_OUTCOME_FAILED, false
			a.settle(other)
			return
		case code == "" && w.s.chance(15):
			w.repeat(sent)
		}
		w.places--
		w.forget(a)
		if w.s.chance(w.temper.rude) && !w.s.healed {
			w.misbehave(sent)
		}
	})
}

// repeat sends an operation that was answered once more.
func (w *worker) repeat(f frame) {
	if f.msg == (id{}) {
		return
	}
	w.s.after(w.p, w.s.between(0, 5*second), func() {
		w.s.judge.count("repeats")
		w.ask(f, func(*pb.Result, schema.Code, int64) {})
	})
}

// bringUp goes back to what the process did before it died.
func (w *worker) bringUp(n *note) {
	w.s.after(w.p, w.s.between(0, 3*second), func() {
		end := func(*pb.Result, schema.Code, int64) {
			w.notes = slices.DeleteFunc(w.notes, func(x *note) bool { return x == n })
		}
		w.past[n.ref.attempt] = true
		w.ask(frame{kind: frameResume, ref: n.ref}, func(*pb.Result, schema.Code, int64) {
			w.ask(frame{kind: frameFinish, ref: n.ref, finish: n.finish, msg: n.msg}, end)
		})
	})
}

// misbehave sends what no good worker would.
func (w *worker) misbehave(last frame) {
	s := w.s
	s.judge.count("bad frames")
	f := last
	other := s.anyRef(last.ref)
	if l := s.judge.leases[other.attempt]; l.instance == w.instance {
		other = last.ref // what its own identity holds it could really end
	}
	switch s.rng.IntN(7) {
	case 0: // the same id with other content
		f.finish = proto.CloneOf(last.finish)
		f.finish.ErrorCode += "x"
	case 1: // an id of one operation for another
		f.kind = frameRenew
	case 2: // a second finish
		f.msg = id{}
	case 3: // somebody else's attempt
		f = frame{kind: pick(s, []frameKind{frameStart, frameRenew, frameFinish, frameResume}), ref: other, finish: last.finish}
	case 4: // a number that was never this attempt's; the gateway lets it through
		f = frame{kind: pick(s, []frameKind{frameRenew, frameFinish, frameStart}), ref: other, finish: last.finish}
		f.ref.epoch += uint64(s.between(1, 3))
		f.ref.secret = secretOf(f.ref.attempt[:], f.ref.epoch)
	case 5: // a guessed secret
		f = frame{kind: frameFinish, ref: other, finish: last.finish}
		f.ref.secret++
	case 6: // late word on an old attempt
		f = frame{kind: pick(s, []frameKind{frameStart, frameRenew}), ref: last.ref}
	}
	s.after(w.p, s.between(0, 2*second), func() { w.ask(f, func(*pb.Result, schema.Code, int64) {}) })
}

// leak makes an attempt known to those who should not know it.
func (s *sim) leak(r ref) {
	s.leaked = append(s.leaked, r)
	if len(s.leaked) > 30 {
		s.leaked = s.leaked[1:]
	}
}

func (s *sim) anyRef(or ref) ref {
	if len(s.leaked) == 0 {
		return or
	}
	return pick(s, s.leaked)
}

// reportCapacity tells how much room there is; now and then it drains, and
// leaves.
func (w *worker) reportCapacity() {
	s := w.s
	if s.healed {
		return
	}
	f := frame{kind: frameCapacity, capacity: uint32(s.between(0, int64(w.capacity))), drain: s.chance(5)}
	if s.chance(60) {
		f.capacity = w.capacity
	}
	w.sequence++
	f.sequence = w.sequence
	if s.chance(5) && f.sequence > 1 {
		f.sequence -= uint64(s.between(0, 1))
	}
	w.told = f.capacity
	w.ask(f, func(_ *pb.Result, code schema.Code, _ int64) {
		if code == "" && f.drain {
			s.after(w.p, s.between(2*second, 10*second), func() {
				w.die(false)
				w.restart(second)
				w.newIdentity()
			})
		}
	})
}

// --- the world outside

// resource is what workers write to. It refuses a token smaller than the
// largest it has seen for its key.
type resource struct {
	largest map[string]uint64
}

func (r *resource) write(s *sim, a *attempt) bool {
	key := a.task.Task.ConcurrencyKey
	if key == "" {
		return true
	}
	if a.token < r.largest[key] {
		s.say("the resource refuses token %d for %s", a.token, key)
		s.judge.count("fenced writes")
		return false
	}
	r.largest[key] = a.token
	s.judge.wrote(a)
	return true
}
