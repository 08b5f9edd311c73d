package apiv1

import (
	"strconv"

	"pulse/schema"
	"pulse/schema/cron"
	"pulse/schema/zone"
)

const (
	// EveryMillisMin is the shortest interval of a schedule: a second.
	EveryMillisMin = 1000
	// CatchUpMillisMin is the shortest catch-up window: longer than an election.
	CatchUpMillisMin     = 10_000
	CatchUpMillisDefault = 3600 * 1000
	// JitterMillisMax bounds jitter_ms: a day.
	JitterMillisMax = 24 * 3600 * 1000
	// MaxFiresMax bounds max_fires.
	MaxFiresMax = 1_000_000_000
	// UpcomingMax bounds the times that one answer tells.
	UpcomingMax = 100

	zoneCharsMax = 64
)

// The overlap policies.
const (
	OverlapSkip      = "skip"
	OverlapAllow     = "allow"
	OverlapBufferOne = "buffer_one"
)

// Schedule is the body of PUT …/schedules/{schedule}: all that is set of a
// schedule, with defaults for what was absent.
type Schedule struct {
	Cron     string // as sent; empty with EveryMillis
	Fields   cron.Fields
	TimeZone string      // with Cron
	Zone     []zone.Span // the rules of TimeZone

	EveryMillis   int64
	StartAt       schema.Time
	EndAt         schema.Time
	MaxFires      int64 // 0 = no end
	JitterMillis  int64
	Overlap       string
	CatchUpMillis int64

	Task             Template
	Paused           bool
	ExpectedRevision uint64 // 0 = any
}

// Template is the task that a schedule submits.
type Template struct {
	Submission
	Queue               string
	StartDeadlineMillis int64 // 0 = none
	DeadlineMillis      int64 // 0 = the queue's default
}

// DecodeSchedule reads what a PUT sets.
func DecodeSchedule(body []byte) (Schedule, *schema.Error) {
	return decodeSchedule(body, func(r *reader, s *Schedule) bool {
		switch string(r.name) {
		case "task":
			r.template(&s.Task)
		case "paused":
			r.bool(&s.Paused)
		case "expected_revision":
			r.revision(&s.ExpectedRevision)
		default:
			return false
		}
		return true
	}, "task")
}

// Preview is the body of schedules:preview: the times of a schedule, and how many
// of them to tell.
type Preview struct {
	Schedule
	Limit int64
}

// DecodePreview reads the times of a schedule that need not exist.
func DecodePreview(body []byte) (Preview, *schema.Error) {
	p := Preview{Limit: 10}
	var refusal *schema.Error
	p.Schedule, refusal = decodeSchedule(body, func(r *reader, _ *Schedule) bool {
		if string(r.name) != "limit" {
			return false
		}
		r.integer(&p.Limit, 1, UpcomingMax)
		return true
	}, "")
	return p, refusal
}

// decodeSchedule reads the members that are about times, and hands the others to
// rest, which answers whether it knows them.
func decodeSchedule(body []byte, rest func(*reader, *Schedule) bool, must string) (Schedule, *schema.Error) {
	s := Schedule{Overlap: OverlapSkip, CatchUpMillis: CatchUpMillisDefault, EveryMillis: Absent}
	r, refusal := open(body, schema.DepthMax+1, false)
	if refusal != nil {
		return Schedule{}, refusal
	}
	r.schedule(&s, rest, must)
	return s, r.refusal()
}

func (r *reader) schedule(s *Schedule, rest func(*reader, *Schedule) bool, must string) {
	start := r.at
	if !r.enter() {
		return
	}
	at := map[string]int{}
	for r.member() {
		name := string(r.name)
		at[name] = r.at
		switch name {
		case "cron":
			r.cron(s)
		case "time_zone":
			r.zone(s)
		case "every_ms":
			r.integer(&s.EveryMillis, EveryMillisMin, schema.DeadlineMsMax)
		case "start_at":
			r.time(&s.StartAt)
		case "end_at":
			r.time(&s.EndAt)
		case "max_fires":
			r.count(&s.MaxFires, 0, MaxFiresMax)
		case "jitter_ms":
			r.integer(&s.JitterMillis, 0, JitterMillisMax)
		case "overlap":
			r.word(&s.Overlap, OverlapSkip, OverlapAllow, OverlapBufferOne)
		case "catch_up_window_ms":
			r.integer(&s.CatchUpMillis, CatchUpMillisMin, RetentionMillisMax)
		default:
			if !rest(r, s) {
				r.unknown()
			}
		}
	}
	r.scheduleParts(s, start, at, must)
}

// scheduleParts checks what members have to do with each other.
func (r *reader) scheduleParts(s *Schedule, start int, at map[string]int, must string) {
	if _, ok := at[must]; !ok && must != "" {
		r.missing(start, must)
	}
	cronAt, isCron := at["cron"]
	everyAt, isEvery := at["every_ms"]
	zoneAt, isZone := at["time_zone"]
	switch {
	case isCron && isEvery:
		r.fault(max(cronAt, everyAt), "cron and every_ms exclude each other")
	case !isCron && !isEvery:
		r.fault(start, "one of the members cron and every_ms is needed")
	case isZone && isEvery:
		r.fault(zoneAt, "belongs to cron; every_ms counts time that passes")
	}
	if s.EveryMillis == Absent {
		s.EveryMillis = 0
	}
	if isCron && !isZone {
		s.TimeZone = zone.UTC
		s.Zone, _ = zone.Rules(zone.UTC)
	}
	if s.EndAt != 0 && s.EndAt <= s.StartAt {
		r.fault(at["end_at"], "must be later than start_at")
	}
}

func (r *reader) cron(s *Schedule) {
	text, start, ok := r.text(cron.CharsMax)
	if !ok {
		return
	}
	s.Cron = string(text)
	var fault string
	if s.Fields, fault = cron.Parse(s.Cron); fault != "" {
		r.fault(start, "%s", fault)
	}
}

func (r *reader) zone(s *Schedule) {
	text, start, ok := r.text(zoneCharsMax)
	if !ok {
		return
	}
	s.TimeZone = string(text)
	if s.Zone, ok = zone.Rules(s.TimeZone); !ok {
		r.fault(start, "must be the name of an IANA time zone, like Europe/Berlin or UTC; capitals count")
	}
}

// template reads a task as a submission, with the queue in it and deadlines that
// count from the time at which it is submitted.
func (r *reader) template(t *Template) {
	start := r.at
	t.Retry = noRetry
	if !r.enter() {
		return
	}
	seen := map[string]bool{}
	for r.member() {
		name := string(r.name)
		seen[name] = true
		switch name {
		case "queue":
			r.name64(&t.Queue)
		case "handler":
			r.named(&t.Handler, schema.HandlerCharsMax)
		case "handler_version":
			r.named(&t.HandlerVersion, schema.HandlerVersionCharsMax)
		case "payload_version":
			r.named(&t.PayloadVersion, schema.PayloadVersionCharsMax)
		case "payload":
			r.json(&t.Payload)
		case "concurrency_key":
			r.key(&t.ConcurrencyKey, schema.CheckConcurrencyKey)
		case "priority":
			r.integer(&t.Priority, 0, PriorityMax)
		case "start_deadline_ms":
			r.integer(&t.StartDeadlineMillis, 1, schema.DeadlineMsMax)
		case "deadline_ms":
			r.integer(&t.DeadlineMillis, 1, schema.DeadlineMsMax)
		case "recovery_safety":
			var word string
			r.word(&word, Idempotent, ReconcileOnly)
			t.ReconcileOnly = word == ReconcileOnly
		case "retry":
			r.retry(&t.Retry)
		case "business_key":
			r.fault(r.at, "is made from the schedule and the time, so that each time has one task; leave it out")
			r.skip()
		default:
			r.unknown()
		}
	}
	for _, name := range []string{"handler", "handler_version", "payload_version", "payload"} {
		if !seen[name] {
			r.missing(start, name)
		}
	}
	if !seen["queue"] {
		t.Queue = "default"
	}
}

// name64 reads the name of a queue.
func (r *reader) name64(dst *string) {
	text, start, ok := r.text(NameCharsMax)
	if ok && !ValidName(string(text)) {
		r.fault(start, nameRule)
	}
	*dst = string(text)
}

// Content is what two PUTs of a schedule have in common if they are equal.
func (s *Schedule) Content(name string) Content {
	c := begin("pulse.schedule.put")
	c.text("schedule", name)
	c.optText("cron", s.Cron)
	c.optText("time_zone", s.TimeZone)
	c.number("every_ms", s.EveryMillis)
	c.optTime("start_at", s.StartAt)
	c.optTime("end_at", s.EndAt)
	c.number("max_fires", s.MaxFires)
	c.number("jitter_ms", s.JitterMillis)
	c.text("overlap", s.Overlap)
	c.number("catch_up_window_ms", s.CatchUpMillis)
	task := s.Task.Submission.Content(s.Task.Queue)
	c.bytes("task", task[:])
	c.number("task.start_deadline_ms", s.Task.StartDeadlineMillis)
	c.number("task.deadline_ms", s.Task.DeadlineMillis)
	c.bool("paused", s.Paused)
	c.optRevision(s.ExpectedRevision)
	return c.sum()
}

// Trigger is the body of :trigger.
type Trigger struct {
	AllowOverlap bool
	Note         string
}

// DecodeTrigger reads {allow_overlap?, note?}; an empty body is {}.
func DecodeTrigger(body []byte) (Trigger, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return Trigger{}, refusal
	}
	var t Trigger
	if r.enter() {
		for r.member() {
			switch string(r.name) {
			case "allow_overlap":
				r.bool(&t.AllowOverlap)
			case "note":
				r.note(&t.Note)
			default:
				r.unknown()
			}
		}
	}
	return t, r.refusal()
}

// Content is what two triggers of a schedule have in common if they are equal.
func (t *Trigger) Content(schedule string) Content {
	c := begin("pulse.schedule.trigger")
	c.text("schedule", schedule)
	c.bool("allow_overlap", t.AllowOverlap)
	c.optText("note", t.Note)
	return c.sum()
}

// Backfill is the body of :backfill.
type Backfill struct {
	From, Until schema.Time // Until is excluded
	DryRun      bool
	Note        string
}

// DecodeBackfill reads {from, until, dry_run?, note?}.
func DecodeBackfill(body []byte) (Backfill, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return Backfill{}, refusal
	}
	var b Backfill
	start := r.at
	at := map[string]int{}
	if r.enter() {
		for r.member() {
			at[string(r.name)] = r.at
			switch string(r.name) {
			case "from":
				r.time(&b.From)
			case "until":
				r.time(&b.Until)
			case "dry_run":
				r.bool(&b.DryRun)
			case "note":
				r.note(&b.Note)
			default:
				r.unknown()
			}
		}
		for _, name := range []string{"from", "until"} {
			if _, ok := at[name]; !ok {
				r.missing(start, name)
			}
		}
	}
	if r.code == "" && b.Until <= b.From {
		r.fault(at["until"], "must be later than from")
	}
	return b, r.refusal()
}

// Content is what two backfills of a schedule have in common if they are equal.
func (b *Backfill) Content(schedule string) Content {
	c := begin("pulse.schedule.backfill")
	c.text("schedule", schedule)
	c.text("from", strconv.FormatInt(int64(b.From), 10))
	c.text("until", strconv.FormatInt(int64(b.Until), 10))
	c.optText("note", b.Note)
	return c.sum()
}

// PauseContent is that of pausing or resuming a schedule.
func (c *Change) PauseContent(operation, schedule string) Content {
	w := begin(operation)
	w.text("target", schedule)
	w.optRevision(c.ExpectedRevision)
	w.optText("note", c.Note)
	return w.sum()
}
