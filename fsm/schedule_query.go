package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// upcomingMax bounds the times that one answer tells.
const upcomingMax = 100

func (v *view) schedule(name string) *state.Schedule {
	c := v.s.ScheduleByName(v.nsID(), name)
	if c == nil {
		v.refuse(schema.NotFound, "no schedule %q in this namespace", name)
	}
	return c
}

func (v *view) getSchedule(b *pb.GetSchedule) error {
	c := v.schedule(b.Name)
	if c == nil {
		return nil
	}
	out := viewSchedule(v.s, c.Row)
	out.UpcomingUs = v.upcoming(c.Row, b.Upcoming)
	var err error
	out.Payload, err = state.ReadSchedulePayload(v.s, c.ID())
	v.ans.Body = &pb.Answer_Schedule{Schedule: out}
	return err
}

// upcoming are the next times of a schedule, the first of which may have come.
func (v *view) upcoming(row *pb.ScheduleRow, n uint32) []int64 {
	n = min(n, upcomingMax)
	if n == 0 || row.NextUs == 0 {
		return nil
	}
	if most := row.Spec.MaxFires; most != 0 {
		n = uint32(min(uint64(n), most-min(most, row.Fired)))
	}
	return append([]int64{row.NextUs}, v.timetable(row.Spec).upcoming(max(row.NextUs, row.TimesFromUs), int(n)-1)...)
}

func (v *view) timetable(spec *pb.ScheduleSpec) timetable {
	return timetable{spec: spec, zone: v.s.Zone(spec.TimeZone)}
}

func (v *view) listSchedules(b *pb.ListSchedules) {
	list := &pb.ScheduleList{}
	v.ans.Body = &pb.Answer_Schedules{Schedules: list}
	limit := page(b.Limit)
	for _, c := range v.s.Schedules(v.nsID(), b.After) {
		if len(list.Schedules) == limit {
			list.NextAfter = list.Schedules[limit-1].Schedule.Name
			return
		}
		list.Schedules = append(list.Schedules, viewSchedule(v.s, c.Row))
	}
}

// previewSchedule answers for a schedule that was not put.
func (v *view) previewSchedule(b *pb.PreviewSchedule) {
	zone := b.Zone
	if old := v.s.Zone(b.Spec.TimeZone); old != nil && (zone == nil || zone.Release <= old.Release) {
		zone = old
	}
	t := timetable{spec: b.Spec, zone: zone}
	n := int(min(b.Upcoming, upcomingMax))
	if most := b.Spec.MaxFires; most != 0 {
		n = int(min(uint64(n), most))
	}
	v.ans.Body = &pb.Answer_Schedule{Schedule: &pb.ScheduleView{
		Schedule: &pb.ScheduleRow{Spec: b.Spec}, Namespace: v.ns.Row.Name, UpcomingUs: t.upcoming(v.ans.ClockUs, n),
	}}
}

// ZonesBefore names the time zones that schedules compute with by the rules of an
// older release.
func (m *Machine) ZonesBefore(release string) []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var names []string
	for _, z := range m.state.Zones() {
		if z.Release < release {
			names = append(names, z.Name)
		}
	}
	return names
}

func (v *view) previewBackfill(b *pb.PreviewBackfill) error {
	c := v.schedule(b.Name)
	if c == nil {
		return nil
	}
	times, refusal := backfillTimes(v.timetable(c.Row.Spec), b.FromUs, b.UntilUs, v.ans.ClockUs)
	if refusal != nil {
		v.refuse(schema.Code(refusal.Code), "%s", refusal.Message)
		return nil
	}
	out := &pb.BackfillResult{}
	for _, nominal := range times {
		item := &pb.BackfillItem{NominalUs: nominal}
		out.Items = append(out.Items, item)
		id, ok, err := state.ReadBusiness(v.s, v.nsID(), nominalKey(c.Row.Id, nominal))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		t, err := state.ReadTask(v.s, v.nsID(), id)
		if err != nil {
			return err
		}
		if t != nil && isRunOf(t, c.Row) {
			item.TaskId, item.Existed = id[:], true
			continue
		}
		res := keyTaken(nominalKey(c.Row.Id, nominal), id)
		item.Code, item.Message = res.Code, res.Message
	}
	v.ans.Body = &pb.Answer_Backfill{Backfill: out}
	return nil
}
