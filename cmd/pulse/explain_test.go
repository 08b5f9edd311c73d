package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What only the cluster can find wrong is wrong usage all the same, and is told in
// the words that were typed.
func TestARefusalNamesFlagsAndArguments(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	for _, c := range []struct {
		words string // exact, after "pulse: " and before the code
		args  []string
	}{
		{"NAME must be a letter or digit, then up to 62 of letters, digits, _ . -", []string{"queue", "create", "a b"}},
		{"NAME must be a letter or digit, then up to 62 of letters, digits, _ . -", []string{"queue", "get", "a b"}},
		{"NAME must be a letter or digit, then up to 62 of letters, digits, _ . -", []string{"namespace", "create", "a b"}},
		{"NAME must be a letter or digit, then up to 62 of letters, digits, _ . -", []string{"schedule", "create", "a b", "echo", "--cron", "@daily"}},
		{"--namespace must be a letter or digit, then up to 62 of letters, digits, _ . -", []string{"queue", "list", "-n", "a b"}},
		{"--lease must be a length of time from 1s to 2m", []string{"queue", "create", "q", "--lease", "200ms"}},
		{"--offer must not be longer than --lease, which is 5s", []string{"queue", "create", "q", "--lease", "5s", "--offer", "9s"}},
		{"--max-active must be a whole number from 0 to 1000000", []string{"queue", "create", "q", "--max-active", "-1"}},
		{"--max-attempts must be a whole number from 1 to 100", []string{"queue", "create", "q", "--max-attempts", "101"}},
		{"HANDLER must be 1 to 128 letters, digits or _ . : - and begin with a letter or digit", []string{"task", "run", "a b"}},
		{"--priority must be a whole number from 0 to 9", []string{"task", "run", "echo", "--priority", "12"}},
		{"--max-attempts must be a whole number from 1 to 100", []string{"task", "run", "echo", "--max-attempts", "101"}},
		{"--queue must be a letter or digit, then up to 62 of letters, digits, _ . -", []string{"task", "run", "echo", "--queue", "a b"}},
		{"--key must not begin or end with a blank", []string{"task", "run", "echo", "--key", " a"}},
		{"--key must not begin or end with a blank", []string{"task", "list", "--key", " a"}},
		{"--deadline must be later than the time the task is available", []string{"task", "run", "echo", "--deadline", "2020-01-01T00:00:00Z"}},
		{"--idempotency-key must be visible ASCII", []string{"task", "run", "echo", "--idempotency-key", "ü"}},
		{"--error-code is not an error code", []string{"task", "list", "--error-code", "a b"}},
		{"KEY must not begin or end with a blank", []string{"key", "get", " a"}},
		{"--cron must have 5 fields (minute, hour, day of the month, month, day of the week) or 6 with the second first; it has 1", []string{"schedule", "create", "s", "echo", "--cron", "bad"}},
		{"--cron: the minute is \"61\"; it takes 0 to 59, as *, a-b, a,b and */n", []string{"schedule", "create", "s", "echo", "--cron", "61 * * * *"}},
		{"--every must be a length of time from 1s to 3650d", []string{"schedule", "create", "s", "echo", "--every", "10ms"}},
		{"--time-zone belongs to cron; --every counts time that passes", []string{"schedule", "create", "s", "echo", "--every", "1s", "--time-zone", "UTC"}},
		{"--end: no time matches from now on: it would never run", []string{"schedule", "create", "s", "echo", "--cron", "@daily", "--end", "2020-01-01T00:00:00Z"}},
		{"--priority must be a whole number from 0 to 9", []string{"schedule", "create", "s", "echo", "--cron", "@daily", "--priority", "12"}},
		{"HANDLER must be 1 to 128 letters, digits or _ . : - and begin with a letter or digit", []string{"schedule", "create", "s", "a b", "--cron", "@daily"}},
		{"--count must be a whole number from 1 to 100", []string{"schedule", "preview", "--cron", "@daily", "--count", "1000"}},
		{"--upcoming must be a whole number from 0 to 100", []string{"schedule", "get", "s", "--upcoming", "1000"}},
		{"--grant must be a letter or digit, then up to 62 of letters, digits, _ . -; or * for all namespaces", []string{"token", "create", "x", "--grant", "reader@a b"}},
		{"NAME must have at most 128 characters", []string{"token", "create", strings.Repeat("x", 200), "--grant", "reader@a"}},
		{"--workers must be a whole number from 0 to 9007199254740991", []string{"namespace", "update", "default", "--workers", "9007199254740992"}},
	} {
		r := s.run(c.args...)
		want := "pulse: " + c.words + " (invalid_argument)\nTry 'pulse " + strings.Join(c.args[:2], " ") + " --help'.\n"
		if r.code != exitUsage || r.err != want {
			t.Errorf("pulse %q: exit %d\n%swant\n%s", c.args, r.code, r.err, want)
		}
	}
	r := s.run("task", "run", "echo", "--priority", "12", "--max-attempts", "101")
	if want := "pulse: 2 things are wrong (invalid_argument)\n  --priority must be a whole number from 0 to 9\n  --max-attempts must be a whole number from 1 to 100\n"; !strings.HasPrefix(r.err, want) {
		t.Errorf("%s, want %s", r.err, want)
	}
	if r := s.fails(exitFailed, "no queue \"nope\"", "task", "run", "echo", "--queue", "nope"); strings.Contains(r.err, "--help") {
		t.Errorf("a queue that is not there is no wrong usage: %s", r.err)
	}
}

func TestALineOfAFileKeepsTheNamesOfItsMembers(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	file := filepath.Join(t.TempDir(), "tasks.jsonl")
	if err := os.WriteFile(file, []byte(`{"handler":"echo","concurrency_key":" a","priority":12}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(exitFailed, "/concurrency_key must not begin", "task", "submit", "--file", file)
}

// What is wrong with the command line is found before anybody is asked.
func TestAnEmptyOrImpossibleValueIsRefusedHere(t *testing.T) {
	t.Parallel()
	s := shell{t: t, env: map[string]string{"PULSE_ADDR": "http://127.0.0.1:1"}}
	for words, args := range map[string][]string{
		"NAME is empty":                  {"namespace", "create", ""},
		"KEY is empty":                   {"key", "get", ""},
		"HANDLER is empty":               {"task", "run", ""},
		"NODE is empty":                  {"cluster", "transfer", ""},
		"--key is empty":                 {"task", "run", "echo", "--key", ""},
		"--idempotency-key is empty":     {"task", "run", "echo", "--idempotency-key", ""},
		"the payload is null":            {"task", "run", "echo", "null"},
		"give a whole number, or 0":      {"task", "list", "--limit", "-1"},
		"give a whole number from 0":     {"queue", "create", "q", "--max-waiting", "-1"},
		"it is too large":                {"task", "run", "echo", "--priority", "99999999999999999999"},
		"--max-waiting is 0":             {"queue", "create", "q", "--max-waiting", "0"},
		"--retention is 0":               {"queue", "update", "q", "--retention", "0s"},
		"--expires-in is 0":              {"token", "create", "x", "--grant", "reader@a", "--expires-in", "0s"},
		"--max-attempts is 0":            {"schedule", "create", "s", "echo", "--cron", "@daily", "--max-attempts", "0"},
		`"xx" is not the id of a task`:   {"task", "run-now", "xx"},
		`"xx" is not the id of a token`:  {"token", "revoke", "xx"},
		"this is not a whole token":      {"token", "revoke", "pulse_0198c0ffee000000000000000000000_secret"},
		"pulse schedule create needs HA": {"schedule", "create", "s"},
		`/a appears more than once`:      {"task", "run", "echo", `{"a":1,"a":2}`},
	} {
		r := s.fails(exitUsage, words, args...)
		if strings.Contains(r.err, "strconv") || strings.Contains(r.err, "_secret") {
			t.Errorf("pulse %q: %s", args, r.err)
		}
	}
}
