// Package cluster runs the real binary as real processes, hurts them, and holds
// the history of what clients and workers saw against what Pulse promises.
//
// A Cluster starts and kills nodes. Clients submit over HTTP, workers speak
// pulse.worker.v1 themselves (not through the SDK, so that every operation and
// its answer is recorded), and a fenced resource outside of Pulse takes effects
// and refuses fencing tokens that go back. Everything is recorded on one clock
// and checked afterwards: per task and per concurrency key with a linearizability
// checker, and as sums over all.
package cluster
