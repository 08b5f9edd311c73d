package state

import (
	"bytes"
	"encoding/binary"
	"fmt"

	pb "pulse/proto/pulse/v1"
)

// Every commit of a task holds the task's row after it, and most of a row is the
// same in all of them. The store keeps that part once: in the row of the task, or,
// once the task is purged, in the last of its commits, which stays as long as any.
// Whoever reads a commit is given the whole row.

// What the store leaves out of an event, as bits of EventRow.left_out.
const (
	// leftFixed: of the row, what a task keeps from its submission on.
	leftFixed = 1 << iota
	// leftMoment: of the row, its revision, time and place in the feed, which are the event's.
	leftMoment
	// leftOwnCause: the correlation, which is the command, and no cause.
	leftOwnCause
	// leftRootCause: correlation and cause, which are the command that made the task.
	leftRootCause

	leftKnown = 1<<iota - 1
)

// shortened is an event as it is stored, for one event after another.
type shortened struct {
	event pb.EventRow
	after pb.TaskRow
}

// of gives what is stored of an event. It is good until the next one is asked for.
func (s *shortened) of(e *pb.EventRow) *pb.EventRow {
	t := e.TaskAfter
	if t == nil || e.Deleted || !bytes.Equal(t.Id, e.AggregateId) || !bytes.Equal(t.NamespaceId, e.NamespaceId) {
		return e
	}
	short := &s.event
	copyEvent(short, e)
	short.TaskAfter, short.LeftOut = &s.after, leftFixed
	copyMoving(&s.after, t)
	if t.Revision == e.Version && t.UpdatedAtUs == e.TimeUs && t.EventIndex == e.Index && t.EventPlace == e.Place {
		short.LeftOut |= leftMoment
		s.after.Revision, s.after.UpdatedAtUs, s.after.EventIndex, s.after.EventPlace = 0, 0, 0, 0
	}
	root := t.CreatedCommandId
	switch {
	case len(e.CorrelationId) == 0:
	case len(e.CausationId) == 0 && bytes.Equal(e.CorrelationId, e.CommandId):
		short.LeftOut |= leftOwnCause
		short.CorrelationId = nil
	case bytes.Equal(e.CorrelationId, root) && bytes.Equal(e.CausationId, root):
		short.LeftOut |= leftRootCause
		short.CorrelationId, short.CausationId = nil, nil
	}
	return short
}

// complete makes a stored event whole. row is the row of its task at any time
// after its submission.
func complete(e *pb.EventRow, row *pb.TaskRow) {
	t := e.TaskAfter
	copyFixed(t, row)
	if e.LeftOut&leftMoment != 0 {
		t.Revision, t.UpdatedAtUs, t.EventIndex, t.EventPlace = e.Version, e.TimeUs, e.Index, e.Place
	}
	if e.LeftOut&leftOwnCause != 0 {
		e.CorrelationId = e.CommandId
	}
	if e.LeftOut&leftRootCause != 0 {
		e.CorrelationId, e.CausationId = row.CreatedCommandId, row.CreatedCommandId
	}
	e.LeftOut = 0
}

// completion completes the events of one read.
type completion struct {
	r    Reader
	rows map[ID]*pb.TaskRow
}

// know says what is known of a task's row before any event of it is read.
func (c *completion) know(t *pb.TaskRow) {
	if c.rows == nil {
		c.rows = make(map[ID]*pb.TaskRow)
	}
	c.rows[ID(t.Id)] = t
}

// whole makes an event whole.
func (c *completion) whole(e *pb.EventRow) error {
	if e.LeftOut == 0 {
		if e.Deleted && e.TaskAfter != nil {
			c.know(e.TaskAfter)
		}
		return nil
	}
	if e.LeftOut&^leftKnown != 0 || e.TaskAfter == nil {
		return fmt.Errorf("event %d.%d is damaged, or of a later version: it leaves out %#x", e.Index, e.Place, e.LeftOut)
	}
	id := ID(e.AggregateId)
	row := c.rows[id]
	if row == nil {
		var err error
		if row, err = readTaskAtLast(c.r, ID(e.NamespaceId), id); err != nil {
			return err
		}
		if row == nil {
			return fmt.Errorf("event %d.%d is of task %x, which there has never been", e.Index, e.Place, id)
		}
		c.know(row)
	}
	complete(e, row)
	return nil
}

// readTaskAtLast finds the row of a task, or of one that was purged its last one, as
// long as any of its events is in the feed. nil if it is not.
func readTaskAtLast(r Reader, ns, id ID) (*pb.TaskRow, error) {
	t, err := ReadTask(r, ns, id)
	if t != nil || err != nil {
		return t, err
	}
	index, place, ok, err := readEnd(r, id)
	if !ok || err != nil {
		return nil, err
	}
	e, err := readEvent(r, index, place)
	if e == nil || err != nil {
		return nil, err
	}
	return e.TaskAfter, nil
}

// readEnd finds the last event of a task that was purged.
func readEnd(r Reader, id ID) (index uint64, place uint32, ok bool, err error) {
	pointer, ok, err := getRaw(r, key1(tableHistory, id))
	if err != nil || !ok {
		return 0, 0, false, err
	}
	if len(pointer) != 12 {
		return 0, 0, false, fmt.Errorf("state row %x is damaged", key1(tableHistory, id))
	}
	return binary.BigEndian.Uint64(pointer), binary.BigEndian.Uint32(pointer[8:]), true, nil
}

// copyFixed copies what a task keeps from its submission on.
func copyFixed(to, t *pb.TaskRow) {
	to.Id, to.NamespaceId, to.QueueId = t.Id, t.NamespaceId, t.QueueId
	to.Handler, to.HandlerVersion, to.PayloadVersion = t.Handler, t.HandlerVersion, t.PayloadVersion
	to.PayloadDigest, to.PayloadBytes = t.PayloadDigest, t.PayloadBytes
	to.BusinessKey, to.ConcurrencyKey, to.Priority = t.BusinessKey, t.ConcurrencyKey, t.Priority
	to.RecoverySafety, to.Retry = t.RecoverySafety, t.Retry
	to.CreatedAtUs, to.CreatedCommandId = t.CreatedAtUs, t.CreatedCommandId
	to.RetryOf, to.SubmissionHash, to.Traced = t.RetryOf, t.SubmissionHash, t.Traced
	to.ScheduleId, to.NominalAtUs = t.ScheduleId, t.NominalAtUs
}

// copyMoving copies everything else.
func copyMoving(to, t *pb.TaskRow) {
	to.Format, to.State, to.Revision = t.Format, t.State, t.Revision
	to.ResultDigest, to.ResultBytes = t.ResultDigest, t.ResultBytes
	to.AvailableAtUs, to.StartDeadlineAtUs, to.DeadlineAtUs = t.AvailableAtUs, t.StartDeadlineAtUs, t.DeadlineAtUs
	to.AttemptCount, to.AttemptsExtra = t.AttemptCount, t.AttemptsExtra
	to.CancelRequestedAtUs, to.CompletedAtUs, to.UpdatedAtUs = t.CancelRequestedAtUs, t.CompletedAtUs, t.UpdatedAtUs
	to.EffectUncertain, to.ErrorCode, to.Park = t.EffectUncertain, t.ErrorCode, t.Park
	to.Started, to.UnstartedOffers = t.Started, t.UnstartedOffers
	to.AttemptId, to.AttemptEpoch, to.KeyToken = t.AttemptId, t.AttemptEpoch, t.KeyToken
	to.RememberedUntilUs, to.RetentionMs = t.RememberedUntilUs, t.RetentionMs
	to.ReviewCause, to.ReviewSinceUs, to.Decision = t.ReviewCause, t.ReviewSinceUs, t.Decision
	to.EventIndex, to.EventPlace, to.RetriedAs = t.EventIndex, t.EventPlace, t.RetriedAs
}

// Moving is what of a task's row may change after its submission. With MakeWhole it
// is the whole row again.
func Moving(t *pb.TaskRow) *pb.TaskRow {
	m := &pb.TaskRow{}
	copyMoving(m, t)
	return m
}

// MakeWhole gives a row that Moving made what it left out, from the row of the same
// task at any time.
func MakeWhole(moving, row *pb.TaskRow) { copyFixed(moving, row) }

// copyEvent copies an event but for what it is not stored with.
func copyEvent(to, e *pb.EventRow) {
	to.Format, to.Partition, to.Position, to.Index, to.Place = e.Format, e.Partition, e.Position, e.Index, e.Place
	to.Aggregate, to.NamespaceId, to.AggregateId, to.Version = e.Aggregate, e.NamespaceId, e.AggregateId, e.Version
	to.CommandId, to.CommandType, to.RequestId, to.TimeUs = e.CommandId, e.CommandType, e.RequestId, e.TimeUs
	to.Operator, to.CorrelationId, to.CausationId, to.Facts = e.Operator, e.CorrelationId, e.CausationId, e.Facts
	to.TaskAfter, to.QueueAfter, to.NamespaceAfter = e.TaskAfter, e.QueueAfter, e.NamespaceAfter
	to.ScheduleAfter, to.Deleted, to.AppId = e.ScheduleAfter, e.Deleted, e.AppId
	to.PreviousIndex, to.PreviousPlace, to.LeftOut = e.PreviousIndex, e.PreviousPlace, e.LeftOut
}
