package httpapi

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "pulse/proto/pulse/v1"
)

// listEvents is GET …/tasks/{id}/events: the task's history, oldest first, a
// page at a time.
func listEvents(e *exchange) error {
	limit := e.query.limit(pageMax)
	var after uint64
	if place := e.query.cursor(cursorEvents, e.id.String()); len(place) == 8 {
		after = binary.BigEndian.Uint64(place)
	}
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListTaskEvents{ListTaskEvents: &pb.ListTaskEvents{
		TaskId: e.id[:], AfterVersion: after, Limit: uint32(limit),
	}}})
	if err != nil {
		return err
	}
	events := answer.GetEvents().GetEvents()
	next := place{kind: cursorEvents, filter: e.id.String()}
	if n := len(events); answer.GetEvents().GetMore() && n > 0 {
		next.at = binary.BigEndian.AppendUint64(nil, events[n-1].GetVersion())
	}
	return answerList(e, "events", events, (*writer).event, next)
}

// event writes one commit with its facts.
func (w *writer) event(ev *pb.EventRow) {
	w.next()
	w.open()
	w.uint64("index", ev.GetIndex())
	w.integer("place", int64(ev.GetPlace()))
	w.id("task_id", ev.GetAggregateId())
	w.uint64("revision", ev.GetVersion())
	w.plain("type", eventType(ev))
	w.plain("state", nameOf(taskStates, ev.GetTaskAfter().GetState()))
	w.time("time", ev.GetTimeUs())
	w.optText("operator", ev.GetOperator())
	w.optText("command_type", ev.GetCommandType())
	w.optID("command_id", ev.GetCommandId())
	w.optID("causation_id", ev.GetCausationId())
	w.optID("correlation_id", ev.GetCorrelationId())
	w.name("facts")
	w.openArray()
	for _, fact := range ev.GetFacts() {
		w.fact(fact)
	}
	w.closeArray()
	w.close()
}

// typeState is the type of the event that stands for a history whose beginning
// is no longer kept.
const typeState = "state"

// eventType is the name of the last fact of a commit that is not about its
// timers: what came of it. The facts before it say how.
func eventType(ev *pb.EventRow) string {
	name := typeState
	for _, fact := range ev.GetFacts() {
		if field := arm(fact); field != nil && (name == typeState || !strings.HasPrefix(string(field.Name()), "schedule_")) {
			name = string(field.Name())
		}
	}
	return name
}

func arm(fact *pb.Fact) protoreflect.FieldDescriptor {
	m := fact.ProtoReflect()
	return m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
}

// fact writes a fact by what its message says of itself, so that a new one needs
// nothing here: ids as digits, 64-bit numbers as strings, times as times.
func (w *writer) fact(fact *pb.Fact) {
	field := arm(fact)
	if field == nil {
		return // of a newer version
	}
	w.next()
	w.open()
	w.plain("type", string(field.Name()))
	m := fact.ProtoReflect().Get(field).Message()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		w.factMember(fields.Get(i), m)
	}
	w.close()
}

func (w *writer) factMember(field protoreflect.FieldDescriptor, m protoreflect.Message) {
	if !m.Has(field) {
		return
	}
	name, value := string(field.Name()), m.Get(field)
	switch field.Kind() {
	case protoreflect.BytesKind:
		w.plain(name, hex.EncodeToString(value.Bytes()))
	case protoreflect.StringKind:
		w.text(name, value.String())
	case protoreflect.BoolKind:
		w.bool(name, value.Bool())
	case protoreflect.EnumKind:
		w.plain(name, enumName(field.Enum(), value.Enum()))
	case protoreflect.Uint32Kind:
		w.integer(name, int64(value.Uint()))
	case protoreflect.Uint64Kind:
		w.uint64(name, value.Uint())
	case protoreflect.Int64Kind:
		if instant, ok := strings.CutSuffix(name, "_us"); ok {
			w.time(instant, value.Int())
		} else {
			w.integer(name, value.Int())
		}
	default: // no fact has another kind; a test holds us to it
	}
}

// enumName spells a value as the rest of the API does: causes small, decisions
// in capitals.
func enumName(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	if enum.FullName() == (pb.EndCause)(0).Descriptor().FullName() {
		return nameOf(endCauses, pb.EndCause(number))
	}
	value := enum.Values().ByNumber(number)
	if value == nil {
		value = enum.Values().Get(0)
	}
	prefix := strings.TrimSuffix(string(enum.Values().Get(0).Name()), "UNSPECIFIED")
	return strings.TrimPrefix(string(value.Name()), prefix)
}

// position is a place in the feed: behind an event, or with the largest place,
// behind an entry. A task's stream also says which revision it was, because a
// history that has lost its beginning is found by revision.
type position struct {
	index    uint64
	place    uint32
	revision uint64
}

const placeMax = 1<<32 - 1

// appendText writes the id of an event: "<index>.<place>", and in a task's stream
// "<index>.<place>.<revision>".
func (p position) appendText(dst []byte) []byte {
	dst = strconv.AppendUint(dst, p.index, 10)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, uint64(p.place), 10)
	if p.revision != 0 {
		dst = append(dst, '.')
		dst = strconv.AppendUint(dst, p.revision, 10)
	}
	return dst
}

// parsePosition reads an id. An index alone, as X-Pulse-Index gives it, is the
// end of that entry.
func parsePosition(text string) (p position, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) > 3 || len(text) > 64 {
		return position{}, false
	}
	numbers := [3]uint64{0, placeMax, 0}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil || strconv.FormatUint(n, 10) != part {
			return position{}, false
		}
		numbers[i] = n
	}
	if numbers[1] > placeMax || len(parts) == 3 && numbers[2] == 0 {
		return position{}, false
	}
	return position{index: numbers[0], place: uint32(numbers[1]), revision: numbers[2]}, true
}

func (p position) before(index uint64, place uint32) bool {
	return p.index < index || p.index == index && p.place < place
}
