package duty

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// route is the way to one gateway: what its workers have yet to take notice
// of, and the goroutine that says it.
type route struct {
	courier *Courier
	gateway string
	wake    chan struct{} // capacity 1: fresh is not empty, or retired

	mu      sync.Mutex
	parcels map[parcelKey]*parcel
	fresh   []*parcel  // to be said at once, in order of arrival
	repeats repeatHeap // to be said again, by time
	busy    bool       // a batch is being handed over
	retired bool
	failed  int // sayings in a row of which something did not arrive
}

// parcelKey is what makes two effects one: an attempt is offered once and
// cancelled once, a session is closed once.
type parcelKey struct {
	kind fsm.EffectKind
	id   fsm.ID // attempt, or session with EffectClose
}

// parcel is one thing to be said until it is no longer true. Its fields are
// guarded by route.mu, but for missed, which the goroutine that says it has for
// itself.
type parcel struct {
	key    parcelKey
	effect fsm.Effect
	sent   bool // at least once: the next time is a repeat
	missed bool // the last time it was said, nobody was reached
	fresh  bool // is in route.fresh
	due    time.Time
	place  int // in route.repeats, -1 if not there
}

func newRoute(c *Courier, gateway string) *route {
	return &route{courier: c, gateway: gateway, wake: make(chan struct{}, 1), parcels: make(map[parcelKey]*parcel)}
}

func keyOf(e fsm.Effect) parcelKey {
	if e.Kind == fsm.EffectClose {
		return parcelKey{e.Kind, e.SessionID}
	}
	return parcelKey{e.Kind, e.AttemptID}
}

// every is the time between two sayings: a third of the offer, so that the
// second and third fall on a third and two thirds of it, and never more than
// repeatMost.
func every(e fsm.Effect) time.Duration {
	offer := time.Duration(e.OfferUntil-e.OfferedAt) * time.Microsecond
	if offer <= 0 {
		return repeatMost
	}
	return min(max(offer/3, repeatLeast), repeatMost)
}

// afterMiss is the time until the next try for a gateway that was not reached.
// It may only just have come, and be unknown here until gossip arrives: its
// workers need not wait for as long as one that does not answer.
func afterMiss(e fsm.Effect, failed int) time.Duration {
	return min(every(e), missLeast<<min(failed-1, 8))
}

// saidOnce tells what no later state shows to have arrived. A lost close is made
// good by the gateway's report, a lost cancel of an offer by the refusal of its
// start.
func saidOnce(e fsm.Effect) bool { return e.Kind == fsm.EffectClose || e.Once }

// put takes an effect and says whether there was room.
func (r *route) put(effect fsm.Effect, news bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(effect)
	p := r.parcels[key]
	switch {
	case p != nil && !news && p.effect.SessionID == effect.SessionID:
		return true
	case p != nil:
		p.effect, p.sent = effect, false
	case len(r.parcels) >= routeMost:
		return false
	default:
		p = &parcel{key: key, effect: effect, place: -1}
		r.parcels[key] = p
	}
	if !p.fresh {
		p.fresh = true
		r.fresh = append(r.fresh, p)
		r.signal()
	}
	return true
}

// run says what is due until ctx ends or the route is retired.
func (r *route) run(ctx context.Context) {
	timer := time.NewTimer(repeatMost)
	defer timer.Stop()
	for ctx.Err() == nil {
		due, next, retired := r.collect(time.Now())
		if retired {
			return
		}
		if len(due) > 0 {
			r.say(ctx, due)
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// collect takes at most a batch of parcels that are due: news first, since a
// repeat has been said before. Without any it returns how long to wait.
func (r *route) collect(now time.Time) (due []*parcel, next time.Duration, retired bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired {
		return nil, 0, true
	}
	n := min(len(r.fresh), batchMost)
	for _, p := range r.fresh[:n] {
		p.fresh = false
		if p.place >= 0 {
			heap.Remove(&r.repeats, p.place)
		}
		due = append(due, p)
	}
	r.fresh = r.fresh[n:]
	if len(r.fresh) == 0 {
		r.fresh = nil // let go of the array
	}
	for len(due) < batchMost && len(r.repeats) > 0 && !r.repeats[0].due.After(now) {
		due = append(due, heap.Pop(&r.repeats).(*parcel))
	}
	r.busy = len(due) > 0
	next = repeatMost
	if len(r.repeats) > 0 {
		next = min(next, r.repeats[0].due.Sub(now))
	}
	return due, next, false
}

// say looks up what the parcels stand for, hands it over, and sees to it that
// it is said again.
func (r *route) say(ctx context.Context, due []*parcel) {
	began := time.Now()
	var batch []*pb.Delivery
	var in []*parcel
	bytes, repeats := 0, 0
	flush := func() {
		arrived := r.carry(ctx, batch, repeats)
		for _, p := range in {
			p.missed = !arrived
		}
		batch, in, bytes, repeats = nil, nil, 0, 0
	}
	for _, p := range due {
		// Only put, under the lock, writes an effect.
		r.mu.Lock()
		effect, again := p.effect, p.sent
		p.sent = true
		r.mu.Unlock()

		d := r.courier.source.Delivery(effect)
		if d == nil {
			r.courier.counters.obsolete.Add(1)
			r.settle(p)
			continue
		}
		size := proto.Size(d)
		if len(batch) > 0 && bytes+size > batchBytes {
			flush()
		}
		batch, in = append(batch, d), append(in, p)
		bytes += size
		if again {
			repeats++
		}
		if saidOnce(effect) {
			r.settle(p)
		}
	}
	if len(batch) > 0 {
		flush()
	}
	r.later(due, began)
}

// carry hands a batch over and says whether it arrived.
func (r *route) carry(ctx context.Context, batch []*pb.Delivery, repeats int) (arrived bool) {
	ctx, cancel := context.WithTimeout(ctx, carryTimeout)
	defer cancel()
	counters := &r.courier.counters
	if err := r.courier.carrier.Carry(ctx, r.gateway, batch); err != nil {
		counters.failed.Add(uint64(len(batch)))
		r.courier.logger.Debug("gateway not reached, will repeat", "gateway", r.gateway, "deliveries", len(batch), "err", err)
		return false
	}
	counters.carried.Add(uint64(len(batch)))
	counters.repeated.Add(uint64(repeats))
	return true
}

// settle forgets a parcel, unless there was news about it since the look-up.
func (r *route) settle(p *parcel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.fresh && r.parcels[p.key] == p {
		delete(r.parcels, p.key)
	}
}

// later enters the parcels that are still kept for their next saying.
func (r *route) later(due []*parcel, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	if slices.ContainsFunc(due, func(p *parcel) bool { return p.missed }) {
		r.failed++
	} else {
		r.failed = 0
	}
	for _, p := range due {
		if r.parcels[p.key] != p || p.fresh {
			continue
		}
		p.due = began.Add(every(p.effect))
		if p.missed {
			p.due = began.Add(afterMiss(p.effect, r.failed))
		}
		heap.Push(&r.repeats, p)
	}
}

// retire ends the route if it has nothing to do, and says whether it did.
func (r *route) retire() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.parcels) > 0 || r.busy {
		return false
	}
	r.retired = true
	r.signal()
	return true
}

func (r *route) tracked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.parcels)
}

func (r *route) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// repeatHeap orders parcels by their next saying.
type repeatHeap []*parcel

func (h repeatHeap) Len() int           { return len(h) }
func (h repeatHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h repeatHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *repeatHeap) Push(x any) {
	p := x.(*parcel)
	p.place = len(*h)
	*h = append(*h, p)
}
func (h *repeatHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.place = -1
	return p
}
