package cluster

import (
	"testing"
	"time"
)

// clockTest is a leader clock whose two sources the test turns by hand.
type clockTest struct {
	*leaderClock
	wallTime time.Time
	passed   time.Duration
}

var clockStart = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func newClockTest(cluster time.Time) *clockTest {
	c := &clockTest{wallTime: clockStart}
	c.leaderClock = newLeaderClock(func() time.Time { return c.wallTime }, cluster.UnixMicro())
	c.mono = func() time.Duration { return c.passed }
	return c
}

// pass lets time pass on both sources.
func (c *clockTest) pass(d time.Duration) {
	c.passed += d
	c.wallTime = c.wallTime.Add(d)
}

func (c *clockTest) want(t *testing.T, want time.Time) {
	t.Helper()
	if got := time.UnixMicro(c.now()); !got.Equal(want) {
		t.Errorf("the leader's time is %s, want %s (%s off)", got.UTC(), want, got.Sub(want))
	}
}

func TestTheLeadersTime(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	for _, tc := range []struct {
		name    string
		cluster time.Duration // cluster clock at the start of the process, against the wall clock
		do      func(c *clockTest)
		want    time.Duration // against the wall clock as it was at the start
	}{
		{
			"is the wall clock in a process that has applied nothing new",
			-hour, func(c *clockTest) { c.open() }, 0,
		},
		{
			"is the cluster clock there if that is ahead",
			hour, func(c *clockTest) { c.open() }, hour,
		},
		{
			"is the wall clock there after a replay of entries that were in the log already",
			-2 * hour, func(c *clockTest) {
				c.applied(clockStart.Add(-hour).UnixMicro(), false)
				c.pass(time.Second)
				c.open()
			}, time.Second,
		},
		{
			"is the cluster clock and the time since then after an entry that was new",
			-hour, func(c *clockTest) {
				c.applied(clockStart.Add(-time.Minute).UnixMicro(), true)
				c.pass(10 * time.Second)
				c.open()
			}, -50 * time.Second,
		},
		{
			"does not care for a wall clock that is years ahead",
			-hour, func(c *clockTest) {
				c.applied(clockStart.UnixMicro(), true)
				c.wallTime = c.wallTime.AddDate(10, 0, 0)
				c.pass(time.Second)
				c.open()
			}, time.Second,
		},
		{
			"does not care for a wall clock that is years behind",
			-hour, func(c *clockTest) {
				c.applied(clockStart.UnixMicro(), true)
				c.wallTime = c.wallTime.AddDate(-10, 0, 0)
				c.pass(time.Second)
				c.open()
			}, time.Second,
		},
		{
			"is not moved by an entry with an older time",
			-hour, func(c *clockTest) {
				c.applied(clockStart.UnixMicro(), true)
				c.pass(time.Second)
				c.applied(clockStart.Add(-time.Second).UnixMicro(), true)
				c.pass(time.Second)
				c.open()
			}, 2 * time.Second,
		},
		{
			"is not held back by its own entries coming back",
			0, func(c *clockTest) {
				c.open()
				for range 100 {
					us := c.now()
					c.pass(2 * time.Millisecond) // the commit
					c.applied(us, true)
				}
			}, 200 * time.Millisecond,
		},
		{
			"is never behind what is applied",
			0, func(c *clockTest) {
				c.open()
				c.applied(clockStart.Add(time.Minute).UnixMicro(), true) // a newer leader's
			}, time.Minute,
		},
		{
			"is slewed forwards by 50 ms in a minute",
			0, func(c *clockTest) {
				c.open()
				c.wallTime = c.wallTime.Add(hour)
				for range 60 {
					c.pass(time.Second)
					c.now()
				}
			}, time.Minute + 50*time.Millisecond,
		},
		{
			"is slewed backwards by 50 ms in a minute",
			0, func(c *clockTest) {
				c.open()
				c.wallTime = c.wallTime.Add(-hour)
				for range 60 {
					c.pass(time.Second)
					c.now()
				}
			}, time.Minute - 50*time.Millisecond,
		},
		{
			"reaches a wall clock that is a little ahead and stays with it",
			0, func(c *clockTest) {
				c.open()
				c.wallTime = c.wallTime.Add(20 * time.Millisecond)
				for range 120 {
					c.pass(time.Second)
					c.now()
				}
			}, 2*time.Minute + 20*time.Millisecond,
		},
		{
			"does not jump after a long silence",
			0, func(c *clockTest) {
				c.open()
				c.wallTime = c.wallTime.Add(hour)
				c.pass(24 * hour)
				c.now()
			}, 24*hour + 50*time.Millisecond,
		},
		{
			"is slewed by readings that are microseconds apart as well",
			0, func(c *clockTest) {
				c.open()
				c.wallTime = c.wallTime.Add(hour)
				for range 2_000_000 {
					c.pass(3 * time.Microsecond)
					c.now()
				}
			}, 6*time.Second + 5*time.Millisecond,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newClockTest(clockStart.Add(tc.cluster))
			tc.do(c)
			want := clockStart.Add(tc.want)
			got := time.UnixMicro(c.now())
			if off := got.Sub(want).Abs(); off > 200*time.Microsecond {
				t.Errorf("the leader's time is %s, want %s (%s off)", got.UTC(), want, off)
			}
		})
	}
}

func TestTheLeadersTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	c := newClockTest(clockStart)
	c.open()
	last := c.now()
	for i := range 10_000 {
		switch i % 7 {
		case 0:
			c.wallTime = c.wallTime.Add(-time.Hour)
		case 3:
			c.wallTime = c.wallTime.Add(59 * time.Minute)
		case 5:
			c.close()
			c.open()
		}
		c.pass(time.Duration(i%5) * time.Microsecond)
		now := c.now()
		if now < last {
			t.Fatalf("reading %d: %d after %d", i, now, last)
		}
		last = now
		if i%3 == 0 {
			c.applied(now, true)
		}
	}
}

func TestOutOfOfficeTheClockIsTheClusters(t *testing.T) {
	t.Parallel()
	c := newClockTest(clockStart.Add(-time.Hour))
	c.pass(time.Minute)
	c.want(t, clockStart.Add(-time.Hour))
	c.open()
	c.pass(time.Minute)
	c.close()
	c.want(t, clockStart.Add(-time.Hour))
	c.applied(clockStart.UnixMicro(), true)
	c.want(t, clockStart)
}
