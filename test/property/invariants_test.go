package property

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// The checks below are the invariants of one machine, each under its name.
// They read rows, results and events only: no help from the machine's indexes
// and none from the model, which is a second opinion of its own.
//
// Whatever needs a single cause looks at entries with one command; the
// generators make enough of them.
var invariants = []struct {
	name  string
	check func(*world, *seen) string // "" if it holds
}{
	{"S2 business key", businessKeys},
	{"S3 idempotency key", idempotencyKeys},
	{"S4/L3 refusal changes nothing", refusals},
	{"S5 repeat changes nothing", repeats},
	{"S6 limits", limits},
	{"L1 one live attempt", oneLiveAttempt},
	{"L2 epochs rise", epochsRise},
	{"L3 fencing", fencing},
	{"L4 terminal is final", terminalIsFinal},
	{"L5 late finish is evidence", evidence},
	{"L6 lease never shrinks", leases},
	{"L7 elections extend by a bound", electionBound},
	{"L9 reconcile-only runs once", reconcileOnly},
	{"L10 uncertainty", uncertainty},
	{"L11 attempt count", attemptCount},
	{"L12 a way out", wayOut},
	{"K1 one holder", oneHolder},
	{"K2 tokens rise", tokensRise},
	{"K4 holder is active or in review", holders},
	{"K5 nothing assignable is left", assignable},
	{"Q1/Q3 receipts are immutable", receipts},
	{"Q2 same id, other content", operationIdentity},
	{"T1 one ending each", oneEnding},
	{"T3 clock", clock},
	{"T5 each time once", eachTimeOnce},
	{"P1 superseded session", superseded},
	{"P3 grace", graceOver},
	{"P5 drain is final", draining},
	{"P6 capacity", capacity},
	{"C5 old office", oldOffice},
	{"C6 applied index", appliedIndex},
	{"E1 every change is a commit", commits},
}

// memory is what the checks remember of earlier entries.
type memory struct {
	business  map[string]id     // namespace, business key: the task, while it is retained
	answers   map[string]answer // namespace, Idempotency-Key
	sessions  map[string]uint64 // instance row: its last epoch
	epochs    map[id]uint64     // task: its last attempt's epoch
	tokens    map[string]uint64 // namespace, key: the last token
	freed     map[id]bool       // attempt: an operator freed its key
	renewed   map[id]renewal    // attempt
	runs      map[id]int        // reconcile-only task: runs since the last review
	ended     map[id]string     // attempt: the fact that ended it
	purged    map[id]bool
	version   map[id]uint64 // aggregate: of its last event
	operation map[string][]byte
	schedules map[id]*schedulePast
}

type answer struct {
	hash   []byte
	result *pb.Result
	until  int64
}

type renewal struct {
	at      int64
	opening uint64
}

func newMemory() memory {
	return memory{
		business: map[string]id{}, answers: map[string]answer{}, sessions: map[string]uint64{},
		epochs: map[id]uint64{}, tokens: map[string]uint64{}, freed: map[id]bool{},
		renewed: map[id]renewal{}, runs: map[id]int{}, ended: map[id]string{}, purged: map[id]bool{},
		version: map[id]uint64{}, operation: map[string][]byte{}, schedules: map[id]*schedulePast{},
	}
}

func (w *world) checkInvariants(s *seen) *violation {
	for _, inv := range invariants {
		if detail := inv.check(w, s); detail != "" {
			return &violation{inv.name, detail}
		}
	}
	return nil
}

// update remembers what the entry showed, after all checks have passed.
func (m *memory) update(s *seen) {
	for _, t := range s.before.tasks.vals {
		if t.BusinessKey != "" && s.after.task(id(t.Id)) == nil {
			delete(m.business, string(t.NamespaceId)+t.BusinessKey)
		}
	}
	for _, t := range s.after.tasks.vals {
		if t.BusinessKey != "" {
			m.business[string(t.NamespaceId)+t.BusinessKey] = id(t.Id)
		}
	}
	for i, key := range s.after.instances.keys {
		m.sessions[key] = s.after.instances.vals[i].SessionEpoch
	}
	for i, key := range s.after.keys.keys {
		m.tokens[key] = s.after.keys.vals[i].Token
	}
	for _, a := range s.after.attempts.vals {
		m.epochs[id(a.TaskId)] = max(m.epochs[id(a.TaskId)], a.Epoch)
	}
	for _, r := range s.after.remembered.vals {
		key := string(r.NamespaceId) + r.Key
		if a, ok := m.answers[key]; ok && a.until == 0 {
			a.until = r.ExpiresAtUs
			m.answers[key] = a
		}
	}
}

// --- submission and dedup

func businessKeys(w *world, s *seen) string {
	tasks := map[string]id{}
	for _, t := range s.after.tasks.vals {
		if t.BusinessKey == "" {
			continue
		}
		key := string(t.NamespaceId) + t.BusinessKey
		if other, twice := tasks[key]; twice {
			return fmt.Sprintf("tasks %x and %x both hold business key %q", other, t.Id, t.BusinessKey)
		}
		tasks[key] = id(t.Id)
	}
	for i, c := range s.step.entry.Commands {
		sub, r := c.GetSubmitTask(), s.out.Results[i]
		if sub == nil || sub.BusinessKey == "" || r.Replayed {
			continue
		}
		ns := namespaceOf(s, i)
		first, known := w.memory.business[ns+sub.BusinessKey]
		switch {
		case r.Code == "" && known && id(r.GetTask().Task.Task.Id) != first:
			return fmt.Sprintf("business key %q names task %x, before it was %x", sub.BusinessKey, r.GetTask().Task.Task.Id, first)
		case r.Code == "" && known && !r.GetTask().Duplicate:
			return fmt.Sprintf("a repeat of business key %q is not marked duplicate", sub.BusinessKey)
		case r.Code == "conflict" && known && id(r.ExistingTaskId) != first:
			return fmt.Sprintf("the conflict on business key %q names %x, not %x", sub.BusinessKey, r.ExistingTaskId, first)
		}
	}
	return ""
}

// namespaceOf is the id of the namespace that the entry's command i named: as
// the rows had it before the entry, and as the commands in front of it left it.
func namespaceOf(s *seen, i int) string {
	c := s.step.entry.Commands[i]
	if len(c.NamespaceId) > 0 {
		return string(c.NamespaceId)
	}
	name, found := c.Namespace, ""
	if c.GetPutNamespace() != nil || c.GetDeleteNamespace() != nil {
		name = "default" // where their answers are remembered
	}
	for _, n := range s.before.namespaces.vals {
		if n.Name == name {
			found = string(n.Id)
		}
	}
	for k, earlier := range s.step.entry.Commands[:i] {
		r := s.out.Results[k]
		switch b := earlier.Body.(type) {
		case *pb.Command_PutNamespace:
			if r.Code == "" && b.PutNamespace.Name == name && !r.Replayed {
				found = string(r.GetNamespace().GetId())
			}
		case *pb.Command_DeleteNamespace:
			if r.Code == "" && b.DeleteNamespace.Name == name && !r.Replayed {
				found = ""
			}
		case *pb.Command_OpenTerm:
			// The first one of all makes the default namespace.
			for _, n := range s.after.namespaces.vals {
				if found == "" && n.Name == name {
					found = string(n.Id)
				}
			}
		default: // no other command makes or ends a namespace
		}
	}
	return found
}

func idempotencyKeys(w *world, s *seen) string {
	for i, c := range s.step.entry.Commands {
		if c.IdempotencyKey == "" {
			continue
		}
		r := s.out.Results[i]
		home := namespaceOf(s, i)
		if home == "" {
			continue // nothing remembers it
		}
		key := home + c.IdempotencyKey
		first, known := w.memory.answers[key]
		kept := known && (first.until == 0 || s.before.meta.ClockUs < first.until && s.after.meta.ClockUs < first.until)
		same := known && bytes.Equal(first.hash, c.ContentHash)
		switch {
		case r.Code != "" && r.Replayed:
			return fmt.Sprintf("a refusal (%s) was remembered under %q", r.Code, c.IdempotencyKey)
		case r.Replayed && !known:
			return fmt.Sprintf("%q was never answered before", c.IdempotencyKey)
		case r.Replayed && !same:
			return fmt.Sprintf("%q replayed for other content", c.IdempotencyKey)
		case r.Replayed:
			if a, b := meaning(first.result), meaning(r); !proto.Equal(a, b) {
				return fmt.Sprintf("%q answered\n%v\nfirst it was\n%v", c.IdempotencyKey, b, a)
			}
		case r.Code == "" && kept:
			return fmt.Sprintf("%q took effect again within its life", c.IdempotencyKey)
		case r.Code == "":
			w.memory.answers[key] = answer{hash: c.ContentHash, result: r}
		}
	}
	return ""
}

// meaning is an answer without what may differ between a first answer and its
// repeat: the mark, the entry it comes from, and the bodies, which the row
// refers to by digest.
func meaning(r *pb.Result) *pb.Result {
	r = proto.CloneOf(r)
	r.Replayed, r.Index = false, 0
	if v := r.GetTask().GetTask(); v != nil {
		v.Payload, v.Result = nil, nil
	}
	if v := r.GetSchedule(); v != nil {
		v.Payload = nil
	}
	return r
}

func refusals(_ *world, s *seen) string {
	if !s.quiet || len(s.out.Results) == 0 {
		return ""
	}
	for _, r := range s.out.Results {
		if r.Code == "" {
			return ""
		}
	}
	if diff := differing(s.before, s.after, ""); len(diff) > 0 {
		return fmt.Sprintf("all commands were refused (%s ...), yet rows of %v changed", s.out.Results[0].Code, diff)
	}
	if len(s.out.Events) > 0 {
		return fmt.Sprintf("all commands were refused (%s ...), yet there are %d events", s.out.Results[0].Code, len(s.out.Events))
	}
	return ""
}

// repeats: an answered operation takes no effect when it comes again. What the
// frame says about the session (it is alive) may change the instance's row and
// let it have work.
func repeats(_ *world, s *seen) string {
	if !s.quiet || len(s.out.Results) != 1 || newAttempts(s) > 0 {
		return ""
	}
	r := s.out.Results[0]
	if !r.Replayed && !r.GetOperation().GetDeduplicated() {
		return ""
	}
	if diff := differing(s.before, s.after, "instances"); len(diff) > 0 {
		return fmt.Sprintf("a repeat changed rows of %v", diff)
	}
	if len(s.out.Events) > 0 {
		return "a repeat made events"
	}
	return ""
}

func newAttempts(s *seen) int { return len(s.after.attempts.keys) - kept(s) }

func kept(s *seen) (n int) {
	for _, k := range s.after.attempts.keys {
		if s.before.attempts.has(k) {
			n++
		}
	}
	return n
}

// fresh calls fn for the attempts the entry made.
func fresh(s *seen, fn func(*pb.AttemptRow)) {
	for i, k := range s.after.attempts.keys {
		if !s.before.attempts.has(k) {
			fn(s.after.attempts.vals[i])
		}
	}
}

func count(r *rows, queue []byte, states ...pb.TaskState) (n uint64) {
	for _, t := range r.tasks.vals {
		if bytes.Equal(t.QueueId, queue) && slices.Contains(states, t.State) {
			n++
		}
	}
	return n
}

func limits(_ *world, s *seen) (problem string) {
	fresh(s, func(a *pb.AttemptRow) {
		q := s.after.queue(id(a.QueueId))
		n := count(s.after, a.QueueId, pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING)
		if limit := uint64(q.Settings.MaxActive); limit > 0 && n > limit {
			problem = fmt.Sprintf("queue %s has %d active attempts; max_active is %d", q.Name, n, limit)
		}
	})
	if len(s.step.entry.Commands) == 1 {
		r := s.out.Results[0]
		sub := s.step.entry.Commands[0].GetSubmitTask()
		if sub != nil && r.Code == "" && !r.Replayed && !r.GetTask().Duplicate {
			q := s.before.queue(id(r.GetTask().Task.Task.QueueId))
			if n := count(s.before, q.Id, pb.TaskState_TASK_STATE_WAITING); n >= q.Settings.MaxWaiting {
				return fmt.Sprintf("queue %s took a task with %d waiting; max_waiting is %d", q.Name, n, q.Settings.MaxWaiting)
			}
		}
	}
	return problem
}

// --- attempts, leases, fencing

func oneLiveAttempt(_ *world, s *seen) string {
	liveOf := map[id]id{}
	for _, a := range s.after.attempts.vals {
		if !live(a.State) {
			continue
		}
		if other, twice := liveOf[id(a.TaskId)]; twice {
			return fmt.Sprintf("task %x has live attempts %x and %x", a.TaskId, other, a.Id)
		}
		liveOf[id(a.TaskId)] = id(a.Id)
	}
	for _, t := range s.after.tasks.vals {
		a, has := liveOf[id(t.Id)]
		active := t.State == pb.TaskState_TASK_STATE_LEASED || t.State == pb.TaskState_TASK_STATE_RUNNING
		if has != active || has && !bytes.Equal(t.AttemptId, a[:]) || !has && len(t.AttemptId) > 0 {
			return fmt.Sprintf("task %x is %s and names attempt %x; live is %x", t.Id, t.State, t.AttemptId, a)
		}
		if !has {
			continue
		}
		if row := s.after.attempt(a); row.State.Number() != t.State.Number()-1 || row.Epoch != t.AttemptEpoch {
			return fmt.Sprintf("task %x is %s at epoch %d, its attempt %s at %d", t.Id, t.State, t.AttemptEpoch, row.State, row.Epoch)
		}
	}
	return ""
}

func epochsRise(w *world, s *seen) (problem string) {
	fence := s.after.meta.FenceBase + s.step.index
	fresh(s, func(a *pb.AttemptRow) {
		if last := w.memory.epochs[id(a.TaskId)]; a.Epoch <= last || a.Epoch != fence {
			problem = fmt.Sprintf("attempt %x has epoch %d; the task's last was %d, the entry's number is %d", a.Id, a.Epoch, last, fence)
		}
	})
	for i, key := range s.after.instances.keys {
		row := s.after.instances.vals[i]
		last, known := w.memory.sessions[key]
		old, was := s.before.instances.get(key)
		if was && bytes.Equal(old.SessionId, row.SessionId) {
			if old.SessionEpoch != row.SessionEpoch {
				return fmt.Sprintf("session %x changed its epoch from %d to %d", row.SessionId, old.SessionEpoch, row.SessionEpoch)
			}
		} else if known && row.SessionEpoch <= last || row.SessionEpoch != fence {
			return fmt.Sprintf("session %x has epoch %d; the last one had %d, the entry's number is %d", row.SessionId, row.SessionEpoch, last, fence)
		}
	}
	return problem
}

// operation is a start, renew or finish with what it refers to.
type operation struct {
	session *pb.SessionRef
	ref     *pb.AttemptRef
	content []byte // what makes two of them equal
	finish  *pb.FinishAttempt
}

func operationOf(c *pb.Command) (operation, bool) {
	switch b := c.Body.(type) {
	case *pb.Command_StartAttempt:
		return operation{b.StartAttempt.Session, b.StartAttempt.Ref, []byte("start"), nil}, true
	case *pb.Command_RenewAttempt:
		return operation{b.RenewAttempt.Session, b.RenewAttempt.Ref, []byte("renew"), nil}, true
	case *pb.Command_FinishAttempt:
		f := b.FinishAttempt
		return operation{f.Session, f.Ref, fmt.Appendf(nil, "finish %d %q %q %t", f.Outcome, f.Result, f.ErrorCode, f.Retryable), f}, true
	}
	return operation{}, false
}

// fencing: an operation that took effect named the live attempt, its epoch,
// its instance and that instance's current session.
func fencing(_ *world, s *seen) string {
	if len(s.step.entry.Commands) != 1 {
		return ""
	}
	c, r := s.step.entry.Commands[0], s.out.Results[0]
	op, is := operationOf(c)
	if !is || r.Code != "" || r.GetOperation().Deduplicated ||
		r.GetOperation().Receipt.Disposition != pb.Disposition_DISPOSITION_APPLIED {
		return ""
	}
	a := s.before.attempt(id(op.ref.AttemptId))
	switch {
	case a == nil || !live(a.State):
		return fmt.Sprintf("an operation took effect on attempt %x, which was not live", op.ref.AttemptId)
	case a.Epoch != op.ref.Epoch:
		return fmt.Sprintf("an operation with epoch %d took effect on an attempt with epoch %d", op.ref.Epoch, a.Epoch)
	case !bytes.Equal(a.TaskId, op.ref.TaskId):
		return fmt.Sprintf("an operation on task %x took effect on an attempt of %x", op.ref.TaskId, a.TaskId)
	case !bytes.Equal(a.InstanceId, op.session.InstanceId):
		return fmt.Sprintf("an operation of instance %x took effect on an attempt of %x", op.session.InstanceId, a.InstanceId)
	}
	return ""
}

func terminalIsFinal(_ *world, s *seen) string {
	for i, key := range s.before.tasks.keys {
		old := s.before.tasks.vals[i]
		if !terminal(old.State) {
			continue
		}
		if row, there := s.after.tasks.get(key); there {
			if row.State != old.State || row.Revision != old.Revision {
				return fmt.Sprintf("task %x was %s and is %s", old.Id, old.State, row.State)
			}
			continue
		}
		if s.after.task(id(old.Id)) != nil {
			return fmt.Sprintf("task %x was %s and lives again", old.Id, old.State)
		}
	}
	applied := map[string]int{}
	for i, key := range s.after.receipts.keys {
		r := s.after.receipts.vals[i]
		if r.Operation == pb.Operation_OPERATION_FINISH && r.Disposition == pb.Disposition_DISPOSITION_APPLIED {
			if applied[key[:33]]++; applied[key[:33]] > 1 {
				return fmt.Sprintf("two finishes of attempt %x were applied", key[17:33])
			}
		}
	}
	return ""
}

func evidence(_ *world, s *seen) string {
	for i, c := range s.step.entry.Commands {
		op, is := operationOf(c)
		r := s.out.Results[i].GetOperation()
		if !is || r.GetReceipt().GetDisposition() != pb.Disposition_DISPOSITION_EVIDENCE_ONLY {
			continue
		}
		key := "v" + string(op.ref.TaskId) + string(op.ref.AttemptId) + string(c.Id)
		row, kept := s.after.evidence.get(key)
		if !s.after.attempts.has("a" + string(op.ref.TaskId) + string(op.ref.AttemptId)) {
			continue // removed with its task
		}
		if !kept || row.Outcome != op.finish.Outcome || row.ErrorCode != op.finish.ErrorCode || row.Retryable != op.finish.Retryable {
			return fmt.Sprintf("evidence of finish %x is not kept as sent", c.Id)
		}
		if s.quiet && len(s.step.entry.Commands) == 1 && newAttempts(s) == 0 {
			if !s.before.tasks.same(&s.after.tasks) {
				return "a late finish changed a task"
			}
		}
	}
	return ""
}

func leases(_ *world, s *seen) string {
	now := s.after.meta.ClockUs
	for i, key := range s.after.attempts.keys {
		a := s.after.attempts.vals[i]
		old, was := s.before.attempts.get(key)
		if a.TimeoutAtUs != 0 && a.LeaseUntilUs > a.TimeoutAtUs {
			return fmt.Sprintf("attempt %x is leased until %d, past its timeout at %d", a.Id, a.LeaseUntilUs, a.TimeoutAtUs)
		}
		// A start may end an offer with the time the attempt may take.
		timed := was && old.TimeoutAtUs == 0 && a.LeaseUntilUs == a.TimeoutAtUs
		if was && live(old.State) && a.LeaseUntilUs < old.LeaseUntilUs && !timed {
			return fmt.Sprintf("the lease of attempt %x shrank from %d to %d", a.Id, old.LeaseUntilUs, a.LeaseUntilUs)
		}
		if live(a.State) || was && !live(old.State) {
			continue
		}
		task := s.after.task(id(a.TaskId))
		early := false
		switch a.EndCause {
		case pb.EndCause_END_CAUSE_LEASE:
			early = now < a.LeaseUntilUs
		case pb.EndCause_END_CAUSE_ATTEMPT_TIMEOUT:
			early = now < a.TimeoutAtUs
		case pb.EndCause_END_CAUSE_DEADLINE:
			early = now < task.DeadlineAtUs
		case pb.EndCause_END_CAUSE_START_DEADLINE:
			early = now < task.StartDeadlineAtUs
		}
		if early {
			return fmt.Sprintf("attempt %x was ended by %s at %d, too early", a.Id, a.EndCause, now)
		}
	}
	return ""
}

// electionBound: no lease is extended by elections beyond the third opening
// since its last real renewal plus one full duration.
func electionBound(w *world, s *seen) string {
	openings := s.after.meta.Openings
	var current uint64
	if n := len(openings); n > 0 {
		current = openings[n-1].Count
	}
	fresh(s, func(a *pb.AttemptRow) {
		w.memory.renewed[id(a.Id)] = renewal{s.after.meta.ClockUs, current}
	})
	for i, c := range s.step.entry.Commands {
		op, is := operationOf(c)
		r := s.out.Results[i].GetOperation()
		if is && op.finish == nil && r != nil && !r.Deduplicated {
			w.memory.renewed[id(op.ref.AttemptId)] = renewal{s.after.meta.ClockUs, current}
		}
	}
	for _, a := range s.after.attempts.vals {
		if !live(a.State) {
			continue
		}
		// The queue's settings may have changed since the lease was given.
		const longest = leaseMaxMS * 1000
		last := w.memory.renewed[id(a.Id)]
		bound := last.at + longest
		for _, o := range openings {
			if o.Count > last.opening && o.Count <= last.opening+3 {
				bound = max(bound, o.TimeUs+longest)
			}
		}
		if a.LeaseUntilUs > bound {
			return fmt.Sprintf("attempt %x is leased until %d; last renewed at %d, the bound is %d", a.Id, a.LeaseUntilUs, last.at, bound)
		}
	}
	return ""
}

func reconcileOnly(w *world, s *seen) string {
	for _, e := range s.out.Events {
		if e.TaskAfter == nil || e.TaskAfter.RecoverySafety != pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY {
			continue
		}
		for _, f := range e.Facts {
			if f.GetReviewed() != nil {
				w.memory.runs[id(e.AggregateId)] = 0
			}
			if f.GetStarted() != nil {
				if w.memory.runs[id(e.AggregateId)]++; w.memory.runs[id(e.AggregateId)] > 1 {
					return fmt.Sprintf("task %x runs again without a review", e.AggregateId)
				}
			}
		}
	}
	return ""
}

func uncertainty(_ *world, s *seen) string {
	reviewed := map[id]bool{}
	for i, c := range s.step.entry.Commands {
		if b := c.GetReviewTask(); b != nil && s.out.Results[i].Code == "" {
			reviewed[id(b.TaskId)] = true
		}
	}
	for _, t := range s.after.tasks.vals {
		old := s.before.task(id(t.Id))
		switch {
		case old != nil && old.EffectUncertain && !t.EffectUncertain && !reviewed[id(t.Id)]:
			return fmt.Sprintf("task %x became certain without a review", t.Id)
		case t.State == pb.TaskState_TASK_STATE_FAILED && t.EffectUncertain:
			return fmt.Sprintf("task %x is FAILED and uncertain", t.Id)
		}
	}
	for i, key := range s.after.attempts.keys {
		a := s.after.attempts.vals[i]
		old, was := s.before.attempts.get(key)
		uncertain := a.State == pb.AttemptState_ATTEMPT_STATE_UNKNOWN || a.State == pb.AttemptState_ATTEMPT_STATE_EXPIRED
		if !uncertain || a.StartedAtUs == 0 || was && old.State == a.State || reviewed[id(a.TaskId)] {
			continue
		}
		t := s.after.task(id(a.TaskId))
		if !t.EffectUncertain {
			return fmt.Sprintf("attempt %x ended %s after its start, its task is not uncertain", a.Id, a.State)
		}
		if t.RecoverySafety != pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT && t.State != pb.TaskState_TASK_STATE_NEEDS_REVIEW {
			return fmt.Sprintf("attempt %x of a task that is not idempotent ended %s, the task is %s", a.Id, a.State, t.State)
		}
	}
	return ""
}

func attemptCount(_ *world, s *seen) string {
	counted := map[id]uint32{}
	for _, a := range s.after.attempts.vals {
		if a.Counted || live(a.State) {
			counted[id(a.TaskId)]++
		}
		if a.Counted != (a.StartedAtUs != 0 || a.State == pb.AttemptState_ATTEMPT_STATE_FAILED) {
			return fmt.Sprintf("attempt %x (%s, started at %d): counted is %t", a.Id, a.State, a.StartedAtUs, a.Counted)
		}
	}
	for _, t := range s.after.tasks.vals {
		if n := counted[id(t.Id)]; n != t.AttemptCount {
			return fmt.Sprintf("task %x has attempt_count %d; its attempts that count are %d", t.Id, t.AttemptCount, n)
		}
		if most := min(100, t.Retry.MaxAttempts+t.AttemptsExtra); t.AttemptCount > most {
			return fmt.Sprintf("task %x has attempt_count %d of %d", t.Id, t.AttemptCount, most)
		}
	}
	return ""
}

func wayOut(w *world, s *seen) string {
	next, any := w.m.NextDue()
	for _, a := range s.after.attempts.vals {
		if !live(a.State) {
			continue
		}
		if _, ok := s.after.instances.get("i" + string(a.NamespaceId) + string(a.InstanceId)); !ok {
			return fmt.Sprintf("live attempt %x has no instance", a.Id)
		}
		if a.LeaseUntilUs == 0 || !any || next > a.LeaseUntilUs {
			return fmt.Sprintf("live attempt %x ends at %d; the next due item is at %d (%t)", a.Id, a.LeaseUntilUs, next, any)
		}
		if t := s.after.task(id(a.TaskId)); a.LeaseUntilUs > t.DeadlineAtUs {
			return fmt.Sprintf("attempt %x is leased past the deadline of its task", a.Id)
		}
	}
	for _, t := range s.after.tasks.vals {
		if !terminal(t.State) && t.State != pb.TaskState_TASK_STATE_NEEDS_REVIEW && t.DeadlineAtUs == 0 {
			return fmt.Sprintf("task %x has no deadline", t.Id)
		}
	}
	return ""
}

// --- concurrency keys

func oneHolder(_ *world, s *seen) string {
	holder := map[string]id{}
	for _, a := range s.after.attempts.vals {
		if a.ConcurrencyKey == "" || !live(a.State) {
			continue
		}
		k := string(a.NamespaceId) + a.ConcurrencyKey
		row, held := s.after.keys.get("k" + k)
		// An operator may have freed the key under a running attempt.
		if !held || !bytes.Equal(row.AttemptId, a.Id) {
			continue
		}
		if other, twice := holder[k]; twice {
			return fmt.Sprintf("attempts %x and %x hold key %q", other, a.Id, a.ConcurrencyKey)
		}
		holder[k] = id(a.Id)
		if row.Token != a.ConcurrencyToken {
			return fmt.Sprintf("attempt %x holds key %q with token %d, the key says %d", a.Id, a.ConcurrencyKey, a.ConcurrencyToken, row.Token)
		}
	}
	return ""
}

func tokensRise(w *world, s *seen) (problem string) {
	fence := s.after.meta.FenceBase + s.step.index
	for i, key := range s.after.keys.keys {
		row := s.after.keys.vals[i]
		old, was := s.before.keys.get(key)
		if was && bytes.Equal(old.AttemptId, row.AttemptId) {
			if old.Token != row.Token {
				return fmt.Sprintf("key %q changed its token under its holder", row.Key)
			}
		} else if row.Token <= w.memory.tokens[key] || row.Token != fence {
			return fmt.Sprintf("key %q has token %d; its last was %d, the entry's number is %d", row.Key, row.Token, w.memory.tokens[key], fence)
		}
	}
	fresh(s, func(a *pb.AttemptRow) {
		if (a.ConcurrencyKey != "") != (a.ConcurrencyToken != 0) {
			problem = fmt.Sprintf("attempt %x with key %q has token %d", a.Id, a.ConcurrencyKey, a.ConcurrencyToken)
		}
	})
	return problem
}

func holders(w *world, s *seen) string {
	for _, e := range s.out.Events {
		for _, f := range e.Facts {
			if f.GetKeyFreed() != nil && e.Aggregate == pb.Aggregate_AGGREGATE_TASK {
				for _, a := range s.before.attempts.vals {
					if bytes.Equal(a.TaskId, e.AggregateId) && a.ConcurrencyToken == f.GetKeyFreed().Token {
						w.memory.freed[id(a.Id)] = true
					}
				}
			}
		}
	}
	for _, k := range s.after.keys.vals {
		t := s.after.task(id(k.TaskId))
		switch {
		case t == nil:
			return fmt.Sprintf("key %q is held by task %x, which does not exist", k.Key, k.TaskId)
		case k.InReview != (t.State == pb.TaskState_TASK_STATE_NEEDS_REVIEW):
			return fmt.Sprintf("key %q is held by a task that is %s, in_review is %t", k.Key, t.State, k.InReview)
		case !k.InReview && !bytes.Equal(t.AttemptId, k.AttemptId):
			return fmt.Sprintf("key %q is held by attempt %x; its task is %s with attempt %x", k.Key, k.AttemptId, t.State, t.AttemptId)
		case t.ConcurrencyKey != k.Key:
			return fmt.Sprintf("key %q is held by a task with key %q", k.Key, t.ConcurrencyKey)
		}
	}
	for _, a := range s.after.attempts.vals {
		if a.ConcurrencyKey == "" || !live(a.State) || w.memory.freed[id(a.Id)] {
			continue
		}
		if k, held := s.after.keys.get("k" + string(a.NamespaceId) + a.ConcurrencyKey); !held || !bytes.Equal(k.AttemptId, a.Id) {
			return fmt.Sprintf("live attempt %x does not hold its key %q", a.Id, a.ConcurrencyKey)
		}
	}
	return ""
}

// assignable: unless the bound of the entry was reached, no ready task is left
// that an eligible session could take.
func assignable(_ *world, s *seen) string {
	if s.pending || s.step.entry.Term != s.step.term {
		return ""
	}
	now := s.after.meta.ClockUs
	for _, t := range s.after.tasks.vals {
		q := s.after.queue(id(t.QueueId))
		if t.State != pb.TaskState_TASK_STATE_WAITING || t.Park != pb.Park_PARK_UNSPECIFIED || q.Paused {
			continue
		}
		if t.AvailableAtUs > now {
			return fmt.Sprintf("task %x is not parked, though it is available from %d only", t.Id, t.AvailableAtUs)
		}
		active := count(s.after, q.Id, pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING)
		if q.Settings.MaxActive > 0 && active >= uint64(q.Settings.MaxActive) {
			continue
		}
		if _, held := s.after.keys.get("k" + string(t.NamespaceId) + t.ConcurrencyKey); held && t.ConcurrencyKey != "" {
			continue
		}
		for _, i := range s.after.instances.vals {
			able := slices.ContainsFunc(i.Capabilities, func(c *pb.Capability) bool {
				return c.Handler == t.Handler && c.HandlerVersion == t.HandlerVersion && c.PayloadVersion == t.PayloadVersion
			})
			if able && bytes.Equal(i.QueueId, t.QueueId) && i.Connected && !i.Draining && i.HoldUntilUs <= now &&
				liveOf(s.after, i) < i.Capacity && (!i.Hold || liveOf(s.after, i) == 0) && (t.ConcurrencyKey == "" || i.ConcurrencyKeys) {
				return fmt.Sprintf("task %x waits although instance %x could take it", t.Id, i.Id)
			}
		}
	}
	return ""
}

func liveOf(r *rows, i *pb.InstanceRow) (n uint32) {
	for _, a := range r.attempts.vals {
		if live(a.State) && bytes.Equal(a.InstanceId, i.Id) && bytes.Equal(a.NamespaceId, i.NamespaceId) {
			n++
		}
	}
	return n
}

// --- receipts

func receipts(_ *world, s *seen) string {
	renewals := map[string]int{}
	for i, key := range s.after.receipts.keys {
		if s.after.receipts.vals[i].Operation == pb.Operation_OPERATION_RENEW {
			if renewals[key[:33]]++; renewals[key[:33]] > 16 {
				return fmt.Sprintf("attempt %x keeps more than 16 receipts of renewals", key[17:33])
			}
		}
	}
	for i, key := range s.before.receipts.keys {
		again, there := s.after.receipts.raw(key)
		switch {
		case there && pushedOut(s.before.receipts.vals[i], s.after, key[1:33]):
		case there && again != s.before.receipts.bytes[i]:
			return fmt.Sprintf("receipt %x changed", key[1:])
		case there:
		case s.before.receipts.vals[i].Operation == pb.Operation_OPERATION_RENEW:
		default:
			if s.after.attempts.has("a" + key[1:33]) {
				return fmt.Sprintf("receipt %x of %s is gone, its attempt is not", key[1:], s.before.receipts.vals[i].Operation)
			}
		}
	}
	for i, c := range s.step.entry.Commands {
		op, is := operationOf(c)
		r := s.out.Results[i].GetOperation()
		if !is || r == nil {
			continue
		}
		key := string(op.ref.TaskId) + string(op.ref.AttemptId)
		if !s.after.attempts.has("a" + key) {
			continue
		}
		row, stored := s.after.receipts.get("c" + key + string(c.Id))
		if !stored && op.content[0] == 'r' {
			continue // pushed out by later renewals of the entry
		}
		if !stored || !proto.Equal(row, r.Receipt) {
			return fmt.Sprintf("the receipt answered to %x is not the one stored", c.Id)
		}
	}
	return ""
}

// pushedOut says that 16 later renewals have pushed the receipt of a renewal
// out, be it inside the entry: its message id may be a new operation's then.
func pushedOut(old *pb.ReceiptRow, after *rows, attemptKey string) bool {
	a, _ := after.attempts.get("a" + attemptKey)
	return old.GetOperation() == pb.Operation_OPERATION_RENEW && a.GetRenewals() >= old.Number+16
}

func operationIdentity(w *world, s *seen) string {
	for i, c := range s.step.entry.Commands {
		op, is := operationOf(c)
		if !is || s.out.Results[i].Code != "" {
			continue
		}
		r := s.out.Results[i].GetOperation()
		key := string(op.ref.TaskId) + string(op.ref.AttemptId) + string(c.Id)
		first, known := w.memory.operation[key]
		if !known {
			w.memory.operation[key] = op.content
		}
		old, remembered := s.before.receipts.get("c" + key)
		remembered = remembered && !pushedOut(old, s.after, key[:32])
		switch {
		case known && remembered && !bytes.Equal(first, op.content):
			return fmt.Sprintf("operation %x was accepted with other content", c.Id)
		case known && remembered && !r.Deduplicated:
			return fmt.Sprintf("operation %x took effect twice", c.Id)
		case !known && r.Deduplicated:
			return fmt.Sprintf("operation %x is new and was answered as a repeat", c.Id)
		}
	}
	return ""
}

// --- timers

func oneEnding(w *world, s *seen) string {
	for _, e := range s.out.Events {
		for _, f := range e.Facts {
			var attempt []byte
			switch k := f.Kind.(type) {
			case *pb.Fact_LeaseReleased:
				attempt = k.LeaseReleased.AttemptId
			case *pb.Fact_Succeeded:
				attempt = k.Succeeded.AttemptId
			case *pb.Fact_AttemptFailed:
				attempt = k.AttemptFailed.AttemptId
			case *pb.Fact_AttemptUnknown:
				attempt = k.AttemptUnknown.AttemptId
			case *pb.Fact_AttemptExpired:
				attempt = k.AttemptExpired.AttemptId
			case *pb.Fact_Purged:
				if w.memory.purged[id(e.AggregateId)] {
					return fmt.Sprintf("task %x was removed twice", e.AggregateId)
				}
				w.memory.purged[id(e.AggregateId)] = true
			}
			if len(attempt) == 0 {
				continue
			}
			name := fmt.Sprintf("%T", f.Kind)
			if first, twice := w.memory.ended[id(attempt)]; twice {
				return fmt.Sprintf("attempt %x ended by %s and again by %s", attempt, first, name)
			}
			w.memory.ended[id(attempt)] = name
		}
	}
	return ""
}

func clock(w *world, s *seen) string {
	was, is := s.before.meta.ClockUs, s.after.meta.ClockUs
	if is < was {
		return fmt.Sprintf("the clock went back from %d to %d", was, is)
	}
	if s.step.entry.Term == s.step.term && is != max(was, s.step.entry.TimeUs) {
		return fmt.Sprintf("the clock is %d after an entry of %d at %d", is, s.step.entry.TimeUs, was)
	}
	if w.m.Clock() != is || s.out.Time != is {
		return fmt.Sprintf("clock %d, outcome %d, row %d", w.m.Clock(), s.out.Time, is)
	}
	return ""
}

// --- sessions

func sessionOf(c *pb.Command) *pb.SessionRef {
	switch b := c.Body.(type) {
	case *pb.Command_SetCapacity:
		return b.SetCapacity.Session
	case *pb.Command_CloseSession:
		return b.CloseSession.Session
	case *pb.Command_ResumeAttempt:
		return b.ResumeAttempt.Session
	}
	op, _ := operationOf(c)
	return op.session
}

func superseded(_ *world, s *seen) string {
	if len(s.step.entry.Commands) != 1 {
		return ""
	}
	c, r := s.step.entry.Commands[0], s.out.Results[0]
	ref := sessionOf(c)
	if ref == nil || r.Code != "" || c.GetCloseSession() != nil {
		return "" // a connection that is gone may always be reported
	}
	i, known := s.before.instances.get("i" + string(c.NamespaceId) + string(ref.InstanceId))
	switch {
	case !known:
		return fmt.Sprintf("a frame of instance %x was accepted, which is not known", ref.InstanceId)
	case !bytes.Equal(i.SessionId, ref.SessionId):
		return fmt.Sprintf("a frame of session %x was accepted; the current one is %x", ref.SessionId, i.SessionId)
	case i.EndedAtUs != 0:
		return fmt.Sprintf("a frame of session %x was accepted after its end", ref.SessionId)
	}
	return ""
}

func graceOver(_ *world, s *seen) string {
	now := s.after.meta.ClockUs
	for _, a := range s.after.attempts.vals {
		i, ok := s.after.instances.get("i" + string(a.NamespaceId) + string(a.InstanceId))
		if !ok {
			continue
		}
		if a.State == pb.AttemptState_ATTEMPT_STATE_LEASED && !i.Connected && !s.pending && now >= i.DisconnectedAtUs+2_000_000 {
			return fmt.Sprintf("attempt %x was never started and is still leased %d us after the disconnect", a.Id, now-i.DisconnectedAtUs)
		}
		lost := a.EndCause == pb.EndCause_END_CAUSE_SESSION_LOST || a.EndCause == pb.EndCause_END_CAUSE_UNDELIVERABLE
		if lost && a.StartedAtUs != 0 {
			return fmt.Sprintf("attempt %x was running and ended because its session was lost", a.Id)
		}
		if old := s.before.attempt(id(a.Id)); lost && old != nil && live(old.State) &&
			(i.Connected || now < i.DisconnectedAtUs+2_000_000) {
			return fmt.Sprintf("attempt %x was released inside the grace", a.Id)
		}
	}
	return ""
}

func draining(_ *world, s *seen) (problem string) {
	for i, key := range s.before.instances.keys {
		if row, there := s.after.instances.get(key); there && s.before.instances.vals[i].Draining && !row.Draining {
			return fmt.Sprintf("instance %x stopped draining", row.Id)
		}
	}
	fresh(s, func(a *pb.AttemptRow) {
		i, _ := s.after.instances.get("i" + string(a.NamespaceId) + string(a.InstanceId))
		switch {
		case i.Draining:
			problem = fmt.Sprintf("attempt %x went to a draining instance", a.Id)
		case !i.Connected:
			problem = fmt.Sprintf("attempt %x went to a disconnected instance", a.Id)
		case i.SessionEpoch != a.SessionEpoch:
			problem = fmt.Sprintf("attempt %x was offered to session epoch %d, current is %d", a.Id, a.SessionEpoch, i.SessionEpoch)
		case a.ConcurrencyKey != "" && !i.ConcurrencyKeys:
			problem = fmt.Sprintf("attempt %x has a key, its instance takes none", a.Id)
		}
	})
	return problem
}

func capacity(_ *world, s *seen) (problem string) {
	for _, i := range s.after.instances.vals {
		if n := liveOf(s.after, i); n != i.Active {
			return fmt.Sprintf("instance %x counts %d active attempts, there are %d", i.Id, i.Active, n)
		}
	}
	fresh(s, func(a *pb.AttemptRow) {
		i, _ := s.after.instances.get("i" + string(a.NamespaceId) + string(a.InstanceId))
		if i.Active > i.Capacity {
			problem = fmt.Sprintf("instance %x has %d attempts, capacity %d", i.Id, i.Active, i.Capacity)
		}
	})
	return problem
}

// --- the machine

// oldOffice: an entry whose proposer's term is not the log's has no effect.
func oldOffice(_ *world, s *seen) string {
	if s.step.entry.Term == s.step.term {
		return ""
	}
	for _, r := range s.out.Results {
		if r.Code != "not_leader" {
			return fmt.Sprintf("a command of term %d in an entry of term %d was answered %q", s.step.entry.Term, s.step.term, r.Code)
		}
	}
	if diff := differing(s.before, s.after, ""); len(diff) > 0 || s.before.meta.ClockUs != s.after.meta.ClockUs ||
		len(s.out.Events)+len(s.out.Effects) > 0 {
		return fmt.Sprintf("an entry of an old office changed rows of %v", diff)
	}
	return ""
}

func appliedIndex(w *world, s *seen) string {
	if got := w.m.AppliedIndex(); got != s.step.index || s.after.meta.AppliedIndex != got || s.out.Index != got {
		return fmt.Sprintf("applied index %d, row %d, outcome %d after entry %d", got, s.after.meta.AppliedIndex, s.out.Index, s.step.index)
	}
	if len(s.out.Results) != len(s.step.entry.Commands) {
		return fmt.Sprintf("%d results for %d commands", len(s.out.Results), len(s.step.entry.Commands))
	}
	for _, r := range s.out.Results {
		if want := s.after.meta.FenceBase + s.step.index; r.Index != want && !r.Replayed {
			return fmt.Sprintf("a result carries index %d, the entry's is %d", r.Index, want)
		}
	}
	return ""
}

// commits: every change of a task is one event, versions have no gap, the last
// event of an entry carries the row as it is.
func commits(w *world, s *seen) string {
	last := map[id]*pb.EventRow{}
	for i, e := range s.out.Events {
		if e.Index != s.after.meta.FenceBase+s.step.index || e.TimeUs != s.after.meta.ClockUs || i > 0 && e.Place <= s.out.Events[i-1].Place {
			return fmt.Sprintf("event %d/%d at %d in entry %d at %d", e.Index, e.Place, e.TimeUs, s.step.index, s.after.meta.ClockUs)
		}
		if len(e.Facts) == 0 {
			return fmt.Sprintf("a commit of %x without a fact", e.AggregateId)
		}
		if e.Aggregate != pb.Aggregate_AGGREGATE_TASK {
			continue
		}
		if e.Version != w.memory.version[id(e.AggregateId)]+1 {
			return fmt.Sprintf("task %x has event version %d after %d", e.AggregateId, e.Version, w.memory.version[id(e.AggregateId)])
		}
		w.memory.version[id(e.AggregateId)] = e.Version
		last[id(e.AggregateId)] = e
	}
	for i, key := range s.after.tasks.keys {
		t := s.after.tasks.vals[i]
		if e := last[id(t.Id)]; e != nil {
			if e.TaskAfter.Revision != t.Revision || e.TaskAfter.State != t.State {
				return fmt.Sprintf("the last event of task %x says %s at revision %d, the row %s at %d",
					t.Id, e.TaskAfter.State, e.TaskAfter.Revision, t.State, t.Revision)
			}
			continue
		}
		old, was := s.before.tasks.get(key)
		switch {
		case !was:
			return fmt.Sprintf("task %x came or moved without an event", t.Id)
		case old.Revision != t.Revision || old.State != t.State || old.AttemptCount != t.AttemptCount ||
			old.EffectUncertain != t.EffectUncertain || old.CancelRequestedAtUs != t.CancelRequestedAtUs ||
			old.AvailableAtUs != t.AvailableAtUs || old.UpdatedAtUs != t.UpdatedAtUs ||
			!bytes.Equal(old.ResultDigest, t.ResultDigest) || !bytes.Equal(old.AttemptId, t.AttemptId):
			return fmt.Sprintf("task %x changed without an event", t.Id)
		}
	}
	return ""
}
