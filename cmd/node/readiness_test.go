package node

import (
	"context"
	"errors"
	"testing"

	"pulse/cluster"
	"pulse/test/calm"
)

func TestAServerIsReadyWhenItHasCaughtUp(t *testing.T) {
	t.Parallel()
	led := func(id string) cluster.Status { return cluster.Status{ID: "b", LeaderID: id, Ready: id != ""} }
	behind := true
	r := &readiness{read: func(context.Context) error {
		if behind {
			return errors.New("what is committed was not applied here in time")
		}
		return nil
	}}
	ready := func(leader string, want bool) {
		t.Helper()
		if s := r.amend(led(leader)); s.Ready != want || leader != "" && (len(s.NotReady) == 0) != want {
			t.Errorf("led by %q it is ready: %t, with reasons %q", leader, s.Ready, s.NotReady)
		}
	}
	ready("b", true) // who leads has all
	ready("a", false)
	if r.try(t.Context()) {
		t.Error("a read that fails shows that it has caught up")
	}
	ready("a", false)
	behind = false
	if !r.try(t.Context()) {
		t.Error("a read that is answered does not show that it has caught up")
	}
	ready("a", true)
	ready("", false) // it hears nobody, and misses what happens meanwhile
	ready("a", false)
}

func TestReadinessIsWatched(t *testing.T) {
	t.Parallel()
	reads := make(chan struct{}, 100)
	r := &readiness{
		status: func() cluster.Status { return cluster.Status{ID: "b", LeaderID: "a", Ready: true} },
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
