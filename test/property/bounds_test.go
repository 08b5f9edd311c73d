package property

import (
	"slices"
	"testing"

	pb "pulse/proto/pulse/v1"
	"pulse/test/mutant"
)

// TestBounds: an entry processes at most 1,024 due items and makes at most
// 1,024 assignments; what is left over is pending and done by the next entries.
// The random histories are too small for that, and the model too slow, so this
// one looks at the invariants and at numbers.
func TestBounds(t *testing.T) {
	const tasks, bound = 1500, 1024
	w, err := newWorld(true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.bare = true
	now := int64(startUs)
	apply := func(commands ...*pb.Command) {
		t.Helper()
		for _, c := range commands {
			c.Id = w.nextID()
			complete(c)
		}
		if v := w.do(step{kind: stepApply, index: w.index + 1, term: 1,
			entry: &pb.Entry{Format: 1, Term: 1, TimeUs: now, Commands: commands}}); v != nil {
			t.Fatalf("%s%s\n%s", mutant.Found, v.name, v.detail)
		}
	}
	expect := func(what string, want int, pending bool, states ...pb.TaskState) {
		t.Helper()
		n := 0
		for _, row := range w.rows.tasks.vals {
			if slices.Contains(states, row.State) {
				n++
			}
		}
		if n != want || w.m.Pending() != pending {
			t.Fatalf("%sbounds\n%s: %d tasks, pending %t; want %d, %t", mutant.Found, what, n, w.m.Pending(), want, pending)
		}
	}
	apply(&pb.Command{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{ClusterId: []byte("cluster-of-tests")}}},
		&pb.Command{Namespace: "default", Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: "default", Settings: &pb.QueueSettings{
			LeaseDurationMs: 5000, OfferDurationMs: 5000, MaxWaiting: 10_000, RetentionMs: 60_000, DefaultDeadlineMs: 20_000,
			DefaultRetry: &pb.RetryPolicy{MaxAttempts: 3, InitialDelayMs: 1000, MaxDelayMs: 1000, AttemptTimeoutMs: 60_000},
		}}}})
	for range 3 {
		var commands []*pb.Command
		for range tasks / 3 {
			commands = append(commands, &pb.Command{Namespace: "default", Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{
				Queue: "default", Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: []byte(`{}`),
			}}})
		}
		apply(commands...)
	}
	expect("submitted", tasks, false, waiting)

	var workers []*pb.Command
	queue := w.rows.queues.vals[0].Id
	for n := range 8 {
		x := instanceID(n)
		workers = append(workers, &pb.Command{Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
			InstanceId: x[:], SecretHash: x[:], QueueId: queue, Capacity: 256, GatewayId: "g1", GatewayIncarnation: incarnation("g1", 1),
			Capabilities: []*pb.Capability{{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}},
		}}})
	}
	apply(workers...)
	expect("first assignments", bound, true, leased)
	apply()
	expect("all assignments", tasks, false, leased)

	now += 5_000_000
	apply()
	expect("first offers that lapsed", tasks-bound, true, leased)
	apply()
	expect("all offers that lapsed", 0, false, leased)

	now = startUs + 20_000_000
	apply()
	for w.m.Pending() { // holds of the workers and the gateway are due too
		apply()
	}
	expect("deadlines", tasks, false, failed)

	now += 30_000_000
	apply() // the grace of the workers is over
	now += 30_000_000
	apply() // the same instant ends their sessions, which goes first
	expect("first removals", tasks-bound+len(workers), true, failed)
	apply()
	expect("all removals", 0, false, failed)
}

// TestBoundsOfTheFeed: an event that leaves the feed is one of the due items of
// its entry, so that what is due behind it waits when too many leave at once.
func TestBoundsOfTheFeed(t *testing.T) {
	f := newFeedWorld(t)
	f.apply(&pb.Command{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{ClusterId: []byte("cluster-of-tests")}}})
	f.apply(append(f.settings(30_000), f.submits(450)...)...)
	f.apply(f.cancels(450)...)

	f.now += 100_000_000 // the feed is looked at after 60 s, and the tasks go after 90
	f.apply()
	f.expect("a look, 903 events and 120 tasks", 330, true)
	f.apply()
	f.expect("the rest of the tasks", 0, false)
}

// TestTheFeedGetsItsTurn: events that find no room in an entry are next, however
// much else has fallen due meanwhile.
func TestTheFeedGetsItsTurn(t *testing.T) {
	f := newFeedWorld(t)
	f.apply(&pb.Command{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{ClusterId: []byte("cluster-of-tests")}}})
	f.now += 200_000_000 // so that what the term began with leaves at once
	f.apply(append(f.settings(90_000), f.submits(1800)...)...)
	f.apply(f.cancels(900)...) // these tasks go after 90 s, just before the look at the feed
	f.now += 1_000_000
	f.apply(f.cancels(900)...) // and these just after it

	f.now += 91_000_000
	f.apply()
	f.expect("tasks that leave no room for a row of events", 900, true)
	f.apply()
	f.expect("as many rows of events as fit", 900, true)
	f.apply()
	f.expect("the other tasks", 0, true)
	for range 4 {
		f.apply()
	}
	f.expect("the rest of the events", 0, false)
}

// feedWorld is a world in which events leave the feed.
type feedWorld struct {
	t         *testing.T
	w         *world
	now       int64
	cancelled int
}

func newFeedWorld(t *testing.T) *feedWorld {
	t.Helper()
	w, err := newWorld(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return &feedWorld{t: t, w: w, now: startUs}
}

func (f *feedWorld) apply(commands ...*pb.Command) {
	f.t.Helper()
	for _, c := range commands {
		c.Id = f.w.nextID()
		complete(c)
	}
	if v := f.w.do(step{kind: stepApply, index: f.w.index + 1, term: 1,
		entry: &pb.Entry{Format: 1, Term: 1, TimeUs: f.now, Commands: commands}}); v != nil {
		f.t.Fatalf("%s%s\n%s", mutant.Found, v.name, v.detail)
	}
}

func (f *feedWorld) expect(what string, tasks int, pending bool) {
	f.t.Helper()
	if n := len(f.w.rows.tasks.vals); n != tasks || f.w.m.Pending() != pending {
		f.t.Fatalf("%sbounds\n%s: %d tasks, pending %t; want %d, %t", mutant.Found, what, n, f.w.m.Pending(), tasks, pending)
	}
}

func (f *feedWorld) settings(eventRetentionMs int64) []*pb.Command {
	return []*pb.Command{
		{Body: &pb.Command_SetCluster{SetCluster: &pb.SetCluster{EventRetentionMs: eventRetentionMs}}},
		{Namespace: "default", Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: "default", Settings: &pb.QueueSettings{
			LeaseDurationMs: 5000, OfferDurationMs: 5000, MaxWaiting: 10_000, RetentionMs: 90_000, DefaultDeadlineMs: 600_000,
			DefaultRetry: &pb.RetryPolicy{MaxAttempts: 3, InitialDelayMs: 1000, MaxDelayMs: 1000, AttemptTimeoutMs: 60_000},
		}}}},
	}
}

func (f *feedWorld) submits(n int) (out []*pb.Command) {
	for range n {
		out = append(out, &pb.Command{Namespace: "default", Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{
			Queue: "default", Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: []byte(`{}`),
		}}})
	}
	return out
}

func (f *feedWorld) cancels(n int) (out []*pb.Command) {
	for _, x := range f.w.model.Tasks[f.cancelled:][:n] {
		out = append(out, &pb.Command{Namespace: "default", Body: &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: x.ID[:]}}})
	}
	f.cancelled += n
	return out
}
