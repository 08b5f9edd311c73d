package console

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// filter is what the task list shows. Its fields are the parameters of the
// address, so that what somebody sees can be sent to somebody else.
type filter struct {
	Queue          string
	States         []string
	Handler        string
	BusinessKey    string
	ConcurrencyKey string
	WaitingReason  string
	ErrorCode      string
	From, Until    string // RFC 3339
}

func (v *visit) filter(q url.Values) filter {
	get := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	f := filter{
		Queue: get("queue"), Handler: get("handler"), BusinessKey: q.Get("business_key"), ConcurrencyKey: q.Get("concurrency_key"),
		WaitingReason: get("waiting_reason"), ErrorCode: get("error_code"),
		From: v.instant(get("created_from")), Until: v.instant(get("created_until")),
	}
	for _, sent := range q["state"] {
		for state := range strings.SplitSeq(sent, ",") {
			if state != "" && !contains(f.States, state) {
				f.States = append(f.States, state)
			}
		}
	}
	return f
}

// instant reads a time as the API writes it, as a browser's field gives it (in
// UTC, as the page says), or as a span back from now: 15m, 24h.
func (v *visit) instant(text string) string {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.Format(time.RFC3339)
		}
	}
	if back, err := time.ParseDuration(text); err == nil && back > 0 {
		return v.now.Add(-back).UTC().Format(time.RFC3339)
	}
	return text
}

// values are the parameters of the API's list, and of the console's own address.
func (f filter) values() url.Values {
	out := url.Values{}
	for name, value := range map[string]string{
		"queue": f.Queue, "handler": f.Handler, "business_key": f.BusinessKey, "concurrency_key": f.ConcurrencyKey,
		"waiting_reason": f.WaitingReason, "error_code": f.ErrorCode, "created_from": f.From, "created_until": f.Until,
	} {
		if value != "" {
			out.Set(name, value)
		}
	}
	if len(f.States) > 0 {
		out["state"] = f.States
	}
	return out
}

// body is the filter as a bulk request takes it.
func (f filter) body() map[string]any {
	out := map[string]any{}
	for name, values := range f.values() {
		if name == "state" {
			out[name] = values
			continue
		}
		out[name] = values[0]
	}
	return out
}

// Empty says that it selects everything.
func (f filter) Empty() bool { return len(f.values()) == 0 }

// Pairs is the filter by the names of its parameters.
func (f filter) Pairs() map[string][]string { return f.values() }

// Query is the filter as it stands in an address.
func (f filter) Query() string { return f.values().Encode() }

// Local is a time as a browser's field wants it.
func (filter) Local(text string) string {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05")
}

type tasksPage struct {
	Filter  filter
	Tasks   []*task
	Next    string
	First   string // the list from its beginning, on a later page
	Queues  []string
	States  []string
	Reasons []string
	Fault   *problem // of the filter
	Cancel  string   // bulk pages
	Retry   string
}

const pageTasks = "50"

func (v *visit) tasks() error {
	q := v.r.URL.Query()
	if find := strings.TrimSpace(q.Get("find")); find != "" {
		return v.find(find)
	}
	p := tasksPage{Filter: v.filter(q), States: states, Reasons: waitingReasons}
	list := p.Filter.values()
	list.Set("limit", pageTasks)
	if cursor := q.Get("cursor"); cursor != "" {
		list.Set("cursor", cursor)
		p.First = v.path("tasks") + "?" + p.Filter.Query()
	}
	var out taskList
	if err := v.read(v.in("tasks"), list, &out); err != nil {
		var fault *problem
		if fault = asProblem(err); fault == nil || fault.Code != "invalid_argument" && fault.Code != "not_found" {
			return err
		}
		p.Fault = fault // what was typed is shown again, to be put right
	}
	p.Tasks = out.Tasks
	if out.NextCursor != "" {
		next := p.Filter.values()
		next.Set("cursor", out.NextCursor)
		p.Next = v.path("tasks") + "?" + next.Encode()
	}
	for _, action := range []struct {
		name string
		to   *string
	}{{"cancel", &p.Cancel}, {"retry", &p.Retry}} {
		bulk := p.Filter.values()
		bulk.Set("action", action.name)
		*action.to = v.path("bulk") + "?" + bulk.Encode()
	}
	var err error
	if p.Queues, err = v.queueNames(); err != nil && p.Fault == nil {
		return err
	}
	v.frame.Here, v.frame.Live = "tasks", p.First == "" && p.Fault == nil
	return v.render(http.StatusOK, "tasks", "Tasks", p)
}

func (v *visit) queueNames() ([]string, error) {
	var list struct{ Queues []queue }
	if err := v.read(v.in("queues"), nil, &list); err != nil {
		return nil, err
	}
	var out []string
	for _, q := range list.Queues {
		out = append(out, q.Name)
		v.frame.Review += q.NeedsReview
	}
	return out, nil
}

var idForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// find leads from what somebody has at hand to the task or the list it means.
func (v *visit) find(text string) error {
	if id := strings.ToLower(strings.ReplaceAll(text, "-", "")); idForm.MatchString(id) {
		v.redirect(v.path("tasks", id))
		return nil
	}
	var byKey taskList
	err := v.read(v.in("tasks"), url.Values{"business_key": {text}, "limit": {"1"}}, &byKey)
	if err == nil && len(byKey.Tasks) == 1 {
		v.redirect(v.path("tasks", byKey.Tasks[0].ID))
		return nil
	}
	if err != nil && (asProblem(err) == nil || asProblem(err).Code != "invalid_argument") {
		return err
	}
	v.redirect(v.path("tasks") + "?" + url.Values{"handler": {text}}.Encode())
	return nil
}
