package state

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "pulse/proto/pulse/v1"
)

// taskOutline decodes of a task's row what the structures in memory hold of a task that
// is not active, for a tenth of the time that the whole row takes and without memory of
// its own.
type taskOutline struct{ row pb.TaskRow }

// read decodes a row. What it gives is good until the next call, and as long as the
// value is; texts are good for ever.
func (o *taskOutline) read(value []byte) (*pb.TaskRow, error) {
	t := &o.row
	t.Id, t.NamespaceId, t.QueueId, t.AttemptId, t.ScheduleId = nil, nil, nil, nil, nil
	t.State, t.Park, t.Priority, t.PayloadBytes, t.AvailableAtUs = 0, 0, 0, 0, 0
	var handler, handlerVersion, payloadVersion, key []byte
	for len(value) > 0 {
		field, kind, n := protowire.ConsumeTag(value)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		value = value[n:]
		switch kind {
		case protowire.VarintType:
			var number uint64
			number, n = protowire.ConsumeVarint(value)
			switch field {
			case 5:
				t.State = pb.TaskState(number)
			case 11:
				t.PayloadBytes = uint32(number)
			case 16:
				t.Priority = uint32(number)
			case 17:
				t.AvailableAtUs = int64(number)
			case 31:
				t.Park = pb.Park(number)
			default: // not in memory
			}
		case protowire.BytesType:
			var text []byte
			text, n = protowire.ConsumeBytes(value)
			switch field {
			case 2:
				t.Id = text
			case 3:
				t.NamespaceId = text
			case 4:
				t.QueueId = text
			case 7:
				handler = text
			case 8:
				handlerVersion = text
			case 9:
				payloadVersion = text
			case 15:
				key = text
			case 34:
				t.AttemptId = text
			case 44:
				t.ScheduleId = text
			default: // not in memory
			}
		default:
			n = protowire.ConsumeFieldValue(field, kind, value)
		}
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		value = value[n:]
	}
	keepText(&t.Handler, handler)
	keepText(&t.HandlerVersion, handlerVersion)
	keepText(&t.PayloadVersion, payloadVersion)
	keepText(&t.ConcurrencyKey, key)
	return t, nil
}

// keepText copies a text, unless it is the one of the row before, as it mostly is.
func keepText(to *string, text []byte) {
	if *to != string(text) {
		*to = string(text)
	}
}
