package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
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

// receiver is a transport that hands on what the test says.
type receiver struct {
	raft.Transport
	in chan raft.RPC
}

func (r receiver) Consumer() <-chan raft.RPC { return r.in }

// settled has nothing to wait for.
func settled(uint64, <-chan struct{}) error { return nil }
