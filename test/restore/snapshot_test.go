package restore

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// TestAServerKilledWhileItTakesSnapshotsStartsAgain: whatever step of a snapshot or
// of the cut of the log a kill meets, the server starts with everything that it
// had acknowledged (rqlite #2540). PULSE_CHAOS_ROUNDS makes more of it.
func TestAServerKilledWhileItTakesSnapshotsStartsAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	t.Parallel() // most of it is waiting
	rounds, err := strconv.Atoi(os.Getenv("PULSE_CHAOS_ROUNDS"))
	if err != nil {
		rounds = 3
	}
	s := newServer(t, "n1", "--cluster-secret-file", secretFile(t))
	backups := t.TempDir()
	var mu sync.Mutex
	var ids []string
	for round := range rounds {
		start(t, s)
		c := client(s)
		mu.Lock()
		for _, id := range ids[max(0, len(ids)-200):] {
			if _, err := c.Get(t.Context(), id); err != nil {
				t.Fatalf("round %d: task %s, which was acknowledged: %v", round, id, err)
			}
		}
		mu.Unlock()
		had := len(ids)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for ctx.Err() == nil {
					if info, err := c.Submit(ctx, sdk.TaskSpec{Handler: "nobody", Payload: map[string]int{"round": round}}); err == nil {
						mu.Lock()
						ids = append(ids, info.ID)
						mu.Unlock()
					}
				}
			})
		}
		snapshots := 0
		all.Go(func() {
			for ctx.Err() == nil { // each takes a snapshot
				stream, err := c.Backup(ctx)
				if err != nil {
					continue
				}
				f, err := os.Create(filepath.Join(backups, "backup"))
				if err == nil {
					_, _ = f.ReadFrom(stream) // it may be cut off
					_ = f.Close()
				}
				_ = stream.Close()
				snapshots++
			}
		})
		until(t, "something is submitted", func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return len(ids) > had, ""
		})
		<-time.After(300*time.Millisecond + rand.N(900*time.Millisecond))
		kill(t, s)
		cancel()
		all.Wait()
		t.Logf("round %d: killed after %d snapshots and %d tasks", round, snapshots, len(ids))
	}
	start(t, s)
	if len(ids) == 0 {
		t.Error("nothing was submitted: this proved nothing")
	}
}
