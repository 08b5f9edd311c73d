package fsm

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// registerSession opens a session of a worker instance and ends the one it had.
func (r *run) registerSession(c *pb.RegisterSession) *pb.Result {
	q := r.openQueue(c.QueueId)
	if q == nil {
		return refuse(schema.NotFound, "no such queue")
	}
	if len(c.InstanceId) != 16 {
		return violation("/instance_id", "instance_id must be 16 bytes")
	}
	r.ns = r.s.Namespace(ID(q.Row.NamespaceId))
	id := ID(c.InstanceId)
	if _, again := r.registered[id]; again {
		// Epochs are the entry's number: two of them would be equal.
		return refuse(schema.Unavailable, "the worker registered twice at once; try again")
	}
	i := r.s.Instance(r.nsID(), id)
	if i != nil {
		if res := r.refuseReturn(i.Row, c); res != nil {
			return res
		}
	}
	if i == nil || !i.Row.Connected {
		if res := r.refuseWorker(); res != nil {
			return res
		}
	}
	r.registered[id] = struct{}{}
	r.seenGateway(c.GatewayId, c.GatewayIncarnation)
	row := r.renewedInstance(i, q, c)
	r.commitWorker(row, &pb.Fact{Kind: &pb.Fact_WorkerRegistered{WorkerRegistered: &pb.WorkerRegistered{
		SessionId: row.SessionId, Epoch: row.SessionEpoch, GatewayId: row.GatewayId,
	}}})
	r.redeliver(r.s.Instance(r.nsID(), id))
	return r.sessionResult(row)
}

func (r *run) openQueue(id []byte) *state.Queue {
	if len(id) != 16 {
		return nil
	}
	q := r.s.Queue(ID(id))
	if q == nil || q.Row.DeletedAtUs != 0 || (r.ns != nil && ID(q.Row.NamespaceId) != r.nsID()) {
		return nil
	}
	return q
}

// refuseReturn: a reconnect keeps identity, credential, queue and capabilities.
func (r *run) refuseReturn(i *pb.InstanceRow, c *pb.RegisterSession) *pb.Result {
	switch {
	case !bytes.Equal(i.SecretHash, c.SecretHash):
		return refuse(schema.Forbidden, "the instance belongs to another process")
	case !bytes.Equal(i.QueueId, c.QueueId), i.CancellationNotifications != c.CancellationNotifications,
		i.ConcurrencyKeys != c.ConcurrencyKeys, !sameCapabilities(i.Capabilities, c.Capabilities):
		return refuse(schema.IdentityConflict, "a reconnect must repeat queue, capabilities and flags")
	}
	return nil
}

func sameCapabilities(a, b []*pb.Capability) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// renewedInstance makes the row of the new session. Drain carries over, and so
// does a capacity set by worker.capacity.
func (r *run) renewedInstance(i *state.Instance, q *state.Queue, c *pb.RegisterSession) *pb.InstanceRow {
	var row *pb.InstanceRow
	if i == nil {
		row = &pb.InstanceRow{
			Id: c.InstanceId, NamespaceId: q.Row.NamespaceId, QueueId: q.Row.Id, SecretHash: c.SecretHash,
			Capabilities: c.Capabilities, CancellationNotifications: c.CancellationNotifications,
			ConcurrencyKeys: c.ConcurrencyKeys, CreatedAtUs: r.now,
		}
	} else {
		row = state.CopyInstance(i.Row)
		r.closeConnection(row, schema.SessionSuperseded)
	}
	if row.Sequence == 0 {
		row.Capacity = c.Capacity
	}
	id := r.newID()
	row.SessionId, row.SessionEpoch = id[:], r.number
	row.GatewayId, row.GatewayIncarnation, row.Peer = c.GatewayId, c.GatewayIncarnation, c.Peer
	row.Connected, row.ConnectedAtUs = true, r.now
	row.DisconnectedAtUs, row.EndedAtUs, row.GraceOver, row.Hold, row.Undeliverable = 0, 0, false, false, false
	row.RenewedOpening = r.opening()
	return row
}

// closeConnection hints that the connection of a row's session has to go.
func (r *run) closeConnection(i *pb.InstanceRow, code schema.Code) {
	if i.Connected {
		r.effect(Effect{
			Kind: EffectClose, GatewayID: i.GatewayId, NamespaceID: ID(i.NamespaceId),
			SessionID: ID(i.SessionId), Code: string(code),
		})
	}
}

// redeliver hints at everything a session that is (back) on a connection has
// not been told there.
func (r *run) redeliver(i *state.Instance) {
	for _, id := range i.Attempts {
		a := r.s.LiveAttempt(id).Row
		switch {
		case a.State == pb.AttemptState_ATTEMPT_STATE_LEASED:
			r.tellAssigned(i.Row, a)
		case a.CancelRequestedAtUs != 0:
			r.tellCancel(a)
		}
	}
}

func (r *run) tellAssigned(i *pb.InstanceRow, a *pb.AttemptRow) {
	r.effect(Effect{
		Kind: EffectAssign, GatewayID: i.GatewayId, NamespaceID: ID(i.NamespaceId), SessionID: ID(i.SessionId),
		TaskID: ID(a.TaskId), AttemptID: ID(a.Id), OfferedAt: a.LeasedAtUs, OfferUntil: a.LeaseUntilUs,
	})
}

func (r *run) sessionResult(i *pb.InstanceRow) *pb.Result {
	q := r.s.Queue(ID(i.QueueId))
	return &pb.Result{Body: &pb.Result_Session{Session: &pb.SessionResult{
		SessionId: i.SessionId, Epoch: i.SessionEpoch, ServerTimeUs: r.now,
		ExpiresAtUs: sessionExpiry(r.s, i), LeaseDurationMs: q.Row.Settings.LeaseDurationMs,
		Draining: i.Draining, NamespaceId: i.NamespaceId, Namespace: r.s.Namespace(ID(i.NamespaceId)).Row.Name,
		Queue: q.Row.Name, Capacity: i.Capacity,
	}}}
}

// sessionExpiry is when a session would end if nothing more were heard of it:
// 60 s after its connection or its gateway is lost.
func sessionExpiry(s *state.State, i *pb.InstanceRow) int64 {
	switch {
	case i.EndedAtUs != 0:
		return i.EndedAtUs
	case !i.Connected:
		return i.DisconnectedAtUs + state.SessionExpiryUs
	}
	if g := s.Gateway(i.GatewayId); g != nil {
		return g.LiveUntilUs + state.SessionExpiryUs
	}
	return i.ConnectedAtUs + state.SessionExpiryUs
}

func (r *run) setCapacity(c *pb.SetCapacity) *pb.Result {
	i, res := r.session(c.Session)
	if res != nil {
		return res
	}
	row := i.Row
	switch {
	case c.Sequence < row.Sequence:
		return refuse(schema.StaleSequence, "sequence %d was used already", row.Sequence)
	case c.Sequence == row.Sequence:
		if row.SequenceCapacity != c.Capacity || row.SequenceDrain != c.Drain {
			return refuse(schema.OperationConflict, "this sequence was used with other content")
		}
		r.heard(i)
		return r.sessionResult(i.Row)
	case row.SequenceDrain && !c.Drain:
		return refuse(schema.DrainIsFinal, "a drain cannot be taken back")
	}
	next := state.CopyInstance(row)
	next.Sequence, next.SequenceCapacity, next.SequenceDrain = c.Sequence, c.Capacity, c.Drain
	next.Capacity = c.Capacity
	next.Draining = next.Draining || c.Drain
	next.Hold = false
	r.tx.PutInstance(next)
	return r.sessionResult(next)
}

// closeSession: the connection is gone. A session that was superseded meanwhile
// has nothing to lose. If work came for it and met nobody, what was not started
// says so when it goes back, and the session rests once it is there again. It
// is not held until a frame: the hello, or the gateway that lists it, has said
// that it can be reached, and an idle worker has no reason to say more.
func (r *run) closeSession(c *pb.CloseSession) *pb.Result {
	if i, res := r.session(c.Session); res == nil && i.Row.Connected {
		r.disconnect(i, c.Undeliverable)
		if c.Undeliverable {
			row := state.CopyInstance(i.Row)
			r.rest(row)
			r.tx.PutInstance(row)
		}
	}
	return &pb.Result{}
}

// disconnect stops new work for a session. Unstarted attempts wait for a grace,
// running ones keep their lease.
func (r *run) disconnect(i *state.Instance, undeliverable bool) {
	row := state.CopyInstance(i.Row)
	row.Connected, row.DisconnectedAtUs, row.GraceOver = false, r.now, false
	row.DisconnectedIndex, row.Undeliverable = r.number, undeliverable
	row.RenewedOpening = r.opening()
	r.tx.PutInstance(row)
}

// drainWorker is an operator's drain: no new work, for good.
func (r *run) drainWorker(c *pb.DrainWorker) *pb.Result {
	var i *state.Instance
	if len(c.InstanceId) == 16 {
		i = r.s.Instance(r.nsID(), ID(c.InstanceId))
	}
	if i == nil {
		return refuse(schema.NotFound, "no such worker")
	}
	if !i.Row.Draining {
		row := state.CopyInstance(i.Row)
		row.Draining = true
		r.commitWorker(row, &pb.Fact{Kind: &pb.Fact_WorkerDrained{
			WorkerDrained: &pb.WorkerDrained{By: r.cmd.Caller.GetPrincipal()},
		}})
	}
	return &pb.Result{Body: &pb.Result_Worker{Worker: viewWorker(r.s, i.Row)}}
}

// heard notes a valid frame: a session whose offer lapsed may be given as much as
// it has room for again, once its rest is over.
func (r *run) heard(i *state.Instance) {
	if i.Row.Hold {
		row := state.CopyInstance(i.Row)
		row.Hold = false
		r.tx.PutInstance(row)
	}
}

// delivered notes that work reaches the session: its hold starts small again.
func (r *run) delivered(i *state.Instance) {
	if i.Row.Hold || i.Row.HoldMs != 0 {
		row := state.CopyInstance(i.Row)
		row.Hold, row.HoldMs = false, 0
		r.tx.PutInstance(row)
	}
}

// lapsed notes that an offer to a connected session ran out unstarted. It rests,
// and is then tried with one offer at a time until it is heard of: an idle worker
// that was only out of reach has no reason to say anything by itself. Offers that
// were made before a rest began and run out later are no repetition: only the
// first of them sets how long it takes.
func (r *run) lapsed(i *state.Instance, a *pb.AttemptRow) {
	if a.LeasedAtUs <= i.Row.HeldAtUs {
		return
	}
	row := state.CopyInstance(i.Row)
	row.Hold = true
	r.rest(row)
	r.tx.PutInstance(row)
}

// rest keeps new work from a session for a while, twice as long as the time
// before unless work has reached it since. A rest that has begun is not made
// longer.
func (r *run) rest(row *pb.InstanceRow) {
	if row.HoldUntilUs == 0 {
		row.HoldMs = min(max(row.HoldMs*2, holdMinMs), holdMaxMs)
		row.HeldAtUs, row.HoldUntilUs = r.now, r.now+row.HoldMs*1000
	}
}

// seenGateway renews a gateway's row. Another incarnation is another process:
// the connections of the one before are gone.
func (r *run) seenGateway(id string, incarnation []byte) {
	old := r.s.Gateway(id)
	row := &pb.GatewayRow{
		Format: state.RowFormat, Id: id, Incarnation: incarnation, LiveUntilUs: r.now + gatewayLiveUs,
		RenewedOpening: r.opening(), StartedAtUs: r.now,
	}
	if old != nil && bytes.Equal(old.Incarnation, incarnation) {
		row.StartedAtUs = old.StartedAtUs
	} else {
		for _, i := range r.s.SessionsOf(id) {
			if !bytes.Equal(i.Row.GatewayIncarnation, incarnation) {
				r.disconnect(i, false)
			}
		}
	}
	r.tx.PutGateway(row)
}

// reportGateway is a gateway's heartbeat. Sessions it should hold and does not
// list are disconnected, unless they are newer than its list.
func (r *run) reportGateway(c *pb.ReportGateway) *pb.Result {
	if c.Leaving {
		r.loseGateway(c.GatewayId, c.Incarnation)
		return &pb.Result{Body: &pb.Result_Gateway{Gateway: &pb.GatewayResult{}}}
	}
	r.seenGateway(c.GatewayId, c.Incarnation)
	if c.InShort != nil {
		list := shortSessions(r.s, c) == nil
		return &pb.Result{Body: &pb.Result_Gateway{Gateway: &pb.GatewayResult{List: list}}}
	}
	out := &pb.GatewayResult{}
	listed := make(map[ID]struct{}, len(c.Sessions))
	for _, e := range c.Sessions {
		if len(e.SessionId) != 16 || len(e.InstanceId) != 16 || len(e.NamespaceId) != 16 {
			continue
		}
		listed[ID(e.SessionId)] = struct{}{}
		if code := r.reported(c, e); code != "" {
			out.Gone = append(out.Gone, &pb.GoneSession{SessionId: e.SessionId, Code: string(code)})
		}
	}
	for _, i := range r.s.SessionsOf(c.GatewayId) {
		if _, ok := listed[ID(i.Row.SessionId)]; !ok && i.Row.SessionEpoch <= c.AppliedIndex {
			r.disconnect(i, false)
		}
	}
	return &pb.Result{Body: &pb.Result_Gateway{Gateway: out}}
}

// shortSessions are those that a report in short stands for, in its order; nil if the
// state has others. That nothing differs is what every report but a few says, every
// two seconds: to carry and compare a list of thousands is what an idle cluster
// would be busy with.
func shortSessions(s *state.State, c *pb.ReportGateway) []*state.Instance {
	digest := pb.NewSessionsDigest()
	all := s.SessionsOf(c.GatewayId)
	known := make([]*state.Instance, 0, len(all))
	for _, i := range all {
		if i.Row.SessionEpoch <= c.AppliedIndex { // the list is older than the others
			digest.Add(ID(i.Row.SessionId), i.Row.SessionEpoch)
			known = append(known, i)
		}
	}
	if len(known) != len(c.InShort.SilentMs) || !bytes.Equal(digest.Sum(), c.InShort.Digest) {
		return nil
	}
	return known
}

// reported looks at one session a gateway says it holds. A current session that
// was given up for lost is taken back; one that is over is named with the code
// to close it with.
func (r *run) reported(c *pb.ReportGateway, e *pb.SessionEntry) schema.Code {
	i := r.s.Instance(ID(e.NamespaceId), ID(e.InstanceId))
	switch {
	case i == nil:
		return schema.SessionExpired
	case !bytes.Equal(i.Row.SessionId, e.SessionId):
		if i.Row.SessionEpoch < e.Epoch {
			return "" // not applied when the row was read; cannot be here, and is no reason to close
		}
		return schema.SessionSuperseded
	case i.Row.EndedAtUs != 0:
		return schema.SessionExpired
	case i.Row.Connected, i.Row.GatewayId != c.GatewayId:
		return "" // as it is known; or another gateway's, which this one cannot hold
	case i.Row.DisconnectedIndex > c.AppliedIndex:
		return "" // the list is older than the loss
	}
	row := state.CopyInstance(i.Row)
	row.GatewayId, row.GatewayIncarnation = c.GatewayId, c.Incarnation
	row.Connected, row.DisconnectedAtUs, row.GraceOver, row.Undeliverable = true, 0, false, false
	row.RenewedOpening = r.opening()
	r.tx.PutInstance(row)
	r.redeliver(i)
	return ""
}

// loseGateway gives up a gateway process and every connection through it.
func (r *run) loseGateway(id string, incarnation []byte) {
	g := r.s.Gateway(id)
	if g != nil && !bytes.Equal(g.Incarnation, incarnation) {
		return // a newer process has its place
	}
	for _, i := range r.s.SessionsOf(id) {
		r.disconnect(i, false)
	}
	if g != nil {
		r.tx.DeleteGateway(id)
	}
}
