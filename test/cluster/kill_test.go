package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pulse/sdk"
)

// number is one that the environment may set.
func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// spread describes what was measured.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "nothing"
	}
	s := slices.Sorted(slices.Values(all))
	at := func(p float64) string { return percentile(s, p).Round(time.Millisecond).String() }
	return "p50 " + at(0.50) + ", p90 " + at(0.90) + ", p99 " + at(0.99) + ", max " + at(1)
}

// percentile is of sorted durations, of which there is one at least.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// load1 is how busy the machine is, to be said with each figure.
func load1() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(data))[0]
}

// TestAHundredLeaderKills measures how long the cluster is without a leader and
// without an answer, PULSE_CHAOS_KILLS times.
func TestAHundredLeaderKills(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.loadPaced(4, 6, 100*time.Millisecond)
	kills := number("PULSE_CHAOS_KILLS", 100)
	var leaderless, silent []time.Duration
	before := load1()
	for range kills {
		pause(time.Second + rand.N(time.Second))
		leader := c.leader(30 * time.Second)
		w.calm()
		leader.kill()
		began := time.Now()
		c.leader(30*time.Second, leader)
		leaderless = append(leaderless, time.Since(began))
		w.servesAgain(30 * time.Second)
		silent = append(silent, w.longestGap())
		leader.start()
		leader.ready(60 * time.Second)
	}
	t.Logf("MEASURED: %d kills -9 of the leader at a load of %s to %s: until another serves: %s", kills, before, load1(), spread(leaderless))
	t.Logf("MEASURED: without an acknowledged submission: %s", spread(silent))
	stop()
	proved(t, "%d kills of the leader: no acknowledged command lost, no RECONCILE_ONLY effect twice, no key with two holders, all tokens rising", kills)
}

// servesAgain waits until a submission is acknowledged from now on.
func (w *world) servesAgain(within time.Duration) {
	w.t.Helper()
	from := w.clock()
	until(w.t, within, "a submission is acknowledged", func() (bool, string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.lastServed > from, ""
	})
}

// TestFollowersKilled: one follower is nobody's matter; without two nothing is
// written, stale reads go on, and what was acknowledged is there afterwards.
func TestFollowersKilled(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(4, 6)
	pause(2 * time.Second)
	leader := c.leader(20 * time.Second)
	followers := c.others(leader)
	w.calm()
	followers[0].kill()
	pause(4 * time.Second)
	one := w.longestGap()
	followers[1].kill()
	pause(2 * time.Second)
	began := time.Now()
	client := sdk.NewClient(sdk.ClientOptions{Addr: "http://" + leader.addr, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	_, err := client.Submit(ctx, sdk.TaskSpec{Handler: "nobody", BusinessKey: "once"})
	cancel()
	took := time.Since(began)
	if err == nil {
		t.Error("a submission is acknowledged by one of three")
	}
	if took > 4*time.Second {
		t.Errorf("a submission with a deadline of 3 s fails after %s", took)
	}
	w.refusesFresh(leader)
	for _, p := range followers {
		p.start()
	}
	for _, p := range followers {
		p.ready(60 * time.Second)
	}
	// The same again is one task, whatever became of the first.
	a, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "nobody", BusinessKey: "once"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "nobody", BusinessKey: "once"})
	if err != nil || a.ID != b.ID {
		t.Errorf("one business key, tasks %s and %v (%v)", a.ID, b, err)
	}
	stop()
	proved(t, "a follower killed: longest gap %s; both: a submission fails within its deadline (%s), fresh reads are refused, stale ones are not; they come back and all is there",
		one.Round(time.Millisecond), took.Round(time.Millisecond))
}

// TestRollingRestart: one server after the other is stopped politely and started
// again, and the next one goes as soon as the one before says that it is ready.
func TestRollingRestart(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(4, 6)
	pause(2 * time.Second)
	w.calm()
	var slowest time.Duration
	for range 2 {
		for _, p := range c.nodes {
			p.stop()
			p.start()
			slowest = max(slowest, p.ready(60*time.Second))
		}
	}
	gap := w.longestGap()
	stop()
	proved(t, "two rolling restarts under load: longest gap %s, a server is ready again within %s", gap.Round(time.Millisecond), slowest.Round(time.Millisecond))
}

// TestTransfers: leadership is handed round under load, and to a server that
// stands still. No leader may be left that serves nothing.
func TestTransfers(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.load(4, 6)
	pause(2 * time.Second)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	var took []time.Duration
	failed := 0
	for i := range 30 {
		target := c.nodes[i%3]
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		_, err := client.Transfer(ctx, target.id)
		cancel()
		took = append(took, time.Since(began))
		if err != nil {
			failed++
			t.Logf("transfer to %s: %v", target.id, err)
		}
		c.leader(20 * time.Second)
		pause(300 * time.Millisecond)
	}
	// To one that does not move, twice; then the leader is cut down.
	leader := c.leader(20 * time.Second)
	still := c.others(leader)[0]
	still.signal(syscall.SIGSTOP)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := client.Transfer(ctx, still.id); err == nil {
			t.Error("leadership was handed to a server that stands still")
		}
		cancel()
	}
	w.calm()
	pause(5 * time.Second)
	gap := w.longestGap()
	still.signal(syscall.SIGCONT)
	// The one that was asked loses its office and gets it back, in the same process:
	// what is left of the transfers that were given up must not keep it from writing.
	leader = c.leader(20 * time.Second)
	leader.signal(syscall.SIGSTOP)
	c.leader(20*time.Second, leader)
	leader.signal(syscall.SIGCONT)
	leader.ready(60 * time.Second)
	until(t, 60*time.Second, leader.id+" leads again", func() (bool, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := client.Transfer(ctx, leader.id)
		s, ok := leader.standing()
		return ok && s.Role == "leader" && s.Ready, fmt.Sprint(s.Role, " ", err)
	})
	w.servesAgain(10 * time.Second)
	leader = c.leader(20 * time.Second)
	leader.kill()
	c.leader(20*time.Second, leader)
	leader.start()
	leader.ready(60 * time.Second)
	stop()
	proved(t, "30 transfers under load (%s, %d not done), two to a server that stands still (then %s without an answer at most), and each leader after that takes writes",
		spread(took), failed, gap.Round(time.Millisecond))
}

// TestDeadWorkersTasksMoveWhileLeadersChange: every election gives leases more
// time, because workers could reach nobody; that must have an end.
func TestDeadWorkersTasksMoveWhileLeadersChange(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w := newWorld(t, c.addrs()...)
	t.Cleanup(w.end)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	const lease = 8 * time.Second
	if _, err := client.PutQueue(t.Context(), "default", sdk.QueueSettings{LeaseDurationMillis: lease.Milliseconds(), OfferDurationMillis: 2000}); err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{}, 1)
	dead := make(chan struct{})
	first := sdk.NewWorker(sdk.WorkerOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler), DrainTimeout: -1})
	run, kill := context.WithCancel(t.Context())
	first.Handle("slow", "1", "1", func(context.Context, *sdk.Task) (any, error) {
		started <- struct{}{}
		<-dead // a worker that is gone reports nothing
		return nil, errors.New("it was dead")
	})
	go func() { _ = first.Run(run) }()
	info, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "slow", Retry: sdk.Retry{MaxAttempts: 5, InitialDelay: 10 * time.Millisecond, MaxDelay: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	<-started
	kill()
	began := time.Now()
	var runs atomic.Int64
	second := sdk.NewWorker(sdk.WorkerOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	second.Handle("slow", "1", "1", func(context.Context, *sdk.Task) (any, error) { runs.Add(1); return nil, nil })
	go func() { _ = second.Run(t.Context()) }()
	elections := 0
	for runs.Load() == 0 && time.Since(began) < 3*lease+30*time.Second {
		pause(3 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := client.Transfer(ctx, ""); err == nil {
			elections++
		}
		cancel()
	}
	took := time.Since(began)
	close(dead)
	if runs.Load() == 0 {
		t.Fatalf("the task of a dead worker has not moved after %s and %d elections", took, elections)
	}
	if _, err := client.Wait(t.Context(), info.ID); err != nil {
		t.Error(err)
	}
	if took > 3*lease+15*time.Second {
		t.Errorf("it took %s, with a lease of %s", took, lease)
	}
	proved(t, "an election every 3 s: the task of a dead worker moved after %s and %d elections, with a lease of %s", took.Round(time.Millisecond), elections, lease)
}

// TestDelayedTasksOverAnElection: what falls due in a while does so although
// the leader is cut down in between.
func TestDelayedTasksOverAnElection(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	late := c.delayed(func() {
		// Leadership changes three times until then, and returns.
		for range 3 {
			leader := c.leader(20 * time.Second)
			leader.kill()
			c.leader(20*time.Second, leader)
			leader.start()
			leader.ready(60 * time.Second)
		}
	})
	proved(t, "100 tasks delayed by %s over three kills of the leader: none early, none twice, late by %s", delay, late)
}

// TestDelayedTasksOverAPartition: the leader is cut off for 10 s while tasks wait
// for their time. They are there when it comes, and not when a wait that began
// before the cut would have ended.
func TestDelayedTasksOverAPartition(t *testing.T) {
	onRequest(t)
	c, n := startApart(t, layout{})
	late := c.delayed(func() {
		leader := c.leader(20 * time.Second)
		c.cutOff(leader)
		pause(10 * time.Second)
		n.heal()
		leader.ready(60 * time.Second)
	})
	proved(t, "100 tasks delayed by %s while the leader is cut off for 10 s: none early, none twice, late by %s", delay, late)
}

const delay = 15 * time.Second

// delayed submits a hundred tasks that fall due in a while, lets something happen
// until then, and says how late they ran.
func (c *trio) delayed(meanwhile func()) (late string) {
	t := c.t
	w := newWorld(t, c.addrs()...)
	t.Cleanup(w.end)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	var mu sync.Mutex
	started := map[string][]time.Time{}
	worker := sdk.NewWorker(sdk.WorkerOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	worker.Handle("due", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		started[task.ID] = append(started[task.ID], time.Now())
		return nil, nil
	})
	go func() { _ = worker.Run(t.Context()) }()
	due := map[string]time.Time{}
	for range 100 {
		at := time.Now()
		info, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "due", Delay: delay})
		if err != nil {
			t.Fatal(err)
		}
		due[info.ID] = at.Add(delay)
	}
	meanwhile()
	until(t, 60*time.Second, "all have run", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return len(started) == len(due), strconv.Itoa(len(started))
	})
	mu.Lock()
	defer mu.Unlock()
	var all []time.Duration
	for id, at := range due {
		if len(started[id]) != 1 {
			t.Errorf("task %s ran %d times", id, len(started[id]))
		}
		d := started[id][0].Sub(at)
		if d < -50*time.Millisecond {
			t.Errorf("task %s ran %s too early", id, -d)
		}
		all = append(all, d)
	}
	return spread(all)
}

// TestMonotonicClocksDiffer: what nodes count from boot has nothing to do with
// each other.
func TestMonotonicClocksDiffer(t *testing.T) {
	onRequest(t)
	needs(t, "unshare")
	offsets := map[string]string{"a": "0", "b": "1000000", "c": "50000000"}
	c := startTrioOn(t, layout{wrap: func(id string) []string {
		return []string{"unshare", "-T", "--monotonic", offsets[id], "--boottime", offsets[id], "--fork", "--kill-child"}
	}})
	_, stop := c.load(4, 6)
	for range 3 {
		pause(2 * time.Second)
		leader := c.leader(20 * time.Second)
		leader.kill()
		c.leader(20*time.Second, leader)
		leader.start()
		leader.ready(60 * time.Second)
	}
	stop()
	proved(t, "monotonic clocks that differ by 11 and 578 days: three leaders killed, no effect at all")
}

// TestWallClockSteps: the wall clock of one node, then of all, jumps by hours
// and years. No lease ends early, nothing stands still.
func TestWallClockSteps(t *testing.T) {
	onRequest(t)
	dir := t.TempDir()
	step := func(id, by string) {
		if err := os.WriteFile(dir+"/"+id, []byte(by), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := startTrioOn(t, layout{wrap: func(id string) []string {
		step(id, "0s")
		return []string{"env", "PULSE_FAULT_WALL_FILE=" + dir + "/" + id}
	}})
	w, stop := c.load(4, 6)
	w.calm()
	var gap time.Duration
	for i, by := range []string{"1h", "-1h", "87600h", "-87600h", "0s"} {
		pause(time.Second)
		leader := c.leader(20 * time.Second)
		if i%2 == 0 {
			step(leader.id, by)
		} else {
			for _, p := range c.nodes {
				step(p.id, by)
			}
		}
		pause(2 * time.Second)
		gap = max(gap, w.longestGap())
		// Another one takes over, with the clock that it has.
		leader.kill()
		c.leader(30*time.Second, leader)
		leader.start()
		pause(2 * time.Second)
		for _, p := range c.nodes {
			step(p.id, "0s")
		}
		c.leader(30 * time.Second)
		leader.ready(60 * time.Second)
		w.calm()
	}
	stop()
	proved(t, "wall clocks stepped by an hour and by ten years, forth and back, on the leader and on all, with a new leader each time: nothing lost, nothing early; longest gap in calm %s",
		gap.Round(time.Millisecond))
}
