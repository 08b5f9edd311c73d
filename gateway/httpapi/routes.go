package httpapi

import (
	"net/http"
	"reflect"

	"pulse/schema"
)

// route is one line of the API: how it is found, who may use it, what it takes
// and answers, and what serves it. Requests are matched against the same table
// that the OpenAPI document is made from.
type route struct {
	method string
	path   string
	id     string // operationId
	tag    string
	title  string
	about  string

	verb         Verb
	public       bool // served without authentication
	anyNamespace bool // not about one namespace; the handler looks itself
	waits        bool // a stream: counted apart, and no HEAD
	anyQuery     bool // served by a handler that is not ours
	unkeyed      bool // a change that no log keeps: an Idempotency-Key would promise too much

	query    []param
	body     reflect.Type // nil takes none
	bodyMust bool
	bodyMax  int64
	answers  []reply
	codes    []schema.Code // beyond those every route of /v1 may have

	handle func(*exchange) error

	pattern  string // method and path, made by routes
	segments []segment
}

// param is a parameter of the query.
type param struct {
	name  string
	about string
	typ   string // JSON Schema type: string, integer
	enum  []string
	many  bool // may be repeated, or separated by commas
}

// reply is an answer that is no error.
type reply struct {
	status int
	body   reflect.Type // nil has none
	media  string       // empty = JSON
	about  string
}

func (r *route) param(name string) *param {
	for i := range r.query {
		if r.query[i].name == name {
			return &r.query[i]
		}
	}
	return nil
}

// Ids of the operations that code asks for.
const (
	opWatchTask      = "watch-task"
	opWatchNamespace = "watch-namespace"
)

const (
	inNamespace = "/v1/namespaces/{ns}"
	inQueue     = inNamespace + "/queues/{queue}"
	ofTask      = inNamespace + "/tasks/{id}"
)

// Parameters that several routes take.
var (
	freshness = []param{
		{name: "consistency", about: "stale is answered by any node from what it has, and says how old that is in X-Pulse-Age-Ms.", typ: "string", enum: []string{"linearizable", "stale"}},
		{name: "min_index", about: "Wait until this X-Pulse-Index is applied where the read is answered.", typ: "string"},
	}
	paging = []param{
		{name: "limit", about: "The size of a page, 1 to 1,000; default 100. A page of large tasks may be shorter.", typ: "integer"},
		{name: "cursor", about: "next_cursor of the page before.", typ: "string"},
	}
	selection = []param{
		{name: "queue", typ: "string"},
		{name: "state", about: "May be given several times, or separated by commas.", typ: "string", many: true},
		{name: "handler", typ: "string"},
		{name: "business_key", typ: "string"},
		{name: "concurrency_key", typ: "string"},
		{name: "waiting_reason", typ: "string", enum: waitingReasons[1:]},
	}
)

func params(lists ...[]param) []param {
	var out []param
	for _, list := range lists {
		out = append(out, list...)
	}
	return out
}

func ok(body reflect.Type, about string) []reply {
	return []reply{{status: http.StatusOK, body: body, about: about}}
}

// routes is the API.
func (h *Handler) routes() []*route {
	var all []*route
	for _, part := range [][]*route{taskRoutes(), queueRoutes(), namespaceRoutes(), workerRoutes(), clusterRoutes(), h.plainRoutes()} {
		all = append(all, part...)
	}
	for _, r := range all {
		r.pattern = r.method + " " + r.path
		if r.bodyMax == 0 {
			r.bodyMax = bodyBytesMax
		}
	}
	return all
}

func taskRoutes() []*route {
	task := typeOf[Task]()
	return []*route{{
		method: http.MethodPost, path: inQueue + "/tasks", id: "submit-task", tag: "tasks", verb: VerbSubmit,
		title: "Submit a task",
		body:  typeOf[Submission](), bodyMust: true,
		answers: []reply{
			{status: http.StatusCreated, body: task, about: "The new task."},
			{status: http.StatusOK, body: task, about: "The task that has this business key, with duplicate."},
		},
		codes:  []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.TooLarge, schema.QueueFull},
		handle: submitTask,
	}, {
		method: http.MethodPost, path: inQueue + "/tasks:batch", id: "submit-batch", tag: "tasks", verb: VerbSubmit,
		title: "Submit many tasks",
		about: "At most 1,000 tasks in 8 MiB. Each stands for itself; ids rise in the order of the tasks.",
		body:  typeOf[Batch](), bodyMust: true, bodyMax: batchBytesMax,
		answers: ok(typeOf[BatchAnswer](), "A task or an error for each, in order."),
		codes:   []schema.Code{schema.TooLarge},
		handle:  submitBatch,
	}, {
		method: http.MethodGet, path: inNamespace + "/tasks", id: "list-tasks", tag: "tasks", verb: VerbRead,
		title: "List tasks", about: "Newest first. Tasks that arrive meanwhile move nothing.",
		query:   params(selection, paging, freshness),
		answers: ok(typeOf[TaskList](), "A page."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listTasks,
	}, {
		method: http.MethodPost, path: inNamespace + "/tasks:bulk", id: "bulk-tasks", tag: "tasks", verb: VerbRead,
		title: "Cancel or retry many tasks",
		about: "Each task stands for itself. It needs the role cancel, or submit for a retry. " +
			"Under an Idempotency-Key named tasks are answered as the first time; a filter selects anew, and no task is acted on twice.",
		body: typeOf[Bulk](), bodyMust: true,
		answers: ok(typeOf[BulkAnswer](), "An outcome for each task."),
		codes:   []schema.Code{schema.NotFound, schema.OperationConflict, schema.TooLarge},
		handle:  bulkTasks,
	}, {
		method: http.MethodGet, path: ofTask, id: "get-task", tag: "tasks", verb: VerbRead,
		title: "Read a task, at once or when it is over",
		query: params([]param{
			{name: "wait_state", about: "Answer when the task is terminal or in NEEDS_REVIEW.", typ: "string", enum: []string{"terminal"}},
			{name: "timeout_ms", about: "With wait_state: answer then at the latest, with the task as it is. At most 600,000; default 30,000.", typ: "integer"},
		}, freshness),
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound},
		handle:  getTask,
	}, {
		method: http.MethodGet, path: ofTask + "/attempts", id: "list-attempts", tag: "tasks", verb: VerbRead,
		title: "List a task's attempts", about: "Oldest first, with the receipts of their operations and the evidence that came too late.",
		query:   freshness,
		answers: ok(typeOf[AttemptList](), "All attempts that are kept."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listAttempts,
	}, {
		method: http.MethodGet, path: ofTask + "/events", id: "list-events", tag: "tasks", verb: VerbRead,
		title: "Read a task's history", about: "Oldest first. If its beginning is no longer kept, it begins with one event of type state.",
		query:   params(paging, freshness),
		answers: ok(typeOf[EventList](), "A page."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listEvents,
	}, {
		method: http.MethodGet, path: ofTask + "/watch", id: opWatchTask, tag: "tasks", verb: VerbRead, waits: true,
		title: "Watch a task",
		about: "Server-sent events: the task's history from its start, and then what happens to it until it is over. " +
			"The id of an event is its index, its place in it and the task's revision, separated by dots. " +
			"With Last-Event-ID the stream goes on behind that event, on any gateway.",
		query: freshness,
		answers: []reply{
			{status: http.StatusOK, body: typeOf[WatchEvent](), media: mediaEvents, about: "Events with this as data, and comments."},
			{status: http.StatusNoContent, about: "The task is over and Last-Event-ID names its last event: do not come back."},
		},
		codes:  []schema.Code{schema.NotFound},
		handle: watchTask,
	}, {
		method: http.MethodPost, path: ofTask + ":cancel", id: "cancel-task", tag: "tasks", verb: VerbCancel,
		title: "Cancel a task", about: "A running task is asked to stop; the worker decides how it ends.",
		body:    typeOf[Change](),
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict},
		handle:  cancelTask,
	}, {
		method: http.MethodPost, path: ofTask + ":retry", id: "retry-task", tag: "tasks", verb: VerbSubmit,
		title: "Submit a task that is over once more", about: "The new task names the old one in retry_of and has no business key.",
		body:    typeOf[Change](),
		answers: []reply{{status: http.StatusCreated, body: task, about: "The new task."}},
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict, schema.QueueFull},
		handle:  retryTask,
	}, {
		method: http.MethodPost, path: ofTask + ":review", id: "review-task", tag: "tasks", verb: VerbReview,
		title: "Settle a task in NEEDS_REVIEW",
		body:  typeOf[Review](), bodyMust: true,
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict, schema.TooLarge},
		handle:  reviewTask,
	}, {
		method: http.MethodGet, path: inNamespace + "/events", id: opWatchNamespace, tag: "tasks", verb: VerbRead, waits: true,
		title: "Watch the tasks of a namespace",
		about: "Server-sent events from now on, or behind after or Last-Event-ID, on any gateway. " +
			"The id of an event is its index and its place in it, separated by a dot; an id without data only moves the place to come back to.",
		query: params([]param{{name: "after", about: "An id, or an X-Pulse-Index: go on behind it.", typ: "string"}}, freshness),
		answers: []reply{
			{status: http.StatusOK, body: typeOf[WatchEvent](), media: mediaEvents, about: "Events with this as data, and comments."},
			{status: http.StatusGone, body: typeOf[Problem](), media: mediaProblem, about: "The position is too old: events behind it are no longer kept. List the tasks and go on from now. Code not_found."},
		},
		codes:  []schema.Code{schema.NotFound},
		handle: watchNamespace,
	}}
}

func queueRoutes() []*route {
	queue := typeOf[Queue]()
	conflicts := []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict}
	return []*route{{
		method: http.MethodGet, path: inNamespace + "/queues", id: "list-queues", tag: "queues", verb: VerbRead,
		title: "List queues", query: freshness,
		answers: ok(typeOf[QueueList](), "All queues of the namespace."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listQueues,
	}, {
		method: http.MethodPut, path: inQueue, id: "put-queue", tag: "queues", verb: VerbAdmin,
		title: "Create a queue or replace its settings", about: "What is absent takes its default.",
		body: typeOf[QueueSettings](),
		answers: []reply{
			{status: http.StatusCreated, body: queue, about: "The new queue."},
			{status: http.StatusOK, body: queue, about: "The queue."},
		},
		codes: conflicts, handle: putQueue,
	}, {
		method: http.MethodGet, path: inQueue, id: "get-queue", tag: "queues", verb: VerbRead,
		title: "Read a queue", query: freshness,
		answers: ok(queue, "The queue."), codes: []schema.Code{schema.NotFound}, handle: getQueue,
	}, {
		method: http.MethodDelete, path: inQueue, id: "delete-queue", tag: "queues", verb: VerbAdmin,
		title: "Delete a queue that has no live task and no worker",
		query: []param{{name: "expected_revision", about: "Refuse with revision_conflict if it is at another.", typ: "string"}},
		body:  typeOf[Nothing](), answers: ok(queue, "The queue as it was last."), codes: conflicts, handle: deleteQueue,
	}, {
		method: http.MethodPost, path: inQueue + ":pause", id: "pause-queue", tag: "queues", verb: VerbAdmin,
		title: "Assign nothing from a queue", about: "It goes on taking tasks.",
		body: typeOf[Expectation](), answers: ok(queue, "The queue."), codes: conflicts, handle: pauseQueue,
	}, {
		method: http.MethodPost, path: inQueue + ":resume", id: "resume-queue", tag: "queues", verb: VerbAdmin,
		title: "Let a paused queue go on",
		body:  typeOf[Expectation](), answers: ok(queue, "The queue."), codes: conflicts, handle: resumeQueue,
	}}
}

func namespaceRoutes() []*route {
	namespace := typeOf[Namespace]()
	return []*route{{
		method: http.MethodGet, path: "/v1/namespaces", id: "list-namespaces", tag: "namespaces", verb: VerbRead, anyNamespace: true,
		title: "List namespaces", query: freshness,
		answers: ok(typeOf[NamespaceList](), "All that the caller may see."), handle: listNamespaces,
	}, {
		method: http.MethodPut, path: inNamespace, id: "put-namespace", tag: "namespaces", verb: VerbAdmin,
		title: "Create a namespace", about: "One that exists is left as it is.",
		body: typeOf[Nothing](), answers: ok(namespace, "The namespace."),
		codes: []schema.Code{schema.Conflict}, handle: putNamespace,
	}, {
		method: http.MethodGet, path: inNamespace, id: "get-namespace", tag: "namespaces", verb: VerbRead,
		title: "Read a namespace", query: freshness,
		answers: ok(namespace, "The namespace."), codes: []schema.Code{schema.NotFound}, handle: getNamespace,
	}, {
		method: http.MethodDelete, path: inNamespace, id: "delete-namespace", tag: "namespaces", verb: VerbAdmin,
		title: "Delete a namespace that has no queue and no task",
		body:  typeOf[Nothing](), answers: ok(namespace, "The namespace as it was last."),
		codes: []schema.Code{schema.NotFound, schema.Conflict}, handle: deleteNamespace,
	}}
}

func workerRoutes() []*route {
	worker, key := typeOf[Worker](), typeOf[Key]()
	ofWorker, ofKey := inNamespace+"/workers/{instance_id}", inNamespace+"/keys/{key}"
	return []*route{{
		method: http.MethodGet, path: inNamespace + "/workers", id: "list-workers", tag: "workers", verb: VerbRead,
		title: "List workers", query: params([]param{{name: "queue", typ: "string"}}, paging, freshness),
		answers: ok(typeOf[WorkerList](), "A page."), codes: []schema.Code{schema.NotFound}, handle: listWorkers,
	}, {
		method: http.MethodGet, path: ofWorker, id: "get-worker", tag: "workers", verb: VerbRead,
		title: "Read a worker", query: freshness,
		answers: ok(worker, "The worker."), codes: []schema.Code{schema.NotFound}, handle: getWorker,
	}, {
		method: http.MethodPost, path: ofWorker + ":drain", id: "drain-worker", tag: "workers", verb: VerbAdmin,
		title: "Give a worker no new tasks", about: "It finishes what it has. This cannot be undone.",
		body: typeOf[Nothing](), answers: ok(worker, "The worker."),
		codes: []schema.Code{schema.NotFound, schema.OperationConflict}, handle: drainWorker,
	}, {
		method: http.MethodGet, path: inNamespace + "/keys", id: "list-keys", tag: "keys", verb: VerbRead,
		title: "List concurrency keys", about: "Those held or waited for.", query: params(paging, freshness),
		answers: ok(typeOf[KeyList](), "A page."), codes: []schema.Code{schema.NotFound}, handle: listKeys,
	}, {
		method: http.MethodGet, path: ofKey, id: "get-key", tag: "keys", verb: VerbRead,
		title: "Read a concurrency key", about: "The key is percent-encoded in full, its slashes too. One that nobody holds or waits for is answered without a holder.",
		query: freshness, answers: ok(key, "The key."), codes: []schema.Code{schema.NotFound}, handle: getKey,
	}, {
		method: http.MethodPost, path: ofKey + ":free", id: "free-key", tag: "keys", verb: VerbAdmin,
		title: "Take a concurrency key from its holder",
		about: "The holder may still be running: only who knows that it does no harm should do this. The note is recorded.",
		body:  typeOf[Note](), bodyMust: true, answers: ok(key, "The key."),
		codes: []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict}, handle: freeKey,
	}}
}

func clusterRoutes() []*route {
	return []*route{{
		method: http.MethodGet, path: "/v1/cluster", id: "get-cluster", tag: "cluster", verb: VerbRead,
		title: "See how the cluster stands", about: "Answered from what this node knows, with or without a leader.",
		query: freshness, answers: ok(typeOf[ClusterStatus](), "The status."), handle: getCluster,
	}, {
		method: http.MethodGet, path: "/v1/cluster/backup", id: "backup-cluster", tag: "cluster", verb: VerbAdmin, waits: true,
		title: "Back the whole state up", about: "One stream, consistent and checked. A connection that ends early has no backup.",
		answers: []reply{{status: http.StatusOK, media: "application/octet-stream", about: "The backup."}}, handle: backup,
	}, {
		method: http.MethodGet, path: "/v1/cluster/members", id: "list-members", tag: "cluster", verb: VerbRead,
		title: "List the nodes of the cluster", about: "Answered from what this node knows, with or without a leader. By id.",
		answers: ok(typeOf[MemberList](), "Those that are alive, and the servers that should be."), handle: listMembers,
	}, {
		method: http.MethodPost, path: "/v1/cluster:transfer", id: "transfer-leadership", tag: "cluster", verb: VerbAdmin, unkeyed: true,
		title: "Hand leadership over", about: "Without node_id, to the voter that is most up to date.",
		body: typeOf[Transfer](), answers: ok(typeOf[Transferred](), "Who leads now."),
		codes: []schema.Code{schema.NotFound, schema.Conflict}, handle: transferLeadership,
	}, {
		method: http.MethodPost, path: "/v1/cluster:remove", id: "remove-server", tag: "cluster", verb: VerbAdmin, unkeyed: true,
		title: "Take a server out of the cluster",
		about: "Refused with conflict if it leads, or if fewer than three voters would be left and force is not given.",
		body:  typeOf[Removal](), bodyMust: true, answers: ok(typeOf[Nothing](), "It is out."),
		codes: []schema.Code{schema.NotFound, schema.Conflict}, handle: removeServer,
	}}
}

// plainRoutes are outside /v1: for machines that look after this one, and for
// people.
func (h *Handler) plainRoutes() []*route {
	routes := []*route{{
		method: http.MethodGet, path: "/healthz", id: "healthz", tag: "node", public: true, anyQuery: true,
		title: "Ask whether the process answers", answers: ok(typeOf[Health](), "It does."), handle: healthz,
	}, {
		method: http.MethodGet, path: "/readyz", id: "readyz", tag: "node", public: true, anyQuery: true,
		title: "Ask whether this node can serve", about: "It knows a leader and has caught up.",
		answers: []reply{
			{status: http.StatusOK, body: typeOf[Readiness](), about: "It can."},
			{status: http.StatusServiceUnavailable, body: typeOf[Readiness](), about: "It cannot, and why."},
		},
		handle: readyz,
	}, {
		method: http.MethodGet, path: "/openapi.json", id: "openapi", tag: "node", public: true, anyQuery: true,
		title: "Read this document", answers: []reply{{status: http.StatusOK, media: mediaJSON, about: "OpenAPI 3.1."}}, handle: openAPI,
	}, {
		method: http.MethodGet, path: "/docs", id: "docs", tag: "node", public: true, anyQuery: true,
		title: "Read this document as a page", answers: []reply{{status: http.StatusOK, media: "text/html", about: "A page."}}, handle: docs,
	}, {
		method: http.MethodGet, path: "/", id: "home", tag: "node", public: true, anyQuery: true,
		title: "Find the way", about: "A browser is sent to the documentation.",
		answers: []reply{
			{status: http.StatusOK, body: typeOf[Home](), about: "Where to go."},
			{status: http.StatusFound, about: "To the documentation."},
		},
		handle: home,
	}}
	if h.opt.Metrics != nil {
		routes = append(routes, &route{
			method: http.MethodGet, path: "/metrics", id: "metrics", tag: "node", public: true, anyQuery: true,
			title: "Read the metrics of this process", answers: []reply{{status: http.StatusOK, media: "text/plain", about: "Prometheus text format."}},
			handle: metrics,
		})
	}
	return routes
}
