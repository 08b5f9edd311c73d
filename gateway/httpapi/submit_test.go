package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func TestTheStatusOfASubmission(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result   func(*pb.Result)
		status   int
		replayed string
		body     string
	}{
		"a new task":               {func(*pb.Result) {}, 201, "", `"state":"WAITING"`},
		"a repeated business key":  {func(r *pb.Result) { r.GetTask().Duplicate = true }, 200, "", `"duplicate":true`},
		"a replay of a new task":   {func(r *pb.Result) { r.Replayed = true }, 201, "true", `"payload":{"amount": 1.50}`},
		"a replay of a repeat":     {func(r *pb.Result) { r.Replayed, r.GetTask().Duplicate = true, true }, 200, "true", `"duplicate":true`},
		"a payload from the state": {func(r *pb.Result) { r.GetTask().Task.Payload = []byte(`[2.50]`) }, 201, "", `"payload":[2.50]`},
		"a task leased at once":    {func(r *pb.Result) { *r.GetTask() = pb.TaskResult{Task: sampleTask(pb.TaskState_TASK_STATE_LEASED)} }, 201, "", `"lease":{`},
		"a task that is over, dup.": {func(r *pb.Result) {
			*r.GetTask() = pb.TaskResult{Duplicate: true, Task: sampleTask(pb.TaskState_TASK_STATE_SUCCEEDED)}
		}, 200, "", `"result":{"done" : 2.50}`},
	} {
		r := newRig(t)
		r.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
			out := sampleResult(cmds[0])
			c.result(out)
			return []*pb.Result{out}, nil
		}
		w := r.do("POST", tasksPath, task, "Idempotency-Key", "k")
		if w.Code != c.status || w.Header().Get("Idempotency-Replayed") != c.replayed || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s: %d, replayed %q, %s", name, w.Code, w.Header().Get("Idempotency-Replayed"), w.Body)
		}
	}
}

// everyRefusal is each code with what else a result may carry.
func everyRefusal() []*pb.Result {
	var out []*pb.Result
	for _, info := range schema.Codes() {
		out = append(out, &pb.Result{Code: string(info.Code), Message: "because", Index: 81})
	}
	return out
}

func TestARefusalIsAnsweredAsTheCatalogueSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, result := range everyRefusal() {
		r.submit = func(context.Context, []*pb.Command) ([]*pb.Result, error) { return []*pb.Result{result}, nil }
		w := newRecorder()
		r.handler.ServeHTTP(w, request("POST", tasksPath, task))
		code := schema.Code(result.Code)
		p := problemOf(t, w)
		if w.Code != code.HTTPStatus() || p.Status != w.Code || p.Code != result.Code || p.Type != "urn:pulse:error:"+result.Code ||
			p.Retryable != code.Retryable() || p.Detail != "because" || p.Title == "" || w.Header().Get("X-Pulse-Index") != "81" {
			t.Errorf("%s: %d %+v %v", code, w.Code, p, w.Header())
		}
		if limited := w.Code == 429 || w.Code == 503; limited != (w.Header().Get("Retry-After") == "1") {
			t.Errorf("%s: Retry-After %q", code, w.Header().Get("Retry-After"))
		}
	}
}

func TestARefusalCarriesWhatHelps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.submit = func(context.Context, []*pb.Command) ([]*pb.Result, error) {
		return []*pb.Result{{
			Code: "conflict", Message: "the business key belongs to another", ExistingTaskId: id(9), CurrentRevision: 12,
			Violations: []*pb.Violation{{Path: "/deadline_at", Message: "must be later"}},
		}}, nil
	}
	w := r.do("POST", tasksPath, task)
	for _, want := range []string{
		`"existing_task_id":"00000000000000000000000000000009"`, `"current_revision":"12"`, `"violations":[{"path":"/deadline_at","message":"must be later"}]`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s lacks %s", w.Body, want)
		}
	}
}

func TestAFailedCallKeepsItsMeaning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		change string // code of a change
		read   string // code of a read
	}{
		"no leader":          {schema.Errorf(schema.NoLeader, "none"), "no_leader", "no_leader"},
		"wrapped":            {fmt.Errorf("call: %w", schema.Errorf(schema.Unavailable, "full")), "unavailable", "unavailable"},
		"unknown":            {schema.Errorf(schema.ResultUnknown, "lost"), "result_unknown", "result_unknown"},
		"without a code":     {errors.New("disk on fire"), "result_unknown", "internal"},
		"a deadline":         {context.DeadlineExceeded, "result_unknown", "deadline_expired"},
		"a client that left": {context.Canceled, "result_unknown", "deadline_expired"},
	} {
		r := newRig(t)
		r.submit = func(context.Context, []*pb.Command) ([]*pb.Result, error) { return nil, c.err }
		r.read = func(context.Context, *pb.Query) (*pb.Answer, error) { return nil, c.err }
		if p := problemOf(t, r.do("POST", tasksPath, task)); p.Code != c.change || strings.Contains(p.Detail, "fire") {
			t.Errorf("%s: a change answers %+v", name, p)
		}
		w := newRecorder()
		r.handler.ServeHTTP(w, request("GET", taskPath, ""))
		if p := problemOf(t, w); p.Code != c.read || strings.Contains(p.Detail, "fire") {
			t.Errorf("%s: a read answers %+v", name, p)
		}
	}
	r := newRig(t)
	r.submit = func(context.Context, []*pb.Command) ([]*pb.Result, error) { return nil, nil }
	if p := problemOf(t, r.do("POST", tasksPath, task)); p.Code != "result_unknown" {
		t.Errorf("too few results: %+v", p)
	}
}

func TestABatchIsAnsweredItemByItem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
		ok, dup := sampleResult(cmds[0]), sampleResult(cmds[1])
		ok.Index, dup.Index = 90, 95
		dup.GetTask().Duplicate = true
		return []*pb.Result{ok, dup, {Code: "invalid_argument", Message: "m", Violations: []*pb.Violation{{Path: "/deadline_at", Message: "m"}}},
			{Code: "queue_full", Message: "full"}, {Code: "conflict", Message: "other", ExistingTaskId: id(9)}}, nil
	}
	bad := `{"handler":"h"}`
	w := r.do("POST", tasksPath+":batch", `{"tasks":[`+strings.Join([]string{bad, task, task, bad, task, task, task}, ",")+`]}`)
	if w.Code != 200 || w.Header().Get("X-Pulse-Index") != "95" {
		t.Fatalf("%d %s %v", w.Code, w.Body, w.Header())
	}
	var answer struct {
		Results []struct {
			ID        string
			Duplicate bool
			Error     *struct {
				Code           string
				Violations     []Violation
				ExistingTaskID string `json:"existing_task_id"`
			}
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(answer.Results))
	for i, item := range answer.Results {
		switch {
		case item.Error != nil:
			got[i] = item.Error.Code
			if len(item.Error.Violations) > 0 {
				got[i] += item.Error.Violations[0].Path
			}
			got[i] += item.Error.ExistingTaskID
		case item.Duplicate:
			got[i] = "duplicate"
		default:
			got[i] = item.ID
		}
	}
	want := []string{"invalid_argument/tasks/0", idOne, "duplicate", "invalid_argument/tasks/3", "invalid_argument/tasks/4/deadline_at", "queue_full", "conflict00000000000000000000000000000009"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// The SDK goes on alone with a task of a batch that had no good end.
func TestATaskOfABatchIsRepeatedAloneUnderTheBatchsKeyAndItsPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := strings.Replace(task, `"handler"`, `"business_key":"order/1","handler"`, 1)
	if w := r.do("POST", tasksPath+":batch", `{"tasks":[`+task+`,`+other+`]}`, "Idempotency-Key", "k"); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := r.do("POST", tasksPath, other, "Idempotency-Key", "k#1"); w.Code != 201 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	cmds := r.commanded()
	inBatch, alone := cmds[1], cmds[2]
	if inBatch.IdempotencyKey != "k#1" || alone.IdempotencyKey != inBatch.IdempotencyKey || !bytes.Equal(alone.ContentHash, inBatch.ContentHash) {
		t.Errorf("in a batch %q %x, alone %q %x", inBatch.IdempotencyKey, inBatch.ContentHash, alone.IdempotencyKey, alone.ContentHash)
	}
}

func TestABatchIsAReplayIfAllThatWasTakenIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replayed []bool
		code     string // of one more
		want     string
	}{
		"none": {[]bool{false, false}, "", ""}, "one of two": {[]bool{true, false}, "", ""}, "all": {[]bool{true, true}, "", "true"},
		"all that was taken": {[]bool{true, true}, "queue_full", "true"}, "nothing was taken": {nil, "queue_full", ""},
	} {
		r := newRig(t)
		r.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
			out := make([]*pb.Result, len(cmds))
			for i := range cmds {
				if out[i] = sampleResult(cmds[i]); i < len(c.replayed) {
					out[i].Replayed = c.replayed[i]
				} else {
					out[i] = &pb.Result{Code: c.code}
				}
			}
			return out, nil
		}
		n := len(c.replayed)
		if c.code != "" {
			n++
		}
		w := r.do("POST", tasksPath+":batch", `{"tasks":[`+strings.TrimSuffix(strings.Repeat(task+",", n), ",")+`]}`, "Idempotency-Key", "k")
		if got := w.Header().Get("Idempotency-Replayed"); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestABatchWithoutAGoodTaskNeedsNoBackend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if w := r.do("POST", tasksPath+":batch", `{"tasks":[]}`); w.Code != 200 || w.Body.String() != `{"results":[]}` {
		t.Errorf("no tasks: %d %s", w.Code, w.Body)
	}
	if w := r.do("POST", tasksPath+":batch", `{"tasks":[1]}`); w.Code != 200 || !strings.HasPrefix(w.Body.String(), `{"results":[{"error":`) {
		t.Errorf("a bad task: %d %s", w.Code, w.Body)
	}
	if n := len(r.commanded()); n != 0 {
		t.Errorf("%d commands", n)
	}
}

func TestABatchKeepsOrderIDsAndKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tasks := make([]string, 1000)
	for i := range tasks {
		tasks[i] = strings.Replace(task, "1.50", fmt.Sprint(i), 1)
	}
	if w := r.do("POST", tasksPath+":batch", `{"tasks":[`+strings.Join(tasks, ",")+`]}`, "Idempotency-Key", "k"); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	ids := map[string]bool{}
	for i, c := range r.commanded() {
		ids[string(c.Id)] = true
		if c.IdempotencyKey != fmt.Sprintf("k#%d", i) || string(c.GetSubmitTask().Payload) != fmt.Sprintf(`{"amount": %d}`, i) || len(c.ContentHash) != 32 {
			t.Fatalf("command %d: key %q, payload %s", i, c.IdempotencyKey, c.GetSubmitTask().Payload)
		}
	}
	if len(ids) != 1000 {
		t.Errorf("%d different ids", len(ids))
	}
}

func TestATaskHasTheSameContentAloneAndInABatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", tasksPath, task)
	r.do("POST", tasksPath+":batch", `{ "tasks" : [ `+task+` ] }`)
	r.do("POST", strings.Replace(tasksPath, "queues/default", "queues/other", 1), task)
	c := r.commanded()
	if string(c[0].ContentHash) != string(c[1].ContentHash) || string(c[0].ContentHash) == string(c[2].ContentHash) {
		t.Errorf("contents %x %x %x", c[0].ContentHash, c[1].ContentHash, c[2].ContentHash)
	}
	if c[0].IdempotencyKey != "" {
		t.Errorf("a key out of nowhere: %q", c[0].IdempotencyKey)
	}
}
