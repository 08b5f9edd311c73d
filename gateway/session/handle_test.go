package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

func TestARegistrationCarriesWhatTheWorkerSaid(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		r := aHello
		r.ConcurrencyKeys = true
		r.Capabilities = []*pb.Capability{
			{Handler: "b", HandlerVersion: "1", PayloadVersion: "1"},
			{Handler: "a", HandlerVersion: "2", PayloadVersion: "1"},
			{Handler: "a", HandlerVersion: "1", PayloadVersion: "2"},
			{Handler: "a", HandlerVersion: "1", PayloadVersion: "1"},
		}
		h, _ := g.worker(t, r)
		defer h.Close()
		cmd := commands(g.state, func(c *pb.Command) (*pb.Command, bool) { return c, c.GetRegisterSession() != nil })[0]
		hash := sha256.Sum256(r.InstanceSecret[:])
		want := &pb.Command{
			Id: idBytes(ident("hello")), Caller: &pb.Caller{Principal: "worker/" + instanceID.String(), Roles: Anonymous.Grants.Strings()},
			Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
				InstanceId: idBytes(instanceID), SecretHash: hash[:], QueueId: idBytes(r.QueueID),
				Capabilities: []*pb.Capability{
					{Handler: "a", HandlerVersion: "1", PayloadVersion: "1"},
					{Handler: "a", HandlerVersion: "1", PayloadVersion: "2"},
					{Handler: "a", HandlerVersion: "2", PayloadVersion: "1"},
					{Handler: "b", HandlerVersion: "1", PayloadVersion: "1"},
				},
				Capacity: 4, CancellationNotifications: true, ConcurrencyKeys: true,
				GatewayId: gatewayID, GatewayIncarnation: idBytes(g.Incarnation()), Peer: "192.0.2.1:1",
			}},
		}
		if !proto.Equal(cmd, want) {
			t.Errorf("command\n%v, want\n%v", cmd, want)
		}
	})
}

func TestCommandsCarryTheSessionAndTheMessageID(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		defer h.Close()
		ref := refOf("a")
		session := &pb.SessionRef{InstanceId: idBytes(instanceID), SessionId: idBytes(sessionID)}
		attempt := &pb.AttemptRef{TaskId: idBytes(ref.TaskID), AttemptId: idBytes(ref.AttemptID), Epoch: 9}
		var got answers
		ctx := t.Context()
		h.SetCapacity(ctx, ident("m1"), 3, 5, true, got.to("capacity"))
		h.Resume(ctx, ident("m2"), ref, got.to("resume"))
		h.Start(ctx, ident("m3"), ref, got.to("start"))
		h.Renew(ctx, ident("m4"), ref, got.to("renew"))
		h.Finish(ctx, ident("m5"), ref, Finish{Outcome: pb.Outcome_OUTCOME_FAILED, Result: []byte(`{"n":2.50}`), ErrorCode: "boom", Retryable: true}, got.to("finish"))
		all := got.all()
		slices.Sort(all)
		equal(t, "answers", all, []string{"capacity ok", "finish ok", "renew ok", "resume ok", "start ok"})

		want := map[string]*pb.Command{
			"m1": {Body: &pb.Command_SetCapacity{SetCapacity: &pb.SetCapacity{Session: session, Sequence: 3, Capacity: 5, Drain: true}}},
			"m2": {Body: &pb.Command_ResumeAttempt{ResumeAttempt: &pb.ResumeAttempt{Session: session, Ref: attempt}}},
			"m3": {Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: session, Ref: attempt}}},
			"m4": {Body: &pb.Command_RenewAttempt{RenewAttempt: &pb.RenewAttempt{Session: session, Ref: attempt}}},
			"m5": {Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{Session: session, Ref: attempt,
				Outcome: pb.Outcome_OUTCOME_FAILED, Result: []byte(`{"n":2.50}`), ErrorCode: "boom", Retryable: true}}},
		}
		for _, cmd := range commands(g.state, func(c *pb.Command) (*pb.Command, bool) { return c, c.GetNamespaceId() != nil }) {
			w := want[strings.TrimRight(string(cmd.GetId()), "\x00")]
			if w == nil {
				t.Fatalf("unexpected %v", cmd)
			}
			w.Id, w.NamespaceId = cmd.GetId(), idBytes(namespaceID)
			w.Caller = &pb.Caller{Principal: "worker/" + instanceID.String(), Roles: Anonymous.Grants.Strings()}
			if !proto.Equal(cmd, w) {
				t.Errorf("command\n%v, want\n%v", cmd, w)
			}
			delete(want, strings.TrimRight(string(cmd.GetId()), "\x00"))
		}
		if len(want) != 0 {
			t.Errorf("not submitted: %v", want)
		}
	})
}

func TestNoSecretLeavesTheGateway(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		r := aHello
		r.InstanceSecret = schema.Secret(bytes.Repeat([]byte{0xA5}, 32))
		h, _ := g.worker(t, r)
		defer h.Close()
		ref := refOf("a")
		wrong := ref
		wrong.Epoch++
		var got answers
		h.Start(t.Context(), ident("m"), ref, got.to("start"))
		h.Start(t.Context(), ident("m"), wrong, got.to("wrong"))
		got.all()
		var sent []proto.Message
		for _, call := range g.state.calls {
			for _, cmd := range call {
				sent = append(sent, cmd)
			}
		}
		for _, q := range g.state.reads {
			sent = append(sent, q)
		}
		for _, m := range sent {
			wire, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			for name, secret := range map[string]schema.Secret{"instance": r.InstanceSecret, "lease": ref.LeaseSecret} {
				if bytes.Contains(wire, secret[:]) || bytes.Contains(wire, secret.AppendBase64(nil)) {
					t.Errorf("%T carries the %s secret", m, name)
				}
			}
		}
		if len(sent) < 4 {
			t.Errorf("only %d messages were looked at", len(sent))
		}
	})
}

func TestAWrongLeaseSecretIsRefusedHere(t *testing.T) {
	found := &pb.Answer{Body: &pb.Answer_Attempt{Attempt: &pb.AttemptRow{}}}
	for _, c := range []struct {
		name   string
		spoil  func(*AttemptRef)
		answer *pb.Answer
		err    error
		want   string
	}{
		{"another secret", func(r *AttemptRef) { r.LeaseSecret[31] ^= 1 }, found, nil, "forbidden"},
		{"another epoch", func(r *AttemptRef) { r.Epoch++ }, found, nil, "forbidden"},
		{"another attempt", func(r *AttemptRef) { r.AttemptID = ident("b") }, found, nil, "forbidden"},
		{"an attempt that is not there", func(r *AttemptRef) { r.AttemptID = ident("b") }, &pb.Answer{Code: "not_found"}, nil, "not_found"},
		{"nobody to ask", func(r *AttemptRef) { r.Epoch++ }, nil, schema.Errorf(schema.Unavailable, "down"), "forbidden"},
		{"a read that fails otherwise", func(r *AttemptRef) { r.Epoch++ }, nil, errors.New("broken"), "forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, g *gateway) {
				h, _ := g.worker(t, aHello)
				defer h.Close()
				g.state.set(func(b *backend) {
					b.calls = nil
					b.lookup = func(*pb.Query) (*pb.Answer, error) { return c.answer, c.err }
				})
				ref := refOf("a")
				c.spoil(&ref)
				var got answers
				ctx := t.Context()
				h.Start(ctx, ident("m1"), ref, got.to("start"))
				h.Renew(ctx, ident("m2"), ref, got.to("renew"))
				h.Resume(ctx, ident("m3"), ref, got.to("resume"))
				h.Finish(ctx, ident("m4"), ref, Finish{}, got.to("finish"))
				all := got.all()
				slices.Sort(all)
				equal(t, "answers", all, []string{"finish " + c.want, "renew " + c.want, "resume " + c.want, "start " + c.want})
				if len(g.state.calls) != 0 {
					t.Error("it was forwarded")
				}
				q := g.state.reads[0]
				if q.GetConsistency() != pb.Consistency_CONSISTENCY_STALE || !bytes.Equal(q.GetNamespaceId(), idBytes(namespaceID)) ||
					!bytes.Equal(q.GetGetAttempt().GetAttemptId(), idBytes(ref.AttemptID)) || !bytes.Equal(q.GetGetAttempt().GetTaskId(), idBytes(ref.TaskID)) {
					t.Errorf("asked %v", q)
				}
				if g.Counters().Refused.Load() != 4 {
					t.Error("not counted")
				}
			})
		})
	}
}

func TestEveryRefusalOfTheBackendIsPassedOn(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*backend)
		want  string
	}{
		{"a result with a code", func(b *backend) {
			b.answer = func(*pb.Command) *pb.Result { return &pb.Result{Code: "lease_lost", Message: "over"} }
		}, "x lease_lost"},
		{"an error for the whole call", func(b *backend) {
			b.before = func(context.Context, []*pb.Command) error { return schema.Errorf(schema.NoLeader, "none") }
		}, "x no_leader"},
		{"an error inside another", func(b *backend) {
			b.before = func(context.Context, []*pb.Command) error {
				return fmt.Errorf("router: %w", schema.Errorf(schema.ResultUnknown, "?"))
			}
		}, "x result_unknown"},
		{"an error without a code", func(b *backend) {
			b.before = func(context.Context, []*pb.Command) error { return errors.New("broken") }
		}, "x result_unknown"},
		{"a result too few", func(b *backend) { b.missing = true }, "x result_unknown"},
		{"no answer in time", func(b *backend) {
			b.before = func(ctx context.Context, _ []*pb.Command) error { <-ctx.Done(); return ctx.Err() }
		}, "x result_unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, g *gateway) {
				h, _ := g.worker(t, aHello)
				g.state.set(c.setup)
				var got answers
				start := time.Now()
				h.Start(t.Context(), ident("m"), refOf("a"), got.to("x"))
				equal(t, "answers", got.all(), []string{c.want})
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("answered after %s", took)
				}
				g.state.set(func(b *backend) { b.before, b.answer, b.missing = nil, nil, false })
				h.Close()
			})
		})
	}
}

// A worker with 256 slots finishes them all at once while one commit takes
// 20 ms: that must take a few commits' time, not 256.
func TestManyCommandsShareFewCommits(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		defer h.Close()
		var underWay, most atomic.Int64
		g.state.set(func(b *backend) {
			b.calls = nil
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				most.Store(max(most.Load(), underWay.Add(1)))
				defer underWay.Add(-1)
				if len(cmds) > callsInBatchMax {
					t.Errorf("%d commands in one call", len(cmds))
				}
				time.Sleep(20 * time.Millisecond)
				return nil
			}
		})
		var got answers
		start := time.Now()
		for i := range 256 {
			h.Finish(t.Context(), ident(fmt.Sprint(i)), refOf(fmt.Sprint("a", i)), Finish{}, got.to(fmt.Sprint(i)))
		}
		if n := len(got.all()); n != 256 {
			t.Fatalf("%d answers", n)
		}
		if took := time.Since(start); took > 40*time.Millisecond {
			t.Errorf("it took %s of commits", took)
		}
		if most.Load() > batchesMax {
			t.Errorf("%d calls at once, want at most %d", most.Load(), batchesMax)
		}
		if n := len(g.state.calls); n > 20 {
			t.Errorf("%d calls for 256 commands", n)
		}
	})
}

// Commands that trickle in while commits are slow collect into batches instead
// of into ever more calls.
func TestSlowCommitsMakeLargerBatches(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		defer h.Close()
		underWay, most := 0, 0
		g.state.set(func(b *backend) {
			b.calls = nil
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				g.state.set(func(*backend) { underWay++; most = max(most, underWay) })
				time.Sleep(100 * time.Millisecond)
				g.state.set(func(*backend) { underWay-- })
				return nil
			}
		})
		var got answers
		for i := range 100 {
			h.Renew(t.Context(), ident(fmt.Sprint(i)), refOf(fmt.Sprint("a", i)), got.to("x"))
			time.Sleep(time.Millisecond)
		}
		if n := len(got.all()); n != 100 {
			t.Fatalf("%d answers", n)
		}
		if most != batchesMax {
			t.Errorf("%d calls at once, want %d", most, batchesMax)
		}
		if n := len(g.state.calls); n > 20 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestCommandsOfOneAttemptKeepTheirOrder(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		defer h.Close()
		var underWay = map[string]int{}
		g.state.set(func(b *backend) {
			b.calls = nil
			delay := 0
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				b.mu.Lock()
				delay = (delay + 7) % 30 // later calls may be answered earlier
				pause := time.Duration(delay) * time.Millisecond
				for _, c := range cmds {
					underWay[string(c.GetStartAttempt().GetRef().GetAttemptId())]++
				}
				for attempt, n := range underWay {
					mine := 0
					for _, c := range cmds {
						if string(c.GetStartAttempt().GetRef().GetAttemptId()) == attempt {
							mine++
						}
					}
					if mine > 0 && n > mine {
						t.Errorf("attempt %q is in two calls at once", attempt)
					}
				}
				b.mu.Unlock()
				time.Sleep(pause)
				b.mu.Lock()
				for _, c := range cmds {
					underWay[string(c.GetStartAttempt().GetRef().GetAttemptId())]--
				}
				b.mu.Unlock()
				return nil
			}
		})
		var got answers
		for i := range 600 {
			h.Start(t.Context(), ident(fmt.Sprintf("%03d", i)), refOf(fmt.Sprint("a", i%5)), got.to(fmt.Sprint(i)))
			if i%50 == 49 {
				time.Sleep(3 * time.Millisecond)
			}
		}
		if n := len(got.all()); n != 600 {
			t.Fatalf("%d answers", n)
		}
		last := map[string]string{}
		for _, cmd := range commands(g.state, func(c *pb.Command) (*pb.Command, bool) { return c, c.GetStartAttempt() != nil }) {
			attempt, id := string(cmd.GetStartAttempt().GetRef().GetAttemptId()), string(cmd.GetId())
			if id <= last[attempt] {
				t.Fatalf("%q came after %q", id, last[attempt])
			}
			last[attempt] = id
		}
		if len(last) != 5 {
			t.Errorf("%d attempts", len(last))
		}
	})
}

func TestAnAttemptThatIsStuckHoldsUpNoOther(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		stuck := make(chan struct{})
		g.state.set(func(b *backend) {
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				if bytes.Equal(cmds[0].GetStartAttempt().GetRef().GetAttemptId(), idBytes(ident("stuck"))) {
					<-stuck
				}
				return nil
			}
		})
		var first, others answers
		h.Start(t.Context(), ident("m0"), refOf("stuck"), first.to("start"))
		synctest.Wait()
		h.Renew(t.Context(), ident("m1"), refOf("stuck"), first.to("renew"))
		for i := range 100 {
			h.Start(t.Context(), ident(fmt.Sprint(i)), refOf(fmt.Sprint("a", i)), others.to("x"))
		}
		if n := len(others.all()); n != 100 {
			t.Errorf("%d answers", n)
		}
		if n := len(commands(g.state, func(c *pb.Command) (bool, bool) { return true, c.GetRenewAttempt() != nil })); n != 0 {
			t.Error("the renewal overtook the start")
		}
		close(stuck)
		equal(t, "answers", first.all(), []string{"start ok", "renew ok"})
		h.Close()
	})
}

func TestAConnectionHasAnEndToItsUnansweredCommands(t *testing.T) {
	bubble(t, Config{InFlightMax: 10}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		answer := make(chan struct{})
		g.state.set(func(b *backend) {
			b.before = func(context.Context, []*pb.Command) error { <-answer; return nil }
		})
		var got answers
		var given atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 30 {
				h.Start(t.Context(), ident(fmt.Sprint(i)), refOf(fmt.Sprint("a", i)), got.to("x"))
				given.Add(1)
			}
		}()
		synctest.Wait()
		if n := given.Load(); n != 10 {
			t.Errorf("%d commands were taken, want 10", n)
		}
		close(answer)
		<-done
		got.all()

		// Who waits for a slot gives up with its context.
		block := make(chan struct{})
		g.state.set(func(b *backend) {
			b.before = func(context.Context, []*pb.Command) error { <-block; return nil }
		})
		var held, late answers
		for i := range 10 {
			h.Start(t.Context(), ident(fmt.Sprint(i)), refOf(fmt.Sprint("a", i)), held.to("x"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h.Start(ctx, ident("m"), refOf("z"), late.to("late"))
		equal(t, "answers", late.all(), []string{"late unavailable"})
		close(block)
		held.all()
		h.Close()
	})
}

func TestDrainWaitsForAnswersAndTakesNothingNew(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		g.state.set(func(b *backend) {
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				if cmds[0].GetReportGateway() == nil {
					time.Sleep(3 * time.Second)
				}
				return nil
			}
		})
		var got answers
		h.Start(t.Context(), ident("m1"), refOf("a"), got.to("start"))
		wrong := refOf("b")
		wrong.Epoch++
		h.Start(t.Context(), ident("m2"), wrong, got.to("wrong"))
		start := time.Now()
		h.Drain()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("drained after %s, want 3s", took)
		}
		all := got.all()
		slices.Sort(all)
		equal(t, "answers", all, []string{"start ok", "wrong forbidden"})
		var late answers
		h.Finish(t.Context(), ident("m3"), refOf("a"), Finish{}, late.to("finish"))
		h.Start(t.Context(), ident("m4"), wrong, late.to("wrong"))
		equal(t, "late answers", late.all(), []string{"finish unavailable", "wrong unavailable"})
		if _, refusal := h.Register(t.Context(), ident("m5"), aHello); refusal == nil {
			t.Error("it registered again")
		}
		if h.Leave(); g.Counters().Sessions.Load() != 0 {
			t.Error("the session is still counted")
		}
		h.Close()
	})
}

// What was read is carried to its end though the connection is gone.
func TestACommandOutlivesItsConnection(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		g.state.set(func(b *backend) {
			b.before = func(ctx context.Context, cmds []*pb.Command) error {
				if cmds[0].GetFinishAttempt() != nil {
					time.Sleep(time.Second)
				}
				return ctx.Err()
			}
		})
		var got answers
		h.Finish(t.Context(), ident("m"), refOf("a"), Finish{}, got.to("finish"))
		start := time.Now()
		closing := make(chan struct{})
		go func() { h.Close(); close(closing) }()
		synctest.Wait()
		if n := len(commands(g.state, closes)); n != 1 {
			t.Errorf("%d sessions were reported as closed while a command was under way, want it", n)
		}
		<-closing
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close returned after %s", took)
		}
		equal(t, "answers", got.all(), []string{"finish ok"})
	})
}

func TestAConnectionThatEndsWhileItRegistersLeavesNothing(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		answer := make(chan struct{})
		g.state.set(func(b *backend) {
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				if cmds[0].GetRegisterSession() != nil {
					<-answer
				}
				return nil
			}
		})
		h := g.Attach(new(conn), Anonymous, "")
		refused := make(chan *schema.Error, 1)
		go func() {
			_, refusal := h.Register(t.Context(), ident("m"), aHello)
			refused <- refusal
		}()
		synctest.Wait()
		h.Leave()
		close(answer)
		if refusal := <-refused; refusal == nil || refusal.Code != schema.Unavailable {
			t.Errorf("Register: %v, want unavailable", refusal)
		}
		h.Close()
		synctest.Wait()
		if n := len(commands(g.state, closes)); n != 1 {
			t.Errorf("%d sessions were reported as closed, want the one that was made", n)
		}
		if body := g.list(9, time.Now()); len(body.GetSessions()) != 0 {
			t.Errorf("listed: %v", body.GetSessions())
		}
	})
}

func TestASecondRegistrationIsAConflict(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		defer h.Close()
		if _, refusal := h.Register(t.Context(), ident("m"), aHello); refusal == nil || refusal.Code != schema.Conflict {
			t.Errorf("refusal %v, want conflict", refusal)
		}
		if id, ok := h.Session(); !ok || id != sessionID {
			t.Error("the session is lost")
		}
	})
}

func TestIdentities(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		id     Identity
		ns, q  string
		forbid bool
	}{
		{"anonymous serves everything", Anonymous, "default", "default", false},
		{"no grant allows nothing", Identity{Principal: "token/1"}, "a", "b", true},
		{"a worker of all namespaces", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: access.Everywhere}}}, "a", "b", false},
		{"no worker", Identity{Grants: access.Grants{{Role: access.Submitter, Namespace: "a"}, {Role: access.Operator, Namespace: "a"}}}, "a", "b", true},
		{"its namespace", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: "a"}, {Role: access.Worker, Namespace: "b"}}}, "b", "q", false},
		{"another namespace", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: "a"}, {Role: access.Worker, Namespace: "b"}}}, "c", "q", true},
		{"its queue", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: "a", Queues: []string{"q"}}}}, "a", "q", false},
		{"another queue", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: "a", Queues: []string{"q"}}}}, "a", "r", true},
		{"a name that only begins alike", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: "a"}}}, "ab", "q", true},
		{"no name at all", Identity{Grants: access.Grants{{Role: access.Worker, Namespace: "a"}}}, "", "", true},
	} {
		refusal := c.id.MayServe(c.ns, c.q)
		if (refusal != nil) != c.forbid || refusal != nil && refusal.Code != schema.Forbidden {
			t.Errorf("%s: %v", c.name, refusal)
		}
	}
}

func TestARestrictedIdentityRegistersOnlyWhereItMay(t *testing.T) {
	queue := func(ns, name string) func(*pb.Query) (*pb.Answer, error) {
		return func(q *pb.Query) (*pb.Answer, error) {
			return &pb.Answer{Body: &pb.Answer_Queue{Queue: &pb.QueueView{Namespace: ns, Queue: &pb.QueueRow{Name: name, Id: q.GetGetQueue().GetId()}}}}, nil
		}
	}
	for _, c := range []struct {
		name   string
		lookup func(*pb.Query) (*pb.Answer, error)
		want   schema.Code
	}{
		{"its own", queue("mine", "q"), ""},
		{"another's", queue("theirs", "q"), schema.Forbidden},
		{"none", func(*pb.Query) (*pb.Answer, error) { return &pb.Answer{Code: "not_found"}, nil }, schema.NotFound},
		{"nobody to ask", func(*pb.Query) (*pb.Answer, error) { return nil, errors.New("broken") }, schema.Unavailable},
		{"an empty answer", func(*pb.Query) (*pb.Answer, error) { return &pb.Answer{}, nil }, schema.Forbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, g *gateway) {
				g.state.set(func(b *backend) { b.lookup = c.lookup })
				h := g.Attach(new(conn), Identity{Principal: "token/1", Grants: access.Grants{{Role: access.Worker, Namespace: "mine"}}, AppID: "app"}, "")
				defer h.Close()
				_, refusal := h.Register(t.Context(), ident("m"), aHello)
				if got := code(refusal); got != c.want {
					t.Fatalf("refusal %q, want %q", got, c.want)
				}
				registered := commands(g.state, func(c *pb.Command) (*pb.Command, bool) { return c, c.GetRegisterSession() != nil })
				if (len(registered) == 1) != (c.want == "") {
					t.Fatalf("%d registrations were submitted", len(registered))
				}
				if c.want == "" {
					want := &pb.Caller{Principal: "worker/" + instanceID.String(), Roles: []string{"worker@mine"}, AppId: "app"}
					if !proto.Equal(registered[0].GetCaller(), want) {
						t.Errorf("caller %v", registered[0].GetCaller())
					}
				}
			})
		})
	}
}

func code(e *schema.Error) schema.Code {
	if e == nil {
		return ""
	}
	return e.Code
}
