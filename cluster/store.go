package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"

	"pulse/fsm"
)

// Files in a node's directory. The votes have a file of their own, so that the
// kind of log can be told from the votes.
const (
	lockFile   = "LOCK"
	stableFile = "stable.db"
	walDir     = "wal"
	boltFile   = "log.db"
)

// stores are the durable halves of raft.
type stores struct {
	dir     string
	logs    raft.LogStore
	stable  raft.StableStore
	ahead   *aheadLog     // beneath logs
	sealed  *sealedStable // beneath stable
	marks   *marks
	closers []io.Closer // in the order they were opened
	over    atomic.Bool // closing: errors are no longer those of a disk
}

func (s *stores) close() error {
	s.over.Store(true)
	var err error
	for i := len(s.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closers[i].Close())
	}
	return err
}

// openStores opens, or makes, the log and the votes in a directory that no
// other process uses.
func openStores(cfg *Config, watchdog *Watchdog, counters *Counters, logger hclog.Logger) (_ *stores, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	s := &stores{dir: cfg.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	lock, err := vfs.Default.Lock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("cluster: the directory %s is in use by another process: %w", cfg.Dir, err)
	}
	s.closers = append(s.closers, lock)

	stable, err := openBolt(filepath.Join(cfg.Dir, stableFile))
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, stable)
	logs, err := openLog(cfg, logger)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, logs)

	s.sealed = newSealedStable(stable)
	if s.marks, err = openMarks(cfg.Dir, logs, s.sealed.change); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.marks)
	s.sealed.marks = s.marks
	s.stable = &watchedStable{s.sealed, s, watchdog, counters}
	s.ahead = newAheadLog(&watchedLog{&sealedLog{cfg.wrapLog(logs), s.marks}, s, watchdog, counters})
	s.closers = append(s.closers, s.ahead)
	s.logs = newLogCache(s.ahead)
	return s, nil
}

// LogStoreOf is the kind of log that a directory holds; the default if none.
func LogStoreOf(dir string) LogStore {
	if exists(filepath.Join(dir, boltFile)) {
		return LogStoreBolt
	}
	return LogStoreWAL
}

type logStore interface {
	raft.LogStore
	io.Closer
}

func openLog(cfg *Config, logger hclog.Logger) (logStore, error) {
	walPath, boltPath := filepath.Join(cfg.Dir, walDir), filepath.Join(cfg.Dir, boltFile)
	if cfg.LogStore == LogStoreBolt {
		if exists(walPath) {
			return nil, fmt.Errorf("cluster: %s holds a log of kind %q and LogStore is %q: start it with the kind it has", cfg.Dir, LogStoreWAL, LogStoreBolt)
		}
		return openBolt(boltPath)
	}
	if exists(boltPath) {
		return nil, fmt.Errorf("cluster: %s holds a log of kind %q and LogStore is %q: start it with the kind it has", cfg.Dir, LogStoreBolt, LogStoreWAL)
	}
	if err := os.MkdirAll(walPath, 0o700); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	// The log's own close leaves its list of segments open, and locked.
	meta := &metadb.BoltMetaDB{}
	filer, removing, err := openSegments(walPath, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	log, err := reading(func() (*wal.WAL, error) {
		if err := checkTree(filepath.Join(walPath, metadb.FileName)); err != nil {
			return nil, fmt.Errorf("%s is damaged: %w", metadb.FileName, err)
		}
		return wal.Open(walPath, wal.WithLogger(logger.Named("wal")), wal.WithMetaStore(meta), wal.WithSegmentFiler(filer))
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: open the log in %s: %w%s", walPath, err, wayOut), meta.Close(), removing.Close())
	}
	return &segmentLog{log, meta, removing}, nil
}

func openBolt(path string) (*raftboltdb.BoltStore, error) {
	store, err := reading(func() (*raftboltdb.BoltStore, error) {
		if err := checkTree(path); err != nil {
			return nil, fmt.Errorf("it is damaged: %w", err)
		}
		return raftboltdb.New(raftboltdb.Options{
			Path: path,
			// The list of free pages is rebuilt at open instead of being written
			// with every append.
			BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second},
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cluster: open %s: %w%s", path, err, wayOut)
	}
	return store, nil
}

// reading turns the panic of a store that meets a damaged file, or an address
// that the file does not have, into an error.
func reading[T any](open func() (T, error)) (opened T, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("it cannot be read: %v", why)
		}
	}()
	return open()
}

// wayOut is what to do about a file that cannot be opened.
const wayOut = ". If the file is damaged: put this server's data directory aside and start it empty. " +
	"One of several servers joins again by itself; one that is alone needs a backup"

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// watchedLog times the writes of the log and ends the process with the first
// that fails: whether a failed append has landed is not known, so the file must
// not be written again, and raft would go on with it.
type watchedLog struct {
	raft.LogStore
	stores   *stores
	watchdog *Watchdog
	counters *Counters
}

var _ raft.MonotonicLogStore = (*watchedLog)(nil)

// IsMonotonic tells raft whether the log takes consecutive indexes only.
func (l *watchedLog) IsMonotonic() bool { return monotonic(l.LogStore) }

func monotonic(s raft.LogStore) bool {
	m, ok := s.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

func (l *watchedLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l *watchedLog) StoreLogs(logs []*raft.Log) error {
	began := time.Now()
	err := l.write("append to the log", func() error { return l.LogStore.StoreLogs(logs) })
	l.counters.LogWrite.observe(time.Since(began))
	for _, log := range logs {
		l.counters.LogBytes.Add(uint64(len(log.Data)))
	}
	return err
}

func (l *watchedLog) DeleteRange(from, to uint64) error {
	return l.write("cut the log", func() error { return l.LogStore.DeleteRange(from, to) })
}

func (l *watchedLog) write(what string, do func() error) error {
	end := l.watchdog.Begin(what)
	defer end()
	err := do()
	if err != nil && !l.stores.over.Load() {
		l.watchdog.Fatal(what, err)
	}
	return err
}

// GetLog passes on that an entry is not there; everything else means that the
// log cannot be read.
func (l *watchedLog) GetLog(index uint64, log *raft.Log) error {
	err := l.LogStore.GetLog(index, log)
	if err == nil {
		err = checkLog(index, log)
	}
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		err = fmt.Errorf("%s: %w", l.stores.dir, err)
	}
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) && !l.stores.over.Load() {
		l.watchdog.Fatal("read the log", err)
	}
	return err
}

// checkLog finds what the stores do not look for: an entry that is not what was
// appended. It must not reach the machine, and no follower either, which would
// stop in this server's stead.
func checkLog(index uint64, log *raft.Log) error {
	err := error(nil)
	switch {
	case log.Index != index:
		err = fmt.Errorf("it says that it is entry %d", log.Index)
	case log.Type == raft.LogCommand:
		err = fsm.CheckEntry(log.Data)
	}
	if err != nil {
		return damagedEntry(index, err)
	}
	return nil
}

func damagedEntry(index uint64, why error) error {
	return fmt.Errorf("entry %d of the log on this disk is damaged: %w%s", index, why, startEmpty)
}

// verify reads the whole log, which is no longer than what has gathered since
// the last snapshots, before anybody relies on it. Entries that the snapshot at
// index covers may be missing: a follower that was sent one goes on behind it.
func (s *stores) verify(first, last, snapshot uint64) error {
	if last == 0 {
		return nil // empty
	}
	if first == 0 || first > last {
		return fmt.Errorf("cluster: the log on this disk says that it goes from entry %d to %d: its list of segments is damaged%s", first, last, wayOut)
	}
	var log raft.Log
	for index := first; index <= last; index++ {
		_, err := reading(func() (struct{}, error) { return struct{}{}, s.logs.GetLog(index, &log) })
		switch {
		case errors.Is(err, raft.ErrLogNotFound) && index <= snapshot, err == nil:
		case strings.Contains(err.Error(), startEmpty):
			return fmt.Errorf("cluster: %w", err)
		default:
			return fmt.Errorf("cluster: entry %d of the log cannot be read: %w%s", index, err, wayOut)
		}
	}
	return nil
}

// watchedStable does the same for votes and terms.
type watchedStable struct {
	raft.StableStore
	stores   *stores
	watchdog *Watchdog
	counters *Counters
}

func (s *watchedStable) Set(key, value []byte) error {
	return s.write(func() error { return s.StableStore.Set(key, value) })
}

func (s *watchedStable) SetUint64(key []byte, value uint64) error {
	return s.write(func() error { return s.StableStore.SetUint64(key, value) })
}

func (s *watchedStable) write(do func() error) error {
	const what = "write a vote or term"
	end := s.watchdog.Begin(what)
	defer end()
	began := time.Now()
	err := do()
	s.counters.StableWrite.observe(time.Since(began))
	if err != nil && !s.stores.over.Load() {
		s.watchdog.Fatal(what, err)
	}
	return err
}

const (
	// The newest entries are kept in memory for followers, which would
	// otherwise be served from the disk that the appends need.
	cacheEntries = 4096
	// Entries are large under load, so their bytes are bounded too: a second or
	// two of a full load. The garbage collector lets the heap grow by as much
	// again, so each megabyte here costs two.
	cacheBytes = 16 << 20
)

// logCache keeps the newest entries of a log in memory.
type logCache struct {
	raft.LogStore

	mu    sync.RWMutex
	ring  []*raft.Log // place: index modulo length
	low   uint64      // no entry below it is cached
	bytes int
}

var _ raft.MonotonicLogStore = (*logCache)(nil)

func newLogCache(s raft.LogStore) *logCache {
	return &logCache{LogStore: s, ring: make([]*raft.Log, cacheEntries)}
}

func (c *logCache) IsMonotonic() bool { return monotonic(c.LogStore) }

func (c *logCache) GetLog(index uint64, log *raft.Log) error {
	c.mu.RLock()
	cached := c.ring[index%cacheEntries]
	c.mu.RUnlock()
	if cached != nil && cached.Index == index {
		*log = *cached
		return nil
	}
	return c.LogStore.GetLog(index, log)
}

func (c *logCache) StoreLog(log *raft.Log) error { return c.StoreLogs([]*raft.Log{log}) }

func (c *logCache) StoreLogs(logs []*raft.Log) error {
	if err := c.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if c.bytes == 0 || l.Index < c.low {
			c.low = l.Index
		}
		if l.Index >= cacheEntries {
			c.low = max(c.low, l.Index-cacheEntries+1) // the ring has no room for older ones
		}
		c.evict(l.Index)
		// A copy: raft's own is a part of the future that the outcome of the
		// entry comes back in, with every row that the entry has made.
		kept := *l
		c.ring[l.Index%cacheEntries] = &kept
		c.bytes += weight(l)
		for c.bytes > cacheBytes && c.low < l.Index {
			c.evict(c.low)
			c.low++
		}
	}
	return nil
}

// weight is never zero, so that an empty cache has no bytes and no other has.
func weight(l *raft.Log) int { return len(l.Data) + len(l.Extensions) + 100 }

// evict frees the place that an index has in the ring.
func (c *logCache) evict(index uint64) {
	place := &c.ring[index%cacheEntries]
	if *place != nil {
		c.bytes -= weight(*place)
		*place = nil
	}
}

// DeleteRange forgets everything: it is rare, and what a follower's log is cut
// by must not be found here afterwards.
func (c *logCache) DeleteRange(from, to uint64) error {
	c.mu.Lock()
	clear(c.ring)
	c.bytes = 0
	c.mu.Unlock()
	return c.LogStore.DeleteRange(from, to)
}
