package state

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"
)

const storeDir = "store"

// small keeps the stores of tests quick to open.
var small = Tuning{MemTableBytes: 256 << 10}

func (t Tuning) in(fs vfs.FS) Tuning {
	t.FS = fs
	return t
}

// files are those of a store, by name.
type files map[string][]byte

// onDisk is a file system that holds them.
func (f files) onDisk(t *testing.T) vfs.FS {
	t.Helper()
	mem := vfs.NewMem()
	err := mem.MkdirAll(storeDir, 0o700)
	for name, data := range f {
		file, e := mem.Create(mem.PathJoin(storeDir, name), vfs.WriteCategoryUnspecified)
		if e == nil {
			_, e = file.Write(bytes.Clone(data))
			e = errors.Join(e, file.Close())
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// with is the same store with another content of one file; nil: without it.
func (f files) with(name string, data []byte) files {
	f = maps.Clone(f)
	if f[name] = data; data == nil {
		delete(f, name)
	}
	return f
}

func flipped(data []byte, at, bit int) []byte {
	data = bytes.Clone(data)
	data[at] ^= 1 << bit
	return data
}

// killedStore is a store that was killed: all but the newest of its rows are in
// tables. hashes has the hash of all rows after each applied index.
func killedStore(t *testing.T) (killed files, hashes map[uint64][32]byte) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	s, err := Open(storeDir, small.in(mem))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	hashes = map[uint64][32]byte{}
	for index := uint64(1); index <= lastIndex; index++ {
		meta := freshMeta()
		meta.AppliedIndex, meta.ClusterId = index, []byte("a cluster's id of 32 bytes, yes.")
		row, err := proto.Marshal(meta)
		if err != nil {
			t.Fatal(err)
		}
		value := make([]byte, 3000)
		for i := range value {
			value[i] = byte(random.Uint32())
		}
		b := s.db.NewBatch()
		if err := errors.Join(b.Set(MetaKey, row, nil), b.Set(fmt.Appendf(nil, "zz%04d", index), value, nil)); err != nil {
			t.Fatal(err)
		}
		if err := s.db.Apply(b, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if index%12 == 0 { // three tables: too few to be compacted
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if hashes[index], err = s.ScanHash(); err != nil {
			t.Fatal(err)
		}
	}
	// All files at one moment: Pebble goes on removing and making them.
	moment := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
	names, err := moment.List(storeDir)
	if err != nil {
		t.Fatal(err)
	}
	killed = files{}
	for _, name := range names {
		if killed[name], err = readFile(moment, moment.PathJoin(storeDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return killed, hashes
}

// lastIndex is the last one that was applied, and flushedIndex the last one that
// reached a table.
const (
	lastIndex    = 40
	flushedIndex = 36
)

// TestADamagedStoreIsNeverBelieved turns bits in every kind of file. Either it is
// said which file is damaged, or the rows are those of some applied index.
func TestADamagedStoreIsNeverBelieved(t *testing.T) {
	t.Parallel()
	killed, hashes := killedStore(t)
	random := rand.New(rand.NewPCG(3, 4))
	noticed := map[string]int{}
	for _, file := range slices.Sorted(maps.Keys(killed)) {
		used := len(bytes.TrimRight(killed[file], "\x00"))
		if used == 0 {
			continue
		}
		for range 25 {
			at, bit := random.IntN(used), random.IntN(8)
			name := fmt.Sprintf("%s with bit %d of byte %d of %d flipped", file, bit, at, used)
			index, hash, err := readAll(t, killed.with(file, flipped(killed[file], at, bit)))
			switch {
			case err == nil && hash != hashes[index]:
				t.Errorf("%s: it opens at index %d with rows that were never there", name, index)
			case err != nil && !errors.Is(err, ErrStoreDamaged) && !strings.Contains(err.Error(), storeDir):
				t.Errorf("%s: neither damage nor the place is named: %v", name, err)
			case err != nil:
				noticed[kindOf(file)]++
			case index < flushedIndex:
				t.Errorf("%s: it opens at index %d, and raft may have dropped what follows", name, index)
			}
		}
	}
	for _, kind := range []string{"MANIFEST", "sst"} {
		if noticed[kind] == 0 {
			t.Errorf("no damage of a %s was noticed: %v", kind, noticed)
		}
	}
}

func kindOf(name string) string {
	if isManifest(name) {
		return "MANIFEST"
	}
	return strings.TrimPrefix(filepath.Ext(name), ".")
}

// readAll opens a store and reads every row.
func readAll(t *testing.T, of files) (index uint64, hash [32]byte, err error) {
	t.Helper()
	var mu sync.Mutex
	var told error
	tuning := small
	tuning.Broken = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = errors.Join(told, err)
	}
	s, err := Open(storeDir, tuning.in(of.onDisk(t)))
	if err != nil {
		return 0, hash, err
	}
	index = s.Meta().AppliedIndex
	hash, err = s.ScanHash()
	_ = s.Close() // it may complain about the same damage
	mu.Lock()
	defer mu.Unlock()
	if pebble.IsCorruptionError(err) && told == nil {
		t.Errorf("damage was met and not told: %v", err)
	}
	return index, hash, errors.Join(told, err)
}

// What was written of a manifest after its last sync may be torn, and what was
// before may not: the store has acted on it.
func TestATornManifestIsToldFromADamagedOne(t *testing.T) {
	t.Parallel()
	killed, hashes := killedStore(t)
	desc, err := pebble.Peek(storeDir, killed.onDisk(t))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(desc.ManifestFilename)
	whole, seals := killed[name], killed[name+sealSuffix]
	for _, tc := range []struct {
		name            string
		manifest, seals []byte
		opens           bool
	}{
		{"whole", whole, seals, true},
		{"behind its seals a record that was not finished", append(bytes.Clone(whole), 1, 2, 3, 4, 5, 0, 1, 9), seals, true},
		{"with a torn seal", whole, seals[:len(seals)-3], true},
		{"with a damaged seal", whole, flipped(seals, len(seals)-1, 0), true},
		{"without its last byte", whole[:len(whole)-1], seals, false},
		{"with its last bit flipped", flipped(whole, len(whole)-1, 0), seals, false},
		{"empty", []byte{}, seals, false},
		{"of a version without seals", whole, nil, true},
		{"of a version without seals, damaged", flipped(whole, len(whole)-1, 0), nil, false},
	} {
		index, hash, err := readAll(t, killed.with(name, tc.manifest).with(name+sealSuffix, tc.seals))
		switch {
		case tc.opens && (err != nil || index != flushedIndex || hash != hashes[flushedIndex]):
			t.Errorf("a manifest %s: index %d, %v", tc.name, index, err)
		case !tc.opens && (!errors.Is(err, ErrStoreDamaged) || !strings.Contains(err.Error(), name)):
			t.Errorf("a manifest %s: %v", tc.name, err)
		}
	}
}

// The store tries for ever to write a table; that it cannot is the end of the
// process, while a compaction that it gave up is nothing.
func TestAFailedWriteOfATableIsTold(t *testing.T) {
	t.Parallel()
	var told []error
	tuning := small
	tuning.Broken = func(err error) { told = append(told, err) }
	o := tuning.options()
	o.EventListener.BackgroundError(errors.New("compaction cancelled"))
	if len(told) != 0 {
		t.Errorf("told %v", told)
	}
	o.EventListener.BackgroundError(&fs.PathError{Op: "write", Path: "000004.sst", Err: syscall.ENOSPC})
	if len(told) != 1 || !errors.Is(told[0], syscall.ENOSPC) || !strings.Contains(told[0].Error(), "000004.sst") {
		t.Errorf("told %v", told)
	}
}

// A store that breaks while it is opened, on a full disk, panics in a goroutine of its
// own: who opens it is told before that, and can say it in words.
func TestWhatBreaksAStoreThatIsOpenedIsToldAtOnce(t *testing.T) {
	t.Parallel()
	var told []error
	found := &findings{tell: func(err error) { told = append(told, err) }}
	o := found.options(small)
	o.EventListener.DataCorruption(pebble.DataCorruptionInfo{Path: "000004.sst", Details: errors.New("bad checksum")})
	if len(told) != 0 {
		t.Errorf("told %v, which opening it returns", told)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a broken store goes on")
			}
		}()
		o.Logger.Fatalf("MANIFEST flush failed: %v", &fs.PathError{Op: "write", Path: "MANIFEST-000005", Err: syscall.ENOSPC})
	}()
	if len(told) != 1 || !strings.Contains(told[0].Error(), "MANIFEST-000005: no space left on device") {
		t.Errorf("told %v", told)
	}
	if err := found.opened(); !errors.Is(err, ErrStoreDamaged) {
		t.Errorf("opening it returns %v", err)
	}
}

// What is flushed survives the loss of everything that was not synced.
func TestWhatIsFlushedSurvivesTheLossOfPower(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	s, err := Open(storeDir, small.in(mem))
	if err != nil {
		t.Fatal(err)
	}
	for index := uint64(1); index <= 20; index++ {
		tx := s.Begin(index, 1, int64(index))
		tx.PutPayload(ID{byte(index)}, make([]byte, 3000))
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if index == 15 {
			if err := s.flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want, err := s.ScanHash()
	if err != nil {
		t.Fatal(err)
	}
	after := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(storeDir, small.in(after))
	if err != nil {
		t.Fatal(err)
	}
	if index := again.Meta().AppliedIndex; index < 15 {
		t.Errorf("the store is at index %d", index)
	}
	for index := again.Meta().AppliedIndex + 1; index <= 20; index++ {
		tx := again.Begin(index, 1, int64(index))
		tx.PutPayload(ID{byte(index)}, make([]byte, 3000))
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := again.ScanHash(); err != nil || got != want {
		t.Errorf("the log makes another state of it: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// Old manifests are removed, and their seals with them.
func TestSealsGoWithTheirManifests(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	for range 5 {
		s, err := Open(storeDir, small.in(mem))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	names, err := mem.List(storeDir)
	if err != nil {
		t.Fatal(err)
	}
	manifests, seals := 0, 0
	for _, name := range names {
		switch {
		case isManifest(name):
			manifests++
		case strings.HasPrefix(name, manifestPrefix):
			seals++
		}
	}
	if manifests != seals || manifests == 0 || manifests > 3 {
		t.Errorf("%d manifests and %d seals in %v", manifests, seals, names)
	}
}
