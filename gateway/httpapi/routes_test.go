package httpapi

import (
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
)

var update = flag.Bool("update", false, "rewrite the golden files")

var discard = slog.New(slog.DiscardHandler)

func nobody(*http.Request) (session.Identity, *schema.Error) {
	return session.Identity{}, schema.Errorf(schema.Unauthenticated, "nobody may")
}

const (
	tasksPath = "/v1/namespaces/default/queues/default/tasks"
	taskPath  = "/v1/namespaces/default/tasks/" + idOne
	queuePath = "/v1/namespaces/default/queues/default"
	keysPath  = "/v1/namespaces/default/keys"
	task      = `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount": 1.50}}`
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
	{"get_task", "GET", taskPath, "", nil},
	{"list_attempts", "GET", taskPath + "/attempts", "", nil},
	{"list_events", "GET", taskPath + "/events?limit=4", "", nil},
	{"cancel", "POST", taskPath + ":cancel", "", []string{"Idempotency-Key", "k3"}},
	{"cancel_expecting", "POST", taskPath + ":cancel", `{"expected_revision":"4","note":"no longer needed"}`, nil},
	{"retry", "POST", taskPath + ":retry", `{"note":"try again"}`, nil},
	{"review_succeeded", "POST", taskPath + ":review", `{"decision":"SUCCEEDED","note":"seen","result":{"a" : 1.50},"expected_revision":"4"}`, nil},
	{"review_failed", "POST", taskPath + ":review", `{"decision":"FAILED","note":"seen","error_code":"card_refused"}`, nil},
	{"review_retry", "POST", taskPath + ":review", `{"decision":"RETRY","note":"seen","deadline_at":"2030-02-01T00:00:00Z"}`, nil},
	{"bulk_ids", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"retry","ids":["` + idOne + `","` + idTwo + `"],"note":"again"}`, []string{"Idempotency-Key", "k4"}},
	{"bulk_filter", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","filter":{"queue":"q"}}`, nil},
	{"bulk_dry_run", "POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","ids":["` + idOne + `"],"dry_run":true}`, nil},
	{"list_queues", "GET", "/v1/namespaces/default/queues", "", nil},
	{"put_queue", "PUT", queuePath, `{"max_active":5,"paused":true,"default_retry":{"max_attempts":1}}`, []string{"Idempotency-Key", "k5"}},
	{"put_queue_expecting", "PUT", queuePath, `{"expected_revision":"2","max_waiting":"12"}`, nil},
	{"get_queue", "GET", queuePath, "", nil},
	{"delete_queue", "DELETE", queuePath + "?expected_revision=2", "", []string{"Idempotency-Key", "k6"}},
	{"pause_queue", "POST", queuePath + ":pause", `{"expected_revision":"2"}`, nil},
	{"resume_queue", "POST", queuePath + ":resume", "", nil},
	{"list_namespaces", "GET", "/v1/namespaces", "", nil},
	{"put_namespace", "PUT", "/v1/namespaces/default", "{}", nil},
	{"get_namespace", "GET", "/v1/namespaces/default", "", nil},
	{"delete_namespace", "DELETE", "/v1/namespaces/default", "", nil},
	{"list_workers", "GET", "/v1/namespaces/default/workers?queue=default", "", nil},
	{"get_worker", "GET", "/v1/namespaces/default/workers/" + idOne, "", nil},
	{"drain_worker", "POST", "/v1/namespaces/default/workers/" + idOne + ":drain", "", nil},
	{"list_keys", "GET", keysPath, "", nil},
	{"get_key", "GET", keysPath + "/account%2F7%3Afree%20%C3%A4", "", nil},
	{"free_key", "POST", keysPath + "/account%2F7:free", `{"note":"worker is gone"}`, nil},
	{"cluster", "GET", "/v1/cluster", "", nil},
	{"list_members", "GET", "/v1/cluster/members", "", nil},
	{"transfer_leadership", "POST", "/v1/cluster:transfer", `{"node_id":"node-2"}`, nil},
	{"transfer_leadership_to_any", "POST", "/v1/cluster:transfer", "", nil},
	{"remove_server", "POST", "/v1/cluster:remove", `{"node_id":"node-2","force":true}`, nil},
	{"backup", "GET", "/v1/cluster/backup", "", nil},
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
		fmt.Fprintf(&b, "command with content %x\n%s\n", content, protoText(c))
	}
	fmt.Fprintf(&b, "%d\n", w.Code)
	for _, name := range slices.Sorted(maps.Keys(w.Header())) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(w.Header()[name], " | "))
	}
	fmt.Fprintf(&b, "\n%s\n", w.Body)
	return b.String()
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

func TestEveryRouteOfV1NeedsAnIdentityAndAVerb(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *Options) { o.Authenticate = nobody })
	for _, g := range goldens {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		if route.public != !strings.HasPrefix(route.path, "/v1/") {
			t.Errorf("%s is public: %v", route.pattern, route.public)
		}
		if route.public {
			continue
		}
		if route.verb == "" {
			t.Errorf("%s has no verb", route.pattern)
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
