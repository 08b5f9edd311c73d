package console

import (
	"fmt"
	"net/url"
	"time"
)

// why says in a sentence why a task is where it is, and what to do about it.
type why struct {
	Tone    string
	Text    string
	Advice  []hint
	Workers []fit
}

// hint is a thing to do or to look at.
type hint struct{ Text, Link, Name string }

// fit says why a worker does not take the task; empty if it could.
type fit struct{ ID, But string }

func (w *why) hint(text, link, name string) { w.Advice = append(w.Advice, hint{text, link, name}) }

func (v *visit) explain(t *task, attempts []*attempt) (why, error) {
	w := why{Tone: tone(t.State)}
	switch t.State {
	case stateWaiting:
		return v.explainWaiting(t, attempts)
	case stateLeased:
		w.Text = "It was offered to a worker, which has until " + clock(t.Lease.LeaseUntil) + " to start it; then it is offered to another."
		w.hint("", v.path("workers", t.Lease.InstanceID), "The worker")
	case stateRunning:
		w.Text = "It runs on a worker, whose lease holds until " + clock(t.Lease.LeaseUntil) + " and is renewed as long as the worker lives."
		if !t.CancelRequestedAt.IsZero() {
			w.hint("It was asked to stop "+ago(v.now.Sub(t.CancelRequestedAt))+"; its handler decides when.", "", "")
		}
		w.hint("", v.path("workers", t.Lease.InstanceID), "The worker")
	case stateReview:
		w.Text = "A run of it began and nobody can know whether its effect happened, so it waits for a person."
		if len(attempts) > 0 && attempts[0].EndCause != "" {
			w.Text = "A run of it began and nobody can know whether its effect happened: " + words(attempts[0].EndCause) + ". It waits for a person."
		}
		if t.ConcurrencyKey != "" {
			w.hint("It may hold its concurrency key until then.", v.keyPath(t.ConcurrencyKey), "The key")
		}
	case stateSucceeded:
		w.Text = "It is done: it succeeded " + ago(v.now.Sub(t.CompletedAt)) + "."
	case stateFailed:
		w.Text = fmt.Sprintf("It failed %s, after %d of %d attempts.", ago(v.now.Sub(t.CompletedAt)), t.AttemptCount, t.Retry.MaxAttempts)
	case stateCancelled:
		w.Text = "It was cancelled " + ago(v.now.Sub(t.CompletedAt)) + "."
		if t.EffectUncertain {
			w.hint("A run of it may have had an effect.", "", "")
		}
	default:
		w.Text = "It is " + t.State + ", a state that this console does not know."
	}
	return w, nil
}

func (v *visit) keyPath(name string) string { return v.path("key") + "?name=" + url.QueryEscape(name) }

// clock is a time of today, in UTC like everything on these pages.
func clock(t time.Time) string { return t.UTC().Format("15:04:05") + " UTC" }

func (v *visit) explainWaiting(t *task, attempts []*attempt) (why, error) {
	w := why{Tone: "idle", Text: "It waits."}
	if t.Waiting == nil {
		return w, nil
	}
	w.Tone = tone(t.Waiting.Reason)
	until := ""
	if at := t.Waiting.Until; !at.IsZero() {
		until = fmt.Sprintf(" until %s, %s from now", clock(at), span(max(at.Sub(v.now), 0)))
	}
	switch t.Waiting.Reason {
	case "ready":
		w.Text = "Nothing is in its way: it goes to the next free worker."
	case "delayed":
		w.Text = "It was submitted with a delay and waits" + until + "."
	case "retry_backoff":
		last := ""
		if len(attempts) > 0 {
			if last = attempts[0].ErrorCode; last == "" {
				last = words(attempts[0].EndCause)
			}
			last = " (" + last + ")"
		}
		w.Text = fmt.Sprintf("Attempt %d of %d ended without success%s; the next one waits%s.", t.AttemptCount, t.Retry.MaxAttempts, last, until)
	case "queue_paused":
		w.Text = "Queue " + t.Queue + " is paused."
		w.hint("Somebody has to resume it.", v.path("queues", t.Queue), "The queue")
	case "queue_limit":
		w.Text = "Queue " + t.Queue + " runs as many tasks at a time as its setting max_active allows."
		w.hint("Wait, or raise it.", v.path("queues", t.Queue), "The queue")
	case "key_held":
		return v.explainKey(t, w)
	case "no_capable_worker", "workers_busy":
		return v.explainWorkers(t, w)
	default:
		w.Text = "It waits: " + words(t.Waiting.Reason) + until + "."
	}
	return w, nil
}

func (v *visit) explainKey(t *task, w why) (why, error) {
	holder := t.Waiting.HolderTaskID
	w.Text = "Another task holds its concurrency key " + t.ConcurrencyKey + "."
	if holder != "" {
		var other task
		if err := v.read(v.in("tasks", holder), nil, &other); err != nil {
			if p := asProblem(err); p == nil || p.Code != "not_found" {
				return w, err
			}
		}
		switch other.State {
		case stateReview:
			w.Text = "Its concurrency key " + t.ConcurrencyKey + " is held by a task that needs a review, and keeps it until somebody decides."
			w.hint("Settle that one.", v.path("review")+"?id="+holder, "Review it")
		case "":
		default:
			w.Text = "Its concurrency key " + t.ConcurrencyKey + " is held by a task that is " + words(other.State) + "."
		}
		w.hint("", v.path("tasks", holder), "The task that holds it")
	}
	w.hint("", v.keyPath(t.ConcurrencyKey), "The key")
	return w, nil
}

// workersShown bounds how many workers an explanation looks at.
const workersShown = "50"

func (v *visit) explainWorkers(t *task, w why) (why, error) {
	var list workerList
	if err := v.read(v.in("workers"), url.Values{"queue": {t.Queue}, "limit": {workersShown}}, &list); err != nil {
		return w, err
	}
	fitting := 0
	for _, worker := range list.Workers {
		if worker.State == "ended" {
			continue
		}
		f := fit{worker.InstanceID, worker.but(t)}
		if f.But == "" || worker.offers(t) && worker.State == "connected" {
			fitting++
		}
		w.Workers = append(w.Workers, f)
	}
	switch {
	case t.Waiting.Reason == "workers_busy":
		w.Text = fmt.Sprintf("%s of queue %s could run it, and none has room.", plural(fitting, "worker"), t.Queue)
		w.hint("It goes to the first that has. More room: start more workers, or give them more capacity.", "", "")
	case len(w.Workers) == 0:
		w.Text = "No worker is connected to queue " + t.Queue + "."
		w.hint("Start one that offers handler "+t.Handler+" version "+t.HandlerVersion+" with payload version "+t.PayloadVersion+".", "", "")
	default:
		w.Text = fmt.Sprintf("No worker of queue %s offers handler %s version %s with payload version %s.", t.Queue, t.Handler, t.HandlerVersion, t.PayloadVersion)
	}
	return w, nil
}

func (w *worker) offers(t *task) bool {
	for _, c := range w.Capabilities {
		if c.Handler == t.Handler && c.HandlerVersion == t.HandlerVersion && c.PayloadVersion == t.PayloadVersion {
			return true
		}
	}
	return false
}

// but is why a worker does not take a task, in the order the scheduler asks.
func (w *worker) but(t *task) string {
	switch {
	case w.State == "disconnected":
		return "is not connected"
	case w.Draining:
		return "is draining and takes nothing new"
	case !w.offers(t):
		return "offers " + w.Offers()
	case t.ConcurrencyKey != "" && !w.ConcurrencyKeys:
		return "takes no task with a concurrency key"
	case w.Active >= w.Capacity:
		return fmt.Sprintf("has %d of %d slots taken", w.Active, w.Capacity)
	}
	return ""
}

// Offers lists what the worker can run, in a line.
func (w *worker) Offers() string {
	const shown = 6
	out := ""
	for i, c := range w.Capabilities {
		if i == shown {
			return out + fmt.Sprintf(" and %d more", len(w.Capabilities)-shown)
		}
		if i > 0 {
			out += ", "
		}
		out += c.Handler + " " + c.HandlerVersion
		if c.PayloadVersion != "1" {
			out += "/" + c.PayloadVersion
		}
	}
	return out
}
