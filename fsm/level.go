package fsm

import (
	"errors"
	"fmt"

	pb "pulse/proto/pulse/v1"
)

// The format level of a cluster is replicated state: the newest commands and rows
// that may be used in it. A version of Pulse understands all levels up to its own.
// The level is raised by a command once every voter understands it, and never
// lowered; until then new commands are refused before the log, so that old and new
// versions run side by side while servers are upgraded one after the other.

// ErrFormatLevel says that the cluster is at a level that this version does not
// understand. The node must not go on: what it cannot read it cannot skip.
var ErrFormatLevel = errors.New("the cluster has been upgraded beyond this version of Pulse")

func checkLevel(level, understood uint32) error {
	if level > understood {
		return fmt.Errorf("%w: its format level is %d, and this version understands %d; run the version that the other servers run, a level is never lowered", ErrFormatLevel, level, understood)
	}
	return nil
}

// CommandLevel is the format level that a command needs.
func CommandLevel(c *pb.Command) uint32 {
	if newCommand(c) {
		return FormatLevel
	}
	return 1
}

// FormatLevel is the level of the cluster.
func (m *Machine) FormatLevel() uint32 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Meta().FormatLevel
}
