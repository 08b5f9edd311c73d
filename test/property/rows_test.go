package property

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

type id = [16]byte

// rows is everything a machine holds at one index, decoded. Values are shared
// between the rows of neighbouring indexes and never written to.
type rows struct {
	meta       *pb.MetaRow
	namespaces table[*pb.NamespaceRow]
	queues     table[*pb.QueueRow]
	tasks      table[*pb.TaskRow] // live and done
	attempts   table[*pb.AttemptRow]
	receipts   table[*pb.ReceiptRow]
	evidence   table[*pb.EvidenceRow]
	instances  table[*pb.InstanceRow]
	gateways   table[*pb.GatewayRow]
	keys       table[*pb.KeyRow]
	remembered table[*pb.IdempotencyRow]
	schedules  table[*pb.ScheduleRow]
	zones      table[*pb.ZoneRow]
	blobs      table[string] // payloads, results and their like, business keys, timers, access
}

// table keeps rows in key order, with the bytes they were decoded from.
type table[T any] struct {
	keys  []string
	bytes []string
	vals  []T
	next  int // while it is the old table: the first row not yet passed
}

func (t *table[T]) find(key string) (int, bool) { return slices.BinarySearch(t.keys, key) }

func (t *table[T]) has(key string) bool {
	_, ok := t.find(key)
	return ok
}

func (t *table[T]) get(key string) (v T, ok bool) {
	i, ok := t.find(key)
	if ok {
		v = t.vals[i]
	}
	return v, ok
}

func (t *table[T]) raw(key string) (string, bool) {
	i, ok := t.find(key)
	if !ok {
		return "", false
	}
	return t.bytes[i], true
}

// same says that two tables have equal keys and bytes.
func (t *table[T]) same(u *table[T]) bool {
	if len(t.keys) != len(u.keys) {
		return false
	}
	for i := range t.keys {
		if t.keys[i] != u.keys[i] || t.bytes[i] != u.bytes[i] {
			return false
		}
	}
	return true
}

// take adds a row, decoding it only if it is not what old has under the key.
// Rows come in key order, so both tables are walked side by side.
func take[T any](t, old *table[T], key, value []byte, decode func([]byte) (T, error)) error {
	if t.keys == nil {
		old.next = 0
		t.keys, t.bytes, t.vals = make([]string, 0, len(old.keys)+8), make([]string, 0, len(old.keys)+8), make([]T, 0, len(old.keys)+8)
	}
	for old.next < len(old.keys) && old.keys[old.next] < string(key) {
		old.next++
	}
	var k, b string
	var v T
	if i := old.next; i < len(old.keys) && old.keys[i] == string(key) && old.bytes[i] == string(value) {
		k, b, v = old.keys[i], old.bytes[i], old.vals[i]
	} else {
		k, b = string(key), string(value)
		var err error
		if v, err = decode(value); err != nil {
			return fmt.Errorf("row %x: %w", key, err)
		}
	}
	t.keys = append(t.keys, k)
	t.bytes = append(t.bytes, b)
	t.vals = append(t.vals, v)
	return nil
}

type message[T any] interface {
	*T
	proto.Message
}

func decodeAs[T any, P message[T]](b []byte) (P, error) {
	m := P(new(T))
	return m, proto.Unmarshal(b, m)
}

func asText(b []byte) (string, error) { return string(b), nil }

// takeReceipts lists the receipts in the rows of attempts as if each had a row of its
// own, under the key c, task, attempt, message.
func (r *rows) takeReceipts(old *rows) error {
	for i, key := range r.attempts.keys {
		given := slices.Clone(r.attempts.vals[i].Receipts)
		slices.SortFunc(given, func(a, b *pb.ReceiptRow) int { return bytes.Compare(a.MessageId, b.MessageId) })
		for _, g := range given {
			value, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
			if err == nil {
				err = take(&r.receipts, &old.receipts, []byte("c"+key[1:]+string(g.MessageId)), value, decodeAs[pb.ReceiptRow])
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readRows reads all rows but the event feed, which grows without bound and is
// checked as it is written.
func readRows(m *fsm.Machine, old *rows) (*rows, error) {
	r := &rows{}
	var failed error
	each := func(key, value []byte) bool {
		switch key[0] {
		case 'M':
			r.meta, failed = decodeAs[pb.MetaRow](value)
		case 'n':
			failed = take(&r.namespaces, &old.namespaces, key, value, decodeAs[pb.NamespaceRow])
		case 'q':
			failed = take(&r.queues, &old.queues, key, value, decodeAs[pb.QueueRow])
		case 't', 'd':
			failed = take(&r.tasks, &old.tasks, key, value, decodeAs[pb.TaskRow])
		case 'a':
			failed = take(&r.attempts, &old.attempts, key, value, decodeAs[pb.AttemptRow])
		case 'v':
			failed = take(&r.evidence, &old.evidence, key, value, decodeAs[pb.EvidenceRow])
		case 'i':
			failed = take(&r.instances, &old.instances, key, value, decodeAs[pb.InstanceRow])
		case 'g':
			failed = take(&r.gateways, &old.gateways, key, value, decodeAs[pb.GatewayRow])
		case 'k':
			failed = take(&r.keys, &old.keys, key, value, decodeAs[pb.KeyRow])
		case 'I':
			failed = take(&r.remembered, &old.remembered, key, value, decodeAs[pb.IdempotencyRow])
		case 's':
			failed = take(&r.schedules, &old.schedules, key, value, decodeAs[pb.ScheduleRow])
		case 'Z':
			failed = take(&r.zones, &old.zones, key, value, decodeAs[pb.ZoneRow])
		case 'p', 'r', 'w', 'x', 'V', 'b', 'T', 'S', 'K':
			failed = take(&r.blobs, &old.blobs, key, value, asText)
		default:
			failed = fmt.Errorf("row %x is of a table these tests do not know", key)
		}
		return failed == nil
	}
	err := error(nil)
	// Between these lie the event feed and its indexes: e, f and h.
	for _, tables := range []struct{ from, before byte }{{0, 'e'}, {'g', 'h'}, {'i', 0xff}} {
		if err == nil {
			err = m.RowsFrom([]byte{tables.from}, func(key, value []byte) bool {
				return key[0] < tables.before && each(key, value)
			})
		}
	}
	if err == nil {
		err = failed
	}
	if err == nil {
		err = r.takeReceipts(old)
	}
	if r.meta == nil {
		r.meta = &pb.MetaRow{}
	}
	return r, err
}

// differing names the tables in which two states differ, leaving out the meta
// row and what skip names.
func differing(a, b *rows, skip string) []string {
	var out []string
	note := func(name string, same bool) {
		if !same && !strings.Contains(skip, name) {
			out = append(out, name)
		}
	}
	note("namespaces", a.namespaces.same(&b.namespaces))
	note("queues", a.queues.same(&b.queues))
	note("tasks", a.tasks.same(&b.tasks))
	note("attempts", a.attempts.same(&b.attempts))
	note("receipts", a.receipts.same(&b.receipts))
	note("evidence", a.evidence.same(&b.evidence))
	note("instances", a.instances.same(&b.instances))
	note("gateways", a.gateways.same(&b.gateways))
	note("keys", a.keys.same(&b.keys))
	note("remembered", a.remembered.same(&b.remembered))
	note("schedules", a.schedules.same(&b.schedules))
	note("zones", a.zones.same(&b.zones))
	note("blobs", a.blobs.same(&b.blobs))
	return out
}

func (r *rows) task(t id) *pb.TaskRow {
	for _, row := range r.tasks.vals {
		if id(row.Id) == t {
			return row
		}
	}
	return nil
}

func (r *rows) attempt(a id) *pb.AttemptRow {
	for _, row := range r.attempts.vals {
		if id(row.Id) == a {
			return row
		}
	}
	return nil
}

func (r *rows) queue(q id) *pb.QueueRow {
	for _, row := range r.queues.vals {
		if id(row.Id) == q {
			return row
		}
	}
	return nil
}

func terminal(s pb.TaskState) bool {
	return s == pb.TaskState_TASK_STATE_SUCCEEDED || s == pb.TaskState_TASK_STATE_FAILED ||
		s == pb.TaskState_TASK_STATE_CANCELLED
}

func live(s pb.AttemptState) bool {
	return s == pb.AttemptState_ATTEMPT_STATE_LEASED || s == pb.AttemptState_ATTEMPT_STATE_RUNNING
}
