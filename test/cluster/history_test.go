package cluster

import (
	"fmt"
	mrand "math/rand/v2"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"pulse/schema"
	"pulse/schema/workerv1"
)

// world is everything a test records, on one clock.
type world struct {
	t        *testing.T
	addrs    []string
	began    time.Time
	over     chan struct{} // closed when operations are no longer waited for
	ending   sync.Once
	resource *resource
	epochs   *rising
	pace     time.Duration // that a client waits between submissions

	mu     sync.Mutex
	events []event
	left   map[string]bool // tasks whose worker died after the effect

	lastServed int64         // when a submission was acknowledged last
	gap        time.Duration // the longest time without one since calm
}

func newWorld(t *testing.T, addrs ...string) *world {
	w := &world{
		t: t, addrs: addrs, began: time.Now(), over: make(chan struct{}),
		resource: &resource{largest: map[string]uint64{}, accepted: map[string][]write{}},
		epochs:   &rising{last: map[string]uint64{}}, left: map[string]bool{},
	}
	return w
}

// end stops waiting for answers. Workers end after it, so a test that fails has
// to get here too.
func (w *world) end() { w.ending.Do(func() { close(w.over) }) }

func (w *world) clock() int64     { return int64(time.Since(w.began)) }
func (w *world) someAddr() string { return w.addrs[mrand.IntN(len(w.addrs))] }

func (w *world) urls() []string {
	out := make([]string, len(w.addrs))
	for i, a := range w.addrs {
		out[i] = "http://" + a
	}
	return out
}

func (w *world) abandoned(task string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left[task] = true
}

// served notes that a submission was acknowledged just now.
func (w *world) served() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock()
	if w.lastServed > 0 {
		w.gap = max(w.gap, time.Duration(now-w.lastServed))
	}
	w.lastServed = now
}

// calm begins to look for gaps from now on.
func (w *world) calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gap = 0
}

// longestGap is the longest time without an acknowledged submission since calm,
// one that has not ended yet included.
func (w *world) longestGap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.gap, time.Duration(w.clock()-w.lastServed))
}

// acknowledged counts the tasks that somebody was told exist.
func (w *world) acknowledged() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.kind == opSubmit {
			n++
		}
	}
	return n
}

type opKind string

const (
	opSubmit opKind = "submit"
	opStart  opKind = "start"
	opFinish opKind = "finish"
	opRead   opKind = "read"
	opReview opKind = "review"
)

// event is one operation with its first answer.
type event struct {
	kind    opKind
	task    string
	key     string
	message workerv1.ID // of opStart and opFinish
	epoch   uint64
	token   uint64
	worker  int
	call    int64
	done    int64 // 0: unknown until the end
	answer  workerv1.ServerFrame
	err     error
	state   string // of opRead and opSubmit
}

func (w *world) record(e event) {
	if e.err == nil && e.done == 0 {
		e.done = w.clock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// outcome is what a worker's operation came to.
func (e event) outcome() string {
	if e.err != nil {
		return "unknown"
	}
	switch b := e.answer.Body.(type) {
	case *workerv1.Ack:
		return string(b.Result.Receipt.Disposition)
	case *workerv1.Error:
		return string(b.Code)
	}
	return "?"
}

// write is one effect that the resource took.
type write struct {
	task      string
	token     uint64
	reconcile bool
}

// resource stands for the world outside: it takes effects and refuses fencing
// tokens below the largest it has seen.
type resource struct {
	mu       sync.Mutex
	largest  map[string]uint64
	accepted map[string][]write
	refused  int
}

func (r *resource) write(name, task string, token uint64, reconcile bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token < r.largest[name] {
		r.refused++
		return
	}
	r.largest[name] = token
	r.accepted[name] = append(r.accepted[name], write{task, token, reconcile})
}

// rising holds numbers that must only ever grow for one name.
type rising struct {
	mu     sync.Mutex
	last   map[string]uint64
	broken []string
}

func (r *rising) see(name string, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= r.last[name] {
		r.broken = append(r.broken, fmt.Sprintf("%s went from %d to %d", name, r.last[name], n))
	}
	r.last[name] = n
}

// check holds the whole history against the promises.
func (w *world) check() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.epochs.broken {
		w.t.Errorf("session epochs: %s", b)
	}
	w.checkEffects()
	w.checkLinear("task", func(e event) string { return e.task }, taskModel)
	w.checkLinear("key", func(e event) string { return e.key }, keyModel)
}

// checkEffects: RECONCILE_ONLY work is done at most once, and tokens of accepted
// effects never go back.
func (w *world) checkEffects() {
	done := map[string]int{}
	for name, writes := range w.resource.accepted {
		for i, x := range writes {
			if x.reconcile {
				done[x.task]++
			}
			if i > 0 && writes[i-1].token > x.token {
				w.t.Errorf("%s: effect with token %d after %d", name, x.token, writes[i-1].token)
			}
			if i > 0 && writes[i-1].token == x.token && writes[i-1].task != x.task {
				w.t.Errorf("%s: two tasks hold token %d", name, x.token)
			}
		}
	}
	for task, n := range done {
		if n > 1 {
			w.t.Errorf("RECONCILE_ONLY task %s had its effect %d times", task, n)
		}
	}
}

// checkLinear searches an order of the operations on each name that the model
// allows.
func (w *world) checkLinear(what string, name func(event) string, model porcupine.Model) {
	w.t.Helper()
	parts := map[string][]porcupine.Operation{}
	acknowledged := map[string]bool{}
	for _, e := range w.events {
		if e.kind == opSubmit {
			acknowledged[e.task] = true
		}
	}
	for _, e := range w.events {
		n := name(e)
		// A task whose submission was never acknowledged may exist all the same;
		// when it began to is not known.
		if n == "" || !acknowledged[e.task] {
			continue
		}
		done := e.done
		if done == 0 {
			done = 1 << 62
		}
		parts[n] = append(parts[n], porcupine.Operation{ClientId: e.worker % 64, Input: e, Output: e.outcome(), Call: e.call, Return: done})
	}
	names := make([]string, 0, len(parts))
	for n := range parts {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		switch porcupine.CheckOperationsTimeout(model, parts[n], 30*time.Second) {
		case porcupine.Illegal:
			w.t.Errorf("%s %s has a history that cannot be:", what, n)
			for _, o := range parts[n] {
				e := o.Input.(event)
				w.t.Errorf("  %9.3f..%9.3f ms worker %d %s epoch %d token %d state %s => %v", float64(o.Call)/1e6, float64(o.Return)/1e6,
					e.worker, e.kind, e.epoch, e.token, e.state, o.Output)
			}
		case porcupine.Unknown:
			w.t.Errorf("%s %s: no verdict in time, with %d operations", what, n, len(parts[n]))
		}
	}
	w.t.Logf("%d histories by %s are linearizable", len(names), what)
}

// life is a task as its model sees it: what the system does by itself (leases,
// expiries) happens between operations and shows only in what they may answer.
type life struct {
	exists  bool
	running uint64 // epoch of the newest attempt that started
	over    bool
}

var taskModel = nondeterministic(life{}, func(s life, e event, out string) []life {
	switch e.kind {
	case opSubmit:
		if s.exists {
			return nil
		}
		return []life{{exists: true}}
	case opReview:
		if !s.exists || s.over {
			return nil
		}
		return []life{{exists: true, running: s.running, over: true}}
	case opRead:
		if !s.exists || terminal(e.state) != s.over {
			return nil
		}
		return []life{s}
	case opStart:
		started := life{exists: true, running: e.epoch}
		switch {
		case out == "unknown" && s.exists && !s.over && e.epoch > s.running:
			return []life{s, started}
		case out == "unknown":
			return []life{s}
		case out == string(workerv1.Applied):
			if !s.exists || s.over || e.epoch <= s.running {
				return nil
			}
			return []life{started}
		}
		return []life{s} // refused: nothing happened
	case opFinish:
		can := s.exists && !s.over && s.running == e.epoch
		over := life{exists: true, running: s.running, over: true}
		switch {
		case out == "unknown" && can:
			return []life{s, over}
		case out == string(workerv1.Applied):
			if !can {
				return nil
			}
			return []life{over}
		}
		return []life{s}
	}
	return nil
})

// hold is a concurrency key: who started under it last.
type hold struct{ token, free uint64 }

// keyModel: tokens rise with every start, and a finish that counts is one of the
// newest holder.
var keyModel = nondeterministic(hold{}, func(s hold, e event, out string) []hold {
	started := hold{token: e.token}
	switch {
	case e.kind == opStart && out == string(workerv1.Applied):
		if e.token <= s.token {
			return nil
		}
		return []hold{started}
	case e.kind == opStart && out == "unknown" && e.token > s.token:
		return []hold{s, started}
	case e.kind == opFinish && out == string(workerv1.Applied):
		if e.token != s.token {
			return nil
		}
		return []hold{{token: s.token, free: s.token}}
	}
	return []hold{s}
})

func nondeterministic[S comparable](initial S, step func(S, event, string) []S) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{initial} },
		Step: func(state, input, output any) []any {
			var out []any
			for _, next := range step(state.(S), input.(event), output.(string)) {
				out = append(out, next)
			}
			return out
		},
		Equal: func(a, b any) bool { return a.(S) == b.(S) },
	}
	return m.ToModel()
}

func terminal(state string) bool {
	return state == "SUCCEEDED" || state == "FAILED" || state == "CANCELLED"
}

// A checker that never failed is not to be trusted.
func TestTheCheckerSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	applied := workerv1.ServerFrame{Body: &workerv1.Ack{Result: &workerv1.CommandResult{Receipt: workerv1.Receipt{Disposition: workerv1.Applied}}}}
	refused := workerv1.ServerFrame{Body: &workerv1.Error{Code: schema.LeaseLost}}
	submit := event{kind: opSubmit, task: "t", call: 1, done: 2}
	at := func(e event, from, to int64) event { e.call, e.done = from, to; return e }
	start := func(epoch uint64) event {
		return event{kind: opStart, task: "t", key: "k", epoch: epoch, token: epoch, answer: applied}
	}
	finish := func(epoch uint64) event {
		return event{kind: opFinish, task: "t", key: "k", epoch: epoch, token: epoch, answer: applied}
	}
	read := func(state string) event { return event{kind: opRead, task: "t", state: state} }
	for name, tc := range map[string]struct {
		events []event
		legal  bool
	}{
		"an ordinary life":                     {[]event{submit, at(start(5), 3, 4), at(finish(5), 5, 6), at(read("SUCCEEDED"), 7, 8)}, true},
		"an acknowledged finish that is gone":  {[]event{submit, at(start(5), 3, 4), at(finish(5), 5, 6), at(read("WAITING"), 7, 8)}, false},
		"a finish of an old epoch that counts": {[]event{submit, at(start(5), 3, 4), at(start(9), 5, 6), at(finish(5), 7, 8)}, false},
		"two finishes that count":              {[]event{submit, at(start(5), 3, 4), at(finish(5), 5, 6), at(finish(5), 7, 8)}, false},
		"an older attempt that starts after":   {[]event{submit, at(start(9), 3, 4), at(start(5), 5, 6)}, false},
		"a finish without a start":             {[]event{submit, at(finish(5), 3, 4)}, false},
		"an unknown finish seen later":         {[]event{submit, at(start(5), 3, 4), at(event{kind: opFinish, task: "t", epoch: 5, err: errGivenUp}, 5, 0), at(read("RUNNING"), 6, 7), at(read("SUCCEEDED"), 8, 9)}, true},
		"a refused finish that took effect":    {[]event{submit, at(start(5), 3, 4), at(event{kind: opFinish, task: "t", epoch: 5, answer: refused}, 5, 6), at(read("SUCCEEDED"), 8, 9)}, false},
	} {
		var ops []porcupine.Operation
		for _, e := range tc.events {
			done := e.done
			if done == 0 {
				done = 1 << 62
			}
			ops = append(ops, porcupine.Operation{Input: e, Output: e.outcome(), Call: e.call, Return: done})
		}
		if got := porcupine.CheckOperations(taskModel, ops); got != tc.legal {
			t.Errorf("%s: legal is %t", name, got)
		}
	}
}
