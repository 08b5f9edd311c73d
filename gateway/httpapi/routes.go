package httpapi

import (
	"net/http"
	"reflect"

	"pulse/schema"
	"pulse/schema/access"
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

	waits    bool // a stream: counted apart, and no HEAD
	anyQuery bool // served by a handler that is not ours
	unkeyed  bool // a change that no log keeps: an Idempotency-Key would promise too much

	query    []param
	body     reflect.Type // nil takes none
	bodyMust bool
	bodyMax  int64
	answers  []reply
	codes    []schema.Code // beyond those every route of /v1 may have

	handle func(*exchange) error

	rule     access.Rule // who may use it, from the table
	pattern  string      // method and path, made by routes
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

// public says that the route is served without authentication.
func (r *route) public() bool { return r.rule.Permission == access.Open }

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
	inSchedule  = inNamespace + "/schedules/{schedule}"
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
		{name: "error_code", about: "Of a task that is over or needs a review, and of one that has just failed an attempt.", typ: "string"},
		{name: "created_from", about: "Created at this time or later, RFC 3339 in UTC.", typ: "string"},
		{name: "created_until", about: "Created before this time.", typ: "string"},
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
	for _, part := range [][]*route{taskRoutes(), queueRoutes(), scheduleRoutes(), namespaceRoutes(), workerRoutes(), accessRoutes(), clusterRoutes(), h.plainRoutes()} {
		all = append(all, part...)
	}
	for _, r := range all {
		r.pattern = r.method + " " + r.path
		r.rule = access.HTTP[r.id] // none serves nobody
		if r.bodyMax == 0 {
			r.bodyMax = bodyBytesMax
		}
	}
	return all
}

func taskRoutes() []*route {
	task := typeOf[Task]()
	return []*route{{
		method: http.MethodPost, path: inQueue + "/tasks", id: "submit-task", tag: "tasks",
		title: "Submit a task",
		body:  typeOf[Submission](), bodyMust: true,
		answers: []reply{
			{status: http.StatusCreated, body: task, about: "The new task."},
			{status: http.StatusOK, body: task, about: "The task that has this business key, with duplicate."},
		},
		codes:  []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.TooLarge, schema.QueueFull},
		handle: submitTask,
	}, {
		method: http.MethodPost, path: inQueue + "/tasks:batch", id: "submit-batch", tag: "tasks",
		title: "Submit many tasks",
		about: "At most 1,000 tasks in 8 MiB. Each stands for itself; ids rise in the order of the tasks.",
		body:  typeOf[Batch](), bodyMust: true, bodyMax: batchBytesMax,
		answers: ok(typeOf[BatchAnswer](), "A task or an error for each, in order."),
		codes:   []schema.Code{schema.TooLarge},
		handle:  submitBatch,
	}, {
		method: http.MethodGet, path: inNamespace + "/tasks", id: "list-tasks", tag: "tasks",
		title: "List tasks", about: "Newest first. Tasks that arrive meanwhile move nothing.",
		query:   params(selection, paging, freshness),
		answers: ok(typeOf[TaskList](), "A page."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listTasks,
	}, {
		method: http.MethodPost, path: inNamespace + "/tasks:bulk", id: "bulk-tasks", tag: "tasks",
		title: "Cancel or retry many tasks",
		about: "Each task stands for itself. " +
			"Under an Idempotency-Key named tasks are answered as the first time; a filter selects anew, and no task is acted on twice.",
		body: typeOf[Bulk](), bodyMust: true,
		answers: ok(typeOf[BulkAnswer](), "An outcome for each task."),
		codes:   []schema.Code{schema.NotFound, schema.OperationConflict, schema.TooLarge},
		handle:  bulkTasks,
	}, {
		method: http.MethodGet, path: ofTask, id: "get-task", tag: "tasks",
		title: "Read a task, at once or when it is over",
		query: params([]param{
			{name: "wait_state", about: "Answer when the task is terminal or in NEEDS_REVIEW.", typ: "string", enum: []string{"terminal"}},
			{name: "timeout_ms", about: "With wait_state: answer then at the latest, with the task as it is. At most 600,000; default 30,000.", typ: "integer"},
		}, freshness),
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound},
		handle:  getTask,
	}, {
		method: http.MethodGet, path: ofTask + "/attempts", id: "list-attempts", tag: "tasks",
		title: "List a task's attempts", about: "Oldest first, with the receipts of their operations and the evidence that came too late.",
		query:   freshness,
		answers: ok(typeOf[AttemptList](), "All attempts that are kept."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listAttempts,
	}, {
		method: http.MethodGet, path: ofTask + "/events", id: "list-events", tag: "tasks",
		title: "Read a task's history", about: "Oldest first. If its beginning is no longer kept, it begins with one event of type state.",
		query:   params(paging, freshness),
		answers: ok(typeOf[EventList](), "A page."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listEvents,
	}, {
		method: http.MethodGet, path: ofTask + "/watch", id: opWatchTask, tag: "tasks", waits: true,
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
		method: http.MethodPost, path: ofTask + ":cancel", id: "cancel-task", tag: "tasks",
		title: "Cancel a task", about: "A running task is asked to stop; the worker decides how it ends.",
		body:    typeOf[Change](),
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict},
		handle:  cancelTask,
	}, {
		method: http.MethodPost, path: ofTask + ":retry", id: "retry-task", tag: "tasks",
		title: "Submit a task that is over once more", about: "The new task names the old one in retry_of and has no business key.",
		body:    typeOf[Change](),
		answers: []reply{{status: http.StatusCreated, body: task, about: "The new task."}},
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict, schema.QueueFull},
		handle:  retryTask,
	}, {
		method: http.MethodPost, path: ofTask + ":run", id: "run-task", tag: "tasks",
		title:   "End a task's wait for a time",
		about:   "A task that was submitted with a delay, or waits to be tried again, is ready now. One that waits for anything else is answered as it is.",
		body:    typeOf[Change](),
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict},
		handle:  runTask,
	}, {
		method: http.MethodPost, path: ofTask + ":review", id: "review-task", tag: "tasks",
		title: "Settle a task in NEEDS_REVIEW",
		body:  typeOf[Review](), bodyMust: true,
		answers: ok(task, "The task."),
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict, schema.TooLarge},
		handle:  reviewTask,
	}, {
		method: http.MethodGet, path: inNamespace + "/events", id: opWatchNamespace, tag: "tasks", waits: true,
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
		method: http.MethodGet, path: inQueue + "/backlog", id: "get-backlog", tag: "queues",
		title: "Read how much work a queue has for workers",
		about: "Made for autoscalers: backlog is one number, what workers have and what they could start now.",
		query: freshness, answers: ok(typeOf[Backlog](), "The backlog."), codes: []schema.Code{schema.NotFound}, handle: getBacklog,
	}, {
		method: http.MethodGet, path: inNamespace + "/queues", id: "list-queues", tag: "queues",
		title: "List queues", query: freshness,
		answers: ok(typeOf[QueueList](), "All queues of the namespace."),
		codes:   []schema.Code{schema.NotFound},
		handle:  listQueues,
	}, {
		method: http.MethodPut, path: inQueue, id: "put-queue", tag: "queues",
		title: "Create a queue or replace its settings", about: "What is absent takes its default.",
		body: typeOf[QueueSettings](),
		answers: []reply{
			{status: http.StatusCreated, body: queue, about: "The new queue."},
			{status: http.StatusOK, body: queue, about: "The queue."},
		},
		codes: conflicts, handle: putQueue,
	}, {
		method: http.MethodGet, path: inQueue, id: "get-queue", tag: "queues",
		title: "Read a queue", query: freshness,
		answers: ok(queue, "The queue."), codes: []schema.Code{schema.NotFound}, handle: getQueue,
	}, {
		method: http.MethodDelete, path: inQueue, id: "delete-queue", tag: "queues",
		title: "Delete a queue that has no live task and no worker",
		query: []param{{name: "expected_revision", about: "Refuse with revision_conflict if it is at another.", typ: "string"}},
		body:  typeOf[Nothing](), answers: ok(queue, "The queue as it was last."), codes: conflicts, handle: deleteQueue,
	}, {
		method: http.MethodPost, path: inQueue + ":pause", id: "pause-queue", tag: "queues",
		title: "Assign nothing from a queue", about: "It goes on taking tasks.",
		body: typeOf[Expectation](), answers: ok(queue, "The queue."), codes: conflicts, handle: pauseQueue,
	}, {
		method: http.MethodPost, path: inQueue + ":resume", id: "resume-queue", tag: "queues",
		title: "Let a paused queue go on",
		body:  typeOf[Expectation](), answers: ok(queue, "The queue."), codes: conflicts, handle: resumeQueue,
	}}
}

func scheduleRoutes() []*route {
	schedule := typeOf[Schedule]()
	conflicts := []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.RevisionConflict}
	return []*route{{
		method: http.MethodGet, path: inNamespace + "/schedules", id: "list-schedules", tag: "schedules",
		title: "List schedules", about: "By name, without the payloads of their tasks.", query: params(paging, freshness),
		answers: ok(typeOf[ScheduleList](), "A page."), codes: []schema.Code{schema.NotFound}, handle: listSchedules,
	}, {
		method: http.MethodPut, path: inSchedule, id: "put-schedule", tag: "schedules",
		title: "Create a schedule or replace its settings",
		about: "What is absent takes its default. Each time submits one task, whose business key is schedule:<id of the schedule>:<time>. " +
			"A change of the times holds from now on; a time that has come is not taken away.",
		body: typeOf[ScheduleSettings](), bodyMust: true,
		answers: []reply{
			{status: http.StatusCreated, body: schedule, about: "The new schedule."},
			{status: http.StatusOK, body: schedule, about: "The schedule."},
		},
		codes: append([]schema.Code{schema.TooLarge}, conflicts...), handle: putSchedule,
	}, {
		method: http.MethodGet, path: inSchedule, id: "get-schedule", tag: "schedules",
		title:   "Read a schedule",
		query:   params([]param{{name: "upcoming", about: "How many of its next times to tell, 0 to 100; default 5.", typ: "integer"}}, freshness),
		answers: ok(schedule, "The schedule."), codes: []schema.Code{schema.NotFound}, handle: getSchedule,
	}, {
		method: http.MethodDelete, path: inSchedule, id: "delete-schedule", tag: "schedules",
		title: "Delete a schedule", about: "The tasks that it has submitted stay.",
		query: []param{{name: "expected_revision", about: "Refuse with revision_conflict if it is at another.", typ: "string"}},
		body:  typeOf[Nothing](), answers: ok(schedule, "The schedule as it was last."), codes: conflicts, handle: deleteSchedule,
	}, {
		method: http.MethodPost, path: inSchedule + ":pause", id: "pause-schedule", tag: "schedules",
		title: "Let no time of a schedule come", about: "A time that waits for a run to be over is left out.",
		body: typeOf[Change](), answers: ok(schedule, "The schedule."), codes: conflicts, handle: pauseSchedule,
	}, {
		method: http.MethodPost, path: inSchedule + ":resume", id: "resume-schedule", tag: "schedules",
		title: "Let a paused schedule go on", about: "From now on: times that passed meanwhile are left out; a backfill brings them.",
		body: typeOf[Change](), answers: ok(schedule, "The schedule."), codes: conflicts, handle: resumeSchedule,
	}, {
		method: http.MethodPost, path: inSchedule + ":trigger", id: "trigger-schedule", tag: "schedules",
		title: "Run a schedule's task now",
		about: "Also of one that is paused or has ended. While a run is not over it is refused with conflict, unless the overlap policy is allow or allow_overlap is given.",
		body:  typeOf[TriggerOrder](), answers: []reply{{status: http.StatusCreated, body: typeOf[Task](), about: "The new task."}},
		codes: []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict, schema.QueueFull}, handle: triggerSchedule,
	}, {
		method: http.MethodPost, path: inSchedule + ":backfill", id: "backfill-schedule", tag: "schedules",
		title: "Run the past times of a schedule that have no task",
		about: "At most 500 times, submitted at once whatever the overlap policy is. A time whose task is still kept is not run again.",
		body:  typeOf[BackfillOrder](), bodyMust: true, answers: ok(typeOf[BackfillAnswer](), "Each time and its task."),
		codes: []schema.Code{schema.NotFound, schema.OperationConflict}, handle: backfillSchedule,
	}, {
		method: http.MethodPost, path: inNamespace + "/schedules:preview", id: "preview-schedule", tag: "schedules", unkeyed: true,
		title: "See the next times of a schedule that need not exist",
		body:  typeOf[SchedulePreview](), bodyMust: true, answers: ok(typeOf[Upcoming](), "The times."),
		codes: []schema.Code{schema.NotFound}, handle: previewSchedule,
	}}
}

func namespaceRoutes() []*route {
	namespace := typeOf[Namespace]()
	return []*route{{
		method: http.MethodGet, path: inNamespace + "/activity", id: "get-activity", tag: "namespaces",
		title: "See how the queues stand and what happened lately",
		about: "Backlog and why it waits, workers and their slots, and counts of the last quarter of an hour in steps. " +
			"How things stand is state; what happened is counted by the node that answers, from its start.",
		query:   params([]param{{name: "queue", about: "This one alone.", typ: "string"}}, freshness),
		answers: ok(typeOf[Activity](), "The activity."), codes: []schema.Code{schema.NotFound}, handle: getActivity,
	}, {
		method: http.MethodGet, path: "/v1/namespaces", id: "list-namespaces", tag: "namespaces",
		title: "List namespaces", query: freshness,
		answers: ok(typeOf[NamespaceList](), "All that the caller may see."), handle: listNamespaces,
	}, {
		method: http.MethodPut, path: inNamespace, id: "put-namespace", tag: "namespaces",
		title: "Create a namespace, or change its quota", about: "Without a quota one that exists is left as it is.",
		body: typeOf[NamespaceSettings](), answers: ok(namespace, "The namespace."),
		codes: []schema.Code{schema.Conflict}, handle: putNamespace,
	}, {
		method: http.MethodGet, path: inNamespace, id: "get-namespace", tag: "namespaces",
		title: "Read a namespace", query: freshness,
		answers: ok(namespace, "The namespace."), codes: []schema.Code{schema.NotFound}, handle: getNamespace,
	}, {
		method: http.MethodDelete, path: inNamespace, id: "delete-namespace", tag: "namespaces",
		title: "Delete a namespace that has no queue and no task",
		body:  typeOf[Nothing](), answers: ok(namespace, "The namespace as it was last."),
		codes: []schema.Code{schema.NotFound, schema.Conflict}, handle: deleteNamespace,
	}}
}

func workerRoutes() []*route {
	worker, key := typeOf[Worker](), typeOf[Key]()
	ofWorker, ofKey := inNamespace+"/workers/{instance_id}", inNamespace+"/keys/{key}"
	return []*route{{
		method: http.MethodGet, path: inNamespace + "/workers", id: "list-workers", tag: "workers",
		title: "List workers", query: params([]param{{name: "queue", typ: "string"}}, paging, freshness),
		answers: ok(typeOf[WorkerList](), "A page."), codes: []schema.Code{schema.NotFound}, handle: listWorkers,
	}, {
		method: http.MethodGet, path: ofWorker, id: "get-worker", tag: "workers",
		title: "Read a worker", query: freshness,
		answers: ok(worker, "The worker."), codes: []schema.Code{schema.NotFound}, handle: getWorker,
	}, {
		method: http.MethodPost, path: ofWorker + ":drain", id: "drain-worker", tag: "workers",
		title: "Give a worker no new tasks", about: "It finishes what it has. This cannot be undone.",
		body: typeOf[Nothing](), answers: ok(worker, "The worker."),
		codes: []schema.Code{schema.NotFound, schema.OperationConflict}, handle: drainWorker,
	}, {
		method: http.MethodGet, path: inNamespace + "/keys", id: "list-keys", tag: "keys",
		title: "List concurrency keys", about: "Those held or waited for.", query: params(paging, freshness),
		answers: ok(typeOf[KeyList](), "A page."), codes: []schema.Code{schema.NotFound}, handle: listKeys,
	}, {
		method: http.MethodGet, path: ofKey, id: "get-key", tag: "keys",
		title: "Read a concurrency key", about: "The key is percent-encoded in full, its slashes too. One that nobody holds or waits for is answered without a holder.",
		query: freshness, answers: ok(key, "The key."), codes: []schema.Code{schema.NotFound}, handle: getKey,
	}, {
		method: http.MethodPost, path: ofKey + ":free", id: "free-key", tag: "keys",
		title: "Take a concurrency key from a task in NEEDS_REVIEW",
		about: "Such a task keeps its key until the review. A key that an attempt holds is a conflict: cancel its task. One that nobody holds or waits for is answered without a holder. The note is recorded.",
		body:  typeOf[Note](), bodyMust: true, answers: ok(key, "The key."),
		codes: []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict}, handle: freeKey,
	}}
}

func clusterRoutes() []*route {
	return []*route{{
		method: http.MethodGet, path: "/v1/cluster/log-level", id: "get-log-level", tag: "cluster",
		title: "Read the log level of the node that is asked", answers: ok(typeOf[LogLevel](), "The level."),
		codes: []schema.Code{schema.Conflict}, handle: getLogLevel,
	}, {
		method: http.MethodPut, path: "/v1/cluster/log-level", id: "put-log-level", tag: "cluster", unkeyed: true,
		title: "Change the log level of the node that is asked", about: "It holds until the process ends. A process that cannot change it answers conflict.",
		body: typeOf[LogLevelWish](), bodyMust: true, answers: ok(typeOf[LogLevel](), "The level."),
		codes: []schema.Code{schema.Conflict}, handle: putLogLevel,
	}, {
		method: http.MethodGet, path: "/v1/cluster/settings", id: "get-settings", tag: "cluster",
		title: "Read the settings of the cluster", about: "Those that hold for all namespaces alike.",
		query: freshness, answers: ok(typeOf[ClusterSettings](), "The settings."), handle: getSettings,
	}, {
		method: http.MethodPut, path: "/v1/cluster/settings", id: "put-settings", tag: "cluster", unkeyed: true,
		title: "Change settings of the cluster", about: "What is absent stays as it is; something has to be there. They are kept, and in backups. A repeat sets the same again.",
		body: typeOf[ClusterSettingsWish](), bodyMust: true, answers: ok(typeOf[ClusterSettings](), "All settings as they are then."),
		handle: putSettings,
	}, {
		method: http.MethodGet, path: "/v1/cluster", id: "get-cluster", tag: "cluster",
		title: "See how the cluster stands", about: "Answered from what this node knows, with or without a leader.",
		query: freshness, answers: ok(typeOf[ClusterStatus](), "The status."), codes: []schema.Code{schema.Conflict}, handle: getCluster,
	}, {
		method: http.MethodGet, path: "/v1/cluster/backup", id: "backup-cluster", tag: "cluster", waits: true,
		title: "Back the whole state up", about: "One stream, consistent and checked. A connection that ends early has no backup.",
		answers: []reply{{status: http.StatusOK, media: "application/octet-stream", about: "The backup."}},
		codes:   []schema.Code{schema.Conflict}, handle: backup,
	}, {
		method: http.MethodGet, path: "/v1/cluster/debug", id: "debug-node", tag: "cluster",
		title:   "Collect what helps to find out what is wrong with a node",
		about:   "Of the node that answers: version, settings, status, metrics, goroutines, heap, the newest log lines. Without secrets and payloads.",
		answers: []reply{{status: http.StatusOK, media: "application/gzip", about: "A tar.gz."}},
		codes:   []schema.Code{schema.Conflict}, handle: debugNode,
	}, {
		method: http.MethodGet, path: "/v1/cluster/members", id: "list-members", tag: "cluster",
		title: "List the nodes of the cluster", about: "Answered from what this node knows, with or without a leader. By id.",
		answers: ok(typeOf[MemberList](), "Those that are alive, and the servers that should be."), codes: []schema.Code{schema.Conflict}, handle: listMembers,
	}, {
		method: http.MethodPost, path: "/v1/cluster:transfer", id: "transfer-leadership", tag: "cluster", unkeyed: true,
		title: "Hand leadership over", about: "Without node_id, to the first voter that can take it. Refused with conflict if the server that is named does not answer, hears nothing at its raft port or has no vote, or if there is no other.",
		body: typeOf[Transfer](), answers: ok(typeOf[Transferred](), "Who leads now."),
		codes: []schema.Code{schema.NotFound, schema.Conflict}, handle: transferLeadership,
	}, {
		method: http.MethodPost, path: "/v1/cluster:remove", id: "remove-server", tag: "cluster", unkeyed: true,
		title: "Take a server out of the cluster",
		about: "Refused with conflict if it leads, or if fewer than three voters, or too few that are up to elect a leader, would be left and force is not given.",
		body:  typeOf[Removal](), bodyMust: true, answers: ok(typeOf[Nothing](), "It is out."),
		codes: []schema.Code{schema.NotFound, schema.Conflict}, handle: removeServer,
	}}
}

// plainRoutes are outside /v1: for machines that look after this one, and for
// people.
func (h *Handler) plainRoutes() []*route {
	routes := []*route{{
		method: http.MethodGet, path: "/healthz", id: "healthz", tag: "node", anyQuery: true,
		title: "Ask whether the process answers", answers: ok(typeOf[Health](), "It does."), handle: healthz,
	}, {
		method: http.MethodGet, path: "/readyz", id: "readyz", tag: "node", anyQuery: true,
		title: "Ask whether this node can serve", about: "It knows a leader and has caught up.",
		answers: []reply{
			{status: http.StatusOK, body: typeOf[Readiness](), about: "It can."},
			{status: http.StatusServiceUnavailable, body: typeOf[Readiness](), about: "It cannot, and why."},
		},
		handle: readyz,
	}, {
		method: http.MethodGet, path: "/debug/pprof/{profile}", id: "get-profile", tag: "node", waits: true,
		title: "Take a profile of this process",
		about: "For go tool pprof and go tool trace: allocs, block, cpu, goroutine, heap, mutex, threadcreate or trace.",
		query: []param{
			{name: "seconds", about: "Of cpu and trace: how long, 1 to 60; default 10.", typ: "integer"},
			{name: "debug", about: "1 answers as text.", typ: "integer"},
		},
		answers: []reply{
			{status: http.StatusOK, media: "application/octet-stream", about: "The profile."},
		},
		codes: []schema.Code{schema.NotFound}, handle: getProfile,
	}, {
		method: http.MethodGet, path: "/openapi.json", id: "openapi", tag: "node", anyQuery: true,
		title: "Read this document", answers: []reply{{status: http.StatusOK, media: mediaJSON, about: "OpenAPI 3.1."}}, handle: openAPI,
	}, {
		method: http.MethodGet, path: "/docs", id: "docs", tag: "node", anyQuery: true,
		title: "Read this document as a page", answers: []reply{{status: http.StatusOK, media: "text/html", about: "A page."}}, handle: docs,
	}, {
		method: http.MethodGet, path: "/", id: "home", tag: "node", anyQuery: true,
		title: "Find the way", about: "A browser is sent to the documentation.",
		answers: []reply{
			{status: http.StatusOK, body: typeOf[Home](), about: "Where to go."},
			{status: http.StatusFound, about: "To the documentation."},
		},
		handle: home,
	}}
	if h.opt.Metrics != nil {
		routes = append(routes, &route{
			method: http.MethodGet, path: "/metrics", id: "metrics", tag: "node", anyQuery: true,
			title: "Read the metrics of this process", answers: []reply{{status: http.StatusOK, media: "text/plain", about: "Prometheus text format."}},
			handle: metrics,
		})
	}
	return routes
}

func accessRoutes() []*route {
	token, ofToken := typeOf[Token](), "/v1/tokens/{id}"
	return []*route{{
		method: http.MethodPost, path: "/v1/tokens", id: "create-token", tag: "access",
		title: "Make an access token",
		about: "The token itself is in this answer and nowhere else. Under an Idempotency-Key a repeat is answered without it: " +
			"if the first answer was lost, revoke that token and make another. An admin gives rights in its own namespaces.",
		body: typeOf[NewToken](), bodyMust: true,
		answers: []reply{{status: http.StatusCreated, body: token, about: "The new token."}},
		codes:   []schema.Code{schema.NotFound, schema.Conflict, schema.OperationConflict}, handle: createToken,
	}, {
		method: http.MethodGet, path: "/v1/tokens", id: "list-tokens", tag: "access",
		title: "List access tokens", about: "Those that give rights in the caller's namespaces alone. Revoked and ended ones are shown for 30 days.",
		query: params(paging, freshness), answers: ok(typeOf[TokenList](), "A page."), handle: listTokens,
	}, {
		method: http.MethodGet, path: ofToken, id: "get-token", tag: "access",
		title: "Read an access token", query: freshness,
		answers: ok(token, "The token, without its secret."), codes: []schema.Code{schema.NotFound}, handle: getToken,
	}, {
		method: http.MethodPost, path: ofToken + ":revoke", id: "revoke-token", tag: "access",
		title: "Revoke an access token", about: "For ever. Nothing is changed with it any more, and what it holds open ends within seconds.",
		body: typeOf[Nothing](), answers: ok(token, "The token."),
		codes: []schema.Code{schema.NotFound, schema.OperationConflict}, handle: revokeToken,
	}, {
		method: http.MethodGet, path: "/v1/caller", id: "get-caller", tag: "access",
		title:   "See in whose name you ask, and what you may do",
		query:   []param{{name: "namespace", about: "Tells the methods that may be used in it, too.", typ: "string"}},
		answers: ok(typeOf[Caller](), "The caller."), handle: getCaller,
	}, {
		method: http.MethodGet, path: "/v1/audit", id: "list-audit", tag: "access",
		title: "See who changed what, and why",
		about: "Newest first, for 400 days. What concerns only namespaces in which the caller is operator or admin. " +
			"Submissions, and what workers do, are in the histories of their tasks.",
		query: params([]param{
			{name: "namespace", about: "What concerns this one alone.", typ: "string"},
			{name: "principal", about: "Like token/ID or client/NAME.", typ: "string"},
			{name: "action", about: "Like pulse.queue.Pause; pulse.queue. is all that begin so.", typ: "string"},
			{name: "target", typ: "string"},
			{name: "from", about: "At this time or later, RFC 3339 in UTC.", typ: "string"},
			{name: "until", about: "Before this time.", typ: "string"},
		}, paging, freshness),
		answers: ok(typeOf[AuditList](), "A page."), handle: listAudit,
	}, {
		method: http.MethodGet, path: "/v1/audit/refused", id: "list-refused", tag: "access",
		title: "See what this node has refused", about: "Attempts by callers that may not, since the node's start. They are not in the log.",
		answers: ok(typeOf[RefusedList](), "Counts, and the newest attempts."), handle: listRefused,
	}}
}
