package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// LogStore names the implementation that keeps the log.
type LogStore string

const (
	// LogStoreWAL is a segmented log with one sync for each append.
	LogStoreWAL LogStore = "wal"
	// LogStoreBolt keeps the log in a B+tree. It costs two syncs and page
	// copies for each append.
	LogStoreBolt LogStore = "bolt"
)

// Server is one voter of a new cluster.
type Server struct {
	ID      string
	Address string // of its raft port
}

// Duty is work that only the leader does. Run is called once the term's opening
// entry is applied, ends when ctx does, and has stopped everything it started
// when it returns. A duty that returns before that is run again after a pause.
type Duty struct {
	Name string
	Run  func(ctx context.Context, term uint64) error
}

// Config of a Node. ID, Dir, Machine and Logger are required; the zero value of
// every other field means its default.
type Config struct {
	ID        string // of this server, for the life of its directory
	ClusterID []byte // written by the first opening entry of the cluster
	Dir       string // raft's log, votes and snapshots; not the machine's store
	Machine   Machine
	Logger    *slog.Logger

	// Bootstrap lists the voters of a new cluster, this one among them. It is
	// used once, on an empty directory; a node without it waits to be added.
	Bootstrap []Server

	// Transport carries raft's calls; the node closes it. Without one, Listen
	// is a TCP address to serve at, and without that the node has no port: all
	// a lone voter needs.
	Transport raft.Transport
	Listen    string
	Advertise string // address for others, if not Listen; may be a name
	// Secure guards the connections of Listen; nil is plain text, for servers
	// on one machine.
	Secure Secure

	LogStore LogStore // default LogStoreWAL

	// OnApply is called by the apply goroutine after each entry, before its
	// proposers hear of it. leader says whether this node is in office. It must
	// not block.
	OnApply func(o fsm.Outcome, leader bool)
	// OnRestore is called by the apply goroutine after the whole state was
	// replaced by a snapshot.
	OnRestore func()
	Duties    []Duty

	// IsAdmission says that a command brings new work into the cluster. Such
	// commands are refused first when disk or queue run out; what finishes work
	// goes on. nil: no command does.
	IsAdmission func(*pb.Command) bool
	// FreeDiskMin is the room below which admissions are refused; 0 means 10 %
	// of the disk or 1 GiB, whichever is less, but not below 128 MiB or a quarter
	// of the disk. Negative switches it off.
	FreeDiskMin int64

	// Members knows the other servers. nil: there are none, nobody's clock is
	// compared and nobody looked after.
	Members Members
	// Wall is the wall clock.
	Wall func() time.Time
	// Watchdog watches the writes. nil: one of the node's own, with defaults.
	Watchdog *Watchdog

	// EntriesInFlight is how many entries may be on their way at once: 1 or 2.
	// With one, all that arrives during a sync shares the next; two split it into
	// halves, which costs a fifth of the throughput from some dozens of callers
	// on and gains a few percent from a thousand on.
	EntriesInFlight int
	// QueueCommands and QueueBytes bound what waits for the log.
	QueueCommands int
	QueueBytes    int

	// Raft's timing.
	HeartbeatTimeout   time.Duration
	ElectionTimeout    time.Duration
	LeaderLeaseTimeout time.Duration
	CommitTimeout      time.Duration

	// A snapshot is taken when SnapshotEntries entries or SnapshotBytes bytes
	// have gathered in the log since the last one, which is looked at every
	// SnapshotInterval. TrailingEntries, or as many as fit into half of
	// SnapshotBytes, stay in the log behind it for followers that are a little
	// late.
	SnapshotEntries  uint64
	SnapshotBytes    uint64
	SnapshotInterval time.Duration
	TrailingEntries  uint64

	// leads gives raft's reports of leadership; tests put their own between.
	leads func(*raft.Raft) <-chan bool
	// wrapLog is put around the log below the watchdog; tests make it ill.
	wrapLog func(raft.LogStore) raft.LogStore
}

// Defaults of Config.
const (
	DefaultEntriesInFlight  = 1
	DefaultQueueCommands    = 16384
	DefaultQueueBytes       = 64 << 20
	DefaultHeartbeatTimeout = time.Second
	DefaultLeaderLease      = 500 * time.Millisecond
	DefaultCommitTimeout    = time.Second // at least, and at most twice that; see herald: nobody waits for it
	DefaultSnapshotEntries  = 32768
	DefaultSnapshotBytes    = 256 << 20
	DefaultSnapshotInterval = 2 * time.Second
	DefaultTrailingEntries  = 8192
)

// Validate names the field that is wrong and what to do about it.
func (c *Config) Validate() error {
	switch {
	case c.ID == "":
		return errors.New("cluster: ID is empty: give this server a name that it keeps")
	case c.Dir == "":
		return errors.New("cluster: Dir is empty: give a directory for the log and the snapshots")
	case c.Machine == nil:
		return errors.New("cluster: Machine is missing: open the state machine first")
	case c.Logger == nil:
		return errors.New("cluster: Logger is missing: give one, slog.DiscardHandler for silence")
	case c.Transport != nil && c.Listen != "":
		return errors.New("cluster: both Transport and Listen are set: give one of them")
	case c.LogStore != "" && c.LogStore != LogStoreWAL && c.LogStore != LogStoreBolt:
		return fmt.Errorf("cluster: LogStore is %q: give %q or %q", c.LogStore, LogStoreWAL, LogStoreBolt)
	case c.EntriesInFlight < 0 || c.EntriesInFlight > 2:
		return fmt.Errorf("cluster: EntriesInFlight is %d: give 1 or 2, deeper only splits the batches", c.EntriesInFlight)
	case c.QueueCommands < 0 || c.QueueBytes < 0:
		return errors.New("cluster: QueueCommands and QueueBytes must not be negative")
	case c.Transport == nil && c.Listen == "" && len(c.Bootstrap) > 1:
		return errors.New("cluster: Bootstrap names other servers, but there is neither Transport nor Listen to reach them")
	}
	return c.validateServers()
}

func (c *Config) validateServers() error {
	seen := map[string]bool{}
	for _, s := range c.Bootstrap {
		if s.ID == "" || s.Address == "" && len(c.Bootstrap) > 1 {
			return fmt.Errorf("cluster: Bootstrap has a server %q at %q: give both id and address", s.ID, s.Address)
		}
		if seen[s.ID] {
			return fmt.Errorf("cluster: Bootstrap names server %q twice", s.ID)
		}
		seen[s.ID] = true
	}
	if len(c.Bootstrap) > 0 && !seen[c.ID] {
		return fmt.Errorf("cluster: Bootstrap does not name this server, %q", c.ID)
	}
	for i, d := range c.Duties {
		if d.Name == "" || d.Run == nil {
			return fmt.Errorf("cluster: duty %d has no name or nothing to run", i)
		}
	}
	return nil
}

// withDefaults is the config with its gaps filled.
func (c Config) withDefaults() Config {
	def(&c.LogStore, LogStoreWAL)
	def(&c.EntriesInFlight, DefaultEntriesInFlight)
	def(&c.QueueCommands, DefaultQueueCommands)
	def(&c.QueueBytes, DefaultQueueBytes)
	def(&c.HeartbeatTimeout, DefaultHeartbeatTimeout)
	def(&c.ElectionTimeout, c.HeartbeatTimeout)
	def(&c.LeaderLeaseTimeout, min(DefaultLeaderLease, c.HeartbeatTimeout))
	def(&c.CommitTimeout, DefaultCommitTimeout)
	def(&c.SnapshotEntries, DefaultSnapshotEntries)
	def(&c.SnapshotBytes, DefaultSnapshotBytes)
	def(&c.SnapshotInterval, DefaultSnapshotInterval)
	def(&c.TrailingEntries, DefaultTrailingEntries)
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.leads == nil {
		c.leads = (*raft.Raft).LeaderCh
	}
	if c.wrapLog == nil {
		c.wrapLog = func(s raft.LogStore) raft.LogStore { return s }
	}
	if c.OnApply == nil {
		c.OnApply = func(fsm.Outcome, bool) {}
	}
	if c.OnRestore == nil {
		c.OnRestore = func() {}
	}
	if c.IsAdmission == nil {
		c.IsAdmission = func(*pb.Command) bool { return false }
	}
	return c
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
