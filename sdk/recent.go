package sdk

import (
	"strings"

	"pulse/schema/workerv1"
)

// pastAttempts is how many attempts a worker remembers after their end. An
// offer is repeated only while nobody has started it, so a repeat is seconds
// late, not thousands of attempts.
const pastAttempts = 4096

// recent remembers the last ids it was given.
type recent struct {
	ids  map[workerv1.ID]struct{}
	ring []workerv1.ID
	next int
}

func newRecent(size int) recent {
	return recent{ids: make(map[workerv1.ID]struct{}), ring: make([]workerv1.ID, 0, size)}
}

func (r *recent) has(id workerv1.ID) bool {
	_, ok := r.ids[id]
	return ok
}

func (r *recent) add(id workerv1.ID) {
	if len(r.ring) < cap(r.ring) {
		r.ring = append(r.ring, id)
	} else {
		delete(r.ids, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % len(r.ring)
	}
	r.ids[id] = struct{}{}
}

func compareCapabilities(a, b workerv1.Capability) int {
	return strings.Compare(a.Handler+" "+a.HandlerVersion+" "+a.PayloadVersion, b.Handler+" "+b.HandlerVersion+" "+b.PayloadVersion)
}
