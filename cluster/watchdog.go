package cluster

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// DefaultWriteLimit is how long one write may take before the disk counts as
// hung.
const DefaultWriteLimit = 5 * time.Second

// closeLimit bounds what is done before the exit: that may hang too.
const closeLimit = time.Second

// WatchdogConfig of a Watchdog. Every field has a default.
type WatchdogConfig struct {
	Limit  time.Duration  // how long one write may take; default DefaultWriteLimit
	Exit   func(code int) // default os.Exit
	Logger *slog.Logger   // default slog.Default
}

// Watchdog ends the process when a write hangs or a disk has failed.
//
// A leader whose disk hangs goes on sending heartbeats, so its followers never
// replace it and the cluster stands still for as long as the disk does. And a
// process that exits with a thread stuck in the kernel lingers, with its sockets
// open and the kernel accepting new connections. Therefore all listeners and
// connections are closed before the exit. The hung write is never turned into
// an error: it may land yet.
type Watchdog struct {
	cfg  WatchdogConfig
	stop chan struct{}
	done chan struct{}
	once sync.Once // firing

	mu      sync.Mutex
	running map[uint64]operation
	look    *time.Timer // set while something runs, and until it has found that nothing does
	armed   bool
	last    uint64
	closers []func()
	stopped bool
}

type operation struct {
	name  string
	since time.Time
}

// NewWatchdog returns a watchdog that watches until Stop.
func NewWatchdog(cfg WatchdogConfig) *Watchdog {
	def(&cfg.Limit, DefaultWriteLimit)
	if cfg.Exit == nil {
		cfg.Exit = os.Exit
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &Watchdog{
		cfg:     cfg,
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
		running: map[uint64]operation{},
		look:    time.NewTimer(cfg.Limit),
		armed:   true,
	}
	go w.run()
	return w
}

// OnFire adds something that closes listeners or connections before the exit.
func (w *Watchdog) OnFire(closer func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closers = append(w.closers, closer)
}

// Begin times an operation until the returned function is called.
func (w *Watchdog) Begin(op string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	id := w.last
	w.running[id] = operation{op, time.Now()}
	if !w.armed {
		w.armed = true
		w.look.Reset(w.cfg.Limit)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.running, id)
	}
}

// Slow reports an operation that a store times itself, as Pebble does, and that
// has taken so long by now.
func (w *Watchdog) Slow(op string, took time.Duration) {
	if took >= w.cfg.Limit {
		w.fire("a write hangs", "operation", op, "after", took)
	}
}

// Fatal ends the process because of an error after which the files must not be
// used any more: a failed write may have landed, and a later success of the
// same call would prove nothing.
func (w *Watchdog) Fatal(what string, err error) {
	w.fire("a store has failed", "operation", what, "error", err)
}

// Stop ends watching and waits for it.
func (w *Watchdog) Stop() {
	w.mu.Lock()
	if !w.stopped {
		w.stopped = true
		close(w.stop)
	}
	w.mu.Unlock()
	<-w.done
}

func (w *Watchdog) run() {
	defer close(w.done)
	defer w.look.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.look.C:
			w.lookNow()
		}
	}
}

// lookNow fires if something hangs. It looks again when what has run for longest would,
// and not at all while nothing runs.
func (w *Watchdog) lookNow() {
	w.mu.Lock()
	op, took := w.longest()
	if w.armed = len(w.running) > 0; w.armed {
		w.look.Reset(max(w.cfg.Limit-took, time.Millisecond))
	}
	w.mu.Unlock()
	if took >= w.cfg.Limit {
		w.fire("a write hangs", "operation", op, "after", took)
	}
}

// longest is called with mu held.
func (w *Watchdog) longest() (name string, took time.Duration) {
	for _, op := range w.running {
		if d := time.Since(op.since); d > took {
			name, took = op.name, d
		}
	}
	return name, took
}

func (w *Watchdog) fire(why string, details ...any) {
	w.once.Do(func() {
		w.cfg.Logger.Error(why+"; this process ends now, restart it once the disk is sound", details...)
		w.mu.Lock()
		closers := w.closers
		w.mu.Unlock()
		var all sync.WaitGroup
		for _, closer := range closers {
			all.Go(closer)
		}
		closed := make(chan struct{})
		go func() {
			all.Wait()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(closeLimit):
		}
		w.cfg.Exit(1)
	})
}
