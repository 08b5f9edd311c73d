package httpapi

import (
	"net/http"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
	"pulse/schema/zone"
)

// upcomingDefault is how many of a schedule's next times are told unless asked.
const upcomingDefault = 5

// putSchedule is PUT …/schedules/{schedule}: it creates or replaces.
func putSchedule(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	s, refusal := apiv1.DecodeSchedule(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), s.Content(e.schedule))
	c.Body = &pb.Command_PutSchedule{PutSchedule: &pb.PutSchedule{
		Name: e.schedule, Spec: specOf(&s), Payload: s.Task.Payload, Paused: s.Paused,
		ExpectedRevision: s.ExpectedRevision, Zone: zoneOf(&s),
	}}
	return e.changeSchedule(c)
}

// specOf is what a schedule is set to, in the form of the log.
func specOf(s *apiv1.Schedule) *pb.ScheduleSpec {
	t := &s.Task
	spec := &pb.ScheduleSpec{
		Cron: s.Cron, TimeZone: s.TimeZone, EveryMs: s.EveryMillis, StartAtUs: int64(s.StartAt), EndAtUs: int64(s.EndAt),
		MaxFires: uint64(s.MaxFires), JitterMs: s.JitterMillis, CatchUpMs: s.CatchUpMillis,
		Task: &pb.TaskTemplate{
			Queue: t.Queue, Handler: t.Handler, HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion,
			ConcurrencyKey: t.ConcurrencyKey, Priority: uint32(t.Priority),
			InitialDelayMs: optional(t.Retry.InitialDelayMillis), MaxDelayMs: optional(t.Retry.MaxDelayMillis),
			AttemptTimeoutMs: optional(t.Retry.AttemptTimeoutMillis),
			StartDeadlineMs:  t.StartDeadlineMillis, DeadlineMs: t.DeadlineMillis,
		},
	}
	switch s.Overlap {
	case apiv1.OverlapAllow:
		spec.Overlap = pb.Overlap_OVERLAP_ALLOW
	case apiv1.OverlapBufferOne:
		spec.Overlap = pb.Overlap_OVERLAP_BUFFER_ONE
	default:
		spec.Overlap = pb.Overlap_OVERLAP_SKIP
	}
	if t.ReconcileOnly {
		spec.Task.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY
	}
	if n := t.Retry.MaxAttempts; n != apiv1.Absent && n != 0 {
		attempts := uint32(n)
		spec.Task.MaxAttempts = &attempts
	}
	if s.Cron != "" {
		f := s.Fields
		spec.Fields = &pb.CronFields{
			Seconds: f.Seconds, Minutes: f.Minutes, Hours: f.Hours, Days: f.Days, Months: f.Months, Weekdays: f.Weekdays,
			AnyDay: f.AnyDay, AnyWeekday: f.AnyWeekday,
		}
	}
	return spec
}

// zoneOf is the rules of a schedule's time zone, as this version knows them.
func zoneOf(s *apiv1.Schedule) *pb.ZoneRow {
	if s.Cron == "" {
		return nil
	}
	row := &pb.ZoneRow{Name: s.TimeZone, Release: zone.Release}
	for _, span := range s.Zone {
		row.FromS, row.OffsetS = append(row.FromS, span.FromSeconds), append(row.OffsetS, span.OffsetSeconds)
	}
	return row
}

func (e *exchange) changeSchedule(c *pb.Command) error {
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if result.GetSchedule().GetCreated() {
		status = http.StatusCreated
	}
	return e.answerSchedule(status, result.GetSchedule())
}

func (e *exchange) answerSchedule(status int, v *pb.ScheduleView) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.schedule(v)
	buf.b = w.buf
	return e.answer(status, w.buf)
}

// getSchedule is GET …/schedules/{schedule}?upcoming=.
func getSchedule(e *exchange) error {
	n := e.query.integer("upcoming", upcomingDefault, 0, apiv1.UpcomingMax)
	answer, err := e.read(&pb.Query{Body: &pb.Query_GetSchedule{GetSchedule: &pb.GetSchedule{Name: e.schedule, Upcoming: uint32(n)}}})
	if err != nil {
		return err
	}
	return e.answerSchedule(http.StatusOK, answer.GetSchedule())
}

// listSchedules is GET …/schedules: by name, a page at a time.
func listSchedules(e *exchange) error {
	after := string(e.query.cursor(cursorSchedules, ""))
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListSchedules{ListSchedules: &pb.ListSchedules{
		Limit: uint32(e.query.limit(pageMax)), After: after,
	}}})
	if err != nil {
		return err
	}
	schedules := answer.GetSchedules()
	return answerList(e, "schedules", schedules.GetSchedules(), (*writer).schedule, place{cursorSchedules, "", []byte(schedules.GetNextAfter())})
}

// previewSchedule is POST …/schedules:preview.
func previewSchedule(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	p, refusal := apiv1.DecodePreview(body)
	if refusal != nil {
		return refusal
	}
	answer, err := e.ask(&pb.Query{Body: &pb.Query_PreviewSchedule{PreviewSchedule: &pb.PreviewSchedule{
		Spec: specOf(&p.Schedule), Zone: zoneOf(&p.Schedule), Upcoming: uint32(p.Limit),
	}}})
	if err != nil {
		return err
	}
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.open()
	w.times("upcoming", answer.GetSchedule().GetUpcomingUs())
	w.close()
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}

// deleteSchedule is DELETE …/schedules/{schedule}?expected_revision=.
func deleteSchedule(e *exchange) error {
	revision := e.query.revision("expected_revision")
	if err := e.query.err(); err != nil {
		return err
	}
	if err := e.noBody(); err != nil {
		return err
	}
	c := e.command(newIDs(1), apiv1.TargetContent("pulse.schedule.delete", e.schedule, revision))
	c.Body = &pb.Command_DeleteSchedule{DeleteSchedule: &pb.DeleteSchedule{Name: e.schedule, ExpectedRevision: revision}}
	return e.changeSchedule(c)
}

// pauseSchedule is POST …/schedules/{schedule}:pause, resumeSchedule its opposite.
func pauseSchedule(e *exchange) error  { return e.setSchedulePaused(true, "pulse.schedule.pause") }
func resumeSchedule(e *exchange) error { return e.setSchedulePaused(false, "pulse.schedule.resume") }

func (e *exchange) setSchedulePaused(paused bool, operation string) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	change, refusal := apiv1.DecodeChange(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), change.PauseContent(operation, e.schedule))
	c.Body = &pb.Command_PauseSchedule{PauseSchedule: &pb.PauseSchedule{
		Name: e.schedule, Paused: paused, ExpectedRevision: change.ExpectedRevision, Note: change.Note,
	}}
	return e.changeSchedule(c)
}

// triggerSchedule is POST …/schedules/{schedule}:trigger. It answers with the task.
func triggerSchedule(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	t, refusal := apiv1.DecodeTrigger(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), t.Content(e.schedule))
	c.Body = &pb.Command_TriggerSchedule{TriggerSchedule: &pb.TriggerSchedule{Name: e.schedule, AllowOverlap: t.AllowOverlap, Note: t.Note}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerTask(http.StatusCreated, result.GetTask(), nil)
}

// backfillSchedule is POST …/schedules/{schedule}:backfill. A dry run only reads.
func backfillSchedule(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	b, refusal := apiv1.DecodeBackfill(body)
	if refusal != nil {
		return refusal
	}
	if b.DryRun {
		answer, err := e.ask(&pb.Query{Body: &pb.Query_PreviewBackfill{PreviewBackfill: &pb.PreviewBackfill{
			Name: e.schedule, FromUs: int64(b.From), UntilUs: int64(b.Until),
		}}})
		if err != nil {
			return err
		}
		return e.answerBackfill(answer.GetBackfill(), true)
	}
	c := e.command(newIDs(1), b.Content(e.schedule))
	c.Body = &pb.Command_BackfillSchedule{BackfillSchedule: &pb.BackfillSchedule{
		Name: e.schedule, FromUs: int64(b.From), UntilUs: int64(b.Until), Note: b.Note,
	}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerBackfill(result.GetBackfill(), false)
}

// answerBackfill tells what became of each time, or would.
func (e *exchange) answerBackfill(r *pb.BackfillResult, dryRun bool) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	missing, submitted := 0, 0
	for _, item := range r.GetItems() {
		if item.Existed {
			continue
		}
		missing++
		if item.Code == "" && !dryRun {
			submitted++
		}
	}
	w.open()
	w.bool("dry_run", dryRun)
	w.integer("times", int64(len(r.GetItems())))
	w.integer("missing", int64(missing))
	w.integer("submitted", int64(submitted))
	w.name("results")
	w.openArray()
	for _, item := range r.GetItems() {
		w.next()
		w.open()
		w.time("nominal_at", item.NominalUs)
		w.optID("task_id", item.TaskId)
		w.bool("existed", item.Existed)
		if item.Code != "" {
			w.problem("error", &schema.Error{Code: schema.Code(item.Code), Message: item.Message})
		}
		w.close()
	}
	w.closeArray()
	w.close()
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}

// schedule writes a schedule with how it stands.
func (w *writer) schedule(v *pb.ScheduleView) {
	c, s := v.GetSchedule(), v.GetSchedule().GetSpec()
	w.next()
	w.open()
	w.id("id", c.GetId())
	w.text("name", c.GetName())
	w.text("namespace", v.GetNamespace())
	w.uint64("revision", c.GetRevision())
	w.plain("state", scheduleState(c))
	if s.GetCron() != "" {
		w.text("cron", s.GetCron())
		w.text("time_zone", s.GetTimeZone())
	} else {
		w.integer("every_ms", s.GetEveryMs())
	}
	w.optTime("start_at", s.GetStartAtUs())
	w.optTime("end_at", s.GetEndAtUs())
	if s.GetMaxFires() != 0 {
		w.uint64("max_fires", s.GetMaxFires())
	}
	w.integer("jitter_ms", s.GetJitterMs())
	w.plain("overlap", nameOf(overlaps, s.GetOverlap()))
	w.integer("catch_up_window_ms", s.GetCatchUpMs())
	w.bool("paused", c.GetPaused())
	w.template(s.GetTask(), v.GetPayload())
	w.optTime("next_at", c.GetNextUs())
	w.optTime("next_due_at", c.GetNextDueUs())
	w.optTime("last_at", c.GetLastUs())
	w.optTime("buffered_at", c.GetBufferedUs())
	w.times("upcoming", v.GetUpcomingUs())
	w.uint64("open_tasks", v.GetOpen())
	w.uint64("fired", c.GetFired())
	w.uint64("ordered", c.GetOrdered())
	w.uint64("skipped", c.GetSkipped())
	w.uint64("missed", c.GetMissed())
	w.uint64("refused", c.GetRefused())
	w.fires(c.GetRecent())
	w.time("created_at", c.GetCreatedAtUs())
	w.time("updated_at", c.GetUpdatedAtUs())
	if v.GetDeleted() {
		w.bool("deleted", true)
	}
	w.close()
}

// scheduleState says in a word whether times come.
func scheduleState(c *pb.ScheduleRow) string {
	switch {
	case c.GetPaused():
		return "paused"
	case c.GetNextUs() == 0 && c.GetBufferedUs() == 0:
		return "ended"
	}
	return "active"
}

func (w *writer) template(t *pb.TaskTemplate, payload []byte) {
	w.name("task")
	w.open()
	w.text("queue", t.GetQueue())
	w.text("handler", t.GetHandler())
	w.text("handler_version", t.GetHandlerVersion())
	w.text("payload_version", t.GetPayloadVersion())
	w.optRaw("payload", payload)
	w.optText("concurrency_key", t.GetConcurrencyKey())
	w.integer("priority", int64(t.GetPriority()))
	safety := t.GetRecoverySafety()
	if safety == pb.RecoverySafety_RECOVERY_SAFETY_UNSPECIFIED {
		safety = pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT
	}
	w.plain("recovery_safety", nameOf(safeties, safety))
	if t.GetStartDeadlineMs() != 0 {
		w.integer("start_deadline_ms", t.GetStartDeadlineMs())
	}
	if t.GetDeadlineMs() != 0 {
		w.integer("deadline_ms", t.GetDeadlineMs())
	}
	if t.MaxAttempts != nil || t.InitialDelayMs != nil || t.MaxDelayMs != nil || t.AttemptTimeoutMs != nil {
		w.name("retry")
		w.open()
		if t.MaxAttempts != nil {
			w.integer("max_attempts", int64(*t.MaxAttempts))
		}
		for _, part := range []struct {
			name string
			n    *int64
		}{{"initial_delay_ms", t.InitialDelayMs}, {"max_delay_ms", t.MaxDelayMs}, {"attempt_timeout_ms", t.AttemptTimeoutMs}} {
			if part.n != nil {
				w.integer(part.name, *part.n)
			}
		}
		w.close()
	}
	w.close()
}

// fires writes what became of the last times, newest first.
func (w *writer) fires(recent []*pb.ScheduleFire) {
	w.name("recent")
	w.openArray()
	for i := len(recent) - 1; i >= 0; i-- {
		f := recent[i]
		w.next()
		w.open()
		w.time("nominal_at", f.NominalUs)
		w.optTime("until", f.UntilUs)
		w.time("at", f.AtUs)
		w.plain("outcome", nameOf(fireOutcomes, f.Outcome))
		w.optID("task_id", f.TaskId)
		w.optText("reason", f.Code)
		w.optText("message", f.Message)
		if f.Times != 0 {
			w.uint64("times", f.Times)
		}
		w.close()
	}
	w.closeArray()
}

// times writes instants.
func (w *writer) times(name string, list []int64) {
	w.name(name)
	w.openArray()
	for _, at := range list {
		w.next()
		w.buf = append(w.buf, '"')
		w.buf, _ = schema.Time(at).AppendText(w.buf)
		w.buf = append(w.buf, '"')
		w.comma = true
	}
	w.closeArray()
}

var (
	overlaps     = small(names(pb.Overlap_name, "OVERLAP_"))
	fireOutcomes = small(names(pb.FireOutcome_name, "FIRE_OUTCOME_"))
)
