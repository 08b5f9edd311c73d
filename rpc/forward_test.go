package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// members is a Directory, and the cluster as the test has it.
type members struct {
	mu    sync.Mutex
	addrs map[string]string
}

func (m *members) RPCAddress(id string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.addrs[id]
	return a, ok
}

// standIn is a node of the test: it answers as its functions say.
type standIn struct {
	id      string
	leads   func() string
	propose func(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error)
	feed    *Feed      // nil: no replica
	unready bool       // it follows no leader that can serve
	answer  *pb.Answer // of every query, if set
	backup  []byte     // nil: it fails
	mu      sync.Mutex
	got     []*pb.Delivery
	reads   []uint64
}

func (n *standIn) Propose(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	if n.leads() != n.id {
		return nil, schema.Errorf(schema.NotLeader, "%s leads", n.leads())
	}
	return n.propose(ctx, cmds)
}
func (n *standIn) Query(_ context.Context, q *pb.Query) (*pb.Answer, error) {
	if q.Consistency != pb.Consistency_CONSISTENCY_STALE && n.leads() != n.id {
		return nil, schema.Errorf(schema.NotLeader, "%s leads", n.leads())
	}
	if n.answer != nil {
		return n.answer, nil
	}
	return &pb.Answer{Message: n.id}, nil
}
func (n *standIn) ReadIndex(context.Context) (uint64, error) {
	if n.leads() != n.id {
		return 0, schema.Errorf(schema.NotLeader, "%s leads", n.leads())
	}
	return 42, nil
}
func (n *standIn) ReadAt(_ context.Context, index uint64, _ *pb.Query) (*pb.Answer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads = append(n.reads, index)
	return &pb.Answer{Message: n.id}, nil
}
func (n *standIn) LeaderID() string { return n.leads() }
func (n *standIn) Describe(hash uint64) *pb.DescribeResponse {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &pb.DescribeResponse{NodeId: n.id, StateHash: []byte(fmt.Sprint(hash)), LeaderId: n.leads(), Ready: !n.unready, Term: 3}
}
func (n *standIn) Backup(_ context.Context, w io.Writer) error {
	if n.backup == nil {
		return schema.Errorf(schema.Unavailable, "no room for a snapshot")
	}
	_, err := w.Write(n.backup)
	return err
}
func (n *standIn) Remove(context.Context, string, bool) error {
	return schema.Errorf(schema.Conflict, "fewer than three would be left")
}
func (n *standIn) Transfer(context.Context, string) (string, error) { return "b", nil }
func (n *standIn) Deliver(d []*pb.Delivery) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, d...)
}

func token(t testing.TB, secret string) Token {
	t.Helper()
	k, err := NewToken([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// serve puts a stand-in on a port.
func (m *members) serve(t testing.TB, n *standIn) (stop func()) {
	t.Helper()
	s, err := NewServer(ServerConfig{
		Local: n, Inbox: n, Feed: n.feed, Token: token(t, "secret"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	m.mu.Lock()
	m.addrs[n.id] = l.Addr().String()
	m.mu.Unlock()
	var once sync.Once
	stop = func() { once.Do(func() { s.Close(); running.Wait() }) }
	t.Cleanup(stop)
	return stop
}

func peers(t testing.TB, m *members, secret string) *Peers {
	t.Helper()
	p, err := NewPeers(PeersConfig{Directory: m, Token: token(t, secret), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func answered(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	out := make([]*pb.Result, len(cmds))
	for i, c := range cmds {
		out[i] = &pb.Result{Message: string(c.Id), Index: 7}
	}
	return out, nil
}

func command(id string) []*pb.Command {
	return []*pb.Command{{Id: []byte(id), Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{}}}}
}

func code(err error) schema.Code {
	var e *schema.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestAFollowerForwardsToTheLeader(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	a := &standIn{id: "a", leads: leads, propose: answered}
	b := &standIn{id: "b", leads: leads}
	m.serve(t, a)
	r, err := NewRouter(Config{Self: "b", Replica: b, Peers: peers(t, m, "secret"), Feed: NewFeed()})
	if err != nil {
		t.Fatal(err)
	}
	// Many callers at once: answers find their own.
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			id := fmt.Sprintf("c%d", i)
			res, err := r.Submit(t.Context(), command(id))
			if err != nil || res[0].Message != id {
				t.Errorf("%s: %v %v", id, res, err)
			}
		})
	}
	all.Wait()
	// A fresh read asks the leader how far to be and reads here.
	ans, err := r.Read(t.Context(), &pb.Query{})
	if err != nil || ans.Message != "b" || len(b.reads) != 1 || b.reads[0] != 42 {
		t.Errorf("read %v %v at %v", ans, err, b.reads)
	}
}

func TestAGatewayWithoutAReplicaFindsTheLeaderByHints(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	var mu sync.Mutex
	leader := "a"
	leads := func() string { mu.Lock(); defer mu.Unlock(); return leader }
	for _, id := range []string{"a", "b", "c"} {
		m.serve(t, &standIn{id: id, leads: leads, propose: answered})
	}
	r, _ := gateway(t, m, "a", "b", "c")
	for _, next := range []string{"a", "b", "c", "a"} {
		mu.Lock()
		leader = next
		mu.Unlock()
		if res, err := r.Submit(t.Context(), command("x")); err != nil || res[0].Message != "x" {
			t.Fatalf("with %s leading: %v %v", next, res, err)
		}
		if ans, err := r.Read(t.Context(), &pb.Query{}); err != nil || ans.Message != next {
			t.Fatalf("a fresh read with %s leading: %v %v", next, ans, err)
		}
	}
	if ans, err := r.Read(t.Context(), &pb.Query{Consistency: pb.Consistency_CONSISTENCY_STALE}); err != nil || ans.Message == "" {
		t.Errorf("a stale read: %v %v", ans, err)
	}
}

// What was handed over and not answered is unknown; what was not is tried again.
func TestALostAnswerIsUnknownAndNeverNothing(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	arrived := make(chan struct{})
	a := &standIn{id: "a", leads: func() string { return "a" }}
	a.propose = func(ctx context.Context, _ []*pb.Command) ([]*pb.Result, error) {
		close(arrived)
		<-ctx.Done()
		return nil, schema.Errorf(schema.ResultUnknown, "too late")
	}
	stop := m.serve(t, a)
	p := peers(t, m, "secret")
	done := make(chan error, 1)
	go func() {
		_, err := p.To("a").Propose(t.Context(), command("x"))
		done <- err
	}()
	<-arrived
	stop()
	if err := <-done; code(err) != schema.ResultUnknown {
		t.Errorf("a call lost on its way back answers %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := p.To("a").Propose(ctx, command("y")); code(err) != schema.NotLeader && code(err) != schema.DeadlineExpired {
		t.Errorf("a call that could not be sent answers %v", err)
	}
	if _, err := p.To("nobody").Propose(t.Context(), command("z")); code(err) != schema.NotLeader {
		t.Errorf("a call to an unknown node answers %v", err)
	}
}

func TestACallersDeadlineTravels(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	left := make(chan time.Duration, 1)
	a := &standIn{id: "a", leads: func() string { return "a" }}
	a.propose = func(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
		at, _ := ctx.Deadline()
		left <- time.Until(at)
		return answered(ctx, cmds)
	}
	m.serve(t, a)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := peers(t, m, "secret").To("a").Propose(ctx, command("x")); err != nil {
		t.Fatal(err)
	}
	if d := <-left; d <= 0 || d > time.Minute {
		t.Errorf("the leader sees %s", d)
	}
}

func TestAStrangerIsTurnedAwayBeforeItIsRead(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	a := &standIn{id: "a", leads: func() string { return "a" }, propose: func(context.Context, []*pb.Command) ([]*pb.Result, error) {
		t.Error("a stranger's command arrived")
		return nil, nil
	}}
	m.serve(t, a)
	p := peers(t, m, "another secret")
	if _, err := p.To("a").Describe(t.Context(), 0); status.Code(errors.Unwrap(err)) != codes.Unauthenticated {
		t.Errorf("a unary call answers %v", err)
	}
	if _, err := p.To("a").Propose(t.Context(), command("x")); err == nil {
		t.Error("a stream was served")
	}
	if err := NewMailbox("b", a, p).Carry(t.Context(), "a", []*pb.Delivery{{}}); err == nil || len(a.got) != 0 {
		t.Errorf("a delivery answers %v", err)
	}
	if got := fmt.Sprintf("%v %+v %#v %s", token(t, "secret"), token(t, "secret"), token(t, "secret"), token(t, "secret")); got != "[redacted] [redacted] [redacted] [redacted]" {
		t.Errorf("the token prints as %s", got)
	}
}

func TestDeliveriesReachTheGatewayAndAreAcknowledged(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	g := &standIn{id: "g", leads: func() string { return "a" }}
	self := &standIn{id: "a", leads: func() string { return "a" }}
	stop := m.serve(t, g)
	box := NewMailbox("a", self, peers(t, m, "secret"))
	for i := range 3 {
		if err := box.Carry(t.Context(), "g", []*pb.Delivery{{GatewayId: "g", SessionId: []byte{byte(i)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := box.Carry(t.Context(), "a", []*pb.Delivery{{GatewayId: "a"}}); err != nil || len(self.got) != 1 {
		t.Errorf("a delivery to this node: %v, %d", err, len(self.got))
	}
	g.mu.Lock()
	if len(g.got) != 3 || g.got[2].SessionId[0] != 2 {
		t.Errorf("the gateway got %v", g.got)
	}
	g.mu.Unlock()
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := box.Carry(ctx, "g", []*pb.Delivery{{}}); err == nil {
		t.Error("a delivery to a dead gateway was taken")
	}
	// It is back, elsewhere: the next one finds it.
	m.serve(t, g)
	if err := box.Carry(t.Context(), "g", []*pb.Delivery{{}}); err != nil {
		t.Errorf("after its return: %v", err)
	}
}

func TestOperatorsCallsCarryTheirRefusal(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	m.serve(t, &standIn{id: "a", leads: func() string { return "a" }})
	p := peers(t, m, "secret")
	if err := p.To("a").Remove(t.Context(), "c", false); code(err) != schema.Conflict {
		t.Errorf("remove answers %v", err)
	}
	if id, err := p.To("a").Transfer(t.Context(), ""); err != nil || id != "b" {
		t.Errorf("transfer answers %q %v", id, err)
	}
	d, err := p.To("a").Describe(t.Context(), 9)
	if err != nil || d.NodeId != "a" || string(d.StateHash) != "9" {
		t.Errorf("describe answers %v %v", d, err)
	}
}
