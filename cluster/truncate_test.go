package cluster

import (
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/raft"

	"pulse/test/calm"
)

// A leader that is killed leaves a tail that its successor cuts off. The log has
// to open and read after that, again and again: raft-wal 0.4.0 marked the cut
// segment as sealed without writing its index, and the server was lost. Found by
// killing leaders under load.
func TestALogWhoseTailWasCutOpensAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, t.TempDir())
			cfg.LogStore = kind
			cfg = cfg.withDefaults()
			if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			w := NewWatchdog(WatchdogConfig{Limit: calm.Patience, Logger: cfg.Logger, Exit: func(code int) { t.Errorf("the watchdog ended the process with %d", code) }})
			t.Cleanup(w.Stop)
			next := uint64(1)
			for round := range 5 {
				s, err := openStores(&cfg, w, &Counters{}, raftLogger(cfg.Logger))
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				for i := uint64(1); i < next; i++ {
					var l raft.Log
					if err := s.logs.GetLog(i, &l); err != nil || l.Index != i {
						t.Fatalf("round %d: entry %d: %v", round, i, err)
					}
				}
				var batch []*raft.Log
				for range 10 {
					batch = append(batch, &raft.Log{Type: raft.LogNoop, Index: next, Term: uint64(round + 1), Data: fmt.Append(nil, "entry ", next)})
					next++
				}
				if err := s.logs.StoreLogs(batch); err != nil {
					t.Fatal(err)
				}
				// The successor does not have the last three.
				if err := s.logs.DeleteRange(next-3, next-1); err != nil {
					t.Fatal(err)
				}
				next -= 3
				if err := s.close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
