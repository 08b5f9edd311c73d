package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pulse/cmd/pulse/bench"
	"pulse/cmd/pulse/proc"
)

func (a *app) benchCommand() *cobra.Command {
	cfg := bench.Config{}
	var duration span
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a cluster under load",
		Long: `Submit tasks that do nothing, run them on workers of this process, and print what was
measured as one line of JSON (-o table for people). Without --addr and PULSE_ADDR it
starts a server of its own in a temporary directory; in a cluster that is there it uses
a queue of its own and removes it.

With --rate, submissions are made on time whatever the cluster does, and latencies count
from when they were due. Without it, they are made as fast as they are answered, with at
most --window tasks open.

  submit   until the answer to the submission
  pickup   from the submission until a handler has the task
  done     from the submission until a client that waits has seen its end (sampled)

Each of these was acknowledged, so it was on disk. The load takes its share of the
processor: put it on another machine to measure a cluster alone.`,
		Example: `  pulse bench
  pulse bench --rate 100 --duration 30s
  pulse bench --addr http://10.0.0.1:7400 --tasks 200000 --batch 100 --workers 16 --slots 64`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Duration = time.Duration(duration)
			if cfg.Tasks == 0 && cfg.Duration == 0 {
				cfg.Duration = 10 * time.Second
			}
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			return a.bench(cmd, cfg)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&cfg.Tasks, "tasks", 0, "end after this many tasks")
	flags.Var(&duration, "duration", "end after this long (default 10s if there is no --tasks)")
	flags.Float64Var(&cfg.Rate, "rate", 0, "tasks a second; 0 = as fast as they are answered")
	flags.IntVar(&cfg.Window, "window", 0, "most open tasks without --rate (default: twice the slots and what producers hold)")
	flags.IntVar(&cfg.Workers, "workers", 4, "workers, a connection each")
	flags.IntVar(&cfg.Slots, "slots", 16, "tasks that a worker runs at a time")
	flags.IntVar(&cfg.Producers, "producers", 64, "submissions that are made at a time")
	flags.IntVar(&cfg.Batch, "batch", 1, "tasks in a submission")
	flags.IntVar(&cfg.PayloadBytes, "payload-bytes", 200, "size of a payload")
	return cmd
}

func (a *app) bench(cmd *cobra.Command, cfg bench.Config) (err error) {
	httpClient, err := a.conn.httpClient()
	if err != nil {
		return err
	}
	httpClient.Transport.(*http.Transport).MaxIdleConnsPerHost = cfg.Producers + 1
	httpClient.Transport.(*http.Transport).MaxIdleConns = 0
	cfg.Addrs, cfg.Namespace, cfg.Token = a.conn.addrs(), a.conn.namespace, a.conn.token
	cfg.HTTPClient, cfg.Logger = httpClient, a.patience(cmd.ErrOrStderr())
	if !cmd.Flags().Changed("addr") && a.getenv("PULSE_ADDR") == "" {
		url, stop, err := a.ownServer(cmd)
		if err != nil {
			return err
		}
		defer stop()
		cfg.Addrs = []string{url}
	}
	result, err := bench.Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("output") || a.format == formatLines {
		return printLine(cmd.OutOrStdout(), result)
	}
	return a.printOne(cmd, result, func(d *details) {
		d.putf("Throughput", "%.0f tasks/s (%s done in %.1f s, %d errors)", result.TasksPerSecond, commas(uint64(result.Done)), result.Seconds, result.Errors)
		d.putf("Submit", "p50 %.2f ms, p99 %.2f ms", result.SubmitP50, result.SubmitP99)
		d.putf("Pickup", "p50 %.2f ms, p99 %.2f ms", result.PickupP50, result.PickupP99)
		d.putf("Done", "p50 %.2f ms, p99 %.2f ms (%d sampled)", result.DoneP50, result.DoneP99, result.DoneSampled)
	})
}

// ownServer is a server for this run alone.
func (a *app) ownServer(cmd *cobra.Command) (url string, stop func(), err error) {
	binary, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "pulse-bench-")
	if err != nil {
		return "", nil, err
	}
	server := proc.New(proc.Config{Binary: binary, NodeID: "node-1", Dir: dir})
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
	defer cancel()
	if err := server.Start(ctx); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Measuring a server of its own at %s, in %s\n", server.URL(), dir)
	return server.URL(), func() {
		now, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeWithin)
		defer cancel()
		if err := errors.Join(server.Close(now), os.RemoveAll(dir)); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "pulse: %v\n", err)
		}
	}, nil
}
