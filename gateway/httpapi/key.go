package httpapi

import (
	"net/http"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// getKey is GET …/keys/{key}. A key that nobody holds or waits for is no error:
// its row exists only while it is in use.
func getKey(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetKey{GetKey: &pb.GetKey{Key: e.key}}})
	if err != nil {
		return err
	}
	return e.answerKey(answer.GetKey())
}

// listKeys is GET …/keys: those held or waited for, in order, a page at a time.
func listKeys(e *exchange) error {
	after := string(e.query.cursor(cursorKeys, ""))
	if fault := schema.CheckConcurrencyKey(after); after != "" && fault != "" {
		e.query.fault("cursor", "is not a cursor of this list")
	}
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListKeys{ListKeys: &pb.ListKeys{
		Limit: uint32(e.query.limit(pageMax)), After: after,
	}}})
	if err != nil {
		return err
	}
	keys := answer.GetKeys()
	return answerList(e, "keys", keys.GetKeys(), (*writer).key, place{cursorKeys, "", []byte(keys.GetNextAfter())})
}

// freeKey is POST …/keys/{key}:free. It takes the key from a task in review; the
// note says who found out that this does no harm. A live attempt's key cannot be
// taken. One that nobody holds is answered like getKey does.
func freeKey(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	note, refusal := apiv1.DecodeNote(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), apiv1.NoteContent("pulse.key.free", e.key, note))
	c.Body = &pb.Command_FreeKey{FreeKey: &pb.FreeKey{Key: e.key, Note: note}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerKey(result.GetKey())
}

func (e *exchange) answerKey(v *pb.KeyView) error {
	if v.GetKey() == "" {
		v = &pb.KeyView{Key: e.key}
	}
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.key(v)
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}

func (w *writer) key(v *pb.KeyView) {
	w.next()
	w.open()
	w.text("key", v.GetKey())
	if len(v.GetHolderTaskId()) > 0 {
		w.id("holder_task_id", v.HolderTaskId)
		w.optID("attempt_id", v.GetAttemptId())
		w.uint64("token", v.GetToken())
		w.time("acquired_at", v.GetAcquiredAtUs())
		w.bool("in_review", v.GetInReview())
	}
	w.uint64("waiters", v.GetWaiters())
	w.close()
}
