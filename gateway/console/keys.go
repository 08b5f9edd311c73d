package console

import (
	"net/http"
	"net/url"
)

type keysPage struct {
	Keys []*key
	Next string
}

func (v *visit) keys() error {
	ask := url.Values{"limit": {"100"}}
	if cursor := v.r.URL.Query().Get("cursor"); cursor != "" {
		ask.Set("cursor", cursor)
	}
	var list keyList
	if err := v.read(v.in("keys"), ask, &list); err != nil {
		return err
	}
	p := keysPage{Keys: list.Keys}
	if list.NextCursor != "" {
		p.Next = v.path("keys") + "?cursor=" + url.QueryEscape(list.NextCursor)
	}
	if _, err := v.counted(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "keys", true
	return v.render(http.StatusOK, "keys", "Concurrency keys", p)
}

// keyPage is one key: who holds it, and who waits for it.
type keyPage struct {
	Key     key
	Holder  *task
	Waiters []*task
	More    bool
}

func (v *visit) key() error {
	name := v.r.URL.Query().Get("name")
	if name == "" {
		v.redirect(v.path("keys"))
		return nil
	}
	p := keyPage{}
	if err := v.read(v.in("keys", name), nil, &p.Key); err != nil {
		return err
	}
	if p.Key.HolderTaskID != "" {
		var t task
		if err := v.read(v.in("tasks", p.Key.HolderTaskID), nil, &t); err == nil {
			p.Holder = &t
		} else if fault := asProblem(err); fault == nil || fault.Code != "not_found" {
			return err
		}
	}
	var list taskList
	ask := url.Values{"concurrency_key": {name}, "state": {stateWaiting}, "limit": {"50"}}
	if err := v.read(v.in("tasks"), ask, &list); err != nil {
		return err
	}
	p.Waiters, p.More = list.Tasks, list.NextCursor != ""
	if _, err := v.counted(); err != nil {
		return err
	}
	v.frame.Here, v.frame.Live = "keys", true
	return v.render(http.StatusOK, "key", "Key "+name, p)
}

func (v *visit) doFree() error {
	name := v.r.PostForm.Get("name")
	var now key
	if err := v.post(v.in("keys", name)+":free", map[string]any{"note": v.r.PostForm.Get("note")}, &now); err != nil {
		return err
	}
	switch {
	case now.HolderTaskID != "":
		return v.done(v.keyPath(name), "The key went on to the next task that waited for it.")
	case now.Waiters > 0:
		return v.done(v.keyPath(name), "The key is free; the next task that waits for it may have it by now.")
	}
	return v.done(v.keyPath(name), "The key is free: nobody holds it or waits for it.")
}
