package httpapi

import (
	"net/http"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/apiv1"
)

// putQueue is PUT …/queues/{queue}: it creates or replaces.
func putQueue(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	q, refusal := apiv1.DecodeQueue(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), q.Content(e.queue))
	c.Body = &pb.Command_PutQueue{PutQueue: &pb.PutQueue{
		Name: e.queue, Paused: q.Paused, ExpectedRevision: q.ExpectedRevision,
		Settings: &pb.QueueSettings{
			LeaseDurationMs: q.LeaseDurationMillis, OfferDurationMs: q.OfferDurationMillis,
			MaxActive: uint32(q.MaxActive), MaxWaiting: uint64(q.MaxWaiting), RetentionMs: q.RetentionMillis,
			DefaultDeadlineMs: q.DefaultDeadlineMillis, AgeingMs: q.AgeingMillis,
			DefaultRetry: &pb.RetryPolicy{
				MaxAttempts: uint32(q.DefaultRetry.MaxAttempts), InitialDelayMs: q.DefaultRetry.InitialDelayMillis,
				MaxDelayMs: q.DefaultRetry.MaxDelayMillis, AttemptTimeoutMs: q.DefaultRetry.AttemptTimeoutMillis,
			},
		},
	}}
	return e.changeQueue(c)
}

func (e *exchange) changeQueue(c *pb.Command) error {
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if result.GetQueue().GetCreated() {
		status = http.StatusCreated
	}
	return e.answerQueue(status, result.GetQueue())
}

func (e *exchange) answerQueue(status int, v *pb.QueueView) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.queue(v)
	buf.b = w.buf
	return e.answer(status, w.buf)
}

func (w *writer) queue(v *pb.QueueView) {
	q, s := v.GetQueue(), v.GetQueue().GetSettings()
	w.next()
	w.open()
	w.id("id", q.GetId())
	w.text("name", q.GetName())
	w.text("namespace", v.GetNamespace())
	w.uint64("revision", q.GetRevision())
	w.integer("lease_duration_ms", s.GetLeaseDurationMs())
	w.integer("offer_duration_ms", s.GetOfferDurationMs())
	w.integer("max_active", int64(s.GetMaxActive()))
	w.uint64("max_waiting", s.GetMaxWaiting())
	w.integer("retention_ms", s.GetRetentionMs())
	w.integer("default_deadline_ms", s.GetDefaultDeadlineMs())
	w.integer("ageing_ms", s.GetAgeingMs())
	w.retry("default_retry", s.GetDefaultRetry())
	w.bool("paused", q.GetPaused())
	w.time("created_at", q.GetCreatedAtUs())
	w.time("updated_at", q.GetUpdatedAtUs())
	w.uint64("waiting", v.GetWaiting())
	w.uint64("active", v.GetActive())
	w.uint64("needs_review", v.GetNeedsReview())
	if v.GetDeleted() {
		w.bool("deleted", true)
	}
	w.close()
}

// getQueue is GET …/queues/{queue}.
func getQueue(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: e.queue}}})
	if err != nil {
		return err
	}
	return e.answerQueue(http.StatusOK, answer.GetQueue())
}

// listQueues is GET …/queues: all of them, by name.
func listQueues(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListQueues{ListQueues: &pb.ListQueues{}}})
	if err != nil {
		return err
	}
	return answerList(e, "queues", answer.GetQueues().GetQueues(), (*writer).queue, place{})
}

// deleteQueue is DELETE …/queues/{queue}?expected_revision=. It answers with
// the queue as it was last.
func deleteQueue(e *exchange) error {
	revision := e.query.revision("expected_revision")
	if err := e.query.err(); err != nil {
		return err
	}
	if err := e.noBody(); err != nil {
		return err
	}
	c := e.command(newIDs(1), apiv1.TargetContent("pulse.queue.delete", e.queue, revision))
	c.Body = &pb.Command_DeleteQueue{DeleteQueue: &pb.DeleteQueue{Name: e.queue, ExpectedRevision: revision}}
	return e.changeQueue(c)
}

// pauseQueue is POST …/queues/{queue}:pause, resumeQueue its opposite.
func pauseQueue(e *exchange) error  { return e.setPaused(true, "pulse.queue.pause") }
func resumeQueue(e *exchange) error { return e.setPaused(false, "pulse.queue.resume") }

func (e *exchange) setPaused(paused bool, operation string) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	revision, refusal := apiv1.DecodeExpectation(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), apiv1.TargetContent(operation, e.queue, revision))
	c.Body = &pb.Command_PauseQueue{PauseQueue: &pb.PauseQueue{Name: e.queue, Paused: paused, ExpectedRevision: revision}}
	return e.changeQueue(c)
}

// noBody reads a body that has nothing to say: none, or {}.
func (e *exchange) noBody() error {
	body, err := e.body()
	if err != nil {
		return err
	}
	if refusal := apiv1.DecodeNothing(body); refusal != nil {
		return refusal
	}
	return nil
}
