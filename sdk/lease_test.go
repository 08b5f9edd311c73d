package sdk

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"pulse/schema/workerv1"
)

// TestALeaseIsNeverBelievedLongerThanItIs plays the cluster's clock beside ours:
// set differently, and running up to a thousandth faster.
func TestALeaseIsNeverBelievedLongerThanItIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := time.Now()
		skew := time.Duration(rapid.Int64Range(-int64(1000*time.Hour), int64(1000*time.Hour)).Draw(t, "skew"))
		faster := rapid.Float64Range(0, 0.001).Draw(t, "faster")
		server := func(ours time.Time) time.Time {
			since := ours.Sub(base)
			return ours.Add(skew + time.Duration(float64(since)*faster))
		}
		var l lease
		var granted time.Time // lease_until by the cluster's clock; never shortened
		now := base
		for range rapid.IntRange(1, 8).Draw(t, "answers") {
			sentAt := now
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "way there")))
			looked := server(now)
			duration := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(120*time.Second)).Draw(t, "lease"))
			if until := looked.Add(duration); until.After(granted) {
				granted = until
			}
			before := l.until
			l.learn(&workerv1.Lease{Active: true, LeaseUntil: wire(granted), ServerTime: wire(looked)}, sentAt)
			if l.until.Before(before) {
				t.Fatalf("an answer shortened the lease by %s", before.Sub(l.until))
			}
			if end := server(l.until); end.After(granted) {
				t.Fatalf("believed the lease %s too long", end.Sub(granted))
			}
			if l.renew.After(l.until) && duration > time.Second {
				t.Fatalf("would renew %s after the end", l.renew.Sub(l.until))
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "pause")))
		}
	})
}

func wire(t time.Time) workerv1.Time { return workerv1.Time(t.UnixMicro()) }

func TestRenewalsDoNotSpinWhenTheLeaseGrowsNoMore(t *testing.T) {
	t.Parallel()
	var l lease
	now := time.Now()
	for left := 3 * time.Second; left > 0; left -= 10 * time.Millisecond {
		l.learn(&workerv1.Lease{Active: true, LeaseUntil: wire(now.Add(left)), ServerTime: wire(now)}, now)
		if wait := l.renew.Sub(now); wait < renewAfterMin {
			t.Fatalf("with %s left the next renewal is due in %s", left, wait)
		}
	}
}

func TestRecentForgetsTheOldest(t *testing.T) {
	t.Parallel()
	r := newRecent(3)
	ids := make([]workerv1.ID, 7)
	for i := range ids {
		ids[i] = newID()
		r.add(ids[i])
	}
	for i, id := range ids {
		if r.has(id) != (i >= 4) {
			t.Errorf("id %d of 7: %t", i, r.has(id))
		}
	}
	if len(r.ids) != 3 {
		t.Errorf("remembers %d", len(r.ids))
	}
}
