package node

import (
	"context"
	"time"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// levelEvery is how often the leader looks whether all servers understand a
// higher format level.
const levelEvery = 5 * time.Second

// raiseLevel is the duty that raises the cluster's format level once every server,
// learners included, understands a higher one. A server that does not answer
// holds it up: it may come back as an older version.
func (n *Node) raiseLevel(ctx context.Context, _ uint64) error {
	tick := time.NewTicker(levelEvery)
	defer tick.Stop()
	for {
		if level := n.commonLevel(ctx); level > n.machine.FormatLevel() {
			n.logger.Info("every server understands a higher format level", "level", level)
			cmd := &pb.Command{Id: make([]byte, 16), Caller: &pb.Caller{Principal: "node/" + n.ID()}, Body: &pb.Command_SetCluster{
				SetCluster: &pb.SetCluster{FormatLevel: level},
			}}
			if _, err := n.raft.Propose(ctx, []*pb.Command{cmd}); err != nil && ctx.Err() == nil {
				n.logger.Warn("the format level was not raised, trying again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// commonLevel is the highest level that all servers understand; 0 if one did not
// answer.
func (n *Node) commonLevel(ctx context.Context) uint32 {
	level := uint32(fsm.FormatLevel)
	if level <= n.machine.FormatLevel() {
		return level // nothing to ask for
	}
	for _, s := range n.raft.Status().Servers {
		if s.ID == n.ID() || n.links == nil {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		d, err := n.links.peers.To(s.ID).Describe(ask, 0)
		cancel()
		if err != nil {
			return 0
		}
		level = min(level, d.Format)
	}
	return level
}
