package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/test/calm"
)

// Raft would tell the followers in an hour.
func TestFollowersHearOfTheLastCommitAtOnce(t *testing.T) {
	t.Parallel()
	c := startTrioWith(t, func(cfg *Config) { cfg.CommitTimeout = time.Hour })
	for _, id := range []string{"a", "b", "c"} {
		index := c.submit(t, id)
		eventually(t, "all have applied "+id, func() bool {
			for _, n := range c.nodes {
				if n.machine.AppliedIndex() < index {
					return false
				}
			}
			return true
		})
	}
	// What is not committed is not said to be.
	first := c.leader(t)
	c.cut(first)
	done := make(chan error, 1)
	go func() {
		_, err := first.Propose(t.Context(), []*pb.Command{command("lost")})
		done <- err
	}()
	eventually(t, "the leader that was cut off gives up", func() bool { return first.office.Load() == nil })
	if err := <-done; err == nil {
		t.Fatal("a leader without followers has committed an entry")
	}
	c.heal()
	index := c.submit(t, "d")
	eventually(t, "all have applied d, and nothing that was lost", func() bool {
		for _, n := range c.nodes {
			if n.machine.AppliedIndex() < index {
				return false
			}
		}
		return true
	})
	eventually(t, "the states are the same", func() bool {
		return c.nodes[0].machine.hash() == c.nodes[1].machine.hash() && c.nodes[0].machine.hash() == c.nodes[2].machine.hash()
	})
}

// followers is a transport that hands each append to the test.
type followers struct {
	raft.Transport
	calls   chan *raft.AppendEntriesRequest
	answers chan error
}

func (f *followers) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	f.calls <- args
	err := <-f.answers
	resp.Success = err == nil
	return err
}

func TestAFollowerIsToldOnceAtATime(t *testing.T) {
	t.Parallel()
	f := &followers{calls: make(chan *raft.AppendEntriesRequest, 9), answers: make(chan error)}
	h := &heralds{transport: f, head: raft.RPCHeader{ID: []byte("n0")}, term: 7, resume: map[raft.ServerID]time.Time{}, missed: make(chan struct{}, 1)}
	servers := []raft.Server{{ID: "n0"}, {ID: "n1"}}
	free := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return time.Until(h.resume["n1"]) < calm.Patience
	}
	h.tell(place{5, 3}, servers)
	h.tell(place{6, 3}, servers) // it is being told, and hears of this next
	f.answers <- nil
	f.answers <- nil
	eventually(t, "it may be told again", free)
	if len(h.missed) != 0 {
		t.Error("it was told, and is to be told once more")
	}
	h.tell(place{8, 4}, servers)
	f.answers <- errors.New("gone")
	eventually(t, "the call is over, and is to be repeated", func() bool { return free() && len(h.missed) == 1 })
	h.tell(place{9, 4}, servers) // not so soon after a failure
	if len(f.calls) != 3 {
		t.Fatalf("it was called %d times", len(f.calls))
	}
	for _, want := range []place{{5, 3}, {6, 3}, {8, 4}} {
		a := <-f.calls
		if a.Term != 7 || a.PrevLogEntry != want.index || a.PrevLogTerm != want.term || a.LeaderCommitIndex != want.index || len(a.Entries) != 0 {
			t.Errorf("it was told %+v, not %+v", a, want)
		}
	}
}
