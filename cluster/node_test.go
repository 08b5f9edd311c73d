package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/test/calm"
)

func TestALoneVoterServes(t *testing.T) {
	t.Parallel()
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			var outcomes atomic.Int64
			n := startNode(t, t.TempDir(), func(c *Config) {
				c.LogStore = kind
				c.OnApply = func(_ fsm.Outcome, leader bool) {
					if leader {
						outcomes.Add(1)
					}
				}
			}).lead(t)
			index := n.submit(t, "a")
			a, err := n.Query(t.Context(), &pb.Query{})
			if err != nil || a.Index < index || a.Term == 0 {
				t.Fatalf("answer %v, %v", a, err)
			}
			s := n.Status()
			if !s.Ready || s.State != "leader" || s.LeaderID != "n1" || s.AppliedIndex != index || s.CommitIndex != index ||
				len(s.Servers) != 1 || !s.Servers[0].Voter || s.DiskTotal == 0 {
				t.Fatalf("status %+v", s)
			}
			if d := time.Since(s.ClusterClock).Abs(); d > time.Minute {
				t.Fatalf("the cluster clock is %s off", d)
			}
			if outcomes.Load() != 2 { // the opening and the submission
				t.Fatalf("%d outcomes were told", outcomes.Load())
			}
			first := n.machine.entries()[0]
			open := first.Commands[0].GetOpenTerm()
			if open.GetNodeId() != "n1" || string(open.GetClusterId()) != "cluster one" || len(first.Commands) != 1 {
				t.Fatalf("the first entry is %v", first)
			}
		})
	}
}

func TestNothingIsServedBeforeTheOpeningEntryIsApplied(t *testing.T) {
	t.Parallel()
	opening, release := make(chan struct{}), make(chan struct{})
	var duty atomic.Bool
	dir := t.TempDir()
	m := openFake(t, filepath.Join(dir, "state"))
	m.before = func(e *pb.Entry) {
		if len(e.Commands) > 0 && e.Commands[0].GetOpenTerm() != nil {
			close(opening)
			<-release
		}
	}
	cfg := testConfig(t, dir)
	cfg.Machine = m
	cfg.Duties = []Duty{{Name: "watch", Run: func(ctx context.Context, _ uint64) error {
		duty.Store(true)
		<-ctx.Done()
		return nil
	}}}
	node, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{node, m, dir}
	defer n.shut(t)
	<-opening // committed, not applied
	_, err = n.Propose(t.Context(), []*pb.Command{command("a")})
	wantCode(t, err, schema.NotLeader)
	_, err = n.Query(t.Context(), &pb.Query{})
	wantCode(t, err, schema.NotLeader)
	if s := n.Status(); s.Ready || duty.Load() {
		t.Fatalf("ready %v, duty %v while the term is being opened", s.Ready, duty.Load())
	}
	stale, err := n.Query(t.Context(), &pb.Query{Consistency: pb.Consistency_CONSISTENCY_STALE})
	if err != nil || stale.Index != 0 {
		t.Fatalf("stale read: %v, %v", stale, err)
	}
	close(release)
	n.lead(t)
	n.submit(t, "a")
	eventually(t, "the duty runs", duty.Load)
}

func TestAfterAKillTheLogBringsTheStateBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			with := func(c *Config) { c.LogStore = kind }
			n := startNode(t, dir, with).lead(t)
			for i := range 20 {
				n.submit(t, fmt.Sprint("a", i))
			}
			// What the store had synced when the power went: an older copy.
			old := filepath.Join(dir, "old")
			if _, err := n.machine.Checkpoint(old); err != nil {
				t.Fatal(err)
			}
			for i := range 20 {
				n.submit(t, fmt.Sprint("b", i))
			}
			rows, hash, applied := n.machine.rows(t), n.machine.hash(), n.machine.AppliedIndex()
			n.shut(t)
			swap(t, old, filepath.Join(dir, "state"))

			n = startNode(t, dir, with).lead(t)
			entries := n.machine.entries()
			if len(entries) != 21 || entries[20].Commands[0].GetOpenTerm() == nil {
				t.Fatalf("%d entries were applied after the restart, want 20 and an opening", len(entries))
			}
			if got := n.machine.rows(t); !mapsEqual(got, rows) {
				t.Fatalf("%d rows after the restart, want %d", len(got), len(rows))
			}
			if n.counters.EntriesSkipped.Load() == 0 {
				t.Error("no entry was skipped although the copy held some")
			}
			if n.machine.AppliedIndex() <= applied || n.machine.hash() == hash {
				t.Error("the new opening left no trace")
			}
		})
	}
}

// The opening's time is read after the entries of earlier terms are applied,
// and these, being old, say nothing about how long the process was down.
func TestTheClockAfterAReplay(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ wall, atLeast time.Duration }{
		"goes on where the log ends if the wall clock was set back": {-time.Hour, 0},
		"is the wall clock if the process was down for an hour":     {time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			n := startNode(t, dir, nil).lead(t)
			old := filepath.Join(dir, "old")
			if _, err := n.machine.Checkpoint(old); err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				n.submit(t, fmt.Sprint(i))
			}
			last := n.machine.Clock()
			n.shut(t)
			swap(t, old, filepath.Join(dir, "state"))

			m := openFake(t, filepath.Join(dir, "state"))
			m.before = func(e *pb.Entry) {
				if e.Term == 2 {
					<-time.After(20 * time.Millisecond) // a slow replay
				}
			}
			cfg := testConfig(t, dir)
			cfg.Machine = m
			cfg.Wall = func() time.Time { return time.Now().Add(tc.wall) }
			node, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			again := &testNode{node, m, dir}
			defer again.shut(t)
			again.lead(t)
			entries := m.entries()
			if len(entries) != 11 {
				t.Fatalf("%d entries", len(entries))
			}
			if passed := time.Duration(entries[10].TimeUs-last) * time.Microsecond; passed < tc.atLeast {
				t.Fatalf("the term opens %s after the last entry, want at least %s", passed, tc.atLeast)
			}
		})
	}
}

// swap puts a directory in the place of another.
func swap(t *testing.T, from, to string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(to), os.Rename(from, to)); err != nil {
		t.Fatal(err)
	}
}

func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

func TestDutiesEndWithTheOfficeAndAreAwaited(t *testing.T) {
	t.Parallel()
	var running, most, runs atomic.Int64
	leads := make(chan bool)
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.leads = func(r *raft.Raft) <-chan bool {
			go func() { leads <- <-r.LeaderCh() }() // the election
			return leads
		}
		c.Duties = []Duty{{Name: "slow to end", Run: func(ctx context.Context, _ uint64) error {
			most.Store(max(most.Load(), running.Add(1)))
			runs.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // it takes its time, that is the point
			return ctx.Err()
		}}}
	}).lead(t)
	eventually(t, "the duty runs", func() bool { return running.Load() == 1 })

	// Leadership after leadership, as raft reports a loss that went by quickly.
	for range 3 {
		before, office := runs.Load(), n.office.Load()
		leads <- true
		eventually(t, "the duty runs again", func() bool {
			o := n.office.Load()
			return runs.Load() == before+1 && o != nil && o != office
		})
		n.submit(t, fmt.Sprint(before))
	}
	leads <- false
	eventually(t, "the office is over", func() bool { return n.office.Load() == nil && running.Load() == 0 })
	if most.Load() != 1 {
		t.Fatalf("%d of one duty ran at once", most.Load())
	}
	_, err := n.Propose(t.Context(), []*pb.Command{command("a")})
	wantCode(t, err, schema.NotLeader)
	openings := 0
	for _, e := range n.machine.entries() {
		for _, c := range e.Commands {
			if c.GetOpenTerm() != nil {
				openings++
			}
		}
	}
	if openings != 4 {
		t.Fatalf("%d opening entries, want 4", openings)
	}
}

func TestADutyThatFailsIsRunAgainAndReadinessShowsIt(t *testing.T) {
	t.Parallel()
	fail := make(chan struct{})
	var runs atomic.Int64
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Duties = []Duty{{Name: "flaky", Run: func(ctx context.Context, _ uint64) error {
			runs.Add(1)
			select {
			case <-ctx.Done():
				return nil
			case <-fail:
				return errors.New("it rained")
			}
		}}}
	}).lead(t)
	eventually(t, "all is well", func() bool { return n.Status().Ready })
	// It shows between a failure and the next run. Each pause is twice as long as the
	// one before, so however seldom this test is served, it sees one of them.
	failures := int64(0)
	eventually(t, "readiness shows it", func() bool {
		select {
		case fail <- struct{}{}:
			failures++
		default:
		}
		s := n.Status()
		return !s.Ready && strings.Contains(strings.Join(s.NotReady, ";"), "it rained")
	})
	eventually(t, "it runs again", func() bool { return runs.Load() == failures+1 && n.Status().Ready })
	for _, d := range n.Status().Duties {
		if d.Name == "flaky" && (int64(d.Restarts) != failures || d.LastError != "it rained" || !d.Running) {
			t.Fatalf("%+v", d)
		}
	}
}

// One duty of three fails as soon as it is started, again and again: the others go on,
// none runs twice at a time, and the end of the office finds all of them.
func TestADutyThatFailsAtItsStartLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	const failures = 4
	var tries atomic.Int64
	var running, runs [3]atomic.Int64
	leads := make(chan bool)
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.leads = func(r *raft.Raft) <-chan bool {
			go func() { leads <- <-r.LeaderCh() }() // the election
			return leads
		}
		c.Duties = nil
		for i := range running {
			c.Duties = append(c.Duties, Duty{Name: fmt.Sprint("duty ", i), Run: func(ctx context.Context, _ uint64) error {
				if running[i].Add(1) != 1 {
					t.Errorf("duty %d runs twice at a time", i)
				}
				defer running[i].Add(-1)
				if i == 2 && tries.Add(1) <= failures {
					return errors.New("it does not start")
				}
				runs[i].Add(1)
				<-ctx.Done()
				return nil
			}})
		}
	}).lead(t)
	eventually(t, "readiness shows it", func() bool { return strings.Contains(strings.Join(n.Status().NotReady, ";"), "it does not start") })
	n.submit(t, "while one duty fails")

	// The office ends and comes back between two tries.
	leads <- true
	eventually(t, "all run, and the node is ready", func() bool { return runs[2].Load() == 1 && n.Status().Ready })
	if first, second := runs[0].Load(), runs[1].Load(); first != 2 || second != 2 || tries.Load() != failures+1 {
		t.Errorf("in two offices the others ran %d and %d times, and the third was tried %d times", first, second, tries.Load())
	}
	leads <- false
	eventually(t, "the office is over", func() bool {
		return n.office.Load() == nil && running[0].Load()+running[1].Load()+running[2].Load() == 0
	})
}

// A duty that panics ends the process, and another server leads: a leader that goes
// on with what is left of it would do half of its work, and look well.
func TestADutyThatPanicsIsNotHeldBack(t *testing.T) {
	t.Parallel()
	o := &office{node: &Node{}, logger: slog.New(slog.DiscardHandler)}
	defer func() {
		if why := recover(); why != "broken" {
			t.Errorf("it ends with %v", why)
		}
	}()
	o.work(t.Context(), &dutyState{Duty: Duty{Name: "broken", Run: func(context.Context, uint64) error { panic("broken") }}})
	t.Error("the office goes on")
}

func TestWhatFallsDueIsProposedWhenNothingElseFlows(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	c := submission("a", 0)
	c.GetSubmitTask().DelayMs = 150
	began := time.Now()
	if _, err := n.Propose(t.Context(), []*pb.Command{c}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it fell due", func() bool {
		_, ok := n.machine.NextDue()
		return !ok
	})
	if took := time.Since(began); took < 140*time.Millisecond {
		t.Fatalf("it fell due after %s, early", took)
	}
	if empty := n.counters.EmptyEntries.Load(); empty != 1 {
		t.Fatalf("%d empty entries for one due item", empty)
	}
}

func TestWhatIsLeftOverIsProposedAtOnce(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.machine.set(func() { n.machine.pending = 6 }) // the submission takes one
	n.submit(t, "a")
	eventually(t, "all is done", func() bool { return !n.machine.Pending() })
	if empty := n.counters.EmptyEntries.Load(); empty != 5 {
		t.Fatalf("%d empty entries, want 5", empty)
	}
}

// A due time that an entry does not settle would be proposed for ever.
func TestADueItemThatStaysDoesNotFloodTheLog(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	n.machine.set(func() { n.machine.due, n.machine.stuck = []int64{1}, true })
	n.submit(t, "a")
	began := time.Now()
	eventually(t, "it is tried a few times", func() bool { return n.counters.EmptyEntries.Load() >= 4 })
	if took := time.Since(began); took < 2*tickRest {
		t.Fatalf("four ticks for one due time within %s", took)
	}
}

func TestAReadWaitsForTheIndexItAsksFor(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	index := n.submit(t, "a")
	n.machine.set(func() { n.machine.meta.FenceBase = 1 << 40 })
	for _, consistency := range []pb.Consistency{pb.Consistency_CONSISTENCY_LINEARIZABLE, pb.Consistency_CONSISTENCY_STALE} {
		q := &pb.Query{Consistency: consistency, MinIndex: 1<<40 + index + 1}
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := n.Query(short, q)
		cancel()
		wantCode(t, err, schema.DeadlineExpired)

		answers := make(chan *pb.Answer, 1)
		go func() {
			a, err := n.Query(t.Context(), q)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
		index = n.submit(t, "b"+consistency.String()) - 1<<40
		if a := <-answers; a.GetIndex() < q.MinIndex {
			t.Fatalf("answered at %d, asked for %d", a.GetIndex(), q.MinIndex)
		}
		// An index of an older incarnation is long past.
		if _, err := n.Query(t.Context(), &pb.Query{Consistency: consistency, MinIndex: 1 << 39}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCloseFinishesWhatWasTakenAndTakesNothingMore(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), func(c *Config) { c.EntriesInFlight = 2 }).lead(t)
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	n.machine.set(func() { n.machine.before = func(*pb.Entry) { <-held } })
	p := n.office.Load().proposer
	outcomes := make(chan error, 5)
	for i := range 5 { // two entries on their way, three commands queued
		go func() {
			_, err := n.Propose(t.Context(), []*pb.Command{command(fmt.Sprint(i))})
			outcomes <- err
		}()
		eventually(t, "it is taken", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.inFlight)+p.commands == i+1 && len(p.inFlight) == min(i+1, 2)
		})
	}
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), calm.Patience)
		defer cancel()
		closed <- n.Close(ctx)
	}()
	eventually(t, "the node closes", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.closed != nil
	})
	_, err := n.Propose(t.Context(), []*pb.Command{command("late")})
	wantCode(t, err, schema.NotLeader)
	release()
	for range 5 {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}

func TestManyCallersShareEntries(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for k := range 20 {
				r, err := n.Propose(t.Context(), []*pb.Command{command(fmt.Sprintf("%d/%d", i, k))})
				if err != nil || r[0].Message != fmt.Sprintf("%d/%d", i, k) {
					t.Errorf("%v, %v", r, err)
					return
				}
			}
		})
	}
	all.Wait()
	commands, entries := n.counters.Commands.Load(), n.counters.Entries.Load()
	if commands != 64*20+1 || entries >= commands/2 {
		t.Fatalf("%d commands in %d entries", commands, entries)
	}
	if count, sum, buckets := n.counters.BatchCommands.Read(); count != entries || uint64(sum) != commands || buckets[4096] != count {
		t.Fatalf("the histogram has %d entries with %v commands", count, sum)
	}
}

func TestALowDiskRefusesNewWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.IsAdmission = func(c *pb.Command) bool { return c.GetSubmitTask() != nil }
	}).lead(t)
	free := uint64(10 << 30)
	n.disk.usage = func(string) (uint64, uint64, error) { return free, 100 << 30, nil }
	n.disk.look()
	n.submit(t, "a")
	free = 1 << 29
	n.disk.look()
	_, err := n.Propose(t.Context(), []*pb.Command{command("b"), submission("c", 1)})
	wantCode(t, err, schema.Unavailable)
	if !strings.Contains(err.Error(), "512 MiB") {
		t.Errorf("the message does not say how much is free: %v", err)
	}
	if _, err := n.Propose(t.Context(), []*pb.Command{command("d")}); err != nil {
		t.Fatalf("a start was refused: %v", err)
	}
	if s := n.Status(); !s.DiskLow || s.DiskFree != free {
		t.Fatalf("status %+v", s)
	}
	free = 10 << 30
	n.disk.look()
	n.submit(t, "e")
}

func TestTheLowWaterMark(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		min   int64
		total uint64
		want  uint64
	}{
		{0, 100 << 30, 1 << 30},
		{0, 5 << 30, 1 << 29},
		{0, 1 << 30, 128 << 20}, // stores take room by the hundred MiB
		{0, 200 << 20, 50 << 20},
		{7, 100 << 30, 7},
		{-1, 100 << 30, 0},
	} {
		g := &diskGauge{min: tc.min}
		if got := g.mark(tc.total); got != tc.want {
			t.Errorf("mark of %d on a disk of %d is %d, want %d", tc.min, tc.total, got, tc.want)
		}
	}
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		change func(*Config)
	}{
		{"ID is empty", func(c *Config) { c.ID = "" }},
		{"Dir is empty", func(c *Config) { c.Dir = "" }},
		{"Machine is missing", func(c *Config) { c.Machine = nil }},
		{"Logger is missing", func(c *Config) { c.Logger = nil }},
		{"LogStore is \"tape\"", func(c *Config) { c.LogStore = "tape" }},
		{"EntriesInFlight is 3", func(c *Config) { c.EntriesInFlight = 3 }},
		{"must not be negative", func(c *Config) { c.QueueBytes = -1 }},
		{"does not name this server", func(c *Config) { c.Bootstrap = []Server{{ID: "n2"}} }},
		{"twice", func(c *Config) { c.Bootstrap = []Server{{"n1", "a"}, {"n1", "b"}}; c.Listen = "x" }},
		{"both id and address", func(c *Config) { c.Bootstrap = []Server{{ID: "n1"}, {ID: "n2"}}; c.Listen = "x" }},
		{"neither Transport nor Listen", func(c *Config) { c.Bootstrap = []Server{{"n1", "a"}, {"n2", "b"}} }},
		{"no name or nothing to run", func(c *Config) { c.Duties = []Duty{{Name: "x"}} }},
	} {
		c := testConfig(t, "dir")
		c.Machine = &fakeMachine{}
		tc.change(&c)
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("error is %v, want %q", err, tc.want)
		}
	}
}

func TestADirectoryServesOneProcessAndOneKindOfLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, dir, nil).lead(t)
	cfg := testConfig(t, dir)
	cfg.Machine = n.machine
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Fatalf("a second node on the directory: %v", err)
	}
	n.shut(t)
	cfg.Machine = openFake(t, filepath.Join(dir, "state"))
	cfg.LogStore = LogStoreBolt
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "start it with the kind it has") {
		t.Fatalf("another kind of log: %v", err)
	}
}

// trio is three voters over an in-memory network.
type trio struct {
	nodes   []*testNode
	network []*raft.InmemTransport
}

func startTrio(t *testing.T) *trio {
	t.Helper()
	return startTrioWith(t, func(*Config) {})
}

func startTrioWith(t *testing.T, change func(*Config)) *trio {
	t.Helper()
	c := &trio{}
	var servers []Server
	for i := range 3 {
		_, tr := raft.NewInmemTransportWithTimeout(raft.ServerAddress(fmt.Sprint("addr", i)), raftTimeout)
		c.network = append(c.network, tr)
		servers = append(servers, Server{fmt.Sprint("n", i), fmt.Sprint("addr", i)})
	}
	for i := range 3 {
		for k := range 3 {
			c.network[i].Connect(c.network[k].LocalAddr(), c.network[k])
		}
	}
	for i := range 3 {
		c.nodes = append(c.nodes, startNode(t, t.TempDir(), func(cfg *Config) {
			cfg.ID, cfg.Bootstrap, cfg.Transport = servers[i].ID, servers, c.network[i]
			cfg.HeartbeatTimeout, cfg.LeaderLeaseTimeout = calm.Office, calm.Office
			change(cfg)
		}))
	}
	return c
}

// leader waits for one that serves, other than those given.
func (c *trio) leader(t *testing.T, not ...*testNode) *testNode {
	t.Helper()
	var leader *testNode
	eventually(t, "there is a leader", func() bool {
		for _, n := range c.nodes {
			if !slices.Contains(not, n) && n.office.Load() != nil && n.raft.State() == raft.Leader {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

// submit goes on until whoever leads has taken it: under load a leader may lose
// its office to a slow neighbour.
func (c *trio) submit(t *testing.T, id string, not ...*testNode) (index uint64) {
	t.Helper()
	eventually(t, "a leader takes "+id, func() bool {
		r, err := c.leader(t, not...).Propose(t.Context(), []*pb.Command{submission(id, 1)})
		if err != nil || r[0].Code != "" {
			return false
		}
		index = r[0].Index
		return true
	})
	return index
}

// cut takes a node off the network.
func (c *trio) cut(n *testNode) {
	for i := range c.nodes {
		if c.nodes[i] == n {
			c.network[i].DisconnectAll()
		} else {
			c.network[i].Disconnect(n.transport.LocalAddr())
		}
	}
}

func (c *trio) heal() {
	for i := range c.network {
		for k := range c.network {
			c.network[i].Connect(c.network[k].LocalAddr(), c.network[k])
		}
	}
}

func TestThreeVotersNeedNothingElse(t *testing.T) {
	t.Parallel()
	c := startTrio(t)
	index := c.submit(t, "a")
	first := c.leader(t)
	for _, n := range c.nodes {
		if n == first {
			continue
		}
		eventually(t, "what a follower refuses names the leader", func() bool {
			leader := c.leader(t)
			if leader == n {
				return true // elected meanwhile, it refuses nothing
			}
			_, write := n.Propose(t.Context(), []*pb.Command{command("b")})
			_, read := n.Query(t.Context(), &pb.Query{})
			return code(write) == schema.NotLeader && strings.Contains(write.Error(), leader.cfg.ID) && code(read) == schema.NotLeader
		})
		a, err := n.Query(t.Context(), &pb.Query{Consistency: pb.Consistency_CONSISTENCY_STALE, MinIndex: index})
		if err != nil || a.Index < index || a.AgeMs > 10_000 {
			t.Fatalf("stale read: %v, %v", a, err)
		}
		eventually(t, "the follower is ready", func() bool { return n.Status().Ready })
	}

	// A leader alone: reads are not served, what it takes has no known outcome.
	first = c.leader(t)
	c.cut(first)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := first.Propose(ctx, []*pb.Command{command("lost")})
	var e *schema.Error
	if !errors.As(err, &e) || e.Code != schema.ResultUnknown && e.Code != schema.NotLeader {
		t.Fatalf("a leader without followers answered %v", err)
	}
	if _, err := first.Query(ctx, &pb.Query{}); err == nil {
		t.Fatal("a leader without followers served a linearizable read")
	}
	c.submit(t, "c", first)
	eventually(t, "the old leader has stepped down", func() bool { return first.office.Load() == nil })

	c.heal()
	last := c.submit(t, "d")
	eventually(t, "all are level", func() bool {
		for _, n := range c.nodes {
			if n.machine.AppliedIndex() < last {
				return false
			}
		}
		return true
	})
	eventually(t, "the states are the same", func() bool {
		return first.machine.hash() == c.nodes[0].machine.hash() && first.machine.hash() == c.nodes[2].machine.hash() &&
			first.machine.hash() == c.nodes[1].machine.hash()
	})
	times := int64(0)
	for _, e := range first.machine.entries() {
		if e.TimeUs < times {
			t.Fatalf("an entry of time %d after one of %d", e.TimeUs, times)
		}
		times = e.TimeUs
	}
}

// A follower that is too far behind gets a stream, made of a checkpoint.
func TestALaggingFollowerGetsASnapshot(t *testing.T) {
	t.Parallel()
	c := &trio{}
	var servers []Server
	for i := range 3 {
		_, tr := raft.NewInmemTransportWithTimeout(raft.ServerAddress(fmt.Sprint("addr", i)), raftTimeout)
		c.network = append(c.network, tr)
		servers = append(servers, Server{fmt.Sprint("n", i), fmt.Sprint("addr", i)})
	}
	c.heal()
	var restored atomic.Int64
	for i := range 3 {
		c.nodes = append(c.nodes, startNode(t, t.TempDir(), func(cfg *Config) {
			cfg.ID, cfg.Bootstrap, cfg.Transport = servers[i].ID, servers, c.network[i]
			cfg.HeartbeatTimeout, cfg.LeaderLeaseTimeout = calm.Office, calm.Office
			cfg.TrailingEntries = 1
			cfg.LogStore = LogStoreBolt // the other one still reads what it has dropped from its last segment
			cfg.OnRestore = func() { restored.Add(1) }
		}))
	}
	leader := c.leader(t)
	var follower *testNode
	for _, n := range c.nodes {
		if n != leader {
			follower = n
		}
	}
	c.cut(follower)
	for i := range 30 {
		c.submit(t, fmt.Sprint(i), follower)
	}
	for _, n := range c.nodes {
		if n != follower {
			if err := n.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.heal()
	last := c.submit(t, "last")
	eventually(t, "the follower is level", func() bool { return follower.machine.AppliedIndex() >= last })
	if restored.Load() != 1 || follower.counters.Restores.Load() != 1 {
		t.Fatalf("restored %d times", restored.Load())
	}
	eventually(t, "the states are the same", func() bool {
		want := c.leader(t, follower).machine
		return follower.machine.hash() == want.hash() && mapsEqual(follower.machine.rows(t), want.rows(t))
	})

	// What it received is a snapshot of its own: it starts from it.
	dir := follower.dir
	follower.shut(t)
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	m := openFake(t, filepath.Join(dir, "state"))
	cfg := follower.cfg
	cfg.Machine = m
	_, tr := raft.NewInmemTransport(raft.ServerAddress(cfg.ID + " again"))
	cfg.Transport = tr
	again, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer (&testNode{again, m, dir}).shut(t)
	if m.AppliedIndex() < 30 {
		t.Fatalf("the state restored at the start is at %d", m.AppliedIndex())
	}
}
