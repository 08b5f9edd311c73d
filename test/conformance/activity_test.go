package conformance

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// activityView is what these tests read of the activity of a queue.
type activityView struct {
	At    time.Time
	Total struct {
		Waiting             string
		Reasons             []struct{ Reason, Tasks string }
		OldestWaitingSince  time.Time `json:"oldest_waiting_since"`
		OldestWaitingTaskID string    `json:"oldest_waiting_task_id"`
		Lately              struct{ Submitted, Cancelled string }
	}
	Queues []struct {
		Queue  string
		Paused bool
	}
	Steps []struct{ Submitted, Waiting string }
}

func (p *place) activity() (v activityView) {
	p.t.Helper()
	p.call("GET", "/activity?queue="+p.queue, nil).ok(http.StatusOK).into(&v)
	return v
}

func TestActivityTellsWhyTasksWaitAndWhatHappened(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	if v := p.activity(); v.Total.Waiting != "0" || len(v.Total.Reasons) != 0 || !v.Total.OldestWaitingSince.IsZero() {
		t.Errorf("an empty queue has %+v", v.Total)
	}
	first := p.submit(nil)
	p.submit(nil)
	p.submit(object{"delay_ms": 3_600_000})
	v := p.activity()
	reasons := map[string]string{}
	for _, r := range v.Total.Reasons {
		reasons[r.Reason] = r.Tasks
	}
	if v.Total.Waiting != "3" || reasons["no_capable_worker"] != "2" || reasons["delayed"] != "1" || len(reasons) != 2 {
		t.Errorf("waiting: %+v", v.Total)
	}
	if v.Total.OldestWaitingTaskID != first.ID || v.Total.OldestWaitingSince.After(v.At) {
		t.Errorf("the oldest is %s since %s, want %s", v.Total.OldestWaitingTaskID, v.Total.OldestWaitingSince, first.ID)
	}
	p.cancel(first.ID)
	v = p.activity()
	if v.Total.Lately.Submitted != "3" || v.Total.Lately.Cancelled != "1" {
		t.Errorf("lately: %+v", v.Total.Lately)
	}
	if n := len(v.Steps); n == 0 || v.Steps[n-1].Waiting != "2" {
		t.Errorf("steps: %+v", v.Steps)
	}
	p.call("POST", "/queues/"+p.queue+":pause", nil).ok(http.StatusOK)
	if v = p.activity(); len(v.Queues) != 1 || !v.Queues[0].Paused || len(v.Total.Reasons) != 2 {
		t.Errorf("a paused queue: %+v", v)
	}
	p.call("GET", "/activity?queue=nobody", nil).refused("not_found")
	p.call("GET", "/activity?queue=no%20name", nil).violates("/query/queue")
}

func TestAWaitForATimeCanBeEnded(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	late := p.submit(object{"delay_ms": 3_600_000})
	p.waits(late.ID, "delayed")
	p.act(late.ID, "run", object{"expected_revision": "7"}).refused("revision_conflict")
	p.act(late.ID, "run", object{"note": "it is time"}, "Idempotency-Key: run").ok(http.StatusOK)
	p.waits(late.ID, "no_capable_worker")
	if facts := p.facts(late.ID, "made_available"); len(facts) != 1 || facts[0]["note"] != "it is time" {
		t.Errorf("facts %v", facts)
	}
	// Once more, and by a repeat: nothing is left to end.
	p.act(late.ID, "run", object{}).ok(http.StatusOK)
	p.act(late.ID, "run", object{"note": "it is time"}, "Idempotency-Key: run").ok(http.StatusOK)
	if facts := p.facts(late.ID, "made_available"); len(facts) != 1 {
		t.Errorf("facts %v", facts)
	}
	p.cancel(late.ID)
	p.act(late.ID, "run", object{}).refused("conflict")
}

func TestListsAreCutByTimeAndErrorCode(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	one, two, three := p.submit(nil), p.submit(nil), p.submit(nil)
	created := func(id string) string {
		var v struct {
			CreatedAt string `json:"created_at"`
		}
		p.call("GET", "/tasks/"+id, nil).ok(http.StatusOK).into(&v)
		return v.CreatedAt
	}
	list := func(query url.Values) string {
		query.Set("queue", p.queue)
		var v struct{ Tasks []struct{ ID string } }
		p.call("GET", "/tasks?"+query.Encode(), nil).ok(http.StatusOK).into(&v)
		var ids []string
		for _, task := range v.Tasks {
			ids = append(ids, task.ID)
		}
		return strings.Join(ids, " ")
	}
	from, until := created(two.ID), created(three.ID)
	for _, c := range []struct {
		query url.Values
		want  string
	}{
		{url.Values{"created_from": {from}}, three.ID + " " + two.ID},
		{url.Values{"created_until": {until}}, two.ID + " " + one.ID},
		{url.Values{"created_from": {from}, "created_until": {until}}, two.ID},
		{url.Values{"created_from": {until}, "created_until": {from}}, ""},
		{url.Values{"error_code": {"nothing_has_it"}}, ""},
	} {
		if got := list(c.query); got != c.want {
			t.Errorf("%v: %q, want %q", c.query, got, c.want)
		}
	}
	var dry struct{ Matched int }
	p.call("POST", "/tasks:bulk", object{"action": "cancel", "dry_run": true, "filter": object{"queue": p.queue, "created_from": from, "created_until": until}}).
		ok(http.StatusOK).into(&dry)
	if dry.Matched != 1 {
		t.Errorf("a bulk action would meet %d tasks", dry.Matched)
	}
	p.call("GET", "/tasks?created_from=yesterday", nil).violates("/query/created_from")
	p.call("GET", "/tasks?error_code=no%20code", nil).violates("/query/error_code")
	p.call("POST", "/tasks:bulk", object{"action": "cancel", "filter": object{"created_from": "yesterday"}}).violates("/filter/created_from")
}
