// Package pulsetest runs a real Pulse node inside a test, so that code which
// submits or runs tasks is tested against what it will meet, not a fake of it.
//
//	func TestGreeting(t *testing.T) {
//		pulse := pulsetest.Start(t)
//		pulse.Handle("greet", "1", "1", greet)
//		task := pulse.Do(sdk.TaskSpec{Handler: "greet", Payload: "Ada"})
//		if task.State != sdk.StateSucceeded { … }
//	}
//
// Each Server has a data directory and a free port on the loopback address of
// its own, so tests can run in parallel. It keeps nothing after the test. Time
// in it is real time: a test that has to see a lease end gives its queue a short
// one.
//
// This is the one package under sdk that contains the server. Only tests should
// import it.
package pulsetest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"pulse/cmd/node"
	"pulse/sdk"
)

// Patience bounds every wait of this package: for the node to serve, for a
// worker to connect, for a task of Do to be settled. It is not how long they
// take.
const Patience = time.Minute

// electionTimeout is how long a lone voter waits before it leads; nobody else
// can want to.
const electionTimeout = 50 * time.Millisecond

// Server is a node in this process. Its methods fail the test when they cannot
// do what they say, so they are for the goroutine of the test.
type Server struct {
	t      testing.TB
	config node.Config
	node   *node.Node
}

// Start starts a node and returns when it serves. It is closed when the test
// ends, after the workers started with Run.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, config: node.Config{
		DataDir: t.TempDir(), HTTPAddr: "127.0.0.1:0", ElectionTimeout: electionTimeout, WriteLimit: Patience, Logger: logger(t),
	}}
	s.start()
	s.config.HTTPAddr = s.node.Addr() // a restarted node is where its clients look for it
	t.Cleanup(s.stop)
	return s
}

func (s *Server) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	started, err := node.Start(ctx, s.config)
	if err == nil {
		err = started.WaitReady(ctx)
	}
	if err != nil {
		s.t.Fatalf("pulsetest: %v", err)
	}
	s.node = started
}

func (s *Server) stop() {
	if err := s.node.Close(context.Background()); err != nil {
		s.t.Errorf("pulsetest: %v", err)
	}
}

// Restart stops the node in an orderly way and starts it again on the same data
// and address. Clients and workers find it again by themselves.
func (s *Server) Restart() {
	s.t.Helper()
	s.stop()
	s.start()
}

// Addr is the address for ClientOptions and WorkerOptions.
func (s *Server) Addr() string { return s.node.URL() }

// Client is a client of namespace and queue default.
func (s *Server) Client() *sdk.Client {
	return sdk.NewClient(sdk.ClientOptions{Addr: s.Addr(), Logger: logger(s.t)})
}

// Worker is a worker of the node; fill in what else it needs, give it its
// handlers, and hand it to Run.
func (s *Server) Worker(options sdk.WorkerOptions) *sdk.Worker {
	options.Addrs = []string{s.Addr()}
	if options.Logger == nil {
		options.Logger = logger(s.t)
	}
	return sdk.NewWorker(options)
}

// Run runs a worker until the test ends, and returns when it is connected.
func (s *Server) Run(worker *sdk.Worker) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("pulsetest: worker: %v", err)
		}
	})
	select {
	case <-worker.Ready():
	case err := <-done:
		done <- nil
		s.t.Fatalf("pulsetest: worker: %v", err)
	case <-time.After(Patience):
		s.t.Fatalf("pulsetest: the worker does not connect: %v", worker.Health().LastError)
	}
}

// Handle runs a worker with this one handler until the test ends.
func (s *Server) Handle(handler, version, payloadVersion string, run sdk.Handler) {
	s.t.Helper()
	worker := s.Worker(sdk.WorkerOptions{})
	worker.Handle(handler, version, payloadVersion, run)
	s.Run(worker)
}

// Do submits a task and waits until it is settled.
func (s *Server) Do(spec sdk.TaskSpec) *sdk.TaskInfo {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	client := s.Client()
	task, err := client.Submit(ctx, spec)
	if err == nil {
		task, err = client.Wait(ctx, task.ID)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.t.Fatalf("pulsetest: the task is not settled after %s: %v", Patience, err)
	}
	if err != nil {
		s.t.Fatalf("pulsetest: %v", err)
	}
	return task
}

// logger writes to the log of the test, which is shown when it fails.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}
