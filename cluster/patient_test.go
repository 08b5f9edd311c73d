package cluster

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"pulse/test/calm"
	"pulse/test/ports"
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
		name   string
		err    error
		wanted int // so many questions are answered with yes
		args   *raft.AppendEntriesRequest
		calls  int
		fails  bool
	}{
		{"until it is back", away, 10, entries, 4, false},
		{"while it is wanted", away, 2, entries, 3, true},
		{"but with no heartbeat", away, 10, &raft.AppendEntriesRequest{Term: 7}, 1, true},
		{"but not if it is there and refuses", errors.New("of another cluster"), 10, entries, 1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			c := &callee{away: 3, err: tc.err}
			p := newPatient(c, func(d door, term uint64) bool {
				if d != (door{"b", "b:1"}) || term != 7 {
					t.Errorf("asked about %v in term %d", d, term)
				}
				asked++
				return asked <= tc.wanted
			})
			if err := send(p, tc.args); (err != nil) != tc.fails || c.calls != tc.calls {
				t.Errorf("after %d calls: %v", c.calls, err)
			}
		})
	}
	t.Run("with a snapshot", func(t *testing.T) {
		t.Parallel()
		c := &callee{away: 2, err: away}
		p := newPatient(c, func(door, uint64) bool { return true })
		err := p.InstallSnapshot("b", "b:1", &raft.InstallSnapshotRequest{Term: 7}, nil, bytes.NewReader(make([]byte, 100)))
		if err != nil || c.read != 100 {
			t.Errorf("%d of 100 bytes: %v", c.read, err)
		}
	})
	t.Run("until it is closed", func(t *testing.T) {
		t.Parallel()
		c := &callee{away: 1 << 30, err: away}
		p := newPatient(c, func(door, uint64) bool { return true })
		p.end()
		if err := send(p, entries); !errors.Is(err, away.error) || c.calls != 1 {
			t.Errorf("after %d calls: %v", c.calls, err)
		}
	})
}

func TestADoorIsThatOfTheConfiguration(t *testing.T) {
	t.Parallel()
	servers := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a:1"}, {ID: "b", Address: "b:1", Suffrage: raft.Nonvoter}}}
	for d, want := range map[door]bool{{"a", "a:1"}: true, {"b", "b:1"}: true, {"b", "a:1"}: false, {"c", "c:1"}: false} {
		if d.in(servers) != want {
			t.Errorf("%v is in the configuration: %t", d, !want)
		}
	}
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

func TestADialThatNothingAnswersEndsLongBeforeItsTime(t *testing.T) {
	t.Parallel()
	full := net.JoinHostPort("127.0.0.1", ports.Silent(t))
	a := testLayer(t, "one")
	gaveUp := make(chan error, 1)
	go func() {
		_, err := a.Dial(raft.ServerAddress(full), 2*calm.Patience)
		gaveUp <- err
	}()
	select {
	case err := <-gaveUp:
		if !errors.As(err, &unreachable{}) {
			t.Errorf("nothing answers: %v", err)
		}
	case <-time.After(calm.Patience):
		t.Error("it waits for the whole of its time")
	}
}
