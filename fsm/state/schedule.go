package state

import (
	"slices"
	"strings"

	pb "pulse/proto/pulse/v1"
)

// Schedule is a schedule and what is known of its runs.
type Schedule struct {
	Row *pb.ScheduleRow
}

// ID is the schedule's id.
func (c *Schedule) ID() ID { return ID(c.Row.Id) }

type scheduleName struct {
	ns   ID
	name string
}

// schedules is what of schedules is in memory: all of them, and the rules of the
// zones they use.
type schedules struct {
	byID   map[ID]*Schedule
	byName map[scheduleName]*Schedule
	// open counts the runs that are not over, by schedule, also of those that
	// were deleted.
	open  map[ID]uint64
	zones map[string]*pb.ZoneRow
}

func newSchedules() schedules {
	return schedules{
		byID: map[ID]*Schedule{}, byName: map[scheduleName]*Schedule{},
		open: map[ID]uint64{}, zones: map[string]*pb.ZoneRow{},
	}
}

func (s *State) loadZones() error {
	return scan(s.db, []byte{tableZone}, func(_ []byte, row *pb.ZoneRow) error {
		s.schedules.zones[row.Name] = row
		return nil
	})
}

func (s *State) loadSchedules() error {
	return scan(s.db, []byte{tableSchedule}, func(_ []byte, row *pb.ScheduleRow) error {
		s.schedules.add(row)
		s.setTimer(scheduleTimer(row))
		return nil
	})
}

func (c *schedules) add(row *pb.ScheduleRow) {
	one := &Schedule{Row: row}
	c.byID[ID(row.Id)] = one
	c.byName[scheduleName{ID(row.NamespaceId), row.Name}] = one
}

// indexRun and unindexRun count a task that is a schedule's run and not over.
func (c *schedules) indexRun(t *pb.TaskRow) {
	if len(t.ScheduleId) == 16 && !Terminal(t.State) {
		c.open[ID(t.ScheduleId)]++
	}
}

func (c *schedules) unindexRun(t *pb.TaskRow) {
	if len(t.ScheduleId) != 16 || Terminal(t.State) {
		return
	}
	id := ID(t.ScheduleId)
	if c.open[id]--; c.open[id] == 0 {
		delete(c.open, id)
	}
}

// Schedule finds a schedule by id; nil if it was deleted.
func (s *State) Schedule(id ID) *Schedule { return s.schedules.byID[id] }

// ScheduleByName finds a schedule of a namespace.
func (s *State) ScheduleByName(ns ID, name string) *Schedule {
	return s.schedules.byName[scheduleName{ns, name}]
}

// Schedules lists those of a namespace behind a name, by name.
func (s *State) Schedules(ns ID, after string) []*Schedule {
	var out []*Schedule
	for key, c := range s.schedules.byName { // order-free: sorted below
		if key.ns == ns && key.name > after {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *Schedule) int { return strings.Compare(a.Row.Name, b.Row.Name) })
	return out
}

// AllSchedules lists those of every namespace, by id.
func (s *State) AllSchedules() []*Schedule {
	out := make([]*Schedule, 0, len(s.schedules.byID))
	for _, c := range s.schedules.byID { // order-free: sorted below
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *Schedule) int { return idCompare(a.ID(), b.ID()) })
	return out
}

// OpenRuns counts the tasks of a schedule that are not over.
func (s *State) OpenRuns(schedule ID) uint64 { return s.schedules.open[schedule] }

// Zone gives the rules of a time zone that a schedule has used.
func (s *State) Zone(name string) *pb.ZoneRow { return s.schedules.zones[name] }

// Zones lists them by name.
func (s *State) Zones() []*pb.ZoneRow {
	out := make([]*pb.ZoneRow, 0, len(s.schedules.zones))
	for _, z := range s.schedules.zones { // order-free: sorted below
		out = append(out, z)
	}
	slices.SortFunc(out, func(a, b *pb.ZoneRow) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// PutSchedule adds a schedule or replaces its row.
func (tx *Tx) PutSchedule(row *pb.ScheduleRow) {
	id := ID(row.Id)
	if c := tx.s.schedules.byID[id]; c != nil {
		tx.s.clearTimer(scheduleTimer(c.Row))
		c.Row = row
	} else {
		tx.s.schedules.add(row)
	}
	tx.s.setTimer(scheduleTimer(row))
	tx.put(key2(tableSchedule, ID(row.NamespaceId), id), row)
}

// DeleteSchedule forgets a schedule. Its runs stay.
func (tx *Tx) DeleteSchedule(row *pb.ScheduleRow) {
	ns, id := ID(row.NamespaceId), ID(row.Id)
	tx.s.clearTimer(scheduleTimer(tx.s.schedules.byID[id].Row))
	delete(tx.s.schedules.byID, id)
	delete(tx.s.schedules.byName, scheduleName{ns, row.Name})
	tx.del(key2(tableSchedule, ns, id))
	tx.del(key1(tableSchedulePayload, id))
}

// PutSchedulePayload keeps the payload of a schedule's task.
func (tx *Tx) PutSchedulePayload(schedule ID, data []byte) {
	tx.putRaw(key1(tableSchedulePayload, schedule), data)
}

// SchedulePayload reads it; nil if the schedule was deleted.
func (tx *Tx) SchedulePayload(schedule ID) []byte {
	data, _ := tx.readRaw(key1(tableSchedulePayload, schedule))
	return data
}

// PutZone keeps the rules of a time zone.
func (tx *Tx) PutZone(row *pb.ZoneRow) {
	tx.s.schedules.zones[row.Name] = row
	tx.put(append([]byte{tableZone}, row.Name...), row)
}

// CopySchedule returns a schedule row that may be changed.
func CopySchedule(c *pb.ScheduleRow) *pb.ScheduleRow {
	return &pb.ScheduleRow{
		Format: c.Format, Id: c.Id, NamespaceId: c.NamespaceId, Name: c.Name, Revision: c.Revision, Version: c.Version,
		Spec: c.Spec, Paused: c.Paused, CreatedAtUs: c.CreatedAtUs, UpdatedAtUs: c.UpdatedAtUs,
		TimesFromUs: c.TimesFromUs, LastUs: c.LastUs, NextUs: c.NextUs, NextDueUs: c.NextDueUs,
		BufferedUs: c.BufferedUs, ReleaseAtUs: c.ReleaseAtUs, Fired: c.Fired, Ordered: c.Ordered,
		Skipped: c.Skipped, Missed: c.Missed, Refused: c.Refused, Recent: c.Recent,
	}
}

// scheduleTimer is the next thing a schedule does. A run that waits for the one
// before it to be over goes first: its time came earlier.
func scheduleTimer(c *pb.ScheduleRow) Timer {
	best := Timer{ID: ID(c.Id), NS: ID(c.NamespaceId)}
	if c.Paused {
		return Timer{}
	}
	sooner(&best, c.ReleaseAtUs, TimerSchedule)
	sooner(&best, c.NextDueUs, TimerSchedule)
	return best
}
