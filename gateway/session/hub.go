package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Conn is the connection that carries a session, filled by the surface. Its
// methods are called from any goroutine and must not wait for the peer.
type Conn interface {
	// Assign offers an attempt. It may be repeated, and may be dropped when
	// the worker does not keep up: the leader repeats it while it is true.
	Assign(a *pb.AssignTask, secret schema.Secret)
	// Cancel tells that a cancellation was asked for; it too may be dropped.
	Cancel(c *pb.CancelAttempt)
	// Close ends the connection with an error that is fatal to it; the surface
	// may call Leave from it.
	Close(cause *schema.Error)
	// Heard is when the last frame or pong arrived.
	Heard() time.Time
}

// Config is what a hub needs. The zero value of a duration or number means the
// default named beside it.
type Config struct {
	GatewayID string // this node
	Backend   Backend
	LeaseKey  LeaseKey
	Logger    *slog.Logger

	ReportEvery   time.Duration // 2 s; the gateway's row lives for 6 s
	ReportWithin  time.Duration // 2 s for the answer to one report
	CommandWithin time.Duration // 10 s for the answer to one command
	LiveFor       time.Duration // 30 s since the last frame or pong, then a session is not listed
	InFlightMax   int           // 512 unanswered commands of one connection
}

// complete checks the config and fills in the defaults.
func (c Config) complete() (Config, error) {
	switch {
	case c.GatewayID == "":
		return c, errors.New("session: GatewayID is missing: give the node's id")
	case c.Backend == nil:
		return c, errors.New("session: Backend is missing: give the router")
	case c.LeaseKey == LeaseKey{}:
		return c, errors.New("session: LeaseKey is missing: derive it from the cluster secret")
	case c.Logger == nil:
		return c, errors.New("session: Logger is missing: give one, slog.DiscardHandler for silence")
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		is    time.Duration
	}{
		{"ReportEvery", &c.ReportEvery, 2 * time.Second},
		{"ReportWithin", &c.ReportWithin, 2 * time.Second},
		{"CommandWithin", &c.CommandWithin, 10 * time.Second},
		{"LiveFor", &c.LiveFor, 30 * time.Second},
	} {
		if *f.value == 0 {
			*f.value = f.is
		}
		if *f.value < 0 {
			return c, fmt.Errorf("session: %s is negative", f.name)
		}
	}
	if c.InFlightMax == 0 {
		c.InFlightMax = 512
	}
	if c.InFlightMax < 1 {
		return c, errors.New("session: InFlightMax is negative")
	}
	return c, nil
}

// Counters tell an operator what the sessions of this process did. Sessions is
// a gauge, all others only grow.
type Counters struct {
	Sessions       atomic.Int64
	Registered     atomic.Uint64
	Commands       atomic.Uint64 // handed to the backend for workers
	Batches        atomic.Uint64 // calls that carried Commands
	Refused        atomic.Uint64 // commands refused here for a wrong lease secret
	Deliveries     atomic.Uint64 // given to a connection
	Undeliverable  atomic.Uint64 // for a session that is not here
	Reports        atomic.Uint64
	ReportsFailed  atomic.Uint64
	ClosesReported atomic.Uint64 // sessions reported as gone
	ClosesGivenUp  atomic.Uint64 // left to the report
}

// Hub holds the live sessions of this node.
type Hub struct {
	cfg         Config
	incarnation schema.ID // of this process
	caller      *pb.Caller
	counters    Counters
	closer      closer
	gathering   gathering
	ready       chan struct{} // closed when the first report was answered
	reporting   atomic.Bool   // the last report was answered

	mu            sync.Mutex
	sessions      map[schema.ID]*Handle
	inOrder       []*Handle                  // sessions by namespace and instance; nil: to be made anew, never changed
	registrations map[*registration]struct{} // under way
	registered    uint64                     // registrations begun so far
	parked        []parked                   // for a session that may be one of them
	leaving       bool
}

// registration is a RegisterSession whose result is not here yet.
type registration struct {
	number uint64
	// index was applied before the command was submitted, so the session's
	// epoch, if there will be one, is above it.
	index uint64
}

// NewHub makes a hub that holds nothing. Registrations wait until Run has made
// the gateway known to the cluster.
func NewHub(cfg Config) (*Hub, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	h := &Hub{
		cfg:           cfg,
		incarnation:   newID(),
		caller:        &pb.Caller{Principal: "gateway/" + cfg.GatewayID},
		ready:         make(chan struct{}),
		sessions:      make(map[schema.ID]*Handle),
		registrations: make(map[*registration]struct{}),
	}
	h.closer.init(h)
	h.gathering.hub = h
	return h, nil
}

// newID is a random id, of an operation or a process.
func newID() (id schema.ID) {
	_, _ = rand.Read(id[:]) // it cannot fail
	return id
}

// Counters are the hub's own; read them at any time.
func (h *Hub) Counters() *Counters { return &h.counters }

// Incarnation names this process among the lives of its gateway id.
func (h *Hub) Incarnation() schema.ID { return h.incarnation }

// AppliedIndex is the newest index this node knows to be applied, as clients
// see it.
func (h *Hub) AppliedIndex() uint64 { return h.cfg.Backend.AppliedIndex() }

// Reporting says whether the cluster has answered this gateway's last report:
// whether what is sent through it arrives.
func (h *Hub) Reporting() bool { return h.reporting.Load() }

// Attach makes a handle for a new connection. Whoever attaches must Close it.
func (h *Hub) Attach(conn Conn, who Identity, peer string) *Handle {
	handle := &Handle{hub: h, conn: conn, who: who, peer: peer}
	handle.pipe.init(h)
	return handle
}

// Run reports the gateway and closes sessions until ctx ends; then it tells the
// cluster that the gateway is leaving, and returns. End the connections first:
// what is still here is given up.
func (h *Hub) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { h.closer.run(ctx) })
	h.reportLoop(ctx)
	group.Wait()

	h.mu.Lock()
	h.leaving = true
	h.mu.Unlock()
	if err := h.report(context.WithoutCancel(ctx), true); err != nil {
		h.cfg.Logger.Warn("gateway left without saying so, its sessions end with its row", "error", err)
	}
}

// reportLoop is the gateway's heartbeat. Gateways whose clocks agree report at the same
// moments, and one entry takes the reports of all.
func (h *Hub) reportLoop(ctx context.Context) {
	next := time.NewTimer(h.cfg.ReportEvery)
	defer next.Stop()
	failing, answered := false, false
	for {
		next.Reset(untilBeat(time.Now(), h.cfg.ReportEvery))
		err := h.report(ctx, false)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			h.cfg.Logger.Warn("gateway report failed, trying on", "error", err)
		case err == nil && failing:
			h.cfg.Logger.Info("gateway report is answered again")
		}
		h.reporting.Store(err == nil)
		if failing = err != nil; !failing && !answered {
			answered = true
			close(h.ready)
		}
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
	}
}

// report tells the cluster which sessions are here, in short unless it asks for the
// list, and closes those it answers are none any more.
func (h *Hub) report(ctx context.Context, leaving bool) error {
	h.counters.Reports.Add(1)
	ctx, cancel := context.WithTimeout(ctx, h.cfg.ReportWithin)
	defer cancel()
	kind := h.inShort
	if leaving {
		kind = h.list
	}
	answer, refusal := h.tell(ctx, kind, leaving)
	if refusal == nil && answer.GetList() {
		answer, refusal = h.tell(ctx, h.list, leaving)
	}
	if refusal != nil {
		h.counters.ReportsFailed.Add(1)
		return refusal
	}
	for _, gone := range answer.GetGone() {
		if id, ok := toID(gone.GetSessionId()); ok {
			h.end(id, gone.GetCode())
		}
	}
	return nil
}

// tell makes one report and hands it in.
func (h *Hub) tell(ctx context.Context, report func(index uint64, now time.Time) *pb.ReportGateway, leaving bool) (*pb.GatewayResult, *schema.Error) {
	index := h.cfg.Backend.AppliedIndex() // before the list: what is newer is not spoken about
	body := report(index, time.Now())
	body.Leaving = leaving
	results, err := h.cfg.Backend.Submit(ctx, []*pb.Command{{
		Id: idBytes(newID()), Caller: h.caller, Body: &pb.Command_ReportGateway{ReportGateway: body},
	}})
	result, refusal := outcome(results, 0, 1, err)
	return result.GetGateway(), refusal
}

// list makes a report that names every session.
func (h *Hub) list(index uint64, now time.Time) *pb.ReportGateway {
	body, live := h.begun(index)
	body.Sessions = make([]*pb.SessionEntry, 0, len(live))
	for _, handle := range live {
		silent, listed := h.silent(handle, now)
		if !listed {
			continue
		}
		s := handle.session.Load()
		body.Sessions = append(body.Sessions, &pb.SessionEntry{
			SessionId: idBytes(s.id), Epoch: s.epoch, InstanceId: idBytes(s.instance), NamespaceId: idBytes(s.namespace),
			SilentMs: silent.Milliseconds(),
		})
	}
	return body
}

// inShort makes a report that says of which sessions it could tell, so that the
// state tells whether it knows the same ones.
func (h *Hub) inShort(index uint64, now time.Time) *pb.ReportGateway {
	body, live := h.begun(index)
	digest, each := pb.NewSessionsDigest(), make([]uint32, 0, len(live))
	for _, handle := range live {
		silent, listed := h.silent(handle, now)
		if s := handle.session.Load(); listed && s.epoch <= body.AppliedIndex {
			digest.Add(s.id, s.epoch)
			each = append(each, uint32(silent.Milliseconds())) // below LiveFor
		}
	}
	body.InShort = &pb.SessionsInShort{Digest: digest.Sum(), SilentMs: each}
	return body
}

// begun is a report without the sessions, which are in the order of the state. Its
// index stays below every registration under way: a session that is committed but not
// known here yet must not be missed.
func (h *Hub) begun(index uint64) (*pb.ReportGateway, []*Handle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.registrations {
		index = min(index, r.index)
	}
	if h.inOrder == nil {
		h.inOrder = slices.SortedFunc(maps.Values(h.sessions), func(a, b *Handle) int {
			left, right := a.session.Load(), b.session.Load()
			return cmp.Or(bytes.Compare(left.namespace[:], right.namespace[:]), bytes.Compare(left.instance[:], right.instance[:]))
		})
	}
	return &pb.ReportGateway{GatewayId: h.cfg.GatewayID, Incarnation: idBytes(h.incarnation), AppliedIndex: index}, h.inOrder
}

// silent is for how long nothing was heard of a session, and whether it is listed.
func (h *Hub) silent(handle *Handle, now time.Time) (silent time.Duration, listed bool) {
	silent = now.Sub(handle.conn.Heard())
	if silent >= h.cfg.LiveFor {
		// Only a process that was stopped gets here, the surface cuts a
		// silent peer itself. What is not listed must not stay either.
		handle.conn.Close(schema.Errorf(schema.SessionExpired, "nothing was heard for %s", h.cfg.LiveFor))
		return silent, false
	}
	return max(silent, 0), true
}

// begin notes a registration before its command is submitted.
func (h *Hub) begin() (*registration, *schema.Error) {
	index := h.cfg.Backend.AppliedIndex()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leaving {
		return nil, schema.Errorf(schema.Unavailable, "this gateway is shutting down")
	}
	h.registered++
	r := &registration{number: h.registered, index: index}
	h.registrations[r] = struct{}{}
	return r, nil
}

// finish ends a registration. If it made a session, handle holds it now. In
// both cases deliveries that waited for it find their way.
func (h *Hub) finish(r *registration, handle *Handle) {
	h.mu.Lock()
	delete(h.registrations, r)
	if handle != nil {
		h.sessions[handle.session.Load().id] = handle
		h.inOrder = nil
		h.counters.Sessions.Add(1)
	}
	waiting := h.parked
	h.parked = nil
	h.mu.Unlock()
	for _, p := range waiting {
		h.route(p.delivery, p.upTo)
	}
}

// forget takes a session off the list, and says whether it was on it.
func (h *Hub) forget(id schema.ID, handle *Handle) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[id] != handle {
		return false
	}
	delete(h.sessions, id)
	h.inOrder = nil
	h.counters.Sessions.Add(-1)
	return true
}

// end closes the connection of a session that the state has given up. It is
// not reported as closed: whoever ended it knows.
func (h *Hub) end(id schema.ID, code string) {
	h.mu.Lock()
	handle := h.sessions[id]
	h.mu.Unlock()
	if handle == nil || !h.forget(id, handle) {
		return
	}
	cause := schema.Errorf(schema.SessionExpired, "the session has expired")
	if schema.Code(code) == schema.SessionSuperseded {
		cause = schema.Errorf(schema.SessionSuperseded, "the instance has a newer session")
	}
	h.cfg.Logger.Debug("session ended by the cluster", "session", id, "code", cause.Code)
	handle.conn.Close(cause)
}

func idBytes(id schema.ID) []byte { return id[:] }

// toID reads an id of the wire.
func toID(b []byte) (id schema.ID, ok bool) {
	if len(b) != len(id) {
		return id, false
	}
	return schema.ID(b), true
}

// outcome picks the place-th of want results: a result that succeeded, or why
// there is none. A backend that breaks its promise leaves everything unknown.
func outcome(results []*pb.Result, place, want int, err error) (*pb.Result, *schema.Error) {
	var refusal *schema.Error
	switch {
	case errors.As(err, &refusal):
		return nil, refusal
	case err != nil:
		return nil, schema.Errorf(schema.ResultUnknown, "the command was handed over and not answered")
	case len(results) != want || results[place] == nil:
		return nil, schema.Errorf(schema.ResultUnknown, "the command was answered with nothing")
	}
	r := results[place]
	if r.GetCode() == "" {
		return r, nil
	}
	refusal = schema.Errorf(schema.Code(r.GetCode()), "%s", r.GetMessage())
	refusal.CurrentRevision = r.GetCurrentRevision()
	for _, v := range r.GetViolations() {
		refusal.Violations = append(refusal.Violations, schema.Violation{Path: v.GetPath(), Message: v.GetMessage()})
	}
	return nil, refusal
}

// readRefusal is the public form of a failed read, which has changed nothing.
func readRefusal(err error) *schema.Error {
	var refusal *schema.Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return schema.Errorf(schema.Unavailable, "the state could not be read")
}
