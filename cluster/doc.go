// Package cluster is one raft server of Pulse: it turns commands into committed
// log entries and entries into state, and does what only the leader may do. It
// knows no task word; what an entry means is the machine's business.
//
//	            Propose                                        Query
//	               │                                             │
//	          ┌────▼─────┐  entry   ┌──────┐ committed ┌─────────▼────┐
//	callers──►│ proposer ├─────────►│ raft ├──────────►│   applier    │
//	          └────▲─────┘          └──┬───┘           │  ► Machine   │
//	               │    outcome        │               └──┬────────┬──┘
//	               └───────────────────┼──────────────────┘        │ OnApply
//	                                   │ log, votes, snapshots     ▼
//	                                stores ◄─── watchdog        courier, feed
//
// What it promises:
//
//   - A result comes after the entry was committed and applied here. An error
//     with another code than result_unknown means that nothing happened.
//   - An entry is committed when it is on the disks of most servers, the leader's
//     among them, which writes it while the others do: see aheadLog.
//   - One entry carries many commands: those that arrived while the entry before
//     was on its way. A lone command never waits for company.
//   - Every entry carries its proposer's term and the leader's time. The time
//     never runs backwards, whoever leads, and no stepped wall clock moves it.
//   - Nothing is served before the term's opening entry is applied; nothing runs
//     in the name of an office that is lost once the next one begins.
//   - What a snapshot replaces in the log is durable in the machine's store.
//   - A write that hangs or fails ends the process; no file is used after that.
//
// The life of an office, on the node that raft elects:
//
//	follower ──elected──► opening ──opening entry applied──► serving ─┐
//	    ▲                    │                                       │ lost, or
//	    │                    │ lost                                  │ elected again
//	    └────────────────────┴─────── duties cancelled and awaited ◄─┘
//
// Goroutines: raft calls the applier from its apply goroutine, and OnApply with
// it; it must not block. One goroutine follows leadership and owns the office;
// the office owns the proposer, the ticker for due items and the duties, and
// waits for them. Propose, Query, Backup and Status are safe from any goroutine.
//
// What is stored in Config.Dir: LOCK, stable.db (votes and terms), wal/ or
// log.db (the log), snapshots/. The machine's own store lives elsewhere and is
// not synced for each entry, because the log is what is durable; Open compares
// the two and restores or refuses before raft starts.
package cluster
