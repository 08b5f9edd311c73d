package sim

import (
	"bytes"
	"fmt"
	"strings"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

var scheduleNames = []string{"s1", "s2", "s3"}

// schedule is something that a client does with a schedule.
func (c *client) schedule() {
	s := c.s
	name, revision := pick(s, scheduleNames), uint64(0)
	if s.chance(10) {
		revision = uint64(s.between(1, 4))
	}
	switch n := s.rng.IntN(100); {
	case n < 40:
		b := &pb.PutSchedule{Name: name, ExpectedRevision: revision, Paused: s.chance(10), Payload: fmt.Appendf(nil, `{"n":%d}`, s.rng.IntN(3))}
		b.Spec, b.Zone = c.timetable()
		c.change("put schedule", &pb.Command{Body: &pb.Command_PutSchedule{PutSchedule: b}})
	case n < 58:
		c.change("pause schedule", pauseSchedule(name, s.chance(40), revision))
	case n < 76:
		b := &pb.TriggerSchedule{Name: name, AllowOverlap: s.chance(50), Note: "now"}
		c.change("trigger", &pb.Command{Body: &pb.Command_TriggerSchedule{TriggerSchedule: b}})
	case n < 90:
		until := s.judge.clock() - s.between(-second, 5*second)
		b := &pb.BackfillSchedule{Name: name, FromUs: until - s.between(second, 15*second), UntilUs: until}
		c.change("backfill", &pb.Command{Body: &pb.Command_BackfillSchedule{BackfillSchedule: b}})
	case n < 95:
		b := &pb.PutZones{Zones: []*pb.ZoneRow{zoneRelease(s.rng.IntN(4))}}
		c.do(&request{name: "zones", commands: []*pb.Command{{Body: &pb.Command_PutZones{PutZones: b}}}, wholeCluster: true}, c.done)
	default:
		b := &pb.DeleteSchedule{Name: name, ExpectedRevision: revision}
		c.change("delete schedule", &pb.Command{Body: &pb.Command_DeleteSchedule{DeleteSchedule: b}})
	}
}

func pauseSchedule(name string, paused bool, revision uint64) *pb.Command {
	return &pb.Command{Body: &pb.Command_PauseSchedule{PauseSchedule: &pb.PauseSchedule{Name: name, Paused: paused, ExpectedRevision: revision}}}
}

// timetable is a spec whose times come often, so that a run sees many.
func (c *client) timetable() (*pb.ScheduleSpec, *pb.ZoneRow) {
	s := c.s
	spec := &pb.ScheduleSpec{
		Overlap:   pick(s, []pb.Overlap{pb.Overlap_OVERLAP_SKIP, pb.Overlap_OVERLAP_ALLOW, pb.Overlap_OVERLAP_BUFFER_ONE}),
		CatchUpMs: pick(s, []int64{1_000, 10_000, 60_000}),
		Task: &pb.TaskTemplate{Queue: pick(s, queueNames), Handler: pick(s, handlerNames), HandlerVersion: "1", PayloadVersion: "1",
			Priority: uint32(s.rng.IntN(10))},
	}
	if s.chance(30) {
		spec.Task.ConcurrencyKey = pick(s, keyNames)
	}
	if s.chance(40) {
		spec.Task.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY
	}
	if s.chance(30) {
		spec.Task.DeadlineMs = s.between(2_000, 60_000)
	}
	if s.chance(30) {
		spec.JitterMs = s.between(1, 3_000)
	}
	if s.chance(15) {
		spec.MaxFires = uint64(s.between(1, 6))
	}
	if s.chance(15) {
		spec.EndAtUs = s.judge.clock() + s.between(-second, 60*second)
	}
	if s.chance(50) {
		spec.EveryMs = pick(s, []int64{1_500, 4_000, 9_000, 20_000})
		if s.chance(30) {
			spec.StartAtUs = s.judge.clock() + s.between(-20*second, 10*second)
		}
		return spec, nil
	}
	spec.Fields = &pb.CronFields{Seconds: pick(s, []uint64{1 | 1<<30, 1 | 1<<15 | 1<<30 | 1<<45, 1<<7 | 1<<9 | 1<<11}), Minutes: 1<<60 - 1,
		Hours: 1<<24 - 1, Days: 1<<32 - 2, Months: 1<<13 - 2, Weekdays: 1<<7 - 1, AnyDay: true, AnyWeekday: true}
	z := zoneRelease(s.rng.IntN(4))
	spec.Cron, spec.TimeZone = fmt.Sprint("seconds ", spec.Fields.Seconds), z.Name
	return spec, z
}

// zoneRelease is the rules of a time zone whose clock changes by seconds, every
// few of them. Later releases know other changes.
func zoneRelease(release int) *pb.ZoneRow {
	z := &pb.ZoneRow{Name: "Isle/Sundial", Release: fmt.Sprintf("2025%c", 'a'+release), FromS: []int64{0}, OffsetS: []int32{3600}}
	for i := range 20 {
		z.FromS = append(z.FromS, wallEpoch/second+int64(i*(17+3*release)))
		z.OffsetS = append(z.OffsetS, 3600+[]int32{5, 0, -3, 20}[i%4])
	}
	return z
}

// restSchedules pauses all schedules, so that the world comes to rest.
func (s *sim) restSchedules(c *client, names []string, then func()) {
	if len(names) == 0 {
		then()
		return
	}
	cmd := pauseSchedule(names[0], true, 0)
	cmd.ContentHash = hashOf(cmd)
	c.do(&request{name: "rest", commands: []*pb.Command{cmd}, key: fmt.Sprintf("rest-%s-%d", names[0], s.rng.Uint64())}, func(results []*pb.Result) {
		if results == nil || results[0].Code != "" && results[0].Code != "not_found" {
			s.after(c.p, second, func() { s.restSchedules(c, names, then) })
			return
		}
		s.restSchedules(c, names[1:], then)
	})
}

// --- what the log says

// schedulePast is what the events of a schedule have said.
type schedulePast struct {
	version        uint64
	last, buffered int64
	fired          map[int64]id // task
	deleted        bool
}

// lookSchedule: a schedule's times are dealt with in their order, each once and
// none before it has come, whoever leads.
func (j *judge) lookSchedule(ev *pb.EventRow) {
	x := toID(ev.AggregateId)
	p := j.schedules[x]
	if p == nil {
		p = &schedulePast{fired: map[int64]id{}}
		j.schedules[x] = p
	}
	if ev.Version != p.version+1 || p.deleted {
		j.s.fail("T5 each time once", "schedule %s has event version %d after %d (deleted: %t)", short(x[:]), ev.Version, p.version, p.deleted)
	}
	p.version, p.deleted = ev.Version, ev.Deleted
	for _, fact := range ev.Facts {
		j.count("schedule " + strings.TrimPrefix(fmt.Sprintf("%T", fact.Kind), "*pb.Fact_Schedule"))
		if f := fact.GetScheduleFired(); f != nil {
			j.count(strings.ToLower(strings.TrimPrefix(f.Outcome.String(), "FIRE_OUTCOME_")) + " times")
			j.lookFire(x, p, f, ev.TimeUs)
		}
	}
}

func (j *judge) lookFire(x id, p *schedulePast, f *pb.ScheduleFired, now int64) {
	if f.Outcome == pb.FireOutcome_FIRE_OUTCOME_TRIGGERED || f.Outcome == pb.FireOutcome_FIRE_OUTCOME_BACKFILLED {
		return // asked for by a person
	}
	if f.Outcome == pb.FireOutcome_FIRE_OUTCOME_FIRED {
		if other, twice := p.fired[f.NominalUs]; twice {
			j.s.fail("T5 each time once", "time %d of schedule %s is task %s and task %s", f.NominalUs, short(x[:]), short(other[:]), short(f.TaskId))
		}
		p.fired[f.NominalUs] = toID(f.TaskId)
	}
	switch {
	case f.NominalUs > now:
		j.s.fail("T2 never early", "schedule %s deals with %d at %d", short(x[:]), f.NominalUs, now)
	case p.buffered != 0 && f.NominalUs == p.buffered:
		p.buffered = 0
		return
	case f.NominalUs <= p.last:
		j.s.fail("T5 each time once", "schedule %s deals with %d after %d", short(x[:]), f.NominalUs, p.last)
	}
	p.last = max(f.NominalUs, f.UntilUs)
	if f.Outcome == pb.FireOutcome_FIRE_OUTCOME_BUFFERED {
		p.buffered = f.NominalUs
	}
}

// bindSchedules tells the model the ids of the schedules that the entry made.
func (j *judge) bindSchedules(out *fsm.Outcome) bool {
	gone := map[id]bool{}
	for _, e := range out.Events {
		if e.Aggregate == pb.Aggregate_AGGREGATE_SCHEDULE && e.Deleted {
			gone[toID(e.AggregateId)] = true
		}
	}
	var made []model.ID
	for _, e := range out.Events {
		for _, f := range e.Facts {
			if f.GetScheduleCreated() != nil && !gone[toID(e.AggregateId)] {
				made = append(made, toID(e.AggregateId))
			}
		}
	}
	if !j.model.BindSchedules(made) {
		return false
	}
	for _, t := range j.model.Tasks {
		if t.Schedule == nil || t.Schedule.ID != (id{}) { // it came and went in this entry
			continue
		}
		for _, e := range out.Events {
			if e.TaskAfter != nil && toID(e.AggregateId) == t.ID {
				j.model.NameSchedule(t.Schedule, toID(e.TaskAfter.ScheduleId))
			}
		}
	}
	return true
}

// --- rows and answers

func (j *judge) unlikeSchedules(r *rows) string {
	if len(r.schedules) != len(j.model.Schedules) || len(r.zones) != len(j.model.Zones) {
		return fmt.Sprintf("%d schedules and %d zones, the model has %d and %d", len(r.schedules), len(r.zones), len(j.model.Schedules), len(j.model.Zones))
	}
	for _, c := range j.model.Schedules {
		row := r.schedules[c.ID]
		if row == nil {
			return fmt.Sprintf("schedule %s %s is missing", c.Name, short(c.ID[:]))
		}
		if d := c.Unlike(row); d != "" {
			return d
		}
		if d := differ("schedule", c.ID, "payload", r.orders[c.ID], c.Payload); d != "" {
			return d
		}
	}
	for _, z := range j.model.Zones {
		if row := r.zones[z.Name]; row == nil || row.Release != z.Release {
			return fmt.Sprintf("zone %s: %v, the model knows release %s", z.Name, row, z.Release)
		}
	}
	return ""
}

// noteSchedule compares an answer about a schedule.
func noteSchedule(note func(string, any, any), r *pb.Result, want *model.Result) {
	if want.Schedule != nil {
		row := r.GetSchedule().GetSchedule()
		note("has schedule", row != nil, true)
		if want.Schedule.ID != (id{}) {
			note("schedule", toID(row.GetId()), want.Schedule.ID)
		}
		note("schedule revision", row.GetRevision(), want.ScheduleAt.Revision)
		note("schedule paused", row.GetPaused(), want.ScheduleAt.Paused)
		note("schedule next", row.GetNextUs(), want.ScheduleAt.Next)
	}
	items := r.GetBackfill().GetItems()
	note("times", len(items), len(want.Backfill))
	for i := range min(len(items), len(want.Backfill)) {
		is, should := items[i], want.Backfill[i]
		var task id
		if should.Task != nil {
			task = should.Task.ID
		}
		note("time", is.NominalUs, should.Nominal)
		note("existed", is.Existed, should.Existed)
		note("time's code", is.Code, should.Code)
		note("time's task", toID(is.TaskId), task)
	}
	if want.Token != nil {
		row := r.GetToken()
		note("token", bytes.Equal(row.GetId(), want.Token.ID[:]), true)
		note("secret's hash in an answer", len(row.GetSecretHash()), 0)
	}
}
