package state

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// TestEveryFieldOfARowComesBack: whatever a row holds is either stored with the
// event or found in the task's row, also what a later version adds to it.
func TestEveryFieldOfARowComesBack(t *testing.T) {
	t.Parallel()
	fields := (&pb.TaskRow{}).ProtoReflect().Descriptor().Fields()
	whole := &pb.TaskRow{}
	check := func(row *pb.TaskRow) {
		t.Helper()
		moving := Moving(row)
		MakeWhole(moving, row)
		if !proto.Equal(moving, row) {
			t.Errorf("%v comes back as %v", row, moving)
		}
	}
	for i := range fields.Len() {
		one := &pb.TaskRow{}
		fillField(one.ProtoReflect(), fields.Get(i), true)
		check(one)
		fillField(whole.ProtoReflect(), fields.Get(i), true)
	}
	check(whole)
}

// TestEveryFieldOfAnEventComesBack: an event that is stored and read is as it was,
// alone, with all other fields, and whatever could be left out of it.
func TestEveryFieldOfAnEventComesBack(t *testing.T) {
	t.Parallel()
	id := func(b byte) []byte { return []byte(strings.Repeat(string(rune('a'+b)), 16)) }
	row := &pb.TaskRow{
		Id: id(1), NamespaceId: id(2), QueueId: id(3), Handler: "mail", Revision: 7, UpdatedAtUs: 70, EventIndex: 9,
		EventPlace: 3, CreatedCommandId: id(4), State: pb.TaskState_TASK_STATE_RUNNING, Priority: 5,
	}
	later := proto.CloneOf(row)
	later.Revision, later.State, later.EventIndex, later.AttemptCount = 9, pb.TaskState_TASK_STATE_FAILED, 12, 3
	base := &pb.EventRow{
		Aggregate: pb.Aggregate_AGGREGATE_TASK, AggregateId: row.Id, NamespaceId: row.NamespaceId, TaskAfter: row,
		Version: 7, TimeUs: 70, Index: 9, Place: 3,
	}
	var events []*pb.EventRow
	fields := base.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		switch fields.Get(i).Name() {
		case "left_out", "task_after", "namespace_id", "aggregate_id":
			continue
		}
		e := proto.CloneOf(base)
		fillField(e.ProtoReflect(), fields.Get(i), true)
		events = append(events, e)
	}
	cause := func(command, correlation, causation []byte) {
		e := proto.CloneOf(base)
		e.CommandId, e.CorrelationId, e.CausationId = command, correlation, causation
		events = append(events, e)
	}
	for _, command := range [][]byte{nil, id(4), id(5)} {
		for _, correlation := range [][]byte{nil, id(4), id(5), id(6)} {
			for _, causation := range [][]byte{nil, id(4), id(5)} {
				cause(command, correlation, causation)
			}
		}
	}
	for name, stored := range map[string]*pb.TaskRow{"at the time": row, "later": later} {
		var short shortened
		for _, e := range events {
			data, err := appendEvent(nil, short.of(e))
			if err != nil {
				t.Fatal(err)
			}
			got := &pb.EventRow{}
			if err := proto.Unmarshal(data, got); err != nil {
				t.Fatal(err)
			}
			known := completion{}
			known.know(stored)
			if err := known.whole(got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, e) {
				t.Errorf("with the row %s: %v comes back as %v", name, e, got)
			}
		}
	}
	if e := proto.CloneOf(base); proto.Size(new(shortened).of(e)) >= proto.Size(e) {
		t.Error("nothing is left out")
	}
	for _, e := range []*pb.EventRow{{LeftOut: leftKnown + 1, TaskAfter: &pb.TaskRow{}}, {LeftOut: leftFixed}} {
		known := completion{}
		known.know(row)
		e.AggregateId, e.NamespaceId = row.Id, row.NamespaceId
		if err := known.whole(e); err == nil {
			t.Errorf("%v is taken for whole", e)
		}
	}
}
