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

	"pulse/schema"
)

// workerPath is where workers connect.
const workerPath = "/v1/worker"

// Server serves one listener.
type Server struct {
	cfg  Config
	http *http.Server

	mu       sync.Mutex
	listener *listener // nil before Serve
	aborted  bool
}

// New checks the config.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg}
	g := &guard{api: cfg.API, next: http.HandlerFunc(s.route), auth: cfg.Auth}
	for _, host := range cfg.Hosts {
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	for _, text := range cfg.Origins {
		origin, _ := originOf(text) // complete has checked it
		g.origins = append(g.origins, origin)
	}
	s.http = &http.Server{
		Handler:           g,
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
	var err error
	if s.cfg.TLS != nil {
		err = s.http.ServeTLS(own, "", "")
	} else {
		err = s.http.Serve(own)
	}
	if errors.Is(err, http.ErrServerClosed) || s.isAborted() {
		return nil
	}
	return fmt.Errorf("gateway: listener: %w", err)
}

// Shutdown refuses new connections, ends streams and long polls, and waits for
// what is being answered. When ctx ends, what is left is cut off. Connections
// of workers are their handler's to close.
func (s *Server) Shutdown(ctx context.Context) error {
	s.cfg.API.Drain()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("gateway: shutdown: %w", err), s.http.Close())
	}
	return err
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
