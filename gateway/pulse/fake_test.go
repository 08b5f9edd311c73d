package pulse

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"pulse/gateway/internal/pipenet"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/workerv1"
)

// state is the replicated state as these tests need it: it writes commands
// down and answers from a script.
type state struct {
	mu       sync.Mutex
	commands []*pb.Command
	answer   func(context.Context, *pb.Command) *pb.Result // nil, or nil from it: as it goes well
}

func (s *state) Submit(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	s.mu.Lock()
	s.commands = append(s.commands, cmds...)
	answer := s.answer
	s.mu.Unlock()
	results := make([]*pb.Result, len(cmds))
	for i, c := range cmds {
		if answer != nil {
			results[i] = answer(ctx, c)
		}
		if results[i] == nil {
			results[i] = goesWell(c)
		}
	}
	return results, nil
}

func (*state) Read(context.Context, *pb.Query) (*pb.Answer, error) {
	return &pb.Answer{Body: &pb.Answer_Attempt{Attempt: &pb.AttemptRow{}}}, nil
}
func (*state) Subscribe([]byte) (<-chan struct{}, func()) { panic("not used here") }
func (*state) AppliedIndex() uint64                       { return 9 }

func (s *state) script(answer func(context.Context, *pb.Command) *pb.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// of are the commands of one kind so far.
func of[T any](s *state, pick func(*pb.Command) *T) (found []*T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		if v := pick(c); v != nil {
			found = append(found, v)
		}
	}
	return found
}

const (
	gatewayID = "n1"
	noon      = int64(1_700_000_000_000_000) // 2023-11-14T22:13:20Z
)

// ident makes an id from a number, which can be read in it.
func ident(n int) schema.ID {
	id, _ := schema.ParseID(fmt.Sprintf("%032d", n))
	return id
}

func raw(id schema.ID) []byte { return id[:] }

var (
	instanceID  = ident(1)
	queueID     = ident(2)
	namespaceID = ident(3)
	sessionID   = ident(4)
)

// goesWell is the result of a command that the state accepts.
func goesWell(c *pb.Command) *pb.Result {
	welcome := &pb.Result_Session{Session: &pb.SessionResult{
		SessionId: raw(sessionID), Epoch: 7, ServerTimeUs: noon, ExpiresAtUs: noon + 60_000_000,
		LeaseDurationMs: 30_000, NamespaceId: raw(namespaceID), Namespace: "default", Queue: "default", Capacity: 4,
	}}
	operation := func(kind pb.Operation, task pb.TaskState, attempt pb.AttemptState, active bool) *pb.Result {
		return &pb.Result{Body: &pb.Result_Operation{Operation: &pb.OperationResult{
			Receipt: &pb.ReceiptRow{Operation: kind, TaskState: task, AttemptState: attempt, TaskRevision: 3,
				LeaseUntilUs: noon + 30_000_000, Disposition: pb.Disposition_DISPOSITION_APPLIED},
			Lease: &pb.Lease{Active: active, State: attempt, LeaseUntilUs: noon + 30_000_000, ServerTimeUs: noon + 1_500_000},
		}}}
	}
	switch body := c.GetBody().(type) {
	case *pb.Command_RegisterSession:
		return &pb.Result{Body: welcome}
	case *pb.Command_SetCapacity:
		welcome.Session.Draining = body.SetCapacity.GetDrain()
		return &pb.Result{Body: welcome}
	case *pb.Command_StartAttempt:
		return operation(pb.Operation_OPERATION_START, pb.TaskState_TASK_STATE_RUNNING, pb.AttemptState_ATTEMPT_STATE_RUNNING, true)
	case *pb.Command_RenewAttempt:
		return operation(pb.Operation_OPERATION_RENEW, pb.TaskState_TASK_STATE_RUNNING, pb.AttemptState_ATTEMPT_STATE_RUNNING, true)
	case *pb.Command_FinishAttempt:
		return operation(pb.Operation_OPERATION_FINISH, pb.TaskState_TASK_STATE_SUCCEEDED, pb.AttemptState_ATTEMPT_STATE_SUCCEEDED, false)
	case *pb.Command_ResumeAttempt:
		return &pb.Result{Body: &pb.Result_Lease{Lease: &pb.Lease{
			Active: true, State: pb.AttemptState_ATTEMPT_STATE_RUNNING, LeaseUntilUs: noon + 30_000_000, ServerTimeUs: noon,
			CancelRequestedAtUs: noon - 1,
		}}}
	case *pb.Command_ReportGateway:
		return &pb.Result{Body: &pb.Result_Gateway{Gateway: &pb.GatewayResult{}}}
	default:
		return &pb.Result{}
	}
}

var leaseKey = func() session.LeaseKey {
	key, err := session.NewLeaseKey([]byte("a cluster secret for tests"))
	if err != nil {
		panic(err)
	}
	return key
}()

// house is a gateway at work in a bubble.
type house struct {
	t        *testing.T
	state    *state
	hub      *session.Hub
	handler  *Handler
	listener *pipenet.Listener
	client   *http.Client
	forget   context.CancelFunc // ends the context of every request
	log      *bytes.Buffer      // read it after synctest.Wait
}

// bubble runs a test in virtual time; a goroutine left over fails it.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, h *house)) {
	t.Helper()
	bubbleWith(t, &cfg, func() {}, test)
}

// bubbleWith runs prepare in the bubble first: channels belong to theirs.
func bubbleWith(t *testing.T, cfg *Config, prepare func(), test func(t *testing.T, h *house)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		prepare()
		h := &house{t: t, state: new(state), listener: pipenet.Listen(), log: new(bytes.Buffer)}
		logger := slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		var err error
		h.hub, err = session.NewHub(session.Config{GatewayID: gatewayID, Backend: h.state, LeaseKey: leaseKey, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Hub, cfg.Logger = h.hub, logger
		if h.handler, err = NewHandler(*cfg); err != nil {
			t.Fatal(err)
		}
		requests, forget := context.WithCancel(t.Context())
		h.forget = forget
		server := &http.Server{Handler: h.handler, BaseContext: func(net.Listener) context.Context { return requests }}
		transport := &http.Transport{DialContext: h.listener.Dial}
		h.client = &http.Client{Transport: transport}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.hub.Run(ctx) })
		running.Go(func() { _ = server.Serve(h.listener) })
		defer func() {
			h.handler.Shutdown(ctx)
			_ = server.Close()
			transport.CloseIdleConnections()
			forget()
			cancel()
			running.Wait()
		}()
		synctest.Wait()
		test(t, h)
	})
}

// worker is the other end of a connection.
type worker struct {
	t  *testing.T
	ws *websocket.Conn
}

func (h *house) dial() *worker {
	h.t.Helper()
	ws, _, err := h.try(nil)
	if err != nil {
		h.t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	w := &worker{t: h.t, ws: ws}
	h.t.Cleanup(func() { _ = ws.CloseNow() })
	return w
}

// try connects, and shows the head of the answer.
func (h *house) try(header http.Header) (*websocket.Conn, answer, error) {
	ws, response, err := websocket.Dial(context.Background(), "ws://localhost:7400/v1/worker", &websocket.DialOptions{ //nolint:bodyclose // the library has closed it
		HTTPClient: h.client, Subprotocols: []string{workerv1.Subprotocol}, HTTPHeader: header,
	})
	if response == nil {
		return ws, answer{}, err
	}
	return ws, answer{response.StatusCode, response.Header}, err
}

type answer struct {
	status int
	header http.Header
}

// join connects and registers.
func (h *house) join() *worker {
	h.t.Helper()
	w := h.dial()
	w.send(helloFrame(100))
	if f := w.read(); f.Body.ServerType() != workerv1.TypeWelcome {
		h.t.Fatalf("the answer to hello is %+v", f.Body)
	}
	return w
}

func helloFrame(message int) workerv1.ClientFrame {
	return workerv1.ClientFrame{MessageID: ident(message), Body: &workerv1.Hello{
		InstanceID: instanceID, InstanceSecret: schema.Secret{1, 2, 3}, QueueID: queueID, Capacity: 4,
		Capabilities:              []workerv1.Capability{{Handler: "echo", HandlerVersion: "1", PayloadVersion: "1"}},
		CancellationNotifications: true, ConcurrencyKeys: true,
	}}
}

// about is a frame about attempt n, with the right secret.
func about(message, n int, body func(workerv1.AttemptRef) workerv1.ClientBody) workerv1.ClientFrame {
	return workerv1.ClientFrame{MessageID: ident(message), SessionID: sessionID, Body: body(ref(n))}
}

func ref(n int) workerv1.AttemptRef {
	return workerv1.AttemptRef{TaskID: ident(2000 + n), AttemptID: ident(1000 + n), Epoch: 9, LeaseSecret: leaseKey.Mint(ident(1000+n), 9)}
}

func start(r workerv1.AttemptRef) workerv1.ClientBody  { return &workerv1.Start{Ref: r} }
func renew(r workerv1.AttemptRef) workerv1.ClientBody  { return &workerv1.Renew{Ref: r} }
func resume(r workerv1.AttemptRef) workerv1.ClientBody { return &workerv1.Resume{Ref: r} }
func finish(r workerv1.AttemptRef) workerv1.ClientBody {
	return &workerv1.Finish{Ref: r, Outcome: workerv1.OutcomeSucceeded, Result: []byte(`{"total":2.50}`)}
}

// assignment is what the leader has to say about attempt n.
func assignment(n int, payload string) *pb.Delivery {
	return &pb.Delivery{GatewayId: gatewayID, SessionId: raw(sessionID), Body: &pb.Delivery_Assign{Assign: &pb.AssignTask{
		Task: &pb.TaskView{
			Task: &pb.TaskRow{
				Id: raw(ident(2000 + n)), NamespaceId: raw(namespaceID), QueueId: raw(queueID),
				State: pb.TaskState_TASK_STATE_LEASED, Revision: 2, Handler: "echo", HandlerVersion: "1", PayloadVersion: "1",
				BusinessKey: "order-17", ConcurrencyKey: "card-4", Priority: 3,
				AvailableAtUs: noon, DeadlineAtUs: noon + 3_600_000_000, StartDeadlineAtUs: noon + 60_000_000,
				RecoverySafety: pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY,
				Retry:          &pb.RetryPolicy{MaxAttempts: 3, InitialDelayMs: 100, MaxDelayMs: 1000, AttemptTimeoutMs: 60_000},
				AttemptCount:   1, CreatedAtUs: noon, UpdatedAtUs: noon + 250_000, EffectUncertain: true, RetryOf: raw(ident(1999)),
			},
			Payload: []byte(payload),
			Lease:   &pb.LeaseView{InstanceId: raw(instanceID)},
		},
		AttemptId: raw(ident(1000 + n)), Epoch: 9, LeaseUntilUs: noon + 10_000_000, ServerTimeUs: noon, ConcurrencyToken: 9,
	}}}
}

func cancellation(n int) *pb.Delivery {
	return &pb.Delivery{GatewayId: gatewayID, SessionId: raw(sessionID), Body: &pb.Delivery_Cancel{Cancel: &pb.CancelAttempt{
		TaskId: raw(ident(2000 + n)), AttemptId: raw(ident(1000 + n)), Epoch: 9, RequestedAtUs: noon + 42,
	}}}
}

func closing(code schema.Code) *pb.Delivery {
	return &pb.Delivery{GatewayId: gatewayID, SessionId: raw(sessionID), Body: &pb.Delivery_Close{Close: &pb.CloseConnection{Code: string(code)}}}
}

func (w *worker) send(f workerv1.ClientFrame) string {
	w.t.Helper()
	text, err := workerv1.AppendClient(nil, f)
	if err != nil {
		w.t.Fatal(err)
	}
	w.sendText(text)
	return string(text)
}

func (w *worker) sendText(text []byte) {
	w.t.Helper()
	if err := w.ws.Write(context.Background(), websocket.MessageText, text); err != nil {
		w.t.Fatal(err)
	}
}

// readText reads one frame, or how the connection was closed.
func (w *worker) readText() (string, wsconn.CloseCode) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	_, data, err := w.ws.Read(ctx)
	if err != nil {
		code := websocket.CloseStatus(err)
		if code < 0 {
			w.t.Fatalf("the connection ended without a close frame: %v", err)
		}
		return "", wsconn.CloseCode(code)
	}
	hold(w.t, serverFrames, string(data))
	return string(data), 0
}

func (w *worker) read() workerv1.ServerFrame {
	w.t.Helper()
	text, code := w.readText()
	if code != 0 {
		w.t.Fatalf("closed with %d", code)
	}
	f, err := workerv1.DecodeServer([]byte(text))
	if err != nil {
		w.t.Fatalf("the server sent %s: %v", text, err)
	}
	return f
}

// refused reads an error frame and holds it to what it should be.
func (w *worker) refused(code schema.Code, replyTo int, inSession bool) {
	w.t.Helper()
	f := w.read()
	e, ok := f.Body.(*workerv1.Error)
	if !ok {
		w.t.Fatalf("read %+v, want an error", f.Body)
	}
	if e.Code != code {
		w.t.Errorf("error %s (%s), want %s", e.Code, e.Message, code)
	}
	if want := (workerv1.Opt[schema.ID]{V: ident(replyTo), Set: replyTo != 0}); want.Set != f.ReplyTo.Set || want.Set && want != f.ReplyTo {
		w.t.Errorf("%s: reply_to %v, want %v", code, f.ReplyTo, want)
	}
	if f.SessionID.Set != inSession || inSession && f.SessionID.V != sessionID {
		w.t.Errorf("%s: session_id %v, want one: %v", code, f.SessionID, inSession)
	}
}

// closed reads the close frame.
func (w *worker) closed(want wsconn.CloseCode) {
	w.t.Helper()
	text, code := w.readText()
	if code != want {
		w.t.Errorf("read %q, close code %d; want %d", text, code, want)
	}
}

// acked reads an ack.
func (w *worker) acked(replyTo int) *workerv1.Ack {
	w.t.Helper()
	f := w.read()
	ack, ok := f.Body.(*workerv1.Ack)
	if !ok || f.ReplyTo.V != ident(replyTo) {
		w.t.Fatalf("read %+v in reply to %v, want the ack of %d", f.Body, f.ReplyTo, replyTo)
	}
	return ack
}

// refuses makes the state refuse commands of one kind.
func refuses(code schema.Code, kind func(*pb.Command) bool) func(context.Context, *pb.Command) *pb.Result {
	return func(_ context.Context, c *pb.Command) *pb.Result {
		if !kind(c) {
			return nil
		}
		return &pb.Result{Code: string(code), Message: "because the test says so"}
	}
}

func registers(c *pb.Command) bool { return c.GetRegisterSession() != nil }
func starts(c *pb.Command) bool    { return c.GetStartAttempt() != nil }
func finishes(c *pb.Command) bool  { return c.GetFinishAttempt() != nil }

var _ session.Backend = (*state)(nil)

// leave ends a connection from the worker's side and waits for the gateway.
func (w *worker) leave() {
	w.t.Helper()
	if err := w.ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		w.t.Errorf("close: %v", err)
	}
	synctest.Wait()
}
