package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
)

// queueNamer finds the names of a queue; ok is false if it is not there.
type queueNamer func(id fsm.ID) (namespace, queue string, ok bool)

// taskMeters counts what happens to tasks, by queue. Every replica applies every
// entry and the leader counts it, so that a rate summed over the nodes is right.
// An entry applied around an election may be counted twice or not at all.
type taskMeters struct {
	events *prometheus.CounterVec
	pickup *prometheus.HistogramVec
	nameOf queueNamer

	schedules *scheduleMeters

	// queues and other belong to the apply goroutine.
	queues map[fsm.ID]*queueMeters
	other  *queueMeters
}

// queueMeters are the series of one queue, looked up once.
type queueMeters struct {
	namespace, queue string
	pickup           prometheus.Observer
	submitted, started, succeeded, failed, cancelled,
	reviewNeeded, attemptFailed, retryScheduled prometheus.Counter
}

func newTaskMeters(reg prometheus.Registerer, nameOf queueNamer, namespaceOf namespaceNamer) *taskMeters {
	m := &taskMeters{
		schedules: newScheduleMeters(reg, namespaceOf), nameOf: nameOf, queues: map[fsm.ID]*queueMeters{},
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulse_task_events_total",
			Help: "What happened to tasks: submitted, started, succeeded, failed, cancelled, review_needed, attempt_failed (failed, unknown or expired, also of tasks that are tried again), retry_scheduled. Counted by the leader alone."},
			[]string{"namespace", "queue", "event"}),
		pickup: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "pulse_pickup_seconds",
			Help:    "Time from a task's being available to its start by a worker. Counted by the leader alone.",
			Buckets: []float64{.001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10, 30, 60, 300, 1800, 7200}},
			[]string{"namespace", "queue"}),
	}
	reg.MustRegister(m.events, m.pickup)
	return m
}

// applied counts an entry and forgets queues that are gone.
func (m *taskMeters) applied(o fsm.Outcome, leader bool) {
	for _, ev := range o.Events {
		switch {
		case ev.Aggregate == pb.Aggregate_AGGREGATE_SCHEDULE:
			m.schedules.applied(ev, leader)
		case ev.Aggregate == pb.Aggregate_AGGREGATE_NAMESPACE && ev.Deleted:
			m.schedules.forget(fsm.ID(ev.AggregateId))
		case ev.Aggregate == pb.Aggregate_AGGREGATE_QUEUE && ev.Deleted:
			m.forget(fsm.ID(ev.AggregateId))
		case ev.Aggregate == pb.Aggregate_AGGREGATE_TASK && leader && !ev.Deleted:
			if q := m.of(fsm.ID(ev.TaskAfter.GetQueueId())); q != nil {
				q.count(ev)
			}
		}
	}
}

func (m *taskMeters) of(id fsm.ID) *queueMeters {
	if q := m.queues[id]; q != nil {
		return q
	}
	if len(m.queues) >= queuesShown {
		if m.other == nil {
			m.other = m.open(otherQueues, otherQueues)
		}
		return m.other
	}
	namespace, queue, ok := m.nameOf(id)
	if !ok {
		return nil
	}
	m.queues[id] = m.open(namespace, queue)
	return m.queues[id]
}

func (m *taskMeters) open(namespace, queue string) *queueMeters {
	event := func(name string) prometheus.Counter { return m.events.WithLabelValues(namespace, queue, name) }
	return &queueMeters{
		namespace: namespace, queue: queue, pickup: m.pickup.WithLabelValues(namespace, queue),
		submitted: event("submitted"), started: event("started"), succeeded: event("succeeded"), failed: event("failed"),
		cancelled: event("cancelled"), reviewNeeded: event("review_needed"), attemptFailed: event("attempt_failed"),
		retryScheduled: event("retry_scheduled"),
	}
}

func (m *taskMeters) forget(id fsm.ID) {
	q := m.queues[id]
	if q == nil {
		return
	}
	delete(m.queues, id)
	labels := prometheus.Labels{"namespace": q.namespace, "queue": q.queue}
	m.events.DeletePartialMatch(labels)
	m.pickup.DeletePartialMatch(labels)
}

func (q *queueMeters) count(ev *pb.EventRow) {
	for _, fact := range ev.Facts {
		switch fact.Kind.(type) {
		case *pb.Fact_Submitted:
			q.submitted.Inc()
		case *pb.Fact_Started:
			q.started.Inc()
			q.pickup.Observe(float64(max(0, ev.TimeUs-ev.TaskAfter.AvailableAtUs)) / 1e6)
		case *pb.Fact_Succeeded:
			q.succeeded.Inc()
		case *pb.Fact_Failed:
			q.failed.Inc()
		case *pb.Fact_Cancelled:
			q.cancelled.Inc()
		case *pb.Fact_ReviewNeeded:
			q.reviewNeeded.Inc()
		case *pb.Fact_AttemptFailed, *pb.Fact_AttemptUnknown, *pb.Fact_AttemptExpired:
			q.attemptFailed.Inc()
		case *pb.Fact_RetryScheduled:
			q.retryScheduled.Inc()
		default: // the rest is not counted
		}
	}
}
