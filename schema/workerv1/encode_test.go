package workerv1

import (
	"errors"
	"strings"
	"testing"

	"pulse/schema"
)

func TestTheEncoderRefusesWhatTheDecoderWould(t *testing.T) {
	t.Parallel()
	pick := func(t *testing.T, name string) ClientFrame {
		for _, s := range clientSamples(t) {
			if s.name == name {
				return s.frame
			}
		}
		t.Fatalf("no sample %s", name)
		return ClientFrame{}
	}
	for _, test := range []struct {
		name, sample string
		bend         func(*ClientFrame)
		code         schema.Code
		path         string
	}{
		{"no body", "start", func(f *ClientFrame) { f.Body = nil }, schema.InvalidArgument, "/body"},
		{"epoch zero", "start", func(f *ClientFrame) { f.Body.(*Start).Ref.Epoch = 0 }, schema.InvalidArgument, "/body/epoch"},
		{"epoch zero in a finish", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).Ref.Epoch = 0 }, schema.InvalidArgument, "/body/ref/epoch"},
		{"no capability", "hello", func(f *ClientFrame) { f.Body.(*Hello).Capabilities = nil }, schema.InvalidArgument, "/body/capabilities"},
		{"33 capabilities", "hello", func(f *ClientFrame) { f.Body.(*Hello).Capabilities = make([]Capability, 33) }, schema.InvalidArgument, "/body/capabilities"},
		{"a capability twice", "hello", func(f *ClientFrame) {
			h := f.Body.(*Hello)
			h.Capabilities = append(h.Capabilities, h.Capabilities[0])
		}, schema.InvalidArgument, "/body/capabilities/2"},
		{"a bad handler", "hello", func(f *ClientFrame) { f.Body.(*Hello).Capabilities[1].Handler = "a b" }, schema.InvalidArgument, "/body/capabilities/1/handler"},
		{"no capacity", "hello", func(f *ClientFrame) { f.Body.(*Hello).Capacity = 0 }, schema.InvalidArgument, "/body/capacity"},
		{"too much capacity", "capacity", func(f *ClientFrame) { f.Body.(*Capacity).Capacity = 257 }, schema.InvalidArgument, "/body/capacity"},
		{"sequence zero", "capacity", func(f *ClientFrame) { f.Body.(*Capacity).Sequence = 0 }, schema.InvalidArgument, "/body/sequence"},
		{"a made-up outcome", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).Outcome = "DONE" }, schema.InvalidArgument, "/body/outcome"},
		{"an error code with success", "finish_succeeded", func(f *ClientFrame) { f.Body.(*Finish).ErrorCode = "x" }, schema.InvalidArgument, "/body/error_code"},
		{"no error code with failure", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).ErrorCode = "" }, schema.InvalidArgument, "/body/error_code"},
		{"a retryable unknown", "finish_unknown", func(f *ClientFrame) { f.Body.(*Finish).Retryable = true }, schema.InvalidArgument, "/body/retryable"},
		{"no result", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).Result = nil }, schema.InvalidArgument, "/body/result"},
		{"a null result", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).Result = []byte("null") }, schema.InvalidArgument, "/body/result"},
		{"a result that is no JSON", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).Result = []byte(`{"a":[1,}`) }, schema.InvalidArgument, "/body/result/a/1"},
		{"a result that would end the frame", "finish_failed", func(f *ClientFrame) { f.Body.(*Finish).Result = []byte(`0},"x":{`) }, schema.InvalidArgument, "/body/result"},
		{"a result too deep for its frame", "finish_failed", func(f *ClientFrame) {
			f.Body.(*Finish).Result = []byte(strings.Repeat("[", 63) + strings.Repeat("]", 63))
		}, schema.InvalidArgument, "/body/result" + strings.Repeat("/0", 62)},
		{"a result too large", "finish_failed", func(f *ClientFrame) {
			f.Body.(*Finish).Result = []byte(strings.Repeat("1", BusinessBytesMax+1))
		}, schema.TooLarge, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			frame := pick(t, test.sample)
			test.bend(&frame)
			out, err := AppendClient([]byte("before"), frame)
			holdEncodeRefusal(t, out, err, test.code, test.path)
		})
	}
}

func TestTheServersEncoderRefusesWhatTheDecoderWould(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, sample string
		bend         func(*ServerFrame)
		code         schema.Code
		path         string
	}{
		{"no body", "cancel", func(f *ServerFrame) { f.Body = nil }, schema.InvalidArgument, "/body"},
		{"no session", "cancel", func(f *ServerFrame) { f.SessionID = Opt[ID]{} }, schema.InvalidArgument, "/session_id"},
		{"an answer to nothing", "ack_start", func(f *ServerFrame) { f.ReplyTo = Opt[ID]{} }, schema.InvalidArgument, "/reply_to"},
		{"a push that answers", "assign", func(f *ServerFrame) { f.ReplyTo = Some(ID{}) }, schema.InvalidArgument, "/reply_to"},
		{"an empty ack", "ack_start", func(f *ServerFrame) { f.Body = &Ack{} }, schema.InvalidArgument, "/body"},
		{"an ack of two shapes", "ack_resume", func(f *ServerFrame) { f.Body.(*Ack).Welcome = &Welcome{Epoch: 1, LeaseDurationMillis: 1000} }, schema.InvalidArgument, "/body"},
		{"an active lease of a dead attempt", "ack_resume", func(f *ServerFrame) { f.Body.(*Ack).Lease.Active = true }, schema.InvalidArgument, "/body/state"},
		{"a lease too short", "welcome", func(f *ServerFrame) { f.Body.(*Welcome).LeaseDurationMillis = 999 }, schema.InvalidArgument, "/body/lease_duration_ms"},
		{"no payload", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.Payload = nil }, schema.InvalidArgument, "/body/task/payload"},
		{"a payload too large", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.Payload = make([]byte, BusinessBytesMax+1) }, schema.TooLarge, "/body/task/payload"},
		{"a key without token", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.ConcurrencyKey = "k" }, schema.InvalidArgument, "/body/concurrency_token"},
		{"a token without key", "assign", func(f *ServerFrame) { f.Body.(*Assign).ConcurrencyToken = 1 }, schema.InvalidArgument, "/body/concurrency_token"},
		{"a blank key", "assign_full", func(f *ServerFrame) { f.Body.(*Assign).Task.ConcurrencyKey = " " }, schema.InvalidArgument, "/body/task/concurrency_key"},
		{"a business key too long", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.BusinessKey = strings.Repeat("x", 192) }, schema.InvalidArgument, "/body/task/business_key"},
		{"no attempts", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.Retry.MaxAttempts = 0 }, schema.InvalidArgument, "/body/task/retry/max_attempts"},
		{"priority 10", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.Priority = 10 }, schema.InvalidArgument, "/body/task/priority"},
		{"no recovery safety", "assign", func(f *ServerFrame) { f.Body.(*Assign).Task.RecoverySafety = "" }, schema.InvalidArgument, "/body/task/recovery_safety"},
		{"an error without code", "error_answer", func(f *ServerFrame) { f.Body.(*Error).Code = "" }, schema.InvalidArgument, "/error/code"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range serverSamples(t) {
				if s.name == test.sample {
					test.bend(&s.frame)
					out, err := AppendServer([]byte("before"), s.frame)
					holdEncodeRefusal(t, out, err, test.code, test.path)
					return
				}
			}
			t.Fatalf("no sample %s", test.sample)
		})
	}
}

func holdEncodeRefusal(t *testing.T, out []byte, err error, code schema.Code, path string) {
	t.Helper()
	refusal, ok := errors.AsType[*schema.Error](err)
	if !ok || refusal.Code != code || string(out) != "before" {
		t.Fatalf("got %q, %v, want a refusal with %s", out, err, code)
	}
	if path != "" && (len(refusal.Violations) != 1 || refusal.Violations[0].Path != path) {
		t.Errorf("violations %+v, want %s", refusal.Violations, path)
	}
}

func TestAnErrorGetsOutHoweverLongItsMessage(t *testing.T) {
	t.Parallel()
	data := must(AppendServer(nil, ServerFrame{Body: &Error{schema.Internal, strings.Repeat("🙂", 2000) + "\xFF"}}))
	decoded, err := DecodeServer(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := decoded.Body.(*Error).Message; got != strings.Repeat("🙂", 1024) {
		t.Errorf("the message has %d bytes", len(got))
	}
	data = must(AppendServer(nil, ServerFrame{Body: &Error{schema.Internal, "a\xFFb\"\\\u0000\u2028"}}))
	if decoded, err = DecodeServer(data); err != nil || decoded.Body.(*Error).Message != "a\uFFFDb\"\\\u0000\u2028" {
		t.Errorf("got %+v, %v", decoded, err)
	}
}
