package cluster

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// callEvery is how often a server that cannot be reached is called.
	callEvery = 200 * time.Millisecond
	// callFor ends one wait; raft begins the next, after a pause of its own.
	callFor = 5 * time.Minute
)

// unreachable is why no connection to a server could be opened.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// patient waits for a follower that cannot be reached. Raft pauses after each
// failure, longer and longer, up to ten seconds, and nothing wakes it: a server
// that came back would be sent nothing for as long, and a second failure in that
// time would find it behind. So the call that fails for want of a connection
// does not return before there is one, or nobody needs it any more.
type patient struct {
	raft.Transport
	raft.WithPreVote
	leads func(term uint64) bool // this server still does
	ended chan struct{}
	once  sync.Once
}

func newPatient(t raft.Transport, leads func(term uint64) bool) *patient {
	p := &patient{Transport: t, leads: leads, ended: make(chan struct{})}
	p.WithPreVote, _ = t.(raft.WithPreVote)
	return p
}

// end lets all calls return.
func (p *patient) end() { p.once.Do(func() { close(p.ended) }) }

func (p *patient) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	call := func() error { return p.Transport.AppendEntries(id, target, args, resp) }
	if args.PrevLogEntry == 0 && len(args.Entries) == 0 {
		return call() // a heartbeat: its failures are counted, and its pauses are short
	}
	return p.wait(args.Term, call)
}

// InstallSnapshot waits too: a call that finds no connection has read none of
// the snapshot.
func (p *patient) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return p.wait(args.Term, func() error { return p.Transport.InstallSnapshot(id, target, args, resp, data) })
}

func (p *patient) wait(term uint64, call func() error) error {
	err := call()
	if err == nil {
		return nil // as nearly always: no timer is made for it
	}
	until := time.After(callFor)
	for errors.As(err, &unreachable{}) && p.leads(term) {
		select {
		case <-time.After(callEvery):
		case <-until:
			return err
		case <-p.ended:
			return err
		}
		err = call()
	}
	return err
}

// Close closes the transport beneath.
func (p *patient) Close() error {
	p.end()
	if t, ok := p.Transport.(raft.WithClose); ok {
		return t.Close()
	}
	return nil
}
