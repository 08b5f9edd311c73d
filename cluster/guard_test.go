package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// A server that was promoted, lost its disk and begins empty is sent the log from its
// beginning: with the entries that made it a learner and then a voter.
func TestTheLogsPastPromotesNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := make(chan raft.RPC)
	var voter bool
	var last uint64
	open := func() (g *guard, stop func()) {
		g, err := newGuard(receiver{in: in}, dir, true, func(uint64, uint64) {}, settled)
		if err != nil {
			t.Fatal(err)
		}
		g.start(func() (bool, bool, uint64) { return voter, last > 0, last })
		return g, g.close
	}
	hear := func(g *guard, command any) {
		in <- raft.RPC{Command: command, RespChan: make(chan raft.RPCResponse, 1)}
		<-g.rpcs
	}
	g, stop := open()
	hear(g, &raft.AppendEntriesRequest{Term: 3}) // a heartbeat
	if !g.keepsOut() {
		t.Fatal("it votes although it has begun empty")
	}
	hear(g, &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 50, LeaderCommitIndex: 48})
	stop()
	g, stop = open() // a restart does not forget how far that was
	hear(g, &raft.AppendEntriesRequest{Term: 3, LeaderCommitIndex: 49, Entries: []*raft.Log{{Index: 1}, {Index: 2}}})

	steps := []struct {
		what  string
		voter bool
		last  uint64
		votes bool
	}{
		{"the past makes it a learner", false, 20, false},
		{"and promotes it", true, 30, false},
		{"it has all that it may have helped to commit, and nobody has promoted it since", true, 50, false},
		{"a learner, now", false, 52, false},
		{"promoted again", true, 60, true},
	}
	for _, s := range steps {
		voter, last = s.voter, s.last
		hear(g, &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: last, LeaderCommitIndex: last})
		if got := !g.keepsOut(); got != s.votes {
			t.Errorf("%s: it votes: %t", s.what, got)
		}
	}
	stop()
	if _, err := os.Stat(filepath.Join(dir, learnerFile)); !os.IsNotExist(err) {
		t.Errorf("the file of learners is still there: %v", err)
	}
}

// A server that joins is shown to itself as a learner by the newest entry there is.
func TestALearnerThatJoinsIsPromoted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := make(chan raft.RPC)
	voter, last := false, uint64(0)
	g, err := newGuard(receiver{in: in}, dir, true, func(uint64, uint64) {}, settled)
	if err != nil {
		t.Fatal(err)
	}
	g.start(func() (bool, bool, uint64) { return voter, last > 0, last })
	hear := func(index uint64) {
		last = index
		in <- raft.RPC{Command: &raft.AppendEntriesRequest{PrevLogEntry: index, LeaderCommitIndex: index}, RespChan: make(chan raft.RPCResponse, 1)}
		<-g.rpcs
	}
	hear(7)
	hear(7)
	g.close()
	// Restarted in between, it goes on as what it is.
	if g, err = newGuard(receiver{in: in}, dir, false, func(uint64, uint64) {}, settled); err != nil {
		t.Fatal(err)
	}
	g.start(func() (bool, bool, uint64) { return voter, last > 0, last })
	defer g.close()
	if !g.shown.Load() || !g.keepsOut() {
		t.Fatal("a learner votes, or does not know that it is one")
	}
	voter = true
	hear(9)
	if g.keepsOut() {
		t.Error("it was promoted and does not vote")
	}
}

func TestADamagedNoteOfALearnerIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, learnerFile)
	if err := os.WriteFile(path, []byte("new x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newGuard(receiver{}, dir, false, nil, settled); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("it starts with %v", err)
	}
}

func TestHeartbeatsThatAreNewsWaitForTheMainGoroutine(t *testing.T) {
	t.Parallel()
	var heartbeat func(raft.RPC)
	g, err := newGuard(heart{set: func(f func(raft.RPC)) { heartbeat = f }}, t.TempDir(), false, nil, settled)
	if err != nil {
		t.Fatal(err)
	}
	direct := 0
	g.SetHeartbeatHandler(func(raft.RPC) { direct++ })
	follows := func(term uint64) bool { return term <= 3 }
	for _, c := range []struct {
		what    string
		follows *func(uint64) bool
		term    uint64
		direct  int
	}{
		{"before raft has started", nil, 3, 0},
		{"of the term it follows in", &follows, 3, 1},
		{"of a newer term", &follows, 4, 0},
	} {
		g.follows.Store(c.follows)
		direct = 0
		over := make(chan struct{})
		go func() {
			heartbeat(raft.RPC{Command: &raft.AppendEntriesRequest{Term: c.term}})
			close(over)
		}()
		main := 0
		select {
		case <-g.rpcs:
			main++
			<-over
		case <-over:
		}
		if direct != c.direct || main != 1-c.direct {
			t.Errorf("%s: %d answered at once, %d left to the main goroutine", c.what, direct, main)
		}
	}
	g.follows.Store(nil)
	close(g.stop)
	heartbeat(raft.RPC{Command: &raft.AppendEntriesRequest{Term: 3}}) // returns
}

// heart is a transport that takes nothing but the handler of heartbeats.
type heart struct {
	raft.Transport
	set func(func(raft.RPC))
}

func (h heart) SetHeartbeatHandler(f func(raft.RPC)) { h.set(f) }

// receiver is a transport that hands on what the test says.
type receiver struct {
	raft.Transport
	in chan raft.RPC
}

func (r receiver) Consumer() <-chan raft.RPC { return r.in }

// settled has nothing to wait for.
func settled(uint64, <-chan struct{}) error { return nil }

// A leader that hears the heartbeat of a newer one before anything else writes nothing
// more, above all not in the newer one's term: two leaders would then have written one
// place of the log in one term, which a follower of both takes for the same entry.
func TestALeaderThatHearsANewerOneWritesNothingInItsTerm(t *testing.T) {
	t.Parallel()
	c := startTrioTCP(t)
	c.submit(t, "first")
	var leader *testNode
	var term uint64
	eventually(t, "a leader takes the heartbeat of a newer one", func() bool {
		leader = c.leader(t)
		other := c.nodes[0]
		if other == leader {
			other = c.nodes[1]
		}
		term = leader.raft.CurrentTerm()
		var answer raft.AppendEntriesResponse
		err := other.transport.AppendEntries(raft.ServerID(leader.cfg.ID), leader.transport.LocalAddr(), &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{
				ProtocolVersion: raft.ProtocolVersionMax,
				ID:              []byte(other.cfg.ID),
				Addr:            other.transport.EncodePeer(raft.ServerID(other.cfg.ID), other.transport.LocalAddr()),
			},
			Term: term + 1,
		}, &answer)
		return err == nil && answer.Success && answer.Term == term+1
	})
	_, _ = leader.Propose(t.Context(), []*pb.Command{submission("second", 1)}) // refused, or lost with the office
	last, err := leader.stores.logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= last; i++ {
		var log raft.Log
		if err := leader.stores.logs.GetLog(i, &log); err != nil {
			t.Fatal(err)
		}
		if log.Type != raft.LogCommand {
			continue
		}
		if e, err := fsm.DecodeEntry(log.Data); err != nil || e.Term == term && log.Term == term+1 {
			t.Errorf("entry %d, proposed in term %d, is in the log with term %d: %v", i, e.GetTerm(), log.Term, err)
		}
	}
}
