package rpc

import (
	"context"
	"sync"
	"sync/atomic"

	pb "pulse/proto/pulse/v1"
)

// Feed wakes watchers after entries that changed what they watch. Publish is
// called by the apply goroutine alone; it costs a map look-up for each event
// and never waits for a watcher. Run does the waking.
//
// A subscription is as cheap as a map entry and a channel; how many there are
// is bounded by those who hold one (HTTP requests and their limits).
type Feed struct {
	applied atomic.Uint64 // fence_base + log index

	mu     sync.Mutex
	topics map[string]*topic // by task id; "" is everything
	dirty  []*topic          // marked since Run last looked, each once
	work   chan struct{}     // capacity 1: dirty is not empty

	// changed are topics that came or went since the Watch that feeds this feed
	// took them; nil on a feed that apply publishes to. Guarded by mu.
	changed map[string]struct{}
	tell    chan struct{} // capacity 1: changed is not empty
}

// topic is what some watchers share. All fields are guarded by Feed.mu.
type topic struct {
	id       string
	watchers map[chan struct{}]struct{}
	groups   map[*Group]struct{}
	dirty    bool // is in Feed.dirty
}

// NewFeed returns a feed that wakes nobody before Run is called.
func NewFeed() *Feed {
	return &Feed{topics: make(map[string]*topic), work: make(chan struct{}, 1), tell: make(chan struct{}, 1)}
}

// everything is the topic of those who watch all tasks.
const everything = ""

// Publish tells that the entry with this index (fence_base + log index) is
// applied and what it committed. What the events tell can be read by now.
func (f *Feed) Publish(index uint64, events []*pb.EventRow) {
	f.advance(index)
	if len(events) == 0 {
		return
	}
	f.mu.Lock()
	f.mark(f.topics[everything])
	for _, event := range events {
		if event.GetAggregate() == pb.Aggregate_AGGREGATE_TASK {
			f.mark(f.topics[string(event.GetAggregateId())])
		}
	}
	marked := len(f.dirty) > 0
	f.mu.Unlock()
	if marked {
		f.signal()
	}
}

// PublishAll wakes every watcher: after a restore of the whole state nobody
// can tell what has changed.
func (f *Feed) PublishAll(index uint64) {
	f.advance(index)
	f.mu.Lock()
	for _, t := range f.topics {
		f.mark(t)
	}
	f.mu.Unlock()
	f.signal()
}

// AppliedIndex is the newest index published so far. It only grows.
func (f *Feed) AppliedIndex() uint64 { return f.applied.Load() }

// Subscribe wakes the returned channel after changes of the task, or of
// anything if taskID is empty. Changes before the call wake nobody: subscribe
// first, then read. Wake-ups coalesce, and one may come for a change the caller
// has read already. cancel releases the subscription and may be called twice.
func (f *Feed) Subscribe(taskID []byte) (wake <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	f.mu.Lock()
	t := f.topic(string(taskID))
	t.watchers[ch] = struct{}{}
	f.mu.Unlock()

	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(t.watchers, ch)
		f.release(t)
	}
}

// topic finds a topic or makes it. f.mu is held.
func (f *Feed) topic(id string) *topic {
	t := f.topics[id]
	if t == nil {
		t = &topic{id: id, watchers: make(map[chan struct{}]struct{}), groups: make(map[*Group]struct{})}
		f.topics[id] = t
		f.note(id)
	}
	return t
}

// release drops a topic that nobody watches any more. f.mu is held.
func (f *Feed) release(t *topic) {
	if len(t.watchers) == 0 && len(t.groups) == 0 && f.topics[t.id] == t {
		delete(f.topics, t.id)
		f.note(t.id)
	}
}

// Watchers counts the subscriptions held now.
func (f *Feed) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, t := range f.topics {
		n += len(t.watchers)
	}
	return n
}

// Run wakes watchers until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.work:
			for _, ch := range f.take() {
				select {
				case ch <- struct{}{}:
				default: // not read since the last wake-up, which covers this one
				}
			}
		}
	}
}

// take empties the dirty list and returns whom to wake, so that no channel is
// touched under the lock that the apply goroutine needs.
func (f *Feed) take() []chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	var wake []chan struct{}
	for _, t := range f.dirty {
		t.dirty = false
		for ch := range t.watchers {
			wake = append(wake, ch)
		}
		for g := range t.groups {
			g.dirty[t.id] = struct{}{}
			wake = append(wake, g.wake)
		}
	}
	f.dirty = f.dirty[:0]
	return wake
}

// mark puts a topic on the dirty list. Nil, a topic nobody watches, is fine.
func (f *Feed) mark(t *topic) {
	if t != nil && !t.dirty {
		t.dirty = true
		f.dirty = append(f.dirty, t)
	}
}

func (f *Feed) signal() {
	select {
	case f.work <- struct{}{}:
	default:
	}
}

func (f *Feed) advance(index uint64) {
	for {
		old := f.applied.Load()
		if index <= old || f.applied.CompareAndSwap(old, index) {
			return
		}
	}
}
