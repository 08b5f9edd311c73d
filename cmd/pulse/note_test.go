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
		{"pulse.cluster.Backup", []string{"cluster", "backup", filepath.Join(t.TempDir(), "backup")}},
	}
	for _, v := range verbs {
		s.ok(append(v.args, "--note", "why\n "+v.action)...)
	}
	recorded := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(s.ok("audit", "--all-namespaces", "-o", "jsonl")), "\n") {
		change := object(t, line)
		action, _ := change["action"].(string)
		note, _ := change["note"].(string)
		recorded[action] = strings.Join(strings.Fields(note), " ")
	}
	for _, v := range verbs {
		if got := recorded[v.action]; got != "why "+v.action {
			t.Errorf("%s is on record with %q", v.action, got)
		}
	}
	if out := s.ok("task", "get", one, "-o", "json"); !strings.Contains(out, `"CANCELLED"`) {
		t.Error(out)
	}
}
