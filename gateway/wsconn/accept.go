package wsconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"pulse/schema"
)

// Acceptor turns HTTP requests into connections.
type Acceptor struct {
	cfg   Config
	watch watch
}

// NewAcceptor checks the config.
func NewAcceptor(cfg Config) (*Acceptor, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	a := &Acceptor{cfg: cfg}
	a.watch.init(&a.cfg)
	return a, nil
}

// Refusal is an upgrade that was not made. Nothing has been written to the
// response; whoever asked answers it.
type Refusal struct {
	Status int
	Header http.Header // to be sent along
	Err    *schema.Error
}

func (r *Refusal) Error() string { return r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(status int, code schema.Code, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Header: http.Header{}, Err: schema.Errorf(code, format, args...)}
}

// Accept upgrades the request. An error is a *Refusal. A connection that was
// accepted must be served.
func (a *Acceptor) Accept(w http.ResponseWriter, r *http.Request) (*Conn, error) {
	c, refusal := a.accept(w, r)
	if refusal != nil {
		a.cfg.Counters.Refused.Add(1)
		return nil, refusal
	}
	a.cfg.Counters.Accepted.Add(1)
	return c, nil
}

func (a *Acceptor) accept(w http.ResponseWriter, r *http.Request) (*Conn, *Refusal) {
	if !offers(r, a.cfg.Subprotocol) {
		no := refuse(http.StatusUpgradeRequired, schema.InvalidArgument,
			"this is a WebSocket endpoint of subprotocol %s", a.cfg.Subprotocol)
		no.Header.Set("Upgrade", "websocket")
		no.Header.Set("Connection", "Upgrade")
		no.Header.Set("Sec-WebSocket-Protocol", a.cfg.Subprotocol)
		return nil, no
	}
	if !canHijack(w) {
		// Found out before the 101 is written, which could not be taken back.
		return nil, refuse(http.StatusInternalServerError, schema.Internal, "this listener cannot upgrade connections")
	}
	if !a.cfg.CheckOrigin(r) {
		return nil, refuse(http.StatusForbidden, schema.Forbidden, "this origin is not allowed")
	}
	addr := RemoteAddr(r)
	settle, ok := a.cfg.Limiter.Admit(addr)
	if !ok {
		no := refuse(http.StatusTooManyRequests, schema.RateLimited, "too many connections from this address")
		no.Header.Set("Retry-After", "1")
		return nil, no
	}
	if a.cfg.Counters.Open.Add(1) > int64(a.cfg.ConnectionsMax) {
		a.cfg.Counters.Open.Add(-1)
		settle()
		no := refuse(http.StatusServiceUnavailable, schema.Unavailable, "this gateway has all the connections it can hold")
		no.Header.Set("Retry-After", "1")
		return nil, no
	}
	c := newConn(&a.cfg, &a.watch, addr, settle)
	up := &upgrade{ResponseWriter: w, conn: c}
	ws, err := websocket.Accept(up, r, &websocket.AcceptOptions{
		Subprotocols:       a.spoken(),
		InsecureSkipVerify: true, // CheckOrigin has decided
		CompressionMode:    websocket.CompressionDisabled,
		OnPingReceived:     func(context.Context, []byte) bool { c.hear(); return true },
		OnPongReceived:     func(context.Context, []byte) { c.hear() },
	})
	if err != nil {
		a.cfg.Counters.Open.Add(-1)
		settle()
		status := up.status
		if status == 0 {
			status = http.StatusInternalServerError
		}
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // without the library's preamble
		}
		// The text names header values of the request; they are the client's own.
		return nil, refuse(status, schema.InvalidArgument, "the WebSocket handshake failed: %v", err)
	}
	ws.SetReadLimit(-1) // readMessage keeps the limit
	c.ws = ws
	return c, nil
}

// spoken are the subprotocols, the better one first.
func (a *Acceptor) spoken() []string {
	if a.cfg.Extended == "" {
		return []string{a.cfg.Subprotocol}
	}
	return []string{a.cfg.Extended, a.cfg.Subprotocol}
}

// Extended says whether the variant is spoken on this connection.
func (c *Conn) Extended() bool { return c.cfg.Extended != "" && c.ws.Subprotocol() == c.cfg.Extended }

// RemoteAddr is the address a request came from; the zero Addr if the listener
// has none, as in tests.
func RemoteAddr(r *http.Request) netip.Addr {
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return ap.Addr()
	}
	return netip.Addr{}
}

// offers looks for the exact subprotocol; its name is case-sensitive.
func offers(r *http.Request, subprotocol string) bool {
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for _, name := range strings.Split(line, ",") {
			if strings.TrimSpace(name) == subprotocol {
				return true
			}
		}
	}
	return false
}

// sameHost allows what is no browser and pages of the requested host.
func sameHost(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// canHijack looks through what wraps the response.
func canHijack(w http.ResponseWriter) bool {
	for {
		switch inner := w.(type) {
		case http.Hijacker:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = inner.Unwrap()
		default:
			return false
		}
	}
}

// upgrade stands between the library and the response: it keeps refusals back,
// so that they can be answered in our form, and slips heldConn under the
// connection.
type upgrade struct {
	http.ResponseWriter
	conn   *Conn
	status int // of a refusal
}

func (u *upgrade) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		u.ResponseWriter.WriteHeader(status)
		return
	}
	u.status = status
	// Header() is the response's own: what the library set for its text would
	// otherwise go out with ours.
	for _, name := range []string{"Content-Type", "Content-Length", "X-Content-Type-Options"} {
		u.Header().Del(name)
	}
}

func (u *upgrade) Write(p []byte) (int, error) {
	return len(p), nil // the text of a refusal
}

func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	raw, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.conn.net = newHeldConn(raw, u.conn.signal)
	r, err := smallReader(rw.Reader)
	if err != nil {
		return nil, nil, errors.Join(err, raw.Close())
	}
	// What goes through this writer ends in heldConn's buffer, so it need not be
	// large; every connection has one for as long as it lives.
	return u.conn.net, bufio.NewReadWriter(r, bufio.NewWriterSize(u.conn.net, writerBytes)), nil
}

// Every connection has a reader and a writer for as long as it lives. What is longer than
// the reader is read past it.
const (
	readerBytes = 1 << 10
	writerBytes = 256
)

// smallReader holds what the server's reader, four times as large, has read already: the
// library takes that first, and resets the reader to the connection.
func smallReader(r *bufio.Reader) (*bufio.Reader, error) {
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, err
	}
	small := bufio.NewReaderSize(bytes.NewReader(early), max(readerBytes, len(early)))
	_, err = small.Peek(len(early))
	return small, err
}
