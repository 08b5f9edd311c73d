package property

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// violation is a failed check: the name of the invariant and what was seen.
type violation struct {
	name   string
	detail string
}

func (v *violation) Error() string { return v.name + ": " + v.detail }

func violated(name, format string, args ...any) *violation {
	return &violation{name: name, detail: fmt.Sprintf(format, args...)}
}

// world is one machine with everything it is held against.
type world struct {
	bare  bool // without the model
	root  string
	dirs  int
	dir   string // of the machine
	m     *fsm.Machine
	twin  *fsm.Machine // nil without one
	lags  bool         // the twin hears nothing until it gets a snapshot
	model *model.Model

	rows    *rows
	names   *names
	memory  memory
	history []step // as it happened, with real ids

	hashes       []string                // state hash after each entry
	feed         []*pb.EventRow          // every event so far
	events       map[string]*pb.EventRow // by aggregate and version
	index, term  uint64
	entries      int
	preludeIndex uint64
	ids          int

	told []fsm.Effect // assignments, the last ones

	// what the generators remember
	sent         []*pb.Command
	pastSessions []*pb.SessionEntry
	incarnations map[string]int
}

// newWorld makes the state before the first entry. close removes it.
func newWorld(twin bool) (*world, error) {
	root, err := os.MkdirTemp(scratch(), "pulse-property-")
	if err != nil {
		return nil, err
	}
	w := &world{root: root, model: model.New(), rows: &rows{meta: &pb.MetaRow{}}, names: newNames(), memory: newMemory(), events: map[string]*pb.EventRow{}}
	if w.m, w.dir, err = w.open(""); err != nil {
		return nil, err
	}
	if twin {
		if w.twin, _, err = w.open(""); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// scratch is a directory in memory where there is one: nothing here has to
// survive, and a file system that really syncs would only cost time.
func scratch() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}

func (w *world) open(dir string) (*fsm.Machine, string, error) {
	if dir == "" {
		w.dirs++
		dir = filepath.Join(w.root, fmt.Sprint(w.dirs))
	}
	m, err := fsm.Open(fsm.Options{Dir: dir, NodeID: "a", MemTableBytes: 1 << 20, FormatLevel: 2})
	return m, dir, err
}

// nextID is a message id that no other has.
func (w *world) nextID() []byte {
	w.ids++
	x := nameOf("message", w.ids)
	return x[:]
}

func (w *world) close() {
	for _, m := range []*fsm.Machine{w.m, w.twin} {
		if m != nil {
			_ = m.Close() // the directory goes away with it
		}
	}
	_ = os.RemoveAll(w.root)
}

// do takes one step and checks everything. A panic of the machine is a
// violation too.
func (w *world) do(s step) (v *violation) {
	w.history = append(w.history, s)
	defer func() {
		if r := recover(); r != nil {
			v = violated("panic", "%v\n%s", r, debug.Stack())
			w.m, w.twin = nil, nil // they may hold their locks
		}
	}()
	switch s.kind {
	case stepLag:
		w.lags = true
		return nil
	case stepReopen:
		return w.reopen()
	case stepRestore:
		return w.restore(s.index)
	}
	return w.apply(s)
}

// seen is what one entry did: what the invariants look at.
type seen struct {
	step    step
	hash    []byte // state hash after it
	before  *rows
	after   *rows
	out     fsm.Outcome
	model   []model.Result
	quiet   bool // nothing was due and nothing was left to assign before the entry
	pending bool // due items or assignments were left over after it
}

func (w *world) apply(s step) *violation {
	w.entries++
	data, err := fsm.EncodeEntry(s.entry)
	if err != nil {
		return violated("codec", "encode: %v", err)
	}
	now := max(w.model.Clock, s.entry.TimeUs)
	due, any := w.model.NextDue()
	trim := w.rows.meta.GetFeedTrimAtUs()
	quiet := !w.m.Pending() && (!any || due > now) && (trim == 0 || trim > now)

	out := w.m.Apply(s.index, s.term, data)
	w.index, w.term = s.index, s.term
	after, err := readRows(w.m, w.rows)
	if err != nil {
		return violated("rows", "%v", err)
	}
	got := seen{step: s, hash: stateHash(w.m), before: w.rows, after: after, out: out, quiet: quiet, pending: w.m.Pending()}
	w.rows = after

	if len(w.model.Openings) == 0 && len(after.queues.vals) > 0 {
		w.model.DefaultQueue = model.SettingsOf(after.queues.vals[0].Settings)
	}
	if w.bare {
		got.quiet = false // only the model knows
		if v := w.checkInvariants(&got); v != nil {
			return v
		}
		w.memory.update(&got)
		return w.checkTwin(&got)
	}
	w.model.SeeFeed(got.before.meta, after.meta, s.entry, out.Results, out.Time)
	got.model = w.model.Apply(s.index, s.term, s.entry)
	if v := w.bind(&got); v != nil {
		return v
	}
	for _, e := range out.Events {
		w.feed = append(w.feed, e)
		w.events[eventName(toID(e.AggregateId), e.Version)] = e
	}
	for _, check := range []func(*seen) *violation{w.checkInvariants, w.compare, w.checkTwin} {
		if v := check(&got); v != nil {
			return v
		}
	}
	if w.entries%8 == 1 { // a log is applied again from the last snapshot after a restart
		if again := w.m.Apply(s.index, s.term, data); !again.Skipped || !bytes.Equal(stateHash(w.m), got.hash) {
			return violated("C6 applied once", "entry %d was applied twice", s.index)
		}
	}
	if w.entries%16 == 0 && len(w.model.Namespaces) > 0 {
		if d := w.compareQueries(&got); d != "" {
			return &violation{"queries", d}
		}
	}
	if w.entries%16 == 0 {
		if v := w.checkIndexes(); v != nil {
			return v
		}
	}
	w.memory.update(&got)
	w.hashes = append(w.hashes, fmt.Sprintf("%x", got.hash))
	return nil
}

// bind tells the model the ids of what the entry made and the retry instants
// the machine chose, and gives all of it names.
func (w *world) bind(s *seen) *violation {
	before, after := s.before, s.after
	fresh := func(known func(id) bool, all []id) (out []id) {
		for _, x := range all {
			if !known(x) {
				out = append(out, x)
			}
		}
		slices.SortFunc(out, func(a, b id) int { return bytes.Compare(a[:], b[:]) })
		return out
	}
	namespaces := fresh(idsOf(before.namespaces.vals), listIDs(after.namespaces.vals))
	queues := fresh(idsOf(before.queues.vals), listIDs(after.queues.vals))
	tasks := fresh(idsOf(before.tasks.vals), listIDs(after.tasks.vals))
	attempts := fresh(idsOf(before.attempts.vals), listIDs(after.attempts.vals))
	var was, is []id
	for _, i := range before.instances.vals {
		was = append(was, id(i.SessionId))
	}
	for _, i := range after.instances.vals {
		is = append(is, id(i.SessionId))
	}
	schedules := fresh(idsOf(before.schedules.vals), listIDs(after.schedules.vals))
	sessions := fresh(func(x id) bool { return slices.Contains(was, x) }, is)
	if !w.model.Bind(namespaces, queues, tasks, attempts, sessions) {
		a, b, c, d, e := w.model.Fresh()
		return violated("model/new", "the machine made %d namespaces, %d queues, %d tasks, %d attempts, %d sessions, the model %d, %d, %d, %d, %d",
			len(namespaces), len(queues), len(tasks), len(attempts), len(sessions), a, b, c, d, e)
	}
	if !w.model.BindSchedules(schedules) {
		return violated("model/new", "the machine made %d schedules", len(schedules))
	}
	for _, t := range w.model.Tasks {
		if t.Schedule != nil && t.Schedule.ID == (id{}) { // it came and went in this entry
			w.model.NameSchedule(t.Schedule, toID(after.task(t.ID).GetScheduleId()))
		}
		if t.Backoff == nil {
			continue
		}
		row := after.task(t.ID)
		if row == nil {
			return violated("model/task", "task %x is not in the machine", t.ID)
		}
		if b := *t.Backoff; !t.SettleBackoff(row.AvailableAtUs) {
			return violated("backoff", "task %x waits %d us; promised are %d ms within 20 %% and at most %d ms",
				t.ID, row.AvailableAtUs-b.From, b.DelayMS, b.MaxMS)
		}
	}
	w.name(s, tasks, attempts)
	return nil
}

// name gives stable names to the ids the entry made.
func (w *world) name(s *seen, tasks, attempts []id) {
	for i, r := range s.out.Results {
		if r.Code != "" || r.Replayed || i >= len(s.step.entry.Commands) {
			continue
		}
		command := s.step.entry.Commands[i].Id
		if t := r.GetTask(); t != nil && !t.Duplicate && slices.Contains(tasks, id(t.Task.Task.Id)) {
			w.names.add(id(t.Task.Task.Id), nameOf("task", command))
		}
		for j, item := range r.GetBulk().GetItems() {
			if len(item.NewTaskId) == 16 {
				w.names.add(id(item.NewTaskId), nameOf("task", command, j))
			}
		}
		if r.GetSession() != nil {
			real := id(r.GetSession().SessionId)
			if _, known := w.names.ref[real]; !known {
				w.names.add(real, nameOf("session", command))
				w.names.epochs[real] = r.GetSession().Epoch
			}
		}
	}
	for _, n := range s.after.namespaces.vals {
		if _, known := w.names.ref[id(n.Id)]; !known {
			name := nameOf("namespace", n.Name)
			w.names.seen[name]++
			w.names.add(id(n.Id), nameOf("namespace", name, w.names.seen[name]))
		}
	}
	for _, q := range s.after.queues.vals {
		if _, known := w.names.ref[id(q.Id)]; !known {
			n := nameOf("queue", w.names.ref[id(q.NamespaceId)], q.Name)
			w.names.seen[n]++ // a name may be used again after a queue's end
			w.names.add(id(q.Id), nameOf("queue", n, w.names.seen[n]))
		}
	}
	for _, a := range attempts {
		row := s.after.attempt(a)
		w.names.attempt(a, id(row.TaskId), row.Epoch)
	}
}

type hasID interface{ GetId() []byte }

func listIDs[T hasID](list []T) []id {
	out := make([]id, len(list))
	for i, x := range list {
		out[i] = id(x.GetId())
	}
	return out
}

func idsOf[T hasID](list []T) func(id) bool {
	set := make(map[id]struct{}, len(list))
	for _, x := range list {
		set[id(x.GetId())] = struct{}{}
	}
	return func(x id) bool { _, ok := set[x]; return ok }
}

// C1: a machine with the same log has the same state hash at every index.
func (w *world) checkTwin(s *seen) *violation {
	if w.twin == nil || w.lags {
		return nil
	}
	data, err := fsm.EncodeEntry(s.step.entry)
	if err != nil {
		return violated("codec", "encode: %v", err)
	}
	w.twin.Apply(s.step.index, s.step.term, data)
	if a, b := stateHash(w.m), stateHash(w.twin); !bytes.Equal(a, b) {
		return violated("C1", "state hash %x, a twin with the same log has %x", a, b)
	}
	if m := w.m.LatestMark(); m != 0 && w.twin.LatestMark() == m && !bytes.Equal(w.m.HashAt(m), w.twin.HashAt(m)) {
		return violated("C1", "twins remember other state hashes at %d", m)
	}
	if w.entries%32 != 0 {
		return nil
	}
	a, err := w.m.ScanHash()
	if err != nil {
		return violated("C1", "scan: %v", err)
	}
	if b, err := w.twin.ScanHash(); err != nil || a != b {
		return violated("C1", "the rows differ from those of a twin with the same log and the same state hash (%v)", err)
	}
	return nil
}

// checkIndexes: the indexes in memory are a function of the rows.
func (w *world) checkIndexes() *violation {
	rebuilt, err := w.m.RebuiltIndexes()
	if err != nil {
		return violated("indexes", "rebuild: %v", err)
	}
	if live := w.m.DumpIndexes(); live != rebuilt {
		return violated("indexes", "rebuilt indexes differ from live ones:\n%s", difference(live, rebuilt))
	}
	return nil
}

func stateHash(m *fsm.Machine) []byte { return m.StateHash() }

// reopen closes the store and opens it again: the rows are the same and the
// indexes rebuilt from them are those that grew.
func (w *world) reopen() *violation {
	hash, indexes, applied := stateHash(w.m), w.m.DumpIndexes(), w.m.AppliedIndex()
	if err := w.m.Close(); err != nil {
		return violated("reopen", "close: %v", err)
	}
	var err error
	if w.m, _, err = w.open(w.dir); err != nil {
		return violated("reopen", "open: %v", err)
	}
	if v := w.checkUnchanged("reopen", "C6", hash, applied); v != nil {
		return v
	}
	if again := w.m.DumpIndexes(); again != indexes {
		return violated("indexes", "rebuilt indexes differ from live ones:\n%s", difference(indexes, again))
	}
	return nil
}

func (w *world) checkUnchanged(what, invariant string, hash []byte, applied uint64) *violation {
	if got := stateHash(w.m); !bytes.Equal(got, hash) {
		return violated("C2", "%s: state hash %x became %x", what, hash, got)
	}
	if got := w.m.AppliedIndex(); got != applied {
		return violated(invariant, "%s: applied index %d became %d", what, applied, got)
	}
	again, err := readRows(w.m, w.rows)
	if err != nil {
		return violated("rows", "%v", err)
	}
	if diff := differing(w.rows, again, ""); len(diff) > 0 {
		return violated("C2", "%s: rows of %v differ", what, diff)
	}
	return nil
}

// restore takes a snapshot into an empty machine and goes on there: everything
// is as it was, what was remembered against repeats included (C2, C3).
func (w *world) restore(index uint64) *violation {
	hash, indexes, applied := stateHash(w.m), w.m.DumpIndexes(), w.m.AppliedIndex()
	scan, err := w.m.ScanHash()
	if err != nil {
		return violated("restore", "scan: %v", err)
	}
	stream, err := w.snapshot()
	if err != nil {
		return violated("restore", "snapshot: %v", err)
	}
	next, dir, err := w.open("")
	if err != nil {
		return violated("restore", "open: %v", err)
	}
	applied = max(applied, index) // raft's own entries never reach a machine
	if err := next.Restore(bytes.NewReader(stream), applied); err != nil {
		_ = next.Close()
		return violated("restore", "restore: %v", err)
	}
	if err := w.m.Close(); err != nil {
		return violated("restore", "close: %v", err)
	}
	_ = os.RemoveAll(w.dir)
	w.m, w.dir, w.index = next, dir, applied
	if v := w.checkUnchanged("restore", "C3", hash, applied); v != nil {
		return v
	}
	if again, err := w.m.ScanHash(); err != nil || again != scan && index == 0 {
		return violated("C2", "restore: hash over all rows %x became %x (%v)", scan, again, err)
	}
	if again := w.m.DumpIndexes(); again != indexes {
		return violated("indexes", "indexes of a restored state differ from live ones:\n%s", difference(indexes, again))
	}
	return w.install(stream, applied, hash, indexes)
}

// install gives the snapshot to the twin as to a follower that lags: a damaged
// one is refused and leaves it as it was, the right one replaces what it has.
func (w *world) install(stream []byte, applied uint64, hash []byte, indexes string) *violation {
	if w.twin == nil {
		return nil
	}
	before, old := stateHash(w.twin), w.twin.AppliedIndex()
	damaged := bytes.Clone(stream)
	damaged[int(applied*7919)%len(damaged)] ^= 1 << (applied % 8)
	if err := w.twin.Restore(bytes.NewReader(damaged), applied); err == nil {
		return violated("restore", "a damaged snapshot was taken")
	}
	if !bytes.Equal(stateHash(w.twin), before) || w.twin.AppliedIndex() != old {
		return violated("restore", "a damaged snapshot left its mark")
	}
	if err := w.twin.Restore(bytes.NewReader(stream), applied); err != nil {
		return violated("restore", "install: %v", err)
	}
	w.lags = false
	if got := stateHash(w.twin); !bytes.Equal(got, hash) || w.twin.AppliedIndex() != applied {
		return violated("C2", "install: state hash %x at %d became %x at %d", hash, applied, got, w.twin.AppliedIndex())
	}
	if again := w.twin.DumpIndexes(); again != indexes {
		return violated("indexes", "indexes of an installed state differ from live ones:\n%s", difference(indexes, again))
	}
	return nil
}
