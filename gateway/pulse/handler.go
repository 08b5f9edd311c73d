package pulse

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	"pulse/schema"
	"pulse/schema/access"
	"pulse/schema/workerv1"
)

// Authenticate finds out in whose name a request speaks, before the upgrade.
type Authenticate func(*http.Request) (session.Identity, *schema.Error)

// Config is what a handler needs.
type Config struct {
	Hub    *session.Hub
	Logger *slog.Logger
	// Authenticate decides who may connect. Nil is LoopbackOnly.
	Authenticate Authenticate
	// Refusals take note of what is refused because of who asks. Nil forgets it.
	Refusals *session.Refusals
	// Connections says how connections are kept; the subprotocol is filled in.
	Connections wsconn.Config
	// HelloWithin is how long a connection may go without a session: 10 s
	// from the upgrade.
	HelloWithin time.Duration
}

// Counters tell an operator what workers sent. All only grow.
type Counters struct {
	Connections  atomic.Uint64
	Hellos       atomic.Uint64
	HellosFailed atomic.Uint64
	HellosLate   atomic.Uint64 // connections closed for want of one
	Commands     atomic.Uint64 // frames after the hello that were sound
	BadFrames    atomic.Uint64
	ErrorsSent   atomic.Uint64 // error frames, fatal ones included
	FatalErrors  atomic.Uint64
	Assignments  atomic.Uint64 // queued for workers
}

// Handler serves the worker endpoint.
type Handler struct {
	cfg      Config
	acceptor *wsconn.Acceptor
	counters Counters
	newID    func() schema.ID // of messages to workers

	mu          sync.Mutex
	leaving     bool
	connections map[*connection]struct{}
	group       sync.WaitGroup // of connections, from their requests on
}

// NewHandler checks the config.
func NewHandler(cfg Config) (*Handler, error) {
	switch {
	case cfg.Hub == nil:
		return nil, errors.New("pulse: Hub is missing")
	case cfg.Logger == nil:
		return nil, errors.New("pulse: Logger is missing: give one, slog.DiscardHandler for silence")
	case cfg.HelloWithin < 0:
		return nil, errors.New("pulse: HelloWithin is negative")
	}
	if cfg.HelloWithin == 0 {
		cfg.HelloWithin = 10 * time.Second
	}
	if cfg.Authenticate == nil {
		cfg.Authenticate = LoopbackOnly
	}
	if cfg.Connections.Counters == nil {
		cfg.Connections.Counters = new(wsconn.Counters)
	}
	cfg.Connections.Subprotocol, cfg.Connections.Extended = workerv1.Subprotocol, workerv1.SubprotocolTraced
	cfg.Connections.FrameBytesMax = workerv1.FrameBytesMax
	acceptor, err := wsconn.NewAcceptor(cfg.Connections)
	if err != nil {
		return nil, err
	}
	return &Handler{cfg: cfg, acceptor: acceptor, newID: randomID, connections: make(map[*connection]struct{})}, nil
}

func randomID() (id schema.ID) {
	_, _ = rand.Read(id[:]) // it cannot fail
	return id
}

// Counters are the handler's own; read them at any time.
func (h *Handler) Counters() *Counters { return &h.counters }

// Connections are the counters of the sockets.
func (h *Handler) Connections() *wsconn.Counters { return h.cfg.Connections.Counters }

// LoopbackOnly lets whoever connects from this machine in without a token, and
// nobody else. A browser is let in only by a page of this machine: any page may
// open a socket to a name that its owner has pointed at 127.0.0.1.
func LoopbackOnly(r *http.Request) (session.Identity, *schema.Error) {
	if !wsconn.RemoteAddr(r).Unmap().IsLoopback() {
		return session.Identity{}, schema.Errorf(schema.Unauthenticated, "a token is needed from another machine")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !isLocal(u.Host) {
			return session.Identity{}, schema.Errorf(schema.Unauthenticated, "a token is needed from a page of another machine")
		}
	}
	return session.Anonymous, nil
}

func isLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// ServeHTTP upgrades a request and begins to serve the connection. It returns then,
// so that the server lets go of the request, its buffers and its stack, which are
// most of what an idle connection would hold; Shutdown waits for the connection.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, refusal := h.cfg.Authenticate(r)
	if refusal == nil {
		refusal = access.Connect.Allows(who.Grants, "", "")
	}
	if refusal != nil {
		h.cfg.Refusals.Note(session.Refusal{
			At: time.Now(), Code: refusal.Code, Principal: who.Principal, Address: r.RemoteAddr, Method: "worker.connect", Detail: refusal.Message,
		})
	}
	if refusal != nil && refusal.Code != schema.Unauthenticated {
		header := http.Header{}
		if refusal.Code != schema.Forbidden {
			header.Set("Retry-After", "1")
		}
		h.problem(w, refusal.Code.HTTPStatus(), header, refusal)
		return
	}
	if refusal != nil {
		status, header := refusal.Code.HTTPStatus(), http.Header{}
		if status == http.StatusUnauthorized {
			header.Set("WWW-Authenticate", "Bearer")
		}
		if !h.cfg.Connections.Limiter.Fault(wsconn.RemoteAddr(r)) {
			refusal = schema.Errorf(schema.RateLimited, "too many failed attempts from this address")
			status = http.StatusTooManyRequests
			header.Set("Retry-After", "1")
		}
		h.problem(w, status, header, refusal)
		return
	}
	if !h.enter() {
		header := http.Header{}
		header.Set("Retry-After", "1")
		h.problem(w, http.StatusServiceUnavailable, header, schema.Errorf(schema.Unavailable, "this gateway is shutting down"))
		return
	}
	begun := false
	defer func() {
		if !begun {
			h.group.Done()
		}
	}()
	ws, err := h.acceptor.Accept(w, r)
	var no *wsconn.Refusal
	switch {
	case errors.As(err, &no):
		h.problem(w, no.Status, no.Header, no.Err)
		return
	case err != nil:
		h.problem(w, http.StatusInternalServerError, nil, schema.Errorf(schema.Internal, "the connection could not be made"))
		return
	}
	h.counters.Connections.Add(1)
	// A command that was read is carried to its end whatever becomes of the
	// connection: a finish counts even if nobody waits for its answer.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	c := &connection{handler: h, ws: ws, who: who, cancel: cancel}
	c.handle = h.cfg.Hub.Attach(c, who, r.RemoteAddr)
	begun = true
	go h.live(ctx, c)
}

// live serves a connection on a goroutine of its own, which Shutdown waits for. A
// panic ends the connection and not the node, as it would in net/http.
func (h *Handler) live(ctx context.Context, c *connection) {
	defer h.group.Done()
	defer func() {
		if p := recover(); p != nil {
			h.cfg.Logger.Error("panic while serving a worker", "addr", c.ws.Addr(), "panic", p, "stack", string(debug.Stack()))
			c.abort()
		}
	}()
	defer c.cancel()
	h.add(c)
	defer h.remove(c)
	defer c.endWith(c.who)()
	c.serve(ctx)
}

// enter counts a request in, unless the handler is shutting down.
func (h *Handler) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leaving {
		return false
	}
	h.group.Add(1)
	return true
}

// add makes a connection known to Shutdown, which may have begun meanwhile.
func (h *Handler) add(c *connection) {
	h.mu.Lock()
	h.connections[c] = struct{}{}
	leaving := h.leaving
	h.mu.Unlock()
	if leaving {
		c.ws.Close(wsconn.CloseGoingAway, "shutting down", nil)
	}
}

func (h *Handler) remove(c *connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.connections, c)
}

// Shutdown refuses new connections and closes those there are with 1001, each
// after the answers it waits for. When ctx ends, what is left is cut off. It
// returns when no connection is left.
func (h *Handler) Shutdown(ctx context.Context) {
	h.mu.Lock()
	h.leaving = true
	open := make([]*connection, 0, len(h.connections))
	for c := range h.connections {
		open = append(open, c)
	}
	h.mu.Unlock()

	var closing sync.WaitGroup
	for _, c := range open {
		closing.Go(c.shutdown)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		closing.Wait()
		h.group.Wait()
	}()
	select {
	case <-over:
		return
	case <-ctx.Done():
	}
	h.mu.Lock()
	for c := range h.connections {
		c.abort()
	}
	h.mu.Unlock()
	<-over
}

// problem answers a request that does not become a connection.
func (h *Handler) problem(w http.ResponseWriter, status int, header http.Header, e *schema.Error) {
	body, err := json.Marshal(struct {
		Type      string      `json:"type"`
		Title     string      `json:"title"`
		Status    int         `json:"status"`
		Detail    string      `json:"detail"`
		Code      schema.Code `json:"code"`
		Retryable bool        `json:"retryable"`
	}{e.Code.URN(), http.StatusText(status), status, e.Message, e.Code, e.Code.Retryable()})
	if err != nil {
		status, body = http.StatusInternalServerError, nil
	}
	for name, values := range header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Pulse-Index", strconv.FormatUint(h.cfg.Hub.AppliedIndex(), 10))
	w.WriteHeader(status)
	_, _ = w.Write(body) // it fails with its reader
}
