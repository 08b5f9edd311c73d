package node

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	pb "pulse/proto/pulse/v1"
)

const (
	// queuesShown bounds the queues with series of their own; what others hold
	// is added up under the name "_other", which no queue can have, so that the
	// sums stay right.
	queuesShown = 200
	otherQueues = "_other"
)

// queueGauges is how each queue stands, the first queuesShown of them by
// namespace and name.
type queueGauges struct {
	waiting, oldest, active, review, paused, workers, slots *prometheus.Desc
}

func newQueueGauges() *queueGauges {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help+onlyLeader, append([]string{"namespace", "queue"}, more...), nil)
	}
	return &queueGauges{
		waiting: desc("pulse_tasks_waiting", "Tasks that are WAITING, by what they wait for.", "reason"),
		oldest:  desc("pulse_oldest_waiting_seconds", "How long the oldest task has waited since it could run but for a worker, its key or its queue; 0 if there is none."),
		active:  desc("pulse_tasks_active", "Tasks that are leased (offered to a worker) or running.", "state"),
		review:  desc("pulse_tasks_in_review", "Tasks whose outcome an operator has to settle."),
		paused:  desc("pulse_queue_paused", "1 while nothing is assigned from the queue."),
		workers: desc("pulse_workers", "Workers of the queue: connected, draining, or lost and still expected back.", "state"),
		slots:   desc("pulse_worker_slots", "Tasks that the connected workers can have at a time: total, and of these used. A draining worker has no slots and may still use some.", "state"),
	}
}

func (g *queueGauges) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.waiting, g.oldest, g.active, g.review, g.paused, g.workers, g.slots} {
		out <- d
	}
}

func (g *queueGauges) collect(s *snapshot, out chan<- prometheus.Metric) {
	other := &queueReading{}
	for i, q := range s.standing.Queues {
		if i >= queuesShown {
			other.add(q, s.clockUs())
			continue
		}
		one := &queueReading{}
		one.add(q, s.clockUs())
		g.emit(q.GetQueue().GetNamespace(), q.GetQueue().GetQueue().GetName(), one, out)
	}
	if len(s.standing.Queues) > queuesShown {
		g.emit(otherQueues, otherQueues, other, out)
	}
}

// queueReading is the numbers of a queue, or of several.
type queueReading struct {
	waiting                   [len(reasonLabels)]uint64
	oldestSeconds             float64
	leased, running, inReview uint64
	paused                    uint64
	connected, draining, lost uint64
	slots, used               uint64
}

// reasonLabels are the reasons as the API spells them.
var reasonLabels = func() (out [pb.WaitingReason_WAITING_REASON_WORKERS_BUSY + 1]string) {
	for i := range out {
		out[i] = strings.ToLower(strings.TrimPrefix(pb.WaitingReason(i).String(), "WAITING_REASON_"))
	}
	return out
}()

func (r *queueReading) add(q *pb.QueueActivity, nowUs int64) {
	for _, reason := range q.GetReasons() {
		if int(reason.GetReason()) < len(r.waiting) {
			r.waiting[reason.GetReason()] += reason.GetTasks()
		}
	}
	if q.GetOldestWaitingUs() != 0 {
		r.oldestSeconds = max(r.oldestSeconds, float64(nowUs-q.GetOldestWaitingUs())/1e6)
	}
	r.leased += q.GetLeased()
	r.running += q.GetRunning()
	r.inReview += q.GetNeedsReview()
	if q.GetQueue().GetQueue().GetPaused() {
		r.paused++
	}
	r.connected += uint64(q.GetWorkersConnected())
	r.draining += uint64(q.GetWorkersDraining())
	r.lost += uint64(q.GetWorkersLost())
	r.slots += q.GetSlots()
	r.used += q.GetSlotsUsed()
}

// emit sends every series, those that are 0 too: a rule can tell nothing waiting
// from nothing known.
func (g *queueGauges) emit(namespace, queue string, r *queueReading, out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{namespace, queue}, more...)...)
	}
	for reason, tasks := range r.waiting {
		if reason != int(pb.WaitingReason_WAITING_REASON_UNSPECIFIED) {
			send(g.waiting, float64(tasks), reasonLabels[reason])
		}
	}
	send(g.oldest, r.oldestSeconds)
	send(g.active, float64(r.leased), "leased")
	send(g.active, float64(r.running), "running")
	send(g.review, float64(r.inReview))
	send(g.paused, float64(r.paused))
	send(g.workers, float64(r.connected), "connected")
	send(g.workers, float64(r.draining), "draining")
	send(g.workers, float64(r.lost), "lost")
	send(g.slots, float64(r.slots), "total")
	send(g.slots, float64(r.used), "used")
}
