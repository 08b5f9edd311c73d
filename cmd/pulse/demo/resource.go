package demo

import (
	"sync"
)

// resource is what the tasks have an effect on, as a bank or a database would
// stand there: it remembers every effect, and refuses one that comes with a
// smaller fencing token than it has seen. It knows nothing of Pulse, so what it
// says about doubled effects is evidence.
type resource struct {
	mu      sync.Mutex
	places  map[string]place // by concurrency key, or by task where there is none
	effects map[string]int   // accepted, by task

	accepted int
	refused  int // too late: the token was smaller than one seen before
	repeated int // a second time, of a task that said this does no harm
	doubled  int // what must never be
}

// place is where effects of one key meet.
type place struct {
	token uint64 // the largest seen
	by    string // the attempt it came with
}

func newResource() *resource {
	return &resource{places: map[string]place{}, effects: map[string]int{}}
}

// effect is something done to the resource.
type effect struct {
	task, attempt string
	key           string // "" = none
	token         uint64
	once          bool // doing it twice would do harm
}

// apply does it, unless it comes too late.
func (r *resource) apply(e effect) (accepted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := "task/" + e.task
	if e.key != "" {
		name = "key/" + e.key
	}
	last := r.places[name]
	switch {
	case e.token < last.token:
		r.refused++
		return false
	case e.token == last.token && last.by != e.attempt:
		// Two attempts hold the same number: no resource could tell them apart.
		r.doubled++
	}
	r.places[name] = place{e.token, e.attempt}
	r.accepted++
	if r.effects[e.task]++; r.effects[e.task] > 1 {
		if e.once {
			r.doubled++
		} else {
			r.repeated++
		}
	}
	return true
}

// has says whether a task had an effect.
func (r *resource) has(task string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.effects[task] > 0
}

type account struct{ accepted, refused, repeated, doubled int }

func (r *resource) account() account {
	r.mu.Lock()
	defer r.mu.Unlock()
	return account{r.accepted, r.refused, r.repeated, r.doubled}
}
