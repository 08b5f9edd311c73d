package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"pulse/cluster"
	"pulse/cluster/member"
	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
)

// ClusterConfig makes a node one of several.
type ClusterConfig struct {
	RPCAddr    string // where other nodes send commands
	GossipAddr string // where nodes find each other; RaftAddr is in Config
	// Advertise is the host under which others reach this node; empty: the host
	// of the addresses, if it is one others can use.
	Advertise string
	// Join lists gossip addresses of other nodes. They are tried for ever.
	Join []string
	// BootstrapExpect is how many empty servers found a new cluster together.
	// 0: this one only joins.
	BootstrapExpect int
	// Gateway makes it a node without a vote and a replica, see gateway.go.
	Gateway bool
}

const (
	// waitLog is how often a node that waits for its founders says so.
	waitLog = 10 * time.Second
	// freshPoll is how often a server that joins looks whether the log has
	// reached it.
	freshPoll = 200 * time.Millisecond
	// settledPoll is the same for one that is ready.
	settledPoll = 2 * time.Second
	// compareEvery is how often the leader compares the states of the voters.
	compareEvery = 10 * time.Second
	askTimeout   = 2 * time.Second
	// pruneEvery is how often connections to nodes that are gone are given up.
	pruneEvery = time.Minute
)

func (c *ClusterConfig) validate(n Config) error {
	for _, a := range []struct{ field, addr string }{
		{"Cluster.RPCAddr", c.RPCAddr}, {"Cluster.GossipAddr", c.GossipAddr}, {"RaftAddr", n.RaftAddr},
	} {
		if c.Gateway && a.field == "RaftAddr" {
			continue
		}
		host, port, err := net.SplitHostPort(a.addr)
		if err != nil || port == "0" || port == "" {
			return fmt.Errorf("node: %s is %q: give HOST:PORT with a port of its own", a.field, a.addr)
		}
		switch {
		case n.Certs == "" && !loopback(host):
			return fmt.Errorf("node: %s is %q: without certificates nodes stay on this machine; give Certs, which 'pulse cluster init-tls' makes, or 127.0.0.1:PORT", a.field, a.addr)
		case anywhere(host) && c.Advertise == "":
			return fmt.Errorf("node: %s is %q, which others cannot reach: give Cluster.Advertise, the host they are to call", a.field, a.addr)
		}
	}
	for _, j := range c.Join {
		if _, _, err := net.SplitHostPort(j); err != nil {
			return fmt.Errorf("node: Cluster.Join has %q: give HOST:PORT of another node's gossip", j)
		}
	}
	switch {
	case c.Gateway && (n.RaftAddr != "" || c.BootstrapExpect != 0):
		return errors.New("node: Cluster.Gateway is set with RaftAddr or Cluster.BootstrapExpect: a gateway keeps no log and founds no cluster")
	case c.Gateway && len(c.Join) == 0:
		return errors.New("node: Cluster.Join is empty: give a gateway the gossip address of a server")
	case n.NodeID == "":
		return errors.New("node: NodeID is empty: each server of a cluster needs a name of its own")
	case len(n.ClusterSecret) == 0 && n.ClusterSecretFile == "" && n.Certs == "":
		return errors.New("node: neither Certs nor ClusterSecretFile is set: all servers of a cluster share one secret; make it once, e.g. with 'pulse cluster init-tls', and give it to each")
	case c.BootstrapExpect < 0 || c.BootstrapExpect > 9:
		return fmt.Errorf("node: Cluster.BootstrapExpect is %d: give 3 (1 to 9), or 0 to join only", c.BootstrapExpect)
	case c.BootstrapExpect == 0 && len(c.Join) == 0:
		return errors.New("node: neither Cluster.BootstrapExpect nor Cluster.Join is set: this server would wait for ever")
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// anywhere says that a host stands for all addresses of this machine.
func anywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// links is what ties a node to the others: gossip, one connection to each, and
// the port where they call.
type links struct {
	cfg      *ClusterConfig
	logger   *slog.Logger
	members  *member.List
	peers    *rpc.Peers
	listener net.Listener
	server   *rpc.Server
	token    rpc.Token
	// founders are the first voters with their raft addresses, on the node that
	// founds with them; empty on one that joins.
	founders []cluster.Server
}

// openLinks begins to gossip and finds out which cluster this server is of.
func (n *Node) openLinks(ctx context.Context) (err error) {
	if n.cfg.Cluster == nil {
		return nil
	}
	l := &links{cfg: n.cfg.Cluster, logger: n.logger}
	if l.token, err = rpc.NewToken(n.dir.secret); err != nil {
		return err
	}
	if l.listener, err = net.Listen("tcp", l.cfg.RPCAddr); err != nil {
		return fmt.Errorf("node: Cluster.RPCAddr: %w", err)
	}
	n.onClose("rpc port", func(context.Context) error { return ignoreClosed(l.listener.Close()) })
	fresh, err := n.dir.isNew()
	if err != nil {
		return err
	}
	gossip := member.Config{
		Bind: l.cfg.GossipAddr, Secret: n.dir.secret, Join: l.cfg.Join, Logger: n.logger, OnSuperseded: n.fail,
		Remember: n.dir.membersFile(),
	}
	if l.cfg.Advertise != "" {
		gossip.Advertise = l.reach(l.cfg.GossipAddr)
	}
	gossip.Self = member.Node{
		ID: n.dir.Node.NodeID, Role: member.Voter, HTTP: l.reach(n.Addr()), RPC: l.reach(l.listener.Addr().String()),
		Raft: l.reach(n.cfg.RaftAddr), Version: n.cfg.Version, ClusterID: n.dir.Node.ClusterID,
		Format: fsm.FormatLevel, Expect: l.cfg.BootstrapExpect, Fresh: fresh, FenceBase: n.fenceBase(),
	}
	if n.cfg.gateway() {
		gossip.Self.Role, gossip.Self.Raft, gossip.Self.Fresh = member.Gateway, "", false
	}
	if l.members, err = member.Start(ctx, gossip); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	n.onClose("gossip", func(context.Context) error { return l.members.Close() })
	peers := rpc.PeersConfig{Directory: l, Token: l.token, Logger: n.logger}
	if n.certs != nil {
		peers.TLS = n.certs.node.ClientConfig
	}
	if l.peers, err = rpc.NewPeers(peers); err != nil {
		return err
	}
	n.onClose("connections to other nodes", func(context.Context) error { return l.peers.Close() })
	if n.dir.Node.ClusterID == "" && !n.cfg.gateway() {
		if err := l.found(ctx, n); err != nil {
			return err
		}
	}
	n.links = l
	n.background("pruning of connections", l.prune)
	if n.cfg.gateway() {
		return nil
	}
	// What could not be spread in a second is spread with the next exchange: no
	// reason for a server not to start on a machine that is busy.
	if err := l.members.Update(func(m *member.Node) { m.ClusterID = n.dir.Node.ClusterID }); err != nil {
		n.logger.Warn("gossip is slow", "error", err)
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// reach is an address as others use it.
func (l *links) reach(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || l.cfg.Advertise == "" {
		return addr
	}
	if loopback(host) && !loopback(l.cfg.Advertise) {
		return addr
	}
	return net.JoinHostPort(l.cfg.Advertise, port)
}

// RPCAddress implements rpc.Directory.
func (l *links) RPCAddress(nodeID string) (string, bool) {
	return l.members.RPC(nodeID)
}

// prune gives up the connections to nodes that are gone.
func (l *links) prune(ctx context.Context) {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := l.peers.Prune(); err != nil {
				l.logger.Debug("a connection was not closed well", "error", err)
			}
		}
	}
}

// found waits until it is clear which cluster this empty server is of: one that
// gossip shows to be there, or a new one of exactly the expected servers, once
// all of them see the same ones.
func (l *links) found(ctx context.Context, n *Node) error {
	said := time.Time{}
	for {
		changed := l.members.Changed()
		all := l.members.Members()
		voters := slices.DeleteFunc(slices.Clone(all), func(m member.Node) bool { return m.Role != member.Voter })
		sees := l.sees(voters)
		if sees != "" && agreed(voters, sees) {
			var ids []string
			for _, v := range voters {
				ids = append(ids, v.ID)
				l.founders = append(l.founders, cluster.Server{ID: v.ID, Address: v.Raft})
			}
			l.logger.Info("founding a new cluster", "voters", ids)
			return n.dir.decide("", ids)
		}
		if id := existing(voters, sees); id != "" {
			l.logger.Info("joining a cluster", "cluster", id)
			return n.dir.decide(id, nil)
		}
		if err := l.members.Update(func(m *member.Node) { m.Sees = sees }); err != nil {
			l.logger.Debug("gossip is slow", "error", err)
		}
		if time.Since(said) > waitLog {
			said = time.Now()
			l.logger.Info("waiting for the servers that found the cluster", "expected", l.cfg.BootstrapExpect, "seen", names(voters))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node: waiting for %d servers to found a cluster, saw %s: %w", l.cfg.BootstrapExpect, names(voters), ctx.Err())
		case <-changed:
		case <-time.After(time.Second):
		}
	}
}

func names(members []member.Node) string {
	var out []string
	for _, m := range members {
		out = append(out, m.ID)
	}
	return strings.Join(out, ", ")
}

// sees is a hash of the founders, if exactly the expected ones are there.
func (l *links) sees(voters []member.Node) string {
	if l.cfg.BootstrapExpect == 0 || len(voters) != l.cfg.BootstrapExpect {
		return ""
	}
	h := sha256.New()
	for _, v := range voters { // sorted by id
		if v.Expect != l.cfg.BootstrapExpect {
			return ""
		}
		_, _ = fmt.Fprintf(h, "%s %s\n", v.ID, v.Raft) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// agreed says that every founder sees the same founders. One of them may have
// gone ahead already; it still says what it saw.
func agreed(voters []member.Node, sees string) bool {
	for _, v := range voters {
		if v.Sees != sees {
			return false
		}
	}
	return true
}

// existing is the cluster that is there already: some server has its log, and
// does not say that it was founded just now by those seen here. Of a lost
// cluster and the one that was made from it, it is the latter.
func existing(voters []member.Node, sees string) string {
	return newest(voters, func(v member.Node) bool {
		return !v.Fresh && v.ClusterID != "" && (v.Sees == "" || v.Sees != sees)
	}).ClusterID
}

// newest is, of the nodes that are there, one of the cluster that was made last:
// a restored one has the larger fence base. It is empty if none is there.
func newest(nodes []member.Node, there func(member.Node) bool) (found member.Node) {
	for _, m := range nodes {
		if there(m) && (found.ClusterID == "" || m.FenceBase > found.FenceBase) {
			found = m
		}
	}
	return found
}

// raftConfig fills in what a server of several needs.
func (l *links) raftConfig(cfg *cluster.Config, n *Node) {
	cfg.Advertise = l.reach(cfg.Listen)
	if n.certs != nil {
		cfg.Secure = n.certs
	}
	cfg.Bootstrap = l.founders
	cfg.Members = l
	cfg.Duties = append(cfg.Duties,
		cluster.Duty{Name: "membership", Run: func(ctx context.Context, term uint64) error {
			return n.raft.MembershipDuty(l).Run(ctx, term)
		}},
		cluster.Duty{Name: "state comparison", Run: n.compareStates},
	)
}

// Live implements cluster.Members.
func (l *links) Live() []cluster.Member {
	var out []cluster.Member
	for _, m := range l.members.Members() {
		if m.Role == member.Voter && m.Raft != "" {
			out = append(out, cluster.Member{ID: m.ID, Address: m.Raft, Fresh: m.Fresh, Unproven: m.Unproven})
		}
	}
	return out
}

// Stats implements cluster.Members.
func (l *links) Stats(ctx context.Context, id string) (cluster.MemberStats, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	d, err := l.peers.To(id).Describe(ctx, 0)
	if err != nil {
		return cluster.MemberStats{}, err
	}
	s := cluster.MemberStats{LastContact: time.Duration(d.LastContactMs) * time.Millisecond, LastTerm: d.LastTerm, LastIndex: d.LastIndex,
		AppliedIndex: d.AppliedIndex, Empty: d.Fresh, Wall: time.UnixMicro(d.WallUs)}
	if d.LastContactMs < 0 {
		s.LastContact = time.Hour
	}
	return s, nil
}

// serveLinks opens the port for other nodes, now that there is something to
// answer with, and keeps what gossip says of this node true.
func (n *Node) serveLinks() (err error) {
	l := n.links
	if l == nil {
		return nil
	}
	l.server, err = rpc.NewServer(rpc.ServerConfig{
		Local: n.local(), Inbox: n.carrier.inbox, Feed: n.published(), Token: l.token, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	port := l.listener
	if n.certs != nil {
		if port, err = n.certs.listenForNodes(port); err != nil {
			return err
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := l.server.Serve(port); err != nil {
			go n.fail(err) // not from here: closing waits for this goroutine
		}
	})
	n.onClose("rpc", func(context.Context) error {
		l.server.Close()
		serving.Wait()
		return nil
	})
	if n.cfg.gateway() {
		n.background("gossip about this gateway", n.belong)
		return nil
	}
	n.watchdog.OnFire(l.server.Close)
	n.background("gossip about this node", l.tell(n))
	return nil
}

// tell says in gossip that the log has reached this server, and stops saying
// whom it was founded with once the cluster works. It also sees that leadership
// has moved, so that nobody waits for a leader that is none any more.
func (l *links) tell(n *Node) func(context.Context) {
	return func(ctx context.Context) {
		changes, stop := n.raft.LeaderChanges()
		defer stop()
		tick := time.NewTicker(freshPoll)
		defer tick.Stop()
		led := ""
		for settled := false; ; {
			select {
			case <-ctx.Done():
				return
			case <-changes:
			case <-tick.C:
			}
			if leader := n.raft.LeaderID(); leader != "" && leader != led {
				l.peers.LeaderMoved(led)
				led = leader
			}
			s := n.raft.Status()
			fresh := s.LastLogIndex == 0 && s.SnapshotIndex == 0
			if was := settled; was != (s.Ready && !fresh) {
				settled = !was
				tick.Reset(map[bool]time.Duration{true: settledPoll, false: freshPoll}[settled])
			}
			err := l.members.Update(func(m *member.Node) {
				m.Fresh = fresh
				m.Unproven = n.raft.Unproven()
				m.FenceBase = max(m.FenceBase, n.machine.FenceBase())
				if s.Ready {
					m.Sees = ""
				}
			})
			if err != nil {
				n.logger.Debug("gossip is slow", "error", err)
			}
		}
	}
}

// local is this node as the rpc port shows it.
func (n *Node) local() rpc.Local {
	if n.cfg.gateway() {
		return bystander{n}
	}
	return local{n.raft, n}
}

// published is the feed that other nodes may watch.
func (n *Node) published() *rpc.Feed {
	if n.cfg.gateway() {
		return nil
	}
	return n.feed
}

// local is a server as the rpc port shows it.
type local struct {
	*cluster.Node
	n *Node
}

// Describe implements rpc.Local.
func (l local) Describe(hashIndex uint64) *pb.DescribeResponse {
	s := l.Status()
	var servers []*pb.ServerInfo
	for _, server := range s.Servers {
		servers = append(servers, &pb.ServerInfo{Id: server.ID, Address: server.Address, Voter: server.Voter})
	}
	return &pb.DescribeResponse{
		Servers: servers,
		NodeId:  s.ID, ClusterId: l.n.dir.Node.ClusterID, Role: string(member.Voter), Version: l.n.cfg.Version,
		RaftState: s.State, Term: s.Term, LastIndex: s.LastLogIndex, LastTerm: l.LastLogTerm(), CommitIndex: s.CommitIndex,
		AppliedIndex: s.AppliedIndex, LastContactMs: s.LastContact.Milliseconds(), LeaderId: s.LeaderID, Ready: s.Ready,
		WallUs: wallClock().UnixMicro(), Format: fsm.FormatLevel, StateHash: l.n.machine.HashAt(hashIndex), ClockUs: l.n.machine.Clock(),
		Fresh: s.LastLogIndex == 0 && s.SnapshotIndex == 0, SnapshotUs: micros(s.SnapshotAt),
	}
}

// fenceBase is the largest one this node knows of; a gateway has no machine.
func (n *Node) fenceBase() uint64 {
	if n.machine == nil {
		return n.dir.Node.FenceBase
	}
	return max(n.dir.Node.FenceBase, n.machine.FenceBase())
}

// micros is Unix microseconds; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Backup implements rpc.Local.
func (l local) Backup(ctx context.Context, w io.Writer) error {
	_, err := l.Node.Backup(ctx, w)
	return err
}

// compareStates is the duty that finds a replica whose state differs: the
// leader asks every voter for its state hash at one index and puts all answers
// into the log, where the odd one sees itself and stops.
func (n *Node) compareStates(ctx context.Context, _ uint64) error {
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	last := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		mark := n.machine.LatestMark()
		if mark == last || mark == 0 {
			continue // nothing new to compare
		}
		last = mark
		reports, voters := n.askStates(ctx, mark)
		if len(reports) < 2 {
			continue
		}
		cmd := &pb.Command{Id: make([]byte, 16), Caller: &pb.Caller{Principal: "node/" + n.ID()}, Body: &pb.Command_CompareStates{
			CompareStates: &pb.CompareStates{Index: mark, Voters: voters, Reports: reports},
		}}
		if _, err := n.raft.Propose(ctx, []*pb.Command{cmd}); err != nil && ctx.Err() == nil {
			n.logger.Warn("states were not compared", "error", err)
		}
	}
}

func (n *Node) askStates(ctx context.Context, mark uint64) (reports []*pb.StateReport, voters uint32) {
	for _, s := range n.raft.Status().Servers {
		if !s.Voter {
			continue
		}
		voters++
		hash := n.machine.HashAt(mark)
		if s.ID != n.ID() {
			ask, cancel := context.WithTimeout(ctx, askTimeout)
			d, err := n.links.peers.To(s.ID).Describe(ask, mark)
			cancel()
			if err != nil {
				continue // a silent voter is the membership's business
			}
			hash = d.StateHash
		}
		if len(hash) > 0 {
			reports = append(reports, &pb.StateReport{NodeId: s.ID, StateHash: hash})
		}
	}
	return reports, voters
}

// Members lists the live nodes as gossip knows them; only this one on a lone
// voter.
func (n *Node) Members() []member.Node {
	if n.links == nil {
		return []member.Node{{ID: n.ID(), Role: member.Voter, HTTP: n.Addr(), Version: n.cfg.Version, ClusterID: n.dir.Node.ClusterID}}
	}
	return n.links.members.Members()
}

// Remove takes a server out of the cluster, through whoever leads.
func (n *Node) Remove(ctx context.Context, id string, force bool) error {
	if n.cfg.gateway() {
		return n.atLeader(ctx, func(leader rpc.Remote) error { return leader.Remove(ctx, id, force) })
	}
	if leader := n.leaderElsewhere(); leader != "" {
		return n.links.peers.To(leader).Remove(ctx, id, force)
	}
	return n.raft.Remove(ctx, id, force)
}

// leaderElsewhere is the node that leads, if it is another one.
func (n *Node) leaderElsewhere() string {
	if leader := n.raft.LeaderID(); n.links != nil && leader != n.ID() {
		return leader
	}
	return ""
}

// Transfer hands leadership over, through whoever leads.
func (n *Node) Transfer(ctx context.Context, id string) (leaderID string, err error) {
	if n.cfg.gateway() {
		err = n.atLeader(ctx, func(leader rpc.Remote) error {
			leaderID, err = leader.Transfer(ctx, id)
			return err
		})
		return leaderID, err
	}
	if leader := n.leaderElsewhere(); leader != "" {
		return n.links.peers.To(leader).Transfer(ctx, id)
	}
	return n.raft.Transfer(ctx, id)
}

var (
	_ rpc.Local       = local{}
	_ rpc.Inbox       = (*inbox)(nil)
	_ rpc.Directory   = (*links)(nil)
	_ cluster.Members = (*links)(nil)
)
