//go:build race

package conformance

// pace is how much slower than usual the node is: the race detector takes its
// time.
const pace = 3
