package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// wallOffMax is how far a wall clock may be from the median of the servers'.
	wallOffMax = 10 * time.Second
	// stillMax is how long a server may apply nothing while it is behind.
	stillMax = time.Minute
	// lookEvery is how often the leader looks after the other servers.
	lookEvery = 10 * time.Second
	// A new leader waits for the clocks of all, which may have started a moment
	// later, but not as long as for those of most.
	wallsOfAll  = time.Second
	wallsOfMost = 3 * time.Second
	wallsRetry  = 100 * time.Millisecond
)

// alarms is what somebody should look at, by what it is about. They are the
// leader's: another one finds its own.
type alarms struct {
	logger *slog.Logger

	mu     sync.Mutex
	active map[string]string
}

// set begins an alarm, or ends it with an empty text. Only the change is logged.
func (a *alarms) set(about, text string) {
	a.mu.Lock()
	was, active := a.active[about]
	switch {
	case text == "":
		delete(a.active, about)
	case a.active == nil:
		a.active = map[string]string{about: text}
	default:
		a.active[about] = text
	}
	a.mu.Unlock()
	switch {
	case text != "" && !active:
		a.logger.Warn("alarm: "+text, "about", about)
	case text == "" && active:
		a.logger.Info("the alarm is over: "+was, "about", about)
	}
}

func (a *alarms) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, about := range slices.Sorted(maps.Keys(a.active)) {
		out = append(out, a.active[about])
	}
	return out
}

// clear forgets all, at the end of an office.
func (a *alarms) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.active = nil
}

// wallOffsets is how far each server's wall clock is ahead of the median of all
// that answered. Of two in the middle the earlier one counts: a clock that is
// late makes things late, one that is early ends what has not ended.
func wallOffsets(ahead map[string]time.Duration) map[string]time.Duration {
	if len(ahead) == 0 {
		return nil
	}
	sorted := slices.Sorted(maps.Values(ahead))
	median := sorted[(len(sorted)-1)/2]
	out := map[string]time.Duration{}
	for id, d := range ahead {
		out[id] = d - median
	}
	return out
}

func wallOff(d time.Duration) bool { return d.Abs() > wallOffMax }

func spellOffset(d time.Duration) string {
	way := "ahead of"
	if d < 0 {
		way = "behind"
	}
	return fmt.Sprintf("%s %s", d.Abs().Round(time.Second), way)
}

// wallsAhead asks the other voters for their wall clocks and tells how far each
// is ahead of this server's. One that does not answer is not in it.
func (n *Node) wallsAhead(ctx context.Context) (ahead map[string]time.Duration, voters int) {
	answers := n.askServers(ctx)
	maps.DeleteFunc(answers, func(_ string, a serverAnswer) bool { return !a.voter })
	return aheadOf(n.cfg.ID, answers), len(answers)
}

// aheadOf tells how far the wall clock of each server that answered is ahead of
// self's, whose own is not ahead.
func aheadOf(self string, answers map[string]serverAnswer) map[string]time.Duration {
	ahead := map[string]time.Duration{self: 0}
	for id, a := range answers {
		if id != self && a.err == nil && !a.stats.Wall.IsZero() {
			ahead[id] = a.stats.Wall.Sub(a.wall)
		}
	}
	return ahead
}

// serverAnswer is what a server of the configuration said of itself.
type serverAnswer struct {
	voter bool
	stats MemberStats
	wall  time.Time // this server's wall clock when the answer came
	err   error
}

// askServers asks all servers at once, this one not.
func (n *Node) askServers(ctx context.Context) map[string]serverAnswer {
	var mu sync.Mutex
	out := map[string]serverAnswer{}
	var asking sync.WaitGroup
	for id, s := range n.servers() {
		asking.Go(func() {
			a := serverAnswer{voter: s.Suffrage == raft.Voter}
			if string(id) != n.cfg.ID {
				a.stats, a.err = n.cfg.Members.Stats(ctx, string(id))
			}
			a.wall = n.cfg.Wall()
			mu.Lock()
			defer mu.Unlock()
			out[string(id)] = a
		})
	}
	asking.Wait()
	return out
}

var errWallClock = errors.New("this server's wall clock cannot be right")

// checkWall compares the wall clocks before a term is opened whose time would
// come from this server's: a process that has applied nothing new does not know
// how long ago the cluster clock was set. If this one is off, somebody else has
// to lead.
func (o *office) checkWall(ctx context.Context) error {
	n := o.node
	if n.cfg.Members == nil || n.clock.Anchored() {
		return nil
	}
	var ahead map[string]time.Duration
	for began := time.Now(); ; {
		var voters int
		ahead, voters = n.wallsAhead(ctx)
		waited := time.Since(began)
		if len(ahead) >= voters || waited > wallsOfAll && len(ahead) > voters/2 || waited > wallsOfMost {
			break
		}
		if !sleep(ctx, wallsRetry) {
			return ctx.Err()
		}
	}
	off := wallOffsets(ahead)
	own := off[n.cfg.ID]
	if !wallOff(own) {
		return nil
	}
	o.logger.Error("the wall clock is off, so another server has to lead: set it right", "off", own.Round(time.Millisecond).String(), "clocks", len(ahead))
	err := o.handOver(ctx, off)
	return errors.Join(fmt.Errorf("%w: it is %s the median of %d servers", errWallClock, spellOffset(own), len(ahead)), err)
}

// successorWait is how long a server whose clock is right may take to catch up, before
// the next one is tried.
const successorWait = 5 * time.Second

// handOver gives leadership to a voter whose clock is right.
func (o *office) handOver(ctx context.Context, off map[string]time.Duration) error {
	servers := o.node.servers()
	for _, id := range slices.SortedFunc(maps.Keys(off), func(a, b string) int { return cmp.Compare(off[a].Abs(), off[b].Abs()) }) {
		if id == o.node.cfg.ID || wallOff(off[id]) {
			continue
		}
		s := servers[raft.ServerID(id)]
		waiting, cancel := context.WithTimeout(ctx, successorWait)
		err := o.node.awaitSuccessor(waiting, id)
		cancel()
		if err == nil {
			err = await(ctx, o.node.raft.LeadershipTransferToServer(s.ID, s.Address))
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		o.logger.Warn("leadership was not handed over", "server", id, "error", err)
	}
	return errors.New("no server could take over")
}

// lookout is what the leader remembers of the other servers between two looks.
type lookout struct {
	alarms *alarms
	moved  map[string]progress
}

// progress is how far a server was when it last moved, or was level with the
// leader.
type progress struct {
	applied uint64
	at      time.Time
}

// lookAfterServers is the duty that raises alarms about the other servers, and
// about the own clock. It changes nothing.
func (o *office) lookAfterServers(ctx context.Context, _ uint64) error {
	n := o.node
	l := &lookout{alarms: &n.alarms, moved: map[string]progress{}}
	defer n.alarms.clear()
	for {
		answers := n.askServers(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.walls(n.cfg.ID, answers)
		l.progress(n.cfg.ID, n.cfg.Machine.AppliedIndex(), answers, time.Now())
		if !sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
}

// walls compares the wall clocks.
func (l *lookout) walls(self string, answers map[string]serverAnswer) {
	off := wallOffsets(aheadOf(self, answers))
	for id := range answers {
		text := ""
		if d, known := off[id]; known && wallOff(d) {
			text = fmt.Sprintf("the wall clock of %s is %s the others': set it right before that server is restarted", id, spellOffset(d))
		}
		l.alarms.set("clock of "+id, text)
	}
	l.forget(answers)
}

// progress finds servers that stand still. One that was never seen counts from
// the first look.
func (l *lookout) progress(self string, applied uint64, answers map[string]serverAnswer, now time.Time) {
	for id, a := range answers {
		if id == self {
			continue
		}
		last, seen := l.moved[id]
		switch {
		case !seen, a.err == nil && (a.stats.AppliedIndex != last.applied || a.stats.AppliedIndex >= applied):
			l.moved[id] = progress{a.stats.AppliedIndex, now}
			l.alarms.set("progress of "+id, "")
		case now.Sub(last.at) >= stillMax:
			text := fmt.Sprintf("%s has stood still at log index %d for more than %s while the leader went on: look at its disk and its log", id, last.applied, stillMax)
			if a.err != nil {
				text = fmt.Sprintf("%s has not answered for more than %s: is it running, and can the others reach it?", id, stillMax)
			}
			l.alarms.set("progress of "+id, text)
		}
	}
}

// forget ends the alarms about servers that are no longer there.
func (l *lookout) forget(answers map[string]serverAnswer) {
	for id := range l.moved {
		if _, there := answers[id]; !there {
			delete(l.moved, id)
			l.alarms.set("clock of "+id, "")
			l.alarms.set("progress of "+id, "")
		}
	}
}
