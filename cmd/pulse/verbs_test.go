package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulse/fsm/state"
	"pulse/sdk"
	"pulse/test/calm"
)

func TestARunIsSeenThroughAndItsNumbersKeepTheirText(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	out := s.ok("task", "run", "echo", `{"hi":1.50}`, "--wait")
	last := -1
	for _, word := range []string{"WAITING", "LEASED", "RUNNING", "SUCCEEDED", `{"hi":1.50}`} {
		at := strings.Index(out, word)
		if at <= last {
			t.Fatalf("%s is not in its place:\n%s", word, out)
		}
		last = at
	}
	task := object(t, s.ok("task", "run", "echo", `{"hi":1.50}`, "--wait", "-o", "json"))
	if task["state"] != "SUCCEEDED" {
		t.Error(task)
	}
	lines := strings.Split(strings.TrimSpace(s.ok("task", "run", "echo", "{\"a\":\n 2.0}", "--wait", "-o", "jsonl")), "\n")
	if len(lines) != 5 || !strings.Contains(lines[4], `"result":{"a":  2.0}`) {
		t.Errorf("%d lines, last %s", len(lines), lines[len(lines)-1])
	}
}

func TestARunThatDoesNotSucceedExitsWith1(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.fails(exitFailed, "is FAILED: no_luck", "task", "run", "fail", `{"code":"no_luck"}`, "--wait")
	s.fails(exitFailed, "pulse review resolve", "task", "run", "fail", `{"unknown":true}`, "--reconcile-only", "--wait")
	if r := s.run("task", "run", "fail", "--wait", "-o", "json"); r.code != exitFailed || object(t, r.out)["state"] != "FAILED" || r.err != "" {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	s.fails(exitFailed, "is not settled after", "task", "get", s.submit("nobody"), "--wait", "--timeout", "3s")
}

// spaced writes values with a blank between any two.
func spaced(values ...any) string { return strings.TrimSuffix(fmt.Sprintln(values...), "\n") }

// submit submits a task and returns its id.
func (s shell) submit(args ...string) string {
	s.t.Helper()
	id, _ := object(s.t, s.ok(append([]string{"task", "run", "-o", "json"}, args...)...))["id"].(string)
	return id
}

func TestThePayloadMayComeFromAFileOrStandardInput(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	path := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(path, []byte(`{"from":"a file"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := s.ok("task", "run", "echo", "@"+path, "--wait"); !strings.Contains(out, `{"from":"a file"}`) {
		t.Error(out)
	}
	s.in = `{"from":"a pipe"}`
	if out := s.ok("task", "run", "echo", "-", "--wait"); !strings.Contains(out, `{"from":"a pipe"}`) {
		t.Error(out)
	}
	s.fails(exitFailed, "no such file", "task", "run", "echo", "@"+path+"x")
}

func TestFlagsOfARunReachTheTask(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	task := object(t, s.ok("task", "run", "nobody", "-o", "json", "--handler-version", "2", "--payload-version", "3", "--reconcile-only",
		"--business-key", "order/1", "--key", "account/1", "--priority", "7", "--delay", "1d", "--deadline", "3d",
		"--max-attempts", "5", "--initial-delay", "0s", "--max-delay", "1m", "--attempt-timeout", "2h"))
	retry, _ := task["retry"].(map[string]any)
	got := spaced(task["handler_version"], task["payload_version"], task["recovery_safety"], task["business_key"], task["concurrency_key"], task["priority"],
		retry["max_attempts"], retry["initial_delay_ms"], retry["max_delay_ms"], retry["attempt_timeout_ms"])
	if want := "2 3 RECONCILE_ONLY order/1 account/1 7 5 0 60000 7200000"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if waiting, _ := task["waiting"].(map[string]any); waiting["reason"] != "delayed" {
		t.Errorf("waits for %v", waiting)
	}
}

func TestTheSameBusinessKeyFindsTheFirstTask(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	first := s.submit("nobody", `{"a":1}`, "--business-key", "order/1")
	if second := s.submit("nobody", `{"a":1}`, "--business-key", "order/1"); second != first {
		t.Errorf("%s and %s", first, second)
	}
	if out := s.ok("task", "run", "nobody", `{"a":1}`, "--business-key", "order/1"); !strings.Contains(out, "was submitted before") {
		t.Error(out)
	}
	s.fails(exitFailed, "pulse task get "+first, "task", "run", "nobody", `{"a":2}`, "--business-key", "order/1")
}

func TestWhyTellsTheReasonAndTheWayOut(t *testing.T) {
	t.Parallel()
	s, server := startNode(t)
	holder := s.submit("fail", `{"unknown":true}`, "--reconcile-only", "--key", "account/1")
	s.ok("task", "get", holder, "--wait")
	s.ok("queue", "create", "empty")
	s.ok("queue", "create", "stopped", "--paused")
	s.ok("queue", "create", "narrow", "--max-active", "1")
	narrow := server.Worker(sdk.WorkerOptions{Queue: "narrow"})
	devHandlers(narrow)
	server.Run(narrow)
	small := server.Worker(sdk.WorkerOptions{Queue: "small", Capacity: 1})
	s.ok("queue", "create", "small")
	devHandlers(small)
	server.Run(small)
	running := s.submit("sleep", `{"ms":60000}`, "-q", "narrow")
	s.until("RUNNING", running)
	busy := s.submit("sleep", `{"ms":60000}`, "-q", "small")
	s.until("RUNNING", busy)
	done := s.submit("echo")
	s.ok("task", "get", done, "--wait")
	failed := s.submit("fail")
	s.ok("task", "get", failed, "--wait")
	retried := s.submit("fail", `{"retryable":true,"code":"no_luck"}`, "--initial-delay", "1h")
	s.until("WAITING", retried)

	for _, c := range []struct {
		id    string
		words []string
	}{
		{s.submit("nobody", "-q", "empty"), []string{"No worker is connected to queue default/empty", "registers handler nobody version 1"}},
		{s.submit("nobody"), []string{"can run handler nobody version 1", "offers echo, fail, sleep"}},
		{s.submit("echo", "-q", "stopped"), []string{"is paused", "pulse queue resume stopped"}},
		{s.submit("echo", "--delay", "1h"), []string{"with a delay", "from now"}},
		{s.submit("echo", "--key", "account/1"), []string{`"account/1" is held by task ` + holder, "NEEDS_REVIEW", "pulse review resolve " + holder, "pulse key free account/1"}},
		{s.submit("echo", "-q", "narrow"), []string{"1 tasks at a time at most", "--max-active 2"}},
		{s.submit("echo", "-q", "small"), []string{"all are busy", "has 1 of 1 places taken"}},
		{holder, []string{"waits for a person", "pulse review resolve " + holder, "pulse key get account/1"}},
		{running, []string{"running on worker", "pulse worker get"}},
		{done, []string{"It is done"}},
		{failed, []string{"FAILED", "asked_to_fail", "1 of 3 attempts", "pulse task retry " + failed}},
		{retried, []string{"no_luck", "the next one waits until"}},
	} {
		out := s.ok("task", "why", c.id)
		for _, want := range c.words {
			if !strings.Contains(out, want) {
				t.Errorf("want %q in:\n%s", want, out)
			}
		}
	}
	v := object(t, s.ok("task", "why", holder, "-o", "json"))
	if v["task_id"] != holder || v["state"] != "NEEDS_REVIEW" || v["because"] == "" {
		t.Error(v)
	}
	s.ok("task", "cancel", running, busy)
	s.ok("task", "get", busy, "--wait")
	if out := s.ok("task", "get", running, "--wait"); !strings.Contains(out, "CANCELLED") {
		t.Error(out)
	}
}

// until waits for a task to be in a state, and past its first attempt if that is
// WAITING.
func (s shell) until(state, id string) {
	s.t.Helper()
	deadline := time.Now().Add(calm.Patience)
	for {
		task := object(s.t, s.ok("task", "get", id, "-o", "json"))
		if task["state"] == state && (state != "WAITING" || task["attempt_count"] != json.Number("0")) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("task %s is %v, want %s", id, task["state"], state)
		}
	}
}

func TestAReviewSettlesATask(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	ids := make([]string, 4)
	for i := range ids {
		ids[i] = s.submit("fail", `{"unknown":true}`, "--reconcile-only")
		s.ok("task", "get", ids[i], "--wait")
	}
	if out := s.ok("review", "list", "--ids"); len(strings.Fields(out)) != 4 {
		t.Error(out)
	}
	s.ok("review", "resolve", ids[0], "--decision", "succeeded", "--note", "found", "--result", `{"n":2.0}`)
	s.ok("review", "resolve", ids[1], "--decision", "FAILED", "--note", "not found", "--error-code", "declined")
	s.ok("review", "resolve", ids[2], "--decision", "CANCELLED", "--note", "not wanted")
	s.fails(exitFailed, "revision_conflict", "review", "resolve", ids[3], "--decision", "RETRY", "--note", "again", "--expected-revision", "1")
	s.ok("review", "resolve", ids[3], "--decision", "RETRY", "--note", "again")
	for i, want := range []string{`{"n":2.0}`, "declined", "CANCELLED"} {
		if out := s.ok("task", "get", ids[i]); !strings.Contains(out, want) {
			t.Errorf("want %s:\n%s", want, out)
		}
	}
	s.ok("task", "get", ids[3], "--wait")
	if out := s.ok("task", "get", ids[3], "-o", "json"); strings.Count(out, `"epoch"`) != 2 {
		t.Errorf("one attempt more was allowed:\n%s", out)
	}
	s.fails(exitFailed, "conflict", "review", "resolve", ids[0], "--decision", "RETRY", "--note", "again")
}

// A task tells that somebody decided about it: what, who, when and why.
func TestATaskTellsWhoDecidedAboutIt(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	reviewed := s.submit("fail", `{"unknown":true}`, "--reconcile-only")
	s.ok("task", "get", reviewed, "--wait")
	if out := s.ok("task", "get", reviewed); !strings.Contains(out, "In review since") || strings.Contains(out, "because") {
		t.Error(out)
	}
	s.ok("review", "resolve", reviewed, "--decision", "SUCCEEDED", "--note", "found in the ledger")
	cancelled := s.submit("nobody")
	s.ok("task", "cancel", cancelled, "--note", "wrong customer")
	for id, want := range map[string][]string{
		reviewed:  {"Reviewed", "SUCCEEDED by anonymous, 20", "because", "found in the ledger"},
		cancelled: {"Cancel ", "asked for by anonymous, 20", "because", "wrong customer"},
	} {
		out := s.ok("task", "get", id)
		for _, words := range want {
			if !strings.Contains(out, words) {
				t.Errorf("want %q in:\n%s", words, out)
			}
		}
	}
	decision, _ := object(t, s.ok("task", "get", reviewed, "-o", "json"))["decision"].(map[string]any)
	if decision["decision"] != "SUCCEEDED" || decision["by"] != "anonymous" || decision["note"] != "found in the ledger" || decision["at"] == nil {
		t.Errorf("%v", decision)
	}
}

// What a list of reviews says of a task is so at the moment: since when it is in
// review, whatever was changed of it meanwhile, and a key only while it holds it.
func TestTheListOfReviewsTellsSinceWhenAndWhatIsHeld(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	id := s.submit("fail", `{"unknown":true}`, "--reconcile-only", "--key", "account/7")
	s.ok("task", "get", id, "--wait")
	if out := s.ok("review", "list"); !strings.Contains(out, "account/7") {
		t.Errorf("it holds its key:\n%s", out)
	}
	before := object(t, s.ok("task", "get", id, "-o", "json"))
	if before["review_cause"] != "unknown_outcome" {
		t.Errorf("in review because %v", before["review_cause"])
	}
	s.ok("key", "free", "account/7", "--note", "the account is not touched")
	if out := s.ok("review", "list"); strings.Contains(out, "account/7") || !strings.Contains(out, id) {
		t.Errorf("its key was freed:\n%s", out)
	}
	if out := s.ok("task", "get", id); !strings.Contains(out, "account/7, which it does not hold") {
		t.Error(out)
	}
	after := object(t, s.ok("task", "get", id, "-o", "json"))
	if after["revision"] == before["revision"] || after["review_since"] == nil || after["review_since"] != before["review_since"] {
		t.Errorf("in review since %v at revision %v, and then since %v at %v", before["review_since"], before["revision"], after["review_since"], after["revision"])
	}
	for _, c := range []struct{ want, code, cause string }{
		{"no_answer", "no_answer", "unknown_outcome"}, // the worker's word says more
		{"its lease ran out", "", "lease"},
		{"a_cause_to_come", "", "a_cause_to_come"},
	} {
		task := &sdk.TaskInfo{ErrorCode: c.code, ReviewCause: c.cause}
		if got := reviewColumns[len(reviewColumns)-1].cell(task); got != c.want {
			t.Errorf("of %q and %q it says %q, not %q", c.code, c.cause, got, c.want)
		}
	}
	since := time.Now().Add(-3 * time.Hour)
	task := &sdk.TaskInfo{ReviewSince: since, UpdatedAt: time.Now()}
	for _, c := range reviewColumns {
		if c.title == "FOR" && !strings.HasPrefix(c.cell(task), "3h") {
			t.Errorf("in review for %s, want 3h", c.cell(task))
		}
	}
}

// What was done, and is not to be done twice on suspicion, is not retried by
// mistake.
func TestARetryOfWhatIsDoneIsAskedForTwice(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	done, idempotent, failed := s.submit("echo", "--reconcile-only"), s.submit("echo"), s.submit("fail", "--reconcile-only")
	for _, id := range []string{done, idempotent, failed} {
		s.ok("task", "get", id, "--wait")
	}
	s.fails(exitFailed, "was done: it is SUCCEEDED, and as RECONCILE_ONLY", "task", "retry", done)
	s.fails(exitFailed, "say --yes", "task", "retry", done, failed)
	if n := s.countTasks(); n != 4 {
		t.Errorf("%d tasks: only the one that failed was to be retried", n)
	}
	s.ok("task", "retry", idempotent)
	s.ok("task", "retry", done, "--yes")
}

func TestTasksAreListedInEveryForm(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	if r := s.run("task", "list"); r.code != exitDone || r.out != "" || r.err != "No tasks.\n" {
		t.Errorf("%+v", r)
	}
	if out := s.ok("task", "list", "-o", "json"); out != "[]\n" {
		t.Error(out)
	}
	for i := range 3 {
		s.submit("nobody", fmt.Sprintf(`{"n":%d.0}`, i))
	}
	if out := s.ok("task", "list"); strings.Count(out, "\n") != 4 || !strings.Contains(out, "no_capable_worker") {
		t.Error(out)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(s.ok("task", "list", "-o", "json")), &list); err != nil || len(list) != 3 {
		t.Errorf("%v, %d", err, len(list))
	}
	if out := s.ok("task", "list", "-o", "jsonl"); strings.Count(out, "\n") != 3 {
		t.Error(out)
	}
	r := s.run("task", "list", "--limit", "2", "--state", "waiting", "--reason", "no-capable-worker")
	if strings.Count(r.out, "\n") != 3 || !strings.Contains(r.err, "--limit 0 shows all") {
		t.Errorf("%+v", r)
	}
	if out := s.ok("task", "list", "--ids", "--state", "RUNNING,FAILED"); out != "" {
		t.Error(out)
	}
}

func TestManyTasksAreCancelledAndRetriedByAFilter(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	for range 3 {
		s.submit("nobody")
	}
	other := s.submit("somebody", "--delay", "1h")
	if out := s.ok("task", "cancel", "--handler", "nobody", "--dry-run"); !strings.Contains(out, "select 3 tasks") {
		t.Error(out)
	}
	if out := s.ok("task", "cancel", "--handler", "nobody", "--yes", "--note", "a mistake"); !strings.Contains(out, "3 tasks: 3 done, 0 refused") {
		t.Error(out)
	}
	if out := s.ok("task", "list", "--state", "CANCELLED", "--ids"); strings.Count(out, "\n") != 3 || strings.Contains(out, other) {
		t.Error(out)
	}
	if out := s.ok("task", "retry", "--handler", "nobody", "--state", "CANCELLED", "--yes", "-o", "json"); object(t, out)["done"] != json.Number("3") {
		t.Error(out)
	}
	// The same flags again select nothing: the work of the first time is not done twice.
	for _, mode := range []string{"--dry-run", "--yes"} {
		if out := s.ok("task", "retry", "--handler", "nobody", "--state", "CANCELLED", mode, "-o", "json"); object(t, out)["matched"] != json.Number("0") {
			t.Errorf("%s: %s", mode, out)
		}
	}
	old := strings.Fields(s.ok("task", "list", "--state", "CANCELLED", "--ids"))[0]
	made := object(t, s.ok("task", "get", old, "-o", "json"))["retried_as"]
	if text, _ := made.(string); text == "" || !strings.Contains(s.ok("task", "get", old), "Retried as") || object(t, s.ok("task", "get", text, "-o", "json"))["retry_of"] != old {
		t.Errorf("%s was retried as %v", old, made)
	}
	if again := object(t, s.ok("task", "retry", old, "-o", "json"))["id"]; again == made || object(t, s.ok("task", "get", old, "-o", "json"))["retried_as"] != again {
		t.Errorf("named, it was retried as %v and then as %v", made, again)
	}
	s.fails(exitFailed, "conflict", "task", "retry", other)
	s.fails(exitFailed, "not_found", "task", "cancel", other, strings.Repeat("0", 31)+"1")
	if out := s.ok("task", "get", other); !strings.Contains(out, "CANCELLED") {
		t.Errorf("one bad id kept the other from being cancelled:\n%s", out)
	}
}

func TestQueuesAreSetUpAndChanged(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.ok("queue", "create", "mail", "--lease", "5s", "--max-active", "2", "--retention", "7d", "--max-attempts", "4")
	s.fails(exitFailed, "is there already", "queue", "create", "mail")
	s.fails(exitUsage, "NAME must be a letter or digit", "queue", "create", "no/name")
	q := object(t, s.ok("queue", "get", "mail", "-o", "json"))
	retry, _ := q["default_retry"].(map[string]any)
	if spaced(q["lease_duration_ms"], q["offer_duration_ms"], q["max_active"], q["retention_ms"], retry["max_attempts"]) != "5000 5000 2 604800000 4" {
		t.Error(q)
	}
	s.ok("queue", "update", "mail", "--max-delay", "2m", "--lease", "3s")
	q = object(t, s.ok("queue", "get", "mail", "-o", "json"))
	retry, _ = q["default_retry"].(map[string]any)
	if spaced(q["lease_duration_ms"], q["offer_duration_ms"], q["max_active"], retry["max_attempts"], retry["max_delay_ms"]) != "3000 3000 2 4 120000" {
		t.Errorf("an update changed something else: %v", q)
	}
	s.ok("queue", "update", "mail", "--max-active", "0")
	if out := s.ok("queue", "pause", "mail"); !strings.Contains(out, "is paused") {
		t.Error(out)
	}
	if out := s.ok("queue", "list"); !strings.Contains(out, "mail") || !strings.Contains(out, "yes") {
		t.Error(out)
	}
	if out := s.ok("queue", "get", "mail"); !strings.Contains(out, "no cap") || !strings.Contains(out, "lets it go on") {
		t.Error(out)
	}
	if out := s.ok("queue", "resume", "mail"); !strings.Contains(out, "goes on") {
		t.Error(out)
	}
	s.ok("queue", "delete", "mail")
	s.fails(exitFailed, "not_found", "queue", "get", "mail")
}

func TestWorkersKeysAndNamespacesAreShown(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	worker := strings.TrimSpace(s.ok("worker", "list", "--ids"))
	if out := s.ok("worker", "list"); !strings.Contains(out, "echo, fail, sleep") || !strings.Contains(out, "0 of 16") {
		t.Error(out)
	}
	if out := s.ok("worker", "get", worker); !strings.Contains(out, "connected") {
		t.Error(out)
	}
	id := s.submit("fail", `{"unknown":true}`, "--reconcile-only", "--key", "a b/ü%")
	s.ok("task", "get", id, "--wait")
	if out := s.ok("key", "list"); !strings.Contains(out, id) {
		t.Error(out)
	}
	if out := s.ok("key", "get", "a b/ü%"); !strings.Contains(out, "settle the task") {
		t.Error(out)
	}
	if out := s.ok("key", "free", "a b/ü%", "--note", "looked at it"); !strings.Contains(out, "is free") {
		t.Error(out)
	}
	if out := s.ok("key", "get", "a b/ü%"); !strings.Contains(out, "nobody") {
		t.Error(out)
	}
	if out := s.ok("worker", "drain", worker); !strings.Contains(out, "drains") {
		t.Error(out)
	}
	s.ok("namespace", "create", "billing")
	s.fails(exitFailed, "is there already", "namespace", "create", "billing")
	s.ok("queue", "create", "mail", "-n", "billing")
	if out := s.ok("namespace", "list"); !strings.Contains(out, "billing") {
		t.Error(out)
	}
	s.fails(exitFailed, "conflict", "namespace", "delete", "billing")
	s.env["PULSE_NAMESPACE"] = "billing"
	s.ok("queue", "delete", "mail")
	s.ok("namespace", "delete", "billing")
}

func TestABoundOfANamespaceIsChangedAndTakenAway(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.ok("namespace", "create", "billing")
	if out := s.ok("namespace", "update", "billing", "--workers", "5"); !strings.Contains(out, "0 tasks waiting, 0 payload bytes and 5 workers") {
		t.Error(out)
	}
	if out := s.ok("namespace", "update", "billing", "--workers", "0", "--tasks-waiting", "7"); !strings.Contains(out, "7 tasks waiting, 0 payload bytes and 0 workers") {
		t.Error(out)
	}
}

func TestWatchEndsWhenTheTaskIsSettled(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	id := s.submit("fail", `{"unknown":true}`, "--reconcile-only")
	if out := s.ok("task", "watch", id); !strings.HasSuffix(out, "NEEDS_REVIEW  nobody can know how it ended\n") {
		t.Error(out)
	}
	done := make(chan string)
	go func() { done <- s.ok("task", "watch", id, "--follow", "-o", "jsonl") }()
	s.ok("review", "resolve", id, "--decision", "CANCELLED", "--note", "not wanted")
	if out := <-done; !strings.Contains(out, `"state":"CANCELLED"`) {
		t.Error(out)
	}
}

func TestABackupIsWholeOrNotThere(t *testing.T) {
	t.Parallel()
	s, server := startNode(t)
	id := s.submit("nobody")
	dir := t.TempDir()
	path := filepath.Join(dir, "pulse.backup")
	done := object(t, s.ok("cluster", "backup", path, "-o", "json"))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	header, err := state.VerifyStream(f)
	if err != nil || fmt.Sprintf("%x", header.StateHash) != done["state_hash"] || done["rows"] == json.Number("0") {
		t.Errorf("%v: %v", err, done)
	}
	s.fails(exitFailed, "--force", "cluster", "backup", path)
	s.ok("cluster", "backup", path, "--force")
	s.fails(exitFailed, "no such file", "cluster", "backup", filepath.Join(dir, "nowhere", "x"))
	if out := s.ok("cluster", "status"); !strings.Contains(out, "leader") || !strings.Contains(out, "1 waiting") {
		t.Error(out)
	}
	server.Restart()
	if out := s.ok("task", "get", id); !strings.Contains(out, "WAITING") {
		t.Error(out)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// start runs a verb that goes on until it is stopped, and returns its first line.
func (s shell) start(args ...string) (first string, stop func() result) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	read, write := io.Pipe()
	var errOut strings.Builder
	ended := make(chan result, 1)
	go func() {
		code := run(ctx, args, strings.NewReader(""), write, &errOut, func(name string) string { return s.env[name] })
		_ = write.Close()
		ended <- result{code: code, err: errOut.String()}
	}()
	s.t.Cleanup(cancel)
	out := bufio.NewReader(read)
	first, err := out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("pulse %s: %v, %+v", strings.Join(args, " "), err, <-ended)
	}
	return first, func() result {
		cancel()
		rest, _ := io.ReadAll(out) // ends with the verb
		r := <-ended
		r.out = first + string(rest)
		return r
	}
}

func TestDevRunsTasksAndForgetsEverythingAtItsEnd(t *testing.T) {
	t.Parallel()
	s := shell{t: t, env: map[string]string{}}
	first, stop := s.start("dev", "--http", "127.0.0.1:0", "-o", "jsonl")
	ready := object(t, first)
	s.env["PULSE_ADDR"], _ = ready["url"].(string)
	s.ok("task", "run", "echo", "--wait")
	s.ok("task", "run", "sleep", `{"ms":1}`, "--wait")
	id := s.submit("sleep", `{"ms":60000}`)
	s.until("RUNNING", id)
	if r := stop(); r.code != exitDone {
		t.Errorf("dev ends with %+v", r)
	}
	if _, err := os.Stat(fmt.Sprint(ready["data"])); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}

func TestAServerKeepsWhatItWasGiven(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "server.conf")
	if err := os.WriteFile(config, []byte("data = "+filepath.Join(dir, "data")+"\nhttp = 127.0.0.1:0\nnode-id = alpha\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := shell{t: t, env: map[string]string{}}
	var id string
	for i := range 2 {
		first, stop := s.start("server", "--config", config, "-o", "jsonl", "--log-level", "warn")
		ready := object(t, first)
		if ready["node_id"] != "alpha" {
			t.Error(ready)
		}
		s.env["PULSE_ADDR"], _ = ready["url"].(string)
		if i == 0 {
			id = s.submit("nobody")
			s.fails(exitFailed, "is another pulse running", "server", "--config", config)
			s.fails(exitFailed, "--http chooses another", "server", "--data", filepath.Join(dir, "other"), "--http", strings.TrimPrefix(s.env["PULSE_ADDR"], "http://"))
		} else if out := s.ok("task", "get", id); !strings.Contains(out, "WAITING") {
			t.Error(out)
		}
		if r := stop(); r.code != exitDone {
			t.Errorf("server ends with %+v", r)
		}
	}
}

func TestADemoEndsWithOneLineOfJSON(t *testing.T) {
	t.Parallel()
	for _, kill := range []string{"server", "leader"} {
		t.Run(kill, func(t *testing.T) {
			t.Parallel()
			r := shell{t: t}.run("demo", "--headless", "--tasks", "200", "--seed", "3", "--kill", kill)
			if r.code != exitDone {
				t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
			}
			sum := object(t, r.out)
			for name, want := range map[string]string{"submitted": "200", "succeeded": "200", "lost": "0", "effects_doubled": "0", "needs_review": "0", "failed": "0", "seed": "3"} {
				if fmt.Sprint(sum[name]) != want {
					t.Errorf("%s is %v, want %s", name, sum[name], want)
				}
			}
			if ms, err := sum["failover_ms"].(json.Number).Int64(); err != nil || ms <= 0 {
				t.Errorf("failover_ms is %v", sum["failover_ms"])
			}
			if !strings.Contains(r.err, "kill -9 of node-") || !strings.Contains(r.err, "serves again") {
				t.Error(r.err)
			}
		})
	}
}

func TestABenchIsOneLineOfJSON(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	sum := object(t, s.ok("bench", "--tasks", "150", "--batch", "20", "--workers", "2", "--slots", "4", "--producers", "2", "--keys", "10"))
	if spaced(sum["submitted"], sum["done"], sum["errors"]) != "150 150 0" {
		t.Error(sum)
	}
	for _, name := range []string{"tasks_per_s", "submit_p50_ms", "submit_p99_ms", "pickup_p50_ms", "pickup_p99_ms", "done_p99_ms"} {
		if v, err := sum[name].(json.Number).Float64(); err != nil || v <= 0 {
			t.Errorf("%s is %v", name, sum[name])
		}
	}
	sum = object(t, s.ok("bench", "--duration", "500ms", "--rate", "100", "--workers", "1", "--producers", "4"))
	if v, err := sum["done"].(json.Number).Int64(); err != nil || v < 1 || v > 60 { // fewer on a slow machine, more on none
		t.Errorf("%v done in half a second at 100 a second", sum["done"])
	}
	if out := s.ok("queue", "list", "-o", "jsonl"); strings.Count(out, "\n") != 1 {
		t.Errorf("a queue is left behind:\n%s", out)
	}
}

func TestTheServersOfAClusterAreListedAndKept(t *testing.T) {
	t.Parallel()
	s, server := startNode(t)
	_, at, _ := strings.Cut(server.Addr(), "//")
	if out := s.ok("cluster", "members"); !strings.Contains(out, at) || !strings.Contains(out, "voter") || !strings.Contains(out, "alive") {
		t.Error(out)
	}
	member := object(t, s.ok("cluster", "members", "-o", "jsonl"))
	id, _ := member["id"].(string)
	if got := spaced(member["role"], member["http"], member["voter"], member["leader"], member["alive"]); got != "voter "+at+" true true true" {
		t.Error(got)
	}
	if out := s.ok("cluster", "transfer", id); out != id+" leads.\n" {
		t.Errorf("%q", out)
	}
	if done := object(t, s.ok("cluster", "transfer", id, "-o", "json")); done["leader_id"] != id {
		t.Error(done)
	}
	s.fails(exitFailed, "no server nobody in this cluster", "cluster", "transfer", "nobody")
	s.fails(exitFailed, "transfer leadership first", "cluster", "remove", id, "--force")
	s.fails(exitFailed, "no server nobody", "cluster", "remove", "nobody")
}

// A review that was needed once and has been made ends no watch: the state that the
// task is in does.
func TestAWatchGoesOnBeyondAReviewThatWasMade(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	args := []string{"fail", `{"unknown":true}`, "--reconcile-only", "--business-key", "order/1"}
	id := s.submit(args...)
	s.ok("task", "get", id, "--wait")
	s.ok("review", "resolve", id, "--decision", "SUCCEEDED", "--note", "found", "--result", `{"n":2.0}`)
	if out := s.ok("task", "watch", id); !strings.Contains(out, "NEEDS_REVIEW") || !strings.HasSuffix(out, "SUCCEEDED     settled by a person\n") {
		t.Error(out)
	}
	if out := s.ok(append([]string{"task", "run", "--wait"}, args...)...); !strings.Contains(out, "SUCCEEDED     settled by a person\n"+`{"n":2.0}`) {
		t.Error(out)
	}
}

func TestARepeatedCallIsMarked(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	run := []string{"task", "run", "echo", "--idempotency-key", "call-1"}
	if out := s.ok(run...); !strings.Contains(out, "is WAITING") {
		t.Error(out)
	}
	if out := s.ok(run...); !strings.Contains(out, "was submitted before under this --idempotency-key") {
		t.Error(out)
	}
	if out := object(t, s.ok(append(run, "-o", "json")...)); out["replayed"] != true {
		t.Error(out)
	}
	s.fails(exitFailed, "operation_conflict", append(run, `{"other":1}`)...)
}

func TestADryRunSaysWhatWouldBeRefused(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	over, open := s.submit("echo"), s.submit("nobody")
	s.ok("task", "get", over, "--wait")
	for verb, words := range map[string][]string{
		"cancel": {over + "  SUCCEEDED  would refuse: it is over\n", open + "  WAITING\n", "The flags select 2 tasks; with --yes each would be asked to cancel, and 1 would refuse.\n"},
		"retry":  {open + "  WAITING  would refuse: it is not over\n", over + "  SUCCEEDED\n", "asked to retry, and 1 would refuse.\n"},
	} {
		out := s.ok("task", verb, "--state", "SUCCEEDED,WAITING", "--dry-run")
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", verb, w, out)
			}
		}
	}
}

// What is RECONCILE_ONLY is not to be done twice on suspicion: a retry of many says how
// many of those it would do once more.
func TestADryRunOfARetryWarnsOfWhatMustNotBeDoneTwice(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	for _, args := range [][]string{{"echo", "--reconcile-only"}, {"fail", `{}`, "--reconcile-only"}, {"echo"}} {
		s.ok("task", "get", s.submit(args...), "--wait")
	}
	if out := s.ok("task", "retry", "--state", "SUCCEEDED,FAILED", "--dry-run"); !strings.Contains(out, "\nRECONCILE_ONLY among them: 2; done, or maybe done: 1 of these. A retry does their work once more.\n") {
		t.Error(out)
	}
	if out := s.ok("task", "retry", "--state", "FAILED", "--dry-run"); !strings.Contains(out, "\nRECONCILE_ONLY among them: 1; none of these was done.\n") {
		t.Error(out)
	}
	if out := s.ok("task", "retry", "--handler", "nobody", "--dry-run"); strings.Contains(out, "RECONCILE_ONLY") {
		t.Error(out)
	}
}

// A key is taken from a task in review alone. One that nobody holds is no error, as in
// the API, but it is said: its name may have a slip in it.
func TestAKeyIsFreedFromATaskInReviewAlone(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	if out := s.ok("key", "free", "acount/1", "--note", "a slip"); !strings.Contains(out, `Nobody holds the key "acount/1" or waits for it: nothing was changed. 'pulse key list' shows those in use.`) {
		t.Error(out)
	}
	if out := s.ok("key", "free", "acount/1", "--note", "a slip", "-o", "json"); strings.Contains(out, "holder_task_id") || !strings.Contains(out, `"acount/1"`) {
		t.Errorf("a key without a holder is printed as\n%s", out)
	}
	if out := s.ok("audit"); strings.Contains(out, "acount/1") {
		t.Errorf("what changed nothing is on record:\n%s", out)
	}
	running := s.submit("sleep", `{"ms":60000}`, "--key", "account/2")
	s.until("RUNNING", running)
	s.fails(exitFailed, "cancel its task instead", "key", "free", "account/2", "--note", "it hangs")
	next := s.submit("sleep", `{"ms":60000}`, "--key", "account/2")
	if out := s.ok("task", "why", next); strings.Contains(out, "key free") || !strings.Contains(out, "pulse task cancel "+running) {
		t.Errorf("what is advised would be refused:\n%s", out)
	}
	s.ok("task", "cancel", next, running)
}

func TestABackfillTellsEveryTime(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.ok("schedule", "create", "hourly", "nobody", "--cron", "0 * * * *")
	at := []string{"schedule", "backfill", "hourly", "--from", "2030-01-01T00:00:00Z", "--until", "2030-01-01T02:00:00Z"}
	for i := range at {
		at[i] = strings.ReplaceAll(at[i], "2030", "2020")
	}
	out := s.ok(append(at, "--dry-run")...)
	if want := "2020-01-01T00:00:00Z  would be submitted\n2020-01-01T01:00:00Z  would be submitted\n2 times in the range, 2 without a task. Nothing was done.\n"; out != want {
		t.Errorf("%s, want\n%s", out, want)
	}
	if dry := object(t, s.ok(append(at, "--dry-run", "-o", "json")...)); spaced(dry["dry_run"], dry["times"], dry["missing"], dry["submitted"]) != "true 2 2 0" {
		t.Error(dry)
	}
	if out := s.ok(at...); !strings.Contains(out, "2020-01-01T01:00:00Z  task 0") || !strings.Contains(out, "2 times in the range, 2 tasks submitted.") {
		t.Error(out)
	}
	if out := s.ok(append(at, "--dry-run")...); !strings.Contains(out, "has task") || !strings.Contains(out, "2 times in the range, 0 without a task.") {
		t.Error(out)
	}
	s.fails(exitFailed, "2 runs are not over, and the schedule's overlap policy does not let another begin; --allow-overlap lets it (conflict)", "schedule", "trigger", "hourly")
}

// The state of a restored cluster is not ahead of its log.
func TestTheIndexesOfARestoredServerAreOfOneKind(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	dir := t.TempDir()
	file, data := filepath.Join(dir, "pulse.backup"), filepath.Join(dir, "data")
	s.ok("cluster", "backup", file)
	s.ok("cluster", "restore", file, "--data", data)
	first, stop := s.start("server", "--data", data, "--http", "127.0.0.1:0", "-o", "jsonl", "--log-level", "warn")
	defer stop()
	s.env["PULSE_ADDR"], _ = object(t, first)["url"].(string)
	s.ok("task", "run", "echo") // it leads, and commits
	node, _ := object(t, s.ok("cluster", "status", "-o", "json"))["node"].(map[string]any)
	index := func(name string) uint64 {
		n, err := strconv.ParseUint(fmt.Sprint(node[name]), 10, 64)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if applied, committed, snapshot := index("applied_index"), index("commit_index"), index("snapshot_index"); applied > committed || snapshot > applied || applied-snapshot > 1000 {
		t.Errorf("applied to %d, committed to %d, snapshot at %d", applied, committed, snapshot)
	}
}

// Whoever is sent here by the runbook wants to know when a worker was heard of.
func TestAWorkerIsShownWithItsLastFrame(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	d := &details{table: newTable(&out)}
	describeWorker(d, &sdk.WorkerInfo{HeardAt: time.Now().Add(-3 * time.Minute)})
	if err := d.table.Flush(); err != nil || !strings.Contains(out.String(), "Heard of") || !strings.Contains(out.String(), "(3m") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
