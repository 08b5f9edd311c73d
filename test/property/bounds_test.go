package property

import (
	"slices"
	"testing"

	pb "pulse/proto/pulse/v1"
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
			t.Fatalf("%s%s\n%s", foundMark, v.name, v.detail)
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
			t.Fatalf("%sbounds\n%s: %d tasks, pending %t; want %d, %t", foundMark, what, n, w.m.Pending(), want, pending)
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
