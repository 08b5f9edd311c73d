package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// Whatever a verb changes goes on record with the reason that it was given, named
// tasks as well as selected ones, and what is copied off the cluster too.
func TestReasonsGoOnRecord(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	one, two := s.submit("nobody"), s.submit("nobody")
	token, _ := object(t, s.ok("token", "create", "ci", "--grant", "reader@default", "-o", "json"))["id"].(string)
	verbs := []struct {
		action string
		args   []string
	}{
		{"pulse.token.Revoke", []string{"token", "revoke", token}},
		{"pulse.queue.Put", []string{"queue", "create", "mail"}},
		{"pulse.queue.Pause", []string{"queue", "pause", "default"}},
		{"pulse.queue.Resume", []string{"queue", "resume", "default"}},
		{"pulse.namespace.Put", []string{"namespace", "create", "billing"}},
		{"pulse.task.Cancel", []string{"task", "cancel", one}},
		{"pulse.task.Bulk", []string{"task", "cancel", "--handler", "nobody", "--yes"}},
		{"pulse.task.Retry", []string{"task", "retry", two}},
		{"pulse.schedule.Put", []string{"schedule", "create", "nightly", "echo", "--cron", "0 2 * * *"}},
		{"pulse.schedule.Trigger", []string{"schedule", "trigger", "nightly"}},
		{"pulse.schedule.Pause", []string{"schedule", "pause", "nightly"}},
		{"pulse.task.Submit", []string{"task", "run", "nobody"}},
		{"pulse.task.SubmitBatch", []string{"task", "submit", "--file", s.file(`{"handler":"nobody","payload":1}` + "\n" + `{"handler":"nobody","payload":2}` + "\n")}},
		{"pulse.cluster.Backup", []string{"cluster", "backup", filepath.Join(t.TempDir(), "backup")}},
	}
	for _, v := range verbs {
		s.ok(append(v.args, "--note", "why\n "+v.action)...)
	}
	recorded := map[string]string{}
	submitted := 0
	for line := range strings.SplitSeq(strings.TrimSpace(s.ok("audit", "--all-namespaces", "--limit", "0", "-o", "jsonl")), "\n") {
		change := object(t, line)
		if action, _ := change["action"].(string); strings.HasPrefix(action, "pulse.task.Submit") {
			submitted++
		}
		action, _ := change["action"].(string)
		note, _ := change["note"].(string)
		recorded[action] = strings.Join(strings.Fields(note), " ")
	}
	for _, v := range verbs {
		if got := recorded[v.action]; got != "why "+v.action {
			t.Errorf("%s is on record with %q", v.action, got)
		}
	}
	if submitted != 2 {
		t.Errorf("%d submissions are on record: those that nobody gave a reason for are too many for it", submitted)
	}
	if out := s.ok("task", "get", one, "-o", "json"); !strings.Contains(out, `"CANCELLED"`) {
		t.Error(out)
	}
}

// Who looks for what was done to the cluster is told where it is.
func TestTheRecordOfANamespaceSaysThatItIsNotAll(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.ok("queue", "pause", "default")
	for _, args := range [][]string{{"audit"}, {"audit", "--action", "pulse.token."}} {
		if r := s.run(args...); !strings.Contains(r.err, "In namespace default") || !strings.Contains(r.err, "--all-namespaces") {
			t.Errorf("pulse %s says %q", strings.Join(args, " "), r.err)
		}
	}
	for _, args := range [][]string{{"audit", "--all-namespaces"}, {"audit", "-o", "json"}} {
		if r := s.run(args...); r.err != "" {
			t.Errorf("pulse %s says %q", strings.Join(args, " "), r.err)
		}
	}
}
