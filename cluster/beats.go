package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// beats lets a leader's heartbeats to all followers leave at one moment. Raft has a
// clock of its own for each follower, which strikes one to two spans after the last
// answer: what is sent at different times wakes this process once to send, and once
// for the answer, for each of them. Here a heartbeat waits for the others that are about
// to come, but never longer than raft itself might have waited: two spans after the last
// answer it leaves alone. So followers hear as often as they may rely on.
//
// A heartbeat that raft sends out of turn, to be sure that it still leads, is sent to all
// followers at once and finds nobody to wait for. One whose follower does not answer
// is not waited for.
type beats struct {
	span time.Duration

	mu sync.Mutex
	// answered is when the last heartbeat to a server was; it is not there while the
	// next one waits or is on its way, nor after one that failed.
	answered map[raft.ServerID]time.Time
	leave    chan struct{} // closed when those that wait may leave; nil: none does
}

func newBeats(span time.Duration) *beats {
	return &beats{span: span, answered: map[raft.ServerID]time.Time{}}
}

// isHeartbeat says that a request asks and tells nothing else.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0 && len(args.Entries) == 0
}

// send calls a follower when it is time for it.
func (b *beats) send(id raft.ServerID, call func() error) error {
	b.await(id)
	err := call()
	if err == nil {
		b.mu.Lock()
		b.answered[id] = time.Now()
		b.mu.Unlock()
	}
	return err
}

func (b *beats) await(id raft.ServerID) {
	leave, limit := b.come(id, time.Now())
	if leave == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-leave:
	case <-timer.C:
	}
}

// come notes that raft has a heartbeat for a server and says what to wait for, and for
// how long; nil: nothing.
func (b *beats) come(id raft.ServerID, now time.Time) (leave <-chan struct{}, limit time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answered, known := b.answered[id]
	delete(b.answered, id)
	switch {
	case !b.expects(now):
		if b.leave != nil {
			close(b.leave)
			b.leave = nil
		}
		return nil, 0
	case !known || now.Sub(answered) < b.span:
		return nil, 0 // the first, or one out of turn
	}
	if b.leave == nil {
		b.leave = make(chan struct{})
	}
	return b.leave, answered.Add(2 * b.span).Sub(now)
}

// expects says that raft is about to have a heartbeat for another server. mu is held.
func (b *beats) expects(now time.Time) bool {
	for _, answered := range b.answered {
		if now.Sub(answered) < 2*b.span {
			return true
		}
	}
	return false
}
