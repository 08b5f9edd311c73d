package duty

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// fakeMachine holds what is true: attempts by id, each with the gateway that
// holds its session.
type fakeMachine struct {
	mu       sync.Mutex
	open     map[fsm.ID]fsm.Effect
	payload  int
	lookups  int
	listings int
}

func newMachine() *fakeMachine { return &fakeMachine{open: make(map[fsm.ID]fsm.Effect)} }

func (m *fakeMachine) Delivery(e fsm.Effect) *pb.Delivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookups++
	if e.Kind == fsm.EffectClose {
		return &pb.Delivery{GatewayId: e.GatewayID, SessionId: e.SessionID[:], Body: &pb.Delivery_Close{Close: &pb.CloseConnection{Code: e.Code}}}
	}
	now, ok := m.open[e.AttemptID]
	if !ok || now.Kind != e.Kind {
		return nil
	}
	return &pb.Delivery{GatewayId: now.GatewayID, SessionId: now.SessionID[:], Body: &pb.Delivery_Assign{Assign: &pb.AssignTask{
		AttemptId: e.AttemptID[:],
		Task:      &pb.TaskView{Payload: make([]byte, m.payload)},
	}}}
}

func (m *fakeMachine) Undelivered() []fsm.Effect {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listings++
	var all []fsm.Effect
	for _, e := range m.open {
		all = append(all, e)
	}
	return all
}

// lease makes an attempt LEASED; start ends its being undelivered.
func (m *fakeMachine) lease(e fsm.Effect) fsm.Effect {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[e.AttemptID] = e
	return e
}

func (m *fakeMachine) start(id fsm.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, id)
}

// fakeCarrier writes down what came where and when.
type fakeCarrier struct {
	mu     sync.Mutex
	birth  time.Time
	said   map[string][]string // gateway -> "attempt@seconds"
	counts map[string]int
	heard  map[fsm.ID]bool
	batch  []int
	block  map[string]chan struct{}
	fail   map[string]bool
	active int
}

func newCarrier() *fakeCarrier {
	return &fakeCarrier{birth: time.Now(), said: map[string][]string{}, counts: map[string]int{}, heard: map[fsm.ID]bool{}, block: map[string]chan struct{}{}, fail: map[string]bool{}}
}

func (c *fakeCarrier) Carry(ctx context.Context, gateway string, batch []*pb.Delivery) error {
	c.mu.Lock()
	c.active++
	hold, fail := c.block[gateway], c.fail[gateway]
	c.batch = append(c.batch, len(batch))
	for _, d := range batch {
		c.counts[gateway]++
		id := d.GetAssign().GetAttemptId()
		if id == nil {
			id = d.GetSessionId()
		}
		c.heard[fsm.ID(id)] = true
		c.said[gateway] = append(c.said[gateway], fmt.Sprintf("%d@%.2f", id[0], time.Since(c.birth).Seconds()))
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.active--
		c.mu.Unlock()
	}()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fail {
		return errors.New("gateway is gone")
	}
	return nil
}

func (c *fakeCarrier) log(gateway string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.said[gateway])
}

func (c *fakeCarrier) count(gateway string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[gateway]
}

func assign(n byte, gateway string, offer time.Duration) fsm.Effect {
	return fsm.Effect{Kind: fsm.EffectAssign, GatewayID: gateway, AttemptID: fsm.ID{n}, SessionID: fsm.ID{100}, OfferUntil: offer.Microseconds()}
}

type office struct {
	*Courier
	machine *fakeMachine
	carrier *fakeCarrier
	leave   func()
}

// takeOffice runs a courier in the current synctest bubble until the test ends.
func takeOffice(t *testing.T, m *fakeMachine) *office {
	t.Helper()
	carrier := newCarrier()
	c, err := NewCourier(m, carrier, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o := &office{Courier: c, machine: m, carrier: carrier}
	o.leave = o.enter(t)
	t.Cleanup(o.leave)
	synctest.Wait()
	return o
}

func (o *office) enter(t *testing.T) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := o.Run(ctx, 1); err != nil {
			t.Errorf("duty ended with %v", err)
		}
		o.carrier.mu.Lock()
		defer o.carrier.mu.Unlock()
		if o.carrier.active != 0 {
			t.Errorf("duty returned with %d hand-overs in progress", o.carrier.active)
		}
	})
	return func() { cancel(); wg.Wait() }
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func TestAnOfferIsRepeatedAtAThirdAndTwoThirds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		e := o.machine.lease(assign(1, "a", 9*time.Second))
		o.Offer([]fsm.Effect{e})
		time.Sleep(8 * time.Second)
		if got := o.carrier.log("a"); got != "[1@0.00 1@3.00 1@6.00]" {
			t.Errorf("said %s", got)
		}
		o.machine.start(fsm.ID{1})
		time.Sleep(time.Minute)
		if got := o.carrier.count("a"); got != 3 {
			t.Errorf("said %d times, the last after the start", got)
		}
		s := o.Stats()
		if s.Carried != 3 || s.Repeated != 2 || s.Tracked != 0 || s.Obsolete != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestALongOfferIsRepeatedEveryFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "a", 2*time.Minute))})
		time.Sleep(16 * time.Second)
		if got := o.carrier.log("a"); got != "[1@0.00 1@5.00 1@10.00 1@15.00]" {
			t.Errorf("said %s", got)
		}
	})
}

func TestACancelIsRepeatedUntilTheAttemptHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.Offer([]fsm.Effect{o.machine.lease(fsm.Effect{Kind: fsm.EffectCancel, GatewayID: "a", AttemptID: fsm.ID{1}})})
		time.Sleep(11 * time.Second)
		o.machine.start(fsm.ID{1})
		time.Sleep(time.Minute)
		if got := o.carrier.log("a"); got != "[1@0.00 1@5.00 1@10.00]" {
			t.Errorf("said %s", got)
		}
	})
}

func TestACancelOfAnOfferIsSaidOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.Offer([]fsm.Effect{o.machine.lease(fsm.Effect{Kind: fsm.EffectCancel, GatewayID: "a", AttemptID: fsm.ID{1}, Once: true})})
		time.Sleep(time.Minute)
		if got := o.carrier.log("a"); got != "[1@0.00]" {
			t.Errorf("said %s", got)
		}
		if s := o.Stats(); s.Tracked != 0 {
			t.Errorf("%d still in mind", s.Tracked)
		}
	})
}

func TestACloseIsSaidOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.Offer([]fsm.Effect{{Kind: fsm.EffectClose, GatewayID: "a", SessionID: fsm.ID{9}, Code: "session_superseded"}})
		time.Sleep(time.Minute)
		if got := o.carrier.log("a"); got != "[9@0.00]" {
			t.Errorf("said %s", got)
		}
		if s := o.Stats(); s.Tracked != 0 {
			t.Errorf("%d still in mind", s.Tracked)
		}
	})
}

func TestWhatIsNoLongerTrueIsNotSaid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.Offer([]fsm.Effect{assign(1, "a", time.Second)})
		time.Sleep(time.Minute)
		if got := o.carrier.count("a"); got != 0 {
			t.Errorf("said %d times", got)
		}
	})
}

func TestOutOfOfficeNothingIsSaidAndNothingIsKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.leave()
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "a", time.Second))})
		time.Sleep(time.Minute)
		if got := o.carrier.count("a"); got != 0 {
			t.Errorf("said %d times", got)
		}
		if s := o.Stats(); s.Tracked != 0 || s.Routes != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestANewOfficeFindsWhatTheOldOneLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine()
		m.lease(assign(1, "a", 9*time.Second))
		m.lease(assign(2, "b", 9*time.Second))
		o := takeOffice(t, m)
		if o.carrier.log("a") != "[1@0.00]" || o.carrier.log("b") != "[2@0.00]" {
			t.Errorf("said %s and %s", o.carrier.log("a"), o.carrier.log("b"))
		}
		o.leave()
		t.Cleanup(o.enter(t))
		synctest.Wait()
		if o.carrier.count("a") != 2 {
			t.Errorf("the second office said it %d times in all", o.carrier.count("a"))
		}
	})
}

func TestASlowGatewayHoldsNobodyUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		hold := make(chan struct{})
		o.carrier.block["slow"] = hold
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "slow", time.Minute))})
		synctest.Wait()
		o.Offer([]fsm.Effect{o.machine.lease(assign(2, "slow", time.Minute)), o.machine.lease(assign(3, "fast", time.Minute))})
		synctest.Wait()
		if got := o.carrier.log("fast"); got != "[3@0.00]" {
			t.Errorf("the fast gateway heard %s", got)
		}
		close(hold)
		synctest.Wait()
		if got := o.carrier.log("slow"); got != "[1@0.00 2@0.00]" {
			t.Errorf("the slow gateway heard %s", got)
		}
	})
}

func TestAHungHandOverIsGivenUpAndRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.carrier.block["a"] = make(chan struct{}) // for ever
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "a", 9*time.Second))})
		time.Sleep(carryTimeout + time.Second)
		if got := o.carrier.count("a"); got != 2 {
			t.Errorf("tried %d times", got)
		}
		if s := o.Stats(); s.Failed != 1 || s.Carried != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestAFailedHandOverIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.carrier.fail["a"] = true
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "a", 9*time.Second))})
		time.Sleep(7 * time.Second)
		if got := o.carrier.log("a"); got != "[1@0.00 1@0.05 1@0.15 1@0.35 1@0.75 1@1.55 1@3.15 1@6.15]" {
			t.Errorf("tried %s", got)
		}
	})
}

// A gateway that has only just come is unknown to the leader until gossip
// arrives. Its first worker does not wait for the next repeat.
func TestAGatewayThatBecomesKnownIsToldAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.carrier.fail["a"] = true
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "a", 15*time.Second))})
		time.Sleep(500 * time.Millisecond)
		o.carrier.mu.Lock()
		o.carrier.fail["a"] = false
		o.carrier.mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		if got := o.carrier.log("a"); !strings.HasSuffix(got, " 1@0.75]") {
			t.Errorf("tried %s", got)
		}
	})
}

func TestNewsAboutAKnownAttemptIsSaidAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		e := o.machine.lease(assign(1, "a", 9*time.Second))
		o.Offer([]fsm.Effect{e})
		time.Sleep(time.Second)
		e.SessionID = fsm.ID{101} // the worker came back on another connection
		o.Offer([]fsm.Effect{o.machine.lease(e)})
		time.Sleep(4 * time.Second)
		if got := o.carrier.log("a"); got != "[1@0.00 1@1.00 1@4.00]" {
			t.Errorf("said %s", got)
		}
	})
}

func TestAFullRouteDropsHintsAndFindsThemAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		hold := make(chan struct{})
		o.carrier.block["a"] = hold
		const extra = 10
		effects := make([]fsm.Effect, routeMost+extra)
		for i := range effects {
			effects[i] = fsm.Effect{Kind: fsm.EffectAssign, GatewayID: "a",
				AttemptID: fsm.ID{byte(i), byte(i >> 8), byte(i >> 16), 1}, OfferUntil: time.Minute.Microseconds()}
			o.machine.lease(effects[i])
		}
		o.Offer(effects)
		if s := o.Stats(); s.Tracked != routeMost || s.Overflows != extra {
			t.Fatalf("stats %+v", s)
		}
		// The first ones start, which makes room.
		close(hold)
		for i := range routeMost / 2 {
			o.machine.start(effects[i].AttemptID)
		}
		time.Sleep(30 * time.Second)
		o.carrier.mu.Lock()
		defer o.carrier.mu.Unlock()
		for _, e := range effects[routeMost/2:] {
			if !o.carrier.heard[e.AttemptID] {
				t.Fatalf("attempt %x was never said", e.AttemptID)
			}
		}
		want := len(effects) - routeMost/2
		if s := o.Stats(); s.Tracked != want {
			t.Errorf("%d in mind, want %d", s.Tracked, want)
		}
	})
}

func TestBatchesAreBoundedInCountAndBytes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine()
		o := takeOffice(t, m)
		var many []fsm.Effect
		for i := range 3 * batchMost {
			e := assign(0, "a", time.Minute)
			e.AttemptID = fsm.ID{1, byte(i), byte(i >> 8)}
			many = append(many, m.lease(e))
		}
		o.Offer(many)
		synctest.Wait()
		for _, n := range o.carrier.batch {
			if n > batchMost {
				t.Errorf("a batch of %d", n)
			}
		}
		if got := o.carrier.count("a"); got != len(many) {
			t.Errorf("%d said, want %d", got, len(many))
		}

		m.mu.Lock()
		m.payload = batchBytes / 3
		m.mu.Unlock()
		o.carrier.batch = nil
		var large []fsm.Effect
		for i := range 8 {
			large = append(large, m.lease(assign(200+byte(i), "b", time.Minute)))
		}
		o.Offer(large)
		synctest.Wait()
		if got := fmt.Sprint(o.carrier.batch); got != "[2 2 2 2]" {
			t.Errorf("batches of %s", got)
		}
	})
}

func TestRoutesWithoutWorkAreGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		o.Offer([]fsm.Effect{o.machine.lease(assign(1, "a", time.Second)), o.machine.lease(assign(2, "b", time.Second))})
		synctest.Wait()
		o.machine.start(fsm.ID{1})
		time.Sleep(sweepEvery + time.Second)
		if s := o.Stats(); s.Routes != 1 {
			t.Errorf("%d routes, want the busy one", s.Routes)
		}
		before := o.carrier.count("a")
		o.Offer([]fsm.Effect{o.machine.lease(assign(3, "a", time.Second))})
		synctest.Wait()
		if got := o.carrier.count("a"); got != before+1 {
			t.Error("a gateway that came back was not told")
		}
	})
}

func TestOffersFromManySidesLoseNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := takeOffice(t, newMachine())
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 200 {
					e := assign(0, fmt.Sprint(g), time.Minute)
					e.AttemptID = fsm.ID{byte(g), byte(i)}
					o.Offer([]fsm.Effect{o.machine.lease(e)})
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		for g := range 4 {
			if got := o.carrier.count(fmt.Sprint(g)); got != 200 {
				t.Errorf("gateway %d heard %d", g, got)
			}
		}
	})
}

func TestACourierNeedsItsParts(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	for name, make := range map[string]func() (*Courier, error){
		"source":  func() (*Courier, error) { return NewCourier(nil, newCarrier(), logger) },
		"carrier": func() (*Courier, error) { return NewCourier(newMachine(), nil, logger) },
		"logger":  func() (*Courier, error) { return NewCourier(newMachine(), newCarrier(), nil) },
	} {
		if _, err := make(); err == nil {
			t.Errorf("a courier without its %s was made", name)
		}
	}
}
