package pulse

import (
	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/workerv1"
)

// How rows and results read as frames, and frames as calls. What does not fit,
// such as an enum value of a later version, becomes a value that the encoder
// refuses.

func registration(h *workerv1.Hello) session.Registration {
	r := session.Registration{
		InstanceID: h.InstanceID, InstanceSecret: h.InstanceSecret, QueueID: h.QueueID, Capacity: h.Capacity,
		CancellationNotifications: h.CancellationNotifications, ConcurrencyKeys: h.ConcurrencyKeys,
		Capabilities: make([]*pb.Capability, len(h.Capabilities)),
	}
	for i, c := range h.Capabilities {
		r.Capabilities[i] = &pb.Capability{Handler: c.Handler, HandlerVersion: c.HandlerVersion, PayloadVersion: c.PayloadVersion}
	}
	return r
}

func attemptRef(r workerv1.AttemptRef) session.AttemptRef {
	return session.AttemptRef{TaskID: r.TaskID, AttemptID: r.AttemptID, Epoch: r.Epoch, LeaseSecret: r.LeaseSecret}
}

func welcomeOf(s *pb.SessionResult) *workerv1.Welcome {
	return &workerv1.Welcome{
		SessionID: idOf(s.GetSessionId()), Epoch: s.GetEpoch(),
		ServerTime: workerv1.Time(s.GetServerTimeUs()), ExpiresAt: workerv1.Time(s.GetExpiresAtUs()),
		LeaseDurationMillis: s.GetLeaseDurationMs(), Draining: s.GetDraining(),
	}
}

func leaseOf(l *pb.Lease) *workerv1.Lease {
	return &workerv1.Lease{
		Active: l.GetActive(), State: attemptStates[l.GetState()],
		LeaseUntil: workerv1.Time(l.GetLeaseUntilUs()), ServerTime: workerv1.Time(l.GetServerTimeUs()),
		CancelRequestedAt: workerv1.OptTime(l.GetCancelRequestedAtUs()),
	}
}

func resultOf(o *pb.OperationResult) *workerv1.CommandResult {
	r := o.GetReceipt()
	return &workerv1.CommandResult{
		Receipt: workerv1.Receipt{
			Operation: operations[r.GetOperation()], TaskState: taskStates[r.GetTaskState()],
			AttemptState: attemptStates[r.GetAttemptState()], TaskRevision: r.GetTaskRevision(),
			LeaseUntil: workerv1.Time(r.GetLeaseUntilUs()), Disposition: dispositions[r.GetDisposition()],
		},
		Lease:        *leaseOf(o.GetLease()),
		Deduplicated: o.GetDeduplicated(),
	}
}

func assignOf(a *pb.AssignTask, secret schema.Secret) *workerv1.Assign {
	return &workerv1.Assign{
		Task: taskOf(a.GetTask()), AttemptID: idOf(a.GetAttemptId()), Epoch: a.GetEpoch(), LeaseSecret: secret,
		LeaseUntil: workerv1.Time(a.GetLeaseUntilUs()), ServerTime: workerv1.Time(a.GetServerTimeUs()),
		ConcurrencyToken: a.GetConcurrencyToken(),
	}
}

func taskOf(v *pb.TaskView) workerv1.Task {
	t := v.GetTask()
	task := workerv1.Task{
		ID: idOf(t.GetId()), NamespaceID: idOf(t.GetNamespaceId()), QueueID: idOf(t.GetQueueId()),
		Revision: t.GetRevision(), Handler: t.GetHandler(), HandlerVersion: t.GetHandlerVersion(),
		PayloadVersion: t.GetPayloadVersion(), Payload: v.GetPayload(), Result: v.GetResult(),
		BusinessKey: t.GetBusinessKey(), AvailableAt: workerv1.Time(t.GetAvailableAtUs()),
		StartDeadlineAt: workerv1.OptTime(t.GetStartDeadlineAtUs()), DeadlineAt: workerv1.Time(t.GetDeadlineAtUs()),
		RecoverySafety: safeties[t.GetRecoverySafety()],
		Retry: workerv1.Retry{
			MaxAttempts: t.GetRetry().GetMaxAttempts(), InitialDelayMillis: t.GetRetry().GetInitialDelayMs(),
			MaxDelayMillis: t.GetRetry().GetMaxDelayMs(), AttemptTimeoutMillis: t.GetRetry().GetAttemptTimeoutMs(),
		},
		AttemptCount:      t.GetAttemptCount(),
		CancelRequestedAt: workerv1.OptTime(t.GetCancelRequestedAtUs()), CompletedAt: workerv1.OptTime(t.GetCompletedAtUs()),
		CreatedAt: workerv1.Time(t.GetCreatedAtUs()), UpdatedAt: workerv1.Time(t.GetUpdatedAtUs()),
		EffectUncertain: t.GetEffectUncertain(), ConcurrencyKey: t.GetConcurrencyKey(), Priority: t.GetPriority(),
	}
	if len(t.GetRetryOf()) > 0 {
		task.RetryOf = workerv1.Some(idOf(t.GetRetryOf()))
	}
	return task
}

func cancelOf(c *pb.CancelAttempt) *workerv1.Cancel {
	return &workerv1.Cancel{
		TaskID: idOf(c.GetTaskId()), AttemptID: idOf(c.GetAttemptId()), Epoch: c.GetEpoch(),
		RequestedAt: workerv1.Time(c.GetRequestedAtUs()),
	}
}

// idOf reads an id of a row; rows have no others.
func idOf(b []byte) (id schema.ID) {
	copy(id[:], b)
	return id
}

var (
	attemptStates = map[pb.AttemptState]workerv1.AttemptState{
		pb.AttemptState_ATTEMPT_STATE_LEASED:    workerv1.AttemptLeased,
		pb.AttemptState_ATTEMPT_STATE_RUNNING:   workerv1.AttemptRunning,
		pb.AttemptState_ATTEMPT_STATE_SUCCEEDED: workerv1.AttemptSucceeded,
		pb.AttemptState_ATTEMPT_STATE_FAILED:    workerv1.AttemptFailed,
		pb.AttemptState_ATTEMPT_STATE_CANCELLED: workerv1.AttemptCancelled,
		pb.AttemptState_ATTEMPT_STATE_EXPIRED:   workerv1.AttemptExpired,
		pb.AttemptState_ATTEMPT_STATE_UNKNOWN:   workerv1.AttemptUnknown,
	}
	taskStates = map[pb.TaskState]workerv1.TaskState{
		pb.TaskState_TASK_STATE_WAITING:      workerv1.TaskWaiting,
		pb.TaskState_TASK_STATE_LEASED:       workerv1.TaskLeased,
		pb.TaskState_TASK_STATE_RUNNING:      workerv1.TaskRunning,
		pb.TaskState_TASK_STATE_SUCCEEDED:    workerv1.TaskSucceeded,
		pb.TaskState_TASK_STATE_FAILED:       workerv1.TaskFailed,
		pb.TaskState_TASK_STATE_CANCELLED:    workerv1.TaskCancelled,
		pb.TaskState_TASK_STATE_NEEDS_REVIEW: workerv1.TaskNeedsReview,
	}
	operations = map[pb.Operation]workerv1.Operation{
		pb.Operation_OPERATION_START:  workerv1.OperationStart,
		pb.Operation_OPERATION_RENEW:  workerv1.OperationRenew,
		pb.Operation_OPERATION_FINISH: workerv1.OperationFinish,
	}
	dispositions = map[pb.Disposition]workerv1.Disposition{
		pb.Disposition_DISPOSITION_APPLIED:       workerv1.Applied,
		pb.Disposition_DISPOSITION_EVIDENCE_ONLY: workerv1.EvidenceOnly,
	}
	safeties = map[pb.RecoverySafety]workerv1.RecoverySafety{
		pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT:     workerv1.Idempotent,
		pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY: workerv1.ReconcileOnly,
	}
	outcomes = map[workerv1.Outcome]pb.Outcome{
		workerv1.OutcomeSucceeded: pb.Outcome_OUTCOME_SUCCEEDED,
		workerv1.OutcomeFailed:    pb.Outcome_OUTCOME_FAILED,
		workerv1.OutcomeUnknown:   pb.Outcome_OUTCOME_UNKNOWN,
		workerv1.OutcomeCancelled: pb.Outcome_OUTCOME_CANCELLED,
	}
)
