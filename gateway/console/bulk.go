package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// bulkPage is what a bulk action would meet, and then what it did.
type bulkPage struct {
	Action  string
	Filter  filter
	IDs     []string
	Matched int
	More    bool // there are more than were counted
	States  []stateCount
	Sample  []bulkResult
	Note    string
	Back    string
	Fault   *problem

	// Of a retry: how many are RECONCILE_ONLY, and of these were done or may have been.
	Careful, Doubtful int

	Done   int // after it
	Failed []bulkResult
	Whole  bool // all that were selected were tried
}

type stateCount struct {
	State string
	Tasks int
}

const (
	sampleMax = 10
	// bulkRounds bounds the requests of one form; each acts on 10,000 tasks.
	bulkRounds = 10
	// failedShown bounds the tasks listed that an action was refused for.
	failedShown = 50
)

// bulk counts first and asks: nothing is done by looking at this page.
func (v *visit) bulk() error {
	q := v.r.URL.Query()
	p := bulkPage{Action: q.Get("action"), Filter: v.filter(q), IDs: q["id"]}
	p.Back = v.path("tasks") + "?" + p.Filter.Query()
	body, err := p.request()
	if err != nil {
		return err
	}
	body["dry_run"] = true
	var out bulkAnswer
	if err := v.call(http.MethodPost, v.in("tasks:bulk"), nil, body, &out); err != nil {
		if p.Fault = asProblem(err); p.Fault == nil {
			return err
		}
	}
	p.Matched, p.More = out.Matched, out.NextCursor != ""
	count := map[string]int{}
	for _, r := range out.Results {
		if r.Error != nil {
			continue
		}
		count[r.State]++
		t := task{State: r.State, RecoverySafety: r.RecoverySafety, EffectUncertain: r.EffectUncertain}
		if p.Action == "retry" && t.RecoverySafety == "RECONCILE_ONLY" && t.Over() {
			p.Careful++
			if t.TwiceInDoubt() {
				p.Doubtful++
			}
		}
	}
	for state, tasks := range count {
		p.States = append(p.States, stateCount{state, tasks})
	}
	slices.SortFunc(p.States, func(a, b stateCount) int { return cmp.Or(b.Tasks-a.Tasks, cmp.Compare(a.State, b.State)) })
	p.Sample = out.Results[:min(len(out.Results), sampleMax)]
	v.frame.Here = "tasks"
	return v.render(http.StatusOK, "bulk", p.title(), p)
}

func (p *bulkPage) title() string {
	if p.Action == "retry" {
		return "Retry tasks"
	}
	return "Cancel tasks"
}

// request is the body of the API's bulk request.
func (p *bulkPage) request() (map[string]any, error) {
	if p.Action != "cancel" && p.Action != "retry" {
		return nil, &problem{Status: http.StatusBadRequest, Title: "Nothing to do", Detail: "A bulk action is cancel or retry."}
	}
	body := map[string]any{"action": p.Action}
	if len(p.IDs) > 0 {
		body["ids"] = p.IDs
	} else {
		body["filter"] = p.Filter.body()
	}
	if p.Note != "" {
		body["note"] = p.Note
	}
	return body, nil
}

// doBulk acts, page by page, and says what became of it.
func (v *visit) doBulk() error {
	form := v.r.PostForm
	p := bulkPage{Action: form.Get("action"), Filter: v.filter(form), IDs: form["id"], Note: form.Get("note")}
	p.Back = v.path("tasks") + "?" + p.Filter.Query()
	body, err := p.request()
	if err != nil {
		return err
	}
	key := v.operation()
	for round := range bulkRounds {
		var out bulkAnswer
		each := key
		if key != "" {
			each += "." + strconv.Itoa(round)
		}
		err := v.keyed(each, http.MethodPost, v.in("tasks:bulk"), url.Values{}, body, &out)
		if err != nil && round == 0 {
			return err
		}
		if err != nil {
			if p.Fault = asProblem(err); p.Fault == nil {
				return err
			}
			break
		}
		p.Matched += out.Matched
		p.Done += out.Done
		for _, r := range out.Results {
			if r.Error != nil && len(p.Failed) < failedShown {
				p.Failed = append(p.Failed, r)
			}
		}
		if p.Whole = out.NextCursor == ""; p.Whole {
			break
		}
		body["cursor"] = out.NextCursor
	}
	v.frame.Here = "tasks"
	return v.render(http.StatusOK, "bulk-done", p.title(), p)
}
