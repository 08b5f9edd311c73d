package fsm

import (
	"bytes"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// Delivery looks up what an effect stands for now. It is nil if that is no
// longer so: the attempt has started or ended, or its session is elsewhere.
func (m *Machine) Delivery(e Effect) *pb.Delivery {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := &pb.Delivery{GatewayId: e.GatewayID, SessionId: bytes.Clone(e.SessionID[:])}
	switch e.Kind {
	case EffectClose:
		out.Body = &pb.Delivery_Close{Close: &pb.CloseConnection{Code: e.Code}}
		return out
	case EffectAssign:
		assign := m.assignment(e)
		if assign == nil {
			return nil
		}
		out.Body = &pb.Delivery_Assign{Assign: assign}
		return out
	case EffectCancel:
		c := m.cancellation(e)
		if c == nil {
			return nil
		}
		out.Body = &pb.Delivery_Cancel{Cancel: c}
		return out
	}
	return nil
}

func (m *Machine) assignment(e Effect) *pb.AssignTask {
	a := m.state.LiveAttempt(e.AttemptID)
	if a == nil || a.Row.State != pb.AttemptState_ATTEMPT_STATE_LEASED || !m.holds(a.Row, e) {
		return nil
	}
	if a.Row.Epoch <= m.state.Meta().FenceBase {
		return nil // of a lost cluster, see ofLostCluster
	}
	t := m.state.ActiveTask(e.TaskID)
	if t == nil {
		return nil
	}
	v := viewTask(m.state, t)
	payload, err := state.ReadPayload(m.state, e.TaskID)
	if err != nil {
		panic(err)
	}
	v.Payload = payload
	var trace *pb.TraceContext
	if t.Traced {
		if trace, err = state.ReadTrace(m.state, e.TaskID); err != nil {
			panic(err)
		}
	}
	return &pb.AssignTask{
		Task: v, AttemptId: a.Row.Id, Epoch: a.Row.Epoch, LeaseUntilUs: a.Row.LeaseUntilUs,
		ServerTimeUs: m.state.Meta().ClockUs, ConcurrencyToken: a.Row.ConcurrencyToken, Trace: trace,
	}
}

// holds says whether the effect's session is the current, connected one of the
// attempt's instance.
func (m *Machine) holds(a *pb.AttemptRow, e Effect) bool {
	i := m.state.Instance(e.NamespaceID, ID(a.InstanceId))
	return i != nil && i.Row.Connected && ID(i.Row.SessionId) == e.SessionID && i.Row.GatewayId == e.GatewayID
}

func (m *Machine) cancellation(e Effect) *pb.CancelAttempt {
	var row *pb.AttemptRow
	if a := m.state.LiveAttempt(e.AttemptID); a != nil {
		row = a.Row
	} else {
		var err error
		if row, err = state.ReadAttempt(m.state, e.TaskID, e.AttemptID); err != nil {
			panic(err)
		}
	}
	switch {
	case row == nil, row.CancelRequestedAtUs == 0, !m.holds(row, e):
		return nil
	case !state.AttemptLive(row.State) && (row.State != pb.AttemptState_ATTEMPT_STATE_CANCELLED || !e.Once):
		return nil // it has ended since, and the worker knows: it was told or said so itself
	}
	return &pb.CancelAttempt{
		TaskId: row.TaskId, AttemptId: row.Id, Epoch: row.Epoch, RequestedAtUs: row.CancelRequestedAtUs,
	}
}

// Undelivered lists what connected sessions should have been told and have not
// answered yet: offers that have not started and cancels of running attempts.
// A new leader begins with it.
func (m *Machine) Undelivered() []Effect {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []Effect
	for _, a := range m.state.LiveAttempts() {
		i := m.state.Instance(ID(a.Row.NamespaceId), ID(a.Row.InstanceId))
		if i == nil || !i.Row.Connected {
			continue
		}
		e := Effect{
			GatewayID: i.Row.GatewayId, NamespaceID: ID(a.Row.NamespaceId), SessionID: ID(i.Row.SessionId),
			TaskID: ID(a.Row.TaskId), AttemptID: ID(a.Row.Id),
			OfferedAt: a.Row.LeasedAtUs, OfferUntil: a.Row.LeaseUntilUs,
		}
		switch {
		case a.Row.State == pb.AttemptState_ATTEMPT_STATE_LEASED:
			e.Kind = EffectAssign
		case a.Row.CancelRequestedAtUs != 0 && i.Row.CancellationNotifications:
			e.Kind = EffectCancel
		default:
			continue
		}
		out = append(out, e)
	}
	return out
}

// Trace is the trace context that a task came with; nil if it has none.
func (m *Machine) Trace(task ID) (*pb.TraceContext, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return state.ReadTrace(m.state, task)
}
