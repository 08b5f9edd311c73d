package pki

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Defaults of ListenerConfig.
const (
	defaultHandshakeTimeout = 10 * time.Second
	defaultHandshakesMax    = 64
	// acceptPause is how long accepting rests when the process has run out of
	// descriptors, most likely.
	acceptPause = 50 * time.Millisecond
	// refusalsEvery is how often refused handshakes are logged.
	refusalsEvery = time.Second
)

// ListenerConfig of a Listener. TLS and Logger are required.
type ListenerConfig struct {
	TLS *tls.Config
	// Timeout of a handshake, counted from the accept. 0: ten seconds.
	Timeout time.Duration
	// Max handshakes at once; further connections wait in the kernel's queue.
	// 0: 64.
	Max int
	// MaxPerHost of them from one address; further ones are closed. 0: as many
	// as Max, which is right behind a balancer.
	MaxPerHost int
	Logger     *slog.Logger
}

// Listener hands out connections that have shaken hands, as *tls.Conn. Each has
// a bounded time for it, from its accept, and a bounded number do it at once: a
// crowd that connects and says nothing costs a bounded number of goroutines, and
// its places are free again after the timeout.
type Listener struct {
	inner  net.Listener
	cfg    ListenerConfig
	ready  chan *tls.Conn
	slots  chan struct{}
	ctx    context.Context // stored: it is the listener's life, ended by Close
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu       sync.Mutex // guards what is below
	perHost  map[string]int
	refused  int // since the last line in the log
	reported time.Time
}

var _ net.Listener = (*Listener)(nil)

// NewListener begins to accept. The inner listener is closed by Close.
func NewListener(inner net.Listener, cfg ListenerConfig) (*Listener, error) {
	switch {
	case cfg.TLS == nil:
		return nil, errors.New("pki: a listener needs a TLS config: give an Identity's ServerConfig")
	case cfg.Logger == nil:
		return nil, errors.New("pki: a listener needs a logger")
	case cfg.Timeout < 0 || cfg.Max < 0 || cfg.MaxPerHost < 0:
		return nil, errors.New("pki: a listener's Timeout, Max and MaxPerHost must not be negative")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultHandshakeTimeout
	}
	if cfg.Max == 0 {
		cfg.Max = defaultHandshakesMax
	}
	if cfg.MaxPerHost == 0 {
		cfg.MaxPerHost = cfg.Max
	}
	l := &Listener{
		inner: inner, cfg: cfg,
		ready:   make(chan *tls.Conn),
		slots:   make(chan struct{}, cfg.Max),
		perHost: map[string]int{},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.all.Go(l.accept)
	return l, nil
}

func (l *Listener) accept() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		conn, err := l.inner.Accept()
		if err != nil {
			<-l.slots
			select {
			case <-l.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		host, ok := l.enter(conn)
		if !ok {
			l.refuse(conn, fmt.Errorf("%d connections from %s are shaking hands already", l.cfg.MaxPerHost, host))
			<-l.slots
			continue
		}
		l.all.Go(func() {
			defer func() {
				l.leave(host)
				<-l.slots
			}()
			l.shake(conn)
		})
	}
}

// shake brings one connection to the point where it can be handed out.
func (l *Listener) shake(conn net.Conn) {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.Timeout)
	defer cancel()
	t := tls.Server(conn, l.cfg.TLS)
	if err := t.HandshakeContext(ctx); err != nil {
		l.refuse(conn, err)
		return
	}
	select {
	case l.ready <- t:
	case <-l.ctx.Done():
		_ = conn.Close() // nobody is left to be told
	}
}

// enter counts a connection for its host, or refuses it.
func (l *Listener) enter(conn net.Conn) (host string, ok bool) {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = conn.RemoteAddr().String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.perHost[host] >= l.cfg.MaxPerHost {
		return host, false
	}
	l.perHost[host]++
	return host, true
}

func (l *Listener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.perHost[host]--; l.perHost[host] == 0 {
		delete(l.perHost, host)
	}
}

// refuse closes a connection and says why, but not for each of a crowd.
func (l *Listener) refuse(conn net.Conn, why error) {
	_ = conn.Close() // it is refused whatever closing says
	if l.ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	l.refused++
	count, quiet := l.refused, time.Since(l.reported) < refusalsEvery
	if !quiet {
		l.refused, l.reported = 0, time.Now()
	}
	l.mu.Unlock()
	if !quiet {
		l.cfg.Logger.Warn("connection refused", "at", l.Addr().String(), "remote", conn.RemoteAddr().String(), "count", count, "error", why)
	}
}

// Accept returns the next connection that has shaken hands.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case t := <-l.ready:
		return t, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Addr is the inner listener's.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

// Close stops accepting, ends the handshakes under way and waits for them.
// Connections that were handed out stay open.
func (l *Listener) Close() error {
	l.cancel()
	err := l.inner.Close()
	l.all.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
