package fsm

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

var update = flag.Bool("update", false, "rewrite the golden stories")

// story drives one machine by commands and writes down what comes of them, as
// a script a person can read. Ids are written as names in order of appearance.
type story struct {
	t        *testing.T
	m        *Machine
	index    uint64
	term     uint64
	now      int64 // microseconds
	out      strings.Builder
	names    map[string]string
	counts   map[string]int
	message  byte
	queue    []byte
	pending  []*pb.Command
	labels   []string
	log      []goldenEntry // what was applied by apply
	restored bool          // the log is not the whole history
}

const storyStart = 1_700_000_000_000_000

func newStory(t *testing.T) *story {
	t.Helper()
	m, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &story{t: t, m: m, term: 1, now: storyStart, names: map[string]string{}, counts: map[string]int{}}
	s.open()
	a := m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: DefaultName}}})
	s.queue = a.GetQueue().Queue.Id
	return s
}

func (s *story) name(kind string, id []byte) string {
	if len(id) == 0 {
		return "-"
	}
	if n, ok := s.names[string(id)]; ok {
		return n
	}
	s.counts[kind]++
	n := fmt.Sprintf("%s%d", kind, s.counts[kind])
	s.names[string(id)] = n
	return n
}

// apply puts what was gathered into one entry.
func (s *story) apply() []*pb.Result {
	s.t.Helper()
	s.index++
	data, err := EncodeEntry(&pb.Entry{Format: 1, Term: s.term, TimeUs: s.now, Commands: s.pending})
	if err != nil {
		s.t.Fatal(err)
	}
	out := s.m.Apply(s.index, s.term, data)
	s.log = append(s.log, goldenEntry{s.index, s.term, data})
	for i, r := range out.Results {
		fmt.Fprintf(&s.out, "%6d  %s => %s\n", (s.now-storyStart)/1000, s.labels[i], s.render(r))
	}
	for _, e := range out.Events {
		fmt.Fprintf(&s.out, "        | %s\n", s.renderEvent(e))
	}
	s.pending, s.labels = nil, nil
	live, err := s.m.RebuiltIndexes()
	if err != nil {
		s.t.Fatal(err)
	}
	if got := s.m.DumpIndexes(); got != live {
		s.t.Fatalf("indexes differ from rebuilt ones after entry %d:\n--- live\n%s--- rebuilt\n%s", s.index, got, live)
	}
	return out.Results
}

func (s *story) render(r *pb.Result) string {
	if r.Code != "" {
		return r.Code
	}
	mark := ""
	if r.Replayed {
		mark = " replayed"
	}
	switch b := r.Body.(type) {
	case *pb.Result_Task:
		if b.Task.Duplicate {
			mark += " duplicate"
		}
		return s.renderTask(b.Task.Task.Task) + mark
	case *pb.Result_Operation:
		rc := b.Operation.Receipt
		if b.Operation.Deduplicated {
			mark += " deduplicated"
		}
		return fmt.Sprintf("%s task %s attempt %s rev %d %s lease active=%t until +%d%s",
			rc.Operation.String()[10:], StateName(rc.TaskState), AttemptStateName(rc.AttemptState), rc.TaskRevision,
			rc.Disposition.String()[12:], b.Operation.Lease.Active, (b.Operation.Lease.LeaseUntilUs-storyStart)/1000, mark)
	case *pb.Result_Session:
		return fmt.Sprintf("session %s epoch %d draining=%t capacity %d", s.name("S", b.Session.SessionId), b.Session.Epoch,
			b.Session.Draining, b.Session.Capacity)
	case *pb.Result_Lease:
		return fmt.Sprintf("lease active=%t %s", b.Lease.Active, AttemptStateName(b.Lease.State))
	case *pb.Result_Gateway:
		if b.Gateway.List {
			return "list them"
		}
		return fmt.Sprintf("%d gone", len(b.Gateway.Gone))
	}
	return "ok" + mark
}

func (s *story) renderTask(t *pb.TaskRow) string {
	text := fmt.Sprintf("%s %s rev %d attempts %d", s.name("T", t.Id), StateName(t.State), t.Revision, t.AttemptCount)
	if t.Park != pb.Park_PARK_UNSPECIFIED {
		text += fmt.Sprintf(" parked until +%d", (t.AvailableAtUs-storyStart)/1000)
	}
	if t.EffectUncertain {
		text += " uncertain"
	}
	if t.ErrorCode != "" {
		text += " " + t.ErrorCode
	}
	return text
}

func (s *story) renderEvent(e *pb.EventRow) string {
	var facts []string
	for _, f := range e.Facts {
		o := f.ProtoReflect().WhichOneof(f.ProtoReflect().Descriptor().Oneofs().Get(0))
		facts = append(facts, string(o.Name()))
	}
	text := e.CommandType + ": " + strings.Join(facts, " ")
	if e.TaskAfter != nil {
		text += " -> " + s.renderTask(e.TaskAfter)
	}
	return text
}

// golden holds the story against testdata.
func (s *story) golden() {
	s.t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(s.t.Name(), "/", "_")+".txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(s.out.String()), 0o644); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	if got := s.out.String(); got != string(want) {
		s.t.Errorf("the story changed; look at it and run with -update if it is better.\n--- got\n%s--- want\n%s", got, want)
	}
}

// restore makes the state that of a new cluster, as a restore from a backup does.
func (s *story) restore(change func(*state.Incarnation)) {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "backup")
	h, err := s.m.Checkpoint(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	in := state.Incarnation{ClusterID: []byte("new"), FenceBase: h.FenceBase + 1<<41, Index: h.AppliedIndex + 1, Term: 1}
	if change != nil {
		change(&in)
	}
	if _, err := state.BeginIncarnation(dir, in); err != nil {
		s.t.Fatal(err)
	}
	var stream bytes.Buffer
	if _, err := state.WriteStream(dir, &stream); err != nil {
		s.t.Fatal(err)
	}
	if err := s.m.Restore(&stream, in.Index); err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprintf(&s.out, "%6d  the backup becomes a new cluster\n", (s.now-storyStart)/1000)
	s.index, s.term, s.restored = in.Index, 1, true
	s.open()
}

func (s *story) say(label string, c *pb.Command) *story {
	if len(c.Id) == 0 {
		s.message++
		c.Id = bytes.Repeat([]byte{s.message}, 16)
	}
	if c.Namespace == "" && c.NamespaceId == nil {
		c.Namespace = DefaultName
	}
	s.pending = append(s.pending, c)
	s.labels = append(s.labels, label)
	return s
}

func (s *story) open() {
	s.say("open term", &pb.Command{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{NodeId: "n1", ClusterId: []byte("cluster")}}})
	s.pending[0].Namespace = ""
	s.apply()
}

// wait lets time pass in one empty entry.
func (s *story) wait(ms int64) {
	s.now += ms * 1000
	fmt.Fprintf(&s.out, "%6d  time passes\n", (s.now-storyStart)/1000)
	s.apply()
}

func (s *story) submit(label string, change func(*pb.SubmitTask)) *story {
	c := &pb.SubmitTask{Queue: DefaultName, Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: []byte(`{"n":1.50}`)}
	if change != nil {
		change(c)
	}
	hash := sha256.Sum256([]byte(c.String()))
	return s.say("submit "+label, &pb.Command{ContentHash: hash[:], Body: &pb.Command_SubmitTask{SubmitTask: c}})
}

// worker is one instance with its current session.
type worker struct {
	s        *story
	id       []byte
	session  []byte
	capacity uint32
	keys     bool
	epoch    uint64
}

func (s *story) worker(n byte, capacity uint32) *worker {
	return &worker{s: s, id: bytes.Repeat([]byte{0xa0 + n}, 16), capacity: capacity, keys: true}
}

func (w *worker) hello() *worker {
	w.s.say(fmt.Sprintf("hello of %s", w.s.name("W", w.id)), &pb.Command{
		Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
			InstanceId: w.id, SecretHash: []byte("secret"), QueueId: w.s.queue, Capacity: w.capacity,
			Capabilities:              []*pb.Capability{{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}},
			CancellationNotifications: true, ConcurrencyKeys: w.keys, GatewayId: "g1", GatewayIncarnation: []byte("i1"),
		}},
	})
	r := w.s.apply()[0]
	w.session, w.epoch = r.GetSession().GetSessionId(), r.GetSession().GetEpoch()
	return w
}

func (w *worker) ref() *pb.SessionRef { return &pb.SessionRef{InstanceId: w.id, SessionId: w.session} }

// attempt is the live attempt of a task, as a worker refers to it.
func (s *story) attempt(task string) *pb.AttemptRef {
	s.t.Helper()
	a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: s.id(task)}}})
	list := a.GetAttempts().GetAttempts()
	if len(list) == 0 {
		s.t.Fatalf("task %s has no attempt", task)
	}
	last := list[len(list)-1].Attempt
	return &pb.AttemptRef{TaskId: last.TaskId, AttemptId: last.Id, Epoch: last.Epoch}
}

func (s *story) id(name string) []byte {
	for id, n := range s.names {
		if n == name {
			return []byte(id)
		}
	}
	s.t.Fatalf("nothing is called %s", name)
	return nil
}

func (w *worker) start(task string) *worker {
	w.s.say("start "+task, &pb.Command{Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: w.ref(), Ref: w.s.attempt(task)}}})
	w.s.apply()
	return w
}

func (w *worker) renew(task string) {
	w.s.say("renew "+task, &pb.Command{Body: &pb.Command_RenewAttempt{RenewAttempt: &pb.RenewAttempt{Session: w.ref(), Ref: w.s.attempt(task)}}})
	w.s.apply()
}

func (w *worker) finish(task string, o pb.Outcome, change func(*pb.FinishAttempt)) {
	f := &pb.FinishAttempt{Session: w.ref(), Ref: w.s.attempt(task), Outcome: o, Result: []byte(`{"ok":true}`)}
	if o != pb.Outcome_OUTCOME_SUCCEEDED {
		f.ErrorCode = "broken"
	}
	if change != nil {
		change(f)
	}
	w.s.say("finish "+task+" "+o.String()[8:], &pb.Command{Body: &pb.Command_FinishAttempt{FinishAttempt: f}})
	w.s.apply()
}

func retryable(f *pb.FinishAttempt) { f.Retryable = true }

func (s *story) review(task string, d pb.ReviewDecision) {
	s.say("review "+task+" "+d.String()[16:], &pb.Command{Body: &pb.Command_ReviewTask{ReviewTask: &pb.ReviewTask{
		TaskId: s.id(task), Decision: d, Note: "looked at the bank", ErrorCode: "declined",
	}}})
	s.apply()
}

func (s *story) cancel(task string) {
	s.say("cancel "+task, &pb.Command{Body: &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: s.id(task)}}})
	s.apply()
}

func reconcileOnly(c *pb.SubmitTask) {
	c.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY
}

func key(k string) func(*pb.SubmitTask) { return func(c *pb.SubmitTask) { c.ConcurrencyKey = k } }

// report keeps the gateway alive.
func (s *story) report(workers ...*worker) { s.reportAt(s.index, workers...) }

// reportAt is a report whose list was made when index was applied.
func (s *story) reportAt(index uint64, workers ...*worker) {
	r := &pb.ReportGateway{GatewayId: "g1", Incarnation: []byte("i1"), AppliedIndex: index}
	ns := s.m.Query(&pb.Query{Body: &pb.Query_ReadNamespace{ReadNamespace: &pb.GetNamespace{Name: DefaultName}}}).GetNamespace()
	for _, w := range workers {
		r.Sessions = append(r.Sessions, &pb.SessionEntry{SessionId: w.session, Epoch: w.epoch, InstanceId: w.id, NamespaceId: ns.Id})
	}
	s.hand("gateway reports", r)
}

func (s *story) hand(label string, r *pb.ReportGateway) {
	c := &pb.Command{Body: &pb.Command_ReportGateway{ReportGateway: r}}
	s.say(label, c)
	c.Namespace = ""
	s.apply()
}

// reportInShort is a report that does not name the sessions, in the order that is
// given, each of which was silent for a second.
func (s *story) reportInShort(index uint64, workers ...*worker) {
	digest, short := pb.NewSessionsDigest(), &pb.SessionsInShort{}
	for _, w := range workers {
		digest.Add(ID(w.session), w.epoch)
		short.SilentMs = append(short.SilentMs, 1000)
	}
	short.Digest = digest.Sum()
	s.hand(fmt.Sprintf("gateway reports %d in short", len(workers)), &pb.ReportGateway{
		GatewayId: "g1", Incarnation: []byte("i1"), AppliedIndex: index, InShort: short,
	})
}

func TestStory(t *testing.T) {
	t.Parallel()
	for name, tell := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			tell(s)
			s.golden()
		})
	}
}

var stories = map[string]func(*story){
	"a task submitted to an idle worker is leased in the same entry and done": func(s *story) {
		w := s.worker(1, 2).hello()
		s.submit("a", nil).apply()
		w.start("T1").finish("T1", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	},
	"a retryable failure waits for its backoff and then fails for good": func(s *story) {
		w := s.worker(1, 1).hello()
		s.submit("a", func(c *pb.SubmitTask) { n := uint32(2); c.MaxAttempts = &n }).apply()
		w.start("T1").finish("T1", pb.Outcome_OUTCOME_FAILED, retryable)
		s.wait(999)
		s.wait(1)
		w.start("T1").finish("T1", pb.Outcome_OUTCOME_FAILED, retryable)
	},
	"an idempotent task whose lease ran out runs again": func(s *story) {
		w := s.worker(1, 1).hello()
		s.submit("a", nil).apply()
		w.start("T1")
		for range 15 {
			s.now += 2_000_000
			s.report(w)
		}
		w.renew("T1")
		s.now += 1_000_000
		s.report(w)
		w.finish("T1", pb.Outcome_OUTCOME_FAILED, nil)
	},
	"a reconcile only task whose worker went silent waits for a person": func(s *story) {
		w := s.worker(1, 1).hello()
		s.submit("pay", func(c *pb.SubmitTask) { reconcileOnly(c); c.ConcurrencyKey = "card" }).apply()
		s.submit("next on the key", key("card")).apply()
		w.start("T1")
		s.wait(31_000)
		w.hello()
		w.finish("T1", pb.Outcome_OUTCOME_SUCCEEDED, nil) // evidence
		s.review("T1", pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED)
		w.start("T2").finish("T2", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	},
	"an unstarted offer goes back without a trace and the session rests": func(s *story) {
		w := s.worker(1, 1).hello()
		s.submit("a", nil).apply()
		for range 5 {
			s.now += 2_000_000
			s.report(w)
		}
		s.now += 1_000_000
		s.report(w)
		w.s.say("capacity", &pb.Command{Body: &pb.Command_SetCapacity{SetCapacity: &pb.SetCapacity{Session: w.ref(), Sequence: 1, Capacity: 1}}})
		s.apply()
		s.wait(1)
		w.start("T1").finish("T1", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	},
	"a session that let offers lapse is tried with one, and its start brings the rest": func(s *story) {
		w := s.worker(1, 4).hello()
		s.submit("a", nil).submit("b", nil).submit("c", nil).apply()
		for range 5 {
			s.now += 2_000_000
			s.report(w)
		}
		s.now += 1_000_000
		s.report(w)
		w.start("T1").start("T2").start("T3")
	},
	"a gateway that knows what the state knows says so in short": func(s *story) {
		a, b := s.worker(1, 1).hello(), s.worker(2, 1).hello()
		s.reportInShort(s.index, a, b)
		s.wait(2_000)
		s.reportInShort(s.index, b, a) // in another order
		s.reportInShort(s.index, a)
		c := s.worker(3, 1).hello()
		s.reportInShort(s.index-1, a, b) // as it was before the last one came
		s.reportInShort(s.index, a, b)
		s.wait(5_900) // in short renews the gateway's life, whatever the state makes of it
		s.reportInShort(s.index, b, c)
		s.report(b, c)
		s.reportInShort(s.index, b, c)
	},
	"the waiters of a key run one after another in their order": func(s *story) {
		w := s.worker(1, 4).hello()
		s.submit("a", key("k")).submit("b", key("k")).submit("c", func(c *pb.SubmitTask) { c.ConcurrencyKey = "k"; c.Priority = 9 }).apply()
		w.start("T3").finish("T3", pb.Outcome_OUTCOME_SUCCEEDED, nil)
		w.start("T1").finish("T1", pb.Outcome_OUTCOME_FAILED, nil)
		w.start("T2").finish("T2", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	},
	"a cancel of a running task is asked for and answered": func(s *story) {
		w := s.worker(1, 1).hello()
		s.submit("a", nil).apply()
		w.start("T1").finish("T1", pb.Outcome_OUTCOME_CANCELLED, nil)
		s.cancel("T1")
		s.cancel("T1")
		w.finish("T1", pb.Outcome_OUTCOME_CANCELLED, nil)
		s.cancel("T1")
	},
	"an election gives leases a full duration again": func(s *story) {
		w := s.worker(1, 1).hello()
		s.submit("a", reconcileOnly).apply()
		w.start("T1")
		s.now += 29_000_000
		s.term++
		s.open()
		s.wait(2_000)
		w.hello()
		w.finish("T1", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	},
	"what a lost cluster handed out counts no more, and what it may have run is not run unseen": func(s *story) {
		w := s.worker(1, 3).hello()
		s.submit("running", nil).submit("running", func(c *pb.SubmitTask) { reconcileOnly(c); key("k")(c) })
		s.submit("offered", reconcileOnly).submit("waiting", reconcileOnly).submit("waiting", nil).apply()
		w.start("T1")
		w.start("T2")
		s.restore(nil)
		w.hello()
		w.renew("T1")
		w.start("T3")
		w.finish("T2", pb.Outcome_OUTCOME_SUCCEEDED, nil)
		s.wait(31_000)
		s.report(w)
		s.wait(5_000)
		s.submit("new", reconcileOnly).apply()
	},
	"an operator may vouch for what waits in a backup": func(s *story) {
		s.submit("waiting", reconcileOnly).apply()
		s.restore(func(in *state.Incarnation) { in.TrustWaiting = true })
		s.worker(1, 3).hello()
	},
	"what an old office prepared has no effect": func(s *story) {
		s.submit("a", nil)
		s.term++
		data, _ := EncodeEntry(&pb.Entry{Format: 1, Term: 1, TimeUs: s.now + 1, Commands: s.pending})
		s.index++
		out := s.m.Apply(s.index, s.term, data)
		s.log = append(s.log, goldenEntry{s.index, s.term, data})
		fmt.Fprintf(&s.out, "%s, clock +%d\n", out.Results[0].Code, s.m.Clock()-storyStart)
	},
	"deadlines end tasks that wait, and retention removes what is over": func(s *story) {
		s.submit("a", func(c *pb.SubmitTask) { c.StartDeadlineAtUs = s.now + 5_000_000 }).apply()
		s.submit("b", func(c *pb.SubmitTask) { c.DeadlineAtUs = s.now + 7_000_000; c.DelayMs = 6_000 }).apply()
		s.wait(5_000)
		s.wait(1_000)
		s.wait(1_000)
		s.wait(3 * 24 * 3600 * 1000)
	},
	"the same keys give the same answers": func(s *story) {
		biz := func(c *pb.SubmitTask) { c.BusinessKey = "order-1" }
		s.submit("a", biz).apply()
		s.submit("a", biz).apply()
		s.submit("b", func(c *pb.SubmitTask) { c.BusinessKey = "order-1"; c.Priority = 1 }).apply()
		for _, p := range []uint32{0, 0, 1} {
			s.submit(fmt.Sprintf("with key, priority %d", p), func(c *pb.SubmitTask) { c.Priority = p })
			s.pending[0].IdempotencyKey = "once"
			s.apply()
		}
	},
}
