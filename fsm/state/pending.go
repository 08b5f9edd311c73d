package state

import (
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"
)

const (
	// pendingBytesMax is how much waits for the store at most. A few thousand
	// changes are written in a few milliseconds, which the entry that reaches
	// the bound waits for.
	pendingBytesMax = 2 << 20
	// heldTimes is how much more may wait while a checkpoint is being made. The
	// entry that reaches that bound waits for the checkpoint.
	heldTimes = 4
	// pendingRowBytes is what a change weighs beside its key and value.
	pendingRowBytes = 100
	// arenaBytes is the size of the pieces that values are encoded into.
	arenaBytes = 256 << 10
	// changeSlab is how many changes are allocated at a time.
	changeSlab = 64
)

// pending is what entries have changed and the store has not seen yet. The log
// is what is durable, so the store may lag behind as long as it holds the state
// of some one index: what a crash takes from here is applied again. Most rows of
// a task are put two or three times within milliseconds, and some of them only
// for that long; here each of them is one change or none.
//
// The apply goroutine writes under the machine's lock. Readers, who share that
// lock, meet in mu: one of them may have to write out what is pending first. What
// they were given is good as long as they hold the machine's lock, so memory that
// a write has set free is used again by later entries.
type pending struct {
	mu       sync.RWMutex
	rows     map[string]*change // of the entry that is being applied, too
	order    []*change          // those that pend, by first touch; one that came and went is no longer in rows
	touched  int                // changes of the entry that is being applied
	sorted   []*change          // room for order by table
	bytes    int
	bytesMax int
	values   arena
	batch    *pebble.Batch // nil, or to be used again
	held     chan struct{} // nil, or closed when the store may change again; guarded by mu alone
	over     *pebble.Batch // nil, or the store and what is pending of the entry overOf; of use while held
	overOf   uint64
	free     []*change // to be used again
}

// take gives an empty change.
func (p *pending) take() *change {
	if len(p.free) == 0 {
		slab := make([]change, changeSlab)
		for i := range slab {
			p.free = append(p.free, &slab[i])
		}
	}
	last := len(p.free) - 1
	c := p.free[last]
	p.free = p.free[:last]
	return c
}

// release takes a change back that nothing refers to any more.
func (p *pending) release(c *change) {
	*c = change{}
	p.free = append(p.free, c)
}

// commit makes what an entry did to a key a part of what is pending.
func (p *pending) commit(c *change) {
	p.bytes += len(c.key) + len(c.now.raw) + pendingRowBytes
	came := c.pends
	c.settled, c.now = c.now, version{}
	c.pends, c.touched, c.born = true, false, false
	switch {
	case c.settled.gone && c.fresh: // the store never hears of it
		delete(p.rows, c.key)
		if !came {
			p.release(c)
		}
	case !came:
		p.order = append(p.order, c)
	}
}

// written forgets what the store has been told.
func (p *pending) written() {
	if p.touched == 0 {
		clear(p.rows)
	}
	for _, c := range p.order {
		if c.touched {
			c.settled, c.pends, c.fresh = version{}, false, false
			continue
		}
		if p.touched > 0 && p.rows[c.key] == c {
			delete(p.rows, c.key)
		}
		p.release(c)
	}
	clear(p.order)
	p.order, p.bytes = p.order[:0], 0
	p.values.reset()
}

// arena is memory for values that are dropped together. Its pieces are kept.
type arena struct {
	full  [][]byte
	empty [][]byte
	now   []byte
}

// room gives an empty slice with room for size bytes, to be handed to took once it
// is filled.
func (a *arena) room(size int) []byte {
	if cap(a.now)-len(a.now) < size {
		if a.now != nil {
			a.full = append(a.full, a.now)
		}
		if last := len(a.empty) - 1; last >= 0 && size <= arenaBytes {
			a.now, a.empty = a.empty[last], a.empty[:last]
		} else {
			a.now = make([]byte, 0, max(size, arenaBytes))
		}
	}
	return a.now[len(a.now):len(a.now):cap(a.now)]
}

// took says that value, which came from room, stays.
func (a *arena) took(value []byte) []byte {
	a.now = a.now[:len(a.now)+len(value)]
	return value[:len(value):len(value)]
}

// reset drops all values.
func (a *arena) reset() {
	for _, piece := range a.full {
		if cap(piece) == arenaBytes { // larger ones were for one value
			a.empty = append(a.empty, piece[:0])
		}
	}
	clear(a.full)
	a.full = a.full[:0]
	if a.now = a.now[:0]; cap(a.now) > arenaBytes {
		a.now = nil
	}
}

// encode encodes a row into memory that stays until the store has it.
func (p *pending) encode(row proto.Message) ([]byte, error) {
	value, err := appendRow(p.values.room(rowRoom(row)), row)
	if err != nil {
		return nil, err
	}
	return p.values.took(value), nil
}

// hold lets the store stay as it is, with everything in it that has been applied,
// until the function it gives is called. Safe for those who may read the state.
func (s *State) hold() (release func(), err error) {
	p := &s.pending
	p.lockFree()
	defer p.mu.Unlock()
	if err := s.write(); err != nil {
		return nil, err
	}
	held := make(chan struct{})
	p.held = held
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held, p.over = nil, nil
		close(held)
	}, nil
}

// lockFree locks mu, once the store may change.
func (p *pending) lockFree() {
	for {
		p.mu.Lock()
		held := p.held
		if held == nil {
			return
		}
		p.mu.Unlock()
		<-held
	}
}

// full says that no more should wait for the store.
func (p *pending) full() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.bytes >= p.most()
}

func (p *pending) most() int {
	if p.held != nil {
		return heldTimes * p.bytesMax
	}
	return p.bytesMax
}

// Held is nil, or closed when what is pending may be written again: until then a
// checkpoint is being made.
func (s *State) Held() <-chan struct{} {
	s.pending.mu.RLock()
	defer s.pending.mu.RUnlock()
	return s.pending.held
}

// settle writes what is pending, and the meta row of the index it stands at, in
// one unsynced batch, once the store may change. Safe for those who may read the
// state.
func (s *State) settle() error {
	s.pending.lockFree()
	defer s.pending.mu.Unlock()
	return s.write()
}

// isSettled says that the store has everything.
func (s *State) isSettled() bool { return s.pending.bytes == 0 && s.settled == s.meta.AppliedIndex }

// write is settle with mu locked.
func (s *State) write() error {
	p := &s.pending
	if s.isSettled() {
		return nil
	}
	if p.batch == nil {
		p.batch = s.db.NewBatch(pebble.WithInitialSizeBytes(p.bytesMax+p.bytesMax/4),
			pebble.WithMaxRetainedSizeBytes(2*p.bytesMax))
	}
	batch := p.batch
	if err := s.collect(batch); err != nil {
		return err
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("write the state of entry %d: %w", s.meta.AppliedIndex, err)
	}
	batch.Reset()
	p.written()
	s.settled = s.meta.AppliedIndex
	return nil
}

// byTable orders what is pending by table, and as it came in each. Keys of most
// tables grow with time, and the store takes neighbours for less.
func (p *pending) byTable() []*change {
	var places [256]int
	for _, c := range p.order {
		places[c.key[0]]++
	}
	at := 0
	for table, n := range places {
		places[table], at = at, at+n
	}
	out := slices.Grow(p.sorted[:0], at)[:at]
	for _, c := range p.order {
		out[places[c.key[0]]] = c
		places[c.key[0]]++
	}
	p.sorted = out
	return out
}

// collect puts what is pending, and the meta row, into a batch.
func (s *State) collect(batch *pebble.Batch) error {
	p := &s.pending
	sorted := p.byTable()
	defer clear(sorted)
	for _, c := range sorted {
		if p.rows[c.key] != c {
			continue // gone without the store having had it
		}
		var err error
		if c.settled.gone {
			err = batch.Delete([]byte(c.key), nil)
		} else {
			err = batch.Set([]byte(c.key), c.settled.raw, nil)
		}
		if err != nil {
			return fmt.Errorf("write state row %x: %w", c.key, err)
		}
	}
	meta, err := s.encodeMeta()
	if err != nil {
		return err
	}
	if err := batch.Set(MetaKey, meta, nil); err != nil {
		return fmt.Errorf("write meta row: %w", err)
	}
	return nil
}

func (s *State) encodeMeta() ([]byte, error) {
	meta, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.meta)
	if err != nil {
		return nil, fmt.Errorf("encode meta row: %w", err)
	}
	return meta, nil
}

// Reader is where rows are read from: a State, or the store of a checkpoint.
type Reader interface {
	// Get returns the value of a key or pebble.ErrNotFound. The value is good
	// until the closer is closed.
	Get(key []byte) ([]byte, io.Closer, error)
	// NewIter iterates over the rows as they are now.
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

var (
	_ Reader = (*State)(nil)
	_ Reader = (*pebble.DB)(nil)
)

// Get reads one value of the state as it is, whether the store has it or not.
func (s *State) Get(key []byte) ([]byte, io.Closer, error) {
	s.pending.mu.RLock()
	defer s.pending.mu.RUnlock()
	if string(key) == string(MetaKey) && !s.isSettled() { // it is pending without being a change
		meta, err := s.encodeMeta()
		return meta, nothing{}, err
	}
	if c := s.pending.rows[string(key)]; c != nil && c.pends {
		if c.settled.gone {
			return nil, nil, pebble.ErrNotFound
		}
		return c.settled.raw, nothing{}, nil
	}
	return s.db.Get(key)
}

// NewIter lets the store see what is pending before it is iterated over. While a
// checkpoint is being made the store sees nothing, and what is pending is laid over
// it.
func (s *State) NewIter(o *pebble.IterOptions) (*pebble.Iterator, error) {
	over, err := s.laidOver()
	if err != nil {
		return nil, err
	}
	if over != nil {
		return over.NewIter(o)
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	return s.db.NewIter(o)
}

// laidOver is the store with what is pending, for those who iterate while the store
// may not change; nil if it may, or if nothing is pending. Nobody writes it.
func (s *State) laidOver() (*pebble.Batch, error) {
	p := &s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return nil, nil
	}
	if p.over == nil || p.overOf != s.meta.AppliedIndex {
		over := s.db.NewIndexedBatch()
		if !s.isSettled() {
			if err := s.collect(over); err != nil {
				return nil, err
			}
		}
		p.over, p.overOf = over, s.meta.AppliedIndex
	}
	return p.over, nil
}

// nothing is to be closed.
type nothing struct{}

func (nothing) Close() error { return nil }
