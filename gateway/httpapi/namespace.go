package httpapi

import (
	"net/http"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/apiv1"
)

// putNamespace is PUT /v1/namespaces/{ns}. A quota is replaced as a whole; without
// one a repeat changes nothing and needs no key to be one.
func putNamespace(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	quota, refusal := apiv1.DecodeNamespace(body)
	if refusal != nil {
		return refusal
	}
	put := &pb.PutNamespace{Name: e.ns}
	if quota != nil {
		put.Quota = &pb.NamespaceQuota{TasksWaiting: uint64(quota.TasksWaiting), PayloadBytes: uint64(quota.PayloadBytes), Workers: uint64(quota.Workers)}
	}
	return e.changeNamespace(apiv1.NamespaceContent(e.ns, quota), func(c *pb.Command) {
		c.Body = &pb.Command_PutNamespace{PutNamespace: put}
	})
}

// deleteNamespace is DELETE /v1/namespaces/{ns}. It answers with the namespace
// as it was last.
func deleteNamespace(e *exchange) error {
	if err := e.noBody(); err != nil {
		return err
	}
	return e.changeNamespace(apiv1.TargetContent("pulse.namespace.delete", e.ns, 0), func(c *pb.Command) {
		c.Body = &pb.Command_DeleteNamespace{DeleteNamespace: &pb.DeleteNamespace{Name: e.ns}}
	})
}

func (e *exchange) changeNamespace(content apiv1.Content, fill func(*pb.Command)) error {
	c := e.command(newIDs(1), content)
	c.Namespace = "" // the command is about it, not in it
	fill(c)
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerNamespace(result.GetNamespace())
}

func (e *exchange) answerNamespace(n *pb.NamespaceRow) error {
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.namespace(n)
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}

func (w *writer) namespace(n *pb.NamespaceRow) {
	w.next()
	w.open()
	w.id("id", n.GetId())
	w.text("name", n.GetName())
	w.uint64("revision", n.GetRevision())
	w.integer("queues", int64(n.GetQueues()))
	w.time("created_at", n.GetCreatedAtUs())
	w.time("updated_at", n.GetUpdatedAtUs())
	w.name("quota")
	w.bounds(n.GetQuota().GetTasksWaiting(), n.GetQuota().GetPayloadBytes(), n.GetQuota().GetWorkers())
	w.name("usage")
	w.bounds(n.GetUsage().GetTasksWaiting(), n.GetUsage().GetPayloadBytes(), n.GetUsage().GetWorkers())
	w.close()
}

func (w *writer) bounds(tasksWaiting, payloadBytes, workers uint64) {
	w.open()
	w.uint64("tasks_waiting", tasksWaiting)
	w.uint64("payload_bytes", payloadBytes)
	w.uint64("workers", workers)
	w.close()
}

// getNamespace is GET /v1/namespaces/{ns}.
func getNamespace(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_ReadNamespace{ReadNamespace: &pb.GetNamespace{Name: e.ns}}})
	if err != nil {
		return err
	}
	return e.answerNamespace(answer.GetNamespace())
}

// listNamespaces is GET /v1/namespaces: all that the caller may see.
func listNamespaces(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListNamespaces{ListNamespaces: &pb.ListNamespaces{}}})
	if err != nil {
		return err
	}
	var seen []*pb.NamespaceRow
	for _, n := range answer.GetNamespaces().GetNamespaces() {
		if e.who.Grants.Sees(n.GetName()) {
			seen = append(seen, n)
		}
	}
	return answerList(e, "namespaces", seen, (*writer).namespace, place{})
}
