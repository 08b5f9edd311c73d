package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// Options says where a machine keeps its state.
type Options struct {
	Dir    string // holds one store directory for each restore, and CURRENT
	NodeID string // of this replica, as state comparisons name it
	// FS is where Dir is, and every directory that a checkpoint is made in; nil is
	// the file system of this computer. Tests that open many machines keep them in
	// memory.
	FS vfs.FS
	// MemTableBytes is the size of the store's write buffer; 0 is the usual one.
	// Tests that open many machines keep it small.
	MemTableBytes uint64
	// FewFiles is for stores that never hold much, which tests open by the thousand:
	// rows of all tables in the same files.
	FewFiles bool
	// SlowDisk is told of an operation on a file of the store that has taken so
	// long and is not over. It must not block.
	SlowDisk func(file string, took time.Duration)
	// Beside runs a function in a goroutine of its own, in which rows are read ahead
	// while the state is opened; it has ended when Open returns. Nil: nothing is.
	Beside func(read func())
	// Broken is told why the store cannot be used any more: a file is damaged
	// (state.ErrStoreDamaged) or cannot be written. It is to end the process; a
	// goroutine that cannot go on panics after it.
	Broken func(error)
	// FormatLevel is the highest format level that this machine understands; 0
	// is this version's. Only tests of levels set another.
	FormatLevel uint32
}

// Machine is the state machine of one node. Apply, Checkpoint and both Restores are
// called by one goroutine, the one that applies the log; every other method is
// safe from any goroutine.
type Machine struct {
	fs     vfs.FS
	dir    string
	nodeID string
	tuning state.Tuning
	// understood is the highest format level that this machine understands.
	understood uint32

	mu      sync.RWMutex // guards state and generation: held to apply one entry, or to read between two
	state   *state.State
	readers *sync.WaitGroup // iterators over the store that outlive mu
	gen     uint64
	marks   [marksKept]mark // of the last indexes at which states are compared

	activity *activity // guarded by mu
}

const currentFile = "CURRENT"

// Open opens the state in dir, or makes an empty one, and rebuilds what is
// kept in memory.
func Open(opt Options) (*Machine, error) {
	if opt.Dir == "" {
		return nil, errors.New("fsm: Dir must be set")
	}
	files := opt.FS
	if files == nil {
		files = vfs.Default
	}
	if err := files.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	gen, err := currentGeneration(files, opt.Dir)
	if err != nil {
		return nil, err
	}
	m := &Machine{fs: files, dir: opt.Dir, nodeID: opt.NodeID, gen: gen, readers: &sync.WaitGroup{},
		understood: cmp.Or(opt.FormatLevel, FormatLevel),
		tuning:     state.Tuning{FS: files, MemTableBytes: opt.MemTableBytes, FewFiles: opt.FewFiles, SlowDisk: opt.SlowDisk, Beside: opt.Beside, Broken: opt.Broken}}
	if err := m.dropOthers(gen); err != nil {
		return nil, err
	}
	if m.state, err = state.Open(m.storeDir(gen), m.tuning); err != nil {
		return nil, err
	}
	err = checkLevel(m.state.Meta().FormatLevel, m.understood)
	if err == nil {
		err = m.state.CheckTables()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open state in %s: %w", opt.Dir, err), m.state.Close())
	}
	m.activity = newActivity(m.state)
	if _, err := files.Stat(files.PathJoin(opt.Dir, currentFile)); errors.Is(err, fs.ErrNotExist) {
		if err := m.setCurrent(gen); err != nil {
			return nil, errors.Join(err, m.state.Close())
		}
	}
	return m, nil
}

func currentGeneration(files vfs.FS, dir string) (uint64, error) {
	name := files.PathJoin(dir, currentFile)
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open state: %w", err)
	}
	data, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("open state: %w", err)
	}
	gen, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("open state: %s is damaged: %w", name, err)
	}
	return gen, nil
}

func (m *Machine) storeDir(gen uint64) string {
	return m.fs.PathJoin(m.dir, fmt.Sprintf("store-%06d", gen))
}

// dropOthers removes what an interrupted restore left behind.
func (m *Machine) dropOthers(gen uint64) error {
	names, err := m.fs.List(m.dir)
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	keep := m.fs.PathBase(m.storeDir(gen))
	for _, name := range names {
		if strings.HasPrefix(name, "store-") && name != keep {
			if err := m.fs.RemoveAll(m.fs.PathJoin(m.dir, name)); err != nil {
				return fmt.Errorf("open state: %w", err)
			}
		}
	}
	return nil
}

// setCurrent switches to a store directory by one atomic rename.
func (m *Machine) setCurrent(gen uint64) error {
	tmp := m.fs.PathJoin(m.dir, currentFile+".tmp")
	f, err := m.fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("switch state: %w", err)
	}
	_, err = fmt.Fprintf(f, "%d\n", gen)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = m.fs.Rename(tmp, m.fs.PathJoin(m.dir, currentFile))
	}
	if err == nil {
		err = syncDir(m.fs, m.dir)
	}
	if err != nil {
		return fmt.Errorf("switch state: %w", err)
	}
	return nil
}

func syncDir(files vfs.FS, dir string) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close closes the store after the readers that are under way.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readers.Wait()
	return m.state.Close()
}

// Apply applies one committed log entry. Entries at or below the applied index
// are skipped: after a restart the log is replayed from the last snapshot.
func (m *Machine) Apply(index, term uint64, data []byte) Outcome {
	entry, err := DecodeEntry(data)
	if err != nil {
		panic(fmt.Errorf("log entry %d of term %d: %w", index, term, err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if index <= m.state.Meta().AppliedIndex {
		return Outcome{Index: index, Skipped: true, Time: m.state.Meta().ClockUs}
	}
	out := applyEntry(m.state, m.nodeID, m.understood, index, term, entry)
	m.activity.note(m.state, entry, out)
	if index%MarkEvery == 0 {
		m.marks[index/MarkEvery%marksKept] = mark{index, m.state.Meta().StateHash}
	}
	return out
}

// AppliedIndex is the index of the last applied log entry.
func (m *Machine) AppliedIndex() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Meta().AppliedIndex
}

// FenceBase is what is added to a log index to make a fencing number, and to
// every index that a client sees.
func (m *Machine) FenceBase() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Meta().FenceBase
}

// Clock is the cluster clock, Unix microseconds.
func (m *Machine) Clock() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Meta().ClockUs
}

// ClusterID is empty until the first term has opened.
func (m *Machine) ClusterID() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Meta().ClusterId
}

// StateHash is the running hash over everything applied.
func (m *Machine) StateHash() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Meta().StateHash
}

// Pending says that an entry would have work to do at once: due items or
// matches that the bounds of the last entry left over.
func (m *Machine) Pending() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.state.HasTouched() {
		return true
	}
	t, ok := m.state.NextTimer()
	return ok && t.Due <= m.state.Meta().ClockUs
}

// Meta is a copy of the row of what concerns the state as a whole.
func (m *Machine) Meta() *pb.MetaRow {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return proto.CloneOf(m.state.Meta())
}

// NextDue is the time of the next due item, Unix microseconds.
func (m *Machine) NextDue() (us int64, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	us, ok, err := m.state.NextDue()
	if err != nil {
		panic(err)
	}
	return us, ok
}

// DumpIndexes writes what is kept in memory in a canonical form.
func (m *Machine) DumpIndexes() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.DumpIndexes()
}

// RebuiltIndexes is what DumpIndexes would give after a restart now.
func (m *Machine) RebuiltIndexes() (string, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.RebuiltIndexes()
}

// Rows calls fn for every row in key order until it returns false.
func (m *Machine) Rows(fn func(key, value []byte) bool) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Rows(fn)
}

// RowsFrom does the same, beginning at a key.
func (m *Machine) RowsFrom(from []byte, fn func(key, value []byte) bool) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.RowsFrom(from, fn)
}

// ScanHash is SHA-256 over all rows.
func (m *Machine) ScanHash() ([32]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.ScanHash()
}

// Checkpoint makes dir a copy of the state as of the applied index, by hard
// links where it can.
func (m *Machine) Checkpoint(dir string) (state.Header, error) {
	header, finish, err := m.BeginCheckpoint(dir)
	if err != nil {
		return state.Header{}, err
	}
	return header, finish()
}

// BeginCheckpoint does the same, and leaves all that waits for the disk to finish,
// which may be called by any goroutine while entries are applied. It has to be
// called, once: until it returns what is applied stays in memory, and the store
// open. When it has, the store durably holds what the copy shows.
func (m *Machine) BeginCheckpoint(dir string) (h state.Header, finish func() error, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	made, err := m.state.Checkpoint(dir)
	if err != nil {
		return state.Header{}, nil, fmt.Errorf("checkpoint: %w", err)
	}
	readers := m.readers
	readers.Add(1)
	return m.state.Header(), func() error {
		defer readers.Done()
		if err := made(); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		return nil
	}, nil
}

// Flush makes everything applied so far durable in the store, so that the log
// may drop the entries.
func (m *Machine) Flush() error {
	db, release, err := m.acquire()
	if err == nil {
		defer release()
		err = db.Flush()
	}
	if err != nil {
		return fmt.Errorf("flush state: %w", err)
	}
	return nil
}

// acquire keeps the store, with all that is applied in it, open beyond the lock.
func (m *Machine) acquire() (*pebble.DB, func(), error) {
	m.mu.RLock()
	for held := m.state.Held(); held != nil; held = m.state.Held() {
		m.mu.RUnlock() // entries are not to wait for who waits for a checkpoint
		<-held
		m.mu.RLock()
	}
	defer m.mu.RUnlock()
	db, err := m.state.Settled()
	if err != nil {
		return nil, nil, err
	}
	m.readers.Add(1)
	return db, m.readers.Done, nil
}

// Restore replaces the state by the one in a snapshot stream and raises its
// applied index to raftIndex, the snapshot's place in this log: entries of raft
// itself between the two never reach Apply. The new store is built and synced
// beside the old one and becomes current by one rename; an error leaves the old
// state as it was.
func (m *Machine) Restore(r io.Reader, raftIndex uint64) error {
	return m.restore(raftIndex, func(dir string) error {
		header, err := state.ReadStreamIn(m.fs, r, dir)
		if e := checkLevel(header.FormatLevel, m.understood); e != nil {
			return e // and therefore it may have what is not known
		}
		return err
	})
}

// RestoreStore does the same with a store that state.ReadStream has made of such a
// stream, with that header. Its files are shared where the file system can, and stay.
func (m *Machine) RestoreStore(from string, header state.Header, raftIndex uint64) error {
	return m.restore(raftIndex, func(dir string) error {
		if err := checkLevel(header.FormatLevel, m.understood); err != nil {
			return err
		}
		return state.LinkStore(m.fs, from, dir)
	})
}

// restore switches to the store that build makes in a directory that is not there.
func (m *Machine) restore(raftIndex uint64, build func(dir string) error) error {
	m.mu.RLock()
	gen := m.gen + 1
	m.mu.RUnlock()
	dir := m.storeDir(gen)
	if err := m.fs.RemoveAll(dir); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := build(dir); err != nil {
		return errors.Join(fmt.Errorf("restore: %w", err), m.fs.RemoveAll(dir))
	}
	next, err := state.Open(dir, m.tuning)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	err = next.RaiseApplied(raftIndex)
	if err == nil {
		err = m.setCurrent(gen)
	}
	if err != nil {
		return errors.Join(err, next.Close())
	}
	m.mu.Lock()
	old, readers, oldGen := m.state, m.readers, m.gen
	m.state, m.readers, m.gen = next, &sync.WaitGroup{}, gen
	m.activity = newActivity(next) // what lies between the two is not known
	m.mu.Unlock()
	readers.Wait()
	if err := old.Close(); err != nil {
		return fmt.Errorf("restore: close the old state: %w", err)
	}
	if err := m.fs.RemoveAll(m.storeDir(oldGen)); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

// Stats is an overview for status pages and metrics.
func (m *Machine) Stats() *pb.Stats {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return stats(m.state)
}
