package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// hostile is what somebody might send to be shown: markup, the ends of what it
// may stand in, and a template.
const hostile = `</pre></td><script>alert(1)</script><img src=x onerror="alert(2)">'"&{{.}}` + "\u2028"

const idOne = "0199f3c2a1b87d4e9a0b1c2d3e4f5061"

// fakeAPI answers as a node would on which everything a user may choose is
// hostile, and remembers what it was asked.
type fakeAPI struct {
	mu     sync.Mutex
	asked  []*http.Request
	bodies []string
	broken int // status of every answer, if not 0
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.asked = append(f.asked, r)
	f.bodies = append(f.bodies, string(body))
	broken := f.broken
	f.mu.Unlock()
	w.Header().Set("X-Pulse-Index", "77")
	if broken != 0 {
		w.WriteHeader(broken)
		_ = json.NewEncoder(w).Encode(map[string]any{"title": "No leader", "detail": hostile, "code": "no_leader", "retryable": true})
		return
	}
	now := time.Now().UTC()
	key, _ := json.Marshal(hostile)
	task := fmt.Sprintf(`{"id":%q,"namespace":"default","queue":"default","state":"NEEDS_REVIEW","revision":"18446744073709551615","handler":"charge","handler_version":"1",
		"payload_version":"1","payload":{"big":12345678901234567890.10,"text":%s},"result":%s,"business_key":%s,"concurrency_key":%s,"error_code":"x","available_at":%q,
		"deadline_at":%q,"created_at":%q,"updated_at":%q,"recovery_safety":"RECONCILE_ONLY","retry":{"max_attempts":3},"attempt_count":1,"effect_uncertain":true,
		"review_since":"2030-01-02T03:04:05Z","decision":{"decision":"RETRY","by":%s,"by_name":%s,"at":"2030-01-02T03:04:06Z","note":%s}}`,
		idOne, key, key, key, key, now.Format(time.RFC3339), now.Format(time.RFC3339), now.Format(time.RFC3339), now.Format(time.RFC3339), key, key, key)
	standing := fmt.Sprintf(`"waiting":"9007199254740993","reasons":[{"reason":"no_capable_worker","tasks":"9007199254740993"}],"leased":"0","running":"0","needs_review":"1","slots":"0","slots_used":"0",
		"lately":{"submitted":"0","started":"0","succeeded":"0","failed":"0","cancelled":"0","reviews_needed":"0","attempts_failed":"1"},"errors":[{"code":%s,"attempts":"1"}]`, key)
	path := r.URL.EscapedPath()
	switch {
	case strings.HasSuffix(path, "/activity"):
		fmt.Fprintf(w, `{"at":%q,"since":%q,"step_ms":5000,"keys_held":"0","total":{%s},"queues":[{"queue":%s,"paused":true,%s}],"steps":[]}`,
			now.Format(time.RFC3339), now.Format(time.RFC3339), standing, key, standing)
	case path == "/v1/cluster":
		fmt.Fprintf(w, `{"node":{"id":%s,"role":"leader","term":"1","leader_id":%s,"ready":false,"not_ready":[%s],"applied_index":"1","commit_index":"1","last_log_index":"1","snapshot_index":"0"}}`, key, key, key)
	case path == "/v1/cluster/members":
		fmt.Fprintf(w, `{"members":[{"id":%s,"role":"voter","voter":true,"leader":true,"alive":true,"version":%s}]}`, key, key)
	case path == "/v1/caller":
		if auth := r.Header.Get("Authorization"); auth != "" && auth != "Bearer good" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"title":"Unauthorized","detail":"no","code":"unauthenticated"}`)
			return
		}
		fmt.Fprintf(w, `{"principal":%s,"grants":[{"role":"admin","namespace":%s}]}`, key, key)
	case path == "/v1/tokens" && r.Method == http.MethodPost:
		fmt.Fprintf(w, `{"id":%q,"name":%s,"token":"pulse_the_secret","grants":[]}`, idOne, key)
	case path == "/v1/tokens":
		fmt.Fprintf(w, `{"tokens":[{"id":%q,"name":%s,"created_by":%s,"grants":[{"role":"worker","namespace":%s,"queues":[%s]}]}]}`, idOne, key, key, key, key)
	case path == "/v1/audit":
		fmt.Fprintf(w, `{"changes":[{"position":"1","principal":%s,"token_name":%s,"action":%s,"target":%s,"detail":%s,"note":%s,"request_id":%s}],"next_cursor":%s}`, key, key, key, key, key, key, key, key)
	case path == "/v1/audit/refused":
		fmt.Fprintf(w, `{"unauthenticated":"1","forbidden":"2","rate_limited":"3","newest":[{"code":"forbidden","principal":%s,"address":%s,"method":%s}]}`, key, key, key)
	case path == "/v1/namespaces":
		fmt.Fprintf(w, `{"namespaces":[{"name":%s,"queues":1}]}`, key)
	case strings.HasSuffix(path, "/queues"):
		fmt.Fprintf(w, `{"queues":[{"name":%s,"revision":"1","max_waiting":"1","waiting":"1","active":"0","needs_review":"1"}]}`, key)
	case strings.Contains(path, "/queues/"):
		fmt.Fprintf(w, `{"name":%s,"revision":"1","max_waiting":"1","waiting":"1","active":"0","needs_review":"1"}`, key)
	case strings.HasSuffix(path, "tasks:bulk"):
		fmt.Fprintf(w, `{"action":"cancel","matched":1,"done":0,"failed":1,"results":[{"task_id":%q,"error":{"title":"Conflict","detail":%s}}]}`, idOne, key)
	case strings.HasSuffix(path, "/tasks"):
		fmt.Fprintf(w, `{"tasks":[%s]}`, task)
	case strings.HasSuffix(path, "/attempts"):
		fmt.Fprintf(w, `{"attempts":[{"id":%q,"epoch":"9007199254740993","state":"UNKNOWN","number":1,"instance_id":%q,"leased_at":%q,"started_at":%q,"ended_at":%q,"lease_until":%q,
			"error_code":%s,"end_cause":%s,"result":%s,"receipts":[],"evidence":[{"outcome":"SUCCEEDED","error_code":%s,"result":%s,"instance_id":%q,"at":%q}]}]}`,
			idOne, idOne, now.Format(time.RFC3339), now.Format(time.RFC3339), now.Add(time.Second).Format(time.RFC3339), now.Format(time.RFC3339), key, key, key, key, key, idOne, now.Format(time.RFC3339))
	case strings.HasSuffix(path, "/events"):
		fmt.Fprintf(w, `{"events":[{"index":"1","revision":"1","type":%s,"state":"NEEDS_REVIEW","time":%q,"operator":%s,"facts":[{"type":"reviewed","note":%s}]}]}`, key, now.Format(time.RFC3339), key, key)
	case strings.HasSuffix(path, "/workers"):
		fmt.Fprintf(w, `{"workers":[{"instance_id":%q,"queue":%s,"state":"connected","capacity":1,"gateway_id":%s,"peer":%s,"capabilities":[{"handler":%s,"handler_version":"1","payload_version":"1"}]}]}`, idOne, key, key, key, key)
	case strings.Contains(path, "/workers/"):
		fmt.Fprintf(w, `{"instance_id":%q,"queue":%s,"state":"connected","capacity":1,"gateway_id":%s,"capabilities":[],"leases":[{"task_id":%q,"state":"RUNNING","handler":%s}]}`, idOne, key, key, idOne, key)
	case strings.HasSuffix(path, "/keys"):
		fmt.Fprintf(w, `{"keys":[{"key":%s,"holder_task_id":%q,"token":"9007199254740993","waiters":"1"}]}`, key, idOne)
	case strings.Contains(path, "/keys/"):
		fmt.Fprintf(w, `{"key":%s,"holder_task_id":%q,"token":"9007199254740993","waiters":"1"}`, key, idOne)
	case strings.HasSuffix(path, "/schedules:preview"):
		fmt.Fprintf(w, `{"upcoming":[%q]}`, now.Format(time.RFC3339))
	case strings.HasSuffix(path, "/schedules/none") && r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"title":"Not found","code":"not_found"}`)
	case strings.HasSuffix(path, "/schedules"):
		fmt.Fprintf(w, `{"schedules":[%s]}`, fakeSchedule(key))
	case strings.Contains(path, "/schedules/") && !strings.Contains(path, ":"):
		fmt.Fprint(w, fakeSchedule(key))
	default:
		fmt.Fprint(w, task)
	}
}

func fakeSchedule(key []byte) string {
	return fmt.Sprintf(`{"id":%q,"name":%s,"revision":"18446744073709551615","state":"active","cron":%s,"time_zone":%s,"jitter_ms":5000,"overlap":"buffer_one","catch_up_window_ms":5400000,
		"start_at":"2030-01-02T03:04:05.678901Z","max_fires":"1000000","paused":false,"next_at":"2030-01-02T03:04:05Z","upcoming":["2030-01-02T03:04:05Z"],
		"task":{"queue":%s,"handler":%s,"handler_version":"2","payload_version":"3","payload":{"big":12345678901234567890.10,"text":%s},"concurrency_key":%s,"priority":7,"recovery_safety":"RECONCILE_ONLY",
		"deadline_ms":60000,"retry":{"max_attempts":4,"attempt_timeout_ms":90000}},"open_tasks":"1","fired":"9007199254740993","ordered":"0","skipped":"0","missed":"0","refused":"1",
		"recent":[{"nominal_at":"2029-01-02T03:04:05Z","at":"2029-01-02T03:04:05Z","outcome":"refused","reason":"conflict","message":%s}]}`, idOne, key, key, key, key, key, key, key, key)
}

func (f *fakeAPI) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*http.Request(nil), f.asked...)
}

func newConsole(t *testing.T) (*Handler, *fakeAPI) {
	t.Helper()
	api := &fakeAPI{}
	h, err := New(Options{API: api, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return h, api
}

func get(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// screens are all pages that are looked at.
var screens = []string{
	"/console/ns/default/", "/console/ns/default/tasks", "/console/ns/default/tasks?state=WAITING&queue=" + url.QueryEscape(hostile),
	"/console/ns/default/tasks/" + idOne, "/console/ns/default/bulk?action=cancel&handler=" + url.QueryEscape(hostile), "/console/ns/default/review",
	"/console/ns/default/review?id=" + idOne, "/console/ns/default/workers", "/console/ns/default/workers/" + idOne, "/console/ns/default/keys",
	"/console/ns/default/key?name=" + url.QueryEscape(hostile), "/console/ns/default/queues", "/console/ns/default/queues/default",
	"/console/ns/default/schedules", "/console/ns/default/schedules/nightly", "/console/ns/default/schedule", "/console/ns/default/schedule?name=nightly",
	"/console/cluster", "/console/access", "/console/access?all=1&action=" + url.QueryEscape(hostile), "/console/login?back=" + url.QueryEscape(hostile), "/console/nothing?" + url.QueryEscape(hostile),
}

var (
	inlineScript = regexp.MustCompile(`(?i)<script(?:[^>]*)>\s*[^<\s]`)
	handlerAttr  = regexp.MustCompile(`(?i)<[^>]*\son[a-z]+\s*=`)
	styleAttr    = regexp.MustCompile(`(?i)<style|<[^>]*\sstyle\s*=`)
	elsewhere    = regexp.MustCompile(`(?i)\s(?:src|href|action)\s*=\s*"(?:[a-z]+:|//)`)
	attrValue    = regexp.MustCompile(`"[^"]*"`)
	strayTag     = regexp.MustCompile(`(?i)<img|<script>|onerror\s*=\s*""`)
	scriptTag    = regexp.MustCompile(`(?i)<script[^>]*>`)
)

func TestNothingThatUsersHaveSentBecomesMarkup(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	for _, path := range screens {
		w := get(h, path)
		if w.Code >= 500 {
			t.Errorf("%s answers %d", path, w.Code)
		}
		page := w.Body.String()
		// The values of attributes are text, as long as no quote is in them, which
		// would show in what is left.
		bare := attrValue.ReplaceAllString(page, `""`)
		for name, found := range map[string]string{
			"a script in the page": inlineScript.FindString(bare), "a handler attribute": handlerAttr.FindString(bare),
			"a style in the page": styleAttr.FindString(bare), "an address elsewhere": elsewhere.FindString(page),
			"a tag of a user's": strayTag.FindString(bare),
		} {
			if found != "" {
				t.Errorf("%s has %s: %s", path, name, found)
			}
		}
		for _, tag := range scriptTag.FindAllString(page, -1) {
			if !strings.HasPrefix(tag, `<script src="/console/static/`) {
				t.Errorf("%s has %s", path, tag)
			}
		}
	}
}

func TestPagesSayWhatABrowserMayDo(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	for _, path := range append([]string{h.assets["console.js"].url}, screens...) {
		header := get(h, path).Header()
		csp := header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy %q lacks %s", path, csp, want)
			}
		}
		if strings.Contains(csp, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, header)
		}
	}
}

func TestLargeNumbersAreShownExactly(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	for path, want := range map[string][]string{
		"/console/ns/default/tasks/" + idOne:  {"12345678901234567890.10", "9007199254740993", "18446744073709551615"},
		"/console/ns/default/review":          {"12345678901234567890.10", "9007199254740993"},
		"/console/ns/default/keys":            {"9007199254740993"},
		"/console/ns/default/":                {"9\u202f007\u202f199\u202f254\u202f740\u202f993"},
		"/console/ns/default/key?name=anykey": {"9007199254740993"},
	} {
		page := get(h, path).Body.String()
		for _, number := range want {
			if !strings.Contains(page, number) {
				t.Errorf("%s does not show %s", path, number)
			}
		}
	}
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	links := regexp.MustCompile(`(?:href|action)="(/console[^"#]*)"`)
	seen := map[string]bool{}
	for _, from := range screens {
		for _, m := range links.FindAllStringSubmatch(get(h, from).Body.String(), -1) {
			to := strings.ReplaceAll(m[1], "&amp;", "&")
			if seen[to] || strings.Contains(to, "onerror") {
				continue // what hostile names make of a path is not a page
			}
			seen[to] = true
			w := get(h, to)
			post := w.Code == http.StatusNotFound || w.Code == http.StatusMethodNotAllowed
			if post { // a form's action
				r := httptest.NewRequest(http.MethodPost, to, nil)
				w = httptest.NewRecorder()
				h.ServeHTTP(w, r)
				post = w.Code == http.StatusNotFound
			}
			if post {
				t.Errorf("%s leads to %s, which is not there", from, to)
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d links were followed", len(seen))
	}
}

// form posts one as a browser would that has been on a page before.
func form(h http.Handler, path string, cookie string, values url.Values, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if cookie != "" {
		r.AddCookie(&http.Cookie{Name: tokenCookie, Value: cookie})
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var posts = []string{
	"/console/ns/default/tasks/" + idOne + "/cancel", "/console/ns/default/tasks/" + idOne + "/retry", "/console/ns/default/tasks/" + idOne + "/run", "/console/ns/default/tasks/" + idOne + "/review",
	"/console/ns/default/bulk", "/console/ns/default/review", "/console/ns/default/workers/" + idOne + "/drain", "/console/ns/default/key/free",
	"/console/ns/default/queues/default", "/console/ns/default/schedules/nightly", "/console/ns/default/schedule", "/console/cluster/transfer",
}

func TestAChangeIsTakenFromOurOwnPagesAlone(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("t", 43)
	values := url.Values{tokenField: {token}, "action": {"cancel"}, "id": {idOne}, "decision": {"FAILED"}, "note": {"n"}, "error_code": {"e"}, "name": {"k"}, "revision": {"1"}, "do": {"pause"}}
	for _, path := range posts {
		for name, c := range map[string]struct {
			cookie  string
			token   string
			headers []string
			ok      bool
		}{
			"from our page":                   {token, token, []string{"Sec-Fetch-Site", "same-origin"}, true},
			"from an old browser":             {token, token, []string{"Origin", "http://example.com"}, true},
			"of another site":                 {token, token, []string{"Sec-Fetch-Site", "cross-site"}, false},
			"of a sibling":                    {token, token, []string{"Sec-Fetch-Site", "same-site"}, false},
			"of another origin":               {token, token, []string{"Origin", "https://evil.example"}, false},
			"without a token":                 {token, "", []string{"Sec-Fetch-Site", "same-origin"}, false},
			"with another token":              {token, strings.Repeat("u", 43), []string{"Sec-Fetch-Site", "same-origin"}, false},
			"without a cookie":                {"", token, []string{"Sec-Fetch-Site", "same-origin"}, false},
			"with an empty cookie and token":  {"", "", nil, false},
			"with a short cookie and a token": {"a", "a", nil, false},
		} {
			h, api := newConsole(t)
			values.Set(tokenField, c.token)
			w := form(h, path, c.cookie, values, c.headers...)
			changed := false
			for _, r := range api.requests() {
				changed = changed || r.Method != http.MethodGet
			}
			if changed != c.ok || (w.Code == http.StatusForbidden) == c.ok {
				t.Errorf("%s, a form %s: status %d, and the API was asked to change something: %v", path, name, w.Code, changed)
			}
		}
	}
}

func TestTheAPIIsAskedInTheVisitorsName(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	get(h, "/console/ns/default/tasks", "Authorization", "Bearer abc", "Idempotency-Key", "mine")
	for _, r := range api.requests() {
		if r.Header.Get("Authorization") != "Bearer abc" || r.RemoteAddr != "192.0.2.1:1234" || r.Host != "example.com" || r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s: %v from %s for %s", r.URL, r.Header, r.RemoteAddr, r.Host)
		}
		if r.URL.Query().Get("consistency") != "stale" && r.URL.Path != "/v1/caller" {
			t.Errorf("%s would wait for a leader", r.URL)
		}
	}
	if len(api.requests()) == 0 {
		t.Error("nothing was asked")
	}
}

func TestAFormSentTwiceIsOneOperation(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	token := strings.Repeat("t", 43)
	values := url.Values{tokenField: {token}, operationField: {"abcdefghijklmnopqrstuvwxyz"}}
	for range 2 {
		if w := form(h, posts[1], token, values); w.Code != http.StatusSeeOther {
			t.Fatalf("status %d", w.Code)
		}
	}
	asked := api.requests()
	if len(asked) != 2 || asked[0].Header.Get("Idempotency-Key") == "" || asked[0].Header.Get("Idempotency-Key") != asked[1].Header.Get("Idempotency-Key") {
		t.Errorf("%d requests with keys %q", len(asked), asked[0].Header.Get("Idempotency-Key"))
	}
}

func TestWhatWasChangedIsInWhatIsShownNext(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	token := strings.Repeat("t", 43)
	w := form(h, posts[0], token, url.Values{tokenField: {token}})
	cookie := ""
	for _, c := range w.Result().Cookies() {
		if c.Name == noticeCookie {
			cookie = c.Value
		}
	}
	get(h, w.Header().Get("Location"), "Cookie", noticeCookie+"="+cookie)
	last := api.requests()[len(api.requests())-2] // the last asks what the visitor may do
	if got := last.URL.Query().Get("min_index"); got != "77" {
		t.Errorf("after a change at index 77 min_index is %q", got)
	}
}

// A page of a task says who decided about it, and one of a review since when it is
// asked, whatever changed meanwhile.
func TestAPageTellsWhoDecidedAndSinceWhenItIsAsked(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	escaped := template.HTMLEscapeString(hostile)
	for path, want := range map[string][]string{
		"/console/ns/default/tasks/" + idOne: {"Decided by", "reviewed it: it is to run again", "2030-01-02 03:04:06", "<q>" + escaped + "</q>"},
		"/console/ns/default/review":         {`asked <time datetime="2030-01-02T03:04:05Z"`},
	} {
		page := get(h, path).Body.String()
		for _, text := range want {
			if !strings.Contains(page, text) {
				t.Errorf("%s does not show %q:\n%s", path, text, page)
			}
		}
	}
}

func TestAReviewsResultKeepsItsText(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	token := strings.Repeat("t", 43)
	w := form(h, posts[3], token, url.Values{tokenField: {token}, "decision": {"SUCCEEDED"}, "note": {"<seen>"}, "result": {`{"booked": 12.50, "ref": 12345678901234567890}`}})
	if w.Code != http.StatusSeeOther || !strings.Contains(api.bodies[0], `"result":{"booked": 12.50, "ref": 12345678901234567890}`) || !json.Valid([]byte(api.bodies[0])) {
		t.Errorf("status %d, the API got %s", w.Code, api.bodies[0])
	}
	h, api = newConsole(t)
	if w := form(h, posts[3], token, url.Values{tokenField: {token}, "decision": {"SUCCEEDED"}, "note": {"n"}, "result": {`{},"note":"x"`}}); w.Code != http.StatusBadRequest || len(api.requests()) != 0 {
		t.Errorf("a result that is not JSON: status %d, %d requests", w.Code, len(api.requests()))
	}
}

// Two people decide about a task at the same time: the second is told so.
func TestWhoDecidesAboutWhatHasChangedIsToldSo(t *testing.T) {
	t.Parallel()
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			new(fakeAPI).ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]any{"title": "Revision conflict", "detail": "the task is at revision 5", "code": "revision_conflict"})
	})
	h, err := New(Options{API: api, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	token := strings.Repeat("t", 43)
	w := form(h, posts[3], token, url.Values{tokenField: {token}, "decision": {"SUCCEEDED"}, "note": {"seen"}})
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "Somebody has changed it since you opened the page") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

func TestANodeWithoutALeaderSaysSo(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	api.broken = http.StatusServiceUnavailable
	w := get(h, "/console/ns/default/")
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "No leader") || strings.Contains(w.Body.String(), "<img") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// behind is a node that has not applied yet what the leader, if there is one, knows.
type behind struct {
	API    http.Handler
	leader int // status of what needs one; 0 if it answers
}

func (b behind) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status := b.leader
	if r.URL.Query().Get("consistency") == "stale" {
		status = http.StatusNotFound
	}
	if status == 0 || !strings.HasSuffix(r.URL.Path, "/tasks/"+idOne) {
		b.API.ServeHTTP(w, r)
		return
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": fmt.Sprintf("Status %d", status), "retryable": status == http.StatusServiceUnavailable})
}

func TestWhatAnotherNodeHasJustTakenIsShown(t *testing.T) {
	t.Parallel()
	for leader, want := range map[int]int{0: http.StatusOK, http.StatusNotFound: http.StatusNotFound, http.StatusServiceUnavailable: http.StatusNotFound} {
		h, err := New(Options{API: behind{new(fakeAPI), leader}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if w := get(h, "/console/ns/default/tasks/"+idOne); w.Code != want {
			t.Errorf("the leader says %d, the page %d: %s", leader, w.Code, w.Body)
		}
	}
}

// What somebody may not do is not offered.
func TestAReaderIsOfferedWhatReadersMay(t *testing.T) {
	t.Parallel()
	api := new(fakeAPI)
	reader := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/caller" {
			fmt.Fprint(w, `{"principal":"token/1","grants":[{"role":"reader","namespace":"default"}],"methods":["list-tasks"]}`)
			return
		}
		api.ServeHTTP(w, r)
	})
	h, err := New(Options{API: reader, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	everything, _ := newConsole(t)
	for _, path := range screens {
		if strings.Contains(path, "/bulk") || strings.Contains(path, "/schedule?") || strings.HasSuffix(path, "/schedule") || strings.Contains(path, "/login") || strings.Contains(path, "/nothing") {
			continue // asked for by hand
		}
		if got := get(h, path); got.Code != http.StatusOK || strings.Contains(got.Body.String(), `method="post"`) {
			t.Errorf("%s: %d %s", path, got.Code, got.Body)
		}
		if strings.Contains(path, "/queues") && !strings.Contains(get(everything, path).Body.String(), `method="post"`) {
			t.Errorf("%s offers an admin nothing", path)
		}
	}
	for _, r := range api.requests() {
		if r.URL.Path == "/v1/tokens" || strings.HasPrefix(r.URL.Path, "/v1/audit") {
			t.Errorf("%s was asked for and would be counted as refused", r.URL.Path)
		}
	}
}

// The reason that somebody gives goes on record with what is done.
func TestReasonsGoOnRecord(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	token := strings.Repeat("t", 43)
	w := form(h, "/console/access", token, url.Values{tokenField: {token}, "do": {"revoke"}, "id": {idOne}, "why": {" she has\r\nleft "}})
	if w.Code != http.StatusSeeOther {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	asked := api.requests()
	if got := asked[len(asked)-1].Header["X-Pulse-Note"]; len(got) != 1 || got[0] != "she has left" {
		t.Errorf("on record: %q", got)
	}
}

func TestFilesAreServedUnderTheirHashAlone(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	for name, a := range h.assets {
		w := get(h, a.url)
		if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") || w.Header().Get("Content-Type") != a.media {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		if w := get(h, "/console/static/"+name); w.Code != http.StatusNotFound {
			t.Errorf("%s is served without its hash: %d", name, w.Code)
		}
	}
	// Every page names files that are there: a name that is not gives "".
	err := fs.WalkDir(templateFiles, "templates", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := templateFiles.ReadFile(path)
		for _, m := range regexp.MustCompile(`asset "([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			if _, ok := h.assets[m[1]]; !ok {
				t.Errorf("%s uses %s, which is not there", path, m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestBackLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("t", 43)
	for _, to := range []string{"https://evil.example", "//evil.example", "/\\evil.example", "/v1/cluster", "/console/\r\nX: y", ""} {
		h, _ := newConsole(t)
		w := form(h, posts[6], token, url.Values{tokenField: {token}, "back": {to}})
		if at := w.Header().Get("Location"); !strings.HasPrefix(at, "/console/ns/default/") {
			t.Errorf("back %q leads to %q", to, at)
		}
	}
}

func TestDurationsAndNumbersRead(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 s", 400 * time.Microsecond: "<1 ms", 81 * time.Millisecond: "81 ms", 1500 * time.Millisecond: "1.5 s", 30 * time.Second: "30 s",
		5*time.Minute + 4*time.Second: "5 min 4 s", 3 * time.Hour: "3 h", 49 * time.Hour: "2 d 1 h", -time.Second: "−1 s",
	} {
		if got := span(d); got != want {
			t.Errorf("%s reads %q, want %q", time.Duration(d), got, want)
		}
	}
	if got := number(uint64(1234567)); got != "1\u202f234\u202f567" {
		t.Errorf("%q", got)
	}
	if got := quote(`it's "1" $x`); got != `'it'\''s "1" $x'` {
		t.Errorf("%s", got)
	}
}
