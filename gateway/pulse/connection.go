package pulse

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
	"pulse/schema/workerv1"
)

// connection is one worker's. One goroutine reads, everybody may write.
type connection struct {
	handler *Handler
	ws      *wsconn.Conn
	handle  *session.Handle
	who     session.Identity
	cancel  context.CancelFunc // ends the commands under way

	mu      sync.Mutex
	session workerv1.Opt[schema.ID] // once registered
	hello   hello
	late    bool // HelloWithin is over
}

// hello is how far the registration is.
type hello int

const (
	awaited hello = iota
	underWay
	done
)

// failedHellosMax bounds the hellos that one connection may get wrong, so that
// its ten seconds are no place to try secrets.
const failedHellosMax = 8

var _ session.Conn = (*connection)(nil)

// serve runs the connection until it is over.
func (c *connection) serve(ctx context.Context) {
	timer := time.AfterFunc(c.handler.cfg.HelloWithin, c.helloLate)
	defer timer.Stop()
	failed := 0
	cause := c.ws.Serve(func(m wsconn.Message) {
		if !c.receive(ctx, m) {
			if failed++; failed == failedHellosMax {
				c.end(schema.Errorf(schema.RateLimited, "too many hellos were refused"), wsconn.ClosePolicy)
			}
		}
	}, c.handle.Leave)
	c.handle.Close()
	c.handler.cfg.Logger.Debug("worker connection over", "addr", c.ws.Addr(), "cause", cause)
}

// endWith ends the connection when the credential that it was opened with is no
// good any more. What it returns stops looking.
func (c *connection) endWith(who session.Identity) (stop func()) {
	ended, release := who.Watch()
	if ended == nil { // never: no goroutine has to wait for it
		return release
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-ended:
			c.end(schema.Errorf(schema.Unauthenticated, "the token of this connection has been revoked or is over"), wsconn.ClosePolicy)
		case <-over:
		}
	})
	return func() {
		close(over)
		watching.Wait()
		release()
	}
}

// receive dispatches one message. False says that a hello was refused.
func (c *connection) receive(ctx context.Context, m wsconn.Message) bool {
	switch {
	case m.TooLong:
		c.badFrame(schema.Errorf(schema.TooLarge, "a frame has at most %d bytes", workerv1.FrameBytesMax), wsconn.CloseTooBig)
		return true
	case m.Binary:
		c.badFrame(schema.Errorf(schema.InvalidFrame, "a frame is a text message"), wsconn.CloseUnsupported)
		return true
	}
	frame, err := workerv1.DecodeClient(m.Data)
	if err != nil {
		c.undecodable(err)
		return true
	}
	if _, listed := access.Frames[string(frame.Body.ClientType())]; !listed {
		c.refuse(frame.MessageID, schema.Errorf(schema.Forbidden, "nobody may send a frame of this type"))
		return true
	}
	current, registered := c.handle.Session()
	body, isHello := frame.Body.(*workerv1.Hello)
	switch {
	case !registered && isHello:
		return c.register(ctx, frame.MessageID, body)
	case !registered:
		c.refuse(frame.MessageID, schema.Errorf(schema.SessionRequired, "the first frame is worker.hello"))
	case isHello:
		c.refuse(frame.MessageID, schema.Errorf(schema.Conflict, "this connection has a session already"))
	case frame.SessionID != current:
		c.refuse(frame.MessageID, schema.Errorf(schema.SessionSuperseded, "this connection carries another session"))
	default:
		c.handler.counters.Commands.Add(1)
		c.command(ctx, frame)
	}
	return true
}

// register answers a hello. It waits, so that what follows finds the session.
func (c *connection) register(ctx context.Context, messageID schema.ID, body *workerv1.Hello) bool {
	c.handler.counters.Hellos.Add(1)
	c.setHello(underWay)
	made, refusal := c.handle.Register(ctx, messageID, registration(body))
	if refusal != nil {
		c.handler.counters.HellosFailed.Add(1)
		late := c.setHello(awaited)
		c.refuse(messageID, refusal)
		if refusal.Code == schema.Forbidden {
			c.handler.cfg.Refusals.Note(session.Refusal{
				At: time.Now(), Code: refusal.Code, Principal: c.who.Principal, Address: c.ws.Addr().String(), Method: "worker.hello", Detail: refusal.Message,
			})
		}
		switch {
		case refusal.Code == schema.Forbidden && !c.ws.Fault():
			c.end(schema.Errorf(schema.RateLimited, "too many bad frames from this address"), wsconn.ClosePolicy)
		case late:
			c.noHello()
		}
		return false
	}
	welcome := welcomeOf(made)
	c.mu.Lock()
	c.session = workerv1.Some(welcome.SessionID)
	c.hello = done
	c.mu.Unlock()
	c.ws.Established()
	c.send(workerv1.ServerFrame{ReplyTo: workerv1.Some(messageID), Body: welcome})
	c.handle.Welcomed()
	return true
}

// setHello notes how far the registration is, and says whether it is late.
func (c *connection) setHello(to hello) (late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hello = to
	return c.late
}

// helloLate is called once, HelloWithin after the upgrade. A hello under way is
// given its answer.
func (c *connection) helloLate() {
	c.mu.Lock()
	c.late = true
	state := c.hello
	c.mu.Unlock()
	if state == awaited {
		c.noHello()
	}
}

func (c *connection) noHello() {
	c.handler.counters.HellosLate.Add(1)
	c.end(schema.Errorf(schema.SessionRequired, "there was no good worker.hello within %s", c.handler.cfg.HelloWithin), wsconn.ClosePolicy)
}

// command gives a frame to the session, which answers when it is decided.
func (c *connection) command(ctx context.Context, frame workerv1.ClientFrame) {
	id := frame.MessageID
	operation := func(r *pb.Result, refusal *schema.Error) {
		c.answer(id, refusal, func() *workerv1.Ack { return &workerv1.Ack{Result: resultOf(r.GetOperation())} })
	}
	switch body := frame.Body.(type) {
	case *workerv1.Capacity:
		c.handle.SetCapacity(ctx, id, body.Sequence, body.Capacity, body.Drain, func(r *pb.Result, refusal *schema.Error) {
			c.answer(id, refusal, func() *workerv1.Ack { return &workerv1.Ack{Welcome: welcomeOf(r.GetSession())} })
		})
	case *workerv1.Resume:
		c.handle.Resume(ctx, id, attemptRef(body.Ref), func(r *pb.Result, refusal *schema.Error) {
			c.answer(id, refusal, func() *workerv1.Ack { return &workerv1.Ack{Lease: leaseOf(r.GetLease())} })
		})
	case *workerv1.Start:
		c.handle.Start(ctx, id, attemptRef(body.Ref), operation)
	case *workerv1.Renew:
		c.handle.Renew(ctx, id, attemptRef(body.Ref), operation)
	case *workerv1.Finish:
		c.handle.Finish(ctx, id, attemptRef(body.Ref), session.Finish{
			Outcome: outcomes[body.Outcome], ErrorCode: body.ErrorCode, Retryable: body.Retryable,
			Result: bytes.Clone(body.Result), // the message is only lent
		}, operation)
	default:
		c.refuse(id, schema.Errorf(schema.InvalidFrame, "a frame of this type is not served"))
	}
}

// answer acknowledges a frame or refuses it.
func (c *connection) answer(messageID schema.ID, refusal *schema.Error, ack func() *workerv1.Ack) {
	if refusal != nil {
		c.refuse(messageID, refusal)
		return
	}
	c.send(workerv1.ServerFrame{ReplyTo: workerv1.Some(messageID), Body: ack()})
}

// undecodable answers a frame that could not be understood.
func (c *connection) undecodable(err error) {
	bad, ok := errors.AsType[*workerv1.DecodeError](err)
	if !ok {
		bad = &workerv1.DecodeError{Code: schema.Internal, Message: "the frame could not be read", CloseCode: workerv1.ClosePolicyViolation}
	}
	cause := schema.Errorf(bad.Code, "%s", bad.Message)
	if bad.Fatal() {
		c.badFrame(cause, wsconn.CloseCode(bad.CloseCode))
		return
	}
	c.handler.counters.BadFrames.Add(1)
	c.sendError(bad.MessageID, cause, 0)
	if !c.ws.Fault() {
		c.end(schema.Errorf(schema.RateLimited, "too many bad frames from this address"), wsconn.ClosePolicy)
	}
}

// badFrame ends the connection over a frame that cannot be answered.
func (c *connection) badFrame(cause *schema.Error, code wsconn.CloseCode) {
	c.handler.counters.BadFrames.Add(1)
	c.ws.Fault()
	c.end(cause, code)
}

// refuse answers a frame with an error. Some codes end the connection too.
func (c *connection) refuse(messageID schema.ID, cause *schema.Error) {
	code := wsconn.CloseCode(0)
	if cause.Code.Fatal() {
		code = wsconn.ClosePolicy
	}
	c.sendError(workerv1.Some(messageID), cause, code)
}

// end ends the connection with an error that answers no frame.
func (c *connection) end(cause *schema.Error, code wsconn.CloseCode) {
	c.sendError(workerv1.Opt[schema.ID]{}, cause, code)
}

// sendError sends an error and, if there is a close code, ends the connection
// with it.
func (c *connection) sendError(replyTo workerv1.Opt[schema.ID], cause *schema.Error, code wsconn.CloseCode) {
	c.handler.counters.ErrorsSent.Add(1)
	frame := c.encode(workerv1.ServerFrame{ReplyTo: replyTo, Body: &workerv1.Error{Code: cause.Code, Message: cause.Message}})
	if code == 0 {
		c.ws.Send(frame)
		return
	}
	c.handler.counters.FatalErrors.Add(1)
	c.ws.Close(code, string(cause.Code), frame)
}

// Assign implements session.Conn.
func (c *connection) Assign(a *pb.AssignTask, secret schema.Secret) {
	body := assignOf(a, secret)
	if c.ws.Extended() {
		body.Trace = workerv1.TraceContext{Parent: a.GetTrace().GetParent(), State: a.GetTrace().GetState()}
	}
	frame := c.encode(workerv1.ServerFrame{Body: body})
	if frame != nil && c.ws.Offer(frame) {
		c.handler.counters.Assignments.Add(1)
	}
}

// Cancel implements session.Conn.
func (c *connection) Cancel(a *pb.CancelAttempt) {
	if frame := c.encode(workerv1.ServerFrame{Body: cancelOf(a)}); frame != nil {
		c.ws.Offer(frame)
	}
}

// Close implements session.Conn.
func (c *connection) Close(cause *schema.Error) { c.end(cause, wsconn.ClosePolicy) }

// Heard implements session.Conn.
func (c *connection) Heard() time.Time { return c.ws.Heard() }

// shutdown closes the connection after its answers.
func (c *connection) shutdown() {
	c.handle.Drain()
	c.ws.Close(wsconn.CloseGoingAway, "shutting down", nil)
}

// abort ends the connection without waiting for anything.
func (c *connection) abort() {
	c.cancel()
	c.ws.Cut(errAborted)
}

var errAborted = errors.New("the gateway could not wait any longer")

// send queues an answer.
func (c *connection) send(frame workerv1.ServerFrame) { c.ws.Send(c.encode(frame)) }

// room is about how long the text of a frame is.
func room(body workerv1.ServerBody) int {
	if offer, ok := body.(*workerv1.Assign); ok {
		return 1200 + len(offer.Task.Payload) + len(offer.Task.Result)
	}
	return 640
}

// encode gives a frame its id and session. What cannot be encoded is a fault of
// this house: an answer becomes an internal error, everything else nil.
func (c *connection) encode(frame workerv1.ServerFrame) []byte {
	frame.MessageID = c.handler.newID()
	c.mu.Lock()
	frame.SessionID = c.session
	c.mu.Unlock()
	out, err := workerv1.AppendServer(make([]byte, 0, room(frame.Body)), frame)
	if err == nil {
		return out
	}
	c.handler.cfg.Logger.Error("frame could not be encoded", "type", frame.Body.ServerType(), "session", frame.SessionID.V, "error", err)
	if !frame.ReplyTo.Set {
		return nil
	}
	frame.Body = &workerv1.Error{Code: schema.Internal, Message: "the answer could not be written"}
	out, _ = workerv1.AppendServer(nil, frame) // three short members
	return out
}
