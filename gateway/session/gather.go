package session

import (
	"context"
	"sync"
	"time"

	pb "pulse/proto/pulse/v1"
)

const (
	// gatherFor is how long a heartbeat may wait for those of other workers. A worker
	// must not take that for a broken connection: the SDK allows two seconds or more.
	gatherFor = time.Second
	// gatheredMax is how many are handed over at once; then they do not wait longer.
	gatheredMax = 256
)

// gathering joins what workers say only to show that they still reach the cluster.
// Each such word by itself would be an entry of the log: thousands of idle workers make
// dozens of them a second, each of which every server writes and syncs. Gateways whose
// clocks agree hand over at the same moments, where the leader makes one entry of it all.
type gathering struct {
	hub *Hub

	mu   sync.Mutex
	next *gathered // is being filled; nil: nobody waits
}

type gathered struct {
	cmds []*pb.Command
	full chan struct{} // closed when it is
	done chan struct{} // closed when it is answered

	results []*pb.Result
	err     error
}

// submit hands a command over, soon, and returns its result. Whoever comes first waits
// for the others and hands over for all; ctx ends its waiting.
func (g *gathering) submit(ctx context.Context, cmd *pb.Command) (*gathered, int) {
	now := time.Now()
	g.mu.Lock()
	all := g.next
	first := all == nil
	if first {
		all = &gathered{full: make(chan struct{}), done: make(chan struct{})}
		g.next = all
	}
	place := len(all.cmds)
	all.cmds = append(all.cmds, cmd)
	if len(all.cmds) == gatheredMax {
		g.next = nil
		close(all.full)
	}
	g.mu.Unlock()
	if !first {
		<-all.done // within gatherFor and CommandWithin
		return all, place
	}
	timer := time.NewTimer(untilBeat(now, gatherFor))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-all.full:
	case <-ctx.Done():
	}
	g.mu.Lock()
	if g.next == all {
		g.next = nil
	}
	g.mu.Unlock()
	all.results, all.err = g.hub.carry(context.WithoutCancel(ctx), all.cmds) // others wait for it, too
	close(all.done)
	return all, place
}

// untilBeat is the time to the next moment that is a multiple of a span on the wall
// clock, where all gateways do what they do that often.
func untilBeat(now time.Time, span time.Duration) time.Duration {
	return now.Truncate(span).Add(span).Sub(now.Round(0))
}
