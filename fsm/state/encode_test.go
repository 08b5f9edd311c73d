package state

import (
	"bytes"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "pulse/proto/pulse/v1"
)

// Every field of a row that is encoded by hand, alone and together with all others, at
// its smallest and at its largest, becomes the bytes that the library makes of it, in
// the room that was foreseen.
func TestRowsAreEncodedAsTheLibraryDoes(t *testing.T) {
	t.Parallel()
	for _, empty := range []proto.Message{&pb.TaskRow{}, &pb.AttemptRow{}, &pb.EventRow{}} {
		fields := empty.ProtoReflect().Descriptor().Fields()
		for _, large := range []bool{false, true} {
			all := empty.ProtoReflect().New()
			for i := range fields.Len() {
				one := empty.ProtoReflect().New()
				fillField(one, fields.Get(i), large)
				sameEncoding(t, one.Interface())
				fillField(all, fields.Get(i), large)
				sameEncoding(t, all.Interface())
			}
		}
		sameEncoding(t, empty)
	}
}

func sameEncoding(t *testing.T, row proto.Message) {
	t.Helper()
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	room := rowRoom(row)
	got, err := appendRow(nil, row)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%T %v is encoded as %x (%v), want %x", row, row, got, err, want)
	}
	if room < len(want) {
		t.Fatalf("%T of %d bytes is given room for %d", row, len(want), room)
	}
}

// fillField sets a field, and all fields of the messages in it.
func fillField(m protoreflect.Message, f protoreflect.FieldDescriptor, large bool) {
	value := func() protoreflect.Value {
		size := 1
		if large {
			size = 300
		}
		switch f.Kind() {
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.EnumKind:
			values := f.Enum().Values()
			n := values.Get(values.Len() - 1).Number()
			if large {
				n = math.MinInt32 // which a later version might write; ten bytes
			}
			return protoreflect.ValueOfEnum(n)
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(map[bool]uint32{false: 1, true: math.MaxUint32}[large])
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(map[bool]uint64{false: 1, true: math.MaxUint64}[large])
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(map[bool]int64{false: 1, true: math.MinInt64}[large])
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(string(bytes.Repeat([]byte{'x'}, size)))
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes(bytes.Repeat([]byte{7}, size))
		default:
			panic("a field of a kind that is not known: " + string(f.FullName()))
		}
	}
	sub := func(into protoreflect.Message) {
		fields := into.Descriptor().Fields()
		for i := range fields.Len() {
			fillField(into, fields.Get(i), large)
		}
	}
	switch {
	case f.IsList() && f.Message() != nil:
		list := m.Mutable(f).List()
		for range 3 {
			e := list.NewElement()
			sub(e.Message())
			list.Append(e)
		}
	case f.Message() != nil:
		sub(m.Mutable(f).Message())
	default:
		m.Set(f, value())
	}
}

// Every kind of fact, with its fields at their smallest and at their largest, is
// encoded in an event as the library does it.
func TestFactsAreEncodedAsTheLibraryDoes(t *testing.T) {
	t.Parallel()
	kinds := (&pb.Fact{}).ProtoReflect().Descriptor().Fields()
	for i := range kinds.Len() {
		for _, large := range []bool{false, true} {
			fact := &pb.Fact{}
			fillField(fact.ProtoReflect(), kinds.Get(i), large)
			empty := &pb.Fact{}
			empty.ProtoReflect().Set(kinds.Get(i), empty.ProtoReflect().NewField(kinds.Get(i)))
			sameEncoding(t, &pb.EventRow{Facts: []*pb.Fact{fact, {}, empty}})
		}
	}
}
