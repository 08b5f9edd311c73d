package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"pulse/test/calm"
)

// ballot is raft's part in an election: a leader, and timeouts that are remembered.
type ballot struct {
	mu     sync.Mutex
	leader raft.ServerID
	now    raft.ReloadableConfig
	set    []time.Duration // heartbeat timeouts, in the order they were set
}

func (b *ballot) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return "addr", b.leader
}

func (b *ballot) ReloadableConfig() raft.ReloadableConfig {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *ballot) ReloadConfig(c raft.ReloadableConfig) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.ElectionTimeout != c.HeartbeatTimeout {
		return errors.New("the two timeouts differ")
	}
	b.now = c
	b.set = append(b.set, c.HeartbeatTimeout)
	return nil
}

func (b *ballot) elect(id raft.ServerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leader = id
}

func (b *ballot) history() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Duration(nil), b.set...)
}

func TestOnlyALeaderThatHasEndedIsReplacedInHaste(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for name, c := range map[string]struct {
		leader raft.ServerID
		dials  []error // the last one again and again
		want   int     // changes of the timeouts
	}{
		"its port refuses":                  {"n2", []error{unreachable{refused}}, 2},
		"its port is closed last":           {"n2", []error{nil, unreachable{refused}}, 2},
		"it is there":                       {"n2", []error{nil}, 0},
		"it does not answer":                {"n2", []error{unreachable{context.DeadlineExceeded}}, 0},
		"it shakes no hands":                {"n2", []error{errors.New("no handshake")}, 0},
		"nobody leads":                      {"", []error{unreachable{refused}}, 0},
		"this server leads, another closed": {"n1", []error{unreachable{refused}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &ballot{leader: c.leader, now: raft.ReloadableConfig{HeartbeatTimeout: time.Second, ElectionTimeout: time.Second}}
			lost := make(chan struct{})
			dials := c.dials
			h := &haste{
				raft: b, self: "n1", lost: lost, short: 300 * time.Millisecond, logger: slog.New(slog.DiscardHandler),
				dial: func(raft.ServerAddress, time.Duration) (net.Conn, error) {
					err := dials[0]
					if len(dials) > 1 {
						dials = dials[1:]
					}
					here, there := net.Pipe()
					_ = there.Close()
					return here, err
				},
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { h.run(ctx) })
			lost <- struct{}{}
			if c.want > 0 {
				eventually(t, "the timeouts are short", func() bool { return len(b.history()) == 1 })
				if got := b.history()[0]; got != 300*time.Millisecond {
					t.Errorf("in haste a follower waits %s", got)
				}
				b.elect("n1") // which is this server
			}
			lost <- struct{}{} // taken only when the first is done with
			cancel()
			running.Wait()
			h1 := b.history()
			if len(h1) != c.want {
				t.Fatalf("timeouts were set to %v", h1)
			}
			if c.want > 0 && h1[1] != time.Second {
				t.Errorf("afterwards a follower waits %s", h1[1])
			}
		})
	}
}

// The followers would wait for an hour; that the leader has ended makes them stand.
func TestFollowersStandWhenTheLeaderHasEnded(t *testing.T) {
	t.Parallel()
	c := startTrioTCP(t)
	c.submit(t, "a")
	// The leader's timeouts stay, for its heartbeats. Whoever has just been elected
	// may lose its office before the others are slow, so they are told until it is so.
	var first *testNode
	eventually(t, "the followers wait for an hour", func() bool {
		first = c.leader(t)
		for _, n := range c.nodes {
			rc := n.raft.ReloadableConfig()
			rc.HeartbeatTimeout, rc.ElectionTimeout = time.Hour, time.Hour
			if n == first {
				rc.HeartbeatTimeout, rc.ElectionTimeout = calm.Office, calm.Office
			}
			if err := n.raft.ReloadConfig(rc); err != nil {
				t.Fatal(err)
			}
		}
		return c.leader(t) == first
	})
	first.disconnect() // as the kernel does for a process that was killed
	c.submit(t, "b", first)
	eventually(t, "they wait for an hour again", func() bool {
		for _, n := range c.nodes {
			if n != first && n.raft.ReloadableConfig().HeartbeatTimeout != time.Hour {
				return false
			}
		}
		return true
	})
}
