// Package calm knows how long the servers of tests keep their leader, and how
// long tests wait for what has to come.
//
// Tests run beside each other, under the race detector, on machines of which
// nobody knows how busy they are: a server may not be served for a second. A
// cluster whose leader is given up sooner than that has an election whenever the
// machine is busy, and a test that is not about elections then sees refusals, a
// leader other than the one it asked for, and values that are not there yet.
package calm

import "time"

// Office is the election timeout, and the lease of the leader, of several servers in
// one process: long enough for them to keep their leader on a busy machine, short
// enough to wait for another one.
const Office = 2 * time.Second

// Patience bounds a wait for what comes by itself. It is not how long that takes:
// it is longer than anything takes on a slow machine, some elections included, so
// that what has not come by then does not come.
const Patience = time.Minute
