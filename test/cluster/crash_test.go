package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// TestKillNineUnderLoad kills the one node again and again while clients submit
// and workers work, and holds everything they saw against the promises.
func TestKillNineUnderLoad(t *testing.T) {
	always(t)
	const (
		kills   = 6
		clients = 4
		workers = 6
		perKill = 1500 * time.Millisecond
	)
	node := newProcess(t, "n1")
	node.start()
	node.ready(20 * time.Second)
	w := newWorld(t, node.addr)
	w.pace = everyRun()
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	if _, err := client.PutQueue(t.Context(), "default", sdk.QueueSettings{LeaseDurationMillis: 4000, OfferDurationMillis: 2000}); err != nil {
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
			k.dieAfterEffect = 0.05
		}
		stops = append(stops, background(t, k.run))
	}
	t.Cleanup(w.end)

	load, endLoad := context.WithCancel(t.Context())
	defer endLoad()
	var submitted sync.Map
	var submitting sync.WaitGroup
	for c := range clients {
		submitting.Go(func() { w.submit(load, client, c, &submitted) })
	}
	for n := range kills {
		pause(perKill/2 + time.Duration(mrand.Int64N(int64(perKill))))
		node.kill()
		pause(time.Duration(mrand.Int64N(int64(200 * time.Millisecond))))
		node.start()
		t.Logf("kill %d: ready again after %s", n+1, node.ready(20*time.Second).Round(time.Millisecond))
	}
	w.enough(&submitted)
	endLoad()
	submitting.Wait()
	w.settle(client, &submitted)
	w.end()
	for _, stop := range stops {
		stop()
	}
	w.check()
	proved(t, "%d kills -9 of a lone server: nothing acknowledged was lost, nothing done twice", kills)
}

// submit makes tasks as fast as they are acknowledged, of both kinds, some with
// concurrency keys.
func (w *world) submit(ctx context.Context, client *sdk.Client, name int, submitted *sync.Map) {
	for i := 0; ctx.Err() == nil; i++ {
		if w.pace > 0 {
			pause(w.pace)
		}
		spec := sdk.TaskSpec{
			Handler: "effect", Payload: map[string]int{"client": name, "n": i},
			Retry: sdk.Retry{MaxAttempts: 20, InitialDelay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
		}
		if i%3 == 0 {
			spec.RecoverySafety = sdk.ReconcileOnly
		}
		if i%4 == 0 {
			spec.ConcurrencyKey = fmt.Sprintf("key-%d-%d", name, i/40)
		}
		begun := w.clock()
		info, err := client.Submit(ctx, spec)
		if err != nil {
			continue // the end of the load; nothing was acknowledged
		}
		submitted.Store(info.ID, spec.RecoverySafety)
		w.served()
		w.record(event{kind: opSubmit, task: info.ID, call: begun, worker: 32 + name})
		if i%5 == 0 {
			begun = w.clock()
			if got, err := client.Get(ctx, info.ID); err == nil {
				w.record(event{kind: opRead, task: info.ID, state: string(got.State), call: begun, worker: 32 + name})
			}
		}
	}
}

// tasksMin is how many tasks have to be acknowledged for a scenario to prove something.
const tasksMin = 50

// enough waits until there are that many, however slow the machine is.
func (w *world) enough(submitted *sync.Map) {
	w.t.Helper()
	until(w.t, 30*time.Second, "there are enough tasks", func() (bool, string) {
		n := 0
		submitted.Range(func(_, _ any) bool { n++; return n < tasksMin })
		return n >= tasksMin, fmt.Sprint(n)
	})
}

// settle waits until every acknowledged task has come to rest, and reads it.
func (w *world) settle(client *sdk.Client, submitted *sync.Map) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*patience(30*time.Second))
	defer cancel()
	counts := map[string]int{}
	total := 0
	stop := background(w.t, func(ctx context.Context) { w.review(ctx, client) })
	defer stop()
	submitted.Range(func(id, safety any) bool {
		total++
		begun := w.clock()
		info, err := client.Wait(ctx, id.(string))
		for err == nil && info.State == sdk.StateNeedsReview {
			// Somebody is on it; until then it is not over.
			pause(100 * time.Millisecond)
			begun = w.clock()
			info, err = client.Wait(ctx, id.(string))
		}
		if err != nil {
			w.t.Errorf("task %s was acknowledged and does not come to rest: %v", id, err)
			for _, what := range []string{"tasks/" + id.(string), "tasks/" + id.(string) + "/attempts", "workers", "keys"} {
				_, body := get(w.t, w.urls()[0]+"/v1/namespaces/default/"+what)
				w.t.Logf("%s: %.3000s", what, body)
			}
			return ctx.Err() == nil
		}
		counts[string(info.State)]++
		// A wait is a read that ended now.
		w.record(event{kind: opRead, task: info.ID, state: string(info.State), call: begun, worker: 60})
		if info.State == sdk.StateCancelled && safety != sdk.ReconcileOnly {
			w.t.Errorf("IDEMPOTENT task %s needed a review: %s", id, info.ErrorCode)
		}
		return true
	})
	w.t.Logf("%d acknowledged tasks: %v; the resource refused %d effects", total, counts, w.resource.refused)
	if total < tasksMin {
		w.t.Errorf("only %d tasks: this proved little", total)
	}
	if counts[string(sdk.StateSucceeded)] == 0 {
		w.t.Error("no task succeeded")
	}
}

// review is the person with the inbox: what nobody can know is cancelled, so that
// the keys it keeps are free again.
func (w *world) review(ctx context.Context, client *sdk.Client) {
	for ctx.Err() == nil {
		for info, err := range client.List(ctx, sdk.TaskFilter{States: []sdk.State{sdk.StateNeedsReview}}) {
			if err != nil {
				break
			}
			begun := w.clock()
			_, err := client.Review(ctx, info.ID, sdk.Review{Decision: "CANCELLED", Note: "looked at the resource"})
			if err == nil {
				w.record(event{kind: opReview, task: info.ID, call: begun, worker: 61})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// quick gives up on a node that accepts and does not answer, as a paused one does.
var quick = &http.Client{Timeout: 2 * time.Second}

// served is get for tests that need an answer: it asks again while there is none for
// want of a leader, or of time.
func served(t *testing.T, url string) (code int, body string) {
	t.Helper()
	until(t, 30*time.Second, url+" is answered", func() (bool, string) {
		code, body = get(t, url)
		return code != 0 && code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout, body
	})
	return code, body
}

// get is a plain request for tests that look at one answer.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := quick.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, string(body)
}
