package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"pulse/schema/apiv1"
	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// await looks until what is waited for is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pulsetest.Patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s has not come", what)
		case <-tick.C:
		}
	}
}

// Each reason is made to happen on a real node, and the API, the list and the
// command line have to say the same. The one that is left out is "ready": a task
// that nothing holds up is assigned in the entry that makes it so.
func TestWhyIsRightForEachReason(t *testing.T) {
	t.Parallel()
	s, server := startNode(t)
	client := server.Client()

	// A queue with a worker of one place, which sleeps.
	s.ok("queue", "create", "narrow")
	narrow := server.Worker(sdk.WorkerOptions{Queue: "narrow", Capacity: 1, DrainTimeout: -1})
	devHandlers(narrow)
	server.Run(narrow)
	long := `{"ms":600000}`
	holder := s.submit("sleep", long, "--queue", "narrow", "--key", "account/1") // keys are of the namespace

	s.ok("queue", "create", "limited", "--max-active", "1")
	limited := server.Worker(sdk.WorkerOptions{Queue: "limited", Capacity: 8, DrainTimeout: -1})
	devHandlers(limited)
	server.Run(limited)
	s.submit("sleep", long, "--queue", "limited")

	s.ok("queue", "create", "retrying", "--max-attempts", "3", "--initial-delay", "1h", "--max-delay", "1h")
	retrying := server.Worker(sdk.WorkerOptions{Queue: "retrying"})
	devHandlers(retrying)
	server.Run(retrying)

	s.ok("queue", "create", "paused")
	s.ok("queue", "pause", "paused")

	for _, c := range []struct {
		reason string
		task   []string
		words  []string // of pulse task why
	}{
		{"delayed", []string{"echo", "--delay", "1h"}, []string{"delay"}},
		{"retry_backoff", []string{"fail", `{"retryable":true,"code":"busy"}`, "--queue", "retrying"}, []string{"attempt"}},
		{"key_held", []string{"echo", "--key", "account/1"}, []string{"account/1", holder}},
		{"queue_paused", []string{"echo", "--queue", "paused"}, []string{"paused", "pulse queue resume"}},
		{"queue_limit", []string{"echo", "--queue", "limited"}, []string{"limited"}},
		{"no_capable_worker", []string{"nobody"}, []string{"nobody", "worker"}},
		{"workers_busy", []string{"echo", "--queue", "narrow"}, []string{"worker"}},
	} {
		id := s.submit(c.task...)
		await(t, c.reason, func() bool {
			task, err := client.Get(t.Context(), id)
			return err == nil && task.Waiting != nil && task.Waiting.Reason == c.reason
		})
		text := s.ok("task", "why", id)
		for _, word := range c.words {
			if !strings.Contains(text, word) {
				t.Errorf("%s: why does not name %q:\n%s", c.reason, word, text)
			}
		}
		if got := object(t, s.ok("task", "why", id, "-o", "json"))["waiting"].(map[string]any)["reason"]; got != c.reason {
			t.Errorf("why says %v, want %s", got, c.reason)
		}
		listed := strings.Fields(s.ok("task", "list", "--reason", c.reason, "--ids"))
		if !slices.Equal(listed, []string{id}) {
			t.Errorf("%s: listed are %v, want %s alone", c.reason, listed, id)
		}
		switch c.reason {
		case "delayed", "retry_backoff":
			if out := s.ok("task", "run-now", id, "--note", "now"); !strings.Contains(out, id) {
				t.Error(out)
			}
			await(t, "the end of "+c.reason, func() bool {
				task, err := client.Get(t.Context(), id)
				return err == nil && (c.reason == "delayed" && task.State == sdk.StateSucceeded || task.AttemptCount == 2)
			})
		default:
			out := s.ok("task", "run-now", id)
			if !strings.Contains(out, c.reason) {
				t.Errorf("run-now of a task with %s says:\n%s", c.reason, out)
			}
		}
	}
	known := 8
	if len(apiv1.WaitingReasons) != known {
		t.Errorf("there are %d reasons now: make the new one happen here", len(apiv1.WaitingReasons))
	}
}
