// Package fsm is the replicated state machine: the rules by which tasks,
// attempts, sessions and concurrency keys change.
//
// Apply takes one committed log entry and does three things in this order:
// the entry's commands, then everything that has fallen due by the entry's
// time, then the matching of ready tasks with sessions that have room.
//
//	entry ──► commands ──► due items ──► assignment ──► one write batch
//	             │             │             │
//	             └── results   └── events ───┴── effects
//
// The machine is deterministic: the same entries make the same rows on every
// node. It reads no clock (an entry carries the leader's time), makes no random
// numbers (ids come from the entry's index and place), ranges over no map
// without sorting, starts no goroutine and logs nothing.
//
// In a command all refusals come first and none after the first put, so a
// refused command leaves nothing but its result. Limits were checked before
// the log; only state is judged here, so that a limit that differs between
// versions never decides what a replica does with a committed entry.
//
// An entry that cannot be understood panics: the node stops, it never skips.
package fsm
