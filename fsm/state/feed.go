package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// aggregateNames are the types of the references that place events.
var aggregateNames = map[pb.Aggregate]string{
	pb.Aggregate_AGGREGATE_TASK:      "pulse.task/",
	pb.Aggregate_AGGREGATE_QUEUE:     "pulse.queue/",
	pb.Aggregate_AGGREGATE_NAMESPACE: "pulse.namespace/",
	pb.Aggregate_AGGREGATE_WORKER:    "pulse.worker/",
	pb.Aggregate_AGGREGATE_SCHEDULE:  "pulse.schedule/",
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

// blockEvents is how many events of one entry share a row at most. Commits of an
// entry are written, read and dropped together; a row and an index row for each
// would be most of what a task costs the store.
const blockEvents = 256

// AppendEvent gives a commit its position and puts it into the feed. The row
// is read-only from here on.
func (tx *Tx) AppendEvent(e *pb.EventRow) {
	e.Format = RowFormat
	e.Partition = Partition(e.Aggregate, ID(e.NamespaceId), ID(e.AggregateId))
	p := tx.meta.Feed[e.Partition]
	e.Position = p.Next
	p.Next++
	e.Index, e.Place = tx.Number(), uint32(len(tx.events))
	e.TimeUs = tx.Now()
	if e.Aggregate == pb.Aggregate_AGGREGATE_TASK {
		tx.chain(e)
	}
	tx.events = append(tx.events, e)
	if tx.meta.FeedTrimAtUs == 0 {
		tx.LookAtFeed(tx.Now() + tx.meta.EventRetentionMs*1000)
	}
}

// chain links a task's commit to the one before it and the task's row to the
// commit. A task that is purged leaves the end of its chain behind.
func (tx *Tx) chain(e *pb.EventRow) {
	t := e.TaskAfter
	e.PreviousIndex, e.PreviousPlace = t.EventIndex, t.EventPlace
	t.EventIndex, t.EventPlace = e.Index, e.Place
	if e.Deleted {
		tx.putRaw(key1(tableHistory, ID(t.Id)), eventPointer(e.Index, e.Place))
	}
}

// encodeFeed makes the rows of the entry's events.
func (tx *Tx) encodeFeed() error {
	for from := 0; from < len(tx.events); from += blockEvents {
		events := tx.events[from:min(from+blockEvents, len(tx.events))]
		block, err := tx.encodeBlock(events)
		if err != nil {
			return fmt.Errorf("encode events of entry %d: %w", tx.meta.AppliedIndex, err)
		}
		tx.putRaw(blockKey(events[0].Index, events[0].Place), block)
	}
	type span struct{ first, last uint32 }
	spans := map[ID]*span{}
	var order []ID
	for _, e := range tx.events {
		ns := ID(e.NamespaceId)
		if s := spans[ns]; s != nil {
			s.last = e.Place
			continue
		}
		spans[ns] = &span{e.Place, e.Place}
		order = append(order, ns)
	}
	for _, ns := range order {
		v := binary.BigEndian.AppendUint32(make([]byte, 0, 8), spans[ns].first)
		tx.putRaw(feedKey(ns, tx.Number()), binary.BigEndian.AppendUint32(v, spans[ns].last))
	}
	return nil
}

const blockField = 1 // EventBlock.events

// encodeBlock encodes an EventBlock.
func (tx *Tx) encodeBlock(events []*pb.EventRow) ([]byte, error) {
	scratch := &tx.s.scratch
	block := scratch.block[:0]
	for _, e := range events {
		event, err := appendEvent(scratch.event[:0], scratch.short.of(e))
		if err != nil {
			return nil, err
		}
		scratch.event = event
		block = protowire.AppendTag(block, blockField, protowire.BytesType)
		block = protowire.AppendBytes(block, event)
	}
	scratch.block = block
	return tx.s.pending.values.took(append(tx.s.pending.values.room(len(block)), block...)), nil
}

// LookAtFeed sets when the front of the feed is looked at next; 0 means never.
func (tx *Tx) LookAtFeed(at int64) {
	tx.s.clearTimer(feedTimer(tx.meta))
	tx.meta.FeedTrimAtUs = at
	tx.s.setTimer(feedTimer(tx.meta))
}

// feedTrimPauseUs is the least time between two looks at the feed's front.
const feedTrimPauseUs = 60e6

// TrimFeed lets the oldest events leave the feed that are older than the
// retention, at most limit of them, and sets the next look. Events leave by whole
// rows of at most blockEvents: a row that does not fit into limit ends the look,
// which all = false says, and the next one is due at once. A look that took
// nothing keeps its place among what is due, so that it comes first some time.
// left is the number of events that left.
func (tx *Tx) TrimFeed(limit int) (left int, all bool) {
	next := int64(0)
	cutoff := tx.Now() - tx.meta.EventRetentionMs*1000
	from := blockKey(tx.meta.FeedFloorIndex, tx.meta.FeedFloorPlace)
	iter, err := tx.s.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: []byte{tableEvent + 1}})
	if err != nil {
		panic(fmt.Errorf("read events: %w", err))
	}
	all = true
	for iter.First(); iter.Valid(); iter.Next() {
		block := &pb.EventBlock{}
		if err := proto.Unmarshal(iter.Value(), block); err != nil || len(block.Events) == 0 {
			panic(fmt.Errorf("state row %x is damaged: %w", iter.Key(), cmp.Or(err, errors.New("no events"))))
		}
		at := block.Events[0].TimeUs
		if at > cutoff {
			next = max(at+tx.meta.EventRetentionMs*1000, tx.Now()+feedTrimPauseUs)
			break
		}
		if left+len(block.Events) > limit {
			next, all = tx.Now(), false
			break
		}
		tx.dropBlock(bytes.Clone(iter.Key()), block.Events)
		left += len(block.Events)
	}
	if err := iter.Close(); err != nil {
		panic(fmt.Errorf("read events: %w", err))
	}
	if next == 0 && len(tx.events) > 0 {
		// What this entry has made is all there is.
		next = tx.Now() + max(tx.meta.EventRetentionMs*1000, feedTrimPauseUs)
	}
	if left > 0 || all {
		tx.LookAtFeed(next)
	}
	return left, all
}

func (tx *Tx) dropBlock(key []byte, events []*pb.EventRow) {
	tx.del(key)
	last := events[len(events)-1]
	for _, e := range events {
		tx.meta.Feed[e.Partition].Low = e.Position + 1
		index := feedKey(ID(e.NamespaceId), e.Index)
		if v, ok := tx.readRaw(index); ok && binary.BigEndian.Uint32(v[4:]) <= last.Place {
			tx.del(index)
		}
		if e.Deleted && e.Aggregate == pb.Aggregate_AGGREGATE_TASK {
			tx.del(key1(tableHistory, ID(e.AggregateId)))
		}
	}
	tx.meta.FeedFloorIndex, tx.meta.FeedFloorPlace = last.Index, last.Place
}
