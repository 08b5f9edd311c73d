package cluster

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// fakeLog takes entries and lets the test answer them.
type fakeLog struct {
	mu      sync.Mutex
	entries []*fakeFuture
}

type fakeFuture struct {
	entry  *pb.Entry
	answer chan error
	once   sync.Once
	err    error
	index  uint64

	answered bool // by answerSome
}

func (l *fakeLog) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	e, err := fsm.DecodeEntry(data)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &fakeFuture{entry: e, answer: make(chan error, 1), index: uint64(len(l.entries) + 1)}
	l.entries = append(l.entries, f)
	return f
}

func (f *fakeFuture) Error() error {
	f.once.Do(func() { f.err = <-f.answer })
	return f.err
}

func (f *fakeFuture) Index() uint64 { return f.index }

// Response answers every command with its own id, so that a test sees whether
// results reach the right callers.
func (f *fakeFuture) Response() any {
	o := &fsm.Outcome{Index: f.index}
	for _, c := range f.entry.Commands {
		o.Results = append(o.Results, &pb.Result{Message: string(c.Id), Index: f.index})
	}
	return o
}

// sent returns the entries handed over so far.
func (l *fakeLog) sent() []*fakeFuture {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// sizes is how many commands each entry has.
func (l *fakeLog) sizes() []int {
	var n []int
	for _, f := range l.sent() {
		n = append(n, len(f.entry.Commands))
	}
	return n
}

// stillProposer has one entry in flight and does not run.
func stillProposer() (*proposer, *fakeLog) {
	log := &fakeLog{}
	return &proposer{
		term:        7,
		log:         log,
		now:         func() int64 { return 1000 },
		admission:   func(c *pb.Command) bool { return c.GetSubmitTask() != nil },
		counters:    &Counters{},
		returned:    func() {},
		judge:       func(error) {},
		inFlightMax: 1,
		commandsMax: 1000,
		bytesMax:    64 << 20,
		work:        make(chan struct{}, 1),
		queue:       list.New(),
		inFlight:    map[*entry]struct{}{},
	}, log
}

// testProposer runs a proposer with one entry in flight in a synctest bubble.
func testProposer(t *testing.T, change func(*proposer)) (*proposer, *fakeLog) {
	p, log := stillProposer()
	if change != nil {
		change(p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p, log
}

func command(id string) *pb.Command {
	return &pb.Command{Id: []byte(id), Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{}}}
}

func submission(id string, payload int) *pb.Command {
	return &pb.Command{Id: []byte(id), Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{Payload: make([]byte, payload)}}}
}

func registration(id, instance string) *pb.Command {
	return &pb.Command{Id: []byte(id), Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{InstanceId: []byte(instance)}}}
}

// proposal is a propose under way.
type proposal struct {
	results []*pb.Result
	err     error
	over    bool
}

func begin(ctx context.Context, p *proposer, cmds ...*pb.Command) *proposal {
	r := &proposal{}
	go func() {
		r.results, r.err = p.propose(ctx, cmds)
		r.over = true
	}()
	synctest.Wait()
	return r
}

// answer answers the i-th entry and lets everybody hear of it.
func answer(l *fakeLog, i int, err error) {
	l.sent()[i].answer <- err
	synctest.Wait()
}

func wantCode(t *testing.T, err error, code schema.Code) {
	t.Helper()
	var e *schema.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error is %v, want code %s", err, code)
	}
}

func TestALoneCommandIsSentAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		began := time.Now()
		r := begin(t.Context(), p, command("a"))
		if got := log.sizes(); !slices.Equal(got, []int{1}) {
			t.Fatalf("entries %v", got)
		}
		e := log.sent()[0].entry
		if e.Term != 7 || e.TimeUs != 1000 {
			t.Fatalf("the entry carries term %d and time %d", e.Term, e.TimeUs)
		}
		answer(log, 0, nil)
		if !r.over || r.err != nil || r.results[0].Message != "a" {
			t.Fatalf("got %+v", r)
		}
		if waited := time.Since(began); waited != 0 {
			t.Fatalf("it took %s", waited)
		}
	})
}

// Its caller hands it to the log: no other goroutine has to be woken for that. What
// comes while an entry is on its way wakes nobody.
func TestALoneCommandIsSentByItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := stillProposer()
		first, second := begin(t.Context(), p, command("a")), begin(t.Context(), p, command("b"))
		if sizes := log.sizes(); !slices.Equal(sizes, []int{1}) {
			t.Fatalf("with nobody else at work the entries sent are %v", sizes)
		}
		if len(p.work) != 0 {
			t.Error("somebody is to look again, and nothing has changed")
		}
		answer(log, 0, nil)
		if !first.over || first.err != nil {
			t.Errorf("the first: %+v", first)
		}
		if len(p.work) != 1 {
			t.Error("an entry has come back, and nobody is to look")
		}
		p.forward()
		synctest.Wait()
		answer(log, 1, nil)
		if !second.over || second.err != nil {
			t.Errorf("the second: %+v", second)
		}
	})
}

func TestWhatArrivesWhileAnEntryIsOnItsWaySharesTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		var rs []*proposal
		for i := range 6 {
			rs = append(rs, begin(t.Context(), p, command(fmt.Sprint(i))))
		}
		if got := log.sizes(); !slices.Equal(got, []int{1}) {
			t.Fatalf("entries %v while the first is on its way", got)
		}
		answer(log, 0, nil)
		if got := log.sizes(); !slices.Equal(got, []int{1, 5}) {
			t.Fatalf("entries %v", got)
		}
		answer(log, 1, nil)
		for i, r := range rs {
			if !r.over || r.results[0].Message != fmt.Sprint(i) {
				t.Fatalf("caller %d got %+v", i, r)
			}
		}
	})
}

func TestTwoEntriesMayBeOnTheirWayButNotThree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, func(p *proposer) { p.inFlightMax = 2 })
		for i := range 4 {
			begin(t.Context(), p, command(fmt.Sprint(i)))
		}
		if got := log.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Fatalf("entries %v", got)
		}
		answer(log, 1, nil) // they may come back in any order
		if got := log.sizes(); !slices.Equal(got, []int{1, 1, 2}) {
			t.Fatalf("entries %v", got)
		}
		answer(log, 0, nil)
		answer(log, 2, nil)
	})
}

func TestAnEntryIsBoundedByCommandsAndBytes(t *testing.T) {
	t.Parallel()
	many := make([]*pb.Command, 1100)
	for i := range many {
		many[i] = command(fmt.Sprint(i))
	}
	for _, tc := range []struct {
		name  string
		cmds  []*pb.Command
		sizes []int
	}{
		{"commands", many, []int{512, 512, 76}},
		{"bytes", []*pb.Command{
			submission("a", 100<<10), submission("b", 100<<10), submission("c", 100<<10), submission("d", 10),
		}, []int{2, 2}},
		{"a large one goes alone", []*pb.Command{
			command("a"), submission("b", 400<<10), command("c"), command("d"),
		}, []int{1, 1, 2}},
		{"one registration of an instance in an entry", []*pb.Command{
			registration("a", "x"), registration("b", "y"), command("c"), registration("d", "x"), registration("e", "x"),
		}, []int{3, 1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, log := testProposer(t, func(p *proposer) { p.commandsMax = 10000 })
				r := begin(t.Context(), p, tc.cmds...)
				for i := range tc.sizes {
					if r.over {
						t.Fatal("over before its last entry")
					}
					answer(log, i, nil)
				}
				if got := log.sizes(); !slices.Equal(got, tc.sizes) {
					t.Fatalf("entries %v, want %v", got, tc.sizes)
				}
				if !r.over || r.err != nil {
					t.Fatalf("got %+v", r)
				}
				for i, cmd := range tc.cmds {
					if r.results[i].Message != string(cmd.Id) {
						t.Fatalf("result %d is of command %s", i, r.results[i].Message)
					}
				}
			})
		})
	}
}

func TestACommandThatNoEntryCanCarryIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		_, err := p.propose(t.Context(), []*pb.Command{command("a"), submission("b", commandBytesMax)})
		wantCode(t, err, schema.TooLarge)
		if len(log.sent()) != 0 {
			t.Fatal("the one before it was proposed")
		}
	})
}

func TestAFullQueueRefusesNewWorkFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, func(p *proposer) { p.commandsMax = 8 })
		begin(t.Context(), p, command("on its way"))
		for i := range 6 {
			if r := begin(t.Context(), p, submission(fmt.Sprint(i), 1)); r.over {
				t.Fatalf("submission %d: %v", i, r.err)
			}
		}
		_, err := p.propose(t.Context(), []*pb.Command{submission("one too many", 1)})
		wantCode(t, err, schema.Unavailable)
		for i := range 2 {
			if r := begin(t.Context(), p, command(fmt.Sprint(i))); r.over {
				t.Fatalf("a start was refused while a quarter of the queue is free: %v", r.err)
			}
		}
		_, err = p.propose(t.Context(), []*pb.Command{command("one too many")})
		wantCode(t, err, schema.Unavailable)
		if got := p.counters.QueueRefused.Load(); got != 2 {
			t.Fatalf("%d refusals counted", got)
		}
		answer(log, 0, nil)
		answer(log, 1, nil)
		if p.commands != 0 || p.bytes != 0 {
			t.Fatalf("an empty queue counts %d commands, %d bytes", p.commands, p.bytes)
		}
	})
}

func TestADeadlineBeforeTheHandOverMeansNothingHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		begin(t.Context(), p, command("on its way"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := begin(ctx, p, command("late"))
		time.Sleep(time.Second)
		synctest.Wait()
		if !r.over {
			t.Fatal("it still waits")
		}
		wantCode(t, r.err, schema.DeadlineExpired)
		answer(log, 0, nil)
		if got := log.sizes(); !slices.Equal(got, []int{1}) {
			t.Fatalf("the command was proposed all the same: entries %v", got)
		}
		if _, err := p.propose(ctx, []*pb.Command{command("after")}); err == nil {
			t.Fatal("a context that is over was taken")
		}
		if p.commands != 0 || p.bytes != 0 || p.queue.Len() != 0 {
			t.Fatal("it is still in the queue")
		}
	})
}

func TestADeadlineAfterTheHandOverLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := begin(ctx, p, command("a"))
		time.Sleep(time.Second)
		synctest.Wait()
		wantCode(t, r.err, schema.ResultUnknown)
		answer(log, 0, nil) // too late to matter, and must not touch the results
	})
}

func TestACallOverSeveralEntriesTellsTheFateOfEachCommand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := begin(ctx, p, submission("a", 200<<10), submission("b", 200<<10), submission("c", 200<<10))
		answer(log, 0, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if r.err != nil {
			t.Fatal(r.err)
		}
		want := []string{"", string(schema.ResultUnknown), string(schema.DeadlineExpired)}
		codes := func() []string { return []string{r.results[0].Code, r.results[1].Code, r.results[2].Code} }
		if got := codes(); !slices.Equal(got, want) {
			t.Fatalf("codes %v, want %v", got, want)
		}
		answer(log, 1, nil)
		if got := codes(); !slices.Equal(got, want) {
			t.Fatalf("codes %v after the caller has them", got)
		}
		if got := log.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Fatalf("entries %v", got)
		}
	})
}

func TestTheRestOfACallIsNotProposedAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		r := begin(t.Context(), p, submission("a", 200<<10), submission("b", 200<<10), submission("c", 200<<10))
		answer(log, 0, nil)
		answer(log, 1, raft.ErrLeadershipLost)
		if !r.over || r.err != nil {
			t.Fatalf("got %+v", r)
		}
		codes := []string{r.results[0].Code, r.results[1].Code, r.results[2].Code}
		if want := []string{"", string(schema.ResultUnknown), string(schema.NotLeader)}; !slices.Equal(codes, want) {
			t.Fatalf("codes %v, want %v", codes, want)
		}
		if got := log.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Fatalf("entries %v", got)
		}
	})
}

// Only three errors of raft say that nothing happened.
func TestErrorsOfTheLogKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		code schema.Code
	}{
		{raft.ErrNotLeader, schema.NotLeader},
		{raft.ErrLeadershipTransferInProgress, schema.NotLeader},
		{raft.ErrEnqueueTimeout, schema.Unavailable},
		{raft.ErrLeadershipLost, schema.ResultUnknown},
		{raft.ErrAbortedByRestore, schema.ResultUnknown},
		{raft.ErrRaftShutdown, schema.ResultUnknown},
		{errors.New("input/output error"), schema.ResultUnknown},
	} {
		t.Run(tc.err.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, log := testProposer(t, nil)
				r := begin(t.Context(), p, command("a"), command("b"))
				answer(log, 0, tc.err)
				wantCode(t, r.err, tc.code)
			})
		})
	}
}

func TestLosingTheOfficeFailsWhatIsQueuedAndNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		first := begin(t.Context(), p, command("a"))
		second := begin(t.Context(), p, command("b"))
		p.close(failf(schema.NotLeader, "over"), false)
		synctest.Wait()
		wantCode(t, second.err, schema.NotLeader)
		if first.over {
			t.Fatal("the entry on its way was given up")
		}
		_, err := p.propose(t.Context(), []*pb.Command{command("c")})
		wantCode(t, err, schema.NotLeader)
		answer(log, 0, nil)
		if first.err != nil || first.results[0].Message != "a" {
			t.Fatalf("got %+v", first)
		}
	})
}

func TestShuttingDownFinishesWhatWasTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		first := begin(t.Context(), p, command("a"))
		second := begin(t.Context(), p, command("b"))
		p.close(failf(schema.NotLeader, "over"), true)
		idle := false
		go func() { idle = p.awaitIdle(t.Context()) == nil }()
		synctest.Wait()
		answer(log, 0, nil)
		if idle || !first.over || second.over {
			t.Fatalf("idle %v, first over %v, second over %v", idle, first.over, second.over)
		}
		answer(log, 1, nil)
		if !idle || second.err != nil {
			t.Fatalf("idle %v, second %+v", idle, second)
		}
		if err := p.awaitIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestEntriesThatRaftWillNotAnswerAreGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		r := begin(t.Context(), p, command("a"))
		p.forget()
		synctest.Wait()
		wantCode(t, r.err, schema.ResultUnknown)
		answer(log, 0, nil) // ends the waiting goroutine; nothing else may happen
	})
}

func TestAnEntryCanBeWantedWithoutACommand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		p.wantEntry()
		if !p.busy() {
			t.Fatal("not busy with the entry it owes")
		}
		synctest.Wait()
		p.wantEntry()
		p.wantEntry()
		begin(t.Context(), p, command("a"))
		answer(log, 0, nil)
		answer(log, 1, nil)
		if got := log.sizes(); !slices.Equal(got, []int{0, 1}) {
			t.Fatalf("entries %v", got)
		}
		if p.busy() {
			t.Fatal("busy with nothing")
		}
	})
}

// Many callers with random calls, deadlines and failures: every command has one
// outcome, results reach their commands, calls stay in order, and a command
// that was said not to have happened is in no entry.
func TestRandomCallersGetTheFateOfTheirCommands(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { randomCallers(t, seed) })
		})
	}
}

func randomCallers(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	p, log := testProposer(t, func(p *proposer) {
		p.inFlightMax = 1 + int(seed%2)
		p.commandsMax = 200
	})
	var calls []*proposal
	var ids [][]string
	for i := range 40 {
		n := 1 + random.IntN(4)
		if random.IntN(10) == 0 {
			n = 60
		}
		cmds, names := make([]*pb.Command, n), make([]string, n)
		for k := range cmds {
			names[k] = fmt.Sprintf("%d/%d", i, k)
			switch random.IntN(6) {
			case 0:
				cmds[k] = submission(names[k], random.IntN(300<<10))
			case 1:
				cmds[k] = registration(names[k], fmt.Sprint(random.IntN(3)))
			default:
				cmds[k] = command(names[k])
			}
		}
		ctx := t.Context()
		if random.IntN(4) == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(300))*time.Millisecond)
			defer cancel()
		}
		calls, ids = append(calls, begin(ctx, p, cmds...)), append(ids, names)
		if random.IntN(3) == 0 {
			time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
		}
		answerSome(log, random, 2)
	}
	for p.busy() {
		time.Sleep(time.Millisecond)
		answerSome(log, random, 1)
	}
	synctest.Wait()

	order := map[string]int{} // place in the log
	for _, f := range log.sent() {
		seen, bytes := map[string]bool{}, 0
		for _, c := range f.entry.Commands {
			if _, twice := order[string(c.Id)]; twice {
				t.Fatalf("command %s is in the log twice", c.Id)
			}
			order[string(c.Id)] = len(order)
			bytes += len(c.GetSubmitTask().GetPayload())
			if r := c.GetRegisterSession(); r != nil {
				if seen[string(r.InstanceId)] {
					t.Fatal("an instance is registered twice in one entry")
				}
				seen[string(r.InstanceId)] = true
			}
		}
		if n := len(f.entry.Commands); n > entryCommandsMax || (n > 1 && bytes > entryBytesMax) {
			t.Fatalf("an entry of %d commands and %d bytes", n, bytes)
		}
	}
	for i, call := range calls {
		if !call.over {
			t.Fatalf("call %d has no outcome", i)
		}
		last := -1
		for k, id := range ids[i] {
			place, inLog := order[id]
			if inLog {
				if place < last {
					t.Fatalf("call %d: command %s overtook the one before", i, id)
				}
				last = place
			}
			var code schema.Code
			if call.err != nil {
				var e *schema.Error
				if !errors.As(call.err, &e) {
					t.Fatal(call.err)
				}
				code = e.Code
			} else {
				code = schema.Code(call.results[k].Code)
				if code == "" && call.results[k].Message != id {
					t.Fatalf("command %s got the result of %s", id, call.results[k].Message)
				}
			}
			happened := code == "" || code == schema.ResultUnknown || code == schema.NotLeader && inLog
			if happened != inLog {
				t.Fatalf("command %s has code %q and is in the log: %v", id, code, inLog)
			}
		}
	}
	if p.commands != 0 || p.bytes != 0 || p.queue.Len() != 0 || len(p.inFlight) != 0 {
		t.Fatalf("left over: %d commands, %d bytes, %d calls, %d entries", p.commands, p.bytes, p.queue.Len(), len(p.inFlight))
	}
}

// answerSome answers about half of up to n entries that have no answer yet.
func answerSome(log *fakeLog, random *rand.Rand, n int) {
	for _, f := range log.sent() {
		if n == 0 {
			break
		}
		if f.answered || random.IntN(2) == 0 {
			continue
		}
		f.answered = true
		n--
		switch random.IntN(12) {
		case 0:
			f.answer <- raft.ErrLeadershipLost
		case 1:
			f.answer <- raft.ErrNotLeader
		default:
			f.answer <- nil
		}
	}
	synctest.Wait()
}

func TestMessagesTellWhetherSomethingHappened(t *testing.T) {
	t.Parallel()
	if msg := proposalError(raft.ErrLeadershipLost).Message; !strings.Contains(msg, "not known") {
		t.Error(msg)
	}
}

func report(id string) *pb.Command {
	return &pb.Command{Id: []byte(id), Body: &pb.Command_ReportGateway{ReportGateway: &pb.ReportGateway{GatewayId: id}}}
}

// Reports of three gateways and the heartbeats of their workers are one entry.
func TestWhatNobodyWaitsForWaitsForCompany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		alive := &pb.Command{Id: []byte("w"), Body: &pb.Command_SetCapacity{SetCapacity: &pb.SetCapacity{}}}
		rs := []*proposal{
			begin(t.Context(), p, report("a")), begin(t.Context(), p, alive), begin(t.Context(), p, report("b"), report("c")),
		}
		if got := log.sizes(); len(got) != 0 {
			t.Fatalf("entries %v at once", got)
		}
		if !p.busy() {
			t.Error("something waits, and the proposer says that it has nothing to do")
		}
		time.Sleep(companyWait) // in a bubble
		synctest.Wait()
		if got := log.sizes(); !slices.Equal(got, []int{4}) {
			t.Fatalf("entries %v after %v", got, companyWait)
		}
		late := begin(t.Context(), p, report("d"))
		answer(log, 0, nil)
		for i, r := range rs {
			if !r.over || r.err != nil {
				t.Errorf("call %d: %+v", i, r)
			}
		}
		if got := log.sizes(); !slices.Equal(got, []int{4}) {
			t.Fatalf("entries %v: what has just come did not wait", got)
		}
		// It goes with the first command that does not wait, and does not come twice.
		urgent := begin(t.Context(), p, command("e"))
		time.Sleep(2 * companyWait) // in a bubble
		if got := log.sizes(); !slices.Equal(got, []int{4, 2}) {
			t.Fatalf("entries %v", got)
		}
		answer(log, 1, nil)
		if !late.over || !urgent.over {
			t.Error("an entry was answered, and a caller still waits")
		}
	})
}

func TestAGatewayThatLeavesSaysSoAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		last := report("a")
		last.GetReportGateway().Leaving = true
		begin(t.Context(), p, last)
		if got := log.sizes(); !slices.Equal(got, []int{1}) {
			t.Fatalf("entries %v", got)
		}
		answer(log, 0, nil)
	})
}

// The one that would have taken it along is given up; it goes by itself.
func TestWhatWaitsForCompanyIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := testProposer(t, nil)
		begin(t.Context(), p, command("first"))
		ctx, giveUp := context.WithCancel(t.Context())
		begin(ctx, p, command("gone"))
		r := begin(t.Context(), p, report("a"))
		giveUp()
		synctest.Wait()
		answer(log, 0, nil)
		time.Sleep(companyWait) // in a bubble
		synctest.Wait()
		if got := log.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Fatalf("entries %v", got)
		}
		answer(log, 1, nil)
		if !r.over || r.err != nil {
			t.Fatalf("%+v", r)
		}
	})
}
