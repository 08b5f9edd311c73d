//go:build !nextlevel

package fsm

import pb "pulse/proto/pulse/v1"

// FormatLevel is the highest format level that this version understands.
const FormatLevel = 1

// newCommand says that a command came with this version's level.
func newCommand(*pb.Command) bool { return false }
