package sdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"pulse/schema"
	"pulse/schema/workerv1"
)

const (
	handshakeTimeout = 10 * time.Second // from the dial to the welcome
	writeTimeout     = 10 * time.Second
	// A gateway pings those it has not heard of for ten seconds. One that has said
	// nothing for longer is asked whether it is there.
	pingAfter    = 11 * time.Second
	pongTimeout  = 4 * time.Second
	closeTimeout = 2 * time.Second

	// textKept is the largest buffer kept from one frame to the next.
	textKept = 64 << 10

	// An operation without an answer for this part of a lease, within these
	// bounds, says that the way to the cluster is broken, whatever pings say.
	silencePart = 4
	silenceMin  = 2 * time.Second
	silenceMax  = 10 * time.Second
)

var (
	errLinkFull   = errors.New("pulse: the gateway does not read fast enough")
	errLinkSilent = errors.New("pulse: the gateway left an operation without an answer for too long")
	errLinkDone   = errors.New("pulse: the worker is done")
)

// link is one connection to a gateway, from its welcome on. It has a goroutine
// that reads, one that writes, and one that watches over both; serve owns and
// awaits them. Frames to send wait in a queue with room for all that a worker
// can have under way, so that a slow writer never stops the reader.
type link struct {
	addr    string
	ws      *websocket.Conn
	traced  bool    // SubprotocolTraced is spoken
	socket  *outbox // below ws
	welcome workerv1.Welcome
	text    bytes.Buffer // of the frame being read; its reader's own
	out     chan workerv1.ClientFrame
	heard   *atomic.Int64 // when the gateway last said something, in nanoseconds since began
	began   time.Time
	fail    context.CancelCauseFunc // ends the connection; set by serve
}

// dial connects to a gateway and registers there. A refusal is an *Error.
func dial(ctx context.Context, a *api, hello *workerv1.Hello, room int) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	base, _ := a.addr()
	header := http.Header{}
	a.authorize(header)
	client := *a.http
	up := &upgrader{base: client.Transport}
	if up.base == nil {
		up.base = http.DefaultTransport
	}
	client.Transport = up
	began, heard := time.Now(), new(atomic.Int64)
	ws, answer, err := websocket.Dial(ctx, base.String()+"/v1/worker", &websocket.DialOptions{
		HTTPClient: &client, HTTPHeader: header, Subprotocols: []string{workerv1.SubprotocolTraced, workerv1.Subprotocol},
		OnPingReceived: func(context.Context, []byte) bool {
			heard.Store(int64(time.Since(began)))
			return true
		},
	})
	if err != nil {
		return nil, dialError(answer, err)
	}
	ws.SetReadLimit(workerv1.FrameBytesMax)
	l := &link{addr: base.String(), ws: ws, socket: up.made, out: make(chan workerv1.ClientFrame, room), heard: heard, began: began}
	if err := l.register(ctx, hello); err != nil {
		_ = ws.CloseNow()
		return nil, err
	}
	return l, nil
}

// dialError is the refusal in a handshake's answer, if there is one.
func dialError(answer *http.Response, err error) error {
	if answer == nil || answer.StatusCode == http.StatusSwitchingProtocols {
		return fmt.Errorf("pulse: %w", err)
	}
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 1024)) // as much as the library keeps
	return refusalOf(answer, body)
}

// register sends the hello and waits for the welcome, the first frame that
// comes back.
func (l *link) register(ctx context.Context, hello *workerv1.Hello) error {
	switch l.ws.Subprotocol() {
	case workerv1.SubprotocolTraced:
		l.traced = true
	case workerv1.Subprotocol: // of a node that does not know the other
	default:
		return fmt.Errorf("pulse: %s does not speak %s", l.addr, workerv1.Subprotocol)
	}
	id := newID()
	if err := l.write(ctx, workerv1.ClientFrame{MessageID: id, Body: hello}); err != nil {
		return err
	}
	frame, err := l.read(ctx)
	if err != nil {
		return err
	}
	switch body := frame.Body.(type) {
	case *workerv1.Welcome:
		if frame.ReplyTo.V == id {
			l.welcome = *body
			return nil
		}
	case *workerv1.Error:
		return refusal(body)
	}
	return fmt.Errorf("pulse: %s answered the hello with %s", l.addr, frame.Body.ServerType())
}

// refusal is an error frame as an error.
func refusal(body *workerv1.Error) *Error {
	return &Error{Code: body.Code, Message: body.Message, Retryable: body.Code.Retryable()}
}

func (l *link) write(ctx context.Context, frame workerv1.ClientFrame) error {
	text, err := workerv1.AppendClient(nil, frame)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := l.ws.Write(ctx, websocket.MessageText, text); err != nil {
		return fmt.Errorf("pulse: %w", err)
	}
	return nil
}

func (l *link) read(ctx context.Context) (workerv1.ServerFrame, error) {
	kind, from, err := l.ws.Reader(ctx)
	if err != nil {
		return workerv1.ServerFrame{}, fmt.Errorf("pulse: %w", err)
	}
	l.heard.Store(int64(time.Since(l.began)))
	l.text.Reset()
	if _, err := l.text.ReadFrom(from); err != nil {
		return workerv1.ServerFrame{}, fmt.Errorf("pulse: %w", err)
	}
	if kind != websocket.MessageText {
		return workerv1.ServerFrame{}, errors.New("pulse: the gateway sent a binary message")
	}
	frame, err := l.decode(l.text.Bytes())
	if offer, ok := frame.Body.(*workerv1.Assign); ok { // the text is that of the next frame soon
		offer.Task.Payload, offer.Task.Result = bytes.Clone(offer.Task.Payload), bytes.Clone(offer.Task.Result)
	}
	if l.text.Cap() > textKept {
		l.text = bytes.Buffer{}
	}
	return frame, err
}

func (l *link) decode(text []byte) (workerv1.ServerFrame, error) {
	if l.traced {
		return workerv1.DecodeServerTraced(text)
	}
	return workerv1.DecodeServer(text)
}

// push queues a frame. It never waits: a queue that is full after all belongs
// to a connection that no longer moves, and ends it.
func (l *link) push(frame workerv1.ClientFrame) {
	select {
	case l.out <- frame:
	default:
		l.fail(errLinkFull)
	}
}

// sink is where a link puts what it reads, on the goroutine that reads; the
// methods must not wait. What begins with an offer ends with life.
type sink interface {
	assigned(life context.Context, offer *workerv1.Assign)
	cancelled(*workerv1.Cancel)
}

var _ sink = (*Worker)(nil)

// serve runs the session until its connection breaks, is failed, or life ends,
// and returns why.
func (l *link) serve(life context.Context, ops *operations, to sink) error {
	ctx, fail := context.WithCancelCause(context.WithoutCancel(life))
	l.fail = fail
	ops.attach(l)
	defer ops.detach()
	var crew sync.WaitGroup
	crew.Go(func() { l.writeAll(ctx, ops) })
	crew.Go(func() { l.watch(ctx, ops) })
	crew.Go(func() { l.ping(ctx) })
	crew.Go(func() { l.closeWhen(ctx, life.Done()) })
	// Reading knows no other end than that of the socket.
	cut := context.AfterFunc(ctx, func() { _ = l.ws.CloseNow() })
	defer cut()
	fail(l.readAll(context.Background(), func(frame workerv1.ServerFrame) error { return l.take(life, frame, ops, to) }))
	crew.Wait()
	_ = l.ws.CloseNow()
	return context.Cause(ctx)
}

func (l *link) readAll(ctx context.Context, take func(workerv1.ServerFrame) error) error {
	for {
		frame, err := l.read(ctx)
		if err != nil {
			return err
		}
		if err := take(frame); err != nil {
			return err
		}
	}
}

// take handles one frame. An error ends the connection.
func (l *link) take(life context.Context, frame workerv1.ServerFrame, ops *operations, to sink) error {
	if frame.SessionID.Set && frame.SessionID.V != l.welcome.SessionID {
		return fmt.Errorf("pulse: a frame of another session: %s", frame.Body.ServerType())
	}
	fits := true
	switch body := frame.Body.(type) {
	case *workerv1.Assign:
		to.assigned(life, body)
	case *workerv1.Cancel:
		to.cancelled(body)
	case *workerv1.Ack:
		fits = ops.deliver(l, frame.ReplyTo.V, answer{ack: body})
	case *workerv1.Error:
		if !frame.ReplyTo.Set || body.Code.Fatal() {
			// The session is over, not the operations: they are sent again on
			// the next one.
			return refusal(body)
		}
		ops.deliver(l, frame.ReplyTo.V, answer{refused: refusal(body)})
	default:
		fits = false
	}
	if !fits {
		return fmt.Errorf("pulse: unexpected frame %s", frame.Body.ServerType())
	}
	return nil
}

func (l *link) writeAll(ctx context.Context, ops *operations) {
	var scratch []byte
	for {
		select {
		case <-ctx.Done():
			return
		case frame := <-l.out:
			var err error
			if scratch, err = l.writeSome(frame, scratch, ops); err != nil {
				l.fail(fmt.Errorf("pulse: %w", err))
				return
			}
		}
	}
}

// flushBytesMax is how much of what waits leaves in one piece.
const flushBytesMax = 64 << 10

// writeSome writes a frame and those that wait behind it. scratch is room for
// the text of one, which is returned.
func (l *link) writeSome(frame workerv1.ClientFrame, scratch []byte, ops *operations) ([]byte, error) {
	l.socket.hold()
	for {
		text, err := workerv1.AppendClient(scratch[:0], frame)
		if err == nil {
			scratch = text
			err = l.ws.Write(context.Background(), websocket.MessageText, text) // into the outbox: it does not wait
		}
		if bad, ok := errors.AsType[*schema.Error](err); ok {
			// The frame cannot be written at all, on no connection.
			ops.deliver(l, frame.MessageID, answer{refused: &Error{Code: bad.Code, Message: bad.Message}})
		} else if err != nil {
			return scratch, errors.Join(err, l.socket.flush(writeTimeout))
		}
		more := false
		if l.socket.size() < flushBytesMax {
			if frame, more = l.waiting(); !more {
				runtime.Gosched() // whoever is about to ask gets to; nobody is waited for
				frame, more = l.waiting()
			}
		}
		if !more {
			return scratch, l.socket.flush(writeTimeout)
		}
	}
}

// waiting takes a frame out of the queue, if there is one.
func (l *link) waiting() (frame workerv1.ClientFrame, ok bool) {
	select {
	case frame = <-l.out:
		return frame, true
	default:
		return frame, false
	}
}

// watch ends a connection on which operations get no answer.
func (l *link) watch(ctx context.Context, ops *operations) {
	lease := time.Duration(l.welcome.LeaseDurationMillis) * time.Millisecond
	limit := min(max(lease/silencePart, silenceMin), silenceMax)
	ticker := time.NewTicker(limit / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if oldest, _ := ops.silence(); oldest > limit {
				l.fail(errLinkSilent)
				return
			}
		}
	}
}

// ping finds a dead peer while nothing else is under way. The gateway's own pings
// show that it lives, and it sends those of many workers at once.
func (l *link) ping(ctx context.Context) {
	for wait := pingAfter; pause(ctx, wait); {
		if wait = time.Duration(l.heard.Load()) + pingAfter - time.Since(l.began); wait > 0 {
			continue
		}
		wait = pingAfter
		pingCtx, cancel := context.WithTimeout(ctx, pongTimeout)
		err := l.ws.Ping(pingCtx)
		cancel()
		if err != nil {
			l.fail(fmt.Errorf("pulse: %w", err))
			return
		}
	}
}

// closeWhen says goodbye once the worker is done, so that the gateway need not
// find out.
func (l *link) closeWhen(ctx context.Context, done <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-done:
		limit := time.AfterFunc(closeTimeout, func() { l.fail(errLinkDone) })
		_ = l.ws.Close(websocket.StatusNormalClosure, "")
		limit.Stop()
		l.fail(errLinkDone)
	}
}
