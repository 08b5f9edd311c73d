package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const restartGoal = 5 * time.Second

// sized says how many of what, and how large.
func sized(n int, what string, payloadBytes int) string {
	return fmt.Sprintf("%d %s of %d bytes", n, what, payloadBytes)
}

// studyRestart kills a node with tasks waiting and starts it again. It is ready
// when it says so and a client has read a queue from it.
func studyRestart(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 1, "restart")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	if _, err := h.fill(ctx, "restart", s.tasks, plain(smallPayload)); err != nil {
		return err
	}
	var took []time.Duration
	for range max(s.runs, 1) {
		d, err := h.restart(ctx)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	// Whatever the store had not seen when it was killed is applied again, so
	// later kills, with nothing new, cost less than the first.
	later := ""
	if len(took) > 1 {
		later = fmt.Sprintf("; then %.1f s", percentile(took[1:], 0.5).Seconds())
	}
	s.say("restart", sized(s.tasks, "waiting tasks", smallPayload)+", kill -9, until ready", "at most 5 s with 1M",
		took[0] <= restartGoal, "%.1f s right after the load%s", took[0].Seconds(), later)
	return nil
}

func (h *house) restart(ctx context.Context) (time.Duration, error) {
	if err := h.servers[0].Kill(); err != nil {
		return 0, err
	}
	began := time.Now()
	starting, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := h.servers[0].Start(starting); err != nil {
		return 0, err
	}
	if _, err := h.client.Queue(starting, "restart"); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}
