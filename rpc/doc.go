// Package rpc is the way from any node's gateway to the node that leads. It is
// the only code that knows who leads: everything above it submits commands and
// reads, everything below it is one node's log.
//
// Router fills the gateway's backend seam. It promises the meaning of its
// errors: result_unknown says that something may have happened, every other
// code that nothing has. A refusal that says "nothing happened, there is no
// leader here" is waited out within the caller's deadline, because an election
// is shorter than anybody's patience; nothing else is ever sent twice.
//
// Feed tells watchers that something changed. It is fed by the goroutine that
// applies the log and therefore never blocks it: it marks topics and leaves the
// waking to a goroutine of its own. A wake-up carries no news, the woken reads.
//
// The package holds no state of the cluster and decides no domain question.
package rpc
