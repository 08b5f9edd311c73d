// Command pulse is the one binary of Pulse: it runs nodes (dev, server), shows
// what a cluster does when a node dies (demo), measures one (bench), and is the
// operator's hand (task, queue, review, worker, key, namespace, cluster).
//
// It reads flags, environment and files, and nothing else in the project does.
// Nodes are started through cmd/node; everything an operator asks goes through
// the public API by way of package sdk, so the command line can do nothing that
// another program could not.
//
// What a verb has to say goes to standard output, in the form that -o asks for;
// whatever is about the way there goes to standard error. Exit codes: 0 done, 1
// failed, 2 wrong usage.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
