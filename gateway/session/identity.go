package session

import (
	"slices"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Identity is in whose name a connection speaks, as the listener found out
// before the upgrade. What it allows is decided by MayServe and nowhere else.
type Identity struct {
	Principal  string   // e.g. anonymous, token/<id>
	Roles      []string // copied into every command, for the record
	AppID      string
	Namespaces []string // names it may serve; empty = all
	Queues     []string // names it may serve in them; empty = all
}

// Anonymous is whoever connects from the node itself without a token; it may do
// everything.
var Anonymous = Identity{Principal: "anonymous", Roles: []string{"admin"}}

// MayServe says whether a worker of this identity may take work from a queue:
// nil, or a refusal with code forbidden.
func (id Identity) MayServe(namespace, queue string) *schema.Error {
	if len(id.Namespaces) > 0 && !slices.Contains(id.Namespaces, namespace) ||
		len(id.Queues) > 0 && !slices.Contains(id.Queues, queue) {
		return schema.Errorf(schema.Forbidden, "this identity may not serve the queue")
	}
	return nil
}

// restricted says that MayServe has to be asked.
func (id Identity) restricted() bool { return len(id.Namespaces) > 0 || len(id.Queues) > 0 }

// worker is the caller of a worker's commands.
func (id Identity) worker(instanceID schema.ID) *pb.Caller {
	return &pb.Caller{Principal: "worker/" + instanceID.String(), Roles: id.Roles, AppId: id.AppID}
}
