package cluster

import (
	"errors"
	"io"
	"slices"
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
// does not return before there is one, or nobody needs it any more: this server
// leads no longer, or the other one has moved or was removed.
type patient struct {
	raft.Transport
	raft.WithPreVote
	wanted func(door, uint64) bool
	ended  chan struct{}
	once   sync.Once
}

// door is where a server is called.
type door struct {
	id      raft.ServerID
	address raft.ServerAddress
}

// in says that a configuration has the server there.
func (d door) in(c raft.Configuration) bool {
	return slices.ContainsFunc(c.Servers, func(s raft.Server) bool { return s.ID == d.id && s.Address == d.address })
}

// newPatient wraps a transport. wanted says that this server leads in the term,
// and that the newest configuration has the other one at that address.
func newPatient(t raft.Transport, wanted func(d door, term uint64) bool) *patient {
	p := &patient{Transport: t, wanted: wanted, ended: make(chan struct{})}
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
	return p.wait(door{id, target}, args.Term, call)
}

// InstallSnapshot waits too: a call that finds no connection has read none of
// the snapshot.
func (p *patient) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return p.wait(door{id, target}, args.Term, func() error { return p.Transport.InstallSnapshot(id, target, args, resp, data) })
}

func (p *patient) wait(d door, term uint64, call func() error) error {
	err := call()
	if err == nil {
		return nil // as nearly always: no timer is made for it
	}
	until := time.After(callFor)
	for errors.As(err, &unreachable{}) && p.wanted(d, term) {
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
