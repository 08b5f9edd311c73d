// Package state holds what is true: rows in a Pebble store, indexes over them
// in memory, and the transaction that changes both.
//
// A State is a pure function of its rows. Tx.Put… takes the old version of a
// row out of every index and puts the new one in; Open reads the rows and
// builds the same indexes again, and tests hold the two against each other.
// One entry of the log is one Tx. What entries change is pending in memory first
// and reaches the store in one write batch for several of them, with the applied
// index in it. The store keeps no log and syncs only the tables that it writes: the
// log of the cluster is what is durable, and entries that a crash took from the
// store are applied again. Whoever drops entries from that log flushes first.
//
// A State is used by one goroutine at a time; fsm.Machine sees to that. It
// knows no commands, reads no clock and starts no goroutine.
package state

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tidwall/btree"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// RowFormat is the format number of the rows this version writes.
const RowFormat = 1

// FeedPartitions is the number of log partitions, fixed for ever: consumers
// place keys by it.
const FeedPartitions = 16

// DefaultEventRetentionMs is how long events stay in the feed: 3 days.
const DefaultEventRetentionMs = 3 * 24 * 3600 * 1000

// DefaultIdempotencyKeysMax bounds remembered answers for each namespace.
const DefaultIdempotencyKeysMax = 10_000_000

// State is the rows and the indexes over them.
type State struct {
	db      *pebble.DB
	meta    *pb.MetaRow
	pending pending
	scratch scratch // of the entry that is being applied
	settled uint64  // applied index of the state in the store

	namespaces  map[ID]*Namespace
	nsByName    map[string]ID
	queues      map[ID]*Queue
	queueByName map[queueName]ID
	instances   map[instanceKey]*Instance
	sessions    map[ID]*Instance // by session id
	gateways    map[string]*gateway
	keys        map[keyName]*Key
	held        map[keyName]*Key // those of keys that somebody holds
	attempts    map[ID]*Attempt
	tasks       map[ID]*pb.TaskRow // LEASED and RUNNING
	ready       ready              // some of the WAITING ones
	remembered  remembered
	tokens      map[ID]*pb.TokenRow
	timers      timers
	schedules   schedules
	touched     map[*Queue]struct{} // queues in which a match may have become possible
}

type queueName struct {
	ns   ID
	name string
}

const (
	// cacheBytes is the size of the block cache, memtables included.
	cacheBytes = 64 << 20
	// cacheLoading is how much of it is used while the indexes are rebuilt. Hardly a
	// block is read twice then, and each that is kept is memory of a server that has
	// little to do with it.
	cacheLoading = 16 << 20
)

// StoreOptions are the Pebble options of a live store. It keeps no log of its own:
// what has not reached its tables is applied again from the log of the cluster.
func StoreOptions() *pebble.Options {
	o := &pebble.Options{
		CacheSize:                   cacheBytes,
		DisableWAL:                  true,
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                32 << 20,
		MemTableStopWritesThreshold: 4,
		// Tables of consecutive flushes overlap by what was under way between
		// them; several are merged at a time, so that less is written twice.
		L0CompactionThreshold: 12,
		L0StopWritesThreshold: 48,
		Logger:                quiet{},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	o.Experimental.SpanPolicyFunc = tableByTable
	o.Experimental.CompactionScheduler = oneAfterTheOther()
	return o
}

// tableByTable begins a new file at each of our tables. Keys of most tables grow
// with time, so a file of one of them hardly ever overlaps an older one and moves
// down the levels without being rewritten; a file of many would overlap them all.
func tableByTable(key []byte) (pebble.SpanPolicy, []byte, error) {
	if len(key) == 0 || key[0] == 0xff {
		return pebble.SpanPolicy{}, nil, nil
	}
	return pebble.SpanPolicy{}, []byte{key[0] + 1}, nil
}

// quiet drops Pebble's chatter. What it calls fatal is a broken store: the
// node stops rather than serve from it.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic("state store: " + fmt.Sprintf(format, args...))
}

// Tuning of a store; the zero value is the usual one.
type Tuning struct {
	// FS is where the store is; nil is the file system of this computer.
	FS vfs.FS
	// MemTableBytes is the size of the write buffer, which a process that is killed
	// has to apply again.
	MemTableBytes uint64
	// FewFiles keeps rows of all tables in the same files. A store that never holds
	// much is a dozen tiny files less for each flush.
	FewFiles bool
	// SlowDisk is told of an operation on a file that has taken so long and is
	// not over. It is called by goroutines of the store and must not block.
	SlowDisk func(file string, took time.Duration)
	// Beside runs a function in a goroutine of its own. Open has rows read ahead there
	// while it looks at those before, and returns when the function has ended; nil: it
	// does one after the other.
	Beside func(read func())
	// Broken is told why the store cannot be used any more: a file of it is
	// damaged, which is an ErrStoreDamaged, or could not be written. Any goroutine
	// that finds out calls it, before it panics; it is to end the process.
	Broken func(error)
}

func (t Tuning) options() *pebble.Options {
	o := StoreOptions()
	if t.MemTableBytes > 0 {
		o.MemTableSize = t.MemTableBytes
	}
	if t.FewFiles {
		o.Experimental.SpanPolicyFunc = nil
	}
	broken := t.Broken
	if broken == nil {
		broken = func(error) {} // whoever meets the damage gets it as an error, too
	}
	o.EventListener = &pebble.EventListener{
		DataCorruption:  func(i pebble.DataCorruptionInfo) { broken(damagedFile(i)) },
		BackgroundError: func(err error) { tellFailedWrite(broken, err) },
	}
	o.Logger = telling{broken: broken}
	if t.SlowDisk != nil {
		o.EventListener.DiskSlow = func(i pebble.DiskSlowInfo) { t.SlowDisk(i.Path, i.Duration) }
	}
	return o
}

// Open opens the store in dir, makes it if it is not there, and rebuilds the
// indexes. An error that is ErrStoreDamaged names the file.
func Open(dir string, tuning Tuning) (*State, error) {
	fs := tuning.FS
	if fs == nil {
		fs = vfs.Default
	}
	if err := checkManifest(dir, fs); err != nil {
		return nil, err
	}
	found := &findings{tell: tuning.Broken}
	options := found.options(tuning)
	options.FS = fs
	sealManifests(options, dir)
	if tuning.SlowDisk != nil {
		options.WithFSDefaults() // which Pebble leaves out where it is given a file system
	}
	compacting := newCompactions()
	options.Experimental.CompactionScheduler = compacting
	cache := pebble.NewCache(options.CacheSize)
	defer cache.Unref() // the store has a reference of its own
	options.Cache = cache
	defer cache.Reserve(cacheBytes - cacheLoading)()
	db, err := pebble.Open(dir, options)
	if err != nil {
		return nil, fmt.Errorf("open state store %s: %w", dir, asDamage(err))
	}
	s, err := load(db, tuning.Beside)
	if err = errors.Join(asDamage(err), found.opened()); err != nil {
		return nil, errors.Join(fmt.Errorf("open state store %s: %w", dir, err), db.Close())
	}
	compacting.begin()
	s.pending.bytesMax = min(pendingBytesMax, int(options.MemTableSize)/4)
	return s, nil
}

func load(db *pebble.DB, beside func(func())) (*State, error) {
	s := &State{
		db:          db,
		pending:     pending{rows: map[string]*change{}, bytesMax: pendingBytesMax},
		namespaces:  map[ID]*Namespace{},
		nsByName:    map[string]ID{},
		queues:      map[ID]*Queue{},
		queueByName: map[queueName]ID{},
		instances:   map[instanceKey]*Instance{},
		sessions:    map[ID]*Instance{},
		gateways:    map[string]*gateway{},
		keys:        map[keyName]*Key{},
		held:        map[keyName]*Key{},
		attempts:    map[ID]*Attempt{},
		tasks:       map[ID]*pb.TaskRow{},
		ready:       ready{},
		tokens:      map[ID]*pb.TokenRow{},
		timers:      newTimers(),
		schedules:   newSchedules(),
		touched:     map[*Queue]struct{}{},
		remembered:  remembered{unread: []byte{tableTimer}},
	}
	for _, step := range []func() error{
		s.loadMeta, s.loadNamespaces, s.loadQueues, s.loadGateways, s.loadKeys, s.loadInstances,
		func() error { return s.loadTasks(beside) }, s.loadTokens,
		s.loadZones, s.loadSchedules,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	s.settled = s.meta.AppliedIndex
	if err := s.timers.extend(s, s.meta.ClockUs); err != nil {
		return nil, err
	}
	for _, q := range s.queues { // order-free: a set
		s.touch(q)
	}
	return s, nil
}

// Close closes the store, with everything that has been applied in its tables.
// Open iterators must be closed before.
func (s *State) Close() error { return errors.Join(s.flush(), s.db.Close()) }

// flush makes everything that has been applied durable.
func (s *State) flush() error {
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.db.Flush(); err != nil {
		return fmt.Errorf("flush the state of entry %d: %w", s.meta.AppliedIndex, err)
	}
	return nil
}

// Settled gives the store with everything that has been applied in it, durable or
// not. It stays open until Close.
func (s *State) Settled() (*pebble.DB, error) { return s.db, s.settle() }

// Checkpoint begins to make dir a copy of the state as it is, by hard links where it
// can: of the store's tables, which therefore have to hold everything first. That,
// and every sync, is left to finish, which any goroutine may call while entries go
// on being applied. They stay pending until then, so it has to be called. Once it
// has returned the copy is whole, and durable in the store is what it shows.
func (s *State) Checkpoint(dir string) (finish func() error, err error) {
	release, err := s.hold()
	if err != nil {
		return nil, err
	}
	index := s.meta.AppliedIndex
	return func() error {
		defer release()
		if err := s.db.Flush(); err != nil {
			return fmt.Errorf("flush the state of entry %d: %w", index, err)
		}
		return s.db.Checkpoint(dir)
	}, nil
}

func freshMeta() *pb.MetaRow {
	m := &pb.MetaRow{
		Format:             RowFormat,
		EventRetentionMs:   DefaultEventRetentionMs,
		IdempotencyKeysMax: DefaultIdempotencyKeysMax,
		FormatLevel:        1,
		StateHash:          make([]byte, 32),
		LastId:             make([]byte, 16),
	}
	for range FeedPartitions {
		m.Feed = append(m.Feed, &pb.FeedPartition{Next: 1, Low: 1})
	}
	return m
}

func (s *State) loadMeta() error {
	m := &pb.MetaRow{}
	ok, err := getRow(s.db, MetaKey, m)
	if err != nil {
		return err
	}
	if !ok {
		s.meta = freshMeta()
		return nil
	}
	if m.Format != RowFormat {
		return fmt.Errorf("the state store has row format %d; this version reads format %d", m.Format, RowFormat)
	}
	if len(m.Feed) != FeedPartitions {
		return fmt.Errorf("the state store has %d log partitions, not %d", len(m.Feed), FeedPartitions)
	}
	s.meta = m
	s.setTimer(feedTimer(m))
	return nil
}

func (s *State) loadNamespaces() error {
	return scan(s.db, []byte{tableNamespace}, func(_ []byte, row *pb.NamespaceRow) error {
		s.namespaces[ID(row.Id)] = newNamespace(row)
		s.nsByName[row.Name] = ID(row.Id)
		return nil
	})
}

func (s *State) loadQueues() error {
	return scan(s.db, []byte{tableQueue}, func(_ []byte, row *pb.QueueRow) error {
		s.queues[ID(row.Id)] = newQueue(row)
		if row.DeletedAtUs == 0 {
			s.queueByName[queueName{ID(row.NamespaceId), row.Name}] = ID(row.Id)
		}
		return nil
	})
}

func (s *State) loadGateways() error {
	return scan(s.db, []byte{tableGateway}, func(_ []byte, row *pb.GatewayRow) error {
		s.gateway(row.Id).row = row
		s.setTimer(gatewayTimer(row))
		return nil
	})
}

func (s *State) loadKeys() error {
	return scan(s.db, []byte{tableKey}, func(_ []byte, row *pb.KeyRow) error {
		s.setKey(keyName{ID(row.NamespaceId), row.Key}, row)
		return nil
	})
}

func (s *State) loadInstances() error {
	return scan(s.db, []byte{tableInstance}, func(_ []byte, row *pb.InstanceRow) error {
		i := &Instance{Row: row}
		s.instances[i.key()] = i
		s.indexInstance(i)
		return nil
	})
}

// loadTasks decodes of most rows only what the structures in memory hold: a million
// tasks may be waiting.
func (s *State) loadTasks(beside func(func())) error {
	var outline taskOutline
	return scanAhead(s.db, []byte{tableTask}, beside, func(key, value []byte) error {
		t, err := outline.read(value)
		if err == nil && Active(t.State) {
			t = &pb.TaskRow{} // it is kept
			err = proto.Unmarshal(value, t)
		}
		if err != nil {
			return damagedRow(key, err)
		}
		s.indexTask(t)
		if !Active(t.State) {
			return nil
		}
		return s.loadAttempt(ID(t.Id), ID(t.AttemptId))
	})
}

func (s *State) loadAttempt(task, attempt ID) error {
	row := &pb.AttemptRow{}
	ok, err := getRow(s.db, key2(tableAttempt, task, attempt), row)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("task %x has no row of its live attempt %x", task, attempt)
	}
	s.attempts[attempt] = &Attempt{Row: row}
	i := s.instances[instanceKey{ID(row.NamespaceId), ID(row.InstanceId)}]
	if i == nil {
		return fmt.Errorf("live attempt %x belongs to no instance", attempt)
	}
	i.addAttempt(attempt)
	s.setTimer(attemptTimer(row))
	return nil
}

// receiptOrder sorts by the order in which receipts were given: a start goes
// before the renewals that count themselves, a finish goes last.
func receiptOrder(a, b *pb.ReceiptRow) int {
	if a.Index != b.Index {
		if a.Index < b.Index {
			return -1
		}
		return 1
	}
	if a.Operation != b.Operation {
		return int(a.Operation) - int(b.Operation)
	}
	if a.Number != b.Number {
		return int(a.Number) - int(b.Number)
	}
	return bytes.Compare(a.MessageId, b.MessageId)
}

// rowPtr is a pointer to a generated message.
type rowPtr[T any] interface {
	*T
	proto.Message
}

// scan decodes every row whose key begins with prefix, in key order.
func scan[T any, P rowPtr[T]](r Reader, prefix []byte, fn func(key []byte, row P) error) error {
	return scanRaw(r, prefix, func(key, value []byte) error {
		row := P(new(T))
		if err := proto.Unmarshal(value, row); err != nil {
			return damagedRow(key, err)
		}
		return fn(key, row)
	})
}

// scanRaw does not decode them. Key and value are good until fn returns.
func scanRaw(r Reader, prefix []byte, fn func(key, value []byte) error) error {
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: prefixEnd(prefix)})
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	for iter.First(); iter.Valid(); iter.Next() {
		if err := fn(iter.Key(), iter.Value()); err != nil {
			_ = iter.Close()
			return err
		}
	}
	if err := iter.Close(); err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	return nil
}

func damagedRow(key []byte, err error) error {
	return fmt.Errorf("state row %x is damaged: %w", key, err)
}

// getRow reads and decodes one row.
func getRow(r Reader, key []byte, into proto.Message) (bool, error) {
	value, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read state row %x: %w", key, err)
	}
	err = proto.Unmarshal(value, into)
	if cerr := closer.Close(); cerr != nil {
		return false, fmt.Errorf("read state row %x: %w", key, cerr)
	}
	if err != nil {
		return false, fmt.Errorf("state row %x is damaged: %w", key, err)
	}
	return true, nil
}

// getRaw reads the bytes of one row.
func getRaw(r Reader, key []byte) ([]byte, bool, error) {
	value, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read state row %x: %w", key, err)
	}
	out := bytes.Clone(value)
	if err := closer.Close(); err != nil {
		return nil, false, fmt.Errorf("read state row %x: %w", key, err)
	}
	return out, true, nil
}

func (s *State) setTimer(t Timer) {
	if t.Due == 0 || (t.Kind.stored() && t.Due >= s.timers.horizon) {
		return
	}
	s.timers.near.Set(t)
}

func (s *State) clearTimer(t Timer) {
	if t.Due != 0 {
		s.timers.near.Delete(t)
	}
}

func (s *State) touch(q *Queue) { s.touched[q] = struct{}{} }

// Touched lists the queues in which a match may have become possible, by id.
func (s *State) Touched() []*Queue {
	out := make([]*Queue, 0, len(s.touched))
	for q := range s.touched { // order-free: sorted below
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b *Queue) int { return bytes.Compare(a.Row.Id, b.Row.Id) })
	return out
}

// HasTouched says whether matching has work left.
func (s *State) HasTouched() bool { return len(s.touched) > 0 }

// Matched says that no match is possible in the queue any more.
func (s *State) Matched(q *Queue) { delete(s.touched, q) }

// NextTimer is the next due item in memory.
func (s *State) NextTimer() (Timer, bool) { return s.timers.First() }

// Meta is the meta row; read-only.
func (s *State) Meta() *pb.MetaRow { return s.meta }

// NamespaceByName finds a namespace.
func (s *State) NamespaceByName(name string) *Namespace {
	if id, ok := s.nsByName[name]; ok {
		return s.namespaces[id]
	}
	return nil
}

// Namespace finds a namespace by id.
func (s *State) Namespace(id ID) *Namespace { return s.namespaces[id] }

// Namespaces lists all, by name.
func (s *State) Namespaces() []*Namespace {
	out := make([]*Namespace, 0, len(s.namespaces))
	for _, n := range s.namespaces { // order-free: sorted below
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *Namespace) int { return strings.Compare(a.Row.Name, b.Row.Name) })
	return out
}

// Queue finds a queue by id, deleted ones included.
func (s *State) Queue(id ID) *Queue { return s.queues[id] }

// QueueByName finds a queue of a namespace.
func (s *State) QueueByName(ns ID, name string) *Queue {
	if id, ok := s.queueByName[queueName{ns, name}]; ok {
		return s.queues[id]
	}
	return nil
}

// Queues lists a namespace's queues by name.
func (s *State) Queues(ns ID) []*Queue {
	var out []*Queue
	for name, id := range s.queueByName { // order-free: sorted below
		if name.ns == ns {
			out = append(out, s.queues[id])
		}
	}
	slices.SortFunc(out, func(a, b *Queue) int { return strings.Compare(a.Row.Name, b.Row.Name) })
	return out
}

// Instance finds a worker instance.
func (s *State) Instance(ns, id ID) *Instance { return s.instances[instanceKey{ns, id}] }

// Instances lists the instances of a namespace after an id, by id.
func (s *State) Instances(ns ID, after ID) []*Instance {
	var out []*Instance
	for k, i := range s.instances { // order-free: sorted below
		if k.ns == ns && idCompare(k.id, after) > 0 {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b *Instance) int { return bytes.Compare(a.Row.Id, b.Row.Id) })
	return out
}

// Gateway finds a gateway's row; nil if it has none.
func (s *State) Gateway(id string) *pb.GatewayRow {
	if g := s.gateways[id]; g != nil {
		return g.row
	}
	return nil
}

// Gateways lists the rows by id.
func (s *State) Gateways() []*pb.GatewayRow {
	var out []*pb.GatewayRow
	for _, g := range s.gateways { // order-free: sorted below
		if g.row != nil {
			out = append(out, g.row)
		}
	}
	slices.SortFunc(out, func(a, b *pb.GatewayRow) int { return strings.Compare(a.Id, b.Id) })
	return out
}

// SessionsOf lists the instances connected through a gateway, in key order.
func (s *State) SessionsOf(gatewayID string) []*Instance {
	g := s.gateways[gatewayID]
	if g == nil {
		return nil
	}
	out := make([]*Instance, 0, g.sessions.Len())
	g.sessions.Scan(func(k instanceKey) bool {
		out = append(out, s.instances[k])
		return true
	})
	return out
}

// Key finds a concurrency key that is held or waited for.
func (s *State) Key(ns ID, name string) *Key { return s.keys[keyName{ns, name}] }

// KeyNames lists a namespace's keys that are held or waited for, in order.
func (s *State) KeyNames(ns ID, after string) []string {
	var out []string
	for k := range s.keys { // order-free: sorted below
		if k.ns == ns && k.key > after {
			out = append(out, k.key)
		}
	}
	slices.Sort(out)
	return out
}

// KeysHeld counts the keys that somebody holds.
func (s *State) KeysHeld() uint64 { return uint64(len(s.held)) }

// KeysHeldIn counts those of one namespace.
func (s *State) KeysHeldIn(ns ID) (n uint64) {
	for name := range s.held { // order-free: a count
		if name.ns == ns {
			n++
		}
	}
	return n
}

// LiveAttempt finds an attempt that is LEASED or RUNNING.
func (s *State) LiveAttempt(id ID) *Attempt { return s.attempts[id] }

// LiveAttempts lists them by id.
func (s *State) LiveAttempts() []*Attempt {
	out := make([]*Attempt, 0, len(s.attempts))
	for _, a := range s.attempts { // order-free: sorted below
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Attempt) int { return bytes.Compare(a.Row.Id, b.Row.Id) })
	return out
}

// ActiveTask finds a task that is LEASED or RUNNING.
func (s *State) ActiveTask(id ID) *pb.TaskRow { return s.tasks[id] }

// ActiveIDs calls fn for the LEASED and RUNNING tasks of a namespace below
// before (all, if before is zero), newest first, until fn returns false.
func (n *Namespace) ActiveIDs(before ID, fn func(ID) bool) { descend(n.active, before, fn) }

// ReviewIDs does the same for the tasks in NEEDS_REVIEW.
func (n *Namespace) ReviewIDs(before ID, fn func(ID) bool) { descend(n.review, before, fn) }

func descend(tree *btree.BTreeG[ID], before ID, fn func(ID) bool) {
	if before == (ID{}) {
		tree.Reverse(fn)
		return
	}
	tree.Descend(before, func(id ID) bool { return id == before || fn(id) })
}

// Waiting derives why a WAITING task is not running. Precedence: parked,
// paused, key, limit, no capable worker, busy, ready.
func (s *State) Waiting(t *pb.TaskRow) *pb.Waiting {
	q := s.queues[ID(t.QueueId)]
	keyed := t.ConcurrencyKey != ""
	switch {
	case t.Park == pb.Park_PARK_DELAYED:
		return &pb.Waiting{Reason: pb.WaitingReason_WAITING_REASON_DELAYED, UntilUs: t.AvailableAtUs}
	case t.Park == pb.Park_PARK_BACKOFF:
		return &pb.Waiting{Reason: pb.WaitingReason_WAITING_REASON_RETRY_BACKOFF, UntilUs: t.AvailableAtUs}
	case q.Row.Paused:
		return &pb.Waiting{Reason: pb.WaitingReason_WAITING_REASON_QUEUE_PAUSED}
	}
	if keyed {
		if k := s.keys[keyName{ID(t.NamespaceId), t.ConcurrencyKey}]; k != nil && k.Row != nil {
			return &pb.Waiting{Reason: pb.WaitingReason_WAITING_REASON_KEY_HELD, HolderTaskId: k.Row.TaskId}
		}
	}
	return &pb.Waiting{Reason: q.reason(q.classes[taskCap(t)], keyed)}
}
