package httpapi

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pulse/schema"
)

// bodyRoutes are all routes that read a body, each with one that is good.
func bodyRoutes(r *rig) []golden {
	var out []golden
	seen := map[string]bool{}
	for _, g := range goldens {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		if route.body != nil && !seen[route.id] {
			seen[route.id] = true
			if g.body == "" {
				g.body = "{}"
			}
			out = append(out, g)
		}
	}
	return out
}

// badBodies break the rules that all bodies are held to.
var badBodies = map[string]string{
	"an array":                   `[]`,
	"a string":                   `"x"`,
	"null":                       `null`,
	"a number":                   `7`,
	"only white space":           "  \n",
	"no end":                     `{"a":`,
	"something behind the value": `{} {}`,
	"a comma too many":           `{"a":1,}`,
	"a comment":                  `{/* */}`,
	"single quotes":              `{'a':1}`,
	"a byte order mark":          "\ufeff{}",
	"UTF-16":                     "\xfe\xff\x00{\x00}",
	"bytes that are no text":     "{\"note\":\"\xff\xfe\"}",
	"an overlong encoding":       "{\"note\":\"\xc0\xaf\"}",
	"a surrogate in UTF-8":       "{\"note\":\"\xed\xa0\x80\"}",
	"half a surrogate pair":      `{"note":"\ud800"}`,
	"the other half":             `{"note":"\udc00\ud800"}`,
	"a control character":        "{\"note\":\"a\x00b\"}",
	"a name given twice":         `{"note":"a","note":"b"}`,
	"a name given twice, hidden": `{"note":"a","n\u006fte":"b"}`,
	"an unknown member":          `{"colour":"red"}`,
	"an empty name":              `{"":1}`,
	"NaN":                        `{"priority":NaN}`,
	"Infinity":                   `{"priority":-Infinity}`,
	"a number out of range":      `{"priority":1e999999999}`,
	"a number far too long":      `{"priority":` + strings.Repeat("9", 100_000) + `}`,
	"a leading zero":             `{"priority":01}`,
	"hexadecimal":                `{"priority":0x10}`,
	"depth 100,000":              strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
	"depth 65 of arrays":         `{"payload":` + strings.Repeat("[", 66) + strings.Repeat("]", 66) + `}`,
	"wide":                       "{" + strings.TrimSuffix(strings.Repeat(`"a":1,`, 50_000), ",") + "}",
}

func TestBadBodiesAreRefusedOnEveryRoute(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	routes := bodyRoutes(r)
	if len(routes) < 14 {
		t.Fatalf("only %d routes read a body", len(routes))
	}
	for _, g := range routes {
		for name, body := range badBodies {
			w := r.do(g.method, g.target, body)
			p := problemOf(t, w)
			if w.Code != http.StatusBadRequest || p.Code != "invalid_argument" || p.Retryable || len(p.Violations) == 0 {
				t.Errorf("%s, %s: %d %s %q", g.name, name, w.Code, p.Code, p.Detail)
			}
			for _, v := range p.Violations {
				if v.Path != "" && v.Path[0] != '/' || v.Message == "" {
					t.Errorf("%s, %s: violation %+v", g.name, name, v)
				}
			}
		}
	}
	if n := len(r.commanded()); n > 0 {
		t.Errorf("%d commands came of bad input", n)
	}
}

func TestABodyHasToSayThatItIsJSON(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, g := range bodyRoutes(r) {
		for media, want := range map[string]int{
			"text/plain": 415, "application/x-www-form-urlencoded": 415, "multipart/form-data; boundary=x": 415, "": 415,
			"application/json; charset=latin1": 415, "application/jsonp": 415, ";;": 415,
			"application/json; charset=UTF-8": 200, "Application/JSON": 200,
		} {
			req := request(g.method, g.target, g.body)
			req.Header.Set("Content-Type", media)
			w := httptest.NewRecorder()
			r.handler.ServeHTTP(w, req)
			r.conforms(req, w)
			if ok := w.Code/100 == 2; ok != (want == 200) || !ok && w.Code != want {
				t.Errorf("%s as %q: %d %s", g.name, media, w.Code, w.Body)
			}
		}
		req := request(g.method, g.target, g.body, "Content-Encoding", "gzip")
		w := httptest.NewRecorder()
		if r.handler.ServeHTTP(w, req); w.Code != http.StatusUnsupportedMediaType {
			t.Errorf("%s compressed: %d", g.name, w.Code)
		}
	}
}

func TestABodyBeyondItsSizeIsRefusedUnread(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, g := range bodyRoutes(r) {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		// Declared too large: not a byte of it is asked for.
		req := request(g.method, g.target, "{}")
		read := &countingReader{from: strings.NewReader("{}")}
		req.Body, req.ContentLength = io.NopCloser(read), route.bodyMax+1
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, req)
		r.conforms(req, w)
		if w.Code != http.StatusRequestEntityTooLarge || problemOf(t, w).Code != "too_large" || read.n > 0 {
			t.Errorf("%s declared too large: %d, %d bytes read", g.name, w.Code, read.n)
		}
		// Undeclared: it is read to the limit and no further.
		req = request(g.method, g.target, "{}")
		read = &countingReader{from: endless{}}
		req.Body, req.ContentLength = io.NopCloser(read), -1
		w = httptest.NewRecorder()
		r.handler.ServeHTTP(w, req)
		if w.Code != http.StatusRequestEntityTooLarge || read.n > 2*route.bodyMax {
			t.Errorf("%s without end: %d, %d bytes read", g.name, w.Code, read.n)
		}
		// A limit itself is read.
		full := g.body + strings.Repeat(" ", int(route.bodyMax)-len(g.body))
		if w := r.do(g.method, g.target, full); w.Code/100 != 2 {
			t.Errorf("%s at the limit: %d %s", g.name, w.Code, w.Body)
		}
	}
	if held := r.handler.bodyBytes.Load(); held != 0 {
		t.Errorf("%d bytes of bodies are still counted", held)
	}
}

type countingReader struct {
	from io.Reader
	n    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestBadInputCostsLittleMemory(t *testing.T) {
	// Not parallel: it measures what the process allocates.
	r := newRig(t)
	for name, body := range badBodies {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := httptest.NewRecorder()
		started := time.Now()
		r.handler.ServeHTTP(w, request("POST", tasksPath, body))
		took := time.Since(started)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > uint64(8*len(body)+256<<10) {
			t.Errorf("%s: %d bytes were allocated for a body of %d", name, used, len(body))
		}
		if took > 10*time.Second { // 10 ms on a quiet machine; this one is shared
			t.Errorf("%s took %s", name, took)
		}
	}
}

func TestBusinessJSONComesBackByteForByte(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, payload := range []string{
		`1.50`, `-0`, `1E400000000`[:3] + `0`, `12345678901234567890`, `0.1000000000000000000000001`, `"\u0000"`, `"\u00e4\/\ud83d\ude00"`,
		`{ "b" : 1 , "a" : [ 1.0 , 2.50 ] }`, `"<&>\u2028"`, "\"\u2028\"", `[]`, `false`, "{\n\t\"a\":\r\n1}",
	} {
		w := r.do("POST", tasksPath, `{"handler":"h","handler_version":"1","payload_version":"1","payload": `+payload+` }`)
		if w.Code != http.StatusCreated || !bytes.Contains(w.Body.Bytes(), []byte(`"payload":`+payload+`,`)) {
			t.Errorf("%s came back otherwise: %d %s", payload, w.Code, w.Body)
		}
	}
	commands := r.commanded()
	if got := string(commands[0].GetSubmitTask().GetPayload()); got != "1.50" {
		t.Errorf("the log gets %q", got)
	}
}

func TestQueriesAreHeldToTheirParameters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for target, path := range map[string]string{
		"/v1/namespaces/default/tasks?stat=FAILED":                                          "/query/stat",
		"/v1/namespaces/default/tasks?state=failed":                                         "/query/state",
		"/v1/namespaces/default/tasks?state=":                                               "/query/state",
		"/v1/namespaces/default/tasks?limit=0":                                              "/query/limit",
		"/v1/namespaces/default/tasks?limit=1001":                                           "/query/limit",
		"/v1/namespaces/default/tasks?limit=1e2":                                            "/query/limit",
		"/v1/namespaces/default/tasks?limit=":                                               "/query/limit",
		"/v1/namespaces/default/tasks?limit=1&limit=2":                                      "/query/limit",
		"/v1/namespaces/default/tasks?queue=-x":                                             "/query/queue",
		"/v1/namespaces/default/tasks?handler=a%20b":                                        "/query/handler",
		"/v1/namespaces/default/tasks?concurrency_key=%20a":                                 "/query/concurrency_key",
		"/v1/namespaces/default/tasks?waiting_reason=bored":                                 "/query/waiting_reason",
		"/v1/namespaces/default/tasks?cursor=xyz":                                           "/query/cursor",
		"/v1/namespaces/default/tasks?consistency=eventual":                                 "/query/consistency",
		"/v1/namespaces/default/tasks?min_index=-1":                                         "/query/min_index",
		"/v1/namespaces/default/tasks?min_index=07":                                         "/query/min_index",
		"/v1/namespaces/default/tasks?min_index=0":                                          "", // sound: X-Pulse-Index may be 0
		"/v1/namespaces/default/tasks?a=%zz":                                                "/query",
		"/v1/namespaces/default/tasks?a;b":                                                  "/query",
		taskPath + "?wait_state=done":                                                       "/query/wait_state",
		taskPath + "?timeout_ms=5":                                                          "/query/timeout_ms",
		taskPath + "?wait_state=terminal&timeout_ms=600001":                                 "/query/timeout_ms",
		taskPath + "/events?cursor=AWV8AsBdnL4z8gAAAAAAAAAF":                                "", // sound
		"/v1/namespaces/default/tasks/" + idTwo + "/events?cursor=AWV8AsBdnL4z8gAAAAAAAAAE": "/query/cursor",
		"/v1/namespaces/default/events?after=x":                                             "/query/after",
		"/v1/namespaces/default/events?after=1.2.3.4":                                       "/query/after",
		"/v1/namespaces/-/tasks":                                                            "/path/ns",
		"/v1/namespaces/" + strings.Repeat("n", 64) + "/tasks":                              "/path/ns",
		"/v1/namespaces/a%2Fb/tasks":                                                        "/path/ns",
		"/v1/namespaces/default/tasks/" + strings.ToUpper(idOne[:31]) + "A":                 "/path/id",
		"/v1/namespaces/default/tasks/1":                                                    "/path/id",
		"/v1/namespaces/default/workers/zz":                                                 "/path/instance_id",
		keysPath + "/%20a":                                                                  "/path/key",
		keysPath + "/a%00":                                                                  "/path/key",
		keysPath + "/%ff":                                                                   "/path/key",
		keysPath + "/" + strings.Repeat("k", 192):                                           "/path/key",
	} {
		w := r.do("GET", target, "")
		if path == "" {
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", target, w.Code, w.Body)
			}
			continue
		}
		p := problemOf(t, w)
		if w.Code != http.StatusBadRequest || p.Code != string(schema.InvalidArgument) ||
			!slices.ContainsFunc(p.Violations, func(v Violation) bool { return v.Path == path }) {
			t.Errorf("%s: %d %+v, want a violation at %s", target, w.Code, p, path)
		}
	}
}

func TestAnIdempotencyKeyIsHeldToItsForm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, keys := range map[string][]string{
		"empty": {""}, "too long": {strings.Repeat("k", 256)}, "a blank": {"a b"}, "not ASCII": {"ä"}, "sent twice": {"a", "b"},
	} {
		var headers []string
		for _, key := range keys {
			headers = append(headers, "Idempotency-Key", key)
		}
		w := r.do("POST", tasksPath, task, headers...)
		if p := problemOf(t, w); w.Code != 400 || p.Violations[0].Path != "/header/Idempotency-Key" {
			t.Errorf("%s: %d %+v", name, w.Code, p)
		}
	}
	if w := r.do("POST", tasksPath, task, "Idempotency-Key", strings.Repeat("k", 255)); w.Code != http.StatusCreated {
		t.Errorf("255 characters: %d %s", w.Code, w.Body)
	}
	if w := r.do("GET", taskPath, "", "Idempotency-Key", "a b"); w.Code != http.StatusOK {
		t.Errorf("a read has no use for one: %d", w.Code)
	}
}
