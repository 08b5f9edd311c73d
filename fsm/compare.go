package fsm

import (
	"bytes"
	"errors"
	"fmt"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// ErrDiverged says that replicas that applied the same log hold different
// states. The node stops: divergence is found, not served.
var ErrDiverged = errors.New("this node's state differs from the cluster's")

const (
	// MarkEvery is the distance of the log indexes at which replicas remember
	// their state hash for comparison.
	MarkEvery = 256
	marksKept = 64
)

// mark is the state hash right after an index.
type mark struct {
	index uint64
	hash  []byte
}

// LatestMark is the newest index this replica can be compared at; 0 without one.
func (m *Machine) LatestMark() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	newest := uint64(0)
	for _, k := range m.marks {
		newest = max(newest, k.index)
	}
	return newest
}

// HashAt is the state hash right after a log index that is a multiple of
// MarkEvery; nil if it is not remembered.
func (m *Machine) HashAt(index uint64) []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if k := m.marks[index/MarkEvery%marksKept]; k.index == index && index != 0 {
		return k.hash
	}
	return nil
}

// compareStates stops this node if it reported another state than the majority
// of voters. Without a majority nobody knows who is right, and all who reported
// stop. What it writes is the same on every node: nothing.
func (r *run) compareStates(c *pb.CompareStates) *pb.Result {
	if c.Voters == 0 || len(c.Reports) == 0 {
		return refuse(schema.InvalidArgument, "a comparison needs voters and reports")
	}
	var own, majority []byte
	for _, a := range c.Reports {
		if a.NodeId == r.nodeID {
			own = a.StateHash
		}
		same := uint32(0)
		for _, b := range c.Reports {
			if bytes.Equal(a.StateHash, b.StateHash) {
				same++
			}
		}
		if same > c.Voters/2 {
			majority = a.StateHash
		}
	}
	switch {
	case own == nil || bytes.Equal(own, majority):
		return &pb.Result{}
	case majority == nil && unanimous(c.Reports):
		return &pb.Result{} // too few reported to tell
	}
	panic(fmt.Errorf("%w at log index %d (here %x, majority %x); stop it, move its data directory away and let it join empty",
		ErrDiverged, c.Index, own, majority))
}

func unanimous(reports []*pb.StateReport) bool {
	for _, r := range reports {
		if !bytes.Equal(r.StateHash, reports[0].StateHash) {
			return false
		}
	}
	return true
}
