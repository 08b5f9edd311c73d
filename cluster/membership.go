package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"pulse/schema"
)

const (
	// membersEvery is how often the leader compares who is there with who is in
	// the configuration.
	membersEvery = time.Second
	// changeTimeout bounds the enqueueing of a change of configuration.
	changeTimeout = 10 * time.Second
	// stableFor is how long a learner has to keep up before it gets a vote.
	stableFor = 5 * time.Second
	// behindMax is how many entries a healthy server may lag.
	behindMax = 1000
	// silentMax is how long a healthy server may not have heard of the leader.
	silentMax = 5 * time.Second
	// askVotersEvery is how often voters that keep up are asked how far they are:
	// nothing hangs on it but what Status shows. Learners, those who do not answer and a log that
	// grows are asked about each time.
	askVotersEvery = 5 * time.Second
	// votersMin is the number of voters below which none is removed, dead or not.
	votersMin = 3
)

// Member is a server that is alive, as gossip tells. What it says is confirmed
// by the authenticated connections over which it is then called.
type Member struct {
	ID      string
	Address string // of its raft port
	Fresh   bool   // its disk is empty: it knows no cluster yet
	// Unproven: it began empty and has not seen itself as a learner yet. As a
	// voter it would take no part in elections until it has.
	Unproven bool
}

// MemberStats is how far a server is, asked of it directly.
type MemberStats struct {
	LastContact  time.Duration // since it heard of the leader
	LastTerm     uint64
	LastIndex    uint64
	AppliedIndex uint64
	Empty        bool      // it has neither log nor snapshot
	Wall         time.Time // its wall clock when it answered; zero: not told
}

// Members knows the servers that are alive. Gossip fills it; it decides nothing.
type Members interface {
	Live() []Member
	Stats(ctx context.Context, id string) (MemberStats, error)
}

// MembershipDuty lets servers in: one that is alive, empty and unknown becomes a
// learner; a learner that keeps up gets a vote; a dead voter is removed once
// another has its place, never so that fewer than three are left. A voter whose
// disk was emptied becomes a learner again first.
func (n *Node) MembershipDuty(members Members) Duty {
	return Duty{Name: "membership", Run: func(ctx context.Context, term uint64) error {
		m := &membership{node: n, members: members, logger: n.logger.With("term", term)}
		pilot := autopilot.New(n.raft, m, autopilot.WithLogger(raftLogger(n.logger).Named("autopilot")),
			autopilot.WithUpdateInterval(membersEvery), autopilot.WithReconcileInterval(membersEvery))
		pilot.Start(ctx)
		defer func() { <-pilot.Stop() }()
		for sleep(ctx, membersEvery) {
			if err := m.reconcile(ctx); err != nil && ctx.Err() == nil {
				m.logger.Warn("the servers of the cluster could not be brought in line, trying again", "error", err)
			}
		}
		return ctx.Err()
	}}
}

// Unproven says that this server began empty and that the log has not shown it
// to itself as a learner yet.
func (n *Node) Unproven() bool {
	return n.guard != nil && n.guard.learner.Load() && !n.guard.shown.Load()
}

// membership is the leader's view of who should be in the configuration. It is
// autopilot's integration, too.
type membership struct {
	node    *Node
	members Members
	logger  *slog.Logger
	removal sync.Mutex // one removal at a time
	told    serverStats
}

// serverStats is what servers last told of themselves. It belongs to autopilot's
// goroutine.
type serverStats struct {
	at    time.Time
	index uint64 // the last one of the leader's log then
	all   map[raft.ServerID]*autopilot.ServerStats
}

func (n *Node) servers() map[raft.ServerID]raft.Server {
	out := map[raft.ServerID]raft.Server{}
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		out[s.ID] = s
	}
	return out
}

// reconcile makes at most one change: the next look sees what became of it.
func (m *membership) reconcile(ctx context.Context) error {
	servers := m.node.servers()
	for _, live := range m.members.Live() {
		id, address := raft.ServerID(live.ID), raft.ServerAddress(live.Address)
		s, known := servers[id]
		switch {
		case live.ID == m.node.cfg.ID && known && s.Address != address && s.Suffrage == raft.Voter:
			m.logger.Info("this server has moved", "from", s.Address, "to", address)
			return await(ctx, m.node.raft.AddVoter(id, address, 0, changeTimeout))
		case live.ID == m.node.cfg.ID:
			continue
		case !known && !live.Fresh:
			// It was removed, or is of nobody: with its old data it stays out.
			continue
		case !known:
			// Gossip may be late: what was fresh may have been let in, killed and
			// removed since.
			if stats, err := m.members.Stats(ctx, live.ID); err != nil || !stats.Empty {
				continue
			}
			m.logger.Info("a server joins as a learner", "server", live.ID, "address", live.Address)
			return await(ctx, m.node.raft.AddNonvoter(id, address, 0, changeTimeout))
		case live.Unproven && s.Suffrage == raft.Voter:
			m.logger.Warn("a voter has lost its disk and becomes a learner", "server", live.ID)
			return await(ctx, m.node.raft.DemoteVoter(id, 0, changeTimeout))
		case s.Address != address && s.Suffrage == raft.Voter:
			m.logger.Info("a voter has moved", "server", live.ID, "from", s.Address, "to", live.Address)
			return await(ctx, m.node.raft.AddVoter(id, address, 0, changeTimeout))
		case s.Address != address:
			m.logger.Info("a learner has moved", "server", live.ID, "from", s.Address, "to", live.Address)
			return await(ctx, m.node.raft.AddNonvoter(id, address, 0, changeTimeout))
		}
	}
	return nil
}

var _ autopilot.ApplicationIntegration = (*membership)(nil)

// AutopilotConfig is how servers are judged.
func (m *membership) AutopilotConfig() *autopilot.Config {
	return &autopilot.Config{
		CleanupDeadServers: true, LastContactThreshold: silentMax, MaxTrailingLogs: behindMax,
		MinQuorum: votersMin, ServerStabilizationTime: stableFor,
	}
}

// NotifyState hears of every look autopilot takes; Status shows the same.
func (m *membership) NotifyState(*autopilot.State) {}

// FetchServerStats asks each server how far it is, all at once, or says what they told
// a moment ago.
func (m *membership) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	if m.knowsEnough(servers) {
		return m.told.all
	}
	index := m.node.raft.LastIndex()
	all := m.ask(ctx, servers)
	m.told = serverStats{at: time.Now(), index: index, all: all}
	return all
}

// knowsEnough says that to ask the servers again would not change what is done with
// them: all are voters that have answered, and the log has hardly grown.
func (m *membership) knowsEnough(servers map[raft.ServerID]*autopilot.Server) bool {
	if time.Since(m.told.at) >= askVotersEvery || m.node.raft.LastIndex()-m.told.index > behindMax/2 || len(m.told.all) != len(servers) {
		return false
	}
	known := m.node.servers()
	for id := range servers {
		if m.told.all[id] == nil || known[id].Suffrage != raft.Voter {
			return false
		}
	}
	return len(known) == len(servers)
}

func (m *membership) ask(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	var mu sync.Mutex
	out := map[raft.ServerID]*autopilot.ServerStats{}
	var asking sync.WaitGroup
	for id := range servers {
		asking.Go(func() {
			stats := MemberStats{LastTerm: m.node.raft.CurrentTerm(), LastIndex: m.node.raft.LastIndex()}
			if string(id) != m.node.cfg.ID {
				var err error
				if stats, err = m.members.Stats(ctx, string(id)); err != nil {
					return // without an answer it is not healthy
				}
			}
			mu.Lock()
			defer mu.Unlock()
			out[id] = &autopilot.ServerStats{LastContact: stats.LastContact, LastTerm: stats.LastTerm, LastIndex: stats.LastIndex}
		})
	}
	asking.Wait()
	return out
}

// KnownServers are the members of the configuration, alive or not.
func (m *membership) KnownServers() map[raft.ServerID]*autopilot.Server {
	live := map[string]bool{m.node.cfg.ID: true}
	for _, l := range m.members.Live() {
		live[l.ID] = true
	}
	out := map[raft.ServerID]*autopilot.Server{}
	for id, s := range m.node.servers() {
		status := autopilot.NodeFailed
		if live[string(id)] {
			status = autopilot.NodeAlive
		}
		out[id] = &autopilot.Server{
			ID: id, Name: string(id), Address: s.Address, NodeStatus: status, RaftVersion: int(raft.ProtocolVersionMax),
			IsLeader: string(id) == m.node.cfg.ID, NodeType: autopilot.NodeVoter,
		}
	}
	return out
}

// RemoveFailedServer is autopilot's word that a dead server can go. It has seen
// to it that enough voters are left; what is checked again is that they are
// three.
func (m *membership) RemoveFailedServer(s *autopilot.Server) {
	if !m.removal.TryLock() {
		return
	}
	defer m.removal.Unlock()
	if err := m.node.refuseRemoval(s.ID); err != nil {
		m.logger.Debug("a dead server stays", "server", s.ID, "reason", err)
		return
	}
	m.logger.Warn("a dead server is removed, another has its place", "server", s.ID)
	future := m.node.raft.RemoveServer(s.ID, 0, changeTimeout)
	if err := future.Error(); err != nil {
		m.logger.Warn("a dead server could not be removed", "server", s.ID, "error", err)
	}
}

// refuseRemoval says why a server has to stay: fewer than three voters would be
// left.
func (n *Node) refuseRemoval(id raft.ServerID) error {
	servers := n.servers()
	s, ok := servers[id]
	if !ok {
		return schema.Errorf(schema.NotFound, "no server %s in this cluster", id)
	}
	voters := n.voters()
	if s.Suffrage == raft.Voter && voters-1 < votersMin {
		return schema.Errorf(schema.Conflict, "%d voters would be left without %s, and fewer than %d survive no failure; "+
			"let another server join first, or force the removal", voters-1, id, votersMin)
	}
	return nil
}

// refuseLoss says why a voter that is up has to stay: of those that would be left
// too few answer to elect a leader, and the removal itself could not be committed.
func (n *Node) refuseLoss(ctx context.Context, id string) error {
	if n.cfg.Members == nil || n.servers()[raft.ServerID(id)].Suffrage != raft.Voter {
		return nil
	}
	left := slices.DeleteFunc(n.otherVoters(), func(other string) bool { return other == id })
	silent := n.silentOf(ctx, left)
	voters := len(left) + 1 // and this server
	if quorum := voters/2 + 1; voters-len(silent) < quorum {
		return schema.Errorf(schema.Conflict, "of the %d voters that would be left without %s, %q do not answer, and it takes %d to have a leader; "+
			"start them, or remove them first, or force the removal", voters, id, silent, quorum)
	}
	return nil
}

// silentOf are those of some servers that do not answer, in order.
func (n *Node) silentOf(ctx context.Context, ids []string) []string {
	if n.cfg.Members == nil {
		return nil
	}
	var mu sync.Mutex
	var silent []string
	var asking sync.WaitGroup
	for _, id := range ids {
		asking.Go(func() {
			if _, err := n.cfg.Members.Stats(ctx, id); err != nil {
				mu.Lock()
				defer mu.Unlock()
				silent = append(silent, id)
			}
		})
	}
	asking.Wait()
	slices.Sort(silent)
	return silent
}

// Remove takes a server out of the configuration. Only the leader can; it does
// not remove itself.
func (n *Node) Remove(ctx context.Context, id string, force bool) error {
	if n.office.Load() == nil {
		return n.notLeader()
	}
	if id == n.cfg.ID {
		return schema.Errorf(schema.Conflict, "%s leads; transfer leadership first", id)
	}
	if err := n.refuseRemoval(raft.ServerID(id)); err != nil {
		var e *schema.Error
		if !force || (errors.As(err, &e) && e.Code == schema.NotFound) {
			return err
		}
	}
	if err := n.refuseLoss(ctx, id); err != nil && !force {
		return err
	}
	if err := await(ctx, n.raft.RemoveServer(raft.ServerID(id), 0, changeTimeout)); err != nil {
		return schema.Errorf(schema.ResultUnknown, "remove %s: %v", id, err)
	}
	n.logger.Warn("a server was removed by an operator", "server", id, "force", force)
	return nil
}

// Transfer hands leadership to a server, or to the first that can take it. The
// office is closed first, and opened again if it comes back.
func (n *Node) Transfer(ctx context.Context, id string) (leaderID string, err error) {
	if n.office.Load() == nil {
		return "", n.notLeader()
	}
	var future raft.Future
	switch others := n.otherVoters(); {
	case id == "" && len(others) == 0:
		return "", schema.Errorf(schema.Conflict, "leadership was not handed over: %s is the only voter; let another server join first", n.cfg.ID)
	case id == "" && n.cfg.Members == nil:
		future = n.raft.LeadershipTransfer()
	case id == "":
		to, err := n.firstToTakeOver(ctx, others)
		if err != nil {
			return "", err
		}
		future = n.raft.LeadershipTransferToServer(to, n.servers()[to].Address)
	default:
		s, ok := n.servers()[raft.ServerID(id)]
		switch {
		case !ok:
			return "", schema.Errorf(schema.NotFound, "no server %s in this cluster; %s", id, n.successors(ctx, others))
		case s.Suffrage != raft.Voter:
			return "", schema.Errorf(schema.Conflict, "leadership was not handed over: %s has no vote yet; wait until it has, or name a server that has one", id)
		case id == n.cfg.ID:
			return id, nil
		}
		if err := n.awaitSuccessor(ctx, id); err != nil {
			return "", err
		}
		future = n.raft.LeadershipTransferToServer(s.ID, s.Address)
	}
	if err := await(ctx, future); errors.Is(err, raft.ErrNotLeader) {
		return "", n.notLeader()
	} else if err != nil {
		return "", schema.Errorf(schema.Unavailable, "leadership was not handed over: %v", err)
	}
	for ctx.Err() == nil {
		if leader := n.LeaderID(); leader != "" && leader != n.cfg.ID {
			return leader, nil
		}
		if !sleep(ctx, 10*time.Millisecond) {
			break
		}
	}
	return "", schema.Errorf(schema.DeadlineExpired, "leadership was handed over; who took it is not known yet")
}

// successors says which of the other voters can lead now.
func (n *Node) successors(ctx context.Context, others []string) string {
	if len(others) == 0 {
		return n.cfg.ID + " is its only voter"
	}
	silent := n.silentOf(ctx, others)
	up := slices.DeleteFunc(slices.Clone(others), func(id string) bool { return slices.Contains(silent, id) })
	if len(up) == 0 {
		return "of its other voters none answers"
	}
	return "leadership can go to " + strings.Join(up, " or ")
}

// otherVoters are those that have a vote besides this server, in order.
func (n *Node) otherVoters() []string {
	var out []string
	for id, s := range n.servers() {
		if s.Suffrage == raft.Voter && string(id) != n.cfg.ID {
			out = append(out, string(id))
		}
	}
	slices.Sort(out)
	return out
}

// transferLag is how many entries a server may be behind that is to lead: few
// enough to be sent in a moment.
const transferLag = 512

// awaitSuccessor waits until a server can take over: it has caught up, and raft
// reaches it. During a transfer raft takes no entry, however long it has to send the
// target what that still lacks; and while it does not reach it, it goes on trying
// after the transfer was given up, and takes none all that time. That the target
// answers here says nothing of it: this is another port.
func (n *Node) awaitSuccessor(ctx context.Context, id string) error {
	if n.cfg.Members == nil {
		return nil
	}
	for began := time.Now(); ; {
		asked := time.Now()
		stats, err := n.cfg.Members.Stats(ctx, id)
		if err != nil {
			// To ask again would not bring it back.
			n.logger.Info("a server that is to lead does not answer", "server", id, "error", err)
			return schema.Errorf(schema.Conflict, "leadership was not handed over: %s does not answer; start it, or name a server that is up, or none", id)
		}
		applied := n.cfg.Machine.AppliedIndex()
		level := stats.AppliedIndex+transferLag >= applied
		reached := stats.LastContact <= asked.Sub(began) // by a heartbeat since the call
		switch {
		case level && reached:
			return nil
		case stats.LastContact > transferSilence*n.cfg.HeartbeatTimeout:
			return schema.Errorf(schema.Conflict, "leadership was not handed over: %s answers, but has heard nothing of this leader at its raft port for %s; "+
				"see that the port can be reached, or name another server, or none", id, stats.LastContact.Round(time.Millisecond))
		}
		if sleep(ctx, transferLook) {
			continue
		}
		if !level {
			return schema.Errorf(schema.Unavailable, "leadership was not handed over: %s is %d entries behind; try again when it has caught up", id, applied-stats.AppliedIndex)
		}
		return schema.Errorf(schema.Unavailable, "leadership was not handed over: %s has heard nothing of this leader meanwhile; try again with more time", id)
	}
}

// firstToTakeOver is the first of some servers that can.
func (n *Node) firstToTakeOver(ctx context.Context, ids []string) (raft.ServerID, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the others are not waited for any longer
	type answer struct {
		id  string
		err error
	}
	answers := make(chan answer, len(ids))
	for _, id := range ids {
		go func() { answers <- answer{id, n.awaitSuccessor(ctx, id)} }()
	}
	var last error
	for range ids {
		a := <-answers
		if a.err == nil {
			return raft.ServerID(a.id), nil
		}
		last = a.err
	}
	return "", last
}

const (
	transferLook = 50 * time.Millisecond
	// transferSilence is for how many heartbeat timeouts a server that is to lead may
	// have heard nothing: after one it stands itself.
	transferSilence = 2
)

// snapshotAgain answers a follower that a snapshot did not help: after one more
// entry the next snapshot ends elsewhere.
func (n *Node) snapshotAgain(ctx context.Context, id raft.ServerID) {
	n.logger.Warn("a server was sent the same snapshot twice; a newer one is taken", "server", id)
	if o := n.office.Load(); o != nil {
		o.proposer.wantEntry()
	}
	if !sleep(ctx, 100*time.Millisecond) {
		return
	}
	if _, err := n.snapshot(ctx); err != nil {
		n.logger.Warn("no newer snapshot could be taken", "error", err)
	}
}
