package session

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Registration is what a worker says about itself.
type Registration struct {
	InstanceID                schema.ID
	InstanceSecret            schema.Secret
	QueueID                   schema.ID
	Capabilities              []*pb.Capability // in any order
	Capacity                  uint32
	CancellationNotifications bool
	ConcurrencyKeys           bool
}

// AttemptRef names an attempt with the proof that it was handed to the sender.
type AttemptRef struct {
	TaskID      schema.ID
	AttemptID   schema.ID
	Epoch       uint64
	LeaseSecret schema.Secret
}

// Finish is how an attempt ended.
type Finish struct {
	Outcome   pb.Outcome
	Result    []byte // validated JSON; the handle's from now on
	ErrorCode string
	Retryable bool
}

// session is a registration that succeeded.
type session struct {
	id        schema.ID
	epoch     uint64
	instance  schema.ID
	namespace schema.ID
	cancels   bool // the worker asked for notifications
}

func (s session) ref() *pb.SessionRef {
	return &pb.SessionRef{InstanceId: idBytes(s.instance), SessionId: idBytes(s.id)}
}

// Handle is one connection's session, from before its registration to its end.
// The surface calls Register, then Welcomed once the welcome is on its way, and
// the commands after that, all from one goroutine and in the order in which
// they arrived; Close is called last.
//
// The message id of a frame is the identity of its operation and goes into the
// command as it is.
type Handle struct {
	hub  *Hub
	conn Conn
	who  Identity
	peer string
	pipe pipeline

	// session is set once, by Register, before the hub knows the handle.
	session atomic.Pointer[session]
	telling atomic.Bool // stillThere is under way

	mu       sync.Mutex
	capacity uint32 // as the cluster knows it
	draining bool   // likewise
	state    state
	held     []*pb.Delivery // while state is held
}

type state int

const (
	fresh       state = iota
	registering       // Register is under way
	held              // registered; deliveries wait for the welcome
	open
	closed
)

// heldMax bounds the deliveries kept until the welcome: more than the capacity
// of any session. What does not fit is dropped; the leader repeats it.
const heldMax = 512

// secretReadWithin bounds the search for why a secret is wrong.
const secretReadWithin = 2 * time.Second

// Session is the id of the session, if there is one.
func (h *Handle) Session() (id schema.ID, ok bool) {
	if s := h.session.Load(); s != nil {
		return s.id, true
	}
	return id, false
}

// Register makes the session and waits for it. A refusal leaves the handle as
// it was, so that it may be tried again. Deliveries wait for Welcomed.
func (h *Handle) Register(ctx context.Context, messageID schema.ID, r Registration) (*pb.SessionResult, *schema.Error) {
	if !h.step(fresh, registering) {
		return nil, schema.Errorf(schema.Conflict, "this connection has registered already")
	}
	if refusal := h.pipe.enter(ctx); refusal != nil {
		h.step(registering, fresh)
		return nil, refusal
	}
	defer h.pipe.leave()
	ctx, cancel := context.WithTimeout(ctx, h.hub.cfg.CommandWithin)
	defer cancel()
	result, refusal := h.register(ctx, messageID, r)
	if refusal != nil {
		h.step(registering, fresh)
		return nil, refusal
	}
	h.hub.counters.Registered.Add(1)
	h.hub.cfg.Logger.Debug("worker registered", "session", h.session.Load().id, "instance", r.InstanceID,
		"epoch", result.GetEpoch(), "namespace", result.GetNamespace(), "queue", result.GetQueue(), "peer", h.peer)
	return result, nil
}

func (h *Handle) register(ctx context.Context, messageID schema.ID, r Registration) (*pb.SessionResult, *schema.Error) {
	caller := h.who.worker(r.InstanceID)
	if refusal := h.mayServe(ctx, caller, r.QueueID); refusal != nil {
		return nil, refusal
	}
	select {
	case <-h.hub.ready: // before that the cluster does not know this gateway
	case <-ctx.Done():
		return nil, schema.Errorf(schema.Unavailable, "this gateway is not known to the cluster yet")
	}
	registration, refusal := h.hub.begin()
	if refusal != nil {
		return nil, refusal
	}
	results, err := h.hub.cfg.Backend.Submit(ctx, []*pb.Command{{
		Id: idBytes(messageID), Caller: caller,
		Body: &pb.Command_RegisterSession{RegisterSession: h.command(r)},
	}})
	result, refusal := outcome(results, 0, 1, err)
	if refusal != nil {
		h.hub.finish(registration, nil)
		return nil, refusal
	}
	made := result.GetSession()
	id, ok := toID(made.GetSessionId())
	namespace, ok2 := toID(made.GetNamespaceId())
	if !ok || !ok2 || made.GetEpoch() == 0 {
		h.hub.finish(registration, nil)
		return nil, schema.Errorf(schema.ResultUnknown, "the registration was answered with nothing")
	}
	s := &session{
		id: id, epoch: made.GetEpoch(), instance: r.InstanceID, namespace: namespace,
		cancels: r.CancellationNotifications,
	}
	h.session.Store(s)
	h.knows(made)
	welcome := h.step(registering, held)
	h.hub.finish(registration, h)
	if !welcome { // the connection ended meanwhile
		h.Leave()
		return nil, schema.Errorf(schema.Unavailable, "the connection is closing")
	}
	return made, nil
}

// mayServe asks for the names behind the queue's id, if it matters.
func (h *Handle) mayServe(ctx context.Context, caller *pb.Caller, queueID schema.ID) *schema.Error {
	if !h.who.restricted() {
		return nil
	}
	answer, refusal := h.hub.read(ctx, &pb.Query{
		Caller: caller,
		Body:   &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Id: idBytes(queueID)}},
	})
	if refusal != nil {
		return refusal
	}
	return h.who.MayServe(answer.GetQueue().GetNamespace(), answer.GetQueue().GetQueue().GetName())
}

func (h *Handle) command(r Registration) *pb.RegisterSession {
	hash := sha256.Sum256(r.InstanceSecret[:])
	capabilities := slices.SortedFunc(slices.Values(r.Capabilities), func(a, b *pb.Capability) int {
		if c := strings.Compare(a.GetHandler(), b.GetHandler()); c != 0 {
			return c
		}
		if c := strings.Compare(a.GetHandlerVersion(), b.GetHandlerVersion()); c != 0 {
			return c
		}
		return strings.Compare(a.GetPayloadVersion(), b.GetPayloadVersion())
	})
	return &pb.RegisterSession{
		InstanceId: idBytes(r.InstanceID), SecretHash: hash[:], QueueId: idBytes(r.QueueID),
		Capabilities: capabilities, Capacity: r.Capacity,
		CancellationNotifications: r.CancellationNotifications, ConcurrencyKeys: r.ConcurrencyKeys,
		GatewayId: h.hub.cfg.GatewayID, GatewayIncarnation: idBytes(h.hub.incarnation), Peer: h.peer,
	}
}

// step changes the state, if it is what it is thought to be.
func (h *Handle) step(from, to state) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != from {
		return false
	}
	h.state = to
	return true
}

// Welcomed says that the welcome is on its way: everything said from now on
// comes after it.
func (h *Handle) Welcomed() {
	for {
		h.mu.Lock()
		waiting := h.held
		h.held = nil
		if len(waiting) == 0 && h.state == held {
			h.state = open
		}
		h.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		for _, d := range waiting {
			h.say(d)
		}
	}
}

// deliver is called by the hub, from any goroutine.
func (h *Handle) deliver(d *pb.Delivery) {
	h.mu.Lock()
	state := h.state
	if state == held && len(h.held) < heldMax {
		h.held = append(h.held, d)
	}
	h.mu.Unlock()
	if state == open {
		h.say(d)
	}
}

// say gives a delivery to the connection.
func (h *Handle) say(d *pb.Delivery) {
	h.hub.counters.Deliveries.Add(1)
	s := h.session.Load()
	switch body := d.GetBody().(type) {
	case *pb.Delivery_Assign:
		attempt, ok := toID(body.Assign.GetAttemptId())
		if !ok {
			h.hub.cfg.Logger.Warn("assignment without an attempt dropped", "session", s.id)
			return
		}
		h.conn.Assign(body.Assign, h.hub.cfg.LeaseKey.Mint(attempt, body.Assign.GetEpoch()))
	case *pb.Delivery_Cancel:
		if s.cancels {
			h.conn.Cancel(body.Cancel)
		}
	case *pb.Delivery_Close:
		h.hub.end(s.id, body.Close.GetCode())
	}
}

// SetCapacity replaces the capacity. The result carries the session. One that changes
// nothing, as a heartbeat, may be answered up to a second later than others.
func (h *Handle) SetCapacity(ctx context.Context, messageID schema.ID, sequence uint64, capacity uint32, drain bool, reply Reply) {
	h.mu.Lock()
	same := capacity == h.capacity && (!drain || h.draining)
	h.mu.Unlock()
	s := h.session.Load()
	h.add(ctx, &call{
		key: s.id, calm: same,
		cmd: &pb.Command{
			Id: idBytes(messageID),
			Body: &pb.Command_SetCapacity{SetCapacity: &pb.SetCapacity{
				Session: s.ref(), Sequence: sequence, Capacity: capacity, Drain: drain,
			}},
		},
		reply: func(r *pb.Result, refusal *schema.Error) {
			if refusal == nil {
				h.knows(r.GetSession())
			}
			reply(r, refusal)
		},
	})
}

// knows keeps what the cluster has said of the session.
func (h *Handle) knows(s *pb.SessionResult) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.capacity, h.draining = s.GetCapacity(), s.GetDraining()
}

// Resume asks where an attempt stands. The result carries the lease.
func (h *Handle) Resume(ctx context.Context, messageID schema.ID, ref AttemptRef, reply Reply) {
	h.act(ctx, ref, &pb.Command{
		Id: idBytes(messageID),
		Body: &pb.Command_ResumeAttempt{ResumeAttempt: &pb.ResumeAttempt{
			Session: h.session.Load().ref(), Ref: ref.proven(),
		}},
	}, reply)
}

// Start says that an attempt runs from now on. The result carries the operation.
func (h *Handle) Start(ctx context.Context, messageID schema.ID, ref AttemptRef, reply Reply) {
	h.act(ctx, ref, &pb.Command{
		Id: idBytes(messageID),
		Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{
			Session: h.session.Load().ref(), Ref: ref.proven(),
		}},
	}, reply)
}

// Renew extends the lease. The result carries the operation.
func (h *Handle) Renew(ctx context.Context, messageID schema.ID, ref AttemptRef, reply Reply) {
	h.act(ctx, ref, &pb.Command{
		Id: idBytes(messageID),
		Body: &pb.Command_RenewAttempt{RenewAttempt: &pb.RenewAttempt{
			Session: h.session.Load().ref(), Ref: ref.proven(),
		}},
	}, reply)
}

// Finish says how an attempt ended. The result carries the operation.
func (h *Handle) Finish(ctx context.Context, messageID schema.ID, ref AttemptRef, f Finish, reply Reply) {
	h.act(ctx, ref, &pb.Command{
		Id: idBytes(messageID),
		Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
			Session: h.session.Load().ref(), Ref: ref.proven(),
			Outcome: f.Outcome, Result: f.Result, ErrorCode: f.ErrorCode, Retryable: f.Retryable,
		}},
	}, reply)
}

// act forwards a command about an attempt if the sender has shown its secret.
func (h *Handle) act(ctx context.Context, ref AttemptRef, cmd *pb.Command, reply Reply) {
	if !h.hub.cfg.LeaseKey.Check(ref.AttemptID, ref.Epoch, ref.LeaseSecret) {
		h.hub.counters.Refused.Add(1)
		h.pipe.aside(ctx, reply, func() (*pb.Result, *schema.Error) { return nil, h.unproven(ctx, ref) })
		return
	}
	h.submit(ctx, ref.AttemptID, cmd, func(res *pb.Result, refusal *schema.Error) {
		reply(res, refusal)
		if refusal != nil && (refusal.Code == schema.LeaseLost || refusal.Code == schema.StaleEpoch) {
			h.stillThere(ctx, cmd.Id, ref)
		}
	})
}

// stillThere tells the cluster that a worker which came too late is there all
// the same. A refused command changes nothing, so a session whose offer had
// lapsed would stay without work until its next command that is accepted, and an
// idle worker may never send one. One such word at a time is enough.
func (h *Handle) stillThere(ctx context.Context, id []byte, ref AttemptRef) {
	if !h.telling.CompareAndSwap(false, true) {
		return
	}
	s := h.session.Load()
	cmd := &pb.Command{
		Id: id, NamespaceId: idBytes(s.namespace), Caller: h.who.worker(s.instance),
		Body: &pb.Command_ResumeAttempt{ResumeAttempt: &pb.ResumeAttempt{Session: s.ref(), Ref: ref.proven()}},
	}
	h.pipe.group.Go(func() {
		defer h.telling.Store(false)
		if _, err := h.hub.submit(ctx, []*pb.Command{cmd}); err != nil {
			h.hub.cfg.Logger.Debug("a late worker was not reported", "session", s.id, "error", err)
		}
	})
}

// unproven says why a secret is wrong: because there is no such attempt, or
// because it is somebody else's. What this node has applied is good enough to
// tell, and costs the leader nothing.
func (h *Handle) unproven(ctx context.Context, ref AttemptRef) *schema.Error {
	ctx, cancel := context.WithTimeout(ctx, secretReadWithin)
	defer cancel()
	s := h.session.Load()
	_, refusal := h.hub.read(ctx, &pb.Query{
		NamespaceId: idBytes(s.namespace), Caller: h.who.worker(s.instance),
		Consistency: pb.Consistency_CONSISTENCY_STALE,
		Body: &pb.Query_GetAttempt{GetAttempt: &pb.GetAttempt{
			TaskId: idBytes(ref.TaskID), AttemptId: idBytes(ref.AttemptID),
		}},
	})
	if refusal != nil && refusal.Code == schema.NotFound {
		return schema.Errorf(schema.NotFound, "there is no such attempt")
	}
	return schema.Errorf(schema.Forbidden, "the lease secret is not that of the attempt and epoch")
}

// proven is the reference as commands carry it, without the secret.
func (r AttemptRef) proven() *pb.AttemptRef {
	return &pb.AttemptRef{TaskId: idBytes(r.TaskID), AttemptId: idBytes(r.AttemptID), Epoch: r.Epoch}
}

func (h *Handle) submit(ctx context.Context, key schema.ID, cmd *pb.Command, reply Reply) {
	h.add(ctx, &call{key: key, cmd: cmd, reply: reply})
}

func (h *Handle) add(ctx context.Context, c *call) {
	s := h.session.Load()
	c.cmd.NamespaceId = idBytes(s.namespace)
	c.cmd.Caller = h.who.worker(s.instance)
	h.pipe.add(ctx, c)
}

// Drain takes no more commands, which are answered with unavailable from now
// on, and waits until all earlier ones are answered.
func (h *Handle) Drain() { h.pipe.drain() }

// Leave says that the connection is going: the session is reported as closed
// and nothing is delivered to it. It does not wait, may be called from
// anywhere, and only the first call counts.
func (h *Handle) Leave() {
	h.mu.Lock()
	h.state = closed
	h.held = nil
	h.mu.Unlock()
	s := h.session.Load()
	if s == nil || !h.hub.forget(s.id, h) {
		return
	}
	h.hub.cfg.Logger.Debug("worker disconnected", "session", s.id, "instance", s.instance, "peer", h.peer)
	h.hub.closer.add(closing{session: *s})
}

// Close is Leave, and waits until the commands under way are answered.
func (h *Handle) Close() {
	h.Leave()
	h.pipe.drain()
}

// read asks the backend one question.
func (h *Hub) read(ctx context.Context, q *pb.Query) (*pb.Answer, *schema.Error) {
	answer, err := h.cfg.Backend.Read(ctx, q)
	if err != nil {
		return nil, readRefusal(err)
	}
	if answer.GetCode() != "" {
		return nil, schema.Errorf(schema.Code(answer.GetCode()), "%s", answer.GetMessage())
	}
	return answer, nil
}
