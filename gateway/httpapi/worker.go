package httpapi

import (
	"net/http"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/apiv1"
)

// getWorker is GET …/workers/{instance_id}.
func getWorker(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetWorker{GetWorker: &pb.GetWorker{InstanceId: e.id[:]}}})
	if err != nil {
		return err
	}
	return e.answerWorker(answer.GetWorker())
}

// listWorkers is GET …/workers: by instance id, a page at a time.
func listWorkers(e *exchange) error {
	queue := e.query.get("queue")
	if queue != "" && !apiv1.ValidName(queue) {
		e.query.fault("queue", "%s", apiv1.NameRule())
	}
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListWorkers{ListWorkers: &pb.ListWorkers{
		Queue: queue, Limit: uint32(e.query.limit(pageMax)), After: e.query.cursor(cursorWorkers, queue),
	}}})
	if err != nil {
		return err
	}
	workers := answer.GetWorkers()
	return answerList(e, "workers", workers.GetWorkers(), (*writer).worker, place{cursorWorkers, queue, workers.GetNextAfter()})
}

// drainWorker is POST …/workers/{instance_id}:drain.
func drainWorker(e *exchange) error {
	if err := e.noBody(); err != nil {
		return err
	}
	c := e.command(newIDs(1), apiv1.TargetContent("pulse.worker.drain", e.id.String(), 0))
	c.Body = &pb.Command_DrainWorker{DrainWorker: &pb.DrainWorker{InstanceId: e.id[:]}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerWorker(result.GetWorker())
}

func (e *exchange) answerWorker(v *pb.WorkerView) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.worker(v)
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}

func (w *writer) worker(v *pb.WorkerView) {
	i := v.GetInstance()
	w.next()
	w.open()
	w.id("instance_id", i.GetId())
	w.text("namespace", v.GetNamespace())
	w.text("queue", v.GetQueue())
	w.text("state", v.GetState())
	w.integer("capacity", int64(i.GetCapacity()))
	w.integer("active", int64(i.GetActive()))
	w.bool("draining", i.GetDraining())
	w.name("capabilities")
	w.openArray()
	for _, c := range i.GetCapabilities() {
		w.next()
		w.open()
		w.text("handler", c.GetHandler())
		w.text("handler_version", c.GetHandlerVersion())
		w.text("payload_version", c.GetPayloadVersion())
		w.close()
	}
	w.closeArray()
	w.bool("cancellation_notifications", i.GetCancellationNotifications())
	w.bool("concurrency_keys", i.GetConcurrencyKeys())
	w.optID("session_id", i.GetSessionId())
	w.uint64("session_epoch", i.GetSessionEpoch())
	w.text("gateway_id", i.GetGatewayId())
	w.optText("peer", i.GetPeer())
	w.time("created_at", i.GetCreatedAtUs())
	w.optTime("connected_at", i.GetConnectedAtUs())
	w.optTime("disconnected_at", i.GetDisconnectedAtUs())
	w.optTime("expires_at", v.GetExpiresAtUs())
	w.optTime("heard_at", v.GetHeardAtUs())
	if leases := v.GetLeases(); len(leases) > 0 {
		w.name("leases")
		w.openArray()
		for _, l := range leases {
			w.heldLease(l)
		}
		w.closeArray()
	}
	w.close()
}

func (w *writer) heldLease(l *pb.HeldLease) {
	w.next()
	w.open()
	w.id("task_id", l.GetTaskId())
	w.id("attempt_id", l.GetAttemptId())
	w.uint64("epoch", l.GetEpoch())
	w.plain("state", nameOf(attemptStates, l.GetState()))
	w.text("handler", l.GetHandler())
	w.time("leased_at", l.GetLeasedAtUs())
	w.optTime("started_at", l.GetStartedAtUs())
	w.time("lease_until", l.GetLeaseUntilUs())
	w.close()
}
