package wsconn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"pulse/gateway/internal/pipenet"
	"pulse/test/calm"
)

const testProtocol = "test.v1"

// cause is how a connection ended.
type cause struct{ err error }

// house is a server in a bubble: its connections, and how each ended.
type house struct {
	t        *testing.T
	listener *pipenet.Listener
	acceptor *Acceptor
	counters *Counters
	client   *http.Client
	close    func()

	receive func(*Conn, Message) // set before dialling; nil echoes
	conns   chan *Conn
	causes  chan cause
	left    chan struct{} // one for each time that an end was decided
}

func newHouse(t *testing.T, cfg Config) *house {
	t.Helper()
	cfg.Subprotocol = testProtocol
	cfg.Counters = new(Counters)
	acceptor, err := NewAcceptor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{
		t: t, listener: pipenet.Listen(), acceptor: acceptor, counters: cfg.Counters,
		conns: make(chan *Conn, 100), causes: make(chan cause, 100), left: make(chan struct{}, 100),
	}
	server := &http.Server{Handler: h}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(h.listener) })
	transport := &http.Transport{DialContext: h.listener.Dial}
	h.client = &http.Client{Transport: transport}
	h.close = func() {
		_ = server.Close()
		transport.CloseIdleConnections()
		group.Wait()
	}
	return h
}

func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := h.acceptor.Accept(w, r)
	var no *Refusal
	if errors.As(err, &no) {
		for name, values := range no.Header {
			w.Header()[name] = values
		}
		http.Error(w, no.Err.Error(), no.Status)
		return
	}
	h.conns <- c
	h.causes <- cause{c.Serve(func(m Message) {
		if h.receive != nil {
			h.receive(c, m)
			return
		}
		c.Send(bytes.Clone(m.Data))
	}, func() { h.left <- struct{}{} })}
}

// dial connects with the library's client.
func (h *house) dial(options *websocket.DialOptions) (*websocket.Conn, *Conn) {
	h.t.Helper()
	if options == nil {
		options = new(websocket.DialOptions)
	}
	ws, _, err := h.try(options)
	if err != nil {
		h.t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	return ws, <-h.conns
}

// try connects, and shows the head of the answer.
func (h *house) try(options *websocket.DialOptions) (*websocket.Conn, answer, error) {
	options.HTTPClient = h.client
	if options.Subprotocols == nil {
		options.Subprotocols = []string{testProtocol}
	}
	ws, response, err := websocket.Dial(context.Background(), "ws://pulse.test/", options) //nolint:bodyclose // the library has closed it
	if response == nil {
		return ws, answer{}, err
	}
	return ws, answer{response.StatusCode, response.Header}, err
}

type answer struct {
	status int
	header http.Header
}

// raw connects and hands out the bare socket after the upgrade. early is sent right
// behind the request.
func (h *house) raw(early ...byte) (net.Conn, *bufio.Reader, *Conn) {
	h.t.Helper()
	socket, err := h.listener.Dial(context.Background(), "", "")
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(socket, "GET / HTTP/1.1\r\nHost: pulse.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: "+testProtocol+"\r\n\r\n"+string(early)); err != nil {
		h.t.Fatal(err)
	}
	r := bufio.NewReader(socket)
	response, err := http.ReadResponse(r, nil) //nolint:bodyclose // an upgrade has none
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		h.t.Fatalf("upgrade: %v, %v", response, err)
	}
	return socket, r, <-h.conns
}

// frame is one masked frame as a client sends it, with a mask of zeros.
func frame(first byte, payload []byte) []byte {
	out := []byte{first}
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	return append(append(out, 0, 0, 0, 0), payload...)
}

// closeCode reads server frames until the close frame and returns its code.
func closeCode(r *bufio.Reader) (CloseCode, error) {
	for {
		var head [2]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0, err
		}
		size := uint64(head[1])
		switch size {
		case 126:
			var n [2]byte
			if _, err := io.ReadFull(r, n[:]); err != nil {
				return 0, err
			}
			size = uint64(binary.BigEndian.Uint16(n[:]))
		case 127:
			var n [8]byte
			if _, err := io.ReadFull(r, n[:]); err != nil {
				return 0, err
			}
			size = binary.BigEndian.Uint64(n[:])
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(r, payload); err != nil {
			return 0, err
		}
		if head[0] == 0x88 {
			return CloseCode(binary.BigEndian.Uint16(payload)), nil
		}
	}
}

// bubble runs a test in virtual time and holds it to leaving nothing behind:
// a bubble with a goroutine left over is a failure by itself.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, h *house)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, cfg)
		defer h.close()
		test(t, h)
	})
}

func read(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, data, err := ws.Read(ctx)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return string(data)
}

func write(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	if err := ws.Write(context.Background(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatalf("write: %v", err)
	}
}

func TestMessagesGoInAndOut(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		ws, conn := h.dial(nil)
		for i := range 100 {
			text := strings.Repeat("x", i*i) + fmt.Sprint(i)
			write(t, ws, text)
			if got := read(t, ws); got != text {
				t.Fatalf("message %d came back with %d bytes, want %d", i, len(got), len(text))
			}
		}
		if err := ws.Close(websocket.StatusNormalClosure, "done"); err != nil {
			t.Errorf("the close was not answered: %v", err)
		}
		var closed *Closed
		if cause := <-h.causes; !errors.As(cause.err, &closed) || !closed.ByPeer || closed.Code != CloseNormal || closed.Reason != "done" {
			t.Errorf("cause = %v, want the peer's close", cause)
		}
		select {
		case <-conn.Done():
		default:
			t.Error("Done is open after the end")
		}
		if n := len(h.left); n != 1 {
			t.Errorf("the end was told %d times, want once", n)
		}
		if in, out, open := h.counters.FramesIn.Load(), h.counters.FramesOut.Load(), h.counters.Open.Load(); in != 100 || out != 100 || open != 0 {
			t.Errorf("in %d, out %d, open %d; want 100, 100, 0", in, out, open)
		}
	})
}

func TestFramesThatWaitTogetherLeaveTogether(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		const many = 500
		h.receive = func(c *Conn, _ Message) {
			for i := range many {
				c.Send(fmt.Append(nil, i))
			}
		}
		ws, _ := h.dial(nil)
		defer func() { _ = ws.CloseNow() }()
		write(t, ws, "go")
		synctest.Wait() // the writer may be in its first flush, the rest waits
		for i := range many {
			if got := read(t, ws); got != fmt.Sprint(i) {
				t.Fatalf("frame %d is %q: out of order", i, got)
			}
		}
		synctest.Wait()
		if out, flushes := h.counters.FramesOut.Load(), h.counters.Flushes.Load(); out != many || flushes > 3 {
			t.Errorf("%d frames left in %d flushes, want %d in at most 3", out, flushes, many)
		}
	})
}

func TestCloseWritesWhatIsQueuedFirst(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.receive = func(c *Conn, m Message) {
			if string(m.Data) != "go" {
				t.Errorf("a message was handed out after Close: %q", m.Data)
			}
			c.Send([]byte("one"))
			c.Close(CloseGoingAway, "shutting down", []byte("last"))
			if c.Send([]byte("too late")) || c.Offer([]byte("too late")) {
				t.Error("a frame was taken after Close")
			}
			c.Close(ClosePolicy, "the second close does not count", nil)
		}
		ws, _ := h.dial(nil)
		write(t, ws, "go")
		write(t, ws, "after")
		if a, b := read(t, ws), read(t, ws); a != "one" || b != "last" {
			t.Errorf("read %q, %q before the close", a, b)
		}
		_, _, err := ws.Read(context.Background())
		if got := websocket.CloseStatus(err); got != 1001 {
			t.Errorf("closed with %v, want 1001", err)
		}
		var closed *Closed
		if cause := <-h.causes; !errors.As(cause.err, &closed) || closed.ByPeer || closed.Code != CloseGoingAway {
			t.Errorf("cause = %v", cause)
		}
	})
}

func TestAPeerThatDoesNotAnswerACloseIsNotWaitedForLong(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, r, conn := h.raw()
		defer socket.Close()
		start := time.Now()
		conn.Close(ClosePolicy, "", nil)
		if code, err := closeCode(r); err != nil || code != ClosePolicy {
			t.Fatalf("close frame: %d, %v", code, err)
		}
		<-h.causes
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("Serve ended after %s, want 5s", took)
		}
	})
}

// The library's own Close would read the announced bytes for ever.
func TestAnUnfinishedMessageDoesNotHoldUpAClose(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, r, conn := h.raw()
		defer socket.Close()
		// The head of a message of 2^62 bytes and a little of it.
		head := binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, 1<<62)
		if _, err := socket.Write(append(head, 0, 0, 0, 0, 'x')); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		conn.Close(CloseGoingAway, "", nil)
		if code, err := closeCode(r); err != nil || code != CloseGoingAway {
			t.Fatalf("close frame: %d, %v", code, err)
		}
		<-h.causes
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("Serve ended after %s", took)
		}
	})
}

func TestTheRestOfALongMessageIsNotWaitedForLong(t *testing.T) {
	bubble(t, Config{FrameBytesMax: 1000}, func(t *testing.T, h *house) {
		h.receive = func(c *Conn, m Message) { c.Close(CloseTooBig, "", nil) }
		socket, r, _ := h.raw()
		defer socket.Close()
		head := binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, 1<<62)
		if _, err := socket.Write(append(append(head, 0, 0, 0, 0), make([]byte, 1001)...)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if code, err := closeCode(r); err != nil || code != CloseTooBig {
			t.Fatalf("close frame: %d, %v", code, err)
		}
		<-h.causes
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("Serve ended after %s, want 5s", took)
		}
	})
}

func TestALongMessageIsReportedWithoutBeingHeld(t *testing.T) {
	bubble(t, Config{FrameBytesMax: 1000}, func(t *testing.T, h *house) {
		var got []Message
		h.receive = func(c *Conn, m Message) {
			got = append(got, Message{Data: bytes.Clone(m.Data), TooLong: m.TooLong, Binary: m.Binary})
			if m.TooLong {
				c.Close(CloseTooBig, "too_large", []byte("sorry"))
			}
		}
		ws, _ := h.dial(nil)
		write(t, ws, strings.Repeat("a", 1000))
		go func() {
			_ = ws.Write(context.Background(), websocket.MessageText, bytes.Repeat([]byte("b"), 100_000))
		}()
		if text := read(t, ws); text != "sorry" {
			t.Errorf("read %q", text)
		}
		_, _, err := ws.Read(context.Background())
		if websocket.CloseStatus(err) != 1009 {
			t.Errorf("closed with %v, want 1009", err)
		}
		<-h.causes
		if len(got) != 2 || len(got[0].Data) != 1000 || got[0].TooLong || !got[1].TooLong || got[1].Data != nil {
			t.Errorf("messages: %d, want one of 1000 bytes and one too long", len(got))
		}
	})
}

func TestWhatIsNoWebSocketEndsWithAProtocolError(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"an unmasked frame":                {0x81, 1, 'x'},
		"a reserved bit":                   frame(0xC1, []byte("x")),
		"a reserved opcode":                frame(0x83, []byte("x")),
		"a long control frame":             frame(0x89, make([]byte, 126)),
		"a fragmented control frame":       frame(0x09, []byte("x")),
		"a continuation of nothing":        frame(0x80, []byte("x")),
		"a message inside another":         append(frame(0x01, []byte("x")), frame(0x81, []byte("y"))...),
		"a close frame of one byte":        frame(0x88, []byte{3}),
		"a close code that is not allowed": frame(0x88, []byte{3, 237}),
		"a negative length":                {0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				h.receive = func(_ *Conn, m Message) { t.Errorf("handed out: %q", m.Data) }
				socket, r, _ := h.raw()
				defer socket.Close()
				if _, err := socket.Write(bytes); err != nil {
					t.Fatal(err)
				}
				if code, err := closeCode(r); err != nil || code != CloseProtocolError {
					t.Errorf("closed with %d, %v; want 1002", code, err)
				}
				_ = socket.Close()
				<-h.causes
			})
		})
	}
}

// The server's reader has it, or a part of it, before the connection is ours.
func TestWhatIsSentRightBehindTheRequestIsNotLost(t *testing.T) {
	for _, size := range []int{1, readerBytes - 100, readerBytes, 3 * readerBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				got := make(chan string, 2)
				h.receive = func(_ *Conn, m Message) { got <- string(m.Data) }
				long := strings.Repeat("x", size)
				socket, r, _ := h.raw(append(frame(0x81, []byte(long)), frame(0x81, []byte("y"))...)...)
				go func() { _, _ = io.Copy(io.Discard, r) }()
				if first, second := <-got, <-got; first != long || second != "y" {
					t.Errorf("got %d bytes and %q", len(first), second)
				}
				_ = socket.Close()
				<-h.causes
			})
		})
	}
}

func TestOneByteFragmentsAreOneMessage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		got := make(chan string, 1)
		h.receive = func(_ *Conn, m Message) { got <- string(m.Data) }
		socket, r, _ := h.raw()
		go func() { _, _ = io.Copy(io.Discard, r) }()
		first := byte(0x01)
		for _, c := range []byte("hello") {
			if _, err := socket.Write(append(frame(first, []byte{c}), frame(0x89, nil)...)); err != nil {
				t.Fatal(err)
			}
			first = 0x00
		}
		if _, err := socket.Write(frame(0x80, nil)); err != nil {
			t.Fatal(err)
		}
		if text := <-got; text != "hello" {
			t.Errorf("got %q", text)
		}
		_ = socket.Close()
		<-h.causes
	})
}

func TestAPeerThatAnswersPingsStays(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		ws, conn := h.dial(nil)
		ctx := ws.CloseRead(context.Background())
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Fatal("the connection ended")
		}
		if quiet := time.Since(conn.Heard()); quiet > 15*time.Second {
			t.Errorf("last heard %s ago", quiet)
		}
		_ = ws.CloseNow()
		<-h.causes
	})
}

// Each ping costs four system calls and as many wake-ups: who is heard of anyway is
// not asked.
func TestAPeerThatPingsIsNotPinged(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, r, conn := h.raw()
		heads := make(chan byte, 100)
		go func() {
			defer close(heads)
			for {
				var head [2]byte
				if _, err := io.ReadFull(r, head[:]); err != nil {
					return
				}
				if _, err := r.Discard(int(head[1])); err != nil {
					return
				}
				heads <- head[0]
			}
		}()
		for range 30 {
			time.Sleep(8 * time.Second)
			if _, err := socket.Write(frame(0x89, nil)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if quiet := time.Since(conn.Heard()); quiet != 0 {
			t.Errorf("last heard %s ago", quiet)
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		for range 30 {
			if head := <-heads; head != 0x8a {
				t.Fatalf("a frame that begins with %x, not a pong", head)
			}
		}
		if n := len(heads); n != 0 {
			t.Errorf("%d more frames within 9 seconds of the last ping", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(heads) != 1 || <-heads != 0x89 {
			t.Error("silent for 10 seconds, and not pinged")
		}
		_ = socket.Close()
		<-h.causes
	})
}

// An idle connection keeps no goroutine but its reader; one that is written to keeps
// its writer for a moment.
func TestAWriterLeavesWhenNothingIsWritten(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		ws, conn := h.dial(nil)
		does := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			if got := conn.writer.Load(); got != want {
				t.Errorf("%s the writer is at %d, want %d", when, got, want)
			}
		}
		does("at first", writerAway)
		for range 3 {
			write(t, ws, "hello")
			_ = read(t, ws)
			does("after an answer", writerResting)
			time.Sleep(3 * time.Second)
			does("three seconds later", writerAway)
		}
		ctx := ws.CloseRead(context.Background()) // answers pings
		for range 60 {
			time.Sleep(time.Second)
			does("with pings alone", writerAway)
		}
		if ctx.Err() != nil {
			t.Error("the connection ended")
		}
		conn.Close(CloseGoingAway, "", nil)
		<-h.causes
	})
}

// Frames that are sent while the writer is told to leave are not left lying.
func TestAWriterThatLeavesIsCalledBack(t *testing.T) {
	t.Parallel()
	counters := new(Counters)
	cfg, err := Config{Subprotocol: testProtocol, Counters: counters}.complete()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, cfg)
		defer h.close()
		ws, conn := h.dial(nil)
		var busy sync.WaitGroup
		const frames = 2000
		busy.Go(func() {
			for range frames {
				conn.Send([]byte("x"))
				runtime.Gosched()
			}
		})
		stop := make(chan struct{})
		var retiring sync.WaitGroup
		retiring.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					conn.retire()
					runtime.Gosched()
				}
			}
		})
		for range frames {
			_ = read(t, ws)
		}
		busy.Wait()
		close(stop)
		retiring.Wait()
		_ = ws.CloseNow()
		<-h.causes
	})
}

func TestAPeerThatSendsMessagesLives(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.receive = func(*Conn, Message) {}
		socket, r, conn := h.raw()
		go func() { _, _ = io.Copy(io.Discard, r) }() // answers no ping
		for range 30 {
			time.Sleep(10 * time.Second)
			if _, err := socket.Write(frame(0x81, []byte("x"))); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if quiet := time.Since(conn.Heard()); quiet != 0 {
			t.Errorf("last heard %s ago", quiet)
		}
		_ = socket.Close()
		<-h.causes
	})
}

func TestASilentPeerIsCutOffAfterThirtySeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, r, _ := h.raw()
		defer socket.Close()
		go func() { _, _ = io.Copy(io.Discard, r) }() // reads pings and says nothing
		time.Sleep(4 * time.Second)
		if _, err := socket.Write(frame(0x8A, nil)); err != nil { // a pong of its own accord
			t.Fatal(err)
		}
		start := time.Now()
		if cause := <-h.causes; !errors.Is(cause.err, ErrSilent) {
			t.Errorf("cause = %v, want ErrSilent", cause)
		}
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("cut off after %s, want 30s", took)
		}
		if h.counters.SilentCuts.Load() != 1 {
			t.Error("not counted")
		}
	})
}

func TestAMessageThatTakesForEverIsCutOffThoughThePeerLives(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, r, _ := h.raw()
		defer socket.Close()
		go func() { _, _ = io.Copy(io.Discard, r) }()
		start := time.Now()
		first := byte(0x01)
		for {
			// A fragment and a pong every five seconds.
			if _, err := socket.Write(append(frame(first, []byte("x")), frame(0x8A, nil)...)); err != nil {
				break
			}
			first = 0x00
			time.Sleep(5 * time.Second)
		}
		if cause := <-h.causes; !errors.Is(cause.err, ErrSlowFrame) {
			t.Errorf("cause = %v, want ErrSlowFrame", cause)
		}
		if took := time.Since(start); took > 50*time.Second { // the next fragment finds out
			t.Errorf("cut off after %s", took)
		}
	})
}

func TestAReaderThatStaysFullIsCutOff(t *testing.T) {
	bubble(t, Config{QueueFramesMax: 10}, func(t *testing.T, h *house) {
		socket, _, conn := h.raw() // reads nothing from now on
		defer socket.Close()
		start := time.Now()
		taken := 0
		for range 100 {
			if conn.Offer([]byte("x")) {
				taken++
			}
		}
		if taken != 10 {
			t.Errorf("%d frames were taken, want 10", taken)
		}
		if cause := <-h.causes; !errors.Is(cause.err, ErrQueueFull) {
			t.Errorf("cause = %v, want ErrQueueFull", cause)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("cut off after %s, want 5s", took)
		}
		if cuts, refused := h.counters.QueueFullCuts.Load(), h.counters.OffersRefused.Load(); cuts != 1 || refused != 90 {
			t.Errorf("cuts %d, refused %d; want 1, 90", cuts, refused)
		}
	})
}

func TestAReaderThatTakesNothingIsCutOffBeforeItsQueueIsFull(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, _, conn := h.raw()
		defer socket.Close()
		start := time.Now()
		conn.Send([]byte("x"))
		if cause := <-h.causes; !errors.Is(cause.err, ErrSlow) {
			t.Errorf("cause = %v, want ErrSlow", cause)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("cut off after %s, want 10s", took)
		}
		if h.counters.WriteCuts.Load() != 1 {
			t.Error("not counted")
		}
	})
}

func TestAReaderThatCatchesUpStays(t *testing.T) {
	bubble(t, Config{QueueBytesMax: 1000, QueueFramesMax: 1000}, func(t *testing.T, h *house) {
		ws, conn := h.dial(nil)
		synctest.Wait()
		big := bytes.Repeat([]byte("x"), 600)
		for range 5 {
			conn.Offer(big)
			conn.Offer(big)
			if conn.Offer(big) {
				t.Error("more than QueueBytesMax was taken")
			}
			time.Sleep(4 * time.Second)
			for conn.queuedFrames() > 0 {
				_ = read(t, ws)
				synctest.Wait()
			}
		}
		// One frame fits an empty queue whatever its size.
		if !conn.Offer(bytes.Repeat([]byte("y"), 5000)) {
			t.Error("a long frame was refused by an empty queue")
		}
		for read(t, ws)[0] != 'y' {
			synctest.Wait()
		}
		_ = ws.CloseNow()
		if cause := <-h.causes; errors.Is(cause.err, ErrQueueFull) {
			t.Error(cause)
		}
	})
}

func (c *Conn) queuedFrames() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frames
}

func TestWhoDoesNotReadAnswersMayNotAskOn(t *testing.T) {
	bubble(t, Config{QueueFramesMax: 8, FullFor: time.Minute, WriteWithin: time.Minute}, func(t *testing.T, h *house) {
		socket, _, conn := h.raw()
		asked := 0
		go func() {
			for ; ; asked++ {
				if _, err := socket.Write(frame(0x81, []byte("x"))); err != nil {
					return
				}
			}
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := conn.queuedFrames(); n != 8 {
			t.Errorf("%d answers are queued, want 8", n)
		}
		if asked > 10 {
			t.Errorf("%d messages were read", asked)
		}
		_ = socket.Close()
		<-h.causes
	})
}

func TestPingsOfAPeerThatReadsNothingDoNotPileUp(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, _, _ := h.raw()
		defer socket.Close()
		start := time.Now()
		for {
			if _, err := socket.Write(frame(0x89, make([]byte, 125))); err != nil {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
		if cause := <-h.causes; !errors.Is(cause.err, errHeldFull) {
			t.Errorf("cause = %v after %s", cause, time.Since(start))
		}
	})
}

func TestCutEndsAConnectionThatIsStuck(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, _, conn := h.raw()
		defer socket.Close()
		conn.Send([]byte("nobody reads this"))
		synctest.Wait()
		start, enough := time.Now(), errors.New("enough")
		if !conn.Cut(enough) {
			t.Error("Cut was not the first")
		}
		if cause := <-h.causes; !errors.Is(cause.err, enough) {
			t.Errorf("cause = %v", cause)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %s", took)
		}
	})
}

func TestCutEndsACloseThatIsStuck(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		socket, _, conn := h.raw()
		defer socket.Close()
		start := time.Now()
		conn.Close(CloseGoingAway, "", []byte("nobody reads this"))
		synctest.Wait()
		if conn.Cut(errors.New("enough")) {
			t.Error("Cut says that it ended what Close had ended")
		}
		<-h.causes
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %s", took)
		}
	})
}

func TestWhatIsHeldAtTheReleaseIsNotOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		told := 0
		h := newHeldConn(server, func() { told++ })
		_, _ = h.Write([]byte("a pong, "))
		h.compose(true)
		_, _ = h.Write([]byte("a frame, "))
		h.compose(false)
		if told != 1 {
			t.Errorf("the writer was told %d times, want once", told)
		}
		go func() {
			if err := h.release(time.Second); err != nil {
				t.Error(err)
			}
			_, _ = h.Write([]byte("the close"))
			_ = h.Close()
		}()
		got, err := io.ReadAll(client)
		if want := "a pong, a frame, the close"; err != nil || string(got) != want {
			t.Errorf("read %q, %v; want %q", got, err, want)
		}
	})
}

func TestUpgrades(t *testing.T) {
	upgrade := func(change func(*http.Request)) *http.Request {
		r, err := http.NewRequest(http.MethodGet, "http://pulse.test/v1/worker", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Version", "13")
		r.Header.Set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
		r.Header.Set("Sec-WebSocket-Protocol", "other.v1, "+testProtocol)
		change(r)
		return r
	}
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		status int
	}{
		{"a good request", func(*http.Request) {}, 101},
		{"no subprotocol", func(r *http.Request) { r.Header.Del("Sec-WebSocket-Protocol") }, 426},
		{"another subprotocol", func(r *http.Request) { r.Header.Set("Sec-WebSocket-Protocol", "test.v2") }, 426},
		{"the subprotocol in capitals", func(r *http.Request) { r.Header.Set("Sec-WebSocket-Protocol", "TEST.V1") }, 426},
		{"no upgrade", func(r *http.Request) { r.Header.Del("Connection"); r.Header.Del("Upgrade") }, 426},
		{"an old version", func(r *http.Request) { r.Header.Set("Sec-WebSocket-Version", "8") }, 400},
		{"no key", func(r *http.Request) { r.Header.Del("Sec-WebSocket-Key") }, 400},
		{"a page of the same host", func(r *http.Request) { r.Header.Set("Origin", "http://pulse.test") }, 101},
		{"a page of another host", func(r *http.Request) { r.Header.Set("Origin", "http://evil.test") }, 403},
		{"a page of nowhere", func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				response, err := h.client.Do(upgrade(c.change))
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if response.StatusCode != c.status {
					t.Errorf("status %d, want %d", response.StatusCode, c.status)
				}
				if c.status == 426 && response.Header.Get("Upgrade") != "websocket" {
					t.Error("426 does not say what to upgrade to")
				}
				if c.status != 101 {
					if h.counters.Refused.Load() != 1 || h.counters.Open.Load() != 0 {
						t.Error("the refusal was not counted")
					}
					return
				}
				_ = response.Body.Close()
				<-h.causes
			})
		})
	}
}

func TestCompressionIsNotNegotiated(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		ws, response, err := h.try(&websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Fatal(err)
		}
		if got := response.header.Get("Sec-WebSocket-Extensions"); got != "" {
			t.Errorf("extensions %q", got)
		}
		_ = ws.CloseNow()
		<-h.causes
	})
}

func TestThereIsAnEndToConnections(t *testing.T) {
	bubble(t, Config{ConnectionsMax: 2}, func(t *testing.T, h *house) {
		a, _ := h.dial(nil)
		b, _ := h.dial(nil)
		_, response, err := h.try(new(websocket.DialOptions))
		if err == nil || response.status != 503 || response.header.Get("Retry-After") == "" {
			t.Errorf("the third connection: %v, %v; want 503", response, err)
		}
		_ = a.CloseNow()
		<-h.causes
		c, _ := h.dial(nil)
		_ = b.CloseNow()
		_ = c.CloseNow()
		<-h.causes
		<-h.causes
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{Subprotocol: "x", PingEvery: time.Minute},
		{Subprotocol: "x", FrameBytesMax: -1},
		{Subprotocol: "x", WriteWithin: -1},
	} {
		if _, err := NewAcceptor(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

// Real sockets, closed by either end at any moment while both write: nothing
// may hang and nothing may stay.
func TestManyConnectionsLeaveNothingBehind(t *testing.T) {
	// Not parallel: it counts the goroutines of the process.
	counters := new(Counters)
	acceptor, err := NewAcceptor(Config{Subprotocol: testProtocol, Counters: counters})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serving.Add(1)
		defer serving.Done()
		c, err := acceptor.Accept(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		n := 0
		_ = c.Serve(func(m Message) {
			c.Send(bytes.Clone(m.Data))
			if n++; n == 5 {
				switch m.Data[0] % 3 {
				case 0:
					c.Close(CloseGoingAway, "", []byte("bye"))
				case 1:
					c.Cut(errors.New("cut"))
				}
			}
		}, func() {})
	})}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	transport := &http.Transport{DisableKeepAlives: true}
	base := runtime.NumGoroutine()

	cycle := func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		ws, _, err := websocket.Dial(ctx, "ws://"+listener.Addr().String(), &websocket.DialOptions{ //nolint:bodyclose // the library has closed it
			HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{testProtocol},
		})
		if err != nil {
			t.Errorf("dial %d: %v", i, err)
			return
		}
		defer func() { _ = ws.CloseNow() }()
		var reading sync.WaitGroup
		reading.Go(func() {
			for {
				if _, _, err := ws.Read(ctx); err != nil {
					return
				}
			}
		})
		for j := range 6 {
			if ws.Write(ctx, websocket.MessageText, []byte{byte('0' + i%3), byte(j)}) != nil {
				break
			}
			if j == 3 && i%7 == 0 {
				_ = ws.CloseNow()
			}
		}
		if i%2 == 0 {
			_ = ws.Close(websocket.StatusNormalClosure, "")
		}
		_ = ws.CloseNow()
		reading.Wait()
	}
	var clients sync.WaitGroup
	for worker := range 4 {
		clients.Go(func() {
			for i := range 250 {
				cycle(worker + 4*i)
			}
		})
	}
	clients.Wait()
	serving.Wait()
	if open := counters.Open.Load(); open != 0 {
		t.Errorf("%d connections are open", open)
	}
	if accepted := counters.Accepted.Load(); accepted != 1000 {
		t.Errorf("%d connections were accepted, want 1000", accepted)
	}
	deadline := time.Now().Add(calm.Patience)
	for runtime.NumGoroutine() > base && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if now := runtime.NumGoroutine(); now > base {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, there were %d\n%s", now, base, stacks[:runtime.Stack(stacks, true)])
	}
	_ = server.Close()
	group.Wait()
}
