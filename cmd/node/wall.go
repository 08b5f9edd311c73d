//go:build !faults

package node

import "time"

// wallClock is the wall clock of this process. Nothing outside can turn it: a
// build with the tag faults has one that tests can step.
func wallClock() time.Time { return time.Now() }
