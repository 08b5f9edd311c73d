package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A snapshot that a leader sends is in place before the log that ends below it is
// dropped. A server that is killed in between starts with both, and goes on behind
// the snapshot.
func TestALogThatEndsBelowTheSnapshotIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			with := func(cfg *Config) { cfg.LogStore = kind }
			n := startNode(t, dir, with).lead(t)
			for i := range 5 {
				n.submit(t, fmt.Sprint("early ", i))
			}
			n.shut(t)
			name := map[LogStore]string{LogStoreWAL: walDir, LogStoreBolt: boltFile}[kind]
			log, early := filepath.Join(dir, "raft", name), filepath.Join(dir, "early")
			if kind == LogStoreWAL {
				if err := os.CopyFS(early, os.DirFS(log)); err != nil {
					t.Fatal(err)
				}
			} else {
				data, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(early, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n = startNode(t, dir, with).lead(t)
			for i := range 20 {
				n.submit(t, fmt.Sprint("late ", i))
			}
			if _, err := n.Node.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.shut(t)
			swap(t, early, log)

			n = startNode(t, dir, with).lead(t)
			n.submit(t, "after")
			n.shut(t)
			n = startNode(t, dir, with).lead(t)
			n.submit(t, "after another start")
			if got := len(n.machine.rows(t)); got != 27 {
				t.Errorf("%d submissions are there", got)
			}
		})
	}
}
