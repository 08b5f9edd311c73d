package model

import (
	"slices"

	pb "pulse/proto/pulse/v1"
)

const (
	gatewayLife   = 6 * second
	grace         = 2 * second
	sessionLifeMS = 60_000
	instanceKept  = 24 * hour
	holdFirstMS   = 1_000
	holdLastMS    = 60_000
)

func (m *Model) instance(ns *Namespace, id ID) *Instance {
	for _, i := range m.Instances {
		if i.Namespace == ns && i.ID == id {
			return i
		}
	}
	return nil
}

func (m *Model) gateway(id string) *Gateway {
	for _, g := range m.Gateways {
		if g.ID == id {
			return g
		}
	}
	return nil
}

// heard notes that a valid frame of the session came: it may be offered work
// again once its hold is over.
func (m *Model) heard(i *Instance) { i.Hold = false }

func capabilities(list []*pb.Capability) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.Handler+"\x00"+c.HandlerVersion+"\x00"+c.PayloadVersion)
	}
	slices.Sort(out)
	return out
}

func (m *Model) registerSession(b *pb.RegisterSession) Result {
	var q *Queue
	for _, x := range m.Queues {
		if x.ID == toID(b.QueueId) {
			q = x
		}
	}
	if q == nil {
		return refuse(notFound)
	}
	caps := capabilities(b.Capabilities)
	i := m.instance(q.Namespace, toID(b.InstanceId))
	if i != nil {
		switch {
		case i.secret != string(b.SecretHash):
			return refuse(forbidden)
		case i.Queue != q || !slices.Equal(i.Capabilities, caps) ||
			i.Notify != b.CancellationNotifications || i.Keys != b.ConcurrencyKeys:
			return refuse(identityConflict)
		case slices.Contains(m.registered, i):
			return refuse(unavailable)
		}
	} else {
		i = &Instance{ID: toID(b.InstanceId), Namespace: q.Namespace, Queue: q, Capabilities: caps,
			Notify: b.CancellationNotifications, Keys: b.ConcurrencyKeys, secret: string(b.SecretHash)}
		m.Instances = append(m.Instances, i)
	}
	if i.Sequence == 0 {
		i.Capacity = b.Capacity // one set by worker.capacity wins
	}
	i.Epoch = m.fence()
	i.GatewayID, i.Incarnation = b.GatewayId, string(b.GatewayIncarnation)
	i.Connected = true
	i.ConnectedAt, i.DisconnectedAt, i.EndedAt = m.Clock, 0, 0
	i.GraceOver = false
	i.renewedOpening = m.opening()
	i.seq = m.next()
	m.heard(i)
	m.registered = append(m.registered, i)
	m.fresh.sessions = append(m.fresh.sessions, i)
	return m.welcome(i)
}

func (m *Model) welcome(i *Instance) Result {
	return Result{Instance: i, Session: &Session{Instance: i, Epoch: i.Epoch, Capacity: i.Capacity,
		Draining: i.Draining, LeaseMS: i.Queue.Settings.LeaseMS}}
}

func (m *Model) setCapacity(ns *Namespace, b *pb.SetCapacity) Result {
	i, code := m.holder(ns, b.Session)
	if code != "" {
		return refuse(code)
	}
	switch {
	case b.Sequence < i.Sequence:
		return refuse(staleSequence)
	case b.Sequence == i.Sequence && (b.Capacity != i.SeqCapacity || b.Drain != i.SeqDrain):
		return refuse(operationConflict)
	case b.Sequence > i.Sequence && i.SeqDrain && !b.Drain:
		return refuse(drainIsFinal)
	}
	m.heard(i)
	i.Sequence, i.SeqCapacity, i.SeqDrain = b.Sequence, b.Capacity, b.Drain
	i.Capacity = b.Capacity
	i.Draining = i.Draining || b.Drain
	return m.welcome(i)
}

func (m *Model) closeSession(ns *Namespace, b *pb.CloseSession) Result {
	i, code := m.holder(ns, b.Session)
	if code != "" {
		return refuse(code)
	}
	m.disconnect(i)
	return Result{}
}

func (m *Model) disconnect(i *Instance) {
	if i.Connected {
		i.Connected = false
		i.DisconnectedAt = m.Clock
		i.GraceOver = false
		i.renewedOpening = m.opening()
	}
}

func (m *Model) drainWorker(ns *Namespace, b *pb.DrainWorker) Result {
	i := m.instance(ns, toID(b.InstanceId))
	if i == nil {
		return refuse(notFound)
	}
	i.Draining = true
	return Result{Instance: i}
}

func (m *Model) reportGateway(b *pb.ReportGateway) Result {
	g := m.gateway(b.GatewayId)
	if g == nil {
		g = &Gateway{ID: b.GatewayId}
		m.Gateways = append(m.Gateways, g)
	}
	g.Incarnation = string(b.Incarnation)
	g.LiveUntil = m.Clock + gatewayLife
	g.renewedOpening = m.opening()

	var res Result
	for _, s := range b.Sessions {
		i := m.instance(m.namespaceByID(toID(s.NamespaceId)), toID(s.InstanceId))
		switch {
		case i == nil || i.EndedAt != 0:
			res.Gone = append(res.Gone, Gone{SessionID: toID(s.SessionId), Code: sessionExpired})
		case i.SessionID != toID(s.SessionId):
			res.Gone = append(res.Gone, Gone{SessionID: toID(s.SessionId), Code: sessionSuperseded})
		}
	}
	for _, i := range m.Instances {
		if i.GatewayID != b.GatewayId || !i.Connected {
			continue
		}
		listed := slices.ContainsFunc(b.Sessions, func(s *pb.SessionEntry) bool { return toID(s.SessionId) == i.SessionID })
		if b.Leaving || i.Incarnation != g.Incarnation || !listed && i.Epoch <= b.AppliedIndex {
			m.disconnect(i)
		}
	}
	if b.Leaving {
		m.Gateways = remove(m.Gateways, g)
	}
	return res
}
