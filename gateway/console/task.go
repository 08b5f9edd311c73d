package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// taskPage is everything there is to know about one task.
type taskPage struct {
	Task     *task
	Why      why
	Attempts []*attempt // the newest first
	Events   []*event
	More     bool // there is more history than is shown
	Commands []command
	Can      can
	Retries  []*task // made of this one by hand
}

// can is what may be done to the task as it is.
type can struct{ Cancel, Retry, Review, Run bool }

// command is a thing to paste into a terminal.
type command struct{ What, CLI, Curl string }

const eventsShown = "200"

func (v *visit) task() error {
	id := v.r.PathValue("id")
	p := taskPage{}
	if err := v.read(v.in("tasks", id), nil, &p.Task); err != nil {
		return err
	}
	var attempts struct{ Attempts []*attempt }
	if err := v.read(v.in("tasks", id, "attempts"), nil, &attempts); err != nil {
		return err
	}
	var events struct {
		Events     []*event
		NextCursor string `json:"next_cursor"`
	}
	if err := v.read(v.in("tasks", id, "events"), url.Values{"limit": {eventsShown}}, &events); err != nil {
		return err
	}
	for i := len(attempts.Attempts) - 1; i >= 0; i-- {
		p.Attempts = append(p.Attempts, attempts.Attempts[i])
	}
	p.Events, p.More = events.Events, events.NextCursor != ""
	var err error
	if p.Why, err = v.explain(p.Task, p.Attempts); err != nil {
		return err
	}
	if _, err := v.counted(); err != nil {
		return err
	}
	t := p.Task
	p.Can = can{Cancel: !t.Over() && t.State != stateReview && t.CancelRequestedAt.IsZero(), Retry: t.Over(), Review: t.State == stateReview}
	p.Can.Run = t.Waiting != nil && (t.Waiting.Reason == "delayed" || t.Waiting.Reason == "retry_backoff")
	p.Commands = v.commands(t)
	v.frame.Here, v.frame.Live = "tasks", !t.Over()
	return v.render(http.StatusOK, "task", "Task "+short(t.ID), p)
}

// commands are what the page can do, for those who would rather type.
func (v *visit) commands(t *task) []command {
	at := "http://" + v.r.Host
	if v.r.TLS != nil {
		at = "https://" + v.r.Host
	}
	path := at + v.in("tasks", t.ID)
	flags := ""
	if v.ns != defaultNamespace {
		flags = " --namespace " + quote(v.ns)
	}
	auth := ""
	if v.r.Header.Get("Authorization") != "" {
		auth = ` -H "Authorization: Bearer $PULSE_TOKEN"`
	}
	post := func(verb, body string) string {
		return fmt.Sprintf("curl -sS%s -X POST %s -H 'Content-Type: application/json' -d %s", auth, quote(path+":"+verb), quote(body))
	}
	out := []command{
		{"Read it", "pulse task get " + t.ID + flags, "curl -sS" + auth + " " + quote(path)},
		{"Why is it not done", "pulse task why " + t.ID + flags, ""},
	}
	switch {
	case t.State == stateReview:
		out = append(out, command{"Settle it",
			"pulse review resolve " + t.ID + flags + " --decision SUCCEEDED --note '…'",
			post("review", `{"decision":"SUCCEEDED","note":"…"}`)})
	case t.Over():
		out = append(out, command{"Submit it once more", "pulse task retry " + t.ID + flags, post("retry", "{}")})
	default:
		if w := t.Waiting; w != nil && (w.Reason == "delayed" || w.Reason == "retry_backoff") {
			out = append(out, command{"Run it now", "", post("run", "{}")})
		}
		out = append(out, command{"Cancel it", "pulse task cancel " + t.ID + flags, post("cancel", "{}")})
	}
	again := map[string]any{
		"handler": t.Handler, "handler_version": t.HandlerVersion, "payload_version": t.PayloadVersion, "payload": t.Payload,
	}
	// Marshal would make other text of some characters of the payload.
	var text strings.Builder
	text.WriteString("{")
	for i, name := range []string{"handler", "handler_version", "payload_version"} {
		if i > 0 {
			text.WriteString(",")
		}
		value, _ := json.Marshal(again[name]) // a string
		fmt.Fprintf(&text, "%q:%s", name, value)
	}
	fmt.Fprintf(&text, `,"payload":%s}`, t.Payload)
	queue := at + v.in("queues", t.Queue, "tasks")
	cli := fmt.Sprintf("pulse task run %s %s --queue %s --handler-version %s --payload-version %s%s",
		quote(t.Handler), quote(string(t.Payload)), quote(t.Queue), quote(t.HandlerVersion), quote(t.PayloadVersion), flags)
	return append(out, command{"Submit one like it", cli,
		fmt.Sprintf("curl -sS%s -X POST %s -H 'Content-Type: application/json' -d %s", auth, quote(queue), quote(text.String()))})
}

// quote makes a word of a shell of any text.
func quote(word string) string {
	plain := word != ""
	for _, c := range word {
		plain = plain && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("/-_.:@%", c))
	}
	if plain {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// doTask is a change of one task.
func (v *visit) doTask() error {
	id, verb, form := v.r.PathValue("id"), v.r.PathValue("verb"), v.r.PostForm
	body := map[string]any{}
	if note := form.Get("note"); note != "" {
		body["note"] = note
	}
	if revision := digits(form.Get("revision")); revision != "" {
		body["expected_revision"] = revision
	}
	var after task
	switch verb {
	case "cancel":
		delete(body, "expected_revision") // a renewed lease is no reason not to cancel
		if err := v.post(v.in("tasks", id)+":cancel", body, &after); err != nil {
			return err
		}
		if after.State == stateCancelled {
			return v.done(v.path("tasks", id), "It is cancelled.")
		}
		return v.done(v.path("tasks", id), "It was asked to stop; its worker decides how it ends.")
	case "run":
		if err := v.post(v.in("tasks", id)+":run", body, &after); err != nil {
			return err
		}
		return v.done(v.path("tasks", id), "It waits for its time no longer.")
	case "retry":
		if err := v.post(v.in("tasks", id)+":retry", body, &after); err != nil {
			return err
		}
		return v.done(v.path("tasks", after.ID), "This is the new task, made of "+id+".")
	case "review":
		fields := []struct{ name, decision string }{{"error_code", stateFailed}, {"deadline_at", "RETRY"}}
		body["decision"], body["note"] = form.Get("decision"), form.Get("note")
		for _, f := range fields {
			if value := strings.TrimSpace(form.Get(f.name)); value != "" && form.Get("decision") == f.decision {
				body[f.name] = v.instantOf(f.name, value)
			}
		}
		if result := strings.TrimSpace(form.Get("result")); result != "" && form.Get("decision") == stateSucceeded {
			return v.reviewWithResult(id, body, result)
		}
		if err := v.post(v.in("tasks", id)+":review", body, &after); err != nil {
			return err
		}
		return v.done(v.back(), "Task "+short(id)+" is "+words(after.State)+".")
	}
	return v.nowhere()
}

func (v *visit) instantOf(name, value string) string {
	if name == "deadline_at" {
		return v.instant(value)
	}
	return value
}

// reviewWithResult sends the result as it was typed: numbers keep their text.
func (v *visit) reviewWithResult(id string, body map[string]any, result string) error {
	if !json.Valid([]byte(result)) {
		return &problem{Status: http.StatusBadRequest, Title: "The result is not JSON", Detail: "Write it as JSON, like {\"booked\":12.50}, or leave it empty. Nothing was done."}
	}
	var after task
	if err := v.post(v.in("tasks", id)+":review", spliced{body, "result", result}, &after); err != nil {
		return err
	}
	return v.done(v.back(), "Task "+short(id)+" is "+words(after.State)+".")
}

// spliced is a body, not empty, and one more member that goes out byte for byte.
type spliced struct {
	body       map[string]any
	name, text string
}

// raw is the body's text.
func (s spliced) raw() ([]byte, error) {
	text, err := json.Marshal(s.body)
	if err != nil {
		return nil, err
	}
	return append(text[:len(text)-1], `,"`+s.name+`":`+s.text+`}`...), nil
}

// bar is a part of an attempt's strip.
type bar struct {
	Tone    string
	Percent int
	What    string
}

// Strip is how an attempt spent its time: offered, then running.
func (a *attempt) Strip() []bar {
	end := a.EndedAt
	if end.IsZero() {
		end = time.Now()
	}
	all := end.Sub(a.LeasedAt)
	if all <= 0 {
		return nil
	}
	started := a.StartedAt
	if started.IsZero() {
		return []bar{{"soft", 100, "offered for " + span(all)}}
	}
	offered := int(100 * started.Sub(a.LeasedAt) / all)
	return []bar{
		{"soft", offered, "offered for " + span(started.Sub(a.LeasedAt))},
		{tone(a.State), 100 - offered, "ran for " + span(end.Sub(started))},
	}
}

// Bars is the strip with places to draw it at.
func (a *attempt) Bars() []placed {
	var out []placed
	x := 0
	for _, b := range a.Strip() {
		out = append(out, placed{b, x})
		x += b.Percent
	}
	return out
}

type placed struct {
	bar
	X int
}

// Note is the note of the commit, if somebody left one.
func (e *event) Note() string {
	for _, fact := range e.Facts {
		var f struct{ Note string }
		if json.Unmarshal(fact, &f) == nil && f.Note != "" {
			return f.Note
		}
	}
	return ""
}

// End says how an attempt ended, in words.
func (a *attempt) End() string {
	switch {
	case a.EndCause != "":
		return words(a.EndCause)
	case a.State == stateFailed && a.Retryable:
		return "failed, and may be tried again"
	}
	return ""
}
