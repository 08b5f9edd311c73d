package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"pulse/sdk"
)

const (
	drainWorkers = 16
	drainSlots   = 64
	drainSay     = time.Minute
)

// studyDrain loads a node with tasks that nobody takes, and then hires workers until
// the queue is empty: each task is done, and none twice.
func studyDrain(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	if err := h.queue(ctx, "drain"); err != nil {
		return err
	}
	perSecond, err := h.fill(ctx, "drain", s.tasks, plain(smallPayload))
	if err != nil {
		return err
	}
	_, full, err := h.usage()
	if err != nil {
		return err
	}
	what := sized(s.tasks, "waiting tasks", smallPayload)
	s.tell("drain", what+": load", "%.0f/s, then %.0f MiB resident", perSecond, mib(full))

	var begun atomic.Int64
	fleet := h.hire(ctx, drainWorkers, func() sdk.WorkerOptions { return sdk.WorkerOptions{Queue: "drain", Capacity: drainSlots} },
		func(context.Context, *sdk.Task) (any, error) { begun.Add(1); return nil, nil })
	defer fleet.dismiss()
	started, said := time.Now(), time.Now()
	var largest int64
	for succeeded := uint64(0); succeeded < uint64(s.tasks); {
		if !sleep(ctx, time.Second) {
			return context.Cause(ctx)
		}
		succeeded = 0
		for _, w := range fleet.workers {
			succeeded += w.Stats().Succeeded
		}
		_, bytes, err := h.usage()
		if err != nil {
			return err
		}
		largest = max(largest, bytes)
		if time.Since(said) > drainSay {
			said = time.Now()
			progress("  %d tasks done", succeeded)
		}
	}
	took := time.Since(started)
	queue, err := h.client.Queue(ctx, "drain")
	if err != nil {
		return err
	}
	s.say("drain", what+": drained by 16 workers of 64", "each done once",
		queue.Waiting == 0 && begun.Load() == int64(s.tasks),
		"%.0f/s; %d handlers ran, %d tasks wait; at most %.0f MiB resident", float64(s.tasks)/took.Seconds(), begun.Load(), queue.Waiting, mib(largest))
	return nil
}
