package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func (s shell) file(text string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "tasks.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s shell) countTasks() int {
	s.t.Helper()
	return strings.Count(s.ok("task", "list", "--ids", "--limit", "0"), "\n")
}

func TestAFileOfTasksIsSubmittedOnceHoweverOftenItIsSent(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	var text strings.Builder
	const tasks = 2300
	for i := range tasks {
		fmt.Fprintf(&text, `{"handler":"nobody","payload":{"n":%d.00}}`+"\n", i)
		if i%500 == 0 {
			text.WriteString("\n") // a blank line is no task
		}
	}
	path := s.file(text.String())
	if out := s.ok("task", "submit", "--file", path); out != "2,300 of 2,300 tasks submitted.\n" {
		t.Error(out)
	}
	s.ok("task", "submit", "--file", path)
	s.in = text.String()
	s.ok("task", "submit", "--file", "-")
	if n := s.countTasks(); n != tasks {
		t.Errorf("%d tasks", n)
	}
	oldest := strings.Fields(s.ok("task", "list", "--ids", "--limit", "0"))[tasks-1]
	if out := s.ok("task", "get", oldest); !strings.Contains(out, `{"n":0.00}`) {
		t.Errorf("the first line is not the first task:\n%s", out)
	}
}

// The connection breaks after the cluster has taken a batch and before its answer is
// there, which is where a repeat could submit twice.
func TestASubmissionThatWasBrokenOffGoesOn(t *testing.T) {
	t.Parallel()
	s, server := startNode(t)
	var text strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&text, `{"payload":{"n":%d}}`+"\n", i)
	}
	path := s.file(text.String())
	backend, err := url.Parse(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	through := httputil.NewSingleHostReverseProxy(backend)
	var requests atomic.Int64
	breaking := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n := requests.Add(1); {
		case n == 1:
			through.ServeHTTP(w, r)
		case n == 2:
			// Whoever asks may have given up before it is done.
			through.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
			panic(http.ErrAbortHandler)
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	defer breaking.Close()
	r := s.run("task", "submit", "--file", path, "--handler", "nobody", "--timeout", "10s", "--addr", breaking.URL)
	if r.code != exitFailed || !strings.Contains(r.err, "1,000 of 2,500 submitted. Run the same command again") {
		t.Fatalf("%+v", r)
	}
	if n := s.countTasks(); n != 2000 {
		t.Fatalf("%d tasks: the second batch should have been taken without an answer", n)
	}
	s.ok("task", "submit", "--file", path, "--handler", "nobody")
	if n := s.countTasks(); n != 2500 {
		t.Errorf("%d tasks", n)
	}
}

func TestABadLineIsNamedAndNothingIsSubmitted(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	good := `{"handler":"nobody"}` + "\n"
	for line, words := range map[string]string{
		`{"handler":"nobody","payload":{"a":1e400}}`:                          "line 2:",
		`{"handler":"nobody","handler":"twice"}`:                              "line 2:",
		`{"handler":"nobody","prioritty":1}`:                                  "/prioritty",
		`{"handler":"nobody","priority":10}`:                                  "/priority",
		`{"payload":{}}`:                                                      "handler",
		`["nobody"]`:                                                          "not a JSON object",
		`{"handler":"nobody","available_at":"now"}`:                           "/available_at",
		`{"handler":"nobody"`:                                                 "line 2:",
		`{"handler":"nobody","retry":{"max_attempts":0}}`:                     "/retry/max_attempts",
		`{"handler":"nobody","recovery_safety":"SURE"}`:                       "/recovery_safety",
		`{"handler":"nobody","payload":"` + strings.Repeat("x", 1<<20) + `"}`: "line 2 has more than",
	} {
		s.fails(exitFailed, words, "task", "submit", "--file", s.file(good+line+"\n"+good))
	}
	s.fails(exitFailed, "no task", "task", "submit", "--file", s.file("\n\n"))
	s.fails(exitFailed, "no such file", "task", "submit", "--file", "nowhere.jsonl")
	if n := s.countTasks(); n != 0 {
		t.Errorf("%d tasks were submitted", n)
	}
	if out := s.ok("task", "submit", "--dry-run", "--file", s.file(good+good)); !strings.Contains(out, "2 tasks in the file, all sound") {
		t.Error(out)
	}
}

func TestWhatALineSaysReachesItsTask(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	path := s.file(`{"handler":"nobody","handler_version":"2","payload":{"x":[1.0]},"business_key":"b","concurrency_key":"c","priority":3,"delay_ms":3600000,` +
		`"recovery_safety":"RECONCILE_ONLY","deadline_at":"2040-01-01T00:00:00Z","retry":{"max_attempts":2,"initial_delay_ms":0,"attempt_timeout_ms":5000}}` + "\n{}\n")
	s.ok("task", "submit", "--file", path, "--handler", "other", "-o", "json")
	out := s.ok("task", "list", "--handler", "nobody", "-o", "jsonl")
	task := object(t, out)
	retry, _ := task["retry"].(map[string]any)
	got := fmt.Sprintln(task["handler_version"], task["business_key"], task["concurrency_key"], task["priority"], task["recovery_safety"], task["deadline_at"],
		retry["max_attempts"], retry["initial_delay_ms"], retry["max_delay_ms"], retry["attempt_timeout_ms"])
	if want := "2 b c 3 RECONCILE_ONLY 2040-01-01T00:00:00Z 2 0 60000 5000\n"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
	if other := s.ok("task", "list", "--handler", "other", "--ids"); strings.Count(other, "\n") != 1 {
		t.Errorf("the empty line: %q", other)
	}
	// The same work in another file is known by its business key.
	again := s.file(strings.SplitAfter(mustRead(t, path), "\n")[0])
	if out := s.ok("task", "submit", "--file", again); !strings.Contains(out, "1 of them known under their business key") {
		t.Error(out)
	}
	other := s.file(`{"handler":"nobody","business_key":"b"}`)
	s.fails(exitFailed, "(conflict)", "task", "submit", "--file", other)
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
