package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// clientOf is one of the cluster that logs nothing.
func (c *trio) clientOf() *sdk.Client {
	var urls []string
	for _, addr := range c.addrs() {
		urls = append(urls, "http://"+addr)
	}
	return sdk.NewClient(sdk.ClientOptions{Addrs: urls, Logger: slog.New(slog.DiscardHandler)})
}

// TestManyTimersAtOneInstant: PULSE_CHAOS_TIMERS tasks (100,000) run out of time at
// one second, while others are submitted. Each does so once, in as few entries of
// the log as they fit into, and submissions go on being answered.
func TestManyTimersAtOneInstant(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	client := c.clientOf()
	timers := number("PULSE_CHAOS_TIMERS", 100_000)
	const most = 1000 // in one submission
	// No worker takes them, so each ends by its deadline, at the same instant.
	// That has to lie behind the last submission.
	at := time.Now().Add(30*time.Second + time.Duration(timers)*time.Millisecond)
	began := time.Now()
	for done := 0; done < timers; done += most {
		specs := make([]sdk.TaskSpec, min(most, timers-done))
		for i := range specs {
			specs[i] = sdk.TaskSpec{Handler: "nobody", DeadlineAt: at}
		}
		items, err := client.SubmitBatch(t.Context(), "default", specs)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			if item.Err != nil {
				t.Fatal(item.Err)
			}
		}
	}
	loaded := time.Since(began)
	if time.Now().After(at) {
		t.Fatalf("%d tasks took %s to submit: too slow a machine for this instant", timers, loaded)
	}
	pause(time.Until(at.Add(-2 * time.Second)))
	before, ok := c.leader(10 * time.Second).standing()
	if !ok {
		t.Fatal("the leader does not say where it is")
	}

	// Others go on meanwhile, one after another.
	var mu sync.Mutex
	var took []time.Duration
	stop := background(t, func(ctx context.Context) {
		for ctx.Err() == nil {
			sent := time.Now()
			_, err := client.Submit(ctx, sdk.TaskSpec{Handler: "later", Delay: time.Hour})
			if err != nil && ctx.Err() == nil {
				t.Errorf("a submission: %v", err)
			}
			mu.Lock()
			took = append(took, time.Since(sent))
			mu.Unlock()
			pause(20 * time.Millisecond)
		}
	})
	var drained time.Duration
	until(t, 5*time.Minute, "all have run out of time", func() (bool, string) {
		left := waitingFor(t, c.leader(20*time.Second), "nobody")
		drained = time.Since(at)
		return left == 0, strconv.Itoa(left) + " left"
	})
	after, ok := c.leader(10 * time.Second).standing()
	if !ok {
		t.Fatal("the leader does not say where it is")
	}
	stop()

	failed := 0
	for task, err := range client.List(t.Context(), sdk.TaskFilter{Handler: "nobody", States: []sdk.State{sdk.StateFailed}}) {
		if err != nil {
			t.Fatal(err)
		}
		if task.Revision != 2 { // submitted, and ended once
			t.Fatalf("task %s has revision %d", task.ID, task.Revision)
		}
		failed++
	}
	if failed != timers {
		t.Errorf("%d of %d have run out of time", failed, timers)
	}
	mu.Lock()
	defer mu.Unlock()
	entries, others := int(after.Applied-before.Applied), len(took)
	// Each submission meanwhile is an entry at most; reports and ticks of calm
	// moments are some a second.
	fit := timers/1024 + 1
	if bound := fit + fit/20 + others + 20*int(drained.Seconds()+10); entries > bound {
		t.Errorf("%d timers and %d submissions made %d entries, want at most %d", timers, others, entries, bound)
	}
	c.same(60 * time.Second)
	proved(t, "%d deadlines at one instant: each ended its task once; %d entries of the log for them and %d submissions; all over %s after the instant; submissions meanwhile %s (loaded in %s, at a load of %s)",
		timers, entries, others, drained.Round(time.Millisecond), spread(took), loaded.Round(time.Second), load1())
}

// waitingFor counts the tasks of a handler that are waiting, up to a page of them.
func waitingFor(t *testing.T, p *process, handler string) int {
	t.Helper()
	code, body := get(t, "http://"+p.addr+"/v1/namespaces/default/tasks?state=WAITING&limit=100&handler="+handler)
	var page struct {
		Tasks []json.RawMessage `json:"tasks"`
	}
	if code != http.StatusOK || json.Unmarshal([]byte(body), &page) != nil {
		return -1 // not known
	}
	return len(page.Tasks)
}

// TestReadsWhileAServerReplaysItsLog: a server whose state is made anew from a log
// of PULSE_CHAOS_ENTRIES entries (10,000) is read from all the while. It answers
// with what is true now or not at all, and its indexes never fall.
func TestReadsWhileAServerReplaysItsLog(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	client := c.clientOf()
	entries := uint64(number("PULSE_CHAOS_ENTRIES", 10_000))
	until(t, 10*time.Minute, "the log is long enough", func() (bool, string) {
		var some sync.WaitGroup
		for range 8 {
			some.Go(func() {
				for range 50 {
					if _, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "nobody"}); err != nil {
						t.Errorf("a submission: %v", err)
						return
					}
				}
			})
		}
		some.Wait()
		s, ok := c.leader(20 * time.Second).standing()
		return ok && s.Applied >= entries, fmt.Sprint(s.Applied)
	})
	victim := c.others(c.leader(20 * time.Second))[0]
	victim.kill()
	if err := os.RemoveAll(filepath.Join(victim.dir, "state")); err != nil {
		t.Fatal(err)
	}
	// What is read changed last of all, while the server was away.
	task, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if task, err = client.Cancel(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	victim.start()
	answered, refused, last := 0, 0, uint64(0)
	var first time.Duration
	var readyAt time.Time
	for ; readyAt.IsZero() || time.Since(readyAt) < time.Second; pause(10 * time.Millisecond) {
		res, err := quick.Get("http://" + victim.addr + "/v1/namespaces/default/tasks/" + task.ID)
		if err != nil {
			continue // it is not open yet
		}
		var got struct {
			State    string `json:"state"`
			Revision uint64 `json:"revision,string"`
		}
		err = json.NewDecoder(res.Body).Decode(&got)
		_ = res.Body.Close()
		index, _ := strconv.ParseUint(res.Header.Get("X-Pulse-Index"), 10, 64)
		switch {
		case res.StatusCode == http.StatusServiceUnavailable || res.StatusCode == http.StatusGatewayTimeout:
			refused++
		case res.StatusCode != http.StatusOK || err != nil:
			t.Fatalf("a read is answered with %s, %v", res.Status, err)
		case got.State != string(task.State) || got.Revision != task.Revision:
			t.Fatalf("a read shows %+v, and the task is %s at revision %d", got, task.State, task.Revision)
		case index < last:
			t.Fatalf("the index falls from %d to %d", last, index)
		default:
			if last = index; answered == 0 {
				first = time.Since(began)
			}
			answered++
		}
		if readyAt.IsZero() && time.Since(began) > time.Minute {
			t.Fatalf("not ready after a minute; %d reads were refused", refused)
		}
		if code, _ := get(t, "http://"+victim.addr+"/readyz"); code == http.StatusOK && readyAt.IsZero() {
			readyAt = time.Now()
		}
	}
	if answered == 0 {
		t.Error("no read was answered")
	}
	c.same(60 * time.Second)
	proved(t, "a server made its state anew from more than %d entries: of reads through it %d were refused and %d answered, the first after %s, each with the latest state, and no index fell",
		entries, refused, answered, first.Round(time.Millisecond))
}
