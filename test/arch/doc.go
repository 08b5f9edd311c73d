// Package arch holds the house to its drawing. Its tests read the source of
// every package and fail when an import turns a dependency round, when the
// state machine reaches for a clock, a random number or a map's order, when a
// command has no case in the dispatch, or when a text says what it should not.
//
// The rules are tables; a new package is a line in one of them. The tests use
// the go command and the standard library's parser and type checker alone, so
// they need nothing that a plain `go test` does not.
package arch
