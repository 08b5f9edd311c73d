package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"pulse/test/calm"
	"pulse/test/ports"
)

// threeVoters are three voters whose logs keep next to nothing behind a snapshot.
func threeVoters(t *testing.T, kind LogStore) (c *town, start func(id string, trailing uint64) *testNode) {
	t.Helper()
	c = &town{t: t, up: map[string]*testNode{}}
	var servers []Server
	dirs, listens := map[string]string{}, map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		dirs[id], listens[id] = t.TempDir(), ports.Free(t, "127.0.0.1")
		servers = append(servers, Server{id, listens[id]})
	}
	start = func(id string, trailing uint64) *testNode {
		return c.startWith(id, dirs[id], listens[id], servers, func(cfg *Config) {
			cfg.LogStore, cfg.TrailingEntries = kind, trailing
		})
	}
	for _, s := range servers {
		start(s.ID, 1)
	}
	return c, start
}

func (c *town) other(than ...*testNode) *testNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.up {
		is := false
		for _, t := range than {
			is = is || n == t
		}
		if !is {
			return n
		}
	}
	return nil
}

func (c *town) snapshot(n *testNode) {
	c.t.Helper()
	if _, err := n.Node.snapshot(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// A server comes back with entries that were never committed, and where they are
// the others have a snapshot. Raft keeps the tail of a log that may have gaps when
// it installs one, and asks for the same snapshot for ever (hashicorp/raft #697).
func TestAServerWhoseTailConflictsWithASnapshotCatchesUp(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take seconds")
	}
	t.Parallel()
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c, start := threeVoters(t, kind)
			old := c.leader()
			for i := range 5 {
				old.submit(t, fmt.Sprint("a", i))
			}
			behind := c.other(old)
			id, cfg := behind.cfg.ID, behind.cfg
			term := old.raft.CurrentTerm()
			c.stop(id)
			if _, err := transfer(t, old, c.other(old).cfg.ID); err != nil {
				t.Fatal(err)
			}
			leader := c.leader()
			eventually(t, "a new term has an entry", func() bool { return leader.raft.CurrentTerm() > term && leader.office.Load() != nil })

			// What the old leader has written in its term reached this server, and
			// six entries more that reached nobody else.
			tail := appendTail(t, &cfg, leader, term, 6)
			for leader.raft.LastIndex() < tail-2 {
				leader.submit(t, fmt.Sprint("b", leader.raft.LastIndex()))
			}
			c.snapshot(leader)
			if meta, _, _ := leader.snaps.newest(); meta.Index >= tail || meta.Index <= tail-6 {
				t.Fatalf("the snapshot ends at %d, the tail at %d: this proves nothing", meta.Index, tail)
			}
			// It keeps more behind a snapshot than the tail is long, and with it, where
			// a log may have gaps, the entry that conflicts.
			back := start(id, 64)
			within(t, 2*calm.Patience, "it has the snapshot", func() string {
				if back.machine.AppliedIndex() > tail-6 {
					return ""
				}
				return fmt.Sprint("it is at ", back.machine.AppliedIndex())
			})
			// Only what comes after the snapshot shows whether it is stuck.
			after := leader.submit(t, "after")
			within(t, 2*calm.Patience, "it has caught up", func() string {
				if back.machine.AppliedIndex() >= after && back.machine.hash() == leader.machine.hash() {
					return ""
				}
				return fmt.Sprintf("it is at %d, the leader at %d", back.raft.AppliedIndex(), leader.raft.LastIndex())
			})
		})
	}
}

// stoppedStores opens the stores of a server that is stopped. The caller closes them.
func stoppedStores(t *testing.T, cfg *Config) *stores {
	t.Helper()
	w := NewWatchdog(WatchdogConfig{Limit: calm.Patience, Logger: cfg.Logger, Exit: func(int) { t.Error("the watchdog ended the process") }})
	t.Cleanup(w.Stop)
	s, err := openStores(cfg, w, &Counters{}, raftLogger(cfg.Logger))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// appendTail brings a stopped server's log to the end of a term and adds entries
// that were written in it and never committed. It returns the last index.
func appendTail(t *testing.T, cfg *Config, leader *testNode, term uint64, more int) uint64 {
	t.Helper()
	s := stoppedStores(t, cfg)
	last, err := s.logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for {
		var log raft.Log
		if err := leader.stores.logs.GetLog(last+1, &log); err != nil || log.Term != term {
			break
		}
		if err := s.logs.StoreLog(&log); err != nil {
			t.Fatal(err)
		}
		last++
	}
	for range more {
		last++
		if err := s.logs.StoreLog(&raft.Log{Index: last, Term: term, Type: raft.LogNoop}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	return last
}

// A server that was away for long gets a snapshot, also while leadership moves
// from one to the other all the time (hashicorp/raft #212).
func TestAServerThatWasAwayForLongCatchesUpWhileTermsChange(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take seconds")
	}
	t.Parallel()
	c, start := threeVoters(t, LogStoreWAL)
	leader := c.leader()
	leader.submit(t, "first")
	behind := c.other(leader)
	id := behind.cfg.ID
	c.stop(id)
	for round := range 2 {
		for i := range 150 {
			leader.submit(t, fmt.Sprint(round, "-", i))
		}
		c.snapshot(leader)
		c.snapshot(c.other(leader))
	}
	back := start(id, 1)
	ctx, cancel := context.WithCancel(t.Context())
	moving := make(chan int)
	go func() {
		moved := 0
		defer func() { moving <- moved }()
		for sleep(ctx, 300*time.Millisecond) {
			for _, n := range []*testNode{leader, c.other(leader, back)} {
				if n.office.Load() != nil {
					if _, err := n.Transfer(ctx, c.other(n, back).cfg.ID); err == nil {
						moved++
					}
					break
				}
			}
		}
	}()
	within(t, 2*calm.Patience, "it has caught up", func() string {
		if back.raft.AppliedIndex() >= 300 && back.raft.AppliedIndex() >= leader.raft.CommitIndex() {
			return ""
		}
		return fmt.Sprintf("it is at %d, another at %d", back.raft.AppliedIndex(), leader.raft.CommitIndex())
	})
	cancel()
	if moved := <-moving; moved == 0 {
		t.Log("it caught up before leadership moved")
	}
}

// within waits longer than eventually does: for what takes elections. ok says what
// is missing.
func within(t *testing.T, limit time.Duration, what string, ok func() string) {
	t.Helper()
	end := time.After(limit)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for missing := ok(); missing != ""; missing = ok() {
		select {
		case <-end:
			t.Fatalf("it never came true that %s: %s", what, missing)
		case <-look.C:
		}
	}
}
