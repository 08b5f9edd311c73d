package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// A namespace's quota bounds what it may hold, so that one tenant cannot fill the
// cluster. It is looked at when something new comes; what is there stays, also if a
// quota is made smaller.

// refuseTask refuses a new task that the namespace's quota has no room for.
func refuseTask(ns *state.Namespace, payloadBytes uint32) *pb.Result {
	q := ns.Row.Quota
	if q == nil {
		return nil
	}
	use := ns.Use()
	switch {
	case q.TasksWaiting != 0 && use.TasksWaiting >= q.TasksWaiting:
		return refuse(schema.QueueFull, "namespace %q may have %d tasks waiting and has %d: wait until some are done, or ask for a larger quota",
			ns.Row.Name, q.TasksWaiting, use.TasksWaiting)
	case q.PayloadBytes != 0 && use.PayloadBytes+uint64(payloadBytes) > q.PayloadBytes:
		return refuse(schema.QueueFull, "namespace %q may hold %d bytes of payloads of tasks that are not over; it holds %d, and this one has %d: wait until some are done, or ask for a larger quota",
			ns.Row.Name, q.PayloadBytes, use.PayloadBytes, payloadBytes)
	}
	return nil
}

// refuseWorker refuses one more connected worker than the quota allows.
func (r *run) refuseWorker() *pb.Result {
	if q, use := r.ns.Row.Quota, r.ns.Use(); q.GetWorkers() != 0 && use.Workers >= q.Workers {
		return refuse(schema.RateLimited, "namespace %q may have %d workers connected and has them: stop one, or ask for a larger quota", r.ns.Row.Name, q.Workers)
	}
	return nil
}
