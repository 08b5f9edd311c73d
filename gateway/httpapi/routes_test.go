package httpapi

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"pulse/gateway/session"
	"pulse/schema"
	"pulse/schema/access"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var discard = slog.New(slog.DiscardHandler)

func nobody(*http.Request) (session.Identity, *schema.Error) {
	return session.Identity{}, schema.Errorf(schema.Unauthenticated, "nobody may")
}

const (
	tasksPath    = "/v1/namespaces/default/queues/default/tasks"
	taskPath     = "/v1/namespaces/default/tasks/" + idOne
	queuePath    = "/v1/namespaces/default/queues/default"
	schedulePath = "/v1/namespaces/default/schedules/nightly"
	keysPath     = "/v1/namespaces/default/keys"
	task         = `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount": 1.50}}`
)

// golden is one request that is kept with its answer and what the backend was
// asked.
type golden struct {
	name, method, target, body string
	headers                    []string
}

var goldens = []golden{
	{"submit", "POST", tasksPath, `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount": 1.50},
		"business_key":"b","priority":3,"available_at":"2030-01-01T00:00:00Z","start_deadline_at":"2030-01-02T00:00:00Z","deadline_at":"2030-01-03T00:00:00Z",
		"recovery_safety":"RECONCILE_ONLY","retry":{"max_attempts":5,"initial_delay_ms":0},"concurrency_key":"account/7"}`, []string{"Idempotency-Key", "k1"}},
	{"submit_delayed", "POST", tasksPath, strings.TrimSuffix(task, "}") + `,"delay_ms":1500,"retry":{"max_delay_ms":1,"attempt_timeout_ms":2}}`, nil},
	{"batch", "POST", tasksPath + ":batch", `{"tasks":[` + task + `,{"handler":"x"},` + task + `]}`, []string{"Idempotency-Key", "k2"}},
	{"list_tasks", "GET", "/v1/namespaces/default/tasks?queue=q&state=WAITING&state=FAILED,RUNNING&handler=h&business_key=b&concurrency_key=c&waiting_reason=key_held&limit=2&consistency=stale&min_index=70", "", nil},
	{"list_tasks_of_a_time", "GET", "/v1/namespaces/default/tasks?state=FAILED&error_code=card_refused&created_from=2030-01-01T00:00:00Z&created_until=2030-01-02T00:00:00.5Z", "", nil},
	{"get_task", "GET", taskPath, "", nil},
	{"list_attempts", "GET", taskPath + "/attempts", "", nil},
	{"list_events", "GET", taskPath + "/events?limit=4", "", nil},
	{"cancel", "POST", taskPath + ":cancel", "", []string{"Idempotency-Key", "k3"}},
	{"cancel_expecting", "POST", taskPath + ":cancel", `{"expected_revision":"4","note":"no longer needed"}`, nil},
	{"retry", "POST", taskPath + ":retry", `{"note":"try again"}`, nil},
	{"run", "POST", taskPath + ":run", `{"note":"the mail server is back"}`, nil},
	{"review_succeeded", "POST", taskPath + ":review", `{"decision":"SUCCEEDED","note":"seen","result":{"a" : 1.50},"expected_revision":"4"}`, nil},
	{"review_failed", "POST", taskPath + ":review", `{"decision":"FAILED","note":"seen","error_code":"card_refused"}`, nil},
	{"review_retry", "POST", taskPath + ":review", `{"decision":"RETRY","note":"seen","deadline_at":"2030-02-01T00:00:00Z"}`, nil},
	{"bulk_ids", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"retry","ids":["` + idOne + `","` + idTwo + `"],"note":"again"}`, []string{"Idempotency-Key", "k4"}},
	{"bulk_filter", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","filter":{"queue":"q"}}`, nil},
	{"bulk_of_a_time", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"retry","filter":{"error_code":"card_refused","created_from":"2030-01-01T00:00:00Z","created_until":"2030-01-02T00:00:00Z"}}`, nil},
	{"bulk_dry_run", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","ids":["` + idOne + `"],"dry_run":true}`, nil},
	{"list_queues", "GET", "/v1/namespaces/default/queues", "", nil},
	{"put_queue", "PUT", queuePath, `{"max_active":5,"paused":true,"default_retry":{"max_attempts":1}}`, []string{"Idempotency-Key", "k5"}},
	{"put_queue_expecting", "PUT", queuePath, `{"expected_revision":"2","max_waiting":"12"}`, nil},
	{"get_queue", "GET", queuePath, "", nil},
	{"get_backlog", "GET", queuePath + "/backlog", "", nil},
	{"delete_queue", "DELETE", queuePath + "?expected_revision=2", "", []string{"Idempotency-Key", "k6"}},
	{"pause_queue", "POST", queuePath + ":pause", `{"expected_revision":"2"}`, nil},
	{"resume_queue", "POST", queuePath + ":resume", "", nil},
	{"list_schedules", "GET", "/v1/namespaces/default/schedules?limit=1", "", nil},
	{"put_schedule", "PUT", schedulePath, `{"cron":"30 2 * * 1-5","time_zone":"America/New_York","overlap":"buffer_one","jitter_ms":5000,"max_fires":"100","start_at":"2030-01-01T00:00:00Z","task":{"handler":"report","handler_version":"1","payload_version":"1","payload":{"n" : 1.50},"concurrency_key":"report","recovery_safety":"RECONCILE_ONLY","retry":{"max_attempts":2},"deadline_ms":60000}}`, []string{"Idempotency-Key", "k7"}},
	{"put_schedule_interval", "PUT", schedulePath, `{"every_ms":60000,"paused":true,"expected_revision":"3","task":{"queue":"mail","handler":"report","handler_version":"1","payload_version":"1","payload":{}}}`, nil},
	{"get_schedule", "GET", schedulePath + "?upcoming=2", "", nil},
	{"delete_schedule", "DELETE", schedulePath + "?expected_revision=3", "", nil},
	{"pause_schedule", "POST", schedulePath + ":pause", `{"expected_revision":"3","note":"holidays"}`, nil},
	{"resume_schedule", "POST", schedulePath + ":resume", "", nil},
	{"trigger_schedule", "POST", schedulePath + ":trigger", `{"allow_overlap":true,"note":"now"}`, []string{"Idempotency-Key", "k8"}},
	{"backfill_schedule", "POST", schedulePath + ":backfill", `{"from":"2030-01-01T00:00:00Z","until":"2030-01-02T00:00:00Z","note":"outage"}`, nil},
	{"backfill_schedule_dry_run", "POST", schedulePath + ":backfill", `{"from":"2030-01-01T00:00:00Z","until":"2030-01-02T00:00:00Z","dry_run":true}`, nil},
	{"preview_schedule", "POST", "/v1/namespaces/default/schedules:preview", `{"cron":"@daily","limit":2}`, nil},
	{"list_namespaces", "GET", "/v1/namespaces", "", nil},
	{"put_namespace", "PUT", "/v1/namespaces/default", "{}", nil},
	{"get_namespace", "GET", "/v1/namespaces/default", "", nil},
	{"delete_namespace", "DELETE", "/v1/namespaces/default", "", nil},
	{"get_activity", "GET", "/v1/namespaces/default/activity?queue=default", "", nil},
	{"list_workers", "GET", "/v1/namespaces/default/workers?queue=default", "", nil},
	{"get_worker", "GET", "/v1/namespaces/default/workers/" + idOne, "", nil},
	{"drain_worker", "POST", "/v1/namespaces/default/workers/" + idOne + ":drain", "", nil},
	{"list_keys", "GET", keysPath, "", nil},
	{"get_key", "GET", keysPath + "/account%2F7%3Afree%20%C3%A4", "", nil},
	{"free_key", "POST", keysPath + "/account%2F7:free", `{"note":"worker is gone"}`, nil},
	{"put_namespace_quota", "PUT", "/v1/namespaces/default", `{"quota":{"tasks_waiting":"12","workers":3}}`, []string{"Idempotency-Key", "k7", "X-Pulse-Note", "a large customer", "X-Request-Id", "r-1"}},
	{"create_token", "POST", "/v1/tokens", `{"name":"ci","grants":[{"role":"submitter","namespace":"default"},{"role":"worker","namespace":"default","queues":["default"]}],"expires_at":"2030-01-01T00:00:00Z"}`, nil},
	{"list_tokens", "GET", "/v1/tokens?limit=3", "", nil},
	{"get_token", "GET", "/v1/tokens/" + idOne, "", nil},
	{"revoke_token", "POST", "/v1/tokens/" + idOne + ":revoke", "", []string{"Idempotency-Key", "k8"}},
	{"get_caller", "GET", "/v1/caller", "", nil},
	{"get_caller_namespace", "GET", "/v1/caller?namespace=default", "", nil},
	{"list_audit", "GET", "/v1/audit?principal=token/1&action=pulse.queue.&target=default&from=2030-01-01T00:00:00Z&until=2030-01-02T00:00:00Z&limit=2", "", nil},
	{"list_refused", "GET", "/v1/audit/refused", "", nil},
	{"cluster", "GET", "/v1/cluster", "", nil},
	{"list_members", "GET", "/v1/cluster/members", "", nil},
	{"transfer_leadership", "POST", "/v1/cluster:transfer", `{"node_id":"node-2"}`, nil},
	{"transfer_leadership_to_any", "POST", "/v1/cluster:transfer", "", nil},
	{"remove_server", "POST", "/v1/cluster:remove", `{"node_id":"node-2","force":true}`, nil},
	{"get_log_level", "GET", "/v1/cluster/log-level", "", nil},
	{"put_log_level", "PUT", "/v1/cluster/log-level", `{"level":"info"}`, nil},
	{"get_settings", "GET", "/v1/cluster/settings", "", nil},
	{"put_settings", "PUT", "/v1/cluster/settings", `{"event_retention_ms":3600000,"idempotency_keys_max":"20000000"}`, []string{"X-Pulse-Note", "one large import"}},
	{"get_profile", "GET", "/debug/pprof/nothing", "", nil},
	{"backup", "GET", "/v1/cluster/backup", "", nil},
	{"debug_node", "GET", "/v1/cluster/debug", "", nil},
	{"healthz", "GET", "/healthz", "", nil},
	{"readyz", "GET", "/readyz", "", nil},
	{"metrics", "GET", "/metrics", "", nil},
	{"home", "GET", "/", "", nil},
}

func TestRoutesAnswerAsTheyDid(t *testing.T) {
	t.Parallel()
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w := r.do(g.method, g.target, g.body, g.headers...)
			checkGolden(t, g.name, r.transcript(g, w))
		})
	}
}

// transcript is what went in and out.
func (r *rig) transcript(g golden, w *httptest.ResponseRecorder) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", g.method, g.target)
	for i := 0; i < len(g.headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\n", g.headers[i], g.headers[i+1])
	}
	fmt.Fprintf(&b, "\n%s\n\n", g.body)
	for _, q := range r.asked() {
		fmt.Fprintf(&b, "query\n%s\n", protoText(q))
	}
	for _, c := range r.commanded() {
		if len(c.Id) != 16 || slices.Max(c.Id) == 0 {
			r.t.Errorf("a command has the id %x", c.Id)
		}
		content := c.ContentHash
		c.Id, c.ContentHash = nil, nil // random, and easier to read as digits
		if t := c.GetCreateToken(); t != nil {
			if !bytes.Equal(t.SecretHash, tokenIn(r.t, w.Body.String()).Hash()) {
				r.t.Error("the answer has another token than the command")
			}
			t.TokenId, t.SecretHash = nil, nil
		}
		fmt.Fprintf(&b, "command with content %x\n%s\n", content, protoText(c))
	}
	fmt.Fprintf(&b, "%d\n", w.Code)
	for _, name := range slices.Sorted(maps.Keys(w.Header())) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(w.Header()[name], " | "))
	}
	fmt.Fprintf(&b, "\n%s\n", tokens.ReplaceAllString(w.Body.String(), "pulse_<id>_<secret>"))
	return b.String()
}

var tokens = regexp.MustCompile(`pulse_[0-9a-f]{32}_[0-9a-f]{64}`)

// tokenIn is the token in an answer.
func tokenIn(t *testing.T, body string) access.Token {
	t.Helper()
	token, ok := access.ParseToken(tokens.FindString(body))
	if !ok {
		t.Fatalf("no token in %s", body)
	}
	return token
}

var colons = regexp.MustCompile(`(?m)^(\s*\w+):  `)

// protoText is a message as text. The package makes its white space vary on
// purpose, so it is made one kind.
func protoText(m proto.Message) string {
	text := prototext.MarshalOptions{Multiline: true, Indent: "  "}.Format(m)
	return colons.ReplaceAllString(text, "$1: ")
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (make it with -update)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s\nwant\n%s", path, got, want)
	}
}

func TestEveryRouteIsHeldToItsGoldenFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seen := map[string]bool{}
	for _, g := range goldens {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		if route == nil {
			t.Errorf("%s leads nowhere", g.name)
			continue
		}
		seen[route.id] = true
	}
	for _, route := range r.handler.routes() {
		if !seen[route.id] && !route.waits && route.id != "openapi" && route.id != "docs" {
			t.Errorf("%s has no golden file", route.pattern)
		}
	}
}

func TestEveryRouteOfV1NeedsAnIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *Options) { o.Authenticate = nobody })
	for _, g := range goldens {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		private := strings.HasPrefix(route.path, "/v1/") || strings.HasPrefix(route.path, "/debug/")
		if route.public() == private {
			t.Errorf("%s is public: %v", route.pattern, route.public())
		}
		if route.public() {
			continue
		}
		w := r.do(g.method, g.target, g.body)
		if p := problemOf(t, w); w.Code != 401 || p.Code != "unauthenticated" || w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %d %+v", route.pattern, w.Code, p)
		}
	}
	if len(r.commanded())+len(r.asked()) > 0 {
		t.Error("the backend was asked for a caller nobody knows")
	}
}
