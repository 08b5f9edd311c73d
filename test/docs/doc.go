// Package docs holds README.md and the pages of docs to their word: what they tell
// the reader to type is typed, against a node that runs, and what they say will be
// printed has to be.
//
// The reader sees nothing of it. A comment before a fenced block says what the test
// does with it:
//
//	<!-- run -->                  it has to succeed
//	<!-- run: exit 1 -->          it has to fail with this
//	<!-- run: another terminal -->  it starts the node that is running already
//	<!-- not run: REASON -->      it is left alone
//	<!-- output -->               each line is printed by the block before, in this order;
//	                              … stands for anything
//
// A block of shell without a comment fails the test: somebody has to decide.
//
// The blocks of a page are one session of a shell, in an empty directory. "go run
// ./cmd/pulse" is the binary that was built from it, to build it once.
package docs
