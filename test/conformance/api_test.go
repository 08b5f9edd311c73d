package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// object is a JSON object to be sent.
type object = map[string]any

// statuses are the HTTP statuses of the codes, as section 9 lists them.
var statuses = func() map[string]int {
	all := map[string]int{}
	for status, codes := range map[int]string{
		400: "invalid_argument unsupported_version",
		401: "unauthenticated",
		403: "forbidden",
		404: "not_found",
		409: "conflict operation_conflict identity_conflict revision_conflict not_started already_started cancel_not_requested drain_is_final stale_epoch stale_sequence lease_lost",
		413: "too_large",
		429: "queue_full rate_limited",
		503: "no_leader not_leader unavailable",
		504: "deadline_expired result_unknown",
		500: "internal",
	} {
		for _, code := range strings.Fields(codes) {
			all[code] = status
		}
	}
	return all
}()

// retryables are the codes after which the same request may succeed later.
var retryables = strings.Fields("queue_full rate_limited not_leader no_leader deadline_expired result_unknown unavailable")

// place is a namespace of a test's own with one queue.
type place struct {
	t       *testing.T
	house   *house
	client  *http.Client
	ns      string
	queue   string
	queueID string
	token   string // bearer token, if the house wants one
}

var places atomic.Int64

// newPlace makes a namespace in the shared node, with a queue of these settings.
func newPlace(t *testing.T, settings object) *place {
	t.Helper()
	return shared(t).place(t, settings)
}

func (h *house) place(t *testing.T, settings object) *place {
	t.Helper()
	p := h.lobby(t)
	p.open(settings)
	return p
}

// lobby is a place whose namespace does not exist yet.
func (h *house) lobby(t *testing.T) *place {
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	t.Cleanup(transport.CloseIdleConnections)
	return &place{
		t: t, house: h, ns: fmt.Sprintf("n%d", places.Add(1)), queue: "work",
		client: &http.Client{Transport: transport, Timeout: 2 * patience},
	}
}

// open makes the namespace and the queue.
func (p *place) open(settings object) {
	p.t.Helper()
	p.call("PUT", "", object{}).ok(http.StatusOK)
	p.settings(settings)
}

// settings makes the queue, or replaces its settings.
func (p *place) settings(settings object) {
	p.t.Helper()
	var q struct{ ID string }
	p.call("PUT", "/queues/"+p.queue, merged(settings, nil)).ok(0).into(&q)
	p.queueID = q.ID
}

// beside is the same namespace with another queue.
func (p *place) beside(queue string, settings object) *place {
	p.t.Helper()
	other := *p
	other.queue = queue
	other.settings(settings)
	return &other
}

// elsewhere is another namespace of the same node.
func (p *place) elsewhere(settings object) *place {
	p.t.Helper()
	return p.house.place(p.t, settings)
}

// answer is what the API said.
type answer struct {
	t       *testing.T
	request string
	status  int
	header  http.Header
	body    []byte
}

// problem is an error of the API.
type problem struct {
	Type, Title, Detail, Code string
	Status                    int
	Retryable                 *bool
	Violations                []struct{ Path, Message string }
	ExistingTaskID            string `json:"existing_task_id"`
	CurrentRevision           string `json:"current_revision"`
}

// call sends a request below the namespace, and holds the answer to what all
// answers have. A body is sent as it is if it is text, else as JSON; nil is none.
func (p *place) call(method, path string, body any, headers ...string) answer {
	p.t.Helper()
	a, err := p.try(method, "/v1/namespaces/"+p.ns+path, body, headers...)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// try is call for any path; an error means that there was no whole answer.
func (p *place) try(method, path string, body any, headers ...string) (answer, error) {
	var text io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		text = strings.NewReader(b)
	case []byte:
		text = bytes.NewReader(b)
	default:
		data, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		text = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(p.t.Context(), method, "http://"+p.house.addr+path, text)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if p.token != "" {
		r.Header.Set("Authorization", "Bearer "+p.token)
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	res, err := p.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{t: p.t, request: method + " " + path, status: res.StatusCode, header: res.Header, body: data}
	a.conforms()
	return a, nil
}

// conforms holds an answer to what section 9 and the API promise of all.
func (a answer) conforms() {
	a.t.Helper()
	if _, err := strconv.ParseUint(a.header.Get("X-Pulse-Index"), 10, 64); err != nil {
		a.t.Errorf("%s: X-Pulse-Index is %q", a.request, a.header.Get("X-Pulse-Index"))
	}
	if bytes.Contains(a.body, []byte("lease_secret")) {
		a.t.Errorf("%s: the answer has a secret: %s", a.request, a.body)
	}
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	if a.status < 400 {
		if media != "application/json" || !json.Valid(a.body) {
			a.t.Errorf("%s: %s %.200s", a.request, media, a.body)
		}
		return
	}
	p := a.problem()
	if media != "application/problem+json" {
		a.t.Errorf("%s: an error as %s", a.request, media)
	}
	a.sound(p)
	if p.Status != a.status {
		a.t.Errorf("%s: status %d says %d", a.request, a.status, p.Status)
	}
	// What HTTP itself has a status for keeps it.
	own := map[int]string{405: "invalid_argument", 408: "deadline_expired", 410: "not_found", 415: "invalid_argument", 426: "invalid_argument"}
	if statuses[p.Code] != a.status && own[a.status] != p.Code {
		a.t.Errorf("%s: %s with status %d, want %d", a.request, p.Code, a.status, statuses[p.Code])
	}
	if again := a.header.Get("Retry-After"); (a.status == 429 || a.status == 503) != (again != "") {
		a.t.Errorf("%s: status %d with Retry-After %q", a.request, a.status, again)
	}
}

// sound holds a problem, in an answer or in one result of a batch, to its form.
func (a answer) sound(p problem) {
	a.t.Helper()
	retryable := false
	for _, code := range retryables {
		retryable = retryable || code == p.Code
	}
	switch {
	case p.Type != "urn:pulse:error:"+p.Code, p.Title == "", p.Detail == "":
		a.t.Errorf("%s: problem %+v", a.request, p)
	case p.Retryable == nil || *p.Retryable != retryable:
		a.t.Errorf("%s: %s says retryable %v", a.request, p.Code, p.Retryable)
	case p.Code == "revision_conflict" && p.CurrentRevision == "":
		a.t.Errorf("%s: revision_conflict without the current revision", a.request)
	}
	for _, v := range p.Violations {
		if v.Path != "" && v.Path[0] != '/' || v.Message == "" {
			a.t.Errorf("%s: violation %+v", a.request, v)
		}
	}
}

func (a answer) problem() (p problem) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, &p); err != nil {
		a.t.Fatalf("%s: %d %.200s: %v", a.request, a.status, a.body, err)
	}
	return p
}

// ok holds an answer to a success; 0 is any.
func (a answer) ok(status int) answer {
	a.t.Helper()
	if status == 0 && a.status >= 400 || status != 0 && a.status != status {
		a.t.Fatalf("%s: %d %.500s, want %d", a.request, a.status, a.body, status)
	}
	return a
}

// refused holds an answer to an error with this code.
func (a answer) refused(code string) problem {
	a.t.Helper()
	if a.status < 400 {
		a.t.Fatalf("%s: %d %.500s, want %s", a.request, a.status, a.body, code)
	}
	p := a.problem()
	if p.Code != code {
		a.t.Fatalf("%s: %s (%s), want %s", a.request, p.Code, p.Detail, code)
	}
	return p
}

// violates holds an answer to invalid_argument about one place.
func (a answer) violates(path string) {
	a.t.Helper()
	p := a.refused("invalid_argument")
	for _, v := range p.Violations {
		if v.Path == path {
			return
		}
	}
	a.t.Errorf("%s: violations %v, want one at %q", a.request, p.Violations, path)
}

func (a answer) into(value any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, value); err != nil {
		a.t.Fatalf("%s: %.200s: %v", a.request, a.body, err)
	}
}

// task is a task, in answers of the API and in assignments.
type task struct {
	ID, State, Revision, Namespace, Queue string
	NamespaceID                           string `json:"namespace_id"`
	QueueID                               string `json:"queue_id"`
	Handler, Priority                     any
	Payload, Result                       json.RawMessage
	ErrorCode                             string    `json:"error_code"`
	BusinessKey                           string    `json:"business_key"`
	ConcurrencyKey                        string    `json:"concurrency_key"`
	AvailableAt                           time.Time `json:"available_at"`
	StartDeadlineAt                       time.Time `json:"start_deadline_at"`
	DeadlineAt                            time.Time `json:"deadline_at"`
	CancelRequestedAt                     time.Time `json:"cancel_requested_at"`
	CompletedAt                           time.Time `json:"completed_at"`
	CreatedAt                             time.Time `json:"created_at"`
	UpdatedAt                             time.Time `json:"updated_at"`
	AttemptCount                          int       `json:"attempt_count"`
	EffectUncertain                       bool      `json:"effect_uncertain"`
	RetryOf                               string    `json:"retry_of"`
	Duplicate                             bool
	HoldsKey                              bool      `json:"holds_key"`
	ReviewSince                           time.Time `json:"review_since"`
	Decision                              struct {
		Decision, By, Note string
		At                 time.Time
	}
	Waiting struct {
		Reason       string
		Until        time.Time
		HolderTaskID string `json:"holder_task_id"`
	}
	Lease struct {
		AttemptID  string `json:"attempt_id"`
		Epoch      string
		InstanceID string    `json:"instance_id"`
		LeaseUntil time.Time `json:"lease_until"`
	}
}

func (a answer) task() (t task) {
	a.t.Helper()
	a.into(&t)
	return t
}

// attemptRow is an attempt as the API shows it.
type attemptRow struct {
	ID, Epoch, State  string
	Number, Renewals  int
	InstanceID        string    `json:"instance_id"`
	LeasedAt          time.Time `json:"leased_at"`
	StartedAt         time.Time `json:"started_at"`
	EndedAt           time.Time `json:"ended_at"`
	LeaseUntil        time.Time `json:"lease_until"`
	TimeoutAt         time.Time `json:"timeout_at"`
	CancelRequestedAt time.Time `json:"cancel_requested_at"`
	ConcurrencyToken  string    `json:"concurrency_token"`
	ErrorCode         string    `json:"error_code"`
	EndCause          string    `json:"end_cause"`
	Retryable         bool
	Result            json.RawMessage
	Receipts          []struct {
		MessageID   string `json:"message_id"`
		Operation   string
		Disposition string
	}
	Evidence []struct {
		MessageID  string `json:"message_id"`
		Outcome    string
		ErrorCode  string `json:"error_code"`
		Retryable  bool
		Result     json.RawMessage
		InstanceID string `json:"instance_id"`
	}
}

// work is a submission with these members beside the defaults.
func work(members object) object {
	s := object{"handler": "work", "handler_version": "1", "payload_version": "1", "payload": object{}}
	return merged(s, members)
}

// merged lays members over an object; nil takes one away.
func merged(o, members object) object {
	out := object{}
	for _, from := range []object{o, members} {
		for name, value := range from {
			if out[name] = value; value == nil {
				delete(out, name)
			}
		}
	}
	return out
}

// submit submits a task that is taken.
func (p *place) submit(members object) task {
	p.t.Helper()
	return p.call("POST", p.tasks(), work(members)).ok(http.StatusCreated).task()
}

func (p *place) tasks() string { return "/queues/" + p.queue + "/tasks" }

func (p *place) task(id string) task {
	p.t.Helper()
	return p.call("GET", "/tasks/"+id, nil).ok(http.StatusOK).task()
}

// settled waits for the end of a task, or its review.
func (p *place) settled(id string) task {
	p.t.Helper()
	t := p.call("GET", "/tasks/"+id+"?wait_state=terminal&timeout_ms="+strconv.FormatInt(patience.Milliseconds(), 10), nil).
		ok(http.StatusOK).task()
	switch t.State {
	case "SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW":
	default:
		p.t.Fatalf("the task is %s after %s", t.State, patience)
	}
	return t
}

func (p *place) attempts(id string) []attemptRow {
	p.t.Helper()
	var list struct{ Attempts []attemptRow }
	p.call("GET", "/tasks/"+id+"/attempts", nil).ok(http.StatusOK).into(&list)
	return list.Attempts
}

// attempt is the task's last.
func (p *place) attempt(id string) attemptRow {
	p.t.Helper()
	all := p.attempts(id)
	if len(all) == 0 {
		p.t.Fatal("the task has no attempt")
	}
	return all[len(all)-1]
}

// row is an attempt, the last or not.
func (p *place) row(a attempt) (row attemptRow) {
	p.t.Helper()
	for _, row = range p.attempts(a.Task.ID) {
		if row.ID == a.AttemptID {
			return row
		}
	}
	p.t.Fatalf("there is no attempt %s", a.AttemptID)
	return row
}

// facts are the facts of a type in a task's history.
func (p *place) facts(id, kind string) (found []object) {
	p.t.Helper()
	var list struct {
		Events []struct {
			Operator string
			Facts    []object
		}
	}
	p.call("GET", "/tasks/"+id+"/events", nil).ok(http.StatusOK).into(&list)
	for _, e := range list.Events {
		for _, fact := range e.Facts {
			if fact["type"] == kind {
				fact["operator"] = e.Operator
				found = append(found, fact)
			}
		}
	}
	return found
}

// act is an action on a task: cancel, retry, review.
func (p *place) act(id, action string, body object, headers ...string) answer {
	p.t.Helper()
	return p.call("POST", "/tasks/"+id+":"+action, body, headers...)
}

func (p *place) cancel(id string) task {
	p.t.Helper()
	return p.act(id, "cancel", object{}).ok(http.StatusOK).task()
}

// keyView is a concurrency key as the API shows it.
type keyView struct {
	Key, Token, Waiters string
	HolderTaskID        string `json:"holder_task_id"`
	InReview            bool   `json:"in_review"`
}

func keyPath(key string) string { return "/keys/" + url.PathEscape(key) }

func (p *place) key(key string) (k keyView) {
	p.t.Helper()
	p.call("GET", keyPath(key), nil).ok(http.StatusOK).into(&k)
	return k
}

// workerView is a worker as the API shows it.
type workerView struct {
	State            string
	Capacity, Active int
	Draining         bool
	SessionID        string `json:"session_id"`
}

func (p *place) workerView(instance string) (v workerView) {
	p.t.Helper()
	p.call("GET", "/workers/"+instance, nil).ok(http.StatusOK).into(&v)
	return v
}

// until looks again until ok says yes, and fails with what it said last.
func (p *place) until(what string, ok func() (yes bool, seen any)) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, seen := ok()
		if yes {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: not within %s; last seen: %+v", what, patience, seen)
		}
		<-tick.C
	}
}

// waits waits until a task is WAITING for a reason.
func (p *place) waits(id, reason string) (t task) {
	p.t.Helper()
	p.until("waiting for "+reason, func() (bool, any) {
		t = p.task(id)
		return t.State == "WAITING" && t.Waiting.Reason == reason, t.State + " " + t.Waiting.Reason
	})
	return t
}

// reaches waits until a task is in a state.
func (p *place) reaches(id, state string) (t task) {
	p.t.Helper()
	p.until("state "+state, func() (bool, any) {
		t = p.task(id)
		return t.State == state, t.State
	})
	return t
}

// soon is an instant from now on, as the API takes it.
func soon(d time.Duration) string {
	return time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000000Z")
}
