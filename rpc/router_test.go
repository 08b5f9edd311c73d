package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// fakeLeader answers each call by the next step of its script; the last step
// stays.
type fakeLeader struct {
	propose []func(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error)
	query   []func(ctx context.Context, q *pb.Query) (*pb.Answer, error)
	calls   int
	seen    [][]string // handlers of the commands of each proposal
}

func (l *fakeLeader) Propose(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	names := make([]string, len(cmds))
	for i, c := range cmds {
		names[i] = string(c.GetId())
	}
	l.seen = append(l.seen, names)
	step := l.propose[min(l.calls, len(l.propose)-1)]
	l.calls++
	return step(ctx, cmds)
}

func (l *fakeLeader) Query(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	step := l.query[min(l.calls, len(l.query)-1)]
	l.calls++
	return step(ctx, q)
}

func commands(ids ...string) []*pb.Command {
	cmds := make([]*pb.Command, len(ids))
	for i, id := range ids {
		cmds[i] = &pb.Command{Id: []byte(id)}
	}
	return cmds
}

// results answers each command with its id as message and the given codes.
func results(codes ...schema.Code) func(context.Context, []*pb.Command) ([]*pb.Result, error) {
	return func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
		out := make([]*pb.Result, len(cmds))
		for i, c := range cmds {
			out[i] = &pb.Result{Message: string(c.GetId())}
			if i < len(codes) {
				out[i].Code = string(codes[i])
			}
		}
		return out, nil
	}
}

func refuse(code schema.Code) func(context.Context, []*pb.Command) ([]*pb.Result, error) {
	return func(context.Context, []*pb.Command) ([]*pb.Result, error) {
		return nil, fmt.Errorf("propose: %w", &schema.Error{Code: code, Message: "scripted"})
	}
}

func (l *fakeLeader) ReadAt(ctx context.Context, _ uint64, q *pb.Query) (*pb.Answer, error) {
	return l.Query(ctx, q)
}

func (l *fakeLeader) LeaderID() string { return "" }

func newRouter(t *testing.T, l Replica) *Router {
	t.Helper()
	r, err := NewRouter(Config{Replica: l, Feed: NewFeed()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func codeOf(t *testing.T, err error) schema.Code {
	t.Helper()
	var e *schema.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v has no code", err)
	}
	return e.Code
}

func describe(rs []*pb.Result) string {
	s := ""
	for _, r := range rs {
		s += fmt.Sprintf("%s:%s ", r.GetMessage(), r.GetCode())
	}
	return s
}

func TestSubmitReturnsResultsInOrder(t *testing.T) {
	t.Parallel()
	l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){results("", schema.Conflict)}}
	got, err := newRouter(t, l).Submit(context.Background(), commands("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	if describe(got) != "a: b:conflict " {
		t.Errorf("results %q", describe(got))
	}
	if got, err := newRouter(t, l).Submit(context.Background(), nil); err != nil || len(got) != 0 {
		t.Errorf("no commands gave %v, %v", got, err)
	}
}

func TestCallWithoutDeadlineGetsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var left time.Duration
		l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){
			func(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
				deadline, ok := ctx.Deadline()
				if !ok {
					t.Error("the leader was called without a deadline")
				}
				left = time.Until(deadline)
				return results()(ctx, cmds)
			}}}
		r := newRouter(t, l)
		if _, err := r.Submit(context.Background(), commands("a")); err != nil {
			t.Fatal(err)
		}
		if left != DefaultTimeout {
			t.Errorf("deadline in %s, want %s", left, DefaultTimeout)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := r.Submit(ctx, commands("a")); err != nil {
			t.Fatal(err)
		}
		if left != time.Second {
			t.Errorf("the caller's deadline became %s", left)
		}
	})
}

func TestSubmitWaitsForALeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){
			refuse(schema.NoLeader), refuse(schema.NotLeader), refuse(schema.NotLeader), results(),
		}}
		got, err := newRouter(t, l).Submit(context.Background(), commands("a"))
		if err != nil || describe(got) != "a: " {
			t.Fatalf("got %q, %v", describe(got), err)
		}
	})
}

func TestSubmitWithoutALeaderEndsWithNoLeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		timeout time.Duration
		most    time.Duration
	}{
		{"after the wait for a leader", time.Minute, DefaultLeaderWait},
		{"at the caller's deadline if that is earlier", time.Second, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){refuse(schema.NotLeader)}}
				ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
				defer cancel()
				start := time.Now()
				_, err := newRouter(t, l).Submit(ctx, commands("a"))
				if code := codeOf(t, err); code != schema.NoLeader {
					t.Errorf("code %s", code)
				}
				took := time.Since(start)
				if took > c.most || took < c.most-2*leaderPollMax {
					t.Errorf("gave up after %s, want about %s", took, c.most)
				}
				if l.calls < 10 {
					t.Errorf("asked only %d times", l.calls)
				}
			})
		})
	}
}

func TestNothingElseIsSentTwice(t *testing.T) {
	t.Parallel()
	plain := func(context.Context, []*pb.Command) ([]*pb.Result, error) { return nil, errors.New("disk on fire") }
	short := func(context.Context, []*pb.Command) ([]*pb.Result, error) { return []*pb.Result{{}}, nil }
	for _, c := range []struct {
		name string
		step func(context.Context, []*pb.Command) ([]*pb.Result, error)
		want schema.Code
	}{
		{"unknown outcome", refuse(schema.ResultUnknown), schema.ResultUnknown},
		{"overload", refuse(schema.Unavailable), schema.Unavailable},
		{"too large", refuse(schema.TooLarge), schema.TooLarge},
		{"deadline", refuse(schema.DeadlineExpired), schema.DeadlineExpired},
		{"error without a code", plain, schema.ResultUnknown},
		{"too few results", short, schema.ResultUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){c.step, results()}}
			_, err := newRouter(t, l).Submit(context.Background(), commands("a", "b"))
			if code := codeOf(t, err); code != c.want {
				t.Errorf("code %s, want %s", code, c.want)
			}
			if l.calls != 1 {
				t.Errorf("proposed %d times", l.calls)
			}
		})
	}
}

func TestWhatAnOldTermRefusedIsProposedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){
			results("", schema.NotLeader, schema.NotLeader), results(),
		}}
		got, err := newRouter(t, l).Submit(context.Background(), commands("a", "b", "c"))
		if err != nil || describe(got) != "a: b: c: " {
			t.Fatalf("got %q, %v", describe(got), err)
		}
		if fmt.Sprint(l.seen) != "[[a b c] [b c]]" {
			t.Errorf("proposals %v", l.seen)
		}
	})
}

func TestARefusedCommandBeforeAnAcceptedOneKeepsItsRefusal(t *testing.T) {
	t.Parallel()
	// Proposed again it would land behind its successor and turn the order of
	// the batch round.
	l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){
		results(schema.NotLeader, ""),
	}}
	got, err := newRouter(t, l).Submit(context.Background(), commands("a", "b"))
	if err != nil || describe(got) != "a:not_leader b: " {
		t.Fatalf("got %q, %v", describe(got), err)
	}
}

func TestOnceSomethingIsAppliedTheCallNoLongerFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLeader{propose: []func(context.Context, []*pb.Command) ([]*pb.Result, error){
			results("", schema.NotLeader), refuse(schema.ResultUnknown),
		}}
		got, err := newRouter(t, l).Submit(context.Background(), commands("a", "b"))
		if err != nil {
			t.Fatal(err)
		}
		if describe(got) != "a: scripted:result_unknown " {
			t.Errorf("results %q", describe(got))
		}
	})
}

func TestReadRetriesWithoutLeaderAndNamesItsErrors(t *testing.T) {
	t.Parallel()
	fail := func(err error) func(context.Context, *pb.Query) (*pb.Answer, error) {
		return func(context.Context, *pb.Query) (*pb.Answer, error) { return nil, err }
	}
	answer := func(context.Context, *pb.Query) (*pb.Answer, error) { return &pb.Answer{Index: 5}, nil }
	for _, c := range []struct {
		name  string
		steps []func(context.Context, *pb.Query) (*pb.Answer, error)
		want  schema.Code // empty = answered
	}{
		{"a leader comes", []func(context.Context, *pb.Query) (*pb.Answer, error){fail(&schema.Error{Code: schema.NotLeader}), answer}, ""},
		{"no leader comes", []func(context.Context, *pb.Query) (*pb.Answer, error){fail(&schema.Error{Code: schema.NotLeader})}, schema.NoLeader},
		{"unavailable", []func(context.Context, *pb.Query) (*pb.Answer, error){fail(&schema.Error{Code: schema.Unavailable})}, schema.Unavailable},
		{"too late", []func(context.Context, *pb.Query) (*pb.Answer, error){fail(context.DeadlineExceeded)}, schema.DeadlineExpired},
		{"no code", []func(context.Context, *pb.Query) (*pb.Answer, error){fail(errors.New("odd"))}, schema.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got, err := newRouter(t, &fakeLeader{query: c.steps}).Read(context.Background(), &pb.Query{})
				if c.want == "" {
					if err != nil || got.GetIndex() != 5 {
						t.Fatalf("got %v, %v", got, err)
					}
					return
				}
				if code := codeOf(t, err); code != c.want {
					t.Errorf("code %s, want %s", code, c.want)
				}
			})
		})
	}
}

func TestConfigNamesTheWrongField(t *testing.T) {
	t.Parallel()
	good := Config{Replica: &fakeLeader{}, Feed: NewFeed()}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"Replica":    func(c *Config) { c.Replica = nil },
		"Voters":     func(c *Config) { c.Replica, c.Peers = nil, &Peers{} },
		"Self":       func(c *Config) { c.Peers = &Peers{} },
		"Feed":       func(c *Config) { c.Feed = nil },
		"Timeout":    func(c *Config) { c.Timeout = -1 },
		"LeaderWait": func(c *Config) { c.LeaderWait = -1 },
	} {
		bad := good
		change(&bad)
		err := bad.Validate()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
		if _, err := NewRouter(bad); err == nil {
			t.Errorf("%s: a router was made all the same", name)
		}
	}
}
