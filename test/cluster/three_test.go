package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulse/sdk"
)

// trio is three servers that found a cluster together.
type trio struct {
	t     *testing.T
	nodes []*process
}

func startTrio(t *testing.T) *trio {
	t.Helper()
	c := &trio{t: t}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	join := freePort(t)
	for i, id := range []string{"a", "b", "c"} {
		p := newProcess(t, id)
		gossip := join
		if i > 0 {
			gossip = freePort(t)
		}
		p.args = append(p.args, "--rpc", freePort(t), "--raft", freePort(t), "--gossip", gossip,
			"--join", join, "--bootstrap-expect", "3", "--cluster-secret-file", secret)
		c.nodes = append(c.nodes, p)
	}
	for _, p := range c.nodes {
		p.start()
	}
	for _, p := range c.nodes {
		p.ready(60 * time.Second)
	}
	return c
}

func (c *trio) addrs() []string {
	var out []string
	for _, p := range c.nodes {
		out = append(out, p.addr)
	}
	return out
}

// leader is the node that the others, or it itself, say leads.
func (c *trio) leader(within time.Duration, not ...*process) *process {
	c.t.Helper()
	var found *process
	until(c.t, within, "a leader", func() (bool, string) {
		seen := ""
		for _, p := range c.nodes {
			code, body := get(c.t, "http://"+p.addr+"/v1/cluster?consistency=stale")
			var answer struct {
				Node struct {
					Role   string `json:"role"`
					Leader string `json:"leader_id"`
					Ready  bool   `json:"ready"`
				} `json:"node"`
			}
			if code != 200 || json.Unmarshal([]byte(body), &answer) != nil {
				continue
			}
			s := answer.Node
			seen += fmt.Sprintf("%s is %s (leader %q) ", p.id, s.Role, s.Leader)
			if s.Role == "leader" && s.Ready {
				found = p
				for _, n := range not {
					if n == p {
						found = nil
					}
				}
				if found != nil {
					return true, seen
				}
			}
		}
		return false, seen
	})
	return found
}

// load runs clients and workers on the cluster until stop, and checks what they
// saw.
func (c *trio) load(clients, workers int) (w *world, stop func()) {
	t := c.t
	t.Helper()
	w = newWorld(t, c.addrs()...)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	if _, err := client.PutQueue(t.Context(), "default", sdk.QueueSettings{LeaseDurationMillis: 5000, OfferDurationMillis: 2000}); err != nil {
		t.Fatal(err)
	}
	queue, err := w.queueID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var stops []func()
	for i := range workers {
		k := newWorker(w, i, queue)
		if i == 0 {
			k.dieAfterEffect = 0.02
		}
		stops = append(stops, background(t, k.run))
	}
	t.Cleanup(w.end)
	load, endLoad := context.WithCancel(t.Context())
	t.Cleanup(endLoad)
	var submitted sync.Map
	var submitting sync.WaitGroup
	for n := range clients {
		submitting.Go(func() { w.submit(load, client, n, &submitted) })
	}
	return w, func() {
		endLoad()
		submitting.Wait()
		w.settle(client, &submitted)
		w.end()
		for _, s := range stops {
			s()
		}
		w.check()
	}
}

// TestKillTheLeaderUnderLoad: any node may die at any moment. The leader is
// killed again and again, sometimes paused first, and comes back.
func TestKillTheLeaderUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	c := startTrio(t)
	_, stop := c.load(4, 6)
	for n := range 5 {
		pause(2*time.Second + time.Duration(mrand.Int64N(int64(time.Second))))
		leader := c.leader(20 * time.Second)
		if n%2 == 1 {
			// Paused first: it may believe for a while that it still leads.
			leader.signal(syscall.SIGSTOP)
			pause(time.Duration(mrand.Int64N(int64(2 * time.Second))))
		}
		leader.kill()
		began := time.Now()
		c.leader(20*time.Second, leader)
		t.Logf("leader %s killed; another one serves after %s", leader.id, time.Since(began).Round(time.Millisecond))
		pause(time.Duration(mrand.Int64N(int64(time.Second))))
		leader.start()
		leader.ready(30 * time.Second)
	}
	stop()
}

// TestAllKilledAtOnce: everything acknowledged is there when they are back.
func TestAllKilledAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	c := startTrio(t)
	_, stop := c.load(4, 4)
	for range 2 {
		pause(2 * time.Second)
		for _, p := range c.nodes {
			p.kill()
		}
		// One stays away for a while: two are enough.
		order := mrand.Perm(3)
		c.nodes[order[0]].start()
		c.nodes[order[1]].start()
		began := time.Now()
		c.leader(30 * time.Second)
		t.Logf("all killed; service %s after the second was started", time.Since(began).Round(time.Millisecond))
		pause(time.Second)
		c.nodes[order[2]].start()
		c.nodes[order[2]].ready(30 * time.Second)
	}
	stop()
}

// TestAPausedLeaderServesNothingStale: after it goes on, the old leader answers
// no fresh read from its past and takes no command.
func TestAPausedLeaderServesNothingStale(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	c := startTrio(t)
	_, stop := c.load(3, 4)
	pause(time.Second)
	for range 2 {
		old := c.leader(20 * time.Second)
		old.signal(syscall.SIGSTOP)
		c.leader(20*time.Second, old)
		pause(500 * time.Millisecond)
		old.signal(syscall.SIGCONT)
		pause(1500 * time.Millisecond)
	}
	stop()
}
