package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pulse/cmd/pulse/proc"
	"pulse/sdk"
)

// What to kill.
const (
	KillLeader  = "leader"
	KillGateway = "gateway"
	KillServer  = "server"
	KillNone    = "none"
)

const (
	startWithin = 30 * time.Second
	// standstill ends a demo that makes no progress: longer than a lease and
	// all that hangs on it.
	standstill  = 90 * time.Second
	auditWithin = 2 * time.Minute
	closeWithin = 5 * time.Second
	lookEvery   = 50 * time.Millisecond
)

// Config of a demo. All fields are required.
type Config struct {
	Binary string // this program, which is started as the servers too
	Tasks  int
	Kill   string
	Seed   uint64
	View   View
}

// Summary is what a demo has to say at its end. The names are stable.
type Summary struct {
	OK              bool    `json:"ok"`
	Submitted       int     `json:"submitted"` // acknowledged
	Succeeded       int     `json:"succeeded"`
	Failed          int     `json:"failed"`
	Cancelled       int     `json:"cancelled"`
	NeedsReview     int     `json:"needs_review"`
	Lost            int     `json:"lost"`             // acknowledged and not over
	EffectsDoubled  int     `json:"effects_doubled"`  // must not happen twice, and did
	EffectsMissing  int     `json:"effects_missing"`  // SUCCEEDED without an effect
	ResultsAltered  int     `json:"results_altered"`  // of those read back
	EffectsRepeated int     `json:"effects_repeated"` // of tasks that said it does no harm
	EffectsRefused  int     `json:"effects_refused"`  // by their fencing token
	Unanswered      int     `json:"unanswered"`       // submissions without an answer
	FailoverMs      int64   `json:"failover_ms"`      // from the kill to the next acknowledged submission
	AssignmentGapMs int64   `json:"assignment_gap_ms"`
	LeasesAtKill    int     `json:"leases_at_kill"`
	LeasesKept      int     `json:"leases_kept"`
	TasksPerSecond  float64 `json:"tasks_per_s"`
	Seconds         float64 `json:"seconds"`
	Nodes           int     `json:"nodes"`
	Workers         int     `json:"workers"`
	Kill            string  `json:"kill"`
	Seed            uint64  `json:"seed"`
}

// show is a demo under way.
type show struct {
	cfg      Config
	dir      string
	nodes    []*proc.Server
	resource *resource
	fleet    *fleet
	load     *load
	client   *sdk.Client
	began    time.Time
	down     bool         // a node is not there
	dead     *proc.Server // that one
	killedAt time.Time
}

// Run is a whole demo. An error means that it could not be shown to its end; what
// it has found out is in the Summary, whose OK says whether all is well.
func Run(ctx context.Context, cfg Config) (sum *Summary, err error) {
	s := &show{cfg: cfg, resource: newResource()}
	if s.dir, err = os.MkdirTemp("", "pulse-demo-"); err != nil {
		return nil, err
	}
	defer func() { err = s.clear(ctx, sum, err) }()
	logFile, err := os.Create(filepath.Join(s.dir, "fleet.log"))
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	logger := slog.New(slog.NewJSONHandler(logFile, nil))

	if s.nodes, err = servers(cfg, s.dir); err != nil {
		return nil, err
	}
	addrs, err := s.startNodes(ctx)
	if err != nil {
		return nil, err
	}
	s.client = sdk.NewClient(sdk.ClientOptions{Addrs: addrs, Logger: logger})
	if s.fleet, err = startFleet(ctx, addrs, cfg.Seed, s.resource, logger); err != nil {
		return nil, fmt.Errorf("connecting the workers: %w", err)
	}
	defer s.fleet.close()
	s.say("%d workers connected to %s", workers, plural(len(s.nodes), "node"))
	return s.perform(ctx)
}

func (s *show) startNodes(ctx context.Context) (addrs []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	s.say("starting %s", plural(len(s.nodes), "server"))
	if err := proc.StartAll(ctx, s.nodes); err != nil {
		return nil, err
	}
	for _, n := range s.nodes {
		addrs = append(addrs, n.URL())
		s.say("%s serves %s (pid %d)", n.ID(), n.URL(), n.PID())
	}
	return addrs, nil
}

// perform runs the load, the kill and the audit.
func (s *show) perform(ctx context.Context) (*Summary, error) {
	s.load = newLoad(s.client, s.cfg.Tasks, s.cfg.Seed)
	s.began = time.Now()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var submitting sync.WaitGroup
	submitting.Go(func() { s.load.run(loading) })
	defer submitting.Wait()
	defer stop()

	if s.cfg.Kill != KillNone {
		if err := s.until(ctx, func() bool { return int(s.fleet.ended.Load()) >= s.cfg.Tasks/2 }); err != nil {
			return nil, err
		}
		if err := s.kill(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.until(ctx, func() bool { return s.allOver(ctx) }); err != nil {
		return nil, err
	}
	submitting.Wait()
	took := time.Since(s.began)
	s.fleet.endGap()
	s.cfg.View.Status(s.now())
	s.say("all over; asking the cluster about every task")
	return s.examine(ctx, took)
}

// kill ends a node with SIGKILL and starts it again at once, as whatever watches
// over a real server would.
func (s *show) kill(ctx context.Context) error {
	victim, office, err := s.victim(ctx)
	if err != nil {
		return err
	}
	pid := victim.PID()
	held := s.fleet.hold()
	s.killedAt, s.down, s.dead = time.Now(), true, victim
	if err := victim.Kill(); err != nil {
		return err
	}
	s.say("kill -9 of %s%s (pid %d) with %s under way", victim.ID(), office, pid, plural(held, "attempt"))
	s.load.watch()
	if len(s.nodes) > 1 {
		if err := s.takeOver(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := s.aside(ctx, victim.Start); err != nil {
		return fmt.Errorf("starting %s again: %w", victim.ID(), err)
	}
	s.down, s.dead = false, nil
	s.say("%s serves again after %s (pid %d)", victim.ID(), time.Since(s.killedAt).Round(time.Millisecond), victim.PID())
	return nil
}

// takeOver waits, with the victim still dead, until the others have answered a
// submission and say who leads them.
func (s *show) takeOver(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	var leader string
	err := s.aside(ctx, func(ctx context.Context) (err error) {
		select {
		case <-s.load.firstAnswer:
			leader, err = s.leader(ctx)
			return err
		case <-ctx.Done():
			return fmt.Errorf("nobody took over: %w", ctx.Err())
		}
	})
	if err == nil {
		how := "leads now"
		if s.cfg.Kill == KillGateway {
			how = "goes on leading"
		}
		s.say("%s %s; the first submission after the kill was acknowledged %s after it",
			leader, how, s.load.answeredAt().Sub(s.killedAt).Round(time.Millisecond))
	}
	return err
}

// aside does something that takes a while and keeps the view alive.
func (s *show) aside(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			s.cfg.View.Status(s.now())
		}
	}
}

// until looks again and again, as long as there is progress.
func (s *show) until(ctx context.Context, over func() bool) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	moved, last := time.Now(), int64(-1)
	for !over() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if n := s.fallen(); n != nil {
			return fmt.Errorf("%s has ended by itself:\n%s", n.ID(), n.LogTail())
		}
		if n := s.fleet.ended.Load() + s.load.acknowledged.Load(); n != last {
			moved, last = time.Now(), n
		}
		if time.Since(moved) > standstill {
			s.say("no progress for %s, giving up the waiting", standstill)
			return nil // the audit tells what is lost
		}
		s.cfg.View.Status(s.now())
	}
	return nil
}

// fallen is a node that has ended without being killed, or nil.
func (s *show) fallen() *proc.Server {
	for _, n := range s.nodes {
		select {
		case <-n.Dead():
			if n != s.dead {
				return n
			}
		default:
		}
	}
	return nil
}

// allOver asks the cluster once the fleet seems to have done everything.
func (s *show) allOver(ctx context.Context) bool {
	if int(s.load.acknowledged.Load())+s.load.failures() < s.cfg.Tasks || s.fleet.ended.Load() < s.load.acknowledged.Load() {
		return false
	}
	over, err := settled(ctx, s.client)
	return err == nil && over
}

func (s *show) examine(ctx context.Context, took time.Duration) (*Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, auditWithin)
	defer cancel()
	sum := &Summary{
		Submitted: len(s.load.acked), Unanswered: len(s.load.refused), Nodes: len(s.nodes), Workers: workers,
		Kill: s.cfg.Kill, Seed: s.cfg.Seed, Seconds: round(took.Seconds()), AssignmentGapMs: s.fleet.gapNow().Milliseconds(),
		LeasesAtKill: len(s.fleet.held),
	}
	a, err := examine(ctx, s.client, s.load.acked, s.resource)
	if err != nil {
		return nil, err
	}
	if sum.LeasesKept, err = keptLeases(ctx, s.client, s.fleet.held); err != nil {
		return nil, err
	}
	if at := s.load.answeredAt(); !at.IsZero() {
		sum.FailoverMs = at.Sub(s.killedAt).Milliseconds()
	}
	account := s.resource.account()
	sum.Succeeded, sum.Failed, sum.Cancelled, sum.NeedsReview = a.succeeded, a.failed, a.cancelled, a.needsReview
	sum.Lost, sum.EffectsMissing, sum.ResultsAltered = len(a.lost), len(a.missing), len(a.altered)
	sum.EffectsDoubled, sum.EffectsRepeated, sum.EffectsRefused = account.doubled, account.repeated, account.refused
	sum.TasksPerSecond = round(float64(a.succeeded) / took.Seconds())
	sum.OK = sum.Lost == 0 && sum.EffectsDoubled == 0 && sum.EffectsMissing == 0 && sum.ResultsAltered == 0
	s.tell(a)
	return sum, nil
}

// tell names what went wrong, task by task, as far as anybody wants to read.
func (s *show) tell(a *audit) {
	const most = 10
	for _, what := range []struct {
		word string
		ids  []string
	}{{"lost", a.lost}, {"succeeded without an effect", a.missing}, {"has another result", a.altered}} {
		for i, id := range what.ids {
			if i == most {
				s.say("… and %d more", len(what.ids)-most)
				break
			}
			s.say("task %s %s", id, what.word)
		}
	}
	for _, err := range s.load.refused[:min(len(s.load.refused), most)] {
		s.say("not submitted: %v", err)
	}
}

// clear ends the nodes and removes what they kept, unless somebody will want to
// look at it.
func (s *show) clear(ctx context.Context, sum *Summary, err error) error {
	now, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	for _, n := range s.nodes {
		err = errors.Join(err, n.Close(now))
	}
	if ctx.Err() == nil && (err != nil || sum == nil || !sum.OK) {
		s.say("data and logs are kept in %s", s.dir)
		return err
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *show) say(format string, args ...any) {
	after := time.Duration(0)
	if !s.began.IsZero() {
		after = time.Since(s.began)
	}
	s.cfg.View.Say(after, fmt.Sprintf(format, args...))
}

func round(x float64) float64 { return float64(int64(x*10+0.5)) / 10 }

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
