package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	queueMax     = 1_000_000_000
	memoryGoal   = 300 // MiB of a node with a million waiting tasks
	settleFor    = 20 * time.Second
	smallPayload = 200
	largePayload = 1024
)

// studyMemory loads a node with tasks that nobody takes. One node is enough:
// each holds the same.
func studyMemory(ctx context.Context, s *site) error {
	small, err := s.memoryOf(ctx, smallPayload)
	if err != nil {
		return err
	}
	large, err := s.memoryOf(ctx, largePayload)
	if err != nil {
		return err
	}
	s.say("memory", "1 KiB payloads against 200 bytes", "within 10 %", large < small*1.1, "%.2f times", large/small)
	return nil
}

func (s *site) memoryOf(ctx context.Context, payloadBytes int) (loaded float64, err error) {
	h, err := s.open(ctx, 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	_, empty, err := h.usage()
	if err != nil {
		return 0, err
	}
	if err := h.queue(ctx, "memory"); err != nil {
		return 0, err
	}
	perSecond, err := h.fill(ctx, "memory", s.tasks, plain(payloadBytes))
	if err != nil {
		return 0, err
	}
	_, full, err := h.usage()
	if err != nil {
		return 0, err
	}
	sleep(ctx, settleFor)
	_, bytes, err := h.usage()
	if err != nil {
		return 0, err
	}
	if err := s.profile(ctx, h, h.servers[0], "heap", fmt.Sprintf("memory-%d", payloadBytes), 0); err != nil {
		return 0, err
	}
	heap, err := h.metric(ctx, h.servers[0], "go_memstats_heap_alloc_bytes")
	if err != nil {
		return 0, err
	}
	s.say("memory", sized(s.tasks, "waiting tasks", payloadBytes), "below 300 MiB with 1M", mib(bytes) < memoryGoal,
		"%.0f MiB resident (%.0f at the end of the load, %.0f empty), %.0f bytes a task; Go heap %.0f MiB; loaded at %.0f/s",
		mib(bytes), mib(full), mib(empty), float64(bytes-empty)/float64(s.tasks), heap/(1<<20), perSecond)
	return mib(bytes), nil
}
