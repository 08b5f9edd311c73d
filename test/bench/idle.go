package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulse/cmd/pulse/proc"
	"pulse/sdk"
)

const (
	idleWorkers   = 3000
	idleFor       = 60 * time.Second
	reconnectGoal = 5 * time.Second
)

// studyIdle connects workers that have nothing to do to three servers, measures
// what the servers take for them, and then kills a server: its third goes to the
// others at once.
func studyIdle(ctx context.Context, s *site) (err error) {
	h, err := s.open(ctx, 3, "idle")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	if !sleep(ctx, settleFor) {
		return context.Cause(ctx)
	}
	before, err := h.standing()
	if err != nil {
		return err
	}
	if err := s.profile(ctx, h, h.servers[0], "cpu", "bare", 30); err != nil {
		return err
	}
	bare, _, err := h.over(ctx, idleFor/2)
	if err != nil {
		return err
	}
	fleet := h.hire(ctx, idleWorkers, func() sdk.WorkerOptions { return sdk.WorkerOptions{Queue: "idle", Capacity: 1} },
		func(context.Context, *sdk.Task) (any, error) { return nil, nil })
	defer fleet.dismiss()
	began := time.Now()
	connecting, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := fleet.await(connecting, idleWorkers); err != nil {
		return fmt.Errorf("only %d workers are connected: %w", fleet.connected(), err)
	}
	s.tell("idle", "3,000 workers start at once, until all have a session", "%.1f s", time.Since(began).Seconds())
	if !sleep(ctx, settleFor) {
		return context.Cause(ctx)
	}
	for _, server := range h.servers {
		if err := s.profile(ctx, h, server, "cpu", "idle", 30); err != nil {
			return err
		}
		if err := s.profile(ctx, h, server, "heap", "idle", 0); err != nil {
			return err
		}
	}
	servers, own, err := h.over(ctx, idleFor)
	if err != nil {
		return err
	}
	after, err := h.standing()
	if err != nil {
		return err
	}
	each := float64(after-before) / idleWorkers / 1024
	s.say("idle", "3,000 idle workers on three servers: processor time", "below 5 % of a core", servers < 0.05,
		"%.1f %% of a core, of it %.1f %% without a worker; the workers themselves take %.1f %%", 100*servers, 100*bare, 100*own)
	s.say("idle", "3,000 idle workers on three servers: resident memory for a connection", "below 50 KiB", each < 50, "%.0f KiB", each)
	for _, part := range []struct{ what, metric string }{
		{"heap that is in use", "go_memstats_heap_inuse_bytes"}, {"heap of live and of dead things", "go_memstats_heap_alloc_bytes"}, {"stacks", "go_memstats_stack_inuse_bytes"},
	} {
		sum := 0.0
		for _, server := range h.servers {
			v, err := h.metric(ctx, server, part.metric)
			if err != nil {
				return err
			}
			sum += v
		}
		s.tell("idle", "of the servers' memory, divided by the connections: "+part.what, "%.0f KiB", sum/idleWorkers/1024)
	}
	return s.reconnect(ctx, h, fleet)
}

// standing is the memory of all servers.
func (h *house) standing() (bytes int64, err error) {
	for _, s := range h.servers {
		u, uerr := s.Usage()
		err = errors.Join(err, uerr)
		bytes += u.MemoryBytes
	}
	return bytes, err
}

// over is the share of a core that the servers, and this process, take for a while.
func (h *house) over(ctx context.Context, d time.Duration) (servers, own float64, err error) {
	first, _, err := h.usage()
	if err != nil {
		return 0, 0, err
	}
	ownFirst, err := proc.OwnUsage()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if !sleep(ctx, d) {
		return 0, 0, context.Cause(ctx)
	}
	last, _, err := h.usage()
	ownLast, oerr := proc.OwnUsage()
	took := time.Since(began).Seconds()
	return (last - first).Seconds() / took, (ownLast.CPU - ownFirst.CPU).Seconds() / took, errors.Join(err, oerr)
}

// reconnect kills a server that does not lead.
func (s *site) reconnect(ctx context.Context, h *house, fleet *fleet) error {
	leader, err := h.leader(ctx)
	if err != nil {
		return err
	}
	victim := h.servers[0]
	if victim == leader {
		victim = h.servers[1]
	}
	lost := 0
	sessions := map[*sdk.Worker]string{}
	for _, w := range fleet.workers {
		if health := w.Health(); health.Addr == victim.URL() {
			sessions[w] = health.SessionID
			lost++
		}
	}
	if err := victim.Kill(); err != nil {
		return err
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for len(sessions) > 0 {
		for w, old := range sessions {
			if health := w.Health(); health.Connected && health.SessionID != old {
				delete(sessions, w)
			}
		}
		if len(sessions) > 0 && !sleep(waiting, 5*time.Millisecond) {
			return fmt.Errorf("%d of %d workers have no new session: %w", len(sessions), lost, context.Cause(waiting))
		}
	}
	took := time.Since(began)
	s.say("idle", fmt.Sprintf("%d workers lose their server at once, until all have a session on another", lost), "at most 5 s",
		took <= reconnectGoal, "%.1f s", took.Seconds())
	return nil
}
