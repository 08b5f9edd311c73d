package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// schedule is a schedule as the API tells it.
type schedule struct {
	ID            string      `json:"id"`
	Name          string      `json:"name"`
	Revision      string      `json:"revision"`
	State         string      `json:"state"`
	Cron          string      `json:"cron"`
	TimeZone      string      `json:"time_zone"`
	EveryMillis   int64       `json:"every_ms"`
	StartAt       time.Time   `json:"start_at"`
	EndAt         time.Time   `json:"end_at"`
	MaxFires      string      `json:"max_fires"`
	JitterMillis  int64       `json:"jitter_ms"`
	Overlap       string      `json:"overlap"`
	CatchUpMillis int64       `json:"catch_up_window_ms"`
	Paused        bool        `json:"paused"`
	Task          runTemplate `json:"task"`
	NextAt        time.Time   `json:"next_at"`
	NextDueAt     time.Time   `json:"next_due_at"`
	BufferedAt    time.Time   `json:"buffered_at"`
	Upcoming      []time.Time `json:"upcoming"`
	OpenTasks     uint64      `json:"open_tasks,string"`
	Fired         uint64      `json:"fired,string"`
	Ordered       uint64      `json:"ordered,string"`
	Skipped       uint64      `json:"skipped,string"`
	Missed        uint64      `json:"missed,string"`
	Refused       uint64      `json:"refused,string"`
	Recent        []*fire     `json:"recent"`
}

type runTemplate struct {
	Queue          string `json:"queue"`
	Handler        string `json:"handler"`
	HandlerVersion string `json:"handler_version"`
	ConcurrencyKey string `json:"concurrency_key"`
}

// fire is what became of a time, or of several.
type fire struct {
	NominalAt time.Time `json:"nominal_at"`
	Until     time.Time `json:"until"`
	At        time.Time `json:"at"`
	Outcome   string    `json:"outcome"`
	TaskID    string    `json:"task_id"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	Times     string    `json:"times"`
}

// When says in words when a schedule runs.
func (s *schedule) When() string {
	if s.Cron != "" {
		return s.Cron + " " + s.TimeZone
	}
	return "every " + spell(time.Duration(s.EveryMillis)*time.Millisecond)
}

// Due is when the next time is dealt with: late by its jitter.
func (s *schedule) Due() time.Time {
	if s.NextDueAt.After(s.NextAt) {
		return s.NextDueAt
	}
	return s.NextAt
}

// Last is what became of the last time; nil without one.
func (s *schedule) Last() *fire {
	if len(s.Recent) == 0 {
		return nil
	}
	return s.Recent[0]
}

// Tone colours an outcome: what did not run, and nobody asked it not to, stands out.
func (f *fire) Tone() string {
	switch f.Outcome {
	case "refused", "missed":
		return "bad"
	case "skipped", "buffered":
		return "warn"
	}
	return "good"
}

// Why says why a time did not run.
func (f *fire) Why() string {
	switch {
	case f.Message != "":
		return f.Message
	case f.Reason == "overlap":
		return "a run was not over"
	case f.Reason == "repeated":
		return "the time had a task already"
	case f.Reason == "paused":
		return "the schedule was paused while it waited"
	}
	return f.Reason
}

type schedulesPage struct {
	Schedules []*schedule
	Next      string
}

func (v *visit) schedules() error {
	ask := url.Values{"limit": {"100"}}
	if cursor := v.r.URL.Query().Get("cursor"); cursor != "" {
		ask.Set("cursor", cursor)
	}
	var list struct {
		Schedules  []*schedule `json:"schedules"`
		NextCursor string      `json:"next_cursor"`
	}
	if err := v.read(v.in("schedules"), ask, &list); err != nil {
		return err
	}
	p := schedulesPage{Schedules: list.Schedules}
	if list.NextCursor != "" {
		p.Next = v.path("schedules") + "?cursor=" + url.QueryEscape(list.NextCursor)
	}
	if _, err := v.counted(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "schedules", true
	return v.render(http.StatusOK, "schedules", "Schedules", p)
}

type schedulePage struct {
	Schedule *schedule
	CatchUp  string
	Jitter   string
}

func (v *visit) schedule() error {
	name := v.r.PathValue("schedule")
	p := schedulePage{Schedule: &schedule{}}
	if err := v.read(v.in("schedules", name), url.Values{"upcoming": {"10"}}, p.Schedule); err != nil {
		return err
	}
	ms := func(n int64) string { return spell(time.Duration(n) * time.Millisecond) }
	p.CatchUp, p.Jitter = ms(p.Schedule.CatchUpMillis), ms(p.Schedule.JitterMillis)
	if _, err := v.counted(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "schedules", true
	return v.render(http.StatusOK, "schedule", "Schedule "+name, p)
}

// doSchedule pauses, resumes, triggers, backfills or deletes.
func (v *visit) doSchedule() error {
	name, form := v.r.PathValue("schedule"), v.r.PostForm
	note := map[string]any{}
	if text := strings.TrimSpace(form.Get("note")); text != "" {
		note["note"] = text
	}
	path := v.in("schedules", name)
	switch form.Get("do") {
	case "pause":
		if err := v.post(path+":pause", note, nil); err != nil {
			return err
		}
		return v.done(v.back(), "Schedule "+name+" is paused. What it has submitted goes on.")
	case "resume":
		if err := v.post(path+":resume", note, nil); err != nil {
			return err
		}
		return v.done(v.back(), "Schedule "+name+" goes on from now.")
	case "trigger":
		note["allow_overlap"] = form.Get("allow_overlap") == "true"
		var t task
		if err := v.keyed(v.operation(), http.MethodPost, path+":trigger", nil, note, &t); err != nil {
			return err
		}
		return v.done(v.path("schedules", name), "Task "+t.ID+" is submitted.")
	case "backfill":
		return v.backfill(name, path, note)
	case "delete":
		if err := v.keyed(v.operation(), http.MethodDelete, path, nil, nil, nil); err != nil {
			return err
		}
		return v.done(v.path("schedules"), "Schedule "+name+" is deleted. Its tasks stay.")
	}
	return v.nowhere()
}

// backfill submits the times of a range, or counts them.
func (v *visit) backfill(name, path string, body map[string]any) error {
	form := v.r.PostForm
	body["from"], body["until"] = strings.TrimSpace(form.Get("from")), strings.TrimSpace(form.Get("until"))
	dry := form.Get("dry_run") == "true"
	if dry {
		body["dry_run"] = true
	}
	var out struct{ Times, Missing, Submitted int }
	if err := v.keyed(v.operation(), http.MethodPost, path+":backfill", nil, body, &out); err != nil {
		return err
	}
	text := fmt.Sprintf("%d times in the range, %d tasks submitted.", out.Times, out.Submitted)
	if dry {
		text = fmt.Sprintf("%d times in the range, %d without a task. Nothing was done.", out.Times, out.Missing)
	}
	return v.done(v.path("schedules", name), text)
}
