package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

const (
	// pollMax bounds a long poll, pollDefault is how long one waits that does
	// not say.
	pollMax     = 10 * time.Minute
	pollDefault = 30 * time.Second

	// A page of tasks is read in parts, so that a thousand large payloads are
	// never held at once, and ends early when it has this many bytes.
	pageBytesMax = 8 << 20
	partTasks    = 50
	// pageReadsMax bounds the reads one page may need when a filter lets few
	// tasks through; the page is then short and says where to go on.
	pageReadsMax = 100
)

// getTask is GET …/tasks/{id}, at once or when the task has come to an end.
func getTask(e *exchange) error {
	waits := e.query.word("wait_state", "terminal") == 0
	timeout := time.Duration(e.query.integer("timeout_ms", pollDefault.Milliseconds(), 0, pollMax.Milliseconds())) * time.Millisecond
	if _, given := e.query.values["timeout_ms"]; given && !waits {
		e.query.fault("timeout_ms", "belongs to wait_state")
	}
	if !waits {
		answer, err := e.read(&pb.Query{Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: e.id[:]}}})
		if err != nil {
			return err
		}
		return e.answerTask(http.StatusOK, &pb.TaskResult{Task: answer.GetTask()}, nil)
	}
	return e.pollTask(timeout)
}

// pollTask answers when the task has come to an end, when the time is over, or
// when this node shuts down, with the task as it is then.
func (e *exchange) pollTask(timeout time.Duration) error {
	if err := e.becomeWaiter(); err != nil {
		return err
	}
	e.writeWithin(timeout + e.h.opt.WriteWithin)
	wake, cancel := e.h.opt.Backend.Subscribe(e.id[:])
	defer cancel()
	ctx, stop := context.WithTimeout(e.r.Context(), timeout)
	defer stop()
	gone, release := e.who.Watch()
	defer release()
	get := &pb.GetTask{TaskId: e.id[:]}
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetTask{GetTask: get}})
	for {
		if err != nil {
			return err
		}
		if ended(answer.GetTask()) || !e.wait(ctx, wake, gone) {
			select {
			case <-gone:
				return e.refuse(schema.Errorf(schema.Unauthenticated, "the token of this request has been revoked or is over"))
			default:
			}
			return e.answerTask(http.StatusOK, &pb.TaskResult{Task: answer.GetTask()}, nil)
		}
		answer, err = e.follow(&pb.Query{Body: &pb.Query_GetTask{GetTask: get}})
	}
}

// ended says whether a task will not change by itself any more.
func ended(v *pb.TaskView) bool {
	switch v.GetTask().GetState() {
	case pb.TaskState_TASK_STATE_SUCCEEDED, pb.TaskState_TASK_STATE_FAILED,
		pb.TaskState_TASK_STATE_CANCELLED, pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		return true
	default:
		return false
	}
}

// wait returns true after a wake-up, false when ctx is over or this node shuts
// down or the caller's token is no good any more.
func (e *exchange) wait(ctx context.Context, wake, gone <-chan struct{}) bool {
	select {
	case <-wake:
		return true
	case <-ctx.Done():
		return false
	case <-gone:
		return false
	case <-e.h.draining:
		return false
	}
}

// listTasks is GET …/tasks: newest first, a page at a time. A cursor names the
// last task of its page, so tasks that arrive meanwhile move nothing.
func listTasks(e *exchange) error {
	filter, key := e.taskFilter()
	limit := e.query.limit(pageMax)
	filter.Before = e.query.cursor(cursorTasks, key)
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.open()
	w.name("tasks")
	w.openArray()
	next, err := e.tasks(e.read, filter, limit, func(v *pb.TaskView) bool {
		w.next()
		w.open()
		w.task(v, nil)
		w.close()
		return len(w.buf) < pageBytesMax
	})
	buf.b = w.buf
	if err != nil {
		return err
	}
	w.closeArray()
	if len(next) > 0 {
		w.plain("next_cursor", newCursor(cursorTasks, key, next))
	}
	w.close()
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}

// tasks yields up to limit tasks that a filter lets through, newest first, and
// returns the place behind which to go on, nil if there is nothing there. read
// makes the first of the reads it takes.
func (e *exchange) tasks(read func(*pb.Query) (*pb.Answer, error), filter *pb.ListTasks, limit int, yield func(*pb.TaskView) bool) (next []byte, err error) {
	part := partTasks
	if filter.IdsOnly {
		part = pageMax
	}
	for reads := 0; ; reads++ {
		filter.Limit = uint32(min(limit, part))
		answer, err := read(&pb.Query{Body: &pb.Query_ListTasks{ListTasks: filter}})
		if err != nil {
			return nil, err
		}
		read = e.follow
		list := answer.GetTasks()
		for _, v := range list.GetTasks() {
			limit--
			if !yield(v) {
				return e.behind(v, list), nil
			}
		}
		next = list.GetNextBefore()
		if len(next) == 0 || limit <= 0 || reads == pageReadsMax {
			return next, nil
		}
		filter = proto.CloneOf(filter) // whoever was asked may still hold it
		filter.Before = next
	}
}

// behind is where to go on when a page ended with v: nowhere if v was the last
// task of the last part.
func (e *exchange) behind(v *pb.TaskView, list *pb.TaskList) []byte {
	last := list.Tasks[len(list.Tasks)-1]
	if v == last {
		return list.GetNextBefore()
	}
	return v.GetTask().GetId()
}

// taskFilter reads the parameters that select tasks; key stands for them.
func (e *exchange) taskFilter() (filter *pb.ListTasks, key string) {
	q := &e.query
	f := apiv1.Filter{
		Queue: q.get("queue"), States: q.list("state"), Handler: q.get("handler"), BusinessKey: q.get("business_key"),
		ConcurrencyKey: q.get("concurrency_key"), WaitingReason: q.get("waiting_reason"),
		ErrorCode: q.get("error_code"), CreatedFrom: q.time("created_from"), CreatedUntil: q.time("created_until"),
	}
	if f.Queue != "" && !apiv1.ValidName(f.Queue) {
		q.fault("queue", "%s", apiv1.NameRule())
	}
	if f.Handler != "" && !schema.ValidName(f.Handler, schema.HandlerCharsMax) {
		q.fault("handler", "is not a name of a handler")
	}
	if fault := schema.CheckBusinessKey(f.BusinessKey); fault != "" {
		q.fault("business_key", "%s", fault)
	}
	if fault := schema.CheckConcurrencyKey(f.ConcurrencyKey); f.ConcurrencyKey != "" && fault != "" {
		q.fault("concurrency_key", "%s", fault)
	}
	if f.ErrorCode != "" && !schema.ValidName(f.ErrorCode, schema.ErrorCodeCharsMax) {
		q.fault("error_code", "is not an error code")
	}
	filter, bad := listOf(&f)
	for _, name := range bad {
		q.fault(name, "has a word that is not known")
	}
	return filter, filterKey(&f)
}

// listOf turns a filter into a query; bad names the members with unknown words.
func listOf(f *apiv1.Filter) (list *pb.ListTasks, bad []string) {
	list = &pb.ListTasks{
		Queue: f.Queue, Handler: f.Handler, BusinessKey: f.BusinessKey, ConcurrencyKey: f.ConcurrencyKey,
		ErrorCode: f.ErrorCode, CreatedFromUs: int64(f.CreatedFrom), CreatedUntilUs: int64(f.CreatedUntil),
	}
	for _, state := range f.States {
		number := numberOf(taskStates, state)
		if number == 0 {
			bad = append(bad, "state")
			break
		}
		list.States = append(list.States, pb.TaskState(number))
	}
	if f.WaitingReason != "" {
		list.WaitingReason = pb.WaitingReason(numberOf(waitingReasons, f.WaitingReason))
		if list.WaitingReason == 0 {
			bad = append(bad, "waiting_reason")
		}
	}
	return list, bad
}

// numberOf finds a word of an enumeration; 0 is none.
func numberOf(words []string, word string) int32 {
	for i := 1; i < len(words); i++ {
		if words[i] == word {
			return int32(i)
		}
	}
	return 0
}

// filterKey tells filters apart for the cursors made for them.
func filterKey(f *apiv1.Filter) string {
	return strings.Join([]string{
		f.Queue, strings.Join(f.States, ","), f.Handler, f.BusinessKey, f.ConcurrencyKey, f.WaitingReason,
		f.ErrorCode, strconv.FormatInt(int64(f.CreatedFrom), 10), strconv.FormatInt(int64(f.CreatedUntil), 10),
	}, "\x00")
}

// listAttempts is GET …/tasks/{id}/attempts, oldest first.
func listAttempts(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: e.id[:]}}})
	if err != nil {
		return err
	}
	return answerList(e, "attempts", answer.GetAttempts().GetAttempts(), (*writer).attempt, place{})
}

// cancelTask is POST …/tasks/{id}:cancel.
func cancelTask(e *exchange) error {
	change, err := e.change()
	if err != nil {
		return err
	}
	c := e.command(newIDs(1), change.Content("pulse.task.cancel", e.id))
	c.Body = &pb.Command_CancelTask{CancelTask: &pb.CancelTask{
		TaskId: e.id[:], ExpectedRevision: change.ExpectedRevision, Note: change.Note,
	}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerTask(http.StatusOK, result.GetTask(), nil)
}

// retryTask is POST …/tasks/{id}:retry. It answers with the new task.
func retryTask(e *exchange) error {
	change, err := e.change()
	if err != nil {
		return err
	}
	c := e.command(newIDs(1), change.Content("pulse.task.retry", e.id))
	c.Body = &pb.Command_RetryTask{RetryTask: &pb.RetryTask{
		TaskId: e.id[:], ExpectedRevision: change.ExpectedRevision, Note: change.Note,
	}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerTask(http.StatusCreated, result.GetTask(), nil)
}

// runTask is POST …/tasks/{id}:run.
func runTask(e *exchange) error {
	change, err := e.change()
	if err != nil {
		return err
	}
	c := e.command(newIDs(1), change.Content("pulse.task.run", e.id))
	c.Body = &pb.Command_RunTask{RunTask: &pb.RunTask{
		TaskId: e.id[:], ExpectedRevision: change.ExpectedRevision, Note: change.Note,
	}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerTask(http.StatusOK, result.GetTask(), nil)
}

func (e *exchange) change() (apiv1.Change, error) {
	body, err := e.body()
	if err != nil {
		return apiv1.Change{}, err
	}
	change, refusal := apiv1.DecodeChange(body)
	if refusal != nil {
		return apiv1.Change{}, refusal
	}
	return change, nil
}

var decisions = map[apiv1.Decision]pb.ReviewDecision{
	apiv1.DecisionSucceeded: pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED,
	apiv1.DecisionFailed:    pb.ReviewDecision_REVIEW_DECISION_FAILED,
	apiv1.DecisionCancelled: pb.ReviewDecision_REVIEW_DECISION_CANCELLED,
	apiv1.DecisionRetry:     pb.ReviewDecision_REVIEW_DECISION_RETRY,
}

// reviewTask is POST …/tasks/{id}:review.
func reviewTask(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	review, refusal := apiv1.DecodeReview(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), review.Content(e.id))
	c.Body = &pb.Command_ReviewTask{ReviewTask: &pb.ReviewTask{
		TaskId: e.id[:], ExpectedRevision: review.ExpectedRevision, Decision: decisions[review.Decision],
		Note: review.Note, Result: review.Result, ErrorCode: review.ErrorCode, DeadlineAtUs: int64(review.DeadlineAt),
	}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerTask(http.StatusOK, result.GetTask(), nil)
}
