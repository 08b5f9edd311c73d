package session

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// backend is the replicated state as these tests need it: it writes down what
// it is given and answers from a script.
type backend struct {
	mu      sync.Mutex
	calls   [][]*pb.Command // calls of Submit, in order
	reads   []*pb.Query
	index   uint64
	answer  func(*pb.Command) *pb.Result // nil succeeds with an empty result
	before  func(context.Context, []*pb.Command) error
	lookup  func(*pb.Query) (*pb.Answer, error)
	missing bool // answers one result too few
}

func (b *backend) Submit(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	b.mu.Lock()
	b.calls = append(b.calls, slices.Clone(cmds))
	before, answer, missing := b.before, b.answer, b.missing
	b.mu.Unlock()
	if before != nil {
		if err := before(ctx, cmds); err != nil {
			return nil, err
		}
	}
	var results []*pb.Result
	for _, c := range cmds {
		var r *pb.Result
		if answer != nil {
			r = answer(c)
		}
		if r == nil {
			r = succeed(c)
		}
		results = append(results, r)
	}
	if missing {
		results = results[1:]
	}
	return results, nil
}

func (b *backend) Read(_ context.Context, q *pb.Query) (*pb.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads = append(b.reads, q)
	if b.lookup == nil {
		return &pb.Answer{}, nil
	}
	return b.lookup(q)
}

func (*backend) Subscribe([]byte) (<-chan struct{}, func()) { panic("not used here") }

func (b *backend) AppliedIndex() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.index
}

func (b *backend) set(change func(*backend)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// commands are all commands so far that pick chooses, in the order of arrival.
func commands[T any](b *backend, pick func(*pb.Command) (T, bool)) (found []T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		for _, c := range call {
			if v, ok := pick(c); ok {
				found = append(found, v)
			}
		}
	}
	return found
}

func reports(c *pb.Command) (*pb.ReportGateway, bool) {
	return c.GetReportGateway(), c.GetReportGateway() != nil
}

func closes(c *pb.Command) (*pb.CloseSession, bool) {
	return c.GetCloseSession(), c.GetCloseSession() != nil
}

// succeed is the result of a command that went well.
func succeed(c *pb.Command) *pb.Result {
	switch body := c.GetBody().(type) {
	case *pb.Command_RegisterSession:
		// The session's id is the instance's with the last byte set.
		id := slices.Clone(body.RegisterSession.GetInstanceId())
		id[15] = 0xff
		return &pb.Result{Index: 7, Body: &pb.Result_Session{Session: &pb.SessionResult{
			SessionId: id, Epoch: 7, NamespaceId: idBytes(namespaceID), Namespace: "default", Queue: "default", LeaseDurationMs: 30_000,
		}}}
	case *pb.Command_ReportGateway:
		return &pb.Result{Body: &pb.Result_Gateway{Gateway: &pb.GatewayResult{}}}
	default:
		return &pb.Result{Body: &pb.Result_Operation{Operation: &pb.OperationResult{}}}
	}
}

// conn writes down what it is told.
type conn struct {
	mu      sync.Mutex
	said    []string // "assign <attempt>", "cancel <attempt>", "close <code>"
	secrets []schema.Secret
	heard   time.Time // zero is now
	onClose func()
}

func (c *conn) note(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, text)
}

func (c *conn) Assign(a *pb.AssignTask, secret schema.Secret) {
	c.note("assign " + schema.ID(a.GetAttemptId()).String())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secrets = append(c.secrets, secret)
}
func (c *conn) Cancel(a *pb.CancelAttempt) {
	c.note("cancel " + schema.ID(a.GetAttemptId()).String())
}
func (c *conn) Close(cause *schema.Error) {
	c.note("close " + string(cause.Code))
	if c.onClose != nil {
		c.onClose()
	}
}
func (c *conn) Heard() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.IsZero() {
		return time.Now()
	}
	return c.heard
}

func (c *conn) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.said)
}

var _ Conn = (*conn)(nil)
var _ Backend = (*backend)(nil)

// ident makes an id from a short name.
func ident(name string) (id schema.ID) {
	copy(id[:], name)
	return id
}

var (
	namespaceID = ident("namespace")
	instanceID  = ident("instance")
	sessionID   = func() schema.ID { id := instanceID; id[15] = 0xff; return id }()
)

const gatewayID = "n1"

var testKey = func() LeaseKey {
	key, err := NewLeaseKey([]byte("a cluster secret for tests"))
	if err != nil {
		panic(err)
	}
	return key
}()

// gateway is a hub at work in a bubble.
type gateway struct {
	*Hub
	state *backend
}

// bubble runs a test in virtual time; a goroutine left over fails it.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, g *gateway)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		state := &backend{index: 5}
		cfg.GatewayID, cfg.Backend, cfg.LeaseKey, cfg.Logger = gatewayID, state, testKey, slog.New(slog.DiscardHandler)
		hub, err := NewHub(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { hub.Run(ctx) })
		defer running.Wait()
		defer cancel()
		synctest.Wait() // the first report is answered
		test(t, &gateway{Hub: hub, state: state})
	})
}

var aHello = Registration{
	InstanceID: instanceID, InstanceSecret: schema.Secret{1, 2, 3}, QueueID: ident("queue"), Capacity: 4,
	Capabilities:              []*pb.Capability{{Handler: "echo", HandlerVersion: "1", PayloadVersion: "1"}},
	CancellationNotifications: true,
}

// worker attaches a connection and registers it.
func (g *gateway) worker(t *testing.T, r Registration) (*Handle, *conn) {
	t.Helper()
	c := new(conn)
	h := g.Attach(c, Anonymous, "192.0.2.1:1")
	if _, refusal := h.Register(t.Context(), ident("hello"), r); refusal != nil {
		t.Fatal(refusal)
	}
	h.Welcomed()
	return h, c
}

func refOf(attempt string) AttemptRef {
	id := ident(attempt)
	return AttemptRef{TaskID: ident("task of " + attempt), AttemptID: id, Epoch: 9, LeaseSecret: testKey.Mint(id, 9)}
}

// answers collects replies.
type answers struct {
	mu   sync.Mutex
	got  []string // "<name> ok" or "<name> <code>"
	wait sync.WaitGroup
}

func (a *answers) to(name string) Reply {
	a.wait.Add(1)
	return func(_ *pb.Result, refusal *schema.Error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if refusal == nil {
			a.got = append(a.got, name+" ok")
		} else {
			a.got = append(a.got, name+" "+string(refusal.Code))
		}
		a.wait.Done()
	}
}

func (a *answers) all() []string {
	a.wait.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got)
}

func assignment(session, instance schema.ID, attempt string) *pb.Delivery {
	return &pb.Delivery{
		GatewayId: gatewayID, SessionId: idBytes(session),
		Body: &pb.Delivery_Assign{Assign: &pb.AssignTask{
			Task: &pb.TaskView{
				Task:  &pb.TaskRow{NamespaceId: idBytes(namespaceID)},
				Lease: &pb.LeaseView{InstanceId: idBytes(instance)},
			},
			AttemptId: idBytes(ident(attempt)), Epoch: 9,
		}},
	}
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}
