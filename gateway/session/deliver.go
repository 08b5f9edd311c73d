package session

import (
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// parkedMax bounds the deliveries that wait for a registration. What does not
// fit is dropped; the leader repeats it.
const parkedMax = 4096

// parked is a delivery for a session that is not here, while registrations up
// to number upTo were under way: one of them may have made it. A commit is told
// to the gateway on two paths, as the result of the registration and as a
// delivery, and nothing says which is faster.
type parked struct {
	delivery *pb.Delivery
	upTo     uint64
}

// Deliver takes what the leader has to say to sessions of this gateway. It
// never waits for a worker; what is lost is repeated.
func (h *Hub) Deliver(deliveries []*pb.Delivery) {
	h.mu.Lock()
	upTo := h.registered
	h.mu.Unlock()
	for _, d := range deliveries {
		if d.GetGatewayId() != h.cfg.GatewayID {
			h.cfg.Logger.Warn("delivery for another gateway dropped", "gateway", d.GetGatewayId())
			continue
		}
		h.route(d, upTo)
	}
}

// route gives a delivery to its session. upTo is the newest registration that
// had begun when it arrived.
func (h *Hub) route(d *pb.Delivery, upTo uint64) {
	id, ok := toID(d.GetSessionId())
	if !ok {
		h.cfg.Logger.Warn("delivery without a session dropped")
		return
	}
	h.mu.Lock()
	handle := h.sessions[id]
	wait := handle == nil && h.underWay(upTo) && len(h.parked) < parkedMax
	if wait {
		h.parked = append(h.parked, parked{delivery: d, upTo: upTo})
	}
	h.mu.Unlock()
	switch {
	case handle != nil:
		handle.deliver(d)
	case !wait:
		h.missed(id, d)
	}
}

// underWay is called with mu held.
func (h *Hub) underWay(upTo uint64) bool {
	for r := range h.registrations {
		if r.number <= upTo {
			return true
		}
	}
	return false
}

// missed answers for a session that is not here. If the state thinks it is,
// work is being offered to nobody: then the session is reported as closed.
func (h *Hub) missed(id schema.ID, d *pb.Delivery) {
	h.counters.Undeliverable.Add(1)
	assign := d.GetAssign()
	if assign == nil {
		return
	}
	instance, ok := toID(assign.GetTask().GetLease().GetInstanceId())
	namespace, ok2 := toID(assign.GetTask().GetTask().GetNamespaceId())
	if !ok || !ok2 {
		h.cfg.Logger.Warn("assignment without instance or namespace dropped", "session", id)
		return
	}
	h.closer.add(closing{session: session{id: id, instance: instance, namespace: namespace}, undeliverable: true})
}
