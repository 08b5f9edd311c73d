package httpapi

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

func TestWhatLeadsNowhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct {
		method, target string
		status         int
		allow          string
	}{
		{"GET", "/nowhere", 404, ""},
		{"GET", "/v1", 404, ""},
		{"GET", "/v1/", 404, ""},
		{"GET", "//v1/namespaces", 404, ""},
		{"GET", "/v1/namespaces/", 404, ""},
		{"GET", "/v1/namespaces//tasks", 404, ""},
		{"GET", "/v1/namespaces/default/../default/tasks", 404, ""},
		{"GET", "/v1%2Fnamespaces", 404, ""},
		{"GET", "/v1/Namespaces", 404, ""},
		{"POST", taskPath + ":explode", 404, ""},
		{"POST", taskPath + ":", 404, ""},
		{"GET", "/v1/namespaces/default/tasks:bulk:x", 404, ""},
		{"GET", "/a/b/c/d/e/f/g/h/i/j", 404, ""},
		{"GET", taskPath + ":cancel", 405, "POST"},
		{"POST", taskPath, 405, "GET, HEAD"},
		{"PATCH", queuePath, 405, "DELETE, GET, HEAD, PUT"},
		{"OPTIONS", tasksPath, 405, "POST"},
		{"POST", "/v1/namespaces", 405, "GET, HEAD"},
		{"TRACE", "/healthz", 405, "GET, HEAD"},
		{"HEAD", "/v1/namespaces/default/events", 405, "GET"},
		{"CONNECT", "/v1/namespaces", 405, "GET, HEAD"},
		{"get", "/healthz", 405, "GET, HEAD"},
	} {
		req := httptest.NewRequest("GET", "http://h/", nil)
		req.Method, req.URL.Path = c.method, c.target
		if p, raw, ok := strings.Cut(c.target, "%2F"); ok {
			req.URL.Path, req.URL.RawPath = p+"/"+raw, c.target
		}
		w := newRecorder()
		r.handler.ServeHTTP(w, req)
		if c.method != "HEAD" && problemOf(t, w).Status != c.status {
			t.Errorf("%s %s: %s", c.method, c.target, w.Body)
		}
		if w.Code != c.status || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, Allow %q", c.method, c.target, w.Code, w.Header().Get("Allow"))
		}
		if strings.HasPrefix(c.target, "/v1/") && w.Header().Get("X-Pulse-Index") != "77" {
			t.Errorf("%s %s has no X-Pulse-Index", c.method, c.target)
		}
	}
}

func TestAHEADIsAGETWithoutABody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	get, head := r.do("GET", taskPath, ""), r.do("HEAD", taskPath, "")
	if head.Code != 200 || head.Body.Len() != 0 || head.Header().Get("Content-Length") != get.Header().Get("Content-Length") {
		t.Errorf("%d %d %v", head.Code, head.Body.Len(), head.Header())
	}
}

func TestAKeyInAPathIsOneSegment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for escaped, want := range map[string]string{
		"a%2Fb": "a/b", "%2F": "/", "..": "..", "%2E%2E": "..", "a%2fb%2Fc": "a/b/c", "a:free": "a:free", "a%3Afree": "a:free",
		"a+b": "a+b", "100%25": "100%", "%C3%A4": "ä", "a%20b": "a b", "a%3Fb": "a?b", "a%23b": "a#b", ".": ".", "watch": "watch",
	} {
		if w := r.do("GET", keysPath+"/"+escaped, ""); w.Code != 200 {
			t.Errorf("GET %s: %d %s", escaped, w.Code, w.Body)
			continue
		}
		if w := r.do("POST", keysPath+"/"+escaped+":free", `{"note":"n"}`); w.Code != 200 {
			t.Errorf("POST %s: %d %s", escaped, w.Code, w.Body)
			continue
		}
		q, c := r.asked(), r.commanded()
		if got := q[len(q)-1].GetGetKey().Key; got != want {
			t.Errorf("GET %s reads %q", escaped, got)
		}
		if got := c[len(c)-1].GetFreeKey().Key; got != want {
			t.Errorf("POST %s frees %q", escaped, got)
		}
	}
	if w := r.do("GET", keysPath+"/a/b", ""); w.Code != 404 {
		t.Errorf("two segments: %d", w.Code)
	}
}

func TestFreshnessIsPassedOnByEveryRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := 0
	for _, g := range goldens {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		if g.method != "GET" || route.public() || route.waits || slices.Contains([]string{"list-members", "debug-node", "list-refused", "get-caller", "get-log-level"}, route.id) {
			continue // the last are of this node, which has no index of its own
		}
		n++
		path, _, _ := strings.Cut(g.target, "?")
		w := r.do("GET", path+"?consistency=stale&min_index=1234", "")
		q := r.asked()
		if last := q[len(q)-1]; w.Code != 200 || last.Consistency != pb.Consistency_CONSISTENCY_STALE || last.MinIndex != 1234 ||
			w.Header().Get("X-Pulse-Consistency") != "stale" || w.Header().Get("X-Pulse-Age-Ms") != "12" || w.Header().Get("X-Pulse-Index") != "79" {
			t.Errorf("%s: %d %v %v", route.pattern, w.Code, last, w.Header())
		}
		w = r.do("GET", path+"?consistency=linearizable", "")
		if w.Code != 200 || w.Header().Get("X-Pulse-Consistency") != "linearizable" || w.Header().Get("X-Pulse-Term") != "3" {
			t.Errorf("%s: %d %v", route.pattern, w.Code, w.Header())
		}
	}
	if n < 13 {
		t.Errorf("only %d reads", n)
	}
}

func TestEveryChangeTakesAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	for _, g := range goldens {
		if g.method == "GET" || strings.HasPrefix(g.name, "bulk_dry") || strings.HasSuffix(g.name, "dry_run") {
			continue
		}
		r := newRig(t)
		r.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
			out := make([]*pb.Result, len(cmds))
			for i := range cmds {
				out[i] = sampleResult(cmds[i])
				out[i].Replayed = true
			}
			return out, nil
		}
		if route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath()); route.unkeyed {
			continue
		}
		w := r.do(g.method, g.target, g.body, "Idempotency-Key", "the-key")
		for _, c := range r.commanded() {
			if !strings.HasPrefix(c.IdempotencyKey, "the-key") || len(c.ContentHash) != 32 {
				t.Errorf("%s: key %q, content of %d bytes", g.name, c.IdempotencyKey, len(c.ContentHash))
			}
		}
		if !strings.HasPrefix(g.name, "bulk") && w.Header().Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: a replay is not marked", g.name)
		}
	}
}

// as is a rig in which everybody is one caller.
func as(t *testing.T, grants ...access.Grant) *rig {
	t.Helper()
	return newRig(t, func(o *Options) {
		o.Authenticate = func(*http.Request) (session.Identity, *schema.Error) {
			return session.Identity{Principal: "token/1", Grants: grants}, nil
		}
	})
}

func TestEveryRouteHasALineInTheTableAndEveryLineARoute(t *testing.T) {
	t.Parallel()
	left := maps.Clone(access.HTTP)
	for _, route := range newRig(t).handler.routes() {
		rule, listed := left[route.id]
		delete(left, route.id)
		if !listed || rule.Permission == "" || rule.Permission == access.Node {
			t.Errorf("%s (%s) has no line of its own in schema/access: say who may use it", route.id, route.pattern)
		}
		if named := strings.HasPrefix(route.path, inNamespace); named != (rule.Scope == access.Namespaced) && rule.Permission != access.Command {
			t.Errorf("%s names a namespace: %v, and its scope is %v", route.id, named, rule.Scope)
		}
	}
	for id := range left {
		t.Errorf("the table has a line for %s, which is no route", id)
	}
}

// A route that somebody forgets to list serves nobody, an admin neither.
func TestARouteWithoutALineServesNobody(t *testing.T) {
	t.Parallel()
	r := as(t, access.All...)
	route, _, _ := r.handler.mux.find("GET", taskPath)
	route.rule = access.HTTP["forgotten"]
	if w := r.do("GET", taskPath, ""); w.Code != http.StatusForbidden {
		t.Errorf("it answers %d", w.Code)
	}
}

// Every method is tried as every role, in the namespace it acts in, in another one
// and in all of them. What the table says is held against access's golden matrix.
func TestEveryMethodAsEveryRole(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{}
	for _, role := range append([]access.Role{""}, access.Roles...) {
		for _, where := range []string{"default", "other", access.Everywhere} {
			r := as(t, access.Grant{Role: role, Namespace: where})
			for _, g := range goldens {
				route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
				tried[route.id] = true
				has := role.Contains(route.rule.Permission)
				want := route.public() || has && (where == access.Everywhere || route.rule.Scope == access.Filtered || route.rule.Scope == access.Namespaced && where == "default")
				if g.name == "create_token" && where == "other" {
					want = false // it gives rights in default
				}
				before := len(r.commanded()) + len(r.asked())
				w := r.do(g.method, g.target, g.body)
				if (w.Code != http.StatusForbidden) != want || w.Code == http.StatusUnauthorized {
					t.Errorf("%s as %s@%s: %d", g.name, role, where, w.Code)
				}
				if !want && len(r.commanded())+len(r.asked()) != before {
					t.Errorf("%s as %s@%s was refused and asked the state", g.name, role, where)
				}
			}
		}
	}
	for id := range access.HTTP {
		if !tried[id] && !slices.Contains([]string{opWatchTask, opWatchNamespace, "openapi", "docs"}, id) {
			t.Errorf("%s was not tried: give it a golden request", id)
		}
	}
}

func TestAWatchIsRefusedAtItsStartAndOnResume(t *testing.T) {
	t.Parallel()
	r := as(t, access.Grant{Role: access.Admin, Namespace: "other"})
	for _, target := range []string{taskPath + "/watch", "/v1/namespaces/default/events", "/v1/namespaces/default/events?after=1.0", taskPath + "?wait_state=terminal"} {
		for _, headers := range [][]string{nil, {"Last-Event-ID", "1.0.1"}} {
			if w := r.do("GET", target, "", headers...); w.Code != http.StatusForbidden || len(r.asked()) != 0 {
				t.Errorf("GET %s with %v: %d", target, headers, w.Code)
			}
		}
	}
}

func TestACallerSeesItsNamespacesAndAWorkerItsQueues(t *testing.T) {
	t.Parallel()
	r := as(t, access.Grant{Role: access.Reader, Namespace: "other"})
	if w := r.do("GET", "/v1/namespaces", ""); w.Body.String() != `{"namespaces":[]}` {
		t.Errorf("it sees %s", w.Body)
	}
	for namespace, want := range map[string]bool{"other": true, "default": false} {
		w := r.do("GET", "/v1/caller?namespace="+namespace, "")
		if got := w.Body.String(); strings.Contains(got, `"list-tasks"`) != want || !strings.Contains(got, `"get-caller"`) || strings.Contains(got, "pause-queue") || strings.Contains(got, "healthz") {
			t.Errorf("a reader of other may use in %s: %s", namespace, got)
		}
	}
	for queue, status := range map[string]int{"default": http.StatusOK, "other": http.StatusForbidden} {
		r := as(t, access.Grant{Role: access.Worker, Namespace: "default", Queues: []string{queue}})
		w := r.do("GET", queuePath, "")
		if w.Code != status || status == http.StatusForbidden && !strings.Contains(w.Body.String(), "--grant reader@default/default") == strings.Contains(w.Body.String(), "--grant") {
			t.Errorf("a worker of queue %s looks for default: %d %s", queue, w.Code, w.Body)
		}
		if w := r.do("GET", "/v1/namespaces/default/queues", ""); w.Code != http.StatusForbidden {
			t.Errorf("it lists queues: %d", w.Code)
		}
	}
}

func TestFailedAuthenticationsAreCounted(t *testing.T) {
	t.Parallel()
	left := 2
	r := newRig(t, func(o *Options) {
		o.Authenticate = nobody
		o.Unauthenticated = func(*http.Request) bool { left--; return left >= 0 }
	})
	var got []int
	for range 3 {
		got = append(got, r.do("GET", taskPath, "").Code)
	}
	if !slices.Equal(got, []int{401, 401, 429}) {
		t.Errorf("answers %v", got)
	}
}

func TestAFaultIsAnsweredAndLogged(t *testing.T) {
	t.Parallel()
	seen := 0
	r := newRig(t, func(o *Options) {
		o.Observe = func(method, route string, status int, _ time.Duration) {
			seen = status
			if method != "GET" || route != "GET "+ofTask {
				t.Errorf("observed %s %s", method, route)
			}
		}
	})
	r.read = func(context.Context, *pb.Query) (*pb.Answer, error) { panic("a bug") }
	w := r.do("GET", taskPath, "")
	if p := problemOf(t, w); w.Code != 500 || p.Code != "internal" || strings.Contains(p.Detail, "bug") || seen != 500 {
		t.Errorf("%d %+v, observed %d", w.Code, p, seen)
	}
	if r.handler.InFlight() != 0 {
		t.Error("it is still counted")
	}
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.InFlightMax = 1 })
		release := make(chan struct{})
		r.read = func(_ context.Context, q *pb.Query) (*pb.Answer, error) {
			<-release
			return sampleAnswer(q), nil
		}
		done := make(chan int)
		go func() { done <- r.do("GET", taskPath, "").Code }()
		synctest.Wait()
		if w := r.do("GET", queuePath, ""); w.Code != 503 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("a second request: %d", w.Code)
		}
		if w := r.do("GET", "/healthz", ""); w.Code != 200 {
			t.Errorf("health: %d", w.Code)
		}
		close(release)
		if code := <-done; code != 200 {
			t.Errorf("the first: %d", code)
		}
		if w := r.do("GET", queuePath, ""); w.Code != 200 {
			t.Errorf("a third: %d", w.Code)
		}
	})
}

func TestBodiesAreBoundedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.BodyBytesMax = batchBytesMax })
		from, to := io.Pipe()
		req := request("POST", tasksPath+":batch", "{}")
		req.Body, req.ContentLength = from, -1
		done := make(chan int)
		go func() {
			w := newRecorder()
			r.handler.ServeHTTP(w, req)
			done <- w.Code
		}()
		synctest.Wait()
		if w := r.do("POST", tasksPath, task); w.Code != 503 {
			t.Errorf("a second body: %d", w.Code)
		}
		if w := r.do("POST", taskPath+":cancel", ""); w.Code != 200 {
			t.Errorf("no body: %d", w.Code)
		}
		_, _ = io.WriteString(to, `{"tasks":[]}`)
		_ = to.Close()
		if code := <-done; code != 200 {
			t.Errorf("the first: %d", code)
		}
		if w := r.do("POST", tasksPath, task); w.Code != 201 {
			t.Errorf("a third: %d", w.Code)
		}
	})
}

func TestABodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		err    error
		status int
	}{"cut": {io.ErrUnexpectedEOF, 400}, "late": {timeoutError{}, 408}, "left": {context.Canceled, 504}} {
		req := request("POST", tasksPath, task)
		req.Body, req.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(task[:10]), failing{c.err})), int64(len(task))
		w := newRecorder()
		r.handler.ServeHTTP(w, req)
		r.conforms(req, w)
		if w.Code != c.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if n := len(r.commanded()); n != 0 {
		t.Errorf("%d commands", n)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

type timeoutError struct{}

func (timeoutError) Error() string   { return "too late" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func TestABackupThatFailsIsNoAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cluster.backup = func(io.Writer) error { return schema.Errorf(schema.NoLeader, "none") }
	if w := r.do("GET", "/v1/cluster/backup", ""); w.Code != 503 || problemOf(t, w).Code != "no_leader" {
		t.Errorf("before the first byte: %d", w.Code)
	}
	r.cluster.backup = func(w io.Writer) error {
		_, _ = io.WriteString(w, "half of it")
		return errors.New("disk")
	}
	aborted := func() (aborted any) {
		defer func() { aborted = recover() }()
		r.handler.ServeHTTP(newRecorder(), request("GET", "/v1/cluster/backup", ""))
		return nil
	}()
	if aborted != http.ErrAbortHandler { //nolint:errorlint // the value itself is what net/http looks for
		t.Errorf("in the middle: %v", aborted)
	}
	r.cluster.backup = func(io.Writer) error { return nil }
	if w := r.do("GET", "/v1/cluster/backup", ""); w.Code != 200 {
		t.Errorf("then: %d", w.Code)
	}
}

func TestOneBackupAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.cluster.backup = func(io.Writer) error { <-release; return nil }
		done := make(chan int)
		go func() { done <- r.do("GET", "/v1/cluster/backup", "").Code }()
		synctest.Wait()
		if w := r.do("GET", "/v1/cluster/backup", ""); w.Code != 503 {
			t.Errorf("a second: %d", w.Code)
		}
		close(release)
		if code := <-done; code != 200 {
			t.Errorf("the first: %d", code)
		}
	})
}

func TestTheClusterIsSeenWithoutALeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
		return nil, schema.Errorf(schema.NoLeader, "none")
	}
	if w := r.do("GET", "/v1/cluster", ""); w.Code != 200 || strings.Contains(w.Body.String(), `"state":{`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.do("GET", "/v1/cluster?consistency=linearizable", ""); w.Code != 503 {
		t.Errorf("linearizable: %d", w.Code)
	}
	r.cluster.reasons = []string{"no leader is known"}
	w := r.do("GET", "/readyz", "")
	if got := decode[Readiness](t, w.Body.Bytes()); w.Code != 503 || got.Status != "not_ready" || len(got.Reasons) != 1 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %+v", w.Code, got)
	}
	if w := r.do("GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("health: %d", w.Code)
	}
}

func TestAProcessWithoutAClusterSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *Options) { o.Cluster, o.Metrics = nil, nil })
	for target, status := range map[string]int{"/v1/cluster": 409, "/v1/cluster/backup": 409, "/v1/cluster/debug": 409, "/v1/cluster/members": 409, "/metrics": 404, "/readyz": 200} {
		if w := r.do("GET", target, ""); w.Code != status {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	for target, body := range map[string]string{"/v1/cluster:transfer": "", "/v1/cluster:remove": `{"node_id":"a"}`} {
		if w := r.do("POST", target, body); w.Code != 409 || strings.Contains(w.Body.String(), `"retryable":true`) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
}

func TestServersComeAndGoAsTheNodeSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if w := r.do("POST", "/v1/cluster:remove", `{"node_id":"b"}`); w.Code != 200 || w.Body.String() != "{}" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.do("POST", "/v1/cluster:remove", `{"force":true}`); w.Code != 400 {
		t.Errorf("without a server: %d", w.Code)
	}
	if got := strings.Join(r.cluster.removed, ", "); got != "b false" {
		t.Errorf("removed %s", got)
	}
	for _, code := range []schema.Code{schema.Conflict, schema.NotFound, schema.NoLeader, schema.ResultUnknown} {
		r.cluster.refuse = schema.Errorf(code, "so it is")
		for target, body := range map[string]string{"/v1/cluster:transfer": "", "/v1/cluster:remove": `{"node_id":"b"}`} {
			if w := r.do("POST", target, body); w.Code != code.HTTPStatus() || problemOf(t, w).Code != string(code) {
				t.Errorf("%s: %s is answered with %d %s", target, code, w.Code, w.Body)
			}
		}
	}
	r.cluster.refuse = errors.New("no code")
	if w := r.do("POST", "/v1/cluster:remove", `{"node_id":"b"}`); problemOf(t, w).Code != string(schema.ResultUnknown) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestABrowserIsShownTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if w := r.do("GET", "/", "", "Accept", "text/html,*/*"); w.Code != 302 || w.Header().Get("Location") != "/docs" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestOptionsNameTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	good := func() Options { return Options{Backend: newBackend(), Logger: discard, Authenticate: nobody} }
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*Options){
		"Backend": func(o *Options) { o.Backend = nil }, "Logger": func(o *Options) { o.Logger = nil },
		"Authenticate": func(o *Options) { o.Authenticate = nil }, "CallTimeout": func(o *Options) { o.CallTimeout = -1 },
		"BatchTimeout": func(o *Options) { o.BatchTimeout = -1 }, "BodyWithin": func(o *Options) { o.BodyWithin = -1 },
		"WriteWithin": func(o *Options) { o.WriteWithin = -1 }, "Heartbeat": func(o *Options) { o.Heartbeat = -1 },
		"InFlightMax": func(o *Options) { o.InFlightMax = -1 }, "WaitersMax": func(o *Options) { o.WaitersMax = -1 },
		"BackupsMax": func(o *Options) { o.BackupsMax = -1 }, "BodyBytesMax": func(o *Options) { o.BodyBytesMax = 1 << 20 },
	} {
		o := good()
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := New(o); err == nil {
			t.Errorf("%s: New takes it", field)
		}
	}
}

func TestEveryFactCanBeWritten(t *testing.T) {
	t.Parallel()
	arms := (&pb.Fact{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range arms.Len() {
		field := arms.Get(i)
		fact := (&pb.Fact{}).ProtoReflect()
		message := fact.NewField(field).Message()
		members := message.Descriptor().Fields()
		for j := range members.Len() {
			setSomething(message, members.Get(j))
		}
		fact.Set(field, protoreflect.ValueOfMessage(message))
		w := writer{}
		w.openArray()
		w.fact(fact.Interface().(*pb.Fact))
		w.closeArray()
		got := decode[[]map[string]any](t, w.buf)
		if len(got) != 1 || got[0]["type"] != string(field.Name()) || len(got[0]) != members.Len()+1 {
			t.Errorf("%s is written as %s", field.Name(), w.buf)
		}
	}
}

// setSomething gives a member a value that is not its zero.
func setSomething(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch field.Kind() {
	case protoreflect.BytesKind:
		m.Set(field, protoreflect.ValueOfBytes(id(7)))
	case protoreflect.StringKind:
		m.Set(field, protoreflect.ValueOfString(`a "b"`))
	case protoreflect.BoolKind:
		m.Set(field, protoreflect.ValueOfBool(true))
	case protoreflect.EnumKind:
		m.Set(field, protoreflect.ValueOfEnum(1))
	case protoreflect.Uint32Kind:
		m.Set(field, protoreflect.ValueOfUint32(7))
	case protoreflect.Uint64Kind:
		m.Set(field, protoreflect.ValueOfUint64(7))
	case protoreflect.Int64Kind:
		m.Set(field, protoreflect.ValueOfInt64(testNow))
	default: // left out, so that the count shows it
	}
}
