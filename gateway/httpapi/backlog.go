package httpapi

import (
	pb "pulse/proto/pulse/v1"
)

// getBacklog is GET …/queues/{queue}/backlog: how much work there is for workers,
// as one number that an autoscaler can divide by what a worker takes. Tasks that
// no worker could start do not count: those that wait for a time, for a key, or
// for their queue.
func getBacklog(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetActivity{GetActivity: &pb.GetActivity{Queue: e.queue}}})
	if err != nil {
		return err
	}
	total := answer.GetActivity().GetTotal()
	out := Backlog{Active: int64(total.GetLeased() + total.GetRunning())}
	for _, r := range total.GetReasons() {
		switch r.GetReason() {
		case pb.WaitingReason_WAITING_REASON_READY, pb.WaitingReason_WAITING_REASON_WORKERS_BUSY, pb.WaitingReason_WAITING_REASON_NO_CAPABLE_WORKER:
			out.Runnable += int64(r.GetTasks())
		default: // more workers would change nothing
		}
	}
	out.Waiting = int64(total.GetWaiting())
	out.Backlog = out.Runnable + out.Active
	return e.answerShape(out)
}
