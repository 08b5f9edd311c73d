package rpc

import (
	"context"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// channelVersion is the version of the forward's messages.
	channelVersion = 1
	// callsPerMessage and bytesPerMessage bound one message of a stream; calls
	// that gather while one is sent travel in the next.
	callsPerMessage = 512
	bytesPerMessage = 512 << 10
	// answerBytesMax bounds a reply that comes in parts.
	answerBytesMax = 512 << 20
	// callsWaiting bounds what waits for a stream; beyond it calls are refused.
	callsWaiting = 16384
)

// link is one forward stream to another node. Many calls travel on it at once,
// answered in any order. When it breaks, every call that may have been handed
// over ends as unknown and every other one as not happened.
type link struct {
	stream grpc.BidiStreamingClient[pb.ForwardRequest, pb.ForwardResponse]
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1
	done   chan struct{} // closed when the link is of no use any more

	mu      sync.Mutex // guards what is below
	queue   []*pending
	pending map[uint64]*pending
	last    uint64
	dead    bool
}

// pending is a call on its way.
type pending struct {
	call  *pb.ForwardCall
	begun time.Time
	until time.Time
	reply chan *pb.ForwardReply // capacity 1; nil: the link broke
	parts []byte                // of a reply; the receiver's own
	sent  bool                  // guarded by link.mu: may have been handed over
	gone  bool                  // guarded by link.mu: its caller has left
}

func newLink(stream grpc.BidiStreamingClient[pb.ForwardRequest, pb.ForwardResponse], cancel context.CancelFunc) *link {
	return &link{
		stream: stream, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{}),
		pending: map[uint64]*pending{},
	}
}

// run carries calls and replies until the stream breaks or its context ends.
func (l *link) run() {
	var sending sync.WaitGroup
	sending.Go(l.send)
	for {
		msg, err := l.stream.Recv()
		if err != nil {
			break
		}
		for _, r := range msg.Replies {
			l.resolve(r)
		}
	}
	l.fail()
	sending.Wait()
}

func (l *link) send() {
	for {
		select {
		case <-l.done:
			return
		case <-l.wake:
			runtime.Gosched() // whoever is about to call gets to; nobody is waited for
		}
		for {
			batch := l.take()
			if len(batch) == 0 {
				break
			}
			if err := l.stream.Send(&pb.ForwardRequest{Calls: batch}); err != nil {
				l.fail()
				return
			}
		}
	}
}

// take marks what it returns as sent: from here on nobody can say that nothing
// happened.
func (l *link) take() []*pb.ForwardCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*pb.ForwardCall
	bytes, n := 0, 0
	for _, p := range l.queue {
		if len(out) == callsPerMessage || (bytes > 0 && bytes+proto.Size(p.call) > bytesPerMessage) {
			break
		}
		n++
		if p.gone {
			continue
		}
		bytes += proto.Size(p.call)
		p.sent = true
		p.call.TimeoutMs = max(1, time.Until(p.until).Milliseconds())
		out = append(out, p.call)
	}
	l.queue = l.queue[n:]
	return out
}

func (l *link) resolve(r *pb.ForwardReply) {
	l.mu.Lock()
	p := l.pending[r.Call]
	l.mu.Unlock()
	if p == nil {
		return // its caller has left
	}
	if b, ok := r.Body.(*pb.ForwardReply_Part); ok {
		if r = p.add(b.Part); r == nil {
			return // more is to come
		}
	}
	l.mu.Lock()
	_, waits := l.pending[r.Call]
	delete(l.pending, r.Call)
	l.mu.Unlock()
	if waits {
		p.reply <- r
	}
}

// add takes a part and returns the reply when it was the last one.
func (p *pending) add(part *pb.ReplyPart) *pb.ForwardReply {
	whole := &pb.ForwardReply{Call: p.call.Call}
	if len(p.parts)+len(part.Data) > answerBytesMax {
		whole.Body = &pb.ForwardReply_Failure{Failure: &pb.Failure{
			Code: string(schema.TooLarge), Message: "the answer is too large to be passed on; ask for less at a time",
		}}
		return whole
	}
	p.parts = append(p.parts, part.Data...)
	if !part.Last {
		return nil
	}
	if err := proto.Unmarshal(p.parts, whole); err != nil {
		whole.Body = nil // it cannot be understood
	}
	whole.Call = p.call.Call
	p.parts = nil
	return whole
}

// fail ends the link and every call on it.
func (l *link) fail() {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return
	}
	l.dead = true
	all := l.pending
	l.pending, l.queue = nil, nil
	l.mu.Unlock()
	l.cancel()
	close(l.done)
	for _, p := range all {
		p.reply <- nil
	}
}

// abandon ends the calls that began before a moment, as if their answers were
// lost. Late answers find nobody.
func (l *link) abandon(before time.Time) {
	l.mu.Lock()
	var old []*pending
	for id, p := range l.pending {
		if p.begun.Before(before) {
			old = append(old, p)
			p.gone = true // not to be sent any more, if it was not
			delete(l.pending, id)
		}
	}
	l.mu.Unlock()
	for _, p := range old {
		p.reply <- nil
	}
}

// do makes one call. Without a reply the error says whether it may have been
// handed over: errLost if so, else a *schema.Error that promises nothing
// happened.
func (l *link) do(ctx context.Context, call *pb.ForwardCall) (*pb.ForwardReply, error) {
	p := &pending{call: call, begun: time.Now(), reply: make(chan *pb.ForwardReply, 1)}
	p.until, _ = ctx.Deadline()
	l.mu.Lock()
	if l.dead || len(l.queue) >= callsWaiting {
		dead := l.dead
		l.mu.Unlock()
		if dead {
			return nil, schema.Errorf(schema.NotLeader, "the connection to the leader is gone")
		}
		return nil, schema.Errorf(schema.Unavailable, "too many calls wait for the leader")
	}
	l.last++
	call.Call, call.V = l.last, channelVersion
	l.pending[call.Call] = p
	l.queue = append(l.queue, p)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	select {
	case r := <-p.reply:
		return l.received(p, r)
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.gone = true
	delete(l.pending, call.Call)
	if p.sent {
		return nil, errLost
	}
	return nil, schema.Errorf(schema.DeadlineExpired, "the call could not be handed to the leader in time")
}

func (l *link) received(p *pending, r *pb.ForwardReply) (*pb.ForwardReply, error) {
	if r != nil {
		return r, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.sent {
		return nil, errLost
	}
	return nil, schema.Errorf(schema.NotLeader, "the connection to the leader broke before the call was sent")
}
