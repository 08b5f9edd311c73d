package session

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func TestADeliveryGoesToItsSessionWithASecret(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, told := g.worker(t, aHello)
		defer h.Close()
		g.Deliver([]*pb.Delivery{
			assignment(sessionID, instanceID, "a"),
			{GatewayId: gatewayID, SessionId: idBytes(sessionID), Body: &pb.Delivery_Cancel{Cancel: &pb.CancelAttempt{AttemptId: idBytes(ident("a"))}}},
			assignment(sessionID, instanceID, "a"), // a repeat is passed on; the worker drops it
		})
		a := ident("a").String()
		equal(t, "told", told.told(), []string{"assign " + a, "cancel " + a, "assign " + a})
		for _, secret := range told.secrets {
			if !testKey.Check(ident("a"), 9, secret) {
				t.Error("the secret is not the attempt's")
			}
		}
		if n := g.Counters().Deliveries.Load(); n != 3 {
			t.Errorf("%d deliveries were counted", n)
		}
	})
}

func TestACancelGoesOnlyToWhoAskedForIt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		r := aHello
		r.CancellationNotifications = false
		h, told := g.worker(t, r)
		defer h.Close()
		g.Deliver([]*pb.Delivery{{GatewayId: gatewayID, SessionId: idBytes(sessionID),
			Body: &pb.Delivery_Cancel{Cancel: &pb.CancelAttempt{AttemptId: idBytes(ident("a"))}}}})
		equal(t, "told", told.told(), nil)
	})
}

func TestNothingIsSaidBeforeTheWelcome(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		told := new(conn)
		h := g.Attach(told, Anonymous, "")
		defer h.Close()
		if _, refusal := h.Register(t.Context(), ident("m"), aHello); refusal != nil {
			t.Fatal(refusal)
		}
		var want []string
		for i := range heldMax + 10 {
			name := fmt.Sprint(i)
			g.Deliver([]*pb.Delivery{assignment(sessionID, instanceID, name)})
			if i < heldMax {
				want = append(want, "assign "+ident(name).String())
			}
		}
		equal(t, "told before the welcome", told.told(), nil)
		h.Welcomed()
		equal(t, "told after the welcome", told.told(), want)
		g.Deliver([]*pb.Delivery{assignment(sessionID, instanceID, "z")})
		equal(t, "told then", told.told(), append(want, "assign "+ident("z").String()))
	})
}

// The delivery of a commit may overtake the result of the registration that
// made the session.
func TestADeliveryThatOvertakesTheRegistrationWaitsForIt(t *testing.T) {
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
		told := new(conn)
		h := g.Attach(told, Anonymous, "")
		defer h.Close()
		registered := make(chan struct{})
		go func() {
			defer close(registered)
			if _, refusal := h.Register(t.Context(), ident("m"), aHello); refusal != nil {
				t.Error(refusal)
			}
		}()
		synctest.Wait()
		stranger := ident("stranger")
		g.Deliver([]*pb.Delivery{
			assignment(sessionID, instanceID, "a"),
			assignment(stranger, ident("i2"), "b"),
			assignment(sessionID, instanceID, "c"),
		})
		synctest.Wait()
		if n := len(commands(g.state, closes)); n != 0 {
			t.Fatalf("%d sessions were reported as closed while a registration may be theirs", n)
		}
		close(answer)
		<-registered
		h.Welcomed()
		equal(t, "told", told.told(), []string{"assign " + ident("a").String(), "assign " + ident("c").String()})
		synctest.Wait()
		all := commands(g.state, closes)
		if len(all) != 1 || !bytes.Equal(all[0].GetSession().GetSessionId(), idBytes(stranger)) {
			t.Errorf("reported as closed: %v; want the stranger", all)
		}
	})
}

func TestADeliveryWaitsOnlyForRegistrationsThatWereUnderWay(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		gates := map[schema.ID]chan struct{}{ident("m1"): make(chan struct{}), ident("m2"): make(chan struct{})}
		g.state.set(func(b *backend) {
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				if cmds[0].GetRegisterSession() != nil {
					<-gates[schema.ID(cmds[0].GetId())]
				}
				return nil
			}
		})
		register := func(message, instance string) (*Handle, chan struct{}) {
			r := aHello
			r.InstanceID = ident(instance)
			h := g.Attach(new(conn), Anonymous, "")
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = h.Register(t.Context(), ident(message), r)
			}()
			synctest.Wait()
			return h, done
		}
		h1, done1 := register("m1", "i1")
		defer h1.Close()
		g.Deliver([]*pb.Delivery{assignment(ident("lost"), ident("i3"), "a")})
		h2, done2 := register("m2", "i2")
		defer h2.Close()
		close(gates[ident("m1")])
		<-done1
		synctest.Wait()
		if n := len(commands(g.state, closes)); n != 1 {
			t.Errorf("%d sessions were reported as closed; the second registration began after the delivery", n)
		}
		close(gates[ident("m2")])
		<-done2
	})
}

func TestAnAssignmentToASessionThatIsNotHereClosesIt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		gone := ident("gone")
		g.Deliver([]*pb.Delivery{
			assignment(gone, instanceID, "a"),
			{GatewayId: gatewayID, SessionId: idBytes(ident("cancelled")), Body: &pb.Delivery_Cancel{Cancel: &pb.CancelAttempt{}}},
			{GatewayId: gatewayID, SessionId: idBytes(ident("closed")), Body: &pb.Delivery_Close{Close: &pb.CloseConnection{Code: "session_expired"}}},
			{GatewayId: gatewayID, SessionId: []byte("short"), Body: &pb.Delivery_Close{Close: &pb.CloseConnection{}}},
			{GatewayId: gatewayID, SessionId: idBytes(ident("no instance")), Body: &pb.Delivery_Assign{Assign: &pb.AssignTask{}}},
		})
		synctest.Wait()
		all := commands(g.state, func(c *pb.Command) (*pb.Command, bool) { return c, c.GetCloseSession() != nil })
		if len(all) != 1 {
			t.Fatalf("%d sessions were reported as closed, want one", len(all))
		}
		if !all[0].GetCloseSession().GetUndeliverable() {
			t.Error("that work came for it was not reported")
		}
		s := all[0].GetCloseSession().GetSession()
		if !bytes.Equal(s.GetSessionId(), idBytes(gone)) || !bytes.Equal(s.GetInstanceId(), idBytes(instanceID)) || !bytes.Equal(all[0].GetNamespaceId(), idBytes(namespaceID)) {
			t.Errorf("reported %v", all[0])
		}
		if n := g.Counters().Undeliverable.Load(); n != 4 {
			t.Errorf("%d undeliverable ones were counted, want 4", n)
		}
	})
}

// Another gateway's session must never be closed from here.
func TestADeliveryForAnotherGatewayIsDropped(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		d := assignment(ident("elsewhere"), instanceID, "a")
		d.GatewayId = "n2"
		g.Deliver([]*pb.Delivery{d})
		time.Sleep(time.Second)
		if n := len(commands(g.state, closes)); n != 0 {
			t.Errorf("%d sessions were reported as closed", n)
		}
	})
}

func TestASupersededSessionIsClosedAndNotReported(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, told := g.worker(t, aHello)
		told.onClose = h.Leave // as a surface does
		g.Deliver([]*pb.Delivery{{GatewayId: gatewayID, SessionId: idBytes(sessionID),
			Body: &pb.Delivery_Close{Close: &pb.CloseConnection{Code: "session_superseded"}}}})
		g.Deliver([]*pb.Delivery{assignment(sessionID, instanceID, "late")})
		h.Close()
		equal(t, "told", told.told(), []string{"close session_superseded"})
		synctest.Wait()
		// The late assignment is the leader's mistake about a session that is
		// gone, so that one is reported; the supersession is not.
		if n := len(commands(g.state, closes)); n != 1 {
			t.Errorf("%d sessions were reported as closed", n)
		}
	})
}
