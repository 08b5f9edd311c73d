package cluster

import (
	"sync"
	"time"
)

// The leader's clock is moved towards the wall clock by at most 50 ms a minute,
// which no lease notices: one nanosecond in slewPart.
const (
	slewPart = int64(time.Minute / (50 * time.Millisecond))
	// slewMost bounds one step: a process that stood still does not jump.
	slewMost = int64(50 * time.Millisecond)
)

// leaderClock makes the times that entries carry.
//
// Out of office it follows the cluster clock: the largest time applied, and how
// long ago, by the monotonic clock, this process applied it. Taking office
// anchors the leader's time there, so that it goes on where the last leader's
// stopped and no wall clock has a say in it; from then on it is slewed. A
// process that has applied nothing new since its start cannot tell how long ago
// the cluster clock was set and takes the wall clock, but never an earlier time
// than the cluster's.
type leaderClock struct {
	wall func() time.Time
	mono func() time.Duration // monotonic time of this process

	mu      sync.Mutex
	cluster int64         // largest time applied, Unix nanoseconds
	setAt   time.Duration // when this process applied the entry that set it
	fresh   bool          // this process has applied an entry that was new

	inOffice bool
	time     int64         // leader's time at readAt, Unix nanoseconds
	readAt   time.Duration // last reading
	credit   int64         // monotonic nanoseconds that have not been used for slewing
}

func newLeaderClock(wall func() time.Time, clusterUs int64) *leaderClock {
	start := time.Now()
	return &leaderClock{
		wall:    wall,
		mono:    func() time.Duration { return time.Since(start) },
		cluster: clusterUs * 1000,
	}
}

// applied follows the cluster clock. fresh says that the entry was not in this
// node's log already when the process started: those are as old as their time
// says, not as old as their application.
func (c *leaderClock) applied(clusterUs int64, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh = c.fresh || fresh
	if ns := clusterUs * 1000; ns > c.cluster {
		c.cluster = ns
		c.setAt = c.mono()
	}
}

// anchored says that this process knows how long ago the cluster clock was set,
// so that taking office asks no wall clock.
func (c *leaderClock) anchored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh
}

// open takes office. All entries of earlier terms must be applied.
func (c *leaderClock) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readAt = c.mono()
	c.credit = 0
	c.inOffice = true
	if !c.fresh {
		c.time = max(c.wall().UnixNano(), c.cluster)
		return
	}
	c.time = c.cluster + int64(c.readAt-c.setAt)
}

// close leaves office.
func (c *leaderClock) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inOffice = false
}

// now is the leader's time in Unix microseconds. It never runs backwards. Out
// of office it is the cluster clock.
func (c *leaderClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read() / 1000
}

func (c *leaderClock) read() int64 {
	if !c.inOffice {
		return c.cluster
	}
	mono := c.mono()
	passed := int64(mono - c.readAt)
	c.readAt = mono
	c.time += passed
	// Readings may be a microsecond apart: what is too short to slew by a
	// nanosecond is kept for the next one.
	c.credit += passed
	if most := min(c.credit/slewPart, slewMost); most > 0 {
		c.time += min(max(c.wall().UnixNano()-c.time, -most), most)
		c.credit %= slewPart
	}
	c.time = max(c.time, c.cluster)
	return c.time
}

// offset is how far the wall clock is ahead of the leader's time.
func (c *leaderClock) offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.wall().UnixNano() - c.read())
}
