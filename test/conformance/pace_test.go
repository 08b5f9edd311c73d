//go:build !race

package conformance

// pace is how much slower than usual the node is.
const pace = 1
