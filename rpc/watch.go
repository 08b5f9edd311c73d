package rpc

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "pulse/proto/pulse/v1"
)

const (
	// watchBeat is how often a voter says something on a watch stream that has
	// nothing to tell. watchSilence without a word means that the path to it is
	// dead: the kernel might not say so for a quarter of an hour.
	watchBeat    = 500 * time.Millisecond
	watchSilence = 4 * time.Second
	// unreadyMax is how long a voter without a leader is kept as the source:
	// others may have one.
	unreadyMax = 2 * time.Second

	watchRetryMin = 50 * time.Millisecond
	watchRetryMax = time.Second
)

// WatchConfig of a Watch. All fields are required.
type WatchConfig struct {
	Self   string // this node's id
	Peers  *Peers
	Voters func() []string // live voters
	Feed   *Feed           // of this node, fed by the Watch alone
	Logger *slog.Logger
}

// Watch feeds the Feed of a node without a replica from one voter, its source.
// It stays with a voter as long as that one is reachable and knows a leader,
// and prefers one that does not lead, which has less to do.
//
// Stale reads go to the source too. That is what makes a wake-up mean something:
// what it was for can be read where it came from. When the source changes, every
// watcher is woken, because what happened in between may have been missed.
type Watch struct {
	cfg      WatchConfig
	turn     int // whom to try next; Run's own
	failures int // attempts since a source was found; Run's own
	sources  atomic.Uint64

	mu       sync.Mutex // guards what is below
	state    WatchState
	led      string // the last leader there was
	onLeader func(id string)
}

// WatchState is what a Watch knows.
type WatchState struct {
	Source   string // the voter that feeds this node; empty: none now
	Silent   string // the last one that fell silent, and was not heard since
	LeaderID string // as the source, or the last one, said
	Term     uint64
	Ready    bool      // the source leads, or follows a leader that can serve
	Heard    time.Time // of the last source; zero: never
}

// NewWatch makes a watch that has no source before Run.
func NewWatch(cfg WatchConfig) (*Watch, error) {
	if cfg.Self == "" || cfg.Peers == nil || cfg.Voters == nil || cfg.Feed == nil || cfg.Logger == nil {
		return nil, errors.New("rpc: Watch needs Self, Peers, Voters, Feed and Logger")
	}
	cfg.Feed.track()
	h := fnv.New32a()
	_, _ = h.Write([]byte(cfg.Self)) // a hash never fails
	return &Watch{cfg: cfg, turn: int(h.Sum32() % 1024)}, nil
}

// State is what the watch knows now.
func (w *Watch) State() WatchState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Sources counts the times a source was found: one, unless voters went away.
func (w *Watch) Sources() uint64 { return w.sources.Load() }

// tellLeader has tell called, on Run's goroutine, when another node leads.
func (w *Watch) tellLeader(tell func(id string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onLeader = tell
}

// Run has a source whenever a voter is reachable, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	pause := watchRetryMin
	for ctx.Err() == nil {
		before := w.sources.Load()
		voter := w.next()
		if voter != "" {
			err := w.follow(ctx, voter)
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, errSilent) {
				// Nor will it answer what it was asked: reads go elsewhere now.
				w.cfg.Peers.abandon(voter, time.Now().Add(-movedGrace))
			}
			switch {
			case errors.Is(err, errLeads):
				continue
			case w.sources.Load() != before:
				pause, w.failures = watchRetryMin, 0
				w.cfg.Logger.Info("the voter that fed this gateway is lost, trying others", "voter", voter, "error", err)
			default:
				w.failures++
				w.cfg.Logger.Debug("voter cannot feed this gateway", "voter", voter, "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, watchRetryMax)
	}
}

// next takes the voters in turn, the leader only when all others have failed.
func (w *Watch) next() string {
	all := w.cfg.Voters()
	if others := w.others(w.State().LeaderID); w.failures < len(others) {
		all = others
	}
	if len(all) == 0 {
		return ""
	}
	w.turn++
	return all[w.turn%len(all)]
}

// others are the voters that do not lead.
func (w *Watch) others(leader string) []string {
	return slices.DeleteFunc(slices.Clone(w.cfg.Voters()), func(id string) bool { return id == leader })
}

// errSilent says that the path to a voter is dead, or the voter paused.
var errSilent = fmt.Errorf("nothing was heard for %s", watchSilence)

// errLeads says that a voter leads, while another may be there to do the work.
var errLeads = errors.New("it leads")

// follow is fed by one voter until that ends, and says why.
func (w *Watch) follow(ctx context.Context, voter string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(watchSilence, func() { cancel(errSilent) })
	defer silence.Stop()
	_, conn, err := w.cfg.Peers.conn(voter)
	if err != nil {
		return err
	}
	stream, err := pb.NewNodeServiceClient(conn).Watch(ctx)
	if err != nil {
		return reason(context.Cause(ctx), err)
	}
	told := map[string]struct{}{}
	if err := stream.Send(w.cfg.Feed.tellAll(told)); err != nil {
		return reason(context.Cause(ctx), err)
	}
	var telling sync.WaitGroup
	defer telling.Wait()
	defer cancel(nil)
	telling.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.cfg.Feed.tell:
			}
			if msg := w.cfg.Feed.tellChanges(told); msg != nil {
				if err := stream.Send(msg); err != nil {
					return // Recv fails too
				}
			}
		}
	})
	defer func() { w.lose(voter, errors.Is(context.Cause(ctx), errSilent)) }()
	unready := time.Time{}
	for first := true; ; first = false {
		msg, err := stream.Recv()
		if err != nil {
			return reason(context.Cause(ctx), err)
		}
		silence.Reset(watchSilence)
		if first && msg.LeaderId == voter && w.failures < len(w.others(voter)) {
			w.noteLeader(voter)
			return errLeads
		}
		w.heard(voter, msg, first)
		if first || msg.All {
			w.cfg.Feed.PublishAll(msg.Index)
		} else {
			w.cfg.Feed.publishTopics(msg.Index, msg.TaskIds)
		}
		switch {
		case msg.Ready:
			unready = time.Time{}
		case unready.IsZero():
			unready = time.Now()
		case time.Since(unready) > unreadyMax && len(w.cfg.Voters()) > 1:
			return errors.New("it knows no leader")
		}
	}
}

// reason is why this end gave up, if it did, else err.
func reason(why, err error) error {
	if why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return err
}

// heard notes what the source says, before anybody is woken by it.
func (w *Watch) heard(voter string, msg *pb.WatchResponse, first bool) {
	w.mu.Lock()
	moved, from := msg.LeaderId != "" && msg.LeaderId != w.state.LeaderID, w.led
	if moved {
		w.led = msg.LeaderId
	}
	silent := w.state.Silent
	if silent == voter {
		silent = ""
	}
	w.state = WatchState{Source: voter, Silent: silent, LeaderID: msg.LeaderId, Term: max(msg.Term, w.state.Term), Ready: msg.Ready, Heard: time.Now()}
	tell := w.onLeader
	w.mu.Unlock()
	if first {
		w.sources.Add(1)
		w.cfg.Logger.Info("this gateway is fed by a voter", "voter", voter, "leader", msg.LeaderId)
	}
	if !moved {
		return
	}
	if tell != nil {
		tell(msg.LeaderId)
	}
	if from != msg.LeaderId {
		w.cfg.Peers.LeaderMoved(from)
	}
}

// noteLeader keeps the leader from being the next one tried.
func (w *Watch) noteLeader(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.LeaderID = id
}

func (w *Watch) lose(voter string, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Source, w.state.Ready = "", false
	if silent {
		w.state.Silent = voter
	}
}

const (
	// watchPace is the least time between two answers on one stream: under load
	// every entry changes something, and what changed meanwhile goes in one.
	watchPace = 2 * time.Millisecond
	// describePace is how old what a voter says of itself may be.
	describePace = 100 * time.Millisecond
	// changesMax bounds the topics of one answer; beyond it, it says "all".
	changesMax = 16384
	// topicsMax bounds what one stream watches. It is above what a gateway has
	// places for; beyond it the stream ends.
	topicsMax = 262144
)

// Watch tells a node without a replica what changes here.
func (s *Server) Watch(stream pb.NodeService_WatchServer) error {
	if s.cfg.Feed == nil {
		return errNoReplica
	}
	g := s.cfg.Feed.Group()
	defer g.Close()
	ctx, cancel := context.WithCancel(stream.Context())
	var telling sync.WaitGroup
	defer telling.Wait()
	defer cancel()
	for first := true; ; first = false {
		msg, err := stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		g.Change(msg.Add, msg.Remove)
		if g.Size() > topicsMax {
			return errTooMuch
		}
		if first {
			telling.Go(func() { s.tell(ctx, stream, g) })
		}
	}
}

// tell sends what changes, and that this node is here.
func (s *Server) tell(ctx context.Context, stream pb.NodeService_WatchServer, g *Group) {
	beat := time.NewTicker(watchBeat)
	defer beat.Stop()
	var self *pb.DescribeResponse
	for asked := (time.Time{}); ; {
		if time.Since(asked) > describePace {
			self, asked = s.cfg.Local.Describe(0), time.Now()
		}
		// The topics first: the index is then one at which their changes are read.
		msg := &pb.WatchResponse{TaskIds: g.Take(), LeaderId: self.LeaderId, Term: self.Term, Ready: self.Ready}
		if len(msg.TaskIds) > changesMax {
			msg.TaskIds, msg.All = nil, true
		}
		msg.Index = s.cfg.Feed.AppliedIndex()
		if err := stream.Send(msg); err != nil {
			return // Recv fails too and ends the stream
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchPace):
		}
		select {
		case <-ctx.Done():
			return
		case <-g.Wake():
		case <-beat.C:
		}
	}
}
