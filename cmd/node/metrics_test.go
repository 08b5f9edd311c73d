package node

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pulse/cluster"
	"pulse/cluster/duty"
	"pulse/fsm"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
)

var update = flag.Bool("update", false, "write golden files anew")

const metricsDoc = "../../docs/metrics.md"

func testParts(queues int) parts {
	stats := &pb.Stats{ClockUs: 1_500_000, AttemptsLeased: 3}
	for i := range queues {
		stats.Queues = append(stats.Queues, &pb.QueueView{Namespace: "default", Queue: &pb.QueueRow{Name: fmt.Sprintf("q%d", i)}, Waiting: 1, Active: 2, NeedsReview: 3})
	}
	return parts{
		stats:   func() *pb.Stats { return stats },
		status:  func() cluster.Status { return cluster.Status{State: "leader", Term: 7, Ready: true} },
		courier: func() duty.Stats { return duty.Stats{Carried: 11} },
		raft:    &cluster.Counters{}, hub: &session.Counters{}, conns: &wsconn.Counters{}, feed: rpc.NewFeed(),
	}
}

func gather(t *testing.T, p parts) map[string]*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m := newMeters(reg)
	reg.MustRegister(newCollector(p))
	m.applied(fsm.Outcome{
		Results: []*pb.Result{{}, {Code: "conflict"}, {}},
		Events:  []*pb.EventRow{{}, {}},
		Effects: []fsm.Effect{{Kind: fsm.EffectAssign}, {Kind: fsm.EffectCancel}, {Kind: fsm.EffectClose}, {Kind: fsm.EffectAssign}},
	})
	m.applied(fsm.Outcome{Skipped: true, Results: []*pb.Result{{}}})
	m.request("GET", "GET /v1/x", 200, time.Millisecond)
	m.request("BREW", "GET /v1/x", 405, time.Millisecond)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
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
		{"pulse_events_total", nil, 2},
		{"pulse_effects_total", []string{"assign"}, 2},
		{"pulse_effects_total", []string{"cancel"}, 1},
		{"pulse_effects_total", []string{"close"}, 1},
		{"pulse_http_requests_total", []string{"GET", "GET /v1/x", "200"}, 1},
		{"pulse_http_requests_total", []string{"other", "GET /v1/x", "405"}, 1},
		{"pulse_queue_waiting", []string{"default", "q1"}, 1},
		{"pulse_queue_active", []string{"default", "q0"}, 2},
		{"pulse_queue_needs_review", []string{"default", "q0"}, 3},
		{"pulse_raft_leader", nil, 1},
		{"pulse_raft_term", nil, 7},
		{"pulse_cluster_clock_seconds", nil, 1.5},
		{"pulse_deliveries_carried_total", nil, 11},
	} {
		if got := value(t, m[c.name], c.labels...); got != c.want {
			t.Errorf("%s %v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}

func TestQueuesBeyondTheBoundAreAddedUp(t *testing.T) {
	t.Parallel()
	m := gather(t, testParts(queuesShown+5))
	f := m["pulse_queue_active"]
	if n := len(f.GetMetric()); n != queuesShown+1 {
		t.Errorf("%d series", n)
	}
	if got := value(t, f, "_other", "_other"); got != 10 {
		t.Errorf("others hold %v, want 10", got)
	}
}

// The page that names the metrics is made from them, so that it stays true.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	byName := gather(t, testParts(1))
	var page strings.Builder
	page.WriteString("# Metrics\n\nWhat `/metrics` serves beside the Go runtime's and the process's own. Names are stable: one that changes is in the\nchangelog. This page is written by `go test ./cmd/node -run Documented -update`.\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
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
