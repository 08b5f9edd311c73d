package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// View is told how a demo goes, from one goroutine at a time.
type View interface {
	// Say is something that happened, after the load began.
	Say(after time.Duration, text string)
	// Status is how things stand, many times a second.
	Status(Status)
}

// Status is how a demo stands.
type Status struct {
	After     time.Duration
	Tasks     int // to be done
	Acked     int // submissions with an answer
	Begun     int // attempts
	Running   int
	Finished  int // attempts whose end the cluster has taken
	Node      string
	Up        time.Duration
	Down      bool
	DownFor   time.Duration
	Connected int // workers
	Workers   int
	Killed    bool
	Held      int // attempts under way at the kill
	Kept      int // of these, over with their lease
	HeldLost  int // of these, over without it
	Gap       time.Duration
	Doubled   int
}

func (s *show) now() Status {
	connected, finished, running := s.fleet.stats()
	held, kept, lost := s.fleet.heldNow()
	st := Status{
		After: time.Since(s.began), Tasks: s.cfg.Tasks, Acked: int(s.load.acknowledged.Load()), Begun: int(s.fleet.begun.Load()),
		Running: running, Finished: int(finished), Node: s.shown(), Down: s.down,
		Connected: connected, Workers: workers, Killed: !s.killedAt.IsZero(), Held: held, Kept: kept, HeldLost: lost,
		Gap: s.fleet.gapNow(), Doubled: s.resource.account().doubled,
	}
	if s.down { // its Server is in other hands meanwhile
		st.DownFor = time.Since(s.killedAt)
	} else {
		st.Up = s.nodes[0].Uptime()
	}
	return st
}

// shown names what the status is about: the node that is down, or all of them.
func (s *show) shown() string {
	switch {
	case s.down && s.dead != nil:
		return s.dead.ID()
	case len(s.nodes) == 1:
		return s.nodes[0].ID()
	}
	return fmt.Sprintf("%d nodes", len(s.nodes))
}

// Lines reports to something that keeps what is written: a line for what happens,
// and one now and then for how things stand.
type Lines struct {
	W     io.Writer
	Every time.Duration
	last  time.Time
}

// Say writes a line.
func (l *Lines) Say(after time.Duration, text string) {
	fmt.Fprintf(l.W, "%6.1fs  %s\n", after.Seconds(), text)
}

// Status writes a line if the last one is long enough ago.
func (l *Lines) Status(s Status) {
	if time.Since(l.last) < l.Every {
		return
	}
	l.last = time.Now()
	node := "up"
	if s.Down {
		node = "DOWN"
	}
	l.Say(s.After, fmt.Sprintf("%d of %d done, %d running, %d of %d workers connected, %s %s", s.Finished, s.Tasks, s.Running, s.Connected, s.Workers, s.Node, node))
}

// Screen reports to a terminal: one small block that is drawn again and again
// below the lines of what has happened.
type Screen struct {
	W     io.Writer
	Color bool

	drawn    int // lines of the block on the screen
	last     time.Time
	rate     float64
	rateAt   time.Time
	rateDone int
	status   *Status
}

const screenEvery = 100 * time.Millisecond

// Say puts a line above the block.
func (v *Screen) Say(after time.Duration, text string) {
	v.erase()
	fmt.Fprintf(v.W, "%s  %s\n", v.dim(fmt.Sprintf("%6.1fs", after.Seconds())), text)
	if v.status != nil {
		v.draw(*v.status)
	}
}

// Status draws the block.
func (v *Screen) Status(s Status) {
	if time.Since(v.last) < screenEvery && s.Finished < s.Tasks {
		return
	}
	v.last = time.Now()
	v.measure(s)
	v.erase()
	v.draw(s)
	v.status = &s
}

// measure is the rate over about the last second.
func (v *Screen) measure(s Status) {
	took := time.Since(v.rateAt)
	if took < time.Second {
		return
	}
	if !v.rateAt.IsZero() {
		v.rate = float64(s.Finished-v.rateDone) / took.Seconds()
	}
	v.rateAt, v.rateDone = time.Now(), s.Finished
}

// End leaves the block where it is.
func (v *Screen) End() { v.drawn, v.status = 0, nil }

func (v *Screen) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.W, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *Screen) draw(s Status) {
	const width = 32
	full := min(width*s.Finished/max(s.Tasks, 1), width)
	node := v.green(fmt.Sprintf("%s up for %s", s.Node, seconds(s.Up)))
	if s.Down {
		node = v.red(fmt.Sprintf("%s DOWN for %s", s.Node, seconds(s.DownFor)))
	}
	workers := fmt.Sprintf("%d of %d connected, %d handlers running", s.Connected, s.Workers, s.Running)
	leases := "-"
	switch {
	case s.Killed && s.HeldLost > 0:
		leases = v.red(fmt.Sprintf("%d under way at the kill, %d kept, %d lost", s.Held, s.Kept, s.HeldLost))
	case s.Killed:
		leases = fmt.Sprintf("%d under way at the kill, %d finished under the same lease", s.Held, s.Kept)
	}
	lines := []string{
		"",
		fmt.Sprintf("  tasks    [%s%s] %d of %d done, %.0f/s", strings.Repeat("=", full), strings.Repeat(" ", width-full), s.Finished, s.Tasks, v.rate),
		fmt.Sprintf("  states   %d submitted, %d waiting or on the way, %d running", s.Acked, max(s.Acked-s.Begun, 0), s.Running),
		"  node     " + node,
		"  workers  " + workers,
		"  leases   " + leases,
		fmt.Sprintf("  gap      %s without an assignment at most", v.gap(s)),
		"",
	}
	for _, line := range lines {
		fmt.Fprintln(v.W, line)
	}
	v.drawn = len(lines)
}

func (v *Screen) gap(s Status) string {
	if !s.Killed {
		return "-"
	}
	return fmt.Sprintf("%d ms", s.Gap.Milliseconds())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

func (v *Screen) paint(code, text string) string {
	if !v.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (v *Screen) dim(text string) string   { return v.paint("2", text) }
func (v *Screen) red(text string) string   { return v.paint("1;31", text) }
func (v *Screen) green(text string) string { return v.paint("32", text) }
