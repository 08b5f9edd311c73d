package cluster

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// startApart founds a cluster whose nodes are hosts of a network.
func startApart(t *testing.T, l layout) (*trio, *network) {
	t.Helper()
	l.network = newNetwork(t)
	return startTrioOn(t, l), l.network
}

// cutOff cuts a node's links to the other nodes; clients and workers still
// reach it.
func (c *trio) cutOff(p *process) {
	for _, o := range c.others(p) {
		c.layout.network.both(p.host, o.host, link{cut: true})
	}
}

// TestACutOffLeaderGivesUp: the leader loses the others while clients and
// workers still reach it. It answers no fresh read from its past, and nothing it
// takes has an effect.
func TestACutOffLeaderGivesUp(t *testing.T) {
	always(t)
	c, n := startApart(t, layout{})
	w, stop := c.loadPaced(4, 6, everyRun())
	var took, gap time.Duration
	const rounds = 3
	for range rounds {
		pause(2 * time.Second)
		old := c.leader(20 * time.Second)
		w.calm()
		c.cutOff(old)
		began := time.Now()
		until(t, 10*time.Second, "the cut off leader gives up", func() (bool, string) {
			s, ok := old.standing()
			return ok && s.Role != "leader", s.Role
		})
		c.leader(20*time.Second, old)
		took = max(took, time.Since(began))
		w.refusesFresh(old)
		pause(2 * time.Second)
		gap = max(gap, w.longestGap())
		n.heal()
		old.ready(30 * time.Second)
	}
	stop()
	proved(t, "a leader cut off %d times, clients and workers still at it: it gave up and answered nothing fresh; another served within %s; longest time without an acknowledged submission %s",
		rounds, took.Round(time.Millisecond), gap.Round(time.Millisecond))
}

// refusesFresh holds a node without the others to its word: reads that have to
// be fresh fail within their deadline, stale ones say that they are.
func (w *world) refusesFresh(p *process) {
	w.t.Helper()
	client := &http.Client{Timeout: patience(20 * time.Second)}
	began := time.Now()
	res, err := client.Get("http://" + p.addr + "/v1/namespaces/default/tasks?limit=1")
	if err != nil {
		w.t.Errorf("a fresh read at cut off %s is not answered: %v", p.id, err)
		return
	}
	_ = res.Body.Close()
	if res.StatusCode < 500 {
		w.t.Errorf("cut off %s answers a fresh read with %d", p.id, res.StatusCode)
	}
	if d := time.Since(began); d > patience(30*time.Second)/2 {
		w.t.Errorf("cut off %s refuses a fresh read after %s", p.id, d)
	}
	if code, body := served(w.t, "http://"+p.addr+"/v1/namespaces/default/tasks?limit=1&consistency=stale"); code != 200 {
		w.t.Errorf("cut off %s answers a stale read with %d: %.300s", p.id, code, body)
	}
}

// TestOneWayCuts: a leader that hears nobody but is heard, and one that is heard
// by nobody but hears. Neither may hold the cluster up, and terms stay calm.
func TestOneWayCuts(t *testing.T) {
	onRequest(t)
	for name, cut := range map[string]func(n *network, p *process, o *process){
		"the leader hears nobody":       func(n *network, p, o *process) { n.set(o.host, p.host, link{cut: true}) },
		"the leader is heard by nobody": func(n *network, p, o *process) { n.set(p.host, o.host, link{cut: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			c, n := startApart(t, layout{})
			w, stop := c.load(4, 6)
			pause(2 * time.Second)
			old := c.leader(20 * time.Second)
			w.calm()
			for _, o := range c.others(old) {
				cut(n, old, o)
			}
			began := time.Now()
			c.leader(20*time.Second, old)
			took := time.Since(began)
			gap := w.longestGap()
			terms := c.termsDuring(20*time.Second, old)
			n.heal()
			old.ready(30 * time.Second)
			stop()
			if terms > 3 {
				t.Errorf("%d terms in 20 s", terms)
			}
			proved(t, "%s: another serves after %s, gap %s, %d more terms in 20 s", name, took.Round(time.Millisecond), gap.Round(time.Millisecond), terms)
		})
	}
}

// termsDuring counts the terms that begin in a while, as the nodes but some see
// them.
func (c *trio) termsDuring(d time.Duration, not ...*process) uint64 {
	c.t.Helper()
	term := func() (highest uint64) {
		for _, p := range c.others(not...) {
			if s, ok := p.standing(); ok {
				highest = max(highest, s.Term)
			}
		}
		return highest
	}
	before := term()
	pause(d)
	return term() - before
}

// TestABridge: two nodes do not reach each other but both reach the third.
func TestABridge(t *testing.T) {
	onRequest(t)
	c, n := startApart(t, layout{})
	w, stop := c.load(4, 6)
	pause(2 * time.Second)
	leader := c.leader(20 * time.Second)
	rest := c.others(leader)
	// First the leader and a follower lose each other: either the leader stays,
	// or the bridge or the follower takes over and stays.
	w.calm()
	n.both(leader.host, rest[0].host, link{cut: true})
	pause(10 * time.Second)
	gap := w.longestGap()
	terms := c.termsDuring(30 * time.Second)
	c.leader(5 * time.Second)
	// The gateway without a way to the leader answers within the deadline of a
	// request, not after a quarter of an hour.
	for _, p := range []*process{leader, rest[0]} {
		began := time.Now()
		client := &http.Client{Timeout: 30 * time.Second}
		res, err := client.Post("http://"+p.addr+"/v1/namespaces/default/queues/default/tasks", "application/json", strings.NewReader(nobodysTask))
		if err != nil {
			t.Errorf("%s: %v after %s", p.id, err, time.Since(began))
			continue
		}
		_ = res.Body.Close()
		if d := time.Since(began); d > 15*time.Second {
			t.Errorf("%s answers with %d after %s", p.id, res.StatusCode, d)
		}
	}
	n.heal()
	stop()
	if terms > 3 {
		t.Errorf("%d terms in 30 s over the bridge", terms)
	}
	proved(t, "two nodes cut from each other, both at the third, for 40 s: longest gap %s, %d terms in the last 30 s; each gateway answers within the deadline",
		gap.Round(time.Millisecond), terms)
}

// TestPacketLoss: a fifth of all packets between nodes is lost, then a twentieth
// of all, clients and workers included.
func TestPacketLoss(t *testing.T) {
	onRequest(t)
	c, n := startApart(t, layout{})
	w, stop := c.load(4, 6)
	pause(time.Second)
	hosts := []*host{c.nodes[0].host, c.nodes[1].host, c.nodes[2].host}
	var terms []uint64
	var gaps []time.Duration
	for _, loss := range []float64{0.01, 0.05, 0.20} {
		n.all(link{loss: loss}, append(hosts, n.clients)...)
		w.calm()
		terms = append(terms, c.termsDuring(20*time.Second))
		gaps = append(gaps, w.longestGap().Round(time.Millisecond))
	}
	n.heal()
	stop()
	if terms[0]+terms[1] > 0 {
		t.Logf("elections at 1 %% and 5 %% loss: %d and %d", terms[0], terms[1])
	}
	proved(t, "1, 5 and 20 %% of all packets lost for 20 s each (%d in all): %v elections, longest gaps %v", n.dropped.Load(), terms, gaps)
}

// TestDelayAndReordering: packets take their time and overtake each other.
func TestDelayAndReordering(t *testing.T) {
	onRequest(t)
	c, n := startApart(t, layout{})
	w, stop := c.load(4, 6)
	pause(time.Second)
	hosts := []*host{c.nodes[0].host, c.nodes[1].host, c.nodes[2].host, n.clients}
	var terms []uint64
	var gaps []time.Duration
	for _, d := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond} {
		n.all(link{delay: d / 2, jitter: d}, hosts...)
		w.calm()
		terms = append(terms, c.termsDuring(20*time.Second))
		gaps = append(gaps, w.longestGap().Round(time.Millisecond))
	}
	n.heal()
	stop()
	proved(t, "every packet delayed by 10 to 30, 50 to 150, 125 to 375 ms, out of order, for 20 s each: %v elections, longest gaps %v", terms, gaps)
}

// TestALongPartition: a node that gossip has given up and forgotten is found
// again when the network heals.
func TestALongPartition(t *testing.T) {
	onRequest(t)
	c, n := startApart(t, layout{})
	_, stop := c.load(2, 4)
	pause(time.Second)
	lost := c.others(c.leader(20 * time.Second))[0]
	c.cutOff(lost)
	pause(80 * time.Second)
	n.heal()
	began := time.Now()
	until(t, 30*time.Second, "the lost node is a member everywhere", func() (bool, string) {
		seen := ""
		for _, p := range c.nodes {
			code, body := get(t, "http://"+p.addr+"/v1/cluster/members")
			alive := strings.Count(body, `"alive":true`)
			seen += fmt.Sprintf("%s: %d, %d alive ", p.id, code, alive)
			if code != 200 || alive != 3 {
				return false, seen
			}
		}
		return true, seen
	})
	lost.ready(30 * time.Second)
	took := time.Since(began)
	stop()
	proved(t, "a node cut off for 80 s is a member of everybody's list again %s after the network healed", took.Round(time.Millisecond))
}

// TestHalfOpenWorkers: the way between clients and one gateway falls silent
// without a word. Its workers are given up and served by the others.
func TestHalfOpenWorkers(t *testing.T) {
	onRequest(t)
	c, n := startApart(t, layout{})
	w, stop := c.load(4, 8)
	pause(2 * time.Second)
	gateway := c.others(c.leader(20 * time.Second))[0]
	w.calm()
	n.both(n.clients, gateway.host, link{cut: true})
	pause(15 * time.Second)
	gap := w.longestGap()
	until(t, 60*time.Second, "the gateway gives its silent workers up", func() (bool, string) {
		code, body := get(t, "http://"+c.leader(5*time.Second).addr+"/v1/namespaces/default/workers")
		at := strings.Count(body, fmt.Sprintf(`"gateway_id":%q`, gateway.id))
		return code == 200 && at == 0, fmt.Sprintf("%d at %s", at, gateway.id)
	})
	n.heal()
	stop()
	proved(t, "clients and workers of one gateway cut off without a word: longest gap %s, the gateway gave its workers up", gap.Round(time.Millisecond))
}
