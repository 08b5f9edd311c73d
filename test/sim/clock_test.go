package sim

import "slices"

const (
	slewPart = minute / (50 * millis)
	slewMost = 50 * millis
	// wallApart is how far a node's wall clock may be from the median of the
	// reachable voters' before it gives up leadership that would rest on it.
	wallApart = 10 * second
)

// leaderClock makes the times of entries, in microseconds; see cluster/clock.go.
type leaderClock struct {
	n       *node
	cluster int64 // largest time applied
	setAt   int64 // monotonic time at which this process applied it
	fresh   bool  // this process has applied an entry that was new

	inOffice bool
	time     int64
	readAt   int64
	credit   int64
}

func newLeaderClock(n *node, cluster int64) *leaderClock {
	return &leaderClock{n: n, cluster: cluster}
}

func (c *leaderClock) mono() int64 { return c.n.s.mono(c.n.p) }
func (c *leaderClock) wall() int64 { return c.n.s.wall(c.n.p) }

func (c *leaderClock) applied(cluster int64, fresh bool) {
	c.fresh = c.fresh || fresh
	if cluster > c.cluster {
		c.cluster, c.setAt = cluster, c.mono()
	}
}

// open takes office. It says no if the office would begin with a wall clock
// that the others contradict.
func (c *leaderClock) open() bool {
	c.readAt, c.credit = c.mono(), 0
	if c.fresh {
		c.time = c.cluster + c.readAt - c.setAt
	} else {
		if apart := c.wall() - c.n.medianWall(); apart > wallApart || apart < -wallApart {
			return false
		}
		c.time = max(c.wall(), c.cluster)
	}
	c.inOffice = true
	return true
}

func (c *leaderClock) close() { c.inOffice = false }

func (c *leaderClock) now() int64 {
	if !c.inOffice {
		return c.cluster
	}
	mono := c.mono()
	passed := mono - c.readAt
	c.readAt = mono
	c.time += passed
	c.credit += passed
	if most := min(c.credit/slewPart, slewMost); most > 0 {
		c.time += min(max(c.wall()-c.time, -most), most)
		c.credit %= slewPart
	}
	c.time = max(c.time, c.cluster)
	return c.time
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
