package state

import (
	pb "pulse/proto/pulse/v1"
)

// Rows are shared and read-only once they have been put. Whoever changes one
// changes a copy from here and puts that. The copies are shallow: slices and
// nested messages are replaced, never written into.

// CopyTask returns a task row that may be changed.
func CopyTask(t *pb.TaskRow) *pb.TaskRow {
	c := &pb.TaskRow{}
	copyFixed(c, t)
	copyMoving(c, t)
	return c
}

// CopyAttempt returns an attempt row that may be changed.
func CopyAttempt(a *pb.AttemptRow) *pb.AttemptRow {
	return &pb.AttemptRow{
		Format: a.Format, Id: a.Id, TaskId: a.TaskId, NamespaceId: a.NamespaceId, QueueId: a.QueueId,
		Epoch: a.Epoch, State: a.State, InstanceId: a.InstanceId, SessionEpoch: a.SessionEpoch,
		LeasedAtUs: a.LeasedAtUs, StartedAtUs: a.StartedAtUs, EndedAtUs: a.EndedAtUs,
		LeaseUntilUs: a.LeaseUntilUs, LeaseCapUs: a.LeaseCapUs, TimeoutAtUs: a.TimeoutAtUs,
		RenewedOpening: a.RenewedOpening, ConcurrencyKey: a.ConcurrencyKey,
		ConcurrencyToken: a.ConcurrencyToken, Number: a.Number, Renewals: a.Renewals,
		ErrorCode: a.ErrorCode, Retryable: a.Retryable, EndCause: a.EndCause,
		ResultDigest: a.ResultDigest, ResultBytes: a.ResultBytes, Counted: a.Counted,
		CancelRequestedAtUs: a.CancelRequestedAtUs, Receipts: a.Receipts,
	}
}

// CopyInstance returns an instance row that may be changed.
func CopyInstance(i *pb.InstanceRow) *pb.InstanceRow {
	return &pb.InstanceRow{
		Format: i.Format, Id: i.Id, NamespaceId: i.NamespaceId, QueueId: i.QueueId,
		SecretHash: i.SecretHash, Capabilities: i.Capabilities,
		CancellationNotifications: i.CancellationNotifications, ConcurrencyKeys: i.ConcurrencyKeys,
		Capacity: i.Capacity, Draining: i.Draining, Sequence: i.Sequence,
		SequenceCapacity: i.SequenceCapacity, SequenceDrain: i.SequenceDrain, SessionId: i.SessionId,
		SessionEpoch: i.SessionEpoch, GatewayId: i.GatewayId, GatewayIncarnation: i.GatewayIncarnation,
		Connected: i.Connected, ConnectedAtUs: i.ConnectedAtUs, DisconnectedAtUs: i.DisconnectedAtUs,
		EndedAtUs: i.EndedAtUs, RenewedOpening: i.RenewedOpening, Active: i.Active,
		AssignedIndex: i.AssignedIndex, AssignedPlace: i.AssignedPlace, Hold: i.Hold,
		HoldUntilUs: i.HoldUntilUs, HoldMs: i.HoldMs, HeldAtUs: i.HeldAtUs, GraceOver: i.GraceOver,
		CreatedAtUs: i.CreatedAtUs, Peer: i.Peer, Revision: i.Revision,
		DisconnectedIndex: i.DisconnectedIndex, Undeliverable: i.Undeliverable,
	}
}

// CopyQueue returns a queue row that may be changed.
func CopyQueue(q *pb.QueueRow) *pb.QueueRow {
	return &pb.QueueRow{
		Format: q.Format, Id: q.Id, NamespaceId: q.NamespaceId, Name: q.Name, Revision: q.Revision,
		Settings: q.Settings, Paused: q.Paused, CreatedAtUs: q.CreatedAtUs, UpdatedAtUs: q.UpdatedAtUs,
		DeletedAtUs: q.DeletedAtUs,
	}
}

// CopyNamespace returns a namespace row that may be changed.
func CopyNamespace(n *pb.NamespaceRow) *pb.NamespaceRow {
	return &pb.NamespaceRow{
		Format: n.Format, Id: n.Id, Name: n.Name, Revision: n.Revision, CreatedAtUs: n.CreatedAtUs,
		UpdatedAtUs: n.UpdatedAtUs, Queues: n.Queues, IdempotencyKeys: n.IdempotencyKeys, Quota: n.Quota, Usage: n.Usage,
	}
}

// Terminal says whether nothing more will happen to a task in this state.
func Terminal(s pb.TaskState) bool {
	return s == pb.TaskState_TASK_STATE_SUCCEEDED || s == pb.TaskState_TASK_STATE_FAILED ||
		s == pb.TaskState_TASK_STATE_CANCELLED
}

// Active says whether a task in this state has a live attempt.
func Active(s pb.TaskState) bool {
	return s == pb.TaskState_TASK_STATE_LEASED || s == pb.TaskState_TASK_STATE_RUNNING
}

// AttemptLive says whether an attempt in this state holds its lease.
func AttemptLive(s pb.AttemptState) bool {
	return s == pb.AttemptState_ATTEMPT_STATE_LEASED || s == pb.AttemptState_ATTEMPT_STATE_RUNNING
}
