package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/test/calm"
)

// fakeMachine is a small machine on a real store. It keeps one row for each
// submission, under "s" and the payload; a submission with a delay also leaves
// an item that falls due. Its state hash is a hash chain over the entries.
type fakeMachine struct {
	dir string

	mu      sync.Mutex
	db      *pebble.DB
	meta    *pb.MetaRow
	due     []int64 // rising
	fired   []int64 // cluster time at which items fell due
	applied []*pb.Entry
	before  func(*pb.Entry) // called by Apply, without the lock
	pending int             // extra entries asked for
	stuck   bool            // due items stay
	finish  func() error    // what is left of a checkpoint
}

var _ Machine = (*fakeMachine)(nil)

func openFake(t *testing.T, dir string) *fakeMachine {
	t.Helper()
	m := &fakeMachine{dir: dir}
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

func (m *fakeMachine) open() error {
	db, err := pebble.Open(m.dir, state.StoreOptions())
	if err != nil {
		return err
	}
	m.db = db
	m.meta = &pb.MetaRow{Format: state.RowFormat, FormatLevel: 1, StateHash: make([]byte, 32)}
	value, closer, err := db.Get(state.MetaKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	m.meta.Reset()
	return proto.Unmarshal(value, m.meta)
}

func (m *fakeMachine) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.db != nil {
		_ = errors.Join(m.db.Flush(), m.db.Close()) // as the machine does
		m.db = nil
	}
}

func (m *fakeMachine) FormatLevel() uint32 { return 1 }

func (m *fakeMachine) Apply(index, term uint64, data []byte) fsm.Outcome {
	e, err := fsm.DecodeEntry(data)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	before := m.before
	m.mu.Unlock()
	if before != nil {
		before(e)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if index <= m.meta.AppliedIndex {
		panic(fmt.Sprintf("entry %d applied at %d", index, m.meta.AppliedIndex))
	}
	m.meta.AppliedIndex, m.meta.AppliedTerm = index, term
	m.applied = append(m.applied, e)
	o := fsm.Outcome{Index: index}
	batch := m.db.NewBatch()
	for _, c := range e.Commands {
		r := &pb.Result{Index: m.meta.FenceBase + index, Message: string(c.Id)}
		if e.Term != term {
			r.Code = string(schema.NotLeader)
		} else {
			m.command(batch, c, e.TimeUs)
		}
		o.Results = append(o.Results, r)
	}
	m.meta.ClockUs = max(m.meta.ClockUs, e.TimeUs)
	for !m.stuck && len(m.due) > 0 && m.due[0] <= m.meta.ClockUs {
		m.due = m.due[1:]
		m.fired = append(m.fired, m.meta.ClockUs)
	}
	m.pending = max(m.pending-1, 0)
	hash := sha256.Sum256(append(slices.Clone(m.meta.StateHash), data...))
	m.meta.StateHash = hash[:]
	o.Time = m.meta.ClockUs
	row, err := proto.Marshal(m.meta)
	if err == nil {
		err = batch.Set(state.MetaKey, row, nil)
	}
	if err == nil {
		err = batch.Commit(pebble.NoSync)
	}
	if err != nil {
		panic(err)
	}
	return o
}

func (m *fakeMachine) command(batch *pebble.Batch, c *pb.Command, now int64) {
	switch body := c.Body.(type) {
	case *pb.Command_OpenTerm:
		m.meta.ClusterId = body.OpenTerm.ClusterId
		m.meta.Openings = append(m.meta.Openings, &pb.Opening{TimeUs: now})
	case *pb.Command_SubmitTask:
		if err := batch.Set(append([]byte("s"), c.Id...), body.SubmitTask.Payload, nil); err != nil {
			panic(err)
		}
		if d := body.SubmitTask.DelayMs; d > 0 {
			m.due = append(m.due, now+d*1000)
			slices.Sort(m.due)
		}
	}
}

func (m *fakeMachine) BeginCheckpoint(dir string) (state.Header, func() error, error) {
	h, err := m.Checkpoint(dir)
	return h, func() error {
		m.mu.Lock()
		finish := m.finish
		m.mu.Unlock()
		if finish == nil {
			return nil
		}
		return finish()
	}, err
}

func (m *fakeMachine) Checkpoint(dir string) (state.Header, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(m.db.Flush(), m.db.Checkpoint(dir)); err != nil {
		return state.Header{}, err
	}
	return state.Header{
		Format: state.SnapshotFormat, AppliedIndex: m.meta.AppliedIndex, AppliedTerm: m.meta.AppliedTerm,
		ClockUs: m.meta.ClockUs, FormatLevel: m.meta.FormatLevel, StateHash: [32]byte(m.meta.StateHash),
		ClusterID: fmt.Sprintf("%x", m.meta.ClusterId),
	}, nil
}

func (m *fakeMachine) Restore(r io.Reader, raftIndex uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.dir + "-next"
	if _, err := state.ReadStream(r, next); err != nil {
		return err
	}
	err := errors.Join(m.db.Close(), os.RemoveAll(m.dir), os.Rename(next, m.dir))
	m.db = nil
	if err == nil {
		err = m.open()
	}
	if err == nil {
		m.meta.AppliedIndex = max(m.meta.AppliedIndex, raftIndex)
	}
	return err
}

func (m *fakeMachine) RestoreStore(dir string, _ state.Header, raftIndex uint64) error {
	var stream bytes.Buffer
	if _, err := state.WriteStream(dir, &stream); err != nil {
		return err
	}
	return m.Restore(&stream, raftIndex)
}

func (m *fakeMachine) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.db.Flush()
}

func (m *fakeMachine) AppliedIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.meta.AppliedIndex
}

func (m *fakeMachine) FenceBase() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.meta.FenceBase
}

func (m *fakeMachine) Clock() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.meta.ClockUs
}

func (m *fakeMachine) Pending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending > 0
}

func (m *fakeMachine) NextDue() (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.due) == 0 {
		return 0, false
	}
	return m.due[0], true
}

func (m *fakeMachine) Query(*pb.Query) *pb.Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &pb.Answer{Index: m.meta.FenceBase + m.meta.AppliedIndex, ClockUs: m.meta.ClockUs, Term: m.meta.AppliedTerm}
}

// rows is what the store holds beside the meta row.
func (m *fakeMachine) rows(t *testing.T) map[string]string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	iter, err := m.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for iter.First(); iter.Valid(); iter.Next() {
		if !bytes.Equal(iter.Key(), state.MetaKey) {
			rows[string(iter.Key())] = string(iter.Value())
		}
	}
	if err := iter.Close(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func (m *fakeMachine) hash() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("%x", m.meta.StateHash)
}

func (m *fakeMachine) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *fakeMachine) entries() []*pb.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.applied)
}

// testNode is a lone voter on a directory of its own.
type testNode struct {
	*Node
	machine *fakeMachine
	dir     string
}

// testConfig is a lone voter's config without a machine.
func testConfig(t *testing.T, dir string) Config {
	w := NewWatchdog(WatchdogConfig{
		Limit:  calm.Patience,
		Exit:   func(int) { t.Error("the watchdog would have ended the process") },
		Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(w.Stop)
	return Config{
		Watchdog:  w,
		ID:        "n1",
		ClusterID: []byte("cluster one"),
		Dir:       filepath.Join(dir, "raft"),
		Logger:    slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
		Bootstrap: []Server{{ID: "n1"}},
	}
}

func startNode(t *testing.T, dir string, change func(*Config)) *testNode {
	t.Helper()
	m := openFake(t, filepath.Join(dir, "state"))
	cfg := testConfig(t, dir)
	cfg.Machine = m
	if change != nil {
		change(&cfg)
	}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tn := &testNode{n, m, dir}
	t.Cleanup(func() { tn.shut(t) })
	return tn
}

// shut closes node and machine, if they are still open.
func (n *testNode) shut(t *testing.T) {
	t.Helper()
	if !n.closing.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), calm.Patience)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	n.machine.close()
}

// lead waits until the node serves.
func (n *testNode) lead(t *testing.T) *testNode {
	t.Helper()
	eventually(t, "the node leads", func() bool { return n.office.Load() != nil })
	return n
}

// submit proposes one submission and returns its index.
func (n *testNode) submit(t *testing.T, id string) uint64 {
	t.Helper()
	c := submission(id, 0)
	c.GetSubmitTask().Payload = []byte("payload of " + id)
	r, err := n.Propose(t.Context(), []*pb.Command{c})
	if err != nil || r[0].Code != "" {
		t.Fatalf("submit %s: %v %v", id, r, err)
	}
	return r[0].Index
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(calm.Patience)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-limit:
			t.Fatalf("it never came true that %s", what)
		case <-look.C:
		}
	}
}
