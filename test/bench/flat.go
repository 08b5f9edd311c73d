package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pulse/cmd/pulse/bench"
	"pulse/sdk"
)

// load is one measurement of 'pulse bench' on servers of a study.
func (s *site) load(ctx context.Context, h *house, keys int) (*bench.Result, error) {
	return bench.Run(ctx, bench.Config{
		Addrs: h.addrs(), HTTPClient: h.web, Logger: quiet(), Duration: s.length, Producers: 64, Workers: 4, Slots: 16, Batch: 1,
		PayloadBytes: smallPayload, Keys: keys, Usage: h.usage,
	})
}

// medianOf is that of a figure of some results.
func medianOf(all []*bench.Result, figure func(*bench.Result) float64) float64 {
	var x []float64
	for _, r := range all {
		x = append(x, figure(r))
	}
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[len(x)/2]
}

func throughput(r *bench.Result) float64 { return r.TasksPerSecond }
func submitP99(r *bench.Result) float64  { return r.SubmitP99 }
func cpuPerTask(r *bench.Result) float64 { return r.CPUPerTask }

// studyFlat measures three nodes in turn: an empty one, one where tasks wait that
// nobody takes, and one that keeps tasks that are over.
func studyFlat(ctx context.Context, s *site) (err error) {
	var houses [3]*house
	for i := range houses {
		if houses[i], err = s.open(ctx, 1); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, houses[i].close(ctx)) }()
	}
	for _, h := range houses[1:] {
		if err := h.queue(ctx, "backlog"); err != nil {
			return err
		}
		if _, err := h.fill(ctx, "backlog", s.tasks, plain(smallPayload)); err != nil {
			return err
		}
	}
	if err := houses[2].cancelAll(ctx, "backlog"); err != nil {
		return err
	}
	if s.profiles != "" {
		for i, h := range houses {
			failed := make(chan error, 1)
			go func() {
				failed <- s.profile(ctx, h, h.servers[0], "cpu", fmt.Sprintf("flat-%d", i), int(max(s.length.Seconds(), 1)))
			}()
			if _, err := s.load(ctx, h, 0); err != nil {
				return err
			}
			if err := <-failed; err != nil {
				return err
			}
		}
	}
	var got [3][]*bench.Result
	for range s.runs {
		for i, h := range houses {
			r, err := s.load(ctx, h, 0)
			if err != nil {
				return err
			}
			got[i] = append(got[i], r)
		}
	}
	for i, what := range []string{"", "waiting", "that are over, kept"} {
		if what == "" {
			continue
		}
		name := fmt.Sprintf("%d tasks %s", s.tasks, what)
		none, with := medianOf(got[0], throughput), medianOf(got[i], throughput)
		s.say("flat", name+": throughput against none", "at least 90 % with 1M", with >= 0.9*none,
			"%.0f %% (%.0f/s against %.0f/s)", 100*with/none, with, none)
		none, with = medianOf(got[0], submitP99), medianOf(got[i], submitP99)
		s.say("flat", name+": submit p99 against none", "at most 1.5 times with 1M", with <= 1.5*none,
			"%.2f times (%.1f ms against %.1f ms)", with/none, with, none)
		none, with = medianOf(got[0], cpuPerTask), medianOf(got[i], cpuPerTask)
		s.tell("flat", name+": processor time for a task against none", "%.2f times (%.0f us against %.0f us)", with/none, with, none)
	}
	return nil
}

// cancelAll ends every task of a queue; they are kept.
func (h *house) cancelAll(ctx context.Context, queue string) error {
	done := 0
	for {
		answer, err := h.client.Bulk(ctx, sdk.Bulk{Action: sdk.BulkCancel, Filter: &sdk.TaskFilter{Queue: queue}})
		if err != nil {
			return err
		}
		if answer.Failed > 0 {
			return fmt.Errorf("%d of %d tasks could not be cancelled", answer.Failed, answer.Matched)
		}
		if answer.Matched == 0 {
			return nil
		}
		if done += answer.Done; done%100_000 == 0 {
			progress("  %d tasks cancelled", done)
		}
	}
}
