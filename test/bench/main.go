// Command bench measures what docs/performance.md has goals for. `make bench`
// starts it; -rows chooses among the goals.
//
// The rows life and pickup run 'pulse bench' as three servers and as one, and other
// task queues beside it if they are there, in turn and several times, and print a
// table of medians with their range. The others are studies: they start servers of
// their own, do something to them, and print what came of it beside its goal.
//
// One task is the same everywhere: 200 bytes submitted, assigned, started and
// finished, each step on disk before it is acknowledged. Servers, clients and
// workers share the machine, so what it says holds for this machine and this
// hour: compare the rows of one table and nothing else.
//
// The others are no part of Pulse. -peers names the directory of a Go program that
// prints, for "PROGRAM NAME flags", one JSON object with tasks_per_s and, where
// they are known, arrival_p50_ms, arrival_p99_ms, pickup_p50_ms, pickup_p99_ms,
// cpu_us_per_task and server_mem_mib.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err) //nolint:forbidigo // this is its output
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	runs := flag.Int("runs", 3, "times that each row is measured; the table has medians")
	length := flag.Duration("length", 8*time.Second, "length of one measurement")
	peers := flag.String("peers", os.Getenv("PULSE_BENCH_PEERS"), "directory of the program that measures others (default: $PULSE_BENCH_PEERS; none = Pulse alone)")
	only := flag.String("run", "", "of life and pickup, measure the settings whose name matches this expression")
	names := flag.String("rows", "", "rows to measure, with commas: life, pickup, memory, flat, restart, ... (default: all)")
	tasks := flag.Int("tasks", 100_000, "how many tasks are waiting, or kept, in the rows about that; the goals are for 1,000,000")
	megabytes := flag.Int("megabytes", 300, "how much state is copied in the row copies")
	ready := flag.String("binary", "", "the pulse to measure (default: it is built of this tree), for two in turn")
	profiles := flag.String("profiles", "", "directory to write profiles of servers into, for go tool pprof (default: none are taken)")
	flag.Parse()
	match, err := regexp.Compile(*only)
	wanted, life, pickup, unknown := choose(*names)
	switch {
	case err != nil:
		return fmt.Errorf("-run: %w", err)
	case unknown != nil:
		return unknown
	case *tasks < 1000 || *tasks > 100_000_000:
		return fmt.Errorf("-tasks is %d: give 1000 to 100000000", *tasks)
	case *megabytes < 1 || *megabytes > 100_000:
		return fmt.Errorf("-megabytes is %d: give 1 to 100000", *megabytes)
	case *runs < 1 || *runs > 100:
		return fmt.Errorf("-runs is %d: give 1 to 100", *runs)
	case *length < time.Second || *length > 10*time.Minute:
		return fmt.Errorf("-length is %s: give 1s to 10m", *length)
	case flag.NArg() > 0:
		return errors.New("there are no arguments, only flags")
	}
	dir, err := os.MkdirTemp("", "pulse-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left there is small
	binary := filepath.Join(dir, "pulse")
	if *ready != "" {
		binary = *ready
	} else if err := build(ctx, ".", "pulse/cmd/pulse", binary); err != nil {
		return err
	}
	var rows []*row
	add := func(all []*row) {
		for _, r := range all {
			if (r.pickup && pickup || !r.pickup && life) && match.MatchString(r.name) {
				rows = append(rows, r)
			}
		}
	}
	add(pulseRows(binary, *length))
	if *peers != "" && (life || pickup) {
		if err := build(ctx, *peers, ".", filepath.Join(dir, "peers")); err != nil {
			return err
		}
		add(peerRows(filepath.Join(dir, "peers"), *length))
	}
	if len(rows) == 0 && len(wanted) == 0 {
		return fmt.Errorf("-run %q matches no setting of the rows life and pickup", *only)
	}
	s := &site{binary: binary, dir: dir, tasks: *tasks, megabytes: *megabytes, length: *length, runs: *runs, profiles: *profiles}
	if len(rows) > 0 {
		measure(ctx, rows, *runs)
		if err := table(os.Stdout, rows, *runs, *length); err != nil {
			return err
		}
	}
	s.examine(ctx, wanted)
	return findings(os.Stdout, s.found)
}
