package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ID is the identity of a task, attempt, session, instance, queue or namespace.
type ID = [16]byte

// Tables of the store: the first byte of every key. Numbers inside keys are
// big-endian, so that byte order is the order the tables are read in.
const (
	tableMeta            = 'M' // the MetaRow
	tableNamespace       = 'n' // namespace
	tableQueue           = 'q' // queue
	tableTask            = 't' // namespace, task: tasks that are not over
	tableDone            = 'd' // namespace, task: SUCCEEDED, FAILED, CANCELLED
	tablePayload         = 'p' // task
	tableResult          = 'r' // task
	tableTrace           = 'w' // task: trace context, of those that came with one
	tableAttempt         = 'a' // task, attempt
	tableAttemptBody     = 'x' // task, attempt: result of a finish that did not end the task
	tableEvidence        = 'v' // task, attempt, message
	tableEvidenceRes     = 'V' // task, attempt, message: its result
	tableInstance        = 'i' // namespace, instance
	tableGateway         = 'g' // gateway id
	tableKey             = 'k' // namespace, key
	tableIdempotency     = 'I' // namespace, key
	tableBusiness        = 'b' // namespace, business key: the task's id
	tableTimer           = 'T' // due, kind, id
	tableEvent           = 'e' // index, place of the first: an EventBlock
	tableFeed            = 'f' // namespace, index: places of its first and last event in that entry
	tableHistory         = 'h' // purged task: index, place of its last event
	tableSchedule        = 's' // namespace, schedule
	tableSchedulePayload = 'S' // schedule: payload of its task
	tableZone            = 'Z' // name of a time zone
	tableAccess          = 'K' // accessToken, token; accessAudit, position
)

// What follows tableAccess in a key.
const (
	accessToken = 't'
	accessAudit = 'a'
)

// knownTables are those above.
const knownTables = string(tableMeta) + string(tableNamespace) + string(tableQueue) + string(tableTask) + string(tableDone) +
	string(tablePayload) + string(tableResult) + string(tableTrace) + string(tableAttempt) + string(tableAttemptBody) +
	string(tableEvidence) + string(tableEvidenceRes) + string(tableInstance) + string(tableGateway) +
	string(tableKey) + string(tableIdempotency) + string(tableBusiness) + string(tableTimer) + string(tableEvent) +
	string(tableFeed) + string(tableHistory) + string(tableSchedule) + string(tableSchedulePayload) + string(tableZone) +
	string(tableAccess)

// tableOf is the part of a key that names its table.
func tableOf(key []byte) []byte {
	if key[0] == tableAccess && len(key) > 1 {
		return key[:2]
	}
	return key[:1]
}

func knownTable(table []byte) bool {
	if table[0] == tableAccess {
		return len(table) == 2 && (table[1] == accessToken || table[1] == accessAudit)
	}
	return strings.IndexByte(knownTables, table[0]) >= 0
}

// CheckTables refuses a store with rows of a table that is not known: a newer version
// wrote them, and a state without them is another one.
func (s *State) CheckTables() error {
	iter, err := s.db.NewIter(nil)
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	for ok := iter.First(); ok; {
		table := bytes.Clone(tableOf(iter.Key()))
		if !knownTable(table) {
			err = fmt.Errorf("the state store has rows of table %q, which a newer version of Pulse wrote; run that version", table)
			break
		}
		end := prefixEnd(table)
		ok = end != nil && iter.SeekGE(end)
	}
	return errors.Join(err, iter.Close())
}

// MetaKey is the key of the MetaRow.
var MetaKey = []byte{tableMeta}

func key1(table byte, a ID) []byte {
	k := make([]byte, 0, 17)
	k = append(k, table)
	return append(k, a[:]...)
}

func key2(table byte, a, b ID) []byte {
	k := make([]byte, 0, 33)
	k = append(k, table)
	k = append(k, a[:]...)
	return append(k, b[:]...)
}

func key3(table byte, a, b, c ID) []byte {
	k := make([]byte, 0, 49)
	k = append(k, table)
	k = append(k, a[:]...)
	k = append(k, b[:]...)
	return append(k, c[:]...)
}

func keyText(table byte, a ID, text string) []byte {
	k := make([]byte, 0, 17+len(text))
	k = append(k, table)
	k = append(k, a[:]...)
	return append(k, text...)
}

func gatewayKey(id string) []byte { return append([]byte{tableGateway}, id...) }

// timerKeyBytes is the length of a timer's key.
const timerKeyBytes = 26

func timerKey(t Timer) []byte {
	k := make([]byte, 0, timerKeyBytes)
	k = append(k, tableTimer)
	k = binary.BigEndian.AppendUint64(k, uint64(t.Due))
	k = append(k, byte(t.Kind))
	return append(k, t.ID[:]...)
}

// blockKey is the key of the block that holds the event at (index, place).
func blockKey(index uint64, place uint32) []byte {
	k := append(make([]byte, 0, 13), tableEvent)
	k = binary.BigEndian.AppendUint64(k, index)
	return binary.BigEndian.AppendUint32(k, place-place%blockEvents)
}

func feedKey(ns ID, index uint64) []byte {
	k := append(make([]byte, 0, 25), tableFeed)
	k = append(k, ns[:]...)
	return binary.BigEndian.AppendUint64(k, index)
}

func eventPointer(index uint64, place uint32) []byte {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 12), index)
	return binary.BigEndian.AppendUint32(v, place)
}

// prefixEnd is the first key after all keys that begin with p.
func prefixEnd(p []byte) []byte {
	end := append([]byte(nil), p...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
