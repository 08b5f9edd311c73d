package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

// shelf is a backend's tasks, newest first, as the state lists them.
type shelf struct {
	ids     []uint64 // descending
	scanMax int      // rows one query looks at; 0 = all
	payload int
}

func (s *shelf) list(b *pb.ListTasks) *pb.TaskList {
	out := &pb.TaskList{}
	scanned := 0
	var last []byte
	for _, n := range s.ids {
		if len(b.Before) == 16 && n >= binary.BigEndian.Uint64(b.Before[8:]) {
			continue
		}
		if scanned++; s.scanMax > 0 && scanned > s.scanMax || len(out.Tasks) == int(b.Limit) {
			out.NextBefore = last
			break
		}
		last = taskNumber(n)
		if b.Handler == "odd" && n%2 == 0 {
			continue
		}
		v := sampleTask(pb.TaskState_TASK_STATE_WAITING)
		v.Task.Id, v.Payload = last, []byte(`"`+strings.Repeat("x", s.payload)+`"`)
		out.Tasks = append(out.Tasks, v)
	}
	return out
}

func taskNumber(n uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 8), n)
}

func (s *shelf) read(_ context.Context, q *pb.Query) (*pb.Answer, error) {
	return &pb.Answer{Index: 79, Body: &pb.Answer_Tasks{Tasks: s.list(q.GetListTasks())}}, nil
}

func newShelf(n int) *shelf {
	s := &shelf{}
	for i := n; i > 0; i-- {
		s.ids = append(s.ids, uint64(i))
	}
	return s
}

// walk follows the cursors to the end.
func (r *rig) walk(query string, between func()) (seen []uint64, pages int) {
	r.t.Helper()
	cursor := ""
	for pages = 0; pages < 1000; pages++ {
		target := "/v1/namespaces/default/tasks?" + query
		if cursor != "" {
			target += "&cursor=" + url.QueryEscape(cursor)
		}
		w := r.do("GET", target, "")
		var page struct {
			Tasks []struct{ ID schema.ID }
			Next  *string `json:"next_cursor"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != 200 {
			r.t.Fatalf("%d %v %s", w.Code, err, w.Body)
		}
		for _, task := range page.Tasks {
			seen = append(seen, binary.BigEndian.Uint64(task.ID[8:]))
		}
		if page.Next == nil {
			return seen, pages + 1
		}
		cursor = *page.Next
		if between != nil {
			between()
		}
	}
	r.t.Fatal("the list has no end")
	return nil, 0
}

func TestAListIsWalkedWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tasks, limit, scanMax, payload int
		query                          string
		want, pages                    int // 0 pages = any
	}{
		"one page":                        {tasks: 7, limit: 100, want: 7, pages: 1},
		"pages that fit":                  {tasks: 20, limit: 10, want: 20, pages: 2},
		"pages of one":                    {tasks: 5, limit: 1, want: 5, pages: 5},
		"a page of many parts":            {tasks: 500, limit: 300, want: 500, pages: 2},
		"none":                            {tasks: 0, limit: 10, want: 0, pages: 1},
		"a filter that lets few through":  {tasks: 300, limit: 40, scanMax: 7, query: "&handler=odd", want: 150},
		"large payloads":                  {tasks: 100, limit: 1000, payload: 200 << 10, want: 100, pages: 3},
		"a filter that lets none through": {tasks: 1000, limit: 10, scanMax: 1, query: "&handler=odd", want: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := newShelf(c.tasks)
			s.scanMax, s.payload = c.scanMax, c.payload
			r.read = s.read
			seen, pages := r.walk(fmt.Sprintf("limit=%d%s", c.limit, c.query), nil)
			if len(seen) != c.want || !slices.IsSortedFunc(seen, func(a, b uint64) int { return int(b) - int(a) }) ||
				len(slices.Compact(slices.Clone(seen))) != c.want || c.pages > 0 && pages != c.pages {
				t.Errorf("%d tasks on %d pages, want %d on %d: %v", len(seen), pages, c.want, c.pages, seen)
			}
		})
	}
}

func TestAListIsStableWhileTasksArrive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newShelf(50)
	r.read = s.read
	next := uint64(50)
	seen, _ := r.walk("limit=7", func() {
		for range 10 { // more than a page each time
			next++
			s.ids = append([]uint64{next}, s.ids...)
		}
	})
	if len(seen) != 50 || seen[0] != 50 || seen[49] != 1 {
		t.Errorf("saw %v", seen)
	}
}

func TestACursorBelongsToItsList(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cursor := bulkAnswer(t, r.do("GET", "/v1/namespaces/default/tasks?limit=2&queue=q", "")).NextCursor
	if w := r.do("GET", "/v1/namespaces/default/tasks?queue=q&cursor="+cursor, ""); w.Code != http.StatusOK {
		t.Errorf("its own list: %d %s", w.Code, w.Body)
	}
	q := r.asked()
	if before := q[len(q)-1].GetListTasks().Before; string(before) != string(id(1)) {
		t.Errorf("goes on before %x", before)
	}
	for _, target := range []string{"/v1/namespaces/default/tasks?queue=other&cursor=", "/v1/namespaces/default/tasks?cursor=", keysPath + "?cursor=", "/v1/namespaces/default/workers?cursor="} {
		if w := r.do("GET", target+cursor, ""); w.Code != http.StatusBadRequest {
			t.Errorf("%s takes a cursor of another list: %d", target, w.Code)
		}
	}
}

func TestALongPollAnswersWhenTheTaskIsOver(t *testing.T) {
	t.Parallel()
	for _, end := range []pb.TaskState{
		pb.TaskState_TASK_STATE_SUCCEEDED, pb.TaskState_TASK_STATE_FAILED, pb.TaskState_TASK_STATE_CANCELLED, pb.TaskState_TASK_STATE_NEEDS_REVIEW,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			state := pb.TaskState_TASK_STATE_WAITING
			r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
				return &pb.Answer{Index: 79, Body: &pb.Answer_Task{Task: sampleTask(state)}}, nil
			}
			done := make(chan *httptest.ResponseRecorder)
			go func() { done <- r.do("GET", taskPath+"?wait_state=terminal&timeout_ms=60000", "") }()
			for _, next := range []pb.TaskState{pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING} {
				synctest.Wait()
				state = next
				r.wake()
			}
			synctest.Wait()
			if waiters := r.handler.Waiters(); waiters != 1 || r.handler.InFlight() != 0 {
				t.Errorf("%d waiters, %d in flight", waiters, r.handler.InFlight())
			}
			state = end
			started := time.Now()
			r.wake()
			w := <-done
			if w.Code != 200 || !strings.Contains(w.Body.String(), nameOf(taskStates, end)) || time.Since(started) != 0 {
				t.Errorf("%d after %s: %s", w.Code, time.Since(started), w.Body)
			}
			if r.subscribed() != 0 || r.handler.Waiters() != 0 {
				t.Errorf("%d subscriptions and %d waiters are left", r.subscribed(), r.handler.Waiters())
			}
			for i, q := range r.asked() {
				fresh := q.Consistency == pb.Consistency_CONSISTENCY_UNSPECIFIED && q.MinIndex == 0
				if fresh != (i == 0) || i > 0 && q.MinIndex != 79 {
					t.Errorf("read %d is %s from %d", i, q.Consistency, q.MinIndex)
				}
			}
		})
	}
}

func TestALongPollAnswersInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
			return &pb.Answer{Index: 79, Body: &pb.Answer_Task{Task: sampleTask(pb.TaskState_TASK_STATE_RUNNING)}}, nil
		}
		for query, want := range map[string]time.Duration{"&timeout_ms=1500": 1500 * time.Millisecond, "&timeout_ms=0": 0, "": 30 * time.Second} {
			started := time.Now()
			w := r.do("GET", taskPath+"?wait_state=terminal"+query, "")
			if took := time.Since(started); w.Code != 200 || took != want || !strings.Contains(w.Body.String(), `"RUNNING"`) {
				t.Errorf("%q: %d after %s: %s", query, w.Code, took, w.Body)
			}
		}
		// A client that leaves and a node that shuts down end it too.
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.handler.ServeHTTP(newRecorder(), request("GET", taskPath+"?wait_state=terminal", "").WithContext(ctx))
		}()
		synctest.Wait()
		leave()
		<-done
		answer := make(chan *httptest.ResponseRecorder)
		go func() { answer <- r.do("GET", taskPath+"?wait_state=terminal", "") }()
		synctest.Wait()
		r.handler.Drain()
		if w := <-answer; w.Code != 200 {
			t.Errorf("while draining: %d", w.Code)
		}
	})
}

func TestALongPollOfNoTaskDoesNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
		return &pb.Answer{Index: 79, Code: "not_found", Message: "no such task"}, nil
	}
	if w := r.do("GET", taskPath+"?wait_state=terminal", ""); w.Code != 404 || w.Header().Get("X-Pulse-Index") != "79" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestBulkIsCutIntoCommands(t *testing.T) {
	t.Parallel()
	ids := make([]string, 1201)
	for i := range ids {
		ids[i] = fmt.Sprintf(`"%032x"`, 2*i+1)
	}
	r := newRig(t)
	w := r.do("POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","note":"n","ids":[`+strings.Join(ids, ",")+`]}`, "Idempotency-Key", "k")
	if w.Code != 200 {
		t.Fatal(w.Body)
	}
	var sizes []int
	var keys []string
	for _, c := range r.commanded() {
		sizes = append(sizes, len(c.GetBulkTasks().TaskIds))
		keys = append(keys, c.IdempotencyKey)
	}
	if !slices.Equal(sizes, []int{500, 500, 201}) || !slices.Equal(keys, []string{"k#0", "k#1", "k#2"}) {
		t.Errorf("commands of %v tasks under %v", sizes, keys)
	}
	answer := bulkAnswer(t, w)
	if answer.Matched != 1201 || answer.Done != 1201 || len(answer.Results) != 1201 || answer.Results[1200].TaskID != ids[1200][1:33] {
		t.Errorf("matched %d, done %d, %d results", answer.Matched, answer.Done, len(answer.Results))
	}
}

type bulkReply struct {
	Matched, Done, Failed int
	Results               []struct {
		TaskID         string `json:"task_id"`
		RecoverySafety string `json:"recovery_safety"`
		State          string
		Revision       string
		Error          *struct{ Code string }
	}
	NextCursor string `json:"next_cursor"`
}

func bulkAnswer(t *testing.T, w *httptest.ResponseRecorder) bulkReply {
	t.Helper()
	return decode[bulkReply](t, w.Body.Bytes())
}

func TestBulkByFilterIsKeyedTaskByTask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read = newShelf(3).read
	body := `{"action":"retry","filter":{"handler":"h"}}`
	r.do("POST", "/v1/namespaces/default/tasks:bulk", body, "Idempotency-Key", "k")
	var keys []string
	for _, c := range r.commanded() {
		if len(c.GetBulkTasks().TaskIds) != 1 {
			t.Errorf("a command of %d tasks", len(c.GetBulkTasks().TaskIds))
		}
		keys = append(keys, c.IdempotencyKey)
	}
	want := []string{"k#" + fmt.Sprintf("%032x", 3), "k#" + fmt.Sprintf("%032x", 2), "k#" + fmt.Sprintf("%032x", 1)}
	if !slices.Equal(keys, want) {
		t.Errorf("keys %q", keys)
	}
	// What was retried already is neither selected nor, meanwhile, retried.
	if !r.asked()[0].GetListTasks().NotRetried || !r.commanded()[0].GetBulkTasks().Once {
		t.Error("a retry by a filter may do the same work twice")
	}
	// Without states, a retry selects what has failed.
	if states := r.asked()[0].GetListTasks().States; !slices.Equal(states, []pb.TaskState{pb.TaskState_TASK_STATE_FAILED}) {
		t.Errorf("states %v", states)
	}
}

func TestBulkByFilterGoesOnBehindItsCursor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read = newShelf(10_003).read
	first := r.do("POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","filter":{},"dry_run":true}`)
	page := bulkAnswer(t, first)
	if page.Matched != 10_000 || page.Done != 0 || page.NextCursor == "" || page.Results[0].State != "WAITING" || page.Results[0].RecoverySafety == "" {
		t.Fatalf("matched %d, done %d, cursor %q", page.Matched, page.Done, page.NextCursor)
	}
	second := bulkAnswer(t, r.do("POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","filter":{},"dry_run":true,"cursor":"`+page.NextCursor+`"}`))
	if second.Matched != 3 || second.NextCursor != "" || second.Results[0].TaskID != fmt.Sprintf("%032x", 3) {
		t.Errorf("then %+v", second)
	}
	if w := r.do("POST", "/v1/namespaces/default/tasks:bulk", `{"action":"retry","filter":{},"cursor":"`+page.NextCursor+`"}`); w.Code != 400 {
		t.Errorf("the cursor of another action: %d %s", w.Code, w.Body)
	}
	if n := len(r.commanded()); n != 0 {
		t.Errorf("a dry run made %d commands", n)
	}
}

func TestBulkThatFailsOnTheWaySaysWhere(t *testing.T) {
	t.Parallel()
	ids := make([]string, 1100)
	for i := range ids {
		ids[i] = fmt.Sprintf(`"%032x"`, 2*i+1)
	}
	body := `{"action":"cancel","ids":[` + strings.Join(ids, ",") + `]}`
	for failing := range 2 {
		r := newRig(t)
		calls := 0
		r.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
			if calls++; calls-1 == failing {
				return nil, schema.Errorf(schema.ResultUnknown, "lost")
			}
			return []*pb.Result{sampleResult(cmds[0])}, nil
		}
		w := r.do("POST", "/v1/namespaces/default/tasks:bulk", body)
		if failing == 0 {
			if w.Code != http.StatusGatewayTimeout || calls != 1 {
				t.Errorf("the first part: %d after %d calls", w.Code, calls)
			}
			continue
		}
		answer := bulkAnswer(t, w)
		codes := map[string]int{}
		for _, item := range answer.Results {
			if item.Error != nil {
				codes[item.Error.Code]++
			}
		}
		if w.Code != 200 || calls != 2 || answer.Done != 500 || answer.Failed != 600 || codes["result_unknown"] != 500 || codes["unavailable"] != 100 {
			t.Errorf("%d after %d calls, done %d, failed %d: %v", w.Code, calls, answer.Done, answer.Failed, codes)
		}
	}
}

func TestADryRunOfNamedTasksFindsThoseThatAreNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read = func(_ context.Context, q *pb.Query) (*pb.Answer, error) {
		if q.GetGetTask().TaskId[15] == 2 {
			return &pb.Answer{Index: 79, Code: "not_found", Message: "no such task"}, nil
		}
		return sampleAnswer(q), nil
	}
	answer := bulkAnswer(t, r.do("POST", "/v1/namespaces/default/tasks:bulk", `{"action":"cancel","ids":["`+idOne+`","`+idTwo+`"],"dry_run":true}`))
	if answer.Matched != 2 || answer.Failed != 1 || answer.Results[0].State != "SUCCEEDED" || answer.Results[0].RecoverySafety == "" || answer.Results[1].Error.Code != "not_found" {
		t.Errorf("got %+v", answer)
	}
}
