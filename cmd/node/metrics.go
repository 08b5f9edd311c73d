package node

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"pulse/cluster"
	"pulse/cluster/duty"
	"pulse/fsm"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
)

// queuesShown bounds the queues with series of their own; what others hold is
// added up under the name "_other", so that the sums stay right.
const queuesShown = 1000

// meters is everything that is counted where it happens. What a part counts
// itself is read from it when somebody asks (see collector).
type meters struct {
	commands    *prometheus.CounterVec
	events      prometheus.Counter
	effects     *prometheus.CounterVec
	requests    *prometheus.CounterVec
	requestTime *prometheus.HistogramVec

	// The labels of what apply counts are looked up once.
	accepted, refused           prometheus.Counter
	assigned, cancelled, closed prometheus.Counter
}

// latencyBuckets reach from a fast disk's sync to a caller's deadline.
var latencyBuckets = []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10}

func newMeters(reg prometheus.Registerer) *meters {
	m := &meters{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulse_commands_applied_total", Help: "Commands applied by this node, by result: accepted or refused."}, []string{"result"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pulse_events_total", Help: "Changes of tasks, queues, namespaces and workers applied by this node."}),
		effects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulse_effects_total", Help: "What apply wanted said to workers, by kind: assign, cancel or close."}, []string{"kind"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulse_http_requests_total", Help: "HTTP requests answered, by method, route and status."}, []string{"method", "route", "status"}),
		requestTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pulse_http_request_seconds", Help: "Time to answer an HTTP request, by route; a watch or a long poll takes as long as it waits.",
			Buckets: latencyBuckets}, []string{"route"}),
	}
	reg.MustRegister(m.commands, m.events, m.effects, m.requests, m.requestTime)
	m.accepted, m.refused = m.commands.WithLabelValues("accepted"), m.commands.WithLabelValues("refused")
	m.assigned, m.cancelled, m.closed = m.effects.WithLabelValues("assign"), m.effects.WithLabelValues("cancel"), m.effects.WithLabelValues("close")
	return m
}

// applied counts an entry. It is called by the apply goroutine.
func (m *meters) applied(o fsm.Outcome) {
	if o.Skipped {
		return
	}
	m.events.Add(float64(len(o.Events)))
	refused := 0
	for _, r := range o.Results {
		if r.GetCode() != "" {
			refused++
		}
	}
	m.refused.Add(float64(refused))
	m.accepted.Add(float64(len(o.Results) - refused))
	for i := range o.Effects {
		switch o.Effects[i].Kind {
		case fsm.EffectAssign:
			m.assigned.Inc()
		case fsm.EffectCancel:
			m.cancelled.Inc()
		case fsm.EffectClose:
			m.closed.Inc()
		}
	}
}

// request counts an answered HTTP request. route is a pattern, so that there
// are only as many series as routes.
func (m *meters) request(method, route string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.requestTime.WithLabelValues(route).Observe(took.Seconds())
}

// parts is what the collector reads.
type parts struct {
	stats   func() *pb.Stats
	status  func() cluster.Status
	courier func() duty.Stats
	raft    *cluster.Counters
	hub     *session.Counters
	conns   *wsconn.Counters
	feed    *rpc.Feed
}

// reading is one series that is read when somebody asks.
type reading struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*snapshot) float64
}

// snapshot is the state of all parts at one scrape.
type snapshot struct {
	stats   *pb.Stats
	status  cluster.Status
	courier duty.Stats
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
	queues   map[string]*prometheus.Desc
}

func gauge(name, help string, get func(*snapshot) float64) reading {
	return reading{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, get}
}

func counter(name, help string, get func(*snapshot) float64) reading {
	return reading{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, get}
}

func loaded(name, help string, c *atomic.Uint64) reading {
	return counter(name, help, func(*snapshot) float64 { return float64(c.Load()) })
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
	c := &collector{parts: p, queues: map[string]*prometheus.Desc{}}
	for name, help := range map[string]string{
		"waiting":      "Tasks of the queue that are WAITING.",
		"active":       "Tasks of the queue that are LEASED or RUNNING.",
		"needs_review": "Tasks of the queue whose outcome an operator has to settle.",
	} {
		c.queues[name] = prometheus.NewDesc("pulse_queue_"+name, help, []string{"namespace", "queue"}, nil)
	}
	c.readings = []reading{
		gauge("pulse_attempts_leased", "Attempts offered and not started.", func(s *snapshot) float64 { return float64(s.stats.GetAttemptsLeased()) }),
		gauge("pulse_attempts_running", "Attempts started and not ended.", func(s *snapshot) float64 { return float64(s.stats.GetAttemptsRunning()) }),
		gauge("pulse_workers_connected", "Worker sessions that the cluster holds connected.", func(s *snapshot) float64 { return float64(s.stats.GetSessionsConnected()) }),
		gauge("pulse_keys_held", "Concurrency keys held by a task.", func(s *snapshot) float64 { return float64(s.stats.GetKeysHeld()) }),
		gauge("pulse_cluster_clock_seconds", "The cluster clock, Unix seconds.", func(s *snapshot) float64 { return float64(s.stats.GetClockUs()) / 1e6 }),

		gauge("pulse_ready", "1 if this node would serve a linearizable read.", func(s *snapshot) float64 { return yes(s.status.Ready) }),
		gauge("pulse_raft_leader", "1 on the node that leads.", func(s *snapshot) float64 { return yes(s.status.State == "leader") }),
		gauge("pulse_raft_term", "Raft's term.", func(s *snapshot) float64 { return float64(s.status.Term) }),
		gauge("pulse_raft_applied_index", "Log index of the last entry applied.", func(s *snapshot) float64 { return float64(s.status.AppliedIndex) }),
		gauge("pulse_raft_commit_index", "Log index of the last entry committed.", func(s *snapshot) float64 { return float64(s.status.CommitIndex) }),
		gauge("pulse_raft_last_log_index", "Log index of the last entry in the log.", func(s *snapshot) float64 { return float64(s.status.LastLogIndex) }),
		gauge("pulse_raft_snapshot_index", "Log index of the newest snapshot.", func(s *snapshot) float64 { return float64(s.status.SnapshotIndex) }),
		gauge("pulse_raft_last_contact_seconds", "Time since the leader was heard of; 0 on the leader.", func(s *snapshot) float64 { return s.status.LastContact.Seconds() }),
		gauge("pulse_wall_clock_offset_seconds", "How far the wall clock is ahead of the leader clock.", func(s *snapshot) float64 { return s.status.WallOffset.Seconds() }),
		gauge("pulse_disk_free_bytes", "Room left on the data directory's disk.", func(s *snapshot) float64 { return float64(s.status.DiskFree) }),
		gauge("pulse_disk_low", "1 while submissions are refused for want of room.", func(s *snapshot) float64 { return yes(s.status.DiskLow) }),

		loaded("pulse_entries_applied_total", "Log entries applied by this node.", &p.raft.EntriesApplied),
		loaded("pulse_entries_proposed_total", "Log entries proposed by this node.", &p.raft.Entries),
		loaded("pulse_entries_empty_total", "Of the entries proposed, those that only let time pass.", &p.raft.EmptyEntries),
		loaded("pulse_commands_proposed_total", "Commands proposed by this node.", &p.raft.Commands),
		loaded("pulse_command_bytes_proposed_total", "Bytes of the commands proposed by this node.", &p.raft.CommandBytes),
		loaded("pulse_commands_overload_total", "Commands refused because too many were waiting for the log.", &p.raft.QueueRefused),
		loaded("pulse_commands_disk_low_total", "Submissions refused for want of room on the disk.", &p.raft.DiskRefused),
		loaded("pulse_commands_unknown_total", "Commands whose outcome was not learned.", &p.raft.Unknown),
		loaded("pulse_offices_total", "Terms opened by this node as leader.", &p.raft.Offices),
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
		loaded("pulse_connections_cut_full_total", "Workers cut off because they did not read.", &p.conns.QueueFullCuts),
		loaded("pulse_connections_cut_write_total", "Workers cut off because a write hung.", &p.conns.WriteCuts),
		loaded("pulse_connections_cut_silent_total", "Workers cut off because nothing was heard of them.", &p.conns.SilentCuts),

		gauge("pulse_watchers", "Watches and long polls waiting for a change.", func(*snapshot) float64 { return float64(p.feed.Watchers()) }),
	}
	c.timings = []timing{
		histogram("pulse_entry_commands", "Commands in one proposed log entry.", &p.raft.BatchCommands),
		histogram("pulse_commit_seconds", "Time from handing an entry to the log to its applied results.", &p.raft.Commit),
		histogram("pulse_apply_seconds", "Time to apply one log entry.", &p.raft.Apply),
		histogram("pulse_log_write_seconds", "Time to append to the log, synced.", &p.raft.LogWrite),
		histogram("pulse_stable_write_seconds", "Time to write a vote or a term, synced.", &p.raft.StableWrite),
		histogram("pulse_snapshot_seconds", "Time a snapshot held up the applying of entries.", &p.raft.SnapshotTime),
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.queues {
		out <- d
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
	s := &snapshot{stats: c.parts.stats(), status: c.parts.status(), courier: c.parts.courier()}
	for _, r := range c.readings {
		out <- prometheus.MustNewConstMetric(r.desc, r.kind, r.get(s))
	}
	for _, t := range c.timings {
		count, sum, buckets := t.from.Read()
		out <- prometheus.MustNewConstHistogram(t.desc, count, sum, buckets)
	}
	c.collectQueues(s.stats.GetQueues(), out)
}

func (c *collector) collectQueues(queues []*pb.QueueView, out chan<- prometheus.Metric) {
	emit := func(namespace, queue string, q *pb.QueueView) {
		for name, n := range map[string]uint64{"waiting": q.GetWaiting(), "active": q.GetActive(), "needs_review": q.GetNeedsReview()} {
			out <- prometheus.MustNewConstMetric(c.queues[name], prometheus.GaugeValue, float64(n), namespace, queue)
		}
	}
	other := &pb.QueueView{}
	for i, q := range queues {
		if i < queuesShown {
			emit(q.GetNamespace(), q.GetQueue().GetName(), q)
			continue
		}
		other.Waiting += q.GetWaiting()
		other.Active += q.GetActive()
		other.NeedsReview += q.GetNeedsReview()
	}
	if len(queues) > queuesShown {
		emit("_other", "_other", other)
	}
}

// newRegistry makes the node's own registry, so that two nodes in one process
// do not share series.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
