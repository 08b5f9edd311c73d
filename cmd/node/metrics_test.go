package node

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pulse/cluster"
	"pulse/cluster/duty"
	"pulse/fsm"
	"pulse/gateway/pulse"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
	"pulse/schema"
)

var update = flag.Bool("update", false, "write golden files anew")

const metricsDoc = "../../docs/metrics.md"

func testParts(queues int) parts {
	standing := fsm.Standing{ClockUs: 9_500_000, KeysHeld: 4, Tokens: 6}
	refusals := new(session.Refusals)
	refusals.Note(session.Refusal{Code: schema.Forbidden})
	for i := range queues {
		standing.Queues = append(standing.Queues, &pb.QueueActivity{
			Queue:           &pb.QueueView{Namespace: "default", Queue: &pb.QueueRow{Name: fmt.Sprintf("q%d", i), Paused: i == 1}},
			Waiting:         3,
			Reasons:         []*pb.ReasonCount{{Reason: pb.WaitingReason_WAITING_REASON_DELAYED, Tasks: 1}, {Reason: pb.WaitingReason_WAITING_REASON_WORKERS_BUSY, Tasks: 2}},
			OldestWaitingUs: 2_500_000 + int64(i), Leased: 1, Running: 2, NeedsReview: 3,
			WorkersConnected: 2, WorkersDraining: 1, WorkersLost: 5, Slots: 8, SlotsUsed: 6,
		})
	}
	return parts{
		standing: func() fsm.Standing { return standing },
		status: func() cluster.Status {
			return cluster.Status{
				State: "leader", LeaderID: "n1", Term: 7, Ready: true, CommitIndex: 12, AppliedIndex: 9,
				SnapshotAt: time.UnixMicro(1_500_000), LeaderClock: time.UnixMicro(10_500_000),
				Servers: []cluster.ServerStatus{{ID: "n1", Voter: true}, {ID: "n2", Voter: true}, {ID: "n3"}},
			}
		},
		courier: func() duty.Stats { return duty.Stats{Carried: 11} },
		raft:    &cluster.Counters{}, hub: &session.Counters{}, workers: &pulse.Counters{}, conns: &wsconn.Counters{}, refusals: refusals, feed: rpc.NewFeed(), watch: &rpc.Watch{},
		version: "1.2.3",
	}
}

func following(p parts) parts {
	status := p.status()
	status.State, status.LeaderClock = "follower", time.Time{}
	p.status = func() cluster.Status { return status }
	return p
}

// testNames names every queue after the first byte of its id.
func testNames(id fsm.ID) (string, string, bool) {
	return "default", fmt.Sprintf("q%d", id[0]), id != fsm.ID{}
}

func taskEvent(queue byte, facts ...*pb.Fact) *pb.EventRow {
	id := fsm.ID{queue}
	return &pb.EventRow{
		Aggregate: pb.Aggregate_AGGREGATE_TASK, TimeUs: 5_000_000, Facts: facts,
		TaskAfter: &pb.TaskRow{QueueId: id[:], AvailableAtUs: 4_000_000},
	}
}

// fires is what a schedule of a namespace commits when a time comes, or several.
func fires(namespace byte, outcome pb.FireOutcome, times uint64) []*pb.EventRow {
	id := fsm.ID{namespace}
	return []*pb.EventRow{{
		Aggregate: pb.Aggregate_AGGREGATE_SCHEDULE, ScheduleAfter: &pb.ScheduleRow{NamespaceId: id[:]},
		Facts: []*pb.Fact{{Kind: &pb.Fact_ScheduleFired{ScheduleFired: &pb.ScheduleFired{Outcome: outcome, Times: times}}}},
	}}
}

// gather scrapes p after a few entries and requests.
func gather(t *testing.T, p parts) map[string]*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m := newMeters(reg, testNames, func(id fsm.ID) (string, bool) { return fmt.Sprintf("n%d", id[0]), id != fsm.ID{} })
	reg.MustRegister(newCollector(p))
	started := []*pb.EventRow{
		taskEvent(1, &pb.Fact{Kind: &pb.Fact_Submitted{}}, &pb.Fact{Kind: &pb.Fact_Leased{}}),
		taskEvent(1, &pb.Fact{Kind: &pb.Fact_Started{}}),
	}
	m.applied(fsm.Outcome{
		Results: []*pb.Result{{}, {Code: "conflict"}, {}},
		Events:  started,
		Effects: []fsm.Effect{{Kind: fsm.EffectAssign}, {Kind: fsm.EffectCancel}, {Kind: fsm.EffectClose}, {Kind: fsm.EffectAssign}},
	}, true)
	m.applied(fsm.Outcome{Events: started}, false)
	m.applied(fsm.Outcome{Events: fires(1, pb.FireOutcome_FIRE_OUTCOME_REFUSED, 0)}, true)
	m.applied(fsm.Outcome{Events: fires(1, pb.FireOutcome_FIRE_OUTCOME_MISSED, 7)}, true)
	m.applied(fsm.Outcome{Events: fires(1, pb.FireOutcome_FIRE_OUTCOME_FIRED, 0)}, false)
	m.applied(fsm.Outcome{Events: fires(2, pb.FireOutcome_FIRE_OUTCOME_FIRED, 0)}, true)
	m.applied(fsm.Outcome{Events: []*pb.EventRow{{Aggregate: pb.Aggregate_AGGREGATE_NAMESPACE, AggregateId: fires(2, 0, 0)[0].ScheduleAfter.NamespaceId, Deleted: true}}}, true)
	m.applied(fsm.Outcome{Skipped: true, Results: []*pb.Result{{}}, Events: started}, true)
	m.request("GET", "GET /v1/x", 200, time.Millisecond)
	m.request("BREW", "GET /v1/x", 405, time.Millisecond)
	return families(t, reg)
}

func families(t *testing.T, from prometheus.Gatherer) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

func value(t *testing.T, f *dto.MetricFamily, labels ...string) float64 {
	t.Helper()
	for _, m := range f.GetMetric() {
		var have []string
		for _, l := range m.GetLabel() {
			have = append(have, l.GetValue())
		}
		if strings.Join(have, " ") == strings.Join(labels, " ") {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("%s has no series %v", f.GetName(), labels)
	return 0
}

func TestMetricsShowWhatHappened(t *testing.T) {
	t.Parallel()
	p := testParts(2)
	p.raft.EntriesApplied.Add(5)
	m := gather(t, p)
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"pulse_entries_applied_total", nil, 5},
		{"pulse_commit_seconds", nil, 0},
		{"pulse_commands_applied_total", []string{"accepted"}, 2},
		{"pulse_commands_applied_total", []string{"refused"}, 1},
		{"pulse_events_total", nil, 9},
		{"pulse_schedule_fires_total", []string{"n1", "refused"}, 1},
		{"pulse_schedule_fires_total", []string{"n1", "missed"}, 7},
		{"pulse_schedule_fires_total", []string{"n1", "fired"}, 0}, // a follower counts nothing
		{"pulse_access_tokens", nil, 6},
		{"pulse_access_refused_total", []string{"forbidden"}, 1},
		{"pulse_access_refused_total", []string{"unauthenticated"}, 0},
		{"pulse_effects_total", []string{"assign"}, 2},
		{"pulse_effects_total", []string{"cancel"}, 1},
		{"pulse_effects_total", []string{"close"}, 1},
		{"pulse_http_requests_total", []string{"GET", "GET /v1/x", "200"}, 1},
		{"pulse_http_requests_total", []string{"other", "GET /v1/x", "405"}, 1},
		{"pulse_tasks_waiting", []string{"default", "q1", "delayed"}, 1},
		{"pulse_tasks_waiting", []string{"default", "q1", "workers_busy"}, 2},
		{"pulse_tasks_waiting", []string{"default", "q1", "key_held"}, 0},
		{"pulse_oldest_waiting_seconds", []string{"default", "q0"}, 8}, // by the leader's clock
		{"pulse_tasks_active", []string{"default", "q0", "leased"}, 1},
		{"pulse_tasks_active", []string{"default", "q0", "running"}, 2},
		{"pulse_tasks_in_review", []string{"default", "q0"}, 3},
		{"pulse_queue_paused", []string{"default", "q0"}, 0},
		{"pulse_queue_paused", []string{"default", "q1"}, 1},
		{"pulse_workers", []string{"default", "q0", "connected"}, 2},
		{"pulse_workers", []string{"default", "q0", "draining"}, 1},
		{"pulse_workers", []string{"default", "q0", "lost"}, 5},
		{"pulse_worker_slots", []string{"default", "q0", "total"}, 8},
		{"pulse_worker_slots", []string{"default", "q0", "used"}, 6},
		{"pulse_task_events_total", []string{"submitted", "default", "q1"}, 1},
		{"pulse_task_events_total", []string{"started", "default", "q1"}, 1},
		{"pulse_pickup_seconds", []string{"default", "q1"}, 1},
		{"pulse_keys_held", nil, 4},
		{"pulse_leader", nil, 1},
		{"pulse_leader_known", nil, 1},
		{"pulse_voters", nil, 2},
		{"pulse_apply_lag", nil, 3},
		{"pulse_snapshot_age_seconds", nil, 9},
		{"pulse_raft_term", nil, 7},
		{"pulse_cluster_clock_seconds", nil, 9.5},
		{"pulse_deliveries_carried_total", nil, 11},
		{"pulse_build_info", []string{runtime.Version(), "1.2.3"}, 1},
	} {
		if got := value(t, m[c.name], c.labels...); got != c.want {
			t.Errorf("%s %v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	if got := len(m["pulse_schedule_fires_total"].GetMetric()); got != len(outcomeLabels)-1 {
		t.Errorf("%d series of schedules: a namespace that is gone has none", got)
	}
}

// What every replica knows is served once, or a sum over the nodes would be three
// times too high.
func TestTheLeaderAloneSpeaksForTheCluster(t *testing.T) {
	t.Parallel()
	p := following(testParts(1))
	status := p.status()
	status.SnapshotAt = time.Time{}
	p.status = func() cluster.Status { return status }
	m := gather(t, p)
	for _, name := range []string{"pulse_tasks_waiting", "pulse_oldest_waiting_seconds", "pulse_tasks_active", "pulse_worker_slots", "pulse_keys_held", "pulse_snapshot_age_seconds"} {
		if m[name] != nil {
			t.Errorf("a follower without a snapshot serves %s", name)
		}
	}
	if got := value(t, m["pulse_leader"]); got != 0 {
		t.Errorf("a follower has pulse_leader %v", got)
	}
}

func TestQueuesBeyondTheBoundAreAddedUp(t *testing.T) {
	t.Parallel()
	m := gather(t, testParts(queuesShown+5))
	f := m["pulse_tasks_active"]
	if n := len(f.GetMetric()); n != 2*(queuesShown+1) {
		t.Errorf("%d series", n)
	}
	if got := value(t, f, "_other", "_other", "running"); got != 10 {
		t.Errorf("others hold %v, want 10", got)
	}
	if got := value(t, m["pulse_oldest_waiting_seconds"], "_other", "_other"); got > 8 || got < 7.9 {
		t.Errorf("the oldest of the others has waited %v s, want that of the oldest alone", got)
	}
}

func TestEventsOfQueuesBeyondTheBoundAreAddedUpAndQueuesForgotten(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := newTaskMeters(reg, func(id fsm.ID) (string, string, bool) {
		return "ns", fmt.Sprintf("q%d", int(id[0])<<8|int(id[1])), true
	}, func(id fsm.ID) (string, bool) { return fmt.Sprintf("n%d", int(id[0])<<8|int(id[1])), true })
	submit := func(n int) {
		ev := taskEvent(0, &pb.Fact{Kind: &pb.Fact_Submitted{}})
		ev.TaskAfter.QueueId = make([]byte, 16)
		ev.TaskAfter.QueueId[0], ev.TaskAfter.QueueId[1] = byte(n>>8), byte(n)
		m.applied(fsm.Outcome{Events: []*pb.EventRow{ev}}, true)
	}
	for n := range queuesShown + 5 {
		submit(n)
	}
	for n := range queuesShown + 5 {
		ev := fires(0, pb.FireOutcome_FIRE_OUTCOME_REFUSED, 0)
		ev[0].ScheduleAfter.NamespaceId[0], ev[0].ScheduleAfter.NamespaceId[1] = byte(n>>8), byte(n)
		m.applied(fsm.Outcome{Events: ev}, true)
	}
	if got := value(t, families(t, reg)["pulse_schedule_fires_total"], "_other", "refused"); got != 5 {
		t.Errorf("other namespaces have %v refused times, want 5", got)
	}
	f := families(t, reg)["pulse_task_events_total"]
	if n := len(f.GetMetric()); n != 8*(queuesShown+1) {
		t.Errorf("%d series", n)
	}
	if got := value(t, f, "submitted", "_other", "_other"); got != 5 {
		t.Errorf("others have %v submissions, want 5", got)
	}
	gone := make([]byte, 16)
	m.applied(fsm.Outcome{Events: []*pb.EventRow{{Aggregate: pb.Aggregate_AGGREGATE_QUEUE, AggregateId: gone, Deleted: true}}}, false)
	after := families(t, reg)
	if n := len(after["pulse_task_events_total"].GetMetric()); n != 8*queuesShown {
		t.Errorf("%d series after a queue was deleted", n)
	}
	if n := len(after["pulse_pickup_seconds"].GetMetric()); n != queuesShown {
		t.Errorf("%d pickup series after a queue was deleted", n)
	}
}

const metricsIntro = `# Metrics

What ` + "`/metrics`" + ` serves beside the Go runtime's and the process's own. Names are stable: one that changes is in the
changelog. This page is written by ` + "`go test ./cmd/node -run Documented -update`" + `.

Scrape every node. What every replica knows (tasks, workers, keys) is served **by the leader alone**, and what happens to
tasks is counted by the leader alone, so that a ` + "`sum`" + ` over the nodes is right; while there is no leader there are no such
series. The rest is each node's own.

The number of series is bounded: the first 200 queues by namespace and name have series of their own, and what the others
hold is added up in ` + "`namespace=\"_other\", queue=\"_other\"`" + `; nothing is labelled by task, worker, handler, key or token. A dashboard and
alert rules for these metrics are in [deploy](../deploy/README.md#metrics-and-alerts), what to do when an alert fires in the [runbook](runbook.md).

`

// The page that names the metrics is made from them, so that it stays true.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	byName := gather(t, testParts(1))
	var page strings.Builder
	page.WriteString(metricsIntro + "| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range sortedFamilies(byName) {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())

		if !regexp.MustCompile(`^pulse_[a-z_]+$`).MatchString(f.GetName()) {
			t.Errorf("%s: not a name of ours", f.GetName())
		}
		if isCounter := f.GetType() == dto.MetricType_COUNTER; isCounter != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s: counters and only counters end in _total", f.GetName())
		}
		if !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("%s: help %q is no sentence", f.GetName(), f.GetHelp())
		}
	}
	if *update {
		if err := os.WriteFile(metricsDoc, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(metricsDoc)
	if err != nil || string(have) != page.String() {
		t.Errorf("%s is not current (%v); run this test with -update", metricsDoc, err)
	}
}

func sortedFamilies(byName map[string]*dto.MetricFamily) []*dto.MetricFamily {
	var names []string
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []*dto.MetricFamily
	for _, name := range names {
		out = append(out, byName[name])
	}
	return out
}
