package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// alarm is a watchdog whose exit is a note.
type alarm struct {
	*Watchdog
	exits  atomic.Int64
	closed atomic.Bool
}

func newAlarm(t *testing.T, limit time.Duration) *alarm {
	a := &alarm{}
	a.Watchdog = NewWatchdog(WatchdogConfig{
		Limit:  limit,
		Exit:   func(int) { a.exits.Add(1) },
		Logger: slog.New(slog.DiscardHandler),
	})
	a.OnFire(func() { a.closed.Store(true) })
	t.Cleanup(a.Stop)
	return a
}

func TestAWriteThatHangsEndsTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAlarm(t, 0)
		for range 100 {
			end := a.Begin("append")
			time.Sleep(DefaultWriteLimit - time.Second)
			end()
		}
		if a.exits.Load() != 0 {
			t.Fatal("it fired for writes that were only slow")
		}
		began := time.Now()
		a.Begin("append")
		a.Begin("append") // the other one is on its way, too
		for a.exits.Load() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took < DefaultWriteLimit || took > DefaultWriteLimit+time.Second {
			t.Fatalf("it fired after %s", took)
		}
		if !a.closed.Load() {
			t.Fatal("the connections are still open at the exit")
		}
		time.Sleep(time.Minute)
		if a.exits.Load() != 1 {
			t.Fatalf("%d exits", a.exits.Load())
		}
	})
}

func TestConnectionsThatDoNotCloseDoNotHoldUpTheExit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAlarm(t, 0)
		forever := make(chan struct{})
		a.OnFire(func() { <-forever })
		began := time.Now()
		a.Fatal("append", errors.New("input/output error"))
		if a.exits.Load() != 1 || !a.closed.Load() || time.Since(began) != closeLimit {
			t.Fatalf("%d exits after %s", a.exits.Load(), time.Since(began))
		}
		close(forever)
	})
}

func TestAStoreMayTimeItsWritesItself(t *testing.T) {
	t.Parallel()
	a := newAlarm(t, time.Second)
	a.Slow("flush", 999*time.Millisecond)
	if a.exits.Load() != 0 {
		t.Fatal("it fired for a write that was only slow")
	}
	a.Slow("flush", time.Second)
	if a.exits.Load() != 1 {
		t.Fatal("it did not fire")
	}
}

// sickLog is a log whose disk hangs or fails.
type sickLog struct {
	raft.LogStore
	hang atomic.Pointer[hang]
	fail atomic.Pointer[error]
}

// hang holds each append up from now until thaw is closed.
type hang struct {
	begins func() // called as each begins
	thaw   chan struct{}
}

func (l *sickLog) StoreLogs(logs []*raft.Log) error {
	if h := l.hang.Load(); h != nil {
		h.begins()
		<-h.thaw
	}
	if err := l.fail.Load(); err != nil {
		return *err
	}
	return l.LogStore.StoreLogs(logs)
}

func (l *sickLog) GetLog(index uint64, log *raft.Log) error {
	if err := l.fail.Load(); err != nil {
		return *err
	}
	return l.LogStore.GetLog(index, log)
}

// sickNode is a lone voter on a log that can fall ill.
func sickNode(t *testing.T, a *alarm) (*testNode, *sickLog) {
	t.Helper()
	log := &sickLog{}
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Watchdog = a.Watchdog
		c.wrapLog = func(s raft.LogStore) raft.LogStore {
			log.LogStore = s
			return log
		}
	})
	return n.lead(t), log
}

// A leader whose disk hangs sends heartbeats for ever; only the exit helps.
func TestAHungDiskEndsTheLeader(t *testing.T) {
	t.Parallel()
	a := newAlarm(t, 200*time.Millisecond)
	n, log := sickNode(t, a)
	n.submit(t, "a")
	thaw := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log.hang.Store(&hang{cancel, thaw})
	_, err := n.Propose(ctx, []*pb.Command{command("b")})
	wantCode(t, err, schema.ResultUnknown)
	eventually(t, "the process ends", func() bool { return a.exits.Load() == 1 })
	log.hang.Store(nil)
	close(thaw)
}

func TestAFailedAppendEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{syscall.EIO, syscall.ENOSPC, errors.New("corrupt")} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel()
			a := newAlarm(t, time.Minute)
			n, log := sickNode(t, a)
			log.fail.Store(&failure)
			_, err := n.Propose(t.Context(), []*pb.Command{command("b")})
			wantCode(t, err, schema.ResultUnknown) // it may have landed
			if a.exits.Load() != 1 {
				t.Fatal("the process goes on")
			}
			log.fail.Store(nil)
		})
	}
}

func TestALogThatCannotBeReadEndsTheProcess(t *testing.T) {
	t.Parallel()
	a := newAlarm(t, time.Minute)
	log := &sickLog{LogStore: raft.NewInmemStore()}
	l := &watchedLog{log, &stores{}, a.Watchdog, &Counters{}}
	if err := l.GetLog(1, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) || a.exits.Load() != 0 {
		t.Fatalf("an entry that is not there: %v, %d exits", err, a.exits.Load())
	}
	damage := errors.New("checksum mismatch")
	log.fail.Store(&damage)
	if err := l.GetLog(1, &raft.Log{}); !errors.Is(err, damage) || a.exits.Load() != 1 {
		t.Fatalf("a damaged one: %v, %d exits", err, a.exits.Load())
	}
}

func TestAVoteThatCannotBeWrittenEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, set := range []func(raft.StableStore) error{
		func(s raft.StableStore) error { return s.Set([]byte("k"), []byte("v")) },
		func(s raft.StableStore) error { return s.SetUint64([]byte("k"), 1) },
	} {
		a := newAlarm(t, time.Minute)
		store, err := openBolt(filepath.Join(t.TempDir(), "stable.db"))
		if err != nil {
			t.Fatal(err)
		}
		s := &watchedStable{store, &stores{}, a.Watchdog, &Counters{}}
		if err := set(s); err != nil || a.exits.Load() != 0 {
			t.Fatalf("%v, %d exits", err, a.exits.Load())
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		if err := set(s); err == nil || a.exits.Load() != 1 {
			t.Fatalf("%v, %d exits", err, a.exits.Load())
		}
	}
}

func TestApplyIsWatchedToo(t *testing.T) {
	t.Parallel()
	a := newAlarm(t, 100*time.Millisecond)
	n := startNode(t, t.TempDir(), func(c *Config) { c.Watchdog = a.Watchdog }).lead(t)
	thaw := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n.machine.set(func() { n.machine.before = func(*pb.Entry) { cancel(); <-thaw } })
	_, err := n.Propose(ctx, []*pb.Command{command("a")})
	wantCode(t, err, schema.ResultUnknown)
	eventually(t, "the process ends", func() bool { return a.exits.Load() == 1 })
	close(thaw)
}

// A transfer of leadership that failed at the wrong moment leaves a leader that
// refuses every entry for good.
func TestALeaderThatCanNeverWriteAgainEndsTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAlarm(t, 0)
		n := &Node{cfg: Config{ElectionTimeout: time.Second}, watchdog: a.Watchdog}
		refuse := func(d time.Duration) {
			for range 10 {
				n.judge(raft.ErrLeadershipTransferInProgress)
				time.Sleep(d / 10)
			}
		}
		for range 5 {
			refuse(2 * time.Second) // transfers that end
			n.judge(nil)
		}
		refuse(2 * time.Second)
		n.judge(raft.ErrNotLeader)
		refuse(2 * time.Second)
		if a.exits.Load() != 0 {
			t.Fatal("it ended although entries were taken in between")
		}
		refuse(2 * time.Second)
		if a.exits.Load() != 1 {
			t.Fatal("it goes on for ever")
		}
	})
}

// failingMachine has a store that no longer takes writes.
type failingMachine struct {
	Machine
	why any
}

func (m failingMachine) AppliedIndex() uint64                     { return 0 }
func (m failingMachine) Apply(uint64, uint64, []byte) fsm.Outcome { panic(m.why) }

func TestAStateThatCannotBeWrittenEndsTheProcessAsAFailedLogDoes(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("commit entry 7: %w", &fs.PathError{Op: "write", Path: "000018.log", Err: syscall.ENOSPC})
	for name, c := range map[string]struct {
		why   any
		exits int64
	}{
		"a full disk is a failed store":             {full, 1},
		"a broken invariant stays the panic it was": {errors.New("fsm: a finish left its attempt alive"), 0},
		"so does a text":                            {"fsm: unknown command", 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAlarm(t, 0)
			ap := &applier{machine: failingMachine{why: c.why}, watchdog: a.Watchdog, counters: &Counters{}}
			func() {
				defer func() {
					if r := recover(); r == nil { // in a process the exit comes first
						t.Error("the machine goes on")
					}
				}()
				ap.Apply(&raft.Log{Index: 7, Type: raft.LogCommand})
			}()
			if a.exits.Load() != c.exits || a.closed.Load() != (c.exits > 0) {
				t.Errorf("%d exits, connections closed: %t", a.exits.Load(), a.closed.Load())
			}
		})
	}
}
