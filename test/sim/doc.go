// Package sim runs a whole cluster in one goroutine on virtual time.
//
// A run is a seed. The seed makes three nodes, four gateways, workers, clients,
// an outside resource and everything that goes wrong between them, and the same
// seed makes the same run to the last bit: there is one random source, one queue
// of events, no clock but the virtual one, and no order that comes from a map.
//
//	clients ──┐                          ┌── resource (refuses smaller tokens)
//	workers ──┴─ connections ─ gateways ─┴─ forward ─► office ─► log ─► machine x 3
//	                ▲                                    │                 │
//	                └────────── deliveries ◄── courier ◄─┘◄── effects ─────┘
//
// Real is the code that decides: three fsm.Machine with their Pebble stores,
// checkpoints, streams and restores, each killed and opened again from what its
// own disk holds, a file system in memory. The reference reading of the promises
// is test/model, which shares no code with the machine and follows the committed
// log entry by entry.
//
// Modelled is what lives on goroutines and timers. Each model follows the code
// it stands for rule by rule, so that a change there wants a change here:
//
//	raft_test.go     the log as hashicorp/raft behaves: terms, pre-vote, leader lease,
//	                 entries that wait in the leader's channel across a change of
//	                 office, commands that are sent ahead of the leader's disk
//	                 (cluster/ahead.go), unsynced tails, InstallSnapshot, transfer
//	                 of leadership
//	node_test.go     a process and its disk: kill, power loss, start (cluster.Open)
//	clock_test.go    cluster/clock.go, and the median rule of the semantics
//	office_test.go   cluster/office.go, proposer.go, read.go and readindex.go
//	courier_test.go  cluster/duty: routes, repeats, the scan of a new leader
//	router_test.go   rpc.Router and the stream a forward goes over
//	gateway_test.go  gateway/session: hub, reports, closer, pipeline, lease secrets
//	worker_test.go   sdk.Worker, and workers that are slow, forgetful or rude
//	client_test.go   sdk.Client with keys and retries, and operators
//
// A gateway without a replica learns how far the cluster is from the answers it
// gets. Not simulated are: members that come and go, emptied and non-voting ones;
// a new cluster made of a backup; disks that answer with an error, hang or flip
// bits of anything but a snapshot on its way; gossip and TLS; what a role may do; the wire
// formats; the limits of a gateway on connections, rates and bytes; more than one
// namespace. Those are tried on real servers (test/cluster, test/conformance).
//
// What is checked, as it happens or at the end: every replica has the same state
// hash and the same answers at the same index, what was committed stays, a
// restored state has the rows of the one it was taken from (C1 to C6); the
// invariants of submission, leases, keys, receipts, timers and sessions, each
// under its name (check_test.go); the answers and rows against the model
// (compare_test.go); what workers and clients were told against the log
// (witness_test.go); and after everything is healed, that every task comes to an
// end or waits for a reason that is true (settle_test.go).
//
// A failure prints its seed, step and last events. To see all of it:
//
//	PULSE_SIM_SEED=17 go test ./test/sim -run TestSeeds -v
//
// An ordinary run plays the first 200 seeds, PULSE_SIM_SEEDS=1000 more of them,
// PULSE_SOAK=30m new ones for half an hour; 'make soak' does both. 'make mutants'
// builds the machine wrong, one rule at a time (mutants/*.txt), and expects each
// build to be caught.
package sim
