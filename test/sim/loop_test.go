package sim

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math/rand/v2"
	"runtime/debug"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"pulse/test/mutant"
)

// Virtual time is in microseconds and begins at 0.
const (
	millis = int64(1000)
	second = 1000 * millis
	minute = 60 * second
	hour   = 3600 * second

	// wallEpoch is what a right wall clock shows at virtual time 0.
	wallEpoch = int64(1_750_000_000_000_000)
)

type id = [16]byte

func toID(b []byte) (x id) {
	copy(x[:], b)
	return x
}

// host is a machine with its two clocks. Both run at their own speed; the wall
// clock may be set.
type host struct {
	number   int
	ppm      int64 // parts per million too fast
	wallStep int64 // what somebody set the wall clock forward by
}

func (h *host) mono(now int64) int64 { return now + now*h.ppm/1_000_000 }

func (h *host) wall(now int64) int64 { return wallEpoch + h.mono(now) + h.wallStep }

// proc is a process. What it has on its calendar dies with it; while it is
// stopped it does nothing, and catches up in order when it goes on.
type proc struct {
	name   string
	host   *host
	life   int // grows with every start
	up     bool
	paused bool
	parked []func()
	dozes  int64 // until then raft's goroutines have not had their turn since it went on
}

// event is something that happens. Events of the same instant happen in the
// order in which they were put down.
type event struct {
	at   int64
	seq  uint64
	proc *proc // nil: not of any process
	life int
	run  func()
}

type calendar []*event

func (c calendar) Len() int { return len(c) }
func (c calendar) Less(i, j int) bool {
	return c[i].at < c[j].at || c[i].at == c[j].at && c[i].seq < c[j].seq
}
func (c calendar) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *calendar) Push(x any)   { *c = append(*c, x.(*event)) }
func (c *calendar) Pop() any {
	old := *c
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	return e
}

// violation is a broken promise: its name and what was seen.
type violation struct{ name, detail string }

func (v *violation) Error() string { return v.name + ": " + v.detail }

// sim is one run.
type sim struct {
	seed uint64
	rng  *rand.Rand
	fs   *vfs.MemFS // of every node
	dirs int

	now      int64
	seq      uint64
	step     int
	calendar calendar
	over     bool // the run has come to its end

	sum   hash.Hash // of the trace
	tail  []string  // last lines of the trace
	lines int
	print func(string) // every line, if not nil

	knobs    knobs
	hosts    []*host
	net      network
	conns    []*conn
	nodes    []*node
	lone     *proc // of the gateway without a replica
	gateways []*gateway
	workers  []*worker
	clients  []*client
	resource resource
	judge    *judge
	nemesis  nemesis
	ids      uint64
	leaked   []ref // attempts that others know of
	tokens   []id  // access tokens there have been
	healed   bool  // nothing goes wrong any more
	healedAt int64 // virtual time of that
}

// tailLines is how much of a trace a failure shows.
const tailLines = 60

// outcome is what a run showed.
type outcome struct {
	steps    int
	entries  int // committed commands' entries
	tasks    int
	virtual  int64
	trace    string
	faults   int
	restores int
	openings int
	counts   map[string]int
}

// failure of a run, with what is needed to look into it.
type failure struct {
	seed  uint64
	step  int
	v     *violation
	stack string
	tail  []string
}

func (f *failure) Error() string {
	return fmt.Sprintf("seed %d, step %d, %s%s\n%s\nlast events:\n  %s\nreplay: PULSE_SIM_SEED=%d go test ./test/sim -run TestSeeds -v",
		f.seed, f.step, mutant.Found, f.v.name, f.v.detail+f.stack, strings.Join(f.tail, "\n  "), f.seed)
}

// play runs a seed to its end.
func play(seed uint64, print func(string)) (out *outcome, err error) {
	s := &sim{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 0x70756c7365)), fs: vfs.NewMem(),
		sum: sha256.New(), print: print,
	}
	defer func() {
		if r := recover(); r != nil {
			v, ok := r.(*violation)
			f := &failure{seed: seed, step: s.step, v: v, tail: s.tail}
			if !ok {
				f.v = &violation{"panic", fmt.Sprint(r)}
				f.stack = "\n" + string(debug.Stack())
			}
			err = f
			s.abandon()
		}
	}()
	s.build()
	s.run()
	out = s.summary()
	s.close()
	return out, nil
}

// abandon closes what a run that has failed leaves open, before its directory
// goes: a store whose files vanish panics in a goroutine of its own, and nobody
// would see the seed.
func (s *sim) abandon() {
	for _, n := range s.nodes {
		if n.m == nil {
			continue
		}
		func() {
			defer func() { _ = recover() }() // it may be what has failed
			_ = n.m.Close()
		}()
	}
}

func (s *sim) run() {
	for !s.over && len(s.calendar) > 0 {
		e := heap.Pop(&s.calendar).(*event)
		if e.proc != nil && (e.proc.life != e.life || !e.proc.up) {
			continue
		}
		s.now = max(s.now, e.at)
		s.step++
		if e.proc != nil && e.proc.paused {
			e.proc.parked = append(e.proc.parked, e.run)
			continue
		}
		e.run()
	}
	if !s.over {
		s.fail("simulator", "nothing is left to happen")
	}
}

func (s *sim) at(at int64, p *proc, run func()) {
	s.seq++
	e := &event{at: at, seq: s.seq, proc: p, run: run}
	if p != nil {
		e.life = p.life
	}
	heap.Push(&s.calendar, e)
}

// after puts something on a process's calendar, by its own monotonic clock.
func (s *sim) after(p *proc, d int64, run func()) {
	if p != nil {
		d -= d * p.host.ppm / 1_000_000
	}
	s.at(s.now+max(d, 0), p, run)
}

// every repeats something in the life of a process, until it says stop.
func (s *sim) every(p *proc, period func() int64, run func() bool) {
	s.after(p, period(), func() {
		if run() {
			s.every(p, period, run)
		}
	})
}

func fixed(d int64) func() int64 { return func() int64 { return d } }

// start begins a new life of a process.
func (s *sim) start(p *proc) {
	p.life++
	p.up, p.paused, p.parked, p.dozes = true, false, nil, 0
}

// kill ends it, and with it everything it had still to do.
func (s *sim) kill(p *proc) {
	p.up, p.paused, p.parked = false, false, nil
}

// resume lets a stopped process go on with what came meanwhile.
func (s *sim) resume(p *proc) {
	if !p.paused {
		return
	}
	p.paused = false
	late := p.parked
	p.parked = nil
	// Its goroutines go on in any order: requests may be answered before raft
	// hears that a newer leader was elected meanwhile.
	if s.chance(50) {
		p.dozes = s.now + s.between(0, 100*millis)
	}
	for _, run := range late {
		s.at(s.now, p, run)
	}
}

// mono is a process's monotonic clock, wall its wall clock.
func (s *sim) mono(p *proc) int64 { return p.host.mono(s.now) }
func (s *sim) wall(p *proc) int64 { return p.host.wall(s.now) }

// chance is true p times in a hundred.
func (s *sim) chance(p int) bool { return p > 0 && s.rng.IntN(100) < p }

// chance1000 is true p times in a thousand.
func (s *sim) chance1000(p int) bool { return p > 0 && s.rng.IntN(1000) < p }

// between is a number in [a, b].
func (s *sim) between(a, b int64) int64 {
	if b <= a {
		return a
	}
	return a + s.rng.Int64N(b-a+1)
}

func pick[T any](s *sim, list []T) T { return list[s.rng.IntN(len(list))] }

// newID is an identity nobody else has.
func (s *sim) newID() (x id) {
	s.ids++
	binary.BigEndian.PutUint64(x[:8], s.rng.Uint64())
	binary.BigEndian.PutUint64(x[8:], s.ids)
	return x
}

func (s *sim) dir(kind string) string {
	s.dirs++
	return fmt.Sprintf("%04d-%s", s.dirs, kind)
}

// say adds a line to the trace.
func (s *sim) say(format string, args ...any) {
	line := fmt.Sprintf("%6d %11.6f ", s.step, float64(s.now)/float64(second)) + fmt.Sprintf(format, args...)
	_, _ = s.sum.Write([]byte(line)) // a hash never fails
	s.lines++
	if len(s.tail) == tailLines {
		copy(s.tail, s.tail[1:])
		s.tail = s.tail[:tailLines-1]
	}
	s.tail = append(s.tail, line)
	if s.print != nil {
		s.print(line)
	}
}

// fail ends the run.
func (s *sim) fail(name, format string, args ...any) {
	panic(&violation{name, fmt.Sprintf(format, args...)})
}

// must is for what the simulator itself relies on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func short(x []byte) string {
	if len(x) != 16 {
		return hex.EncodeToString(x)
	}
	return hex.EncodeToString(x[:6]) + hex.EncodeToString(x[13:])
}
