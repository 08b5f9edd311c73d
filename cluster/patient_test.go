package cluster

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"
)

// callee is the transport to a server that is away for some calls.
type callee struct {
	raft.Transport
	calls int
	away  int
	err   error // while it is away
	read  int
}

func (c *callee) call() error {
	if c.calls++; c.calls <= c.away {
		return c.err
	}
	return nil
}

func (c *callee) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	return c.call()
}

func (c *callee) InstallSnapshot(_ raft.ServerID, _ raft.ServerAddress, _ *raft.InstallSnapshotRequest, _ *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := c.call(); err != nil {
		return err
	}
	all, err := io.ReadAll(data)
	c.read = len(all)
	return err
}

func TestALeaderWaitsForAFollowerThatIsAway(t *testing.T) {
	t.Parallel()
	away := unreachable{errors.New("nobody listens")}
	entries := &raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 3}
	send := func(p *patient, args *raft.AppendEntriesRequest) error {
		return p.AppendEntries("b", "b:1", args, &raft.AppendEntriesResponse{})
	}
	for _, tc := range []struct {
		name  string
		err   error
		leads int // so many questions are answered with yes
		args  *raft.AppendEntriesRequest
		calls int
		fails bool
	}{
		{"until it is back", away, 10, entries, 4, false},
		{"while it leads", away, 2, entries, 3, true},
		{"but with no heartbeat", away, 10, &raft.AppendEntriesRequest{Term: 7}, 1, true},
		{"but not if it is there and refuses", errors.New("of another cluster"), 10, entries, 1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			c := &callee{away: 3, err: tc.err}
			p := newPatient(c, func(term uint64) bool {
				if term != 7 {
					t.Errorf("asked about term %d", term)
				}
				asked++
				return asked <= tc.leads
			})
			if err := send(p, tc.args); (err != nil) != tc.fails || c.calls != tc.calls {
				t.Errorf("after %d calls: %v", c.calls, err)
			}
		})
	}
	t.Run("with a snapshot", func(t *testing.T) {
		t.Parallel()
		c := &callee{away: 2, err: away}
		p := newPatient(c, func(uint64) bool { return true })
		err := p.InstallSnapshot("b", "b:1", &raft.InstallSnapshotRequest{Term: 7}, nil, bytes.NewReader(make([]byte, 100)))
		if err != nil || c.read != 100 {
			t.Errorf("%d of 100 bytes: %v", c.read, err)
		}
	})
	t.Run("until it is closed", func(t *testing.T) {
		t.Parallel()
		c := &callee{away: 1 << 30, err: away}
		p := newPatient(c, func(uint64) bool { return true })
		p.end()
		if err := send(p, entries); !errors.Is(err, away.error) || c.calls != 1 {
			t.Errorf("after %d calls: %v", c.calls, err)
		}
	})
}

func TestADialThatFindsNobodySaysSo(t *testing.T) {
	t.Parallel()
	a, b := testLayer(t, "one"), testLayer(t, "one")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Dial(address(b), raftTimeout); !errors.As(err, &unreachable{}) {
		t.Errorf("nobody is there: %v", err)
	}
	other := testLayer(t, "two")
	if conn, err := a.Dial(address(other), raftTimeout); err == nil || errors.As(err, &unreachable{}) {
		t.Errorf("one of another cluster is there: %v %v", conn, err)
	}
}
