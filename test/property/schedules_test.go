package property

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// --- generators

// zoneRelease makes the rules of a time zone that no country has: its clock
// changes every few minutes, by less than a minute, so that a short history sees
// many changes. Later releases know other ones.
func zoneRelease(name string, release int) *pb.ZoneRow {
	z := &pb.ZoneRow{Name: name, Release: fmt.Sprintf("2027%c", 'a'+release), FromS: []int64{0}, OffsetS: []int32{int32(len(name)) * 600}}
	for i := range 40 {
		at := int64(startUs/1_000_000) + 11 + int64(i)*int64(190+20*release)
		z.FromS = append(z.FromS, at)
		z.OffsetS = append(z.OffsetS, z.OffsetS[0]+[]int32{45, 0, 17, -20}[i%4])
	}
	return z
}

var zoneNames = []string{"UTC", "Town/Hall", "Isle/Sundial"}

func genZone(r *rand.Rand) *pb.ZoneRow {
	name := pick(r, zoneNames...)
	if name == "UTC" {
		return &pb.ZoneRow{Name: name, Release: "2027a", FromS: []int64{0}, OffsetS: []int32{0}}
	}
	return zoneRelease(name, r.IntN(3))
}

func genSpec(w *world, r *rand.Rand) (*pb.ScheduleSpec, *pb.ZoneRow) {
	s := &pb.ScheduleSpec{
		Overlap:   pick(r, pb.Overlap_OVERLAP_SKIP, pb.Overlap_OVERLAP_ALLOW, pb.Overlap_OVERLAP_BUFFER_ONE),
		CatchUpMs: pick(r, int64(1000), 5000, 20_000),
		Task: &pb.TaskTemplate{
			Queue: pick(r, "default", "default", "q1", "q2"), Handler: pick(r, "charge", "charge", "mail"),
			HandlerVersion: "1", PayloadVersion: "1", ConcurrencyKey: pick(r, "", "", "k1"), Priority: pick(r, uint32(0), 0, 5),
		},
	}
	if oneIn(r, 4) {
		s.Task.DeadlineMs = pick(r, int64(1), 800, 60_000)
	}
	if oneIn(r, 4) {
		s.Task.StartDeadlineMs = pick(r, int64(1), 1500)
	}
	if oneIn(r, 4) {
		s.Task.MaxAttempts = proto.Uint32(pick(r, uint32(1), 3))
	}
	if oneIn(r, 3) {
		s.JitterMs = pick(r, int64(1), 700, 5000)
	}
	if oneIn(r, 5) {
		s.MaxFires = pick(r, uint64(1), 2, 5)
	}
	now := w.model.Clock
	if oneIn(r, 5) {
		s.StartAtUs = now + pick(r, int64(-7_500_000), 1, 2_000_000)
	}
	if oneIn(r, 6) {
		s.EndAtUs = now + pick(r, int64(0), 1_000_000, 30_000_000)
	}
	if oneIn(r, 3) {
		s.EveryMs = pick(r, int64(1000), 2000, 3500, 60_000)
		return s, nil
	}
	all := &pb.CronFields{
		Seconds: pick(r, uint64(1), 1|1<<20|1<<40, 1<<60-1, 1<<7), Minutes: pick(r, uint64(1<<60-1), 1<<60-1, 1<<30|1, 0b1010101),
		Hours: 1<<24 - 1, Days: 1<<32 - 2, Months: 1<<13 - 2, Weekdays: 1<<7 - 1, AnyDay: true, AnyWeekday: true,
	}
	hour := now / 1_000_000 / 3600 % 24
	switch r.IntN(6) {
	case 0, 1: // about the clock
		all.Hours = 1<<hour | 1<<((hour+1)%24) | 1<<((hour+2)%24)
	case 2:
		all.Hours = (1<<24 - 1) &^ (1 << ((hour + 5) % 24))
	case 3:
		all.Days, all.AnyDay = all.Days&^(1<<13), false
		all.Weekdays, all.AnyWeekday = 0b0010010, false
	case 4:
		if oneIn(r, 4) { // never
			all.Days, all.AnyDay, all.Months = 1<<31, false, 1<<2
		}
	}
	z := genZone(r)
	s.Cron, s.Fields, s.TimeZone = fmt.Sprintf("text %d", r.IntN(2)), all, z.Name
	return s, z
}

func scheduleOf(w *world, r *rand.Rand) (*pb.Command, string, uint64) {
	if len(w.model.Schedules) == 0 || oneIn(r, 6) {
		return keyed(r, in(r, namespaces(w, r))), pick(r, "s1", "s2", "s3"), 0
	}
	c := pick(r, w.model.Schedules...)
	revision := uint64(0)
	if oneIn(r, 4) {
		revision = pick(r, c.Revision, c.Revision, c.Revision+1)
	}
	return keyed(r, in(r, c.Namespace)), c.Name, revision
}

func genPutSchedule(w *world, r *rand.Rand) *pb.Command {
	c, name, revision := scheduleOf(w, r)
	if len(w.model.Schedules) < 3 && oneIn(r, 2) {
		name, revision = pick(r, "s1", "s2", "s3"), 0
	}
	spec, zone := genSpec(w, r)
	b := &pb.PutSchedule{Name: name, Spec: spec, Zone: zone, ExpectedRevision: revision, Paused: oneIn(r, 8),
		Payload: fmt.Appendf(nil, `{"n":%d.0}`, r.IntN(2))}
	for _, old := range w.model.Schedules { // a small change, or none
		if old.Name == name && oneIn(r, 2) {
			b.Spec, b.Paused, b.Payload = proto.CloneOf(old.Spec), old.Paused, []byte(old.Payload)
			if b.Zone = nil; b.Spec.TimeZone != "" {
				b.Zone = zoneRelease(b.Spec.TimeZone, r.IntN(3))
			}
			switch r.IntN(4) {
			case 0:
				b.Spec.Overlap = spec.Overlap
			case 1:
				b.Spec.Task.Priority++
			case 2:
				b.Spec.JitterMs = spec.JitterMs
			}
		}
	}
	c.Body = &pb.Command_PutSchedule{PutSchedule: b}
	return c
}

func genPauseSchedule(w *world, r *rand.Rand) *pb.Command {
	c, name, revision := scheduleOf(w, r)
	c.Body = &pb.Command_PauseSchedule{PauseSchedule: &pb.PauseSchedule{Name: name, ExpectedRevision: revision, Paused: oneIn(r, 2), Note: "note"}}
	return c
}

func genTrigger(w *world, r *rand.Rand) *pb.Command {
	c, name, _ := scheduleOf(w, r)
	c.Body = &pb.Command_TriggerSchedule{TriggerSchedule: &pb.TriggerSchedule{Name: name, AllowOverlap: oneIn(r, 2), Note: "now"}}
	return c
}

func genBackfill(w *world, r *rand.Rand) *pb.Command {
	c, name, _ := scheduleOf(w, r)
	until := w.model.Clock + pick(r, int64(0), 0, -3_000_000, 1)
	c.Body = &pb.Command_BackfillSchedule{BackfillSchedule: &pb.BackfillSchedule{
		Name: name, UntilUs: until, FromUs: until - pick(r, int64(2_000_000), 5_000_001, 12_000_000, 0, 900_000_000),
	}}
	return c
}

func genDeleteSchedule(w *world, r *rand.Rand) *pb.Command {
	c, name, revision := scheduleOf(w, r)
	c.Body = &pb.Command_DeleteSchedule{DeleteSchedule: &pb.DeleteSchedule{Name: name, ExpectedRevision: revision}}
	return c
}

func genPutZones(_ *world, r *rand.Rand) *pb.Command {
	return &pb.Command{Body: &pb.Command_PutZones{PutZones: &pb.PutZones{Zones: []*pb.ZoneRow{
		zoneRelease(zoneNames[1], r.IntN(4)), zoneRelease(zoneNames[2], r.IntN(4)),
	}}}}
}

// --- comparison

func (w *world) compareSchedules(s *seen) string {
	if len(s.after.schedules.vals) != len(w.model.Schedules) || len(s.after.zones.vals) != len(w.model.Zones) {
		return fmt.Sprintf("%d schedules and %d zones, in the model %d and %d", len(s.after.schedules.vals), len(s.after.zones.vals),
			len(w.model.Schedules), len(w.model.Zones))
	}
	for _, c := range w.model.Schedules {
		row, ok := s.after.schedules.get("s" + string(c.Namespace.ID[:]) + string(c.ID[:]))
		if !ok {
			return fmt.Sprintf("schedule %s is missing", c.Name)
		}
		if d := c.Unlike(row); d != "" {
			return d
		}
		if payload, _ := s.after.blobs.get("S" + string(c.ID[:])); payload != c.Payload {
			return fmt.Sprintf("schedule %s has payload %q, put was %q", c.Name, payload, c.Payload)
		}
	}
	return ""
}

func compareBackfill(r *pb.BackfillResult, want []model.BackfillItem) string {
	if len(r.GetItems()) != len(want) {
		return fmt.Sprintf("%d times, the model has %d", len(r.GetItems()), len(want))
	}
	for i, item := range r.GetItems() {
		var task id
		if want[i].Task != nil {
			task = want[i].Task.ID
		}
		if item.NominalUs != want[i].Nominal || item.Existed != want[i].Existed || item.Code != want[i].Code || toID(item.TaskId) != task {
			return fmt.Sprintf("time %d: %v, the model %+v", i, item, want[i])
		}
	}
	return ""
}

func (w *world) querySchedules(_ *seen, r *rand.Rand, ns *model.Namespace) string {
	var want, got []string
	for _, c := range w.model.Schedules {
		if c.Namespace == ns {
			want = append(want, c.Name)
		}
	}
	slices.Sort(want)
	for after := ""; ; {
		list := w.ask(ns, &pb.Query{Body: &pb.Query_ListSchedules{ListSchedules: &pb.ListSchedules{Limit: 1, After: after}}}).GetSchedules()
		for _, v := range list.GetSchedules() {
			got = append(got, v.Schedule.Name)
		}
		if after = list.GetNextAfter(); after == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Sprintf("schedules %v are listed, there are %v", got, want)
	}
	for _, c := range w.model.Schedules {
		if c.Namespace != ns {
			continue
		}
		n := uint32(r.IntN(4))
		v := w.ask(ns, &pb.Query{Body: &pb.Query_GetSchedule{GetSchedule: &pb.GetSchedule{Name: c.Name, Upcoming: n}}}).GetSchedule()
		if v == nil || v.Open != w.model.OpenRuns(c) || string(v.Payload) != c.Payload || (len(v.UpcomingUs) > 0) != (n > 0 && c.Next != 0) ||
			len(v.UpcomingUs) > 0 && v.UpcomingUs[0] != c.Next {
			return fmt.Sprintf("schedule %s reads %v; the model has %d open runs, next %d", c.Name, v, w.model.OpenRuns(c), c.Next)
		}
		from := w.model.Clock - 4_000_000
		items, code := w.model.BackfillTimes(c, from, w.model.Clock)
		ans := w.ask(ns, &pb.Query{Body: &pb.Query_PreviewBackfill{PreviewBackfill: &pb.PreviewBackfill{Name: c.Name, FromUs: from, UntilUs: w.model.Clock}}})
		if ans.Code != code || len(ans.GetBackfill().GetItems()) != len(items) {
			return fmt.Sprintf("a backfill of %s would be %v, in the model %d times, %q", c.Name, ans, len(items), code)
		}
	}
	return ""
}

// --- invariants

// eachTimeOnce: a schedule's times are dealt with in their order, each once, and
// one that waited for a run to be over runs once.
func eachTimeOnce(w *world, s *seen) string {
	for _, e := range s.out.Events {
		if e.Aggregate != pb.Aggregate_AGGREGATE_SCHEDULE {
			continue
		}
		c := w.memory.schedule(id(e.AggregateId))
		if e.Version != c.version+1 {
			return fmt.Sprintf("schedule %x has event version %d after %d", e.AggregateId, e.Version, c.version)
		}
		c.version = e.Version
		f := e.Facts[0].GetScheduleFired()
		switch f.GetOutcome() {
		case pb.FireOutcome_FIRE_OUTCOME_UNSPECIFIED, pb.FireOutcome_FIRE_OUTCOME_TRIGGERED, pb.FireOutcome_FIRE_OUTCOME_BACKFILLED:
			continue
		default: // a time of its own
		}
		switch {
		case f.NominalUs == c.buffered:
			c.buffered = 0
			continue
		case f.NominalUs <= c.last:
			return fmt.Sprintf("schedule %x dealt with %d after %d", e.AggregateId, f.NominalUs, c.last)
		case f.NominalUs > e.TimeUs:
			return fmt.Sprintf("schedule %x dealt with %d at %d, before its time", e.AggregateId, f.NominalUs, e.TimeUs)
		}
		c.last = max(f.NominalUs, f.UntilUs)
		if f.Outcome == pb.FireOutcome_FIRE_OUTCOME_BUFFERED {
			c.buffered = f.NominalUs
		}
	}
	return ""
}

// schedulePast is what the events of a schedule have said.
type schedulePast struct {
	version        uint64
	last, buffered int64
}

func (m *memory) schedule(x id) *schedulePast {
	if m.schedules[x] == nil {
		m.schedules[x] = &schedulePast{}
	}
	return m.schedules[x]
}
