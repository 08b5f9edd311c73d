package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// knowing answers as the cluster does: with the capacity that it has from now on.
func knowing(c *pb.Command) *pb.Result {
	switch body := c.GetBody().(type) {
	case *pb.Command_RegisterSession:
		r := succeed(c)
		r.GetSession().Capacity = body.RegisterSession.GetCapacity()
		return r
	case *pb.Command_SetCapacity:
		return &pb.Result{Body: &pb.Result_Session{Session: &pb.SessionResult{
			Capacity: body.SetCapacity.GetCapacity(), Draining: body.SetCapacity.GetDrain(), LeaseDurationMs: int64(body.SetCapacity.GetSequence()),
		}}}
	}
	return nil
}

// told are the sizes of the calls that set capacities.
func (b *backend) told() (sizes []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		if call[0].GetSetCapacity() != nil {
			sizes = append(sizes, len(call))
		}
	}
	return sizes
}

func TestHeartbeatsOfAllWorkersGoTogether(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		g.state.set(func(b *backend) { b.answer = knowing })
		var all []*Handle
		for i := range 5 {
			hello := aHello
			hello.InstanceID = ident(fmt.Sprint("instance ", i))
			h, _ := g.worker(t, hello)
			defer h.Close()
			all = append(all, h)
		}
		began := time.Now()
		sequences := make([]int64, len(all))
		for i, h := range all {
			time.Sleep(10 * time.Millisecond) // in a bubble
			h.SetCapacity(t.Context(), ident("m"), uint64(i+1), aHello.Capacity, false, func(r *pb.Result, refusal *schema.Error) {
				if refusal != nil {
					t.Error(refusal)
				}
				sequences[i] = r.GetSession().GetLeaseDurationMs()
			})
			synctest.Wait()
		}
		equal(t, "calls before the second is over", g.state.told(), nil)
		time.Sleep(time.Until(began.Add(gatherFor))) // in a bubble
		synctest.Wait()
		equal(t, "calls", g.state.told(), []int{5})
		for i := range all {
			if sequences[i] != int64(i+1) {
				t.Errorf("worker %d has the answer to %d", i, sequences[i])
			}
		}
	})
}

// What changes something is not kept waiting, and does not overtake.
func TestACapacityThatChangesSomethingGoesAtOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		g.state.set(func(b *backend) { b.answer = knowing })
		h, _ := g.worker(t, aHello)
		defer h.Close()
		began := time.Now()
		var got answers
		h.SetCapacity(t.Context(), ident("m1"), 1, 7, false, got.to("more"))
		h.SetCapacity(t.Context(), ident("m2"), 2, 7, true, got.to("drain"))
		equal(t, "answers", got.all(), []string{"more ok", "drain ok"})
		if d := time.Since(began); d != 0 {
			t.Errorf("that took %v", d)
		}
		h.SetCapacity(t.Context(), ident("m3"), 3, 7, true, got.to("heartbeat"))
		h.SetCapacity(t.Context(), ident("m4"), 4, 8, false, got.to("fewer"))
		h.Start(t.Context(), ident("m5"), refOf("a"), got.to("start"))
		synctest.Wait()
		got.mu.Lock()
		now := slices.Clone(got.got)
		got.mu.Unlock()
		equal(t, "answers at once", now[2:], []string{"heartbeat ok", "fewer ok", "start ok"})
		sequences := commands(g.state, func(c *pb.Command) (uint64, bool) {
			return c.GetSetCapacity().GetSequence(), c.GetSetCapacity() != nil
		})
		equal(t, "sequences", sequences, []uint64{1, 2, 3, 4})
	})
}

func TestAHeartbeatThatWaitsKeepsItsPlace(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		g.state.set(func(b *backend) { b.answer = knowing })
		h, _ := g.worker(t, aHello)
		defer h.Close()
		var got answers
		h.SetCapacity(t.Context(), ident("m1"), 1, aHello.Capacity, false, got.to("heartbeat"))
		synctest.Wait()
		h.SetCapacity(t.Context(), ident("m2"), 2, 9, false, got.to("more"))
		h.Start(t.Context(), ident("m3"), refOf("a"), got.to("start"))
		equal(t, "answers", got.all(), []string{"start ok", "heartbeat ok", "more ok"})
	})
}

func TestAFailureIsToldToAllWhoseHeartbeatsItMet(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		g.state.set(func(b *backend) { b.answer = knowing })
		var got answers
		ctx, leave := context.WithCancel(t.Context())
		for i := range 3 {
			hello := aHello
			hello.InstanceID = ident(fmt.Sprint("instance ", i))
			h, _ := g.worker(t, hello)
			defer h.Close()
			h.SetCapacity(ctx, ident("m"), 1, aHello.Capacity, false, got.to("heartbeat"))
		}
		g.state.set(func(b *backend) {
			b.before = func(ctx context.Context, cmds []*pb.Command) error {
				if cmds[0].GetSetCapacity() == nil {
					return nil
				}
				if ctx.Err() != nil {
					t.Error("the end of one caller ended the call of all")
				}
				return errors.New("lost")
			}
		})
		synctest.Wait()
		leave() // of whoever waits for the others: it is not waited for longer
		equal(t, "answers", got.all(), []string{"heartbeat result_unknown", "heartbeat result_unknown", "heartbeat result_unknown"})
	})
}

func TestManyHeartbeatsDoNotWaitLonger(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		g.state.set(func(b *backend) { b.answer = knowing })
		var got answers
		began := time.Now()
		for i := range gatheredMax + 1 {
			hello := aHello
			hello.InstanceID = ident(fmt.Sprint("instance ", i))
			h, _ := g.worker(t, hello)
			defer h.Close()
			h.SetCapacity(t.Context(), ident("m"), 1, aHello.Capacity, false, got.to("heartbeat"))
		}
		synctest.Wait()
		equal(t, "calls at once", g.state.told(), []int{gatheredMax})
		got.all()
		equal(t, "calls", g.state.told(), []int{gatheredMax, 1})
		if d := time.Since(began); d > gatherFor {
			t.Errorf("that took %v", d)
		}
	})
}

func TestGatewaysReportAtTheSameMoments(t *testing.T) {
	t.Parallel()
	for _, second := range []float64{0, 0.001, 1.2, 1.999, 2} {
		now := time.Date(2026, 5, 4, 3, 2, 0, 0, time.UTC).Add(time.Duration(second * float64(time.Second)))
		wait := untilBeat(now, 2*time.Second)
		if wait <= 0 || wait > 2*time.Second || now.Add(wait).Second()%2 != 0 || now.Add(wait).Nanosecond() != 0 {
			t.Errorf("at %v the next report is in %v", now, wait)
		}
	}
}
