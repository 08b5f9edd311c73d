package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tidwall/btree"

	pb "pulse/proto/pulse/v1"
)

// TimerKind says what falls due. The order of the numbers is the order in
// which items of the same microsecond are processed: a deadline names itself
// as the cause before the lease that it capped runs out.
type TimerKind uint8

const (
	TimerDeadline      TimerKind = iota + 1 // of a task
	TimerStartDeadline                      // of a task
	TimerAvailable                          // a parked task becomes ready
	TimerAttempt                            // a lease or offer runs out
	TimerGateway                            // a gateway has not reported
	TimerInstance                           // grace, expiry, hold or removal of a worker instance
	TimerIdempotency                        // a remembered answer is forgotten, before the task that it needs
	TimerRetention                          // of a task that is over
	TimerFeed                               // the front of the event feed leaves
	TimerSchedule                           // a schedule's time has come
)

// Timer is a due item. Every timer is a function of one row: it is set, moved
// and dropped by putting that row, and by nothing else.
type Timer struct {
	Due  int64 // Unix microseconds
	Kind TimerKind
	ID   ID     // task, attempt or instance; a hash for the text kinds
	NS   ID     // namespace of a task, instance or idempotency key
	Text string // gateway id or idempotency key
}

func timerLess(a, b Timer) bool {
	if a.Due != b.Due {
		return a.Due < b.Due
	}
	if a.Kind != b.Kind {
		return a.Kind < b.Kind
	}
	if c := bytes.Compare(a.ID[:], b.ID[:]); c != 0 {
		return c < 0
	}
	return bytes.Compare(a.NS[:], b.NS[:]) < 0
}

// stored says whether timers of the kind have rows. The others belong to rows
// that are all in memory, so they are found again when those are read.
func (k TimerKind) stored() bool {
	switch k {
	case TimerDeadline, TimerStartDeadline, TimerAvailable, TimerRetention, TimerIdempotency:
		return true
	default:
		return false
	}
}

const (
	// Stored timers that fall due within the window are in memory, so that a
	// transition that drops a near timer never reads through its tombstones.
	timerWindowUs = 60e6
	timerAheadUs  = 30e6
)

// timers is the near end of everything that is due.
type timers struct {
	near    *btree.BTreeG[Timer]
	horizon int64 // stored timers before it are in near
}

func newTimers() timers {
	return timers{near: btree.NewBTreeGOptions(timerLess, btree.Options{NoLocks: true})}
}

// First is the next due item in memory. ok is false if nothing is due before
// the horizon.
func (t *timers) First() (Timer, bool) { return t.near.Min() }

// extend loads stored timers so that the window ahead of now is complete.
func (t *timers) extend(r Reader, now int64) error {
	if now+timerAheadUs < t.horizon {
		return nil
	}
	from, to := t.horizon, now+timerWindowUs
	lower := binary.BigEndian.AppendUint64([]byte{tableTimer}, uint64(from))
	upper := binary.BigEndian.AppendUint64([]byte{tableTimer}, uint64(to))
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	for iter.First(); iter.Valid(); iter.Next() {
		timer, err := decodeTimer(iter.Key(), iter.Value())
		if err != nil {
			_ = iter.Close()
			return err
		}
		t.near.Set(timer)
	}
	if err := iter.Close(); err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	t.horizon = to
	return nil
}

func decodeTimer(key, value []byte) (Timer, error) {
	if len(key) != timerKeyBytes || len(value) < 16 {
		return Timer{}, fmt.Errorf("timer row %x is damaged", key)
	}
	return Timer{
		Due:  int64(binary.BigEndian.Uint64(key[1:9])),
		Kind: TimerKind(key[9]),
		ID:   ID(key[10:26]),
		NS:   ID(value[:16]),
		Text: string(value[16:]),
	}, nil
}

func timerValue(t Timer) []byte {
	return append(append(make([]byte, 0, 16+len(t.Text)), t.NS[:]...), t.Text...)
}

// sooner keeps the earlier of two candidates; due 0 means no candidate.
func sooner(best *Timer, due int64, kind TimerKind) {
	if due == 0 {
		return
	}
	if best.Due == 0 || due < best.Due || (due == best.Due && kind < best.Kind) {
		best.Due, best.Kind = due, kind
	}
}

// taskTimer is the next due item of a task; Due 0 means none.
func taskTimer(t *pb.TaskRow) Timer {
	best := Timer{ID: ID(t.Id), NS: ID(t.NamespaceId)}
	switch t.State {
	case pb.TaskState_TASK_STATE_WAITING, pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING:
		sooner(&best, t.DeadlineAtUs, TimerDeadline)
		if t.State == pb.TaskState_TASK_STATE_RUNNING {
			break
		}
		if !t.Started {
			sooner(&best, t.StartDeadlineAtUs, TimerStartDeadline)
		}
		if t.State == pb.TaskState_TASK_STATE_WAITING && t.Park != pb.Park_PARK_UNSPECIFIED {
			sooner(&best, t.AvailableAtUs, TimerAvailable)
		}
	case pb.TaskState_TASK_STATE_SUCCEEDED, pb.TaskState_TASK_STATE_FAILED, pb.TaskState_TASK_STATE_CANCELLED:
		// The answer remembered under an Idempotency-Key refers to the payload.
		sooner(&best, max(t.CompletedAtUs+t.RetentionMs*1000, t.RememberedUntilUs), TimerRetention)
	case pb.TaskState_TASK_STATE_NEEDS_REVIEW: // waits for people, however long
	}
	return best
}

func attemptTimer(a *pb.AttemptRow) Timer {
	if !AttemptLive(a.State) {
		return Timer{}
	}
	due := a.LeaseUntilUs
	if a.TimeoutAtUs != 0 {
		// A lease is never shortened, so an offer may reach past a short timeout.
		due = min(due, a.TimeoutAtUs)
	}
	return Timer{Due: due, Kind: TimerAttempt, ID: ID(a.Id), NS: ID(a.NamespaceId)}
}

// How long an instance is remembered in its stages.
const (
	SessionGraceUs   = 2e6         // unstarted attempts wait for the instance to be back
	SessionExpiryUs  = 60e6        // after the loss of its connection
	InstanceRemoveUs = 24 * 3600e6 // after its session ended
)

func instanceTimer(i *pb.InstanceRow) Timer {
	best := Timer{ID: ID(i.Id), NS: ID(i.NamespaceId)}
	switch {
	case i.EndedAtUs != 0:
		if i.Active == 0 {
			sooner(&best, i.EndedAtUs+InstanceRemoveUs, TimerInstance)
		}
	case !i.Connected:
		if !i.GraceOver {
			sooner(&best, i.DisconnectedAtUs+SessionGraceUs, TimerInstance)
		}
		sooner(&best, i.DisconnectedAtUs+SessionExpiryUs, TimerInstance)
	}
	sooner(&best, i.HoldUntilUs, TimerInstance)
	return best
}

func gatewayTimer(g *pb.GatewayRow) Timer {
	return Timer{Due: g.LiveUntilUs, Kind: TimerGateway, ID: textID(g.Id), Text: g.Id}
}

func idempotencyTimer(r *pb.IdempotencyRow) Timer {
	return Timer{
		Due: r.ExpiresAtUs, Kind: TimerIdempotency, NS: ID(r.NamespaceId), Text: r.Key,
		ID: idempotencyID(ID(r.NamespaceId), r.Key),
	}
}

// idempotencyID stands for an Idempotency-Key of a namespace.
func idempotencyID(ns ID, key string) ID { return textID(string(ns[:]) + key) }

func feedTimer(m *pb.MetaRow) Timer { return Timer{Due: m.FeedTrimAtUs, Kind: TimerFeed} }

func textID(s string) ID {
	sum := sha256.Sum256([]byte(s))
	return ID(sum[:16])
}

// NextDue is the time of the next due item, wherever it is kept.
func (s *State) NextDue() (int64, bool, error) {
	first, ok := s.timers.First()
	if ok && first.Due < s.timers.horizon {
		return first.Due, true, nil
	}
	lower := binary.BigEndian.AppendUint64([]byte{tableTimer}, uint64(s.timers.horizon))
	iter, err := s.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd([]byte{tableTimer})})
	if err != nil {
		return 0, false, fmt.Errorf("read timers: %w", err)
	}
	due, found := first.Due, ok
	if iter.First() {
		t, err := decodeTimer(iter.Key(), iter.Value())
		if err != nil {
			_ = iter.Close()
			return 0, false, err
		}
		if !found || t.Due < due {
			due, found = t.Due, true
		}
	}
	if err := iter.Close(); err != nil {
		return 0, false, fmt.Errorf("read timers: %w", err)
	}
	return due, found, nil
}
