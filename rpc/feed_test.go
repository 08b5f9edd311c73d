package rpc

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	pb "pulse/proto/pulse/v1"
)

func taskEvent(id string) *pb.EventRow {
	return &pb.EventRow{Aggregate: pb.Aggregate_AGGREGATE_TASK, AggregateId: []byte(id)}
}

// startFeed runs a feed inside the current synctest bubble.
func startFeed(t *testing.T) *Feed {
	t.Helper()
	f := NewFeed()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return f
}

// woken says whether a wake-up is there once everybody else rests.
func woken(wake <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-wake:
		return true
	default:
		return false
	}
}

func TestWatcherWakesForItsTaskOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		mine, cancelMine := f.Subscribe([]byte("task-a"))
		defer cancelMine()
		all, cancelAll := f.Subscribe(nil)
		defer cancelAll()

		f.Publish(1, []*pb.EventRow{taskEvent("task-b")})
		if woken(mine) {
			t.Error("the watcher of task-a woke for task-b")
		}
		if !woken(all) {
			t.Error("the watcher of everything slept through task-b")
		}
		f.Publish(2, []*pb.EventRow{taskEvent("task-b"), taskEvent("task-a")})
		if !woken(mine) || !woken(all) {
			t.Error("a watcher slept through task-a")
		}
	})
}

func TestQueueEventWakesWatchersOfEverythingOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		// A queue may have the very id that a task watcher waits for.
		task, cancelTask := f.Subscribe([]byte("same-id"))
		defer cancelTask()
		all, cancelAll := f.Subscribe(nil)
		defer cancelAll()
		f.Publish(1, []*pb.EventRow{{Aggregate: pb.Aggregate_AGGREGATE_QUEUE, AggregateId: []byte("same-id")}})
		if woken(task) {
			t.Error("a queue's event woke the watcher of a task")
		}
		if !woken(all) {
			t.Error("a queue's event woke nobody")
		}
	})
}

func TestEntryWithoutEventsWakesNobodyButIsApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		all, cancel := f.Subscribe(nil)
		defer cancel()
		f.Publish(7, nil)
		if woken(all) {
			t.Error("an entry that changed nothing woke a watcher")
		}
		if got := f.AppliedIndex(); got != 7 {
			t.Errorf("applied index %d, want 7", got)
		}
		f.Publish(6, nil)
		if got := f.AppliedIndex(); got != 7 {
			t.Errorf("applied index fell to %d", got)
		}
	})
}

func TestWakeUpsCoalesceAndNeverBlockApply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		lazy, cancel := f.Subscribe([]byte("a"))
		defer cancel()
		// Nobody reads: were a publish to wait for the watcher, the bubble
		// would report a deadlock here.
		for i := range uint64(1000) {
			f.Publish(i+1, []*pb.EventRow{taskEvent("a")})
		}
		if !woken(lazy) {
			t.Fatal("the watcher was never woken")
		}
		if woken(lazy) {
			t.Error("wake-ups queued up instead of becoming one")
		}
		f.Publish(2000, []*pb.EventRow{taskEvent("a")})
		if !woken(lazy) {
			t.Error("a change after the last wake-up was lost")
		}
	})
}

func TestCancelledSubscriptionIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		first, cancelFirst := f.Subscribe([]byte("a"))
		second, cancelSecond := f.Subscribe([]byte("a"))
		cancelFirst()
		cancelFirst()
		f.Publish(1, []*pb.EventRow{taskEvent("a")})
		if woken(first) {
			t.Error("a cancelled subscription woke")
		}
		if !woken(second) {
			t.Error("cancelling one subscription took its neighbour along")
		}
		cancelSecond()
		if n := f.Watchers(); n != 0 {
			t.Errorf("%d watchers left", n)
		}
		if len(f.topics) != 0 {
			t.Errorf("%d topics left behind", len(f.topics))
		}
		// A new topic of the same id must not be taken away by an old cancel.
		third, cancelThird := f.Subscribe([]byte("a"))
		defer cancelThird()
		cancelSecond()
		f.Publish(2, []*pb.EventRow{taskEvent("a")})
		if !woken(third) {
			t.Error("an old cancel removed a new subscription")
		}
	})
}

func TestRestoreWakesEverybody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		a, cancelA := f.Subscribe([]byte("a"))
		defer cancelA()
		all, cancelAll := f.Subscribe(nil)
		defer cancelAll()
		f.PublishAll(9)
		if !woken(a) || !woken(all) {
			t.Error("a watcher slept through a restore")
		}
		if got := f.AppliedIndex(); got != 9 {
			t.Errorf("applied index %d, want 9", got)
		}
	})
}

func TestWatcherSubscribedConcurrentlyReadsTheChangeOrWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		var state sync.Map // what a reader would see
		var wg sync.WaitGroup
		for i := range 64 {
			id := string(rune('A' + i))
			wg.Go(func() {
				state.Store(id, true)
				f.Publish(uint64(i), []*pb.EventRow{taskEvent(id)})
			})
			wg.Go(func() {
				wake, cancel := f.Subscribe([]byte(id))
				defer cancel()
				for {
					if _, ok := state.Load(id); ok {
						return
					}
					<-wake // a lost wake-up deadlocks the bubble
				}
			})
		}
		wg.Wait()
	})
}
