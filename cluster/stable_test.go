package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestAVoteThatWasAlteredIsNotBelieved(t *testing.T) {
	t.Parallel()
	under := raft.NewInmemStore()
	s := newSealedStable(under)
	if err := errors.Join(s.SetUint64(currentTermKey, 7), s.Set([]byte("LastVoteCand"), []byte("10.0.0.1:7402"))); err != nil {
		t.Fatal(err)
	}
	if term, err := s.GetUint64(currentTermKey); err != nil || term != 7 {
		t.Fatalf("term %d, %v", term, err)
	}
	if cand, err := s.Get([]byte("LastVoteCand")); err != nil || string(cand) != "10.0.0.1:7402" {
		t.Fatalf("vote for %q, %v", cand, err)
	}
	for _, key := range []string{string(currentTermKey), "LastVoteCand"} {
		whole, err := under.Get([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		for bit := 8; bit < 8*len(whole); bit++ { // the mark is looked at below
			bad := append([]byte(nil), whole...)
			bad[bit/8] ^= 1 << (bit % 8)
			if err := under.Set([]byte(key), bad); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Get([]byte(key)); !errors.Is(err, errStable) {
				t.Fatalf("%s with bit %d flipped is %q, %v", key, bit, got, err)
			}
		}
	}
	// A value moved to another key is none of it.
	whole, err := under.Get([]byte("LastVoteCand"))
	if err != nil {
		t.Fatal(err)
	}
	whole[1] ^= 1
	if err := under.Set([]byte("Other"), whole); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get([]byte("Other")); !errors.Is(err, errStable) {
		t.Errorf("a moved value: %v", err)
	}
	// A term that is gone, or whose mark is, is missed where there is a log.
	st := &stores{stable: s}
	if err := under.Set(currentTermKey, []byte{0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if err := st.checkStable(true); !errors.Is(err, errStable) {
		t.Errorf("a log without a term: %v", err)
	}
}

// crowded is a store in which a second change is begun during the first.
type crowded struct {
	raft.StableStore
	during func()
}

func (c *crowded) Set(key, value []byte) error {
	c.during()
	return c.StableStore.Set(key, value)
}

// raft notes a term in the goroutine of a heartbeat while its main one is at a vote.
// The mark of a change is not that of the next one, which a kill may still undo.
func TestChangesAtOneTimeAreMarkedOneByOne(t *testing.T) {
	t.Parallel()
	under := &crowded{StableStore: raft.NewInmemStore()}
	marks, err := openMarks(t.TempDir(), raft.NewInmemStore(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer marks.Close()
	s := newSealedStable(under)
	s.marks = marks
	begun, durable, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	under.during = func() {
		under.during = func() { close(begun); <-durable }
		go func() { done <- s.SetUint64(currentTermKey, 8) }()
		select {
		case <-begun:
		case <-time.After(100 * time.Millisecond): // it waits for its turn
		}
	}
	if err := s.SetUint64([]byte("LastVoteTerm"), 7); err != nil {
		t.Fatal(err)
	}
	if at := marks.read().change; at != 1 {
		t.Errorf("one change is durable, %d are marked", at)
	}
	close(durable)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if at := marks.read().change; at != 2 || s.change != 2 {
		t.Errorf("of two changes %d are marked", at)
	}
}
