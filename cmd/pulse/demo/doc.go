// Package demo shows what Pulse is for: it starts servers as child processes, lets
// a fleet of workers do thousands of tasks, kills a server in the middle with
// SIGKILL, starts it again, and then proves from the outside that nothing was lost
// and nothing was done twice.
//
//	nodes ── child processes (package proc): three, or one alone, of which one is
//	         killed and restarted
//	fleet ── workers of package sdk in this process; what they do goes to a
//	         resource that keeps account and checks fencing tokens
//	load  ── submits, repeats what had no answer, remembers what was acknowledged
//	audit ── asks the cluster about every task and compares it with load and resource
//
// What it counts as wrong: a task that was acknowledged and is not over (lost), an
// effect of a RECONCILE_ONLY task that took place twice, a token that went back or
// was given out twice (doubled), a task that is said to have succeeded without an
// effect (missing), a result that is not what the handler gave (altered).
//
// Run may be called from one goroutine; everything it starts has ended when it
// returns. It decides nothing about how it looks: it reports to a View.
package demo
