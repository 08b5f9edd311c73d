package fsm

import (
	"encoding/binary"
	"testing"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

func TestPickupsAreCountedWithinAQuarter(t *testing.T) {
	t.Parallel()
	for us := int64(1); us < 1e12; us += us/7 + 1 {
		b := pickupBucket(us)
		if b < 0 || b >= pickupBuckets {
			t.Fatalf("%d µs is counted in bucket %d", us, b)
		}
		if b == pickupBuckets-1 {
			break // all that is longer
		}
		high := pickupBound(b)
		if us >= high || us > 1<<pickupShift*4 && 4*(high-us) > high {
			t.Fatalf("%d µs is counted up to %d", us, high)
		}
		if b > 0 && pickupBound(b-1) > us {
			t.Fatalf("%d µs is counted from %d", us, pickupBound(b-1))
		}
	}
	var p pickups
	if p.quantile(50) != 0 {
		t.Error("no pickup has a quantile")
	}
	for range 99 {
		p.add(1000)
	}
	p.add(5e6)
	if half, most, all := p.quantile(50), p.quantile(99), p.quantile(100); half != most || half < 1000 || half > 1300 || all < 5e6 || all > 6.5e6 {
		t.Errorf("half within %d, 99 of 100 within %d, all within %d", half, most, all)
	}
	var q pickups
	q.merge(p)
	q.merge(p)
	if len(q) != 2 || q[0].n != 198 || q[1].n != 2 || q.quantile(99) != p.quantile(99) {
		t.Errorf("twice %v is %v", p, q)
	}
	p.add(-5) // a clock that was set back
	if got := pickupBucket(-5); got != 0 {
		t.Errorf("bucket %d", got)
	}
}

func TestErrorCodesAreBounded(t *testing.T) {
	t.Parallel()
	s := &activityStep{}
	for i := range 2 * activityErrorsMax {
		s.failed(string(rune('a' + i)))
	}
	s.failed("a")
	if len(s.errors) != activityErrorsMax+1 || s.errors[activityOther] != activityErrorsMax || s.errors["a"] != 2 {
		t.Errorf("%d codes, %d others", len(s.errors), s.errors[activityOther])
	}
	if list := errorCounts(s.errors); len(list) != activityErrorsMax || list[0].Code != activityOther || list[1].Code != "a" {
		t.Errorf("%v", list)
	}
}

func TestActivityRemembersWhatHappenedAndHowThingsStood(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	w := s.worker(1, 1).hello()
	s.submit("a", nil)
	s.submit("b", nil)
	s.apply()
	submitted := s.now
	s.now += 6_000_000
	w.start("T1")
	s.now += 14_000_000
	w.finish("T1", pb.Outcome_OUTCOME_FAILED, func(f *pb.FinishAttempt) { f.ErrorCode = "boom" })
	ans := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetActivity{GetActivity: &pb.GetActivity{}}})
	a := ans.GetActivity()
	if a == nil {
		t.Fatalf("%s %s", ans.Code, ans.Message)
	}
	l := a.Total.Lately
	if l.Submitted != 2 || l.Started != 1 || l.AttemptsFailed != 1 || l.Failed != 1 || l.Succeeded != 0 {
		t.Errorf("lately %v", l)
	}
	if l.PickupP99Us < 6_000_000 || l.PickupP99Us > 7_500_000 {
		t.Errorf("it took 6 s from queue to start, not %d µs", l.PickupP99Us)
	}
	if len(a.Total.Errors) != 1 || a.Total.Errors[0].Code != "boom" || a.Total.Errors[0].Attempts != 1 {
		t.Errorf("errors %v", a.Total.Errors)
	}
	// Nothing was heard of its gateway for so long that the worker counts as lost.
	if a.Total.Leased != 0 || a.Total.Waiting != 1 || a.Total.Slots != 0 || a.Total.WorkersLost != 1 {
		t.Errorf("it stands so: %v", a.Total)
	}
	var total pb.ActivityCounts
	for i, step := range a.Steps {
		total.Submitted += step.Counts.Submitted
		total.AttemptsFailed += step.Counts.AttemptsFailed
		last := i == len(a.Steps)-1
		switch within := step.AtUs+a.StepUs > submitted; {
		case !within && (step.Waiting != 0 || step.Active != 0):
			t.Errorf("before anything was submitted %d waited and %d were with workers", step.Waiting, step.Active)
		case within && !last && (step.Waiting != 1 || step.Active != 1):
			t.Errorf("in step %d of %d %d waited and %d were with workers", i, len(a.Steps), step.Waiting, step.Active)
		case last && (step.Waiting != 1 || step.Active != 0):
			t.Errorf("at the end %d wait and %d are with workers", step.Waiting, step.Active)
		}
	}
	if total.Submitted != 2 || total.AttemptsFailed != 1 || len(a.Steps) < 4 {
		t.Errorf("%d steps have %v", len(a.Steps), &total)
	}
}

// The memory of the past has one bound for all queues: what is given up is the
// oldest, of all of them alike, and that it is gone is told.
func TestThePastOfAllQueuesIsBounded(t *testing.T) {
	t.Parallel()
	const queues, first = 1000, 1000
	a := &activity{since: 5e6, last: map[ID]depth{}, gone: map[ID]gone{}}
	var all []*state.Queue
	for n := range queues {
		id := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(n))
		all = append(all, &state.Queue{Row: &pb.QueueRow{Id: id}})
	}
	kept := func() (n int) {
		for _, m := range a.moments {
			n += len(m.queues)
		}
		return n
	}
	for number := int64(first); number < first+2*activitySteps; number++ {
		for _, q := range all {
			q.Waiting++
			a.step(q, number*activityStepUs).counts.submitted++
		}
		if n := kept(); n > activityKeptMax || n != a.kept {
			t.Fatalf("%d steps are kept and %d counted", n, a.kept)
		}
	}
	since := a.since / activityStepUs
	if steps := first + 2*activitySteps - since; steps < activityKeptMax/queues-1 || steps > activityKeptMax/queues {
		t.Errorf("the past is told since %d steps", steps)
	}
	for number := since; number < first+2*activitySteps; number++ {
		n := 0
		asked := map[ID]*pb.QueueActivity{all[0].ID(): {}, all[1].ID(): {}}
		a.each(number, asked, func(_ ID, step *activityStep) {
			n++
			if step.counts.submitted != 1 || step.after.waiting != step.before.waiting+1 {
				t.Fatalf("step %d has %+v", number, step)
			}
		})
		if n != 2 {
			t.Errorf("step %d has %d of two queues", number, n)
		}
	}
	end := int64(first + 2*activitySteps)
	for _, q := range all[1:] {
		a.forget(q.ID(), ID{}, end*activityStepUs)
	}
	for number := end; number <= end+activitySteps; number++ {
		a.step(all[0], number*activityStepUs)
	}
	if len(a.last) != 1 || len(a.gone) != 0 || a.kept != activitySteps || kept() != activitySteps {
		t.Errorf("of queues that are gone for long %d steps are kept and %d counted, and %d are known", kept(), a.kept, len(a.gone))
	}
}

// What a queue did was done, also when the queue is deleted.
func TestADeletedQueueStaysInThePastOfItsNamespace(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.submit("a", nil)
	s.apply()
	s.cancel("T1")
	s.say("delete the queue", &pb.Command{Body: &pb.Command_DeleteQueue{DeleteQueue: &pb.DeleteQueue{Name: DefaultName}}})
	if res := s.apply(); res[0].Code != "" {
		t.Fatal(res[0])
	}
	a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetActivity{GetActivity: &pb.GetActivity{}}}).GetActivity()
	if l := a.Total.Lately; len(a.Queues) != 0 || l.Submitted != 1 || l.Cancelled != 1 {
		t.Errorf("%d queues; lately %v", len(a.Queues), l)
	}
	cancelled := uint64(0)
	for _, step := range a.Steps {
		cancelled += step.Counts.Cancelled
	}
	if last := a.Steps[len(a.Steps)-1]; cancelled != 1 || last.Waiting != 0 || last.Active != 0 {
		t.Errorf("%d cancelled; at the end %d wait and %d are with workers", cancelled, last.Waiting, last.Active)
	}
}

// A report in short tells when each worker was heard of, unless it is of others than
// the state knows.
func TestWorkersAreHeardOfInShort(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	a, b := s.worker(1, 1).hello(), s.worker(2, 1).hello()
	heard := func(w *worker) int64 {
		return s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetWorker{GetWorker: &pb.GetWorker{InstanceId: w.id}}}).GetWorker().GetHeardAtUs()
	}
	s.reportInShort(s.index, a, b)
	first := s.now
	if heard(a) != first-1_000_000 || heard(b) != first-1_000_000 {
		t.Errorf("heard of at %d and %d, want a second before %d", heard(a), heard(b), first)
	}
	s.now += 2_000_000
	s.reportInShort(s.index, b)
	if heard(a) != first-1_000_000 {
		t.Error("a report that does not fit the state told something")
	}
}
