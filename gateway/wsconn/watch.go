package wsconn

import (
	"slices"
	"sync"
	"time"
)

// looksInPing is how often the watch looks in PingEvery.
const looksInPing = 10

// watch pings the peers of all connections that were not heard of, and judges their
// liveness, on one goroutine: a timer of its own for each of thousands of idle
// connections would wake the process hundreds of times a second. Pings that are sent
// together are answered together.
type watch struct {
	cfg   *Config
	every time.Duration

	mu         sync.Mutex
	conns      map[*Conn]struct{}
	stop, done chan struct{} // of the goroutine, which is there while there are connections
}

func (w *watch) init(cfg *Config) {
	w.cfg, w.every, w.conns = cfg, cfg.PingEvery/looksInPing, map[*Conn]struct{}{}
}

func (w *watch) add(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = struct{}{}
	if w.stop == nil {
		w.stop, w.done = make(chan struct{}), make(chan struct{})
		go w.run(w.stop, w.done)
	}
}

// remove forgets a connection. With the last one the goroutine ends.
func (w *watch) remove(c *Conn) {
	w.mu.Lock()
	delete(w.conns, c)
	if len(w.conns) > 0 {
		w.mu.Unlock()
		return
	}
	stop, done := w.stop, w.done
	w.stop, w.done = nil, nil
	w.mu.Unlock()
	close(stop)
	<-done // it waits for no connection
}

func (w *watch) run(stop, done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(w.every)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-timer.C:
			timer.Reset(w.look(now))
		}
	}
}

// look does what is to be done now, and says when to look again: not later than the
// next peer has to be cut off.
func (w *watch) look(now time.Time) (again time.Duration) {
	again = w.every
	var ask, rest []*Conn
	cut := map[*Conn]error{}
	w.mu.Lock()
	for c := range w.conns {
		since := now.Sub(c.born)
		heard, begun := time.Duration(c.heard.Load()), time.Duration(c.begun.Load())
		switch {
		case since-heard >= w.cfg.LiveFor:
			cut[c] = ErrSilent
			continue
		case begun != 0 && since-begun >= w.cfg.LiveFor:
			cut[c] = ErrSlowFrame
			continue
		}
		again = min(again, heard+w.cfg.LiveFor-since)
		if begun != 0 {
			again = min(again, begun+w.cfg.LiveFor-since)
		}
		// Before the next look it would have been silent for longer.
		if since-max(heard, c.asked) > w.cfg.PingEvery-w.every {
			ask = append(ask, c)
		}
		if n := c.flushes.Load(); n != c.seen {
			c.seen = n
		} else if c.writer.Load() == writerResting {
			rest = append(rest, c)
		}
	}
	w.mu.Unlock()
	for c, cause := range cut {
		if c.Cut(cause) {
			w.cfg.Counters.SilentCuts.Add(1)
		}
	}
	ask = slices.DeleteFunc(ask, func(c *Conn) bool { return !c.net.ping() })
	w.mu.Lock()
	for _, c := range ask {
		c.asked = now.Sub(c.born)
	}
	w.mu.Unlock()
	for _, c := range rest {
		c.retire()
	}
	return again
}
