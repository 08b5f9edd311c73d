package node

import (
	"context"
	"io"
	"strings"

	"pulse/cluster"
	"pulse/gateway/httpapi"
)

// clusterAPI answers the API's questions about this node.
type clusterAPI struct {
	raft    *cluster.Node
	version string
}

var _ httpapi.Cluster = clusterAPI{}

// Status implements httpapi.Cluster.
func (c clusterAPI) Status(context.Context) httpapi.NodeStatus {
	s := c.raft.Status()
	out := httpapi.NodeStatus{
		ID: s.ID, Version: c.version, Role: strings.ToLower(s.State), Term: httpapi.Number(s.Term),
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
