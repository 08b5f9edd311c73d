package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pulse/schema/workerv1"
	"pulse/sdk"
)

// TestAThousandWorkersLoseTheirGateway: all workers are connected to one node,
// and it is killed. How long until each of them is served by another?
func TestAThousandWorkersLoseTheirGateway(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	leader := c.leader(20 * time.Second)
	gateway := c.others(leader)[0]
	var rest []string
	for _, p := range c.others(gateway) {
		rest = append(rest, "http://"+p.addr)
	}
	many := number("PULSE_CHAOS_WORKERS", 1000)
	quiet := slog.New(slog.DiscardHandler)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: rest, Logger: quiet})
	var ran atomic.Int64
	run, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	workers := make([]*sdk.Worker, many)
	open := &atomic.Bool{}
	for i := range workers {
		// As from a hundred hosts: what a gateway takes from one is limited.
		gate := &firstOnly{first: gateway.addr, open: open, from: net.IPv4(127, 0, 2, byte(1+i%100))}
		k := sdk.NewWorker(sdk.WorkerOptions{
			Addrs: append([]string{"http://" + gateway.addr}, rest...), Capacity: 4, Logger: quiet,
			HTTPClient: &http.Client{Transport: &http.Transport{DialContext: gate.dial}}, DrainTimeout: -1,
		})
		k.Handle("effect", "1", "1", func(context.Context, *sdk.Task) (any, error) { ran.Add(1); return nil, nil })
		workers[i] = k
		running.Go(func() { _ = k.Run(run) })
	}
	connected := func(here bool) (n int) {
		for _, k := range workers {
			if h := k.Health(); h.Connected && (strings.Contains(h.Addr, gateway.addr) == here) {
				n++
			}
		}
		return n
	}
	until(t, 120*time.Second, "all workers are at one gateway", func() (bool, string) {
		n := connected(true)
		return n == many, strconv.Itoa(n)
	})
	open.Store(true)
	before := load1()
	gateway.kill()
	began := time.Now()
	var half time.Duration
	until(t, 120*time.Second, "all workers are served by others", func() (bool, string) {
		n := connected(false)
		if half == 0 && n >= many/2 {
			half = time.Since(began)
		}
		return n == many, strconv.Itoa(n)
	})
	took := time.Since(began)
	t.Logf("MEASURED: %d workers lost their gateway at a load of %s: half of them served by others after %s, all after %s",
		many, before, half.Round(time.Millisecond), took.Round(time.Millisecond))
	// Served means that they get work.
	var ids []string
	for range 20 {
		items, err := client.SubmitBatch(t.Context(), "default", slicesOf(sdk.TaskSpec{Handler: "effect"}, 100))
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			ids = append(ids, item.Task.ID)
		}
	}
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		info, err := client.Wait(ctx, id)
		cancel()
		if err != nil || info.State != sdk.StateSucceeded {
			t.Fatalf("task %s: %v %v", id, info, err)
		}
	}
	proved(t, "%d workers of a killed gateway are served by the others after %s, and did 2,000 tasks", many, took.Round(time.Millisecond))
}

func slicesOf[T any](x T, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = x
	}
	return out
}

// firstOnly lets nobody dial another address than the first, until it is open.
type firstOnly struct {
	first string
	open  *atomic.Bool
	from  net.IP
}

func (g *firstOnly) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if addr != g.first && !g.open.Load() {
		return nil, fmt.Errorf("%s is not open yet", addr)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: g.from}}
	return d.DialContext(ctx, network, addr)
}

// TestAPausedGateway: a node that does not lead stands still with its workers
// for longer than a lease, and goes on.
func TestAPausedGateway(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(4, 8)
	var gap time.Duration
	for range 2 {
		pause(2 * time.Second)
		gateway := c.others(c.leader(20 * time.Second))[0]
		w.calm()
		gateway.signal(syscall.SIGSTOP)
		pause(12 * time.Second) // the lease is 5 s
		gap = max(gap, w.longestGap())
		gateway.signal(syscall.SIGCONT)
		gateway.ready(30 * time.Second)
	}
	stop()
	proved(t, "a gateway that stood still for 12 s, with leases of 5 s, twice: longest gap %s", gap.Round(time.Millisecond))
}

const workerEnv = "PULSE_CLUSTER_TEST_WORKER" // addresses, in a process that is a worker

// TestWorkerProcess is not a test: it is the worker that TestPausedWorkers
// starts as a process of its own. It prints each effect that it has.
func TestWorkerProcess(t *testing.T) {
	addrs := os.Getenv(workerEnv)
	if addrs == "" {
		t.Skip("runs as a child of TestPausedWorkers")
	}
	k := sdk.NewWorker(sdk.WorkerOptions{Addrs: strings.Split(addrs, ","), Capacity: 4, Logger: slog.New(slog.DiscardHandler)})
	k.Handle("effect", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) {
		pause(20 * time.Millisecond)
		name := "task " + task.ID
		if task.ConcurrencyKey != "" {
			name = "key " + task.ConcurrencyKey
		}
		_, err := fmt.Printf("EFFECT\t%s\t%s\t%d\t%t\n", name, task.ID, task.FencingToken(), task.RecoverySafety == sdk.ReconcileOnly)
		return nil, err
	})
	t.Fatal(k.Run(context.Background()))
}

// TestPausedWorkers: worker processes are killed, and stand still for longer
// than their lease in the middle of their work. The resource refuses what they
// do after that.
func TestPausedWorkers(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w := newWorld(t, c.addrs()...)
	t.Cleanup(w.end)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	if _, err := client.PutQueue(t.Context(), "default", sdk.QueueSettings{LeaseDurationMillis: 3000, OfferDurationMillis: 2000}); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	launch := func() *exec.Cmd {
		cmd := exec.Command(self, "-test.run=^TestWorkerProcess$")
		cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join(w.urls(), ","))
		cmd.Stdout = &effects{into: w.resource}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	workers := []*exec.Cmd{launch(), launch(), launch()}
	load, endLoad := context.WithCancel(t.Context())
	t.Cleanup(endLoad)
	w.pace = 20 * time.Millisecond
	var submitted sync.Map
	var submitting sync.WaitGroup
	for n := range 3 {
		submitting.Go(func() { w.submit(load, client, n, &submitted) })
	}
	for i := range 6 {
		pause(2 * time.Second)
		k := workers[i%3]
		if i%3 == 2 {
			_ = k.Process.Kill()
			_ = k.Wait()
			workers[i%3] = launch()
			continue
		}
		_ = k.Process.Signal(syscall.SIGSTOP)
		pause(7 * time.Second)
		_ = k.Process.Signal(syscall.SIGCONT)
	}
	endLoad()
	submitting.Wait()
	w.settle(client, &submitted)
	w.checkEffects()
	proved(t, "worker processes killed, and paused for 7 s with leases of 3 s: each RECONCILE_ONLY effect at most once, tokens never back; the resource refused %d effects", w.resource.refused)
}

// effects reads what a worker process prints.
type effects struct {
	into *resource
	rest string
}

func (e *effects) Write(p []byte) (int, error) {
	lines := strings.Split(e.rest+string(p), "\n")
	e.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		f := strings.Split(line, "\t")
		if len(f) != 5 || f[0] != "EFFECT" {
			continue
		}
		token, err := strconv.ParseUint(f[3], 10, 64)
		if err != nil {
			return 0, err
		}
		e.into.write(f[1], f[2], token, f[4] == "true")
	}
	return len(p), nil
}

// metric reads one value of a node's metrics; -1 if it is not there.
func metric(t *testing.T, p *process, name string) float64 {
	t.Helper()
	_, body := get(t, "http://"+p.addr+"/metrics")
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatalf("metric %s: %v", name, err)
			}
			return v
		}
	}
	return -1
}

// TestReconnectStorm: workers connect and drop their connections without any
// pause, many of them under one instance id. Others are served meanwhile, and
// nothing grows.
func TestReconnectStorm(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(2, 4)
	pause(2 * time.Second)
	queue, err := w.queueID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	goroutines := func() (n float64) {
		for _, p := range c.nodes {
			n += metric(t, p, "go_goroutines")
		}
		return n
	}
	before := goroutines()
	w.calm()
	storm, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	var connects, failures atomic.Int64
	shared := newWorker(w, 1000, queue)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			for storm.Err() == nil {
				k := newWorker(w, 1001+i, queue)
				if i%2 == 0 {
					k.id, k.secret = shared.id, shared.secret
				}
				if k.touch(storm) == nil {
					connects.Add(1)
				} else {
					failures.Add(1)
				}
			}
		})
	}
	all.Wait()
	gap := w.longestGap()
	var after float64
	until(t, 60*time.Second, "goroutines go down again", func() (bool, string) {
		after = goroutines()
		return after < before+60, fmt.Sprintf("%.0f, before the storm %.0f", after, before)
	})
	stop()
	proved(t, "%d connections with a hello in 20 s, half of them under one id (%d refused): longest gap for others %s, goroutines %.0f before and %.0f after",
		connects.Load(), failures.Load(), gap.Round(time.Millisecond), before, after)
}

// touch connects, registers and drops the connection.
func (k *worker) touch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, _, err := k.register(ctx)
	if err != nil {
		return err
	}
	return c.CloseNow()
}

// TestFlappingWorkers: a worker whose connection drops five times in three
// seconds gets work as soon as it is back.
func TestFlappingWorkers(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w := newWorld(t, c.addrs()...)
	t.Cleanup(w.end)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	var queue workerv1.ID
	until(t, 20*time.Second, "the queue", func() (bool, string) {
		q, err := w.queueID(t.Context())
		queue = q
		return err == nil, fmt.Sprint(err)
	})
	k := newWorker(w, 1, queue)
	var slowest time.Duration
	var running sync.WaitGroup
	const rounds = 15
	for range rounds {
		for range 5 {
			flap, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if conn, _, err := k.register(flap); err == nil {
				pause(rand.N(300 * time.Millisecond))
				_ = conn.CloseNow()
			}
			cancel()
		}
		run, cancel := context.WithCancel(t.Context())
		running.Go(func() { k.run(run) })
		until(t, 20*time.Second, "connected again", func() (bool, string) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.conn != nil, ""
		})
		began := time.Now()
		info, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "effect"})
		if err != nil {
			t.Fatal(err)
		}
		wait, end := context.WithTimeout(t.Context(), 30*time.Second)
		done, err := client.Wait(wait, info.ID)
		end()
		if err != nil || done.State != sdk.StateSucceeded {
			t.Fatalf("after a flap: %v, %v", done, err)
		}
		slowest = max(slowest, time.Since(began))
		cancel() // an answer that is missing is asked for in the next round
	}
	w.end()
	running.Wait()
	proved(t, "%d times five dropped connections: each time the next task was done within %s", rounds, slowest.Round(time.Millisecond))
}

// TestSlowReaders: a worker that stops reading while large tasks are pushed to
// it is cut off, its tasks go to others, and nobody else notices.
func TestSlowReaders(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(2, 4)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	queue, err := w.queueID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow := newWorker(w, 500, queue)
	slow.capacity, slow.handler = 256, "bulky"
	slow.http = &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{
		Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			if e := raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }); e != nil {
				return e
			}
			return err
		},
	}).DialContext}}
	conn, _, err := slow.register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	w.calm()
	began := time.Now()
	var ids []string
	bulk := strings.Repeat("x", 200<<10)
	for range 120 {
		info, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "bulky", Payload: bulk})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.ID)
	}
	until(t, 90*time.Second, "the slow reader is cut off", func() (bool, string) {
		info, err := client.Worker(t.Context(), slow.id.String())
		return err == nil && info.State != "connected", fmt.Sprint(info, err)
	})
	cut := time.Since(began)
	good := newWorker(w, 501, queue)
	good.handler = "bulky"
	end := background(t, good.run)
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		info, err := client.Wait(ctx, id)
		cancel()
		if err != nil || info.State != sdk.StateSucceeded {
			t.Fatalf("bulky task %s: %v %v", id, info, err)
		}
	}
	gap := w.longestGap()
	stop()
	end()
	proved(t, "a worker that reads nothing while 24 MB are pushed to it is gone after %s; another did its tasks; longest gap for others %s",
		cut.Round(time.Millisecond), gap.Round(time.Millisecond))
}

// TestHostileConnections: connections that say nothing, little, or nonsense, at
// every port.
func TestHostileConnections(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(2, 4)
	pause(2 * time.Second)
	leader := c.leader(20 * time.Second)
	before, _ := leader.standing()
	ports := func(p *process) (out []string) {
		for i, a := range p.args {
			if a == "--http" || a == "--rpc" || a == "--raft" || a == "--gossip" {
				out = append(out, p.args[i+1])
			}
		}
		return out
	}
	w.calm()
	attack, end := context.WithTimeout(t.Context(), 25*time.Second)
	defer end()
	var all sync.WaitGroup
	var opened atomic.Int64
	for _, p := range c.nodes {
		for _, addr := range ports(p) {
			for i := range 60 {
				all.Go(func() { bother(attack, addr, i, &opened) })
			}
			all.Go(func() { pelt(attack, addr) })
		}
	}
	all.Wait()
	gap := w.longestGap()
	for _, p := range c.nodes {
		if !p.runs() {
			t.Errorf("node %s has ended", p.id)
		}
	}
	now := c.leader(20 * time.Second)
	after, _ := now.standing()
	stop()
	proved(t, "%d connections to all ports that said nothing, dripped or spoke nonsense, and random datagrams to gossip, for 25 s: %d elections, longest gap %s",
		opened.Load(), after.Term-before.Term, gap.Round(time.Millisecond))
}

// bother opens connections: silent ones, ones that drip, ones with nonsense.
func bother(ctx context.Context, addr string, kind int, opened *atomic.Int64) {
	for ctx.Err() == nil {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			pause(50 * time.Millisecond)
			continue
		}
		opened.Add(1)
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		switch kind % 3 {
		case 0: // silence, until the other end has enough
			_, _ = c.Read(make([]byte, 1))
			pause(100 * time.Millisecond)
		case 1: // a request that never ends
			for _, b := range []byte("GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nX-Drip: " + strings.Repeat("x", 1000)) {
				if _, err := c.Write([]byte{b}); err != nil || ctx.Err() != nil {
					break
				}
				pause(200 * time.Millisecond)
			}
		default:
			junk := make([]byte, 1+rand.IntN(4096))
			for i := range junk {
				junk[i] = byte(rand.Uint32())
			}
			_, _ = c.Write(junk)
			pause(100 * time.Millisecond)
		}
		stop()
		_ = c.Close()
	}
}

// pelt sends random datagrams.
func pelt(ctx context.Context, addr string) {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	for ctx.Err() == nil {
		junk := make([]byte, rand.IntN(1200))
		for i := range junk {
			junk[i] = byte(rand.Uint32())
		}
		_, _ = c.Write(junk) // nobody listens at most ports
		pause(5 * time.Millisecond)
	}
}

// TestABlockedLogSink: whoever reads a node's log stops reading. The node goes on.
func TestABlockedLogSink(t *testing.T) {
	onRequest(t)
	needs(t, "sh", "sleep")
	fifo := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // holds it open and reads nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	c := startTrioOn(t, layout{
		args: []string{"--log-level", "debug"},
		wrap: func(string) []string { return []string{"sh", "-c", `exec "$@" >` + fifo + ` 2>&1`, "sh"} },
	})
	w, stop := c.load(2, 4)
	w.calm()
	for range 3 {
		pause(4 * time.Second)
		leader := c.leader(20 * time.Second)
		leader.kill()
		c.leader(20*time.Second, leader)
		leader.start()
		leader.ready(60 * time.Second)
	}
	pause(5 * time.Second)
	gap := w.longestGap()
	stop()
	proved(t, "three nodes log at debug level into a pipe that nobody reads, over three kills: longest gap %s", gap.Round(time.Millisecond))
}

// TestFewDescriptors: clients take all file descriptors that a node may have.
// Peers and workers that are there go on, and it recovers.
func TestFewDescriptors(t *testing.T) {
	onRequest(t)
	needs(t, "prlimit")
	c := startTrioOn(t, layout{wrap: func(string) []string { return []string{"prlimit", "--nofile=160:160"} }})
	w, stop := c.load(2, 4)
	pause(2 * time.Second)
	leader := c.leader(20 * time.Second)
	before, _ := leader.standing()
	w.calm()
	var held []net.Conn
	for range 300 {
		if conn, err := net.DialTimeout("tcp", leader.addr, time.Second); err == nil {
			held = append(held, conn)
		}
	}
	pause(15 * time.Second)
	gap := w.longestGap()
	for _, conn := range held {
		_ = conn.Close()
	}
	after, _ := c.leader(30 * time.Second).standing()
	stop()
	proved(t, "%d connections to a leader with 160 descriptors: %d elections, longest gap %s; it recovers", len(held), after.Term-before.Term, gap.Round(time.Millisecond))
}
