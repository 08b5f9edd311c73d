package sdk

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// outbox is the socket below a connection. While it holds, what is written stays
// in memory, so that many frames leave in one system call and reach the gateway
// in few. Only the goroutine that writes frames holds and flushes; control frames
// that others write meanwhile leave with them.
type outbox struct {
	io.ReadWriteCloser

	// writing is taken by whoever writes to the socket. A channel, because the
	// holder may wait for the peer.
	writing chan struct{}

	mu      sync.Mutex
	holding bool
	held    []byte
}

// outboxKept is the largest buffer kept from one flush to the next.
const outboxKept = 64 << 10

func newOutbox(socket io.ReadWriteCloser) *outbox {
	return &outbox{ReadWriteCloser: socket, writing: make(chan struct{}, 1)}
}

// Write is called with one frame, or a part of one, at a time.
func (o *outbox) Write(p []byte) (int, error) {
	if o.keep(p) {
		return len(p), nil
	}
	o.writing <- struct{}{}
	defer func() { <-o.writing }()
	return o.ReadWriteCloser.Write(p)
}

func (o *outbox) keep(p []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holding {
		o.held = append(o.held, p...)
	}
	return o.holding
}

func (o *outbox) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holding = true
}

// size is how many bytes are held.
func (o *outbox) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held)
}

// flush ends the holding and writes what was held. A peer that does not take it
// in time loses the connection.
func (o *outbox) flush(within time.Duration) error {
	o.writing <- struct{}{} // before the end of the holding: what comes then comes behind
	defer func() { <-o.writing }()
	o.mu.Lock()
	out := o.held
	o.holding, o.held = false, nil
	o.mu.Unlock()
	if len(out) == 0 {
		return nil
	}
	limit := time.AfterFunc(within, func() { _ = o.Close() })
	defer limit.Stop()
	_, err := o.ReadWriteCloser.Write(out)
	if cap(out) <= outboxKept {
		o.mu.Lock()
		if o.held == nil {
			o.held = out[:0]
		}
		o.mu.Unlock()
	}
	return err
}

// upgrader puts an outbox below the connection that a handshake makes.
type upgrader struct {
	base http.RoundTripper
	made *outbox
}

func (u *upgrader) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := u.base.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		return answer, err
	}
	if socket, ok := answer.Body.(io.ReadWriteCloser); ok {
		u.made = newOutbox(socket)
		answer.Body = u.made
	}
	return answer, nil
}
