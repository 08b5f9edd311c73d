package property

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// The generators are biased towards trouble: few names, so that commands meet;
// short durations and instants exactly on, just before and just after what is
// due; references to what is over; repeats with the same and with other
// content. They read the model to know what there is, and only make commands
// that the limits before the log would let through.

const (
	startUs    = 1_800_000_000_000_000
	leaseMaxMS = 30_000 // longest lease any queue here has
)

// kinds of commands and how often each is made. Earlier ones are what a
// shrunken case is made of.
var kinds = []struct {
	name   string
	weight int
	make   func(*world, *rand.Rand) *pb.Command
}{
	{"submit", 24, genSubmit},
	{"start", 14, genStart},
	{"finish", 14, genFinish},
	{"register", 9, genRegister},
	{"renew", 6, genRenew},
	{"report", 5, genReport},
	{"review", 5, genReview},
	{"cancel", 5, genCancel},
	{"capacity", 4, genCapacity},
	{"close", 4, genClose},
	{"repeat", 6, genRepeat},
	{"retry", 3, genRetry},
	{"run now", 3, genRunNow},
	{"resume", 2, genResume},
	{"put queue", 2, genPutQueue},
	{"bulk", 2, genBulk},
	{"free key", 2, genFreeKey},
	{"pause", 2, genPause},
	{"drain", 1, genDrain},
	{"delete queue", 1, genDeleteQueue},
	{"put namespace", 1, genPutNamespace},
	{"delete namespace", 2, genDeleteNamespace},
	{"cluster", 1, genSetCluster},
	{"put schedule", 3, genPutSchedule},
	{"pause schedule", 1, genPauseSchedule},
	{"trigger", 1, genTrigger},
	{"backfill", 1, genBackfill},
	{"delete schedule", 1, genDeleteSchedule},
	{"zones", 1, genPutZones},
	{"compare", 1, genCompare},
	{"create token", 2, genCreateToken},
	{"revoke token", 1, genRevokeToken},
	{"touch tokens", 1, genTouchTokens},
	{"record", 1, genRecord},
}

var kindTable = func() (table []int) {
	for i, k := range kinds {
		for range k.weight {
			table = append(table, i)
		}
	}
	return table
}()

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// one in n.
func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func newMessageID(r *rand.Rand) []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint64(b, r.Uint64())
	binary.BigEndian.PutUint64(b[8:], r.Uint64())
	return b
}

// command makes one command of a kind.
func (w *world) command(kind int, seed uint64) *pb.Command {
	r := rand.New(rand.NewPCG(seed, uint64(kind)))
	c := kinds[kind].make(w, r)
	if c == nil {
		c = genSubmit(w, r)
	}
	if len(c.Id) == 0 {
		c.Id = newMessageID(r)
	}
	if c.GetSubmitTask() != nil && oneIn(r, 4) {
		c.Note = "asked for by phone"
	}
	if oneIn(r, 8) && c.GetRegisterSession() == nil { // a caller that shows a token, a revoked or unknown one too
		c.Caller = &pb.Caller{Principal: "token/x", TokenId: someToken(w, r)}
		c.Note = pick(r, "", "because")
	}
	complete(c)
	return c
}

// complete fills in what a gateway adds to every command.
func complete(c *pb.Command) {
	if c.Caller == nil {
		c.Caller = &pb.Caller{Principal: anonymous}
	}
	if len(c.ContentHash) == 0 {
		c.ContentHash = contentHash(c)
	}
}

const anonymous = "anonymous"

// contentHash stands for what the gateway computes of the request as sent.
func contentHash(c *pb.Command) []byte {
	c = proto.CloneOf(c)
	c.Id, c.Caller, c.Namespace, c.NamespaceId, c.IdempotencyKey, c.ContentHash = nil, nil, "", nil, "", nil
	if b := c.GetSubmitTask(); b != nil {
		b.Trace = nil // how a request was traced is not what it asks for
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// commands makes those of one entry: mostly one or a few of any kind, now and
// then many of one kind on one attempt, more than are remembered.
func (w *world) commands(r *rand.Rand) (out []*pb.Command) {
	if oneIn(r, 50) {
		make := pick(r, genRenew, genFinish)
		first := make(w, r)
		if op, is := operationOf(first); is {
			for range pick(r, 3, 17, 20) {
				c := proto.CloneOf(first)
				c.Id = newMessageID(r)
				if op.finish != nil && !oneIn(r, 3) {
					c.Id[0], c.Id[1] = 0xff, byte(len(out)) // some come again in later storms
				}
				complete(c)
				out = append(out, c)
			}
			return out
		}
	}
	for range pick(r, 0, 1, 1, 1, 1, 1, 2, 3, 4, 8) {
		out = append(out, w.command(kindTable[r.IntN(len(kindTable))], r.Uint64()))
	}
	return out
}

// instant is the time of the next entry.
func (w *world) instant(r *rand.Rand) int64 {
	now := max(w.model.Clock, startUs)
	next, any := w.model.NextDue()
	if !any {
		next = now
	}
	switch r.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		return now
	case 6, 7, 8:
		return now + r.Int64N(200_000)
	case 9, 10:
		return now + r.Int64N(3_000_000)
	case 11, 12, 13:
		return max(now, next)
	case 14:
		return max(now, next-1)
	case 15:
		return max(now, next+1)
	case 16:
		return now + pick(r, int64(2), 6, 10, 30, 60)*1_000_000
	case 17:
		if oneIn(r, 6) {
			return now + pick(r, int64(600), 24*3600, 24*3600+5, 3*24*3600)*1_000_000
		}
		return now + 1
	case 18:
		return now - r.Int64N(5_000_000) // a leader whose clock is behind
	}
	return now + 1
}

// term of the log and of the proposer for the next entry, and whether it opens
// a term.
func (w *world) terms(r *rand.Rand) (log, proposer uint64, opens bool) {
	if w.term == 0 {
		return 1, 1, true
	}
	switch {
	case oneIn(r, 25):
		return w.term + 1, w.term + 1, true
	case oneIn(r, 60):
		return w.term, w.term - 1, false
	case oneIn(r, 120):
		return w.term + 1, w.term, false // the old office's last entry
	}
	return w.term, w.term, false
}

// prelude is what every case begins with: a term, queues with short durations
// and a few workers.
func (w *world) prelude(seed uint64) []step {
	r := rand.New(rand.NewPCG(seed, 77))
	entry := func(commands ...*pb.Command) step {
		w.preludeIndex++
		for _, c := range commands {
			c.Id = newMessageID(r)
			complete(c)
		}
		return step{kind: stepApply, index: w.preludeIndex, term: 1,
			entry: &pb.Entry{Format: 1, Term: 1, TimeUs: startUs + int64(w.preludeIndex), Commands: commands}}
	}
	return []step{
		entry(&pb.Command{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{NodeId: "a", ClusterId: []byte("cluster-of-tests")}}},
			&pb.Command{Body: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Name: "other"}}}),
		entry(
			&pb.Command{Namespace: "default", Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: "q1", Settings: genSettings(r)}}},
			&pb.Command{Namespace: "default", Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: "default", Settings: genSettings(r)}}},
			&pb.Command{Namespace: "other", Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: "default", Settings: genSettings(r)}}},
			&pb.Command{Body: &pb.Command_ReportGateway{ReportGateway: &pb.ReportGateway{GatewayId: "g1", Incarnation: incarnation("g1", 1)}}},
		),
	}
}

func incarnation(gateway string, n int) []byte {
	x := nameOf("incarnation", gateway, n)
	return x[:]
}

// --- queues and namespaces

func genSettings(r *rand.Rand) *pb.QueueSettings {
	lease := pick(r, int64(1000), 2000, 5000, leaseMaxMS)
	initial := pick(r, int64(0), 100, 1000, 1000)
	return &pb.QueueSettings{
		LeaseDurationMs: lease, OfferDurationMs: pick(r, int64(1000), lease),
		MaxActive: pick(r, uint32(0), 0, 0, 1, 2, 3), MaxWaiting: pick(r, uint64(3), 12, 40),
		RetentionMs: pick(r, int64(0), 1000, 60_000, 3*24*3600*1000), DefaultDeadlineMs: pick(r, int64(4000), 60_000, 30*24*3600*1000),
		AgeingMs: pick(r, int64(0), 0, 100, 1000),
		DefaultRetry: &pb.RetryPolicy{
			MaxAttempts: pick(r, uint32(1), 2, 3, 3, 5, 100), InitialDelayMs: initial,
			MaxDelayMs: pick(r, initial, initial*3, 4000, 60_000), AttemptTimeoutMs: pick(r, int64(500), 3000, 20_000, 3_600_000),
		},
	}
}

func namespaces(w *world, r *rand.Rand) *model.Namespace {
	if len(w.model.Namespaces) == 0 {
		return nil
	}
	if oneIn(r, 5) {
		return pick(r, w.model.Namespaces...)
	}
	return w.model.Namespaces[0]
}

// in makes a command of a namespace, by name or by id.
func in(r *rand.Rand, ns *model.Namespace) *pb.Command {
	switch {
	case ns == nil || oneIn(r, 80):
		return &pb.Command{Namespace: "nowhere"}
	case oneIn(r, 2):
		return &pb.Command{Namespace: ns.Name}
	}
	return &pb.Command{NamespaceId: slices.Clone(ns.ID[:])}
}

// keyed gives some API commands an Idempotency-Key. Few keys, so that they are
// used again: for the same request by genRepeat, for another one here.
func keyed(r *rand.Rand, c *pb.Command) *pb.Command {
	if oneIn(r, 5) {
		c.IdempotencyKey = fmt.Sprintf("once-%d", r.IntN(12))
	}
	return c
}

func genPutQueue(w *world, r *rand.Rand) *pb.Command {
	c := keyed(r, in(r, namespaces(w, r)))
	b := &pb.PutQueue{Name: pick(r, "default", "q1", "q2"), Settings: genSettings(r), Paused: oneIn(r, 6)}
	if oneIn(r, 4) {
		b.ExpectedRevision = uint64(r.IntN(4))
	}
	if q := anyQueue(w, r); q != nil && oneIn(r, 4) {
		b.Name, b.Paused, b.Settings = q.Name, q.Paused, settingsOf(q) // changes nothing
	}
	c.Body = &pb.Command_PutQueue{PutQueue: b}
	return c
}

func settingsOf(q *model.Queue) *pb.QueueSettings {
	s := q.Settings
	return &pb.QueueSettings{LeaseDurationMs: s.LeaseMS, OfferDurationMs: s.OfferMS, MaxActive: s.MaxActive,
		MaxWaiting: s.MaxWaiting, RetentionMs: s.RetentionMS, DefaultDeadlineMs: s.DefaultDeadlineMS, AgeingMs: s.AgeingMS,
		DefaultRetry: &pb.RetryPolicy{MaxAttempts: s.Retry.MaxAttempts, InitialDelayMs: s.Retry.InitialMS,
			MaxDelayMs: s.Retry.MaxMS, AttemptTimeoutMs: s.Retry.AttemptTimeoutMS}}
}

func anyQueue(w *world, r *rand.Rand) *model.Queue {
	if len(w.model.Queues) == 0 {
		return nil
	}
	return pick(r, w.model.Queues...) // deleted ones too
}

func genPause(w *world, r *rand.Rand) *pb.Command {
	c := keyed(r, in(r, namespaces(w, r)))
	b := &pb.PauseQueue{Name: pick(r, "default", "q1", "q2", "nobody"), Paused: oneIn(r, 3)}
	if oneIn(r, 4) {
		b.ExpectedRevision = uint64(r.IntN(4))
	}
	c.Body = &pb.Command_PauseQueue{PauseQueue: b}
	return c
}

func genDeleteQueue(w *world, r *rand.Rand) *pb.Command {
	c := keyed(r, in(r, namespaces(w, r)))
	b := &pb.DeleteQueue{Name: pick(r, "q2", "q2", "q1", "default")}
	if q := anyQueue(w, r); q != nil && oneIn(r, 2) {
		c, b.Name = keyed(r, in(r, q.Namespace)), q.Name
	}
	if oneIn(r, 4) {
		b.ExpectedRevision = uint64(r.IntN(4))
	}
	c.Body = &pb.Command_DeleteQueue{DeleteQueue: b}
	return c
}

func genPutNamespace(_ *world, r *rand.Rand) *pb.Command {
	b := &pb.PutNamespace{Name: pick(r, "other", "default", "third")}
	switch r.IntN(4) {
	case 0:
		b.Quota = &pb.NamespaceQuota{TasksWaiting: pick(r, uint64(0), 2, 6), PayloadBytes: pick(r, uint64(0), 0, 60, 300), Workers: pick(r, uint64(0), 0, 1, 2)}
	case 1:
		b.Quota = &pb.NamespaceQuota{} // none again
	}
	return keyed(r, &pb.Command{Body: &pb.Command_PutNamespace{PutNamespace: b}})
}

// someToken is the id of a token, mostly of one there is.
func someToken(w *world, r *rand.Rand) []byte {
	if len(w.model.Tokens) > 0 && !oneIn(r, 6) {
		t := pick(r, w.model.Tokens...)
		return slices.Clone(t.ID[:])
	}
	x := nameOf("token", r.IntN(12))
	return x[:]
}

func genCreateToken(w *world, r *rand.Rand) *pb.Command {
	x, hash := nameOf("token", r.IntN(12)), sha256.Sum256([]byte{byte(r.IntN(2))})
	b := &pb.CreateToken{TokenId: x[:], SecretHash: hash[:], Name: "t", First: oneIn(r, 6), Grants: []*pb.TokenGrant{{Role: "admin", Namespace: pick(r, "*", "other", "third", "nowhere")}}}
	if oneIn(r, 2) {
		b.Grants = append(b.Grants, &pb.TokenGrant{Role: "worker", Namespace: pick(r, "default", "other"), Queues: pick(r, nil, []string{"q1", "q2"})})
	}
	if oneIn(r, 3) {
		b.ExpiresAtUs = w.model.Clock + pick(r, int64(-1), 0, 1, 1_000_000, 3600*1_000_000)
	}
	return keyed(r, &pb.Command{Body: &pb.Command_CreateToken{CreateToken: b}})
}

func genRevokeToken(w *world, r *rand.Rand) *pb.Command {
	return keyed(r, &pb.Command{Body: &pb.Command_RevokeToken{RevokeToken: &pb.RevokeToken{TokenId: someToken(w, r)}}})
}

func genTouchTokens(w *world, r *rand.Rand) *pb.Command {
	b := &pb.TouchTokens{}
	for range 1 + r.IntN(3) {
		b.Uses = append(b.Uses, &pb.TokenUse{TokenId: someToken(w, r), UsedAtUs: w.model.Clock + pick(r, int64(-700_000_000), -5, 0, 5)})
	}
	return &pb.Command{Body: &pb.Command_TouchTokens{TouchTokens: b}}
}

func genRecord(_ *world, r *rand.Rand) *pb.Command {
	return &pb.Command{Body: &pb.Command_RecordAction{RecordAction: &pb.RecordAction{Action: "pulse.cluster.Transfer", Target: pick(r, "a", "b")}}, Note: "n", Namespace: pick(r, "", "default")}
}

func genDeleteNamespace(_ *world, r *rand.Rand) *pb.Command {
	return keyed(r, &pb.Command{Body: &pb.Command_DeleteNamespace{DeleteNamespace: &pb.DeleteNamespace{Name: pick(r, "other", "other", "third", "default", "nowhere")}}})
}

func genSetCluster(_ *world, r *rand.Rand) *pb.Command {
	b := &pb.SetCluster{}
	switch r.IntN(4) {
	case 0:
		b.IdempotencyKeysMax = pick(r, uint64(2), 8, 1000)
	case 1:
		b.EventRetentionMs = pick(r, int64(1000), 60_000, 3*24*3600*1000)
	case 2:
		b.FormatLevel = uint32(1 + r.IntN(2))
	}
	return &pb.Command{Body: &pb.Command_SetCluster{SetCluster: b}}
}

// genCompare reports states of other nodes; a report of the node's own that
// differs from the majority stops it, which is not for here.
func genCompare(w *world, r *rand.Rand) *pb.Command {
	b := &pb.CompareStates{Index: w.index, Voters: uint32(r.IntN(4))}
	for n := range r.IntN(4) {
		b.Reports = append(b.Reports, &pb.StateReport{NodeId: fmt.Sprint("other", n), StateHash: newMessageID(r)})
	}
	return &pb.Command{Body: &pb.Command_CompareStates{CompareStates: b}}
}

// --- tasks

func genSubmit(w *world, r *rand.Rand) *pb.Command {
	c := keyed(r, in(r, namespaces(w, r)))
	b := &pb.SubmitTask{
		Queue: pick(r, "default", "default", "q1", "q2"), Handler: pick(r, "charge", "charge", "mail"),
		HandlerVersion: "1", PayloadVersion: "1", Payload: fmt.Appendf(nil, `{"n":%d.50}`, r.IntN(3)), Source: "api",
	}
	if oneIn(r, 30) {
		b.HandlerVersion = "2"
	}
	if oneIn(r, 3) {
		b.Priority = pick(r, uint32(0), 1, 5, 9)
	}
	if oneIn(r, 3) {
		b.ConcurrencyKey = pick(r, "k1", "k1", "k2")
	}
	if oneIn(r, 5) {
		b.BusinessKey = fmt.Sprintf("order-%d", r.IntN(5))
		// Equal content now and then.
		b.Payload = fmt.Appendf(nil, `{"n":%d}`, r.IntN(2))
	}
	if oneIn(r, 6) {
		b.Trace = &pb.TraceContext{Parent: fmt.Sprintf("00-%032x-%016x-01", r.Uint64(), r.Uint64()), State: pick(r, "", "a=b")}
	}
	now := w.model.Clock
	if oneIn(r, 5) {
		if oneIn(r, 2) {
			b.DelayMs = pick(r, int64(1), 100, 2000, 61_000)
		} else {
			b.AvailableAtUs = now + pick(r, int64(-1_000_000), 0, 1, 1000, 2_000_000, 70_000_000)
		}
	}
	if oneIn(r, 4) {
		b.DeadlineAtUs = now + pick(r, int64(-1), 1000, 500_000, 1_500_000, 4_000_000, 100_000_000)
	}
	if oneIn(r, 5) {
		b.StartDeadlineAtUs = now + pick(r, int64(-1), 1000, 300_000, 1_500_000, 4_000_000)
	}
	if oneIn(r, 3) {
		b.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_RECONCILE_ONLY
	} else if oneIn(r, 2) {
		b.RecoverySafety = pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT
	}
	if oneIn(r, 4) {
		b.MaxAttempts = proto.Uint32(pick(r, uint32(1), 2, 4, 100))
	}
	if oneIn(r, 4) {
		b.InitialDelayMs = proto.Int64(pick(r, int64(0), 1, 300, 5000))
	}
	if oneIn(r, 6) {
		b.MaxDelayMs = proto.Int64(pick(r, int64(0), 500, 9000))
	}
	if oneIn(r, 5) {
		b.AttemptTimeoutMs = proto.Int64(pick(r, int64(1), 700, 2500))
	}
	c.Body = &pb.Command_SubmitTask{SubmitTask: b}
	return c
}

// someTask prefers tasks in the given states.
func someTask(w *world, r *rand.Rand, states ...pb.TaskState) *model.Task {
	var fit []*model.Task
	for _, t := range w.model.Tasks {
		if t.ID != (id{}) && slices.Contains(states, t.State) {
			fit = append(fit, t)
		}
	}
	if len(fit) > 0 && !oneIn(r, 8) {
		return pick(r, fit...)
	}
	if len(w.model.Tasks) == 0 {
		return nil
	}
	return pick(r, w.model.Tasks...)
}

// about makes a command about a task, sometimes in another namespace.
func aboutTask(w *world, r *rand.Rand, t *model.Task) (*pb.Command, []byte) {
	if t == nil || oneIn(r, 60) {
		return in(r, namespaces(w, r)), newMessageID(r)
	}
	ns := t.Namespace
	if oneIn(r, 40) {
		ns = namespaces(w, r)
	}
	return in(r, ns), slices.Clone(t.ID[:])
}

func expected(r *rand.Rand, t *model.Task) uint64 {
	if t == nil || !oneIn(r, 4) {
		return 0
	}
	return pick(r, t.Revision, t.Revision, t.Revision+1)
}

const (
	waiting     = pb.TaskState_TASK_STATE_WAITING
	leased      = pb.TaskState_TASK_STATE_LEASED
	running     = pb.TaskState_TASK_STATE_RUNNING
	succeeded   = pb.TaskState_TASK_STATE_SUCCEEDED
	failed      = pb.TaskState_TASK_STATE_FAILED
	cancelled   = pb.TaskState_TASK_STATE_CANCELLED
	needsReview = pb.TaskState_TASK_STATE_NEEDS_REVIEW
)

func genCancel(w *world, r *rand.Rand) *pb.Command {
	t := someTask(w, r, waiting, leased, running, running)
	if oneIn(r, 4) { // once more, whatever has become of it
		for _, asked := range w.model.Tasks {
			if asked.CancelRequestedAt != 0 && (t == nil || t.CancelRequestedAt == 0 || oneIn(r, 2)) {
				t = asked
			}
		}
	}
	c, task := aboutTask(w, r, t)
	c.Body = &pb.Command_CancelTask{CancelTask: &pb.CancelTask{TaskId: task, ExpectedRevision: expected(r, t), Note: "no longer wanted"}}
	return keyed(r, c)
}

func genRunNow(w *world, r *rand.Rand) *pb.Command {
	t := someTask(w, r, waiting)
	if oneIn(r, 2) { // those that wait for a time
		for _, parked := range w.model.Tasks {
			if parked.State == waiting && parked.Park != pb.Park_PARK_UNSPECIFIED && (t == nil || t.Park == pb.Park_PARK_UNSPECIFIED || oneIn(r, 2)) {
				t = parked
			}
		}
	}
	if oneIn(r, 5) {
		t = someTask(w, r, running, failed, leased)
	}
	c, task := aboutTask(w, r, t)
	c.Body = &pb.Command_RunTask{RunTask: &pb.RunTask{TaskId: task, ExpectedRevision: expected(r, t), Note: "now"}}
	return keyed(r, c)
}

func genRetry(w *world, r *rand.Rand) *pb.Command {
	t := someTask(w, r, succeeded, failed, cancelled)
	c, task := aboutTask(w, r, t)
	c.Body = &pb.Command_RetryTask{RetryTask: &pb.RetryTask{TaskId: task, ExpectedRevision: expected(r, t), Note: "again"}}
	return keyed(r, c)
}

func genReview(w *world, r *rand.Rand) *pb.Command {
	t := someTask(w, r, needsReview)
	c, task := aboutTask(w, r, t)
	b := &pb.ReviewTask{TaskId: task, ExpectedRevision: expected(r, t), Note: "looked at the ledger",
		Decision: pick(r, pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED, pb.ReviewDecision_REVIEW_DECISION_FAILED,
			pb.ReviewDecision_REVIEW_DECISION_CANCELLED, pb.ReviewDecision_REVIEW_DECISION_RETRY, pb.ReviewDecision_REVIEW_DECISION_RETRY)}
	switch b.Decision {
	case pb.ReviewDecision_REVIEW_DECISION_SUCCEEDED:
		if oneIn(r, 2) {
			b.Result = []byte(`{"by":"hand"}`)
		}
	case pb.ReviewDecision_REVIEW_DECISION_FAILED:
		b.ErrorCode = "not_charged"
		if oneIn(r, 6) {
			b.ErrorCode = ""
		}
	case pb.ReviewDecision_REVIEW_DECISION_RETRY:
		if oneIn(r, 2) {
			b.DeadlineAtUs = w.model.Clock + pick(r, int64(-5), 1_000_000, 60_000_000)
		}
	}
	if oneIn(r, 12) {
		b.Note = ""
	}
	c.Body = &pb.Command_ReviewTask{ReviewTask: b}
	return keyed(r, c)
}

func genBulk(w *world, r *rand.Rand) *pb.Command {
	ns := namespaces(w, r)
	c := in(r, ns)
	b := &pb.BulkTasks{Action: pick(r, pb.BulkAction_BULK_ACTION_CANCEL, pb.BulkAction_BULK_ACTION_RETRY), Note: "all of them", Once: oneIn(r, 2)}
	for range r.IntN(5) {
		if t := someTask(w, r, waiting, succeeded, failed, cancelled, running); t != nil && !oneIn(r, 20) {
			b.TaskIds = append(b.TaskIds, slices.Clone(t.ID[:]))
		} else {
			b.TaskIds = append(b.TaskIds, newMessageID(r))
		}
	}
	c.Body = &pb.Command_BulkTasks{BulkTasks: b}
	return keyed(r, c)
}

func genFreeKey(w *world, r *rand.Rand) *pb.Command {
	c := in(r, namespaces(w, r))
	b := &pb.FreeKey{Key: pick(r, "k1", "k2", "k3"), Note: "checked by hand"}
	if len(w.model.Keys) > 0 && !oneIn(r, 4) {
		k := pick(r, w.model.Keys...)
		c, b.Key = in(r, k.Namespace), k.Name
	}
	if oneIn(r, 12) {
		b.Note = ""
	}
	c.Body = &pb.Command_FreeKey{FreeKey: b}
	return keyed(r, c)
}

// --- workers

const instances = 6

func instanceID(n int) id { return nameOf("instance", n) }

func genRegister(w *world, r *rand.Rand) *pb.Command {
	n := r.IntN(instances)
	x := instanceID(n)
	secret := sha256.Sum256(fmt.Append(nil, "secret", n))
	b := &pb.RegisterSession{
		InstanceId: x[:], SecretHash: secret[:], Capacity: uint32(1 + n%3),
		Capabilities:    []*pb.Capability{{Handler: "charge", HandlerVersion: "1", PayloadVersion: "1"}},
		ConcurrencyKeys: n%3 != 2, CancellationNotifications: n%2 == 0,
		GatewayId: pick(r, "g1", "g1", "g2"), Peer: "127.0.0.1:1",
	}
	if n%2 == 1 {
		b.Capabilities = append(b.Capabilities, &pb.Capability{Handler: "mail", HandlerVersion: "1", PayloadVersion: "1"})
	}
	b.GatewayIncarnation = incarnation(b.GatewayId, w.incarnationOf(b.GatewayId, r))
	// An instance belongs to one queue for its life; queue n of those there are.
	if len(w.model.Queues) > 0 {
		q := w.model.Queues[n%len(w.model.Queues)]
		if i := w.findInstance(x); i != nil {
			q = i.Queue
		}
		b.QueueId = slices.Clone(q.ID[:])
	}
	switch r.IntN(40) {
	case 0:
		b.SecretHash = newMessageID(r)
	case 1:
		b.ConcurrencyKeys = !b.ConcurrencyKeys
	case 2:
		b.Capabilities = b.Capabilities[:1]
	case 3:
		b.QueueId = newMessageID(r)
	case 4:
		if q := anyQueue(w, r); q != nil {
			b.QueueId = slices.Clone(q.ID[:])
		}
	case 5, 6:
		b.Capacity = uint32(1 + r.IntN(4))
	}
	return &pb.Command{Caller: worker(x), Body: &pb.Command_RegisterSession{RegisterSession: b}}
}

func worker(x id) *pb.Caller { return &pb.Caller{Principal: fmt.Sprintf("worker/%x", x)} }

func (w *world) findInstance(x id) *model.Instance {
	for _, i := range w.model.Instances {
		if i.ID == x {
			return i
		}
	}
	return nil
}

// incarnationOf is what a gateway's process reported last; now and then the
// next process.
func (w *world) incarnationOf(gateway string, r *rand.Rand) int {
	if w.incarnations == nil {
		w.incarnations = map[string]int{}
	}
	if w.incarnations[gateway] == 0 || oneIn(r, 30) {
		w.incarnations[gateway]++
	}
	return w.incarnations[gateway]
}

func genReport(w *world, r *rand.Rand) *pb.Command {
	b := &pb.ReportGateway{GatewayId: pick(r, "g1", "g1", "g2")}
	b.Incarnation = incarnation(b.GatewayId, w.incarnationOf(b.GatewayId, r))
	b.AppliedIndex = w.index
	if oneIn(r, 3) {
		b.AppliedIndex = w.index - min(w.index, r.Uint64N(10))
	}
	if oneIn(r, 3) {
		b.InShort = w.inShort(b, r)
		return &pb.Command{Caller: &pb.Caller{Principal: "node/" + b.GatewayId}, Body: &pb.Command_ReportGateway{ReportGateway: b}}
	}
	for _, i := range w.model.Instances {
		if i.GatewayID == b.GatewayId && (i.Connected || oneIn(r, 4)) && !oneIn(r, 8) {
			b.Sessions = append(b.Sessions, sessionEntry(i, i.SessionID, i.Epoch))
		}
	}
	for _, old := range w.pastSessions {
		if oneIn(r, 10) {
			b.Sessions = append(b.Sessions, proto.CloneOf(old))
		}
	}
	b.Leaving = oneIn(r, 25)
	return &pb.Command{Caller: &pb.Caller{Principal: "node/" + b.GatewayId}, Body: &pb.Command_ReportGateway{ReportGateway: b}}
}

// inShort says what the model knows, and now and then something else.
func (w *world) inShort(b *pb.ReportGateway, r *rand.Rand) *pb.SessionsInShort {
	digest, n := w.model.SessionsInShort(b.GatewayId, b.AppliedIndex)
	short := &pb.SessionsInShort{Digest: digest}
	for range n {
		short.SilentMs = append(short.SilentMs, r.Uint32N(30_000))
	}
	switch {
	case oneIn(r, 6):
		short.SilentMs = append(short.SilentMs, 1)
	case oneIn(r, 6):
		short.Digest = short.Digest[:31]
	}
	return short
}

func sessionEntry(i *model.Instance, session id, epoch uint64) *pb.SessionEntry {
	return &pb.SessionEntry{SessionId: slices.Clone(session[:]), Epoch: epoch, InstanceId: slices.Clone(i.ID[:]),
		NamespaceId: slices.Clone(i.Namespace.ID[:])}
}

// session is what a frame of an instance carries: its current session, now and
// then an old or an unknown one.
func (w *world) session(r *rand.Rand, i *model.Instance) *pb.SessionRef {
	s := &pb.SessionRef{InstanceId: slices.Clone(i.ID[:]), SessionId: slices.Clone(i.SessionID[:])}
	if len(w.pastSessions) > 0 && oneIn(r, 12) {
		old := pick(r, w.pastSessions...)
		s.SessionId = slices.Clone(old.SessionId)
		if oneIn(r, 2) {
			s.InstanceId = slices.Clone(old.InstanceId)
		}
	}
	return s
}

func frame(i *model.Instance) *pb.Command {
	return &pb.Command{NamespaceId: slices.Clone(i.Namespace.ID[:]), Caller: worker(i.ID)}
}

func someInstance(w *world, r *rand.Rand) *model.Instance {
	if len(w.model.Instances) == 0 {
		return nil
	}
	return pick(r, w.model.Instances...)
}

func genCapacity(w *world, r *rand.Rand) *pb.Command {
	i := someInstance(w, r)
	if i == nil {
		return genRegister(w, r)
	}
	b := &pb.SetCapacity{Session: w.session(r, i), Sequence: i.Sequence + 1, Capacity: uint32(r.IntN(4)), Drain: oneIn(r, 12) || i.SeqDrain && !oneIn(r, 4)}
	switch r.IntN(10) {
	case 0:
		b.Sequence = max(1, i.Sequence)
	case 1:
		b.Sequence, b.Capacity, b.Drain = max(1, i.Sequence), i.SeqCapacity, i.SeqDrain
	case 2:
		b.Sequence = max(1, i.Sequence) - min(max(1, i.Sequence)-1, 2)
	case 3:
		b.Sequence += 5
	}
	c := frame(i)
	c.Body = &pb.Command_SetCapacity{SetCapacity: b}
	return c
}

func genClose(w *world, r *rand.Rand) *pb.Command {
	i := someInstance(w, r)
	if i == nil {
		return genRegister(w, r)
	}
	c := frame(i)
	c.Body = &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: w.session(r, i), Undeliverable: oneIn(r, 3)}}
	return c
}

func genDrain(w *world, r *rand.Rand) *pb.Command {
	i := someInstance(w, r)
	if i == nil || oneIn(r, 10) {
		c := in(r, namespaces(w, r))
		c.Body = &pb.Command_DrainWorker{DrainWorker: &pb.DrainWorker{InstanceId: newMessageID(r)}}
		return keyed(r, c)
	}
	c := in(r, i.Namespace)
	c.Body = &pb.Command_DrainWorker{DrainWorker: &pb.DrainWorker{InstanceId: slices.Clone(i.ID[:])}}
	return keyed(r, c)
}

// someAttempt picks an attempt with the instance that acts on it: mostly a live
// one and its own, sometimes one that is over, sometimes a stranger.
func (w *world) someAttempt(r *rand.Rand, want pb.AttemptState) (*model.Attempt, *model.Instance) {
	var fit []*model.Attempt
	switch n := r.IntN(10); {
	case n < 7:
		for _, a := range w.model.Attempts {
			if a.State == want {
				fit = append(fit, a)
			}
		}
	case n < 9:
		for _, a := range w.model.Attempts {
			if a.Live() {
				fit = append(fit, a)
			}
		}
	}
	if len(fit) == 0 {
		fit = w.model.Attempts
	}
	if len(fit) == 0 {
		return nil, nil
	}
	a := pick(r, fit...)
	if oneIn(r, 12) {
		return a, someInstance(w, r)
	}
	for _, i := range w.model.Instances {
		if i.ID == a.Instance && i.Namespace == a.Task.Namespace {
			return a, i
		}
	}
	return a, someInstance(w, r)
}

func attemptRef(r *rand.Rand, a *model.Attempt) *pb.AttemptRef {
	ref := &pb.AttemptRef{TaskId: slices.Clone(a.Task.ID[:]), AttemptId: slices.Clone(a.ID[:]), Epoch: a.Epoch}
	switch r.IntN(40) {
	case 0:
		ref.Epoch--
	case 1:
		ref.Epoch++
	case 2:
		ref.AttemptId = newMessageID(r)
	case 3:
		ref.TaskId = newMessageID(r)
	}
	return ref
}

// opID is a message id; now and then one that was used before.
func (w *world) opID(r *rand.Rand, a *model.Attempt) []byte {
	if len(a.Receipts) > 0 && oneIn(r, 6) {
		x := pick(r, a.Receipts...).MessageID
		return x[:]
	}
	return newMessageID(r)
}

func genStart(w *world, r *rand.Rand) *pb.Command {
	a, i := w.someAttempt(r, pb.AttemptState_ATTEMPT_STATE_LEASED)
	if a == nil || i == nil {
		return genRegister(w, r)
	}
	c := frame(i)
	c.Id = w.opID(r, a)
	c.Body = &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: w.session(r, i), Ref: attemptRef(r, a)}}
	return c
}

func genRenew(w *world, r *rand.Rand) *pb.Command {
	a, i := w.someAttempt(r, pick(r, pb.AttemptState_ATTEMPT_STATE_RUNNING, pb.AttemptState_ATTEMPT_STATE_LEASED))
	if a == nil || i == nil {
		return genRegister(w, r)
	}
	c := frame(i)
	c.Id = w.opID(r, a)
	c.Body = &pb.Command_RenewAttempt{RenewAttempt: &pb.RenewAttempt{Session: w.session(r, i), Ref: attemptRef(r, a)}}
	return c
}

func genResume(w *world, r *rand.Rand) *pb.Command {
	a, i := w.someAttempt(r, pb.AttemptState_ATTEMPT_STATE_RUNNING)
	if a == nil || i == nil {
		return genRegister(w, r)
	}
	c := frame(i)
	c.Body = &pb.Command_ResumeAttempt{ResumeAttempt: &pb.ResumeAttempt{Session: w.session(r, i), Ref: attemptRef(r, a)}}
	return c
}

func genFinish(w *world, r *rand.Rand) *pb.Command {
	a, i := w.someAttempt(r, pb.AttemptState_ATTEMPT_STATE_RUNNING)
	if a == nil || i == nil {
		return genRegister(w, r)
	}
	b := &pb.FinishAttempt{Session: w.session(r, i), Ref: attemptRef(r, a), Result: fmt.Appendf(nil, `{"r":%d}`, r.IntN(2))}
	switch r.IntN(9) {
	case 0, 1:
		b.Outcome = pb.Outcome_OUTCOME_SUCCEEDED
	case 2, 3, 4:
		b.Outcome, b.ErrorCode, b.Retryable = pb.Outcome_OUTCOME_FAILED, "card_declined", !oneIn(r, 3)
	case 5, 6:
		b.Outcome, b.ErrorCode = pb.Outcome_OUTCOME_UNKNOWN, "no_answer"
	case 7, 8:
		b.Outcome, b.ErrorCode = pb.Outcome_OUTCOME_CANCELLED, "stopped"
	}
	c := frame(i)
	c.Id = w.opID(r, a)
	c.Body = &pb.Command_FinishAttempt{FinishAttempt: b}
	return c
}

// genRepeat sends an earlier command again: as it was, under a new command id
// (an API request repeated by its client), or with other content.
func genRepeat(w *world, r *rand.Rand) *pb.Command {
	if len(w.sent) == 0 {
		return nil
	}
	c := proto.CloneOf(w.sent[max(0, len(w.sent)-1-r.IntN(30))])
	if c.IdempotencyKey != "" || c.GetSubmitTask() != nil {
		c.Id = newMessageID(r)
	}
	if f := c.GetFinishAttempt(); f != nil && oneIn(r, 3) {
		f.Result = []byte(`{"other":1}`)
		c.ContentHash = nil
	}
	// After a reconnect the repeat comes from the new session.
	if ref := sessionOf(c); ref != nil && !oneIn(r, 4) {
		if i := w.findInstance(toID(ref.InstanceId)); i != nil {
			ref.SessionId = slices.Clone(i.SessionID[:])
		}
	}
	return c
}
