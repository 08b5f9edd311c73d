package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// Handler serves the API. It is safe from any goroutine.
type Handler struct {
	opt Options
	mux mux
	// spec is made when it is first asked for: most processes are never asked.
	spec func() (*document, error)

	inFlight  atomic.Int64
	waiters   atomic.Int64
	backups   atomic.Int64
	bodyBytes atomic.Int64

	drain    sync.Once
	draining chan struct{} // closed by Drain
}

// New checks the options and builds the routes.
func New(opt Options) (*Handler, error) {
	opt, err := opt.complete()
	if err != nil {
		return nil, err
	}
	h := &Handler{opt: opt, draining: make(chan struct{})}
	routes := h.routes()
	for _, r := range routes {
		h.mux.add(r)
	}
	h.spec = sync.OnceValues(func() (*document, error) { return describe(routes, opt.Version) })
	return h, nil
}

// Drain ends long polls and streams, so that the server can shut down: a long
// poll answers with the task as it is, a stream ends and its client goes on
// elsewhere. /readyz says no from here on; other requests are still served.
func (h *Handler) Drain() { h.drain.Do(func() { close(h.draining) }) }

func (h *Handler) isDraining() bool {
	select {
	case <-h.draining:
		return true
	default:
		return false
	}
}

// Waiters is the number of long polls and streams now.
func (h *Handler) Waiters() int { return int(h.waiters.Load()) }

// InFlight is the number of other requests now.
func (h *Handler) InFlight() int { return int(h.inFlight.Load()) }

// ServeHTTP serves one request to its end.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := &exchange{h: h, w: w, r: r, started: time.Now()}
	defer e.finish()
	h.boundBody(w, r)
	if err := e.serve(); err != nil {
		e.problem(err)
	}
}

// slot is what a request is counted as.
type slot uint8

const (
	slotNone slot = iota
	slotCall
	slotWaiter
)

// exchange is one request and its answer. It belongs to the request's goroutine.
type exchange struct {
	h       *Handler
	w       http.ResponseWriter
	r       *http.Request
	started time.Time
	slot    slot

	route *route // nil if none was found
	who   session.Identity
	from  *pb.Caller // who, as commands and queries carry it; read-only once made
	query query

	// Variables of the path; which are set depends on the route.
	ns       string
	queue    string
	schedule string
	id       schema.ID
	key      string
	profile  string

	traceFrom context.Context //nolint:containedctx // carries the caller's span, nothing else
	trace     context.Context //nolint:containedctx // and that of a submission; nil outside one

	retryKey string // Idempotency-Key, or ""
	note     string // X-Pulse-Note, or ""
	// recordsLater says that there was no leader to put on record what this
	// request does.
	recordsLater bool
	index        uint64 // the newest this answer speaks of
	status       int    // 0 until the header is written
	reserved     int64  // bytes of the body that are counted
}

// serve goes from the route to its handler. What it returns is answered as a
// problem.
func (e *exchange) serve() error {
	route, values, allow := e.h.mux.find(e.r.Method, e.r.URL.EscapedPath())
	if route == nil {
		return e.nowhere(allow)
	}
	e.route = route
	if err := e.enter(); err != nil {
		return err
	}
	if err := e.readVars(values); err != nil {
		return err
	}
	if err := e.authenticate(); err != nil {
		return err
	}
	if err := e.readQuery(); err != nil {
		return err
	}
	if err := e.readRetryKey(); err != nil {
		return err
	}
	if err := e.readNote(); err != nil {
		return err
	}
	return route.handle(e)
}

// nowhere answers a request that no route fits.
func (e *exchange) nowhere(allow []string) error {
	if len(allow) == 0 {
		return schema.Errorf(schema.NotFound, "there is nothing at this path")
	}
	return &statusError{
		status: http.StatusMethodNotAllowed, header: http.Header{"Allow": {joined(allow)}},
		err: schema.Errorf(schema.InvalidArgument, "this path does not take %s", e.r.Method),
	}
}

// enter counts the request in.
func (e *exchange) enter() error {
	if e.route.public() {
		return nil
	}
	if e.route.waits {
		return e.becomeWaiter()
	}
	if e.h.inFlight.Add(1) > int64(e.h.opt.InFlightMax) {
		e.h.inFlight.Add(-1)
		return schema.Errorf(schema.Unavailable, "this gateway serves as many requests as it can")
	}
	e.slot = slotCall
	return nil
}

// becomeWaiter counts the request among those that wait for something to
// happen, instead of those that are at work.
func (e *exchange) becomeWaiter() error {
	if e.h.waiters.Add(1) > int64(e.h.opt.WaitersMax) {
		e.h.waiters.Add(-1)
		return schema.Errorf(schema.Unavailable, "this gateway holds as many long polls and streams as it can")
	}
	e.leave()
	e.slot = slotWaiter
	return nil
}

func (e *exchange) leave() {
	switch e.slot {
	case slotCall:
		e.h.inFlight.Add(-1)
	case slotWaiter:
		e.h.waiters.Add(-1)
	case slotNone:
	}
	e.slot = slotNone
}

// finish runs last, also after a panic, which must not take the node down and
// must not leave a client without an answer.
func (e *exchange) finish() {
	fault := recover()
	if fault != nil && fault != http.ErrAbortHandler { //nolint:errorlint // recover yields the value itself
		e.h.opt.Logger.Error("request ended in a fault", "method", e.r.Method, "route", e.pattern(), "fault", fault, "stack", string(debug.Stack()))
		if e.status == 0 {
			e.problem(schema.Errorf(schema.Internal, "the server has met a fault of its own; its log has the details"))
			fault = nil
		} else {
			fault = http.ErrAbortHandler // the answer has begun and cannot be made good
		}
	}
	e.leave()
	e.h.bodyBytes.Add(-e.reserved)
	e.h.opt.Observe(e.r.Method, e.pattern(), e.status, time.Since(e.started))
	if fault != nil {
		panic(fault)
	}
}

func (e *exchange) pattern() string {
	if e.route == nil {
		return ""
	}
	return e.route.pattern
}

// readVars unescapes and checks the variables of the path.
func (e *exchange) readVars(values vars) error {
	n := 0
	var faults []schema.Violation
	for _, s := range e.route.segments {
		if s.name == "" {
			continue
		}
		text, err := url.PathUnescape(values[n])
		n++
		fault := ""
		switch {
		case err != nil:
			fault = "is not percent-encoded as it should be"
		case s.name == "profile":
			e.profile = text // getProfile knows which there are
		case s.name == "key":
			e.key, fault = text, schema.CheckConcurrencyKey(text)
		case s.name == "id", s.name == "instance_id":
			id, ok := schema.ParseID(text)
			if e.id = id; !ok {
				fault = "must be 32 lower-case hexadecimal digits"
			}
		case !apiv1.ValidName(text):
			fault = apiv1.NameRule()
		case s.name == "ns":
			e.ns = text
		case s.name == "schedule":
			e.schedule = text
		default:
			e.queue = text
		}
		if fault != "" {
			faults = append(faults, schema.Violation{Path: "/path/" + s.name, Message: fault})
		}
	}
	return invalid(faults)
}

// authenticate finds out who asks and whether the route is theirs.
func (e *exchange) authenticate() error {
	if e.route.public() {
		return nil
	}
	who, refusal := e.h.opt.Authenticate(e.r)
	switch {
	case refusal == nil:
	case refusal.Code != schema.Unauthenticated: // it could not be found out, or asks too often
		if refusal.Code == schema.RateLimited {
			return e.refuse(refusal)
		}
		return refusal
	case !e.h.opt.Unauthenticated(e.r):
		return e.refuse(schema.Errorf(schema.RateLimited, "too many failed attempts from this address"))
	default:
		return e.refuse(refusal)
	}
	e.who = who
	e.from = who.Caller()
	return e.allow()
}

// readRetryKey takes the Idempotency-Key of a request whose answer is remembered.
func (e *exchange) readRetryKey() error {
	sent := e.r.Header["Idempotency-Key"]
	if len(sent) == 0 || !e.route.keyed() {
		return nil
	}
	fault := ""
	switch {
	case len(sent) > 1:
		fault = "must be sent once"
	case len(sent[0]) == 0 || len(sent[0]) > retryKeyBytesMax:
		fault = "must have 1 to 255 characters"
	case !visibleASCII(sent[0]):
		fault = "must be visible ASCII"
	}
	if fault != "" {
		return invalid([]schema.Violation{{Path: "/header/Idempotency-Key", Message: fault}})
	}
	e.retryKey = sent[0]
	return nil
}

// readNote takes the reason that a change goes on record with.
func (e *exchange) readNote() error {
	sent := e.r.Header["X-Pulse-Note"]
	if len(sent) == 0 {
		return nil
	}
	if len(sent) > 1 || !utf8.ValidString(sent[0]) || utf8.RuneCountInString(sent[0]) > apiv1.NoteCharsMax {
		return invalid([]schema.Violation{{Path: "/header/X-Pulse-Note", Message: fmt.Sprintf("must be sent once, in UTF-8, with at most %d characters", apiv1.NoteCharsMax)}})
	}
	e.note = sent[0]
	return nil
}

// requestID is what the caller, or a proxy, calls the request; what cannot be a
// name is left out.
func (e *exchange) requestID() string {
	if id := e.r.Header.Get("X-Request-Id"); len(id) <= 128 && visibleASCII(id) {
		return id
	}
	return ""
}

const retryKeyBytesMax = 255

func visibleASCII(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// invalid makes a refusal of violations, or nil if there are none.
func invalid(faults []schema.Violation) error {
	if len(faults) == 0 {
		return nil
	}
	refusal := schema.Errorf(schema.InvalidArgument, "%s %s", faults[0].Path, faults[0].Message)
	refusal.Violations = faults
	return refusal
}

// statusError is an error whose HTTP status or headers the catalogue cannot know.
type statusError struct {
	status int
	header http.Header
	err    *schema.Error
}

func (s *statusError) Error() string { return s.err.Error() }
func (s *statusError) Unwrap() error { return s.err }

// asRefusal is the public meaning of an error.
func asRefusal(err error) *schema.Error {
	var refusal *schema.Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return schema.Errorf(schema.Internal, "the server has met a fault of its own; its log has the details")
}
