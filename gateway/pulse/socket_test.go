package pulse

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/workerv1"
	"pulse/test/calm"
)

// onSockets runs a gateway on real sockets; stop ends it.
func onSockets(tb testing.TB, state *state) (handler *Handler, hub *session.Hub, dial func(context.Context) (*websocket.Conn, error), stop func()) {
	tb.Helper()
	logger := slog.New(slog.DiscardHandler)
	hub, err := session.NewHub(session.Config{GatewayID: gatewayID, Backend: state, LeaseKey: leaseKey, Logger: logger})
	if err != nil {
		tb.Fatal(err)
	}
	handler, err = NewHandler(Config{Hub: hub, Logger: logger})
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: handler}
	var running sync.WaitGroup
	running.Go(func() { hub.Run(ctx) })
	running.Go(func() { _ = server.Serve(listener) })
	transport := &http.Transport{DisableKeepAlives: true}
	dial = func(ctx context.Context) (*websocket.Conn, error) {
		ws, _, err := websocket.Dial(ctx, "ws://"+listener.Addr().String(), &websocket.DialOptions{ //nolint:bodyclose // the library has closed it
			HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{workerv1.Subprotocol},
		})
		return ws, err
	}
	return handler, hub, dial, func() {
		deadline, done := context.WithTimeout(context.Background(), calm.Patience)
		defer done()
		handler.Shutdown(deadline)
		_ = server.Close()
		cancel()
		running.Wait()
	}
}

// own gives every instance a session of its own.
func own(_ context.Context, c *pb.Command) *pb.Result {
	if !registers(c) {
		return nil
	}
	r := goesWell(c)
	r.GetSession().SessionId = c.GetRegisterSession().GetInstanceId()
	return r
}

// A thousand workers that come, work and go in every way there is: at the end
// the process is as it was.
func TestAThousandWorkersLeaveNothingBehind(t *testing.T) {
	// Not parallel: it counts the goroutines of the process.
	base := runtime.NumGoroutine()
	state := new(state)
	state.script(own)
	handler, hub, dial, stop := onSockets(t, state)

	cycle := func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), calm.Patience)
		defer cancel()
		ws, err := dial(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = ws.CloseNow() }()
		send := func(f workerv1.ClientFrame) error {
			text, err := workerv1.AppendClient(nil, f)
			if err != nil {
				return err
			}
			return ws.Write(ctx, websocket.MessageText, text)
		}
		if i%10 == 9 {
			return nil // leaves without a word
		}
		f := helloFrame(1)
		f.Body.(*workerv1.Hello).InstanceID = ident(10_000 + i)
		if err := send(f); err != nil {
			return err
		}
		if _, _, err := ws.Read(ctx); err != nil {
			return fmt.Errorf("welcome: %w", err)
		}
		for j := range 4 {
			f := about(2+j, j, start)
			f.SessionID = ident(10_000 + i)
			if err := send(f); err != nil {
				return err
			}
		}
		d := assignment(i, `{}`)
		d.SessionId = raw(ident(10_000 + i))
		hub.Deliver([]*pb.Delivery{d})
		switch i % 5 {
		case 0: // leaves with frames unread
			return nil
		case 1: // ends in an error
			if err := ws.Write(ctx, websocket.MessageText, []byte("nonsense")); err != nil {
				return err
			}
			for {
				if _, _, err := ws.Read(ctx); err != nil {
					if got := websocket.CloseStatus(err); got != 1008 {
						return fmt.Errorf("closed with %v: %w", got, err)
					}
					return nil
				}
			}
		case 2: // is ended by the cluster
			d := closing(schema.SessionSuperseded)
			d.SessionId = raw(ident(10_000 + i))
			hub.Deliver([]*pb.Delivery{d})
			for {
				if _, _, err := ws.Read(ctx); err != nil {
					return nil
				}
			}
		}
		for range 5 {
			if _, _, err := ws.Read(ctx); err != nil {
				return fmt.Errorf("answers: %w", err)
			}
		}
		return ws.Close(websocket.StatusNormalClosure, "")
	}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := w; i < 1000; i += 8 {
				if err := cycle(i); err != nil {
					t.Errorf("worker %d: %v", i, err)
				}
			}
		})
	}
	workers.Wait()
	stop()

	if n := hub.Counters().Sessions.Load(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	if n := hub.Counters().Registered.Load(); n != 900 {
		t.Errorf("%d workers registered, want 900", n)
	}
	if n := handler.Connections().Open.Load(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	deadline := time.Now().Add(calm.Patience)
	for runtime.NumGoroutine() > base && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if now := runtime.NumGoroutine(); now > base {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, there were %d\n%s", now, base, stacks[:runtime.Stack(stacks, true)])
	}
}

// What one connection carries: renewals of 64 attempts at once, answered by a
// state that costs nothing.
func BenchmarkCommands(b *testing.B) {
	state := new(state)
	state.script(own)
	handler, hub, dial, stop := onSockets(b, state)
	defer stop()
	ctx := b.Context()
	ws, err := dial(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	write := func(f workerv1.ClientFrame) {
		text, err := workerv1.AppendClient(nil, f)
		if err == nil {
			err = ws.Write(ctx, websocket.MessageText, text)
		}
		if err != nil {
			b.Error(err)
		}
	}
	f := helloFrame(1)
	f.Body.(*workerv1.Hello).InstanceID = sessionID
	write(f)
	if _, _, err := ws.Read(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	slots := make(chan struct{}, 64)
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	go func() {
		for i := range b.N {
			slots <- struct{}{}
			write(about(i, i%64, renew))
		}
	}()
	for range b.N {
		if _, _, err := ws.Read(ctx); err != nil {
			b.Fatal(err)
		}
		<-slots
	}
	b.StopTimer()
	b.ReportMetric(float64(hub.Counters().Commands.Load())/float64(hub.Counters().Batches.Load()), "commands/batch")
	b.ReportMetric(float64(handler.Connections().FramesOut.Load())/float64(handler.Connections().Flushes.Load()), "frames/flush")
}
