package node

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"pulse/cluster"
	"pulse/cluster/member"
	"pulse/gateway/httpapi"
)

// clusterAPI answers the API's questions about this node.
type clusterAPI struct{ *Node }

var _ httpapi.Cluster = clusterAPI{}

// Status implements httpapi.Cluster.
func (c clusterAPI) Status(ctx context.Context) httpapi.NodeStatus {
	s := c.status(ctx)
	// One kind of number for all: after a restore the log's own would look like a
	// state that is far ahead of its log.
	number := func(index uint64) httpapi.Number {
		if index == 0 {
			return 0 // none
		}
		return httpapi.Number(s.FenceBase + index)
	}
	out := httpapi.NodeStatus{
		ID: s.ID, Version: c.cfg.Version, Role: strings.ToLower(s.State), Term: httpapi.Number(s.Term),
		LeaderID: s.LeaderID, LeaderAddress: s.LeaderAddress, Ready: s.Ready, NotReady: s.NotReady,
		AppliedIndex: number(s.AppliedIndex), CommitIndex: number(s.CommitIndex),
		LastLogIndex: number(s.LastLogIndex), SnapshotIndex: number(s.SnapshotIndex),
		SnapshotAt:   httpapi.TimeOf(s.SnapshotAt),
		ClusterClock: httpapi.Time(s.ClusterClock.UnixMicro()), WallOffsetMs: s.WallOffset.Milliseconds(),
		LastContactMs: s.LastContact.Milliseconds(),
		Alarms:        s.Alarms,
		DiskFree:      httpapi.Number(s.DiskFree), DiskTotal: httpapi.Number(s.DiskTotal), DiskLow: s.DiskLow,
	}
	if c.watch != nil {
		out.SourceID = c.watch.State().Source
	}
	for _, server := range s.Servers {
		out.Servers = append(out.Servers, httpapi.ServerStatus(server))
	}
	for _, d := range s.Duties {
		out.Duties = append(out.Duties, httpapi.DutyStatus(d))
	}
	return out
}

// status is the node's, with the servers of the cluster, which a gateway has to
// ask for.
func (c clusterAPI) status(ctx context.Context) cluster.Status {
	s := c.Node.Status()
	if c.watch != nil {
		s.Servers = c.servers(ctx)
	}
	return s
}

// Ready implements httpapi.Cluster.
func (c clusterAPI) Ready(context.Context) (ready bool, reasons []string) {
	s := c.Node.Status()
	return s.Ready, s.NotReady
}

// Backup implements httpapi.Cluster.
func (c clusterAPI) Backup(ctx context.Context, w io.Writer) error {
	if c.watch != nil {
		return c.backupElsewhere(ctx, w)
	}
	_, err := c.raft.Backup(ctx, w)
	return err
}

// Members implements httpapi.Cluster: gossip knows who is alive and where, the
// log who votes.
func (c clusterAPI) Members(ctx context.Context) []httpapi.MemberStatus {
	s := c.status(ctx)
	var out []httpapi.MemberStatus
	at := map[string]int{}
	for _, m := range c.Node.Members() {
		role := string(m.Role)
		if m.Role == member.Voter {
			role = "outside"
		}
		at[m.ID] = len(out)
		out = append(out, httpapi.MemberStatus{
			ID: m.ID, Role: role, HTTP: m.HTTP, RPC: m.RPC, Raft: m.Raft, Version: m.Version, Leader: m.ID == s.LeaderID, Alive: true,
		})
	}
	for _, server := range s.Servers {
		i, alive := at[server.ID]
		if !alive {
			i = len(out)
			out = append(out, httpapi.MemberStatus{ID: server.ID, Raft: server.Address})
		}
		out[i].Voter = server.Voter
		out[i].Role = "learner"
		if server.Voter {
			out[i].Role = "voter"
		}
	}
	slices.SortFunc(out, func(a, b httpapi.MemberStatus) int { return cmp.Compare(a.ID, b.ID) })
	c.describe(ctx, s, out)
	return out
}

// describeWithin bounds how long a list of members waits for one that does not
// answer: what it would say of itself is then left out.
const describeWithin = 500 * time.Millisecond

// describe asks the members that are alive how far they are.
func (c clusterAPI) describe(ctx context.Context, self cluster.Status, members []httpapi.MemberStatus) {
	ctx, cancel := context.WithTimeout(ctx, describeWithin)
	defer cancel()
	tell := func(m *httpapi.MemberStatus, applied uint64, contact time.Duration, snapshot time.Time) {
		if m.Voter || m.Role == "learner" {
			index, ms := httpapi.Number(self.FenceBase+applied), contact.Milliseconds()
			m.AppliedIndex, m.LastContactMs, m.SnapshotAt = &index, &ms, httpapi.TimeOf(snapshot)
		}
	}
	var asking sync.WaitGroup
	for i := range members {
		m := &members[i]
		if m.ID == self.ID {
			tell(m, self.AppliedIndex, self.LastContact, self.SnapshotAt)
			continue
		}
		if !m.Alive || c.links == nil {
			continue
		}
		asking.Go(func() {
			if d, err := c.links.peers.To(m.ID).Describe(ctx, 0); err == nil {
				snapshot := time.Time{}
				if d.GetSnapshotUs() != 0 {
					snapshot = time.UnixMicro(d.GetSnapshotUs())
				}
				tell(m, d.GetAppliedIndex(), time.Duration(d.GetLastContactMs())*time.Millisecond, snapshot)
			}
		})
	}
	asking.Wait()
}
