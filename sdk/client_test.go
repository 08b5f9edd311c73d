package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pulse/schema"
)

// server is the API as a test plays it: each request goes to the next of its
// steps, and every request is kept.
type server struct {
	*gateway
	mu       sync.Mutex
	steps    []http.HandlerFunc
	requests []seenRequest
	silent   string // the host that answers no health check
}

type seenRequest struct {
	method, target, key, body, host string
	at                              time.Time
	header                          http.Header
}

func newServer(t *testing.T, steps ...http.HandlerFunc) *server {
	s := &server{gateway: newGateway(t), steps: steps}
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, seenRequest{
			r.Method, r.RequestURI, r.Header.Get("Idempotency-Key"), string(body), r.Host, time.Now(), r.Header,
		})
		step := func(rw http.ResponseWriter, _ *http.Request) { problemAnswer(rw, schema.Internal, "no step left") }
		if len(s.steps) > 0 {
			step, s.steps = s.steps[0], s.steps[1:]
		}
		s.mu.Unlock()
		step(rw, r)
	})
	s.mux.HandleFunc("/healthz", func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		silent := s.silent == r.Host
		s.mu.Unlock()
		if silent {
			<-r.Context().Done()
		}
	})
	return s
}

func (s *server) connect() *Client {
	return NewClient(ClientOptions{
		Addrs: []string{"http://one.example", "http://two.example"}, Token: "secret token", HTTPClient: s.client(),
		Logger: slog.New(slog.DiscardHandler),
	})
}

func (s *server) seen() []seenRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func answerJSON(text string, args ...any) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintf(rw, text, args...) }
}

func answerProblem(code schema.Code) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { problemAnswer(rw, code, "by the test") }
}

func problemAnswer(rw http.ResponseWriter, code schema.Code, detail string) {
	rw.Header().Set("Content-Type", "application/problem+json")
	rw.WriteHeader(code.HTTPStatus())
	_ = json.NewEncoder(rw).Encode(map[string]any{
		"type": code.URN(), "title": "a title", "status": code.HTTPStatus(), "detail": detail, "code": code, "retryable": code.Retryable(),
	})
}

// broken ends the connection without an answer.
func broken(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

const taskJSON = `{"id":"0123456789abcdef0123456789abcdef","state":"%s","revision":"18446744073709551615","handler":"echo","payload":{ "a" : 2.50 }}`

func TestASubmissionIsSentAsItIsMeant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, answerJSON(taskJSON, "WAITING"))
		task, err := s.connect().Submit(t.Context(), TaskSpec{
			Queue: "mail", Handler: "charge", HandlerVersion: "2", Payload: json.RawMessage(`{ "amount" : 2.50, "to": "<b>" }`),
			BusinessKey: "order/1", Priority: 3, Delay: 1500 * time.Microsecond, RecoverySafety: ReconcileOnly,
			DeadlineAt: time.Date(2030, 1, 2, 3, 4, 5, 678901234, time.FixedZone("", 3600)),
			Retry:      Retry{MaxAttempts: 5, InitialDelay: NoDelay},
		})
		if err != nil {
			t.Fatal(err)
		}
		if task.State != StateWaiting || task.Revision != 1<<64-1 || string(task.Payload) != `{ "a" : 2.50 }` {
			t.Errorf("task: %+v %s", task, task.Payload)
		}
		r := s.seen()[0]
		want := `{"handler":"charge","handler_version":"2","payload_version":"1","business_key":"order/1","priority":3,"delay_ms":2,` +
			`"deadline_at":"2030-01-02T02:04:05.678901Z","recovery_safety":"RECONCILE_ONLY","retry":{"max_attempts":5,"initial_delay_ms":0},` +
			`"payload":{ "amount" : 2.50, "to": "<b>" }}`
		if r.body != want {
			t.Errorf("body\n%s\nwant\n%s", r.body, want)
		}
		if r.method != "POST" || r.target != "/v1/namespaces/default/queues/mail/tasks" || len(r.key) != 32 ||
			r.header.Get("Authorization") != "Bearer secret token" {
			t.Errorf("request: %+v", r)
		}
	})
}

func TestWhatMayHaveHappenedIsRepeatedUnderTheSameKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t,
			answerProblem(schema.ResultUnknown), broken, answerProblem(schema.NoLeader),
			func(rw http.ResponseWriter, _ *http.Request) {
				http.Error(rw, "<html>bad gateway", http.StatusBadGateway)
			},
			func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Retry-After", "7")
				problemAnswer(rw, schema.QueueFull, "wait")
			},
			answerJSON(taskJSON, "WAITING"))
		if _, err := s.connect().Submit(t.Context(), TaskSpec{Handler: "echo"}); err != nil {
			t.Fatal(err)
		}
		seen := s.seen()
		if len(seen) != 6 {
			t.Fatalf("%d requests", len(seen))
		}
		hosts := map[string]bool{}
		for _, r := range seen {
			hosts[r.host] = true
			if r.key != seen[0].key || r.body != seen[0].body {
				t.Errorf("a repeat differs: %+v", r)
			}
		}
		if len(hosts) != 2 {
			t.Errorf("only %v was tried", hosts)
		}
		if waited := seen[5].at.Sub(seen[4].at); waited < 7*time.Second {
			t.Errorf("tried again after %s, asked to wait 7 s", waited)
		}
	})
}

func TestARefusalIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusConflict)
			fmt.Fprint(rw, `{"type":"urn:pulse:error:conflict","title":"Conflict","status":409,"detail":"taken","code":"conflict","retryable":false,`+
				`"existing_task_id":"00000000000000000000000000000001","current_revision":"12","violations":[{"path":"/a","message":"is bad"}]}`)
		})
		_, err := s.connect().Submit(t.Context(), TaskSpec{Handler: "echo"})
		var refusal *Error
		if !errors.As(err, &refusal) || !errors.Is(err, schema.Conflict) || errors.Is(err, schema.NotFound) || CodeOf(err) != schema.Conflict {
			t.Fatalf("error: %v", err)
		}
		if refusal.ExistingTaskID != "00000000000000000000000000000001" || refusal.CurrentRevision != 12 || refusal.Status != 409 ||
			len(refusal.Violations) != 1 || refusal.Violations[0].Path != "/a" || refusal.Message != "taken" {
			t.Errorf("refusal: %+v", refusal)
		}
		if n := len(s.seen()); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// A try that the context cuts short says nothing about the network; the one
// before it did. A refusal of before does not hold for the try that was cut.
func TestATryThatIsCutShortDoesNotHideWhatTheOneBeforeFound(t *testing.T) {
	t.Parallel()
	a, err := newAPI([]string{"http://one.example"}, "", TLSFiles{}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	refusal := &Error{Code: schema.NoLeader, Retryable: true}
	for _, tc := range []struct {
		name string
		said error
		told bool
	}{
		{"nobody listens", syscall.ECONNREFUSED, true},
		{"no leader", refusal, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		err := a.persist(ctx, "a call", func(ctx context.Context) error {
			if tries++; tries == 1 {
				return tc.said
			}
			cancel()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, tc.said) != tc.told {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestWhenTheContextEndsBothReasonsAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		steps := make([]http.HandlerFunc, 1000)
		for i := range steps {
			steps[i] = answerProblem(schema.ResultUnknown)
		}
		s := newServer(t, steps...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.connect().Submit(ctx, TaskSpec{Handler: "echo"})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, schema.ResultUnknown) {
			t.Errorf("error: %v", err)
		}
		if n := len(s.seen()); n < 10 || n > 200 {
			t.Errorf("%d tries in a minute", n)
		}
	})
}

func TestAGatewayThatHangsIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		s := newServer(t, hang, answerJSON(taskJSON, "SUCCEEDED"))
		began := time.Now()
		if _, err := s.connect().Get(t.Context(), "0123456789abcdef0123456789abcdef"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > callTimeout+retryDelayMax {
			t.Errorf("took %s", took)
		}
	})
}

func TestAPausedNodeIsLeftLongBeforeTheCallsOwnLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s *server
		s = newServer(t, func(_ http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			s.silent = r.Host
			s.mu.Unlock()
			<-r.Context().Done()
		}, answerJSON(taskJSON, "SUCCEEDED"))
		began := time.Now()
		if _, err := s.connect().Wait(t.Context(), "0123456789abcdef0123456789abcdef"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > vitalEvery+vitalPatience+retryDelayFirst {
			t.Errorf("took %s", took)
		}
		if seen := s.seen(); len(seen) != 2 || seen[0].host == seen[1].host {
			t.Errorf("requests: %v", seen)
		}
	})
}

func TestASlowNodeThatLivesIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(rw http.ResponseWriter, _ *http.Request) {
			time.Sleep(callTimeout - time.Second)
			fmt.Fprintf(rw, taskJSON, "SUCCEEDED")
		}
		s := newServer(t, slow)
		if _, err := s.connect().Get(t.Context(), "0123456789abcdef0123456789abcdef"); err != nil {
			t.Fatal(err)
		}
		if n := len(s.seen()); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestABatchIsCutKeyedAndRepeatedByPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := func(count int, refused map[int]schema.Code) http.HandlerFunc {
			return func(rw http.ResponseWriter, _ *http.Request) {
				results := make([]string, count)
				for i := range results {
					results[i] = fmt.Sprintf(taskJSON, "WAITING")
					if code, ok := refused[i]; ok {
						results[i] = fmt.Sprintf(`{"error":{"status":%d,"code":"%s","detail":"x","retryable":%t}}`, code.HTTPStatus(), code, code.Retryable())
					}
				}
				fmt.Fprintf(rw, `{"results":[%s]}`, strings.Join(results, ","))
			}
		}
		s := newServer(t,
			answer(1000, map[int]schema.Code{3: schema.QueueFull, 5: schema.Conflict}),
			answer(1000, map[int]schema.Code{5: schema.Conflict}),
			broken, answer(500, nil))
		specs := make([]TaskSpec, 1500)
		for i := range specs {
			specs[i] = TaskSpec{Handler: "echo", Payload: i}
		}
		items, err := s.connect().SubmitBatch(t.Context(), "", specs, WithIdempotencyKey("file-7"))
		if err != nil {
			t.Fatal(err)
		}
		if len(items) != 1500 {
			t.Fatalf("%d items", len(items))
		}
		for i, item := range items {
			if (item.Err != nil) != (i == 5) || (item.Task != nil) == (i == 5) {
				t.Errorf("item %d: %+v", i, item)
			}
		}
		if !errors.Is(items[5].Err, schema.Conflict) {
			t.Errorf("item 5: %v", items[5].Err)
		}
		var keys []string
		for _, r := range s.seen() {
			keys = append(keys, r.key)
		}
		if got := strings.Join(keys, " "); got != "file-7/0 file-7/0 file-7/1000 file-7/1000" {
			t.Errorf("keys: %s", got)
		}
	})
}

// An item of a batch that was refused promises that nothing happened, unless another
// try of its request may have taken it: one before, or one since.
func TestAnItemOfABatchDoesNotHideATryWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	answer := func(codes ...schema.Code) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			results := make([]string, len(codes))
			for i, code := range codes {
				results[i] = fmt.Sprintf(taskJSON, "WAITING")
				if code != "" {
					results[i] = fmt.Sprintf(`{"error":{"status":%d,"code":"%s","detail":"x","retryable":%t}}`, code.HTTPStatus(), code, code.Retryable())
				}
			}
			fmt.Fprintf(rw, `{"results":[%s]}`, strings.Join(results, ","))
		}
	}
	mixed := answer("", schema.Unavailable, schema.Conflict, schema.InvalidArgument)
	for name, c := range map[string]struct {
		tries []http.HandlerFunc // and then no leader
		want  string
	}{
		"no try was lost":              {[]http.HandlerFunc{mixed}, " unavailable conflict invalid_argument"},
		"one before was lost":          {[]http.HandlerFunc{broken, mixed}, " result_unknown conflict invalid_argument"},
		"one since was lost":           {[]http.HandlerFunc{mixed, broken}, " result_unknown result_unknown invalid_argument"},
		"one before was unknown":       {[]http.HandlerFunc{answer(schema.ResultUnknown, schema.QueueFull), answer(schema.NoLeader, schema.NoLeader)}, "result_unknown no_leader"},
		"one was taken after all":      {[]http.HandlerFunc{answer(schema.ResultUnknown, schema.QueueFull), answer("", schema.NoLeader)}, " no_leader"},
		"one between was lost":         {[]http.HandlerFunc{mixed, broken, mixed}, " result_unknown conflict invalid_argument"},
		"one since was merely refused": {[]http.HandlerFunc{mixed, answerProblem(schema.Unavailable)}, " unavailable conflict invalid_argument"},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := c.tries
			for range 100 {
				tries = append(tries, answerProblem(schema.NoLeader))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			specs := slices.Repeat([]TaskSpec{{Handler: "echo"}}, len(strings.Split(c.want, " ")))
			items, err := newServer(t, tries...).connect().SubmitBatch(ctx, "", specs)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, item := range items {
				got = append(got, string(CodeOf(item.Err)))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: %q, want %q", name, strings.Join(got, " "), c.want)
			}
		})
	}
}

func TestABatchIsCutBelowTheBodyLimit(t *testing.T) {
	t.Parallel()
	big := []byte(`"` + strings.Repeat("x", 200<<10) + `"`)
	tasks := make([][]byte, 100)
	for i := range tasks {
		tasks[i] = big
	}
	sent := 0
	for sent < len(tasks) {
		body, count := batchBody(tasks[sent:])
		if len(body) > 8<<20 || count == 0 || !json.Valid(body) {
			t.Fatalf("%d tasks in %d bytes", count, len(body))
		}
		sent += count
	}
}

func TestWaitOutlastsARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		poll := func(state State) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				if !State(state).Settled() {
					time.Sleep(25 * time.Second)
				}
				fmt.Fprintf(rw, taskJSON, state)
			}
		}
		s := newServer(t, poll(StateWaiting), broken, answerProblem(schema.NoLeader), poll(StateRunning), answerJSON(taskJSON, "RUNNING"), poll(StateNeedsReview))
		task, err := s.connect().Wait(t.Context(), "0123456789abcdef0123456789abcdef")
		if err != nil || task.State != StateNeedsReview {
			t.Fatalf("%+v, %v", task, err)
		}
		seen := s.seen()
		if len(seen) != 6 || seen[0].target != "/v1/namespaces/default/tasks/0123456789abcdef0123456789abcdef?timeout_ms=25000&wait_state=terminal" {
			t.Errorf("requests: %+v", seen)
		}
		if pause := seen[5].at.Sub(seen[4].at); pause < time.Second {
			t.Errorf("asked again after %s", pause)
		}
	})
}

func TestListGoesThroughAllPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t,
			answerJSON(`{"tasks":[`+taskJSON+`,`+taskJSON+`],"next_cursor":"c/1"}`, "WAITING", "WAITING"),
			answerJSON(`{"tasks":[`+taskJSON+`]}`, "RUNNING"),
			answerJSON(`{"tasks":[`+taskJSON+`],"next_cursor":"c2"}`, "WAITING"), answerProblem(schema.InvalidArgument))
		c := s.connect()
		var states []State
		for task, err := range c.List(t.Context(), TaskFilter{Queue: "mail", States: []State{StateWaiting, StateRunning}}) {
			if err != nil {
				t.Fatal(err)
			}
			states = append(states, task.State)
		}
		if len(states) != 3 || states[2] != StateRunning {
			t.Errorf("states: %v", states)
		}
		if seen := s.seen(); seen[0].target != "/v1/namespaces/default/tasks?queue=mail&state=WAITING&state=RUNNING" ||
			seen[1].target != "/v1/namespaces/default/tasks?cursor=c%2F1&queue=mail&state=WAITING&state=RUNNING" {
			t.Errorf("requests: %+v", seen)
		}
		var last error
		for _, err := range c.List(t.Context(), TaskFilter{}) {
			last = err
		}
		if !errors.Is(last, schema.InvalidArgument) {
			t.Errorf("an error on the second page became %v", last)
		}
	})
}

func TestAWatchGoesOnBehindTheLastEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stream := func(silent bool, events ...string) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				for _, event := range events {
					fmt.Fprint(rw, event)
					_ = http.NewResponseController(rw).Flush()
				}
				if silent {
					<-r.Context().Done()
				}
			}
		}
		event := func(index int, state State) string {
			return fmt.Sprintf(": comment\nid: %d.0\nevent: task\ndata: {\"index\":\"%d\",\"task_id\":\"a\",\ndata: \"revision\":\"%d\",\"type\":\"x\",\"state\":\"%s\"}\n\n", index, index, index, state)
		}
		s := newServer(t,
			stream(false, event(10, StateWaiting), event(11, StateLeased), "id: 12.0\nda"), // cut in the middle
			answerProblem(schema.Unavailable),
			stream(true, event(12, StateRunning), ": heartbeat\nid: 12.7\n\n"), // then silent
			stream(false, event(13, StateSucceeded), event(14, StateSucceeded)))
		var got []string
		for event, err := range s.connect().Watch(t.Context(), "a") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, event.ID+" "+string(event.State))
		}
		if want := "10.0 WAITING,11.0 LEASED,12.0 RUNNING,13.0 SUCCEEDED"; strings.Join(got, ",") != want {
			t.Errorf("events: %v", got)
		}
		var after []string
		for _, r := range s.seen() {
			after = append(after, r.header.Get("Last-Event-ID"))
		}
		if want := ",11.0,11.0,12.7"; strings.Join(after, ",") != want {
			t.Errorf("resumed behind %q", after)
		}
	})
}

func TestAWatchThatCannotGoOnSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tooOld := func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusGone)
			fmt.Fprint(rw, `{"status":410,"code":"not_found","detail":"too old","retryable":false}`)
		}
		over := func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNoContent) }
		s := newServer(t, answerProblem(schema.InvalidArgument), tooOld, over)
		var last error
		for _, want := range []error{schema.InvalidArgument, ErrTooOld, nil} {
			last = nil
			for _, err := range s.connect().WatchAll(t.Context(), "1.0") {
				last = err
			}
			if !errors.Is(last, want) {
				t.Errorf("error %v, want %v", last, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		last = nil
		for _, err := range s.connect().WatchAll(ctx, "") {
			last = err
		}
		if !errors.Is(last, context.Canceled) {
			t.Errorf("error: %v", last)
		}
	})
}

func TestNamesInAPathCannotLookLikeAnythingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, answerJSON(`{}`), answerJSON(`{"key":"k"}`))
		c := s.connect().InNamespace("a/b")
		if _, err := c.FreeKey(t.Context(), "../x:free?ä", "stuck"); err != nil {
			t.Fatal(err)
		}
		want := "/v1/namespaces/a%2Fb/keys/%2E%2E%2Fx%3Afree%3F%C3%A4:free"
		if r := s.seen()[0]; r.target != want || r.body != `{"note":"stuck"}` || r.key == "" {
			t.Errorf("request: %+v", r)
		}
	})
}

func TestAReviewCarriesItsResultVerbatim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, answerJSON(taskJSON, "SUCCEEDED"), answerJSON(taskJSON, "WAITING"))
		c := s.connect()
		if _, err := c.Review(t.Context(), "ab", Review{Decision: ReviewSucceeded, Note: "seen in the ledger", Result: json.RawMessage(`{ "n": 1.0 }`)}, WithExpectedRevision(7)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Cancel(t.Context(), "ab"); err != nil {
			t.Fatal(err)
		}
		seen := s.seen()
		if seen[0].body != `{"expected_revision":"7","decision":"SUCCEEDED","note":"seen in the ledger","result":{ "n": 1.0 }}` || seen[1].body != `{}` ||
			seen[0].target != "/v1/namespaces/default/tasks/ab:review" || seen[1].target != "/v1/namespaces/default/tasks/ab:cancel" {
			t.Errorf("requests: %+v", seen)
		}
	})
}

func TestOptionsThatCannotWorkAreToldByEveryCall(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientOptions{Addr: "127.0.0.1:7400"})
	if _, err := c.Submit(t.Context(), TaskSpec{Handler: "echo"}); err == nil || !strings.Contains(err.Error(), "http://host:port") {
		t.Errorf("error: %v", err)
	}
	for name, spec := range map[string]TaskSpec{
		"no handler":      {},
		"a payload twice": {Handler: "echo", Payload: json.RawMessage(`{"a":1,"a":2}`)},
		"no JSON":         {Handler: "echo", Payload: func() {}},
	} {
		if _, err := NewClient(ClientOptions{}).Submit(t.Context(), spec); err == nil {
			t.Errorf("submitted with %s", name)
		}
	}
}

// A server that is not there was removed by the try before, unless that one was
// refused: then it never was there.
func TestARemovalThatIsRepeatedKnowsWhatItDid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			first http.HandlerFunc
			gone  bool
		}{
			"lost":    {broken, true},
			"unknown": {answerProblem(schema.ResultUnknown), true},
			"refused": {answerProblem(schema.NoLeader), false},
		} {
			s := newServer(t, c.first, answerProblem(schema.NotFound))
			err := s.connect().RemoveServer(t.Context(), "node-9", false)
			if c.gone && err != nil || !c.gone && !errors.Is(err, schema.NotFound) {
				t.Errorf("after a first try that was %s: %v", name, err)
			}
		}
	})
}

// A refusal promises that nothing happened, by the try that it answers. It says
// nothing about an earlier one whose answer was lost.
func TestARefusalDoesNotHideATryWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first http.HandlerFunc
		read  bool
		want  schema.Code
	}{
		"a change that was lost":    {broken, false, schema.ResultUnknown},
		"a change that was refused": {answerProblem(schema.Unavailable), false, schema.NoLeader},
		"a read that was lost":      {broken, true, schema.NoLeader},
	} {
		synctest.Test(t, func(t *testing.T) {
			answers := []http.HandlerFunc{c.first}
			for range 100 {
				answers = append(answers, answerProblem(schema.NoLeader))
			}
			client := newServer(t, answers...).connect()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var err error
			if c.read {
				_, err = client.Get(ctx, "0123456789abcdef0123456789abcdef")
			} else {
				_, err = client.Cancel(ctx, "0123456789abcdef0123456789abcdef")
			}
			if CodeOf(err) != c.want || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
		})
	}
}
