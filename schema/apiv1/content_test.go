package apiv1

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"pulse/schema"
)

func submissionContent(t *testing.T, queue, body string) Content {
	t.Helper()
	s, refusal := DecodeSubmission([]byte(body))
	if refusal != nil {
		t.Fatalf("%s: %v", body, refusal)
	}
	return s.Content(queue)
}

func TestTheContentOfASubmissionCanBeMadeByAnybody(t *testing.T) {
	t.Parallel()
	// This is the documented text, written out. It must never change: stored
	// contents are compared with those of requests to come.
	text := "pulse.task.submit\n" +
		"queue:7:default\n" +
		"handler:6:charge\n" +
		"handler_version:1:1\n" +
		"payload_version:1:2\n" +
		"payload:16:{\"amount\": 1.50}\n" +
		"business_key:7:order ä\n" +
		"priority:1:3\n" +
		"available_at:22:2030-01-01T00:00:00.5Z\n" +
		"delay_ms:1:0\n" +
		"deadline_at:20:2031-01-01T00:00:00Z\n" +
		"recovery_safety:14:RECONCILE_ONLY\n" +
		"retry.max_attempts:1:5\n" +
		"retry.max_delay_ms:1:0\n"
	text = replaceOnce(text, "business_key:7:", "business_key:8:") // ä has two bytes
	want := sha256.Sum256([]byte(text))
	got := submissionContent(t, "default", `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount": 1.50},
		"business_key":"order ä","priority":3,"available_at":"2030-01-01T00:00:00.500Z","deadline_at":"2031-01-01T00:00:00Z",
		"recovery_safety":"RECONCILE_ONLY","retry":{"max_delay_ms":0,"max_attempts":5}}`)
	if got != want {
		t.Errorf("got %s, want the SHA-256 of\n%s", hex.EncodeToString(got[:]), text)
	}
}

func replaceOnce(s, old, with string) string {
	for i := range len(s) - len(old) + 1 {
		if s[i:i+len(old)] == old {
			return s[:i] + with + s[i+len(old):]
		}
	}
	return s
}

func TestEqualSubmissionsHaveEqualContent(t *testing.T) {
	t.Parallel()
	base := submissionContent(t, "q", minimal)
	with := func(members string) string { return minimal[:len(minimal)-1] + "," + members + "}" }
	for name, body := range map[string]string{
		"white space outside the payload": "  " + minimal + "\n",
		"another order of members":        `{"payload":{"amount": 1.50},"payload_version":"2","handler_version":"1","handler":"charge"}`,
		"escapes in a name":               `{"h\u0061ndler":"ch\u0061rge","handler_version":"1","payload_version":"2","payload":{"amount": 1.50}}`,
		"priority 0":                      with(`"priority":0`),
		"delay 0":                         with(`"delay_ms":0.0`),
		"IDEMPOTENT":                      with(`"recovery_safety":"IDEMPOTENT"`),
		"an empty retry":                  with(`"retry":{}`),
	} {
		if submissionContent(t, "q", body) != base {
			t.Errorf("%s makes another content", name)
		}
	}
}

func TestDifferentSubmissionsHaveDifferentContent(t *testing.T) {
	t.Parallel()
	with := func(members string) string { return minimal[:len(minimal)-1] + "," + members + "}" }
	seen := map[Content]string{submissionContent(t, "q", minimal): "the base"}
	note := func(name string, c Content) {
		if other, ok := seen[c]; ok {
			t.Errorf("%s has the content of %s", name, other)
		}
		seen[c] = name
	}
	note("another queue", submissionContent(t, "p", minimal))
	for name, body := range map[string]string{
		"1.5":                `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount": 1.5}}`,
		"white space inside": `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount":1.50}}`,
		"another version":    `{"handler":"charge","handler_version":"2","payload_version":"2","payload":{"amount": 1.50}}`,
		"swapped versions":   `{"handler":"charge","handler_version":"2","payload_version":"1","payload":{"amount": 1.50}}`,
		"business key":       with(`"business_key":"a"`),
		"concurrency key":    with(`"concurrency_key":"a"`),
		"priority":           with(`"priority":1`),
		"delay":              with(`"delay_ms":1`),
		"available at":       with(`"available_at":"2030-01-01T00:00:00Z"`),
		"start deadline":     with(`"start_deadline_at":"2030-01-01T00:00:00Z"`),
		"deadline":           with(`"deadline_at":"2030-01-01T00:00:00Z"`),
		"reconcile only":     with(`"recovery_safety":"RECONCILE_ONLY"`),
		"attempts":           with(`"retry":{"max_attempts":1}`),
		"initial delay 0":    with(`"retry":{"initial_delay_ms":0}`),
		"initial delay":      with(`"retry":{"initial_delay_ms":1}`),
		"max delay":          with(`"retry":{"max_delay_ms":1}`),
		"attempt timeout":    with(`"retry":{"attempt_timeout_ms":1}`),
	} {
		note(name, submissionContent(t, "q", body))
	}
	id := schema.ID{1}
	note("cancel", (&Change{}).Content("pulse.task.cancel", id))
	note("retry", (&Change{}).Content("pulse.task.retry", id))
	note("cancel of another", (&Change{}).Content("pulse.task.cancel", schema.ID{2}))
	note("cancel with a revision", (&Change{ExpectedRevision: 1}).Content("pulse.task.cancel", id))
	note("cancel with a note", (&Change{Note: "1"}).Content("pulse.task.cancel", id))
	note("review", (&Review{Decision: DecisionSucceeded, Note: "n"}).Content(id))
	note("review with a result", (&Review{Decision: DecisionSucceeded, Note: "n", Result: []byte("1")}).Content(id))
	note("bulk", (&Bulk{Action: ActionCancel}).Content([]schema.ID{id}))
	note("bulk retry", (&Bulk{Action: ActionRetry}).Content([]schema.ID{id}))
	note("pause", TargetContent("pulse.queue.pause", "q", 0))
	note("free", NoteContent("pulse.key.free", "q", "0"))
	for name, body := range map[string]string{
		"put": "", "put max_active": `{"max_active":1}`, "put paused": `{"paused":true}`, "put retry": `{"default_retry":{"max_attempts":1}}`,
		"put revision": `{"expected_revision":"1"}`,
	} {
		q, refusal := DecodeQueue([]byte(body))
		if refusal != nil {
			t.Fatal(refusal)
		}
		note(name, q.Content("q"))
	}
}

func TestAPutWithDefaultsWrittenOutIsEqual(t *testing.T) {
	t.Parallel()
	short, _ := DecodeQueue([]byte(`{}`))
	long, refusal := DecodeQueue([]byte(`{"lease_duration_ms":30000,"offer_duration_ms":10000,"max_active":0,"max_waiting":1000000,
		"retention_ms":259200000,"default_deadline_ms":2592000000,"ageing_ms":0,
		"default_retry":{"max_attempts":3,"initial_delay_ms":1000,"max_delay_ms":60000,"attempt_timeout_ms":3600000},"paused":false}`))
	if refusal != nil || short != long {
		t.Errorf("got %+v and %+v (%v)", short, long, refusal)
	}
}
