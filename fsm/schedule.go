package fsm

import (
	"bytes"
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// backfillMax bounds the times of one backfill, as BulkMax bounds other commands.
const backfillMax = BulkMax

func (r *run) findSchedule(name string, expectedRevision uint64) (*state.Schedule, *pb.Result) {
	c := r.s.ScheduleByName(r.nsID(), name)
	if c == nil {
		return nil, refuse(schema.NotFound, "no schedule %q in this namespace", name)
	}
	if expectedRevision != 0 && expectedRevision != c.Row.Revision {
		res := refuse(schema.RevisionConflict, "the schedule is at revision %d", c.Row.Revision)
		res.CurrentRevision = c.Row.Revision
		return nil, res
	}
	return c, nil
}

// putSchedule creates a schedule or replaces what people set of it.
func (r *run) putSchedule(c *pb.PutSchedule) *pb.Result {
	if r.s.QueueByName(r.nsID(), c.Spec.Task.Queue) == nil {
		return refuse(schema.NotFound, "no queue %q in this namespace", c.Spec.Task.Queue)
	}
	old := r.s.ScheduleByName(r.nsID(), c.Name)
	if old == nil {
		return r.createSchedule(c)
	}
	if _, res := r.findSchedule(c.Name, c.ExpectedRevision); res != nil {
		return res
	}
	spec := withDigest(c)
	newTimes := !sameTimes(old.Row.Spec, spec)
	if res := r.refuseTimes(c); newTimes && res != nil {
		return res
	}
	r.putZone(c.Zone)
	if old.Row.Paused == c.Paused && proto.Equal(old.Row.Spec, spec) {
		return scheduleResult(r.viewSchedule(old.Row))
	}
	row := state.CopySchedule(old.Row)
	row.Spec = spec
	if newTimes || row.Paused != c.Paused {
		r.setPaused(row, c.Paused)
	}
	r.changeSchedule(row)
	r.tx.PutSchedulePayload(old.ID(), c.Payload)
	r.commitSchedule(row, &pb.Fact{Kind: &pb.Fact_ScheduleUpdated{ScheduleUpdated: &pb.ScheduleUpdated{}}})
	return scheduleResult(r.viewSchedule(row))
}

func (r *run) createSchedule(c *pb.PutSchedule) *pb.Result {
	switch {
	case c.ExpectedRevision != 0:
		return refuse(schema.NotFound, "no schedule %q in this namespace", c.Name)
	case len(r.s.Schedules(r.nsID(), "")) >= schedulesMax:
		return refuse(schema.Conflict, "the namespace already has %d schedules", schedulesMax)
	}
	if res := r.refuseTimes(c); res != nil {
		return res
	}
	r.putZone(c.Zone)
	id := r.newID()
	row := &pb.ScheduleRow{Id: id[:], NamespaceId: r.ns.Row.Id, Name: c.Name, CreatedAtUs: r.now, Spec: withDigest(c)}
	r.setPaused(row, c.Paused)
	r.changeSchedule(row)
	r.tx.PutSchedulePayload(id, c.Payload)
	r.commitSchedule(row, &pb.Fact{Kind: &pb.Fact_ScheduleCreated{ScheduleCreated: &pb.ScheduleCreated{}}})
	v := r.viewSchedule(row)
	v.Created = true
	return scheduleResult(v)
}

// refuseTimes refuses a schedule that would never do anything.
func (r *run) refuseTimes(c *pb.PutSchedule) *pb.Result {
	t := timetable{spec: c.Spec, zone: r.newerZone(c.Zone)}
	if t.next(r.now) != 0 {
		return nil
	}
	path := "/cron"
	switch {
	case c.Spec.EndAtUs != 0:
		path = "/end_at"
	case c.Spec.EveryMs != 0:
		path = "/every_ms"
	}
	return violation(path, "no time matches from now on: it would never run")
}

// withDigest is the spec with what is known of the payload.
func withDigest(c *pb.PutSchedule) *pb.ScheduleSpec {
	spec := proto.CloneOf(c.Spec)
	sum := sha256.Sum256(c.Payload)
	spec.Task.PayloadDigest, spec.Task.PayloadBytes = sum[:], uint32(len(c.Payload))
	return spec
}

// changeSchedule notes that people changed something.
func (r *run) changeSchedule(row *pb.ScheduleRow) {
	row.Revision++
	row.UpdatedAtUs = r.now
}

// setPaused sets whether times come, and from when on. A time that has come but
// was not dealt with yet still comes, so that a change never takes it away.
func (r *run) setPaused(row *pb.ScheduleRow, paused bool) {
	if paused {
		if row.BufferedUs != 0 {
			r.note(row, &pb.ScheduleFire{NominalUs: row.BufferedUs, Outcome: pb.FireOutcome_FIRE_OUTCOME_SKIPPED, Code: codePaused})
		}
		row.Paused, row.NextUs, row.NextDueUs, row.BufferedUs, row.ReleaseAtUs = true, 0, 0, 0, 0
		return
	}
	row.Paused, row.TimesFromUs = false, r.now
	if row.NextUs == 0 || row.NextUs > r.now {
		r.setNext(row)
		return
	}
	row.NextDueUs = r.timetable(row.Spec).due(row.Id, row.NextUs)
}

// setNext finds the time after the last one dealt with.
func (r *run) setNext(row *pb.ScheduleRow) {
	t := r.timetable(row.Spec)
	row.NextUs = 0
	if !r.spent(row) {
		row.NextUs = t.next(max(row.LastUs, row.TimesFromUs))
	}
	row.NextDueUs = t.due(row.Id, row.NextUs)
}

// spent says that a schedule has had all its runs.
func (r *run) spent(row *pb.ScheduleRow) bool {
	return row.Spec.MaxFires != 0 && row.Fired >= row.Spec.MaxFires
}

func (r *run) pauseSchedule(c *pb.PauseSchedule) *pb.Result {
	old, res := r.findSchedule(c.Name, c.ExpectedRevision)
	if res != nil {
		return res
	}
	if old.Row.Paused == c.Paused {
		return scheduleResult(r.viewSchedule(old.Row))
	}
	row := state.CopySchedule(old.Row)
	r.setPaused(row, c.Paused)
	r.changeSchedule(row)
	fact := &pb.Fact{Kind: &pb.Fact_ScheduleResumed{ScheduleResumed: &pb.ScheduleResumed{Note: c.Note}}}
	if c.Paused {
		fact = &pb.Fact{Kind: &pb.Fact_SchedulePaused{SchedulePaused: &pb.SchedulePaused{Note: c.Note}}}
	}
	r.commitSchedule(row, fact)
	return scheduleResult(r.viewSchedule(row))
}

// deleteSchedule forgets a schedule; what it submitted stays.
func (r *run) deleteSchedule(c *pb.DeleteSchedule) *pb.Result {
	old, res := r.findSchedule(c.Name, c.ExpectedRevision)
	if res != nil {
		return res
	}
	row := state.CopySchedule(old.Row)
	r.setPaused(row, true)
	r.changeSchedule(row)
	v := r.viewSchedule(row)
	v.Deleted = true
	row.Version++
	after := state.CopySchedule(row)
	after.Recent = nil
	e := r.event(pb.Aggregate_AGGREGATE_SCHEDULE, row.NamespaceId, row.Id, row.Version,
		[]*pb.Fact{{Kind: &pb.Fact_ScheduleDeleted{ScheduleDeleted: &pb.ScheduleDeleted{}}}})
	e.ScheduleAfter, e.Deleted = after, true
	r.append(e)
	r.tx.DeleteSchedule(row)
	return scheduleResult(v)
}

// triggerSchedule submits a run for now. It is a person's order, so it counts
// neither as a time nor against max_fires.
func (r *run) triggerSchedule(c *pb.TriggerSchedule) *pb.Result {
	old, res := r.findSchedule(c.Name, 0)
	if res != nil {
		return res
	}
	if n := r.s.OpenRuns(old.ID()); n > 0 && !c.AllowOverlap && old.Row.Spec.Overlap != pb.Overlap_OVERLAP_ALLOW {
		return refuse(schema.Conflict, "%s not over, and the schedule's overlap policy does not let another begin; allow_overlap lets it", are(n, "run"))
	}
	nominal := r.now
	for r.taken(triggerKey(old.Row.Id, nominal), old.Row) != nil {
		nominal++ // triggered twice in one instant
	}
	t, res := r.submitRun(old.Row, nominal, triggerKey(old.Row.Id, nominal), "trigger")
	if res != nil {
		return res
	}
	row := state.CopySchedule(old.Row)
	r.commitFire(row, &pb.ScheduleFire{NominalUs: nominal, Outcome: pb.FireOutcome_FIRE_OUTCOME_TRIGGERED, TaskId: t.Id, Times: 1}, c.Note)
	return taskResult(r.viewTask(t, true))
}

// backfillSchedule submits the runs of past times that have none.
func (r *run) backfillSchedule(c *pb.BackfillSchedule) *pb.Result {
	old, res := r.findSchedule(c.Name, 0)
	if res != nil {
		return res
	}
	times, refusal := backfillTimes(r.timetable(old.Row.Spec), c.FromUs, c.UntilUs, r.now)
	if refusal != nil {
		return refusal
	}
	out := &pb.BackfillResult{}
	fire := &pb.ScheduleFire{Outcome: pb.FireOutcome_FIRE_OUTCOME_BACKFILLED}
	for _, nominal := range times {
		item := &pb.BackfillItem{NominalUs: nominal}
		out.Items = append(out.Items, item)
		key := nominalKey(old.Row.Id, nominal)
		if t := r.taken(key, old.Row); t != nil {
			item.TaskId, item.Existed = t.Id, true
			continue
		}
		t, res := r.submitRun(old.Row, nominal, key, "backfill")
		if res != nil {
			item.Code, item.Message = res.Code, res.Message
			continue
		}
		item.TaskId = t.Id
		if fire.Times++; fire.Times == 1 {
			fire.NominalUs = nominal
		}
		fire.UntilUs = nominal
	}
	if fire.Times > 0 {
		r.commitFire(state.CopySchedule(old.Row), fire, c.Note)
	}
	return &pb.Result{Body: &pb.Result_Backfill{Backfill: out}}
}

// backfillTimes are the times that a backfill is about.
func backfillTimes(t timetable, from, until, now int64) ([]int64, *pb.Result) {
	switch {
	case until > now:
		return nil, violation("/until", "until must not be in the future: times to come run by themselves")
	case from >= until:
		return nil, violation("/from", "from must be earlier than until")
	}
	times, more := t.between(from, until, backfillMax)
	if more {
		return nil, violation("/until", "the range has more than 500 times; take a shorter one, and the next one after it")
	}
	return times, nil
}

// putZones takes the rules that are newer than those that schedules compute with,
// and finds the next times of those schedules anew. A time that has come already
// still comes.
func (r *run) putZones(c *pb.PutZones) *pb.Result {
	for _, z := range c.Zones {
		if r.s.Zone(z.Name) != nil {
			r.putZone(z)
		}
	}
	return &pb.Result{}
}

func (r *run) putZone(z *pb.ZoneRow) {
	if z == nil {
		return
	}
	old := r.s.Zone(z.Name)
	if r.newerZone(z) == old {
		return
	}
	row := proto.CloneOf(z)
	row.Format = state.RowFormat
	r.tx.PutZone(row)
	if old == nil {
		return
	}
	for _, c := range r.s.AllSchedules() {
		if c.Row.Spec.TimeZone != z.Name || c.Row.Paused || c.Row.NextUs <= r.now {
			continue
		}
		next := state.CopySchedule(c.Row)
		if r.setNext(next); next.NextUs != c.Row.NextUs {
			r.tx.PutSchedule(next)
		}
	}
}

// newerZone is the given rules or those known, whichever are newer. Equal releases
// have equal rules, and the known ones stay.
func (r *run) newerZone(z *pb.ZoneRow) *pb.ZoneRow {
	if z == nil {
		return nil
	}
	if old := r.s.Zone(z.Name); old != nil && z.Release <= old.Release {
		return old
	}
	return z
}

// scheduleInto names a schedule that submits to a queue; empty without one.
func (r *run) scheduleInto(queue string) string {
	for _, c := range r.s.Schedules(r.nsID(), "") {
		if c.Row.Spec.Task.Queue == queue {
			return c.Row.Name
		}
	}
	return ""
}

func scheduleResult(v *pb.ScheduleView) *pb.Result {
	return &pb.Result{Body: &pb.Result_Schedule{Schedule: v}}
}

// viewSchedule is a schedule as its commands answer it.
func (r *run) viewSchedule(row *pb.ScheduleRow) *pb.ScheduleView {
	v := viewSchedule(r.s, row)
	v.Payload = r.tx.SchedulePayload(ID(row.Id))
	return v
}

func withoutPayload(v *pb.ScheduleView) *pb.ScheduleView {
	return &pb.ScheduleView{
		Schedule: v.Schedule, Namespace: v.Namespace, Open: v.Open, UpcomingUs: v.UpcomingUs,
		Created: v.Created, Deleted: v.Deleted,
	}
}

func isRunOf(t *pb.TaskRow, c *pb.ScheduleRow) bool { return bytes.Equal(t.ScheduleId, c.Id) }
