package pulsetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulse/schema"
	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pulsetest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func echo(_ context.Context, t *sdk.Task) (any, error) { return t.Payload(), nil }

func TestATaskKeepsTheTextOfItsNumbers(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	pulse.Handle("echo", "1", "1", echo)
	const payload = `{ "amount": 2.50, "big": 12345678901234567890, "text": "<é>" }`
	task := pulse.Do(sdk.TaskSpec{Handler: "echo", Payload: json.RawMessage(payload)})
	if task.State != sdk.StateSucceeded || string(task.Result) != payload || string(task.Payload) != payload {
		t.Errorf("%s: %s became %s", task.State, task.Payload, task.Result)
	}
	if task.AttemptCount != 1 || task.EffectUncertain || task.ErrorCode != "" || task.Queue != "default" || task.Namespace != "default" {
		t.Errorf("task: %+v", task)
	}
}

func TestAPlainErrorIsTriedAgain(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	var runs atomic.Int64
	pulse.Handle("flaky", "1", "1", func(_ context.Context, t *sdk.Task) (any, error) {
		if runs.Add(1) < 3 {
			return nil, errors.New("not yet")
		}
		return t.AttemptCount, nil
	})
	task := pulse.Do(sdk.TaskSpec{Handler: "flaky", Retry: sdk.Retry{MaxAttempts: 5, InitialDelay: sdk.NoDelay, MaxDelay: sdk.NoDelay}})
	if task.State != sdk.StateSucceeded || string(task.Result) != "3" {
		t.Errorf("%s %s after %d runs", task.State, task.Result, runs.Load())
	}
	attempts, err := pulse.Client().Attempts(patience(t), task.ID)
	if err != nil || len(attempts) != 3 {
		t.Fatalf("%d attempts, %v", len(attempts), err)
	}
	for i, attempt := range attempts[1:] {
		if attempt.Epoch <= attempts[i].Epoch {
			t.Errorf("epoch %d follows %d", attempt.Epoch, attempts[i].Epoch)
		}
	}
	if attempts[0].ErrorCode != sdk.CodeHandlerError || len(attempts[0].Receipts) != 2 || !strings.EqualFold(attempts[0].Receipts[1].Operation, "finish") {
		t.Errorf("first attempt: %+v", attempts[0])
	}
}

func TestFailedIsFinal(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	pulse.Handle("charge", "1", "1", func(context.Context, *sdk.Task) (any, error) {
		return nil, sdk.Failed("card_declined", errors.New("not enough money"))
	})
	task := pulse.Do(sdk.TaskSpec{Handler: "charge"})
	if task.State != sdk.StateFailed || task.ErrorCode != "card_declined" || string(task.Result) != `{"error":"not enough money"}` {
		t.Errorf("%s %s %s", task.State, task.ErrorCode, task.Result)
	}
}

func TestAPaymentOfUnknownOutcomeWaitsForAReview(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	var charged atomic.Int64
	pulse.Handle("charge", "1", "1", func(context.Context, *sdk.Task) (any, error) {
		charged.Add(1)
		return nil, errors.New("no answer from the bank") // charged or not?
	})
	task := pulse.Do(sdk.TaskSpec{Handler: "charge", RecoverySafety: sdk.ReconcileOnly, ConcurrencyKey: "account/1"})
	if task.State != sdk.StateNeedsReview || !task.EffectUncertain || charged.Load() != 1 {
		t.Fatalf("%s after %d charges", task.State, charged.Load())
	}
	c, ctx := pulse.Client(), patience(t)
	key, err := c.Key(ctx, "account/1")
	if err != nil || key.HolderTaskID != task.ID || !key.InReview {
		t.Errorf("key: %+v, %v", key, err)
	}
	if _, err := c.Review(ctx, task.ID, sdk.Review{Decision: sdk.ReviewSucceeded, Note: "x"}, sdk.WithExpectedRevision(task.Revision+7)); !errors.Is(err, schema.RevisionConflict) {
		t.Errorf("a review of another revision: %v", err)
	}
	task, err = c.Review(ctx, task.ID, sdk.Review{Decision: sdk.ReviewSucceeded, Note: "found in the ledger", Result: json.RawMessage(`{"ledger": 1.0}`)})
	if err != nil || task.State != sdk.StateSucceeded || task.EffectUncertain || string(task.Result) != `{"ledger": 1.0}` {
		t.Errorf("after the review: %+v %s, %v", task, task.Result, err)
	}
	if key, err = c.Key(ctx, "account/1"); err != nil || key.HolderTaskID != "" {
		t.Errorf("key: %+v, %v", key, err)
	}
}

func TestARunningTaskCanBeCancelled(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	running := make(chan struct{})
	pulse.Handle("long", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
		close(running)
		<-ctx.Done()
		if context.Cause(ctx) != sdk.ErrCancelRequested {
			return nil, sdk.Unknown(context.Cause(ctx))
		}
		return nil, sdk.Cancelled()
	})
	c, ctx := pulse.Client(), patience(t)
	task, err := c.Submit(ctx, sdk.TaskSpec{Handler: "long"})
	if err != nil {
		t.Fatal(err)
	}
	<-running
	if task, err = c.Cancel(ctx, task.ID, sdk.WithNote("changed my mind")); err != nil || task.CancelRequestedAt.IsZero() {
		t.Fatalf("%+v, %v", task, err)
	}
	if task, err = c.Wait(ctx, task.ID); err != nil || task.State != sdk.StateCancelled {
		t.Errorf("%+v, %v", task, err)
	}
	again, err := c.Retry(ctx, task.ID)
	if err != nil || again.ID == task.ID || again.RetryOf != task.ID {
		t.Errorf("retry: %+v, %v", again, err)
	}
}

func TestWorkAndWorkersOutlastARestart(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	running, release := make(chan struct{}), make(chan struct{})
	var runs atomic.Int64
	worker := pulse.Worker(sdk.WorkerOptions{})
	worker.Handle("long", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) {
		runs.Add(1)
		close(running)
		select {
		case <-release:
			return t.Payload(), nil
		case <-ctx.Done():
			return nil, sdk.Unknown(context.Cause(ctx))
		}
	})
	pulse.Run(worker)
	c, ctx := pulse.Client(), patience(t)
	task, err := c.Submit(ctx, sdk.TaskSpec{Handler: "long", Payload: 7, RecoverySafety: sdk.ReconcileOnly})
	if err != nil {
		t.Fatal(err)
	}
	<-running
	waited := make(chan *sdk.TaskInfo, 1)
	go func() {
		settled, err := c.Wait(ctx, task.ID) // begun before the restart
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		waited <- settled
	}()
	pulse.Restart()
	close(release)
	if settled := <-waited; settled == nil || settled.State != sdk.StateSucceeded || string(settled.Result) != "7" || settled.EffectUncertain {
		t.Errorf("task: %+v", settled)
	}
	if stats := worker.Stats(); runs.Load() != 1 || stats.LeasesLost != 0 || stats.Evidence != 0 {
		t.Errorf("%d runs, %+v", runs.Load(), stats)
	}
}

func TestALeaseIsKeptLongerThanItLasts(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	// A busy machine has some seconds for each renewal.
	if _, err := c.PutQueue(ctx, "short", sdk.QueueSettings{LeaseDurationMillis: 8000, OfferDurationMillis: 8000}); err != nil {
		t.Fatal(err)
	}
	worker := pulse.Worker(sdk.WorkerOptions{Queue: "short"})
	worker.Handle("slow", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
		select {
		case <-time.After(12 * time.Second):
			return "done", nil
		case <-ctx.Done():
			return nil, sdk.Unknown(context.Cause(ctx))
		}
	})
	pulse.Run(worker)
	task := pulse.Do(sdk.TaskSpec{Queue: "short", Handler: "slow", RecoverySafety: sdk.ReconcileOnly})
	if task.State != sdk.StateSucceeded || worker.Stats().LeasesLost != 0 {
		t.Errorf("%+v, %+v", task, worker.Stats())
	}
}

func TestAHandlerThatHangsLosesItsLeaseWithItsTimeout(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	cause := make(chan error, 1)
	pulse.Handle("hang", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return map[string]bool{"late": true}, nil
	})
	c, ctx := pulse.Client(), patience(t)
	// A tenth of it is left for the handler's last word: enough on a busy machine.
	task, err := c.Submit(ctx, sdk.TaskSpec{Handler: "hang", RecoverySafety: sdk.ReconcileOnly, Retry: sdk.Retry{AttemptTimeout: 20 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	if why := <-cause; why != sdk.ErrLeaseLost {
		t.Errorf("the context ended with %v", why)
	}
	// It stopped in time, so its word still counts.
	if task, err = c.Wait(ctx, task.ID); err != nil || task.State != sdk.StateSucceeded || string(task.Result) != `{"late":true}` {
		t.Errorf("%+v, %v", task, err)
	}
}

func TestABatchIsTakenWholeAndListed(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	specs := make([]sdk.TaskSpec, 250)
	for i := range specs {
		specs[i] = sdk.TaskSpec{Handler: "echo", Payload: i}
	}
	first, err := c.SubmitBatch(ctx, "", specs, sdk.WithIdempotencyKey("batch-1"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.SubmitBatch(ctx, "", specs, sdk.WithIdempotencyKey("batch-1"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range first {
		if first[i].Err != nil || second[i].Err != nil || first[i].Task.ID != second[i].Task.ID {
			t.Fatalf("item %d: %+v, then %+v", i, first[i], second[i])
		}
		ids = append(ids, first[i].Task.ID)
	}
	if !slices.IsSorted(ids) {
		t.Error("ids do not rise in the order of the batch")
	}
	pulse.Handle("echo", "1", "1", echo)
	for i, id := range ids {
		task, err := c.Wait(ctx, id)
		if err != nil || task.State != sdk.StateSucceeded || string(task.Result) != fmt.Sprint(i) {
			t.Fatalf("task %d: %+v, %v", i, task, err)
		}
	}
	var listed []string
	for task, err := range c.List(ctx, sdk.TaskFilter{States: []sdk.State{sdk.StateSucceeded}, Handler: "echo"}) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, task.ID)
	}
	slices.Reverse(listed)
	if !slices.Equal(listed, ids) {
		t.Errorf("listed %d of %d", len(listed), len(ids))
	}
}

func TestTasksOfOneKeyRunOneAfterTheOtherUnderRisingTokens(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	var inside atomic.Int64
	var tokens []uint64 // guarded by the key itself
	pulse.Handle("write", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) {
		if inside.Add(1) != 1 {
			t.Error("two at a time")
		}
		tokens = append(tokens, task.FencingToken())
		inside.Add(-1)
		return nil, nil
	})
	c, ctx := pulse.Client(), patience(t)
	specs := make([]sdk.TaskSpec, 20)
	for i := range specs {
		specs[i] = sdk.TaskSpec{Handler: "write", ConcurrencyKey: "file/1"}
	}
	items, err := c.SubmitBatch(ctx, "", specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		if task, err := c.Wait(ctx, item.Task.ID); err != nil || task.State != sdk.StateSucceeded {
			t.Fatalf("%+v, %v", task, err)
		}
	}
	if len(tokens) != len(specs) || !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != len(tokens) {
		t.Errorf("tokens: %v", tokens)
	}
}

func TestABusinessKeyNamesOneTask(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	spec := sdk.TaskSpec{Handler: "charge", BusinessKey: "order/1", Payload: 1}
	first, err := c.Submit(ctx, spec)
	if err != nil || first.Duplicate {
		t.Fatalf("%+v, %v", first, err)
	}
	if first.Waiting == nil || first.Waiting.Reason != "no_capable_worker" {
		t.Errorf("it waits because of %+v", first.Waiting)
	}
	second, err := c.Submit(ctx, spec)
	if err != nil || !second.Duplicate || second.ID != first.ID {
		t.Errorf("%+v, %v", second, err)
	}
	spec.Payload = 2
	_, err = c.Submit(ctx, spec)
	if refusal, ok := errors.AsType[*sdk.Error](err); !ok || refusal.Code != schema.Conflict || refusal.ExistingTaskID != first.ID {
		t.Errorf("error: %v", err)
	}
}

func TestAWatchTellsTheWholeStory(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	task, err := c.Submit(ctx, sdk.TaskSpec{Handler: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	var states []sdk.State
	var revision uint64
	for event, err := range c.Watch(ctx, task.ID) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Revision <= revision || event.TaskID != task.ID {
			t.Errorf("event %+v after revision %d", event, revision)
		}
		revision = event.Revision
		if states = append(states, event.State); len(states) == 1 {
			pulse.Handle("echo", "1", "1", echo)
		}
	}
	if want := []sdk.State{sdk.StateWaiting, sdk.StateLeased, sdk.StateRunning, sdk.StateSucceeded}; !slices.Equal(states, want) {
		t.Errorf("states: %v", states)
	}
	types := 0
	for event, err := range c.History(ctx, task.ID) {
		if err != nil {
			t.Fatal(err)
		}
		if types++; event.Revision != uint64(types) || len(event.Facts) == 0 {
			t.Errorf("event %d: %+v", types, event)
		}
	}
	if types != len(states) {
		t.Errorf("%d events in the history", types)
	}
}

func TestTheOperatorsCalls(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	ctx := patience(t)
	if ns, err := pulse.Client().PutNamespace(ctx, "team-a"); err != nil || ns.Name != "team-a" {
		t.Fatalf("%+v, %v", ns, err)
	}
	c := pulse.Client().InNamespace("team-a")
	queue, err := c.PutQueue(ctx, "mail", sdk.QueueSettings{MaxActive: 3, DefaultRetry: &sdk.RetryPolicy{MaxAttempts: 2, MaxDelayMillis: 5, AttemptTimeoutMillis: 1000}})
	if err != nil || queue.MaxActive != 3 || queue.LeaseDurationMillis != 30_000 || queue.DefaultRetry.MaxAttempts != 2 || queue.MaxWaiting != 1_000_000 {
		t.Fatalf("%+v, %v", queue, err)
	}
	if _, err := c.PutQueue(ctx, "mail", sdk.QueueSettings{}, sdk.WithExpectedRevision(queue.Revision+1)); !errors.Is(err, schema.RevisionConflict) {
		t.Errorf("error: %v", err)
	}
	if queue, err = c.PauseQueue(ctx, "mail"); err != nil || !queue.Paused {
		t.Errorf("%+v, %v", queue, err)
	}

	worker := pulse.Worker(sdk.WorkerOptions{Namespace: "team-a", Queue: "mail", Capacity: 2})
	worker.Handle("send", "1", "1", echo)
	pulse.Run(worker)
	task, err := c.Submit(ctx, sdk.TaskSpec{Queue: "mail", Handler: "send", ConcurrencyKey: "a/b:free ü"})
	if err != nil || task.Waiting == nil || task.Waiting.Reason != "queue_paused" || task.Retry.MaxAttempts != 2 {
		t.Fatalf("%+v, %v", task, err)
	}
	key, err := c.Key(ctx, "a/b:free ü")
	if err != nil || key.HolderTaskID != "" || key.Waiters != 1 {
		t.Errorf("%+v, %v", key, err)
	}
	dry, err := c.Bulk(ctx, sdk.Bulk{Action: sdk.BulkCancel, Filter: &sdk.TaskFilter{Queue: "mail"}, DryRun: true})
	if err != nil || dry.Matched != 1 || dry.Results[0].TaskID != task.ID || dry.Results[0].State != sdk.StateWaiting {
		t.Errorf("%+v, %v", dry, err)
	}
	missing := "00000000000000000000000000000001"
	bulk, err := c.Bulk(ctx, sdk.Bulk{Action: sdk.BulkCancel, IDs: []string{task.ID, missing}, Note: "wrong template"})
	if err != nil || bulk.Done != 1 || bulk.Failed != 1 || !errors.Is(bulk.Results[1].Err, schema.NotFound) {
		t.Errorf("%+v, %v", bulk, err)
	}
	if queue, err = c.ResumeQueue(ctx, "mail"); err != nil || queue.Paused {
		t.Errorf("%+v, %v", queue, err)
	}

	var workers []*sdk.WorkerInfo
	for w, err := range c.Workers(ctx, "mail") {
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	if len(workers) != 1 || workers[0].InstanceID != worker.Health().InstanceID || workers[0].Capacity != 2 || workers[0].State != "connected" {
		t.Fatalf("workers: %+v", workers)
	}
	if drained, err := c.DrainWorker(ctx, workers[0].InstanceID); err != nil || !drained.Draining {
		t.Errorf("%+v, %v", drained, err)
	}
	if err := c.DeleteQueue(ctx, "missing"); !errors.Is(err, schema.NotFound) {
		t.Errorf("error: %v", err)
	}
	names := []string{}
	for ns, err := range c.Namespaces(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, ns.Name)
	}
	if !slices.Contains(names, "default") || !slices.Contains(names, "team-a") {
		t.Errorf("namespaces: %v", names)
	}
	if status, err := c.Cluster(ctx); err != nil || !json.Valid(status) {
		t.Errorf("%s, %v", status, err)
	}
	backup, err := c.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Close()
	if n, err := io.Copy(io.Discard, backup); err != nil || n == 0 {
		t.Errorf("a backup of %d bytes, %v", n, err)
	}
}
