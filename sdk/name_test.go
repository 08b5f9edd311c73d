package sdk

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pulse/schema/workerv1"
)

// Behind a name are other servers after a while, and those that were there are gone
// without a word. The name is looked up for each connection, so that workers and
// clients find them, although no address of theirs has changed.
func TestANameThatLeadsElsewhereIsLookedUpAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, next := newGateway(t), newGateway(t)
		next.queueID = old.queueID
		const name = "pulse.example:7400"
		dials := []func(context.Context, string, string) (net.Conn, error){}
		for _, g := range []*gateway{old, next} {
			dials = append(dials, g.client().Transport.(*http.Transport).DialContext)
		}
		var leadsTo atomic.Int64
		transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != name {
				t.Errorf("%s is dialled: the name was not left to the dialler", addr)
			}
			return dials[leadsTo.Load()](ctx, network, addr)
		}}
		defer transport.CloseIdleConnections()
		addrs := []string{"http://" + name}
		w := old.work(func(ctx context.Context, _ *Task) (any, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(50 * time.Second):
				return nil, nil
			}
		}, func(o *WorkerOptions) { o.Addrs, o.HTTPClient = addrs, &http.Client{Transport: transport} })
		client := NewClient(ClientOptions{Addrs: addrs, HTTPClient: &http.Client{Transport: transport}, Logger: slog.New(slog.DiscardHandler)})
		look := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out struct{ ID string }
			err := client.api.call(ctx, request{method: http.MethodGet, path: "/v1/namespaces/default/queues/default"}, &out)
			if err != nil || out.ID != old.queueID.String() {
				t.Errorf("the queue is %q, %v", out.ID, err)
			}
		}
		c, _ := old.accept()
		c.offer()
		start, _ := expect[*workerv1.Start](c)
		c.accepted(start, leaseFor(30*time.Second))
		look() // its connection stays open for the next call
		synctest.Wait()

		leadsTo.Store(1)
		old.freeze()
		looked := make(chan struct{})
		go func() {
			defer close(looked)
			look()
		}()
		c, _ = next.accept()
		for finished := false; !finished; {
			frame := c.next()
			switch body := frame.Body.(type) {
			case *workerv1.Resume:
				lease := leaseFor(10 * time.Second)
				c.reply(frame, &workerv1.Ack{Lease: &lease})
			case *workerv1.Renew:
				c.accepted(frame, leaseFor(30*time.Second))
			case *workerv1.Finish:
				if body.Outcome != workerv1.OutcomeSucceeded {
					t.Errorf("finish: %+v %s", body, body.Result)
				}
				c.finished(frame)
				finished = true
			}
		}
		<-looked
		if stats := w.Stats(); stats.LeasesLost != 0 || stats.Sessions != 2 {
			t.Errorf("stats: %+v", stats)
		}
	})
}
