package state

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

const (
	// readyMax bounds the rows of waiting tasks that are kept decoded: some 1 KB each.
	readyMax = 4_096
	// readyNew is how long a queue may be for a new task's row to be kept: in a
	// longer one it will not be needed soon.
	readyNew = readyMax / 2
	// readAhead is how many rows are read with one that was not kept. Ids grow with
	// time, so those behind it are likely to be next.
	readAhead = 64
)

// ready holds decoded rows of tasks that are WAITING, some of them: what the
// store would have to be asked for when they are leased. It decides nothing.
type ready map[ID]*pb.TaskRow

func (r ready) add(t *pb.TaskRow) {
	if len(r) < readyMax {
		r[ID(t.Id)] = t
	}
}

// put keeps a row that has just been put, if it is likely to be needed soon.
func (r ready) put(t *pb.TaskRow, q *Queue) {
	if t.State == pb.TaskState_TASK_STATE_WAITING && q.Waiting < readyNew {
		r.add(t)
	}
}

// WaitingTask is Task for one that is about to be leased.
func (tx *Tx) WaitingTask(ns, id ID) *pb.TaskRow {
	key := key2(tableTask, ns, id)
	if tx.s.ready[id] == nil && tx.known(key) == nil {
		if err := tx.readAhead(ns, key); err != nil {
			panic(err)
		}
	}
	return tx.Task(ns, id)
}

// readAhead reads waiting tasks of a namespace from a key on, as far as the store
// has them and nothing is pending about them.
func (tx *Tx) readAhead(ns ID, from []byte) error {
	if len(tx.s.ready) > readyMax-readAhead {
		clear(tx.s.ready) // of queues that became long, or are paused
	}
	iter, err := tx.s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: prefixEnd(key1(tableTask, ns))})
	if err != nil {
		return fmt.Errorf("read tasks: %w", err)
	}
	defer func() { _ = iter.Close() }() // read errors are looked at below
	n := 0
	for ok := iter.First(); ok && n < readAhead; ok = iter.Next() {
		n++
		if tx.known(iter.Key()) != nil {
			continue
		}
		value, err := iter.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read tasks: %w", err)
		}
		row := &pb.TaskRow{}
		if err := proto.Unmarshal(value, row); err != nil {
			return fmt.Errorf("state row %x is damaged: %w", iter.Key(), err)
		}
		if row.State == pb.TaskState_TASK_STATE_WAITING {
			tx.s.ready.add(row)
		}
	}
	if err := iter.Error(); err != nil {
		return fmt.Errorf("read tasks: %w", err)
	}
	return nil
}
