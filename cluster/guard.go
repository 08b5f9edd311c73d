package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A server whose disk was emptied remembers neither its log nor its votes. If
// the configuration still counts it as a voter, its vote could elect a leader
// that lacks entries this very server once helped to commit. So a server that
// begins empty, and did not found the cluster, takes no part in elections until
// the log has shown it to itself as a learner and then, promoted again, as a
// voter. The log it is sent tells its own past, too: how it was a learner and was
// promoted before its disk was emptied. So only what the log shows once it goes as far
// as the leader's did at the first contact counts. A file keeps that over restarts.
const learnerFile = "learner"

// What the file says: new, with how far the log went once that is known, or learning.
const (
	learnerNew  = "new"
	learnerSeen = "learning"
)

// guard keeps a learner out of elections, counts snapshots sent in vain and has raft
// change its mind in one goroutine. It stands between raft and its transport.
type guard struct {
	raft.Transport
	preVote raft.WithPreVote
	path    string
	rpcs    chan raft.RPC
	stop    chan struct{}
	running sync.WaitGroup
	once    sync.Once

	learner atomic.Bool
	shown   atomic.Bool // the log has shown it to itself as a learner
	looking sync.Mutex  // guards reach and the file, and changes of learner and shown
	reach   uint64      // how far the log went at the first contact with a leader; 0: there was none
	// suffrage tells this server's place in the newest configuration it has, and how
	// far its log goes.
	suffrage func() (voter, known bool, last uint64)
	// follows says that this server follows in a term, or in a later one. Nil before
	// raft has started.
	follows atomic.Pointer[func(term uint64) bool]
	// settle waits until all that raft has stored is durable, see aheadLog.
	settle settle
	// heard is told in which term a leader is heard of, and what it has committed.
	heard func(term, committed uint64)
	// again names a follower that was sent the same snapshot twice.
	again chan raft.ServerID

	mu   sync.Mutex
	sent map[raft.ServerID]sentSnapshot
}

type settle func(index uint64, stop <-chan struct{}) error

type sentSnapshot struct {
	index uint64
	times int
}

var errLearner = errors.New("this server has begun empty and takes no part in elections before it is promoted")

// newGuard wraps a transport. fresh says that this server begins empty and does
// not found the cluster.
func newGuard(t raft.Transport, dir string, fresh bool, heard func(term, committed uint64), settle settle) (*guard, error) {
	g := &guard{
		Transport: t, heard: heard, settle: settle, path: filepath.Join(dir, learnerFile), rpcs: make(chan raft.RPC), stop: make(chan struct{}),
		again: make(chan raft.ServerID, 1), sent: map[raft.ServerID]sentSnapshot{},
	}
	g.preVote, _ = t.(raft.WithPreVote)
	noted, err := os.ReadFile(g.path)
	switch {
	case err == nil:
		g.learner.Store(true)
		said := strings.Fields(string(noted))
		g.shown.Store(len(said) > 0 && said[0] == learnerSeen)
		if len(said) > 1 {
			if g.reach, err = strconv.ParseUint(said[1], 10, 64); err != nil {
				return nil, fmt.Errorf("cluster: %s is damaged: %w%s", g.path, err, startEmpty)
			}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("cluster: %w", err)
	case fresh:
		if err := g.note(learnerNew); err != nil {
			return nil, err
		}
		g.learner.Store(true)
	}
	return g, nil
}

func (g *guard) note(what string) error {
	f, err := os.OpenFile(g.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	_, err = io.WriteString(f, what+"\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// start begins to pass calls on to raft.
func (g *guard) start(suffrage func() (voter, known bool, last uint64)) {
	g.suffrage = suffrage
	g.running.Go(g.pass)
}

func (g *guard) close() {
	g.once.Do(func() { close(g.stop) })
	g.running.Wait()
}

// SetHeartbeatHandler lets raft answer heartbeats while its main goroutine is at its
// disk, but only those that change nothing. Raft would note a new term and that it
// follows in the goroutine of such a call, too, beside a main one that goes on as a
// leader until something wakes it: what it is then asked to append it appends in the
// term of the new leader, whose own entry at that place is another one with the same
// term, and no follower can tell them apart. Or the main one has just won an election,
// and leads in the term of somebody else. So these wait for the main goroutine.
func (g *guard) SetHeartbeatHandler(answer func(raft.RPC)) {
	g.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if c, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && g.inStep(c.Term) {
			answer(rpc)
			return
		}
		select {
		case g.rpcs <- rpc:
		case <-g.stop: // unanswered, see pass
		}
	})
}

// inStep says that a heartbeat of a term is no news.
func (g *guard) inStep(term uint64) bool {
	follows := g.follows.Load()
	return follows != nil && (*follows)(term)
}

// Consumer is where raft takes calls from.
func (g *guard) Consumer() <-chan raft.RPC { return g.rpcs }

func (g *guard) pass() {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-g.Transport.Consumer():
		case <-g.stop:
			return
		}
		switch c := rpc.Command.(type) {
		case *raft.AppendEntriesRequest:
			if c.PrevLogEntry != 0 || len(c.Entries) > 0 { // a heartbeat tells of no commit
				g.heard(c.Term, c.LeaderCommitIndex)
			}
			reach := max(c.PrevLogEntry, c.LeaderCommitIndex)
			if n := len(c.Entries); n > 0 {
				reach = max(reach, c.Entries[n-1].Index)
			}
			if err := g.meet(reach); err != nil {
				rpc.Respond(nil, err)
				continue
			}
		case *raft.InstallSnapshotRequest:
			if err := g.meet(c.LastLogIndex); err != nil {
				rpc.Respond(nil, err)
				continue
			}
		case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest, *raft.TimeoutNowRequest:
			if g.keepsOut() {
				rpc.Respond(nil, errLearner)
				continue
			}
		}
		if err := g.settle(math.MaxUint64, g.stop); err != nil {
			rpc.Respond(nil, err)
			continue
		}
		select {
		case g.rpcs <- rpc:
		case <-g.stop:
			return // unanswered, as by raft itself: the transport is closed next
		}
	}
}

// meet notes, before anything of it is answered, how far the log of the first leader
// goes that is heard of. Everything this server may have helped to commit before its
// disk was emptied is below that: that leader has it, and either it has sent it before,
// or begins behind all that it has.
func (g *guard) meet(reach uint64) error {
	if reach == 0 || !g.learner.Load() {
		return nil
	}
	if err := g.noteReach(reach); err != nil {
		return err
	}
	g.keepsOut()
	return nil
}

func (g *guard) noteReach(reach uint64) error {
	g.looking.Lock()
	defer g.looking.Unlock()
	if g.reach != 0 || g.shown.Load() {
		return nil
	}
	if err := g.note(learnerNew + " " + strconv.FormatUint(reach, 10)); err != nil {
		return err
	}
	g.reach = reach
	return nil
}

// keepsOut says whether this server is still a learner, and notes what the log
// has shown it to be.
func (g *guard) keepsOut() bool {
	if !g.learner.Load() {
		return false
	}
	g.looking.Lock()
	defer g.looking.Unlock()
	voter, known, last := g.suffrage()
	switch {
	case !known:
	case !voter && !g.shown.Load() && g.reach > 0 && last >= g.reach: // or else it is told the past
		if g.note(learnerSeen) == nil { // or else at the next call
			g.shown.Store(true)
		}
	case voter && g.shown.Load():
		if os.Remove(g.path) == nil {
			g.learner.Store(false)
			return false
		}
	}
	return true
}

// RequestVote asks for a vote, unless this server may not stand.
func (g *guard) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if g.keepsOut() {
		return errLearner
	}
	return g.Transport.RequestVote(id, target, args, resp)
}

// RequestPreVote asks whether a vote would be given.
func (g *guard) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if g.keepsOut() {
		return errLearner
	}
	if g.preVote == nil {
		return errors.New("the transport knows no pre-vote")
	}
	return g.preVote.RequestPreVote(id, target, args, resp)
}

// InstallSnapshot sends a snapshot. A follower with a tail that conflicts at
// the snapshot's own index takes it and stays where it was, for ever: sending
// the same one twice makes the leader take a newer one.
func (g *guard) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := g.Transport.InstallSnapshot(id, target, args, resp, data)
	if err != nil {
		return err
	}
	g.mu.Lock()
	s := g.sent[id]
	if s.index != args.LastLogIndex {
		s = sentSnapshot{index: args.LastLogIndex}
	}
	s.times++
	g.sent[id] = s
	g.mu.Unlock()
	if s.times > 1 {
		select {
		case g.again <- id:
		default: // one is on its way
		}
	}
	return nil
}

// Close closes the transport beneath.
func (g *guard) Close() error {
	if t, ok := g.Transport.(raft.WithClose); ok {
		return t.Close()
	}
	return nil
}
