package wsconn

import (
	"errors"
	"net"
	"sync"
	"time"
)

// heldConn holds back what the library writes until the writer flushes it, so
// that many frames leave in one system call and nobody but the writer ever
// waits for the peer: a pong or a close frame that the reader makes is put into
// the buffer and the writer is told.
type heldConn struct {
	net.Conn
	written func() // something was put into the buffer

	// writing is taken by whoever writes to the socket. A channel, because
	// the holder may wait for the peer.
	writing chan struct{}

	mu     sync.Mutex
	buf    []byte
	quiet  bool // the writer is composing: it knows that the buffer fills
	direct bool // from the close handshake on
	cut    bool // Close does not write what is left
}

const (
	// heldBytesMax bounds the buffer. The writer puts one batch into it, so
	// what else collects are answers to a flood of pings while the peer reads
	// nothing; then the connection ends.
	heldBytesMax = 4 << 20
	// heldBytesFirst is the size of a new buffer, heldBytesKept the largest that is
	// used again.
	heldBytesFirst = 4 << 10
	heldBytesKept  = 2 * flushBytesMax
	// lastWrite bounds the write of what is left when the library closes.
	lastWrite = time.Second
)

// heldBuffers are used by whichever connection has something to write, so that
// an idle one holds none.
var heldBuffers = sync.Pool{New: func() any {
	buf := make([]byte, 0, heldBytesFirst)
	return &buf
}}

var errHeldFull = errors.New("the peer causes control frames and reads none")

func newHeldConn(raw net.Conn, written func()) *heldConn {
	return &heldConn{Conn: raw, written: written, writing: make(chan struct{}, 1)}
}

// Write is called by the library, one frame or a part of one at a time, in the
// order of the wire.
func (h *heldConn) Write(p []byte) (int, error) {
	h.mu.Lock()
	if h.direct {
		h.mu.Unlock()
		return h.Conn.Write(p)
	}
	if len(h.buf)+len(p) > heldBytesMax {
		h.mu.Unlock()
		return 0, errHeldFull
	}
	h.hold(p)
	quiet := h.quiet
	h.mu.Unlock()
	if !quiet {
		h.written()
	}
	return len(p), nil
}

// pingFrame is a ping without a payload as a server sends it.
var pingFrame = []byte{0x89, 0}

// ping puts a ping between two frames. It does not while the writer is in the middle
// of one: a connection in use shows that it lives, and is asked another time.
func (h *heldConn) ping() (asked bool) {
	h.mu.Lock()
	if h.quiet || h.direct || h.cut || len(h.buf)+len(pingFrame) > heldBytesMax {
		h.mu.Unlock()
		return false
	}
	h.hold(pingFrame)
	h.mu.Unlock()
	h.written()
	return true
}

// hold is called with mu held.
func (h *heldConn) hold(p []byte) {
	if h.buf == nil {
		h.buf = (*heldBuffers.Get().(*[]byte))[:0]
	}
	h.buf = append(h.buf, p...)
}

// compose says that the writer fills the buffer and flushes it afterwards.
func (h *heldConn) compose(on bool) {
	h.mu.Lock()
	h.quiet = on
	h.mu.Unlock()
}

// flush writes what is held and returns how many bytes that was.
func (h *heldConn) flush(within time.Duration) (int, error) {
	h.writing <- struct{}{}
	defer func() { <-h.writing }()

	h.mu.Lock()
	out := h.buf
	h.buf = nil
	h.mu.Unlock()
	if len(out) == 0 {
		return 0, nil
	}
	if err := h.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return 0, err
	}
	n, err := h.Conn.Write(out)
	if cap(out) <= heldBytesKept {
		heldBuffers.Put(&out)
	}
	return n, err
}

// release lets everything through from now on, under one deadline for all that
// is still read and written. The writer calls it before the close handshake.
func (h *heldConn) release(within time.Duration) error {
	for {
		h.mu.Lock()
		empty := len(h.buf) == 0
		h.direct = empty
		h.mu.Unlock()
		if empty {
			return h.SetDeadline(time.Now().Add(within))
		}
		// The reader has put in a control frame since the last flush.
		if _, err := h.flush(within); err != nil {
			return err
		}
	}
}

// Close is called by the library, at the end of a close handshake or once the
// peer has sent its close frame; then the answer to it is still held.
func (h *heldConn) Close() error {
	h.mu.Lock()
	cut := h.cut
	h.mu.Unlock()
	if !cut {
		_, _ = h.flush(lastWrite) // the peer is leaving; it may not read this
	}
	return h.Conn.Close()
}

// sever closes the socket at once; whoever waits on it returns.
func (h *heldConn) sever() {
	h.mu.Lock()
	h.cut = true
	h.mu.Unlock()
	_ = h.Conn.Close() // closing twice is no fault
}
