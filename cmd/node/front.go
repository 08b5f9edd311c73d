package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pulse/gateway/httpapi"
	"pulse/gateway/pulse"
)

// front is where clients and workers connect.
type front struct {
	listener net.Listener
	server   *http.Server
	api      *httpapi.Handler
	workers  *pulse.Handler
}

// listen takes the port before anything else is opened, so that a port in use
// is found out first. What connects until the node is up waits in the kernel.
func (n *Node) listen() error {
	l, err := net.Listen("tcp", n.cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("node: HTTPAddr: %w", err)
	}
	n.front = &front{listener: l}
	n.onClose("listener", func(context.Context) error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return nil
}

func (n *Node) openFront() (err error) {
	f := n.front
	authenticate := pulse.LoopbackOnly
	if f.workers, err = pulse.NewHandler(pulse.Config{Hub: n.hub, Logger: n.logger, Authenticate: authenticate}); err != nil {
		return err
	}
	n.registry.MustRegister(newCollector(parts{
		stats: n.machine.Stats, status: n.raft.Status, courier: n.courier.Stats, raft: n.raft.Counters(),
		hub: n.hub.Counters(), conns: f.workers.Connections(), feed: n.feed,
	}))
	f.api, err = httpapi.New(httpapi.Options{
		Backend: n.router, Authenticate: authenticate, Logger: n.logger,
		Cluster: clusterAPI{n.raft, n.cfg.Version}, Version: n.cfg.Version,
		Metrics: promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}),
		Observe: n.meters.request,
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/worker", f.workers)
	mux.Handle("/", f.api)
	f.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(n.logger.Handler(), slog.LevelDebug),
	}
	n.watchdog.OnFire(func() { _ = f.server.Close() })

	var serving sync.WaitGroup
	serving.Go(func() {
		if err := f.server.Serve(f.listener); !errors.Is(err, http.ErrServerClosed) {
			go n.fail(fmt.Errorf("node: HTTP listener: %w", err))
		}
	})
	n.onClose("front", func(ctx context.Context) error {
		defer serving.Wait()
		return f.shutdown(ctx)
	})
	return nil
}

// shutdown refuses new connections, ends streams, and waits for what is being
// answered. What is left when ctx ends is cut off.
func (f *front) shutdown(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { f.workers.Shutdown(ctx) })
	defer workers.Wait()
	f.api.Drain()
	if err := f.server.Shutdown(ctx); err != nil {
		return errors.Join(err, f.server.Close())
	}
	return nil
}
