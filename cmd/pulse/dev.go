package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"pulse/cmd/node"
	"pulse/gateway/wsconn"
	"pulse/schema"
	"pulse/sdk"
)

func (a *app) devCommand() *cobra.Command {
	var http, data string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a node of your own on this machine, with a worker in it",
		Long: `Run one node in the foreground: the real thing, with everything on and no token.
Without --data it keeps its state in a temporary directory and forgets it at the end.
It serves this machine alone and refuses any other address.

A built-in worker takes these from queue default:

  echo    gives its payload back
  sleep   takes its time: {"ms":2000}
  fail    fails: {"code":"no_luck","retryable":true}, or says that it does not
          know: {"unknown":true}

Stop it with Ctrl-C.`,
		Example: `  pulse dev
  pulse dev --http 127.0.0.1:7500 --data ~/pulse`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if host, _, err := net.SplitHostPort(http); err != nil || !loopback(host) {
				return usagef("--http is %q: this node asks nobody who he is, so it serves this machine alone; give 127.0.0.1:PORT, [::1]:PORT or localhost:PORT ('pulse server --certs' is for other machines)", http)
			}
			logger, level, err := a.nodeLogger(cmd, slog.LevelWarn)
			if err != nil {
				return err
			}
			forgets := data == ""
			if forgets {
				if data, err = os.MkdirTemp("", "pulse-dev-"); err != nil {
					return err
				}
				defer func() {
					if err := os.RemoveAll(data); err != nil {
						logger.Warn("the temporary directory is left behind", "data", data, "error", err)
					}
				}()
			}
			cfg := node.Config{
				DataDir: data, HTTPAddr: http, ElectionTimeout: loneElection, Version: version, Logger: logger,
				Limits: wsconn.Limits{ExemptLoopback: true}, // everybody here is the developer
			}
			traces, stop, err := tracesFromEnv(cmd.Context(), logger)
			if err != nil {
				return usageError{err}
			}
			defer stop()
			cfg.Traces, cfg.LogLevel = traces, level
			return a.serve(cmd, cfg, func(ctx context.Context, n *node.Node) (func(), error) {
				end, err := startDevWorker(ctx, n.URL(), traces, logger)
				if err != nil {
					return nil, err
				}
				return end, a.greet(cmd, n, data, forgets)
			})
		},
	}
	cmd.Flags().StringVar(&http, "http", node.DefaultHTTPAddr, "address to serve, on this machine; port 0 takes a free one")
	cmd.Flags().StringVar(&data, "data", "", "directory that keeps the state (default: a temporary one)")
	return cmd
}

// greet says where the node is and what to try.
func (a *app) greet(cmd *cobra.Command, n *node.Node, data string, forgets bool) error {
	if a.format != formatTable {
		return a.printOne(cmd, serving{URL: n.URL(), NodeID: n.ID(), Data: data, PID: os.Getpid()}, nil)
	}
	kept := data
	if forgets {
		kept += ", until it stops"
	}
	at := ""
	if n.URL() != sdk.DefaultAddr {
		at = "PULSE_ADDR=" + n.URL() + " "
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), `Pulse is at %[1]s (data in %[2]s)

  Give it a task, in another terminal:
    %[3]s%[4]s task run echo '{"hi":1.50}' --wait

  Look at it: %[1]s/
  Its API: %[1]s/docs
  Stop it: Ctrl-C

`, n.URL(), kept, at, selfName())
	return err
}

// devDrain is how long running handlers may go on after Ctrl-C.
const devDrain = time.Second

// startDevWorker runs the built-in worker until end is called, which waits for it.
func startDevWorker(ctx context.Context, url string, traces trace.TracerProvider, logger *slog.Logger) (end func(), err error) {
	w := sdk.NewWorker(sdk.WorkerOptions{
		Addrs: []string{url}, Capacity: 64, Logger: logger, DrainTimeout: devDrain, TracerProvider: traces,
	})
	devHandlers(w)
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(working); err != nil {
			logger.Warn("the built-in worker has ended", "error", err)
		}
	})
	end = func() {
		stop()
		running.Wait()
	}
	select {
	case <-w.Ready():
	case <-ctx.Done():
	}
	return end, nil
}

func devHandlers(w *sdk.Worker) {
	w.Handle("echo", "1", "1", echo)
	w.Handle("sleep", "1", "1", sleep)
	w.Handle("fail", "1", "1", fail)
}

func echo(_ context.Context, t *sdk.Task) (any, error) { return t.Payload(), nil }

func sleep(ctx context.Context, t *sdk.Task) (any, error) {
	in := struct {
		MS int64 `json:"ms"`
	}{MS: 1000}
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
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

func fail(_ context.Context, t *sdk.Task) (any, error) {
	in := struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		Retryable bool   `json:"retryable"`
		Unknown   bool   `json:"unknown"`
	}{Code: "asked_to_fail", Message: "this handler fails"}
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
	}
	if !schema.ValidName(in.Code, schema.ErrorCodeCharsMax) {
		return nil, sdk.Failed("bad_payload", fmt.Errorf("code %q is no error code", in.Code))
	}
	err := sdk.Failed(in.Code, errors.New(in.Message))
	switch {
	case in.Unknown:
		return nil, sdk.Unknown(err)
	case in.Retryable:
		return nil, sdk.Retryable(err)
	}
	return nil, err
}
