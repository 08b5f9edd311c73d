//go:build nextlevel

package fsm

import pb "pulse/proto/pulse/v1"

// A build with the tag nextlevel stands for the next version in tests of rolling
// upgrades: it understands one level more, and one command needs it.

// FormatLevel is the highest format level that this version understands.
const FormatLevel = 2

func newCommand(c *pb.Command) bool { return c.GetDeleteNamespace() != nil }
