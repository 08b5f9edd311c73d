package node

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"pulse/fsm"
)

// meters is everything that is counted where it happens. What a part counts
// itself is read from it when somebody asks (see collector).
type meters struct {
	commands    *prometheus.CounterVec
	events      prometheus.Counter
	effects     *prometheus.CounterVec
	requests    *prometheus.CounterVec
	requestTime *prometheus.HistogramVec
	tasks       *taskMeters

	// The labels of what apply counts are looked up once.
	accepted, refused           prometheus.Counter
	assigned, cancelled, closed prometheus.Counter
}

// latencyBuckets reach from a fast disk's sync to a caller's deadline.
var latencyBuckets = []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10}

// newRequestMeters counts what a node without a replica has to count.
func newRequestMeters(reg prometheus.Registerer) *meters {
	m := &meters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulse_http_requests_total", Help: "HTTP requests answered, by method, route and status."}, []string{"method", "route", "status"}),
		requestTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pulse_http_request_seconds", Help: "Time to answer an HTTP request, by route; a watch or a long poll takes as long as it waits.",
			Buckets: latencyBuckets}, []string{"route"}),
	}
	reg.MustRegister(m.requests, m.requestTime)
	return m
}

// newMeters counts what is applied, too.
func newMeters(reg prometheus.Registerer, nameOf queueNamer, namespaceOf namespaceNamer) *meters {
	m := newRequestMeters(reg)
	m.tasks = newTaskMeters(reg, nameOf, namespaceOf)
	m.commands = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pulse_commands_applied_total", Help: "Commands applied by this node, by result: accepted or refused."}, []string{"result"})
	m.events = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pulse_events_total", Help: "Changes of tasks, queues, namespaces and workers applied by this node."})
	m.effects = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pulse_effects_total", Help: "What apply wanted said to workers, by kind: assign, cancel or close."}, []string{"kind"})
	reg.MustRegister(m.commands, m.events, m.effects)
	m.accepted, m.refused = m.commands.WithLabelValues("accepted"), m.commands.WithLabelValues("refused")
	m.assigned, m.cancelled, m.closed = m.effects.WithLabelValues("assign"), m.effects.WithLabelValues("cancel"), m.effects.WithLabelValues("close")
	return m
}

// applied counts an entry. It is called by the apply goroutine.
func (m *meters) applied(o fsm.Outcome, leader bool) {
	if o.Skipped {
		return
	}
	m.tasks.applied(o, leader)
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

// newRegistry makes the node's own registry, so that two nodes in one process
// do not share series.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
