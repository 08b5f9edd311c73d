package demo

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"pulse/sdk"
)

// audit is what the cluster says about every task, held against what load was
// told and what the resource has seen.
type audit struct {
	succeeded, failed, cancelled, needsReview int

	lost    []string // acknowledged, and not over or not there
	missing []string // SUCCEEDED without an effect
	altered []string // with another result than the handler gave
}

// sampled is how many results are read back one by one.
const sampled = 200

// examine reads all tasks of the demo.
func examine(ctx context.Context, c *sdk.Client, acked map[string]job, r *resource) (*audit, error) {
	a := &audit{}
	open := make(map[string]bool, len(acked))
	for id := range acked {
		open[id] = true
	}
	var results []string
	for task, err := range c.List(ctx, sdk.TaskFilter{Queue: queue, Handler: handler}) {
		if err != nil {
			return nil, fmt.Errorf("reading the tasks back: %w", err)
		}
		_, known := acked[task.ID]
		if task.State.Settled() {
			delete(open, task.ID)
		}
		a.count(task.State)
		if task.State == sdk.StateSucceeded && !r.has(task.ID) {
			a.missing = append(a.missing, task.ID)
		}
		if known && task.State == sdk.StateSucceeded && len(results) < sampled {
			results = append(results, task.ID)
		}
	}
	for id := range open {
		a.lost = append(a.lost, id)
	}
	return a, a.readResults(ctx, c, acked, results)
}

func (a *audit) count(s sdk.State) {
	switch s {
	case sdk.StateSucceeded:
		a.succeeded++
	case sdk.StateFailed:
		a.failed++
	case sdk.StateCancelled:
		a.cancelled++
	case sdk.StateNeedsReview:
		a.needsReview++
	case sdk.StateWaiting, sdk.StateLeased, sdk.StateRunning:
	}
}

func (a *audit) readResults(ctx context.Context, c *sdk.Client, acked map[string]job, ids []string) error {
	for _, id := range ids {
		task, err := c.Get(ctx, id)
		if err != nil {
			return fmt.Errorf("reading task %s back: %w", id, err)
		}
		if want := acked[id].result(); !bytes.Equal(task.Result, want) {
			a.altered = append(a.altered, id)
		}
	}
	return nil
}

// keptLeases counts the attempts that were running at the kill and ended as the
// only one of their task, so by the word of the cluster itself.
func keptLeases(ctx context.Context, c *sdk.Client, held map[string]*hold) (kept int, err error) {
	for _, h := range held {
		attempts, err := c.Attempts(ctx, h.task)
		if err != nil {
			return kept, fmt.Errorf("reading the attempts of task %s: %w", h.task, err)
		}
		if len(attempts) == 1 && attempts[0].ID == h.attempt && attempts[0].State == string(sdk.StateSucceeded) {
			kept++
		}
	}
	return kept, nil
}

// settled says whether the queue holds nothing that will still move.
func settled(ctx context.Context, c *sdk.Client) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := c.Queue(ctx, queue)
	if err != nil {
		return false, err
	}
	return q.Waiting == 0 && q.Active == 0, nil
}
