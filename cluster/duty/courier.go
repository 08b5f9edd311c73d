package duty

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

const (
	// repeatMost is the longest a worker is left untold.
	repeatMost = 5 * time.Second
	// repeatLeast keeps an offer of a second from turning into a storm.
	repeatLeast = 250 * time.Millisecond
	// missLeast is the pause before the second try for a gateway that was not
	// reached; each further one is twice as long.
	missLeast = 50 * time.Millisecond
	// rescanPause spaces the searches for effects that found their route full.
	rescanPause = time.Second
	// sweepEvery is how often routes without work are given up.
	sweepEvery = time.Minute
	// carryTimeout bounds one hand-over; a gateway that takes longer gets the
	// batch again with the next repeat.
	carryTimeout = 5 * time.Second
	// batchMost and batchBytes bound one hand-over.
	batchMost  = 256
	batchBytes = 1 << 20
	// routeMost is how many attempts a route keeps in mind. What does not fit
	// is found again by a rescan when others have started.
	routeMost = 65536
)

// Source is the machine as the courier sees it. Both methods are called from
// the courier's goroutines.
type Source interface {
	// Delivery makes what is to be said from the state as it is now, or nil if
	// there is nothing left to say.
	Delivery(fsm.Effect) *pb.Delivery
	// Undelivered lists every LEASED attempt and every wanted cancel.
	Undelivered() []fsm.Effect
}

// Carrier brings deliveries to a gateway. An error means that some of the
// batch may not have arrived; the courier repeats what stays true.
type Carrier interface {
	Carry(ctx context.Context, gatewayID string, batch []*pb.Delivery) error
}

// Courier is the duty that tells workers what was decided. Offer may be called
// at any time from the apply goroutine; Run is the duty.
type Courier struct {
	source  Source
	carrier Carrier
	logger  *slog.Logger

	counters counters

	mu      sync.Mutex
	routes  map[string]*route // nil while not in office
	started []*route          // made by Offer, goroutine to be started by Run
	rescan  bool              // something found its route full
	wake    chan struct{}     // capacity 1: started or rescan has something
}

// NewCourier makes a courier that drops every offer until Run is called.
func NewCourier(source Source, carrier Carrier, logger *slog.Logger) (*Courier, error) {
	switch {
	case source == nil:
		return nil, errors.New("duty: courier without a source: give the machine")
	case carrier == nil:
		return nil, errors.New("duty: courier without a carrier: give the gateways' hub")
	case logger == nil:
		return nil, errors.New("duty: courier without a logger: give one, slog.DiscardHandler for silence")
	}
	return &Courier{source: source, carrier: carrier, logger: logger, wake: make(chan struct{}, 1)}, nil
}

// Offer takes the effects of an entry. It never blocks; out of office it drops
// them, because whoever is in office made the same ones.
func (c *Courier) Offer(effects []fsm.Effect) {
	if len(effects) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.routes == nil {
		return
	}
	for i := range effects {
		c.put(effects[i], true)
	}
}

// Run is the duty of one term. It returns nil when ctx ends, after every
// hand-over in progress has returned.
func (c *Courier) Run(ctx context.Context, term uint64) error {
	var routes sync.WaitGroup
	defer routes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// First open the door, then look for what went before: an effect between
	// the two is taken twice and kept once.
	c.open()
	defer c.close()
	found := c.scan()
	c.logger.Debug("courier took office", "term", term, "undelivered", found)

	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	var again <-chan time.Time // nil while no scan is called for
	for {
		started, rescan := c.take()
		for _, r := range started {
			routes.Go(func() { r.run(ctx) })
		}
		if rescan && again == nil {
			again = time.After(rescanPause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-again:
			again = nil
			c.scan()
		case <-sweep.C:
			c.sweep()
		}
	}
}

func (c *Courier) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes = make(map[string]*route)
	c.started, c.rescan = nil, false
}

func (c *Courier) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes, c.started = nil, nil
}

// take returns what Offer left for Run.
func (c *Courier) take() (started []*route, rescan bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	started, rescan = c.started, c.rescan
	c.started, c.rescan = nil, false
	return started, rescan
}

// scan offers everything that the machine holds to be undelivered and that no
// route has in mind. It returns how many there are.
func (c *Courier) scan() int {
	effects := c.source.Undelivered()
	c.counters.scans.Add(1)
	// A few at a time, so that apply does not wait behind a long list.
	const chunk = 1024
	for rest := effects; len(rest) > 0; {
		n := min(chunk, len(rest))
		c.mu.Lock()
		for i := range rest[:n] {
			c.put(rest[i], false)
		}
		c.mu.Unlock()
		rest = rest[n:]
	}
	return len(effects)
}

// put hands an effect to its gateway's route. News is told at once even if the
// route knows the attempt (its worker is back on another connection); what a
// scan finds is told only if the route does not know it.
//
// c.mu is held.
func (c *Courier) put(effect fsm.Effect, news bool) {
	if c.routes == nil {
		return
	}
	r := c.routes[effect.GatewayID]
	if r == nil {
		r = newRoute(c, effect.GatewayID)
		c.routes[effect.GatewayID] = r
		c.started = append(c.started, r)
		c.signal()
	}
	if !r.put(effect, news) {
		c.counters.overflows.Add(1)
		c.rescan = true
		c.signal()
	}
}

// sweep gives up routes without work, whose gateways may be gone for good.
func (c *Courier) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, r := range c.routes {
		if r.retire() {
			delete(c.routes, id)
		}
	}
}

func (c *Courier) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

type counters struct {
	carried, repeated, failed, obsolete, overflows, scans atomic.Uint64
}

// Stats are the courier's counters since the process started, and what it has
// in mind now.
type Stats struct {
	Carried   uint64 // deliveries handed over, repeats included
	Repeated  uint64 // of those, repeats
	Failed    uint64 // deliveries whose hand-over failed; they are repeated
	Obsolete  uint64 // hints with nothing left to say
	Overflows uint64 // hints that found their route full; found again by a scan
	Scans     uint64 // searches of the machine's list
	Routes    int    // gateways with something to be told
	Tracked   int    // attempts whose start, or end after a cancel, is awaited
}

// Stats may be called from any goroutine.
func (c *Courier) Stats() Stats {
	s := Stats{
		Carried:   c.counters.carried.Load(),
		Repeated:  c.counters.repeated.Load(),
		Failed:    c.counters.failed.Load(),
		Obsolete:  c.counters.obsolete.Load(),
		Overflows: c.counters.overflows.Load(),
		Scans:     c.counters.scans.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Routes = len(c.routes)
	for _, r := range c.routes {
		s.Tracked += r.tracked()
	}
	return s
}
