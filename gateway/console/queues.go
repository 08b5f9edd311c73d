package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

type queuesPage struct {
	Activity activity
	Settings map[string]queue
}

func (v *visit) queues() error {
	p := queuesPage{Settings: map[string]queue{}}
	if err := v.read(v.in("activity"), nil, &p.Activity); err != nil {
		return err
	}
	list, err := v.counted()
	if err != nil {
		return err
	}
	for _, q := range list {
		p.Settings[q.Name] = q
	}
	v.frame.Here, v.frame.Live = "queues", true
	return v.render(http.StatusOK, "queues", "Queues", p)
}

type queuePage struct {
	Queue    queue
	Activity activity
	Standing standing
	Reasons  []share
	Chart    chart
	Fields   []setting
}

// setting is a field of the settings form.
type setting struct {
	Name, Label, Value, About string
}

func (v *visit) queue() error {
	name := v.r.PathValue("queue")
	p := queuePage{}
	if err := v.read(v.in("queues", name), nil, &p.Queue); err != nil {
		return err
	}
	if err := v.read(v.in("activity"), url.Values{"queue": {name}}, &p.Activity); err != nil {
		return err
	}
	p.Standing, p.Chart = p.Activity.Total, chartOf(&p.Activity)
	p.Reasons = v.shares(&p.Standing)
	for i := range p.Reasons {
		p.Reasons[i].Link += "&queue=" + url.QueryEscape(name)
	}
	p.Fields = p.Queue.fields()
	if _, err := v.counted(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "queues", true
	return v.render(http.StatusOK, "queue", "Queue "+name, p)
}

// fields are the settings as a person writes them: durations with their units.
func (q *queue) fields() []setting {
	ms := func(n int64) string { return spell(time.Duration(n) * time.Millisecond) }
	return []setting{
		{"max_active", "Tasks at a time", strconv.Itoa(q.MaxActive), "0 is no limit"},
		{"max_waiting", "Tasks waiting at most", strconv.FormatUint(q.MaxWaiting, 10), "beyond it submissions are refused"},
		{"lease_duration_ms", "Lease", ms(q.LeaseDurationMillis), "1s to 2m"},
		{"offer_duration_ms", "Offer", ms(q.OfferDurationMillis), "1s to the lease"},
		{"retention_ms", "Kept when over", ms(q.RetentionMillis), ""},
		{"default_deadline_ms", "Deadline if none is given", ms(q.DefaultDeadlineMillis), ""},
		{"ageing_ms", "Ageing step", ms(q.AgeingMillis), "0s is off"},
		{"max_attempts", "Attempts if none are given", strconv.Itoa(q.DefaultRetry.MaxAttempts), "1 to 100"},
		{"initial_delay_ms", "First delay between them", ms(q.DefaultRetry.InitialDelayMillis), "it doubles"},
		{"max_delay_ms", "Longest delay", ms(q.DefaultRetry.MaxDelayMillis), ""},
		{"attempt_timeout_ms", "An attempt takes at most", ms(q.DefaultRetry.AttemptTimeoutMillis), ""},
	}
}

// doQueue pauses, resumes, or replaces the settings.
func (v *visit) doQueue() error {
	name, form := v.r.PathValue("queue"), v.r.PostForm
	switch form.Get("do") {
	case "pause":
		if err := v.post(v.in("queues", name)+":pause", nil, nil); err != nil {
			return err
		}
		return v.done(v.back(), "Queue "+name+" is paused. It goes on taking tasks, and what runs goes on.")
	case "resume":
		if err := v.post(v.in("queues", name)+":resume", nil, nil); err != nil {
			return err
		}
		return v.done(v.back(), "Queue "+name+" goes on.")
	case "settings":
		body, err := v.settings(form)
		if err != nil {
			return err
		}
		if err := v.keyed(v.operation(), http.MethodPut, v.in("queues", name), nil, body, nil); err != nil {
			return err
		}
		return v.done(v.path("queues", name), "The settings are in force.")
	}
	return v.nowhere()
}

// settings reads the form. It replaces all settings, so it names the revision
// that the page showed: what somebody else changed meanwhile is not undone.
func (v *visit) settings(form url.Values) (map[string]any, error) {
	body := map[string]any{"paused": form.Get("paused") == "true"}
	if revision := digits(form.Get("revision")); revision != "" {
		body["expected_revision"] = revision
	}
	retry := map[string]any{}
	for _, f := range (&queue{}).fields() {
		to := body
		switch f.Name {
		case "max_attempts", "initial_delay_ms", "max_delay_ms", "attempt_timeout_ms":
			to = retry
		}
		text := strings.TrimSpace(form.Get(f.Name))
		if text == "" {
			continue // its default
		}
		number, err := strconv.ParseUint(text, 10, 63)
		if strings.HasSuffix(f.Name, "_ms") {
			var d time.Duration
			d, err = time.ParseDuration(text)
			number = uint64(max(d.Milliseconds(), 0))
			if d < 0 {
				err = strconv.ErrRange
			}
		}
		if err != nil {
			what := "a whole number"
			if strings.HasSuffix(f.Name, "_ms") {
				what = "a duration with its unit, like 30s, 5m or 72h"
			}
			return nil, &problem{Status: http.StatusBadRequest, Title: "A setting could not be read", Detail: fmt.Sprintf("%s is %q: write %s. Nothing was changed.", f.Label, text, what)}
		}
		to[f.Name] = number
	}
	body["default_retry"] = retry
	return body, nil
}
