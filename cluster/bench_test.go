package cluster

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// BenchmarkPropose submits tasks from many callers at once through the log, on
// the disk of the temporary directory, into the real machine.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 64, 256} {
		for _, inFlight := range []int{1, 2} {
			for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
				b.Run(fmt.Sprintf("%s/clients=%d/inflight=%d", kind, clients, inFlight), func(b *testing.B) {
					benchPropose(b, clients, inFlight, kind)
				})
			}
		}
	}
}

func benchPropose(b *testing.B, clients, inFlight int, kind LogStore) {
	dir := b.TempDir()
	m, err := fsm.Open(fsm.Options{Dir: filepath.Join(dir, "state")})
	if err != nil {
		b.Fatal(err)
	}
	n, err := Open(Config{
		ID: "n1", ClusterID: []byte("c"), Dir: filepath.Join(dir, "raft"), Machine: m, Bootstrap: []Server{{ID: "n1"}},
		Logger: slog.New(slog.DiscardHandler), EntriesInFlight: inFlight, LogStore: kind,
	})
	if err != nil {
		b.Fatal(err)
	}
	for n.office.Load() == nil {
	}
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for range (b.N + i) / clients {
				c := task(`{"hello":"world, two hundred bytes of it are what a common payload has, so these are some more words to fill it up to there, and a few more, and now it is about long enough to be what it should be"}`)
				c.Id, c.Namespace = newID(), fsm.DefaultName
				if r, err := n.Propose(b.Context(), []*pb.Command{c}); err != nil || r[0].Code != "" {
					b.Error(r, err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	if entries := n.counters.Entries.Load(); entries > 0 {
		b.ReportMetric(float64(n.counters.Commands.Load())/float64(entries), "commands/entry")
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
	if err := n.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := m.Close(); err != nil {
		b.Fatal(err)
	}
}
