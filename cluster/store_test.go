package cluster

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/hashicorp/raft"
)

// countingLog counts the reads that get through to it.
type countingLog struct {
	*raft.InmemStore
	reads int
}

func (l *countingLog) GetLog(index uint64, log *raft.Log) error {
	l.reads++
	return l.InmemStore.GetLog(index, log)
}

// The cache never answers otherwise than the log it is put on.
func TestTheLogCacheAnswersLikeTheLog(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		log := &countingLog{InmemStore: raft.NewInmemStore()}
		c := newLogCache(log)
		next := uint64(1 + random.IntN(10000))
		for range 300 {
			switch random.IntN(10) {
			case 0: // cut the end, as a follower does
				first, _ := log.FirstIndex()
				last, _ := log.LastIndex()
				if last > first {
					from := first + 1 + random.Uint64N(last-first)
					if err := c.DeleteRange(from, last); err != nil {
						t.Fatal(err)
					}
					next = from
				}
			case 1: // cut the beginning
				first, _ := log.FirstIndex()
				last, _ := log.LastIndex()
				if last > first {
					if err := c.DeleteRange(first, first+random.Uint64N(last-first)); err != nil {
						t.Fatal(err)
					}
				}
			default:
				var logs []*raft.Log
				for range 1 + random.IntN(100) {
					data := make([]byte, 1+random.IntN(200))
					if random.IntN(200) == 0 {
						data = make([]byte, cacheBytes/3)
					}
					data[0] = byte(random.Uint32())
					logs = append(logs, &raft.Log{Index: next, Term: seed, Data: data})
					next++
				}
				if err := c.StoreLogs(logs); err != nil {
					t.Fatal(err)
				}
			}
			last, _ := log.LastIndex()
			for range 20 {
				index := last + 2 - min(random.Uint64N(cacheEntries+10), last+2)
				var got, want raft.Log
				gotErr, wantErr := c.GetLog(index, &got), log.InmemStore.GetLog(index, &want)
				if !errors.Is(gotErr, wantErr) || got.Index != want.Index || !bytes.Equal(got.Data, want.Data) {
					t.Fatalf("seed %d: entry %d of %d: %v and %v", seed, index, last, gotErr, wantErr)
				}
			}
			sum, held, oldest := 0, uint64(0), next
			for i, l := range c.ring {
				if l == nil {
					continue
				}
				held, oldest = held+1, min(oldest, l.Index)
				sum += weight(l)
				if l.Index%cacheEntries != uint64(i) {
					t.Fatalf("entry %d at place %d", l.Index, i)
				}
			}
			if sum != c.bytes || (c.bytes > cacheBytes && sum > weight(c.ring[(next-1)%cacheEntries])) {
				t.Fatalf("seed %d: %d bytes counted, %d held", seed, c.bytes, sum)
			}
			if held != next-oldest {
				t.Fatalf("seed %d: %d entries held from %d to %d: not the newest", seed, held, oldest, next-1)
			}
		}
	}
}

func TestTheNewestEntriesAreReadFromMemory(t *testing.T) {
	t.Parallel()
	log := &countingLog{InmemStore: raft.NewInmemStore()}
	c := newLogCache(log)
	for i := range uint64(2 * cacheEntries) {
		if err := c.StoreLog(&raft.Log{Index: i + 1, Data: []byte{1}}); err != nil {
			t.Fatal(err)
		}
	}
	var l raft.Log
	for i := range uint64(cacheEntries) {
		if err := c.GetLog(cacheEntries+i+1, &l); err != nil {
			t.Fatal(err)
		}
	}
	if log.reads != 0 {
		t.Fatalf("%d reads of the newest entries went to the log", log.reads)
	}
	if err := c.GetLog(cacheEntries, &l); err != nil || log.reads != 1 {
		t.Fatalf("an older one: %v, %d reads", err, log.reads)
	}
}

// Raft hands in a part of a larger thing, which an entry in the cache must not keep.
func TestTheCacheKeepsAnEntryAndNotItsOutcome(t *testing.T) {
	t.Parallel()
	type future struct {
		log raft.Log
		_   [1 << 10]byte // the outcome
	}
	c := newLogCache(forgetful{})
	stored := weakly(func() *future {
		f := &future{log: raft.Log{Index: 7, Data: []byte{1}}}
		if err := c.StoreLogs([]*raft.Log{&f.log}); err != nil {
			t.Fatal(err)
		}
		return f
	})
	runtime.GC()
	if stored.Value() != nil {
		t.Error("the cache keeps what the entry was a part of")
	}
	var l raft.Log
	if err := c.GetLog(7, &l); err != nil || l.Index != 7 || len(l.Data) != 1 {
		t.Errorf("the entry is %+v, %v", l, err)
	}
}

func weakly[T any](f func() *T) weak.Pointer[T] { return weak.Make(f()) }

// forgetful is a log that keeps nothing.
type forgetful struct{ raft.LogStore }

func (forgetful) StoreLogs([]*raft.Log) error { return nil }

func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	var h Histogram
	for _, v := range []float64{0, 0.00001, 1, 1.5, 512, 1 << 20} {
		h.add(v)
	}
	count, sum, buckets := h.Read()
	if count != 6 || sum < 1<<20 || buckets[1] != 3 || buckets[2] != 4 || buckets[512] != 5 || buckets[4096] != 5 || len(buckets) != histogramBuckets {
		t.Fatalf("count %d, sum %v, buckets %v", count, sum, buckets)
	}
}

func TestAFileThatCannotBeOpenedIsNamedWithTheWayOut(t *testing.T) {
	t.Parallel()
	for _, file := range []string{stableFile, boltFile} {
		path := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(path, bytes.Repeat([]byte{7}, 64<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openBolt(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "start it empty") {
			t.Errorf("%s: %v", file, err)
		}
	}
}
