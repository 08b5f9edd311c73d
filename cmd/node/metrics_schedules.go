package node

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// namespaceNamer finds the name of a namespace; ok is false if it is not there.
type namespaceNamer func(id fsm.ID) (name string, ok bool)

// scheduleMeters counts what becomes of the times of schedules, by namespace: which
// schedule it was is in 'pulse schedule list', and schedules may be many. The leader
// alone counts, as with tasks.
type scheduleMeters struct {
	fires  *prometheus.CounterVec
	nameOf namespaceNamer

	// namespaces belongs to the apply goroutine.
	namespaces map[fsm.ID]string
}

// outcomeLabels are the outcomes as the API spells them.
var outcomeLabels = func() (out [pb.FireOutcome_FIRE_OUTCOME_BACKFILLED + 1]string) {
	for i := range out {
		out[i] = strings.ToLower(strings.TrimPrefix(pb.FireOutcome(i).String(), "FIRE_OUTCOME_"))
	}
	return out
}()

func newScheduleMeters(reg prometheus.Registerer, nameOf namespaceNamer) *scheduleMeters {
	m := &scheduleMeters{
		nameOf: nameOf, namespaces: map[fsm.ID]string{},
		fires: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulse_schedule_fires_total",
			Help: "What became of the times of schedules: fired, skipped, buffered, missed, refused, and by order triggered and backfilled. Counted by the leader alone."},
			[]string{"namespace", "outcome"}),
	}
	reg.MustRegister(m.fires)
	return m
}

func (m *scheduleMeters) applied(ev *pb.EventRow, leader bool) {
	id := fsm.ID(ev.GetScheduleAfter().GetNamespaceId())
	namespace := m.of(id)
	if namespace == "" {
		return
	}
	for _, fact := range ev.Facts {
		f := fact.GetScheduleFired()
		if f == nil || !leader || int(f.Outcome) >= len(outcomeLabels) {
			continue
		}
		m.fires.WithLabelValues(namespace, outcomeLabels[f.Outcome]).Add(float64(max(f.Times, 1)))
	}
}

// of names a namespace, and begins its series at 0, so that the first time that is
// refused is an increase.
func (m *scheduleMeters) of(id fsm.ID) string {
	if name := m.namespaces[id]; name != "" {
		return name
	}
	name, ok := m.nameOf(id)
	switch {
	case !ok:
		return ""
	case len(m.namespaces) >= queuesShown:
		return otherQueues
	}
	m.namespaces[id] = name
	for _, outcome := range outcomeLabels[1:] {
		m.fires.WithLabelValues(name, outcome)
	}
	return name
}

func (m *scheduleMeters) forget(id fsm.ID) {
	if name, ok := m.namespaces[id]; ok {
		delete(m.namespaces, id)
		m.fires.DeletePartialMatch(prometheus.Labels{"namespace": name})
	}
}
