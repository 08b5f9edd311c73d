package cluster

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

const testSpan = 100 * time.Millisecond

// beater calls as raft's goroutine of one follower does, and notes when.
func beater(b *beats, id raft.ServerID, until time.Time, call func() error) (sent []time.Time) {
	for time.Now().Before(until) {
		if b.send(id, func() error { sent = append(sent, time.Now()); return call() }) != nil {
			time.Sleep(testSpan / 2)
			continue
		}
		time.Sleep(testSpan + rand.N(testSpan)) // in a bubble
	}
	return sent
}

func TestHeartbeatsLeaveTogetherAndNoLaterThanRaftMayWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, until := newBeats(testSpan), time.Now().Add(20*time.Second)
		sent := map[raft.ServerID][]time.Time{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, id := range []raft.ServerID{"b", "c", "d"} {
			all.Go(func() {
				got := beater(b, id, until, func() error { return nil })
				mu.Lock()
				defer mu.Unlock()
				sent[id] = got
			})
		}
		all.Wait()
		for i := range min(len(sent["b"]), len(sent["c"]), len(sent["d"])) {
			at := sent["b"][i]
			if !sent["c"][i].Equal(at) || !sent["d"][i].Equal(at) {
				t.Fatalf("heartbeat %d left at %v, %v and %v", i, at, sent["c"][i], sent["d"][i])
			}
			if i > 0 && at.Sub(sent["b"][i-1]) > 2*testSpan {
				t.Fatalf("a follower heard nothing for %v", at.Sub(sent["b"][i-1]))
			}
		}
	})
}

func TestNobodyWaitsForAFollowerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func() error{
		"refused": func() error { return errors.New("gone") },
		"silent":  func() error { time.Sleep(10 * time.Second); return nil }, // in a bubble
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, began := newBeats(testSpan), time.Now()
				var all sync.WaitGroup
				all.Go(func() { beater(b, "dead", began.Add(9*time.Second), answer) })
				sent := beater(b, "b", began.Add(9*time.Second), func() error { return nil })
				for i := 1; i < len(sent); i++ {
					if d := sent[i].Sub(sent[i-1]); d > 2*testSpan {
						t.Errorf("a heartbeat left after %v", d)
					}
				}
				all.Wait()
			})
		})
	}
}

// Raft asks at once whether it still leads: a read waits for it.
func TestAHeartbeatOutOfTurnLeavesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, began := newBeats(testSpan), time.Now()
		send := func(id raft.ServerID) {
			if err := b.send(id, func() error { return nil }); err != nil {
				t.Error(err)
			}
		}
		send("b")
		send("c")
		time.Sleep(testSpan / 2) // in a bubble
		send("b")
		send("c")
		if d := time.Since(began); d != testSpan/2 {
			t.Errorf("heartbeats out of turn left after %v", d)
		}
		// One that is in its turn goes with one that is not.
		time.Sleep(testSpan / 2) // in a bubble
		send("b")
		time.Sleep(testSpan / 2) // in a bubble
		var all sync.WaitGroup
		all.Go(func() { send("c") })
		synctest.Wait()
		send("b")
		all.Wait()
		if d := time.Since(began); d != testSpan/2*3 {
			t.Errorf("they left after %v", d)
		}
	})
}
