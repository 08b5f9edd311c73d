package node

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"

	"pulse/cluster/member"
	"pulse/gateway/httpapi"
)

// clusterAPI answers the API's questions about this node.
type clusterAPI struct{ *Node }

var _ httpapi.Cluster = clusterAPI{}

// Status implements httpapi.Cluster.
func (c clusterAPI) Status(context.Context) httpapi.NodeStatus {
	s := c.raft.Status()
	out := httpapi.NodeStatus{
		ID: s.ID, Version: c.cfg.Version, Role: strings.ToLower(s.State), Term: httpapi.Number(s.Term),
		LeaderID: s.LeaderID, LeaderAddress: s.LeaderAddress, Ready: s.Ready, NotReady: s.NotReady,
		AppliedIndex: httpapi.Number(s.FenceBase + s.AppliedIndex), CommitIndex: httpapi.Number(s.CommitIndex),
		LastLogIndex: httpapi.Number(s.LastLogIndex), SnapshotIndex: httpapi.Number(s.SnapshotIndex),
		ClusterClock: httpapi.Time(s.ClusterClock.UnixMicro()), WallOffsetMs: s.WallOffset.Milliseconds(),
		LastContactMs: s.LastContact.Milliseconds(),
		DiskFree:      httpapi.Number(s.DiskFree), DiskTotal: httpapi.Number(s.DiskTotal), DiskLow: s.DiskLow,
	}
	for _, server := range s.Servers {
		out.Servers = append(out.Servers, httpapi.ServerStatus(server))
	}
	for _, d := range s.Duties {
		out.Duties = append(out.Duties, httpapi.DutyStatus(d))
	}
	return out
}

// Ready implements httpapi.Cluster.
func (c clusterAPI) Ready(context.Context) (ready bool, reasons []string) {
	s := c.raft.Status()
	return s.Ready, s.NotReady
}

// Backup implements httpapi.Cluster.
func (c clusterAPI) Backup(ctx context.Context, w io.Writer) error {
	_, err := c.raft.Backup(ctx, w)
	return err
}

// Members implements httpapi.Cluster: gossip knows who is alive and where, the
// log who votes.
func (c clusterAPI) Members(context.Context) []httpapi.MemberStatus {
	s := c.raft.Status()
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
	return out
}
