package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/test/calm"
	"pulse/test/ports"
)

func TestClocksAreComparedWithTheirMedian(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	for _, tc := range []struct {
		name  string
		ahead map[string]time.Duration
		off   string // who is
	}{
		{"all agree", map[string]time.Duration{"a": 0, "b": time.Second, "c": -2 * time.Second}, ""},
		{"one is ahead", map[string]time.Duration{"a": hour, "b": 0, "c": time.Second}, "a"},
		{"one is behind", map[string]time.Duration{"a": -hour, "b": 0, "c": time.Second}, "a"},
		{"the one that asks is ahead", map[string]time.Duration{"a": 0, "b": -hour, "c": -hour}, "a"},
		{"of two the earlier one counts", map[string]time.Duration{"a": 0, "b": hour}, "b"},
		{"of four the earlier half counts", map[string]time.Duration{"a": hour, "b": hour, "c": 0, "d": 0}, "a b"},
		{"alone nobody is off", map[string]time.Duration{"a": 0}, ""},
	} {
		var off []string
		offsets := wallOffsets(tc.ahead)
		for _, id := range []string{"a", "b", "c", "d"} {
			if wallOff(offsets[id]) {
				off = append(off, id)
			}
		}
		if got := strings.Join(off, " "); got != tc.off {
			t.Errorf("%s: %q are off, want %q", tc.name, got, tc.off)
		}
	}
}

func TestAServerThatStandsStillRaisesAnAlarm(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	l := &lookout{alarms: &alarms{logger: slog.New(slog.DiscardHandler)}, moved: map[string]progress{}}
	at := func(after time.Duration, own, b uint64, err error) {
		l.progress("a", own, map[string]serverAnswer{"a": {}, "b": {stats: MemberStats{AppliedIndex: b}, err: err}}, start.Add(after))
	}
	silent := errors.New("no answer")
	for _, step := range []struct {
		after  time.Duration
		own, b uint64
		err    error
		alarm  string
	}{
		{0, 100, 90, nil, ""},
		{50 * time.Second, 200, 90, nil, ""},
		{time.Minute, 200, 90, nil, "b has stood still at log index 90"},
		{70 * time.Second, 210, 91, nil, ""},                // it moves again
		{100 * time.Second, 210, 210, nil, ""},              // and is level:
		{300 * time.Second, 210, 210, nil, ""},              // nothing happens, so nothing is wrong
		{310 * time.Second, 220, 0, silent, ""},             // gone
		{365 * time.Second, 220, 0, silent, "not answered"}, // for a minute and more
		{370 * time.Second, 220, 215, nil, ""},
	} {
		at(step.after, step.own, step.b, step.err)
		got := strings.Join(l.alarms.list(), "; ")
		if (got == "") != (step.alarm == "") || !strings.Contains(got, step.alarm) {
			t.Fatalf("after %s: alarms %q, want %q", step.after, got, step.alarm)
		}
	}
	l.forget(map[string]serverAnswer{"a": {}})
	if len(l.moved) != 0 {
		t.Error("a removed server is remembered")
	}
}

// clocks is a town whose servers show other wall clocks.
type clocks struct {
	*town
	step map[string]time.Duration
}

func (c *clocks) Stats(ctx context.Context, id string) (MemberStats, error) {
	s, err := c.town.Stats(ctx, id)
	s.Wall = time.Now().Add(c.step[id])
	return s, err
}

func newClocks(t *testing.T, step map[string]time.Duration) *clocks {
	t.Helper()
	c := &clocks{&town{t: t, up: map[string]*testNode{}}, step}
	var servers []Server
	for _, id := range []string{"a", "b", "c"} {
		servers = append(servers, Server{id, ports.Free(t, "127.0.0.1")})
	}
	for _, s := range servers {
		n := startNode(t, t.TempDir(), func(cfg *Config) {
			cfg.ID, cfg.Bootstrap, cfg.Listen, cfg.Members, cfg.Duties = s.ID, servers, s.Address, c, nil
			cfg.HeartbeatTimeout, cfg.LeaderLeaseTimeout = calm.Office, calm.Office
			if s.ID != "a" {
				cfg.HeartbeatTimeout = 3 * calm.Office // a is the first to stand
			}
			cfg.Wall = func() time.Time { return time.Now().Add(step[s.ID]) }
		})
		c.mu.Lock()
		c.up[s.ID] = n
		c.mu.Unlock()
	}
	return c
}

// A process that has applied nothing new would take the cluster's time from its
// wall clock. One that is an hour ahead of the others' must not: it hands over.
func TestAServerWithAWrongClockLeadsNobody(t *testing.T) {
	t.Parallel()
	c := newClocks(t, map[string]time.Duration{"a": time.Hour})
	seen := map[string]bool{}
	leader := c.leader()
	for _, e := range leader.machine.entries() {
		for _, cmd := range e.Commands {
			if o := cmd.GetOpenTerm(); o != nil {
				seen[o.NodeId] = true
			}
		}
		if off := time.Until(time.UnixMicro(e.TimeUs)); off > 30*time.Minute {
			t.Errorf("an entry is %s ahead", off)
		}
	}
	if seen["a"] || leader.cfg.ID == "a" {
		t.Errorf("terms were opened by %v", seen)
	}
	// It leads as soon as it knows the time from the log.
	if _, err := transfer(t, leader, "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a leads", func() bool { return c.up["a"].office.Load() != nil })
	eventually(t, "it complains of its clock", func() bool {
		return strings.Contains(strings.Join(c.up["a"].Status().Alarms, ";"), "the wall clock of a is 1h0m0s ahead")
	})
}

// During a transfer raft takes no entry, so it does not begin before the target
// has nearly everything.
func TestATransferWaitsForAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	c := newClocks(t, nil)
	leader := c.leader()
	to := c.other(leader)
	behind := func(entries uint64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.behind = map[string]uint64{to.cfg.ID: entries}
	}
	for i := range transferLag + 10 {
		leader.submit(t, fmt.Sprint(i))
	}
	behind(transferLag + 5)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := leader.Transfer(ctx, to.cfg.ID)
	if code(err) != schema.Unavailable || !strings.Contains(err.Error(), "entries behind") {
		t.Errorf("a transfer to a server that is behind answers %v", err)
	}
	leader.submit(t, "it still leads")
	behind(0)
	if id, err := transfer(t, leader, to.cfg.ID); err != nil || id != to.cfg.ID {
		t.Errorf("transfer: %q %v", id, err)
	}
}

// A cluster was down for hours. Who had the longest log is elected first, brings the
// others an old entry, and has to hand over, because its wall clock is wrong. That
// entry is new to the others and does not tell them the time.
func TestAnOldEntryThatIsNewToAServerDoesNotTellItTheTime(t *testing.T) {
	t.Parallel()
	const down = 10 * time.Hour
	c := &clocks{&town{t: t, up: map[string]*testNode{}}, map[string]time.Duration{"a": -down, "b": -down, "c": -down}}
	var servers []Server
	dirs := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		dirs[id] = t.TempDir()
		servers = append(servers, Server{id, ports.Free(t, "127.0.0.1")})
	}
	start := func() {
		for _, s := range servers {
			c.startWith(s.ID, dirs[s.ID], s.Address, servers, func(cfg *Config) {
				cfg.Members = c
				if s.ID != "a" {
					cfg.HeartbeatTimeout = 3 * calm.Office // a is the first to stand
				}
				ahead := c.step[s.ID]
				cfg.Wall = func() time.Time { return time.Now().Add(ahead) }
			})
		}
	}
	start()
	c.leader().submit(t, "before")
	a := c.up["a"]
	timeUs := a.machine.Clock() + 1000
	for _, id := range []string{"c", "b", "a"} { // so that nobody leads after a
		c.stop(id)
	}
	appendEntry(t, &a.cfg, timeUs)
	c.step = map[string]time.Duration{"a": time.Hour}
	start()
	leader := c.leader()
	entries := leader.machine.entries()
	last := entries[len(entries)-1]
	if off := time.Since(time.UnixMicro(last.TimeUs)).Abs(); off > down/2 {
		t.Errorf("the first entry of %s, which leads now, is %s off", leader.cfg.ID, off)
	}
}

// appendEntry writes an entry to a stopped server's log as its last leader would have.
func appendEntry(t *testing.T, cfg *Config, timeUs int64) {
	t.Helper()
	s := stoppedStores(t, cfg)
	index, err := s.logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var last raft.Log
	if err := s.logs.GetLog(index, &last); err != nil {
		t.Fatal(err)
	}
	data, err := fsm.EncodeEntry(&pb.Entry{Format: fsm.EntryFormat, Term: last.Term, TimeUs: timeUs})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.logs.StoreLog(&raft.Log{Index: index + 1, Term: last.Term, Type: raft.LogCommand, Data: data}), s.close()); err != nil {
		t.Fatal(err)
	}
}
