package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pulse/schema"
)

// workerPath is where workers connect.
const workerPath = "/v1/worker"

// Server serves one listener.
type Server struct {
	cfg  Config
	http *http.Server

	leaving atomic.Bool // Shutdown was called

	mu       sync.Mutex
	listener *listener // nil before Serve
	aborted  bool
	open     int           // connections that speak HTTP
	alone    chan struct{} // closed when open is 0 after Shutdown was called
}

// New checks the config.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, alone: make(chan struct{})}
	g := &guard{api: cfg.API, next: http.HandlerFunc(s.route), auth: cfg.Auth}
	for _, host := range cfg.Hosts {
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	for _, text := range cfg.Origins {
		origin, _ := originOf(text) // complete has checked it
		g.origins = append(g.origins, origin)
	}
	s.http = &http.Server{
		Handler:           s.farewell(g),
		ConnState:         s.track,
		TLSConfig:         cfg.TLS.Clone(),
		ReadHeaderTimeout: cfg.HeaderWithin,
		WriteTimeout:      cfg.WriteWithin,
		IdleTimeout:       cfg.IdleFor,
		MaxHeaderBytes:    headerBytesMax,
		// What net/http says is about single connections: a developer's matter.
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve serves a listener until Shutdown or Abort and then returns nil. The
// listener is the server's from here on.
func (s *Server) Serve(l net.Listener) error {
	if err := CheckListen(l.Addr(), s.cfg.Auth); err != nil {
		return errors.Join(err, l.Close())
	}
	own := newListener(l, &s.cfg)
	s.mu.Lock()
	s.listener = own
	aborted := s.aborted
	s.mu.Unlock()
	if aborted {
		own.abort()
	}
	if s.leaving.Load() {
		_ = own.Close() // Shutdown saw no listener
	}
	var err error
	if s.cfg.TLS != nil {
		err = s.http.ServeTLS(own, "", "")
	} else {
		err = s.http.Serve(own)
	}
	if errors.Is(err, http.ErrServerClosed) || s.leaving.Load() || s.isAborted() {
		return nil
	}
	return fmt.Errorf("gateway: listener: %w", err)
}

// Shutdown refuses new connections, ends streams and long polls, and waits for
// what is being answered. A client whose connection is in use is told with its
// next answer to open another; one that says nothing for Config.LeaveWithin is
// disconnected, as late as that because a request may be on its way. When ctx
// ends, what is left is cut off. Connections of workers are their handler's to
// close.
func (s *Server) Shutdown(ctx context.Context) error {
	s.leaving.Store(true)
	s.cfg.API.Drain()
	s.mu.Lock()
	if s.open == 0 {
		s.endAlone()
	}
	own := s.listener
	s.mu.Unlock()
	if own != nil {
		_ = own.Close() // closed is what it is to be
	}
	leave := time.NewTimer(s.cfg.LeaveWithin)
	defer leave.Stop()
	select {
	case <-s.alone:
	case <-leave.C:
	case <-ctx.Done():
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("gateway: shutdown: %w", err), s.http.Close())
	}
	return err
}

// farewell tells clients with each answer, once the server is leaving, that it
// is the last one on this connection: they use another for the next request
// instead of finding this one closed after they sent it.
func (s *Server) farewell(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// track keeps account of the connections that Shutdown waits for.
func (s *Server) track(_ net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.open++
	case http.StateActive, http.StateIdle: // it stays
	case http.StateHijacked, http.StateClosed:
		if s.open--; s.open == 0 && s.leaving.Load() {
			s.endAlone()
		}
	}
}

// endAlone wants mu.
func (s *Server) endAlone() {
	select {
	case <-s.alone:
	default:
		close(s.alone)
	}
}

// Abort closes the port and every connection at once, whatever they are doing.
func (s *Server) Abort() {
	s.mu.Lock()
	s.aborted = true
	own := s.listener
	s.mu.Unlock()
	if own != nil {
		own.abort()
	}
	_ = s.http.Close() // what it would close is closed
}

func (s *Server) isAborted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aborted
}

// Connections is the number of open connections, Refused of those that were
// over a limit.
func (s *Server) Connections() int {
	if own := s.own(); own != nil {
		return own.count()
	}
	return 0
}

// Refused counts connections that were over a limit.
func (s *Server) Refused() uint64 {
	if own := s.own(); own != nil {
		return own.refused.Load()
	}
	return 0
}

func (s *Server) own() *listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// route goes by path, and for workers by subprotocol. Paths are compared as they
// were sent: what is escaped is no part of a fixed name.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	switch {
	case path == workerPath && len(s.cfg.Workers) > 0:
		s.worker(w, r)
	case s.cfg.Console != nil && (path == "/console" || strings.HasPrefix(path, "/console/") || path == "/" && forBrowser(r)):
		s.cfg.Console.ServeHTTP(w, r)
	default:
		s.cfg.API.ServeHTTP(w, r)
	}
}

func forBrowser(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

// worker hands a connection to the surface whose subprotocol it offers.
func (s *Server) worker(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		s.cfg.API.Refuse(w, r, http.StatusMethodNotAllowed, schema.Errorf(schema.InvalidArgument, "this path does not take %s", r.Method))
		return
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			if handler := s.cfg.Workers[strings.TrimSpace(name)]; handler != nil {
				s.cfg.API.Stamp(w, r)
				handler.ServeHTTP(w, r)
				return
			}
		}
	}
	spoken := strings.Join(slices.Sorted(maps.Keys(s.cfg.Workers)), ", ")
	header := w.Header()
	header.Set("Upgrade", "websocket")
	header.Set("Connection", "Upgrade")
	header.Set("Sec-WebSocket-Protocol", spoken)
	s.cfg.API.Refuse(w, r, http.StatusUpgradeRequired,
		schema.Errorf(schema.InvalidArgument, "this is a WebSocket endpoint; it speaks %s", spoken))
}
