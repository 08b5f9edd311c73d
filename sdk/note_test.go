package sdk

import (
	"log/slog"
	"testing"
	"testing/synctest"
)

// A reason travels with every change: the call's own, or else the client's.
func TestReasonsTravelWithChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, answerJSON(`{"name":"q"}`), answerJSON(`{"name":"q"}`), answerJSON(taskJSON, "CANCELLED"), answerJSON(`{"name":"q"}`), answerJSON(`{"results":[]}`), answerJSON(taskJSON, "WAITING"), answerJSON(taskJSON, "WAITING"))
		c := NewClient(ClientOptions{Addrs: []string{"http://one.example"}, HTTPClient: s.client(), Logger: slog.New(slog.DiscardHandler), Note: "spring cleaning"})
		ctx := t.Context()
		calls := []func() error{
			func() error { _, err := c.PauseQueue(ctx, "q"); return err },
			func() error { _, err := c.PauseQueue(ctx, "q", WithNote("grüße\r\nX-Other: 1")); return err },
			func() error {
				_, err := c.Cancel(ctx, "0123456789abcdef0123456789abcdef", WithNote("wrong size"))
				return err
			},
			func() error { _, err := s.connect().PauseQueue(ctx, "q"); return err },
			func() error { _, err := c.Bulk(ctx, Bulk{Action: BulkCancel, Note: "too many"}); return err },
			// There may be any number of submissions: only one that has a reason of its
			// own is for the record.
			func() error { _, err := c.Submit(ctx, TaskSpec{Handler: "h"}); return err },
			func() error { _, err := c.Submit(ctx, TaskSpec{Handler: "h"}, WithNote("by phone")); return err },
		}
		for i, want := range []string{"spring cleaning", "grüße X-Other: 1", "wrong size", "", "too many", "", "by phone"} {
			if err := calls[i](); err != nil {
				t.Fatal(err)
			}
			if got := s.seen()[i].header.Get("X-Pulse-Note"); got != want {
				t.Errorf("call %d says why with %q, not %q", i, got, want)
			}
		}
		if body := s.seen()[2].body; body != `{"note":"wrong size"}` {
			t.Errorf("what goes into the task's history: %s", body)
		}
	})
}
