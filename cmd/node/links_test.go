package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulse/schema"
	"pulse/sdk"
	"pulse/test/calm"
	"pulse/test/ports"
)

var testSecret = bytes.Repeat([]byte("s"), 32)

// several makes the configs of servers that found a cluster together.
func several(t *testing.T, ids ...string) map[string]Config {
	t.Helper()
	out := map[string]Config{}
	first := ""
	for _, id := range ids {
		c := Config{
			NodeID: id, DataDir: filepath.Join(t.TempDir(), id), HTTPAddr: ports.Free(t, "127.0.0.1"), RaftAddr: ports.Free(t, "127.0.0.1"), ClusterSecret: testSecret,
			ElectionTimeout: calm.Office, WriteLimit: patience, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
			Cluster: &ClusterConfig{RPCAddr: ports.Free(t, "127.0.0.1"), GossipAddr: ports.Free(t, "127.0.0.1"), BootstrapExpect: len(ids)},
		}
		if first == "" {
			first = c.Cluster.GossipAddr
		} else {
			c.Cluster.Join = []string{first}
		}
		out[id] = c
	}
	return out
}

// up starts nodes at the same time and waits until they serve.
func up(t *testing.T, configs map[string]Config) map[string]*Node {
	t.Helper()
	var mu sync.Mutex
	out := map[string]*Node{}
	var starting sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*calm.Patience)
	defer cancel()
	for id, c := range configs {
		starting.Go(func() {
			n, err := Start(ctx, c)
			if err == nil {
				t.Cleanup(func() { _ = n.Close(context.Background()) })
				err = n.WaitReady(ctx)
			}
			if err != nil {
				t.Errorf("%s: %v", id, err)
				return
			}
			mu.Lock()
			out[id] = n
			mu.Unlock()
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return out
}

// post sends a request as a client does, again while there is no leader.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	return ask(t, http.DefaultClient, http.MethodPost, url, body)
}

// leaderOf is whom a node that leads says it is.
func leaderOf(t *testing.T, nodes map[string]*Node) (leader string) {
	t.Helper()
	eventually(t, "somebody leads", func() bool {
		for id, n := range nodes {
			if n.raft.LeaderID() == id {
				leader = id
				return true
			}
		}
		return false
	})
	return leader
}

const aTask = `{"handler":"h","handler_version":"1","payload_version":"1","payload":{"n":1.50}}`

func TestThreeServersFoundAClusterAndOutliveTheirLeader(t *testing.T) {
	t.Parallel()
	configs := several(t, "a", "b", "c")
	nodes := up(t, configs)
	for id, n := range nodes {
		// Whoever leads, each node takes the task: it forwards.
		if code, body := post(t, n.URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
			t.Fatalf("submitted through %s: %d %s", id, code, body)
		}
		eventually(t, id+" sees three members", func() bool { return len(n.Members()) == 3 })
	}
	cluster := nodes["a"].dir.Node.ClusterID
	for id, n := range nodes {
		if n.dir.Node.ClusterID != cluster {
			t.Errorf("%s is of cluster %s, a of %s", id, n.dir.Node.ClusterID, cluster)
		}
	}
	leader := leaderOf(t, nodes)
	if err := nodes[leader].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, n := range nodes {
		if id == leader {
			continue
		}
		if code, body := post(t, n.URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
			t.Fatalf("after the leader left, through %s: %d %s", id, code, body)
		}
		// A fresh read anywhere sees all four or five.
		_, list := ask(t, http.DefaultClient, http.MethodGet, n.URL()+"/v1/namespaces/default/tasks", "")
		if got := strings.Count(list, `"state":"WAITING"`); got < 4 {
			t.Errorf("%s lists %d tasks: %s", id, got, list)
		}
	}
	// It comes back with its directory and is one of them again.
	back := up(t, map[string]Config{leader: configs[leader]})
	if code, body := post(t, back[leader].URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
		t.Fatalf("through the one that came back: %d %s", code, body)
	}
}

func TestAServerWithoutItsDiskJoinsAsALearnerFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("learners have to be stable for a while")
	}
	t.Parallel()
	configs := several(t, "a", "b", "c")
	nodes := up(t, configs)
	wiped := "a"
	if nodes["a"].raft.LeaderID() == "a" {
		wiped = "b"
	}
	if err := nodes[wiped].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(configs[wiped].DataDir); err != nil {
		t.Fatal(err)
	}
	c := configs[wiped]
	for id := range nodes {
		if id != wiped {
			c.Cluster.Join = append(c.Cluster.Join, configs[id].Cluster.GossipAddr)
		}
	}
	back := up(t, map[string]Config{wiped: c})[wiped]
	other := nodes["c"]
	deadline := time.After(2 * calm.Patience)
	for seen := map[string]bool{}; ; {
		state := "gone"
		for _, s := range other.Status().Servers {
			if s.ID == wiped {
				state = fmt.Sprintf("voter %t", s.Voter)
			}
		}
		seen[state] = true
		if state == "voter true" && seen["voter false"] {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("it was seen as %v", seen)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if back.dir.Node.ClusterID != other.dir.Node.ClusterID || len(back.dir.Node.FirstVoters) != 0 {
		t.Errorf("its directory says %+v", back.dir.Node)
	}
}

func TestOperatorsSeeMoveAndRemoveServers(t *testing.T) {
	t.Parallel()
	nodes := up(t, several(t, "a", "b", "c"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*calm.Patience)
	defer cancel()
	leader := leaderOf(t, nodes)
	var others []string
	for _, id := range []string{"a", "b", "c"} {
		if id != leader {
			others = append(others, id)
		}
	}
	through := sdk.NewClient(sdk.ClientOptions{Addrs: []string{nodes[others[0]].URL()}}) // it does not lead, and forwards
	for id, n := range nodes {
		want := sdk.Member{
			ID: id, Role: "voter", HTTP: n.Addr(), RPC: n.cfg.Cluster.RPCAddr, Raft: n.cfg.RaftAddr,
			Version: n.cfg.Version, Voter: true, Alive: true,
		}
		// Who is slow to answer is listed without what it would say of itself.
		awaitMember(ctx, t, through, id, func(m *sdk.Member) bool {
			if m == nil || m.AppliedIndex == nil || m.LastContactMs == nil {
				return false
			}
			// How far each has come changes while it is asked.
			want.AppliedIndex, want.LastContactMs, want.SnapshotAt = m.AppliedIndex, m.LastContactMs, m.SnapshotAt
			want.Leader = id == leaderOf(t, nodes)
			return *m == want
		})
	}
	if members, err := through.Members(ctx); err != nil || !slices.IsSortedFunc(members, func(a, b *sdk.Member) int { return strings.Compare(a.ID, b.ID) }) {
		t.Errorf("not in order: %+v %v", members, err)
	}

	if got, err := through.Transfer(ctx, others[1]); got != others[1] || err != nil {
		t.Fatalf("leadership went to %q: %v", got, err)
	}
	if got, err := through.Transfer(ctx, ""); got == others[1] || nodes[got] == nil || err != nil {
		t.Fatalf("leadership went to %q: %v", got, err)
	}
	if got, err := through.Transfer(ctx, leader); got != leader || err != nil {
		t.Fatalf("leadership went to %q: %v", got, err)
	}
	if _, err := through.Transfer(ctx, "nobody"); !errors.Is(err, schema.NotFound) {
		t.Errorf("to nobody: %v", err)
	}

	gone := others[1]
	for id, want := range map[string]schema.Code{gone: schema.Conflict, "nobody": schema.NotFound} {
		if err := through.RemoveServer(ctx, id, false); !errors.Is(err, want) {
			t.Errorf("the removal of %s: %v, want %s", id, err, want)
		}
	}
	if err := through.RemoveServer(ctx, leader, true); !errors.Is(err, schema.Conflict) {
		t.Errorf("the removal of the leader: %v", err)
	}
	if err := nodes[gone].Close(ctx); err != nil {
		t.Fatal(err)
	}
	// It is silent now, and still listed: its vote counts.
	awaitMember(ctx, t, through, gone, func(m *sdk.Member) bool { return m != nil && m.Voter && !m.Alive && m.Raft != "" })
	if err := through.RemoveServer(ctx, gone, true); err != nil {
		t.Fatal(err)
	}
	awaitMember(ctx, t, through, gone, func(m *sdk.Member) bool { return m == nil })
	if err := through.RemoveServer(ctx, gone, true); !errors.Is(err, schema.NotFound) {
		t.Errorf("once more: %v", err)
	}
	if code, body := post(t, nodes[others[0]].URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
		t.Errorf("the two that are left: %d %s", code, body)
	}
}

// awaitMember asks until a member, nil if it is not listed, is as wanted.
func awaitMember(ctx context.Context, t *testing.T, c *sdk.Client, id string, as func(*sdk.Member) bool) {
	t.Helper()
	for {
		members, err := c.Members(ctx)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		var found *sdk.Member
		for _, m := range members {
			if m.ID == id {
				found = m
			}
		}
		if as(found) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is %s", id, told(found))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func told(m *sdk.Member) string {
	text, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func TestAWrongClusterConfigNamesTheField(t *testing.T) {
	t.Parallel()
	for field, spoil := range map[string]func(*Config){
		"Cluster.RPCAddr":         func(c *Config) { c.Cluster.RPCAddr = "127.0.0.1:0" },
		"Cluster.GossipAddr":      func(c *Config) { c.Cluster.GossipAddr = "nowhere" },
		"RaftAddr":                func(c *Config) { c.RaftAddr = "" },
		"without certificates":    func(c *Config) { c.RaftAddr = "10.0.0.1:7402" },
		"NodeID":                  func(c *Config) { c.NodeID = "" },
		"ClusterSecretFile":       func(c *Config) { c.ClusterSecret = nil },
		"Cluster.BootstrapExpect": func(c *Config) { c.Cluster.BootstrapExpect, c.Cluster.Join = 0, nil },
		"Cluster.Join":            func(c *Config) { c.Cluster.Join = []string{"x"} },
		"Cluster.Gateway":         func(c *Config) { c.Cluster.Gateway = true },
		"Cluster.Join is empty": func(c *Config) {
			c.Cluster = &ClusterConfig{Gateway: true, RPCAddr: c.Cluster.RPCAddr, GossipAddr: c.Cluster.GossipAddr}
			c.RaftAddr = ""
		},
	} {
		c := several(t, "a", "b")["a"]
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Two clusters of which one server each comes back at the addresses of the other's.
// Nobody joins, votes or takes work across, and both go on.
func TestClustersThatSwapTheAddressesOfAServerStayApart(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]struct {
		secret []byte
		ids    []string
	}{
		"the same secret and other names":  {testSecret, []string{"d", "e", "f"}},
		"the same names and other secrets": {bytes.Repeat([]byte("o"), 32), []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type side struct {
				ids     []string
				configs map[string]Config
				nodes   map[string]*Node
				tasks   []string
			}
			sides := []*side{{ids: []string{"a", "b", "c"}}, {ids: other.ids}}
			var starting sync.WaitGroup
			for i, s := range sides {
				s.configs = several(t, s.ids...)
				for id, c := range s.configs {
					if i == 1 {
						c.ClusterSecret = other.secret
					}
					c.Cluster.Join = []string{s.configs[s.ids[0]].Cluster.GossipAddr, s.configs[s.ids[1]].Cluster.GossipAddr}
					s.configs[id] = c
				}
				starting.Go(func() { s.nodes = up(t, s.configs) })
			}
			starting.Wait()
			submit := func(s *side, through string) {
				t.Helper()
				code, body := post(t, s.nodes[through].URL()+"/v1/namespaces/default/queues/default/tasks", aTask)
				if code != http.StatusCreated {
					t.Fatalf("through %s: %d %s", through, code, body)
				}
				var task struct{ ID string }
				if err := json.Unmarshal([]byte(body), &task); err != nil || task.ID == "" {
					t.Fatalf("%v: %s", err, body)
				}
				s.tasks = append(s.tasks, task.ID)
			}
			moves := func(s *side) string { return s.ids[2] }
			for _, s := range sides {
				submit(s, moves(s))
			}
			for _, s := range sides {
				if err := s.nodes[moves(s)].Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			was := [2]Config{sides[0].configs[moves(sides[0])], sides[1].configs[moves(sides[1])]}
			for i, s := range sides {
				c, at := was[i], was[1-i]
				cluster := *c.Cluster
				c.HTTPAddr, c.RaftAddr, cluster.RPCAddr, cluster.GossipAddr = at.HTTPAddr, at.RaftAddr, at.Cluster.RPCAddr, at.Cluster.GossipAddr
				c.Cluster = &cluster
				starting.Go(func() { s.nodes[moves(s)] = up(t, map[string]Config{moves(s): c})[moves(s)] })
			}
			starting.Wait()
			for i, s := range sides {
				for _, id := range s.ids {
					submit(s, id)
				}
				for id, n := range s.nodes {
					eventually(t, id+" knows its own", func() bool {
						var ids []string
						for _, m := range n.Members() {
							ids = append(ids, m.ID)
						}
						slices.Sort(ids)
						return slices.Equal(ids, s.ids)
					})
					var servers []string
					eventually(t, id+" knows where they are", func() bool {
						servers = nil
						at := ""
						for _, v := range n.Status().Servers {
							servers = append(servers, v.ID)
							if v.ID == moves(s) {
								at = v.Address
							}
						}
						slices.Sort(servers)
						return at == was[1-i].RaftAddr
					})
					if !slices.Equal(servers, s.ids) {
						t.Errorf("servers of %s are %v", id, servers)
					}
				}
			}
			for i, s := range sides {
				for _, id := range s.tasks {
					call(t, s.nodes[moves(s)], http.MethodGet, "/v1/namespaces/default/tasks/"+id, "", http.StatusOK)
					call(t, sides[1-i].nodes[moves(sides[1-i])], http.MethodGet, "/v1/namespaces/default/tasks/"+id, "", http.StatusNotFound)
				}
			}
		})
	}
}
