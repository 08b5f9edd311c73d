package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The form that sets a schedule. What a person writes stays in it until the schedule
// is as he wants it: a refusal is shown above the fields, and so are the next times,
// which can be looked at before anything is saved.

type scheduleForm struct {
	Editing  bool
	Values   map[string]string // of the fields, by name
	Queues   []string
	Fault    *problem
	Asked    bool        // for the next times
	Upcoming []time.Time // of the schedule as it is written
}

// Kinds of fields, by what is sent for them.
const (
	fieldText = iota
	fieldMillis
	fieldNumber
)

type scheduleField struct {
	name string
	kind int
}

// timesFields are about when a schedule runs; the others about its task.
var (
	timesFields = []scheduleField{
		{"cron", fieldText},
		{"time_zone", fieldText},
		{"every_ms", fieldMillis},
		{"start_at", fieldText},
		{"end_at", fieldText},
		{"max_fires", fieldNumber},
		{"jitter_ms", fieldMillis},
		{"overlap", fieldText},
		{"catch_up_window_ms", fieldMillis},
	}
	taskFields = []scheduleField{
		{"queue", fieldText},
		{"handler", fieldText},
		{"handler_version", fieldText},
		{"payload_version", fieldText},
		{"concurrency_key", fieldText},
		{"priority", fieldNumber},
		{"recovery_safety", fieldText},
		{"start_deadline_ms", fieldMillis},
		{"deadline_ms", fieldMillis},
	}
	retryFields = []scheduleField{
		{"max_attempts", fieldNumber},
		{"initial_delay_ms", fieldMillis},
		{"max_delay_ms", fieldMillis},
		{"attempt_timeout_ms", fieldMillis},
	}
)

// verbatim are the fields in which a blank may be meant.
var verbatim = []string{"queue", "handler", "handler_version", "payload_version", "concurrency_key", "payload"}

// editSchedule shows the form: of the schedule that is named, or of a new one.
func (v *visit) editSchedule() error {
	p := scheduleForm{Values: map[string]string{
		"time_zone": "UTC", "overlap": "skip", "catch_up_window_ms": "1h", "queue": "default", "handler_version": "1", "payload_version": "1", "payload": "{}",
		"priority": "0", "recovery_safety": "IDEMPOTENT",
	}}
	if name := v.r.URL.Query().Get("name"); name != "" {
		var s map[string]json.RawMessage
		if err := v.read(v.in("schedules", name), url.Values{"upcoming": {"0"}}, &s); err != nil {
			return err
		}
		p.Editing, p.Values = true, valuesOf(s)
	}
	return v.renderScheduleForm(http.StatusOK, p)
}

func (v *visit) renderScheduleForm(status int, p scheduleForm) error {
	queues, err := v.counted()
	if err != nil {
		return err
	}
	for _, q := range queues {
		p.Queues = append(p.Queues, q.Name)
	}
	if queue := p.Values["queue"]; queue != "" && !contains(p.Queues, queue) {
		p.Queues = append(p.Queues, queue) // it may be made elsewhere
	}
	v.frame.Here = "schedules"
	title := "New schedule"
	if p.Editing {
		title = "Schedule " + p.Values["name"]
	}
	return v.render(status, "schedule-form", title, p)
}

// valuesOf is a schedule as it is written into the form.
func valuesOf(s map[string]json.RawMessage) map[string]string {
	out := map[string]string{"name": plain(s["name"]), "revision": plain(s["revision"])}
	if plain(s["paused"]) == "true" {
		out["paused"] = "true"
	}
	var task, retry map[string]json.RawMessage
	_ = json.Unmarshal(s["task"], &task) // an answer of the API: it is an object
	_ = json.Unmarshal(task["retry"], &retry)
	for _, part := range []struct {
		fields []scheduleField
		from   map[string]json.RawMessage
	}{{timesFields, s}, {taskFields, task}, {retryFields, retry}} {
		for _, f := range part.fields {
			text := plain(part.from[f.name])
			if ms, err := strconv.ParseInt(text, 10, 64); err == nil && f.kind == fieldMillis {
				text = spell(time.Duration(ms) * time.Millisecond)
			}
			out[f.name] = text
		}
	}
	out["payload"] = string(task["payload"])
	return out
}

// plain is a string without its quotes, and of anything else its text.
func plain(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// doEditSchedule saves the form, or tells the next times of what is written in it.
func (v *visit) doEditSchedule() error {
	form := v.r.PostForm
	p := scheduleForm{Editing: form.Get("revision") != "", Values: map[string]string{}, Asked: form.Get("do") == "preview"}
	for name := range form {
		if name != tokenField && name != operationField {
			p.Values[name] = form.Get(name)
			if !contains(verbatim, name) {
				p.Values[name] = strings.TrimSpace(form.Get(name))
			}
		}
	}
	var err error
	if p.Asked {
		p.Upcoming, err = v.preview(p.Values)
	} else {
		err = v.saveSchedule(&p)
	}
	var fault *problem
	switch {
	case errors.As(err, &fault) && fault.Status != http.StatusUnauthorized:
		p.Fault = fault
		return v.renderScheduleForm(fault.Status, p)
	case err != nil:
		return err
	case p.Asked:
		return v.renderScheduleForm(http.StatusOK, p)
	}
	return v.done(v.path("schedules", p.Values["name"]), "Schedule "+p.Values["name"]+" is set.")
}

func (v *visit) preview(values map[string]string) ([]time.Time, error) {
	body, err := read(timesFields, values)
	if err != nil {
		return nil, err
	}
	body["limit"] = 5
	var out struct {
		Upcoming []time.Time `json:"upcoming"`
	}
	err = v.call(http.MethodPost, v.in("schedules:preview"), nil, body, &out)
	return out.Upcoming, err
}

func (v *visit) saveSchedule(p *scheduleForm) error {
	name := p.Values["name"]
	if name == "" {
		return wrong("Name", "", "a name")
	}
	body, err := scheduleBody(p.Values)
	if err != nil {
		return err
	}
	path := v.in("schedules", name)
	if !p.Editing {
		// What is there is not to be replaced by somebody who did not know of it.
		found := asProblem(v.call(http.MethodGet, path, nil, nil, nil))
		if found == nil {
			return &problem{Status: http.StatusConflict, Title: "There is one of this name", Detail: "The namespace has a schedule " + name + " already. Give another name, or edit that one. Nothing was saved."}
		}
		if found.Status != http.StatusNotFound {
			return found
		}
	}
	return v.keyed(v.operation(), http.MethodPut, path, nil, body, nil)
}

// scheduleBody is the form as the API takes it. The payload goes out as it was
// written, so that its numbers keep their digits.
func scheduleBody(values map[string]string) (any, error) {
	body, err := read(timesFields, values)
	if err != nil {
		return nil, err
	}
	task, err := read(taskFields, values)
	if err != nil {
		return nil, err
	}
	retry, err := read(retryFields, values)
	if err != nil {
		return nil, err
	}
	if len(retry) > 0 {
		task["retry"] = retry
	}
	body["paused"] = values["paused"] == "true"
	if revision := digits(values["revision"]); revision != "" {
		body["expected_revision"] = revision
	}
	payload := values["payload"]
	if strings.TrimSpace(payload) == "" {
		payload = "{}"
	}
	if !json.Valid([]byte(payload)) {
		return nil, wrong("Payload", payload, "JSON, like {\"of\":\"yesterday\"}")
	}
	text, err := spliced{task, "payload", payload}.raw()
	if err != nil {
		return nil, err
	}
	return spliced{body, "task", string(text)}, nil
}

// read takes what was written into fields; an empty one is left out.
func read(fields []scheduleField, values map[string]string) (map[string]any, error) {
	out := map[string]any{}
	for _, f := range fields {
		text := values[f.name]
		switch {
		case text == "" || f.name == "time_zone" && values["cron"] == "":
		case f.kind == fieldText:
			out[f.name] = text
		case f.kind == fieldNumber:
			n, err := strconv.ParseUint(text, 10, 53)
			if err != nil {
				return nil, wrong(words(f.name), text, "a whole number")
			}
			out[f.name] = n
		default:
			d, err := time.ParseDuration(text)
			if err != nil || d < 0 {
				return nil, wrong(words(strings.TrimSuffix(f.name, "_ms")), text, "a duration with its unit, like 30s, 15m or 24h")
			}
			out[f.name] = d.Milliseconds()
		}
	}
	return out, nil
}

func wrong(what, text, want string) *problem {
	return &problem{Status: http.StatusBadRequest, Title: "A field could not be read", Detail: fmt.Sprintf("%s is %q: write %s. Nothing was saved.", sentenceStart(what), text, want)}
}
