package fsm

import (
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// getActivity tells how the queues of a namespace stand and what they did lately.
func (v *view) getActivity(b *pb.GetActivity) {
	queues := v.s.Queues(v.nsID())
	if b.Queue != "" {
		q := v.s.QueueByName(v.nsID(), b.Queue)
		if q == nil {
			v.refuse(schema.NotFound, "no queue %q in this namespace", b.Queue)
			return
		}
		queues = []*state.Queue{q}
	}
	a := activityView{
		view: v, now: v.s.Meta().ClockUs / activityStepUs,
		of: map[ID]*pb.QueueActivity{}, total: &pb.QueueActivity{}, errors: map[string]uint64{},
	}
	out := &pb.Activity{SinceUs: v.activity.since, StepUs: activityStepUs, LatelySteps: latelySteps, Total: a.total}
	out.Queues = standing(v.s, queues)
	for i, q := range queues {
		a.of[q.ID()] = out.Queues[i]
	}
	if b.Queue == "" { // the namespace did what its deleted queues did
		for id, g := range v.activity.gone { // order-free: each for itself
			if g.namespace == v.nsID() {
				a.of[id] = &pb.QueueActivity{}
			}
		}
	}
	a.lately()
	out.Steps = a.steps(queues)
	for _, view := range out.Queues {
		a.add(view)
	}
	out.KeysHeld = v.s.KeysHeldIn(v.nsID())
	v.ans.Body = &pb.Answer_Activity{Activity: out}
}

// activityView is one answer in the making.
type activityView struct {
	*view
	now    int64 // number of the step that is still running
	of     map[ID]*pb.QueueActivity
	total  *pb.QueueActivity
	errors map[string]uint64
}

// lately adds up the newest steps, and the errors of all of them.
func (a *activityView) lately() {
	var all activitySum
	sums, codes := map[ID]*activitySum{}, map[ID]map[string]uint64{}
	for id := range a.of { // order-free: each for itself
		sums[id], codes[id] = &activitySum{}, map[string]uint64{}
	}
	for number := max(a.now-activitySteps+1, 0); number <= a.now; number++ {
		a.activity.each(number, a.of, func(id ID, step *activityStep) {
			if number > a.now-latelySteps {
				sums[id].add(step)
				all.add(step)
			}
			for code, n := range step.errors { // order-free: addition does not care
				codes[id][code] += n
				a.errors[code] += n
			}
		})
	}
	for id, view := range a.of { // order-free: each for itself
		view.Lately, view.Errors = sums[id].view(), errorCounts(codes[id])
	}
	a.total.Lately, a.total.Errors = all.view(), errorCounts(a.errors)
}

// steps is the past of all queues, from where it was counted.
func (a *activityView) steps(queues []*state.Queue) []*pb.ActivityStep {
	first := max(a.now-activitySteps+1, a.activity.since/activityStepUs)
	if a.activity.since == 0 || first > a.now {
		return nil
	}
	var held depth // by all queues
	each := map[ID]depth{}
	for _, q := range queues {
		each[q.ID()] = depth{q.Waiting, q.Active}
		held.add(depth{}, each[q.ID()])
	}
	out := make([]*pb.ActivityStep, a.now-first+1)
	// Backwards: what a queue held at the end of a step without a commit is
	// what it held before the next one, and that is what it is now if there is
	// none. The first step with a commit only tells what it held afterwards.
	for i := len(out) - 1; i >= 0; i-- {
		number := first + int64(i)
		var sum activitySum
		a.activity.each(number, a.of, func(id ID, step *activityStep) {
			sum.add(step)
			held.add(each[id], step.after)
			each[id] = step.before
		})
		out[i] = &pb.ActivityStep{AtUs: number * activityStepUs, Counts: sum.view(), Waiting: held.waiting, Active: held.active}
		a.activity.each(number, a.of, func(_ ID, step *activityStep) { held.add(step.after, step.before) })
	}
	return out
}

// add puts what a queue holds in the place of what it held.
func (d *depth) add(was, is depth) {
	d.waiting += is.waiting - was.waiting
	d.active += is.active - was.active
}

// add puts a queue into the total.
func (a *activityView) add(q *pb.QueueActivity) {
	t := a.total
	t.Waiting += q.Waiting
	t.Leased += q.Leased
	t.Running += q.Running
	t.NeedsReview += q.NeedsReview
	t.WorkersConnected += q.WorkersConnected
	t.WorkersDraining += q.WorkersDraining
	t.WorkersLost += q.WorkersLost
	t.Slots += q.Slots
	t.SlotsUsed += q.SlotsUsed
	if q.OldestWaitingUs != 0 && (t.OldestWaitingUs == 0 || q.OldestWaitingUs < t.OldestWaitingUs) {
		t.OldestWaitingUs, t.OldestWaitingTaskId = q.OldestWaitingUs, q.OldestWaitingTaskId
	}
	for _, r := range q.Reasons {
		found := false
		for _, have := range t.Reasons {
			if have.Reason == r.Reason {
				have.Tasks += r.Tasks
				found = true
			}
		}
		if !found {
			t.Reasons = append(t.Reasons, &pb.ReasonCount{Reason: r.Reason, Tasks: r.Tasks})
		}
	}
}
