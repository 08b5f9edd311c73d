package sim

import (
	"bytes"
	"cmp"
	"hash/fnv"
	"slices"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Times and bounds of a gateway; see gateway/session.
const (
	reportEvery   = 2 * second
	reportWithin  = 2 * second
	commandWithin = 10 * second
	liveFor       = 30 * second
	callsInBatch  = 64
	batchesMost   = 8
	closeTries    = 5
	closeWithin   = 5 * second
	closeFirst    = 200 * millis
	pingEvery     = 15 * second
)

// gateway is one life of a process that holds workers' connections.
type gateway struct {
	s           *sim
	number      int
	name        string
	p           *proc
	n           *node // nil: it has no replica
	incarnation id
	caller      *pb.Caller

	hint  string // who leads, as the last refusal said
	turn  int
	heard uint64 // newest index in an answer
	links map[string]*link

	ready         bool
	awaitReady    []func()
	sessions      []*handle
	registrations []*registration
	registered    uint64
	parked        []parkedDelivery
	leaving       bool

	closes  []sessionInfo
	closing bool
}

// registration is a RegisterSession whose result is not here yet. Its session,
// if there will be one, has an epoch above index.
type registration struct{ number, index uint64 }

type parkedDelivery struct {
	d    *pb.Delivery
	upTo uint64
}

// sessionInfo is a registration that succeeded.
type sessionInfo struct {
	id, instance, namespace id
	epoch                   uint64
	cancels                 bool
}

func (i sessionInfo) ref() *pb.SessionRef {
	return &pb.SessionRef{InstanceId: bytesOf(i.instance), SessionId: bytesOf(i.id)}
}

// openGateway is the gateway's part of the start of a process.
func (s *sim) openGateway(number int, p *proc, n *node) *gateway {
	g := &gateway{s: s, number: number, name: p.name, p: p, n: n, incarnation: s.newID(), links: map[string]*link{}}
	g.caller = &pb.Caller{Principal: "gateway/" + g.name}
	s.gateways[number] = g
	g.report()
	return g
}

func (s *sim) gatewayNamed(name string) *gateway {
	for _, g := range s.gateways {
		if g != nil && g.name == name {
			return g
		}
	}
	return nil
}

func (s *sim) nodeNamed(name string) *node {
	for _, n := range s.nodes {
		if n.p.name == name {
			return n
		}
	}
	return nil
}

// appliedIndex is the newest index this process knows to be applied.
func (g *gateway) appliedIndex() uint64 {
	if g.n != nil {
		return g.n.m.FenceBase() + g.n.m.AppliedIndex()
	}
	return g.heard
}

// report is the gateway's heartbeat: it tells which sessions are here, and ends
// those that it is answered are none any more.
func (g *gateway) report() {
	began := g.s.now
	again := func(*pb.GatewayResult) { g.s.after(g.p, max(0, reportEvery-(g.s.now-began)), g.report) }
	g.tell(g.inShort(g.appliedIndex()), func(answer *pb.GatewayResult) {
		if answer.GetList() {
			g.tell(g.list(g.appliedIndex()), again)
			return
		}
		again(answer)
	})
}

// tell hands a report in and does what the answer says, if there is one.
func (g *gateway) tell(body *pb.ReportGateway, then func(*pb.GatewayResult)) {
	g.send([]*pb.Command{{Id: bytesOf(g.s.newID()), Caller: g.caller, Body: &pb.Command_ReportGateway{ReportGateway: body}}},
		reportWithin, func(results []*pb.Result, refused *refusal) {
			if refused != nil || results[0].Code != "" {
				then(nil)
				return
			}
			if !g.ready {
				g.ready = true
				for _, run := range g.awaitReady {
					run()
				}
				g.awaitReady = nil
			}
			for _, gone := range results[0].GetGateway().GetGone() {
				g.end(toID(gone.SessionId), schema.Code(gone.Code))
			}
			then(results[0].GetGateway())
		})
}

// send is submit with one answer, come what may.
func (g *gateway) send(commands []*pb.Command, within int64, done answerFunc) {
	over := false
	end := func(results []*pb.Result, refused *refusal) {
		if !over {
			over = true
			done(results, refused)
		}
	}
	g.s.after(g.p, within, func() { end(nil, refuse(schema.ResultUnknown)) })
	g.submit(commands, within, end)
}

// inShort makes a report of the sessions that list would name, up to its index.
func (g *gateway) inShort(index uint64) *pb.ReportGateway {
	body := g.list(index)
	slices.SortFunc(body.Sessions, func(a, b *pb.SessionEntry) int {
		return cmp.Or(bytes.Compare(a.NamespaceId, b.NamespaceId), bytes.Compare(a.InstanceId, b.InstanceId))
	})
	digest := pb.NewSessionsDigest()
	body.InShort = &pb.SessionsInShort{}
	for _, s := range body.Sessions {
		if s.Epoch <= body.AppliedIndex {
			digest.Add(toID(s.SessionId), s.Epoch)
			body.InShort.SilentMs = append(body.InShort.SilentMs, 0)
		}
	}
	body.InShort.Digest, body.Sessions = digest.Sum(), nil
	return body
}

// list makes a report. Its index stays below every registration under way.
func (g *gateway) list(index uint64) *pb.ReportGateway {
	for _, r := range g.registrations {
		index = min(index, r.index)
	}
	body := &pb.ReportGateway{GatewayId: g.name, Incarnation: bytesOf(g.incarnation), AppliedIndex: index}
	for _, h := range slices.Clone(g.sessions) {
		if g.s.now-h.heard >= liveFor {
			h.shut(schema.SessionExpired)
			continue
		}
		body.Sessions = append(body.Sessions, &pb.SessionEntry{SessionId: bytesOf(h.session.id), Epoch: h.session.epoch,
			InstanceId: bytesOf(h.session.instance), NamespaceId: bytesOf(h.session.namespace)})
	}
	slices.SortFunc(body.Sessions, func(a, b *pb.SessionEntry) int { return bytes.Compare(a.SessionId, b.SessionId) })
	return body
}

// end closes the connection of a session that the state has given up.
func (g *gateway) end(session id, code schema.Code) {
	for _, h := range g.sessions {
		if h.session.id == session {
			g.forget(h)
			h.shut(code)
			return
		}
	}
}

func (g *gateway) forget(h *handle) bool {
	i := slices.Index(g.sessions, h)
	if i < 0 {
		return false
	}
	g.sessions = slices.Delete(g.sessions, i, i+1)
	return true
}

// goAway is an orderly end of the process: connections first, then the report
// that it leaves.
func (g *gateway) goAway(then func()) {
	g.leaving = true
	for _, h := range slices.Clone(g.sessions) {
		g.forget(h)
		h.shut(schema.Unavailable)
	}
	body := g.list(g.appliedIndex())
	body.Leaving = true
	g.send([]*pb.Command{{Id: bytesOf(g.s.newID()), Caller: g.caller, Body: &pb.Command_ReportGateway{ReportGateway: body}}},
		reportWithin, func([]*pb.Result, *refusal) { then() })
}

// --- deliveries

// arrive takes what the leader has to say to sessions of this gateway.
func (g *gateway) arrive(batch []*pb.Delivery) {
	upTo := g.registered
	for _, d := range batch {
		g.s.judge.pushed(g, d)
		if g.s.chance(g.s.knobs.dropDelivery) && !g.s.healed {
			continue // its connection does not keep up
		}
		g.route(d, upTo)
	}
}

// route gives a delivery to its session. upTo is the newest registration that
// had begun when it arrived: one of those may have made it.
func (g *gateway) route(d *pb.Delivery, upTo uint64) {
	session := toID(d.SessionId)
	for _, h := range g.sessions {
		if h.session.id == session {
			h.deliver(d)
			return
		}
	}
	for _, r := range g.registrations {
		if r.number <= upTo {
			g.parked = append(g.parked, parkedDelivery{d, upTo})
			return
		}
	}
	// Work is being offered to nobody: report the session as closed.
	if a := d.GetAssign(); a != nil {
		g.addClose(sessionInfo{id: session, instance: toID(a.Task.Lease.InstanceId), namespace: toID(a.Task.Task.NamespaceId)})
	}
}

func (g *gateway) begin() *registration {
	g.registered++
	r := &registration{g.registered, g.appliedIndex()}
	g.registrations = append(g.registrations, r)
	return r
}

// finish ends a registration; what waited for it finds its way.
func (g *gateway) finish(r *registration, h *handle) {
	g.registrations = slices.DeleteFunc(g.registrations, func(x *registration) bool { return x == r })
	if h != nil {
		g.sessions = append(g.sessions, h)
	}
	waiting := g.parked
	g.parked = nil
	for _, p := range waiting {
		g.route(p.d, p.upTo)
	}
}

// --- closer

func (g *gateway) addClose(i sessionInfo) {
	if slices.ContainsFunc(g.closes, func(x sessionInfo) bool { return x.id == i.id }) {
		return
	}
	g.closes = append(g.closes, i)
	g.closeSome()
}

func (g *gateway) closeSome() {
	if g.closing || len(g.closes) == 0 {
		return
	}
	g.closing = true
	batch := g.closes
	g.closes = nil
	g.s.after(g.p, g.s.between(0, millis), func() { g.closeBatch(batch, 0, closeFirst) })
}

func (g *gateway) closeBatch(batch []sessionInfo, try int, pause int64) {
	var commands []*pb.Command
	for _, i := range batch {
		commands = append(commands, &pb.Command{Id: bytesOf(g.s.newID()), NamespaceId: bytesOf(i.namespace), Caller: g.caller,
			Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: i.ref()}}})
	}
	g.send(commands, closeWithin, func(results []*pb.Result, refused *refusal) {
		var left []sessionInfo
		for i := range batch {
			if _, code := resultAt(results, refused, i); undecided(code) {
				left = append(left, batch[i])
			}
		}
		if len(left) == 0 || try+1 == closeTries {
			g.closing = false
			g.closeSome()
			return
		}
		g.s.after(g.p, pause, func() { g.closeBatch(left, try+1, 2*pause) })
	})
}

// resultAt picks a result, or the code of why there is none.
func resultAt(results []*pb.Result, refused *refusal, i int) (*pb.Result, schema.Code) {
	if refused != nil {
		return nil, refused.code
	}
	if r := results[i]; r.Code != "" {
		return r, schema.Code(r.Code)
	}
	return results[i], ""
}

// undecided says that the state has not looked at a command, or that nobody
// knows.
func undecided(code schema.Code) bool {
	switch code {
	case schema.NotLeader, schema.NoLeader, schema.Unavailable, schema.DeadlineExpired, schema.ResultUnknown, schema.RateLimited:
		return true
	default:
		return false
	}
}

// --- one connection

// frame is what a worker sends.
type frame struct {
	kind     frameKind
	msg      id
	hello    *pb.RegisterSession
	ref      ref
	finish   *pb.FinishAttempt // outcome, result, code, retryable
	sequence uint64
	capacity uint32
	drain    bool
}

type frameKind string

const (
	frameHello    frameKind = "hello"
	framePing     frameKind = "ping"
	frameCapacity frameKind = "capacity"
	frameStart    frameKind = "start"
	frameRenew    frameKind = "renew"
	frameFinish   frameKind = "finish"
	frameResume   frameKind = "resume"
)

// ref names an attempt with the proof that it was handed to the sender.
type ref struct {
	task, attempt id
	epoch         uint64
	secret        uint64
}

func (r ref) proven() *pb.AttemptRef {
	return &pb.AttemptRef{TaskId: bytesOf(r.task), AttemptId: bytesOf(r.attempt), Epoch: r.epoch}
}

// secretOf stands for the lease secret, which only gateways can make.
func secretOf(attempt []byte, epoch uint64) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(attempt) // a hash never fails
	_, _ = h.Write([]byte{byte(epoch), byte(epoch >> 8), byte(epoch >> 16), byte(epoch >> 24), 0x51})
	return h.Sum64()
}

type handleState uint8

const (
	handleFresh handleState = iota
	handleRegistering
	handleHeld // registered; deliveries wait for the welcome
	handleOpen
	handleClosed
)

// handle is one connection's session on the gateway's side.
type handle struct {
	g       *gateway
	conn    *conn // end 1 is the gateway's
	w       *worker
	state   handleState
	session sessionInfo
	held    []*pb.Delivery
	heard   int64

	queue   []*workerCall
	busy    map[id]int
	running int
	woken   bool
}

// workerCall is a command on its way. Calls with equal keys keep their order.
type workerCall struct {
	key   id
	cmd   *pb.Command
	reply func(*pb.Result, schema.Code)
}

// attach makes the handle of a new connection.
func (g *gateway) attach(c *conn, w *worker) *handle {
	h := &handle{g: g, conn: c, w: w, heard: g.s.now, busy: map[id]int{}}
	g.s.every(g.p, fixed(pingEvery), func() bool {
		if h.state == handleClosed {
			return false
		}
		if g.s.now-h.heard >= liveFor {
			h.gone()
			h.conn.close(1)
			return false
		}
		h.say(func() { w.ponged(c) })
		return true
	})
	return h
}

// say sends something to the worker.
func (h *handle) say(run func()) { h.conn.send(0, run) }

// take handles a frame.
func (h *handle) take(f frame) {
	h.heard = h.g.s.now
	switch {
	case h.state == handleClosed:
	case f.kind == framePing:
		h.say(func() { h.w.ponged(h.conn) })
	case f.kind == frameHello:
		h.register(f)
	case h.state != handleOpen:
		h.refuse(f, schema.SessionRequired)
	case f.kind == frameCapacity:
		h.submit(h.session.id, f, &pb.Command{Body: &pb.Command_SetCapacity{SetCapacity: &pb.SetCapacity{
			Session: h.session.ref(), Sequence: f.sequence, Capacity: f.capacity, Drain: f.drain}}})
	case secretOf(f.ref.attempt[:], f.ref.epoch) != f.ref.secret:
		h.g.s.judge.count("wrong secrets")
		h.refuse(f, schema.Forbidden)
	case f.kind == frameStart:
		h.submit(f.ref.attempt, f, &pb.Command{Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{
			Session: h.session.ref(), Ref: f.ref.proven()}}})
	case f.kind == frameRenew:
		h.submit(f.ref.attempt, f, &pb.Command{Body: &pb.Command_RenewAttempt{RenewAttempt: &pb.RenewAttempt{
			Session: h.session.ref(), Ref: f.ref.proven()}}})
	case f.kind == frameResume:
		h.submit(f.ref.attempt, f, &pb.Command{Body: &pb.Command_ResumeAttempt{ResumeAttempt: &pb.ResumeAttempt{
			Session: h.session.ref(), Ref: f.ref.proven()}}})
	case f.kind == frameFinish:
		h.submit(f.ref.attempt, f, &pb.Command{Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
			Session: h.session.ref(), Ref: f.ref.proven(), Outcome: f.finish.Outcome, Result: f.finish.Result,
			ErrorCode: f.finish.ErrorCode, Retryable: f.finish.Retryable}}})
	}
}

func (h *handle) refuse(f frame, code schema.Code) {
	h.say(func() { h.w.answered(h.conn, f.msg, nil, code) })
}

// register makes the session and welcomes the worker.
func (h *handle) register(f frame) {
	if h.state != handleFresh {
		h.refuse(f, schema.Conflict)
		return
	}
	h.state = handleRegistering
	g := h.g
	if !g.ready { // before that the cluster does not know this gateway
		g.awaitReady = append(g.awaitReady, func() { h.registerNow(f) })
		return
	}
	h.registerNow(f)
}

func (h *handle) registerNow(f frame) {
	g := h.g
	if g.leaving || h.state != handleRegistering {
		h.refuse(f, schema.Unavailable)
		return
	}
	body := &pb.RegisterSession{
		InstanceId: f.hello.InstanceId, SecretHash: f.hello.SecretHash, QueueId: f.hello.QueueId, Capabilities: f.hello.Capabilities,
		Capacity: f.hello.Capacity, CancellationNotifications: f.hello.CancellationNotifications, ConcurrencyKeys: f.hello.ConcurrencyKeys,
		GatewayId: g.name, GatewayIncarnation: bytesOf(g.incarnation), Peer: h.w.p.name,
	}
	r := g.begin()
	g.send([]*pb.Command{{Id: bytesOf(f.msg), Caller: workerCaller(f.hello.InstanceId), Body: &pb.Command_RegisterSession{RegisterSession: body}}},
		commandWithin, func(results []*pb.Result, refused *refusal) {
			res, code := resultAt(results, refused, 0)
			if code != "" {
				g.finish(r, nil)
				if h.state == handleRegistering {
					h.state = handleFresh
				}
				h.refuse(f, code)
				return
			}
			made := res.GetSession()
			h.session = sessionInfo{id: toID(made.SessionId), instance: toID(f.hello.InstanceId), namespace: toID(made.NamespaceId),
				epoch: made.Epoch, cancels: f.hello.CancellationNotifications}
			welcome := h.state == handleRegistering
			if welcome {
				h.state = handleHeld
			}
			g.finish(r, h)
			if !welcome {
				h.gone() // the connection ended meanwhile
				return
			}
			h.say(func() { h.w.welcomed(h.conn, made) })
			g.s.after(g.p, g.s.between(0, millis), h.welcomed)
		})
}

func workerCaller(instance []byte) *pb.Caller {
	return &pb.Caller{Principal: "worker/" + short(instance)}
}

// welcomed: what is said from now on comes after the welcome.
func (h *handle) welcomed() {
	if h.state != handleHeld {
		return
	}
	h.state = handleOpen
	waiting := h.held
	h.held = nil
	for _, d := range waiting {
		h.deliver(d)
	}
}

func (h *handle) deliver(d *pb.Delivery) {
	switch {
	case h.state == handleHeld:
		h.held = append(h.held, d)
		return
	case h.state != handleOpen:
		return
	}
	switch body := d.Body.(type) {
	case *pb.Delivery_Assign:
		a := body.Assign
		secret := secretOf(a.AttemptId, a.Epoch)
		h.say(func() { h.w.assigned(h.conn, a, secret) })
	case *pb.Delivery_Cancel:
		if h.session.cancels {
			h.say(func() { h.w.cancelled(body.Cancel) })
		}
	case *pb.Delivery_Close:
		h.g.end(h.session.id, schema.Code(body.Close.Code))
	}
}

// shut ends the connection with an error that is fatal to it.
func (h *handle) shut(code schema.Code) {
	h.say(func() { h.w.shut(h.conn, code) })
	h.gone()
	h.conn.close(1)
}

// gone says that the connection is going: its session is reported as closed.
func (h *handle) gone() {
	was := h.state
	h.state = handleClosed
	h.held = nil
	if was != handleFresh && was != handleRegistering && h.g.forget(h) {
		h.g.addClose(h.session)
	}
}

func (h *handle) submit(key id, f frame, cmd *pb.Command) {
	cmd.Id = bytesOf(f.msg)
	cmd.NamespaceId = bytesOf(h.session.namespace)
	cmd.Caller = workerCaller(h.session.instance[:])
	h.queue = append(h.queue, &workerCall{key, cmd, func(r *pb.Result, code schema.Code) {
		h.say(func() { h.w.answered(h.conn, f.msg, r, code) })
	}})
	h.wake()
}

func (h *handle) wake() {
	if !h.woken {
		h.woken = true
		h.g.s.after(h.g.p, h.g.s.between(0, 200), func() {
			h.woken = false
			h.pump()
		})
	}
}

// pump sends what can go now, in order; a call whose key is under way waits.
func (h *handle) pump() {
	for h.running < batchesMost {
		var batch, rest []*workerCall
		inBatch := map[id]bool{}
		for _, c := range h.queue {
			if len(batch) < callsInBatch && (h.busy[c.key] == 0 || inBatch[c.key]) {
				inBatch[c.key] = true
				h.busy[c.key]++
				batch = append(batch, c)
			} else {
				rest = append(rest, c)
			}
		}
		h.queue = rest
		if len(batch) == 0 {
			return
		}
		h.running++
		commands := make([]*pb.Command, len(batch))
		for i, c := range batch {
			commands[i] = c.cmd
		}
		h.g.send(commands, commandWithin, func(results []*pb.Result, refused *refusal) {
			h.running--
			for i, c := range batch {
				if h.busy[c.key]--; h.busy[c.key] == 0 {
					delete(h.busy, c.key)
				}
				r, code := resultAt(results, refused, i)
				c.reply(r, code)
			}
			h.wake()
		})
	}
}
