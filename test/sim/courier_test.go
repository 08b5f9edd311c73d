package sim

import (
	"slices"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// Times of the courier; see cluster/duty.
const (
	repeatMost  = 5 * second
	repeatLeast = 250 * millis
	carryWithin = 5 * second
	batchMost   = 256
)

// courier tells workers what was decided, as long as it is true and nobody has
// shown that it arrived.
type courier struct {
	o      *office
	open   bool
	routes map[string]*route
}

// route is the way to one gateway. One batch is under way at a time.
type route struct {
	c       *courier
	gateway string
	parcels map[parcelKey]*parcel
	fresh   []*parcel
	repeats []*parcel // by due
	busy    bool
	look    int
	mail    *conn
}

type parcelKey struct {
	kind fsm.EffectKind
	id   id
}

type parcel struct {
	key    parcelKey
	effect fsm.Effect
	fresh  bool
	due    int64
}

func (c *courier) run() {
	c.open = true
	for _, e := range c.o.n.m.Undelivered() {
		c.put(e, false)
	}
}

func (c *courier) close() { c.open = false }

// offer takes the effects of an entry.
func (c *courier) offer(effects []fsm.Effect) {
	if c.open {
		for _, e := range effects {
			c.put(e, true)
		}
	}
}

func (c *courier) put(e fsm.Effect, news bool) {
	r := c.routes[e.GatewayID]
	if r == nil {
		r = &route{c: c, gateway: e.GatewayID, parcels: map[parcelKey]*parcel{}}
		c.routes[e.GatewayID] = r
	}
	key := parcelKey{e.Kind, e.AttemptID}
	if e.Kind == fsm.EffectClose {
		key.id = e.SessionID
	}
	p := r.parcels[key]
	switch {
	case p != nil && !news && p.effect.SessionID == e.SessionID:
		return
	case p != nil:
		p.effect = e
	default:
		p = &parcel{key: key, effect: e}
		r.parcels[key] = p
	}
	if !p.fresh {
		p.fresh = true
		r.fresh = append(r.fresh, p)
		r.wake(0)
	}
}

func (r *route) wake(wait int64) {
	r.look++
	mine := r.look
	r.c.o.s.after(r.c.o.n.p, wait, func() {
		if r.look == mine && r.c.open && !r.busy {
			r.step()
		}
	})
}

// every is the time between two sayings of a parcel.
func every(e fsm.Effect) int64 {
	offer := e.OfferUntil - e.OfferedAt
	if offer <= 0 {
		return repeatMost
	}
	return min(max(offer/3, repeatLeast), repeatMost)
}

// step says what is due.
func (r *route) step() {
	s := r.c.o.s
	var due []*parcel
	n := min(len(r.fresh), batchMost)
	for _, p := range r.fresh[:n] {
		p.fresh = false
		r.repeats = slices.DeleteFunc(r.repeats, func(q *parcel) bool { return q == p })
		due = append(due, p)
	}
	r.fresh = slices.Clone(r.fresh[n:])
	for len(due) < batchMost && len(r.repeats) > 0 && r.repeats[0].due <= s.now {
		due = append(due, r.repeats[0])
		r.repeats = r.repeats[1:]
	}
	if len(due) == 0 {
		if len(r.repeats) > 0 {
			r.wake(r.repeats[0].due - s.now)
		}
		return
	}
	began := s.now
	var batch []*pb.Delivery
	for _, p := range due {
		d := r.c.o.n.m.Delivery(p.effect)
		if d == nil {
			r.settle(p)
			continue
		}
		batch = append(batch, d)
		if p.effect.Kind == fsm.EffectClose || p.effect.Once {
			r.settle(p) // nothing will show that it arrived
		}
	}
	r.busy = true
	r.carry(batch, func() {
		r.busy = false
		for _, p := range due {
			if r.parcels[p.key] == p && !p.fresh {
				p.due = began + every(p.effect)
				at, _ := slices.BinarySearchFunc(r.repeats, p, func(a, b *parcel) int {
					if a.due <= b.due {
						return -1
					}
					return 1
				})
				r.repeats = slices.Insert(r.repeats, at, p)
			}
		}
		if r.c.open {
			r.wake(0)
		}
	})
}

// settle forgets a parcel, unless there was news about it meanwhile.
func (r *route) settle(p *parcel) {
	if !p.fresh && r.parcels[p.key] == p {
		delete(r.parcels, p.key)
	}
}

// carry brings a batch to the gateway, or gives up after a while.
func (r *route) carry(batch []*pb.Delivery, done func()) {
	s, n := r.c.o.s, r.c.o.n
	if len(batch) == 0 {
		done()
		return
	}
	over := false
	end := func() {
		if !over {
			over = true
			done()
		}
	}
	if r.gateway == n.p.name {
		n.gw.arrive(batch)
		end()
		return
	}
	g := s.gatewayNamed(r.gateway)
	if g == nil || !g.p.up {
		s.after(n.p, 100*millis, end) // nobody there to talk to
		return
	}
	if r.mail == nil || r.mail.known[0] {
		r.mail = s.connect(n.p, g.p, carryWithin, nil, nil)
	}
	mail := r.mail
	s.after(n.p, carryWithin, func() {
		if !over {
			mail.close(0)
			end()
		}
	})
	mail.send(1, func() {
		s.gatewayNamed(r.gateway).arrive(batch)
		mail.send(0, end)
	})
}
