package cluster

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// fill submits tasks that nobody takes until their payloads are so many bytes.
func fill(t *testing.T, client *sdk.Client, bytes int) {
	t.Helper()
	const payload, batch, at = 64 << 10, 16, 4
	// A cluster that has come to a stand is a failure, and not waited for.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	batches := make(chan struct{})
	var submitting sync.WaitGroup
	for range at {
		submitting.Go(func() {
			for range batches {
				specs := make([]sdk.TaskSpec, batch)
				for i := range specs {
					random := make([]byte, payload/4*3) // nothing that a store could compress
					_, _ = rand.Read(random)
					specs[i] = sdk.TaskSpec{Handler: "nobody", Payload: base64.StdEncoding.EncodeToString(random)}
				}
				items, err := client.SubmitBatch(ctx, "default", specs)
				if err != nil {
					t.Errorf("a batch: %v", err)
					continue
				}
				for _, item := range items {
					if item.Err != nil {
						t.Errorf("a task of a batch: %v", item.Err)
					}
				}
			}
		})
	}
	for done := 0; done < bytes && !t.Failed(); done += batch * payload {
		batches <- struct{}{}
	}
	close(batches)
	submitting.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// paced submits a small task a hundred times a second until it is stopped, and
// says how long each took from the moment it was due.
func paced(t *testing.T, client *sdk.Client) (stop func() []time.Duration) {
	var mu sync.Mutex
	var took []time.Duration
	var submitting sync.WaitGroup
	end := background(t, func(ctx context.Context) {
		for tick := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case due := <-tick.C:
				submitting.Go(func() {
					if _, err := client.Submit(ctx, sdk.TaskSpec{Handler: "later", Delay: time.Hour}); err != nil {
						if ctx.Err() == nil {
							t.Errorf("a submission: %v", err)
						}
						return
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(due))
				})
			}
		}
	})
	return func() []time.Duration {
		end()
		submitting.Wait()
		if len(took) == 0 {
			t.Fatal("no submission was answered")
		}
		slices.Sort(took)
		return took
	}
}

func p99(sorted []time.Duration) time.Duration { return percentile(sorted, 0.99) }

// size is the bytes of the files below a directory.
func size(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil // files come and go
		case err != nil || d.IsDir():
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		} else if !os.IsNotExist(err) {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// logMost is what a server's log may hold on disk: what comes between two
// snapshots, 256 MiB, what stays behind the newer one, and what is allocated ahead.
const logMost = 768 << 20

// TestALogOfGigabytes: commits take as long behind PULSE_CHAOS_LOG_MB (2048) of
// log as before them, with either log store, and the log is cut: its files do
// not grow with what went through them.
func TestALogOfGigabytes(t *testing.T) {
	onRequest(t)
	megabytes, seconds := number("PULSE_CHAOS_LOG_MB", 2048), number("PULSE_CHAOS_SECONDS", 60)
	for _, store := range []string{"wal", "bolt"} {
		t.Run(store, func(t *testing.T) {
			c := startTrioOn(t, layout{args: []string{"--log-store", store}})
			c.supervised()
			client := c.clientOf()
			measure := func() []time.Duration {
				stop := paced(t, client)
				pause(time.Duration(seconds) * time.Second)
				return stop()
			}
			before := measure()
			began := time.Now()
			fill(t, client, megabytes<<20)
			filled := time.Since(began)
			// The state is as large as the payloads; what is not state is the log.
			var logs int64
			until(t, 2*time.Minute, "the log is cut", func() (bool, string) {
				logs = 0
				for _, p := range c.nodes {
					logs = max(logs, size(t, filepath.Join(p.dir, "raft"))-size(t, filepath.Join(p.dir, "raft", "snapshots")))
				}
				return logs < logMost, fmt.Sprintf("%d MiB", logs>>20)
			})
			after := measure()
			t.Logf("MEASURED: %s: submissions before %s, behind %d MiB of log %s", store, spread(before), megabytes, spread(after))
			if p99(after) > 2*p99(before)+20*time.Millisecond {
				t.Errorf("behind %d MiB of log 99 of 100 submissions take %s, before %s", megabytes, p99(after), p99(before))
			}
			c.same(60 * time.Second)
			proved(t, "%s: %d MiB went through the log in %s; its files are %d MiB after that, and 100 submissions a second take p99 %s, before p99 %s",
				store, megabytes, filled.Round(time.Second), logs>>20, p99(after).Round(time.Millisecond), p99(before).Round(time.Millisecond))
		})
	}
}

// TestSnapshotsOfGigabytes: a state of PULSE_CHAOS_STATE_MB (5120) is backed up
// again and again and sent to a new server, while tasks are submitted. None of it
// costs the leader its office.
func TestSnapshotsOfGigabytes(t *testing.T) {
	onRequest(t)
	megabytes := number("PULSE_CHAOS_STATE_MB", 5120)
	c := startTrio(t)
	client := c.clientOf()
	fill(t, client, megabytes<<20)
	c.same(2 * time.Minute)
	leader := c.leader(20 * time.Second)
	first, _ := leader.standing()
	calm := paced(t, client)
	pause(20 * time.Second)
	before := calm()

	stop := paced(t, client)
	backups, began := 0, time.Now()
	for ; backups < 3; backups++ {
		file := filepath.Join(t.TempDir(), "backup")
		// A copy has a pace, at which 5 GiB take more than a minute.
		if _, err := pulseWithin(t, 15*time.Minute, leader, "cluster", "backup", file); err != nil {
			t.Fatal(err)
		}
		if at := size(t, filepath.Dir(file)); at < int64(megabytes)<<20/2 {
			t.Fatalf("the backup has %d MiB", at>>20)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	backedUp := time.Since(began)
	began = time.Now()
	then, _ := leader.standing()
	newcomer := c.newServer("d")
	newcomer.start()
	newcomer.ready(5 * time.Minute)
	joined := time.Since(began)
	if s, ok := newcomer.standing(); !ok || s.Applied < then.Applied {
		t.Errorf("the new server was ready at %d, when the others were at %d before it came", s.Applied, then.Applied)
	}
	meanwhile := stop()
	if s, ok := c.leader(20 * time.Second).standing(); !ok || s.Term != first.Term {
		t.Errorf("the leader of term %d was lost: term %d now", first.Term, s.Term)
	}
	c.nodes = append(c.nodes, newcomer)
	c.same(2 * time.Minute)
	proved(t, "%d MiB of state: %d backups in %s and a new server in %s cost nobody an office; 100 submissions a second meanwhile %s, before %s",
		megabytes, backups, backedUp.Round(time.Second), joined.Round(time.Second), spread(meanwhile), spread(before))
}
