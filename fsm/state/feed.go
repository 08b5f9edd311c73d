package state

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/cockroachdb/pebble/v2"

	pb "pulse/proto/pulse/v1"
)

// aggregateNames are the types of the references that place events.
var aggregateNames = map[pb.Aggregate]string{
	pb.Aggregate_AGGREGATE_TASK:      "pulse.task/",
	pb.Aggregate_AGGREGATE_QUEUE:     "pulse.queue/",
	pb.Aggregate_AGGREGATE_NAMESPACE: "pulse.namespace/",
	pb.Aggregate_AGGREGATE_WORKER:    "pulse.worker/",
}

// Partition places an aggregate: murmur2 of its reference text, as the default
// partitioners of the common Kafka clients do with the same key.
func Partition(kind pb.Aggregate, ns, id ID) uint32 {
	var buf [96]byte
	text := append(buf[:0], aggregateNames[kind]...)
	text = hex.AppendEncode(text, ns[:])
	text = append(text, '/')
	text = hex.AppendEncode(text, id[:])
	return murmur2(text) & 0x7fffffff % FeedPartitions
}

// murmur2 is the 32-bit hash with the seed that Kafka's clients use.
func murmur2(data []byte) uint32 {
	const m, r = 0x5bd1e995, 24
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for len(data) >= 4 {
		k := binary.LittleEndian.Uint32(data) * m
		k ^= k >> r
		h = h*m ^ k*m
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

// AppendEvent gives a commit its position and puts it into the feed. The row
// is read-only from here on.
func (tx *Tx) AppendEvent(e *pb.EventRow) {
	ns, id := ID(e.NamespaceId), ID(e.AggregateId)
	e.Format = RowFormat
	e.Partition = Partition(e.Aggregate, ns, id)
	p := tx.meta.Feed[e.Partition]
	e.Position = p.Next
	p.Next++
	e.Index, e.Place = tx.Number(), tx.place
	tx.place++
	e.TimeUs = tx.Now()
	tx.put(eventKey(e.Partition, e.Position), e)
	pointer := eventPointer(e.Partition, e.Position)
	tx.putRaw(feedKey(ns, e.Index, e.Place), pointer)
	tx.putRaw(historyKey(id, e.Version), pointer)
	if tx.meta.FeedTrimAtUs == 0 {
		tx.LookAtFeed(tx.Now() + tx.meta.EventRetentionMs*1000)
	}
}

// LookAtFeed sets when the front of the feed is looked at next; 0 means never.
func (tx *Tx) LookAtFeed(at int64) {
	tx.s.clearTimer(feedTimer(tx.meta))
	tx.meta.FeedTrimAtUs = at
	tx.s.setTimer(feedTimer(tx.meta))
}

// feedTrimPauseUs is the least time between two looks at the feed's front.
const feedTrimPauseUs = 60e6

// TrimFeed lets at most limit events that are older than the retention leave
// the feed from the front of each partition in turn, and sets the next look.
// It returns the number that left; limit means that more may be due.
func (tx *Tx) TrimFeed(limit int) int {
	cutoff := tx.Now() - tx.meta.EventRetentionMs*1000
	left := 0
	next := int64(0)
	for number, p := range tx.meta.Feed {
		for p.Low < p.Next {
			key := eventKey(uint32(number), p.Low)
			e := read[pb.EventRow](tx, key)
			if e == nil {
				panic("state: the feed has a hole")
			}
			if e.TimeUs > cutoff {
				if due := e.TimeUs + tx.meta.EventRetentionMs*1000; next == 0 || due < next {
					next = due
				}
				break
			}
			if left == limit {
				next = tx.Now()
				break
			}
			tx.del(key)
			tx.del(feedKey(ID(e.NamespaceId), e.Index, e.Place))
			tx.del(historyKey(ID(e.AggregateId), e.Version))
			if e.Index > tx.meta.FeedFloorIndex ||
				(e.Index == tx.meta.FeedFloorIndex && e.Place > tx.meta.FeedFloorPlace) {
				tx.meta.FeedFloorIndex, tx.meta.FeedFloorPlace = e.Index, e.Place
			}
			p.Low++
			left++
		}
	}
	switch {
	case next == 0 || left == limit:
	default:
		next = max(next, tx.Now()+feedTrimPauseUs)
	}
	tx.LookAtFeed(next)
	return left
}

// EventAt reads the event a pointer row names; nil if it has left the feed.
func EventAt(r pebble.Reader, pointer []byte) (*pb.EventRow, error) {
	row := &pb.EventRow{}
	ok, err := getRow(r, eventKey(uint32(binary.BigEndian.Uint16(pointer)), binary.BigEndian.Uint64(pointer[2:])), row)
	if err != nil || !ok {
		return nil, err
	}
	return row, nil
}
