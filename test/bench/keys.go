package main

import (
	"context"
	"errors"
	"time"

	"pulse/cmd/pulse/bench"
	"pulse/sdk"
)

const (
	keysMany    = 10_000
	chainLength = 100
)

// studyKeys measures three servers in turn with every task on one of many keys and
// with none, and then how a single key goes from task to task.
func studyKeys(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	var got [2][]*bench.Result
	for range s.runs {
		for i, keys := range []int{0, keysMany} {
			r, err := s.load(ctx, h, keys)
			if err != nil {
				return err
			}
			got[i] = append(got[i], r)
		}
	}
	none, with := medianOf(got[0], throughput), medianOf(got[1], throughput)
	s.say("keys", "10,000 keys: throughput against none", "at least 80 %", with >= 0.8*none, "%.0f %% (%.0f/s against %.0f/s)", 100*with/none, with, none)
	none, with = medianOf(got[0], cpuPerTask), medianOf(got[1], cpuPerTask)
	s.tell("keys", "10,000 keys: processor time for a task against none", "%.2f times (%.0f us against %.0f us)", with/none, with, none)
	return s.chain(ctx, h)
}

// chain runs tasks of one key and compares the cluster's own times: everything that
// one entry of the log does has the same time, to the microsecond.
func (s *site) chain(ctx context.Context, h *house) error {
	if err := h.queue(ctx, "chain"); err != nil {
		return err
	}
	if _, err := h.fill(ctx, "chain", chainLength, func(int) sdk.TaskSpec {
		return sdk.TaskSpec{Handler: handler, ConcurrencyKey: "chain"}
	}); err != nil {
		return err
	}
	fleet := h.hire(ctx, 4, func() sdk.WorkerOptions { return sdk.WorkerOptions{Queue: "chain", Capacity: 16} }, func(context.Context, *sdk.Task) (any, error) {
		return nil, nil
	})
	defer fleet.dismiss()
	var attempts []*sdk.Attempt
	for task, err := range h.client.List(ctx, sdk.TaskFilter{Queue: "chain"}) {
		if err != nil {
			return err
		}
		if _, err := h.client.Wait(ctx, task.ID); err != nil {
			return err
		}
		all, err := h.client.Attempts(ctx, task.ID)
		if err != nil {
			return err
		}
		for i := range all {
			attempts = append(attempts, &all[i])
		}
	}
	ended := map[time.Time]bool{}
	for _, a := range attempts {
		ended[a.EndedAt] = true
	}
	handed := 0
	for _, a := range attempts {
		if ended[a.LeasedAt] {
			handed++
		}
	}
	s.say("keys", "100 tasks in a chain on one key: handed over by the entry that finished the one before", "99 of 99, 100 attempts",
		handed == chainLength-1 && len(attempts) == chainLength, "%d of %d, %d attempts", handed, chainLength-1, len(attempts))
	return nil
}
