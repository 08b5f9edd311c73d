package pki

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener that is dialled in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn, 1000), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return pipeAddr("pipes") }

func (p *pipes) dial(host string) net.Conn {
	server, client := newPipe()
	p.conns <- from{server, host}
	return client
}

// from is a connection from some address.
type from struct {
	net.Conn
	host string
}

func (f from) RemoteAddr() net.Addr { return pipeAddr(f.host + ":5000") }

func listen(t *testing.T, p *pipes, cfg ListenerConfig) *Listener {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := NewListener(p, cfg)
	must(t, err)
	return l
}

// served says whether a client gets a connection through the listener, and is
// seen as whom.
func served(l *Listener, conn net.Conn, cfg *tls.Config) (peer string, err error) {
	done := make(chan error, 1)
	go func() { done <- tls.Client(conn, cfg).Handshake() }()
	got, err := l.Accept()
	if err != nil {
		return "", err
	}
	defer got.Close()
	peer, err = PeerID(got)
	return peer, errors.Join(err, <-done)
}

func TestTheListenerHandsOutNodesThatHaveShakenHands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		p := newPipes()
		l := listen(t, p, ListenerConfig{TLS: n1.ServerConfig()})
		peer, err := served(l, p.dial("10.0.0.2"), calling(t, n2, "n1"))
		if err != nil || peer != "n2" {
			t.Errorf("%q, %v", peer, err)
		}
		must(t, l.Close())
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed listener says %v", err)
		}
		must(t, l.Close())
	})
}

// Two thousand that connect and say nothing hold a bounded number of places,
// each for ten seconds, and nobody for ever.
func TestACrowdThatSaysNothingIsBoundedAndGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		p := newPipes()
		l := listen(t, p, ListenerConfig{TLS: n1.ServerConfig(), Max: 16})
		crowd := make([]net.Conn, 40)
		for i := range crowd {
			crowd[i] = p.dial("10.9.9.9")
		}
		synctest.Wait()
		if waiting := len(p.conns); waiting != 40-16 {
			t.Errorf("%d connections wait outside, want 24", waiting)
		}
		began := time.Now()
		peer, err := served(l, p.dial("10.0.0.2"), calling(t, n2, "n1"))
		// Behind 40 others at 16 places: two full rounds.
		if err != nil || peer != "n2" || time.Since(began) != 2*defaultHandshakeTimeout {
			t.Errorf("%q, %v after %v", peer, err, time.Since(began))
		}
		time.Sleep(defaultHandshakeTimeout)
		for i, c := range crowd {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("connection %d is still open: %v", i, err)
			}
		}
		must(t, l.Close())
	})
}

func TestOneAddressDoesNotTakeAllThePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		p := newPipes()
		var log lines
		l := listen(t, p, ListenerConfig{TLS: n1.ServerConfig(), Max: 16, MaxPerHost: 4, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 200 {
			p.dial("10.9.9.9")
		}
		synctest.Wait()
		began := time.Now()
		peer, err := served(l, p.dial("10.0.0.2"), calling(t, n2, "n1"))
		if err != nil || peer != "n2" || time.Since(began) > 0 {
			t.Errorf("%q, %v after %v", peer, err, time.Since(began))
		}
		// The second line, with the count of what was not said, comes with the
		// next refusal.
		time.Sleep(defaultHandshakeTimeout)
		synctest.Wait()
		if got := log.count(); got != 2 {
			t.Errorf("%d lines for 200 refused connections: %s", got, log.text())
		}
		if !strings.Contains(log.text(), "count=196") {
			t.Errorf("log: %s", log.text())
		}
		must(t, l.Close())
	})
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "")
}

func TestClosingEndsTheHandshakesUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		p := newPipes()
		l := listen(t, p, ListenerConfig{TLS: n1.ServerConfig()})
		silent := p.dial("10.0.0.3")
		// This one has shaken hands, and nobody fetches it.
		ready := tls.Client(p.dial("10.0.0.2"), calling(t, n2, "n1"))
		must(t, ready.Handshake())
		synctest.Wait()
		began := time.Now()
		must(t, l.Close())
		if time.Since(began) != 0 {
			t.Errorf("closing took %v", time.Since(began))
		}
		for name, c := range map[string]net.Conn{"silent": silent, "ready": ready} {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("the %s connection is still open", name)
			}
		}
	})
}

func TestAListenerOutlivesAnAcceptThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		p := newPipes()
		tired := &failing{pipes: p, left: 100}
		l, err := NewListener(tired, ListenerConfig{TLS: n1.ServerConfig(), Max: 2, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		if peer, err := served(l, p.dial("10.0.0.2"), calling(t, n2, "n1")); err != nil || peer != "n2" {
			t.Errorf("%q, %v", peer, err)
		}
		must(t, l.Close())
	})
}

// failing is a listener whose process has run out of descriptors for a while.
type failing struct {
	*pipes
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left--; f.left >= 0 {
		return nil, fmt.Errorf("accept: too many open files")
	}
	return f.pipes.Accept()
}

func TestAListenerNeedsWhatItNeeds(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	for _, cfg := range []ListenerConfig{{Logger: logger}, {TLS: &tls.Config{}}, {TLS: &tls.Config{}, Logger: logger, Max: -1}} {
		if _, err := NewListener(newPipes(), cfg); err == nil {
			t.Errorf("%+v makes a listener", cfg)
		}
	}
}
