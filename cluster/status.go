package cluster

import "time"

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
	FenceBase     uint64

	// Ready: this node would serve a linearizable read now, or follows a leader
	// that can. NotReady says why not.
	Ready    bool
	NotReady []string
	Duties   []DutyStatus // of the office this node holds; none on followers

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
