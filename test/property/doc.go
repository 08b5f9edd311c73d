// Package property holds the machine against random histories.
//
// A history is a list of log entries made by biased generators (gen_test.go).
// After every entry the world (world_test.go) reads every row the machine has
// and asks three things: does each invariant of the machine hold, by name
// (invariants_test.go); is the state what the independent reference model says
// (compare_test.go); and do a twin with the same log, the indexes rebuilt from
// the rows, and the store that was closed, reopened, snapshotted and restored
// in between agree bit for bit.
//
// A history that fails is cut down by taking entries and commands out of it for
// as long as it fails the same way (shrink_test.go), and printed in a form that
// is kept under testdata/histories and replayed by every run. Histories name
// objects by the command that made them, so they survive a change of how the
// machine makes ids.
//
// The tests are worth what they can catch: mutants_test.go breaks the machine
// on purpose, one rule at a time (mutants/*.txt), and expects each to be found.
//
// PULSE_PROPERTY_SECONDS sets how long the random run takes (default 50).
package property
