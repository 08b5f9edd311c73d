package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"pulse/cmd/pulse/proc"
	"pulse/sdk"
)

const (
	dense       = 48 << 10 // bytes of a payload that no store makes smaller, before base64
	denseBatch  = 16       // tasks of a request
	copiesMin   = 2        // backups, at the least
	copyingAt   = 10 * time.Millisecond
	copyingGoal = "at most 2 times, catching up at 50 MB/s"
)

// studyCopies submits on time while a state of s.megabytes is copied whole: to a
// backup on this machine's disk, as 'pulse cluster backup' does, and to a server
// that joins.
func studyCopies(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 3, "backlog", "pulse")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	if err := h.fillDensely(ctx, s.megabytes); err != nil {
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
	before := percentile(calm, 0.99)
	backups, size := 0, int64(0)
	began := time.Now()
	during, err := h.onTime(ctx, func(ctx context.Context) error {
		profiling := s.profiling(ctx, h, leader, "backup")
		defer profiling.Wait()
		for ; backups < copiesMin || time.Since(began) < calmFor; backups++ {
			// They stay until all is measured: freeing hundreds of megabytes in one go is
			// no part of a backup.
			file := filepath.Join(h.dir, fmt.Sprintf("copy-%d.backup", backups))
			cmd := exec.CommandContext(ctx, s.binary, "cluster", "backup", file)
			cmd.Env = append(os.Environ(), "PULSE_ADDR="+leader.URL())
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("pulse cluster backup: %w\n%s", err, out)
			}
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			size = info.Size()
		}
		return nil
	})
	if err != nil {
		return err
	}
	each := time.Since(began) / time.Duration(backups)
	s.say("copies", fmt.Sprintf("%d MB of state, 100 submissions a second: p99 while 'pulse cluster backup' writes it to the same disk, against before", s.megabytes),
		"at most 2 times", percentile(during, 0.99) <= 2*before, "%.2f times (%.1f ms against %.1f ms, p50 %.1f against %.1f, longest %.0f ms; %d backups of %.0f MB, %.1f s each)",
		float64(percentile(during, 0.99))/float64(before), millis(percentile(during, 0.99)), millis(before),
		millis(percentile(during, 0.5)), millis(percentile(calm, 0.5)), millis(percentile(during, 1)), backups, float64(size)/1e6, each.Seconds())

	newcomer, err := proc.Newcomer(h.servers, "node-4")
	if err != nil {
		return err
	}
	h.servers = append(h.servers, newcomer)
	var took time.Duration
	joining, err := h.onTime(ctx, func(ctx context.Context) error {
		profiling := s.profiling(ctx, h, leader, "join")
		defer profiling.Wait()
		target, err := h.metric(ctx, leader, "pulse_raft_applied_index")
		if err != nil {
			return err
		}
		began := time.Now()
		starting, cancel := context.WithTimeout(ctx, readyWithin)
		defer cancel()
		if err := newcomer.Start(starting); err != nil {
			return err
		}
		for {
			at, err := h.metric(starting, newcomer, "pulse_raft_applied_index")
			if err != nil {
				return err
			}
			if at >= target {
				took = time.Since(began)
				return nil
			}
			sleep(starting, copyingAt)
		}
	})
	if err != nil {
		return err
	}
	rate := float64(size) / 1e6 / took.Seconds()
	s.say("copies", "the same while a server joins and gets it", copyingGoal, percentile(joining, 0.99) <= 2*before && rate >= catchUpGoal,
		"%.2f times (%.1f ms against %.1f ms, p50 %.1f, longest %.0f ms); the server has it after %.1f s: %.0f MB/s",
		float64(percentile(joining, 0.99))/float64(before), millis(percentile(joining, 0.99)), millis(before), millis(percentile(joining, 0.5)), millis(percentile(joining, 1)), took.Seconds(), rate)
	held, err := h.metric(ctx, leader, "pulse_snapshot_seconds_sum")
	if err != nil {
		return err
	}
	times, err := h.metric(ctx, leader, "pulse_snapshot_seconds_count")
	if err != nil {
		return err
	}
	s.tell("copies", "a snapshot held up the leader's applying", "%.1f ms in the mean of %.0f", held/max(times, 1)*1000, times)
	return nil
}

// profiling takes profiles of the server in the background.
func (s *site) profiling(ctx context.Context, h *house, of *proc.Server, name string) *sync.WaitGroup {
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.profile(ctx, h, of, "cpu", name, 5); err != nil {
			progress("  no profile: %v", err)
		}
	})
	return &all
}

// fillDensely submits tasks until their payloads are so many megabytes.
func (h *house) fillDensely(ctx context.Context, megabytes int) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	batches := make(chan struct{})
	var all sync.WaitGroup
	for range fillers {
		all.Go(func() {
			for range batches {
				specs := make([]sdk.TaskSpec, denseBatch)
				for i := range specs {
					specs[i] = sdk.TaskSpec{Handler: handler, Payload: densePayload()}
				}
				items, err := h.client.SubmitBatch(ctx, "backlog", specs)
				for _, item := range items {
					err = errors.Join(err, item.Err)
				}
				if err != nil {
					fail(err)
				}
			}
		})
	}
	for done := 0; done < megabytes*1e6 && ctx.Err() == nil; done += denseBatch * dense * 4 / 3 {
		batches <- struct{}{}
	}
	close(batches)
	all.Wait()
	return context.Cause(ctx)
}

func densePayload() json.RawMessage {
	random := make([]byte, dense)
	_, _ = rand.Read(random)
	return json.RawMessage(`"` + base64.StdEncoding.EncodeToString(random) + `"`)
}
