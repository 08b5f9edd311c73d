package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"pulse/cluster/steady"
	"pulse/fsm/state"
)

// Layout of the snapshot directory. Whatever ends in tmpSuffix is unfinished
// and removed at the start; a snapshot gets its name by a rename once all of it
// is synced.
//
//	<term>-<index>-<number>/meta.json    raft's meta and the state's header, with a checksum
//	<term>-<index>-<number>/checkpoint/  a store: one made here has hard links to the machine's,
//	                                     of one received the machine's has hard links to it
//	<term>-<index>-<number>/stream       one that an earlier version received, as it came
const (
	tmpSuffix      = ".tmp"
	metaFile       = "meta.json"
	checkpointDir  = "checkpoint"
	streamFile     = "stream"
	snapshotsKept  = 2
	snapshotMetaV1 = 1
)

// snapshotStore keeps snapshots as checkpoints of the machine's store. That
// costs hard links; a stream is made of one only when a follower or a backup
// asks for it.
type snapshotStore struct {
	dir      string
	logger   *slog.Logger
	counters *Counters

	making   sync.WaitGroup  // checkpoints
	removing *steady.Remover // of old snapshots
	openMu   sync.Mutex      // held while a checkpoint is opened, which reads it through

	mu     sync.Mutex
	list   []*snapshot // newest first
	number uint64      // of the last directory made
}

// snapshot is a finished one. Everything below meta is guarded by
// snapshotStore.mu.
type snapshot struct {
	path   string
	meta   raft.SnapshotMeta // Size 0: not known yet
	header state.Header
	files  []fileSum
	// fresh: received by this process, which has checked all of it on its way to the
	// disk, so that it need not be read again to be believed.
	fresh bool

	readers int
	open    *state.Checkpoint // shared by the readers
	dropped bool              // too old: removed after the last reader
}

var (
	_ raft.SnapshotStore = (*snapshotStore)(nil)
	_ raft.SnapshotSink  = (*snapshotSink)(nil)
)

// openSnapshotStore reads what is there and removes what is unfinished.
func openSnapshotStore(dir string, logger *slog.Logger, counters *Counters) (*snapshotStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	s := &snapshotStore{dir: dir, logger: logger, counters: counters, removing: steady.NewRemover(logger)}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasSuffix(e.Name(), tmpSuffix) {
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("cluster: remove an unfinished snapshot: %w", err)
			}
			continue
		}
		snap, err := readSnapshot(path)
		if err != nil {
			return nil, damaged(path, err)
		}
		var term, index, number uint64
		if _, err := fmt.Sscanf(e.Name(), "%d-%d-%d", &term, &index, &number); err == nil {
			s.number = max(s.number, number)
		}
		s.list = append(s.list, snap)
	}
	slices.SortFunc(s.list, newestFirst)
	return s, s.reap()
}

func newestFirst(a, b *snapshot) int {
	return cmp.Or(cmp.Compare(b.meta.Term, a.meta.Term), cmp.Compare(b.meta.Index, a.meta.Index),
		cmp.Compare(b.meta.ID, a.meta.ID))
}

// damaged names the place and the way out.
func damaged(path string, err error) error {
	return fmt.Errorf("snapshot %s is damaged: %w. Move that directory away. If this server's own state "+
		"is whole it goes on without it and takes a new snapshot; if it then refuses to start, give it an empty directory "+
		"and let it rejoin the cluster, or restore a backup", path, err)
}

// metaContent is what meta.json holds beside its checksum.
type metaContent struct {
	Version int
	Raft    raft.SnapshotMeta
	Header  []byte // as in a stream
	Format  uint32
	Files   []fileSum // of a checkpoint
}

// fileSum pins down one file of a checkpoint. Pebble takes a damaged manifest or
// log for one that ends there, and serves what it has read so far; so these are
// summed. Tables, the bulk, have checksums in every block that is read.
type fileSum struct {
	Name   string
	Size   int64
	SHA256 string `json:",omitempty"` // empty for tables
}

const tableSuffix = ".sst"

// sumFiles lists the files of a checkpoint.
func sumFiles(dir string) ([]fileSum, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var sums []fileSum
	for _, e := range entries {
		sum, err := sumFile(dir, e.Name())
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum)
	}
	return sums, nil
}

func sumFile(dir, name string) (fileSum, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return fileSum{}, err
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil {
		return fileSum{}, err
	}
	sum := fileSum{Name: name, Size: info.Size()}
	if strings.HasSuffix(name, tableSuffix) {
		return sum, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fileSum{}, err
	}
	sum.SHA256 = hex.EncodeToString(h.Sum(nil))
	return sum, nil
}

// checkFiles compares the files of a checkpoint with the list.
func checkFiles(dir string, sums []fileSum) error {
	for _, want := range sums {
		got, err := sumFile(dir, want.Name)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s is not what was written", filepath.Join(dir, want.Name))
		}
	}
	return nil
}

type metaEnvelope struct {
	Content json.RawMessage
	SHA256  string
}

func readSnapshot(path string) (*snapshot, error) {
	data, err := os.ReadFile(filepath.Join(path, metaFile))
	if err != nil {
		return nil, err
	}
	var envelope metaEnvelope
	if err := json.Unmarshal(data, &envelope); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
	if sum := sha256.Sum256(envelope.Content); hex.EncodeToString(sum[:]) != envelope.SHA256 {
		return nil, fmt.Errorf("%s: checksum mismatch", metaFile)
	}
	var content metaContent
	if err := json.Unmarshal(envelope.Content, &content); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
	if content.Version != snapshotMetaV1 || content.Format != state.SnapshotFormat {
		return nil, fmt.Errorf("%s: made by another version of Pulse (meta %d, format %d)", metaFile, content.Version, content.Format)
	}
	snap := &snapshot{path: path, meta: content.Raft, files: content.Files}
	if err := snap.header.UnmarshalBinary(content.Header); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
	if snap.meta.ID != filepath.Base(path) {
		return nil, fmt.Errorf("%s: it is the one of %s", metaFile, snap.meta.ID)
	}
	if !exists(filepath.Join(path, checkpointDir)) && !exists(filepath.Join(path, streamFile)) {
		return nil, errors.New("it has neither a checkpoint nor a stream")
	}
	return snap, nil
}

func (k *snapshotSink) writeMeta() error {
	head, err := k.header.MarshalBinary()
	if err != nil {
		return err
	}
	content, err := json.Marshal(metaContent{
		Version: snapshotMetaV1, Raft: k.meta, Header: head, Format: k.header.Format, Files: k.files,
	})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	data, err := json.Marshal(metaEnvelope{Content: content, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(k.dir, metaFile), append(data, '\n'), 0o600)
}

// newest returns raft's meta and the state's header of the newest snapshot.
func (s *snapshotStore) newest() (raft.SnapshotMeta, state.Header, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return raft.SnapshotMeta{}, state.Header{}, false
	}
	return s.list[0].meta, s.list[0].header, true
}

// List returns the snapshots, newest first.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	metas := make([]*raft.SnapshotMeta, len(s.list))
	for i, snap := range s.list {
		meta := snap.meta
		metas[i] = &meta
	}
	return metas, nil
}

// staged is a checkpoint that belongs to no snapshot yet, and may be being made.
type staged struct {
	dir    string
	header state.Header
	made   chan struct{} // closed when it is whole, or has failed
	err    error         // why it failed; for those who have seen made closed
}

// stage lets the machine begin a checkpoint. It runs in the apply goroutine, which
// is not to wait for the disk. What is left goes on whatever raft does: raft may be
// waiting for entries to be applied, and they for the checkpoint.
func (s *snapshotStore) stage(m Machine) (*staged, error) {
	st := &staged{
		dir:  filepath.Join(s.dir, fmt.Sprintf("%s-%d%s", checkpointDir, s.next(), tmpSuffix)),
		made: make(chan struct{}),
	}
	header, finish, err := m.BeginCheckpoint(st.dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(st.dir))
	}
	st.header = header
	s.making.Go(func() {
		defer close(st.made)
		st.err = finish()
	})
	return st, nil
}

// discard removes a checkpoint that was not adopted. What it cannot remove now
// is removed at the next start.
func (st *staged) discard() {
	<-st.made
	_ = os.RemoveAll(st.dir)
}

func (s *snapshotStore) next() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	return s.number
}

// snapshotSink is a snapshot under way. It takes either a checkpoint or, by
// Write, a stream, of which it makes one as it comes: the machine's store will be of
// the same files, so that the disk has to take the state only once.
type snapshotSink struct {
	store *snapshotStore
	dir   string // temporary
	meta  raft.SnapshotMeta

	header state.Header // set once the content is whole
	files  []fileSum
	whole  bool
	over   bool

	builder *io.PipeWriter // nil: nothing written
	verdict chan verdict
	pace    steady.Pace
}

type verdict struct {
	header state.Header
	err    error
}

// Create begins a snapshot.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("snapshot version %d is not supported", version)
	}
	id := fmt.Sprintf("%d-%d-%d", term, index, s.next())
	k := &snapshotSink{
		store: s,
		dir:   filepath.Join(s.dir, id+tmpSuffix),
		meta: raft.SnapshotMeta{
			Version: version, ID: id, Index: index, Term: term,
			Configuration: configuration, ConfigurationIndex: configurationIndex,
		},
	}
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	return k, nil
}

// ID is the snapshot's name.
func (k *snapshotSink) ID() string { return k.meta.ID }

// adopt makes a checkpoint the content.
func (k *snapshotSink) adopt(st *staged) error {
	dir := filepath.Join(k.dir, checkpointDir)
	<-st.made
	err := st.err
	if err == nil {
		err = os.Rename(st.dir, dir)
	}
	if err == nil {
		k.files, err = sumFiles(dir)
	}
	if err != nil {
		return fmt.Errorf("persist snapshot: %w", err)
	}
	k.header, k.whole = st.header, true
	return nil
}

// Write takes a piece of a stream.
func (k *snapshotSink) Write(p []byte) (int, error) {
	if k.builder == nil {
		r, w := io.Pipe()
		k.builder, k.verdict, k.pace = w, make(chan verdict, 1), steady.Copying()
		go func() {
			h, err := state.ReadStream(r, filepath.Join(k.dir, checkpointDir))
			r.CloseWithError(err) // nil: the rest is refused by Write
			k.verdict <- verdict{h, err}
		}()
	}
	n, err := k.builder.Write(p)
	k.meta.Size += int64(n)
	if err != nil {
		return n, fmt.Errorf("receive snapshot: %w", err)
	}
	k.pace.Passed(n)
	return n, nil
}

// endStream waits for the verdict on what was written: the store is whole and synced,
// and the stream had its checksum, or nothing is left of it.
func (k *snapshotSink) endStream() error {
	err := k.builder.Close()
	v := <-k.verdict
	if err = errors.Join(err, v.err); err == nil {
		k.files, err = sumFiles(filepath.Join(k.dir, checkpointDir))
	}
	if err != nil {
		return fmt.Errorf("receive snapshot: %w", err)
	}
	k.header, k.whole = v.header, true
	return nil
}

// Close makes the snapshot durable and gives it its name. Called again it does
// nothing.
func (k *snapshotSink) Close() error {
	if k.over {
		return nil
	}
	if k.builder != nil {
		if err := k.endStream(); err != nil {
			return errors.Join(err, k.remove())
		}
	}
	if !k.whole {
		return errors.Join(errors.New("snapshot has no content"), k.remove())
	}
	if err := k.publish(); err != nil {
		return errors.Join(fmt.Errorf("persist snapshot: %w", err), k.remove())
	}
	k.over = true
	return k.store.reap()
}

func (k *snapshotSink) publish() error {
	if err := k.writeMeta(); err != nil {
		return err
	}
	if err := syncTree(k.dir); err != nil {
		return err
	}
	final := filepath.Join(k.store.dir, k.meta.ID)
	if err := os.Rename(k.dir, final); err != nil {
		return err
	}
	k.dir = final
	if err := syncFile(k.store.dir); err != nil {
		return err
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.store.list = append(k.store.list, &snapshot{path: final, meta: k.meta, header: k.header, files: k.files, fresh: k.builder != nil})
	slices.SortFunc(k.store.list, newestFirst)
	return nil
}

// Cancel drops the snapshot.
func (k *snapshotSink) Cancel() error {
	if k.over {
		return nil
	}
	if k.builder != nil {
		k.builder.CloseWithError(errors.New("cancelled"))
		<-k.verdict
	}
	return k.remove()
}

func (k *snapshotSink) remove() error {
	k.over = true
	return os.RemoveAll(k.dir)
}

// syncTree syncs every file and directory below dir and dir itself. Files that
// are links to the machine's tables are clean already.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncFile(path)
	})
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// reap removes all but the newest snapshots. One that is being read goes after
// its last reader.
func (s *snapshotStore) reap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) <= snapshotsKept {
		return nil
	}
	old := s.list[snapshotsKept:]
	s.list = slices.Clone(s.list[:snapshotsKept])
	var err error
	for _, snap := range old {
		snap.dropped = true
		if snap.readers == 0 {
			err = errors.Join(err, s.removeLocked(snap))
		}
	}
	return err
}

// removeLocked takes the name away first: half a snapshot never has one. The rest
// goes in the background, little by little; what is left of it when the store is
// closed is removed at the next start.
func (s *snapshotStore) removeLocked(snap *snapshot) error {
	tmp := snap.path + tmpSuffix
	if err := os.Rename(snap.path, tmp); err != nil {
		return fmt.Errorf("remove old snapshot: %w", err)
	}
	s.removing.Remove(tmp)
	return nil
}

// close ends what goes on in the background.
func (s *snapshotStore) close() error {
	s.making.Wait()
	return s.removing.Close()
}

// snapshotReader is the stream of one snapshot for one reader.
type snapshotReader struct {
	io.ReadCloser
	paced steady.Reader // of it
	store *snapshotStore
	snap  *snapshot
	meta  raft.SnapshotMeta
	once  sync.Once
}

// Open opens a snapshot as a stream, with its exact size in the meta.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	snap, err := s.acquire(id)
	if err != nil {
		return nil, nil, err
	}
	r := &snapshotReader{store: s, snap: snap, meta: snap.meta}
	switch {
	case snap.fresh:
		r.ReadCloser = &lateStream{open: func() (io.ReadCloser, error) { return s.openAgain(snap) }}
	case exists(filepath.Join(snap.path, checkpointDir)):
		r.ReadCloser, err = s.openCheckpoint(snap, &r.meta)
	default:
		r.ReadCloser, err = os.Open(filepath.Join(snap.path, streamFile))
	}
	if err != nil {
		err = errors.Join(damaged(snap.path, err), s.release(snap))
		s.logger.Error("snapshot cannot be read", "snapshot", id, "error", err)
		return nil, nil, err
	}
	r.paced = steady.Reader{R: r.ReadCloser, Pace: steady.Copying()}
	s.counters.SnapshotsStream.Add(1)
	meta := r.meta
	return &meta, r, nil
}

func (s *snapshotStore) acquire(id string) (*snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, snap := range s.list {
		if snap.meta.ID == id {
			snap.readers++
			return snap, nil
		}
	}
	return nil, fmt.Errorf("there is no snapshot %s", id)
}

// release ends a reader's use of a snapshot.
func (s *snapshotStore) release(snap *snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap.readers--
	if snap.readers > 0 {
		return nil
	}
	var err error
	if snap.open != nil {
		err = snap.open.Close()
		snap.open = nil
	}
	if snap.dropped {
		err = errors.Join(err, s.removeLocked(snap))
	}
	return err
}

// openCheckpoint begins a stream of a checkpoint. Pebble lets a directory be
// opened once, so readers share it.
func (s *snapshotStore) openCheckpoint(snap *snapshot, meta *raft.SnapshotMeta) (io.ReadCloser, error) {
	s.openMu.Lock()
	defer s.openMu.Unlock()
	s.mu.Lock()
	c := snap.open
	s.mu.Unlock()
	if c == nil {
		dir := filepath.Join(snap.path, checkpointDir)
		err := checkFiles(dir, snap.files)
		if err == nil {
			pace := steady.Reading()
			c, err = state.OpenCheckpoint(dir, pace.Passed)
		}
		if err != nil {
			return nil, err
		}
		if !c.Header().SameState(snap.header) {
			return nil, errors.Join(fmt.Errorf("%w: its rows are not of the state that %s names", state.ErrSnapshotDamaged, metaFile), c.Close())
		}
		s.mu.Lock()
		snap.open = c
		s.mu.Unlock()
	}
	meta.Size = c.Size()
	r, w := io.Pipe()
	stream := &checkpointStream{PipeReader: r}
	stream.writing.Go(func() {
		_, err := c.WriteTo(w)
		w.CloseWithError(err) // nil ends the stream
	})
	return stream, nil
}

// openAgain begins the stream of one that was received, whose size has been announced.
func (s *snapshotStore) openAgain(snap *snapshot) (io.ReadCloser, error) {
	meta := snap.meta
	stream, err := s.openCheckpoint(snap, &meta)
	if err == nil && meta.Size != snap.meta.Size {
		err = errors.Join(fmt.Errorf("its stream has %d bytes, not %d", meta.Size, snap.meta.Size), stream.Close())
	}
	if err != nil {
		return nil, damaged(snap.path, err)
	}
	return stream, nil
}

// lateStream is opened when it is read: whoever takes the files of a snapshot never
// does.
type lateStream struct {
	open   func() (io.ReadCloser, error)
	opened io.ReadCloser
	err    error
}

func (l *lateStream) Read(p []byte) (int, error) {
	if l.opened == nil && l.err == nil {
		l.opened, l.err = l.open()
	}
	if l.err != nil {
		return 0, l.err
	}
	return l.opened.Read(p)
}

// Close closes what was opened.
func (l *lateStream) Close() error {
	if l.opened == nil {
		return nil
	}
	return l.opened.Close()
}

// checkpointStream is the reading end of a checkpoint being written out.
type checkpointStream struct {
	*io.PipeReader
	writing sync.WaitGroup
}

// Close ends the stream and waits for its writer.
func (c *checkpointStream) Close() error {
	err := c.PipeReader.Close()
	c.writing.Wait()
	return err
}

// Read reads at a pace that leaves room for those who work meanwhile.
func (r *snapshotReader) Read(p []byte) (int, error) { return r.paced.Read(p) }

// Close releases the snapshot.
func (r *snapshotReader) Close() error {
	var err error
	r.once.Do(func() {
		err = errors.Join(r.ReadCloser.Close(), r.store.release(r.snap))
	})
	return err
}

// fresh is the directory of a store that may be taken as it is, if it is one.
func (r *snapshotReader) fresh() (dir string, header state.Header, ok bool) {
	return filepath.Join(r.snap.path, checkpointDir), r.snap.header, r.snap.fresh
}

// damage explains a restore that failed, for the log and the operator.
func (r *snapshotReader) damage() error {
	return fmt.Errorf("snapshot %s could not be restored", r.snap.path)
}
