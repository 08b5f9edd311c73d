package fsm

import (
	"encoding/hex"
	"time"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// A schedule's times only ever move forward: the row names the next one, and
// dealing with it, in the entry in which it falls due, writes the one after it.
// So each time is dealt with once, whoever leads and however often. The business
// key of its task, made from the schedule's id and the time, says the same to
// everybody else for as long as the task is retained; a time whose task has been
// removed is not run again by itself, because it lies behind.

const (
	// recentFires is how many of the last times a schedule's row tells.
	recentFires = 10
	// missedCounted bounds what is counted of times that were missed, so that a
	// cluster that was down for long does not go through every second of it.
	missedCounted = 10_000
)

// Why a time was skipped.
const (
	codeOverlap  = "overlap"  // a run is not over
	codeRepeated = "repeated" // the time has a task already
	codePaused   = "paused"   // it waited for a run to be over when the schedule was paused
)

// scheduleDue deals with what a schedule has for an instant.
func (r *run) scheduleDue(c *state.Schedule, due int64) {
	if c.Row.ReleaseAtUs != 0 && c.Row.ReleaseAtUs <= due {
		r.causedBy("pulse.schedule.Fire")
		r.releaseBuffered(state.CopySchedule(c.Row))
	}
	if c.Row.NextDueUs == 0 || c.Row.NextDueUs > due {
		return
	}
	r.causedBy("pulse.schedule.Fire")
	row := state.CopySchedule(c.Row)
	if row.NextDueUs < r.now-row.Spec.CatchUpMs*1000 {
		r.missTimes(row)
		return
	}
	row.LastUs = row.NextUs
	fire := r.fireTime(row, row.NextUs)
	r.countFire(row, fire)
	r.setNext(row)
	r.commitFire(row, fire, "")
}

// fireTime submits the run of a time, or says why not.
func (r *run) fireTime(row *pb.ScheduleRow, nominal int64) *pb.ScheduleFire {
	fire := &pb.ScheduleFire{NominalUs: nominal, Outcome: pb.FireOutcome_FIRE_OUTCOME_SKIPPED, Code: codeOverlap}
	if r.s.OpenRuns(ID(row.Id)) > 0 {
		switch row.Spec.Overlap {
		case pb.Overlap_OVERLAP_SKIP:
			return fire
		case pb.Overlap_OVERLAP_BUFFER_ONE:
			if row.BufferedUs == 0 {
				row.BufferedUs = nominal
				fire.Outcome, fire.Code = pb.FireOutcome_FIRE_OUTCOME_BUFFERED, ""
			}
			return fire
		default: // beside the others
		}
	}
	return r.submitTime(row, nominal)
}

// submitTime submits the run of a time whatever else runs.
func (r *run) submitTime(row *pb.ScheduleRow, nominal int64) *pb.ScheduleFire {
	fire := &pb.ScheduleFire{NominalUs: nominal}
	key := nominalKey(row.Id, nominal)
	if t := r.taken(key, row); t != nil {
		fire.Outcome, fire.Code, fire.TaskId = pb.FireOutcome_FIRE_OUTCOME_SKIPPED, codeRepeated, t.Id
		return fire
	}
	t, res := r.submitRun(row, nominal, key, "schedule")
	if res != nil {
		fire.Outcome, fire.Code, fire.Message = pb.FireOutcome_FIRE_OUTCOME_REFUSED, res.Code, res.Message
		return fire
	}
	fire.Outcome, fire.TaskId = pb.FireOutcome_FIRE_OUTCOME_FIRED, t.Id
	return fire
}

// releaseBuffered runs the time that waited for the run before it. If another run
// came in between, it goes on waiting.
func (r *run) releaseBuffered(row *pb.ScheduleRow) {
	row.ReleaseAtUs = 0
	if r.s.OpenRuns(ID(row.Id)) > 0 {
		r.tx.PutSchedule(row)
		return
	}
	fire := r.submitTime(row, row.BufferedUs)
	row.BufferedUs = 0
	r.countFire(row, fire)
	if r.spent(row) {
		row.NextUs, row.NextDueUs = 0, 0
	}
	r.commitFire(row, fire, "")
}

// missTimes passes the times that are too late by the catch-up window.
func (r *run) missTimes(row *pb.ScheduleRow) {
	t := r.timetable(row.Spec)
	oldest := r.now - row.Spec.CatchUpMs*1000 - t.offset(row.Id)
	fire := &pb.ScheduleFire{NominalUs: row.NextUs, Outcome: pb.FireOutcome_FIRE_OUTCOME_MISSED}
	for row.NextUs != 0 && row.NextUs < oldest {
		if fire.Times++; fire.Times > missedCounted {
			fire.Times--
			fire.Message = "later ones were not counted"
			row.LastUs = oldest - 1
		} else {
			row.LastUs, fire.UntilUs = row.NextUs, row.NextUs
		}
		row.NextUs = t.next(max(row.LastUs, row.TimesFromUs))
	}
	row.NextDueUs = t.due(row.Id, row.NextUs)
	row.Missed += fire.Times
	r.commitFire(row, fire, "")
}

// countFire adds what became of a time to the schedule's counts.
func (r *run) countFire(row *pb.ScheduleRow, fire *pb.ScheduleFire) {
	switch fire.Outcome {
	case pb.FireOutcome_FIRE_OUTCOME_FIRED:
		row.Fired++
	case pb.FireOutcome_FIRE_OUTCOME_SKIPPED:
		row.Skipped++
	case pb.FireOutcome_FIRE_OUTCOME_REFUSED:
		row.Refused++
	default: // counted where it happens
	}
}

// note adds a time to the last ones of a row.
func (r *run) note(row *pb.ScheduleRow, fire *pb.ScheduleFire) {
	fire.AtUs = r.now
	kept := row.Recent
	if extra := len(kept) + 1 - recentFires; extra > 0 {
		kept = kept[extra:]
	}
	row.Recent = append(append(make([]*pb.ScheduleFire, 0, recentFires), kept...), fire)
}

// commitFire puts a row that has dealt with a time.
func (r *run) commitFire(row *pb.ScheduleRow, fire *pb.ScheduleFire, note string) {
	switch fire.Outcome {
	case pb.FireOutcome_FIRE_OUTCOME_TRIGGERED, pb.FireOutcome_FIRE_OUTCOME_BACKFILLED:
		row.Ordered += fire.Times
	default: // counted where it happens
	}
	r.note(row, fire)
	r.commitSchedule(row, &pb.Fact{Kind: &pb.Fact_ScheduleFired{ScheduleFired: &pb.ScheduleFired{
		NominalUs: fire.NominalUs, Outcome: fire.Outcome, TaskId: fire.TaskId, Code: fire.Code, Message: fire.Message,
		Times: fire.Times, UntilUs: fire.UntilUs, Note: note,
	}}})
}

// submitRun submits a task as a schedule's template says. The refusal is that of a
// submission.
func (r *run) submitRun(row *pb.ScheduleRow, nominal int64, key, source string) (*pb.TaskRow, *pb.Result) {
	c := submissionOf(row.Spec.Task, r.now)
	c.BusinessKey = key
	q := r.s.QueueByName(ID(row.NamespaceId), c.Queue)
	if q.Waiting >= q.Row.Settings.MaxWaiting {
		return nil, refuse(schema.QueueFull, "queue %q already holds %d waiting tasks", c.Queue, q.Waiting)
	}
	if id, ok := r.tx.Business(ID(row.NamespaceId), key); ok {
		return nil, keyTaken(key, id)
	}
	c.Payload = r.tx.SchedulePayload(ID(row.Id))
	t, res := r.newTask(c, q)
	if res == nil {
		res = refuseTask(r.s.Namespace(ID(row.NamespaceId)), t.PayloadBytes)
	}
	if res != nil {
		return nil, res
	}
	t.ScheduleId, t.NominalAtUs = row.Id, nominal
	if r.cmd != nil {
		r.remembered(t)
	}
	r.insertTask(t, c.Payload, source, nil)
	return t, nil
}

// keyTaken refuses the run of a time whose business key somebody has given to a task
// by hand. What that task is for only he knows, so it does not stand for the run.
func keyTaken(key string, task ID) *pb.Result {
	res := refuse(schema.Conflict, "the business key %s belongs to the task %x, which was submitted by hand", key, task)
	res.ExistingTaskId = task[:]
	return res
}

// submissionOf is a template as a submission at an instant.
func submissionOf(t *pb.TaskTemplate, now int64) *pb.SubmitTask {
	c := &pb.SubmitTask{
		Queue: t.Queue, Handler: t.Handler, HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion,
		ConcurrencyKey: t.ConcurrencyKey, Priority: t.Priority, RecoverySafety: t.RecoverySafety,
		MaxAttempts: t.MaxAttempts, InitialDelayMs: t.InitialDelayMs, MaxDelayMs: t.MaxDelayMs, AttemptTimeoutMs: t.AttemptTimeoutMs,
	}
	if t.StartDeadlineMs != 0 {
		c.StartDeadlineAtUs = now + t.StartDeadlineMs*1000
	}
	if t.DeadlineMs != 0 {
		c.DeadlineAtUs = now + t.DeadlineMs*1000
	}
	return c
}

// taken finds the run of a schedule that has a business key; nil without one.
func (r *run) taken(key string, row *pb.ScheduleRow) *pb.TaskRow {
	id, ok := r.tx.Business(ID(row.NamespaceId), key)
	if !ok {
		return nil
	}
	if t := r.tx.Task(ID(row.NamespaceId), id); isRunOf(t, row) {
		return t
	}
	return nil
}

// runOver is called when a task is over. The last open run of a schedule lets the
// time go that waits for it.
func (r *run) runOver(t *pb.TaskRow) {
	if len(t.ScheduleId) != 16 {
		return
	}
	c := r.s.Schedule(ID(t.ScheduleId))
	if c == nil || c.Row.BufferedUs == 0 || r.s.OpenRuns(c.ID()) > 0 {
		return
	}
	row := state.CopySchedule(c.Row)
	row.ReleaseAtUs = r.now
	r.tx.PutSchedule(row)
}

// nominalKey is the business key of the run of a time, triggerKey that of a run
// which was asked for at an instant.
func nominalKey(schedule []byte, nominal int64) string { return runKey("schedule:", schedule, nominal) }
func triggerKey(schedule []byte, nominal int64) string { return runKey("trigger:", schedule, nominal) }

func runKey(kind string, schedule []byte, nominal int64) string {
	return kind + hex.EncodeToString(schedule) + ":" + time.UnixMicro(nominal).UTC().Format("2006-01-02T15:04:05.999999Z")
}
