package cluster

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/test/calm"
)

// slowLog is a log in memory whose appends end one by one, when the test says so.
type slowLog struct {
	*raft.InmemStore
	ends chan error
}

func (l slowLog) StoreLogs(logs []*raft.Log) error {
	if err := <-l.ends; err != nil {
		return err
	}
	return l.InmemStore.StoreLogs(logs)
}

func logsOf(kind raft.LogType, indexes ...uint64) (logs []*raft.Log) {
	for _, i := range indexes {
		logs = append(logs, &raft.Log{Index: i, Term: 1, Type: kind, Data: []byte{byte(i)}})
	}
	return logs
}

// inBubble runs a call beside the test and says whether it has returned by the time
// that nothing else moves.
func inBubble(do func() error) (returned func() (bool, error)) {
	var over atomic.Bool
	var err error
	go func() {
		err = do()
		over.Store(true)
	}()
	return func() (bool, error) {
		synctest.Wait()
		if !over.Load() {
			return false, nil
		}
		return true, err
	}
}

func TestOnlyCommandsOfALeaderGoAhead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		leads bool
		kind  raft.LogType
		ahead bool
	}{
		{"a leader's command", true, raft.LogCommand, true},
		{"a leader's configuration", true, raft.LogConfiguration, false},
		{"the first entry of a term", true, raft.LogNoop, false},
		{"a barrier", true, raft.LogBarrier, false},
		{"a follower's command", false, raft.LogCommand, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				under := slowLog{raft.NewInmemStore(), make(chan error)}
				l := newAheadLog(under)
				l.lead(func() bool { return c.leads })
				stored := inBubble(func() error { return l.StoreLogs(logsOf(c.kind, 1)) })
				if ok, err := stored(); ok != c.ahead || err != nil {
					t.Errorf("it has returned before the disk: %v, %v", ok, err)
				}
				under.ends <- nil
				if ok, err := stored(); !ok || err != nil {
					t.Errorf("it has returned after the disk: %v, %v", ok, err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatIsNotDurableYetIsThereAndNotCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		under := slowLog{raft.NewInmemStore(), make(chan error)}
		l := newAheadLog(under)
		leads := true
		l.lead(func() bool { return leads })
		if l.limit() != ^uint64(0) {
			t.Errorf("with nothing on its way the limit is %d", l.limit())
		}
		for _, i := range []uint64{1, 2, 3} {
			if err := l.StoreLogs(logsOf(raft.LogCommand, i)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // 1 is being written, the others go together
		}
		look := func(limit uint64) {
			t.Helper()
			synctest.Wait()
			if got := l.limit(); got != limit {
				t.Errorf("the limit is %d, want %d", got, limit)
			}
			for i := uint64(1); i <= 3; i++ {
				var log raft.Log
				if err := l.GetLog(i, &log); err != nil || log.Index != i || log.Data[0] != byte(i) {
					t.Errorf("entry %d: %+v, %v", i, log, err)
				}
			}
			if last, err := l.LastIndex(); last != 3 || err != nil {
				t.Errorf("the last is %d, %v", last, err)
			}
			if first, err := l.FirstIndex(); first != 1 || err != nil {
				t.Errorf("the first is %d, %v", first, err)
			}
		}
		look(0)
		one := inBubble(func() error { return l.await(1, nil) })
		two := inBubble(func() error { return l.await(2, nil) })
		all := inBubble(func() error { return l.await(^uint64(0), nil) })
		cut := inBubble(func() error { return l.DeleteRange(1, 1) })
		stop := make(chan struct{})
		given := inBubble(func() error { return l.await(1, stop) })
		close(stop)
		if ok, err := given(); !ok || !errors.Is(err, errStopped) {
			t.Errorf("who stopped waiting: %v, %v", ok, err)
		}
		if ok, _ := one(); ok {
			t.Error("entry 1 counts as durable")
		}
		if ok, _ := cut(); ok {
			t.Error("an entry is deleted while it is being written")
		}
		under.ends <- nil
		if ok, err := one(); !ok || err != nil {
			t.Errorf("entry 1 is durable: %v, %v", ok, err)
		}
		if limit := l.limit(); limit != 1 {
			t.Errorf("the limit is %d, want 1", limit)
		}
		// Meanwhile it has become a follower: what that is sent waits for the rest.
		leads = false
		follows := inBubble(func() error { return l.StoreLogs(logsOf(raft.LogCommand, 4)) })
		for range 2 {
			if ok, _ := follows(); ok {
				t.Fatal("a follower's entry is stored before those that it stored as a leader, or ahead")
			}
			under.ends <- nil
		}
		for _, done := range []func() (bool, error){two, all, cut, follows} {
			if ok, err := done(); !ok || err != nil {
				t.Errorf("at the end: %v, %v", ok, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAfterAFailedWriteNothingIsDurableAnyMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		under := slowLog{raft.NewInmemStore(), make(chan error)}
		l := newAheadLog(under)
		l.lead(func() bool { return true })
		if err := l.StoreLogs(logsOf(raft.LogCommand, 1)); err != nil {
			t.Fatal(err)
		}
		waits := inBubble(func() error { return l.await(1, nil) })
		under.ends <- syscall.EIO
		synctest.Wait() // the log has heard of it
		for what, err := range map[string]error{
			"a later command": l.StoreLogs(logsOf(raft.LogCommand, 2)), "a later configuration": l.StoreLogs(logsOf(raft.LogConfiguration, 2)),
			"waiting again": l.await(1, nil), "waiting for all": l.await(^uint64(0), nil),
		} {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if ok, err := waits(); !ok || !errors.Is(err, syscall.EIO) {
			t.Errorf("who waited: %v, %v", ok, err)
		}
		if l.limit() != 0 {
			t.Errorf("the limit is %d", l.limit())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// sayings is a transport that notes what a leader says to be committed.
type sayings struct {
	*raft.InmemTransport

	mu      sync.Mutex
	said    int
	highest uint64
}

func (s *sayings) note(a *raft.AppendEntriesRequest) {
	if a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		return // a heartbeat
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said++
	s.highest = max(s.highest, a.LeaderCommitIndex)
}

func (s *sayings) heard() (said int, highest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said, s.highest
}

func (s *sayings) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	s.note(a)
	return s.InmemTransport.AppendEntries(id, to, a, r)
}

func (s *sayings) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := s.InmemTransport.AppendEntriesPipeline(id, to)
	return notedPipeline{p, s}, err
}

type notedPipeline struct {
	raft.AppendPipeline
	sayings *sayings
}

func (p notedPipeline) AppendEntries(a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sayings.note(a)
	return p.AppendPipeline.AppendEntries(a, r)
}

// sickTrio is a trio whose disks can fall ill and whose words are heard.
type sickTrio struct {
	*trio
	disks map[string]*sickLog
	words map[string]*sayings
	alarm *alarm
}

func startSickTrio(t *testing.T) *sickTrio {
	t.Helper()
	c := &sickTrio{disks: map[string]*sickLog{}, words: map[string]*sayings{}, alarm: newAlarm(t, calm.Patience)}
	c.trio = startTrioWith(t, func(cfg *Config) {
		log := &sickLog{}
		c.disks[cfg.ID] = log
		cfg.wrapLog = func(s raft.LogStore) raft.LogStore {
			log.LogStore = s
			return log
		}
		c.words[cfg.ID] = &sayings{InmemTransport: cfg.Transport.(*raft.InmemTransport)}
		cfg.Transport = c.words[cfg.ID]
		cfg.Watchdog, cfg.CommitTimeout = c.alarm.Watchdog, 5*time.Millisecond
		cfg.Logger = slog.New(slog.DiscardHandler)
	})
	return c
}

// reaches proposes a command and returns once every follower has its entry and raft
// believes it to be committed.
func (c *sickTrio) reaches(t *testing.T, leader *testNode) (index uint64, answer <-chan error) {
	t.Helper()
	index = leader.raft.LastIndex() + 1
	answered := make(chan error, 1)
	go func() {
		_, err := leader.Propose(t.Context(), []*pb.Command{submission("a", 1)})
		answered <- err
	}()
	eventually(t, "followers have what the leader has not written", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *testNode) bool { return n.raft.LastIndex() < index })
	})
	eventually(t, "raft believes it to be committed", func() bool { return leader.raft.CommitIndex() >= index })
	return index, answered
}

// The followers write an entry while the leader's disk does, and it is nobody's before
// that has written it, too: should the leader lose it, the two others may have one that
// is not there on most disks.
func TestALeaderSendsWhileItsDiskWrites(t *testing.T) {
	t.Parallel()
	c := startSickTrio(t)
	c.submit(t, "first")
	leader := c.leader(t)
	words := c.words[leader.cfg.ID]
	ill := &hang{func() {}, make(chan struct{})}
	c.disks[leader.cfg.ID].hang.Store(ill)
	thaw := sync.OnceFunc(func() {
		c.disks[leader.cfg.ID].hang.Store(nil)
		close(ill.thaw)
	})
	t.Cleanup(thaw)

	index, answered := c.reaches(t, leader)
	before, _ := words.heard()
	eventually(t, "the followers are told how far the log is committed", func() bool {
		said, _ := words.heard()
		return said > before+8
	})
	if _, highest := words.heard(); highest >= index {
		t.Errorf("they are told that entry %d is committed, and %d is not on the leader's disk", highest, index)
	}
	for _, n := range c.nodes {
		if applied := n.machine.AppliedIndex(); applied >= index {
			t.Errorf("%s has applied entry %d", n.cfg.ID, applied)
		}
	}
	select {
	case err := <-answered:
		t.Fatalf("the command is answered with %v", err)
	default:
	}

	thaw()
	if err := <-answered; err != nil {
		t.Errorf("once the disk has written: %v", err)
	}
	eventually(t, "all have applied it", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *testNode) bool { return n.machine.AppliedIndex() < index })
	})
}

// A leader whose disk fails does not know whether it has the entry, and answers nothing
// more, whatever the others have.
func TestALeaderWhoseDiskFailsAppliesNothingMore(t *testing.T) {
	t.Parallel()
	c := startSickTrio(t)
	c.submit(t, "first")
	leader := c.leader(t)
	disk := c.disks[leader.cfg.ID]
	ill, failure := &hang{func() {}, make(chan struct{})}, error(syscall.EIO)
	disk.hang.Store(ill)
	index, answered := c.reaches(t, leader)
	disk.fail.Store(&failure)
	disk.hang.Store(nil)
	close(ill.thaw)
	wantCode(t, <-answered, schema.ResultUnknown)
	eventually(t, "the process ends", func() bool { return c.alarm.exits.Load() == 1 })
	if applied := leader.machine.AppliedIndex(); applied >= index {
		t.Errorf("it has applied entry %d", applied)
	}
	if _, highest := c.words[leader.cfg.ID].heard(); highest >= index {
		t.Errorf("it has told the others that %d is committed", highest)
	}
	disk.fail.Store(nil)
}

// A server that led until now says that it has an entry when it is on its disk.
func TestACallIsLookedAtWhenAllIsDurable(t *testing.T) {
	t.Parallel()
	in, asked, durable := make(chan raft.RPC), make(chan struct{}), make(chan error)
	g, err := newGuard(receiver{in: in}, t.TempDir(), false, func(uint64, uint64) {}, func(index uint64, _ <-chan struct{}) error {
		if index != ^uint64(0) {
			t.Errorf("what is waited for goes up to %d", index)
		}
		asked <- struct{}{}
		return <-durable
	})
	if err != nil {
		t.Fatal(err)
	}
	g.start(func() (bool, bool, uint64) { return true, true, 7 })
	defer g.close()
	answers := make(chan raft.RPCResponse, 1)
	call := raft.RPC{Command: &raft.AppendEntriesRequest{PrevLogEntry: 7, LeaderCommitIndex: 7}, RespChan: answers}
	in <- call
	<-asked
	select {
	case <-g.rpcs:
		t.Error("raft has it already")
	default:
	}
	durable <- nil
	<-g.rpcs
	in <- call
	<-asked
	durable <- syscall.EIO
	if a := <-answers; !errors.Is(a.Error, syscall.EIO) {
		t.Errorf("after the failure of the disk the answer is %v", a.Error)
	}
}
