package state

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// outlineOf is what an outline has to tell of a row.
func outlineOf(t *pb.TaskRow) *pb.TaskRow {
	return &pb.TaskRow{
		Id: t.Id, NamespaceId: t.NamespaceId, QueueId: t.QueueId, AttemptId: t.AttemptId, ScheduleId: t.ScheduleId,
		State: t.State, Park: t.Park, Priority: t.Priority, PayloadBytes: t.PayloadBytes, AvailableAtUs: t.AvailableAtUs,
		Handler: t.Handler, HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion, ConcurrencyKey: t.ConcurrencyKey,
	}
}

// Every field of a task's row, alone and together with all others, small and large, with
// fields of a later version between them: the outline is that of the whole row, and
// nothing of the row before is left in it.
func TestTheOutlineOfATaskIsThatOfItsRow(t *testing.T) {
	t.Parallel()
	var o taskOutline
	check := func(row *pb.TaskRow) {
		t.Helper()
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		later := []byte{0xc2, 0x3e, 2, 'a', 'b', 0xc8, 0x3e, 7, 0xcd, 0x3e, 1, 2, 3, 4} // of 1000 and 1001
		for _, b := range [][]byte{value, append(bytes.Clone(value), later...), append(later, value...)} {
			got, err := o.read(b)
			if err != nil || !proto.Equal(got, outlineOf(row)) {
				t.Errorf("the outline of %v is %v (%v)", row, got, err)
			}
		}
	}
	all := &pb.TaskRow{}
	fields := all.ProtoReflect().Descriptor().Fields()
	for _, large := range []bool{false, true} {
		for i := range fields.Len() {
			one := &pb.TaskRow{}
			fillField(one.ProtoReflect(), fields.Get(i), large)
			check(one)
			fillField(all.ProtoReflect(), fields.Get(i), large)
			check(all)
		}
		check(&pb.TaskRow{})
	}
}

// Wherever a row is cut off it is damaged to the outline as well, and with a byte that is
// another one it is so at most if it is to the library, which looks into more.
func TestADamagedTaskHasNoOutlineOfItsOwn(t *testing.T) {
	t.Parallel()
	row := &pb.TaskRow{}
	fields := row.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fillField(row.ProtoReflect(), fields.Get(i), false)
	}
	whole, err := proto.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	var o taskOutline
	for at := range whole {
		if _, err := o.read(whole[:at]); (err != nil) != (proto.Unmarshal(whole[:at], &pb.TaskRow{}) != nil) {
			t.Errorf("%x is damaged: %v", whole[:at], err)
		}
		for _, bit := range []byte{1, 2, 8, 0x40} {
			b, want := bytes.Clone(whole), &pb.TaskRow{}
			b[at] ^= bit
			if proto.Unmarshal(b, want) != nil {
				continue
			}
			if got, err := o.read(b); err != nil || !proto.Equal(got, outlineOf(want)) {
				t.Errorf("the outline of %x is %v (%v), the row is %v", b, got, err, want)
			}
		}
	}
}
