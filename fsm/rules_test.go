package fsm

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func (s *story) task(name string) *pb.TaskView {
	s.t.Helper()
	a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: s.id(name)}}})
	if a.Code != "" {
		s.t.Fatalf("task %s: %s", name, a.Code)
	}
	return a.GetTask()
}

func (s *story) state(name string) string { return StateName(s.task(name).Task.State) }

// A flapping leader cannot keep a dead worker's task: only three openings since
// the last real renewal give the lease more time.
func TestElectionsExtendALeaseAtMostThreeTimes(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 1).hello()
	s.submit("a", reconcileOnly).apply()
	w.start("T1")
	for n := 1; n <= 8; n++ {
		s.now += 15_000_000
		s.term++
		s.open()
		// Renewed at 0 with a lease of 30 s; the third opening is at 45 s.
		want := "RUNNING"
		if s.now >= storyStart+75_000_000 {
			want = "NEEDS_REVIEW"
		}
		if got := s.state("T1"); got != want {
			t.Fatalf("after opening %d at +%d s the task is %s, want %s", n, (s.now-storyStart)/1e6, got, want)
		}
	}
}

// Work that met nobody at the gateway goes back after the grace like that of any
// lost session, but says why.
func TestUndeliverableWorkSaysSoWhenItGoesBack(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 2).hello()
	s.submit("a", nil).apply()
	nobody := func() {
		s.say("nobody there", &pb.Command{Namespace: DefaultName, Body: &pb.Command_CloseSession{
			CloseSession: &pb.CloseSession{Session: w.ref(), Undeliverable: true},
		}}).apply()
	}
	nobody()
	s.wait(2_000)
	if got := s.state("T1"); got != "WAITING" {
		t.Fatalf("after the grace the task is %s", got)
	}
	a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: s.id("T1")}}})
	if all := a.GetAttempts().GetAttempts(); len(all) != 1 || all[0].Attempt.EndCause != pb.EndCause_END_CAUSE_UNDELIVERABLE {
		t.Fatalf("the attempts are %v", all)
	}
}

// A session that work could not reach rests when it is there again, longer each
// time until work reaches it. The word of its gateway is enough to bring it back:
// an idle worker has no reason to send a frame.
func TestASessionThatWorkCouldNotReachRests(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 2).hello()
	s.submit("a", nil).apply()
	miss := func(restMS int64) {
		t.Helper()
		s.say("nobody there", &pb.Command{Namespace: DefaultName, Body: &pb.Command_CloseSession{
			CloseSession: &pb.CloseSession{Session: w.ref(), Undeliverable: true},
		}}).apply()
		s.wait(0)
		began := s.now
		for s.state("T1") != "WAITING" {
			s.wait(1_000)
		}
		s.report(w)
		for s.state("T1") != "LEASED" {
			if s.now-began > 70_000_000 {
				t.Fatal("it is never offered anything again")
			}
			s.wait(500)
			s.report(w)
		}
		if got := (s.now - began) / 1_000; got < restMS || got > restMS+600 {
			t.Errorf("it rested for %d ms, want %d", got, restMS)
		}
	}
	miss(2_000) // the grace of what it held is longer than its first rest
	miss(2_000)
	miss(4_000)
	miss(8_000)
	w.start("T1")
	w.finish("T1", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	s.submit("again", nil).apply()
	if got := s.state("T2"); got != "LEASED" {
		t.Errorf("once work has reached it the next is %s at once, want LEASED", got)
	}
}

// What never ran has lost nothing, its place among those that wait included.
func TestAReleasedTaskKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	silent := s.worker(1, 1).hello()
	s.submit("first", nil).apply()
	s.wait(1_000)
	s.submit("second", nil).apply()
	s.say("gone", &pb.Command{Namespace: DefaultName, Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: silent.ref()}}}).apply()
	s.wait(2_000)
	if got := s.state("T1") + " " + s.state("T2"); got != "WAITING WAITING" {
		t.Fatalf("after the grace the tasks are %s", got)
	}
	s.worker(2, 1).hello()
	if got := s.state("T1") + " " + s.state("T2"); got != "LEASED WAITING" {
		t.Errorf("the tasks are %s, want LEASED WAITING", got)
	}
}

// An answer is repeated with the bytes it had, so the task stays with it.
func TestATaskOutlastsTheAnswersAboutIt(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.submit("a", nil).apply()
	cancel := func(key string) *pb.Command {
		return &pb.Command{
			Namespace: DefaultName, IdempotencyKey: key, ContentHash: bytes.Repeat([]byte{7}, 32),
			Body: &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: s.id("T1")}},
		}
	}
	first := s.say("cancel", cancel("k")).apply()[0].GetTask().GetTask()
	retention := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: DefaultName}}}).
		GetQueue().GetQueue().GetSettings().GetRetentionMs()
	s.wait(retention - 1)
	s.say("cancel again, long after", cancel("later")).apply()
	s.wait(2)
	again := s.say("the same once more", cancel("later")).apply()[0]
	if v := again.GetTask().GetTask(); !again.Replayed || !bytes.Equal(v.GetPayload(), first.GetPayload()) || len(first.GetPayload()) == 0 {
		t.Errorf("past its retention the answer is %v, at first %v", again, first)
	}
}

func TestIdsRiseInLogOrderAndAreVersion7(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	last := ""
	for entry := range 50 {
		for range 20 {
			s.submit("x", nil)
		}
		if entry%10 == 9 {
			s.now += 3_000
		}
		for _, r := range s.apply() {
			id := fmt.Sprintf("%x", r.GetTask().Task.Task.Id)
			if id <= last {
				t.Fatalf("id %s does not rise above %s", id, last)
			}
			if id[12] != '7' || !strings.ContainsRune("89ab", rune(id[16])) {
				t.Fatalf("id %s is not a UUIDv7", id)
			}
			last = id
		}
	}
}

func TestEventsLeaveTheFeedFromTheFront(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.submit("a", nil).apply()
	s.say("keep events for a minute", &pb.Command{Body: &pb.Command_SetCluster{SetCluster: &pb.SetCluster{EventRetentionMs: 60_000}}})
	s.apply()
	feed := func(index uint64) *pb.Answer {
		return s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ReadFeed{ReadFeed: &pb.ReadFeed{AfterIndex: index, Limit: 100}}})
	}
	if n := len(feed(0).GetEvents().GetEvents()); n != 3 {
		t.Fatalf("%d events, want namespace, queue and task", n)
	}
	s.wait(61_000)
	s.submit("b", nil).apply()
	if a := feed(0); a.Code != string(schema.NotFound) || !strings.Contains(a.Message, "too old") {
		t.Fatalf("a position before the front answers %q %q", a.Code, a.Message)
	}
	if n := len(feed(s.index - 1).GetEvents().GetEvents()); n != 1 {
		t.Fatalf("%d events after the front, want 1", n)
	}
	// A story whose beginning is gone starts with the row as it is.
	a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ListTaskEvents{ListTaskEvents: &pb.ListTaskEvents{TaskId: s.id("T1")}}})
	events := a.GetEvents().GetEvents()
	if len(events) != 1 || events[0].CommandType != "state" || events[0].TaskAfter.GetRevision() != 1 {
		t.Fatalf("the story is %v", events)
	}
}

func TestAFinishOfAnotherInstanceIsEvidenceWhateverTheAttemptsState(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 1).hello()
	restarted := s.worker(2, 1)
	s.submit("a", nil).apply()
	w.start("T1")
	restarted.hello()
	before := s.task("T1").Task
	f := func() *pb.Command {
		return &pb.Command{Id: bytes.Repeat([]byte{0xee}, 16), Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
			Session: restarted.ref(), Ref: s.attempt("T1"), Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Result: []byte(`{"from":"notes"}`),
		}}}
	}
	first := s.say("finish", f()).apply()[0].GetOperation()
	if first.GetReceipt().GetDisposition() != pb.Disposition_DISPOSITION_EVIDENCE_ONLY {
		t.Fatalf("disposition %v", first)
	}
	again := s.say("finish again", f()).apply()[0].GetOperation()
	if !again.Deduplicated || !proto.Equal(first.Receipt, again.Receipt) {
		t.Fatalf("the repeat gets %v", again)
	}
	if !proto.Equal(before, s.task("T1").Task) {
		t.Error("evidence changed the task")
	}
	list := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: s.id("T1")}}})
	e := list.GetAttempts().Attempts[0].Evidence
	if len(e) != 1 || string(e[0].Result) != `{"from":"notes"}` {
		t.Errorf("evidence %v", e)
	}
	w.finish("T1", pb.Outcome_OUTCOME_SUCCEEDED, nil)
	if s.state("T1") != "SUCCEEDED" {
		t.Error("the owner's finish no longer counts")
	}
}

func TestAnIDFromAnotherNamespaceIsNotFound(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.submit("a", nil).apply()
	s.say("other namespace", &pb.Command{Body: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Name: "other"}}}).apply()
	id := s.id("T1")
	s.say("cancel", &pb.Command{Namespace: "other", Body: &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: id}}})
	if got := s.apply()[0].Code; got != string(schema.NotFound) {
		t.Errorf("a command through another namespace answers %q", got)
	}
	for _, q := range []*pb.Query{
		{Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: id}}},
		{Body: &pb.Query_ListAttempts{ListAttempts: &pb.ListAttempts{TaskId: id}}},
		{Body: &pb.Query_ListTaskEvents{ListTaskEvents: &pb.ListTaskEvents{TaskId: id}}},
	} {
		q.Namespace = "other"
		if a := s.m.Query(q); a.Code != string(schema.NotFound) {
			t.Errorf("%T through another namespace answers %q", q.Body, a.Code)
		}
	}
}

func TestBackoffDoublesUpToItsMaximumAndNeverOverflows(t *testing.T) {
	t.Parallel()
	p := &pb.RetryPolicy{InitialDelayMs: 1000, MaxDelayMs: 5000}
	for n, want := range map[uint32]int64{1: 1000, 2: 2000, 3: 4000, 4: 5000, 100: 5000} {
		if got := backoff(p, n); got != want*1000 {
			t.Errorf("backoff %d = %d us, want %d ms", n, got, want)
		}
	}
	const most = 9223372036854
	if got := backoff(&pb.RetryPolicy{InitialDelayMs: most, MaxDelayMs: most}, 100); got != most*1000 {
		t.Errorf("the longest delay became %d", got)
	}
}

func TestADamagedEntryIsRefused(t *testing.T) {
	t.Parallel()
	data, err := EncodeEntry(&pb.Entry{Term: 3, TimeUs: 5})
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		for bit := range 8 {
			bad := bytes.Clone(data)
			bad[i] ^= 1 << bit
			if _, err := DecodeEntry(bad); err == nil {
				t.Fatalf("bit %d of byte %d flipped unnoticed", bit, i)
			}
		}
	}
	for n := range data {
		if _, err := DecodeEntry(data[:n]); err == nil {
			t.Fatalf("an entry cut to %d bytes was accepted", n)
		}
	}
}

func TestAgeingLiftsOldTasksAboveNewOnes(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	set := defaultQueueSettings()
	set.AgeingMs = 1000
	s.say("ageing", &pb.Command{Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: DefaultName, Settings: set}}}).apply()
	s.submit("old", nil).apply()
	s.wait(4_000)
	s.submit("newer, priority 3", func(c *pb.SubmitTask) { c.Priority = 3 }).apply()
	s.submit("newer, priority 5", func(c *pb.SubmitTask) { c.Priority = 5 }).apply()
	w := s.worker(1, 1).hello()
	for _, want := range []string{"T3", "T1", "T2"} {
		if s.state(want) != "LEASED" {
			t.Fatalf("%s is %s, want it next", want, s.state(want))
		}
		w.start(want).finish(want, pb.Outcome_OUTCOME_SUCCEEDED, nil)
	}
}

func TestAnEntryMakesABoundedNumberOfAssignments(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	for n := range byte(6) {
		s.worker(n, 256).hello()
	}
	s.say("pause", &pb.Command{Body: &pb.Command_PauseQueue{PauseQueue: &pb.PauseQueue{Name: DefaultName, Paused: true}}}).apply()
	for range 1500 {
		s.submit("x", nil)
	}
	s.apply()
	s.say("resume", &pb.Command{Body: &pb.Command_PauseQueue{PauseQueue: &pb.PauseQueue{Name: DefaultName}}}).apply()
	leased := func() uint64 { return s.m.Stats().AttemptsLeased }
	if leased() != assignmentsMax || !s.m.Pending() {
		t.Fatalf("%d leased, pending %t", leased(), s.m.Pending())
	}
	s.wait(0)
	if leased() != 1500 || s.m.Pending() {
		t.Fatalf("%d leased in the next entry, pending %t", leased(), s.m.Pending())
	}
}

func TestStoreSurvivesReopening(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t: t, m: m, term: 1, now: storyStart, names: map[string]string{}, counts: map[string]int{}}
	s.open()
	s.submit("a", nil).submit("b", func(c *pb.SubmitTask) { c.DelayMs = 120_000 }).apply()
	hash, indexes := m.StateHash(), m.DumpIndexes()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err = Open(Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if !bytes.Equal(hash, m.StateHash()) || indexes != m.DumpIndexes() {
		t.Error("reopening changed the state")
	}
	// A timer beyond the window in memory is still the next one due.
	due, ok := m.NextDue()
	if !ok || due != storyStart+120_000_000 {
		t.Errorf("next due %d %t", due-storyStart, ok)
	}
}

// A restored state is the one that the next process opens, and the one before it
// is gone from the disk, whether it came as a stream or as a store, which stays as it was.
func TestARestoredStateSurvivesReopening(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.submit("a", nil).submit("b", nil).apply()
	dir := t.TempDir()
	if _, err := s.m.Checkpoint(filepath.Join(dir, "checkpoint")); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if _, err := state.WriteStream(filepath.Join(dir, "checkpoint"), &stream); err != nil {
		t.Fatal(err)
	}
	whole, built := stream.Bytes(), filepath.Join(dir, "built")
	header, err := state.ReadStream(bytes.NewReader(whole), built)
	if err != nil {
		t.Fatal(err)
	}
	for name, restore := range map[string]func(*Machine) error{
		"stream": func(m *Machine) error { return m.Restore(bytes.NewReader(whole), 900) },
		"store":  func(m *Machine) error { return m.RestoreStore(built, header, 900) },
	} {
		opt := Options{Dir: filepath.Join(dir, name)}
		m, err := Open(opt)
		if err != nil {
			t.Fatal(err)
		}
		if err := restore(m); err != nil {
			t.Fatal(err)
		}
		if got, want := m.DumpIndexes(), s.m.DumpIndexes(); got != want {
			t.Errorf("%s: restored it has\n%s, want\n%s", name, got, want)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if m, err = Open(opt); err != nil {
			t.Fatal(err)
		}
		if m.AppliedIndex() != 900 || !bytes.Equal(m.StateHash(), s.m.StateHash()) {
			t.Errorf("%s: opened again it is at %d with state %x, want 900 and %x", name, m.AppliedIndex(), m.StateHash(), s.m.StateHash())
		}
		if stores, err := filepath.Glob(filepath.Join(opt.Dir, "store-*")); len(stores) != 1 || err != nil {
			t.Errorf("%s: stores on disk: %v %v", name, stores, err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stream.Reset()
	if _, err := state.WriteStream(built, &stream); err != nil || !bytes.Equal(stream.Bytes(), whole) {
		t.Errorf("the store that was taken is another one: %d bytes, %v", stream.Len(), err)
	}
}

// A connection closed while the gateway's list was on its way stays closed: the
// list is older than the loss.
func TestAReportOlderThanADisconnectDoesNotTakeTheSessionBack(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 1).hello()
	made := s.index
	s.say("close", &pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: w.ref()}}}).apply()
	connected := func() bool {
		a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetWorker{GetWorker: &pb.GetWorker{InstanceId: w.id}}})
		return a.GetWorker().GetState() == "connected"
	}
	s.reportAt(made, w)
	if connected() {
		t.Error("an old list took a closed session back")
	}
	s.reportAt(s.index, w)
	if !connected() {
		t.Error("a newer list did not take the session back")
	}
}

// A retry by hand leaves a link to the task it made, which is no change of the old
// one. Of tasks that nobody named none is retried twice, also by two at a time.
func TestATaskTellsItsRetryAndIsNotRetriedTwiceUnnamed(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.submit("a", nil).apply()
	s.say("cancel", &pb.Command{Namespace: DefaultName, Body: &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: s.id("T1")}}}).apply()
	before := s.task("T1").Task.Revision
	for _, by := range []string{"retry all", "retry all, by somebody else"} {
		s.say(by, &pb.Command{Body: &pb.Command_BulkTasks{BulkTasks: &pb.BulkTasks{
			Action: pb.BulkAction_BULK_ACTION_RETRY, TaskIds: [][]byte{s.id("T1")}, Once: true,
		}}})
	}
	s.apply()
	if got := s.task("T1").Task; got.Revision != before || !bytes.Equal(got.RetriedAs, s.id("T2")) {
		t.Errorf("at revision %d, not %d, retried as %x", got.Revision, before, got.RetriedAs)
	}
	list := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ListTasks{ListTasks: &pb.ListTasks{}}}).GetTasks().GetTasks()
	if len(list) != 2 {
		t.Errorf("%d tasks, want the old one and one more", len(list))
	}
	left := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_ListTasks{ListTasks: &pb.ListTasks{NotRetried: true}}}).GetTasks().GetTasks()
	if len(left) != 1 || !bytes.Equal(left[0].Task.Id, s.id("T2")) {
		t.Errorf("%d tasks were not retried", len(left))
	}
}

// What is on record says what came of it, also when that is nothing: a key that nobody
// held, a task of a bulk request that refused it.
func TestTheRecordSaysWhatCameOfAChange(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 1).hello()
	s.submit("a", func(c *pb.SubmitTask) { reconcileOnly(c); key("k")(c) }).apply()
	w.start("T1")
	free := func() {
		s.say("free k", &pb.Command{Namespace: DefaultName, Body: &pb.Command_FreeKey{FreeKey: &pb.FreeKey{Key: "k", Note: "checked"}}}).apply()
	}
	bulk := func(action pb.BulkAction, ids ...[]byte) {
		s.say("bulk", &pb.Command{Namespace: DefaultName, Body: &pb.Command_BulkTasks{BulkTasks: &pb.BulkTasks{Action: action, TaskIds: ids}}}).apply()
	}
	w.finish("T1", pb.Outcome_OUTCOME_UNKNOWN, nil)
	free()
	free()
	s.submit("b", func(c *pb.SubmitTask) { c.Handler = "nobody's" }).apply()
	first, second := s.id("T1"), s.id("T2")
	bulk(pb.BulkAction_BULK_ACTION_CANCEL, first)
	bulk(pb.BulkAction_BULK_ACTION_CANCEL, second)
	bulk(pb.BulkAction_BULK_ACTION_RETRY, second)
	bulk(pb.BulkAction_BULK_ACTION_CANCEL, first, second)
	var got []string
	rows := s.m.Query(&pb.Query{Body: &pb.Query_ListAudit{ListAudit: &pb.ListAudit{All: true, Limit: 6}}}).GetAudit().GetRows()
	for _, row := range rows {
		got = append(got, strings.ReplaceAll(row.Detail, fmt.Sprintf("%x", first), "T1"))
	}
	want := []string{"cancel 1 of 2 tasks", "retry: new task " + fmt.Sprintf("%x", s.id("T3")), "cancel: done", "cancel: refused: conflict", "nobody held it: nothing was changed", "held by task T1"}
	if !slices.Equal(got, want) {
		t.Errorf("on record: %q\nand not:   %q", got, want)
	}
}
