package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pulse/gateway"
	"pulse/gateway/httpapi"
	"pulse/gateway/pulse"
	"pulse/gateway/wsconn"
	"pulse/schema/workerv1"
)

// scrapesMax bounds the requests for metrics served at a time.
const scrapesMax = 4

// front is where clients and workers connect.
type front struct {
	listener net.Listener
	server   *gateway.Server
	api      *httpapi.Handler
	workers  *pulse.Handler
}

// listen takes the port before anything else is opened, so that a port in use
// or an address that may not be served is found out first. What connects until
// the node is up waits in the kernel.
func (n *Node) listen() error {
	l, err := net.Listen("tcp", n.cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("node: HTTPAddr: %w", err)
	}
	n.front = &front{listener: l}
	n.onClose("listener", func(context.Context) error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil // the server has closed it
	})
	return gateway.CheckListen(l.Addr(), n.cfg.Auth)
}

func (n *Node) openFront() (err error) {
	f := n.front
	limiter := wsconn.NewLimiter(n.cfg.Limits)
	f.workers, err = pulse.NewHandler(pulse.Config{
		Hub: n.hub, Logger: n.logger, Authenticate: n.cfg.Auth.Authenticate, Connections: wsconn.Config{Limiter: limiter},
	})
	if err != nil {
		return err
	}
	n.registry.MustRegister(newCollector(parts{
		stats: n.machine.Stats, status: n.raft.Status, courier: n.courier.Stats, raft: n.raft.Counters(),
		hub: n.hub.Counters(), conns: f.workers.Connections(), feed: n.feed,
	}))
	f.api, err = httpapi.New(httpapi.Options{
		Backend: n.router, Authenticate: n.cfg.Auth.Authenticate, Logger: n.logger,
		Cluster: clusterAPI{n}, Version: n.cfg.Version,
		Metrics:         promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax}),
		Observe:         n.meters.request,
		Unauthenticated: func(r *http.Request) bool { return limiter.Fault(wsconn.RemoteAddr(r)) },
	})
	if err != nil {
		return err
	}
	f.server, err = gateway.New(gateway.Config{
		API: f.api, Workers: map[string]http.Handler{workerv1.Subprotocol: f.workers},
		Auth: n.cfg.Auth, TLS: n.cfg.TLS, Hosts: n.cfg.Hosts, Origins: n.cfg.Origins, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	n.watchdog.OnFire(f.server.Abort)

	var serving sync.WaitGroup
	serving.Go(func() {
		if err := f.server.Serve(f.listener); err != nil {
			go n.fail(err) // it waits for this goroutine
		}
	})
	n.onClose("front", func(ctx context.Context) error {
		defer serving.Wait()
		return f.shutdown(ctx)
	})
	return nil
}

// shutdown refuses new connections, ends streams, closes the workers' with 1001
// and waits for what is being answered. What is left when ctx ends is cut off.
func (f *front) shutdown(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { f.workers.Shutdown(ctx) })
	defer workers.Wait()
	return f.server.Shutdown(ctx)
}
