package httpapi

import (
	"net/http"
	"strconv"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// bulkTasksMax bounds the tasks of one bulk command; the state refuses more.
const bulkTasksMax = 500

// bulkTasks is POST …/tasks:bulk. The tasks are named, or selected by a filter
// page by page; what is done to each stands for itself.
//
// Under an Idempotency-Key the parts of a named selection are keyed by their
// place, because a repeat cuts it the same way. A filter selects anew each time,
// so its tasks are keyed one by one: whatever a repeat selects, no task is
// acted on twice.
func bulkTasks(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	b, refusal := apiv1.DecodeBulk(body)
	if refusal != nil {
		return refusal
	}
	run := bulkRun{exchange: e, bulk: b}
	if err := run.choose(); err != nil {
		return err
	}
	if !b.DryRun {
		if err := run.act(); err != nil {
			return err
		}
	}
	return run.answer()
}

var (
	bulkActions = map[apiv1.Action]pb.BulkAction{
		apiv1.ActionCancel: pb.BulkAction_BULK_ACTION_CANCEL,
		apiv1.ActionRetry:  pb.BulkAction_BULK_ACTION_RETRY,
	}
	// bulkStates are what a filter without states selects.
	bulkStates = map[apiv1.Action][]string{
		apiv1.ActionCancel: {"WAITING", "LEASED", "RUNNING"},
		apiv1.ActionRetry:  {"FAILED"},
	}
)

// bulkRun is one bulk request on its way.
type bulkRun struct {
	*exchange
	bulk  apiv1.Bulk
	items []bulkItem
	next  string // cursor

	accepted, replayed int // results; the answer is a replay if all accepted ones are
}

type bulkItem struct {
	id       schema.ID
	revision uint64
	row      *pb.TaskRow // of a dry run: state and what speaks against a repeat
	newID    []byte
	refusal  *schema.Error
}

// choose finds the tasks.
func (b *bulkRun) choose() error {
	if b.bulk.Filter != nil {
		return b.chooseByFilter()
	}
	for _, id := range b.bulk.IDs {
		b.items = append(b.items, bulkItem{id: id})
	}
	if !b.bulk.DryRun {
		return nil
	}
	for i := range b.items {
		if err := b.look(&b.items[i], i == 0); err != nil {
			return err
		}
	}
	return nil
}

// look reads a named task for a dry run.
func (b *bulkRun) look(item *bulkItem, first bool) error {
	query := &pb.Query{Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: item.id[:]}}}
	ask := b.follow
	if first {
		ask = b.ask
	}
	answer, err := ask(query)
	switch {
	case err == nil:
		item.row = answer.GetTask().GetTask()
		item.revision = item.row.GetRevision()
	case answer != nil:
		item.refusal = asRefusal(err)
	default:
		return err
	}
	return nil
}

func (b *bulkRun) chooseByFilter() error {
	f := *b.bulk.Filter
	if len(f.States) == 0 {
		f.States = bulkStates[b.bulk.Action]
	}
	key := string(b.bulk.Action) + "\x00" + filterKey(&f)
	list, _ := listOf(&f) // the decoder knows the words
	list.IdsOnly = true
	list.NotRetried = b.once()
	if b.bulk.Cursor != "" {
		place, fault := placeOf(b.bulk.Cursor, cursorBulk, key)
		if fault != "" {
			return invalid([]schema.Violation{{Path: "/cursor", Message: fault}})
		}
		list.Before = place
	}
	next, err := b.tasks(b.ask, list, apiv1.BulkIDsMax, func(v *pb.TaskView) bool {
		if id, ok := idOf(v.GetTask().GetId()); ok {
			b.items = append(b.items, bulkItem{id: id, row: v.Task, revision: v.Task.Revision})
		}
		return true
	})
	if len(next) > 0 {
		b.next = newCursor(cursorBulk, key, next)
	}
	return err
}

// once says that no task is to be retried that was retried already: what a filter
// selects nobody has named, and the same selection made twice, or by two at a
// time, must not do the work twice.
func (b *bulkRun) once() bool { return b.bulk.Filter != nil && b.bulk.Action == apiv1.ActionRetry }

// act runs the action part by part, each a call of its own, so that one large
// request does not fill the log's entries. After a call whose outcome is not
// known the rest is not begun.
func (b *bulkRun) act() error {
	for first := 0; first < len(b.items); first += bulkTasksMax {
		part := b.items[first:min(first+bulkTasksMax, len(b.items))]
		results, err := b.submitAll(b.commands(part, first/bulkTasksMax), b.h.opt.BatchTimeout)
		if err != nil && first == 0 {
			return err
		}
		if err != nil {
			b.giveUp(first, asRefusal(err))
			return nil
		}
		b.settle(part, results)
	}
	return nil
}

// commands makes those of one part.
func (b *bulkRun) commands(part []bulkItem, place int) []*pb.Command {
	one := b.bulk.Filter != nil && b.retryKey != ""
	if !one {
		c := b.bulkCommand(part)
		if b.retryKey != "" {
			c.IdempotencyKey += "#" + strconv.Itoa(place)
		}
		return []*pb.Command{c}
	}
	cmds := make([]*pb.Command, len(part))
	for i := range part {
		cmds[i] = b.bulkCommand(part[i : i+1])
		cmds[i].IdempotencyKey += "#" + part[i].id.String()
	}
	return cmds
}

func (b *bulkRun) bulkCommand(part []bulkItem) *pb.Command {
	ids := make([]schema.ID, len(part))
	raw := make([][]byte, len(part))
	for i := range part {
		ids[i] = part[i].id
		raw[i] = part[i].id[:]
	}
	c := b.command(newIDs(1), b.bulk.Content(ids))
	c.Body = &pb.Command_BulkTasks{BulkTasks: &pb.BulkTasks{
		Action: bulkActions[b.bulk.Action], TaskIds: raw, Note: b.bulk.Note, Once: b.once(),
	}}
	return c
}

// settle spreads the results of a part over its items.
func (b *bulkRun) settle(part []bulkItem, results []*pb.Result) {
	covers := (len(part) + len(results) - 1) / max(len(results), 1)
	for i, result := range results {
		mine := part[i*covers : min((i+1)*covers, len(part))]
		refusal := refusalOf(result)
		if refusal == nil {
			b.accepted++
		}
		if result.GetReplayed() {
			b.replayed++
		}
		done := result.GetBulk().GetItems()
		for j := range mine {
			switch {
			case refusal != nil:
				mine[j].refusal = refusal
			case j >= len(done):
				mine[j].refusal = schema.Errorf(schema.ResultUnknown, "the outcome for this task is not known")
			case done[j].Code != "":
				mine[j].refusal = &schema.Error{Code: schema.Code(done[j].Code), Message: done[j].Message}
			default:
				mine[j].revision, mine[j].newID = done[j].Revision, done[j].NewTaskId
			}
		}
	}
}

// giveUp marks what a failed call left open, and what was not begun.
func (b *bulkRun) giveUp(first int, cause *schema.Error) {
	for i := first; i < len(b.items); i++ {
		b.items[i].refusal = cause
		if i >= first+bulkTasksMax {
			b.items[i].refusal = schema.Errorf(schema.Unavailable, "not begun, because an earlier part failed")
		}
	}
}

func (b *bulkRun) answer() error {
	if b.accepted > 0 && b.replayed == b.accepted {
		b.w.Header()["Idempotency-Replayed"] = []string{"true"}
	}
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	failed := 0
	for i := range b.items {
		if b.items[i].refusal != nil {
			failed++
		}
	}
	w.open()
	w.plain("action", string(b.bulk.Action))
	w.bool("dry_run", b.bulk.DryRun)
	w.integer("matched", int64(len(b.items)))
	done := len(b.items) - failed
	if b.bulk.DryRun {
		done = 0
	}
	w.integer("done", int64(done))
	w.integer("failed", int64(failed))
	w.name("results")
	w.openArray()
	for i := range b.items {
		b.writeItem(&w, &b.items[i])
	}
	w.closeArray()
	if b.next != "" {
		w.plain("next_cursor", b.next)
	}
	w.close()
	buf.b = w.buf
	return b.exchange.answer(http.StatusOK, w.buf)
}

func (b *bulkRun) writeItem(w *writer, item *bulkItem) {
	w.next()
	w.open()
	w.id("task_id", item.id[:])
	if item.refusal != nil {
		w.problem("error", item.refusal)
		w.close()
		return
	}
	if b.bulk.DryRun {
		w.plain("state", nameOf(taskStates, item.row.GetState()))
		w.plain("recovery_safety", nameOf(safeties, item.row.GetRecoverySafety()))
		if item.row.GetEffectUncertain() {
			w.bool("effect_uncertain", true)
		}
	}
	w.uint64("revision", item.revision)
	w.optID("new_task_id", item.newID)
	w.close()
}
