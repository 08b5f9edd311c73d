package session

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func TestTheGatewayReportsItselfEveryTwoSeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		defer h.Close()
		g.state.set(func(b *backend) { b.index = 40 })
		time.Sleep(10*time.Second + 1)
		all := commands(g.state, reports)
		if len(all) != 6 {
			t.Fatalf("%d reports in ten seconds, want 6", len(all))
		}
		if first := all[0]; len(first.GetInShort().GetSilentMs()) != 0 || first.GetAppliedIndex() != 5 {
			t.Errorf("the first report is %v", first)
		}
		for _, r := range all {
			if r.GetGatewayId() != gatewayID || !bytes.Equal(r.GetIncarnation(), idBytes(g.Incarnation())) || r.GetLeaving() {
				t.Errorf("report %v is not this gateway's", r)
			}
		}
		last := all[5]
		if last.GetAppliedIndex() != 40 || len(last.GetInShort().GetSilentMs()) != 1 {
			t.Fatalf("the last report is %v", last)
		}
		s := g.list(40, time.Now()).GetSessions()[0]
		if !bytes.Equal(s.GetSessionId(), idBytes(sessionID)) || s.GetEpoch() != 7 ||
			!bytes.Equal(s.GetInstanceId(), idBytes(instanceID)) || !bytes.Equal(s.GetNamespaceId(), idBytes(namespaceID)) {
			t.Errorf("it lists %v", s)
		}
	})
}

func TestAGatewayThatLeavesSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		state := &backend{}
		hub, err := NewHub(Config{GatewayID: gatewayID, Backend: state, LeaseKey: testKey, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { hub.Run(ctx); close(over) }()
		synctest.Wait()
		start := time.Now()
		cancel()
		<-over
		if took := time.Since(start); took != 0 {
			t.Errorf("Run returned after %s", took)
		}
		all := commands(state, reports)
		if last := all[len(all)-1]; !last.GetLeaving() {
			t.Errorf("the last report is %v", last)
		}
		if _, refusal := hub.Attach(new(conn), Anonymous, "").Register(t.Context(), ident("m"), aHello); refusal == nil || refusal.Code != schema.Unavailable {
			t.Errorf("a registration after that: %v, want unavailable", refusal)
		}
	})
}

// Without an answer to the last report Run must still return.
func TestAGatewayLeavesEvenIfNobodyListens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		state := &backend{before: func(ctx context.Context, _ []*pb.Command) error {
			<-ctx.Done()
			return schema.Errorf(schema.NoLeader, "no leader")
		}}
		hub, err := NewHub(Config{GatewayID: gatewayID, Backend: state, LeaseKey: testKey, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		hub.Run(ctx)
		if took := time.Since(start); took > time.Minute+2*time.Second {
			t.Errorf("Run returned after %s", took)
		}
		// A report that is not answered gives way to the next.
		if n := hub.Counters().Reports.Load(); n < 29 {
			t.Errorf("%d reports were tried in a minute", n)
		}
		if hub.Counters().ReportsFailed.Load() != hub.Counters().Reports.Load() {
			t.Error("failures were not counted")
		}
	})
}

func TestARegistrationWaitsUntilTheClusterKnowsTheGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		state := &backend{answer: func(c *pb.Command) *pb.Result {
			if c.GetReportGateway() != nil {
				return &pb.Result{Code: string(schema.NoLeader)}
			}
			return nil
		}}
		hub, err := NewHub(Config{GatewayID: gatewayID, Backend: state, LeaseKey: testKey, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { hub.Run(ctx); close(over) }()
		defer func() { cancel(); <-over }()

		h := hub.Attach(new(conn), Anonymous, "")
		defer h.Close()
		if _, refusal := h.Register(ctx, ident("m"), aHello); refusal == nil || refusal.Code != schema.Unavailable {
			t.Errorf("before a report was answered: %v, want unavailable", refusal)
		}
		go func() {
			time.Sleep(3 * time.Second)
			state.set(func(b *backend) { b.answer = nil })
		}()
		start := time.Now()
		if _, refusal := h.Register(ctx, ident("m"), aHello); refusal != nil {
			t.Errorf("with the report answered meanwhile: %v", refusal)
		}
		if waited := time.Since(start); waited < 3*time.Second || waited > 5*time.Second {
			t.Errorf("it waited %s", waited)
		}
	})
}

// The commit of a registration is seen in AppliedIndex before its result
// reaches the gateway. A report made in between would say that the session,
// which is old enough to be listed, is missing.
func TestAReportDoesNotSpeakAboutARegistrationUnderWay(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		answered := make(chan struct{})
		g.state.set(func(b *backend) {
			b.before = func(_ context.Context, cmds []*pb.Command) error {
				if cmds[0].GetRegisterSession() != nil {
					g.state.set(func(b *backend) { b.index = 7 }) // committed at 7
					<-answered
				}
				return nil
			}
		})
		h := g.Attach(new(conn), Anonymous, "")
		registered := make(chan struct{})
		go func() {
			defer close(registered)
			if _, refusal := h.Register(t.Context(), ident("m"), aHello); refusal != nil {
				t.Error(refusal)
			}
		}()
		time.Sleep(3 * time.Second)
		all := commands(g.state, reports)
		if last := all[len(all)-1]; last.GetAppliedIndex() != 5 || len(last.GetInShort().GetSilentMs()) != 0 {
			t.Errorf("the report says %d with %d sessions; want 5, below the registration", last.GetAppliedIndex(), len(last.GetInShort().GetSilentMs()))
		}
		close(answered)
		<-registered
		time.Sleep(2 * time.Second) // at five seconds, a second after a report
		all = commands(g.state, reports)
		if last := all[len(all)-1]; last.GetAppliedIndex() != 7 || len(last.GetInShort().GetSilentMs()) != 1 {
			t.Errorf("the next report says %d with %d sessions", last.GetAppliedIndex(), len(last.GetInShort().GetSilentMs()))
		}
		h.Close()
	})
}

func TestARegistrationOfUnknownOutcomeIsLeftToTheReport(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		g.state.set(func(b *backend) {
			b.answer = func(c *pb.Command) *pb.Result {
				if c.GetRegisterSession() != nil {
					return &pb.Result{Code: string(schema.ResultUnknown)}
				}
				return nil
			}
		})
		h := g.Attach(new(conn), Anonymous, "")
		defer h.Close()
		if _, refusal := h.Register(t.Context(), ident("m"), aHello); refusal == nil || refusal.Code != schema.ResultUnknown {
			t.Fatal(refusal)
		}
		g.state.set(func(b *backend) { b.index, b.answer = 8, nil })
		time.Sleep(2*time.Second + 1)
		all := commands(g.state, reports)
		if last := all[len(all)-1]; last.GetAppliedIndex() != 8 || len(last.GetInShort().GetSilentMs()) != 0 {
			t.Errorf("the report is %v; it has to cover the lost registration", last)
		}
		if _, refusal := h.Register(t.Context(), ident("m"), aHello); refusal != nil {
			t.Errorf("the hello cannot be repeated: %v", refusal)
		}
	})
}

func TestWhatTheReportFindsGoneIsClosed(t *testing.T) {
	for _, c := range []struct{ code, want string }{
		{"session_superseded", "close session_superseded"},
		{"session_expired", "close session_expired"},
		{"something new", "close session_expired"},
	} {
		t.Run(c.code, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, g *gateway) {
				h, told := g.worker(t, aHello)
				defer h.Close()
				g.state.set(func(b *backend) {
					b.answer = func(cmd *pb.Command) *pb.Result {
						if cmd.GetReportGateway() == nil {
							return nil
						}
						return &pb.Result{Body: &pb.Result_Gateway{Gateway: &pb.GatewayResult{Gone: []*pb.GoneSession{
							{SessionId: idBytes(sessionID), Code: c.code}, {SessionId: idBytes(ident("unknown")), Code: c.code}, {},
						}}}}
					}
				})
				time.Sleep(4 * time.Second)
				equal(t, "told", told.told(), []string{c.want})
				h.Close()
				synctest.Wait()
				if n := len(commands(g.state, closes)); n != 0 {
					t.Errorf("%d sessions were reported as closed; the cluster knows", n)
				}
				if g.Counters().Sessions.Load() != 0 {
					t.Error("the session is still counted")
				}
			})
		})
	}
}

func TestASilentConnectionIsNeitherListedNorKept(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, told := g.worker(t, aHello)
		told.onClose = h.Leave
		told.mu.Lock()
		told.heard = time.Now().Add(-29 * time.Second)
		told.mu.Unlock()
		time.Sleep(time.Millisecond)
		if body := g.list(9, time.Now()); len(body.GetSessions()) != 1 {
			t.Error("it was heard 29 s ago and is not listed")
		}
		time.Sleep(2 * time.Second)
		equal(t, "told", told.told(), []string{"close session_expired"})
		all := commands(g.state, reports)
		if last := all[len(all)-1]; len(last.GetInShort().GetSilentMs()) != 0 {
			t.Error("it is listed")
		}
		synctest.Wait()
		if n := len(commands(g.state, closes)); n != 1 {
			t.Errorf("%d sessions were reported as closed, want it", n)
		}
		h.Close()
	})
}

// A report in short says of which sessions the gateway knows; when the state knows
// others, it is told at once which they are.
func TestTheListIsSentWhenTheStateAsksForIt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, told := g.worker(t, aHello)
		defer h.Close()
		newer, _ := g.worker(t, func() Registration { r := aHello; r.InstanceID[0]++; return r }())
		defer newer.Close()
		newer.session.Store(&session{id: ident("new"), epoch: 10, instance: ident("other"), namespace: namespaceID})
		told.mu.Lock()
		told.heard = time.Now().Add(-1500 * time.Millisecond)
		told.mu.Unlock()
		g.state.set(func(b *backend) {
			b.index = 9
			b.answer = func(cmd *pb.Command) *pb.Result {
				if cmd.GetReportGateway().GetInShort() == nil {
					return nil
				}
				return &pb.Result{Body: &pb.Result_Gateway{Gateway: &pb.GatewayResult{List: true}}}
			}
		})
		time.Sleep(2*time.Second + time.Millisecond)
		all := commands(g.state, reports)
		short, list := all[len(all)-2], all[len(all)-1]
		digest := pb.NewSessionsDigest()
		digest.Add(sessionID, 7)
		if !bytes.Equal(short.GetInShort().GetDigest(), digest.Sum()) || len(short.GetInShort().GetSilentMs()) != 1 || short.GetInShort().GetSilentMs()[0] < 1500 {
			t.Errorf("in short it is %v, want the session of epoch 7 alone", short)
		}
		if list.GetInShort() != nil || len(list.GetSessions()) != 2 {
			t.Errorf("the list is %v", list)
		}
	})
}

func TestReportsAreSorted(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		for i := range 20 {
			r := aHello
			r.InstanceID[0] = byte(i * 37)
			h, _ := g.worker(t, r)
			defer h.Close()
		}
		body := g.list(9, time.Now())
		if len(body.GetSessions()) != 20 || !slices.IsSortedFunc(body.GetSessions(), func(a, b *pb.SessionEntry) int {
			return bytes.Compare(a.GetInstanceId(), b.GetInstanceId())
		}) {
			t.Errorf("sessions: %v", body.GetSessions())
		}
	})
}

func TestAClosedConnectionIsReportedAtOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		h, _ := g.worker(t, aHello)
		if g.Counters().Sessions.Load() != 1 {
			t.Error("the session is not counted")
		}
		start := time.Now()
		h.Close()
		h.Close()
		synctest.Wait()
		all := commands(g.state, closes)
		if len(all) != 1 || time.Since(start) != 0 {
			t.Fatalf("%d sessions were reported as closed after %s", len(all), time.Since(start))
		}
		if s := all[0].GetSession(); !bytes.Equal(s.GetSessionId(), idBytes(sessionID)) || !bytes.Equal(s.GetInstanceId(), idBytes(instanceID)) {
			t.Errorf("reported %v", s)
		}
		if g.Counters().Sessions.Load() != 0 {
			t.Error("the session is still counted")
		}
	})
}

func TestSessionsThatCloseTogetherAreReportedTogether(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, g *gateway) {
		var handles []*Handle
		for i := range 1000 {
			r := aHello
			r.InstanceID[0], r.InstanceID[1] = byte(i), byte(i>>8)
			h, _ := g.worker(t, r)
			handles = append(handles, h)
		}
		g.state.set(func(b *backend) {
			b.calls = nil
			b.before = func(context.Context, []*pb.Command) error { time.Sleep(time.Millisecond); return nil }
		})
		for _, h := range handles {
			h.Close()
		}
		time.Sleep(time.Second)
		if n := len(commands(g.state, closes)); n != 1000 {
			t.Errorf("%d sessions were reported as closed", n)
		}
		if n := len(g.state.calls); n > 10 {
			t.Errorf("it took %d calls", n)
		}
	})
}

func TestAClosedSessionIsReportedAgainUntilAnswered(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails int // how often, before it is answered
		code  schema.Code
		tries int
	}{
		{"the leader comes back", 2, schema.NoLeader, 3},
		{"nobody knows whether it was done", 1, schema.ResultUnknown, 2},
		{"the cluster does not know the session", 9, schema.NotFound, 1},
		{"the instance has another session", 9, schema.SessionSuperseded, 1},
		{"there is no leader for long", 99, schema.NoLeader, closeTriesMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, g *gateway) {
				h, _ := g.worker(t, aHello)
				left := c.fails
				g.state.set(func(b *backend) {
					b.answer = func(cmd *pb.Command) *pb.Result {
						if cmd.GetCloseSession() == nil || left == 0 {
							return nil
						}
						left--
						return &pb.Result{Code: string(c.code)}
					}
				})
				h.Close()
				time.Sleep(time.Minute)
				if n := len(commands(g.state, closes)); n != c.tries {
					t.Errorf("reported %d times, want %d", n, c.tries)
				}
				if gaveUp := g.Counters().ClosesGivenUp.Load() == 1; gaveUp != (c.tries == closeTriesMax) {
					t.Errorf("given up: %v", gaveUp)
				}
			})
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := Config{GatewayID: "n1", Backend: &backend{}, LeaseKey: testKey, Logger: slog.New(slog.DiscardHandler)}
	if _, err := NewHub(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"GatewayID":   func(c *Config) { c.GatewayID = "" },
		"Backend":     func(c *Config) { c.Backend = nil },
		"LeaseKey":    func(c *Config) { c.LeaseKey = LeaseKey{} },
		"Logger":      func(c *Config) { c.Logger = nil },
		"ReportEvery": func(c *Config) { c.ReportEvery = -1 },
		"InFlightMax": func(c *Config) { c.InFlightMax = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := NewHub(bad); err == nil {
			t.Errorf("a config with a bad %s was accepted", name)
		}
	}
}
