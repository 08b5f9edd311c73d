package schema

// Versions of the structures that outlive a process or cross between two: one
// place to see what this build writes and what it still reads. A new optional
// field with a default is no new version. A version is written only once every
// voter reads it, which the cluster's format level tells; it is raised by command.
const (
	EntryFormat       = 1 // what the Raft log carries
	RowFormat         = 1 // rows of the state
	EventFormat       = 1 // event rows, the feed of facts
	SnapshotFormat    = 1 // the stream of a snapshot or backup
	APIFormat         = 1 // HTTP under /v1
	WorkerFrameFormat = 1 // protocol_version of pulse.worker.v1
)

// Format is what this build reads and writes of one structure.
type Format struct {
	Structure string
	ReadFrom  uint32 // the oldest version read
	ReadTo    uint32 // the newest version read: one release reads a new version, the next writes it
	Written   uint32
}

// Reads says whether this build understands a version.
func (f Format) Reads(version uint32) bool { return version >= f.ReadFrom && version <= f.ReadTo }

// Formats lists all structures with a version.
func Formats() []Format {
	return []Format{
		{"entry", 1, EntryFormat, EntryFormat},
		{"row", 1, RowFormat, RowFormat},
		{"event", 1, EventFormat, EventFormat},
		{"snapshot", 1, SnapshotFormat, SnapshotFormat},
		{"api", 1, APIFormat, APIFormat},
		{"worker_frame", 1, WorkerFrameFormat, WorkerFrameFormat},
	}
}
