package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pulse/gateway"
	"pulse/gateway/console"
	"pulse/gateway/httpapi"
	"pulse/gateway/pulse"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	"pulse/schema/workerv1"
)

// scrapesMax bounds the requests for metrics served at a time.
const scrapesMax = 4

// front is where clients and workers connect.
type front struct {
	listener net.Listener
	tls      *tls.Config // nil: plain HTTP
	server   *gateway.Server
	api      *httpapi.Handler
	refusals *session.Refusals
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
	if n.certs != nil {
		n.front.tls = n.certs.http.ServerConfig()
		if n.cfg.Auth == nil {
			n.cfg.Auth = gateway.Certificates{Judge: n.certs.http.Client}
		}
	}
	return gateway.CheckListen(l.Addr(), n.cfg.Auth)
}

func (n *Node) openFront() (err error) {
	f := n.front
	limiter := wsconn.NewLimiter(n.cfg.Limits)
	f.refusals = new(session.Refusals)
	auth, err := n.openTokens()
	if err != nil {
		return err
	}
	f.workers, err = pulse.NewHandler(pulse.Config{
		Hub: n.hub, Logger: n.logger, Authenticate: auth.Authenticate, Refusals: f.refusals, Connections: wsconn.Config{Limiter: limiter},
	})
	if err != nil {
		return err
	}
	seen := parts{
		status: n.Status, hub: n.hub.Counters(), workers: f.workers.Counters(), conns: f.workers.Connections(), refusals: f.refusals,
		feed: n.feed, watch: n.watch, dir: n.dir, version: n.cfg.Version,
	}
	if n.machine != nil {
		seen.standing, seen.courier, seen.raft = n.machine.Standing, n.courier.Stats, n.raft.Counters()
	}
	n.registry.MustRegister(newCollector(seen))
	owed, err := openOwed(n.dir.owedFile(), n.router, n.logger)
	if err != nil {
		return err
	}
	n.background("record", owed.run)
	f.api, err = httpapi.New(httpapi.Options{
		Backend: n.router, Authenticate: auth.Authenticate, Refusals: f.refusals, Logger: n.logger, Owed: owed,
		Cluster: clusterAPI{n}, Version: n.cfg.Version, Tracer: n.cfg.Traces.Tracer(tracerName), LogLevel: n.cfg.LogLevel,
		Metrics:         promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax}),
		Observe:         n.meters.request,
		Unauthenticated: func(r *http.Request) bool { return limiter.Fault(wsconn.RemoteAddr(r)) },
	})
	if err != nil {
		return err
	}
	key, err := sessionKey(n.dir.secret)
	if err != nil {
		return err
	}
	pages, err := console.New(console.Options{API: f.api, Logger: n.logger, SessionKey: key})
	if err != nil {
		return err
	}
	f.server, err = gateway.New(gateway.Config{
		API: f.api, Console: pages, Workers: map[string]http.Handler{workerv1.Subprotocol: f.workers},
		Auth: auth, TLS: f.tls, Hosts: n.cfg.Hosts, Origins: n.cfg.Origins, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	if n.watchdog != nil {
		n.watchdog.OnFire(f.server.Abort)
	}

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
