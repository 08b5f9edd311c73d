package rpc

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func taskEvents(id string) []*pb.EventRow { return []*pb.EventRow{taskEvent(id)} }

// within bounds waits for what has to happen; it is not how long it takes.
const within = 30 * time.Second

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.After(within); !ok(); {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func running(t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
}

// gateway is a node without a replica that knows these voters.
func gateway(t *testing.T, m *members, voters ...string) (*Router, *Watch) {
	t.Helper()
	p, feed := peers(t, m, "secret"), NewFeed()
	live := func() []string { return voters }
	w, err := NewWatch(WatchConfig{Self: "g", Peers: p, Voters: live, Feed: feed, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRouter(Config{Self: "g", Peers: p, Voters: live, Watch: w, Feed: feed})
	if err != nil {
		t.Fatal(err)
	}
	running(t, feed.Run)
	running(t, w.Run)
	return r, w
}

// voter is a stand-in with a feed.
func voter(t *testing.T, id string, leads func() string) *standIn {
	t.Helper()
	n := &standIn{id: id, leads: leads, propose: answered, feed: NewFeed()}
	running(t, n.feed.Run)
	return n
}

func (n *standIn) publish(index uint64, id string) { n.feed.Publish(index, taskEvents(id)) }

// wakes waits for a wake-up.
func wakes(t *testing.T, wake <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-wake:
	case <-time.After(within):
		t.Fatalf("nobody was woken %s", what)
	}
}

func staleRead(t *testing.T, r *Router) string {
	t.Helper()
	a, err := r.Read(t.Context(), &pb.Query{Consistency: pb.Consistency_CONSISTENCY_STALE})
	if err != nil {
		t.Fatal(err)
	}
	return a.Message
}

func TestAGatewayIsFedByAVoterThatDoesNotLead(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	nodes := map[string]*standIn{}
	for _, id := range []string{"a", "b"} {
		nodes[id] = voter(t, id, leads)
		m.serve(t, nodes[id])
	}
	r, w := gateway(t, m, "a", "b")
	eventually(t, "a source", func() bool { return w.State().Source != "" })
	source := nodes[w.State().Source]
	if source.id != "b" {
		t.Errorf("the source is %s, which leads", source.id)
	}
	if s := w.State(); s.LeaderID != "a" || !s.Ready || s.Term != 3 {
		t.Errorf("the source says %+v", s)
	}
	mine, cancel := r.Subscribe([]byte("x"))
	defer cancel()
	other, cancelOther := r.Subscribe([]byte("y"))
	defer cancelOther()
	// A change between the caller's read and the moment the source knows of the
	// subscription would be lost, were the caller not woken at that moment.
	wakes(t, mine, "when the source had heard of the subscription")
	wakes(t, other, "when the source had heard of the subscription")
	source.publish(7, "x")
	wakes(t, mine, "by a change at the source")
	if got := r.AppliedIndex(); got < 7 {
		t.Errorf("woken before the index was known: %d", got)
	}
	if got := staleRead(t, r); got != source.id {
		t.Errorf("a stale read went to %s, but %s woke us", got, source.id)
	}
	all, cancelAll := r.Subscribe(nil)
	defer cancelAll()
	wakes(t, all, "when the source had heard of the subscription")
	source.publish(8, "z")
	wakes(t, all, "by any change")
	select {
	case <-other:
		t.Error("the watcher of y woke for others")
	default:
	}
	cancel()
	cancelOther()
	cancelAll()
	eventually(t, "the source forgets what nobody watches", func() bool {
		source.feed.mu.Lock()
		defer source.feed.mu.Unlock()
		return len(source.feed.topics) == 0
	})
	// What a command or a read says is newer than what the feed has said.
	if res, err := r.Submit(t.Context(), command("c")); err != nil || res[0].Index != 7 {
		t.Fatal(res, err)
	}
	nodes["a"].answer = &pb.Answer{Index: 99}
	if _, err := r.Read(t.Context(), &pb.Query{}); err != nil || r.AppliedIndex() != 99 {
		t.Errorf("after a read at 99: %v, %d", err, r.AppliedIndex())
	}
}

func TestWatchersOutliveTheirSource(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	nodes, stops := map[string]*standIn{}, map[string]func(){}
	for _, id := range []string{"a", "b", "c"} {
		nodes[id] = voter(t, id, leads)
		stops[id] = m.serve(t, nodes[id])
	}
	r, w := gateway(t, m, "a", "b", "c")
	mine, cancel := r.Subscribe([]byte("x"))
	defer cancel()
	wakes(t, mine, "when a source was found")
	for range 2 {
		old := w.State().Source
		stops[old]()
		eventually(t, "another source", func() bool { s := w.State().Source; return s != "" && s != old })
		wakes(t, mine, "when the source was lost: what happened in between is not known")
		now := nodes[w.State().Source]
		for { // wake-ups that are left of the change of source
			select {
			case <-mine:
				continue
			case <-time.After(10 * time.Millisecond):
			}
			break
		}
		now.publish(50, "x")
		wakes(t, mine, "by a change at the new source")
		if got := staleRead(t, r); got != now.id {
			t.Errorf("a stale read went to %s, the source is %s", got, now.id)
		}
	}
	if w.State().Source != "a" {
		t.Errorf("the leader is left, the source is %q", w.State().Source)
	}
}

func TestASourceThatKnowsNoLeaderIsLeft(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	nodes := map[string]*standIn{}
	for _, id := range []string{"b", "c"} {
		nodes[id] = voter(t, id, leads)
		m.serve(t, nodes[id])
	}
	_, w := gateway(t, m, "b", "c")
	eventually(t, "a source", func() bool { return w.State().Source != "" })
	old := nodes[w.State().Source]
	old.mu.Lock()
	old.unready = true
	old.mu.Unlock()
	eventually(t, "the other one", func() bool { s := w.State(); return s.Source != "" && s.Source != old.id && s.Ready })
}

func TestTheRouterHearsFromTheSourceWhoLeads(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	var mu sync.Mutex
	leader := "a"
	leads := func() string { mu.Lock(); defer mu.Unlock(); return leader }
	for _, id := range []string{"a", "b", "c"} {
		m.serve(t, voter(t, id, leads))
	}
	r, w := gateway(t, m, "a", "b", "c")
	for _, next := range []string{"b", "c", "a"} {
		mu.Lock()
		leader = next
		mu.Unlock()
		eventually(t, next+" known to lead", func() bool {
			h := r.hint.Load()
			return w.State().LeaderID == next && h != nil && *h == next
		})
	}
}

// blackHole passes bytes on until it is told to swallow them, as a path does
// whose other end has lost its power.
type blackHole struct {
	mu      sync.Mutex
	swallow bool
}

func (b *blackHole) Read(from net.Conn, p []byte) (int, error) {
	for {
		n, err := from.Read(p)
		b.mu.Lock()
		swallow := b.swallow
		b.mu.Unlock()
		if !swallow || err != nil {
			return n, err
		}
	}
}

func (b *blackHole) before(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	pass := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := b.Read(from, buf)
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				_ = to.Close()
				return
			}
		}
	}
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			all.Go(func() { pass(out, in) })
			all.Go(func() { pass(in, out) })
		}
	})
	return l.Addr().String()
}

func TestASourceBehindABlackHoleIsLeft(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	holes := map[string]*blackHole{}
	for _, id := range []string{"b", "c"} {
		m.serve(t, voter(t, id, leads))
		holes[id] = &blackHole{}
		m.addrs[id] = holes[id].before(t, m.addrs[id])
	}
	r, w := gateway(t, m, "b", "c")
	eventually(t, "a source", func() bool { return w.State().Source != "" })
	mine, cancel := r.Subscribe([]byte("x"))
	defer cancel()
	wakes(t, mine, "when the source had heard of the subscription")
	old := w.State().Source
	holes[old].mu.Lock()
	holes[old].swallow = true
	holes[old].mu.Unlock()
	// A read that is on its way there does not wait to the end of its time.
	ctx, cancelRead := context.WithTimeout(t.Context(), time.Hour)
	defer cancelRead()
	read := make(chan error, 1)
	go func() {
		_, err := r.Read(ctx, &pb.Query{Consistency: pb.Consistency_CONSISTENCY_STALE})
		read <- err
	}()
	eventually(t, "another source", func() bool { s := w.State().Source; return s != "" && s != old })
	wakes(t, mine, "when the source was lost")
	select {
	case err := <-read:
		if err != nil {
			t.Errorf("the read that was on its way: %v", err)
		}
	case <-time.After(within):
		t.Error("the read that was on its way still waits")
	}
}

func TestAnAnswerTooLargeForAMessageComesInParts(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	a := voter(t, "a", leads)
	m.serve(t, a)
	r, _ := gateway(t, m, "a")
	a.answer = &pb.Answer{Index: 3, Body: &pb.Answer_Tasks{Tasks: &pb.TaskList{}}}
	const tasks = 160 // 40 MiB, and a message is at most 32
	for range tasks {
		a.answer.GetTasks().Tasks = append(a.answer.GetTasks().Tasks, &pb.TaskView{Payload: bytes.Repeat([]byte("p"), 256<<10)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		got, err := r.Read(ctx, &pb.Query{})
		if err != nil || len(got.GetTasks().GetTasks()) != tasks || len(got.GetTasks().Tasks[tasks-1].Payload) != 256<<10 {
			t.Errorf("read: %v, %d tasks", err, len(got.GetTasks().GetTasks()))
		}
	})
	for range 3 {
		all.Go(func() {
			if _, err := r.Submit(ctx, command("c")); err != nil {
				t.Errorf("beside a large answer: %v", err)
			}
		})
	}
	all.Wait()
}

func TestABackupIsPassedOnWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	a := voter(t, "a", func() string { return "a" })
	m.serve(t, a)
	p := peers(t, m, "secret")
	a.backup = bytes.Repeat([]byte("backup"), 100_000)
	var got bytes.Buffer
	if err := p.To("a").Backup(t.Context(), &got); err != nil || !bytes.Equal(got.Bytes(), a.backup) {
		t.Errorf("%d of %d bytes: %v", got.Len(), len(a.backup), err)
	}
	if err := p.To("a").Backup(t.Context(), failing{}); err == nil {
		t.Error("a reader that failed was told of success")
	}
	a.backup = nil
	if err := p.To("a").Backup(t.Context(), io.Discard); code(err) != schema.Unavailable {
		t.Errorf("a backup that failed: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestANodeWithoutAReplicaIsNotWatched(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	m.serve(t, &standIn{id: "h", leads: func() string { return "a" }}) // another gateway
	_, w := gateway(t, m, "h")
	m.serve(t, voter(t, "h", func() string { return "a" })) // it was the name of a voter after all
	eventually(t, "a source", func() bool { return w.State().Source == "h" })
}

// One caller has time to wait for a node that does not answer; another, with
// less time, must not have to wait for the first.
func TestACallerWaitsNoLongerThanItHasTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := peers(t, &members{addrs: map[string]string{"a": l.Addr().String()}}, "secret")
	patient, give := context.WithTimeout(t.Context(), time.Hour)
	defer give()
	first := make(chan error, 1)
	go func() {
		for {
			if _, err := p.To("a").Propose(patient, command("x")); patient.Err() != nil {
				first <- err
				return
			}
			<-time.After(time.Millisecond)
		}
	}()
	eventually(t, "the first is opening", func() bool { return len(p.peer("a").lanes[laneCommands].opening) == 1 })
	hurried, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := p.To("a").Propose(hurried, command("y"))
		second <- err
	}()
	cancel()
	if err := <-second; !slices.Contains([]schema.Code{schema.DeadlineExpired, schema.NotLeader}, code(err)) {
		t.Errorf("the second: %v", err)
	}
	select {
	case err := <-first:
		t.Errorf("the first has given up: %v", err)
	default:
	}
	give()
	<-first
}

func TestConnectionsToNodesThatAreGoneAreGivenUp(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	m.serve(t, &standIn{id: "g1", leads: func() string { return "a" }})
	p := peers(t, m, "secret")
	if _, err := p.To("g1").Describe(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	have := func() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.nodes) }
	if err := p.Prune(); err != nil || have() != 1 {
		t.Errorf("a node that is there: %v, %d left", err, have())
	}
	m.mu.Lock()
	delete(m.addrs, "g1")
	m.mu.Unlock()
	// Once may be a mistake of gossip.
	if err := p.Prune(); err != nil || have() != 1 {
		t.Errorf("a node just lost: %v, %d left", err, have())
	}
	if err := p.Prune(); err != nil || have() != 0 {
		t.Errorf("a node that is gone: %v, %d left", err, have())
	}
}

// A leader that is paused acknowledges every packet and answers nothing. When
// another leads, whoever still waits for it learns that the answer is lost.
func TestNobodyWaitsForALeaderThatIsNoneAnyMore(t *testing.T) {
	t.Parallel()
	m := &members{addrs: map[string]string{}}
	var mu sync.Mutex
	leader := "a"
	leads := func() string { mu.Lock(); defer mu.Unlock(); return leader }
	arrived := make(chan struct{}, 1)
	a := &standIn{id: "a", leads: leads, propose: func(ctx context.Context, _ []*pb.Command) ([]*pb.Result, error) {
		arrived <- struct{}{}
		<-ctx.Done()
		return nil, schema.Errorf(schema.ResultUnknown, "too late")
	}}
	m.serve(t, a)
	m.serve(t, voter(t, "b", leads))
	r, _ := gateway(t, m, "a", "b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	first := make(chan error, 1)
	go func() {
		_, err := r.Submit(ctx, command("x"))
		first <- err
	}()
	<-arrived
	mu.Lock()
	leader = "b"
	mu.Unlock()
	select {
	case err := <-first:
		if code(err) != schema.ResultUnknown {
			t.Errorf("it was handed over, and the answer is %v", err)
		}
	case <-time.After(within):
		t.Fatal("it still waits")
	}
	if res, err := r.Submit(ctx, command("y")); err != nil || res[0].Message != "y" {
		t.Errorf("the next one: %v %v", res, err)
	}
}
