package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// endLooks is how often the port of a server is tried that has closed a
	// connection, endLookEvery apart: a process that ends closes one thing after
	// another, and its port may come last.
	endLooks     = 4
	endLookEvery = 50 * time.Millisecond
	// endLookLimit bounds one try. A process that is paused accepts and says
	// nothing, which is no proof of anything.
	endLookLimit = 500 * time.Millisecond
	// hasteLimit bounds the haste if nobody is elected.
	hasteLimit = 10 * time.Second
)

// elections is raft as haste sees it.
type elections interface {
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
	ReloadableConfig() raft.ReloadableConfig
	ReloadConfig(raft.ReloadableConfig) error
}

// haste makes a follower stand sooner when the leader is known to have ended.
// Silence proves nothing: the leader may be paused or cut off for a moment, so a
// follower waits for one or two heartbeat timeouts, and then again if the other one
// still believes in the old leader. But a process that was killed, or has crashed,
// leaves proof: the kernel closes its connections and refuses new ones at its
// port. With that the timeouts are as short as the leader's lease until there is
// a new leader.
//
// It is never about what is safe, only about when to ask: a follower that is wrong
// asks the others before it stands (pre-vote), and they still hear from the leader.
type haste struct {
	raft   elections
	self   raft.ServerID
	lost   <-chan struct{} // a server has closed a connection that it had opened to this one
	dial   func(address raft.ServerAddress, limit time.Duration) (net.Conn, error)
	short  time.Duration
	logger *slog.Logger
}

func (h *haste) run(ctx context.Context) {
	for {
		select {
		case <-h.lost:
		case <-ctx.Done():
			return
		}
		address, leader := h.raft.LeaderWithID()
		if leader == "" || leader == h.self || !h.ended(ctx, leader, address) {
			continue
		}
		h.logger.Info("the leader's process has ended; a new one is elected without waiting longer", "leader", leader)
		if err := h.hurry(ctx, leader); err != nil {
			h.logger.Error("the timeouts of elections could not be changed", "error", err)
		}
	}
}

// ended says that nothing listens at the leader's port any more.
func (h *haste) ended(ctx context.Context, leader raft.ServerID, address raft.ServerAddress) bool {
	for range endLooks {
		conn, err := h.dial(nameTarget(leader, address), endLookLimit)
		if err == nil {
			_ = conn.Close() // nothing was said on it
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if !sleep(ctx, endLookEvery) {
			return false
		}
	}
	return false
}

// hurry shortens the timeouts until there is another leader.
func (h *haste) hurry(ctx context.Context, dead raft.ServerID) error {
	usual := h.raft.ReloadableConfig()
	soon := usual
	soon.HeartbeatTimeout, soon.ElectionTimeout = min(h.short, usual.HeartbeatTimeout), min(h.short, usual.ElectionTimeout)
	if err := h.raft.ReloadConfig(soon); err != nil {
		return err
	}
	for until := time.Now().Add(hasteLimit); time.Now().Before(until); {
		if _, leader := h.raft.LeaderWithID(); leader != "" && leader != dead || !sleep(ctx, endLookEvery) {
			break
		}
	}
	return h.raft.ReloadConfig(usual)
}
