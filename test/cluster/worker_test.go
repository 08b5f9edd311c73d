package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"pulse/schema"
	"pulse/schema/workerv1"
	"pulse/sdk"
)

// worker speaks the protocol itself and records each operation once: from the
// moment it is first sent until its first answer, however many connections that
// takes.
type worker struct {
	world    *world
	name     int
	id       workerv1.ID
	secret   workerv1.Secret
	queue    workerv1.ID
	capacity uint32
	handler  string
	http     *http.Client  // nil: the default one
	hold     time.Duration // between start and finish
	// dieAfterEffect is the share of attempts whose worker never reports.
	dieAfterEffect float64

	mu      sync.Mutex
	conn    *websocket.Conn // nil between connections
	session workerv1.ID
	waiting map[workerv1.ID]chan workerv1.ServerFrame
	changed chan struct{} // closed and replaced when conn changes
	seen    map[workerv1.ID]bool
	running sync.WaitGroup
}

func newID() (id workerv1.ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

func newWorker(w *world, name int, queue workerv1.ID) *worker {
	k := &worker{
		world: w, name: name, id: newID(), queue: queue, capacity: 4, handler: "effect", hold: 5 * time.Millisecond,
		waiting: map[workerv1.ID]chan workerv1.ServerFrame{}, changed: make(chan struct{}), seen: map[workerv1.ID]bool{},
	}
	_, _ = rand.Read(k.secret[:])
	return k
}

// run keeps a connection until the context ends, then waits for its attempts.
func (k *worker) run(ctx context.Context) {
	defer k.running.Wait()
	for ctx.Err() == nil {
		if err := k.connect(ctx); err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(20+mrand.IntN(150)) * time.Millisecond):
			}
		}
	}
}

func (k *worker) setConn(c *websocket.Conn, session workerv1.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn, k.session = c, session
	close(k.changed)
	k.changed = make(chan struct{})
}

// connect holds one connection for as long as it lasts.
func (k *worker) connect(ctx context.Context) error {
	c, welcome, err := k.register(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseNow() }()
	k.world.epochs.see(fmt.Sprintf("instance %d", k.name), welcome.Epoch)
	k.setConn(c, welcome.SessionID)
	defer k.setConn(nil, workerv1.ID{})
	ctx, end := context.WithCancel(ctx)
	defer end()
	var pinging sync.WaitGroup
	pinging.Go(func() { ping(ctx, c) })
	defer pinging.Wait()
	defer end()
	for {
		f, err := receive(ctx, c)
		if err != nil {
			return err
		}
		k.take(ctx, f)
	}
}

// ping finds out whether the other end is still there, and ends the connection
// if not.
func ping(ctx context.Context, c *websocket.Conn) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(3 * time.Second):
		}
		answer, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := c.Ping(answer)
		cancel()
		if err != nil {
			_ = c.CloseNow()
			return
		}
	}
}

// register connects and registers, and returns the connection.
func (k *worker) register(ctx context.Context) (*websocket.Conn, *workerv1.Welcome, error) {
	dial, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	c, res, err := websocket.Dial(dial, "ws://"+k.world.someAddr()+"/v1/worker", &websocket.DialOptions{
		Subprotocols: []string{"pulse.worker.v1"}, HTTPClient: k.http,
	})
	if res != nil && res.Body != nil {
		_ = res.Body.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	c.SetReadLimit(2 << 20)
	hello := workerv1.ClientFrame{MessageID: newID(), Body: &workerv1.Hello{
		InstanceID: k.id, InstanceSecret: k.secret, QueueID: k.queue, Capacity: k.capacity, ConcurrencyKeys: true,
		CancellationNotifications: true,
		Capabilities:              []workerv1.Capability{{Handler: k.handler, HandlerVersion: "1", PayloadVersion: "1"}},
	}}
	if err := send(dial, c, hello); err != nil {
		_ = c.CloseNow()
		return nil, nil, err
	}
	first, err := receive(dial, c)
	if err != nil {
		_ = c.CloseNow()
		return nil, nil, err
	}
	welcome, ok := first.Body.(*workerv1.Welcome)
	if !ok {
		_ = c.CloseNow()
		return nil, nil, fmt.Errorf("hello was answered by %s", first.Body.ServerType())
	}
	return c, welcome, nil
}

func send(ctx context.Context, c *websocket.Conn, f workerv1.ClientFrame) error {
	data, err := workerv1.AppendClient(nil, f)
	if err != nil {
		return err
	}
	return c.Write(ctx, websocket.MessageText, data)
}

func receive(ctx context.Context, c *websocket.Conn) (workerv1.ServerFrame, error) {
	_, data, err := c.Read(ctx)
	if err != nil {
		return workerv1.ServerFrame{}, err
	}
	return workerv1.DecodeServer(data)
}

func (k *worker) take(ctx context.Context, f workerv1.ServerFrame) {
	switch b := f.Body.(type) {
	case *workerv1.Assign:
		k.mu.Lock()
		again := k.seen[b.AttemptID]
		k.seen[b.AttemptID] = true
		k.mu.Unlock()
		if !again {
			k.running.Go(func() { k.work(context.WithoutCancel(ctx), b) })
		}
	default:
		if f.ReplyTo.Set {
			k.mu.Lock()
			ch := k.waiting[f.ReplyTo.V]
			k.mu.Unlock()
			if ch != nil {
				select {
				case ch <- f:
				default: // a repeat's answer: the first one counts
				}
			}
		}
	}
}

var errGivenUp = errors.New("no answer before the end of the test")

// operate sends one operation under its message id until it is answered.
func (k *worker) operate(ctx context.Context, id workerv1.ID, body workerv1.ClientBody) (workerv1.ServerFrame, error) {
	answer := make(chan workerv1.ServerFrame, 1)
	k.mu.Lock()
	k.waiting[id] = answer
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.waiting, id)
		k.mu.Unlock()
	}()
	for {
		k.mu.Lock()
		c, session, changed := k.conn, k.session, k.changed
		k.mu.Unlock()
		if c != nil {
			write, cancel := context.WithTimeout(ctx, 3*time.Second)
			_ = send(write, c, workerv1.ClientFrame{MessageID: id, SessionID: session, Body: body}) // a broken one shows in changed
			cancel()
		}
		select {
		case f := <-answer:
			if e, ok := f.Body.(*workerv1.Error); ok && retryLater(e.Code) {
				pause(50 * time.Millisecond)
				continue
			}
			return f, nil
		case <-changed:
		case <-time.After(2 * time.Second):
		case <-k.world.over:
			return workerv1.ServerFrame{}, errGivenUp
		}
	}
}

func retryLater(c schema.Code) bool {
	switch c {
	case schema.ResultUnknown, schema.NoLeader, schema.NotLeader, schema.Unavailable, schema.SessionSuperseded,
		schema.SessionExpired, schema.DeadlineExpired, schema.RateLimited:
		return true
	}
	return false
}

// work is one attempt: start, effect on the fenced resource, finish.
func (k *worker) work(ctx context.Context, a *workerv1.Assign) {
	ref := workerv1.AttemptRef{TaskID: a.Task.ID, AttemptID: a.AttemptID, Epoch: a.Epoch, LeaseSecret: a.LeaseSecret}
	task := a.Task.ID.String()
	begun := k.world.clock()
	id := newID()
	f, err := k.operate(ctx, id, &workerv1.Start{Ref: ref})
	k.world.record(event{kind: opStart, task: task, message: id, key: a.Task.ConcurrencyKey, epoch: a.Epoch, token: a.ConcurrencyToken,
		call: begun, answer: f, err: err, worker: k.name})
	if err != nil || !active(f) {
		return
	}
	token := a.ConcurrencyToken
	resource := "key " + a.Task.ConcurrencyKey
	if token == 0 {
		token, resource = a.Epoch, "task "+task
	}
	pause(k.hold/2 + time.Duration(mrand.Int64N(int64(k.hold))))
	k.world.resource.write(resource, task, token, a.Task.RecoverySafety == workerv1.ReconcileOnly)
	if mrand.Float64() < k.dieAfterEffect {
		k.world.abandoned(task)
		return
	}
	begun = k.world.clock()
	result, _ := json.Marshal(map[string]uint64{"epoch": a.Epoch})
	id = newID()
	f, err = k.operate(ctx, id, &workerv1.Finish{Ref: ref, Outcome: workerv1.OutcomeSucceeded, Result: result})
	k.world.record(event{kind: opFinish, task: task, message: id, key: a.Task.ConcurrencyKey, epoch: a.Epoch, token: a.ConcurrencyToken,
		call: begun, answer: f, err: err, worker: k.name})
}

// active says whether an answer lets the work go on.
func active(f workerv1.ServerFrame) bool {
	ack, ok := f.Body.(*workerv1.Ack)
	return ok && ack.Result != nil && ack.Result.Lease.Active
}

// queueID looks the default queue up, as a worker has to.
func (w *world) queueID(ctx context.Context) (workerv1.ID, error) {
	q, err := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)}).Queue(ctx, "default")
	if err != nil {
		return workerv1.ID{}, err
	}
	id, ok := schema.ParseID(q.ID)
	if !ok {
		return workerv1.ID{}, fmt.Errorf("queue id %q", q.ID)
	}
	return id, nil
}
