package sim

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	seedEnv  = "PULSE_SIM_SEED"  // play this seed alone, and show its trace
	seedsEnv = "PULSE_SIM_SEEDS" // play this many
	soakEnv  = "PULSE_SOAK"      // play new seeds for this long
	ciSeeds  = 200
)

func TestSeeds(t *testing.T) {
	if one := os.Getenv(seedEnv); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
		out, err := play(seed, func(line string) { t.Log(line) })
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("seed %d: %s, trace %s", seed, out, out.trace)
		return
	}
	n := uint64(ciSeeds)
	if testing.Short() {
		n = 20
	}
	if text := os.Getenv(seedsEnv); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedsEnv, err)
		}
	}
	var mu sync.Mutex
	var enough atomic.Bool // with failfast one failure will do
	failfast := flag.Lookup("test.failfast").Value.String() == "true"
	total := &outcome{counts: map[string]int{}}
	t.Run("all", func(t *testing.T) {
		for seed := uint64(1); seed <= n; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				if enough.Load() {
					t.SkipNow()
				}
				out, err := play(seed, nil)
				if err != nil {
					enough.Store(failfast)
					t.Fatal(err)
				}
				mu.Lock()
				defer mu.Unlock()
				total.add(out)
			})
		}
	})
	t.Logf("%d seeds: %s", n, total)
}

func (o *outcome) add(p *outcome) {
	o.steps += p.steps
	o.entries += p.entries
	o.tasks += p.tasks
	o.openings += p.openings
	o.faults += p.faults
	o.virtual += p.virtual
	for name, n := range p.counts { // order-free: sums
		o.counts[name] += n
	}
}

// TestReplay: a seed is the same run to the last bit, however often it is
// played.
func TestReplay(t *testing.T) {
	for _, seed := range []uint64{1001, 1002, 1003} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			first, err := play(seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			second, err := play(seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			if first.trace != second.trace || first.steps != second.steps {
				t.Errorf("played twice, seed %d took %d and %d steps, with traces %s and %s", seed, first.steps, second.steps, first.trace, second.trace)
			}
		})
	}
}

func TestSoak(t *testing.T) {
	text := os.Getenv(soakEnv)
	if text == "" {
		t.Skipf("set %s to a duration", soakEnv)
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", soakEnv, err)
	}
	began := time.Now()
	first := uint64(began.UnixNano())
	var mu sync.Mutex
	total, seeds := &outcome{counts: map[string]int{}}, 0
	next := first
	for i := range 2 {
		t.Run(fmt.Sprint("lane", i), func(t *testing.T) {
			t.Parallel()
			for time.Since(began) < long && !t.Failed() {
				mu.Lock()
				next++
				seed := next
				mu.Unlock()
				out, err := play(seed, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				total.add(out)
				seeds++
				mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { t.Logf("%d seeds from %d: %s", seeds, first, total) })
}
