package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pulse/sdk"
)

// aLook is a frame with something of everything in it.
func aLook() *look {
	now := time.Now()
	half, most := 1.25, 80.0
	standing := sdk.Standing{
		Waiting: 1234, Reasons: []sdk.ReasonCount{{Reason: "key_held", Tasks: 34}, {Reason: "workers_busy", Tasks: 1200}},
		OldestWaitingSince: now.Add(-90 * time.Second), OldestWaitingTaskID: "0199f3c2a1b87d4e9a0b1c2d3e4f5061",
		Leased: 1, Running: 7, NeedsReview: 2, WorkersConnected: 2, WorkersLost: 1, Slots: 8, SlotsUsed: 8,
		Lately: sdk.ActivityCounts{Submitted: 600, Succeeded: 120, PickupP50Millis: &half, PickupP99Millis: &most},
		Errors: []sdk.ErrorCount{{Code: "declined", Attempts: 3}},
	}
	return &look{
		At: now, Namespace: "billing", Node: "node-2", Ready: true, Leader: "node-1", Voters: 3,
		Activity: &sdk.Activity{
			At: now, Since: now.Add(-time.Hour), LatelyMillis: 60_000, Total: standing,
			Queues: []sdk.QueueActivity{{Queue: "idle", Paused: true}, {Queue: "mail", Standing: standing}},
		},
	}
}

func TestHowLongTasksWaitedIsSaidInWords(t *testing.T) {
	t.Parallel()
	for millis, want := range map[float64]string{0.5: "0.5 ms", 5.123: "5.12 ms", 80: "80 ms", 129: "129 ms", 999.7: "1000 ms", 29_400: "29s", 7_260_000: "2h1m"} {
		if got := pickup(millis); got != want {
			t.Errorf("%v ms are %q, not %q", millis, got, want)
		}
	}
}

func TestAScheduleWithoutATimeToComeSaysSo(t *testing.T) {
	t.Parallel()
	if got := nextTime(&sdk.Schedule{}); got != "no time is to come" {
		t.Error(got)
	}
	if got := nextTime(&sdk.Schedule{NextAt: time.Date(2030, 1, 31, 2, 0, 0, 0, time.UTC)}); got != "its next time is 2030-01-31T02:00:00Z" {
		t.Error(got)
	}
}

func TestAFrameSaysHowThingsStand(t *testing.T) {
	t.Parallel()
	frame := string(drawn(aLook(), nil, 24, 200))
	for _, words := range []string{
		"node-2 answers, node-1 leads, 3 voters", "1,234 waiting, 8 with workers, 2 for review, in namespace billing",
		"1,200 workers_busy, 34 key_held; the oldest for 1m30s (0199f3c2a1b87d4e9a0b1c2d3e4f5061)", "8 of 8 places taken",
		"10/s submitted, 2.0/s succeeded", "half within 1.25 ms, 99 of 100 within 80 ms", "declined: 3 attempts",
		"workers are full, 1 worker lost", "paused",
	} {
		if !strings.Contains(frame, words) {
			t.Errorf("the frame lacks %q:\n%s", words, frame)
		}
	}
	if strings.Index(frame, "mail") > strings.Index(frame, "idle") {
		t.Error("the queue with the most work is not the first")
	}
}

func TestAFrameFitsItsTerminal(t *testing.T) {
	t.Parallel()
	frame := string(drawn(aLook(), nil, 4, 30))
	frame = strings.TrimSuffix(strings.TrimPrefix(frame, "\x1b[H"), "\x1b[J")
	lines := strings.Split(frame, "\r\n")
	if len(lines) != 4 || !strings.Contains(lines[3], "more lines") {
		t.Errorf("%d lines:\n%s", len(lines), frame)
	}
	for _, line := range lines {
		if n := len([]rune(strings.TrimSuffix(line, "\x1b[K"))); n > 30 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestAFrameWithoutAnAnswerKeepsTheOneBefore(t *testing.T) {
	t.Parallel()
	frame := string(drawn(aLook(), errors.New("connection refused"), 40, 200))
	if !strings.Contains(frame, "No answer: connection refused; above is how it was") || !strings.Contains(frame, "mail") {
		t.Error(frame)
	}
	if frame := string(drawn(nil, errors.New("connection refused"), 24, 80)); !strings.Contains(frame, "No answer: connection refused") {
		t.Error(frame)
	}
}

func TestTopAndActivityAreOfARealNode(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.ok("task", "run", "echo", "--wait")
	s.submit("nobody")
	for _, verb := range [][]string{{"top"}, {"top", "--once"}, {"activity"}, {"activity", "--queue", "default"}} {
		out := s.ok(verb...)
		for _, words := range []string{"1 waiting", "1 no_capable_worker", "1 task that no worker can run", "submitted", "default"} {
			if !strings.Contains(out, words) {
				t.Errorf("pulse %s lacks %q:\n%s", strings.Join(verb, " "), words, out)
			}
		}
	}
	if out := s.ok("top"); !strings.Contains(out, "node-1 answers, leads, 1 voter") {
		t.Error(out)
	}
	var l look
	if err := json.Unmarshal([]byte(s.ok("top", "-o", "json")), &l); err != nil || l.Activity.Total.Waiting != 1 || l.Leader != "node-1" {
		t.Errorf("%+v, %v", l, err)
	}
	s.fails(exitUsage, "at least 200ms", "top", "--every", "1ms")
	s.fails(exitFailed, "not_found", "activity", "--queue", "nowhere")
}

func TestTheLogLevelOfANodeIsChanged(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	// A node in a test has a logger of the test's, without a level to change.
	s.fails(exitFailed, "cannot be changed while it runs", "cluster", "log-level", "debug")
	s.fails(exitUsage, "debug, info, warn, error", "cluster", "log-level", "loud")
}
