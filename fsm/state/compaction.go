package state

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// compactions lets a store merge its tables once it has been loaded: until then that
// would take the processor, and the disk, from those who wait for the server.
type compactions struct {
	*pebble.ConcurrencyLimitScheduler
	store  pebble.DBForCompaction // written by Register, before anything else is called
	loaded atomic.Bool
}

var _ pebble.CompactionScheduler = (*compactions)(nil)

func newCompactions() *compactions {
	return &compactions{ConcurrencyLimitScheduler: oneAfterTheOther()}
}

// oneAfterTheOther runs one compaction at a time: the next begins when a flush or that
// one has ended. Pebble's own scheduler is this one and looks ten times a second besides
// whether there may be more of them at a time.
func oneAfterTheOther() *pebble.ConcurrencyLimitScheduler {
	return pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()
}

// Register is called by the store while it opens.
func (c *compactions) Register(goroutines int, store pebble.DBForCompaction) {
	c.store = store
	c.ConcurrencyLimitScheduler.Register(goroutines, store)
}

// TrySchedule is called by the store when there is something to merge. Once it has been
// refused it does not ask again.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.loaded.Load() {
		return false, nil
	}
	return c.ConcurrencyLimitScheduler.TrySchedule()
}

// begin lets what has been refused so far, and all that comes, run.
func (c *compactions) begin() {
	c.loaded.Store(true)
	ok, grant := c.ConcurrencyLimitScheduler.TrySchedule()
	if !ok {
		return // one that the store has asked for in this moment
	}
	if waits, _ := c.store.GetWaitingCompaction(); !waits || !c.store.Schedule(grant) {
		grant.Done()
	}
}
