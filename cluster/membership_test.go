package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/test/calm"
	"pulse/test/ports"
)

// town is servers on loopback ports, and who of them is alive as gossip would
// tell.
type town struct {
	t  *testing.T
	mu sync.Mutex
	up map[string]*testNode
	// late are servers that gossip still calls fresh and alive.
	late []Member
	// behind is how many entries fewer a server says it has applied.
	behind map[string]uint64
}

func (c *town) Live() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := append([]Member(nil), c.late...)
	for id, n := range c.up {
		out = append(out, Member{ID: id, Address: string(n.transport.LocalAddr()), Fresh: n.raft.LastIndex() == 0, Unproven: n.Unproven()})
	}
	return out
}

func (c *town) Stats(_ context.Context, id string) (MemberStats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.up[id]
	if n == nil {
		return MemberStats{}, fmt.Errorf("%s is down", id)
	}
	return MemberStats{LastContact: n.sinceContact(), LastTerm: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(), AppliedIndex: n.cfg.Machine.AppliedIndex() - min(n.cfg.Machine.AppliedIndex(), c.behind[id]), Empty: n.raft.LastIndex() == 0}, nil
}

// start brings a server up; founders start with the first configuration.
func (c *town) start(id, dir, listen string, founders []Server) *testNode {
	c.t.Helper()
	return c.startWith(id, dir, listen, founders, func(*Config) {})
}

func (c *town) startWith(id, dir, listen string, founders []Server, change func(*Config)) *testNode {
	c.t.Helper()
	n := startNode(c.t, dir, func(cfg *Config) {
		cfg.ID, cfg.Bootstrap, cfg.Listen = id, founders, listen
		cfg.HeartbeatTimeout, cfg.LeaderLeaseTimeout = calm.Office, calm.Office
		cfg.Duties = nil
		change(cfg)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up[id] = n
	return n
}

func (c *town) stop(id string) string {
	c.t.Helper()
	c.mu.Lock()
	n := c.up[id]
	delete(c.up, id)
	c.mu.Unlock()
	address := string(n.transport.LocalAddr())
	n.shut(c.t)
	return address
}

func (c *town) leader() *testNode {
	c.t.Helper()
	var leader *testNode
	eventually(c.t, "there is a leader", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, n := range c.up {
			if n.office.Load() != nil && n.raft.State() == raft.Leader {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

// transfer hands leadership over. Raft gives that up when the other does not take it
// at once, and then it is asked again.
func transfer(t *testing.T, n *testNode, to string) (leaderID string, err error) {
	t.Helper()
	eventually(t, "leadership is handed over, or refused", func() bool {
		leaderID, err = n.Transfer(t.Context(), to)
		return code(err) != schema.Unavailable
	})
	return leaderID, err
}

// Leadership is not handed to a server that cannot take it, however often that is
// asked for, and the refusal says what could be done.
func TestATransferToAServerThatCannotLeadIsAConflict(t *testing.T) {
	t.Parallel()
	c := newClocks(t, nil)
	leader := c.leader()
	down := c.other(leader)
	up := c.other(leader, down)
	c.stop(down.cfg.ID)
	for _, refused := range []struct {
		to   string
		code schema.Code
		says string
	}{
		{down.cfg.ID, schema.Conflict, "name a server that is up"},
		{"stranger", schema.NotFound, "leadership can go to " + up.cfg.ID},
	} {
		_, err := leader.Transfer(t.Context(), refused.to)
		if code(err) != refused.code || !strings.Contains(err.Error(), refused.says) {
			t.Errorf("a transfer to %s answers %v", refused.to, err)
		}
		if refused.to != down.cfg.ID && strings.HasSuffix(err.Error(), down.cfg.ID) {
			t.Errorf("a transfer to %s could go to a server that is down: %v", refused.to, err)
		}
	}
	leader.submit(t, "it still leads")
}

// A server whose raft port cannot be reached answers on its other port all the same.
// Raft would wait for it, and take no entry meanwhile, so it is not asked.
func TestATransferToAServerThatRaftCannotReachIsAConflict(t *testing.T) {
	t.Parallel()
	c := newClocks(t, nil)
	leader := c.leader()
	deaf := c.other(leader)
	up := c.other(leader, deaf)
	deaf.disconnect()
	for i := range 3 {
		leader.submit(t, fmt.Sprint("it leads on ", i)) // which the deaf one lacks
		_, err := leader.Transfer(t.Context(), deaf.cfg.ID)
		if code(err) != schema.Conflict || !strings.Contains(err.Error(), "raft port") {
			t.Errorf("a transfer to a server that raft does not reach answers %v", err)
		}
	}
	leader.submit(t, "it still leads")
	// Nobody is named: it goes to one that can be reached.
	if id, err := transfer(t, leader, ""); err != nil || id != up.cfg.ID {
		t.Fatalf("a transfer to anybody: %q %v", id, err)
	}
	eventually(t, "the other leads", func() bool { return up.office.Load() != nil })
	up.submit(t, "it leads now")
}

// One server alone has nobody to hand its office to.
func TestATransferOfALoneServerIsAConflict(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil)
	n.lead(t)
	if _, err := n.Transfer(t.Context(), ""); code(err) != schema.Conflict || !strings.Contains(err.Error(), "the only voter") {
		t.Errorf("%v", err)
	}
	if _, err := n.Transfer(t.Context(), "stranger"); code(err) != schema.NotFound || !strings.Contains(err.Error(), "is its only voter") {
		t.Errorf("%v", err)
	}
}

// duty runs the membership duty on a leader until the function it returns.
func (c *town) duty(n *testNode) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	d := n.MembershipDuty(c)
	running.Go(func() { _ = d.Run(ctx, n.raft.CurrentTerm()) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	c.t.Cleanup(stop)
	return stop
}

func suffrages(n *testNode) string {
	out := ""
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		out += fmt.Sprintf("%s=%s ", s.ID, s.Suffrage)
	}
	return out
}

func wait(t *testing.T, n *testNode, what string, ok func(map[raft.ServerID]raft.Server) bool) {
	t.Helper()
	limit := time.After(2 * calm.Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok(n.servers()) {
		select {
		case <-limit:
			t.Fatalf("%s: servers are %s", what, suffrages(n))
		case <-tick.C:
		}
	}
}

func TestServersJoinReplaceTheDeadAndStayOutOnceRemoved(t *testing.T) {
	if testing.Short() {
		t.Skip("learners have to be stable for a while")
	}
	t.Parallel()
	c := &town{t: t, up: map[string]*testNode{}}
	const any = "127.0.0.1:0"
	a := c.start("a", t.TempDir(), any, []Server{{ID: "a"}})
	a.lead(t)
	a.submit(t, "first")
	stop := c.duty(a)

	// Two more join empty: learners first, voters when they keep up.
	c.start("b", t.TempDir(), any, nil)
	wait(t, a, "b is let in as a learner", func(s map[raft.ServerID]raft.Server) bool { return s["b"].Suffrage == raft.Nonvoter && s["b"].ID != "" })
	dirC := t.TempDir()
	c.start("c", dirC, any, nil)
	voters := func(want int) func(map[raft.ServerID]raft.Server) bool {
		return func(s map[raft.ServerID]raft.Server) bool {
			n := 0
			for _, x := range s {
				if x.Suffrage == raft.Voter {
					n++
				}
			}
			return n == want && len(s) == want
		}
	}
	wait(t, a, "three voters", voters(3))

	// One dies: with three it stays in the configuration, nobody has its place.
	addressC := c.stop("c")
	if err := a.Remove(t.Context(), "c", false); code(err) != schema.Conflict {
		t.Errorf("removing the third voter answers %v", err)
	}
	// Another joins: it gets a vote, and then the dead one goes.
	c.start("d", t.TempDir(), any, nil)
	wait(t, a, "d has c's place", func(s map[raft.ServerID]raft.Server) bool {
		_, gone := s["c"]
		return !gone && voters(3)(s)
	})

	// The removed server comes back with its old data: it stays out, and does not
	// disturb. Nor does it get in while gossip, which is late, shows it as it was
	// when it was empty.
	c.mu.Lock()
	c.late = []Member{{ID: "c", Address: addressC, Fresh: true}}
	c.mu.Unlock()
	term := a.raft.CurrentTerm()
	back := c.start("c", dirC, addressC, nil)
	pausing(t, 3*time.Second)
	if _, in := a.servers()["c"]; in || a.raft.CurrentTerm() != term || a.raft.State() != raft.Leader {
		t.Errorf("the removed server is in: %t, term %d was %d", in, a.raft.CurrentTerm(), term)
	}
	if back.office.Load() != nil {
		t.Error("the removed server leads")
	}
	stop()
}

func TestAVoterWithAnEmptyDiskVotesOnlyWhenItIsPromotedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("learners have to be stable for a while")
	}
	t.Parallel()
	c := &town{t: t, up: map[string]*testNode{}}
	var servers []Server
	listens := map[string]string{}
	dirs := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		listens[id] = ports.Free(t, "127.0.0.1")
		dirs[id] = t.TempDir()
		servers = append(servers, Server{id, listens[id]})
	}
	for _, s := range servers {
		c.start(s.ID, dirs[s.ID], s.Address, servers)
	}
	leader := c.leader()
	leader.submit(t, "first")
	wiped := "a"
	if leader.cfg.ID == "a" {
		wiped = "b"
	}
	c.stop(wiped)
	if err := os.RemoveAll(dirs[wiped]); err != nil {
		t.Fatal(err)
	}
	n := c.start(wiped, dirs[wiped], listens[wiped], nil)
	if !n.guard.learner.Load() {
		t.Fatal("a server that begins empty would vote")
	}
	eventually(t, "it has the log again", func() bool { return n.raft.LastIndex() > 0 })
	if !n.guard.keepsOut() {
		t.Fatal("it would vote before it was promoted again")
	}
	// Nobody noticed in time that it was fresh: an operator removes it, and it
	// joins as what it is.
	c.stop(wiped)
	if err := leader.Remove(t.Context(), wiped, true); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dirs[wiped]); err != nil {
		t.Fatal(err)
	}
	n = c.start(wiped, dirs[wiped], listens[wiped], nil)
	stop := c.duty(leader)
	wait(t, leader, "it is a voter again", func(s map[raft.ServerID]raft.Server) bool { return s[raft.ServerID(wiped)].Suffrage == raft.Voter })
	eventually(t, "it may vote", func() bool { return !n.guard.keepsOut() })
	stop()

	// Leadership is handed over on request.
	id, err := transfer(t, leader, "")
	if err != nil || id == leader.cfg.ID {
		t.Errorf("transfer: %q %v", id, err)
	}
	if _, err := leader.Transfer(t.Context(), ""); code(err) != schema.NotLeader {
		t.Errorf("a transfer asked of a follower answers %v", err)
	}
}

// Of five voters two are down. To take away one of the three that are up would leave
// four, of which two cannot elect anybody; to take away one that is down is right.
func TestARemovalThatWouldLoseTheQuorumIsRefused(t *testing.T) {
	t.Parallel()
	c := &town{t: t, up: map[string]*testNode{}}
	var servers []Server
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		servers = append(servers, Server{id, ports.Free(t, "127.0.0.1")})
	}
	for _, s := range servers {
		c.startWith(s.ID, t.TempDir(), s.Address, servers, func(cfg *Config) { cfg.Members = c })
	}
	leader := c.leader()
	down := c.other(leader)
	alsoDown := c.other(leader, down)
	up := c.other(leader, down, alsoDown)
	if err := leader.refuseLoss(t.Context(), up.cfg.ID); err != nil {
		t.Errorf("with all five up: %v", err)
	}
	c.stop(down.cfg.ID)
	c.stop(alsoDown.cfg.ID)
	leader = c.leader()
	up = c.other(leader)
	ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
	defer cancel()
	err := leader.Remove(ctx, up.cfg.ID, false)
	if code(err) != schema.Conflict || !strings.Contains(err.Error(), down.cfg.ID) || !strings.Contains(err.Error(), alsoDown.cfg.ID) {
		t.Errorf("removing a third of five answers %v", err)
	}
	leader.submit(t, "it still leads")
	if err := leader.Remove(ctx, down.cfg.ID, false); err != nil {
		t.Errorf("removing one that is down: %v", err)
	}
	leader.submit(t, "four are left, of which three are up")
	if err := leader.Remove(ctx, up.cfg.ID, false); err != nil {
		t.Errorf("of the three that would be left two are up: %v", err)
	}
	leader.submit(t, "three are left, of which two are up")
}

// pausing lets time pass in which nothing must happen.
func pausing(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

func code(err error) schema.Code {
	var e *schema.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// A leader that waits for a server which is away does not wait at its old address
// when it comes back at another.
func TestAServerThatComesBackElsewhereIsSentWhatItMissed(t *testing.T) {
	t.Parallel()
	c := &town{t: t, up: map[string]*testNode{}}
	var servers []Server
	dirs := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		dirs[id] = t.TempDir()
		servers = append(servers, Server{id, ports.Free(t, "127.0.0.1")})
	}
	for _, s := range servers {
		c.start(s.ID, dirs[s.ID], s.Address, servers)
	}
	away := "a"
	if c.leader().cfg.ID == away {
		away = "b"
	}
	c.stop(away)
	leader := c.leader()
	for i := range 10 {
		leader.submit(t, fmt.Sprint("while one is away ", i))
	}
	back := c.start(away, dirs[away], ports.Free(t, "127.0.0.1"), nil)
	stop := c.duty(leader)
	eventually(t, "it has what it missed", func() bool { return back.cfg.Machine.AppliedIndex() >= leader.cfg.Machine.AppliedIndex() })
	stop()
}

// Two clusters, whose servers have the same names, and of which one each comes back at
// the address of the other. Who calls the old address reaches a stranger.
func TestClustersThatSwapAnAddressStayApart(t *testing.T) {
	t.Parallel()
	type side struct {
		*town
		name    string
		servers []Server
		dirs    map[string]string
		moved   *testNode
	}
	const moves = "c"
	sides := []*side{{name: "one"}, {name: "two"}}
	start := func(s *side, id, address string) *testNode {
		return s.startWith(id, s.dirs[id], address, s.servers, func(cfg *Config) { cfg.ClusterID = []byte(s.name) })
	}
	for _, s := range sides {
		s.town, s.dirs = &town{t: t, up: map[string]*testNode{}}, map[string]string{}
		for _, id := range []string{"a", "b", moves} {
			s.dirs[id] = t.TempDir()
			s.servers = append(s.servers, Server{id, ports.Free(t, "127.0.0.1")})
		}
		for _, server := range s.servers {
			start(s, server.ID, server.Address)
		}
	}
	// submit proposes as a client does, wherever the lead is by then.
	submit := func(s *side, what string) {
		t.Helper()
		eventually(t, what+" is taken", func() bool {
			_, err := s.leader().Propose(t.Context(), []*pb.Command{submission(s.name+" "+what, 0)})
			return err == nil
		})
	}
	for _, s := range sides {
		for i := range 3 {
			submit(s, fmt.Sprint("before ", i))
		}
	}
	for _, s := range sides {
		s.stop(moves)
	}
	for i, s := range sides {
		s.moved = start(s, moves, sides[1-i].servers[2].Address)
	}
	// Nobody tells the others where it is, so all they have to call is the stranger.
	for i := range 20 {
		for _, s := range sides {
			submit(s, fmt.Sprint("while it is away ", i))
		}
	}
	// Now they are told.
	for _, s := range sides {
		leader := s.leader()
		stop := s.duty(leader)
		eventually(t, "it is found where it is", func() bool {
			return leader.raft.State() != raft.Leader || s.moved.machine.AppliedIndex() >= leader.machine.AppliedIndex()
		})
		stop()
	}
	for _, s := range sides {
		submit(s, "after all")
		for id, n := range s.up {
			eventually(t, id+" has everything", func() bool { return n.machine.AppliedIndex() >= s.leader().machine.AppliedIndex() })
			count := 0
			for key := range n.machine.rows(t) {
				if strings.HasPrefix(key, "s") {
					count++
					if !strings.HasPrefix(key, "s"+s.name+" ") {
						t.Errorf("server %s of cluster %s has %q", id, s.name, key)
					}
				}
			}
			if count != 24 {
				t.Errorf("server %s of cluster %s has %d of 24 submissions", id, s.name, count)
			}
			if got := n.Status().Servers; len(got) != 3 {
				t.Errorf("server %s of cluster %s knows %v", id, s.name, got)
			}
		}
	}
}
