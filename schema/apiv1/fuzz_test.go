package apiv1

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pulse/schema"
)

// reference is a submission as encoding/json reads it.
type reference struct {
	Handler         string          `json:"handler"`
	HandlerVersion  string          `json:"handler_version"`
	PayloadVersion  string          `json:"payload_version"`
	Payload         json.RawMessage `json:"payload"`
	BusinessKey     string          `json:"business_key"`
	ConcurrencyKey  string          `json:"concurrency_key"`
	Priority        float64         `json:"priority"`
	AvailableAt     schema.Time     `json:"available_at"`
	DelayMillis     float64         `json:"delay_ms"`
	StartDeadlineAt schema.Time     `json:"start_deadline_at"`
	DeadlineAt      schema.Time     `json:"deadline_at"`
	RecoverySafety  string          `json:"recovery_safety"`
}

// seeds are the inputs every entry has to survive.
func seeds() []string {
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	return []string{
		minimal, "", "{}", "null", "[]", "7", "\ufeff" + minimal, minimal + "}", minimal[:20],
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":` + deep + `}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":1e999999999}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":` + strings.Repeat("9", 100) + `}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":"\ud800"}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":"\u0000"}`,
		`{"handler":"a","handler":"b"}`, `{"a":{"a":{"a":0,"a":0}}}`, "{\"\xff\":0}", `{"handler":"\ud83d\ude00"}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":NaN}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":{},"priority":9,"delay_ms":5e3,"business_key":"b",
			"concurrency_key":"k","recovery_safety":"RECONCILE_ONLY","retry":{"max_attempts":3,"initial_delay_ms":0,"max_delay_ms":1,"attempt_timeout_ms":1}}`,
		`{"handler":"a","handler_version":"1","payload_version":"1","payload":{},"available_at":"2030-01-01T00:00:00Z",
			"start_deadline_at":"2030-01-02T00:00:00.1Z","deadline_at":"2030-01-03T00:00:00.123456Z"}`,
	}
}

func FuzzDecodeSubmission(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		s, refusal := DecodeSubmission(body)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		if refusal != nil {
			checkRefusal(t, refusal)
			return
		}
		if err := schema.CheckJSON(body, schema.Limits{}); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		var want reference
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("accepted, but encoding/json says: %v", err)
		}
		if s.Handler != want.Handler || s.HandlerVersion != want.HandlerVersion || s.PayloadVersion != want.PayloadVersion ||
			!bytes.Equal(s.Payload, want.Payload) || s.BusinessKey != want.BusinessKey || s.ConcurrencyKey != want.ConcurrencyKey ||
			float64(s.Priority) != want.Priority || float64(s.DelayMillis) != want.DelayMillis || s.AvailableAt != want.AvailableAt ||
			s.StartDeadlineAt != want.StartDeadlineAt || s.DeadlineAt != want.DeadlineAt || s.ReconcileOnly != (want.RecoverySafety == ReconcileOnly) {
			t.Fatalf("read %+v, encoding/json %+v", s, want)
		}
		if !bytes.Contains(body, s.Payload) {
			t.Fatal("the payload is not as it was sent")
		}
		again, refusal := DecodeSubmission(append([]byte(" \n"), body...))
		if refusal != nil || again.Content("q") != s.Content("q") {
			t.Fatalf("white space in front makes another content, or %v", refusal)
		}
	})
}

func checkRefusal(t *testing.T, refusal *schema.Error) {
	t.Helper()
	if refusal.Code != schema.InvalidArgument && refusal.Code != schema.TooLarge {
		t.Fatalf("refused with %s", refusal.Code)
	}
	if len(refusal.Violations) > violationsMax || len(refusal.Message) > 4096 {
		t.Fatalf("a refusal of %d violations and %d bytes", len(refusal.Violations), len(refusal.Message))
	}
	for _, v := range refusal.Violations {
		if v.Path != "" && v.Path[0] != '/' || v.Message == "" {
			t.Fatalf("violation %+v", v)
		}
	}
}

// FuzzDecodeAny holds every other body to what may come out of it.
func FuzzDecodeAny(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s))
		f.Add([]byte(`{"tasks":[` + s + `]}`))
	}
	for _, d := range decoders {
		f.Add([]byte(d.good))
	}
	f.Add([]byte(`{"action":"retry","ids":["0123456789abcdef0123456789abcdef"],"note":"n"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		accepted := 0
		for _, d := range decoders {
			if refusal := d.decode(body); refusal != nil {
				checkRefusal(t, refusal)
			} else {
				accepted++
			}
		}
		items, refusal := DecodeBatch(body)
		if refusal != nil {
			checkRefusal(t, refusal)
		} else {
			accepted++
		}
		for i := range items {
			if items[i].Refusal != nil {
				checkRefusal(t, items[i].Refusal)
			}
		}
		if accepted > 0 && len(body) > 0 && !json.Valid(body) {
			t.Fatal("accepted what is no JSON")
		}
	})
}

const benchSubmission = `{"handler":"charge","handler_version":"1","payload_version":"1","payload":{"order":"0123456789","amount":19.90,"currency":"EUR","lines":[1,2,3,4,5,6,7,8]},"business_key":"order-0123456789","priority":3,"retry":{"max_attempts":5}}`

func BenchmarkDecodeSubmission(b *testing.B) {
	body := []byte(benchSubmission)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		s, refusal := DecodeSubmission(body)
		if refusal != nil {
			b.Fatal(refusal)
		}
		_ = s.Content("default")
	}
}

func BenchmarkDecodeBatch(b *testing.B) {
	task := `{"handler":"charge","handler_version":"1","payload_version":"1","payload":{"order":"0123456789","amount":19.90,"currency":"EUR","lines":[1,2,3,4,5,6,7,8]},"business_key":"order-0123456789"}`
	body := []byte(`{"tasks":[` + strings.TrimSuffix(strings.Repeat(task+",", 1000), ",") + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		items, refusal := DecodeBatch(body)
		if refusal != nil || len(items) != 1000 {
			b.Fatal(refusal)
		}
		for i := range items {
			_ = items[i].Submission.Content("default")
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "tasks/s")
}
