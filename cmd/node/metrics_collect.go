package node

import (
	"math"
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"pulse/cluster"
	"pulse/cluster/duty"
	"pulse/fsm"
	"pulse/gateway/pulse"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	"pulse/rpc"
	"pulse/schema"
)

// parts is what the collector reads. A gateway has no standing, courier and
// raft, a server no watch.
type parts struct {
	standing func() fsm.Standing
	status   func() cluster.Status
	courier  func() duty.Stats
	raft     *cluster.Counters
	hub      *session.Counters
	workers  *pulse.Counters
	conns    *wsconn.Counters
	refusals *session.Refusals
	dir      *Dir
	version  string
	feed     *rpc.Feed
	watch    *rpc.Watch
}

// reading is one series that is read when somebody asks.
type reading struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*snapshot) float64
}

// snapshot is the state of all parts at one scrape.
type snapshot struct {
	standing fsm.Standing
	status   cluster.Status
	courier  duty.Stats
}

// leads says whether this node speaks for the cluster. What every replica knows
// is served by the leader alone, so that a sum over the nodes is right.
func (s *snapshot) leads() bool { return s.status.State == "leader" }

// clockUs is the newest time that is known, so that what waits grows older while
// nothing happens.
func (s *snapshot) clockUs() int64 {
	if s.status.LeaderClock.IsZero() {
		return s.standing.ClockUs
	}
	return max(s.standing.ClockUs, s.status.LeaderClock.UnixMicro())
}

// timing is a histogram that a part keeps itself.
type timing struct {
	desc *prometheus.Desc
	from *cluster.Histogram
}

// collector turns the plain counters of the parts into metrics.
type collector struct {
	parts    parts
	readings []reading
	timings  []timing
	build    *prometheus.Desc
	queues   *queueGauges
}

func gauge(name, help string, get func(*snapshot) float64) reading {
	return reading{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, get}
}

// leaders is a gauge that the leader alone serves.
func leaders(name, help string, get func(*snapshot) float64) reading {
	return gauge(name, help+onlyLeader, func(s *snapshot) float64 {
		if !s.leads() {
			return absent
		}
		return get(s)
	})
}

const onlyLeader = " From the leader alone."

// absent leaves a series out of a scrape.
var absent = math.NaN()

func voters(s cluster.Status) (n float64) {
	for _, server := range s.Servers {
		if server.Voter {
			n++
		}
	}
	return n
}

func counter(name, help string, get func(*snapshot) float64) reading {
	return reading{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, get}
}

func loaded(name, help string, c *atomic.Uint64) reading {
	return counter(name, help, func(*snapshot) float64 { return float64(c.Load()) })
}

// refusedCalls counts what this node has refused because of who asked. The reasons
// are these few; who it was is at GET /v1/audit/refused.
func refusedCalls(refusals *session.Refusals, reason schema.Code) reading {
	return reading{
		prometheus.NewDesc("pulse_access_refused_total", "Calls and frames of workers that this node refused because of who made them: unauthenticated (no good credential), forbidden (without the right), rate_limited.",
			nil, prometheus.Labels{"reason": string(reason)}),
		prometheus.CounterValue, func(*snapshot) float64 { return float64(refusals.Count(reason)) },
	}
}

func histogram(name, help string, from *cluster.Histogram) timing {
	return timing{prometheus.NewDesc(name, help, nil, nil), from}
}

func yes(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func newCollector(p parts) *collector {
	c := &collector{parts: p, build: prometheus.NewDesc("pulse_build_info", "1; the labels say what this node runs.", []string{"version", "goversion"}, nil)}
	c.readings = []reading{
		gauge("pulse_ready", "1 if this node would serve a linearizable read.", func(s *snapshot) float64 { return yes(s.status.Ready) }),
		gauge("pulse_sessions", "Worker sessions on this gateway.", func(*snapshot) float64 { return float64(p.hub.Sessions.Load()) }),
		loaded("pulse_sessions_registered_total", "Registrations on this gateway.", &p.hub.Registered),
		loaded("pulse_worker_commands_total", "Commands of workers handed to the leader.", &p.hub.Commands),
		loaded("pulse_worker_commands_refused_total", "Commands of workers refused here for a wrong lease secret.", &p.hub.Refused),
		loaded("pulse_worker_deliveries_total", "Deliveries given to a worker's connection.", &p.hub.Deliveries),
		loaded("pulse_worker_deliveries_missed_total", "Deliveries for a session that is not here.", &p.hub.Undeliverable),
		loaded("pulse_gateway_reports_total", "Reports of this gateway to the cluster.", &p.hub.Reports),
		loaded("pulse_gateway_reports_failed_total", "Reports that were not answered.", &p.hub.ReportsFailed),

		gauge("pulse_connections", "Open worker connections.", func(*snapshot) float64 { return float64(p.conns.Open.Load()) }),
		loaded("pulse_connections_accepted_total", "Worker connections accepted.", &p.conns.Accepted),
		loaded("pulse_connections_refused_total", "Upgrades refused.", &p.conns.Refused),
		loaded("pulse_frames_in_total", "Frames received from workers.", &p.conns.FramesIn),
		loaded("pulse_frames_out_total", "Frames sent to workers.", &p.conns.FramesOut),
		loaded("pulse_frame_bytes_in_total", "Bytes of frames received from workers.", &p.conns.BytesIn),
		loaded("pulse_frame_bytes_out_total", "Bytes of frames sent to workers.", &p.conns.BytesOut),
		loaded("pulse_hellos_total", "First frames of workers.", &p.workers.Hellos),
		loaded("pulse_hellos_refused_total", "First frames that were refused, for a namespace, a queue or a limit.", &p.workers.HellosFailed),
		loaded("pulse_hellos_late_total", "Connections closed because no first frame came.", &p.workers.HellosLate),
		loaded("pulse_frames_refused_total", "Frames of workers that broke the protocol.", &p.workers.BadFrames),
		loaded("pulse_error_frames_total", "Error frames sent to workers.", &p.workers.ErrorsSent),
		loaded("pulse_connections_cut_full_total", "Workers cut off because they did not read.", &p.conns.QueueFullCuts),
		loaded("pulse_connections_cut_write_total", "Workers cut off because a write hung.", &p.conns.WriteCuts),
		loaded("pulse_connections_cut_silent_total", "Workers cut off because nothing was heard of them.", &p.conns.SilentCuts),

		refusedCalls(p.refusals, schema.Unauthenticated), refusedCalls(p.refusals, schema.Forbidden), refusedCalls(p.refusals, schema.RateLimited),

		gauge("pulse_watchers", "Watches and long polls waiting for a change.", func(*snapshot) float64 { return float64(p.feed.Watchers()) }),
	}
	if p.raft != nil {
		c.readReplica()
	}
	if p.watch != nil {
		c.readWatch()
	}
	return c
}

// readReplica adds what only a server has.
func (c *collector) readReplica() {
	p := c.parts
	c.queues = newQueueGauges()
	c.readings = append(c.readings,
		leaders("pulse_keys_held", "Concurrency keys held by a task.", func(s *snapshot) float64 { return float64(s.standing.KeysHeld) }),
		leaders("pulse_access_tokens", "Access tokens that are good: neither revoked nor over.", func(s *snapshot) float64 { return float64(s.standing.Tokens) }),
		gauge("pulse_cluster_clock_seconds", "The cluster clock, Unix seconds.", func(s *snapshot) float64 { return float64(s.standing.ClockUs) / 1e6 }),

		gauge("pulse_leader", "1 on the node that leads, 0 on the others.", func(s *snapshot) float64 { return yes(s.leads()) }),
		gauge("pulse_leader_known", "1 if this node knows who leads.", func(s *snapshot) float64 { return yes(s.status.LeaderID != "") }),
		gauge("pulse_voters", "Servers with a vote, as this node knows them, dead ones included.", func(s *snapshot) float64 { return voters(s.status) }),
		gauge("pulse_apply_lag", "Log entries known to be committed that this node has not applied yet.", func(s *snapshot) float64 {
			return float64(s.status.CommitIndex - min(s.status.AppliedIndex, s.status.CommitIndex))
		}),
		gauge("pulse_snapshot_age_seconds", "Age of the newest snapshot by the cluster clock; absent if there is none.", func(s *snapshot) float64 {
			if s.status.SnapshotAt.IsZero() {
				return absent
			}
			return max(0, float64(s.clockUs()-s.status.SnapshotAt.UnixMicro())/1e6)
		}),
		gauge("pulse_raft_term", "Raft's term.", func(s *snapshot) float64 { return float64(s.status.Term) }),
		gauge("pulse_raft_applied_index", "Log index of the last entry applied.", func(s *snapshot) float64 { return float64(s.status.AppliedIndex) }),
		gauge("pulse_raft_commit_index", "Log index of the last entry committed.", func(s *snapshot) float64 { return float64(s.status.CommitIndex) }),
		gauge("pulse_raft_last_log_index", "Log index of the last entry in the log.", func(s *snapshot) float64 { return float64(s.status.LastLogIndex) }),
		gauge("pulse_raft_snapshot_index", "Log index of the newest snapshot.", func(s *snapshot) float64 { return float64(s.status.SnapshotIndex) }),
		gauge("pulse_raft_last_contact_seconds", "Time since the leader was heard of; 0 on the leader.", func(s *snapshot) float64 { return s.status.LastContact.Seconds() }),
		gauge("pulse_wall_clock_offset_seconds", "How far the wall clock is ahead of the leader clock.", func(s *snapshot) float64 { return s.status.WallOffset.Seconds() }),
		gauge("pulse_alarms", "Alarms that the leader raises about clocks and servers; pulse cluster status spells them out.", func(s *snapshot) float64 { return float64(len(s.status.Alarms)) }),
		gauge("pulse_disk_free_bytes", "Room left on the data directory's disk.", func(s *snapshot) float64 { return float64(s.status.DiskFree) }),
		gauge("pulse_disk_total_bytes", "Size of the data directory's disk.", func(s *snapshot) float64 { return float64(s.status.DiskTotal) }),
		gauge("pulse_log_bytes", "Size of the log's files.", func(*snapshot) float64 { return p.dir.bytes("raft", "snapshots") }),
		gauge("pulse_snapshots_bytes", "Size of the snapshots' files; those that the state still uses share their room with it.", func(*snapshot) float64 { return p.dir.bytes("raft/snapshots") }),
		gauge("pulse_state_bytes", "Size of the state's files.", func(*snapshot) float64 { return p.dir.bytes("state") }),
		gauge("pulse_disk_low", "1 while submissions are refused for want of room.", func(s *snapshot) float64 { return yes(s.status.DiskLow) }),

		loaded("pulse_entries_applied_total", "Log entries applied by this node.", &p.raft.EntriesApplied),
		loaded("pulse_entries_proposed_total", "Log entries proposed by this node.", &p.raft.Entries),
		loaded("pulse_entries_empty_total", "Of the entries proposed, those that only let time pass.", &p.raft.EmptyEntries),
		loaded("pulse_commands_proposed_total", "Commands proposed by this node.", &p.raft.Commands),
		loaded("pulse_command_bytes_proposed_total", "Bytes of the commands proposed by this node.", &p.raft.CommandBytes),
		loaded("pulse_log_bytes_written_total", "Bytes of entries appended to this node's log.", &p.raft.LogBytes),
		loaded("pulse_commands_overload_total", "Commands refused because too many were waiting for the log.", &p.raft.QueueRefused),
		loaded("pulse_commands_disk_low_total", "Submissions refused for want of room on the disk.", &p.raft.DiskRefused),
		loaded("pulse_commands_unknown_total", "Commands whose outcome was not learned.", &p.raft.Unknown),
		loaded("pulse_elections_won_total", "Elections that this node won and whose term it opened.", &p.raft.Offices),
		loaded("pulse_duty_restarts_total", "Leader duties that ended by themselves and were started again.", &p.raft.DutyRestarts),
		loaded("pulse_reads_linearizable_total", "Reads answered after leadership was verified.", &p.raft.ReadsVerified),
		loaded("pulse_reads_stale_total", "Reads answered from this node's state as it was.", &p.raft.ReadsStale),
		loaded("pulse_snapshots_total", "Snapshots taken.", &p.raft.Snapshots),
		loaded("pulse_snapshots_sent_total", "Snapshots streamed to a follower or into a backup.", &p.raft.SnapshotsStream),
		loaded("pulse_restores_total", "Times the whole state was replaced by a snapshot.", &p.raft.Restores),

		counter("pulse_deliveries_carried_total", "Deliveries handed to gateways, repeats included.", func(s *snapshot) float64 { return float64(s.courier.Carried) }),
		counter("pulse_deliveries_repeated_total", "Deliveries handed over again because no start or end was seen.", func(s *snapshot) float64 { return float64(s.courier.Repeated) }),
		counter("pulse_deliveries_failed_total", "Deliveries whose gateway was not reached; they are repeated.", func(s *snapshot) float64 { return float64(s.courier.Failed) }),
		counter("pulse_delivery_overflows_total", "Hints that found a gateway's route full; a scan finds them again.", func(s *snapshot) float64 { return float64(s.courier.Overflows) }),
		gauge("pulse_deliveries_tracked", "Attempts whose start, or end after a cancel, is awaited.", func(s *snapshot) float64 { return float64(s.courier.Tracked) }),
	)
	c.timings = []timing{
		histogram("pulse_entry_commands", "Commands in one proposed log entry.", &p.raft.BatchCommands),
		histogram("pulse_commit_seconds", "Time from handing an entry to the log to its applied results.", &p.raft.Commit),
		histogram("pulse_apply_seconds", "Time to apply one log entry.", &p.raft.Apply),
		histogram("pulse_log_write_seconds", "Time to append to the log, its fsync included.", &p.raft.LogWrite),
		histogram("pulse_stable_write_seconds", "Time to write a vote or a term, its fsync included.", &p.raft.StableWrite),
		histogram("pulse_snapshot_seconds", "Time a snapshot held up the applying of entries.", &p.raft.SnapshotTime),
	}
}

// readWatch adds what only a gateway has.
func (c *collector) readWatch() {
	w := c.parts.watch
	c.readings = append(c.readings,
		gauge("pulse_watch_connected", "Of a gateway: 1 while a server feeds it.", func(*snapshot) float64 { return yes(w.State().Source != "") }),
		counter("pulse_watch_sources_total", "Of a gateway: times it found a server to feed it; one more for each that it lost.", func(*snapshot) float64 { return float64(w.Sources()) }),
	)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.build
	if c.queues != nil {
		c.queues.describe(out)
	}
	for _, r := range c.readings {
		out <- r.desc
	}
	for _, t := range c.timings {
		out <- t.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := &snapshot{status: c.parts.status()}
	if c.parts.raft != nil {
		s.standing, s.courier = c.parts.standing(), c.parts.courier()
	}
	out <- prometheus.MustNewConstMetric(c.build, prometheus.GaugeValue, 1, c.parts.version, runtime.Version())
	for _, r := range c.readings {
		if v := r.get(s); !math.IsNaN(v) {
			out <- prometheus.MustNewConstMetric(r.desc, r.kind, v)
		}
	}
	for _, t := range c.timings {
		count, sum, buckets := t.from.Read()
		out <- prometheus.MustNewConstHistogram(t.desc, count, sum, buckets)
	}
	if c.queues != nil && s.leads() {
		c.queues.collect(s, out)
	}
}
