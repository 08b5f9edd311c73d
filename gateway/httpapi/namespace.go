package httpapi

import (
	"net/http"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/apiv1"
)

// putNamespace is PUT /v1/namespaces/{ns}. A namespace has nothing to be
// replaced, so a repeat changes nothing and needs no key to be one.
func putNamespace(e *exchange) error {
	return e.changeNamespace("pulse.namespace.put", func(c *pb.Command) {
		c.Body = &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Name: e.ns}}
	})
}

// deleteNamespace is DELETE /v1/namespaces/{ns}. It answers with the namespace
// as it was last.
func deleteNamespace(e *exchange) error {
	return e.changeNamespace("pulse.namespace.delete", func(c *pb.Command) {
		c.Body = &pb.Command_DeleteNamespace{DeleteNamespace: &pb.DeleteNamespace{Name: e.ns}}
	})
}

func (e *exchange) changeNamespace(operation string, fill func(*pb.Command)) error {
	if err := e.noBody(); err != nil {
		return err
	}
	c := e.command(newIDs(1), apiv1.TargetContent(operation, e.ns, 0))
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
	buf := getBuffer()
	defer putBuffer(buf)
	w := writer{buf: buf.b}
	w.open()
	w.name("namespaces")
	w.openArray()
	for _, n := range answer.GetNamespaces().GetNamespaces() {
		if e.sees(n.GetName()) {
			w.namespace(n)
		}
	}
	w.closeArray()
	w.close()
	buf.b = w.buf
	return e.answer(http.StatusOK, w.buf)
}
