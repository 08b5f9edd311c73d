package model

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// Schedule submits a task at each of its times.
type Schedule struct {
	ID        ID
	Namespace *Namespace
	Name      string
	Revision  uint64
	Spec      *pb.ScheduleSpec // as put
	Payload   string
	Paused    bool

	From     int64 // times count after this
	Last     int64 // dealt with last
	Next     int64 // 0 = none
	Buffered int64 // waits for a run to be over
	Release  int64 // that run was over then

	Fired, Ordered, Skipped, Missed, Refused uint64

	Recent []Fire // all of them, oldest first
	seq    int
}

// Fire is what became of a time.
type Fire struct {
	Nominal int64
	Outcome pb.FireOutcome
	Task    *Task
	Code    string
	Times   uint64
	Until   int64
}

// BackfillItem is one time of a backfill.
type BackfillItem struct {
	Nominal int64
	Task    *Task
	Existed bool
	Code    string
}

// Zone is the rules of a time zone.
type Zone struct {
	Name, Release string
	From          []int64
	Offset        []int32
}

const (
	fired      = pb.FireOutcome_FIRE_OUTCOME_FIRED
	skipped    = pb.FireOutcome_FIRE_OUTCOME_SKIPPED
	buffered   = pb.FireOutcome_FIRE_OUTCOME_BUFFERED
	missed     = pb.FireOutcome_FIRE_OUTCOME_MISSED
	refused    = pb.FireOutcome_FIRE_OUTCOME_REFUSED
	triggered  = pb.FireOutcome_FIRE_OUTCOME_TRIGGERED
	backfilled = pb.FireOutcome_FIRE_OUTCOME_BACKFILLED

	backfillMost = 500
	countedMost  = 10_000
)

func (m *Model) scheduleNamed(ns *Namespace, name string) *Schedule {
	for _, c := range m.Schedules {
		if c.Namespace == ns && c.Name == name {
			return c
		}
	}
	return nil
}

func (m *Model) zone(name string) *Zone {
	for _, z := range m.Zones {
		if z.Name == name {
			return z
		}
	}
	return nil
}

func zoneOf(z *pb.ZoneRow) *Zone {
	if z == nil {
		return nil
	}
	return &Zone{Name: z.Name, Release: z.Release, From: z.FromS, Offset: z.OffsetS}
}

// learn takes the rules of a zone if they are newer. Schedules that use it go by
// them from the next time on that has not come yet.
func (m *Model) learn(z *Zone) {
	if z == nil {
		return
	}
	old := m.zone(z.Name)
	if old == nil {
		m.Zones = append(m.Zones, z)
		return
	}
	if z.Release <= old.Release {
		return
	}
	*old = *z
	for _, c := range m.Schedules {
		if c.Spec.TimeZone == z.Name && !c.Paused && c.Next > m.Clock {
			m.findNext(c)
		}
	}
}

func (m *Model) putZones(b *pb.PutZones) Result {
	for _, z := range b.Zones {
		if m.zone(z.Name) != nil {
			m.learn(zoneOf(z))
		}
	}
	return Result{}
}

func (m *Model) putSchedule(ns *Namespace, b *pb.PutSchedule) Result {
	if m.queueNamed(ns, b.Spec.Task.Queue) == nil {
		return refuse(notFound)
	}
	c := m.scheduleNamed(ns, b.Name)
	if c == nil && b.ExpectedRevision != 0 {
		return refuse(notFound)
	}
	if c != nil && b.ExpectedRevision != 0 && b.ExpectedRevision != c.Revision {
		return Result{Code: revisionConflict, CurrentRevision: c.Revision}
	}
	newTimes := c == nil || timesOf(c.Spec) != timesOf(b.Spec)
	if newTimes {
		z := zoneOf(b.Zone)
		if old := m.zone(b.Spec.TimeZone); old != nil && z != nil && old.Release >= z.Release {
			z = old
		}
		if nextTime(b.Spec, z, m.Clock) == 0 {
			return refuse(invalidArgument)
		}
	}
	m.learn(zoneOf(b.Zone))
	if c == nil {
		c = &Schedule{Namespace: ns, Name: b.Name, Paused: true, seq: m.next()}
		m.Schedules = append(m.Schedules, c)
		m.fresh.schedules = append(m.fresh.schedules, c)
	} else if proto.Equal(c.Spec, b.Spec) && c.Payload == string(b.Payload) && c.Paused == b.Paused {
		return aboutSchedule(c)
	}
	was := c.Paused
	c.Spec, c.Payload = b.Spec, string(b.Payload)
	if newTimes || was != b.Paused {
		m.pause(c, b.Paused)
	}
	c.Revision++
	return aboutSchedule(c)
}

// timesOf is what of a spec decides when its times are.
func timesOf(s *pb.ScheduleSpec) string {
	only := proto.CloneOf(s)
	only.Overlap, only.CatchUpMs, only.Task = 0, 0, nil
	return fmt.Sprint(only.Cron, only.TimeZone, only.EveryMs, only.StartAtUs, only.EndAtUs, only.MaxFires, only.JitterMs,
		only.Fields.GetSeconds(), only.Fields.GetMinutes(), only.Fields.GetHours(), only.Fields.GetDays(), only.Fields.GetMonths(),
		only.Fields.GetWeekdays(), only.Fields.GetAnyDay(), only.Fields.GetAnyWeekday())
}

// pause stops the times of a schedule, or starts them anew from now on.
func (m *Model) pause(c *Schedule, paused bool) {
	c.Paused = paused
	if paused {
		if c.Buffered != 0 {
			c.Recent = append(c.Recent, Fire{Nominal: c.Buffered, Outcome: skipped, Code: "paused"})
		}
		c.Next, c.Buffered, c.Release = 0, 0, 0
		return
	}
	c.From = m.Clock
	if come := c.Next != 0 && c.Next <= m.Clock; !come {
		m.findNext(c)
	}
}

func (m *Model) findNext(c *Schedule) {
	c.Next = 0
	if c.Spec.MaxFires == 0 || c.Fired < c.Spec.MaxFires {
		c.Next = nextTime(c.Spec, m.zone(c.Spec.TimeZone), max(c.Last, c.From))
	}
}

func (m *Model) pauseSchedule(ns *Namespace, b *pb.PauseSchedule) Result {
	c := m.scheduleNamed(ns, b.Name)
	if c == nil {
		return refuse(notFound)
	}
	if b.ExpectedRevision != 0 && b.ExpectedRevision != c.Revision {
		return Result{Code: revisionConflict, CurrentRevision: c.Revision}
	}
	if c.Paused != b.Paused {
		m.pause(c, b.Paused)
		c.Revision++
	}
	return aboutSchedule(c)
}

func (m *Model) deleteSchedule(ns *Namespace, b *pb.DeleteSchedule) Result {
	c := m.scheduleNamed(ns, b.Name)
	if c == nil {
		return refuse(notFound)
	}
	if b.ExpectedRevision != 0 && b.ExpectedRevision != c.Revision {
		return Result{Code: revisionConflict, CurrentRevision: c.Revision}
	}
	m.pause(c, true)
	c.Revision++
	m.Schedules = remove(m.Schedules, c)
	m.fresh.schedules = remove(m.fresh.schedules, c) // what came and went in one entry is never named
	return aboutSchedule(c)
}

func aboutSchedule(c *Schedule) Result { return Result{Schedule: c, ScheduleAt: *c} }

func (m *Model) trigger(ns *Namespace, b *pb.TriggerSchedule) Result {
	c := m.scheduleNamed(ns, b.Name)
	if c == nil {
		return refuse(notFound)
	}
	if m.open(c) && !b.AllowOverlap && c.Spec.Overlap != pb.Overlap_OVERLAP_ALLOW {
		return refuse(conflict)
	}
	nominal := m.Clock
	for m.runOf(c, "trigger:", nominal) != nil {
		nominal++
	}
	t, code := m.submitRun(c, "trigger:", nominal)
	if code != "" {
		return refuse(code)
	}
	c.Ordered++
	c.Recent = append(c.Recent, Fire{Nominal: nominal, Outcome: triggered, Task: t, Times: 1})
	return m.about(t)
}

func (m *Model) backfill(ns *Namespace, b *pb.BackfillSchedule) Result {
	c := m.scheduleNamed(ns, b.Name)
	if c == nil {
		return refuse(notFound)
	}
	items, code := m.BackfillTimes(c, b.FromUs, b.UntilUs)
	if code != "" {
		return refuse(code)
	}
	all := Fire{Outcome: backfilled}
	for i := range items {
		item := &items[i]
		if item.Task = m.runOf(c, "schedule:", item.Nominal); item.Task != nil {
			item.Existed = true
			continue
		}
		if item.Task, item.Code = m.submitRun(c, "schedule:", item.Nominal); item.Code != "" {
			continue
		}
		if all.Times == 0 {
			all.Nominal = item.Nominal
		}
		all.Times++
		all.Until = item.Nominal
	}
	if all.Times > 0 {
		c.Ordered += all.Times
		c.Recent = append(c.Recent, all)
	}
	return Result{Backfill: items}
}

// BackfillTimes are the times of a range in the past.
func (m *Model) BackfillTimes(c *Schedule, from, until int64) (items []BackfillItem, code string) {
	if until > m.Clock || from >= until {
		return nil, invalidArgument
	}
	for at := from - 1; ; {
		at = nextTime(c.Spec, m.zone(c.Spec.TimeZone), at)
		if at == 0 || at >= until {
			return items, ""
		}
		if len(items) == backfillMost {
			return nil, invalidArgument
		}
		items = append(items, BackfillItem{Nominal: at})
	}
}

// due is when a schedule has something to do next; 0 = never.
func (c *Schedule) due() int64 {
	if c.Paused {
		return 0
	}
	if c.Release != 0 && (c.Next == 0 || c.Release <= c.dueAt()) {
		return c.Release
	}
	return c.dueAt()
}

// dueAt is the next time with its jitter.
func (c *Schedule) dueAt() int64 {
	if c.Next == 0 {
		return 0
	}
	return c.Next + c.late()
}

// late is the jitter, which the id decides.
func (c *Schedule) late() int64 {
	if c.Spec.JitterMs == 0 {
		return 0
	}
	sum := sha256.Sum256(c.ID[:])
	return int64(binary.BigEndian.Uint64(sum[:8]) % uint64(c.Spec.JitterMs*millis))
}

func (m *Model) fireSchedule(c *Schedule, at int64) {
	if c.Release == at {
		c.Release = 0
		if !m.open(c) {
			was := c.Buffered
			c.Buffered = 0
			m.fireTime(c, was)
		}
	}
	if c.Next == 0 || c.dueAt() != at {
		return
	}
	if c.dueAt()+c.Spec.CatchUpMs*millis < m.Clock {
		m.miss(c)
		return
	}
	nominal := c.Next
	c.Last = nominal
	switch overlaps := m.open(c) && c.Spec.Overlap != pb.Overlap_OVERLAP_ALLOW; {
	case overlaps && c.Spec.Overlap == pb.Overlap_OVERLAP_BUFFER_ONE && c.Buffered == 0:
		c.Buffered = nominal
		c.Recent = append(c.Recent, Fire{Nominal: nominal, Outcome: buffered})
	case overlaps:
		c.Skipped++
		c.Recent = append(c.Recent, Fire{Nominal: nominal, Outcome: skipped, Code: "overlap"})
	default:
		m.fireTime(c, nominal)
	}
	m.findNext(c)
}

// fireTime submits the run of a time.
func (m *Model) fireTime(c *Schedule, nominal int64) {
	f := Fire{Nominal: nominal, Outcome: fired}
	if f.Task = m.runOf(c, "schedule:", nominal); f.Task != nil {
		f.Outcome, f.Code = skipped, "repeated"
		c.Skipped++
	} else if f.Task, f.Code = m.submitRun(c, "schedule:", nominal); f.Code != "" {
		f.Outcome = refused
		c.Refused++
	} else {
		c.Fired++
	}
	c.Recent = append(c.Recent, f)
	if c.Spec.MaxFires != 0 && c.Fired >= c.Spec.MaxFires {
		c.Next = 0
	}
}

// miss passes all times that are too late.
func (m *Model) miss(c *Schedule) {
	f := Fire{Nominal: c.Next, Outcome: missed}
	oldest := m.Clock - c.Spec.CatchUpMs*millis - c.late()
	for c.Next != 0 && c.Next < oldest {
		if f.Times == countedMost {
			c.Last = oldest - 1
		} else {
			f.Times++
			c.Last, f.Until = c.Next, c.Next
		}
		c.Next = nextTime(c.Spec, m.zone(c.Spec.TimeZone), max(c.Last, c.From))
	}
	c.Missed += f.Times
	c.Recent = append(c.Recent, f)
}

// open says whether a run of the schedule is not over.
func (m *Model) open(c *Schedule) bool { return m.OpenRuns(c) > 0 }

// OpenRuns counts the runs that are not over.
func (m *Model) OpenRuns(c *Schedule) (n uint64) {
	for _, t := range m.Tasks {
		if t.Schedule == c && !t.Terminal() {
			n++
		}
	}
	return n
}

// runOver lets a time go that waited for the last run.
func (m *Model) runOver(t *Task) {
	if c := t.Schedule; c != nil && c.Buffered != 0 && !m.open(c) {
		c.Release = m.Clock
	}
}

// runOf is the task of a time, if it is still kept.
func (m *Model) runOf(c *Schedule, kind string, nominal int64) *Task {
	for _, t := range m.Tasks {
		if t.Schedule == c && t.runKind == kind && t.NominalAt == nominal {
			return t
		}
	}
	return nil
}

// submitRun submits the task of a schedule. The code is that of a refusal.
func (m *Model) submitRun(c *Schedule, kind string, nominal int64) (*Task, string) {
	p := c.Spec.Task
	b := &pb.SubmitTask{Queue: p.Queue, Handler: p.Handler, HandlerVersion: p.HandlerVersion, PayloadVersion: p.PayloadVersion,
		Payload: []byte(c.Payload), ConcurrencyKey: p.ConcurrencyKey, Priority: p.Priority, RecoverySafety: p.RecoverySafety,
		MaxAttempts: p.MaxAttempts, InitialDelayMs: p.InitialDelayMs, MaxDelayMs: p.MaxDelayMs, AttemptTimeoutMs: p.AttemptTimeoutMs}
	if p.DeadlineMs != 0 {
		b.DeadlineAtUs = m.Clock + p.DeadlineMs*millis
	}
	if p.StartDeadlineMs != 0 {
		b.StartDeadlineAtUs = m.Clock + p.StartDeadlineMs*millis
	}
	q := m.queueNamed(c.Namespace, p.Queue)
	if m.count(q, waiting) < q.Settings.MaxWaiting { // a full queue is what is said first
		for _, t := range m.Tasks {
			if t.Namespace == c.Namespace && c.ID != (ID{}) && t.BusinessKey == runKey(kind, c.ID, nominal) {
				return nil, conflict
			}
		}
	}
	res := m.submit(c.Namespace, &pb.Command{}, b)
	if res.Code != "" {
		return nil, res.Code
	}
	t := res.Task
	t.Schedule, t.NominalAt, t.runKind = c, nominal, kind
	m.nameRuns(c)
	return t, ""
}

// nameRuns gives the runs of a schedule their business keys, once its id is known.
func (m *Model) nameRuns(c *Schedule) {
	for _, t := range m.Tasks {
		if c.ID != (ID{}) && t.Schedule == c && t.runKind != "" {
			t.BusinessKey = runKey(t.runKind, c.ID, t.NominalAt)
		}
	}
}

// NameSchedule tells the id of a schedule that came and went in one entry, which
// its runs still carry.
func (m *Model) NameSchedule(c *Schedule, id ID) {
	c.ID = id
	m.nameRuns(c)
}

func runKey(kind string, id ID, nominal int64) string {
	at := time.Unix(0, nominal*1000).UTC().Format("2006-01-02T15:04:05")
	if part := nominal % 1e6; part != 0 {
		at += fmt.Sprintf(".%06d", part)
		for at[len(at)-1] == '0' {
			at = at[:len(at)-1]
		}
	}
	return fmt.Sprintf("%s%x:%sZ", kind, id, at)
}

// nextTime looks for the first time after an instant, second by second.
func nextTime(s *pb.ScheduleSpec, z *Zone, after int64) int64 {
	if s.EveryMs != 0 {
		every := s.EveryMs * millis
		at := s.StartAtUs
		if after >= at {
			at += ((after-at)/every + 1) * every
		}
		return within(s, at)
	}
	if s.Fields.Days == 1<<31 && s.Fields.Months == 1<<2 && s.Fields.AnyWeekday {
		return 0 // 31 February
	}
	u := after/second + 1
	for u*second < s.StartAtUs {
		u++
	}
	for steps := 0; steps < 3*86400; steps++ {
		if matchesAt(s.Fields, z, u) {
			return within(s, u*second)
		}
		u++
	}
	return 0
}

func within(s *pb.ScheduleSpec, at int64) int64 {
	if s.EndAtUs != 0 && at >= s.EndAtUs {
		return 0
	}
	return at
}

func matchesAt(f *pb.CronFields, z *Zone, u int64) bool {
	local := u + z.offset(u)
	if f.Hours == 1<<24-1 {
		return matchesLocal(f, local)
	}
	for gone := u + z.offset(u-1); gone < local; gone++ { // over which the clock leapt
		if matchesLocal(f, gone) {
			return true
		}
	}
	if !matchesLocal(f, local) {
		return false
	}
	for i, from := range z.From {
		if i == 0 || from > u || from <= u-2*86400 {
			continue
		}
		// What the clock showed before this change and shows again after it.
		if before := from + z.offset(from-1); local < before {
			return false
		}
	}
	return true
}

func matchesLocal(f *pb.CronFields, local int64) bool {
	at := time.Unix(local, 0).UTC()
	days := (f.Days>>at.Day())&1 == 1
	week := (f.Weekdays>>int(at.Weekday()))&1 == 1
	on := days || week
	if f.AnyDay || f.AnyWeekday {
		on = days && week
	}
	return on && (f.Months>>int(at.Month()))&1 == 1 && (f.Hours>>at.Hour())&1 == 1 &&
		(f.Minutes>>at.Minute())&1 == 1 && (f.Seconds>>at.Second())&1 == 1
}

func (z *Zone) offset(u int64) int64 {
	newest, offset := int64(math.MinInt64), int64(z.Offset[0])
	for i, from := range z.From {
		if i > 0 && from <= u && from > newest {
			newest, offset = from, int64(z.Offset[i])
		}
	}
	return offset
}
