package cluster

import (
	"io"

	"pulse/fsm"
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// Machine is the state machine as the log sees it; fsm.Machine is the one.
// Apply, BeginCheckpoint and both Restores are called by raft's apply goroutine, or before
// raft exists; all other methods from any goroutine.
type Machine interface {
	// Apply applies one committed entry. It panics if it cannot: the process
	// stops rather than skip an entry.
	Apply(index, term uint64, data []byte) fsm.Outcome
	// BeginCheckpoint begins to make dir, which does not exist, a copy of the
	// state as of the applied index. Finish does what waits for the disk, from any
	// goroutine, while entries are applied; it is called once. When it has returned
	// the machine's own store durably holds what the copy shows, too.
	BeginCheckpoint(dir string) (h state.Header, finish func() error, err error)
	// Restore replaces the state by the one in the stream and raises its
	// applied index to raftIndex, the place of the snapshot in this log.
	Restore(r io.Reader, raftIndex uint64) error
	// RestoreStore does the same with the state of a store that state.ReadStream has
	// made of such a stream, with that header. The files are shared where the file
	// system can, and stay.
	RestoreStore(dir string, header state.Header, raftIndex uint64) error

	// Flush makes durable what is applied.
	Flush() error
	// AppliedIndex is the log index of the last entry applied.
	AppliedIndex() uint64
	// FenceBase is added to log indexes where clients see them.
	FenceBase() uint64
	// FormatLevel is that of the cluster: a command that needs a higher one must
	// not get into the log.
	FormatLevel() uint32
	// Clock is the cluster clock, Unix microseconds.
	Clock() int64
	// Pending says that an empty entry would have work to do at once.
	Pending() bool
	// NextDue is the cluster time at which the next item falls due.
	NextDue() (us int64, ok bool)
	// Query answers from the state as it is.
	Query(q *pb.Query) *pb.Answer
}
