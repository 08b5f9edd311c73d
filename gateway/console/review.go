package console

import (
	"fmt"
	"net/http"
	"net/url"
)

// reviewPage is what nobody but a person can decide, with all that is known.
type reviewPage struct {
	Items []reviewItem
	Next  string
	First string
	One   bool // a single task was asked for
	Gone  *task
}

type reviewItem struct {
	Task     *task
	Attempts []*attempt
	Why      string
	Late     int // finishes that came too late: what reviewers look for
	KeyHeld  bool
	Past     bool // its deadline: a retry needs a new one
}

// pageReviews is small: each item is read with its attempts.
const pageReviews = "20"

func (v *visit) review() error {
	q := v.r.URL.Query()
	p := reviewPage{}
	var list taskList
	if id := q.Get("id"); id != "" {
		p.One = true
		var one task
		if err := v.read(v.in("tasks", id), nil, &one); err != nil {
			return err
		}
		if one.State == stateReview {
			list.Tasks = []*task{&one}
		} else {
			p.Gone = &one
		}
	} else {
		ask := url.Values{"state": {stateReview}, "limit": {pageReviews}}
		if cursor := q.Get("cursor"); cursor != "" {
			ask.Set("cursor", cursor)
			p.First = v.path("review")
		}
		if err := v.read(v.in("tasks"), ask, &list); err != nil {
			return err
		}
		if list.NextCursor != "" {
			p.Next = v.path("review") + "?cursor=" + url.QueryEscape(list.NextCursor)
		}
	}
	for _, t := range list.Tasks {
		item, err := v.reviewItem(t)
		if err != nil {
			return err
		}
		p.Items = append(p.Items, item)
	}
	v.frame.Here, v.frame.Live = "review", true
	v.frame.Review = uint64(len(p.Items))
	if _, err := v.counted(); err != nil {
		return err
	}
	return v.render(http.StatusOK, "review", "Review inbox", p)
}

// counted fills the menu's count of what waits for a decision.
func (v *visit) counted() ([]queue, error) {
	var list struct{ Queues []queue }
	if err := v.read(v.in("queues"), nil, &list); err != nil {
		return nil, err
	}
	v.frame.Review = 0
	for _, q := range list.Queues {
		v.frame.Review += q.NeedsReview
	}
	return list.Queues, nil
}

func (v *visit) reviewItem(t *task) (reviewItem, error) {
	item := reviewItem{Task: t, Past: t.DeadlineAt.Before(v.now)}
	var attempts struct{ Attempts []*attempt }
	if err := v.read(v.in("tasks", t.ID, "attempts"), nil, &attempts); err != nil {
		return item, err
	}
	for i := len(attempts.Attempts) - 1; i >= 0; i-- {
		a := attempts.Attempts[i]
		item.Attempts = append(item.Attempts, a)
		item.Late += len(a.Evidence)
	}
	if len(item.Attempts) > 0 {
		a := item.Attempts[0]
		item.Why = words(a.EndCause)
		if a.EndCause == "" {
			item.Why = "an earlier run is uncertain"
		}
	}
	if t.ConcurrencyKey != "" {
		var k key
		if err := v.read("/v1/namespaces/"+url.PathEscape(v.ns)+"/keys/"+url.PathEscape(t.ConcurrencyKey), nil, &k); err != nil {
			return item, err
		}
		item.KeyHeld = k.HolderTaskID == t.ID
	}
	return item, nil
}

// doReview settles the tasks that were selected, each for itself.
func (v *visit) doReview() error {
	form := v.r.PostForm
	ids := form["id"]
	if len(ids) == 0 {
		return &problem{Status: http.StatusBadRequest, Title: "No task was selected", Detail: "Tick those that the decision is about. Nothing was done."}
	}
	body := map[string]any{"decision": form.Get("decision"), "note": form.Get("note")}
	if code := form.Get("error_code"); code != "" && form.Get("decision") == stateFailed {
		body["error_code"] = code
	}
	done, failed := 0, ""
	for _, id := range ids {
		key := v.operation()
		if key != "" {
			key += "." + id
		}
		err := v.keyed(key, http.MethodPost, v.in("tasks", id)+":review", nil, body, nil)
		p := asProblem(err)
		switch {
		case err == nil:
			done++
		case p == nil || done == 0 && failed == "" && p.Code == "invalid_argument":
			return err // the decision itself is not one: none of them was settled
		case failed == "":
			failed = short(id) + ": " + p.Detail
		}
	}
	text := fmt.Sprintf("%s settled.", plural(done, "task"))
	if failed != "" {
		text += fmt.Sprintf(" %d could not be; the first is %s.", len(ids)-done, failed)
	}
	v.leave(v.back(), notice{Text: text, Bad: failed != "", Index: v.behind})
	return nil
}
