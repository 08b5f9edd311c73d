package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A server whose disk was emptied remembers neither its log nor its votes. If
// the configuration still counts it as a voter, its vote could elect a leader
// that lacks entries this very server once helped to commit. So a server that
// begins empty, and did not found the cluster, takes no part in elections until
// the log has shown it to itself as a learner and then, promoted again, as a
// voter. A file keeps that over restarts.
const learnerFile = "learner"

const (
	learnerNew  = "new\n"
	learnerSeen = "learning\n"
)

// guard keeps a learner out of elections and counts snapshots sent in vain. It
// stands between raft and its transport.
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
	// suffrage tells this server's place in the newest configuration it has.
	suffrage func() (voter, known bool)
	// heard is told in which term a leader is heard of, and what it has committed.
	heard func(term, committed uint64)
	// again names a follower that was sent the same snapshot twice.
	again chan raft.ServerID

	mu   sync.Mutex
	sent map[raft.ServerID]sentSnapshot
}

type sentSnapshot struct {
	index uint64
	times int
}

var errLearner = errors.New("this server has begun empty and takes no part in elections before it is promoted")

// newGuard wraps a transport. fresh says that this server begins empty and does
// not found the cluster.
func newGuard(t raft.Transport, dir string, fresh bool, heard func(term, committed uint64)) (*guard, error) {
	g := &guard{
		Transport: t, heard: heard, path: filepath.Join(dir, learnerFile), rpcs: make(chan raft.RPC), stop: make(chan struct{}),
		again: make(chan raft.ServerID, 1), sent: map[raft.ServerID]sentSnapshot{},
	}
	g.preVote, _ = t.(raft.WithPreVote)
	noted, err := os.ReadFile(g.path)
	switch {
	case err == nil:
		g.learner.Store(true)
		g.shown.Store(string(noted) == learnerSeen)
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
	_, err = io.WriteString(f, what)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// start begins to pass calls on to raft.
func (g *guard) start(suffrage func() (voter, known bool)) {
	g.suffrage = suffrage
	g.running.Go(g.pass)
}

func (g *guard) close() {
	g.once.Do(func() { close(g.stop) })
	g.running.Wait()
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
		case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest, *raft.TimeoutNowRequest:
			if g.keepsOut() {
				rpc.Respond(nil, errLearner)
				continue
			}
		}
		select {
		case g.rpcs <- rpc:
		case <-g.stop:
			return // unanswered, as by raft itself: the transport is closed next
		}
	}
}

// keepsOut says whether this server is still a learner, and notes what the log
// has shown it to be.
func (g *guard) keepsOut() bool {
	if !g.learner.Load() {
		return false
	}
	voter, known := g.suffrage()
	seen, err := os.ReadFile(g.path)
	if err != nil {
		return true
	}
	switch {
	case known && !voter && string(seen) != learnerSeen:
		if g.note(learnerSeen) == nil { // or else at the next call
			g.shown.Store(true)
		}
	case known && voter && string(seen) == learnerSeen:
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
