package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// TestMain lets the test binary be the worker that dies.
func TestMain(m *testing.M) {
	if os.Getenv("PAYONCE_TEST_RUNS_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestACrashBetweenChargeAndReportChargesOnce(t *testing.T) {
	t.Parallel()
	server := pulsetest.Start(t)
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	ctx, cancel := context.WithTimeout(t.Context(), pulsetest.Patience)
	defer cancel()
	c := server.Client()
	// What the crash leaves is waited for that long; what is well has that long for it.
	if _, err := c.PutQueue(ctx, "payments", sdk.QueueSettings{LeaseDurationMillis: 5000}); err != nil {
		t.Fatal(err)
	}
	spec := sdk.TaskSpec{
		Queue: "payments", Handler: "charge", Payload: json.RawMessage(`{"order":4711,"amount":12.50}`),
		RecoverySafety: sdk.ReconcileOnly, BusinessKey: "order/4711",
	}
	task, err := c.Submit(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	worker := exec.CommandContext(ctx, os.Args[0], "--ledger", path, "--crash")
	worker.Env = append(os.Environ(), "PAYONCE_TEST_RUNS_MAIN=yes", "PULSE_ADDR="+server.Addr())
	out, err := worker.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "charging order 4711: 12.50") {
		t.Fatalf("%v: %s", err, out)
	}
	if task, err = c.Wait(ctx, task.ID); err != nil || task.State != sdk.StateNeedsReview {
		t.Fatalf("%+v, %v", task, err)
	}
	// A healthy worker is there now, and gets nothing.
	w := server.Worker(sdk.WorkerOptions{Queue: "payments"})
	bank := &ledger{path: path}
	w.Handle("charge", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) { return charge(ctx, bank, t, false) })
	server.Run(w)
	if again, err := c.Submit(ctx, spec); err != nil || again.ID != task.ID {
		t.Errorf("submitted again: %+v, %v", again, err)
	}
	second := spec
	second.BusinessKey, second.Payload = "order/4712", json.RawMessage(`{"order":4712,"amount":1.10}`)
	if done := server.Do(second); string(done.Result) != `{"booked":1.10}` {
		t.Errorf("another order: %s %s", done.State, done.Result)
	}
	task, err = c.Review(ctx, task.ID, sdk.Review{Decision: sdk.ReviewSucceeded, Note: "line 1", Result: json.RawMessage(`{"booked":12.50}`)})
	if err != nil || task.State != sdk.StateSucceeded {
		t.Errorf("%+v, %v", task, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "4711") != 1 || strings.Count(string(text), "\n") != 2 {
		t.Errorf("the ledger has\n%s%v", text, err)
	}
}

func TestABadOrderIsKnownNotToBeCharged(t *testing.T) {
	t.Parallel()
	server := pulsetest.Start(t)
	bank := &ledger{path: filepath.Join(t.TempDir(), "ledger.jsonl")}
	server.Handle("charge", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) { return charge(ctx, bank, t, false) })
	task := server.Do(sdk.TaskSpec{Handler: "charge", Payload: json.RawMessage(`{"order":1}`), RecoverySafety: sdk.ReconcileOnly})
	if task.State != sdk.StateFailed || task.ErrorCode != "bad_payload" {
		t.Errorf("%s %s", task.State, task.ErrorCode)
	}
	if _, err := os.Stat(bank.path); !os.IsNotExist(err) {
		t.Errorf("the ledger: %v", err)
	}
}
