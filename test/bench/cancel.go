package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"pulse/sdk"
)

const (
	cancelTasks = 1000
	cancelSlots = 16
	cancelGoal  = 50 * time.Millisecond
)

// studyCancel cancels running tasks, one after the other, and looks when their
// handlers are told: that is the way from the request to the worker's socket, and
// the worker's own reading of it.
func studyCancel(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 3, "cancel")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	var mu sync.Mutex
	began, told := map[string]chan struct{}{}, map[string]chan time.Time{}
	fleet := h.hire(ctx, 4, func() sdk.WorkerOptions { return sdk.WorkerOptions{Queue: "cancel", Capacity: cancelSlots} },
		func(ctx context.Context, t *sdk.Task) (any, error) {
			var name string
			if err := t.Unmarshal(&name); err != nil {
				return nil, sdk.Failed("bad_payload", err)
			}
			mu.Lock()
			begun, tell := began[name], told[name]
			mu.Unlock()
			close(begun)
			<-ctx.Done()
			tell <- time.Now()
			return nil, ctx.Err()
		})
	defer fleet.dismiss()
	var took []time.Duration
	for i := range cancelTasks {
		name := time.Duration(i).String()
		begun, tell := make(chan struct{}), make(chan time.Time, 1)
		mu.Lock()
		began[name], told[name] = begun, tell
		mu.Unlock()
		task, err := h.client.Submit(ctx, sdk.TaskSpec{Queue: "cancel", Handler: handler, Payload: name})
		if err != nil {
			return err
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		asked := time.Now()
		if _, err := h.client.Cancel(ctx, task.ID); err != nil {
			return err
		}
		select {
		case at := <-tell:
			took = append(took, at.Sub(asked))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p50, p99 := percentile(took, 0.5), percentile(took, 0.99)
	s.say("cancel", "1,000 running tasks, from the request until the handler is told", "p99 below 50 ms", p99 < cancelGoal,
		"p50 %.1f ms, p99 %.1f ms", millis(p50), millis(p99))
	return nil
}
