package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"
)

// checkpointOf makes a checkpoint with a meta row and the given rows.
func checkpointOf(t testing.TB, rows map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	db, err := pebble.Open(filepath.Join(dir, "live"), StoreOptions())
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value []byte) {
		if err := db.Set(key, value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if rows != nil {
		meta := freshMeta()
		meta.AppliedIndex, meta.AppliedTerm, meta.ClockUs, meta.FenceBase = 77, 5, 1_900_000_000_000_000, 1<<40
		meta.ClusterId = []byte("a cluster's id of 32 bytes, yes.")
		for i := range meta.StateHash {
			meta.StateHash[i] = byte(i)
		}
		row, err := proto.Marshal(meta)
		if err != nil {
			t.Fatal(err)
		}
		put(MetaKey, row)
	}
	for key, value := range rows {
		put([]byte(key), []byte(value))
	}
	out := filepath.Join(dir, "checkpoint")
	if err := errors.Join(db.Flush(), db.Checkpoint(out), db.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

func someRows() map[string]string {
	random := rand.New(rand.NewPCG(1, 2))
	rows := map[string]string{"a": "", "e empty value": ""}
	for i := range 300 {
		value := make([]byte, random.IntN(2000))
		for k := range value {
			value[k] = byte(random.Uint32())
		}
		rows[fmt.Sprintf("t%05d%s", i, strings.Repeat("x", random.IntN(100)))] = string(value)
	}
	rows["tlarge"] = strings.Repeat("payload ", 100_000)
	return rows
}

func streamOf(t testing.TB, rows map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := WriteStream(checkpointOf(t, rows), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readRows is what a store holds.
func readRows(t *testing.T, dir string) map[string]string {
	t.Helper()
	db, err := pebble.Open(dir, StoreOptions())
	if err != nil {
		t.Fatal(err)
	}
	iter, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for iter.First(); iter.Valid(); iter.Next() {
		rows[string(iter.Key())] = string(iter.Value())
	}
	if err := errors.Join(iter.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestAStreamCarriesTheWholeState(t *testing.T) {
	t.Parallel()
	for _, rows := range []map[string]string{someRows(), {}, nil} {
		dir := checkpointOf(t, rows)
		want := readRows(t, dir)
		var b bytes.Buffer
		h, err := WriteStream(dir, &b)
		if err != nil {
			t.Fatal(err)
		}
		if h.Rows != uint64(len(want)) {
			t.Fatalf("the header counts %d rows of %d", h.Rows, len(want))
		}
		c, err := OpenCheckpoint(dir, func(int) {})
		if err != nil || c.Size() != int64(b.Len()) || c.Header() != h {
			t.Fatalf("size %d of %d, %v", c.Size(), b.Len(), err)
		}
		var again bytes.Buffer
		if n, err := c.WriteTo(&again); err != nil || n != c.Size() || !bytes.Equal(again.Bytes(), b.Bytes()) {
			t.Fatalf("the second stream differs: %d bytes, %v", n, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}

		if got, err := VerifyStream(iotest.OneByteReader(bytes.NewReader(b.Bytes()))); err != nil || got != h {
			t.Fatalf("verified as %+v, %v", got, err)
		}
		dst := filepath.Join(t.TempDir(), "store")
		if got, err := ReadStream(&b, dst); err != nil || got != h {
			t.Fatalf("read as %+v, %v", got, err)
		}
		got := readRows(t, dst)
		if len(got) != len(want) {
			t.Fatalf("%d rows of %d", len(got), len(want))
		}
		for key, value := range want {
			if v, ok := got[key]; !ok || v != value {
				t.Fatalf("row %q differs", key)
			}
		}
		if left, err := filepath.Glob(filepath.Join(dst, "incoming*")); err != nil || len(left) != 0 {
			t.Fatalf("left over: %v, %v", left, err)
		}
	}
}

// More than one table, as a large state makes.
func TestALargeStreamBecomesSeveralTables(t *testing.T) {
	t.Parallel()
	rows := map[string]string{}
	for i := range 3 {
		rows[fmt.Sprintf("t%d", i)] = strings.Repeat(string(rune('a'+i)), snapshotTableBytes/2)
	}
	data := streamOf(t, rows)
	dst := filepath.Join(t.TempDir(), "store")
	if _, err := ReadStream(bytes.NewReader(data), dst); err != nil {
		t.Fatal(err)
	}
	got := readRows(t, dst)
	for key, value := range rows {
		if got[key] != value {
			t.Fatalf("row %q differs", key)
		}
	}
	tables, err := filepath.Glob(filepath.Join(dst, "*.sst"))
	if err != nil || len(tables) < 2 {
		t.Fatalf("tables %v, %v", tables, err)
	}
}

func TestTheHeaderTellsTheState(t *testing.T) {
	t.Parallel()
	h, err := VerifyStream(bytes.NewReader(streamOf(t, someRows())))
	if err != nil {
		t.Fatal(err)
	}
	if h.AppliedIndex != 77 || h.AppliedTerm != 5 || h.ClockUs != 1_900_000_000_000_000 || h.FenceBase != 1<<40 ||
		h.FormatLevel != 1 || h.StateHash[31] != 31 || !strings.HasPrefix(h.ClusterID, "6120636c") {
		t.Fatalf("header %+v", h)
	}
	raw, err := h.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var again Header
	if err := again.UnmarshalBinary(raw); err != nil || again != h {
		t.Fatalf("again %+v, %v", again, err)
	}
	if !h.SameState(Header{
		Format: h.Format, AppliedIndex: h.AppliedIndex, AppliedTerm: h.AppliedTerm, ClockUs: h.ClockUs,
		FenceBase: h.FenceBase, FormatLevel: h.FormatLevel, StateHash: h.StateHash, ClusterID: h.ClusterID,
	}) {
		t.Fatal("a header without counts is of another state")
	}
	other := h
	other.StateHash[0]++
	if h.SameState(other) {
		t.Fatal("another hash is the same state")
	}
}

// Every single bit of a stream matters, and so does its end.
func TestADamagedStreamIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	whole := streamOf(t, map[string]string{"a": "1", "b": strings.Repeat("2", 100), "c": ""})
	refuse := func(t *testing.T, data []byte) {
		t.Helper()
		_, err := VerifyStream(bytes.NewReader(data))
		if !errors.Is(err, ErrSnapshotDamaged) && !errors.Is(err, ErrSnapshotFormat) {
			t.Fatalf("error %v", err)
		}
	}
	for bit := range 8 * len(whole) {
		spoiled := bytes.Clone(whole)
		spoiled[bit/8] ^= 1 << (bit % 8)
		refuse(t, spoiled)
	}
	for n := range whole {
		refuse(t, whole[:n])
	}
	refuse(t, append(bytes.Clone(whole), 0))
	refuse(t, append(bytes.Clone(whole), whole...))

	dst := filepath.Join(t.TempDir(), "store")
	for _, data := range [][]byte{whole[:len(whole)-1], nil, []byte("something else")} {
		if _, err := ReadStream(bytes.NewReader(data), dst); !errors.Is(err, ErrSnapshotDamaged) {
			t.Fatalf("error %v", err)
		}
		if _, err := os.Stat(dst); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the half store is still there: %v", err)
		}
	}
	if err := os.Mkdir(dst, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadStream(bytes.NewReader(whole), dst); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Fatalf("into a directory that exists: %v", err)
	}
}

func TestAnUnknownFormatIsNamed(t *testing.T) {
	t.Parallel()
	data := streamOf(t, nil)
	binary.BigEndian.PutUint32(data[len(snapshotMagic):], SnapshotFormat+1)
	if _, err := VerifyStream(bytes.NewReader(data)); !errors.Is(err, ErrSnapshotFormat) || !strings.Contains(err.Error(), "format 2") {
		t.Fatalf("error %v", err)
	}
}

// A broken connection is no broken snapshot.
func TestAReadErrorIsNotDamage(t *testing.T) {
	t.Parallel()
	data := streamOf(t, someRows())
	lost := errors.New("connection lost")
	_, err := VerifyStream(io.MultiReader(bytes.NewReader(data[:len(data)/2]), iotest.ErrReader(lost)))
	if !errors.Is(err, lost) || errors.Is(err, ErrSnapshotDamaged) {
		t.Fatalf("error %v", err)
	}
}

// signed gives a body the checksum that belongs to it: a hostile sender can.
func signed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}

func TestARightChecksumDoesNotMakeAStreamRight(t *testing.T) {
	t.Parallel()
	row := func(b []byte, key, value string) []byte {
		b = rowLengths(b, []byte(key), []byte(value))
		return append(append(b, key...), value...)
	}
	begin := func(rows, size uint64) []byte {
		h, err := headerOf(freshMeta())
		if err != nil {
			t.Fatal(err)
		}
		h.Rows, h.Bytes = rows, size
		head, err := h.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		b := binary.BigEndian.AppendUint32([]byte(snapshotMagic), SnapshotFormat)
		b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
		return append(b, head...)
	}
	meta, err := proto.Marshal(freshMeta())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyStream(bytes.NewReader(signed(append(row(row(begin(2, 2+1+uint64(len(meta))), "M", string(meta)), "a", "b"), 0)))); err != nil {
		t.Fatalf("this one is right: %v", err)
	}
	for name, body := range map[string][]byte{
		"rows out of order":  append(row(row(begin(2, 2), "b", ""), "a", ""), 0),
		"a row twice":        append(row(row(begin(2, 2), "a", ""), "a", ""), 0),
		"too few rows":       append(row(begin(2, 1), "a", ""), 0),
		"other bytes":        append(row(begin(1, 2), "a", ""), 0),
		"no meta row":        append(row(begin(0, 0), "M", "\xff"), 0),
		"a meta row of junk": append(row(begin(1, 3), "M", "\xff\xff"), 0),
		"a longer length":    append(append(begin(1, 1), 0x81, 0x00, 0x00, 'a'), 0),
		"a huge key":         append(begin(1, 1), 0xff, 0xff, 0xff, 0x7f),
		"an endless length":  append(begin(1, 1), bytes.Repeat([]byte{0xff}, 20)...),
	} {
		if _, err := VerifyStream(bytes.NewReader(signed(body))); !errors.Is(err, ErrSnapshotDamaged) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// allocated is how many bytes a function allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A length in the stream is a claim; memory goes by what arrives.
func TestMemoryGrowsWithWhatArrives(t *testing.T) { // not parallel: it counts the process's allocations
	data := streamOf(t, nil)
	data = data[:len(data)-sha256.Size-1]
	data = binary.AppendUvarint(data, 3)
	data = binary.AppendUvarint(data, snapshotValueMax)
	data = append(data, "key and a little more"...)
	n := allocated(func() {
		if _, err := VerifyStream(bytes.NewReader(data)); !errors.Is(err, ErrSnapshotDamaged) {
			t.Fatalf("error %v", err)
		}
	})
	if most := uint64(4*len(data) + 256<<10); n > most {
		t.Fatalf("%d bytes of input made it allocate %d", len(data), n)
	}
}

func TestADamagedCheckpointIsAnErrorAndNoPanic(t *testing.T) {
	t.Parallel()
	dir := checkpointOf(t, someRows())
	db, err := pebble.Open(dir, StoreOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	data, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(tables[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := WriteStream(dir, &b); !errors.Is(err, ErrSnapshotDamaged) || b.Len() != 0 {
		t.Fatalf("%d bytes were written, error %v", b.Len(), err)
	}
	if _, err := OpenCheckpoint(filepath.Join(dir, "nowhere"), func(int) {}); !errors.Is(err, ErrSnapshotDamaged) {
		t.Fatalf("error %v", err)
	}
}

// FuzzSnapshotStream: no input makes the reader panic, and what it accepts it
// accepts for a store as well, with the same header.
func FuzzSnapshotStream(f *testing.F) {
	f.Add(streamOf(f, nil))
	f.Add(streamOf(f, map[string]string{}))
	f.Add(streamOf(f, map[string]string{"a": "1", "b": strings.Repeat("2", 300)}))
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			return
		}
		// The checksum is put right, or nothing behind it would be reached.
		if len(data) > sha256.Size {
			data = signed(data[:len(data)-sha256.Size])
		}
		h, err := VerifyStream(bytes.NewReader(data))
		if err != nil {
			return
		}
		fs := vfs.NewMem()
		if err := fs.MkdirAll("parent", 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := ReadStreamIn(fs, bytes.NewReader(data), "parent/store")
		if err != nil || got != h {
			t.Fatalf("verified as %+v, read as %+v, %v", h, got, err)
		}
	})
}

// A linked store is whole after a loss of power, and none of its own doings reach the
// one it was made of.
func TestALinkedStoreSurvivesTheLossOfPower(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	whole := streamOf(t, someRows())
	if _, err := ReadStreamIn(mem, bytes.NewReader(whole), "built"); err != nil {
		t.Fatal(err)
	}
	if err := LinkStore(mem, "built", storeDir); err != nil {
		t.Fatal(err)
	}
	same := func(fs vfs.FS, dir string) {
		t.Helper()
		var stream bytes.Buffer
		if _, err := WriteStreamIn(fs, dir, &stream); err != nil || !bytes.Equal(stream.Bytes(), whole) {
			t.Errorf("%s has another state: %d bytes, %v", dir, stream.Len(), err)
		}
	}
	same(mem.CrashClone(vfs.CrashCloneCfg{}), storeDir)
	db := openStore(t, mem, func(*pebble.Options) {})
	err := db.DeleteRange([]byte{0}, []byte{0xff}, pebble.NoSync)
	if err = errors.Join(err, db.Flush(), db.Compact(t.Context(), []byte{0}, []byte{0xff}, false), db.Close()); err != nil {
		t.Fatal(err)
	}
	same(mem, "built")
	if err := LinkStore(mem, "nowhere", "other"); err == nil {
		t.Error("a store is made of nothing")
	}
	if _, err := mem.Stat("other"); err == nil {
		t.Error("half a store is left")
	}
}
