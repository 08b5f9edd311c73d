package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// heraldQuiet is how long no further entry may have come back before the
	// followers are told how far the log is committed. When more entries flow,
	// each of them says it of those before.
	heraldQuiet = 5 * time.Millisecond
	// heraldPause keeps a follower that could not be told from being told each time. It
	// is told again after as long.
	heraldPause = 500 * time.Millisecond
)

// place is an entry's place in the log.
type place struct{ index, term uint64 }

// herald is the duty that lets followers apply the last entry of a burst at once.
// A follower has an entry before it is committed, and hears that it is with the next
// message; raft sends that after CommitTimeout. On a quiet cluster every read through
// a follower, and everybody who waits there for a task, would wait as long: the more
// often raft sends it the shorter, and the more an idle cluster costs.
//
// What is sent is what raft sends then: an append of nothing behind an entry that
// this leader has applied, which names it as committed. A follower takes it if it has
// that very entry, and if the term has no later leader. Its answer is nobody's news.
func (o *office) herald(ctx context.Context, _ uint64) error {
	h := &heralds{
		transport: o.node.transport,
		head: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax,
			ID:              []byte(o.node.cfg.ID),
			Addr:            o.node.transport.EncodePeer(raft.ServerID(o.node.cfg.ID), o.node.transport.LocalAddr()),
		},
		term:   o.term,
		resume: map[raft.ServerID]time.Time{},
		missed: make(chan struct{}, 1),
	}
	quiet, again := time.NewTimer(forEver), time.NewTimer(forEver)
	defer quiet.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.applied:
			quiet.Reset(heraldQuiet)
			continue
		case <-h.missed:
			again.Reset(heraldPause)
			continue
		case <-quiet.C:
		case <-again.C:
		}
		if last := o.node.applier.last.Load(); last != nil && !o.proposer.busy() {
			h.tell(*last, o.node.raft.GetConfiguration().Configuration().Servers)
		}
	}
}

// heralds tells the followers of one leader, each once at a time.
type heralds struct {
	transport raft.Transport
	head      raft.RPCHeader
	term      uint64
	missed    chan struct{} // capacity 1: somebody could not be told

	mu     sync.Mutex
	newest place                       // to be told
	resume map[raft.ServerID]time.Time // not to be told before; the far future while it is being told
}

// tell returns at once. A call that hangs ends with the transport. Who is being told of
// an earlier place hears of this one next.
func (h *heralds) tell(last place, servers []raft.Server) {
	h.mu.Lock()
	h.newest = last
	h.mu.Unlock()
	for _, s := range servers {
		if string(s.ID) == string(h.head.ID) || !h.begin(s.ID) {
			continue
		}
		go func() {
			for at, more := last, true; more; {
				var answer raft.AppendEntriesResponse
				err := h.transport.AppendEntries(s.ID, s.Address, &raft.AppendEntriesRequest{
					RPCHeader: h.head, Term: h.term,
					PrevLogEntry: at.index, PrevLogTerm: at.term, LeaderCommitIndex: at.index,
				}, &answer)
				at, more = h.end(s.ID, at, err == nil && answer.Success)
			}
		}()
	}
}

func (h *heralds) begin(id raft.ServerID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if now.Before(h.resume[id]) {
		return false
	}
	h.resume[id] = now.Add(forEver)
	return true
}

// end gives the place that the follower is to be told of at once, if there is one.
func (h *heralds) end(id raft.ServerID, at place, told bool) (next place, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if told && h.newest.index > at.index {
		return h.newest, true
	}
	h.resume[id] = time.Now()
	if told {
		return place{}, false
	}
	h.resume[id] = h.resume[id].Add(heraldPause)
	select {
	case h.missed <- struct{}{}:
	default: // it is known
	}
	return place{}, false
}
