package restore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"pulse/schema"
	"pulse/schema/workerv1"
	"pulse/test/calm"
)

func newID() (id workerv1.ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
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

// active says whether an answer lets the work go on.
func active(f workerv1.ServerFrame) bool {
	ack, ok := f.Body.(*workerv1.Ack)
	return ok && ack.Result != nil && ack.Result.Lease.Active
}

// hand is a worker whose every frame the test sends itself.
type hand struct {
	t       *testing.T
	id      workerv1.ID
	secret  workerv1.Secret
	conn    *websocket.Conn
	session workerv1.ID
	epoch   uint64
	assigns chan *workerv1.Assign
	replies chan workerv1.ServerFrame
}

func newHand(t *testing.T) *hand {
	h := &hand{t: t, id: newID()}
	copy(h.secret[:], strings.Repeat("s", len(h.secret)))
	return h
}

// connect connects it to a server, which takes it as soon as there is a leader.
func (h *hand) connect(url string) {
	h.t.Helper()
	var queue schema.ID
	until(h.t, "the queue is told", func() (ok bool, body string) {
		_, body = get(url + "/v1/namespaces/default/queues/default")
		var q struct {
			ID string `json:"id"`
		}
		if json.Unmarshal([]byte(body), &q) == nil {
			queue, ok = schema.ParseID(q.ID)
		}
		return ok, body
	})
	until(h.t, "the worker is welcome", func() (bool, string) { return h.hello(url, queue) })
}

// hello connects and registers. It says why not for want of a leader; any other
// refusal fails the test.
func (h *hand) hello(url string, queue schema.ID) (welcomed bool, why string) {
	h.t.Helper()
	ctx := h.t.Context()
	c, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(url, "http")+"/v1/worker", &websocket.DialOptions{Subprotocols: []string{"pulse.worker.v1"}})
	if err != nil {
		h.t.Fatal(err)
	}
	c.SetReadLimit(2 << 20)
	hello := workerv1.ClientFrame{MessageID: newID(), Body: &workerv1.Hello{
		InstanceID: h.id, InstanceSecret: h.secret, QueueID: queue, Capacity: 8, ConcurrencyKeys: true,
		Capabilities: []workerv1.Capability{{Handler: "effect", HandlerVersion: "1", PayloadVersion: "1"}},
	}}
	if err := send(ctx, c, hello); err != nil {
		h.t.Fatal(err)
	}
	first, err := receive(ctx, c)
	if err != nil {
		h.t.Fatal(err)
	}
	if retryable(first) {
		_ = c.CloseNow()
		return false, describe(first)
	}
	welcome, welcomed := first.Body.(*workerv1.Welcome)
	if !welcomed {
		h.t.Fatalf("hello was answered by %+v", first.Body)
	}
	if welcome.Epoch <= h.epoch {
		h.t.Errorf("session epoch %d after %d", welcome.Epoch, h.epoch)
	}
	h.conn, h.session, h.epoch = c, welcome.SessionID, welcome.Epoch
	assigns, replies := make(chan *workerv1.Assign, 64), make(chan workerv1.ServerFrame, 64)
	h.assigns, h.replies = assigns, replies
	go func() {
		defer close(replies)
		for {
			f, err := receive(context.WithoutCancel(ctx), c)
			if err != nil {
				return
			}
			if a, ok := f.Body.(*workerv1.Assign); ok {
				assigns <- a
			} else if f.ReplyTo.Set {
				replies <- f
			}
		}
	}()
	h.t.Cleanup(func() { _ = c.CloseNow() })
	return true, ""
}

// retryable says that an answer is none: the same frame has to be sent again.
func retryable(f workerv1.ServerFrame) bool {
	e, ok := f.Body.(*workerv1.Error)
	return ok && (e.Code == schema.NoLeader || e.Code == schema.NotLeader || e.Code == schema.Unavailable ||
		e.Code == schema.ResultUnknown || e.Code == schema.DeadlineExpired)
}

func (h *hand) assigned() *workerv1.Assign {
	h.t.Helper()
	select {
	case a := <-h.assigns:
		return a
	case <-time.After(2 * calm.Patience):
		h.t.Fatal("no task was assigned")
		return nil
	}
}

// ask sends an operation until it is answered.
func (h *hand) ask(body workerv1.ClientBody) (answer workerv1.ServerFrame) {
	h.t.Helper()
	id := newID()
	until(h.t, fmt.Sprintf("%T is answered", body), func() (bool, string) {
		answer = h.askOnce(id, body)
		return !retryable(answer), describe(answer)
	})
	return answer
}

func (h *hand) askOnce(id workerv1.ID, body workerv1.ClientBody) workerv1.ServerFrame {
	h.t.Helper()
	if err := send(h.t.Context(), h.conn, workerv1.ClientFrame{MessageID: id, SessionID: h.session, Body: body}); err != nil {
		h.t.Fatal(err)
	}
	select {
	case f, ok := <-h.replies:
		if !ok {
			h.t.Fatalf("%T was answered by the end of the connection", body)
		}
		return f
	case <-time.After(2 * calm.Patience):
		h.t.Fatalf("%T was not answered", body)
		return workerv1.ServerFrame{}
	}
}

func ref(a *workerv1.Assign) workerv1.AttemptRef {
	return workerv1.AttemptRef{TaskID: a.Task.ID, AttemptID: a.AttemptID, Epoch: a.Epoch, LeaseSecret: a.LeaseSecret}
}

func refusedWith(f workerv1.ServerFrame, code schema.Code) bool {
	e, ok := f.Body.(*workerv1.Error)
	return ok && e.Code == code
}

func describe(f workerv1.ServerFrame) string {
	text, _ := json.Marshal(f.Body)
	return fmt.Sprintf("%T %s", f.Body, text)
}
