package pulsetest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

const (
	busyAddrEnv  = "PULSE_TEST_BUSY_ADDR"
	busyHandlers = 3
	busyLease    = 8 * time.Second // a busy machine has some seconds for each renewal
	busyFor      = 14 * time.Second
)

// Handlers that burn the only processor of their process, and leave it garbage, for
// longer than a lease keep it: it is renewed beside them.
func TestALeaseIsKeptByAWorkerWithoutAProcessorLeft(t *testing.T) {
	if addr := os.Getenv(busyAddrEnv); addr != "" {
		busyWorker(t, addr)
		return
	}
	if testing.Short() {
		t.Skip("it burns a processor for longer than a lease")
	}
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	if _, err := c.PutQueue(ctx, "busy", sdk.QueueSettings{LeaseDurationMillis: busyLease.Milliseconds(), OfferDurationMillis: busyLease.Milliseconds()}); err != nil {
		t.Fatal(err)
	}
	worker := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	worker.Env = append(os.Environ(), busyAddrEnv+"="+pulse.Addr(), "GOMAXPROCS=1")
	var said strings.Builder
	worker.Stdout, worker.Stderr = &said, &said
	over, err := worker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	ended := func() {
		_ = over.Close() // it may have ended by itself, which Wait tells
		if err := worker.Wait(); err != nil {
			t.Errorf("the worker: %v", err)
		}
		t.Logf("it said: %s", said.String())
	}
	var tasks []string
	for range busyHandlers {
		task, err := c.Submit(ctx, sdk.TaskSpec{Queue: "busy", Handler: "burn", RecoverySafety: sdk.ReconcileOnly})
		if err != nil {
			t.Error(err)
			break
		}
		tasks = append(tasks, task.ID)
	}
	for _, id := range tasks {
		task, err := c.Wait(ctx, id)
		if err != nil {
			t.Error(err)
		} else if task.State != sdk.StateSucceeded || task.AttemptCount != 1 || task.EffectUncertain {
			t.Errorf("%+v", task)
		}
	}
	ended()
	if !strings.Contains(said.String(), "leases lost: 0;") {
		t.Error("a lease was lost")
	}
}

// busyWorker is the worker, in a process of its own, until its input ends.
func busyWorker(t *testing.T, addr string) {
	w := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{addr}, Queue: "busy", Capacity: busyHandlers})
	w.Handle("burn", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
		sum := 0
		var garbage [][]byte
		for end := time.Now().Add(busyFor); time.Now().Before(end); {
			for i := range 20_000_000 { // nothing in here gives way
				sum = sum*31 + i
			}
			garbage = append(garbage[:len(garbage)%64], make([]byte, 1<<16))
		}
		if ctx.Err() != nil {
			return nil, sdk.Unknown(context.Cause(ctx))
		}
		return sum, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := w.Run(ctx); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	fmt.Printf("leases lost: %d;\n", w.Stats().LeasesLost)
}
