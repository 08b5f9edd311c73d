package state

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// Reads of what is in no index. They take a Reader, so that they work on a state
// and on a checkpoint.

// ReadTask finds a task of a namespace.
func ReadTask(r Reader, ns, id ID) (*pb.TaskRow, error) {
	for _, table := range []byte{tableTask, tableDone} {
		row := &pb.TaskRow{}
		ok, err := getRow(r, key2(table, ns, id), row)
		if err != nil {
			return nil, err
		}
		if ok {
			return row, nil
		}
	}
	return nil, nil
}

// ReadBusiness finds the task that carries a business key.
func ReadBusiness(r Reader, ns ID, key string) (ID, bool, error) {
	data, ok, err := getRaw(r, keyText(tableBusiness, ns, key))
	if err != nil || !ok {
		return ID{}, false, err
	}
	return ID(data), true, nil
}

// ReadPayload reads a task's payload; nil if it has none (any more).
func ReadPayload(r Reader, task ID) ([]byte, error) {
	data, _, err := getRaw(r, key1(tablePayload, task))
	return data, err
}

// ReadTrace reads the trace context that a task came with; nil if it has none.
func ReadTrace(r Reader, task ID) (*pb.TraceContext, error) {
	row := &pb.TraceContext{}
	ok, err := getRow(r, key1(tableTrace, task), row)
	if err != nil || !ok {
		return nil, err
	}
	return row, nil
}

// ReadResult reads the result a task ended with.
func ReadResult(r Reader, task ID) ([]byte, error) {
	data, _, err := getRaw(r, key1(tableResult, task))
	return data, err
}

// ReadAttempt finds one attempt of a task, without its receipts.
func ReadAttempt(r Reader, task, attempt ID) (*pb.AttemptRow, error) {
	row := &pb.AttemptRow{}
	ok, err := getRow(r, key2(tableAttempt, task, attempt), row)
	if err != nil || !ok {
		return nil, err
	}
	row.Receipts = nil
	return row, nil
}

// ReadAttempts reads all attempts of a task with what came of them, oldest
// first.
func ReadAttempts(r Reader, task ID) ([]*pb.AttemptView, error) {
	var out []*pb.AttemptView
	err := scan(r, key1(tableAttempt, task), func(_ []byte, row *pb.AttemptRow) error {
		v := &pb.AttemptView{Attempt: row, Receipts: row.Receipts}
		row.Receipts = nil // told once
		out = append(out, v)
		return readAttemptDetails(r, task, v)
	})
	return out, err
}

func readAttemptDetails(r Reader, task ID, v *pb.AttemptView) error {
	id := ID(v.Attempt.Id)
	body, ok, err := getRaw(r, key2(tableAttemptBody, task, id))
	if err != nil {
		return err
	}
	if !ok && v.Attempt.ResultBytes > 0 {
		// The finish that ended the task left its result there.
		if body, _, err = getRaw(r, key1(tableResult, task)); err != nil {
			return err
		}
	}
	v.Result = body
	return scan(r, key2(tableEvidence, task, id), func(_ []byte, row *pb.EvidenceRow) error {
		result, _, err := getRaw(r, key3(tableEvidenceRes, task, id, ID(row.MessageId)))
		v.Evidence = append(v.Evidence, &pb.EvidenceView{Evidence: row, Result: result})
		return err
	})
}

// TaskTables says where tasks of the wanted states are.
type TaskTables struct{ Live, Done bool }

// ScanTasks calls fn for the tasks of a namespace below before (all, if it is
// zero), newest first, until fn returns false. Rows are the callee's to keep.
func ScanTasks(r Reader, ns, before ID, want TaskTables, fn func(*pb.TaskRow) bool) error {
	var iters []*pebble.Iterator
	defer func() {
		for _, it := range iters {
			_ = it.Close() // read errors were looked at below
		}
	}()
	for _, table := range []struct {
		byte
		want bool
	}{{tableTask, want.Live}, {tableDone, want.Done}} {
		if !table.want {
			continue
		}
		prefix := key1(table.byte, ns)
		upper := prefixEnd(prefix)
		if before != (ID{}) {
			upper = key2(table.byte, ns, before)
		}
		it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: upper})
		if err != nil {
			return fmt.Errorf("read tasks: %w", err)
		}
		iters = append(iters, it)
		it.Last()
	}
	for {
		newest := -1
		for i, it := range iters {
			if err := it.Error(); err != nil {
				return fmt.Errorf("read tasks: %w", err)
			}
			if it.Valid() && (newest < 0 || slices.Compare(it.Key()[17:], iters[newest].Key()[17:]) > 0) {
				newest = i
			}
		}
		if newest < 0 {
			return nil
		}
		row := &pb.TaskRow{}
		if err := proto.Unmarshal(iters[newest].Value(), row); err != nil {
			return fmt.Errorf("state row %x is damaged: %w", iters[newest].Key(), err)
		}
		if !fn(row) {
			return nil
		}
		iters[newest].Prev()
	}
}

// ReadSchedulePayload reads the payload of a schedule's task.
func ReadSchedulePayload(r Reader, schedule ID) ([]byte, error) {
	data, _, err := getRaw(r, key1(tableSchedulePayload, schedule))
	return data, err
}
