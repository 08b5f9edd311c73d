package sim

import (
	"slices"
	"time"

	"pulse/cluster/clock"
)

// wallApart is how far a node's wall clock may be from the median of the
// reachable voters' before it gives up leadership that would rest on it.
const wallApart = 10 * second

// newClock is the clock that a real node leads by, over the virtual clocks of
// this one's machine.
func newClock(n *node, cluster int64) *clock.Leader {
	return clock.New(
		func() time.Time { return time.UnixMicro(n.s.wall(n.p)) },
		func() time.Duration { return time.Duration(n.s.mono(n.p)) * time.Microsecond },
		cluster)
}

// mayOpen says no if an office would begin with a wall clock that the others
// contradict.
func (n *node) mayOpen() bool {
	apart := n.s.wall(n.p) - n.medianWall()
	return n.clock.Anchored() || apart <= wallApart && apart >= -wallApart
}

// medianWall is the median wall clock of the voters this one can talk to.
func (n *node) medianWall() int64 {
	var walls []int64
	for _, peer := range n.s.nodes {
		up := peer.p.up && !peer.p.paused && n.s.reaches(n.p.host, peer.p.host) && n.s.reaches(peer.p.host, n.p.host)
		if peer == n || up {
			walls = append(walls, n.s.wall(peer.p))
		}
	}
	slices.Sort(walls)
	return walls[(len(walls)-1)/2]
}
