package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"pulse/gateway/pulse"
)

// front is where clients and workers connect.
type front struct {
	listener net.Listener
	server   *http.Server
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
	if f.workers, err = pulse.NewHandler(pulse.Config{Hub: n.hub, Logger: n.logger}); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/worker", f.workers)
	f.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	n.watchdog.OnFire(func() { _ = f.server.Close() })

	var serving sync.WaitGroup
	serving.Go(func() {
		if err := f.server.Serve(f.listener); !errors.Is(err, http.ErrServerClosed) {
			go n.fail(fmt.Errorf("node: HTTP listener: %w", err))
		}
	})
	n.onClose("front", func(ctx context.Context) error {
		defer serving.Wait()
		f.workers.Shutdown(ctx)
		return f.server.Shutdown(ctx)
	})
	return nil
}
