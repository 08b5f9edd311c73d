package state

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "pulse/proto/pulse/v1"
)

// fill sets every field of a message to something that is not its zero value.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList():
			list := m.Mutable(f).List()
			if f.Kind() == protoreflect.MessageKind {
				list.AppendMutable()
			} else {
				list.Append(scalar(f, i))
			}
		case f.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, scalar(f, i))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor, i int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("s")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{byte(i + 1)})
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(i + 1))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(i + 1))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(i + 1))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	default:
		panic(f.Kind().String())
	}
}

// A field added to a row and forgotten in its copy would be lost at the next
// change of that row.
func TestCopiesCarryEveryField(t *testing.T) {
	t.Parallel()
	check := func(in, out proto.Message) {
		t.Helper()
		if !proto.Equal(in, out) {
			t.Errorf("%T: copy lost a field:\n in %v\nout %v", in, in, out)
		}
	}
	task, attempt, instance := &pb.TaskRow{}, &pb.AttemptRow{}, &pb.InstanceRow{}
	queue, namespace := &pb.QueueRow{}, &pb.NamespaceRow{}
	for _, m := range []proto.Message{task, attempt, instance, queue, namespace} {
		fill(m.ProtoReflect())
	}
	check(task, CopyTask(task))
	check(attempt, CopyAttempt(attempt))
	check(instance, CopyInstance(instance))
	check(queue, CopyQueue(queue))
	check(namespace, CopyNamespace(namespace))
}
