package httpapi

import (
	"fmt"
	"net/http"
	"strconv"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// sourceAPI is what a task's first fact says of where it came from.
const sourceAPI = "api"

// submitTask is POST …/queues/{queue}/tasks.
func submitTask(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	s, refusal := apiv1.DecodeSubmission(body)
	if refusal != nil {
		return refusal
	}
	end := e.submitting(1)
	result, err := e.submit(e.submission(newIDs(1), &s))
	end(err)
	if err != nil {
		return err
	}
	return e.answerTask(created(result.GetTask()), result.GetTask(), s.Payload)
}

// created is the status of an answer to what may have made a task: a repeat
// under an Idempotency-Key has that of the first.
func created(r *pb.TaskResult) int {
	if r.GetDuplicate() {
		return http.StatusOK
	}
	return http.StatusCreated
}

// submission is the command of one task.
func (e *exchange) submission(id []byte, s *apiv1.Submission) *pb.Command {
	t := &pb.SubmitTask{
		Queue: e.queue, Handler: s.Handler, HandlerVersion: s.HandlerVersion, PayloadVersion: s.PayloadVersion,
		Payload: s.Payload, BusinessKey: s.BusinessKey, Priority: uint32(s.Priority),
		AvailableAtUs: int64(s.AvailableAt), DelayMs: s.DelayMillis,
		StartDeadlineAtUs: int64(s.StartDeadlineAt), DeadlineAtUs: int64(s.DeadlineAt),
		InitialDelayMs: optional(s.Retry.InitialDelayMillis), MaxDelayMs: optional(s.Retry.MaxDelayMillis),
		AttemptTimeoutMs: optional(s.Retry.AttemptTimeoutMillis),
		ConcurrencyKey:   s.ConcurrencyKey, Source: sourceAPI, Trace: e.traceContext(s),
	}
	if s.ReconcileOnly {
		t.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY
	}
	if n := s.Retry.MaxAttempts; n != apiv1.Absent {
		attempts := uint32(n)
		t.MaxAttempts = &attempts
	}
	c := e.command(id, s.Content(e.queue))
	c.Body = &pb.Command_SubmitTask{SubmitTask: t}
	return c
}

func optional(n int64) *int64 {
	if n == apiv1.Absent {
		return nil
	}
	return &n
}

// answerTask answers with one task.
func (e *exchange) answerTask(status int, r *pb.TaskResult, payload []byte) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.open()
	w.task(r.GetTask(), payload)
	if r.GetDuplicate() {
		w.bool("duplicate", true)
	}
	w.close()
	buf.b = w.buf
	return e.answer(status, w.buf)
}

// submitBatch is POST …/queues/{queue}/tasks:batch. Each task is a command of its
// own; those that are refused here never become one.
func submitBatch(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	items, refusal := apiv1.DecodeBatch(body)
	if refusal != nil {
		return refusal
	}
	end := e.submitting(len(items))
	results := make([]*pb.Result, 0, len(items))
	if cmds := e.batch(items); len(cmds) > 0 {
		results, err = e.submitAll(cmds, e.h.opt.BatchTimeout)
	}
	end(err)
	if err != nil {
		return err
	}
	e.recordBatch(results)
	return e.answerBatch(items, results)
}

// recordBatch puts a batch on record that has a reason: in one line, whatever its
// size, because the record is for people.
func (e *exchange) recordBatch(results []*pb.Result) {
	made := 0
	for _, r := range results {
		if r.GetCode() == "" && !r.GetReplayed() && !r.GetTask().GetDuplicate() {
			made++
		}
	}
	if e.note != "" && made > 0 {
		e.recordAnyway(deed{namespace: e.ns, action: "pulse.task.SubmitBatch", target: e.queue}, fmt.Sprintf("%d tasks", made))
	}
}

// batch makes the commands of the items that are sound. The key of each is that
// of the request and the item's place, so that a repeat of the request repeats
// every item, also those that were refused here and are sound to a newer server.
func (e *exchange) batch(items []apiv1.BatchItem) []*pb.Command {
	ids := newIDs(len(items))
	cmds := make([]*pb.Command, 0, len(items))
	for i := range items {
		if items[i].Refusal != nil {
			continue
		}
		c := e.submission(ids[16*i:16*i+16:16*i+16], &items[i].Submission)
		c.Note = "" // that of the batch
		if e.retryKey != "" {
			c.IdempotencyKey = e.retryKey + "#" + strconv.Itoa(i)
		}
		cmds = append(cmds, c)
	}
	return cmds
}

// answerBatch writes a task or an error for each item. The answer as a whole is
// a replay if everything accepted in it is one.
func (e *exchange) answerBatch(items []apiv1.BatchItem, results []*pb.Result) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.open()
	w.name("results")
	w.openArray()
	accepted, replayed := 0, 0
	for i := range items {
		refusal := items[i].Refusal
		var result *pb.Result
		if refusal == nil {
			result, results = results[0], results[1:]
			if refusal = refusalOf(result); refusal != nil {
				for j := range refusal.Violations {
					refusal.Violations[j].Path = "/tasks/" + strconv.Itoa(i) + refusal.Violations[j].Path
				}
			}
		}
		w.next()
		w.open()
		if refusal != nil {
			w.problem("error", refusal)
		} else {
			accepted++
			if result.Replayed {
				replayed++
			}
			w.task(result.GetTask().GetTask(), items[i].Submission.Payload)
			if result.GetTask().GetDuplicate() {
				w.bool("duplicate", true)
			}
		}
		w.close()
	}
	w.closeArray()
	w.close()
	buf.b = w.buf
	if accepted > 0 && accepted == replayed {
		e.w.Header()["Idempotency-Replayed"] = []string{"true"}
	}
	return e.answer(http.StatusOK, w.buf)
}

// problem is a member with an error.
func (w *writer) problem(name string, refusal *schema.Error) {
	w.name(name)
	w.buf = appendProblem(w.buf, refusal.Code.HTTPStatus(), refusal)
	w.comma = true
}
