package restore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pulse/schema"
	"pulse/schema/workerv1"
	"pulse/sdk"
)

// TestARestoredClusterFencesTheLostOne: a backup is taken under load and becomes a
// cluster of three. Whatever was acknowledged before it is there; a worker that
// still holds attempts of the lost cluster can change nothing with them; and a
// second restore of the same backup is told apart from the first.
func TestARestoredClusterFencesTheLostOne(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Parallel() // most of it is waiting
	secret := secretFile(t)
	lost := newServer(t, "n1", "--cluster-secret-file", secret)
	start(t, lost)
	clients := client(lost)

	old := newHand(t)
	old.connect(lost.URL())
	keyed := submit(t, clients, sdk.TaskSpec{Handler: "effect", ConcurrencyKey: "account"})
	running := old.assigned()
	once := submit(t, clients, sdk.TaskSpec{Handler: "effect", RecoverySafety: sdk.ReconcileOnly})
	single := old.assigned()
	for _, a := range []*workerv1.Assign{running, single} {
		if f := old.ask(&workerv1.Start{Ref: ref(a)}); !active(f) {
			t.Fatalf("start: %s", describe(f))
		}
	}
	waiting := submit(t, clients, sdk.TaskSpec{Handler: "nobody", RecoverySafety: sdk.ReconcileOnly})

	// Others go on submitting while the backup is made.
	var before sync.Map
	var count atomic.Int64
	load, end := context.WithCancel(t.Context())
	var submitting sync.WaitGroup
	for range 4 {
		submitting.Go(func() {
			for load.Err() == nil {
				if info, err := clients.Submit(load, sdk.TaskSpec{Handler: "nobody"}); err == nil {
					before.Store(info.ID, time.Now())
					count.Add(1)
				}
			}
		})
	}
	until(t, "there is a load", func() (bool, string) {
		return count.Load() >= 50, fmt.Sprint(count.Load())
	})
	began := time.Now()
	file := filepath.Join(t.TempDir(), "backup")
	var backup struct {
		Rows      string `json:"rows"`
		Index     uint64 `json:"index,string"`
		StateHash string `json:"state_hash"`
	}
	mustPulse(t, &backup, "cluster", "backup", file, "--addr", lost.URL())
	// The lost cluster goes on for a while; it will not be remembered.
	after := submit(t, clients, sdk.TaskSpec{Handler: "nobody"})
	end()
	submitting.Wait()
	_ = old.conn.CloseNow() // the network goes first
	kill(t, lost)

	// A backup that is not what was written is refused.
	bad := filepath.Join(t.TempDir(), "bad")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 4
	if err := os.WriteFile(bad, data, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := filepath.Join(t.TempDir(), "refused")
	if out, err := pulse(t, "cluster", "restore", bad, "--data", refused); err == nil || !strings.Contains(out, "damaged") {
		t.Errorf("a damaged backup: %v\n%s", err, out)
	}
	if _, err := os.Stat(refused); !os.IsNotExist(err) {
		t.Errorf("a refused restore leaves %s behind", refused)
	}

	// The new cluster: one restored server and two that join empty.
	servers := three(t, secret)
	type restored struct {
		ClusterID string `json:"cluster_id"`
		Lost      string `json:"lost_cluster_id"`
		Index     uint64 `json:"index,string"`
		FenceBase uint64 `json:"fence_base,string"`
	}
	var first, second restored
	a := servers[0]
	mustPulse(t, &first, "cluster", "restore", file, "--data", a.data(), "--node-id", "a", "--cluster-secret-file", secret)
	if first.Index != backup.Index || first.ClusterID == first.Lost || first.FenceBase < 1<<40 {
		t.Errorf("restored %+v from %+v", first, backup)
	}
	if out, err := pulse(t, "cluster", "restore", file, "--data", a.data()); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("a restore over a restored server: %v\n%s", err, out)
	}
	start(t, servers...)
	untilVoters(t, a, 3)
	fresh := client(servers...)

	// Nothing that was acknowledged before the backup is missing, and nothing of
	// what came after it is there.
	n := 0
	before.Range(func(id, at any) bool {
		if at.(time.Time).Before(began) {
			n++
			if _, err := fresh.Get(t.Context(), id.(string)); err != nil {
				t.Errorf("acknowledged before the backup and gone: %s: %v", id, err)
			}
		}
		return !t.Failed()
	})
	if n < 20 {
		t.Errorf("only %d tasks: this proved little", n)
	}
	if _, err := fresh.Get(t.Context(), after); err == nil {
		t.Error("a task is there that was submitted after the backup")
	}

	// The old worker is still alive and finds the new cluster.
	oldToken := running.ConcurrencyToken
	old.connect(servers[1].URL())
	for what, body := range map[string]workerv1.ClientBody{
		"renew": &workerv1.Renew{Ref: ref(running)}, "start": &workerv1.Start{Ref: ref(running)},
	} {
		if f := old.ask(body); !refusedWith(f, schema.LeaseLost) && !refusedWith(f, schema.StaleEpoch) {
			t.Errorf("%s of an attempt of the lost cluster: %s", what, describe(f))
		}
	}
	if f := old.ask(&workerv1.Finish{Ref: ref(single), Outcome: workerv1.OutcomeSucceeded, Result: []byte(`{}`)}); active(f) || !strings.Contains(describe(f), "EVIDENCE_ONLY") {
		t.Errorf("a finish of an attempt of the lost cluster: %s", describe(f))
	}
	if info, err := fresh.Get(t.Context(), once); err != nil || info.State == sdk.StateSucceeded {
		t.Errorf("the finish changed the task: %+v %v", info, err)
	}

	// The idempotent task is leased again, under a token that the resource takes;
	// the old one it refuses from then on.
	again := old.assigned()
	if again.Task.ID.String() != keyed {
		t.Errorf("assigned %s, want %s", again.Task.ID, keyed)
	}
	if again.ConcurrencyToken <= oldToken || again.Epoch <= running.Epoch || again.Epoch <= first.FenceBase {
		t.Errorf("token %d after %d, epoch %d after %d", again.ConcurrencyToken, oldToken, again.Epoch, running.Epoch)
	}
	largest, refusals := uint64(0), 0
	for _, token := range []uint64{oldToken, again.ConcurrencyToken, oldToken} { // the old worker wakes up
		if token < largest {
			refusals++
		}
		largest = max(largest, token)
	}
	if refusals != 1 {
		t.Errorf("the fenced resource refused %d writes", refusals)
	}
	// What may run only once waits for a person: what ran, and what may have.
	other := newHand(t)
	other.connect(servers[2].URL())
	until(t, "the task that ran is reviewed", func() (bool, string) {
		info, err := fresh.Get(t.Context(), once)
		if err != nil {
			return false, err.Error()
		}
		return info.State == sdk.StateNeedsReview, string(info.State)
	})
	if info, err := fresh.Get(t.Context(), waiting); err != nil || info.State != sdk.StateWaiting {
		t.Errorf("the task that nobody can run is %+v, %v", info, err)
	}

	// The same backup once more: every number is above those of the first restore.
	mustPulse(t, &second, "cluster", "restore", file, "--data", filepath.Join(t.TempDir(), "again"), "--cluster-secret-file", secret)
	if second.FenceBase <= again.Epoch || second.ClusterID == first.ClusterID {
		t.Errorf("the second restore begins at %d, the first has reached %d", second.FenceBase, again.Epoch)
	}
}

// TestALostQuorumIsMadeANewCluster: two of three servers are gone for ever. What
// the third one has becomes a new cluster, and the old ones are refused when they
// come back after all.
func TestALostQuorumIsMadeANewCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Parallel() // most of it is waiting
	secret := secretFile(t)
	servers := three(t, secret)
	start(t, servers...)
	c := client(servers...)
	var ids []string
	for i := range 200 {
		ids = append(ids, submit(t, c, sdk.TaskSpec{Handler: "nobody", Payload: map[string]int{"n": i}}))
	}
	survivor := servers[0]
	// It has what was acknowledged: a follower learns that with the next heartbeat.
	until(t, "the survivor has it all", func() (bool, string) {
		code, body := get(survivor.URL() + "/v1/namespaces/default/tasks/" + ids[len(ids)-1] + "?consistency=stale")
		return code == 200, body
	})
	kill(t, servers...)

	// The survivor goes on under its name and its addresses, on a new directory.
	a := survivor.emptied()
	var done struct {
		NodeID string `json:"node_id"`
	}
	mustPulse(t, &done, "cluster", "restore", survivor.data(), "--data", a.data(), "--cluster-secret-file", secret, "--trust-waiting")
	if done.NodeID != "a" {
		t.Errorf("the new server is %q", done.NodeID)
	}
	start(t, a)
	alone := client(a)
	for _, id := range ids {
		if _, err := alone.Get(t.Context(), id); err != nil {
			t.Fatalf("acknowledged and gone: %s: %v", id, err)
		}
	}
	if _, err := alone.Submit(t.Context(), sdk.TaskSpec{Handler: "nobody"}); err != nil {
		t.Fatalf("the new cluster takes no work: %v", err)
	}

	// An old server comes back with its old data.
	err := servers[1].try()
	if err == nil || !strings.Contains(err.Error(), "given up for lost") {
		t.Errorf("an old server with its old data: %v", err)
	}
	// With an empty directory it is welcome, and so is the other.
	start(t, servers[1].emptied(), servers[2].emptied())
	untilVoters(t, a, 3)
}
