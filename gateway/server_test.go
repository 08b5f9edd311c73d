package gateway

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pulse/gateway/internal/pipenet"
	"pulse/gateway/session"
	"pulse/schema"
)

// fakeAPI answers with the path it was asked for.
type fakeAPI struct {
	serve   http.HandlerFunc // nil: the path
	drained atomic.Bool
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.serve != nil {
		a.serve(w, r)
		return
	}
	_, _ = io.WriteString(w, "api "+r.URL.EscapedPath())
}

func (a *fakeAPI) Drain() { a.drained.Store(true) }

func (a *fakeAPI) Refuse(w http.ResponseWriter, _ *http.Request, status int, refusal *schema.Error) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, string(refusal.Code))
}

func (a *fakeAPI) Stamp(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Stamped", "yes") }

// demanding lets nobody in without a token.
type demanding struct{}

func (demanding) Authenticate(*http.Request) (session.Identity, *schema.Error) {
	return session.Identity{}, schema.Errorf(schema.Unauthenticated, "a token is needed")
}
func (demanding) DemandsCredential() bool { return true }

func named(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, name+" "+r.URL.EscapedPath()) })
}

func newConfig(change ...func(*Config)) Config {
	cfg := Config{API: &fakeAPI{}, Auth: Loopback{}, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

// run serves in a bubble until the test is over and returns a client.
func run(t *testing.T, cfg Config) (*Server, *pipenet.Listener, *http.Client) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := pipenet.Listen()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	synctest.Wait()
	t.Cleanup(func() {
		s.Abort()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	transport := &http.Transport{DialContext: l.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	return s, l, &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func fetch(t *testing.T, c *http.Client, method, target string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else {
			req.Header.Add(headers[i], headers[i+1])
		}
	}
	answer, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body), answer.Header
}

func TestRequestsGoWhereTheyBelong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, c := run(t, newConfig(func(cfg *Config) {
			cfg.Workers = map[string]http.Handler{"pulse.worker.v1": named("worker"), "other.v1": named("other")}
			cfg.Console = named("console")
		}))
		for _, want := range []struct {
			method, path string
			headers      []string
			status       int
			body         string
		}{
			{"GET", "/v1/namespaces", nil, 200, "api /v1/namespaces"},
			{"GET", "/v1/worker", []string{"Sec-WebSocket-Protocol", "pulse.worker.v1"}, 200, "worker /v1/worker"},
			{"GET", "/v1/worker", []string{"Sec-WebSocket-Protocol", "nothing, other.v1"}, 200, "other /v1/worker"},
			{"GET", "/v1/worker", []string{"Sec-WebSocket-Protocol", "a", "Sec-WebSocket-Protocol", "b,pulse.worker.v1"}, 200, "worker /v1/worker"},
			{"GET", "/v1/worker", []string{"Sec-WebSocket-Protocol", "Pulse.Worker.V1"}, 426, "invalid_argument"},
			{"GET", "/v1/worker", nil, 426, "invalid_argument"},
			{"POST", "/v1/worker", nil, 405, "invalid_argument"},
			{"GET", "/v1/worker/", nil, 200, "api /v1/worker/"},
			{"GET", "/v1/w%6Frker", nil, 200, "api /v1/w%6Frker"},
			{"GET", "/console", nil, 200, "console /console"},
			{"GET", "/console/app.js", nil, 200, "console /console/app.js"},
			{"GET", "/consoles", nil, 200, "api /consoles"},
			{"GET", "/", []string{"Accept", "text/html"}, 200, "console /"},
			{"GET", "/", nil, 200, "api /"},
		} {
			status, body, header := fetch(t, c, want.method, "http://127.0.0.1:7400"+want.path, want.headers...)
			if status != want.status || body != want.body {
				t.Errorf("%s %s %v: %d %q", want.method, want.path, want.headers, status, body)
			}
			if status == 426 && (header.Get("Upgrade") != "websocket" || header.Get("Sec-Websocket-Protocol") != "other.v1, pulse.worker.v1") {
				t.Errorf("426 with %v", header)
			}
			if strings.HasPrefix(body, "worker") && header.Get("X-Stamped") == "" {
				t.Error("an answer of the worker endpoint is not stamped")
			}
		}
	})
}

func TestABrowserIsHeldToHostAndOrigin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, c := run(t, newConfig(func(cfg *Config) {
			cfg.Hosts = []string{"Pulse.internal"}
			cfg.Origins = []string{"https://console.example"}
		}))
		for _, want := range []struct {
			headers []string
			status  int
		}{
			{[]string{"Host", "127.0.0.1:7400"}, 200},
			{[]string{"Host", "127.9.9.9"}, 200},
			{[]string{"Host", "localhost:7400"}, 200},
			{[]string{"Host", "LOCALHOST"}, 200},
			{[]string{"Host", "localhost."}, 200},
			{[]string{"Host", "[::1]:7400"}, 200},
			{[]string{"Host", "[::ffff:127.0.0.1]"}, 200},
			{[]string{"Host", "pulse.internal:7400"}, 200},
			{[]string{"Host", "evil.example"}, 403},
			{[]string{"Host", "127.0.0.1.evil.example"}, 403},
			{[]string{"Host", "localhost.evil.example"}, 403},
			{[]string{"Host", "10.0.0.1"}, 403},
			{[]string{"Host", "2130706433"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "http://127.0.0.1:7400"}, 200},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "http://127.0.0.1:8080"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "https://127.0.0.1:7400"}, 403},
			{[]string{"Host", "localhost:7400", "Origin", "http://127.0.0.1:7400"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "https://console.example"}, 200},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "https://CONSOLE.example"}, 200},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "http://console.example"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "https://console.example.evil"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "null"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", ""}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "http://127.0.0.1:7400/path"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "file://"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "http://a@127.0.0.1:7400"}, 403},
			{[]string{"Host", "127.0.0.1:7400", "Origin", "http://127.0.0.1:7400", "Origin", "http://127.0.0.1:7400"}, 403},
		} {
			status, body, header := fetch(t, c, "GET", "http://127.0.0.1:7400/v1/x", want.headers...)
			if status != want.status || status == 403 && body != "forbidden" {
				t.Errorf("%q: %d %s", want.headers, status, body)
			}
			if header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%q: another origin is let in", want.headers)
			}
		}
	})
}

func TestATokenTakesThePlaceOfTheHostCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, c := run(t, newConfig(func(cfg *Config) { cfg.Auth = demanding{} }))
		if status, _, _ := fetch(t, c, "GET", "http://pulse.example/v1/x"); status != 200 {
			t.Errorf("any host: %d", status)
		}
		if status, _, _ := fetch(t, c, "GET", "http://pulse.example/v1/x", "Origin", "http://evil.example"); status != 403 {
			t.Errorf("any origin: %d", status)
		}
	})
}

func TestWithoutTokensOnlyLoopbackIsServed(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"127.0.0.1": true, "127.5.5.5": true, "::1": true, "0.0.0.0": false, "::": false, "10.1.2.3": false, "192.0.2.1": false, "2001:db8::1": false,
	} {
		addr := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 7400))
		if err := CheckListen(addr, Loopback{}); (err == nil) != ok {
			t.Errorf("%s without tokens: %v", address, err)
		}
		if err := CheckListen(addr, demanding{}); err != nil {
			t.Errorf("%s with tokens: %v", address, err)
		}
	}
	if err := CheckListen(&net.UnixAddr{Name: "x"}, Loopback{}); err == nil {
		t.Error("a kind of address that says nothing about who can reach it")
	}
	s, err := New(newConfig())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("Serve on every address: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the port stays open: %v", err)
	}
}

func TestLoopbackGoesByTheAddress(t *testing.T) {
	t.Parallel()
	for remote, ok := range map[string]bool{
		"127.0.0.1:5": true, "[::1]:5": true, "[::ffff:127.0.0.1]:5": true, "10.0.0.1:5": false, "[2001:db8::1]:5": false, "": false, "localhost:5": false,
	} {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {"127.0.0.1"}}}
		who, refusal := Loopback{}.Authenticate(r)
		if (refusal == nil) != ok || ok && who.Principal != "anonymous" || !ok && refusal.Code != schema.Unauthenticated {
			t.Errorf("%q: %+v, %v", remote, who, refusal)
		}
	}
}

func TestSlowClientsAreLetGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l, _ := run(t, newConfig())
		for name, sent := range map[string]string{"nothing": "", "half a header": "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "} {
			conn, err := l.Dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			_, _ = io.Copy(io.Discard, conn) // until the server is through with it
			if took := time.Since(started); took != 5*time.Second {
				t.Errorf("%s: let go after %s", name, took)
			}
			_ = conn.Close()
		}
		// A connection with nothing to ask is kept for a while, no longer.
		conn, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != 200 {
			t.Fatalf("%v %v", answer, err)
		}
		started := time.Now()
		_, _ = io.Copy(io.Discard, conn)
		if took := time.Since(started); took != 2*time.Minute {
			t.Errorf("an idle connection is kept for %s", took)
		}
		synctest.Wait()
		if n := s.Connections(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, c := run(t, newConfig())
		if status, _, _ := fetch(t, c, "GET", "http://127.0.0.1/x", "X-A", strings.Repeat("a", 24<<10)); status != 200 {
			t.Errorf("24 KiB: %d", status)
		}
		if status, _, _ := fetch(t, c, "GET", "http://127.0.0.1/x", "X-A", strings.Repeat("a", 64<<10)); status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("64 KiB: %d", status)
		}
	})
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l, _ := run(t, newConfig(func(cfg *Config) { cfg.ConnectionsMax, cfg.AddressMax = 6, 2 }))
		closed := func(conn net.Conn) bool {
			synctest.Wait()
			_ = conn.SetReadDeadline(time.Now().Add(time.Nanosecond))
			_, err := conn.Read(make([]byte, 1))
			return errors.Is(err, io.EOF)
		}
		var open []net.Conn
		dial := func(from string) bool {
			conn, err := l.DialFrom(t.Context(), from)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, conn)
			return !closed(conn)
		}
		for i, step := range []struct {
			from string
			ok   bool
		}{
			{"192.0.2.1", true}, {"192.0.2.1", true}, {"192.0.2.1", false}, // its share
			{"2001:db8::1", true}, {"2001:db8::2", true}, {"2001:db8::3", false}, // one /64
			{"127.0.0.1", true}, {"127.0.0.1", true}, {"127.0.0.1", false}, // all there are
		} {
			if got := dial(step.from); got != step.ok {
				t.Errorf("step %d from %s: open %v", i, step.from, got)
			}
		}
		if s.Connections() != 6 || s.Refused() != 3 {
			t.Errorf("%d connections, %d refused", s.Connections(), s.Refused())
		}
		_ = open[0].Close()
		synctest.Wait()
		if !dial("192.0.2.1") {
			t.Error("a place that was given back is not given out")
		}
		for _, conn := range open {
			_ = conn.Close()
		}
	})
}

func TestAbortClosesWhatWasTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan net.Conn, 1)
		api := &fakeAPI{serve: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-r.Context().Done()
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.SetDeadline(time.Time{})
			taken <- conn
		}}
		s, l, _ := run(t, newConfig(func(cfg *Config) { cfg.API = api }))
		var conns []net.Conn
		for _, path := range []string{"/socket", "/slow", ""} {
			conn, err := l.Dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			if path != "" {
				if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", path); err != nil {
					t.Fatal(err)
				}
			}
			conns = append(conns, conn)
		}
		mine := <-taken
		synctest.Wait()
		if n := s.Connections(); n != 3 {
			t.Fatalf("%d connections", n)
		}
		s.Abort()
		for i, conn := range conns {
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
			_ = conn.Close()
		}
		if _, err := mine.Write([]byte("x")); err == nil {
			t.Error("the connection that was taken over can still be written to")
		}
		if _, err := l.Dial(t.Context(), "", ""); err == nil {
			t.Error("the port is open")
		}
		s.Abort() // twice is once
	})
}

func TestShutdownWaitsForAnswersAndNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		api := &fakeAPI{}
		api.serve = func(w http.ResponseWriter, r *http.Request) {
			<-release
			_, _ = io.WriteString(w, "done")
		}
		s, l, c := run(t, newConfig(func(cfg *Config) { cfg.API = api }))
		answered := make(chan int)
		go func() {
			status, _, _ := fetch(t, c, "GET", "http://127.0.0.1/x")
			answered <- status
		}()
		synctest.Wait()
		down := make(chan error)
		go func() { down <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		if !api.drained.Load() {
			t.Error("streams were not told")
		}
		if _, err := l.Dial(t.Context(), "", ""); err == nil {
			t.Error("the port is open")
		}
		close(release)
		if status := <-answered; status != 200 {
			t.Errorf("what was being answered: %d", status)
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}

// TestShutdownDoesNotCloseAConnectionUnderARequest: a client that keeps using
// its connection is told to leave it, and is not found out by a request that
// meets a closed one.
func TestShutdownDoesNotCloseAConnectionUnderARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l, _ := run(t, newConfig())
		type client struct {
			net.Conn
			in *bufio.Reader
		}
		ask := func(c client) (*http.Response, error) {
			if _, err := io.WriteString(c, "POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"); err != nil {
				return nil, err
			}
			res, err := http.ReadResponse(c.in, nil)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			return res, err
		}
		var busy, silent client
		for _, c := range []*client{&busy, &silent} {
			conn, err := l.Dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			*c = client{conn, bufio.NewReader(conn)}
			if res, err := ask(*c); err != nil || res.Close {
				t.Fatalf("before: %v %v", res, err)
			}
		}
		started := time.Now()
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		if _, err := l.Dial(t.Context(), "", ""); err == nil {
			t.Error("the port is open")
		}
		time.Sleep(299 * time.Millisecond)
		if res, err := ask(busy); err != nil || res.StatusCode != 200 || !res.Close {
			t.Errorf("a request after Shutdown was called: %v %v", res, err)
		}
		if _, err := busy.in.ReadByte(); err != io.EOF {
			t.Errorf("after the last answer: %v", err)
		}
		if _, err := silent.in.ReadByte(); err != io.EOF || time.Since(started) < 300*time.Millisecond {
			t.Errorf("a silent client: %v after %s", err, time.Since(started))
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}

// TestShutdownDoesNotWaitForNobody: with no connection left it ends at once.
func TestShutdownDoesNotWaitForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, connected := range []bool{false, true} {
			s, l, _ := run(t, newConfig())
			var conn net.Conn
			if connected {
				var err error
				if conn, err = l.Dial(t.Context(), "", ""); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			started := time.Now()
			down := make(chan error, 1)
			go func() { down <- s.Shutdown(t.Context()) }()
			synctest.Wait()
			if connected {
				time.Sleep(10 * time.Millisecond)
				_ = conn.Close()
			}
			if err := <-down; err != nil || time.Since(started) > 10*time.Millisecond {
				t.Errorf("connected %v: %v after %s", connected, err, time.Since(started))
			}
		}
	})
}

func TestShutdownEndsWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cut := make(chan struct{})
		api := &fakeAPI{serve: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); close(cut) }}
		s, l, _ := run(t, newConfig(func(cfg *Config) { cfg.API = api }))
		conn, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		started := time.Now()
		if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(started) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(started))
		}
		<-cut
	})
}

func TestHTTPSIsServedWithACertificate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		certificate, pool := newCertificate(t)
		_, l, _ := run(t, newConfig(func(cfg *Config) {
			cfg.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
		}))
		transport := &http.Transport{DialContext: l.Dial, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		c := &http.Client{Transport: transport}
		if status, body, _ := fetch(t, c, "GET", "https://127.0.0.1/x", "Origin", "https://127.0.0.1"); status != 200 || body != "api /x" {
			t.Errorf("%d %s", status, body)
		}
		if status, _, _ := fetch(t, c, "GET", "https://127.0.0.1/x", "Origin", "http://127.0.0.1"); status != 403 {
			t.Errorf("a page without TLS: %d", status)
		}
	})
}

func newCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestConfigNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	if err := newConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*Config){
		"API": func(c *Config) { c.API = nil }, "Auth": func(c *Config) { c.Auth = nil }, "Logger": func(c *Config) { c.Logger = nil },
		"Origins": func(c *Config) { c.Origins = []string{"console.example"} }, "HeaderWithin": func(c *Config) { c.HeaderWithin = -1 },
		"WriteWithin": func(c *Config) { c.WriteWithin = -1 }, "IdleFor": func(c *Config) { c.IdleFor = -1 },
		"ConnectionsMax": func(c *Config) { c.ConnectionsMax = -1 }, "AddressMax": func(c *Config) { c.AddressMax = -1 },
	} {
		cfg := newConfig(spoil)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: New takes it", field)
		}
	}
}

func TestServingAfterAnAbortEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(newConfig())
		if err != nil {
			t.Fatal(err)
		}
		s.Abort()
		if err := s.Serve(pipenet.Listen()); err != nil {
			t.Error(err)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
