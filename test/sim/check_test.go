package sim

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// judge sees everything and takes part in nothing. It holds the committed log,
// follows it with the reference model, and remembers what everybody was told.
type judge struct {
	s        *sim
	log      []*committed // by index, from 1
	model    *model.Model
	tip      uint64      // index of the last entry the model has seen
	openings uint64      // with the entry being looked at
	meta     *pb.MetaRow // the machines', after that
	quiet    int         // entries since all rows were looked at

	leaders map[uint64]string // term: who led it
	counts  map[string]int

	lastAt   int64 // when the last effective entry's time was read
	lastTime int64 // and what it was
	lastFrom *office
	ahead    int64 // of virtual time: what the offices knew of the time together
	jumped   int64 // virtual time of the last opening that rested on a wall clock
	leapt    bool  // the cluster clock has gone forward by more than an hour at once

	facts
	words
}

// committed is an entry of the log and what it did, as the first node to apply
// it showed.
type committed struct {
	term    uint64
	kind    byte
	data    []byte
	applied bool
	state   []byte   // state hash after it
	out     [32]byte // results, events and effects
}

// facts is what the log has said so far.
type facts struct {
	live      map[id]id     // task: its live attempt
	epochs    map[id]uint64 // task: its last attempt's epoch
	sessions  map[id]uint64 // instance: its last session's epoch
	tokens    map[string]uint64
	holder    map[string]id // key: attempt that holds it, or was reviewed over it
	leases    map[id]*lease
	ended     map[id]string // attempt: how
	state     map[id]pb.TaskState
	versions  map[id][]version
	runs      map[id]int // reconcile-only task: starts since the last review
	started   map[id]int // task: starts in all
	uncertain map[id]bool
	purged    map[id]bool
	available map[id]int64
	cancels   map[id]int64 // attempt: when its cancel was asked for
	schedules map[id]*schedulePast
	access    map[id]*tokenPast
}

// version is a state of a task that readers may see from an index on.
type version struct {
	index    uint64
	revision uint64
	state    pb.TaskState
}

// lease is what is known about an attempt's lease.
type lease struct {
	task      id
	instance  id
	until     int64
	renewed   int64 // cluster time of the last real renewal
	opening   uint64
	duration  int64 // longest there can be
	timeout   int64 // from the start
	key       string
	token     uint64
	startedAt int64
}

func newJudge(s *sim) *judge {
	return &judge{s: s, model: model.New(), leaders: map[uint64]string{}, counts: map[string]int{},
		facts: facts{live: map[id]id{}, epochs: map[id]uint64{}, sessions: map[id]uint64{}, tokens: map[string]uint64{},
			holder: map[string]id{}, leases: map[id]*lease{}, ended: map[id]string{}, state: map[id]pb.TaskState{},
			versions: map[id][]version{}, runs: map[id]int{}, started: map[id]int{}, uncertain: map[id]bool{}, purged: map[id]bool{},
			available: map[id]int64{}, cancels: map[id]int64{}, schedules: map[id]*schedulePast{}, access: map[id]*tokenPast{}},
		words: newWords(),
	}
}

func (j *judge) count(what string) { j.counts[what]++ }

// clock is the cluster clock, or what it will about be.
func (j *judge) clock() int64 { return max(j.model.Clock, wallEpoch) }

// elected: at most one node leads a term.
func (j *judge) elected(n *node, term uint64) {
	if other, twice := j.leaders[term]; twice && other != n.p.name {
		j.s.fail("C5 one leader per term", "%s and %s both lead term %d", other, n.p.name, term)
	}
	j.leaders[term] = n.p.name
}

// committed: an entry that a node applies is the one every other applies there.
func (j *judge) committed(n *node, e *entry) {
	if e.index > uint64(len(j.log))+1 {
		j.s.fail("C6 no gap", "%s applies entry %d; nobody has applied %d", n.p.name, e.index, len(j.log)+1)
	}
	if e.index == uint64(len(j.log))+1 {
		j.log = append(j.log, &committed{term: e.term, kind: e.kind, data: e.data})
		return
	}
	was := j.log[e.index-1]
	if was.term != e.term || was.kind != e.kind || !bytes.Equal(was.data, e.data) {
		j.s.fail("C4 committed stays", "%s has an entry of term %d at %d; applied there was one of term %d", n.p.name, e.term, e.index, was.term)
	}
}

// applied: equal index, equal state, equal answers.
func (j *judge) applied(n *node, e *entry, out *fsm.Outcome) {
	c := j.log[e.index-1]
	state, digest := n.m.StateHash(), outcomeDigest(out)
	if c.applied {
		switch {
		case !bytes.Equal(c.state, state):
			j.s.fail("C1 equal states", "%s has state %x at %d, others had %x", n.p.name, state, e.index, c.state)
		case c.out != digest:
			j.s.fail("C1 equal states", "%s answers entry %d otherwise than others did", n.p.name, e.index)
		}
		return
	}
	c.applied, c.state, c.out = true, state, digest
	j.first(n, e, out)
}

// opened: a state that a node finds on its disk, or restores, is the one that
// the log made at its index.
func (j *judge) opened(n *node) {
	want := make([]byte, 32)
	for i := min(n.m.AppliedIndex(), uint64(len(j.log))); i > 0; i-- {
		if c := j.log[i-1]; c.applied {
			want = c.state
			break
		}
	}
	if got := n.m.StateHash(); !bytes.Equal(got, want) {
		j.s.fail("C1 equal states", "%s opens with state %x at %d, the log made %x", n.p.name, got, n.m.AppliedIndex(), want)
	}
	if j.s.chance(20) {
		rebuilt, err := n.m.RebuiltIndexes()
		must(err)
		if live := n.m.DumpIndexes(); live != rebuilt {
			j.s.fail("C6 indexes", "%s: indexes rebuilt from the rows differ", n.p.name)
		}
	}
}

func outcomeDigest(out *fsm.Outcome) [32]byte {
	h := sha256.New()
	opt := proto.MarshalOptions{Deterministic: true}
	var buf []byte
	put := func(m proto.Message) {
		var err error
		buf, err = opt.MarshalAppend(buf[:0], m)
		must(err)
		_, _ = fmt.Fprintf(h, "%d ", len(buf)) // a hash never fails
		_, _ = h.Write(buf)
	}
	for _, r := range out.Results {
		put(r)
	}
	for _, e := range out.Events {
		put(e)
	}
	_, _ = fmt.Fprint(h, out.Time, out.Effects)
	return [32]byte(h.Sum(nil))
}

// first judges an entry when it is applied for the first time.
func (j *judge) first(n *node, e *entry, out *fsm.Outcome) {
	s := j.s
	in, err := fsm.DecodeEntry(e.data)
	must(err)
	s.say("%s applies %d of term %d: %s%d events, clock %d, state %x", n.p.name, e.index, e.term, brief(in, out), len(out.Events), out.Time, n.m.StateHash()[:4])
	if len(out.Results) != len(in.Commands) {
		s.fail("C6 results", "%d results for %d commands of entry %d", len(out.Results), len(in.Commands), e.index)
	}
	if in.Term != e.term {
		j.oldOffice(e, out)
	} else {
		j.time(e, in, out)
	}
	j.openings = uint64(len(j.model.Openings))
	for _, c := range in.Commands {
		if c.GetOpenTerm() != nil && in.Term == e.term {
			j.openings++
		}
	}
	j.look(e, in, out)
	j.tip = e.index
	j.follow(n, e, in, out)
	if j.quiet++; j.quiet >= s.knobs.lookEvery {
		j.quiet = 0
		j.compareRows(n)
	}
}

// brief names an entry's commands with their answers.
func brief(in *pb.Entry, out *fsm.Outcome) string {
	var b strings.Builder
	for i, c := range in.Commands {
		name := strings.TrimPrefix(fmt.Sprintf("%T", c.Body), "*pb.Command_")
		fmt.Fprintf(&b, "%s", name)
		r := out.Results[i]
		switch {
		case r.Code != "":
			fmt.Fprintf(&b, "(%s)", r.Code)
		case r.GetTask() != nil:
			fmt.Fprintf(&b, "(%s)", short(r.GetTask().Task.Task.Id))
		case r.GetOperation() != nil:
			x := r.GetOperation()
			fmt.Fprintf(&b, "(%s rev %d", x.Receipt.TaskState.String()[11:], x.Receipt.TaskRevision)
			if x.Deduplicated {
				b.WriteString(" again")
			}
			b.WriteString(")")
		}
		b.WriteString(" ")
	}
	for _, e := range out.Events {
		for _, f := range e.Facts {
			if l := f.GetLeased(); l != nil {
				fmt.Fprintf(&b, "leased(%s %s) ", short(e.AggregateId), short(l.AttemptId))
			}
			if l := f.GetAttemptExpired(); l != nil {
				fmt.Fprintf(&b, "expired(%s %s) ", short(e.AggregateId), short(l.AttemptId))
			}
		}
	}
	return b.String()
}

// oldOffice: what was proposed in another term has no effect.
func (j *judge) oldOffice(e *entry, out *fsm.Outcome) {
	j.count("entries of an old office")
	for _, r := range out.Results {
		if r.Code != "not_leader" {
			j.s.fail("C5 old office", "a command of an old office took effect in entry %d: %q", e.index, r.Code)
		}
	}
	if len(out.Events)+len(out.Effects) > 0 || out.Time != j.model.Clock {
		j.s.fail("C5 old office", "entry %d of an old office made %d events and moved the clock from %d to %d", e.index, len(out.Events), j.model.Clock, out.Time)
	}
}

// told is the latest time that a node was told, and when.
type told struct{ time, at int64 }

// by is what time it must be by that, however fast clocks drift apart and
// leaders are slewed.
func (t told) by(at int64) int64 { return t.time + (at - t.at) - (at-t.at)/500 }

// time: the clock never runs backwards, and no clock that somebody set moves
// it: between two readings it goes forward by what has passed, give or take the
// drift and the slewing. Only an office that has nothing but a wall clock to go
// by may jump, and never away from the median. None is behind what its node was
// told, however long nobody led.
func (j *judge) time(e *entry, in *pb.Entry, out *fsm.Outcome) {
	from := e.origin.office
	if out.Time < j.model.Clock || out.Time != max(j.model.Clock, in.TimeUs) {
		j.s.fail("T3 clock", "entry %d of time %d sets the clock from %d to %d", e.index, in.TimeUs, j.model.Clock, out.Time)
	}
	if j.lastFrom != nil {
		passed, went := e.origin.at-j.lastAt, in.TimeUs-j.lastTime
		slack := passed/500 + 2*millis
		switch {
		case from == j.lastFrom && (went > passed+slack || went < passed-slack):
			j.s.fail("T3 clock", "the clock went %d us in the %d us between entries of one office, at %d", went, passed, e.index)
		case from != j.lastFrom && in.TimeUs > e.origin.at+j.ahead+slack && !from.fresh:
			j.s.fail("T3 clock", "the clock went %d us in the %d us between two offices, at %d", went, passed, e.index)
		case from != j.lastFrom && !from.fresh && in.TimeUs < from.told.by(e.origin.at)-2*millis:
			j.s.fail("T3 clock", "an office began at %d, its node was told %d, at %d: time was lost", in.TimeUs, from.told.by(e.origin.at), e.index)
		case from != j.lastFrom && from.fresh && went > passed+slack && in.TimeUs > from.limit+passed+slack:
			j.s.fail("T3 clock", "an office began at %d, far from the median of the wall clocks %d, at %d", in.TimeUs, from.limit-wallApart, e.index)
		}
		if from != j.lastFrom && from.fresh {
			j.jumped = j.s.now
			j.leapt = j.leapt || went > hour/2
		}
	}
	// An office that did not know all of the time does not make the next one
	// forget it.
	j.ahead = max(in.TimeUs-e.origin.at, j.ahead-(e.origin.at-j.lastAt)/1000)
	j.lastAt, j.lastTime, j.lastFrom = e.origin.at, in.TimeUs, from
}

// look goes through what an entry says it did.
func (j *judge) look(e *entry, in *pb.Entry, out *fsm.Outcome) {
	for i, c := range in.Commands {
		j.count(strings.TrimPrefix(fmt.Sprintf("%T ", c.Body), "*pb.Command_") + out.Results[i].Code)
		j.lookCommand(e, c, out.Results[i], out)
		j.lookToken(c, out.Results[i], out.Time)
	}
	for _, ev := range out.Events {
		j.feed = append(j.feed, &pb.EventRow{Index: ev.Index, Place: ev.Place, AggregateId: ev.AggregateId, Version: ev.Version})
		switch ev.Aggregate {
		case pb.Aggregate_AGGREGATE_TASK:
			for _, f := range ev.Facts {
				j.lookFact(e, ev, f, out)
			}
			j.lookTask(e, ev)
		case pb.Aggregate_AGGREGATE_SCHEDULE:
			j.lookSchedule(ev)
		case pb.Aggregate_AGGREGATE_WORKER:
			for _, f := range ev.Facts {
				if r := f.GetWorkerRegistered(); r != nil {
					if r.Epoch != e.index || r.Epoch <= j.sessions[toID(ev.AggregateId)] {
						j.s.fail("L2 epochs rise", "session epoch %d in entry %d, before it was %d", r.Epoch, e.index, j.sessions[toID(ev.AggregateId)])
					}
					j.sessions[toID(ev.AggregateId)] = r.Epoch
				}
			}
		}
	}
}

// attemptRef is what an operation of a worker is about.
func attemptRef(c *pb.Command) (*pb.SessionRef, *pb.AttemptRef, bool) {
	switch b := c.Body.(type) {
	case *pb.Command_StartAttempt:
		return b.StartAttempt.Session, b.StartAttempt.Ref, true
	case *pb.Command_RenewAttempt:
		return b.RenewAttempt.Session, b.RenewAttempt.Ref, true
	case *pb.Command_FinishAttempt:
		return b.FinishAttempt.Session, b.FinishAttempt.Ref, true
	}
	return nil, nil, false
}

func (j *judge) lookCommand(e *entry, c *pb.Command, r *pb.Result, out *fsm.Outcome) {
	session, ref, is := attemptRef(c)
	if !is || r.Code != "" {
		return
	}
	x := r.GetOperation()
	if x.Receipt.Disposition == pb.Disposition_DISPOSITION_EVIDENCE_ONLY {
		j.count("late finishes kept")
	}
	attempt := toID(ref.AttemptId)
	l := j.leases[attempt]
	if l == nil {
		j.s.fail("L3 fencing", "an operation was accepted on attempt %s, which nobody was given", short(ref.AttemptId))
	}
	if !x.Deduplicated && x.Receipt.Disposition == pb.Disposition_DISPOSITION_APPLIED {
		_, over := j.ended[attempt]
		switch {
		case over:
			j.s.fail("L3 fencing", "an operation took effect on attempt %s, which was over: %s", short(ref.AttemptId), j.ended[attempt])
		case toID(session.InstanceId) != l.instance:
			j.s.fail("L3 fencing", "an operation of %s took effect on an attempt of %s", short(session.InstanceId), short(l.instance[:]))
		case j.epochs[l.task] != ref.Epoch:
			j.s.fail("L3 fencing", "an operation with epoch %d took effect; the task's is %d", ref.Epoch, j.epochs[l.task])
		}
		if c.GetFinishAttempt() == nil {
			l.renewed, l.opening = out.Time, j.opening()
		}
	}
	if x.Lease.Active {
		// A start may end an offer with the time that the attempt may take.
		timed := c.GetStartAttempt() != nil && !x.Deduplicated && x.Lease.LeaseUntilUs == out.Time+l.timeout
		if x.Lease.LeaseUntilUs < l.until && !timed {
			j.s.fail("L6 lease never shrinks", "attempt %s was leased until %d and is until %d", short(ref.AttemptId), l.until, x.Lease.LeaseUntilUs)
		}
		l.until = x.Lease.LeaseUntilUs
		// It may have been asked for by a command of the same entry.
		if want := j.cancels[attempt]; x.Lease.CancelRequestedAtUs != want && (want != 0 || x.Lease.CancelRequestedAtUs != out.Time) {
			j.s.fail("P4 cancel is visible", "the lease of attempt %s says cancel at %d, asked for at %d", short(ref.AttemptId), x.Lease.CancelRequestedAtUs, want)
		}
	}
}

// opening is how many terms have opened, this entry's included.
func (j *judge) opening() uint64 { return j.openings }

// end notes the end of an attempt, of which there is one.
func (j *judge) end(attempt []byte, how string) {
	a := toID(attempt)
	if was, twice := j.ended[a]; twice {
		j.s.fail("T1 one ending each", "attempt %s ended by %s and again by %s", short(attempt), was, how)
	}
	l := j.leases[a]
	if l == nil {
		j.s.fail("T1 one ending each", "attempt %s ended by %s and never began", short(attempt), how)
	}
	j.ended[a] = how
	if j.live[l.task] == a {
		delete(j.live, l.task)
	}
	if l.key != "" && j.holder[l.key] == a {
		delete(j.holder, l.key)
	}
}

func (j *judge) lookFact(e *entry, ev *pb.EventRow, f *pb.Fact, out *fsm.Outcome) {
	j.count(strings.TrimPrefix(fmt.Sprintf("%T", f.Kind), "*pb."))
	task := toID(ev.AggregateId)
	now := out.Time
	t := ev.TaskAfter
	switch k := f.Kind.(type) {
	case *pb.Fact_Leased:
		j.leased(e, ev, k.Leased, now)
	case *pb.Fact_Started:
		l := j.leases[toID(k.Started.AttemptId)]
		l.startedAt = now
		j.started[task]++
		if t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY {
			if j.runs[task]++; j.runs[task] > 1 {
				j.s.fail("L9 reconcile-only runs once", "task %s runs again without a review", short(task[:]))
			}
		}
	case *pb.Fact_LeaseReleased:
		l := j.leases[toID(k.LeaseReleased.AttemptId)]
		if l != nil && k.LeaseReleased.Reason == pb.EndCause_END_CAUSE_LEASE && now < l.until {
			j.s.fail("L6 never early", "the offer of attempt %s ended at %d, it was good until %d", short(k.LeaseReleased.AttemptId), now, l.until)
		}
		j.end(k.LeaseReleased.AttemptId, "released")
	case *pb.Fact_AttemptExpired:
		j.expired(e, ev, k.AttemptExpired, now)
	case *pb.Fact_AttemptFailed:
		j.end(k.AttemptFailed.AttemptId, "failed")
	case *pb.Fact_AttemptUnknown:
		j.end(k.AttemptUnknown.AttemptId, "unknown")
		j.mustBeUncertain(t)
	case *pb.Fact_Succeeded:
		j.end(k.Succeeded.AttemptId, "succeeded")
	case *pb.Fact_Cancelled:
		if a := toID(k.Cancelled.AttemptId); a != (id{}) && j.live[task] == a {
			j.end(k.Cancelled.AttemptId, "cancelled")
		}
	case *pb.Fact_CancelRequested:
		j.cancels[j.live[task]] = now
	case *pb.Fact_Reviewed:
		j.runs[task] = 0
		j.uncertain[task] = false
		j.freeReviewKey(task)
	case *pb.Fact_KeyFreed:
		j.freeReviewKey(task)
	case *pb.Fact_ReviewNeeded:
		if k.ReviewNeeded.KeyHeld { // the attempt is over, its key is not free
			if t.ConcurrencyKey == "" || t.KeyToken == 0 {
				j.s.fail("K4 key in review", "task %s keeps a key in review and has none", short(task[:]))
			}
			j.holder[t.ConcurrencyKey] = task
		}
	case *pb.Fact_Purged:
		if j.purged[task] {
			j.s.fail("T1 one ending each", "task %s was removed twice", short(task[:]))
		}
		if !finished(j.state[task]) {
			j.s.fail("S1 nothing is lost", "task %s was removed while it was %s", short(task[:]), j.state[task])
		}
		j.purged[task] = true
	}
}

func finished(s pb.TaskState) bool {
	return s == pb.TaskState_TASK_STATE_SUCCEEDED || s == pb.TaskState_TASK_STATE_FAILED || s == pb.TaskState_TASK_STATE_CANCELLED
}

// freeReviewKey: a task in review holds its key in the task's own name here.
func (j *judge) freeReviewKey(task id) {
	for _, key := range keyNames {
		if j.holder[key] == task {
			delete(j.holder, key)
		}
	}
}

func (j *judge) leased(e *entry, ev *pb.EventRow, k *pb.Leased, now int64) {
	task, attempt, t := toID(ev.AggregateId), toID(k.AttemptId), ev.TaskAfter
	if other, twice := j.live[task]; twice {
		j.s.fail("L1 one live attempt", "task %s is leased as %s while %s lives", short(task[:]), short(k.AttemptId), short(other[:]))
	}
	if k.Epoch != e.index || k.Epoch <= j.epochs[task] {
		j.s.fail("L2 epochs rise", "attempt %s has epoch %d in entry %d; the task's last was %d", short(k.AttemptId), k.Epoch, e.index, j.epochs[task])
	}
	if at := j.available[task]; now < at {
		j.s.fail("T2 never early", "task %s was leased at %d, it is available from %d", short(task[:]), now, at)
	}
	if t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY && j.runs[task] > 0 {
		j.s.fail("L9 reconcile-only runs once", "task %s has run and is offered again without a review", short(task[:]))
	}
	j.live[task], j.epochs[task] = attempt, k.Epoch
	set := j.s.knobs.queues[j.queueName(t.QueueId)]
	l := &lease{task: task, instance: toID(k.InstanceId), until: k.LeaseUntilUs, renewed: now, opening: j.opening(),
		timeout: t.Retry.AttemptTimeoutMs * 1000, key: t.ConcurrencyKey, token: k.ConcurrencyToken}
	if set != nil {
		l.duration = max(set.LeaseDurationMs, set.OfferDurationMs) * 1000
	}
	j.leases[attempt] = l
	if l.key == "" {
		return
	}
	if other, held := j.holder[l.key]; held {
		j.s.fail("K1 one holder", "key %s was granted to %s while %s holds it", l.key, short(k.AttemptId), short(other[:]))
	}
	if l.token != e.index || l.token <= j.tokens[l.key] {
		j.s.fail("K2 tokens rise", "key %s was granted with token %d in entry %d; the last was %d", l.key, l.token, e.index, j.tokens[l.key])
	}
	j.holder[l.key], j.tokens[l.key] = attempt, l.token
}

func (j *judge) queueName(queue []byte) string {
	for _, q := range j.model.Queues {
		if q.ID == toID(queue) {
			return q.Name
		}
	}
	return ""
}

// expired: a run ends by the clock neither before its lease, as the cluster
// gave it, nor while its worker has reason to believe in it.
func (j *judge) expired(e *entry, ev *pb.EventRow, k *pb.AttemptExpired, now int64) {
	attempt := toID(k.AttemptId)
	l := j.leases[attempt]
	if l != nil && k.Cause == pb.EndCause_END_CAUSE_LEASE && now < l.until {
		j.s.fail("L6 never early", "the lease of attempt %s ended at %d, it was good until %d", short(k.AttemptId), now, l.until)
	}
	if a := j.runner[attempt]; a != nil && j.trusts(a, e.origin.at) {
		j.s.fail("L6 never early", "attempt %s ended by %s while %s had %d us left by its own clock", short(k.AttemptId), k.Cause, a.w.p.name, a.until-a.w.p.host.mono(e.origin.at))
	}
	j.end(k.AttemptId, "expired")
	j.mustBeUncertain(ev.TaskAfter)
}

// mustBeUncertain: nobody knows what a run did that ended like this.
func (j *judge) mustBeUncertain(t *pb.TaskRow) {
	switch {
	case !t.EffectUncertain:
		j.s.fail("L10 uncertainty", "a run of task %s ended uncertainly, the task is certain", short(t.Id))
	case t.RecoverySafety == pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY && t.State != pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		j.s.fail("L10 uncertainty", "a run of reconcile-only task %s ended uncertainly, the task is %s", short(t.Id), t.State)
	}
}

// lookTask holds a task's new row against the one before.
func (j *judge) lookTask(e *entry, ev *pb.EventRow) {
	t, task := ev.TaskAfter, toID(ev.AggregateId)
	was := j.state[task]
	last := uint64(0)
	if v := j.versions[task]; len(v) > 0 {
		last = v[len(v)-1].revision
	}
	switch {
	case ev.Version != last+1 || t.Revision != ev.Version:
		j.s.fail("T1 one ending each", "task %s goes from revision %d to %d (row %d)", short(task[:]), last, ev.Version, t.Revision)
	case finished(was) && !ev.Deleted:
		j.s.fail("L4 terminal is final", "task %s was %s and is %s", short(task[:]), was, t.State)
	case j.uncertain[task] && !t.EffectUncertain:
		j.s.fail("L10 uncertainty", "task %s became certain without a review", short(task[:]))
	case t.State == pb.TaskState_TASK_STATE_FAILED && t.EffectUncertain:
		j.s.fail("L10 uncertainty", "task %s is FAILED, and its effect uncertain", short(task[:]))
	case t.AttemptCount > min(100, t.Retry.MaxAttempts+t.AttemptsExtra):
		j.s.fail("L11 attempt count", "task %s has had %d attempts of %d", short(task[:]), t.AttemptCount, t.Retry.MaxAttempts+t.AttemptsExtra)
	}
	j.state[task], j.uncertain[task] = t.State, t.EffectUncertain
	j.available[task] = t.AvailableAtUs
	state := t.State
	if ev.Deleted {
		state = pb.TaskState_TASK_STATE_UNSPECIFIED
	}
	j.versions[task] = append(j.versions[task], version{e.index, ev.Version, state})
}
