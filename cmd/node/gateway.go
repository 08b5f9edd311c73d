package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"pulse/cluster"
	"pulse/cluster/member"
	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
	"pulse/schema"
)

// A gateway is a node without a vote and without a replica: it holds the
// connections of clients and workers, sends what they say to the leader, and
// hears of changes from one voter, its source. It keeps nothing that matters:
// when it dies, its workers go on through another, with the sessions and the
// leases that they have.

// gateway says whether the config is one of a gateway.
func (c Config) gateway() bool { return c.Cluster != nil && c.Cluster.Gateway }

// operatorWait is how long an operator's call waits for a leader, and how often
// it looks.
const (
	operatorWait = rpc.DefaultLeaderWait
	operatorPoll = 100 * time.Millisecond
)

// atLeader makes an operator's call at the leader. What a node refuses because it
// does not lead has not happened, so it is asked again elsewhere for a while.
func (n *Node) atLeader(ctx context.Context, call func(rpc.Remote) error) error {
	for began := time.Now(); ; {
		err := error(schema.Errorf(schema.NoLeader, "this gateway knows no leader"))
		if leader := n.watch.State().LeaderID; leader != "" {
			err = call(n.links.peers.To(leader))
		}
		if !errors.Is(err, schema.NoLeader) && !errors.Is(err, schema.NotLeader) || time.Since(began) > operatorWait {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(operatorPoll):
		}
	}
}

// openWatch is to a gateway what openRaft is to a server.
func (n *Node) openWatch() (err error) {
	n.registry = newRegistry()
	n.meters = newRequestMeters(n.registry)
	n.feed = rpc.NewFeed()
	n.background("feed", n.feed.Run)
	n.carrier = newCarrier(n.ID(), n.links)
	voters := n.links.servers
	n.watch, err = rpc.NewWatch(rpc.WatchConfig{
		Self: n.ID(), Peers: n.links.peers, Voters: voters, Feed: n.feed, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	n.router, err = rpc.NewRouter(rpc.Config{
		Self: n.ID(), Peers: n.links.peers, Voters: voters, Watch: n.watch, Feed: n.feed,
	})
	if err != nil {
		return err
	}
	n.background("watch", n.watch.Run)
	return nil
}

// servers lists the live servers of this gateway's cluster.
func (l *links) servers() []string {
	self := l.members.Self()
	var out []string
	for _, m := range l.members.Members() {
		if m.Role == member.Voter && m.RPC != "" && !m.Fresh && m.ClusterID != "" && (m.ClusterID == self.ClusterID || self.ClusterID == "") {
			out = append(out, m.ID)
		}
	}
	return out
}

// belong makes this gateway one of the first cluster it meets, and keeps it from
// taking the name of a server that happens to be down.
func (n *Node) belong(ctx context.Context) {
	checked, said := false, time.Now()
	for {
		changed := n.links.members.Changed()
		if n.links.members.Self().ClusterID == "" {
			n.adopt()
		}
		if !checked {
			var err error
			if checked, err = n.checkName(ctx); err != nil {
				go n.fail(err) // not from here: closing waits for this goroutine
				return
			}
		}
		if s := n.gatewayStatus(); !s.Ready && time.Since(said) > waitLog {
			said = time.Now()
			n.logger.Warn("this gateway cannot serve", "reasons", s.NotReady)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(time.Second):
		}
	}
}

// adopt takes the cluster of the servers it sees; of a lost one and the one that
// was made from it, the latter.
func (n *Node) adopt() {
	found := newest(n.links.members.Members(), func(m member.Node) bool {
		return m.Role == member.Voter && !m.Fresh && m.ClusterID != ""
	})
	if found.ClusterID == "" {
		return
	}
	if err := n.dir.belongTo(found.ClusterID, found.FenceBase); err != nil {
		n.logger.Warn("the cluster could not be noted", "error", err)
	}
	err := n.links.members.Update(func(self *member.Node) { self.ClusterID, self.FenceBase = found.ClusterID, found.FenceBase })
	if err != nil {
		n.logger.Debug("gossip is slow", "error", err)
	}
	n.logger.Info("serving a cluster", "cluster", found.ClusterID)
}

// checkName refuses the name of a server, once one can be asked who they are.
func (n *Node) checkName(ctx context.Context) (checked bool, err error) {
	source := n.watch.State().Source
	if source == "" {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	d, err := n.links.peers.To(source).Describe(ctx, 0)
	if err != nil {
		return false, nil //nolint:nilerr // another try comes in a second
	}
	for _, server := range d.Servers {
		if server.Id == n.ID() {
			return true, fmt.Errorf("node: %w: %s is the name of a server of this cluster", member.ErrTaken, n.ID())
		}
	}
	return true, nil
}

// gatewayStatus is what a gateway knows of its cluster. It is ready when its
// source knows a leader and the leader has answered its last report: then what
// is sent through it arrives.
func (n *Node) gatewayStatus() cluster.Status {
	w := n.watch.State()
	s := cluster.Status{ID: n.ID(), State: string(member.Gateway), Term: w.Term, FenceBase: n.links.members.Self().FenceBase}
	if applied := n.feed.AppliedIndex(); applied > s.FenceBase { // as clients see it
		s.AppliedIndex = applied - s.FenceBase
	}
	if !w.Heard.IsZero() {
		s.LastContact = time.Since(w.Heard)
	}
	switch {
	case w.Source == "" && len(n.links.servers()) == 0:
		s.NotReady = append(s.NotReady, "no server of a cluster is known; see --join")
	case w.Source == "":
		s.NotReady = append(s.NotReady, "no server can be reached")
	case !w.Ready || w.LeaderID == "":
		s.NotReady = append(s.NotReady, fmt.Sprintf("server %s knows no leader", w.Source))
	case !n.reporting():
		s.NotReady = append(s.NotReady, fmt.Sprintf("the leader, %s, has not answered this gateway's last report", w.LeaderID))
	}
	if w.Source != "" {
		s.LeaderID = w.LeaderID
		if leader, ok := n.links.members.Member(w.LeaderID); ok {
			s.LeaderAddress = leader.Raft
		}
	}
	s.Ready = len(s.NotReady) == 0
	return s
}

func (n *Node) reporting() bool { return n.hub != nil && n.hub.Reporting() }

// servers asks a server of the cluster who they are; nil if none answers.
func (n *Node) servers(ctx context.Context) []cluster.ServerStatus {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	source, err := n.someServer()
	if err != nil {
		return nil
	}
	d, err := n.links.peers.To(source).Describe(ctx, 0)
	if err != nil {
		n.logger.Debug("a server was not reached", "server", source, "error", err)
		return nil
	}
	var out []cluster.ServerStatus
	for _, s := range d.Servers {
		out = append(out, cluster.ServerStatus{ID: s.Id, Address: s.Address, Voter: s.Voter})
	}
	return out
}

func (n *Node) someServer() (string, error) {
	if source := n.watch.State().Source; source != "" {
		return source, nil
	}
	if all := n.links.servers(); len(all) > 0 {
		return all[0], nil
	}
	return "", schema.Errorf(schema.Unavailable, "this gateway can reach no server of the cluster")
}

// backupElsewhere passes a backup on that a server makes.
func (n *Node) backupElsewhere(ctx context.Context, w io.Writer) error {
	server, err := n.someServer()
	if err != nil {
		return err
	}
	return n.links.peers.To(server).Backup(ctx, w)
}

// bystander is a gateway as the rpc port shows it: it takes deliveries, and
// answers nothing that needs a replica.
type bystander struct{ n *Node }

var _ rpc.Local = bystander{}

func (b bystander) refuse() error {
	return schema.Errorf(schema.NotLeader, "node %s is a gateway and keeps no state", b.n.ID())
}

// Propose implements rpc.Local.
func (b bystander) Propose(context.Context, []*pb.Command) ([]*pb.Result, error) {
	return nil, b.refuse()
}

// Query implements rpc.Local.
func (b bystander) Query(context.Context, *pb.Query) (*pb.Answer, error) { return nil, b.refuse() }

// ReadIndex implements rpc.Local.
func (b bystander) ReadIndex(context.Context) (uint64, error) { return 0, b.refuse() }

// LeaderID implements rpc.Local.
func (b bystander) LeaderID() string { return b.n.watch.State().LeaderID }

// Describe implements rpc.Local.
func (b bystander) Describe(uint64) *pb.DescribeResponse {
	s := b.n.gatewayStatus()
	return &pb.DescribeResponse{
		NodeId: s.ID, ClusterId: b.n.links.members.Self().ClusterID, Role: string(member.Gateway), Version: b.n.cfg.Version,
		RaftState: s.State, Term: s.Term, LastContactMs: s.LastContact.Milliseconds(), LeaderId: s.LeaderID, Ready: s.Ready,
		WallUs: wallClock().UnixMicro(), Format: fsm.FormatLevel,
	}
}

// Backup implements rpc.Local.
func (b bystander) Backup(context.Context, io.Writer) error { return b.refuse() }

// Remove implements rpc.Local.
func (b bystander) Remove(context.Context, string, bool) error { return b.refuse() }

// Transfer implements rpc.Local.
func (b bystander) Transfer(context.Context, string) (string, error) { return "", b.refuse() }
