// Package clock makes the times that a cluster's log carries: one clock that
// goes on over any number of leaders and never runs backwards.
package clock

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
	// fallPart bounds how fast a leader's time can fall behind this process's
	// monotonic clock: the leader is slewed, and the two clocks may differ by
	// what time synchronisation does to either, up to 500 ppm.
	fallPart = slewPart / 2
)

// Leader is the clock of a process that may lead.
//
// Out of office it is the cluster clock, the largest time applied, and it keeps
// how far the leaders' time was ahead of this process's monotonic clock. An
// entry says so when it is applied, but only "at least so far": it may have
// waited, for a majority or, if a leader died with it, for the next election. So
// the largest counts, less what a leader can have been slewed by since. Taking
// office anchors the leader's time there: it goes on as if the last leader had
// never stopped, and no wall clock has a say in it. From then on it is slewed. A
// process that has applied nothing new since its start cannot tell and takes the
// wall clock, but never an earlier time than the cluster's.
//
// Its methods may be called by many goroutines.
type Leader struct {
	wall func() time.Time
	mono func() time.Duration

	mu      sync.Mutex
	cluster int64 // largest time applied, Unix nanoseconds
	fresh   bool  // this process has applied an entry that was new
	ahead   int64 // of the monotonic clock: the leader's time, nanoseconds, as of heardAt
	heardAt time.Duration

	inOffice bool
	time     int64         // leader's time at readAt, Unix nanoseconds
	readAt   time.Duration // last reading
	credit   int64         // monotonic nanoseconds that have not been used for slewing
}

// New makes the clock of a process whose machine has come to clusterUs, in Unix
// microseconds. wall is the wall clock, mono a clock of this process that nobody
// sets.
func New(wall func() time.Time, mono func() time.Duration, clusterUs int64) *Leader {
	return &Leader{wall: wall, mono: mono, cluster: clusterUs * 1000}
}

// Applied follows the cluster clock, in Unix microseconds. fresh says that the
// entry was not in this node's log already when the process started: those are
// as old as their time says, not as old as their application.
func (c *Leader) Applied(clusterUs int64, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ns := clusterUs * 1000
	if ns <= c.cluster {
		return // an entry of an old office moves no clock and says nothing about it
	}
	c.cluster = ns
	if !fresh {
		return
	}
	mono := c.mono()
	ahead := ns - int64(mono)
	if c.fresh {
		ahead = max(ahead, c.ahead-int64(mono-c.heardAt)/fallPart)
	}
	c.fresh, c.ahead, c.heardAt = true, ahead, mono
}

// Anchored says that this process knows what the time was without it, so that
// taking office asks no wall clock.
func (c *Leader) Anchored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh
}

// Open takes office. All entries of earlier terms must be applied.
func (c *Leader) Open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readAt = c.mono()
	c.credit = 0
	c.inOffice = true
	c.time = c.wall().UnixNano()
	if c.fresh {
		c.time = int64(c.readAt) + c.ahead
	}
	c.time = max(c.time, c.cluster)
}

// Close leaves office.
func (c *Leader) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inOffice = false
}

// Now is the leader's time in Unix microseconds. It never runs backwards. Out
// of office it is the cluster clock.
func (c *Leader) Now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read() / 1000
}

func (c *Leader) read() int64 {
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

// Offset is how far the wall clock is ahead of the leader's time.
func (c *Leader) Offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.wall().UnixNano() - c.read())
}
