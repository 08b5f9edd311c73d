package apiv1

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pulse/schema"
)

const minimal = `{"handler":"charge","handler_version":"1","payload_version":"2","payload":{"amount": 1.50}}`

func TestASubmissionIsReadAsItWasSent(t *testing.T) {
	t.Parallel()
	s, refusal := DecodeSubmission([]byte(`{
		"payload" : {"amount" : 1.50, "note":"ä\u00e4"} ,
		"handler":"ch\u0061rge","handler_version":"1.0","payload_version":"2",
		"business_key":"order 7","concurrency_key":"account/7","priority":9.0,
		"delay_ms":15e2,"start_deadline_at":"2030-01-01T00:00:00Z","deadline_at":"2030-01-02T00:00:00.000001Z",
		"recovery_safety":"RECONCILE_ONLY",
		"retry":{"max_attempts":5,"initial_delay_ms":0,"attempt_timeout_ms":1}}`))
	if refusal != nil {
		t.Fatal(refusal)
	}
	start, _ := schema.ParseTime("2030-01-01T00:00:00Z")
	end, _ := schema.ParseTime("2030-01-02T00:00:00.000001Z")
	want := Submission{
		Handler: "charge", HandlerVersion: "1.0", PayloadVersion: "2", BusinessKey: "order 7", ConcurrencyKey: "account/7",
		Priority: 9, DelayMillis: 1500, StartDeadlineAt: start, DeadlineAt: end, ReconcileOnly: true,
		Retry: Retry{MaxAttempts: 5, InitialDelayMillis: 0, MaxDelayMillis: Absent, AttemptTimeoutMillis: 1},
	}
	if payload := string(s.Payload); payload != `{"amount" : 1.50, "note":"ä\u00e4"}` {
		t.Errorf("payload is %s", payload)
	}
	s.Payload = nil
	if fmt.Sprint(s) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestWhatASubmissionIsRefusedFor(t *testing.T) {
	t.Parallel()
	with := func(members string) string { return minimal[:len(minimal)-1] + "," + members + "}" }
	long := strings.Repeat("k", 192)
	for name, c := range map[string]struct {
		body string
		code schema.Code
		path string // of the first violation; "-" = none
	}{
		"nothing at all":               {"", schema.InvalidArgument, ""},
		"an array":                     {"[]", schema.InvalidArgument, ""},
		"null":                         {"null", schema.InvalidArgument, ""},
		"no handler":                   {`{"handler_version":"1","payload_version":"1","payload":1}`, schema.InvalidArgument, ""},
		"an unknown member":            {with(`"handlr":"x"`), schema.InvalidArgument, "/handlr"},
		"a member in capitals":         {with(`"Priority":1`), schema.InvalidArgument, "/Priority"},
		"a name given twice":           {with(`"handler":"x"`), schema.InvalidArgument, "/handler"},
		"a name given twice, escaped":  {with(`"h\u0061ndler":"x"`), schema.InvalidArgument, "/handler"},
		"a null payload":               {strings.Replace(minimal, `{"amount": 1.50}`, "null", 1), schema.InvalidArgument, "/payload"},
		"a payload beyond its size":    {strings.Replace(minimal, `{"amount": 1.50}`, `"`+strings.Repeat("x", schema.BusinessBytesMax)+`"`, 1), schema.TooLarge, "/payload"},
		"a handler with a blank":       {strings.Replace(minimal, "charge", "ch arge", 1), schema.InvalidArgument, "/handler"},
		"a handler that is a number":   {strings.Replace(minimal, `"charge"`, "7", 1), schema.InvalidArgument, "/handler"},
		"an empty handler":             {strings.Replace(minimal, "charge", "", 1), schema.InvalidArgument, "/handler"},
		"a handler too long":           {strings.Replace(minimal, "charge", strings.Repeat("h", 129), 1), schema.InvalidArgument, "/handler"},
		"priority 10":                  {with(`"priority":10`), schema.InvalidArgument, "/priority"},
		"priority -1":                  {with(`"priority":-1`), schema.InvalidArgument, "/priority"},
		"priority 1.5":                 {with(`"priority":1.5`), schema.InvalidArgument, "/priority"},
		"priority as a string":         {with(`"priority":"1"`), schema.InvalidArgument, "/priority"},
		"priority null":                {with(`"priority":null`), schema.InvalidArgument, "/priority"},
		"an empty business key":        {with(`"business_key":""`), schema.InvalidArgument, "/business_key"},
		"a business key too long":      {with(`"business_key":"` + long + `"`), schema.InvalidArgument, "/business_key"},
		"a concurrency key too long":   {with(`"concurrency_key":"` + long + `"`), schema.InvalidArgument, "/concurrency_key"},
		"a blank before a key":         {with(`"concurrency_key":" a"`), schema.InvalidArgument, "/concurrency_key"},
		"a blank behind a key":         {with(`"concurrency_key":"a\u00a0"`), schema.InvalidArgument, "/concurrency_key"},
		"a control character in a key": {with(`"concurrency_key":"a\u0000b"`), schema.InvalidArgument, "/concurrency_key"},
		"both kinds of delay":          {with(`"delay_ms":1,"available_at":"2030-01-01T00:00:00Z"`), schema.InvalidArgument, "/available_at"},
		"a negative delay":             {with(`"delay_ms":-1`), schema.InvalidArgument, "/delay_ms"},
		"a delay beyond ten years":     {with(`"delay_ms":315360000001`), schema.InvalidArgument, "/delay_ms"},
		"a time with an offset":        {with(`"available_at":"2030-01-01T00:00:00+01:00"`), schema.InvalidArgument, "/available_at"},
		"a time with nanoseconds":      {with(`"available_at":"2030-01-01T00:00:00.0000001Z"`), schema.InvalidArgument, "/available_at"},
		"a day that is none":           {with(`"deadline_at":"2030-02-30T00:00:00Z"`), schema.InvalidArgument, "/deadline_at"},
		"a time in another unit":       {with(`"deadline_at":"1970-01-20T00:00:00Z"`), schema.InvalidArgument, "/deadline_at"},
		"a time far away":              {with(`"start_deadline_at":"3000-01-01T00:00:00Z"`), schema.InvalidArgument, "/start_deadline_at"},
		"an unknown safety":            {with(`"recovery_safety":"idempotent"`), schema.InvalidArgument, "/recovery_safety"},
		"a retry that is none":         {with(`"retry":[]`), schema.InvalidArgument, "/retry"},
		"no attempts":                  {with(`"retry":{"max_attempts":0}`), schema.InvalidArgument, "/retry/max_attempts"},
		"101 attempts":                 {with(`"retry":{"max_attempts":101}`), schema.InvalidArgument, "/retry/max_attempts"},
		"a delay that overflows":       {with(`"retry":{"max_delay_ms":9223372036855}`), schema.InvalidArgument, "/retry/max_delay_ms"},
		"an attempt without time":      {with(`"retry":{"attempt_timeout_ms":0}`), schema.InvalidArgument, "/retry/attempt_timeout_ms"},
		"an unknown member of retry":   {with(`"retry":{"attempts":1}`), schema.InvalidArgument, "/retry/attempts"},
		"depth 65":                     {strings.Replace(minimal, `{"amount": 1.50}`, strings.Repeat("[", 64)+strings.Repeat("]", 64), 1), schema.InvalidArgument, "/payload" + strings.Repeat("/0", 63)},
		"a number of 65 characters":    {strings.Replace(minimal, "1.50", strings.Repeat("1", 65), 1), schema.InvalidArgument, "/payload/amount"},
		"a number out of range":        {strings.Replace(minimal, "1.50", "1e999999999", 1), schema.InvalidArgument, "/payload/amount"},
		"something behind the value":   {minimal + "x", schema.InvalidArgument, ""},
		"half a surrogate pair":        {strings.Replace(minimal, "1.50", `"\ud800"`, 1), schema.InvalidArgument, "/payload/amount"},
		"bytes that are no text":       {strings.Replace(minimal, "1.50", "\"\xff\"", 1), schema.InvalidArgument, "/payload/amount"},
		"a byte order mark":            {"\ufeff" + minimal, schema.InvalidArgument, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, refusal := DecodeSubmission([]byte(c.body))
			switch {
			case refusal == nil:
				t.Fatal("it was accepted")
			case refusal.Code != c.code:
				t.Fatalf("got %s (%s), want %s", refusal.Code, refusal.Message, c.code)
			case len(refusal.Violations) == 0:
				t.Fatalf("no violation: %s", refusal.Message)
			case refusal.Violations[0].Path != c.path:
				t.Errorf("the path is %q, want %q (%s)", refusal.Violations[0].Path, c.path, refusal.Message)
			}
		})
	}
}

func TestALimitItselfIsAccepted(t *testing.T) {
	t.Parallel()
	with := func(members string) string { return minimal[:len(minimal)-1] + "," + members + "}" }
	for name, body := range map[string]string{
		"a payload of full size":   strings.Replace(minimal, `{"amount": 1.50}`, `"`+strings.Repeat("x", schema.BusinessBytesMax-2)+`"`, 1),
		"depth 64":                 strings.Replace(minimal, `{"amount": 1.50}`, strings.Repeat("[", 63)+strings.Repeat("]", 63), 1),
		"a number of 64":           strings.Replace(minimal, "1.50", strings.Repeat("1", 64), 1),
		"a large whole number":     strings.Replace(minimal, "1.50", "12345678901234567890", 1),
		"a NUL that is escaped":    strings.Replace(minimal, "1.50", `"\u0000"`, 1),
		"keys of 191 characters":   with(`"business_key":"` + strings.Repeat("ä", 191) + `","concurrency_key":"` + strings.Repeat("ü", 191) + `"`),
		"the largest delay":        with(`"delay_ms":315360000000`),
		"the largest retry":        with(`"retry":{"max_attempts":100,"initial_delay_ms":9223372036854,"max_delay_ms":9223372036854,"attempt_timeout_ms":2592000000}`),
		"an empty retry":           with(`"retry":{}`),
		"a business key of blanks": with(`"business_key":" "`),
		"the last instant":         with(`"deadline_at":"2999-12-31T23:59:59.999999Z"`),
	} {
		if _, refusal := DecodeSubmission([]byte(body)); refusal != nil {
			t.Errorf("%s: %s", name, refusal.Message)
		}
	}
}

func TestARefusalNamesEveryPlace(t *testing.T) {
	t.Parallel()
	_, refusal := DecodeSubmission([]byte(`{"handler":"a b","payload":null,"priority":11,"retry":{"max_attempts":0,"x":1}}`))
	if refusal == nil {
		t.Fatal("it was accepted")
	}
	var paths []string
	for _, v := range refusal.Violations {
		paths = append(paths, v.Path)
	}
	want := []string{"/handler", "/payload", "/priority", "/retry/max_attempts", "/retry/x", "", ""}
	if !slices.Equal(paths, want) {
		t.Errorf("paths are %q, want %q", paths, want)
	}
}

func TestTheNumberOfViolationsIsBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(minimal[:len(minimal)-1])
	for i := range 1000 {
		fmt.Fprintf(&b, `,"m%d":0`, i)
	}
	b.WriteString("}")
	_, refusal := DecodeSubmission([]byte(b.String()))
	if refusal == nil || len(refusal.Violations) != violationsMax || !strings.Contains(refusal.Message, "and 999 more") {
		t.Errorf("%d violations: %v", len(refusal.Violations), refusal)
	}
}

func TestABatchStandsItemByItem(t *testing.T) {
	t.Parallel()
	items, refusal := DecodeBatch([]byte(`{"tasks":[` + minimal + `,{"handler":"x y","handler_version":"1","payload_version":"1","payload":{}},` +
		strings.Replace(minimal, "charge", "refund", 1) + `,7]}`))
	if refusal != nil {
		t.Fatal(refusal)
	}
	if len(items) != 4 {
		t.Fatalf("%d items", len(items))
	}
	if items[0].Refusal != nil || items[0].Submission.Handler != "charge" || items[2].Refusal != nil || items[2].Submission.Handler != "refund" {
		t.Errorf("good items: %+v", items)
	}
	for place, path := range map[int]string{1: "/tasks/1/handler", 3: "/tasks/3"} {
		if r := items[place].Refusal; r == nil || r.Violations[0].Path != path {
			t.Errorf("item %d: %v, want a violation at %s", place, r, path)
		}
	}
}

func TestWhatABatchIsRefusedForAsAWhole(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		return `{"tasks":[` + strings.TrimSuffix(strings.Repeat(minimal+",", n), ",") + `]}`
	}
	for name, c := range map[string]struct {
		body string
		path string
	}{
		"no tasks":            {`{}`, ""},
		"tasks as an object":  {`{"tasks":{}}`, "/tasks"},
		"an unknown member":   {`{"tasks":[],"atomic":true}`, "/atomic"},
		"1,001 tasks":         {many(1001), "/tasks"},
		"a million zeros":     {`{"tasks":[` + strings.Repeat("0,", 1_000_000) + `0]}`, "/tasks"},
		"a name given twice":  {`{"tasks":[{"handler":"a","handler":"b"}]}`, "/tasks/0/handler"},
		"text behind the end": {many(1) + "]", ""},
	} {
		_, refusal := DecodeBatch([]byte(c.body))
		if refusal == nil || refusal.Code != schema.InvalidArgument || refusal.Violations[0].Path != c.path {
			t.Errorf("%s: %v, want a violation at %q", name, refusal, c.path)
		}
	}
	if items, refusal := DecodeBatch([]byte(many(1000))); refusal != nil || len(items) != 1000 {
		t.Errorf("1,000 tasks: %d, %v", len(items), refusal)
	}
	if items, refusal := DecodeBatch([]byte(`{"tasks":[]}`)); refusal != nil || len(items) != 0 {
		t.Errorf("no tasks: %d, %v", len(items), refusal)
	}
}

func TestATaskMayBeAsDeepInABatchAsAlone(t *testing.T) {
	t.Parallel()
	for depth, ok := range map[int]bool{63: true, 64: false} {
		task := strings.Replace(minimal, `{"amount": 1.50}`, strings.Repeat("[", depth)+strings.Repeat("]", depth), 1)
		_, alone := DecodeSubmission([]byte(task))
		_, batch := DecodeBatch([]byte(`{"tasks":[` + task + `]}`))
		if (alone == nil) != ok || (batch == nil) != ok {
			t.Errorf("payload of depth %d: alone %v, in a batch %v, want accepted=%v", depth, alone, batch, ok)
		}
	}
}
