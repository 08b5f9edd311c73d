package httpapi

import (
	pb "pulse/proto/pulse/v1"
	"pulse/schema/apiv1"
)

// getActivity is GET …/activity: how the queues of a namespace stand and what
// their tasks did lately.
func getActivity(e *exchange) error {
	queue := e.query.get("queue")
	if queue != "" && !apiv1.ValidName(queue) {
		e.query.fault("queue", "%s", apiv1.NameRule())
	}
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetActivity{GetActivity: &pb.GetActivity{Queue: queue}}})
	if err != nil {
		return err
	}
	a := answer.GetActivity()
	out := Activity{
		At: Time(answer.GetClockUs()), Since: Time(a.GetSinceUs()), StepMillis: a.GetStepUs() / 1000,
		LatelyMillis: a.GetStepUs() / 1000 * int64(a.GetLatelySteps()), KeysHeld: Number(a.GetKeysHeld()),
		Total: standing(a.GetTotal()), Queues: []QueueActivity{}, Steps: []ActivityStep{},
	}
	for _, q := range a.GetQueues() {
		out.Queues = append(out.Queues, QueueActivity{
			Queue: q.GetQueue().GetQueue().GetName(), Paused: q.GetQueue().GetQueue().GetPaused(), Standing: standing(q),
		})
	}
	for _, s := range a.GetSteps() {
		out.Steps = append(out.Steps, ActivityStep{
			At: Time(s.GetAtUs()), ActivityCounts: activityCounts(s.GetCounts()), Waiting: Number(s.GetWaiting()), Active: Number(s.GetActive()),
		})
	}
	return e.answerShape(out)
}

func standing(q *pb.QueueActivity) Standing {
	out := Standing{
		Waiting: Number(q.GetWaiting()), Reasons: []ReasonCount{}, Leased: Number(q.GetLeased()), Running: Number(q.GetRunning()),
		NeedsReview: Number(q.GetNeedsReview()), OldestWaitingSince: Time(q.GetOldestWaitingUs()),
		WorkersConnected: int64(q.GetWorkersConnected()), WorkersDraining: int64(q.GetWorkersDraining()),
		WorkersLost: int64(q.GetWorkersLost()), Slots: Number(q.GetSlots()), SlotsUsed: Number(q.GetSlotsUsed()),
		Lately: activityCounts(q.GetLately()), Errors: []ErrorCount{},
	}
	if id, ok := idOf(q.GetOldestWaitingTaskId()); ok {
		out.OldestWaitingTaskID = ID(id.String())
	}
	for _, r := range q.GetReasons() {
		out.Reasons = append(out.Reasons, ReasonCount{Reason: nameOf(waitingReasons, r.GetReason()), Tasks: Number(r.GetTasks())})
	}
	for _, c := range q.GetErrors() {
		out.Errors = append(out.Errors, ErrorCount{Code: c.GetCode(), Attempts: Number(c.GetAttempts())})
	}
	return out
}

func activityCounts(c *pb.ActivityCounts) ActivityCounts {
	out := ActivityCounts{
		Submitted: Number(c.GetSubmitted()), Started: Number(c.GetStarted()), Succeeded: Number(c.GetSucceeded()),
		Failed: Number(c.GetFailed()), Cancelled: Number(c.GetCancelled()), ReviewsNeeded: Number(c.GetReviewsNeeded()),
		AttemptsFailed: Number(c.GetAttemptsFailed()),
	}
	if c.GetPickupP50Us() > 0 {
		p50, p99 := float64(c.GetPickupP50Us())/1000, float64(c.GetPickupP99Us())/1000
		out.PickupP50Millis, out.PickupP99Millis = &p50, &p99
	}
	return out
}
