package main

import (
	"strings"
	"testing"
)

func TestSettingsOfTheClusterAreChangedAndHold(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	for _, c := range [][2]string{
		{"", "Events are kept for 3d; Idempotency-Keys of a namespace at most 10,000,000"},
		{"--event-retention 72h --idempotency-keys-max 20000000", "Events are kept for 3d; Idempotency-Keys of a namespace at most 20,000,000"},
		{"--event-retention 90s", "Events are kept for 1m30s; Idempotency-Keys of a namespace at most 20,000,000"},
		{"", "Events are kept for 1m30s; Idempotency-Keys of a namespace at most 20,000,000"},
	} {
		var lines []string
		for line := range strings.SplitSeq(strings.TrimSpace(s.ok(append([]string{"cluster", "settings"}, strings.Fields(c[0])...)...)), "\n") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		if got := strings.Join(lines, "; "); got != c[1] {
			t.Errorf("%q: %s", c[0], got)
		}
	}
	for args, words := range map[string]string{
		"--event-retention 59s":             "--event-retention is 59s: give 1m to 3650d",
		"--event-retention 4000d":           "give 1m to 3650d",
		"--event-retention 0s":              "give 1m to 3650d",
		"--idempotency-keys-max 0":          "give 1 to 1000000000",
		"--idempotency-keys-max 1000000001": "give 1 to 1000000000",
		"--idempotency-keys-max -1":         "--idempotency-keys-max",
		"20000000":                          "unknown command",
	} {
		s.fails(exitUsage, words, append([]string{"cluster", "settings"}, strings.Fields(args)...)...)
	}

	t.Log("with room for one key the first is remembered and answered again, a second is refused")
	if got := s.ok("cluster", "settings", "--idempotency-keys-max", "1", "-o", "jsonl", "--note", "try it"); got != `{"event_retention_ms":90000,"idempotency_keys_max":"1"}`+"\n" {
		t.Errorf("as JSON %s", got)
	}
	submit := func(key string) []string { return []string{"task", "run", "nobody", "--idempotency-key", key} }
	s.ok(submit("one")...)
	if again := s.ok(submit("one")...); !strings.Contains(again, "was submitted before under this --idempotency-key") {
		t.Errorf("a repeat made another task: %s", again)
	}
	const refusal = "the namespace remembers too many Idempotency-Keys; they are forgotten after 24 hours"
	var r result
	for range 3 { // whoever is still waiting for an answer when the time is over knows less
		if r = s.run(append(submit("two"), "--timeout", "5s")...); strings.Contains(r.err, "rate_limited") {
			break
		}
	}
	if r.code != exitFailed || !strings.Contains(r.err, "rate_limited") || !strings.Contains(r.err, refusal) {
		t.Errorf("a second key: exit %d\n%s%s", r.code, r.out, r.err)
	}
	s.ok("cluster", "settings", "--idempotency-keys-max", "2")
	s.ok(submit("two")...)

	t.Log("the record names what was set, and nothing else")
	record := s.ok("audit", "--all-namespaces", "--action", "pulse.cluster.Set", "-o", "jsonl")
	for _, want := range []string{
		`"detail":"event_retention_ms 259200000, idempotency_keys_max 20000000"`, `"detail":"event_retention_ms 90000"`, `"detail":"idempotency_keys_max 1","note":"try it"`,
	} {
		if !strings.Contains(record, want) {
			t.Errorf("the record lacks %s:\n%s", want, record)
		}
	}
}
