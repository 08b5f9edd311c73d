package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/test/ports"
)

// newGateway is a gateway of the trio's cluster. Its directory stays empty: a
// gateway needs none.
func newGateway(t *testing.T, c *trio, id string) *process {
	t.Helper()
	p := newProcess(t, id)
	p.args = []string{"gateway", "--node-id", id, "--http", p.addr, "--rpc", ports.Free(t, "127.0.0.1"), "--gossip", ports.Free(t, "127.0.0.1")}
	first := c.nodes[0].args
	for i, flag := range first {
		if flag == "--cluster-secret-file" {
			p.args = append(p.args, flag, first[i+1])
		}
	}
	for _, n := range c.nodes {
		for i, flag := range n.args {
			if flag == "--gossip" {
				p.args = append(p.args, "--join", n.args[i+1])
			}
		}
	}
	return p
}

// fleet is a cluster of three with gateways in front: clients and workers know the
// gateways alone.
type fleet struct {
	*trio
	gateways []*process
}

func startFleet(t *testing.T, gateways int) *fleet {
	t.Helper()
	f := &fleet{trio: startTrio(t)}
	for i := range gateways {
		f.gateways = append(f.gateways, newGateway(t, f.trio, fmt.Sprintf("g%d", i+1)))
	}
	for _, g := range f.gateways {
		g.start()
	}
	for _, g := range f.gateways {
		g.ready(30 * time.Second)
	}
	return f
}

// load is that of the trio, on the gateways alone.
func (f *fleet) load(clients, workers int) (w *world, stop func()) {
	only := &trio{t: f.t, nodes: f.gateways}
	w, rest := only.loadOnly(clients, workers, 0)
	return w, func() {
		rest()
		w.check()
	}
}

// pulseAt runs a verb of the binary against a node.
func pulseAt(t *testing.T, p *process, args ...string) (string, error) {
	t.Helper()
	return pulseWithin(t, time.Minute, p, args...)
}

// pulseWithin is pulseAt for a verb that may take longer.
func pulseWithin(t *testing.T, within time.Duration, p *process, args ...string) (string, error) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(within))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "PULSE_ADDR=http://"+p.addr)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("pulse %s: %w\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return string(out), err
}

// TestEveryVerbGoesThroughAGateway: what a server answers, a gateway answers.
func TestEveryVerbGoesThroughAGateway(t *testing.T) {
	always(t)
	f := startFleet(t, 2)
	g, other := f.gateways[0], f.gateways[1]
	quiet := slog.New(slog.DiscardHandler)
	work := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{"http://" + other.addr}, Capacity: 4, Logger: quiet})
	work.Handle("echo", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) { return task.Payload(), nil })
	hold := make(chan struct{})
	work.Handle("hold", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
		select {
		case <-hold:
			return "held", nil
		case <-ctx.Done():
			return nil, sdk.Cancelled()
		}
	})
	background(t, func(ctx context.Context) { _ = work.Run(ctx) })
	must := func(args ...string) string {
		t.Helper()
		out, err := pulseAt(t, g, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	if out := must("task", "run", "echo", `{"n":1.50}`, "--wait"); !strings.Contains(out, `"n":1.50`) || !strings.Contains(out, "SUCCEEDED") {
		t.Errorf("task run --wait: %s", out)
	}
	until(t, 20*time.Second, "all are among the members, each in its role", func() (bool, string) {
		members := must("cluster", "members")
		for _, line := range []string{"g1  ", "g2  ", "a  ", "b  ", "c  "} {
			if !strings.Contains(members, line) {
				return false, members
			}
		}
		return strings.Count(members, "gateway") == 2 && strings.Count(members, "voter") == 3, members
	})
	until(t, 20*time.Second, "the status of a gateway", func() (bool, string) {
		out := must("cluster", "status")
		return strings.Contains(out, "g1, gateway") && strings.Contains(out, "Source"), out
	})
	backup := filepath.Join(t.TempDir(), "b")
	must("cluster", "backup", backup)
	must("queue", "create", "other", "--lease", "5s")
	must("queue", "pause", "other")
	must("queue", "resume", "other")
	must("queue", "get", "other")
	must("queue", "list")
	must("namespace", "create", "second")
	must("namespace", "list")
	must("worker", "list")
	must("key", "list")
	must("review", "list")
	must("cluster", "transfer")
	f.leader(20 * time.Second)
	lines := filepath.Join(t.TempDir(), "tasks.jsonl")
	if err := os.WriteFile(lines, []byte(strings.Repeat(`{"handler":"echo","handler_version":"1","payload_version":"1","payload":{}}`+"\n", 300)), 0o600); err != nil {
		t.Fatal(err)
	}
	must("task", "submit", "--file", lines)
	if out := must("task", "list", "-o", "jsonl", "--limit", "250"); strings.Count(out, "\n") != 250 {
		t.Errorf("task list: %d lines", strings.Count(out, "\n"))
	}

	// A long poll and both watches, over a task that is held until they wait.
	client := sdk.NewClient(sdk.ClientOptions{Addrs: []string{"http://" + g.addr}, Logger: quiet})
	feed := newStream(t, "http://"+g.addr+"/v1/namespaces/default/events")
	task, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "hold", HandlerVersion: "1", PayloadVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	own := newStream(t, "http://"+g.addr+"/v1/namespaces/default/tasks/"+task.ID+"/watch")
	own.until(`"state":"RUNNING"`)
	feed.until(task.ID)
	polled := make(chan string, 1)
	go func() {
		polled <- download("http://" + g.addr + "/v1/namespaces/default/tasks/" + task.ID + "?wait_state=terminal&timeout_ms=60000")
	}()
	until(t, 20*time.Second, "a long poll waits", func() (bool, string) {
		_, text := get(t, "http://"+g.addr+"/metrics")
		return strings.Contains(text, "\npulse_watchers 3"), "no third watcher"
	})
	close(hold)
	if body := <-polled; !strings.Contains(body, `"state":"SUCCEEDED"`) {
		t.Errorf("the long poll: %s", body)
	}
	own.until(`"state":"SUCCEEDED"`)
	feed.until(`"state":"SUCCEEDED"`)
	must("task", "get", task.ID)
	must("task", "why", task.ID)
	var waiting struct {
		ID string `json:"id"`
	}
	if out := must("task", "run", "nobody", "--queue", "other", "-o", "json"); json.Unmarshal([]byte(out), &waiting) != nil || waiting.ID == "" {
		t.Fatalf("task run: %s", out)
	}
	must("task", "cancel", waiting.ID)
	t.Log("proved: submit, batch, wait, list, watch, long poll, backup, transfer and the operators' verbs through a gateway without a vote")
}

// download is the body of an answer, however long it takes.
func download(url string) string {
	res, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// stream is a connection of server-sent events.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
	seen  string
}

func newStream(t *testing.T, url string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience(time.Minute))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, res.Status)
	}
	return &stream{t: t, lines: bufio.NewScanner(res.Body)}
}

func (s *stream) until(text string) {
	s.t.Helper()
	for s.lines.Scan() {
		s.seen += s.lines.Text() + "\n"
		if strings.Contains(s.lines.Text(), text) {
			return
		}
	}
	s.t.Fatalf("no %s on the stream (%v):\n%s", text, s.lines.Err(), s.seen)
}

// TestGatewaysOutliveLeadersAndEachOther: clients and workers know two gateways;
// the leader and gateways are killed under load.
func TestGatewaysOutliveLeadersAndEachOther(t *testing.T) {
	onRequest(t)
	f := startFleet(t, 2)
	_, stop := f.load(4, 6)
	for n := range 6 {
		pause(2*time.Second + time.Duration(mrand.Int64N(int64(time.Second))))
		switch n % 3 {
		case 0:
			leader := f.leader(20 * time.Second)
			leader.kill()
			f.leader(20*time.Second, leader)
			t.Logf("leader %s killed", leader.id)
			pause(time.Second)
			leader.start()
			leader.ready(30 * time.Second)
		case 1:
			g := f.gateways[mrand.IntN(2)]
			g.kill()
			t.Logf("gateway %s killed with its workers", g.id)
			pause(3 * time.Second)
			g.start()
			g.ready(30 * time.Second)
		case 2:
			g := f.gateways[mrand.IntN(2)]
			g.signal(syscall.SIGTERM)
			code := g.exit(20 * time.Second)
			t.Logf("gateway %s asked to stop: exit code %d", g.id, code)
			if code != 0 {
				t.Errorf("gateway %s ends with code %d after SIGTERM", g.id, code)
			}
			g.start()
			g.ready(30 * time.Second)
		}
	}
	stop()
	t.Log("proved: nothing acknowledged was lost and nothing was done twice while leaders and gateways died under workers that knew gateways alone")
}

// exit waits for the process to end by itself.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	p.ended(within)
	return cmd.ProcessState.ExitCode()
}

// TestSessionsGoOnAtAnotherGateway: handlers that run when their gateway dies, or
// is stopped, run to their end under the lease that they have.
func TestSessionsGoOnAtAnotherGateway(t *testing.T) {
	always(t)
	f := startFleet(t, 2)
	urls := []string{"http://" + f.gateways[0].addr, "http://" + f.gateways[1].addr}
	quiet := slog.New(slog.DiscardHandler)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: urls, Logger: quiet})
	if _, err := client.PutQueue(t.Context(), "default", sdk.QueueSettings{LeaseDurationMillis: 15000, OfferDurationMillis: 10000}); err != nil {
		t.Fatal(err)
	}
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		release := make(chan struct{})
		var begun, broken atomic.Int64
		const workers, each = 10, 2
		var stops []func()
		for range workers {
			// All on the first gateway; the second is where they may go.
			w := sdk.NewWorker(sdk.WorkerOptions{Addrs: urls, Capacity: each, Logger: quiet})
			w.Handle("hold", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
				begun.Add(1)
				select {
				case <-release:
					return nil, nil
				case <-ctx.Done():
					broken.Add(1)
					return nil, sdk.Retryable(ctx.Err())
				}
			})
			stops = append(stops, background(t, func(ctx context.Context) { _ = w.Run(ctx) }))
		}
		var ids []string
		for range workers * each {
			task, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "hold", HandlerVersion: "1", PayloadVersion: "1"})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, task.ID)
		}
		until(t, 30*time.Second, "all run", func() (bool, string) {
			return begun.Load() == workers*each, fmt.Sprint(begun.Load(), " run")
		})
		first, second := f.gateways[0], f.gateways[1]
		if sessions(t, second) > sessions(t, first) {
			first, second = second, first
		}
		had := sessions(t, first)
		began := time.Now()
		if how == syscall.SIGKILL {
			first.kill()
		} else {
			first.signal(how)
			if code := first.exit(20 * time.Second); code != 0 {
				t.Errorf("after SIGTERM it ends with code %d", code)
			}
		}
		until(t, 15*time.Second, "all sessions at the other gateway", func() (bool, string) {
			n := sessions(t, second)
			return n == workers, fmt.Sprint(n, " sessions")
		})
		t.Logf("%s: %d sessions of %s are at %s after %s", how, had, first.id, second.id, time.Since(began).Round(time.Millisecond))
		// Longer than the lease from when it was last renewed through the dead one.
		pause(16 * time.Second)
		close(release)
		for _, id := range ids {
			task, err := client.Wait(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			attempts, err := client.Attempts(t.Context(), id)
			if err != nil || task.State != "SUCCEEDED" || len(attempts) != 1 {
				t.Errorf("%s: task %s is %s after %d attempts: %v", how, id, task.State, len(attempts), err)
			}
		}
		if n := broken.Load(); n != 0 || begun.Load() != workers*each {
			t.Errorf("%s: %d begun, %d broken off", how, begun.Load(), n)
		}
		for _, stop := range stops {
			stop()
		}
		first.start()
		first.ready(30 * time.Second)
	}
	t.Log("proved: attempts outlive their gateway, killed or stopped, on the lease they have")
}

// sessions is how many a gateway holds.
func sessions(t *testing.T, p *process) int {
	t.Helper()
	_, text := served(t, "http://"+p.addr+"/metrics")
	n := -1
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "pulse_sessions %d", &n); err == nil {
			return n
		}
	}
	return n
}

// TestAGatewayFinishesWhatItIsAnswering: SIGTERM while submissions are on their
// way: each is answered, and what was answered is there.
func TestAGatewayFinishesWhatItIsAnswering(t *testing.T) {
	always(t)
	f := startFleet(t, 1)
	g := f.gateways[0]
	var submitting sync.WaitGroup
	var mu sync.Mutex
	var kept []string
	var cut []string
	stopping := make(chan struct{})
	for range 8 {
		submitting.Go(func() {
			for {
				res, err := http.Post("http://"+g.addr+"/v1/namespaces/default/queues/default/tasks", "application/json",
					strings.NewReader(`{"handler":"x","handler_version":"1","payload_version":"1","payload":{}}`))
				var body []byte
				if err == nil {
					body, err = io.ReadAll(res.Body)
					_ = res.Body.Close()
				}
				select {
				case <-stopping:
					// A client that was silent for a while may be disconnected
					// just as it speaks: on a slow machine any of these is.
					gone := false
					for _, text := range []string{"refused", "reset", "EOF", "broken pipe", "server closed idle connection"} {
						gone = gone || err != nil && strings.Contains(err.Error(), text)
					}
					if err != nil && !gone {
						mu.Lock()
						cut = append(cut, err.Error())
						mu.Unlock()
					}
					if err != nil {
						return
					}
				default:
					if err != nil {
						t.Errorf("before it was asked to stop: %v", err)
						return
					}
				}
				var task struct {
					ID string `json:"id"`
				}
				if res.StatusCode == http.StatusCreated && json.Unmarshal(body, &task) == nil && task.ID != "" {
					mu.Lock()
					kept = append(kept, task.ID)
					mu.Unlock()
				}
			}
		})
	}
	// A stream and a long poll end in good order.
	feed := newStream(t, "http://"+g.addr+"/v1/namespaces/default/events")
	feed.until("data: ")
	pause(time.Second)
	close(stopping)
	g.signal(syscall.SIGTERM)
	code := g.exit(20 * time.Second)
	submitting.Wait()
	for feed.lines.Scan() {
	}
	if err := feed.lines.Err(); err != nil {
		t.Errorf("the event stream was cut off: %v", err)
	}
	if code != 0 || len(cut) != 0 || len(kept) == 0 {
		t.Errorf("exit code %d; %d submitted; cut off: %v", code, len(kept), cut)
	}
	for _, id := range slices.Backward(kept) {
		if status, body := served(t, "http://"+f.nodes[0].addr+"/v1/namespaces/default/tasks/"+id); status != http.StatusOK {
			t.Fatalf("task %s was acknowledged: %d %s", id, status, body)
		}
	}
	t.Logf("proved: of %d submissions acknowledged by a gateway that was stopped, all are there", len(kept))
}

// TestAGatewayWithoutALeaderSaysSo: it is alive and not ready while it sees no
// leader, says so soon, and serves again by itself.
func TestAGatewayWithoutALeaderSaysSo(t *testing.T) {
	onRequest(t)
	f := startFleet(t, 1)
	g := f.gateways[0]
	// A voter that is stopped swallows what it is sent, as a black hole does.
	for _, n := range f.nodes {
		n.signal(syscall.SIGSTOP)
	}
	began := time.Now()
	until(t, 10*time.Second, "not ready", func() (bool, string) {
		code, body := get(t, "http://"+g.addr+"/readyz")
		return code == http.StatusServiceUnavailable, body
	})
	t.Logf("three black holes noticed after %s", time.Since(began).Round(time.Millisecond))
	if code, _ := get(t, "http://"+g.addr+"/healthz"); code != http.StatusOK {
		t.Errorf("it is alive: %d", code)
	}
	for _, n := range f.nodes {
		n.signal(syscall.SIGCONT)
	}
	g.ready(30 * time.Second)

	// One of three is stopped, each in turn: the one that leads and the one that
	// feeds the gateway are among them.
	for _, n := range f.nodes {
		n.signal(syscall.SIGSTOP)
		began := time.Now()
		until(t, 15*time.Second, "served without "+n.id, func() (bool, string) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			client := sdk.NewClient(sdk.ClientOptions{Addrs: []string{"http://" + g.addr}, Logger: slog.New(slog.DiscardHandler)})
			_, err := client.Submit(ctx, sdk.TaskSpec{Handler: "x", HandlerVersion: "1", PayloadVersion: "1"})
			if err == nil {
				_, err = client.Queue(ctx, "default", sdk.WithStaleRead())
			}
			return err == nil, fmt.Sprint(err)
		})
		t.Logf("%s paused: a submission and a stale read served after %s", n.id, time.Since(began).Round(time.Millisecond))
		n.signal(syscall.SIGCONT)
		n.ready(30 * time.Second)
		g.ready(30 * time.Second)
	}
	t.Log("proved: a gateway notices voters that swallow everything, and goes on with those that are left")
}
