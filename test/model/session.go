package model

import (
	"bytes"
	"cmp"
	"slices"

	pb "pulse/proto/pulse/v1"
)

const (
	gatewayLife  = 6 * second
	grace        = 2 * second
	sessionLife  = 60 * second
	instanceKept = 24 * hour
	holdFirstMS  = 1_000
	holdLastMS   = 60_000
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

// heard notes that a valid frame of the session came: it may be offered all it has
// room for again, once its rest is over.
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
		if x.ID == toID(b.QueueId) && !x.Deleted {
			q = x
		}
	}
	if q == nil {
		return refuse(notFound)
	}
	if slices.Contains(m.registered, toID(b.InstanceId)) {
		return refuse(unavailable)
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
		}
	}
	if (i == nil || !i.Connected) && q.Namespace.Quota.Workers != 0 && m.Workers(q.Namespace) >= q.Namespace.Quota.Workers {
		return refuse(rateLimited)
	}
	if i == nil {
		i = &Instance{ID: toID(b.InstanceId), Namespace: q.Namespace, Queue: q, Capabilities: caps,
			Notify: b.CancellationNotifications, Keys: b.ConcurrencyKeys, secret: string(b.SecretHash)}
		m.Instances = append(m.Instances, i)
	}
	m.gatewayLives(b.GatewayId, string(b.GatewayIncarnation))
	if i.Sequence == 0 {
		i.Capacity = b.Capacity // one set by worker.capacity wins
	}
	i.SessionID = ID{} // the old one is over, the new one has no name yet
	i.Epoch = m.fence()
	i.GatewayID, i.Incarnation = b.GatewayId, string(b.GatewayIncarnation)
	i.Connected = true
	i.ConnectedAt, i.DisconnectedAt, i.EndedAt = m.Clock, 0, 0
	i.GraceOver = false
	i.renewedOpening = m.opening()
	i.seq = m.next()
	m.heard(i)
	m.registered = append(m.registered, i.ID)
	m.fresh.sessions = append(m.fresh.sessions, i)
	return m.welcome(i)
}

func (m *Model) welcome(i *Instance) Result {
	return Result{Instance: i, Session: &Session{Instance: i, Epoch: i.Epoch, Capacity: i.Capacity,
		Draining: i.Draining, LeaseMS: i.Queue.Settings.LeaseMS, ExpiresAt: m.expiry(i)}}
}

// expiry is when a session ends if nothing more is heard of it or of its
// gateway.
func (m *Model) expiry(i *Instance) int64 {
	if !i.Connected {
		return i.DisconnectedAt + sessionLife
	}
	return m.gateway(i.GatewayID).LiveUntil + sessionLife
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

// closeSession is never refused: a session that is over has nothing to lose.
func (m *Model) closeSession(ns *Namespace, b *pb.CloseSession) Result {
	if i, code := m.holder(ns, b.Session); code == "" && i.Connected {
		m.disconnect(i)
		i.Undeliverable = b.Undeliverable
		if b.Undeliverable { // back again, it rests all the same
			m.rest(i)
		}
	}
	return Result{}
}

func (m *Model) disconnect(i *Instance) {
	if i.Connected {
		i.Connected = false
		i.DisconnectedAt = m.Clock
		i.disconnectedIndex = m.fence()
		i.GraceOver = false
		i.Undeliverable = false
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

// gatewayLives renews a gateway. Another incarnation is another process: what
// the one before held is gone.
func (m *Model) gatewayLives(id, incarnation string) {
	g := m.gateway(id)
	if g == nil {
		g = &Gateway{ID: id, Incarnation: incarnation}
		m.Gateways = append(m.Gateways, g)
	}
	g.Incarnation = incarnation
	g.LiveUntil = m.Clock + gatewayLife
	g.renewedOpening = m.opening()
	for _, i := range m.Instances {
		if i.GatewayID == id && i.Incarnation != incarnation {
			m.disconnect(i)
		}
	}
}

// SessionsInShort is what a gateway says in short that knows of its sessions up to an
// index what the model knows.
func (m *Model) SessionsInShort(gateway string, index uint64) (digest []byte, n int) {
	var all []*Instance
	for _, i := range m.Instances {
		if i.GatewayID == gateway && i.Connected && i.Epoch <= index {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b *Instance) int {
		return cmp.Or(bytes.Compare(a.Namespace.ID[:], b.Namespace.ID[:]), bytes.Compare(a.ID[:], b.ID[:]))
	})
	d := pb.NewSessionsDigest()
	for _, i := range all {
		d.Add(i.SessionID, i.Epoch)
	}
	return d.Sum(), len(all)
}

func (m *Model) reportGateway(b *pb.ReportGateway) Result {
	if b.Leaving {
		if g := m.gateway(b.GatewayId); g != nil && g.Incarnation == string(b.Incarnation) {
			m.loseGateway(g)
		}
		return Result{}
	}
	m.gatewayLives(b.GatewayId, string(b.Incarnation))
	if b.InShort != nil {
		digest, n := m.SessionsInShort(b.GatewayId, b.AppliedIndex)
		return Result{List: n != len(b.InShort.SilentMs) || !bytes.Equal(digest, b.InShort.Digest)}
	}
	var res Result
	for _, s := range b.Sessions {
		i := m.instance(m.namespaceByID(toID(s.NamespaceId)), toID(s.InstanceId))
		switch {
		case i == nil || i.SessionID == toID(s.SessionId) && i.EndedAt != 0:
			res.Gone = append(res.Gone, Gone{SessionID: toID(s.SessionId), Code: sessionExpired})
		case i.SessionID != toID(s.SessionId):
			res.Gone = append(res.Gone, Gone{SessionID: toID(s.SessionId), Code: sessionSuperseded})
		case !i.Connected && i.GatewayID == b.GatewayId && i.disconnectedIndex <= b.AppliedIndex:
			// Given up for lost, and there all the same.
			i.Incarnation = string(b.Incarnation)
			i.Connected, i.DisconnectedAt, i.GraceOver = true, 0, false
			i.renewedOpening = m.opening()
		}
	}
	for _, i := range m.Instances {
		listed := slices.ContainsFunc(b.Sessions, func(s *pb.SessionEntry) bool { return toID(s.SessionId) == i.SessionID })
		if i.GatewayID == b.GatewayId && !listed && i.Epoch <= b.AppliedIndex {
			m.disconnect(i)
		}
	}
	return res
}
