package fsm

import (
	"math/bits"
	"slices"
	"strings"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

const (
	// activityStepUs and activitySteps are how finely and how long the past is
	// counted: a quarter of an hour, which is what somebody looks at who was
	// just woken up. Longer histories are a matter of metrics.
	activityStepUs = 5e6
	activitySteps  = 180
	// activityKeptMax bounds the steps that are kept, each of one queue, which is
	// a few hundred bytes. It is enough for the whole time of 360 queues that are
	// always busy; with more of them the past that is told gets shorter.
	activityKeptMax = 65_536
	// latelySteps is what "now" means for a rate: a minute.
	latelySteps = 12
	// activityErrorsMax bounds the error codes counted in one step of a queue;
	// the others are added up under activityOther.
	activityErrorsMax = 32
	activityOther     = "other"
)

// activity counts what the tasks of each queue did lately, by the cluster clock,
// from the commits of the entries this node applies. It decides nothing and is
// no part of the state: a node that starts counts from its start. The
// goroutine that applies writes it under the machine's lock.
type activity struct {
	since   int64
	moments [activitySteps]moment   // place: number modulo length
	kept    int                     // steps in all moments
	last    map[ID]depth            // of queues, after their last commit
	gone    map[ID]gone             // queues that were deleted and have steps
	heard   map[string]map[ID]int64 // by gateway, then instance: when its last frame arrived
}

// moment is one step of time of the queues that had commits in it.
type moment struct {
	number int64 // time / activityStepUs
	queues map[ID]*activityStep
}

// gone is a queue that was deleted. What it did is still a part of what its
// namespace did, until that is long ago.
type gone struct {
	namespace ID
	number    int64 // of the step it was deleted in
}

// depth is how many tasks of a queue wait and how many are with workers.
type depth struct{ waiting, active uint64 }

// activityStep is what one queue did in one step of time.
type activityStep struct {
	counts        counts
	before, after depth // its first and its last commit
	pickups       pickups
	errors        map[string]uint64
}

// counts are those of pb.ActivityCounts in one step.
type counts struct {
	submitted, started, succeeded, failed, cancelled, reviewsNeeded, attemptsFailed uint32
}

// newActivity begins to count at what the state is.
func newActivity(s *state.State) *activity {
	a := &activity{since: s.Meta().ClockUs, last: map[ID]depth{}, gone: map[ID]gone{}, heard: map[string]map[ID]int64{}}
	for _, n := range s.Namespaces() {
		for _, q := range s.Queues(ID(n.Row.Id)) {
			a.last[q.ID()] = depth{q.Waiting, q.Active}
		}
	}
	return a
}

// note counts what an entry did. s is the state after it.
func (a *activity) note(s *state.State, e *pb.Entry, o Outcome) {
	if a.since == 0 {
		a.since = o.Time
	}
	for i, c := range e.Commands {
		if report := c.GetReportGateway(); report != nil && i < len(o.Results) && o.Results[i].GetCode() == "" {
			a.report(s, report, o.Time)
		}
	}
	for _, ev := range o.Events {
		switch ev.Aggregate {
		case pb.Aggregate_AGGREGATE_TASK:
			if q := s.Queue(ID(ev.TaskAfter.GetQueueId())); q != nil && !ev.Deleted {
				a.step(q, o.Time).task(ev)
			}
		case pb.Aggregate_AGGREGATE_QUEUE:
			if ev.Deleted {
				a.forget(ID(ev.AggregateId), ID(ev.NamespaceId), o.Time)
			}
		default: // what workers and namespaces do is state enough
		}
	}
}

// report notes when the workers of a gateway were heard of. One in short that does
// not fit the state, any more or at all, says nothing of them; the next one will.
func (a *activity) report(s *state.State, r *pb.ReportGateway, now int64) {
	heard := a.heard[r.GatewayId]
	known := []*state.Instance(nil)
	if r.InShort != nil {
		known = shortSessions(s, r)
	}
	if heard == nil {
		heard = make(map[ID]int64, max(len(r.Sessions), len(known)))
		a.heard[r.GatewayId] = heard
	}
	if r.InShort == nil || known != nil {
		clear(heard)
	}
	for i, instance := range known {
		heard[ID(instance.Row.Id)] = now - int64(r.InShort.SilentMs[i])*1000
	}
	for _, session := range r.Sessions {
		if len(session.InstanceId) == 16 && session.SilentMs >= 0 {
			heard[ID(session.InstanceId)] = now - session.SilentMs*1000
		}
	}
	if r.Leaving {
		delete(a.heard, r.GatewayId)
	}
	for id := range a.heard { // order-free: each for itself
		if s.Gateway(id) == nil {
			delete(a.heard, id)
		}
	}
}

// step is where an event of a queue is counted.
func (a *activity) step(q *state.Queue, now int64) *activityStep {
	id, number := q.ID(), now/activityStepUs
	m := &a.moments[number%activitySteps]
	if m.number != number {
		a.drop(m)
		*m = moment{number: number, queues: map[ID]*activityStep{}}
		for id, g := range a.gone { // order-free: each for itself
			if g.number <= number-activitySteps {
				delete(a.gone, id)
			}
		}
	}
	step := m.queues[id]
	if step == nil {
		a.makeRoom(number)
		step = &activityStep{before: a.last[id]}
		m.queues[id] = step
		a.kept++
	}
	step.after = depth{q.Waiting, q.Active}
	a.last[id] = step.after
	return step
}

// makeRoom keeps to activityKeptMax by counting from later on, for all queues
// alike. The present is always kept: there are fewer queues than that.
func (a *activity) makeRoom(number int64) {
	for a.kept >= activityKeptMax {
		oldest := (*moment)(nil)
		for i := range a.moments {
			m := &a.moments[i]
			if len(m.queues) > 0 && m.number != number && (oldest == nil || m.number < oldest.number) {
				oldest = m
			}
		}
		if oldest == nil {
			return
		}
		a.since = max(a.since, (oldest.number+1)*activityStepUs)
		a.drop(oldest)
	}
}

func (a *activity) drop(m *moment) {
	a.kept -= len(m.queues)
	*m = moment{}
}

// forget counts no more for a queue that is deleted. It held nothing at its end.
func (a *activity) forget(id, namespace ID, now int64) {
	delete(a.last, id)
	for i := range a.moments {
		if a.moments[i].queues[id] != nil {
			a.gone[id] = gone{namespace, now / activityStepUs}
			return
		}
	}
}

// each calls fn for the steps of these queues in a step of time, in any order.
func (a *activity) each(number int64, queues map[ID]*pb.QueueActivity, fn func(ID, *activityStep)) {
	m := a.moments[number%activitySteps]
	switch {
	case m.number != number:
	case len(queues) < len(m.queues):
		for id := range queues { // order-free: each for itself
			if step := m.queues[id]; step != nil {
				fn(id, step)
			}
		}
	default:
		for id, step := range m.queues { // order-free: each for itself
			if queues[id] != nil {
				fn(id, step)
			}
		}
	}
}

// task counts the facts of one commit.
func (s *activityStep) task(ev *pb.EventRow) {
	for _, fact := range ev.Facts {
		switch k := fact.Kind.(type) {
		case *pb.Fact_Submitted:
			s.counts.submitted++
		case *pb.Fact_Started:
			s.counts.started++
			s.pickups.add(ev.TimeUs - ev.TaskAfter.AvailableAtUs)
		case *pb.Fact_Succeeded:
			s.counts.succeeded++
		case *pb.Fact_Failed:
			s.counts.failed++
			if ev.TaskAfter.AttemptCount == 0 { // no attempt failed, time ran out
				s.failed(k.Failed.ErrorCode)
			}
		case *pb.Fact_Cancelled:
			s.counts.cancelled++
		case *pb.Fact_ReviewNeeded:
			s.counts.reviewsNeeded++
		case *pb.Fact_AttemptFailed:
			s.counts.attemptsFailed++
			s.failed(k.AttemptFailed.ErrorCode)
		case *pb.Fact_AttemptUnknown:
			s.counts.attemptsFailed++
			s.failed(k.AttemptUnknown.ErrorCode)
		case *pb.Fact_AttemptExpired:
			s.counts.attemptsFailed++
			s.failed(strings.ToLower(strings.TrimPrefix(k.AttemptExpired.Cause.String(), "END_CAUSE_")))
		default: // the rest is not counted
		}
	}
}

func (s *activityStep) failed(code string) {
	if code == "" {
		code = "none"
	}
	if s.errors == nil {
		s.errors = map[string]uint64{}
	}
	if _, known := s.errors[code]; !known && len(s.errors) >= activityErrorsMax {
		code = activityOther
	}
	s.errors[code]++
}

// pickups is a histogram of times: four buckets for each doubling from a
// quarter of a millisecond up, which tells p99 within a quarter of itself. Only
// buckets that hold something are kept, in their order.
type pickups []pickupCount

type pickupCount struct {
	bucket int32
	n      uint32
}

const (
	pickupShift   = 8 // 2^8 µs
	pickupBuckets = 4 * 30
)

func pickupBucket(us int64) int {
	v := uint64(max(us, 0)) >> pickupShift
	if v < 4 {
		return int(v)
	}
	octave := bits.Len64(v) - 3 // v is 4..7 in octave 0
	return min(4+4*octave+int(v>>octave&3), pickupBuckets-1)
}

// pickupBound is the upper end of a bucket.
func pickupBound(bucket int) int64 {
	if bucket < 4 {
		return int64(bucket+1) << pickupShift
	}
	octave := bucket/4 - 1
	return int64(5+bucket%4) << octave << pickupShift
}

func (p *pickups) add(us int64) { p.count(pickupCount{int32(pickupBucket(us)), 1}) }

func (p *pickups) count(c pickupCount) {
	at, found := slices.BinarySearchFunc(*p, c.bucket, func(c pickupCount, bucket int32) int { return int(c.bucket - bucket) })
	if !found {
		*p = slices.Insert(*p, at, pickupCount{bucket: c.bucket})
	}
	(*p)[at].n += c.n
}

func (p *pickups) merge(q pickups) {
	for _, c := range q {
		p.count(c)
	}
}

// quantile is the time that percent of all stay within; 0 if there is none.
func (p pickups) quantile(percent uint64) int64 {
	var n, seen uint64
	for _, c := range p {
		n += uint64(c.n)
	}
	for _, c := range p {
		if seen += uint64(c.n); 100*seen >= percent*n {
			return pickupBound(int(c.bucket))
		}
	}
	return 0
}

// sum adds counts up; pickups are merged beside it.
type activitySum struct {
	counts pb.ActivityCounts
	pickup pickups
}

func (s *activitySum) add(step *activityStep) {
	c, d := &s.counts, step.counts
	c.Submitted += uint64(d.submitted)
	c.Started += uint64(d.started)
	c.Succeeded += uint64(d.succeeded)
	c.Failed += uint64(d.failed)
	c.Cancelled += uint64(d.cancelled)
	c.ReviewsNeeded += uint64(d.reviewsNeeded)
	c.AttemptsFailed += uint64(d.attemptsFailed)
	s.pickup.merge(step.pickups)
}

func (s *activitySum) view() *pb.ActivityCounts {
	return &pb.ActivityCounts{
		Submitted: s.counts.Submitted, Started: s.counts.Started, Succeeded: s.counts.Succeeded, Failed: s.counts.Failed,
		Cancelled: s.counts.Cancelled, ReviewsNeeded: s.counts.ReviewsNeeded, AttemptsFailed: s.counts.AttemptsFailed,
		PickupP50Us: s.pickup.quantile(50), PickupP99Us: s.pickup.quantile(99),
	}
}

func errorCounts(codes map[string]uint64) []*pb.ErrorCount {
	var out []*pb.ErrorCount
	for code, n := range codes { // order-free: sorted below
		out = append(out, &pb.ErrorCount{Code: code, Attempts: n})
	}
	slices.SortFunc(out, func(a, b *pb.ErrorCount) int {
		if a.Attempts != b.Attempts {
			if a.Attempts > b.Attempts {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Code, b.Code)
	})
	return out[:min(len(out), activityErrorsMax)]
}
