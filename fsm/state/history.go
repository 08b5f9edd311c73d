package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// Reads of the event feed: by task, newest first along the chain of its commits,
// and by namespace, oldest first.

// ReadHistory reads the events of one task after a version, oldest first, at most
// limit. more says that there are others. t is its row; nil if it was purged.
func ReadHistory(r Reader, id ID, t *pb.TaskRow, after uint64, limit int) (events []*pb.EventRow, more bool, err error) {
	var index uint64
	var place uint32
	known := completion{r: r}
	if t != nil {
		index, place = t.EventIndex, t.EventPlace
		known.know(t)
	} else {
		var ok bool
		if index, place, ok, err = readEnd(r, id); err != nil || !ok {
			return nil, false, err
		}
	}
	for index != 0 {
		e, err := readEvent(r, index, place)
		if err != nil {
			return nil, false, err
		}
		if e == nil || e.Version <= after {
			break // it has left the feed, and so has what was before
		}
		if ID(e.AggregateId) != id {
			return nil, false, fmt.Errorf("the events of task %x lead to another's at %d.%d", id, index, place)
		}
		if err := known.whole(e); err != nil {
			return nil, false, err
		}
		events = append(events, e)
		index, place = e.PreviousIndex, e.PreviousPlace
	}
	slices.Reverse(events)
	if len(events) > limit {
		return events[:limit], true, nil
	}
	return events, false, nil
}

// readEvent finds the event at (index, place), as it is stored; nil if it has left the feed.
func readEvent(r Reader, index uint64, place uint32) (*pb.EventRow, error) {
	key := blockKey(index, place)
	value, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	e := &pb.EventRow{}
	raw, err := blockPart(value, place%blockEvents)
	if err == nil {
		err = proto.Unmarshal(raw, e)
	}
	if cerr := closer.Close(); cerr != nil {
		return nil, fmt.Errorf("read events: %w", cerr)
	}
	if err != nil || e.Index != index || e.Place != place {
		return nil, fmt.Errorf("state row %x is damaged: no event %d.%d: %w", key, index, place, err)
	}
	return e, nil
}

// blockPart is the n-th event of an encoded EventBlock, without decoding the
// others.
func blockPart(block []byte, n uint32) ([]byte, error) {
	for {
		_, kind, size := protowire.ConsumeTag(block)
		if size < 0 || kind != protowire.BytesType {
			return nil, errors.New("not a block of events")
		}
		event, length := protowire.ConsumeBytes(block[size:])
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		if n == 0 {
			return event, nil
		}
		n--
		block = block[size+length:]
	}
}

// ReadFeed reads a namespace's events after (index, place), oldest first.
func ReadFeed(r Reader, ns ID, index uint64, place uint32, limit int) (events []*pb.EventRow, more bool, err error) {
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: feedKey(ns, index), UpperBound: prefixEnd(key1(tableFeed, ns))})
	if err != nil {
		return nil, false, fmt.Errorf("read events: %w", err)
	}
	defer func() {
		if cerr := iter.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("read events: %w", cerr)
		}
	}()
	known := completion{r: r}
	for iter.First(); iter.Valid(); iter.Next() {
		at, first, last, err := decodeFeed(iter.Key(), iter.Value())
		if err != nil {
			return nil, false, err
		}
		if at == index {
			if place >= last {
				continue
			}
			first = max(first, place+1)
		}
		for first <= last {
			block, err := readBlock(r, at, first)
			if err != nil {
				return nil, false, err
			}
			for _, e := range block {
				if e.Place < first || ID(e.NamespaceId) != ns {
					continue
				}
				if len(events) == limit {
					return events, true, nil
				}
				if err := known.whole(e); err != nil {
					return nil, false, err
				}
				events = append(events, e)
			}
			first += blockEvents - first%blockEvents
		}
	}
	return events, false, nil
}

func decodeFeed(key, value []byte) (index uint64, first, last uint32, err error) {
	if len(key) != 25 || len(value) != 8 {
		return 0, 0, 0, fmt.Errorf("event pointer %x is damaged", key)
	}
	return binary.BigEndian.Uint64(key[17:]), binary.BigEndian.Uint32(value), binary.BigEndian.Uint32(value[4:]), nil
}

// readBlock reads the block that holds a place of an entry, as it is stored; it is
// empty if it has left the feed.
func readBlock(r Reader, index uint64, place uint32) ([]*pb.EventRow, error) {
	block := &pb.EventBlock{}
	_, err := getRow(r, blockKey(index, place), block)
	return block.Events, err
}

// FeedHead is the position of the newest event of a namespace; zero without one.
func FeedHead(r Reader, ns ID) (index uint64, place uint32, err error) {
	prefix := key1(tableFeed, ns)
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: prefixEnd(prefix)})
	if err != nil {
		return 0, 0, fmt.Errorf("read events: %w", err)
	}
	if iter.Last() {
		index, _, place, err = decodeFeed(iter.Key(), iter.Value())
	}
	if cerr := iter.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("read events: %w", cerr)
	}
	return index, place, err
}
