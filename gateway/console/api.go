package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// problem is an error as the API tells it (RFC 9457).
type problem struct {
	Status     int    `json:"status"`
	Title      string `json:"title"`
	Detail     string `json:"detail"`
	Code       string `json:"code"`
	Retryable  bool   `json:"retryable"`
	Violations []struct {
		Path    string `json:"path"`
		Message string `json:"message"`
	} `json:"violations"`
}

func (p *problem) Error() string { return p.Title + ": " + p.Detail }

// answer is what the API said, held in memory: the API bounds its answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// passed are the headers that say in whose name a request speaks.
var passed = []string{"Authorization", "X-Forwarded-For", "User-Agent"}

// call asks the API in the visitor's name, through the routes that everybody
// uses. body is JSON or nil; out takes the answer unless it is nil.
func (v *visit) call(method, path string, query url.Values, body, out any) error {
	return v.keyed("", method, path, query, body, out)
}

// keyed is call for a change that is made once however often its form is sent;
// an empty key is none.
func (v *visit) keyed(key, method, path string, query url.Values, body, out any) error {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := textOf(body)
		if err != nil {
			return fmt.Errorf("request to %s: %w", path, err)
		}
		content = bytes.NewReader(text)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(v.r.Context(), method, path, content)
	if err != nil {
		return fmt.Errorf("request to %s: %w", path, err)
	}
	r.RemoteAddr, r.Host, r.TLS, r.RequestURI = v.r.RemoteAddr, v.r.Host, v.r.TLS, path
	for _, name := range passed {
		if values := v.r.Header[name]; values != nil {
			r.Header[name] = values
		}
	}
	if v.session != "" && r.Header["Authorization"] == nil {
		r.Header.Set("Authorization", "Bearer "+v.session)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	if why := onRecord(v.r.PostForm.Get("why")); method != http.MethodGet && why != "" {
		r.Header.Set("X-Pulse-Note", why)
	}
	a := &answer{header: http.Header{}}
	v.h.opt.API.ServeHTTP(a, r)
	if a.status >= 400 {
		p := &problem{}
		if err := json.Unmarshal(a.body.Bytes(), p); err != nil || p.Title == "" {
			return fmt.Errorf("%s %s answered %d", method, path, a.status)
		}
		p.Status = a.status
		return p
	}
	if method != http.MethodGet {
		v.behind = a.header.Get("X-Pulse-Index")
	} else if age, err := strconv.ParseInt(a.header.Get("X-Pulse-Age-Ms"), 10, 64); err == nil {
		v.frame.Stale = max(v.frame.Stale, time.Duration(age)*time.Millisecond)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(a.body.Bytes(), out); err != nil {
		return fmt.Errorf("answer of %s: %w", path, err)
	}
	return nil
}

// read asks for what this node has applied: pages are looked at most when there
// is no leader, and say how old they are. What the visitor has changed is in it.
// What this node does not know may have been made through another a moment ago, so
// it is asked for once more where the newest state is.
func (v *visit) read(path string, query url.Values, out any) error {
	if query == nil {
		query = url.Values{}
	}
	query.Set("consistency", "stale")
	if v.behind != "" {
		query.Set("min_index", v.behind)
	}
	err := v.call(http.MethodGet, path, query, nil, out)
	if p := asProblem(err); p == nil || p.Status != http.StatusNotFound {
		return err
	}
	query.Del("consistency")
	again := v.call(http.MethodGet, path, query, nil, out)
	if p := asProblem(again); p != nil && p.Retryable {
		return err // nobody knows better now
	}
	return again
}

// post changes something, once for each form however often it is sent.
func (v *visit) post(path string, body, out any) error {
	return v.keyed(v.operation(), http.MethodPost, path, nil, body, out)
}

// in is a path of the API in this namespace; parts are escaped.
func (v *visit) in(parts ...string) string {
	out := "/v1/namespaces/" + url.PathEscape(v.ns)
	for _, part := range parts {
		out += "/" + url.PathEscape(part)
	}
	return out
}

// asProblem is what the API meant, or nil if the error is of another kind.
func asProblem(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	return nil
}

// textOf is a body as it goes out.
func textOf(body any) ([]byte, error) {
	if w, ok := body.(spliced); ok {
		return w.raw()
	}
	return json.Marshal(body)
}

// onRecord is a reason as a header can carry it.
func onRecord(why string) string { return strings.Join(strings.Fields(why), " ") }
