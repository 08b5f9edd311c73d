// Package cluster runs the real binary as real processes, hurts them, and holds
// the history of what clients and workers saw against what Pulse promises.
//
// A trio is three servers that found a cluster. Clients submit over HTTP, workers
// speak pulse.worker.v1 themselves (not through the SDK, so that every operation
// and its answer is recorded), and a fenced resource outside of Pulse takes
// effects and refuses fencing tokens that go back. Everything is recorded on one
// clock and checked afterwards: per task and per concurrency key with a
// linearizability checker, as sums over all, and against the log of a stopped
// node, which is applied once more to an empty machine and to the reference model.
//
// What hurts them: signals (kill and pause); a network in user space between
// network namespaces, which cuts, loses, delays and reorders packets in one
// direction or both; file systems of their own, which hang, fill up and are
// copied in use, as a power cut would leave them; system calls that are slow or
// fail; damage to files; and clients that behave badly. What a machine does not
// allow is skipped with a word.
//
// A scenario is one test. Those marked always run with every test run, all of
// them with make chaos. Each prints what it proved.
package cluster
