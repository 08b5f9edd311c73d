package cluster

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Status is what an operator wants to know of one node.
type Status struct {
	ID            string
	State         string // leader, follower, candidate, shutdown
	Term          uint64
	LeaderID      string // empty: none known
	LeaderAddress string
	Servers       []ServerStatus

	// Log indexes, without fence base.
	AppliedIndex  uint64
	CommitIndex   uint64
	LastLogIndex  uint64
	SnapshotIndex uint64
	SnapshotAt    time.Time // cluster clock of the newest snapshot; zero = none
	FenceBase     uint64

	// Ready: this node would serve a linearizable read now, or follows a leader
	// that can. NotReady says why not.
	Ready    bool
	NotReady []string
	Duties   []DutyStatus // of the office this node holds; none on followers
	// Alarms say what somebody should look at; the leader raises them.
	Alarms []string

	ClusterClock time.Time
	LeaderClock  time.Time     // zero out of office
	WallOffset   time.Duration // of the leader clock: how far the wall clock is ahead
	LastContact  time.Duration // since the leader was heard of; 0 in office
	DiskFree     uint64
	DiskTotal    uint64
	DiskLow      bool // admissions are refused
}

// ServerStatus is a member of the raft configuration.
type ServerStatus struct {
	ID      string
	Address string
	Voter   bool
}

// DutyStatus is how a duty is doing in this term.
type DutyStatus struct {
	Name      string
	Running   bool
	Restarts  int
	LastError string // of the last run that ended by itself
}

// Status describes the node.
func (n *Node) Status() Status {
	address, leader := n.raft.LeaderWithID()
	last := n.raft.LastIndex()
	meta, header, taken := n.snaps.newest()
	s := Status{
		ID:            n.cfg.ID,
		State:         strings.ToLower(n.raft.State().String()),
		Term:          n.raft.CurrentTerm(),
		LeaderID:      string(leader),
		LeaderAddress: string(address),
		AppliedIndex:  n.cfg.Machine.AppliedIndex(),
		CommitIndex:   n.raft.CommitIndex(),
		LastLogIndex:  last,
		SnapshotIndex: meta.Index,
		FenceBase:     n.cfg.Machine.FenceBase(),
		ClusterClock:  time.UnixMicro(n.cfg.Machine.Clock()),
		LastContact:   n.sinceContact(),
	}
	if taken {
		s.SnapshotAt = time.UnixMicro(header.ClockUs)
	}
	s.DiskFree, s.DiskTotal, s.DiskLow = n.disk.read()
	for _, server := range n.raft.GetConfiguration().Configuration().Servers {
		s.Servers = append(s.Servers, ServerStatus{string(server.ID), string(server.Address), server.Suffrage == raft.Voter})
	}
	if o := n.office.Load(); o != nil {
		s.LeaderClock = time.UnixMicro(n.clock.Now())
		s.WallOffset = n.clock.Offset()
		for _, d := range o.duties {
			s.Duties = append(s.Duties, d.status())
		}
	}
	s.Alarms = n.alarms.list()
	s.NotReady = n.notReady(&s)
	s.Ready = len(s.NotReady) == 0
	return s
}

// RaftStats are raft's own numbers, for people who look into it.
func (n *Node) RaftStats() map[string]string { return n.raft.Stats() }

func (d *dutyState) status() DutyStatus {
	s := DutyStatus{Name: d.Name, Running: d.running.Load(), Restarts: int(d.restarts.Load())}
	if text := d.failure.Load(); text != nil {
		s.LastError = *text
	}
	return s
}

// notReady lists what keeps this node from serving.
func (n *Node) notReady(s *Status) []string {
	var why []string
	if n.closing.Load() {
		why = append(why, "the node is shutting down")
	}
	switch {
	case s.LeaderID == "":
		why = append(why, "no leader is known")
	case s.LeaderID == s.ID && n.office.Load() == nil:
		why = append(why, fmt.Sprintf("term %d is being opened", s.Term))
	case s.LeaderID != s.ID && s.LastContact > 3*n.cfg.HeartbeatTimeout:
		why = append(why, fmt.Sprintf("the leader was last heard of %s ago", s.LastContact.Round(time.Millisecond)))
	}
	for _, d := range s.Duties {
		if !d.Running {
			why = append(why, fmt.Sprintf("duty %q is not running: %s", d.Name, cmp.Or(d.LastError, "it is starting")))
		}
	}
	return why
}
