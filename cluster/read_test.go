package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/test/calm"
)

func TestReadsShareAVerificationThatBeginsAfterThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := make(chan chan error, 10)
		rounds := 0
		v := &verifier{
			ask: func(ctx context.Context) error {
				answer := make(chan error, 1)
				began <- answer
				select {
				case err := <-answer:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			},
			rounds: func() { rounds++ },
			wake:   make(chan struct{}, 1),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			v.run(ctx)
			close(ended)
		}()
		outcomes := make(chan error, 100)
		read := func() { go func() { outcomes <- v.verify(t.Context()) }() }

		read()
		synctest.Wait()
		first := <-began
		for range 10 {
			read() // these arrive while the first round is under way
		}
		synctest.Wait()
		first <- nil
		synctest.Wait()
		if len(outcomes) != 1 {
			t.Fatalf("%d reads went with a verification that began before them", len(outcomes)-1)
		}
		second := <-began
		lost := errors.New("lost")
		second <- lost
		synctest.Wait()
		if len(outcomes) != 11 || rounds != 2 {
			t.Fatalf("%d reads in %d rounds", len(outcomes), rounds)
		}
		if err := <-outcomes; err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if err := <-outcomes; !errors.Is(err, lost) {
				t.Fatalf("a read of the failed round got %v", err)
			}
		}

		read()
		synctest.Wait()
		third := <-began
		read()
		impatient, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		go func() { outcomes <- v.verify(impatient) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if err := <-outcomes; !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the impatient read got %v", err)
		}
		cancel()
		third <- nil
		synctest.Wait()
		if len(outcomes) != 2 {
			t.Fatalf("%d reads have an outcome at the end, want both", len(outcomes))
		}
		<-ended
		if err := v.verify(t.Context()); err == nil {
			t.Fatal("a read after the end was verified")
		}
	})
}

func TestManyReadsTakeFewVerifications(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	done := make(chan error, 500)
	for range 500 {
		go func() {
			_, err := n.Query(t.Context(), &pb.Query{})
			done <- err
		}()
	}
	for range 500 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if rounds := n.counters.Verifications.Load(); rounds == 0 || rounds >= 500 {
		t.Fatalf("500 reads took %d verifications", rounds)
	}
}

// The newest committed entry may be raft's own: reads get past it.
func TestAReadGetsPastAnEntryThatNeverReachesApply(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), nil).lead(t)
	if err := n.raft.Barrier(0).Error(); err != nil {
		t.Fatal(err)
	}
	if n.raft.CommitIndex() <= n.applier.seen.index.Load() {
		t.Fatal("the barrier was seen")
	}
	ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
	defer cancel()
	if _, err := n.Query(ctx, &pb.Query{}); err != nil {
		t.Fatal(err)
	}
	if n.counters.EmptyEntries.Load() == 0 {
		t.Fatal("nothing was proposed to get there")
	}
}

func TestReadErrorsKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		raft.ErrNotLeader:                    "not_leader",
		raft.ErrLeadershipLost:               "not_leader",
		raft.ErrLeadershipTransferInProgress: "not_leader",
		raft.ErrRaftShutdown:                 "unavailable",
	} {
		if got := readError(err); string(got.Code) != want {
			t.Errorf("%v gives %s, want %s", err, got.Code, want)
		}
	}
}

func TestTheGateOpensInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		var mu sync.Mutex
		opened := map[uint64]bool{}
		for _, i := range []uint64{5, 3, 9} {
			go func() {
				if g.wait(t.Context(), i) == nil {
					mu.Lock()
					defer mu.Unlock()
					opened[i] = true
				}
			}()
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.wait(impatient, 100); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		g.advance(5)
		g.advance(2) // never backwards
		synctest.Wait()
		if !opened[3] || !opened[5] || opened[9] || g.index.Load() != 5 {
			t.Fatalf("opened %v at %d", opened, g.index.Load())
		}
		if err := g.wait(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		g.advance(9)
		synctest.Wait()
		if !opened[9] || len(g.waiting) != 0 {
			t.Fatalf("opened %v, %d wait", opened, len(g.waiting))
		}
	})
}
