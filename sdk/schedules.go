package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"pulse/schema"
)

// Overlap says what happens to a time of a schedule while a run of it is not over.
// A run that needs a review is not over.
type Overlap string

// The overlap policies.
const (
	OverlapSkip      Overlap = "skip"       // the time is left out
	OverlapAllow     Overlap = "allow"      // it runs beside the other
	OverlapBufferOne Overlap = "buffer_one" // one time runs when the other is over, further ones are left out
)

// ScheduleSpec says what to run and when. Either Cron or Every is needed.
type ScheduleSpec struct {
	// Cron is a text of five fields (minute, hour, day of the month, month, day
	// of the week), of six with a second in front, or @hourly and the like.
	Cron     string
	TimeZone string // IANA name; default UTC. With Cron

	// Every is an interval, at least a second. Its times are the multiples of it
	// since StartAt, or since 1970 in UTC.
	Every time.Duration

	StartAt  time.Time     // no time is before it
	EndAt    time.Time     // all times are before it
	MaxFires uint64        // it ends after as many runs; 0 = never
	Jitter   time.Duration // times are late by a part of it that is fixed for the schedule
	Overlap  Overlap       // default OverlapSkip
	// CatchUpWindow is how late a time may be dealt with; one that is later is
	// missed. Default an hour.
	CatchUpWindow time.Duration

	// Task is what each time submits. Its BusinessKey, Delay and times stay
	// empty; StartDeadline and Deadline below count from the submission.
	Task          TaskSpec
	StartDeadline time.Duration
	Deadline      time.Duration // default is the queue's

	Paused bool
}

// Schedule is a schedule with how it stands.
type Schedule struct {
	ID                  string       `json:"id"`
	Name                string       `json:"name"`
	Namespace           string       `json:"namespace"`
	Revision            uint64       `json:"revision,string"` // grows with what people change
	State               string       `json:"state"`           // active, paused, ended
	Cron                string       `json:"cron,omitempty"`
	TimeZone            string       `json:"time_zone,omitempty"`
	EveryMillis         int64        `json:"every_ms,omitempty"`
	StartAt             time.Time    `json:"start_at,omitzero"`
	EndAt               time.Time    `json:"end_at,omitzero"`
	MaxFires            uint64       `json:"max_fires,string,omitempty"`
	JitterMillis        int64        `json:"jitter_ms"`
	Overlap             Overlap      `json:"overlap"`
	CatchUpWindowMillis int64        `json:"catch_up_window_ms"`
	Paused              bool         `json:"paused"`
	Task                ScheduleTask `json:"task"`
	NextAt              time.Time    `json:"next_at,omitzero"`
	NextDueAt           time.Time    `json:"next_due_at,omitzero"` // NextAt and jitter
	LastAt              time.Time    `json:"last_at,omitzero"`
	BufferedAt          time.Time    `json:"buffered_at,omitzero"` // waits for a run to be over
	Upcoming            []time.Time  `json:"upcoming"`             // none in lists
	OpenTasks           uint64       `json:"open_tasks,string"`    // runs that are not over
	Fired               uint64       `json:"fired,string"`
	Ordered             uint64       `json:"ordered,string"` // by Trigger and Backfill
	Skipped             uint64       `json:"skipped,string"`
	Missed              uint64       `json:"missed,string"`
	Refused             uint64       `json:"refused,string"`
	Recent              []Fire       `json:"recent"` // the last ten times, newest first
	CreatedAt           time.Time    `json:"created_at,omitzero"`
	UpdatedAt           time.Time    `json:"updated_at,omitzero"`
}

// ScheduleTask is the task that a schedule submits.
type ScheduleTask struct {
	Queue               string           `json:"queue"`
	Handler             string           `json:"handler"`
	HandlerVersion      string           `json:"handler_version"`
	PayloadVersion      string           `json:"payload_version"`
	Payload             json.RawMessage  `json:"payload,omitempty"` // absent in lists
	ConcurrencyKey      string           `json:"concurrency_key,omitempty"`
	Priority            int              `json:"priority"`
	RecoverySafety      RecoverySafety   `json:"recovery_safety"`
	Retry               *submissionRetry `json:"retry,omitempty"`
	StartDeadlineMillis int64            `json:"start_deadline_ms,omitempty"`
	DeadlineMillis      int64            `json:"deadline_ms,omitempty"`
}

// Fire is what became of a time, or of several that were missed or backfilled.
type Fire struct {
	NominalAt time.Time `json:"nominal_at"`
	Until     time.Time `json:"until,omitzero"` // the last of several
	At        time.Time `json:"at"`
	Outcome   string    `json:"outcome"` // fired, skipped, buffered, missed, refused, triggered, backfilled
	TaskID    string    `json:"task_id,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Message   string    `json:"message,omitempty"`
	Times     uint64    `json:"times,string,omitempty"`
}

// Scheduled says which run of which schedule a task is.
type Scheduled struct {
	Schedule   string    `json:"schedule,omitempty"` // empty when the schedule was deleted
	ScheduleID string    `json:"schedule_id"`
	NominalAt  time.Time `json:"nominal_at"` // the time it is for
}

// Backfill is what became of the times of a range, or would.
type Backfill struct {
	DryRun    bool           `json:"dry_run"`
	Times     int            `json:"times"`
	Missing   int            `json:"missing"`   // times that had no task
	Submitted int            `json:"submitted"` // of these, those that have one now; none in a dry run
	Results   []BackfillTime `json:"results"`
}

// BackfillTime is one of them.
type BackfillTime struct {
	NominalAt time.Time      `json:"nominal_at"`
	TaskID    string         `json:"task_id,omitempty"`
	Existed   bool           `json:"existed"` // the time had a task before
	Error     *BackfillError `json:"error,omitempty"`
}

// BackfillError says why a time has no task.
type BackfillError struct {
	Code   schema.Code `json:"code"`
	Detail string      `json:"detail"`
}

// scheduleTimes are the members about when a schedule runs.
type scheduleTimes struct {
	Cron          string       `json:"cron,omitempty"`
	TimeZone      string       `json:"time_zone,omitempty"`
	EveryMillis   int64        `json:"every_ms,omitempty"`
	StartAt       *schema.Time `json:"start_at,omitempty"`
	EndAt         *schema.Time `json:"end_at,omitempty"`
	MaxFires      uint64       `json:"max_fires,omitempty"`
	JitterMillis  int64        `json:"jitter_ms,omitempty"`
	Overlap       Overlap      `json:"overlap,omitempty"`
	CatchUpMillis int64        `json:"catch_up_window_ms,omitempty"`
}

func (s *ScheduleSpec) times() scheduleTimes {
	return scheduleTimes{
		Cron: s.Cron, TimeZone: s.TimeZone, EveryMillis: wireMillis(s.Every), StartAt: wireTime(s.StartAt), EndAt: wireTime(s.EndAt),
		MaxFires: s.MaxFires, JitterMillis: wireMillis(s.Jitter), Overlap: s.Overlap, CatchUpMillis: wireMillis(s.CatchUpWindow),
	}
}

func (s *ScheduleSpec) encode(queue string, revision uint64) ([]byte, error) {
	t := s.Task
	switch {
	case t.Handler == "":
		return nil, errors.New("pulse: a schedule's task needs a handler")
	case t.BusinessKey != "" || t.Delay != 0 || !t.AvailableAt.IsZero() || !t.StartDeadlineAt.IsZero() || !t.DeadlineAt.IsZero():
		return nil, errors.New("pulse: a schedule's task has no BusinessKey, Delay and times of its own: they follow from the schedule")
	}
	payload, err := toJSON(t.Payload)
	if err != nil {
		return nil, fmt.Errorf("pulse: payload of %s: %w", t.Handler, err)
	}
	task := ScheduleTask{
		Queue: orDefault(t.Queue, queue), Handler: t.Handler, HandlerVersion: orDefault(t.HandlerVersion, "1"),
		PayloadVersion: orDefault(t.PayloadVersion, "1"), ConcurrencyKey: t.ConcurrencyKey, Priority: t.Priority,
		RecoverySafety:      RecoverySafety(orDefault(string(t.RecoverySafety), string(Idempotent))),
		StartDeadlineMillis: wireMillis(s.StartDeadline), DeadlineMillis: wireMillis(s.Deadline),
	}
	if t.Retry != (Retry{}) {
		task.Retry = t.Retry.wire()
	}
	text, err := withMember(task, "payload", payload)
	if err != nil {
		return nil, err
	}
	return withMember(struct {
		scheduleTimes
		Paused bool `json:"paused,omitempty"`
		expectation
	}{s.times(), s.Paused, expectation{revision}}, "task", text)
}

func (c *Client) schedulePath(name string) string { return c.path("/schedules/" + escape(name)) }

// PutSchedule creates a schedule or replaces its settings. A change of its times
// holds from now on.
func (c *Client) PutSchedule(ctx context.Context, name string, spec ScheduleSpec, opts ...CallOption) (*Schedule, error) {
	body, err := spec.encode(c.queue, options(opts).expectedRevision)
	if err != nil {
		return nil, err
	}
	return c.changeSchedule(ctx, http.MethodPut, c.schedulePath(name), body, opts)
}

func (c *Client) changeSchedule(ctx context.Context, method, path string, body []byte, opts []CallOption) (*Schedule, error) {
	schedule := new(Schedule)
	if err := c.change(ctx, method, path, body, schedule, opts); err != nil {
		return nil, err
	}
	return schedule, nil
}

// Schedule reads a schedule with its next times.
func (c *Client) Schedule(ctx context.Context, name string, upcoming int, opts ...CallOption) (*Schedule, error) {
	schedule := new(Schedule)
	query := url.Values{"upcoming": {strconv.Itoa(upcoming)}}
	if err := c.read(ctx, c.schedulePath(name), query, schedule, opts); err != nil {
		return nil, err
	}
	return schedule, nil
}

// Schedules walks over the schedules of the namespace, by name.
func (c *Client) Schedules(ctx context.Context, opts ...CallOption) iter.Seq2[*Schedule, error] {
	return walk[*Schedule](ctx, c, c.path("/schedules"), nil, "schedules", opts)
}

// PauseSchedule lets no time of a schedule come; WithNote says why.
func (c *Client) PauseSchedule(ctx context.Context, name string, opts ...CallOption) (*Schedule, error) {
	return c.setSchedulePaused(ctx, name, "pause", opts)
}

// ResumeSchedule lets a paused schedule go on, from now.
func (c *Client) ResumeSchedule(ctx context.Context, name string, opts ...CallOption) (*Schedule, error) {
	return c.setSchedulePaused(ctx, name, "resume", opts)
}

func (c *Client) setSchedulePaused(ctx context.Context, name, verb string, opts []CallOption) (*Schedule, error) {
	o := options(opts)
	body, err := marshal(struct {
		expectation
		Note string `json:"note,omitempty"`
	}{expectation{o.expectedRevision}, o.note})
	if err != nil {
		return nil, err
	}
	return c.changeSchedule(ctx, http.MethodPost, c.schedulePath(name)+":"+verb, body, opts)
}

// DeleteSchedule forgets a schedule. The tasks that it has submitted stay.
func (c *Client) DeleteSchedule(ctx context.Context, name string, opts ...CallOption) error {
	path := c.schedulePath(name)
	if revision := options(opts).expectedRevision; revision != 0 {
		path += "?expected_revision=" + strconv.FormatUint(revision, 10)
	}
	return c.change(ctx, http.MethodDelete, path, nil, nil, opts)
}

// TriggerSchedule submits a schedule's task now. While a run is not over it is
// refused with conflict, unless the policy is OverlapAllow or allowOverlap is set.
func (c *Client) TriggerSchedule(ctx context.Context, name string, allowOverlap bool, opts ...CallOption) (*TaskInfo, error) {
	body, err := marshal(struct {
		AllowOverlap bool   `json:"allow_overlap,omitempty"`
		Note         string `json:"note,omitempty"`
	}{allowOverlap, options(opts).note})
	if err != nil {
		return nil, err
	}
	return c.changeTask(ctx, c.schedulePath(name)+":trigger", body, opts)
}

// BackfillSchedule submits the tasks of the times from from to before until, both
// in the past, that have none: at most 500 times in one call. With dryRun it only
// tells them.
func (c *Client) BackfillSchedule(ctx context.Context, name string, from, until time.Time, dryRun bool, opts ...CallOption) (*Backfill, error) {
	body, err := marshal(struct {
		From   *schema.Time `json:"from"`
		Until  *schema.Time `json:"until"`
		DryRun bool         `json:"dry_run,omitempty"`
		Note   string       `json:"note,omitempty"`
	}{wireTime(from), wireTime(until), dryRun, options(opts).note})
	if err != nil {
		return nil, err
	}
	out := new(Backfill)
	if err := c.change(ctx, http.MethodPost, c.schedulePath(name)+":backfill", body, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// PreviewSchedule tells the next times of a schedule that need not exist; of spec
// only what is about times counts.
func (c *Client) PreviewSchedule(ctx context.Context, spec ScheduleSpec, n int, opts ...CallOption) ([]time.Time, error) {
	body, err := marshal(struct {
		scheduleTimes
		Limit int `json:"limit,omitempty"`
	}{spec.times(), n})
	if err != nil {
		return nil, err
	}
	var out struct {
		Upcoming []time.Time `json:"upcoming"`
	}
	if err := c.change(ctx, http.MethodPost, c.path("/schedules:preview"), body, &out, opts); err != nil {
		return nil, err
	}
	return out.Upcoming, nil
}
