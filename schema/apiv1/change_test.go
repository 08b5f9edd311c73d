package apiv1

import (
	"strings"
	"testing"

	"pulse/schema"
)

// decoders are all bodies but submissions, each with one that is good.
var decoders = map[string]struct {
	good   string
	decode func([]byte) *schema.Error
}{
	"queue":       {`{"max_active":3}`, func(b []byte) *schema.Error { _, r := DecodeQueue(b); return r }},
	"change":      {`{"expected_revision":"3","note":"n"}`, func(b []byte) *schema.Error { _, r := DecodeChange(b); return r }},
	"expectation": {`{"expected_revision":"18446744073709551615"}`, func(b []byte) *schema.Error { _, r := DecodeExpectation(b); return r }},
	"note":        {`{"note":"n"}`, func(b []byte) *schema.Error { _, r := DecodeNote(b); return r }},
	"nothing":     {`{}`, DecodeNothing},
	"review":      {`{"decision":"CANCELLED","note":"n"}`, func(b []byte) *schema.Error { _, r := DecodeReview(b); return r }},
	"transfer":    {`{"node_id":"node-1"}`, func(b []byte) *schema.Error { _, r := DecodeTransfer(b); return r }},
	"settings":    {`{"event_retention_ms":60000}`, func(b []byte) *schema.Error { _, r := DecodeClusterSettings(b); return r }},
	"removal":     {`{"node_id":"node-1","force":true}`, func(b []byte) *schema.Error { _, r := DecodeRemoval(b); return r }},
	"bulk":        {`{"action":"cancel","filter":{}}`, func(b []byte) *schema.Error { _, r := DecodeBulk(b); return r }},
	"token":       {`{"name":"ci","grants":[{"role":"reader","namespace":"*"}]}`, func(b []byte) *schema.Error { _, r := DecodeToken(b); return r }},
}

func TestEveryBodyIsHeldToTheSameRules(t *testing.T) {
	t.Parallel()
	for kind, d := range decoders {
		if refusal := d.decode([]byte(d.good)); refusal != nil {
			t.Errorf("%s: %s is refused: %v", kind, d.good, refusal)
		}
		for name, body := range map[string]string{
			"an array":           `[]`,
			"a string":           `"x"`,
			"null":               `null`,
			"an unknown member":  strings.TrimSuffix(d.good, "}") + comma(d.good) + `"colour":1}`,
			"a name given twice": `{"a":1,"\u0061":1}`,
			"trailing text":      d.good + "{}",
			"no end":             strings.TrimSuffix(d.good, "}"),
			"bad UTF-8":          "{\"\xff\":1}",
		} {
			refusal := d.decode([]byte(body))
			if refusal == nil || refusal.Code != schema.InvalidArgument || len(refusal.Violations) == 0 {
				t.Errorf("%s, %s: %v", kind, name, refusal)
			}
		}
	}
}

func comma(object string) string {
	if object == "{}" {
		return ""
	}
	return ","
}

func TestWhatChangesAreRefusedFor(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 1025)
	for _, c := range []struct{ kind, body, path string }{
		{"transfer", `{"node_id":""}`, "/node_id"},
		{"transfer", `{"node_id":7}`, "/node_id"},
		{"removal", `{}`, ""},
		{"removal", `{"force":true}`, ""},
		{"removal", `{"node_id":"a:b"}`, "/node_id"},
		{"removal", `{"node_id":"a","force":"yes"}`, "/force"},
		{"queue", `{"lease_duration_ms":999}`, "/lease_duration_ms"},
		{"queue", `{"lease_duration_ms":120001}`, "/lease_duration_ms"},
		{"queue", `{"offer_duration_ms":999}`, "/offer_duration_ms"},
		{"queue", `{"offer_duration_ms":30001}`, "/offer_duration_ms"},
		{"queue", `{"offer_duration_ms":20000,"lease_duration_ms":10000}`, "/offer_duration_ms"},
		{"queue", `{"max_active":-1}`, "/max_active"},
		{"queue", `{"max_active":1000001}`, "/max_active"},
		{"queue", `{"max_waiting":0}`, "/max_waiting"},
		{"queue", `{"max_waiting":"0"}`, "/max_waiting"},
		{"queue", `{"max_waiting":1000000001}`, "/max_waiting"},
		{"queue", `{"max_waiting":"18446744073709551615"}`, "/max_waiting"},
		{"queue", `{"retention_ms":0}`, "/retention_ms"},
		{"queue", `{"default_deadline_ms":315360000001}`, "/default_deadline_ms"},
		{"queue", `{"ageing_ms":-1}`, "/ageing_ms"},
		{"queue", `{"default_retry":{"max_attempts":101}}`, "/default_retry/max_attempts"},
		{"queue", `{"paused":"yes"}`, "/paused"},
		{"queue", `{"expected_revision":3}`, "/expected_revision"},
		{"queue", `{"name":"x"}`, "/name"},
		{"change", `{"expected_revision":"0"}`, "/expected_revision"},
		{"change", `{"expected_revision":"01"}`, "/expected_revision"},
		{"change", `{"expected_revision":"18446744073709551616"}`, "/expected_revision"},
		{"change", `{"note":"` + long + `"}`, "/note"},
		{"expectation", `{"note":"n"}`, "/note"},
		{"note", `{}`, ""},
		{"note", `{"note":"  "}`, ""},
		{"review", `{"decision":"CANCELLED"}`, ""},
		{"review", `{"note":"n"}`, ""},
		{"review", `{"decision":"cancelled","note":"n"}`, "/decision"},
		{"review", `{"decision":"CANCELLED","note":" \n"}`, "/note"},
		{"review", `{"decision":"FAILED","note":"n"}`, ""},
		{"review", `{"decision":"FAILED","note":"n","error_code":"a b"}`, "/error_code"},
		{"review", `{"decision":"SUCCEEDED","note":"n","error_code":"a"}`, "/error_code"},
		{"review", `{"decision":"CANCELLED","note":"n","result":{}}`, "/result"},
		{"review", `{"decision":"SUCCEEDED","note":"n","result":null}`, "/result"},
		{"review", `{"decision":"SUCCEEDED","note":"n","deadline_at":"2030-01-01T00:00:00Z"}`, "/deadline_at"},
		{"bulk", `{"filter":{}}`, ""},
		{"bulk", `{"action":"cancel"}`, ""},
		{"bulk", `{"action":"drop","filter":{}}`, "/action"},
		{"bulk", `{"action":"cancel","filter":{},"ids":[]}`, "/ids"},
		{"bulk", `{"action":"cancel","ids":["0123456789abcdef0123456789ABCDEF"]}`, "/ids/0"},
		{"bulk", `{"action":"cancel","ids":["0123456789abcdef0123456789abcdef","0123456789abcdef0123456789abcdef"]}`, "/ids/1"},
		{"bulk", `{"action":"cancel","ids":[` + strings.TrimSuffix(strings.Repeat(`0,`, 10_001), ",") + `]}`, "/ids/0"},
		{"bulk", `{"action":"cancel","ids":[],"cursor":"x"}`, "/cursor"},
		{"bulk", `{"action":"cancel","filter":{"queue":"-"}}`, "/filter/queue"},
		{"bulk", `{"action":"cancel","filter":{"queue":"a:b"}}`, "/filter/queue"},
		{"bulk", `{"action":"cancel","filter":{"state":"waiting"}}`, "/filter/state"},
		{"bulk", `{"action":"cancel","filter":{"state":["WAITING","gone"]}}`, "/filter/state/1"},
		{"bulk", `{"action":"cancel","filter":{"waiting_reason":"bored"}}`, "/filter/waiting_reason"},
		{"bulk", `{"action":"cancel","filter":{"handler":""}}`, "/filter/handler"},
		{"bulk", `{"action":"cancel","filter":[]}`, "/filter"},
		{"bulk", `{"action":"cancel","filter":{},"dry_run":1}`, "/dry_run"},
	} {
		refusal := decoders[c.kind].decode([]byte(c.body))
		if refusal == nil || refusal.Code != schema.InvalidArgument || refusal.Violations[0].Path != c.path {
			t.Errorf("%s %.80s: %v, want a violation at %q", c.kind, c.body, refusal, c.path)
		}
	}
}

func TestWhatAReviewCarries(t *testing.T) {
	t.Parallel()
	v, refusal := DecodeReview([]byte(`{"result": [1.50] ,"decision":"SUCCEEDED","note":"checked","expected_revision":"7"}`))
	if refusal != nil || string(v.Result) != "[1.50]" || v.Decision != DecisionSucceeded || v.ExpectedRevision != 7 || v.Note != "checked" {
		t.Errorf("got %+v, %v", v, refusal)
	}
	if v, refusal = DecodeReview([]byte(`{"decision":"RETRY","note":"n","deadline_at":"2030-01-01T00:00:00Z"}`)); refusal != nil || v.DeadlineAt == 0 {
		t.Errorf("got %+v, %v", v, refusal)
	}
}

func TestWhatABulkCarries(t *testing.T) {
	t.Parallel()
	b, refusal := DecodeBulk([]byte(`{"action":"retry","dry_run":true,"note":"n","cursor":"c","filter":{"queue":"q","state":["FAILED","CANCELLED"],
		"handler":"h","business_key":"b","concurrency_key":"k","waiting_reason":"ready"}}`))
	if refusal != nil {
		t.Fatal(refusal)
	}
	f := b.Filter
	if b.Action != ActionRetry || !b.DryRun || b.Note != "n" || b.Cursor != "c" || f.Queue != "q" || strings.Join(f.States, " ") != "FAILED CANCELLED" ||
		f.Handler != "h" || f.BusinessKey != "b" || f.ConcurrencyKey != "k" || f.WaitingReason != "ready" {
		t.Errorf("got %+v, %+v", b, f)
	}
	if b, refusal = DecodeBulk([]byte(`{"action":"cancel","ids":["0123456789abcdef0123456789abcdef"]}`)); refusal != nil || len(b.IDs) != 1 || b.Filter != nil {
		t.Errorf("got %+v, %v", b, refusal)
	}
}

func TestAnEmptyBodyIsAnEmptyObjectWhereNothingIsNeeded(t *testing.T) {
	t.Parallel()
	for kind, empty := range map[string]bool{
		"queue": true, "change": true, "expectation": true, "nothing": true, "note": false, "review": false, "bulk": false,
	} {
		if refusal := decoders[kind].decode(nil); (refusal == nil) != empty {
			t.Errorf("%s: %v", kind, refusal)
		}
	}
}

func TestAShortLeaseShortensTheDefaultOffer(t *testing.T) {
	t.Parallel()
	q, refusal := DecodeQueue([]byte(`{"lease_duration_ms":2000,"max_waiting":"7"}`))
	if refusal != nil || q.OfferDurationMillis != 2000 || q.MaxWaiting != 7 {
		t.Errorf("got %+v, %v", q, refusal)
	}
}
