package fsm

import (
	"google.golang.org/protobuf/proto"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// defaultQueueSettings are those of the queue every cluster begins with.
func defaultQueueSettings() *pb.QueueSettings {
	return &pb.QueueSettings{
		LeaseDurationMs: schema.LeaseDurationMsDefault, OfferDurationMs: schema.OfferDurationMsDefault,
		MaxWaiting: schema.MaxWaitingDefault, RetentionMs: schema.RetentionMsDefault,
		DefaultDeadlineMs: schema.DeadlineMsDefault,
		DefaultRetry: &pb.RetryPolicy{
			MaxAttempts:      schema.RetryMaxAttemptsDefault,
			InitialDelayMs:   schema.RetryInitialDelayMsDefault,
			MaxDelayMs:       schema.RetryMaxDelayMsDefault,
			AttemptTimeoutMs: schema.RetryAttemptTimeoutMsDefault,
		},
	}
}

// putQueue creates a queue or replaces its settings. Leases that run keep the
// durations they were given.
func (r *run) putQueue(c *pb.PutQueue) *pb.Result {
	q := r.s.QueueByName(r.nsID(), c.Name)
	if q == nil {
		return r.createQueue(c)
	}
	if res := refuseRevision(c.ExpectedRevision, q.Row.Revision); res != nil {
		return res
	}
	if q.Row.Paused != c.Paused || !proto.Equal(q.Row.Settings, c.Settings) {
		row := state.CopyQueue(q.Row)
		row.Settings, row.Paused = c.Settings, c.Paused
		r.commitQueue(row, &pb.Fact{Kind: &pb.Fact_QueueUpdated{QueueUpdated: &pb.QueueUpdated{}}})
	}
	return queueResult(viewQueue(r.s, q))
}

func (r *run) createQueue(c *pb.PutQueue) *pb.Result {
	if c.ExpectedRevision != 0 {
		return refuse(schema.NotFound, "no queue %q in this namespace", c.Name)
	}
	if r.ns.Row.Queues >= queuesMax {
		return refuse(schema.Conflict, "the namespace already has %d queues", queuesMax)
	}
	id := r.newID()
	n := state.CopyNamespace(r.ns.Row)
	n.Queues++
	r.tx.PutNamespace(n)
	r.commitQueue(&pb.QueueRow{
		Id: id[:], NamespaceId: r.ns.Row.Id, Name: c.Name, Settings: c.Settings, Paused: c.Paused, CreatedAtUs: r.now,
	}, &pb.Fact{Kind: &pb.Fact_QueueCreated{QueueCreated: &pb.QueueCreated{}}})
	v := viewQueue(r.s, r.s.Queue(id))
	v.Created = true
	return queueResult(v)
}

// deleteQueue gives the queue's name back. Its row stays, so that retained
// tasks can still name their queue.
func (r *run) deleteQueue(c *pb.DeleteQueue) *pb.Result {
	q := r.s.QueueByName(r.nsID(), c.Name)
	if q == nil {
		return refuse(schema.NotFound, "no queue %q in this namespace", c.Name)
	}
	if res := refuseRevision(c.ExpectedRevision, q.Row.Revision); res != nil {
		return res
	}
	if live := q.Waiting + q.Active + q.NeedsReview; live > 0 {
		return refuse(schema.Conflict, "a queue is deleted when its tasks are over: %s not", are(live, "task"))
	}
	if n := r.connected(q); n > 0 {
		return refuse(schema.Conflict, "a queue is deleted when no worker serves it: %s connected", are(n, "worker"))
	}
	if name := r.scheduleInto(c.Name); name != "" {
		return refuse(schema.Conflict, "the schedule %q submits to the queue; delete it or give it another queue first", name)
	}
	n := state.CopyNamespace(r.ns.Row)
	n.Queues--
	r.tx.PutNamespace(n)
	row := state.CopyQueue(q.Row)
	row.DeletedAtUs = r.now
	r.commitQueue(row, &pb.Fact{Kind: &pb.Fact_QueueDeleted{QueueDeleted: &pb.QueueDeleted{}}})
	v := viewQueue(r.s, q)
	v.Deleted = true
	return queueResult(v)
}

func (r *run) connected(q *state.Queue) int {
	n := 0
	for _, i := range r.s.Instances(r.nsID(), ID{}) {
		if i.Row.Connected && ID(i.Row.QueueId) == q.ID() {
			n++
		}
	}
	return n
}

func (r *run) pauseQueue(c *pb.PauseQueue) *pb.Result {
	q := r.s.QueueByName(r.nsID(), c.Name)
	if q == nil {
		return refuse(schema.NotFound, "no queue %q in this namespace", c.Name)
	}
	if res := refuseRevision(c.ExpectedRevision, q.Row.Revision); res != nil {
		return res
	}
	if q.Row.Paused != c.Paused {
		row := state.CopyQueue(q.Row)
		row.Paused = c.Paused
		fact := &pb.Fact{Kind: &pb.Fact_QueueResumed{QueueResumed: &pb.QueueResumed{}}}
		if c.Paused {
			fact = &pb.Fact{Kind: &pb.Fact_QueuePaused{QueuePaused: &pb.QueuePaused{}}}
		}
		r.commitQueue(row, fact)
	}
	return queueResult(viewQueue(r.s, q))
}

func refuseRevision(expected, current uint64) *pb.Result {
	if expected == 0 || expected == current {
		return nil
	}
	res := refuse(schema.RevisionConflict, "the queue is at revision %d", current)
	res.CurrentRevision = current
	return res
}

func queueResult(v *pb.QueueView) *pb.Result {
	return &pb.Result{Body: &pb.Result_Queue{Queue: v}}
}

func (r *run) putNamespace(c *pb.PutNamespace) *pb.Result {
	if n := r.s.NamespaceByName(c.Name); n != nil {
		if c.Quota != nil && !proto.Equal(quotaOf(n.Row), c.Quota) {
			row := state.CopyNamespace(n.Row)
			row.Quota = c.Quota
			r.commitNamespace(row, &pb.Fact{Kind: &pb.Fact_NamespaceUpdated{NamespaceUpdated: &pb.NamespaceUpdated{}}})
		}
		return &pb.Result{Body: &pb.Result_Namespace{Namespace: viewNamespace(n)}}
	}
	if len(r.s.Namespaces()) >= namespacesMax {
		return refuse(schema.Conflict, "the cluster already has %d namespaces", namespacesMax)
	}
	id := r.newID()
	row := &pb.NamespaceRow{Id: id[:], Name: c.Name, CreatedAtUs: r.now, Quota: c.Quota}
	r.commitNamespace(row, &pb.Fact{Kind: &pb.Fact_NamespaceCreated{NamespaceCreated: &pb.NamespaceCreated{}}})
	return &pb.Result{Body: &pb.Result_Namespace{Namespace: viewNamespace(r.s.Namespace(id))}}
}

// quotaOf is a namespace's quota, which has no bounds if there is none.
func quotaOf(n *pb.NamespaceRow) *pb.NamespaceQuota {
	if n.Quota == nil {
		return &pb.NamespaceQuota{}
	}
	return n.Quota
}

// deleteNamespace removes a namespace that holds no queue and no task any more.
func (r *run) deleteNamespace(c *pb.DeleteNamespace) *pb.Result {
	n := r.s.NamespaceByName(c.Name)
	switch {
	case n == nil:
		return refuse(schema.NotFound, "no namespace %q", c.Name)
	case c.Name == DefaultName:
		return refuse(schema.Conflict, "the default namespace stays")
	case n.Row.Queues > 0:
		return refuse(schema.Conflict, "a namespace is deleted when it is empty: %s in it", are(n.Row.Queues, "queue"))
	case len(r.s.Schedules(ID(n.Row.Id), "")) > 0:
		return refuse(schema.Conflict, "the namespace has schedules; delete them first")
	case n.Row.IdempotencyKeys > BulkMax:
		return refuse(schema.Conflict, "the namespace still remembers %d answers; they are forgotten after 24 hours", n.Row.IdempotencyKeys)
	case r.tokensIn(c.Name) > 0:
		return refuse(schema.Conflict, "%d tokens give rights in the namespace; revoke them first", r.tokensIn(c.Name))
	case r.tx.HasTasks(ID(n.Row.Id)):
		return refuse(schema.Conflict, "the namespace still keeps finished tasks; they leave it after their retention")
	}
	r.ns = n
	for _, i := range r.s.Instances(ID(n.Row.Id), ID{}) {
		r.tx.DeleteInstance(i)
	}
	row := state.CopyNamespace(n.Row)
	row.Format = state.RowFormat
	row.Revision++
	e := r.event(pb.Aggregate_AGGREGATE_NAMESPACE, row.Id, row.Id, row.Revision,
		[]*pb.Fact{{Kind: &pb.Fact_NamespaceDeleted{NamespaceDeleted: &pb.NamespaceDeleted{}}}})
	e.NamespaceAfter, e.Deleted = row, true
	r.append(e)
	r.tx.DeleteNamespace(ID(n.Row.Id))
	return &pb.Result{Body: &pb.Result_Namespace{Namespace: row}}
}
