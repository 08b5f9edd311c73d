package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pulse/cmd/pulse/bench"
	"pulse/cmd/pulse/proc"
)

func (a *app) benchCommand() *cobra.Command {
	cfg := bench.Config{}
	var duration span
	var servers int
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a cluster under load",
		Long: `Submit tasks that do nothing, run them on workers of this process, and print what was
measured as one line of JSON (-o table for people). Without --addr and PULSE_ADDR it
starts servers of its own in a temporary directory, --servers of them, and counts their
processor time; in a cluster that is there it uses a queue of its own and removes it.

With --rate, submissions are made on time whatever the cluster does, and latencies count
from when they were due. Without it, they are made as fast as they are answered, with at
most --window tasks open.

  submit   until the answer to the submission
  arrival  from the submission until a worker has the task
  pickup   until its start is on record, too, and its handler begins
  done     from the submission until a client that waits has seen its end (sampled)

Each of these was acknowledged, so it was on disk. The load takes its share of the
processor: put it on another machine to measure a cluster alone.`,
		Example: `  pulse bench
  pulse bench --rate 100 --duration 30s
  pulse bench --servers 3 --batch 1000 --producers 4 --workers 16 --slots 64
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
			if servers < 1 || servers > 7 {
				return usageError{fmt.Errorf("--servers is %d: give 1 to 7", servers)}
			}
			if servers > 1 && !a.ownServers(cmd) {
				return usageError{errors.New("--servers and an address do not go together: the servers are there already")}
			}
			return a.bench(cmd, cfg, servers)
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
	flags.IntVar(&cfg.Keys, "keys", 0, "concurrency keys that tasks are spread over; 0 = none")
	flags.IntVar(&servers, "servers", 1, "servers to start, as one cluster")
	return cmd
}

// ownServers says that no cluster was named.
func (a *app) ownServers(cmd *cobra.Command) bool {
	return !cmd.Flags().Changed("addr") && a.getenv("PULSE_ADDR") == ""
}

func (a *app) bench(cmd *cobra.Command, cfg bench.Config, servers int) (err error) {
	cfg.Logger = a.patience(cmd.ErrOrStderr())
	if cfg.HTTPClient, err = a.conn.httpClient(cfg.Logger); err != nil {
		return err
	}
	cfg.Addrs, cfg.Namespace, cfg.Token = a.conn.addrs(), a.conn.namespace, a.conn.token
	if a.ownServers(cmd) {
		own, stop, err := a.startServers(cmd, servers)
		if err != nil {
			return err
		}
		defer stop()
		cfg.Addrs = nil
		for _, s := range own {
			cfg.Addrs = append(cfg.Addrs, s.URL())
		}
		if _, err := proc.OwnUsage(); err == nil {
			cfg.Usage = usageOf(own)
		}
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
		d.putf("Arrival", "p50 %.2f ms, p99 %.2f ms", result.ArrivalP50, result.ArrivalP99)
		d.putf("Pickup", "p50 %.2f ms, p99 %.2f ms", result.PickupP50, result.PickupP99)
		d.putf("Done", "p50 %.2f ms, p99 %.2f ms (%d sampled)", result.DoneP50, result.DoneP99, result.DoneSampled)
		if result.CPUPerTask > 0 {
			d.putf("Processor", "%.0f us a task, servers, clients and workers together", result.CPUPerTask)
			d.putf("Memory", "%.0f MiB, the largest server", result.ServerMemory)
		}
	})
}

// startServers starts servers for this run alone.
func (a *app) startServers(cmd *cobra.Command, n int) (servers []*proc.Server, stop func(), err error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "pulse-bench-")
	if err != nil {
		return nil, nil, err
	}
	stop = func() {
		now, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeWithin)
		defer cancel()
		if err := errors.Join(proc.CloseAll(now, servers), os.RemoveAll(dir)); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "pulse: %v\n", err)
		}
	}
	if servers, err = proc.Cluster(binary, dir, n); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
	defer cancel()
	if err := proc.StartAll(ctx, servers); err != nil {
		stop()
		return nil, nil, err
	}
	for _, s := range servers {
		fmt.Fprintf(cmd.ErrOrStderr(), "Measuring a server of its own at %s, in %s\n", s.URL(), dir)
	}
	return servers, stop, nil
}

// usageOf sums what servers and this process have taken.
func usageOf(servers []*proc.Server) func() (cpu time.Duration, serverBytes int64, err error) {
	return func() (cpu time.Duration, serverBytes int64, err error) {
		own, err := proc.OwnUsage()
		cpu = own.CPU
		for _, s := range servers {
			u, uerr := s.Usage()
			err = errors.Join(err, uerr)
			cpu += u.CPU
			serverBytes = max(serverBytes, u.MemoryBytes)
		}
		return cpu, serverBytes, err
	}
}
