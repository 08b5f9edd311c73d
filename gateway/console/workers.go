package console

import (
	"net/http"
	"net/url"
)

type workersPage struct {
	Workers []*worker
	Queues  []string
	Queue   string
	Next    string
}

func (v *visit) workers() error {
	q := v.r.URL.Query()
	p := workersPage{Queue: q.Get("queue")}
	ask := url.Values{"limit": {"100"}}
	for _, name := range []string{"queue", "cursor"} {
		if value := q.Get(name); value != "" {
			ask.Set(name, value)
		}
	}
	var list workerList
	if err := v.read(v.in("workers"), ask, &list); err != nil {
		return err
	}
	p.Workers = list.Workers
	if list.NextCursor != "" {
		p.Next = v.path("workers") + "?" + url.Values{"queue": {p.Queue}, "cursor": {list.NextCursor}}.Encode()
		if p.Queue == "" {
			p.Next = v.path("workers") + "?cursor=" + url.QueryEscape(list.NextCursor)
		}
	}
	var err error
	if p.Queues, err = v.queueNames(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "workers", true
	return v.render(http.StatusOK, "workers", "Workers", p)
}

func (v *visit) worker() error {
	var w worker
	if err := v.read(v.in("workers", v.r.PathValue("id")), nil, &w); err != nil {
		return err
	}
	if _, err := v.counted(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "workers", true
	return v.render(http.StatusOK, "worker", "Worker "+short(w.InstanceID), w)
}

func (v *visit) doDrain() error {
	id := v.r.PathValue("id")
	if err := v.post(v.in("workers", id)+":drain", nil, nil); err != nil {
		return err
	}
	return v.done(v.back(), "Worker "+short(id)+" gets no new task and finishes what it has.")
}
