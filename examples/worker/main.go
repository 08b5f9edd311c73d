// Command worker is a small worker, ready to be copied: it says hello, and it
// takes its time. deploy runs it in containers; a real one differs in its
// handlers alone.
//
// It is told where the cluster is as everything else is: PULSE_ADDR (several
// with commas), PULSE_NAMESPACE, PULSE_TOKEN, PULSE_CACERT, PULSE_CLIENT_CERT,
// PULSE_CLIENT_KEY. PULSE_QUEUE names its queue. SIGTERM lets it finish what it runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"pulse/sdk"
)

func main() {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv, logger); err != nil {
		logger.Error("the worker has ended", "error", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, getenv func(string) string, logger *slog.Logger) error {
	options := sdk.WorkerOptions{
		Namespace: getenv("PULSE_NAMESPACE"),
		Queue:     getenv("PULSE_QUEUE"),
		Token:     getenv("PULSE_TOKEN"),
		TLS: sdk.TLSFiles{
			CACert:     getenv("PULSE_CACERT"),
			ClientCert: getenv("PULSE_CLIENT_CERT"),
			ClientKey:  getenv("PULSE_CLIENT_KEY"),
		},
		Logger:   logger,
		Capacity: 16,
		// Shorter than the container's grace period, so that what does not end
		// by itself is told to.
		DrainTimeout: 20 * time.Second,
	}
	if addrs := getenv("PULSE_ADDR"); addrs != "" {
		options.Addrs = strings.Split(addrs, ",")
	}
	w := sdk.NewWorker(options)
	w.Handle("hello", "1", "1", hello)
	w.Handle("sleep", "1", "1", sleep)
	return w.Run(ctx)
}

func hello(_ context.Context, t *sdk.Task) (any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, sdk.Retryable(err)
	}
	return map[string]string{"text": "Hello " + in.Name, "from": host}, nil
}

// sleepMax is below the attempt timeout that a queue has by default.
const sleepMax = 5 * time.Minute

func sleep(ctx context.Context, t *sdk.Task) (any, error) {
	var in struct {
		MS int64 `json:"ms"`
	}
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
	}
	if in.MS < 0 || in.MS > sleepMax.Milliseconds() {
		return nil, sdk.Failed("bad_payload", fmt.Errorf("ms is %d: give 0 to %d", in.MS, sleepMax.Milliseconds()))
	}
	timer := time.NewTimer(time.Duration(in.MS) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return map[string]int64{"slept_ms": in.MS}, nil
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), sdk.ErrCancelRequested) {
			return nil, sdk.Cancelled()
		}
		// Sleeping less than was asked for leaves nothing behind.
		return nil, sdk.Retryable(context.Cause(ctx))
	}
}
