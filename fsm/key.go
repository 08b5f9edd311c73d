package fsm

import (
	"bytes"
	"encoding/hex"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// freeKey is an operator's decision to let a key go that a task in review
// keeps. A running attempt's key cannot be taken from under it.
func (r *run) freeKey(c *pb.FreeKey) *pb.Result {
	if c.Note == "" {
		return violation("/note", "freeing a key needs a note")
	}
	k := r.s.Key(r.nsID(), c.Key)
	switch {
	case k == nil || k.Row == nil:
		r.told = "nobody held it: nothing was changed"
		return keyResult(viewKey(c.Key, k))
	case !k.Row.InReview:
		return refuse(schema.Conflict, "a running attempt holds the key; cancel its task instead")
	}
	row := k.Row
	r.told = "held by task " + hex.EncodeToString(row.TaskId)
	old := r.tx.Task(r.nsID(), ID(row.TaskId))
	r.tx.FreeKey(r.nsID(), c.Key)
	t := state.CopyTask(old)
	t.KeyToken = 0
	r.commitTask(old, t, &pb.Fact{Kind: &pb.Fact_KeyFreed{KeyFreed: &pb.KeyFreed{
		Key: c.Key, Token: row.Token, Note: c.Note, By: r.cmd.Caller.GetPrincipal(),
	}}})
	return keyResult(viewKey(c.Key, r.s.Key(r.nsID(), c.Key)))
}

// releaseReviewKey frees the key a task in review keeps, if it still does.
func (r *run) releaseReviewKey(t *pb.TaskRow) {
	if t.ConcurrencyKey == "" {
		return
	}
	k := r.s.Key(ID(t.NamespaceId), t.ConcurrencyKey)
	if k != nil && k.Row != nil && k.Row.InReview && bytes.Equal(k.Row.TaskId, t.Id) {
		r.tx.FreeKey(ID(t.NamespaceId), t.ConcurrencyKey)
	}
}

func keyResult(v *pb.KeyView) *pb.Result {
	return &pb.Result{Body: &pb.Result_Key{Key: v}}
}
