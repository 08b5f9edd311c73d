package wsconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// Message is what the peer sent.
type Message struct {
	// Data is the message, valid until receive returns. It is nil when
	// TooLong is set.
	Data    []byte
	Binary  bool
	TooLong bool // more than FrameBytesMax; nothing is read after it
}

// Conn is one accepted connection.
type Conn struct {
	cfg  *Config
	ws   *websocket.Conn
	net  *heldConn
	addr netip.Addr

	settle func() // gives the place of an unestablished connection back
	once   sync.Once

	born  time.Time
	heard atomic.Int64 // last message or control frame, since born
	begun atomic.Int64 // the message being read began, since born; 0 = none

	watch *watch
	asked time.Duration // when the watch pinged, since born; under its lock
	seen  uint32        // flushes at its last look; likewise

	writer  atomic.Int32  // what the writer does, see there
	flushes atomic.Uint32 // that carried frames
	wake    chan struct{} // capacity 1: for a writer that rests
	room    chan struct{} // capacity 1: the queue is below its bounds again
	done    chan struct{} // closed once the end is decided
	over    chan struct{} // closed by the writer when nothing of the connection is left to it

	ended func() // told once, when the end is decided

	mu        sync.Mutex
	queue     [][]byte
	bytes     int // of the queue and of the flush under way
	frames    int // likewise
	fullTimer *time.Timer
	end       *end // nil until decided
}

// end is how a connection ends; the first decision stands.
type end struct {
	code   CloseCode
	reason string
	cut    bool  // without a close frame
	cause  error // what Serve returns
}

// Why a connection was cut off.
var (
	ErrQueueFull = errors.New("the peer left its queue full")
	ErrSlow      = errors.New("the peer did not take a flush in time")
	ErrSilent    = errors.New("nothing was heard of the peer")
	ErrSlowFrame = errors.New("the peer took too long to send one message")
)

// Closed is the cause of an end with a close frame.
type Closed struct {
	Code   CloseCode
	Reason string
	ByPeer bool
}

func (c *Closed) Error() string {
	who := "closed"
	if c.ByPeer {
		who = "closed by the peer"
	}
	return fmt.Sprintf("%s with %d %s", who, c.Code, c.Reason)
}

const (
	// flushBytesMax is how much one flush collects before it goes out. A
	// single frame may be longer.
	flushBytesMax = 64 << 10
	// closeReasonBytesMax is what fits a control frame beside the code.
	closeReasonBytesMax = 123
	// scratchBytesKept is the largest read buffer kept between messages.
	scratchBytesKept = 32 << 10
)

func newConn(cfg *Config, watch *watch, addr netip.Addr, settle func()) *Conn {
	return &Conn{
		cfg: cfg, watch: watch, addr: addr, settle: settle, born: time.Now(),
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{}),
	}
}

// Addr is the address of the peer.
func (c *Conn) Addr() netip.Addr { return c.addr }

// Established says that the peer has shown who it is; it no longer counts
// against the unestablished connections of its address.
func (c *Conn) Established() { c.once.Do(c.settle) }

// Fault counts a bad frame against the peer's address. False says that it has
// used up its share.
func (c *Conn) Fault() bool { return c.cfg.Limiter.Fault(c.addr) }

// Heard is when the last message or control frame arrived.
func (c *Conn) Heard() time.Time { return c.born.Add(time.Duration(c.heard.Load())) }

// Done is closed once the end of the connection is decided.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Serve reads messages and hands them to receive, one at a time, until the
// connection is over. ended is called once, as soon as the end is decided,
// by whoever decides it: the close handshake may still take a while. Serve
// returns why the connection ended, when nothing of it is left: a *Closed, one
// of the errors above, or what the socket said.
func (c *Conn) Serve(receive func(Message), ended func()) error {
	c.mu.Lock()
	c.ended = ended
	early := c.end != nil // decided between Accept and now
	c.mu.Unlock()
	if early {
		ended()
	}
	c.watch.add(c)
	c.stopReading(c.read(receive))
	<-c.over
	c.watch.remove(c)
	c.Established()
	c.cfg.Counters.Open.Add(-1)
	return c.end.cause // written before done was closed, which the writer has seen
}

// Send puts a frame at the end of the queue, whose owner it is from now on. It
// is for answers: their number is bounded by the messages they answer, and none
// is read while the queue is full. False says that the connection is ending.
func (c *Conn) Send(frame []byte) bool { return c.put(frame, true) }

// Offer is Send for what nobody waits for: it is refused when the queue is full.
func (c *Conn) Offer(frame []byte) bool { return c.put(frame, false) }

func (c *Conn) put(frame []byte, must bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return false
	}
	if c.full() || !must && c.frames > 0 && c.bytes+len(frame) > c.cfg.QueueBytesMax {
		c.watchFull()
		if !must {
			c.cfg.Counters.OffersRefused.Add(1)
			return false
		}
	}
	c.append(frame)
	return true
}

// append is called with mu held.
func (c *Conn) append(frame []byte) {
	c.queue = append(c.queue, frame)
	c.frames++
	c.bytes += len(frame)
	c.signal()
}

// full is called with mu held.
func (c *Conn) full() bool {
	return c.frames >= c.cfg.QueueFramesMax || c.bytes >= c.cfg.QueueBytesMax
}

// watchFull cuts the peer off unless a flush makes room in time. Called with
// mu held.
func (c *Conn) watchFull() {
	if c.fullTimer == nil {
		c.fullTimer = time.AfterFunc(c.cfg.FullFor, func() {
			if c.Cut(ErrQueueFull) {
				c.cfg.Counters.QueueFullCuts.Add(1)
			}
		})
	}
}

// Close ends the connection in order: what is queued, then last if it is not
// nil, then a close frame, then up to CloseWithin for the peer to answer. Only
// the first Close counts. It does not wait.
func (c *Conn) Close(code CloseCode, reason string, last []byte) {
	reason = reason[:min(len(reason), closeReasonBytesMax)]
	c.decide(&end{code: code, reason: reason, cause: &Closed{Code: code, Reason: reason}}, last)
}

// Cut ends the connection at once, in the middle of whatever it is doing. It
// says whether this was what ended it.
func (c *Conn) Cut(cause error) bool {
	first := c.decide(&end{cut: true, cause: cause}, nil)
	c.net.sever()
	return first
}

// decide settles the end, once, with a last frame before it.
func (c *Conn) decide(e *end, last []byte) (first bool) {
	c.mu.Lock()
	if c.end != nil {
		c.mu.Unlock()
		return false
	}
	if last != nil {
		c.append(last)
	}
	c.end = e
	close(c.done)
	if c.fullTimer != nil {
		c.fullTimer.Stop()
	}
	ended := c.ended
	c.mu.Unlock()
	c.signal()
	if ended != nil {
		ended()
	}
	return true
}

func (c *Conn) hear() { c.heard.Store(int64(time.Since(c.born))) }

// read hands messages to receive until there are no more. Once the end is
// decided it goes on without handing them out, because the peer's close frame
// comes after what it had sent.
func (c *Conn) read(receive func(Message)) error {
	var scratch []byte
	for {
		kind, r, err := c.ws.Reader(context.Background()) // the socket ends it
		if err != nil {
			return err
		}
		c.begun.Store(max(1, int64(time.Since(c.born))))
		data, tooLong, err := readMessage(r, scratch, c.cfg.FrameBytesMax)
		c.begun.Store(0)
		if err != nil {
			return err
		}
		c.hear()
		c.cfg.Counters.FramesIn.Add(1)
		c.cfg.Counters.BytesIn.Add(uint64(len(data)))
		if !c.ending() {
			receive(Message{Data: data, Binary: kind == websocket.MessageBinary, TooLong: tooLong})
		}
		if tooLong {
			return errTooLong
		}
		if scratch = data[:0]; cap(scratch) > scratchBytesKept {
			scratch = nil
		}
		c.awaitRoom()
	}
}

var errTooLong = errors.New("a message was too long")

// readMessage reads at most bytesMax bytes into buf, which grows with what
// really arrives and not with what a header announces.
func readMessage(r io.Reader, buf []byte, bytesMax int) (data []byte, tooLong bool, err error) {
	buf = buf[:0]
	for {
		// One byte more than allowed tells too long from just long enough.
		if len(buf) == cap(buf) {
			size := max(1<<10, 2*cap(buf)) // most messages fit at once; an idle connection keeps it
			if size >= bytesMax {
				size = bytesMax + 1
			}
			grown := make([]byte, len(buf), size)
			copy(grown, buf)
			buf = grown
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), bytesMax+1)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > bytesMax:
			return nil, true, nil
		case errors.Is(err, io.EOF):
			return buf, false, nil
		case err != nil:
			return nil, false, err
		}
	}
}

// awaitRoom holds the reader back while the queue is full: who does not read
// answers gets to ask no more questions.
func (c *Conn) awaitRoom() {
	for {
		c.mu.Lock()
		wait := c.full() && c.end == nil
		if wait {
			c.watchFull()
		}
		c.mu.Unlock()
		if !wait {
			return
		}
		select {
		case <-c.room:
		case <-c.done:
			return
		}
	}
}

func (c *Conn) ending() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stopReading turns the reader's error into an end, unless there is one.
func (c *Conn) stopReading(err error) {
	var closed websocket.CloseError
	var netErr net.Error
	switch {
	case errors.As(err, &closed):
		c.Cut(&Closed{Code: CloseCode(closed.Code), Reason: closed.Reason, ByPeer: true})
	case errors.Is(err, errTooLong):
		c.Close(CloseTooBig, "the message is too long", nil)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrClosedPipe), errors.Is(err, errHeldFull), errors.As(err, &netErr):
		c.Cut(err)
	default: // the library did not understand the peer, and may have said so
		c.Close(CloseProtocolError, "", nil)
	}
}
