// Package node makes a whole Pulse node out of its parts: one Config in, one
// running node out. cmd/pulse gives it flags, sdk/pulsetest gives it a
// temporary directory; nothing else differs between them.
//
// Start opens from the inside outwards and Close shuts from the outside
// inwards, so that nothing ever calls a part that is not there:
//
//	data directory ─ state machine ─ raft node ─ router ─ session hub ─ HTTP
//
// A gateway has neither machine nor raft node in that row, but a watch that is
// fed by a voter (see gateway.go).
//
// A closing node first says so on every connection (1001, after the answers
// under way), reports to the cluster that its sessions are gone, and only then
// leaves raft. A killed node skips all that and loses nothing acknowledged.
//
// The package decides nothing about tasks. It owns the data directory, its
// lock, the cluster secret's file and the metrics' names.
package node
