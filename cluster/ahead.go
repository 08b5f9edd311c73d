package cluster

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// aheadLog lets a leader send entries while its own disk writes them. Raft stores an
// entry first and sends it afterwards, so a commit would be two syncs in a row: the
// leader's, and that of a follower. Here StoreLogs returns before the entry is on
// disk, for a leader's commands alone, and raft goes on and sends them.
//
// Raft then counts this server among those that have the entry, which is not true yet.
// So what it believes to be committed is believed nowhere else before the entry is
// durable here as well:
//
//   - nothing is applied, and so nothing is answered (await, in ApplyBatch);
//   - no follower is told that it is committed (aheadTransport);
//   - no call of another server is looked at, so that a leader that is none any more
//     does not say that it has an entry (await, in guard).
//
// With that an entry is committed, for everybody, when it is on the disks of most
// servers, this one among them: what it was when the one sync came before the other.
// A server that is killed in between loses an entry which it has told nobody that it has.
// Until then it has it in memory, and gives no vote to a server without it.
//
// What is not a command, above all a configuration, which raft acts upon by itself, is
// durable when StoreLogs returns, and so is everything that a follower stores.
//
// StoreLogs is called by raft's main goroutine; everything else by any.
type aheadLog struct {
	raft.LogStore // writes and syncs

	leads atomic.Pointer[func() bool]
	first atomic.Uint64 // of waiting; 0: none

	mu      sync.Mutex
	waiting []*raft.Log   // not durable yet, in order; no more than the proposer has in flight
	err     error         // of the write that failed: this log takes nothing more
	changed chan struct{} // closed when one of these changes; nil: nobody waits for it

	work chan struct{} // capacity 1: waiting has got longer
	stop chan struct{}
	all  sync.WaitGroup
}

var _ raft.MonotonicLogStore = (*aheadLog)(nil)

func newAheadLog(s raft.LogStore) *aheadLog {
	l := &aheadLog{LogStore: s, work: make(chan struct{}, 1), stop: make(chan struct{})}
	l.all.Go(l.write)
	return l
}

// lead says how to tell whether this server leads, in the goroutine that stores.
// Before it is called nothing goes ahead.
func (l *aheadLog) lead(leads func() bool) { l.leads.Store(&leads) }

func (l *aheadLog) IsMonotonic() bool { return monotonic(l.LogStore) }

func (l *aheadLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs stores entries, or promises to.
func (l *aheadLog) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	if !l.mayWait(logs) {
		if err := l.await(math.MaxUint64, nil); err != nil {
			return err
		}
		return l.LogStore.StoreLogs(logs)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.waiting = append(l.waiting, logs...)
	l.first.Store(l.waiting[0].Index)
	select {
	case l.work <- struct{}{}:
	default:
	}
	return nil
}

// mayWait says that the entries are commands of a leader.
func (l *aheadLog) mayWait(logs []*raft.Log) bool {
	leads := l.leads.Load()
	if leads == nil || !(*leads)() {
		return false
	}
	for _, log := range logs {
		if log.Type != raft.LogCommand {
			return false
		}
	}
	return true
}

// write makes durable what waits, until Close. After an error the process is about
// to end, see watchedLog.
func (l *aheadLog) write() {
	for {
		l.mu.Lock()
		batch := l.waiting
		l.mu.Unlock()
		if len(batch) == 0 {
			select {
			case <-l.work:
				continue
			case <-l.stop:
				return
			}
		}
		err := l.LogStore.StoreLogs(batch)
		l.mu.Lock()
		if l.err = err; err == nil {
			l.durable(len(batch))
		}
		if l.changed != nil {
			close(l.changed)
			l.changed = nil
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// durable takes entries out of those that wait. l.mu is held.
func (l *aheadLog) durable(n int) {
	if l.waiting = l.waiting[n:]; len(l.waiting) > 0 {
		l.first.Store(l.waiting[0].Index)
		return
	}
	l.waiting = nil // let go of the array, and of what its entries hold
	l.first.Store(0)
}

var errStopped = errors.New("this server is stopping")

// await returns once what waits now, up to an index, is durable. An error says that
// it never will be, or that stop was closed.
func (l *aheadLog) await(index uint64, stop <-chan struct{}) error {
	if first := l.first.Load(); first == 0 || first > index {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.waiting); n > 0 {
		index = min(index, l.waiting[n-1].Index) // what comes later is not waited for
	}
	for l.err == nil && len(l.waiting) > 0 && l.waiting[0].Index <= index {
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
			l.mu.Lock()
		case <-stop:
			l.mu.Lock()
			return errStopped
		}
	}
	return l.err
}

// limit is the last index that may be said to be committed.
func (l *aheadLog) limit() uint64 {
	if first := l.first.Load(); first != 0 {
		return first - 1
	}
	return math.MaxUint64
}

// GetLog finds an entry that is not durable yet, too: followers are sent it.
func (l *aheadLog) GetLog(index uint64, log *raft.Log) error {
	if first := l.first.Load(); first == 0 || index < first {
		return l.LogStore.GetLog(index, log)
	}
	l.mu.Lock()
	if n := len(l.waiting); n > 0 && l.waiting[0].Index <= index && index <= l.waiting[n-1].Index {
		*log = *l.waiting[index-l.waiting[0].Index]
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	return l.LogStore.GetLog(index, log)
}

func (l *aheadLog) FirstIndex() (uint64, error) {
	first, err := l.LogStore.FirstIndex()
	if err != nil || first != 0 {
		return first, err
	}
	return l.first.Load(), nil
}

func (l *aheadLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.waiting); n > 0 {
		return l.waiting[n-1].Index, nil
	}
	return l.LogStore.LastIndex()
}

func (l *aheadLog) DeleteRange(from, to uint64) error {
	if err := l.await(to, nil); err != nil {
		return err
	}
	return l.LogStore.DeleteRange(from, to)
}

// Close ends the writing, after what waits. Raft has ended before. A write that has
// failed was told of when it did.
func (l *aheadLog) Close() error {
	_ = l.await(math.MaxUint64, nil)
	close(l.stop)
	l.all.Wait()
	return nil
}

// aheadTransport tells followers no more of what is committed than is durable here.
type aheadTransport struct {
	raft.Transport
	raft.WithPreVote
	limit func() uint64
}

func newAheadTransport(t raft.Transport, limit func() uint64) *aheadTransport {
	a := &aheadTransport{Transport: t, limit: limit}
	a.WithPreVote, _ = t.(raft.WithPreVote)
	return a
}

// within lowers what a request says to be committed. The limit is read after raft has
// put it there: what was not durable when it was committed is below no later limit
// before it is.
func (t *aheadTransport) within(args *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	args.LeaderCommitIndex = min(args.LeaderCommitIndex, t.limit())
	return args
}

func (t *aheadTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return t.Transport.AppendEntries(id, target, t.within(args), resp)
}

func (t *aheadTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return aheadPipeline{p, t}, nil
}

// Close closes the transport beneath.
func (t *aheadTransport) Close() error {
	if c, ok := t.Transport.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

type aheadPipeline struct {
	raft.AppendPipeline
	transport *aheadTransport
}

func (p aheadPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	return p.AppendPipeline.AppendEntries(p.transport.within(args), resp)
}
