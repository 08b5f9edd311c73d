package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// DefaultTimeout bounds a call whose caller set no deadline.
	DefaultTimeout = 10 * time.Second
	// DefaultLeaderWait is how long a call waits for a leader inside its own
	// deadline: longer than an election, shorter than a caller's patience.
	DefaultLeaderWait = 5 * time.Second

	leaderPollMin = 5 * time.Millisecond
	leaderPollMax = 100 * time.Millisecond
)

// Leader is what the router needs of the node that may lead. Its errors are
// *schema.Error; not_leader and no_leader promise that nothing happened.
type Leader interface {
	Propose(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error)
	Query(ctx context.Context, q *pb.Query) (*pb.Answer, error)
}

// Replica is a node with a state of its own, which answers reads that another
// node has said to be fresh enough.
type Replica interface {
	Leader
	// ReadAt answers once the log index is applied here.
	ReadAt(ctx context.Context, index uint64, q *pb.Query) (*pb.Answer, error)
	// LeaderID names who leads as far as this node knows; empty if nobody.
	LeaderID() string
}

// Config of a Router. Feed is required, and one of Replica and Peers.
type Config struct {
	Self    string  // this node's id
	Replica Replica // nil on a gateway without one
	Peers   *Peers  // nil on a node that is alone
	// Voters lists the live voters, for a node without a replica that knows no
	// leader; Watch is what feeds it and answers its stale reads.
	Voters  func() []string
	Watch   *Watch
	Feed    *Feed
	Timeout time.Duration // for calls without a deadline; 0 = DefaultTimeout
	// LeaderWait bounds the wait for a leader; 0 = DefaultLeaderWait.
	LeaderWait time.Duration
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Replica == nil && c.Peers == nil:
		return errors.New("rpc: Replica and Peers are both missing: give the local node, or the way to others")
	case c.Replica == nil && (c.Voters == nil || c.Watch == nil):
		return errors.New("rpc: Voters or Watch is missing: a node without a replica has to know whom to ask")
	case c.Peers != nil && c.Self == "":
		return errors.New("rpc: Self is missing: give this node's id")
	case c.Feed == nil:
		return errors.New("rpc: Feed is missing: give the feed that apply publishes to")
	case c.Timeout < 0:
		return fmt.Errorf("rpc: Timeout is %s: give a positive duration, or 0 for %s", c.Timeout, DefaultTimeout)
	case c.LeaderWait < 0:
		return fmt.Errorf("rpc: LeaderWait is %s: give a positive duration, or 0 for %s", c.LeaderWait, DefaultLeaderWait)
	}
	return nil
}

// Router carries commands and queries to the leader, here or one hop away. It is
// the only code that knows who leads. It is safe for use by any number of
// goroutines and owns none.
type Router struct {
	self       string
	replica    Replica
	peers      *Peers
	voters     func() []string
	watch      *Watch
	feed       *Feed
	timeout    time.Duration
	leaderWait time.Duration
	hint       atomic.Pointer[string] // who leads, as the last refusal said
	turn       atomic.Uint64          // whom to ask next when nobody knows
}

// NewRouter makes a router.
func NewRouter(cfg Config) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Router{
		self: cfg.Self, replica: cfg.Replica, peers: cfg.Peers, voters: cfg.Voters, watch: cfg.Watch, feed: cfg.Feed,
		timeout: cfg.Timeout, leaderWait: cfg.LeaderWait,
	}
	if r.timeout == 0 {
		r.timeout = DefaultTimeout
	}
	if r.leaderWait == 0 {
		r.leaderWait = DefaultLeaderWait
	}
	if r.replica == nil {
		r.watch.tellLeader(func(id string) { r.hint.Store(&id) })
	}
	return r, nil
}

// leader is where a call goes: this node if it leads or nobody is known to, the
// node known to lead, or any voter, which knows better.
func (r *Router) leader() (Leader, string) {
	id := ""
	if r.replica != nil {
		id = r.replica.LeaderID()
		if id == "" || id == r.self || r.peers == nil {
			return r.replica, r.self
		}
		return r.peers.To(id), id
	}
	if h := r.hint.Load(); h != nil {
		id = *h
	}
	if id == "" {
		id = r.someVoter()
	}
	return r.peers.To(id), id
}

// someVoter asks the voters in turn, but for one that has just fallen silent.
func (r *Router) someVoter() string {
	v := r.voters()
	if silent := r.watch.State().Silent; silent != "" && len(v) > 1 {
		v = slices.DeleteFunc(slices.Clone(v), func(id string) bool { return id == silent })
	}
	if len(v) == 0 {
		return ""
	}
	return v[r.turn.Add(1)%uint64(len(v))]
}

// learn remembers who leads, or that asked does not.
func (r *Router) learn(asked string, err error) {
	var n *notLeader
	if errors.As(err, &n) && n.leaderID != asked {
		r.hint.Store(&n.leaderID)
		return
	}
	r.hint.Store(nil)
}

// Submit hands commands to the leader and returns their results in order, once
// applied. The commands belong to the router from now on.
//
// What apply refused with not_leader (an entry that outlived its proposer's
// term) had no effect and is proposed again, as long as nothing after it was
// accepted: so the order of a batch is kept whatever happens.
func (r *Router) Submit(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	ctx, cancel := r.withDeadline(ctx)
	defer cancel()

	var done []*pb.Result
	wait := leaderWait{budget: r.leaderWait}
	for {
		leader, id := r.leader()
		results, err := leader.Propose(ctx, cmds)
		if err == nil && len(results) != len(cmds) {
			err = &schema.Error{Code: schema.ResultUnknown, Message: fmt.Sprintf("%d commands got %d results", len(cmds), len(results))}
		}
		if err != nil {
			if nothingHappened(err) {
				r.learn(id, err)
				if wait.next(ctx) {
					continue
				}
			}
			return finish(done, len(cmds), submitError(err))
		}
		refused := refusedTail(results)
		accepted := len(results) - refused
		done = append(done, results[:accepted]...)
		for _, result := range results {
			r.saw(result.GetIndex())
		}
		if refused == 0 {
			return done, nil
		}
		if !wait.next(ctx) {
			return append(done, results[accepted:]...), nil
		}
		cmds = cmds[accepted:]
	}
}

// Read answers one query, as fresh as it asks.
func (r *Router) Read(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	ctx, cancel := r.withDeadline(ctx)
	defer cancel()
	wait := leaderWait{budget: r.leaderWait}
	for {
		answer, err := r.read(ctx, q)
		if err == nil {
			return answer, nil
		}
		if !nothingHappened(err) || !wait.next(ctx) {
			return nil, readError(err)
		}
	}
}

// read asks once. A node with a replica asks the leader only how far it has to
// be; without one the whole query goes to a voter.
func (r *Router) read(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	stale := q.GetConsistency() == pb.Consistency_CONSISTENCY_STALE
	if stale && r.replica != nil {
		return r.replica.Query(ctx, q)
	}
	if stale {
		return r.readStale(ctx, q)
	}
	leader, id := r.leader()
	remote, elsewhere := leader.(Remote)
	if r.replica == nil || !elsewhere {
		answer, err := leader.Query(ctx, q)
		if err != nil {
			r.learn(id, err)
			return nil, err
		}
		r.saw(answer.GetIndex())
		return answer, nil
	}
	index, err := remote.ReadIndex(ctx)
	if err != nil {
		return nil, err
	}
	return r.replica.ReadAt(ctx, index, q)
}

// readStale asks the voter that feeds this node, because what it told of can be
// read there; any other if there is none.
func (r *Router) readStale(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	id := r.watch.State().Source
	if id == "" {
		id = r.someVoter()
	}
	answer, err := r.peers.To(id).Query(ctx, q)
	if err == nil {
		r.saw(answer.GetIndex())
	}
	return answer, err
}

// saw notes an index that an answer speaks of: on a node without a replica the
// feed may be a moment behind it.
func (r *Router) saw(index uint64) {
	if r.replica == nil {
		r.feed.advance(index)
	}
}

// Subscribe wakes the caller after changes of the task, or of anything if
// taskID is empty. See Feed.Subscribe.
func (r *Router) Subscribe(taskID []byte) (wake <-chan struct{}, cancel func()) {
	return r.feed.Subscribe(taskID)
}

// AppliedIndex is the newest index known to be applied here.
func (r *Router) AppliedIndex() uint64 { return r.feed.AppliedIndex() }

func (r *Router) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, r.timeout)
}

// refusedTail counts the results at the end that apply refused with not_leader.
func refusedTail(results []*pb.Result) int {
	n := 0
	for n < len(results) && schema.Code(results[len(results)-1-n].GetCode()) == schema.NotLeader {
		n++
	}
	return n
}

// finish joins results that are in with the fate of the rest: once some
// commands are applied the call as a whole can no longer fail.
func finish(done []*pb.Result, rest int, err *schema.Error) ([]*pb.Result, error) {
	if len(done) == 0 {
		return nil, err
	}
	for range rest {
		done = append(done, &pb.Result{Code: string(err.Code), Message: err.Message})
	}
	return done, nil
}

// leaderWait paces the attempts to reach a leader. The wait is one budget for
// a whole call, so that a flapping leader cannot hold a caller for ever. It
// costs nothing as long as there is a leader.
type leaderWait struct {
	budget time.Duration
	until  time.Time // zero before the first refusal
	pause  time.Duration
}

// next waits a little and says whether to try again.
func (w *leaderWait) next(ctx context.Context) bool {
	if w.until.IsZero() {
		w.until = time.Now().Add(w.budget)
		w.pause = leaderPollMin
	}
	if time.Until(w.until) < w.pause {
		return false
	}
	pause := time.NewTimer(w.pause)
	defer pause.Stop()
	w.pause = min(2*w.pause, leaderPollMax)
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
		return true
	}
}

// nothingHappened says that the call had no effect and a leader may be found
// in a moment.
func nothingHappened(err error) bool {
	var e *schema.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == schema.NotLeader || e.Code == schema.NoLeader
}

// submitError gives a failed proposal its public meaning. An error without a
// code promises nothing, so the outcome counts as unknown.
func submitError(err error) *schema.Error {
	var e *schema.Error
	switch {
	case !errors.As(err, &e):
		return &schema.Error{Code: schema.ResultUnknown, Message: err.Error()}
	case e.Code == schema.NotLeader:
		return &schema.Error{Code: schema.NoLeader, Message: e.Message}
	}
	return e
}

func readError(err error) *schema.Error {
	var e *schema.Error
	switch {
	case errors.As(err, &e) && e.Code == schema.NotLeader:
		return &schema.Error{Code: schema.NoLeader, Message: e.Message}
	case e != nil:
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &schema.Error{Code: schema.DeadlineExpired, Message: "the read was not answered in time"}
	}
	return &schema.Error{Code: schema.Unavailable, Message: err.Error()}
}
