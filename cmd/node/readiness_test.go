package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"pulse/cluster"
	"pulse/test/calm"
)

func TestAServerIsReadyWhenItHasCaughtUp(t *testing.T) {
	t.Parallel()
	led := func(id string, term uint64) cluster.Status {
		return cluster.Status{ID: "b", LeaderID: id, Term: term, Ready: id != ""}
	}
	behind := true
	r := &readiness{read: func(context.Context) error {
		if behind {
			return errors.New("what is committed was not applied here in time")
		}
		return nil
	}}
	ready := func(leader string, term uint64, want bool) {
		t.Helper()
		if s := r.amend(led(leader, term)); s.Ready != want || leader != "" && (len(s.NotReady) == 0) != want {
			t.Errorf("led by %q in term %d it is ready: %t, with reasons %q", leader, term, s.Ready, s.NotReady)
		}
	}
	ready("b", 3, true) // who leads has all
	ready("a", 3, false)
	if r.try(t.Context(), 3) {
		t.Error("a read that fails shows that it has caught up")
	}
	ready("a", 3, false)
	behind = false
	if !r.try(t.Context(), 3) {
		t.Error("a read that is answered does not show that it has caught up")
	}
	ready("a", 3, true)
	ready("", 3, false) // it hears nobody, and misses what happens meanwhile
	ready("a", 3, false)
	r.try(t.Context(), 3)
	ready("c", 4, false) // nobody has looked while there was no leader
	behind = true
	r.try(t.Context(), 3)
	ready("a", 3, false) // a read that fails shows that it is cut off
}

func TestReadinessIsWatched(t *testing.T) {
	t.Parallel()
	reads := make(chan struct{}, 100)
	r := &readiness{
		status:  func() cluster.Status { return cluster.Status{ID: "b", LeaderID: "a", Term: 3, Ready: true} },
		reports: func() bool { return true },
		read: func(context.Context) error {
			reads <- struct{}{}
			if len(reads) < 3 {
				return errors.New("not yet")
			}
			return nil
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx) }()
	for !r.amend(r.status()).Ready {
		if ctx.Err() != nil {
			t.Fatal("it never became ready")
		}
	}
	cancel()
	<-ended
	if len(reads) != 3 {
		t.Errorf("%d reads were tried, want 3", len(reads))
	}
}

// A server that hears a leader which requests do not reach says so, and only then:
// a report that was lost is no reason.
func TestAServerIsNotReadyWhileTheLeaderDoesNotAnswerIt(t *testing.T) {
	t.Parallel()
	var answers, reports atomic.Bool
	answers.Store(true)
	reports.Store(true)
	tried := make(chan struct{}, 1)
	r := &readiness{
		status:  func() cluster.Status { return cluster.Status{ID: "b", LeaderID: "a", Term: 3, Ready: true} },
		reports: reports.Load,
		read: func(context.Context) error {
			defer func() {
				select {
				case tried <- struct{}{}:
				default:
				}
			}()
			if !answers.Load() {
				return errors.New("the leader cannot be reached")
			}
			return nil
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx) }()
	until := func(want bool) {
		t.Helper()
		for r.amend(r.status()).Ready != want {
			if ctx.Err() != nil {
				t.Fatalf("it never became ready: %t", want)
			}
		}
	}
	until(true)
	<-tried
	reports.Store(false)
	<-tried
	until(true)
	answers.Store(false)
	until(false)
	answers.Store(true)
	until(true)
	cancel()
	<-ended
}

func TestAProcessThatStoodStillHasToCatchUp(t *testing.T) {
	t.Parallel()
	seen := time.Now()
	suspended := seen.Round(0).Add(time.Hour) // its monotonic clock stood, too
	for now, want := range map[time.Time]bool{seen.Add(time.Second): false, seen.Add(time.Hour): true, suspended: true, seen.Round(0).Add(-time.Hour): false} {
		if stoodStill(seen, now) != want {
			t.Errorf("from %s to %s it stood still: %t", seen, now, !want)
		}
	}
}
