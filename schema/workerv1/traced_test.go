package workerv1

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The frames of pulse.worker.v1 are closed: what its variant adds is a fault in
// it, and without a trace the two are the same, byte for byte.
func TestOnlyTheVariantCarriesATrace(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/frames/server/assign.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := DecodeServer(text)
	if err != nil {
		t.Fatal(err)
	}
	body := *f.Body.(*Assign)
	plain, err := AppendServer(nil, ServerFrame{MessageID: f.MessageID, SessionID: f.SessionID, Body: &body})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeServerTraced(plain); err != nil {
		t.Errorf("the variant refuses a frame without a trace: %v", err)
	}
	for _, trace := range []TraceContext{
		{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: `vendor="1",b=2`},
	} {
		body.Trace = trace
		traced, err := AppendServer(nil, ServerFrame{MessageID: f.MessageID, SessionID: f.SessionID, Body: &body})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeServerTraced(traced); err != nil || got.Body.(*Assign).Trace != trace {
			t.Errorf("read %+v, %v", got, err)
		}
		if _, err := DecodeServer(traced); err == nil || !strings.Contains(err.Error(), "trace") {
			t.Errorf("the closed frame takes a trace: %v", err)
		}
		broken := bytes.Replace(traced, []byte(`"00-4bf9`), []byte(`"00-4BF9`), 1)
		if _, err := DecodeServerTraced(broken); err == nil || !strings.Contains(err.Error(), "/trace/traceparent") {
			t.Errorf("a broken traceparent: %v", err)
		}
	}
	body.Trace = TraceContext{Parent: "nonsense"}
	if _, err := AppendServer(nil, ServerFrame{MessageID: f.MessageID, SessionID: f.SessionID, Body: &body}); err == nil {
		t.Error("nonsense is sent")
	}
}
