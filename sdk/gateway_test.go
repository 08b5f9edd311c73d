package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"pulse/schema"
	"pulse/schema/workerv1"
)

// gateway is the other end as a test plays it: a real HTTP server and real
// frames over connections in memory, so that it runs in a synctest bubble, where
// minutes pass at once. Only what a frame says is up to the test.
type gateway struct {
	t       *testing.T
	queueID workerv1.ID
	lease   time.Duration
	conns   chan *gatewayConn
	mux     *http.ServeMux
	pings   atomic.Int64 // of workers

	mu     sync.Mutex
	down   bool          // refuses connections
	frozen chan struct{} // closed when connections made so far have gone silent
	pipes  []net.Conn
}

func newGateway(t *testing.T) *gateway {
	g := &gateway{t: t, queueID: newID(), lease: 30 * time.Second, conns: make(chan *gatewayConn, 16), mux: http.NewServeMux(), frozen: make(chan struct{})}
	g.mux.HandleFunc("GET /v1/namespaces/default/queues/default", func(rw http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(rw).Encode(map[string]string{"id": g.queueID.String()})
	})
	g.mux.HandleFunc("GET /v1/worker", g.upgrade)
	return g
}

// client reaches the gateway, whatever the address.
func (g *gateway) client() *http.Client {
	listener := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: g.mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		g.mu.Lock()
		down, frozen := g.down, g.frozen
		g.mu.Unlock()
		if down {
			return nil, errors.New("connection refused: " + addr)
		}
		ours, pipe := net.Pipe()
		theirs := &freezingConn{Conn: pipe, frozen: frozen, closed: make(chan struct{})}
		g.mu.Lock()
		g.pipes = append(g.pipes, theirs)
		g.mu.Unlock()
		select {
		case listener.conns <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	g.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-served
		for _, pipe := range g.pipes { // the server has given away those it upgraded
			_ = pipe.Close()
		}
	})
	return &http.Client{Transport: transport}
}

func (g *gateway) setDown(down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = down
}

// freeze makes every connection there is go silent without closing: as if the
// machine behind it had lost its power.
func (g *gateway) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.frozen)
	g.frozen = make(chan struct{})
}

type freezingConn struct {
	net.Conn
	frozen <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (c *freezingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if closed(c.frozen) {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *freezingConn) Write(p []byte) (int, error) {
	if closed(c.frozen) {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *freezingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// gatewayConn is one connection of a worker. Its frames wait in order until
// the test reads them.
type gatewayConn struct {
	g       *gateway
	ws      *websocket.Conn
	frames  chan workerv1.ClientFrame
	gone    chan error // why reading ended
	session workerv1.ID
}

func (g *gateway) upgrade(rw http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(rw, r, &websocket.AcceptOptions{
		Subprotocols:   []string{workerv1.Subprotocol},
		OnPingReceived: func(context.Context, []byte) bool { g.pings.Add(1); return true },
	})
	if err != nil {
		return
	}
	ws.SetReadLimit(workerv1.FrameBytesMax)
	c := &gatewayConn{g: g, ws: ws, frames: make(chan workerv1.ClientFrame, 64), gone: make(chan error, 1)}
	g.conns <- c
	for {
		_, text, err := ws.Read(context.Background())
		if err != nil {
			c.gone <- err
			_ = ws.CloseNow()
			return
		}
		frame, err := workerv1.DecodeClient(text)
		if err != nil {
			g.t.Errorf("the worker sent a frame that is not one: %v\n%s", err, text)
			return
		}
		c.frames <- frame
	}
}

// accept takes the next connection and its hello, and welcomes it.
func (g *gateway) accept() (*gatewayConn, *workerv1.Hello) {
	g.t.Helper()
	c, frame, hello := g.greet()
	c.session = newID()
	c.reply(frame, c.welcome())
	return c, hello
}

// greet takes the next connection and its hello.
func (g *gateway) greet() (*gatewayConn, workerv1.ClientFrame, *workerv1.Hello) {
	g.t.Helper()
	select {
	case c := <-g.conns:
		frame, hello := expect[*workerv1.Hello](c)
		return c, frame, hello
	case <-time.After(5 * time.Minute):
		g.t.Fatal("the worker did not connect")
		return nil, workerv1.ClientFrame{}, nil
	}
}

func (c *gatewayConn) welcome() *workerv1.Welcome {
	return &workerv1.Welcome{
		SessionID: c.session, Epoch: 7, ServerTime: serverNow(), ExpiresAt: serverNow() + 60e6,
		LeaseDurationMillis: c.g.lease.Milliseconds(),
	}
}

// serverSkew: the clocks of the two ends do not agree, and must not need to.
const serverSkew = -73 * time.Hour

func serverNow() workerv1.Time { return schema.TimeOf(time.Now().Add(serverSkew)) }

func (c *gatewayConn) send(frame workerv1.ServerFrame) {
	c.g.t.Helper()
	if frame.MessageID == (workerv1.ID{}) {
		frame.MessageID = newID()
	}
	if !frame.SessionID.Set && c.session != (workerv1.ID{}) {
		frame.SessionID = workerv1.Some(c.session)
	}
	text, err := workerv1.AppendServer(nil, frame)
	if err != nil {
		c.g.t.Fatalf("the test's frame is not one: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.ws.Write(ctx, websocket.MessageText, text); err != nil {
		c.g.t.Logf("sending %s: %v", frame.Body.ServerType(), err)
	}
}

func (c *gatewayConn) reply(to workerv1.ClientFrame, body workerv1.ServerBody) {
	c.g.t.Helper()
	c.send(workerv1.ServerFrame{ReplyTo: workerv1.Some(to.MessageID), Body: body})
}

func (c *gatewayConn) refuse(to workerv1.ClientFrame, code schema.Code) {
	c.g.t.Helper()
	c.reply(to, &workerv1.Error{Code: code, Message: "refused by the test"})
}

// next is the next frame.
func (c *gatewayConn) next() workerv1.ClientFrame {
	c.g.t.Helper()
	select {
	case frame := <-c.frames:
		return frame
	case <-time.After(5 * time.Minute):
		c.g.t.Fatal("no frame came")
		return workerv1.ClientFrame{}
	}
}

// expect is the next frame, which has to be of this kind.
func expect[Body workerv1.ClientBody](c *gatewayConn) (workerv1.ClientFrame, Body) {
	c.g.t.Helper()
	frame := c.next()
	body, ok := frame.Body.(Body)
	if !ok {
		c.g.t.Fatalf("the worker sent %s, expected %T", frame.Body.ClientType(), body)
	}
	return frame, body
}

// nothing is expected for a while.
func (c *gatewayConn) nothing(d time.Duration) {
	c.g.t.Helper()
	select {
	case frame := <-c.frames:
		c.g.t.Fatalf("the worker sent %s, expected nothing", frame.Body.ClientType())
	case <-time.After(d):
	}
}

// cut breaks the connection without a word.
func (c *gatewayConn) cut() { _ = c.ws.CloseNow() }

// closedBy waits until the worker has left and returns the code it left with.
func (c *gatewayConn) closedBy() websocket.StatusCode {
	c.g.t.Helper()
	select {
	case err := <-c.gone:
		return websocket.CloseStatus(err)
	case <-time.After(5 * time.Minute):
		c.g.t.Fatal("the worker did not leave")
		return 0
	}
}

// offer assigns a task of handler echo.
func (c *gatewayConn) offer(change ...func(*workerv1.Assign)) *workerv1.Assign {
	c.g.t.Helper()
	offer := c.makeOffer()
	for _, f := range change {
		f(offer)
	}
	c.send(workerv1.ServerFrame{Body: offer})
	return offer
}

func (c *gatewayConn) makeOffer() *workerv1.Assign {
	now := serverNow()
	return &workerv1.Assign{
		Task: workerv1.Task{
			ID: newID(), NamespaceID: newID(), QueueID: c.g.queueID, Revision: 2,
			Handler: "echo", HandlerVersion: "1", PayloadVersion: "1", Payload: []byte(`{ "amount": 2.50 }`),
			AvailableAt: now, DeadlineAt: now + 3600e6, RecoverySafety: workerv1.Idempotent,
			Retry:        workerv1.Retry{MaxAttempts: 3, InitialDelayMillis: 1000, MaxDelayMillis: 60000, AttemptTimeoutMillis: 600_000},
			AttemptCount: 1, CreatedAt: now, UpdatedAt: now,
		},
		AttemptID: newID(), Epoch: 41, LeaseSecret: newSecret(), LeaseUntil: now + 10e6, ServerTime: now,
	}
}

func reconcileOnly(a *workerv1.Assign) { a.Task.RecoverySafety = workerv1.ReconcileOnly }

// leaseFor is an active lease of a running attempt.
func leaseFor(d time.Duration) workerv1.Lease {
	return workerv1.Lease{Active: true, State: workerv1.AttemptRunning, LeaseUntil: serverNow() + workerv1.Time(d.Microseconds()), ServerTime: serverNow()}
}

// accepted answers an operation with a receipt and the lease.
func (c *gatewayConn) accepted(to workerv1.ClientFrame, lease workerv1.Lease) {
	c.g.t.Helper()
	c.receipt(to, lease, workerv1.Applied)
}

func (c *gatewayConn) receipt(to workerv1.ClientFrame, lease workerv1.Lease, disposition workerv1.Disposition) {
	c.g.t.Helper()
	receipt := workerv1.Receipt{
		TaskState: workerv1.TaskRunning, AttemptState: workerv1.AttemptRunning, TaskRevision: 3,
		LeaseUntil: lease.LeaseUntil, Disposition: disposition,
	}
	switch body := to.Body.(type) {
	case *workerv1.Start:
		receipt.Operation = workerv1.OperationStart
	case *workerv1.Renew:
		receipt.Operation = workerv1.OperationRenew
	case *workerv1.Finish:
		receipt.Operation = workerv1.OperationFinish
		receipt.TaskState, receipt.AttemptState = workerv1.TaskSucceeded, workerv1.AttemptState(body.Outcome)
	}
	c.reply(to, &workerv1.Ack{Result: &workerv1.CommandResult{Receipt: receipt, Lease: lease}})
}

// finished answers a finish.
func (c *gatewayConn) finished(to workerv1.ClientFrame) {
	c.g.t.Helper()
	c.receipt(to, leaseOver(), workerv1.Applied)
}

func leaseOver() workerv1.Lease {
	return workerv1.Lease{State: workerv1.AttemptExpired, LeaseUntil: serverNow(), ServerTime: serverNow()}
}

// running is a worker in Run.
type running struct {
	*Worker
	t      *testing.T
	stopIt context.CancelFunc
	done   chan error
}

// work runs a worker against the gateway with one handler, echo.
func (g *gateway) work(handler Handler, change ...func(*WorkerOptions)) *running {
	g.t.Helper()
	options := WorkerOptions{
		Addrs: []string{"http://one.example", "http://two.example"}, HTTPClient: g.client(),
		Logger: slog.New(slog.NewTextHandler(testWriter{g.t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&options)
	}
	w := &running{Worker: NewWorker(options), t: g.t, done: make(chan error, 1)}
	w.Handle("echo", "1", "1", handler)
	ctx, cancel := context.WithCancel(g.t.Context())
	w.stopIt = cancel
	go func() { w.done <- w.Run(ctx) }()
	g.t.Cleanup(func() {
		cancel()
		if w.done != nil {
			<-w.done
		}
	})
	return w
}

// end waits for Run to return.
func (w *running) end() error {
	w.t.Helper()
	w.stopIt()
	select {
	case err := <-w.done:
		w.done = nil
		return err
	case <-time.After(5 * time.Minute):
		w.t.Fatal("Run does not return")
		return nil
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s %s", time.Now().Format("15:04:05.000"), p[:len(p)-1])
	return len(p), nil
}

var _ io.Writer = testWriter{}

func echo(_ context.Context, t *Task) (any, error) { return t.Payload(), nil }
