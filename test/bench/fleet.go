package main

import (
	"context"
	"net/http"
	"sync"
	"time"

	"pulse/sdk"
)

// fleet is workers of this process.
type fleet struct {
	workers []*sdk.Worker
	stop    context.CancelFunc
	running sync.WaitGroup
}

// hire starts workers that run one handler; options makes those of each.
func (h *house) hire(ctx context.Context, n int, options func() sdk.WorkerOptions, work sdk.Handler) *fleet {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &fleet{stop: stop}
	// Each worker keeps the connection it has; pooling those of look-ups is enough.
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 5 * time.Second}}
	for range n {
		o := options()
		o.Addrs, o.HTTPClient, o.Logger = h.addrs(), web, quiet()
		w := sdk.NewWorker(o)
		w.Handle(handler, "1", "1", work)
		f.workers = append(f.workers, w)
	}
	for _, w := range f.workers {
		f.running.Go(func() { _ = w.Run(ctx) }) // it ends when it is dismissed
	}
	return f
}

func (f *fleet) dismiss() {
	f.stop()
	f.running.Wait()
}

// connected counts those that have a session.
func (f *fleet) connected() (n int) {
	for _, w := range f.workers {
		if w.Health().Connected {
			n++
		}
	}
	return n
}

// await waits until that many are connected.
func (f *fleet) await(ctx context.Context, n int) error {
	for f.connected() < n {
		if !sleep(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}
