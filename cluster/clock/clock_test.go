package clock

import (
	"testing"
	"time"
)

// clockTest is a leader clock whose two sources the test turns by hand.
type clockTest struct {
	*Leader
	wallTime time.Time
	passed   time.Duration
}

var clockStart = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func newClockTest(cluster time.Time) *clockTest {
	c := &clockTest{wallTime: clockStart}
	c.Leader = New(func() time.Time { return c.wallTime }, func() time.Duration { return c.passed }, cluster.UnixMicro())
	return c
}

// pass lets time pass on both sources.
func (c *clockTest) pass(d time.Duration) {
	c.passed += d
	c.wallTime = c.wallTime.Add(d)
}

func (c *clockTest) want(t *testing.T, want time.Time) {
	t.Helper()
	if got := time.UnixMicro(c.Now()); !got.Equal(want) {
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
			-hour, func(c *clockTest) { c.Open() }, 0,
		},
		{
			"is the cluster clock there if that is ahead",
			hour, func(c *clockTest) { c.Open() }, hour,
		},
		{
			"is the wall clock there after a replay of entries that were in the log already",
			-2 * hour, func(c *clockTest) {
				c.Applied(clockStart.Add(-hour).UnixMicro(), false)
				c.pass(time.Second)
				c.Open()
			}, time.Second,
		},
		{
			"is the cluster clock and the time since then after an entry that was new",
			-hour, func(c *clockTest) {
				c.Applied(clockStart.Add(-time.Minute).UnixMicro(), true)
				c.pass(10 * time.Second)
				c.Open()
			}, -50 * time.Second,
		},
		{
			"does not care for a wall clock that is years ahead",
			-hour, func(c *clockTest) {
				c.Applied(clockStart.UnixMicro(), true)
				c.wallTime = c.wallTime.AddDate(10, 0, 0)
				c.pass(time.Second)
				c.Open()
			}, time.Second,
		},
		{
			"does not care for a wall clock that is years behind",
			-hour, func(c *clockTest) {
				c.Applied(clockStart.UnixMicro(), true)
				c.wallTime = c.wallTime.AddDate(-10, 0, 0)
				c.pass(time.Second)
				c.Open()
			}, time.Second,
		},
		{
			"is not moved by an entry with an older time",
			-hour, func(c *clockTest) {
				c.Applied(clockStart.UnixMicro(), true)
				c.pass(time.Second)
				c.Applied(clockStart.Add(-time.Second).UnixMicro(), true)
				c.pass(time.Second)
				c.Open()
			}, 2 * time.Second,
		},
		{
			"goes on over a time without a leader in which an entry waited to be applied",
			-hour, func(c *clockTest) {
				c.Applied(clockStart.UnixMicro(), true)
				c.pass(100 * time.Millisecond)
				waiting := c.wallTime.UnixMicro() // made now, and nobody is left to say that it is committed
				c.pass(27 * time.Second)
				c.Applied(waiting, true)
				c.Open()
			}, 27*time.Second + 100*time.Millisecond - 27*time.Second/600,
		},
		{
			"goes on over many such times, and loses nothing while it is followed",
			-hour, func(c *clockTest) {
				for range 10 {
					for range 1000 {
						c.Applied(c.wallTime.UnixMicro(), true)
						c.pass(10 * time.Millisecond)
					}
					waiting := c.wallTime.UnixMicro()
					c.pass(6 * time.Second)
					c.Applied(waiting, true)
					c.Open()
					c.Close()
				}
				c.Applied(c.wallTime.UnixMicro(), true)
				c.Open()
			}, 160 * time.Second,
		},
		{
			"follows leaders that are slewed backwards",
			-hour, func(c *clockTest) {
				for s := range 600 { // ten minutes: half a second
					c.Applied(c.wallTime.Add(-time.Duration(s)*time.Second/1200).UnixMicro(), true)
					c.pass(time.Second)
				}
				c.Applied(c.wallTime.Add(-600*time.Second/1200).UnixMicro(), true)
				c.Open()
			}, 600*time.Second - 500*time.Millisecond,
		},
		{
			"is the wall clock after an entry of an old office, which tells no time",
			-hour, func(c *clockTest) {
				c.Applied(clockStart.Add(-hour).UnixMicro(), true)
				c.pass(time.Second)
				c.Open()
			}, time.Second,
		},
		{
			"is not held back by its own entries coming back",
			0, func(c *clockTest) {
				c.Open()
				for range 100 {
					us := c.Now()
					c.pass(2 * time.Millisecond) // the commit
					c.Applied(us, true)
				}
			}, 200 * time.Millisecond,
		},
		{
			"is never behind what is applied",
			0, func(c *clockTest) {
				c.Open()
				c.Applied(clockStart.Add(time.Minute).UnixMicro(), true) // a newer leader's
			}, time.Minute,
		},
		{
			"is slewed forwards by 50 ms in a minute",
			0, func(c *clockTest) {
				c.Open()
				c.wallTime = c.wallTime.Add(hour)
				for range 60 {
					c.pass(time.Second)
					c.Now()
				}
			}, time.Minute + 50*time.Millisecond,
		},
		{
			"is slewed backwards by 50 ms in a minute",
			0, func(c *clockTest) {
				c.Open()
				c.wallTime = c.wallTime.Add(-hour)
				for range 60 {
					c.pass(time.Second)
					c.Now()
				}
			}, time.Minute - 50*time.Millisecond,
		},
		{
			"reaches a wall clock that is a little ahead and stays with it",
			0, func(c *clockTest) {
				c.Open()
				c.wallTime = c.wallTime.Add(20 * time.Millisecond)
				for range 120 {
					c.pass(time.Second)
					c.Now()
				}
			}, 2*time.Minute + 20*time.Millisecond,
		},
		{
			"does not jump after a long silence",
			0, func(c *clockTest) {
				c.Open()
				c.wallTime = c.wallTime.Add(hour)
				c.pass(24 * hour)
				c.Now()
			}, 24*hour + 50*time.Millisecond,
		},
		{
			"is slewed by readings that are microseconds apart as well",
			0, func(c *clockTest) {
				c.Open()
				c.wallTime = c.wallTime.Add(hour)
				for range 2_000_000 {
					c.pass(3 * time.Microsecond)
					c.Now()
				}
			}, 6*time.Second + 5*time.Millisecond,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newClockTest(clockStart.Add(tc.cluster))
			tc.do(c)
			want := clockStart.Add(tc.want)
			got := time.UnixMicro(c.Now())
			if off := got.Sub(want).Abs(); off > 200*time.Microsecond {
				t.Errorf("the leader's time is %s, want %s (%s off)", got.UTC(), want, off)
			}
		})
	}
}

func TestTheLeadersTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	c := newClockTest(clockStart)
	c.Open()
	last := c.Now()
	for i := range 10_000 {
		switch i % 7 {
		case 0:
			c.wallTime = c.wallTime.Add(-time.Hour)
		case 3:
			c.wallTime = c.wallTime.Add(59 * time.Minute)
		case 5:
			c.Close()
			c.Open()
		}
		c.pass(time.Duration(i%5) * time.Microsecond)
		now := c.Now()
		if now < last {
			t.Fatalf("reading %d: %d after %d", i, now, last)
		}
		last = now
		if i%3 == 0 {
			c.Applied(now, true)
		}
	}
}

func TestOutOfOfficeTheClockIsTheClusters(t *testing.T) {
	t.Parallel()
	c := newClockTest(clockStart.Add(-time.Hour))
	c.pass(time.Minute)
	c.want(t, clockStart.Add(-time.Hour))
	c.Open()
	c.pass(time.Minute)
	c.Close()
	c.want(t, clockStart.Add(-time.Hour))
	c.Applied(clockStart.UnixMicro(), true)
	c.want(t, clockStart)
}
