package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/test/ports"
)

// trio is three servers that found a cluster together.
type trio struct {
	t      *testing.T
	secret string
	join   string
	layout layout
	nodes  []*process
}

// layout says what is special about the servers of a cluster.
type layout struct {
	network *network               // nil: all on this host
	dir     func(id string) string // where a server's data lies; nil: in a temporary directory
	args    []string
	env     []string
	wrap    func(id string) []string
}

func startTrio(t *testing.T) *trio { return startTrioOn(t, layout{}) }

func startTrioOn(t *testing.T, l layout) *trio {
	t.Helper()
	c := &trio{t: t, layout: l}
	c.secret = filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(c.secret, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		p := c.newServer(id)
		p.args = append(p.args, "--bootstrap-expect", "3")
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

// newServer prepares one more server of the cluster.
func (c *trio) newServer(id string) *process {
	c.t.Helper()
	var h *host
	listen := func(int) string { return ports.Free(c.t, "127.0.0.1") }
	if c.layout.network != nil {
		h = c.layout.network.host()
		listen = func(n int) string { return fmt.Sprintf("%s:%d", h.addr, 7400+n) }
	}
	dir := c.t.TempDir()
	if c.layout.dir != nil {
		dir = c.layout.dir(id)
	}
	p := newProcessAt(c.t, id, dir, listen(0))
	p.host, p.env = h, c.layout.env
	if c.layout.wrap != nil {
		p.wrap = c.layout.wrap(id)
	}
	gossip := listen(3)
	if c.join == "" {
		c.join = gossip
	}
	p.args = append(p.args, "--rpc", listen(1), "--raft", listen(2), "--gossip", gossip, "--join", c.join,
		"--cluster-secret-file", c.secret)
	p.args = append(p.args, c.layout.args...)
	return p
}

// others are the nodes but these.
func (c *trio) others(not ...*process) []*process {
	var out []*process
	for _, p := range c.nodes {
		if !slices.Contains(not, p) {
			out = append(out, p)
		}
	}
	return out
}

func (c *trio) addrs() []string {
	var out []string
	for _, p := range c.nodes {
		out = append(out, p.addr)
	}
	return out
}

// standing is how a node sees itself.
type standing struct {
	Role    string `json:"role"`
	Leader  string `json:"leader_id"`
	Ready   bool   `json:"ready"`
	Term    uint64 `json:"term,string"`
	Applied uint64 `json:"applied_index,string"`
	// Offset is how far the leader's wall clock is ahead of the cluster's clock.
	Offset int64 `json:"wall_offset_ms"`

	Hash string `json:"-"` // of the state
	At   string `json:"-"` // the index that the hash is of
}

func (p *process) standing() (s standing, ok bool) {
	code, body := get(p.t, "http://"+p.addr+"/v1/cluster?consistency=stale")
	var answer struct {
		Node  standing `json:"node"`
		State struct {
			Index string `json:"index"`
			Hash  string `json:"state_hash"`
		} `json:"state"`
	}
	if code != 200 || json.Unmarshal([]byte(body), &answer) != nil {
		return s, false
	}
	answer.Node.Hash, answer.Node.At = answer.State.Hash, answer.State.Index
	return answer.Node, true
}

// leader is the node that says that it leads and serves. Of two that say so
// the one with the higher term does.
func (c *trio) leader(within time.Duration, not ...*process) *process {
	c.t.Helper()
	var found *process
	until(c.t, within, "a leader", func() (bool, string) {
		seen, term := "", uint64(0)
		for _, p := range c.others(not...) {
			p.supervise()
			s, ok := p.standing()
			if !ok {
				continue
			}
			seen += fmt.Sprintf("%s is %s (leader %q) ", p.id, s.Role, s.Leader)
			if s.Role == "leader" && s.Ready && s.Term >= term {
				found, term = p, s.Term
			}
		}
		return found != nil, seen
	})
	return found
}

// supervised starts servers again that their watchdogs end, for as long as the test
// runs: for scenarios that write so much that the disk of a busy machine may stand still
// for a while, and are about something else.
func (c *trio) supervised() {
	background(c.t, func(ctx context.Context) {
		for look := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				look.Stop()
				return
			case <-look.C:
			}
			for _, p := range c.nodes {
				p.supervise()
			}
		}
	})
}

// same waits until all nodes have applied the same and are ready, and holds
// their states against each other.
func (c *trio) same(within time.Duration) (at standing) {
	c.t.Helper()
	until(c.t, within, "all nodes with one state", func() (bool, string) {
		seen := ""
		at = standing{}
		for _, p := range c.nodes {
			s, ok := p.standing()
			if !ok || !s.Ready {
				return false, fmt.Sprintf("%s%s does not serve (%s)", seen, p.id, s.Role)
			}
			seen += fmt.Sprintf("%s is %s at %s ", p.id, s.Role, s.At)
			if at.At != "" && s.At != at.At {
				return false, seen
			}
			if at.At != "" && s.Hash != at.Hash {
				c.t.Fatalf("at index %s %s has state %s, another has %s", s.At, p.id, s.Hash, at.Hash)
			}
			at = s
		}
		return true, seen
	})
	return at
}

// replay stops the cluster and holds one of its logs against all that was seen.
func (c *trio) replay(w *world, at standing) {
	c.t.Helper()
	for _, p := range c.nodes {
		p.kill()
	}
	if n := w.acknowledged(); n > replayTasksMax {
		c.t.Logf("the log is not replayed: %d tasks are too many for the model", n)
		return
	}
	w.replay(c.t, c.nodes[mrand.IntN(len(c.nodes))], at)
}

// load runs clients and workers on the cluster until stop, and checks what they
// saw.
func (c *trio) load(clients, workers int) (w *world, stop func()) {
	return c.loadPaced(clients, workers, 0)
}

// loadPaced is load by clients that wait between submissions.
func (c *trio) loadPaced(clients, workers int, pace time.Duration) (w *world, stop func()) {
	c.t.Helper()
	w, rest := c.loadOnly(clients, workers, pace)
	return w, func() {
		rest()
		at := c.same(60 * time.Second)
		w.check()
		c.replay(w, at)
	}
}

// loadOnly is load whose stop waits until all tasks rest, and leaves the checks
// to the caller.
func (c *trio) loadOnly(clients, workers int, pace time.Duration) (w *world, stop func()) {
	t := c.t
	t.Helper()
	w = newWorld(t, c.addrs()...)
	w.pace = pace
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
		w.enough(&submitted)
		endLoad()
		submitting.Wait()
		w.settle(client, &submitted)
		w.end()
		for _, s := range stops {
			s()
		}
	}
}

// TestKillTheLeaderUnderLoad: any node may die at any moment. The leader is
// killed again and again, sometimes paused first, and comes back.
func TestKillTheLeaderUnderLoad(t *testing.T) {
	always(t)
	c := startTrio(t)
	_, stop := c.loadPaced(4, 6, everyRun())
	var away time.Duration // nobody led for that long
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
		away += time.Since(began)
		t.Logf("leader %s killed; another one serves after %s", leader.id, time.Since(began).Round(time.Millisecond))
		pause(time.Duration(mrand.Int64N(int64(time.Second))))
		leader.start()
		leader.ready(30 * time.Second)
	}
	// A server that came back knows the time from entries alone, which come late on a
	// slow machine: so much is lost if it leads next, and not whole elections.
	at, _ := c.leader(20 * time.Second).standing()
	if lost := time.Duration(at.Offset) * time.Millisecond; lost.Abs() > max(2*time.Second, away*3/4) {
		t.Errorf("the cluster's clock is %s behind: it stood still while nobody led, for %s in all", lost, away.Round(time.Millisecond))
	}
	stop()
	proved(t, "the leader killed with SIGKILL five times, paused before twice: another served each time, nothing acknowledged was lost, the cluster's clock went on")
}

// TestAllKilledAtOnce: everything acknowledged is there when they are back.
func TestAllKilledAtOnce(t *testing.T) {
	always(t)
	c := startTrio(t)
	_, stop := c.loadPaced(4, 4, 20*time.Millisecond)
	rounds := number("PULSE_CHAOS_ROUNDS", 2)
	var service []time.Duration
	before := load1()
	for range rounds {
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
		service = append(service, time.Since(began))
		pause(time.Second)
		c.nodes[order[2]].start()
		c.nodes[order[2]].ready(30 * time.Second)
	}
	stop()
	t.Logf("MEASURED: all three killed %d times at a load of %s: a leader serves after the second was started: %s", rounds, before, spread(service))
	proved(t, "all three killed %d times at one moment: everything acknowledged is there, two of them serve without the third", rounds)
}

// TestAPausedLeaderServesNothingStale: after it goes on, the old leader answers
// no fresh read from its past and takes no command.
func TestAPausedLeaderServesNothingStale(t *testing.T) {
	always(t)
	c := startTrio(t)
	_, stop := c.loadPaced(3, 4, everyRun())
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
	proved(t, "a leader that stood still while another took over answers nothing from its past, and nothing it had begun takes effect")
}
