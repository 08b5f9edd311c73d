package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"pulse/sdk"
)

const (
	pulseRate   = 100 // submissions a second, on time
	calmFor     = 20 * time.Second
	backupsMin  = 3
	catchUpGoal = 50 // MB/s
)

// studySnapshot submits on time, whatever the cluster does, first with nothing else
// going on and then while the leader takes a snapshot and streams it to a backup,
// again and again. That is more than a snapshot alone, which only makes links.
func studySnapshot(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 3, "backlog", "pulse")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	if _, err := h.fill(ctx, "backlog", s.tasks, plain(smallPayload)); err != nil {
		return err
	}
	if !sleep(ctx, settleFor) {
		return context.Cause(ctx)
	}
	leader, err := h.leader(ctx)
	if err != nil {
		return err
	}
	calm, err := h.onTime(ctx, func(ctx context.Context) error {
		sleep(ctx, calmFor)
		return nil
	})
	if err != nil {
		return err
	}
	at := sdk.NewClient(sdk.ClientOptions{Addr: leader.URL(), HTTPClient: h.web, Logger: quiet()})
	var bytes int64
	backups := 0
	began := time.Now()
	busy, err := h.onTime(ctx, func(ctx context.Context) error {
		for ; backups < backupsMin || time.Since(began) < calmFor; backups++ {
			stream, err := at.Backup(ctx)
			if err != nil {
				return err
			}
			n, err := io.Copy(io.Discard, stream)
			if err = errors.Join(err, stream.Close()); err != nil {
				return err
			}
			bytes += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	before, during := percentile(calm, 0.99), percentile(busy, 0.99)
	s.say("snapshot", fmt.Sprintf("%d waiting tasks, 100 submissions a second: p99 while snapshots are taken and streamed against before", s.tasks),
		"at most 2 times with 1M", during <= 2*before, "%.2f times (%.1f ms against %.1f ms; %d snapshots of %.0f MB, %.1f s each)",
		float64(during)/float64(before), millis(during), millis(before), backups, float64(bytes)/float64(backups)/1e6, took.Seconds()/float64(backups))
	return nil
}

// onTime submits tasks of a queue that nobody takes from at a fixed rate while
// meanwhile runs. A latency counts from when the submission was due.
func (h *house) onTime(ctx context.Context, meanwhile func(context.Context) error) (took []time.Duration, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- meanwhile(ctx) }()
	var mu sync.Mutex
	var all sync.WaitGroup
	defer all.Wait()
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(i) * time.Second / pulseRate)
		select {
		case err := <-done:
			all.Wait()
			if cause := context.Cause(ctx); err == nil && cause != nil {
				err = cause
			}
			return took, err
		case <-time.After(time.Until(due)):
		}
		all.Go(func() {
			_, err := h.client.Submit(ctx, sdk.TaskSpec{Queue: "pulse", Handler: handler, Payload: payload(smallPayload)})
			if err != nil {
				stop(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
		})
	}
}

// studyFollower kills a follower, loads the other two, and starts it again while
// the load goes on. It has caught up when it has applied what the leader had
// applied at that moment.
func studyFollower(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 3, "backlog", "pulse")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	leader, err := h.leader(ctx)
	if err != nil {
		return err
	}
	follower := h.servers[0]
	if follower == leader {
		follower = h.servers[1]
	}
	if err := follower.Kill(); err != nil {
		return err
	}
	const written = "pulse_log_bytes_written_total"
	before, err := h.metric(ctx, leader, written)
	if err != nil {
		return err
	}
	if _, err := h.fill(ctx, "backlog", s.tasks, plain(largePayload)); err != nil {
		return err
	}
	after, err := h.metric(ctx, leader, written)
	if err != nil {
		return err
	}
	var started, caught time.Duration
	if _, err := h.onTime(ctx, func(ctx context.Context) error {
		target, err := h.metric(ctx, leader, "pulse_raft_applied_index")
		if err != nil {
			return err
		}
		began := time.Now()
		starting, cancel := context.WithTimeout(ctx, readyWithin)
		defer cancel()
		if err := follower.Start(starting); err != nil {
			return err
		}
		started = time.Since(began)
		var profiling sync.WaitGroup
		defer profiling.Wait()
		profiling.Go(func() {
			if err := s.profile(starting, h, follower, "cpu", "follower", 5); err != nil {
				progress("  no profile of the follower: %v", err)
			}
		})
		for {
			at, err := h.metric(starting, follower, "pulse_raft_applied_index")
			if err != nil {
				return err
			}
			if at >= target {
				caught = time.Since(began)
				return nil
			}
			sleep(starting, 10*time.Millisecond)
		}
	}); err != nil {
		return err
	}
	restores, err := h.metric(ctx, follower, "pulse_restores_total")
	if err != nil {
		return err
	}
	megabytes := (after - before) / 1e6
	rate := megabytes / caught.Seconds()
	s.say("follower", fmt.Sprintf("away for %.0f MB of the log (%d tasks of 1 KiB), started again under 100 submissions a second", megabytes, s.tasks),
		"at least 50 MB/s", rate >= catchUpGoal, "%.0f MB/s: caught up %.1f s after its start, ready after %.1f s, %.0f snapshots received",
		rate, caught.Seconds(), started.Seconds(), restores)
	return nil
}
