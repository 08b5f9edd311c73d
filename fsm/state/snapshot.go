package state

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// A snapshot stream is the whole state in one piece, for a follower that is too
// far behind and for a backup:
//
//	magic "pulsesnp" | format u32 | header length u32 | header
//	(key length uvarint | value length uvarint | key | value) in key order …
//	0 | SHA-256 of everything before it
//
// Fixed-width numbers are big-endian. Nothing read from a stream is trusted
// before the checksum has been compared, and no length in it is believed: memory
// grows with the bytes that have really arrived.

// SnapshotFormat is the format of the streams this version writes and reads.
const SnapshotFormat = 1

const (
	snapshotMagic = "pulsesnp"
	// Longer ones are refused on both ends; every row is far below.
	snapshotHeaderMax = 512
	snapshotKeyMax    = 64 << 10
	snapshotValueMax  = 64 << 20
	// snapshotTableBytes is where ReadStream begins a new sorted table.
	snapshotTableBytes = 64 << 20
)

var (
	// ErrSnapshotDamaged says that a snapshot is not what was written: cut
	// short, altered, or not a snapshot at all.
	ErrSnapshotDamaged = errors.New("snapshot is damaged")
	// ErrSnapshotFormat says that another version of Pulse wrote it.
	ErrSnapshotFormat = errors.New("snapshot has a format this version does not read")
)

// Header says what state a snapshot holds.
type Header struct {
	Format       uint32
	AppliedIndex uint64 // of the state; raft's own index of the snapshot may be higher
	AppliedTerm  uint64
	ClockUs      int64 // cluster clock, Unix microseconds
	FenceBase    uint64
	FormatLevel  uint32
	StateHash    [32]byte
	ClusterID    string // hex
	// Rows and Bytes count what the stream holds. They are zero in the header
	// of a checkpoint that has not been read through yet.
	Rows  uint64
	Bytes uint64
}

// SameState says whether both headers are of the same state, counts aside.
func (h Header) SameState(o Header) bool {
	h.Rows, h.Bytes = o.Rows, o.Bytes
	return h == o
}

func headerOf(m *pb.MetaRow) (Header, error) {
	h := Header{
		Format:       SnapshotFormat,
		AppliedIndex: m.AppliedIndex,
		AppliedTerm:  m.AppliedTerm,
		ClockUs:      m.ClockUs,
		FenceBase:    m.FenceBase,
		FormatLevel:  m.FormatLevel,
		ClusterID:    hex.EncodeToString(m.ClusterId),
	}
	if len(m.StateHash) != len(h.StateHash) || len(m.ClusterId) > 64 {
		return Header{}, fmt.Errorf("%w: its meta row has a state hash of %d and a cluster id of %d bytes",
			ErrSnapshotDamaged, len(m.StateHash), len(m.ClusterId))
	}
	copy(h.StateHash[:], m.StateHash)
	return h, nil
}

// Header describes the state as it is now, without counts.
func (s *State) Header() Header {
	h, err := headerOf(s.meta)
	if err != nil {
		panic(err) // the meta row is ours
	}
	return h
}

// MarshalBinary is the header as a stream carries it.
func (h Header) MarshalBinary() ([]byte, error) {
	id, err := hex.DecodeString(h.ClusterID)
	if err != nil || len(id) > 64 {
		return nil, fmt.Errorf("snapshot header: cluster id %q is not the hex of at most 64 bytes", h.ClusterID)
	}
	b := binary.BigEndian.AppendUint64(nil, h.AppliedIndex)
	b = binary.BigEndian.AppendUint64(b, h.AppliedTerm)
	b = binary.BigEndian.AppendUint64(b, uint64(h.ClockUs))
	b = binary.BigEndian.AppendUint64(b, h.FenceBase)
	b = binary.BigEndian.AppendUint32(b, h.FormatLevel)
	b = append(b, h.StateHash[:]...)
	b = binary.BigEndian.AppendUint64(b, h.Rows)
	b = binary.BigEndian.AppendUint64(b, h.Bytes)
	b = append(b, byte(len(id)))
	return append(b, id...), nil
}

const headerFixedBytes = 4*8 + 4 + 32 + 2*8 + 1

// UnmarshalBinary reads what MarshalBinary made.
func (h *Header) UnmarshalBinary(b []byte) error {
	if len(b) < headerFixedBytes || len(b) != headerFixedBytes+int(b[headerFixedBytes-1]) || len(b) > headerFixedBytes+64 {
		return fmt.Errorf("%w: a header of %d bytes", ErrSnapshotDamaged, len(b))
	}
	u64 := func() uint64 {
		v := binary.BigEndian.Uint64(b)
		b = b[8:]
		return v
	}
	*h = Header{Format: SnapshotFormat, AppliedIndex: u64(), AppliedTerm: u64(), ClockUs: int64(u64()), FenceBase: u64()}
	h.FormatLevel = binary.BigEndian.Uint32(b)
	copy(h.StateHash[:], b[4:])
	b = b[4+32:]
	h.Rows, h.Bytes = u64(), u64()
	h.ClusterID = hex.EncodeToString(b[1:])
	return nil
}

// Checkpoint is the directory of a checkpoint opened for reading. Any number of
// streams may be written from it at the same time.
type Checkpoint struct {
	db     *pebble.DB
	header Header
	size   int64
}

// OpenCheckpoint opens the directory and reads it through once: damage shows
// before a follower has been given half of it, and the size of the stream,
// which raft announces before the first byte, is known. Passed is told of the bytes
// that have been read, row by row; it may rest.
func OpenCheckpoint(dir string, passed func(bytes int)) (*Checkpoint, error) {
	return openCheckpoint(vfs.Default, dir, passed)
}

func openCheckpoint(fs vfs.FS, dir string, passed func(bytes int)) (*Checkpoint, error) {
	db, err := pebble.Open(dir, &pebble.Options{
		FS:                 fs,
		ReadOnly:           true,
		ErrorIfNotExists:   true,
		FormatMajorVersion: pebble.FormatNewest,
		Logger:             quiet{},
		// Corruption is an answer here and no reason to stop: the live store is
		// another one. The reads that met it return it as an error.
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: open checkpoint %s: %w", ErrSnapshotDamaged, dir, err)
	}
	c := &Checkpoint{db: db}
	if err := c.measure(passed); err != nil {
		return nil, errors.Join(fmt.Errorf("read checkpoint %s: %w", dir, err), db.Close())
	}
	return c, nil
}

// Header describes the state, with counts.
func (c *Checkpoint) Header() Header { return c.header }

// Size is the exact length of the stream.
func (c *Checkpoint) Size() int64 { return c.size }

// Close closes the directory. Streams must be complete.
func (c *Checkpoint) Close() error {
	if err := c.db.Close(); err != nil {
		return fmt.Errorf("close checkpoint: %w", err)
	}
	return nil
}

func (c *Checkpoint) measure(passed func(bytes int)) error {
	meta := freshMeta()
	found, err := getRow(c.db, MetaKey, meta)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshotDamaged, err)
	}
	if c.header, err = headerOf(meta); err != nil {
		return err
	}
	var length [2 * binary.MaxVarintLen64]byte
	body := int64(0)
	err = c.rows(func(key, value []byte) error {
		c.header.Rows++
		c.header.Bytes += uint64(len(key) + len(value))
		body += int64(len(rowLengths(length[:0], key, value)) + len(key) + len(value))
		passed(len(key) + len(value))
		return nil
	})
	if err != nil {
		return err
	}
	if !found && c.header.Rows > 0 {
		return fmt.Errorf("%w: it has rows but no meta row", ErrSnapshotDamaged)
	}
	head, err := c.header.MarshalBinary()
	if err != nil {
		return err
	}
	c.size = int64(len(snapshotMagic)+4+4+len(head)) + body + 1 + sha256.Size
	return nil
}

func rowLengths(b, key, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(key)))
	return binary.AppendUvarint(b, uint64(len(value)))
}

// rows calls fn for every row in key order.
func (c *Checkpoint) rows(fn func(key, value []byte) error) error {
	iter, err := c.db.NewIter(nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshotDamaged, err)
	}
	for iter.First(); iter.Valid(); iter.Next() {
		key := iter.Key()
		value, err := iter.ValueAndErr()
		if err != nil {
			return errors.Join(fmt.Errorf("%w: %w", ErrSnapshotDamaged, err), iter.Close())
		}
		if len(key) == 0 || len(key) > snapshotKeyMax || len(value) > snapshotValueMax {
			return errors.Join(fmt.Errorf("%w: a row with a key of %d and a value of %d bytes",
				ErrSnapshotDamaged, len(key), len(value)), iter.Close())
		}
		if err := fn(key, value); err != nil {
			return errors.Join(err, iter.Close())
		}
	}
	if err := iter.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshotDamaged, err)
	}
	return nil
}

// WriteTo writes the stream.
func (c *Checkpoint) WriteTo(w io.Writer) (int64, error) {
	head, err := c.header.MarshalBinary()
	if err != nil {
		return 0, err
	}
	sum := sha256.New()
	n := int64(0)
	buffered := bufio.NewWriterSize(w, 256<<10)
	put := func(b []byte) error {
		m, err := buffered.Write(b)
		n += int64(m)
		if err != nil {
			return fmt.Errorf("write snapshot: %w", err)
		}
		sum.Write(b)
		return nil
	}
	start := append([]byte(snapshotMagic), make([]byte, 8)...)
	binary.BigEndian.PutUint32(start[len(snapshotMagic):], SnapshotFormat)
	binary.BigEndian.PutUint32(start[len(snapshotMagic)+4:], uint32(len(head)))
	if err := put(append(start, head...)); err != nil {
		return n, err
	}
	var length [2 * binary.MaxVarintLen64]byte
	err = c.rows(func(key, value []byte) error {
		if err := put(rowLengths(length[:0], key, value)); err != nil {
			return err
		}
		if err := put(key); err != nil {
			return err
		}
		return put(value)
	})
	if err != nil {
		return n, err
	}
	if err := put([]byte{0}); err != nil {
		return n, err
	}
	m, err := buffered.Write(sum.Sum(nil))
	n += int64(m)
	if err = errors.Join(err, buffered.Flush()); err != nil {
		return n, fmt.Errorf("write snapshot: %w", err)
	}
	return n, nil
}

// WriteStream writes the checkpoint in dir as a stream.
func WriteStream(dir string, w io.Writer) (Header, error) { return WriteStreamIn(vfs.Default, dir, w) }

// WriteStreamIn does so in a file system of its own.
func WriteStreamIn(fs vfs.FS, dir string, w io.Writer) (Header, error) {
	c, err := openCheckpoint(fs, dir, func(int) {})
	if err != nil {
		return Header{}, err
	}
	_, err = c.WriteTo(w)
	if err = errors.Join(err, c.Close()); err != nil {
		return Header{}, err
	}
	return c.header, nil
}

// VerifyStream reads a stream to its end and compares everything that can be
// compared without building a store.
func VerifyStream(r io.Reader) (Header, error) {
	return scanStream(r, func(_, _ []byte) error { return nil })
}

// ReadStream builds a store in dst, which must not exist, from a stream. When
// it returns without error the store is complete and synced; after an error
// nothing of it is left, and the header is at most to be told.
func ReadStream(r io.Reader, dst string) (Header, error) { return ReadStreamIn(vfs.Default, r, dst) }

// ReadStreamIn does so in a file system of its own.
func ReadStreamIn(fs vfs.FS, r io.Reader, dst string) (Header, error) {
	if _, err := fs.Stat(dst); err == nil {
		return Header{}, fmt.Errorf("read snapshot into %s: it exists already", dst)
	}
	h, err := buildStore(r, dst, fs)
	if err != nil {
		return h, errors.Join(err, fs.RemoveAll(dst))
	}
	return h, nil
}

func buildStore(r io.Reader, dst string, fs vfs.FS) (Header, error) {
	options := StoreOptions()
	options.FS = fs
	sealManifests(options, dst)
	options.EnsureDefaults() // pebble.Open does so in a copy; the writer options below need them too
	db, err := pebble.Open(dst, options)
	if err != nil {
		return Header{}, fmt.Errorf("read snapshot: %w", err)
	}
	b := &tables{
		fs:      fs,
		dir:     fs.PathJoin(dst, "incoming"),
		options: options.MakeWriterOptions(len(options.Levels)-1, db.TableFormat()),

		bytesPerSync: options.BytesPerSync,
	}
	h, err := b.fill(r)
	if err == nil && len(b.paths) > 0 {
		// Rows arrive sorted, so the store is made of finished tables, without
		// a memtable and without a compaction.
		err = db.Ingest(context.Background(), b.paths)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return h, fmt.Errorf("read snapshot: %w", err)
	}
	if err := errors.Join(fs.RemoveAll(b.dir), syncDir(fs, dst), syncDir(fs, fs.PathDir(dst))); err != nil {
		return Header{}, fmt.Errorf("read snapshot: %w", err)
	}
	return h, nil
}

// LinkStore makes dst, which must not exist, a store with the rows of the one in src,
// which nobody has open. They share their tables where the file system can: no store
// ever changes a table. When it returns without error the store is complete and synced.
func LinkStore(fs vfs.FS, src, dst string) error {
	if err := linkStore(fs, src, dst); err != nil {
		return errors.Join(fmt.Errorf("link store %s: %w", src, err), fs.RemoveAll(dst))
	}
	return nil
}

func linkStore(fs vfs.FS, src, dst string) error {
	names, err := fs.List(src)
	if err != nil {
		return err
	}
	if err := fs.MkdirAll(dst, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		from, to := fs.PathJoin(src, name), fs.PathJoin(dst, name)
		if strings.HasSuffix(name, ".sst") {
			err = vfs.LinkOrCopy(fs, from, to)
		} else {
			err = vfs.Copy(fs, from, to) // the next store goes on writing it
		}
		if err == nil {
			err = syncFile(fs, to)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(syncDir(fs, dst), syncDir(fs, fs.PathDir(dst)))
}

func syncFile(fs vfs.FS, name string) error {
	f, err := fs.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// tables writes sorted rows into table files.
type tables struct {
	fs      vfs.FS
	dir     string
	options sstable.WriterOptions
	// bytesPerSync is as for the tables of a live store.
	bytesPerSync int
	paths        []string
	writer       *sstable.Writer // nil: the next row begins a table
	bytes        int             // in writer
}

func (t *tables) fill(r io.Reader) (Header, error) {
	if err := t.fs.MkdirAll(t.dir, 0o700); err != nil {
		return Header{}, err
	}
	h, err := scanStream(r, t.put)
	if t.writer != nil {
		err = errors.Join(err, t.finish())
	}
	return h, err
}

func (t *tables) put(key, value []byte) error {
	if t.writer == nil {
		path := t.fs.PathJoin(t.dir, fmt.Sprintf("%06d.sst", len(t.paths)))
		file, err := t.fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		t.paths = append(t.paths, path)
		// Written as it comes: syncs of the log would wait for a table in one piece.
		file = vfs.NewSyncingFile(file, vfs.SyncingFileOptions{BytesPerSync: t.bytesPerSync})
		t.writer, t.bytes = sstable.NewWriter(objstorageprovider.NewFileWritable(file), t.options), 0
	}
	if err := t.writer.Set(key, value); err != nil {
		return err
	}
	if t.bytes += len(key) + len(value); t.bytes >= snapshotTableBytes {
		return t.finish()
	}
	return nil
}

// finish syncs and closes the table under way.
func (t *tables) finish() error {
	err := t.writer.Close()
	t.writer = nil
	return err
}

// scanStream reads a stream and hands every row to fn, whose slices it may use
// until it returns. The rows are only to be believed once it has returned nil. Of a
// whole stream with rows of a table that is not known, which cannot be left out, it
// returns the header with the error.
func scanStream(r io.Reader, fn func(key, value []byte) error) (Header, error) {
	in := &streamReader{r: bufio.NewReaderSize(r, 64<<10), sum: sha256.New()}
	h, err := in.header()
	if err != nil {
		return Header{}, err
	}
	var rows, size uint64
	var stranger error
	meta := freshMeta()
	for {
		key, value, ok, err := in.row()
		if err != nil {
			return Header{}, err
		}
		if !ok {
			break
		}
		rows++
		size += uint64(len(key) + len(value))
		if table := tableOf(key); stranger == nil && !knownTable(table) {
			stranger = fmt.Errorf("%w: it has rows of table %q, which a newer version of Pulse wrote; use that version", ErrSnapshotFormat, table)
		}
		if bytes.Equal(key, MetaKey) {
			meta.Reset()
			if err := proto.Unmarshal(value, meta); err != nil {
				return Header{}, fmt.Errorf("%w: meta row: %w", ErrSnapshotDamaged, err)
			}
		}
		if err := fn(key, value); err != nil {
			return Header{}, err
		}
	}
	if err := in.end(); err != nil {
		return Header{}, err
	}
	state, err := headerOf(meta)
	if err != nil {
		return Header{}, err
	}
	if !h.SameState(state) || h.Rows != rows || h.Bytes != size {
		return Header{}, fmt.Errorf("%w: its header does not describe its content", ErrSnapshotDamaged)
	}
	return h, stranger // which is certain only now
}

// streamReader reads the pieces of a stream and sums up what it has read.
type streamReader struct {
	r    *bufio.Reader
	sum  hash.Hash
	last []byte // key of the row before
	key  []byte
	buf  []byte // value, reused from row to row
	one  [1]byte
}

// cut turns the end of input in the middle into damage and leaves every other
// read error as it is: a broken connection is no broken snapshot.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrSnapshotDamaged)
	}
	return fmt.Errorf("read snapshot: %w", err)
}

func (s *streamReader) header() (Header, error) {
	var start [len(snapshotMagic) + 8]byte
	if _, err := io.ReadFull(s.r, start[:]); err != nil {
		return Header{}, cut(err)
	}
	if string(start[:len(snapshotMagic)]) != snapshotMagic {
		return Header{}, fmt.Errorf("%w: it does not begin like one", ErrSnapshotDamaged)
	}
	if format := binary.BigEndian.Uint32(start[len(snapshotMagic):]); format != SnapshotFormat {
		return Header{}, fmt.Errorf("%w: format %d, known is %d", ErrSnapshotFormat, format, SnapshotFormat)
	}
	length := binary.BigEndian.Uint32(start[len(snapshotMagic)+4:])
	if length > snapshotHeaderMax {
		return Header{}, fmt.Errorf("%w: a header of %d bytes", ErrSnapshotDamaged, length)
	}
	head := make([]byte, length)
	if _, err := io.ReadFull(s.r, head); err != nil {
		return Header{}, cut(err)
	}
	s.sum.Write(start[:])
	s.sum.Write(head)
	var h Header
	if err := h.UnmarshalBinary(head); err != nil {
		return Header{}, err
	}
	return h, nil
}

// row reads the next row; ok is false after the last one.
func (s *streamReader) row() (key, value []byte, ok bool, err error) {
	keyBytes, err := s.length(snapshotKeyMax)
	if err != nil || keyBytes == 0 {
		return nil, nil, false, err
	}
	valueBytes, err := s.length(snapshotValueMax)
	if err != nil {
		return nil, nil, false, err
	}
	s.last, s.key = s.key, s.last
	if s.key, err = s.fill(s.key[:0], keyBytes); err != nil {
		return nil, nil, false, err
	}
	if s.buf, err = s.fill(s.buf[:0], valueBytes); err != nil {
		return nil, nil, false, err
	}
	if bytes.Compare(s.last, s.key) >= 0 {
		return nil, nil, false, fmt.Errorf("%w: its rows are not in order", ErrSnapshotDamaged)
	}
	return s.key, s.buf, true, nil
}

// length reads a uvarint in its shortest form.
func (s *streamReader) length(most int) (int, error) {
	v, shift := uint64(0), 0
	for {
		b, err := s.r.ReadByte()
		if err != nil {
			return 0, cut(err)
		}
		s.one[0] = b
		s.sum.Write(s.one[:])
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if b == 0 && shift > 0 {
				return 0, fmt.Errorf("%w: a length in a longer form than needed", ErrSnapshotDamaged)
			}
			break
		}
		if shift += 7; shift > 28 {
			v = math.MaxUint64
			break
		}
	}
	if v > uint64(most) {
		return 0, fmt.Errorf("%w: a row longer than %d bytes", ErrSnapshotDamaged, most)
	}
	return int(v), nil
}

// fillStep is how far a buffer grows ahead of the bytes that arrive.
const fillStep = 16 << 10

func (s *streamReader) fill(buf []byte, n int) ([]byte, error) {
	for len(buf) < n {
		step := min(n-len(buf), max(fillStep, len(buf), cap(buf)-len(buf)))
		at := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(s.r, buf[at:]); err != nil {
			return buf, cut(err)
		}
	}
	s.sum.Write(buf)
	return buf, nil
}

// end compares the checksum and makes sure that nothing follows it.
func (s *streamReader) end() error {
	var sum [sha256.Size]byte
	if _, err := io.ReadFull(s.r, sum[:]); err != nil {
		return cut(err)
	}
	if !bytes.Equal(sum[:], s.sum.Sum(nil)) {
		return fmt.Errorf("%w: checksum mismatch", ErrSnapshotDamaged)
	}
	if _, err := s.r.ReadByte(); err == nil {
		return fmt.Errorf("%w: something follows its end", ErrSnapshotDamaged)
	} else if !errors.Is(err, io.EOF) {
		return cut(err)
	}
	return nil
}
