package property

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "pulse/proto/pulse/v1"
	"pulse/test/mutant"
)

const (
	defaultSeconds = 50
	entriesMean    = 300 // entries of one history
)

// TestMain sets rapid up: long histories, and no shrinking of its own, because
// histories are cut down by shrink, which knows what they mean.
func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400) // short-lived garbage, and little that stays
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.steps": strconv.Itoa(entriesMean), "rapid.shrinktime": "0s", "rapid.nofailfile": "true", "rapid.checks": "10",
	} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	if path := os.Getenv(replayEnv); path != "" {
		os.Exit(replayProcess(path))
	}
	os.Exit(m.Run())
}

func budget() time.Duration {
	if s, err := strconv.ParseFloat(os.Getenv("PULSE_PROPERTY_SECONDS"), 64); err == nil && s > 0 {
		return time.Duration(s * float64(time.Second))
	}
	if testing.Short() {
		return 10 * time.Second
	}
	return defaultSeconds * time.Second
}

// entriesMax bounds a run by its entries too; the test of mutants sets it.
func entriesMax() int64 {
	if n, err := strconv.ParseInt(os.Getenv(entriesEnv), 10, 64); err == nil {
		return n
	}
	return math.MaxInt64
}

// TestMachine drives machines through random histories until its time is over
// and checks everything after every entry.
func TestMachine(t *testing.T) {
	var entries atomic.Int64
	end := time.Now().Add(budget())
	t.Cleanup(func() { t.Logf("%d entries", entries.Load()) })
	if os.Getenv("PULSE_PROPERTY_SECONDS") == "" && os.Getenv(entriesEnv) == "" {
		// Without a budget the same histories every time: what a change breaks
		// is its own doing. 'make soak' draws new ones.
		for name, value := range map[string]string{"rapid.seed": "20261129", "rapid.checks": "200"} { // order-free: both are set
			if err := flag.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		check(t, &entries)
		return
	}
	for n := range runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			for first := true; first || time.Now().Before(end) && entries.Load() < entriesMax(); first = false {
				check(t, &entries)
			}
		})
	}
}

// check runs some histories, and shows the first that fails.
func check(t *testing.T, entries *atomic.Int64) {
	var failure *failedHistory
	t.Cleanup(func() {
		if failure != nil {
			report(t, failure)
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		w, v := history(rt)
		entries.Add(int64(w.entries))
		if v != nil {
			failure = &failedHistory{v, w.written()}
			rt.Fatalf("%s", v.name)
		}
	})
}

// history makes one random history and stops at the first violation.
func history(rt *rapid.T) (w *world, v *violation) {
	seed := rapid.Uint64().Draw(rt, "case")
	w, err := newWorld(seed%3 == 0)
	if err != nil {
		rt.Fatalf("%v", err)
	}
	defer w.close()
	for _, s := range w.prelude(seed) {
		if v = w.do(s); v != nil {
			return w, v
		}
	}
	rt.Repeat(map[string]func(*rapid.T){"entry": func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "entry")
		if v == nil {
			v = w.do(w.generate(seed))
		}
	}})
	return w, v
}

// generate makes the next step.
func (w *world) generate(seed uint64) step {
	r := rand.New(rand.NewPCG(seed, w.index))
	switch {
	case oneIn(r, 150):
		return step{kind: stepReopen}
	case w.twin != nil && oneIn(r, 300):
		return step{kind: stepLag}
	case oneIn(r, 200):
		s := step{kind: stepRestore}
		if oneIn(r, 3) {
			s.index = w.index + uint64(r.IntN(4))
		}
		return s
	}
	log, proposer, opens := w.terms(r)
	e := &pb.Entry{Format: 1, Term: proposer, TimeUs: w.instant(r)}
	if opens {
		e.Commands = append(e.Commands, &pb.Command{Id: newMessageID(r), Caller: &pb.Caller{Principal: "node/a"},
			Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{NodeId: "a", ClusterId: []byte("cluster-of-tests")}}})
	}
	e.Commands = append(e.Commands, w.commands(r)...)
	for _, c := range e.Commands {
		w.noteSent(c)
	}
	// Some indexes of a log never reach a machine.
	return step{kind: stepApply, index: w.index + 1 + uint64(pick(r, 0, 0, 0, 0, 0, 0, 0, 2)), term: log, entry: e}
}

// noteSent remembers what later commands repeat or refer to.
func (w *world) noteSent(c *pb.Command) {
	if b := c.GetRegisterSession(); b != nil {
		if i := w.findInstance(toID(b.InstanceId)); i != nil {
			w.pastSessions = append(w.pastSessions, sessionEntry(i, i.SessionID, i.Epoch))
			if len(w.pastSessions) > 20 {
				w.pastSessions = w.pastSessions[1:]
			}
		}
	}
	w.sent = append(w.sent, proto.CloneOf(c))
	if len(w.sent) > 60 {
		w.sent = w.sent[1:]
	}
}

// written is the history so far in the form in which it is kept.
func (w *world) written() []step {
	out := make([]step, len(w.history))
	for i, s := range w.history {
		out[i] = s
		if s.entry != nil {
			out[i].entry = w.names.toNames(s.entry)
		}
	}
	return out
}

// replay runs a kept history and stops at the first violation.
func replay(steps []step, twin bool) (v *violation, w *world, err error) {
	w, err = newWorld(twin)
	if err != nil {
		return nil, nil, err
	}
	defer w.close()
	for _, s := range steps {
		if s.entry != nil {
			s.entry = w.names.toReal(s.entry)
		}
		if v = w.do(s); v != nil {
			return v, w, nil
		}
	}
	return nil, w, nil
}

// TestHistories replays the histories that failed once.
func TestHistories(t *testing.T) {
	paths, err := filepath.Glob("testdata/histories/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			steps, err := read(path)
			if err != nil {
				t.Fatal(err)
			}
			v, _, err := replay(steps, true)
			if err != nil {
				t.Fatal(err)
			}
			if v != nil {
				t.Fatalf("%s%v", mutant.Found, v)
			}
		})
	}
}

type failedHistory struct {
	violation *violation
	steps     []step
}

// report cuts a failed history down and shows how to keep it.
func report(t *testing.T, f *failedHistory) {
	t.Helper()
	if os.Getenv(entriesEnv) != "" {
		t.Errorf("%s%s\n%s", mutant.Found, f.violation.name, f.violation.detail)
		return
	}
	steps := shrink(f.steps, f.violation.name, shrinkTime)
	v, _, err := replay(steps, true)
	if err != nil || v == nil || v.name != f.violation.name {
		t.Errorf("%v\n(the history does not fail again when it is replayed: %v, %v)\n%s", f.violation, v, err, write("", f.steps))
		return
	}
	text := write(v.name, steps)
	dir := os.Getenv("PULSE_PROPERTY_KEEP")
	if dir == "" {
		t.Errorf("%v\nThe history, cut down to %d steps (keep it under testdata/histories):\n%s", v, len(steps), text)
		return
	}
	path := filepath.Join(dir, fmt.Sprintf("failed-%d.txt", time.Now().UnixNano()))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Error(err)
	}
	t.Errorf("%v\nThe history, cut down to %d steps, is in %s", v, len(steps), path)
}
