package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// Pictures of a busy cluster of three nodes, for whoever wants to look at the
// screens; the one in the README is made so. What the screens say is tested
// elsewhere.
func TestPicturesOfThreeNodes(t *testing.T) {
	if os.Getenv("PULSE_SCREENSHOTS") == "" {
		t.Skip("nobody wants pictures: PULSE_SCREENSHOTS is not set to a directory")
	}
	d, c := sitAtThree(t)
	tasks := d.workday(c)
	d.open("/")
	d.signIn(c.admin)
	d.at("/console/ns/default/")
	time.Sleep(40 * time.Second) //nolint:forbidigo // so that the charts have something to show
	for name, path := range map[string]string{
		"overview": "", "tasks": "tasks", "task-done": "tasks/" + tasks["done"], "task-waiting": "tasks/" + tasks["waiting"], "task-review": "tasks/" + tasks["review"],
		"review": "review", "schedules": "schedules", "schedule": "schedules/nightly-report", "workers": "workers", "keys": "keys", "queues": "queues", "queue": "queues/default",
		"cluster": "/console/cluster", "access-all": "/console/access?all=1",
	} {
		d.open(path)
		d.both(name)
	}
}

// workday is what goes on at a place of work: workers on all nodes, tasks that
// succeed, fail, wait and ask for a person, schedules, tokens.
func (d *desk) workday(c *three) map[string]string {
	t := d.t
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []string{"mail", "reports"} {
		d.queue(q, sdk.QueueSettings{MaxActive: 20})
	}
	for i, id := range []string{"node-a", "node-b", "node-c"} {
		w := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{c.nodes[id].URL()}, Token: c.admin, Queue: []string{"default", "mail", "default"}[i], Capacity: 8, Logger: slog.New(slog.DiscardHandler)})
		w.Handle("resize", "1", "1", func(ctx context.Context, task *sdk.Task) (any, error) {
			if task.AttemptCount == 1 && task.ID[31] == '7' {
				return nil, sdk.Retryable(errors.New("the store is slow"))
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
			return map[string]any{"width": 1200, "bytes": json.Number("12345678901234567890")}, nil
		})
		w.Handle("send-mail", "2", "1", func(context.Context, *sdk.Task) (any, error) { return "sent", nil })
		w.Handle("charge", "1", "1", func(context.Context, *sdk.Task) (any, error) {
			return nil, sdk.Unknown(errors.New("the bank did not answer"))
		})
		running.Go(func() { _ = w.Run(ctx) })
	}
	for name, spec := range map[string]sdk.ScheduleSpec{
		"nightly-report": {Cron: "0 2 * * *", TimeZone: "Europe/Berlin", Task: sdk.TaskSpec{Queue: "reports", Handler: "report"}},
		"clean-up":       {Every: 15 * time.Minute, Overlap: sdk.OverlapAllow, Jitter: time.Minute, Task: sdk.TaskSpec{Handler: "resize"}},
		"heartbeat":      {Every: 5 * time.Second, Task: sdk.TaskSpec{Queue: "mail", Handler: "send-mail", HandlerVersion: "2"}},
	} {
		_, err := d.c.PutSchedule(ctx, name, spec)
		must(err)
	}
	_, err := d.c.TriggerSchedule(ctx, "nightly-report", false, sdk.WithNote("a first try"))
	must(err)
	for _, spec := range []sdk.TokenSpec{
		{Name: "shop", Grants: []sdk.Grant{{Role: "submitter", Namespace: "default"}}}, {Name: "fleet", Grants: []sdk.Grant{{Role: "worker", Namespace: "default", Queues: []string{"default", "mail"}}}},
		{Name: "first shift", Grants: []sdk.Grant{{Role: "operator", Namespace: "default"}}, ExpiresAt: time.Now().Add(90 * 24 * time.Hour)},
	} {
		_, err := d.c.CreateToken(ctx, spec)
		must(err)
	}
	tasks := map[string]string{}
	for i := range 3 {
		review := d.submit(sdk.TaskSpec{Handler: "charge", RecoverySafety: sdk.ReconcileOnly, BusinessKey: fmt.Sprintf("order/81%d", i), ConcurrencyKey: fmt.Sprintf("account/%d", i), Payload: json.RawMessage(`{"amount":12.50,"currency":"EUR"}`)})
		tasks["review"] = review.ID
	}
	tasks["waiting"] = d.submit(sdk.TaskSpec{Handler: "charge", ConcurrencyKey: "account/1", BusinessKey: "order/900"}).ID
	done := d.submit(sdk.TaskSpec{Handler: "resize", BusinessKey: "image/1", Payload: json.RawMessage(`{"image":1,"ratio":1.50}`)})
	if _, err := d.c.Wait(ctx, done.ID); err != nil {
		t.Fatal(err)
	}
	tasks["done"] = done.ID
	running.Go(func() {
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_, _ = d.c.Submit(ctx, sdk.TaskSpec{Handler: "resize", BusinessKey: fmt.Sprintf("image/%d", 100+i), Payload: map[string]int{"image": i}})
		}
	})
	return tasks
}
