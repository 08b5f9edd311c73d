package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pulse/cluster/member"
	"pulse/fsm/state"
	"pulse/schema"
	"pulse/sdk"
	"pulse/test/ports"
)

// gatewayOf makes the config of a gateway of these servers.
func gatewayOf(t *testing.T, servers map[string]Config, id string) Config {
	t.Helper()
	c := Config{
		NodeID: id, HTTPAddr: ports.Free(t, "127.0.0.1"), ClusterSecret: testSecret, Version: "test",
		Logger:  slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
		Cluster: &ClusterConfig{Gateway: true, RPCAddr: ports.Free(t, "127.0.0.1"), GossipAddr: ports.Free(t, "127.0.0.1")},
	}
	for _, id := range slices.Sorted(maps.Keys(servers)) {
		c.Cluster.Join = append(c.Cluster.Join, servers[id].Cluster.GossipAddr)
	}
	return c
}

// echoing runs a worker on these nodes until the test ends.
func echoing(t *testing.T, urls ...string) {
	t.Helper()
	w := sdk.NewWorker(sdk.WorkerOptions{Addrs: urls, Capacity: 4, Logger: slog.New(slog.DiscardHandler)})
	w.Handle("h", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) { return task.Payload(), nil })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func TestAGatewayServesEverythingAServerServes(t *testing.T) {
	t.Parallel()
	configs := several(t, "a", "b", "c")
	nodes := up(t, configs)
	gateways := up(t, map[string]Config{"g1": gatewayOf(t, configs, "g1"), "g2": gatewayOf(t, configs, "g2")})
	g := gateways["g1"]
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	client := sdk.NewClient(sdk.ClientOptions{Addrs: []string{g.URL()}, Logger: slog.New(slog.DiscardHandler)})

	t.Log("its status names the leader, its source and the servers")
	eventually(t, "the status is as it should be", func() bool {
		_, body := ask(t, http.DefaultClient, http.MethodGet, g.URL()+"/v1/cluster", "")
		status := decode(t, []byte(body))
		servers, _ := status.get("node.servers").([]any)
		right := status.text("node.role") == "gateway" && status.text("node.leader_id") == leaderOf(t, nodes) && status.get("node.ready") == true &&
			nodes[status.text("node.source_id")] != nil && len(servers) == 3 && status.text("state.cluster_id") != ""
		if !right {
			t.Logf("not yet: %s", body)
		}
		return right
	})
	awaitMember(ctx, t, client, "g2", func(m *sdk.Member) bool {
		return m != nil && m.Role == "gateway" && !m.Voter && m.Alive && m.Raft == "" && m.HTTP == gateways["g2"].Addr()
	})
	for _, n := range nodes {
		through := sdk.NewClient(sdk.ClientOptions{Addrs: []string{n.URL()}})
		awaitMember(ctx, t, through, "g1", func(m *sdk.Member) bool { return m != nil && m.Role == "gateway" })
	}

	t.Log("a task is submitted, waited for and worked on through gateways alone")
	task, err := client.Submit(ctx, sdk.TaskSpec{Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: map[string]string{"to": "gateways"}})
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan string, 1)
	go func() { events <- watched(g.URL() + "/v1/namespaces/default/tasks/" + task.ID + "/watch") }()
	waited := make(chan error, 1)
	go func() {
		done, err := client.Wait(ctx, task.ID)
		if err == nil && (done.State != "SUCCEEDED" || !strings.Contains(string(done.Result), "gateways")) {
			err = fmt.Errorf("it is %s with %s", done.State, done.Result)
		}
		waited <- err
	}()
	eventually(t, "both are told of what is to come", func() bool { return g.front.api.Waiters() == 2 })
	echoing(t, gateways["g2"].URL())
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if got := <-events; strings.Count(got, "data: ") < 4 || !strings.Contains(got, `"state":"SUCCEEDED"`) {
		t.Errorf("the watch told %s", got)
	}
	eventually(t, "a stale list has the task", func() bool {
		_, body := call(t, g, http.MethodGet, "/v1/namespaces/default/tasks?consistency=stale", "", http.StatusOK)
		return strings.Contains(body, task.ID)
	})

	t.Log("metrics, readiness, backup and operators' verbs")
	for _, want := range []string{"pulse_ready 1", "pulse_watch_connected 1", "pulse_watch_sources_total ", "pulse_gateway_reports_failed_total"} {
		eventually(t, want+" is in its metrics", func() bool { return strings.Contains(metricsOf(t, g), want) })
	}
	if strings.Contains(metricsOf(t, g), "pulse_raft") {
		t.Error("a gateway has metrics of a log")
	}
	stream, err := client.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := state.VerifyStream(stream); err != nil || h.Rows == 0 {
		t.Errorf("backup: %+v %v", h, err)
	}
	_ = stream.Close()
	leader := leaderOf(t, nodes)
	next, err := client.Transfer(ctx, "")
	if err != nil || next == leader || nodes[next] == nil {
		t.Fatalf("transfer: %q %v", next, err)
	}
	if err := client.RemoveServer(ctx, "nobody", false); !errors.Is(err, schema.NotFound) {
		t.Errorf("remove: %v", err)
	}
	// In the new term, too.
	if _, err := client.Submit(ctx, sdk.TaskSpec{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := gateways["g2"].Close(ctx); err != nil {
		t.Fatal(err)
	}
	awaitMember(ctx, t, client, "g2", func(m *sdk.Member) bool { return m == nil })
}

// watched reads an event stream to its end.
func watched(url string) string {
	res, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	var out bytes.Buffer
	_, _ = io.Copy(&out, bufio.NewReader(res.Body)) // what has come is looked at
	return out.String()
}

func TestAGatewayWaitsForItsClusterAndSaysSo(t *testing.T) {
	t.Parallel()
	servers := several(t, "a")
	a := servers["a"]
	a.Cluster.BootstrapExpect = 1
	c := gatewayOf(t, servers, "g")
	c.DataDir = filepath.Join(t.TempDir(), "g")
	g, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	_, body := call(t, g, http.MethodGet, "/readyz", "", http.StatusServiceUnavailable)
	if !strings.Contains(body, "no server of a cluster is known") {
		t.Errorf("it is not ready because %s", body)
	}
	call(t, g, http.MethodGet, "/healthz", "", http.StatusOK)
	nodes := up(t, map[string]Config{"a": a})
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	if err := g.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(t, http.DefaultClient, http.MethodGet, g.URL()+"/readyz", ""); code != http.StatusOK {
		t.Errorf("with its cluster: %d %s", code, body)
	}
	of := nodes["a"].dir.Node.ClusterID
	eventually(t, "it says of which cluster it is", func() bool { return g.links.members.Self().ClusterID == of })

	// Without its server it is alive and not ready, and ends in good order.
	if err := nodes["a"].Close(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not ready", func() bool { return !g.Status().Ready })
	if err := g.Close(ctx); err != nil {
		t.Fatal(err)
	}

	// It remembers where it belongs.
	d, err := openDir(c)
	if err != nil {
		t.Fatal(err)
	}
	if d.Node.ClusterID != of || d.Node.NodeID != "g" {
		t.Errorf("its directory says %+v", d.Node)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c.ClusterSecret = bytes.Repeat([]byte("x"), 32)
	if _, err := openDir(c); err == nil || !strings.Contains(err.Error(), "another cluster secret") {
		t.Errorf("with another secret: %v", err)
	}
	// A server's directory is not for a gateway.
	c = gatewayOf(t, servers, "a")
	c.DataDir = a.DataDir
	if _, err := openDir(c); err == nil || !strings.Contains(err.Error(), "a server's log") {
		t.Errorf("in a server's directory: %v", err)
	}
}

func TestAGatewayCannotTakeTheNameOfAServer(t *testing.T) {
	t.Parallel()
	configs := several(t, "a", "b", "c")
	nodes := up(t, configs)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	if n, err := Start(ctx, gatewayOf(t, configs, "c")); !errors.Is(err, member.ErrTaken) {
		if err == nil {
			_ = n.Close(ctx)
		}
		t.Errorf("while the server is there: %v", err)
	}
	if err := nodes["c"].Close(ctx); err != nil {
		t.Fatal(err)
	}
	n, err := Start(ctx, gatewayOf(t, configs, "c"))
	if err == nil {
		err = n.Wait()
	}
	if !errors.Is(err, member.ErrTaken) || !strings.Contains(err.Error(), "c is the name of a server") {
		t.Errorf("while the server is away: %v", err)
	}
}

func TestGatewaysComeAndGoAndLeaveTheServersAlone(t *testing.T) {
	t.Parallel()
	configs := several(t, "a", "b", "c")
	nodes := up(t, configs)
	before := nodes["a"].Status()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	for round := range 2 {
		gateways := map[string]Config{}
		for i := range 5 {
			id := fmt.Sprintf("g%d-%d", round, i)
			gateways[id] = gatewayOf(t, configs, id)
		}
		for id, g := range up(t, gateways) {
			if code, body := post(t, g.URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
				t.Errorf("through %s: %d %s", id, code, body)
			}
			if err := g.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	// Who votes is as it was: no change of the servers, and so no election by one.
	if after := nodes["a"].Status(); !slices.Equal(after.Servers, before.Servers) {
		t.Errorf("servers %v became %v", before.Servers, after.Servers)
	}
	// None of them is left in the state, as none has died.
	_, body := call(t, nodes["a"], http.MethodGet, "/v1/cluster", "", http.StatusOK)
	if strings.Contains(body, `"g0-`) || strings.Contains(body, `"g1-`) {
		t.Errorf("gateways left behind: %s", body)
	}
}
