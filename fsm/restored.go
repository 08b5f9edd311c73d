package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// A cluster that was made from a backup knows the lost one as it was then. What
// that one handed out later, and to whom, nobody can tell; so nothing that it
// handed out counts any more, and what it may have run is not taken for unrun.

// ofLostCluster says that an attempt was leased by the cluster that was lost:
// its fencing number is not above the base of this one. It ends by its lease,
// and until then nothing its worker says has an effect.
func (r *run) ofLostCluster(a *pb.AttemptRow) bool { return a.Epoch <= r.tx.Meta().FenceBase }

// counts says that an attempt is alive, and was leased by this cluster.
func (r *run) counts(a *pb.AttemptRow) bool { return state.AttemptLive(a.State) && !r.ofLostCluster(a) }

// mayHaveRun says that a task which has not started, as far as is known here,
// may have been run by the cluster that was lost, after the backup.
func (r *run) mayHaveRun(t *pb.TaskRow) bool { return t.UpdatedAtUs <= r.tx.Meta().RestoredClockUs }

// doubt marks a task, before its first change since the restore, if it may have
// been run meanwhile. What was RUNNING or in review is doubted already.
func (r *run) doubt(t, next *pb.TaskRow) {
	waits := t.State == pb.TaskState_TASK_STATE_WAITING || t.State == pb.TaskState_TASK_STATE_LEASED
	next.EffectUncertain = next.EffectUncertain || waits && r.mayHaveRun(t)
}

// reviewRestored hands a waiting task that only a person may let run twice to
// that person.
func (r *run) reviewRestored(t *pb.TaskRow) {
	r.causedBy("pulse.task.Restore")
	next := state.CopyTask(t)
	r.needsReview(t, next, "", pb.EndCause_END_CAUSE_RESTORED, false)
}
