package session

import (
	"sync"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

// Identity is in whose name a connection speaks, as the listener found out
// before the upgrade.
type Identity struct {
	Principal string        // e.g. anonymous, client/<name>, token/<id>
	Grants    access.Grants // copied into every command, for the record
	AppID     string
	// Token is the id of the access token that was shown; nil without one. The
	// state looks at it again when a command is applied.
	Token []byte
	// Hold keeps an eye on the credential for as long as something of it stays
	// open: ended is closed within seconds after it was revoked or has ended. Nil
	// is a credential that is judged at each request and at no other time.
	Hold func() (ended <-chan struct{}, release func())
}

// Anonymous is whoever connects from the node itself without a token; it may do
// everything.
var Anonymous = Identity{Principal: "anonymous", Grants: access.All}

// MayServe says whether a worker of this identity may take work from a queue:
// nil, or a refusal with code forbidden.
func (id Identity) MayServe(namespace, queue string) *schema.Error {
	return access.Frames["worker.hello"].Allows(id.Grants, namespace, queue)
}

// Watch is Hold for whoever does not want to know whether there is anything to
// hold.
func (id Identity) Watch() (ended <-chan struct{}, release func()) {
	if id.Hold == nil {
		return nil, func() {}
	}
	return id.Hold()
}

// Caller is the identity as commands and queries carry it.
func (id Identity) Caller() *pb.Caller {
	return &pb.Caller{Principal: id.Principal, Roles: id.Grants.Strings(), AppId: id.AppID, TokenId: id.Token}
}

// restricted says that MayServe has to be asked.
func (id Identity) restricted() bool { return !id.Grants.Over(access.Work) }

// worker is the caller of a worker's commands.
func (id Identity) worker(instanceID schema.ID) *pb.Caller {
	c := id.Caller()
	c.Principal = "worker/" + instanceID.String()
	return c
}

// Refusal is an attempt that was refused before the log, because of who made it.
type Refusal struct {
	At        time.Time
	Code      schema.Code // unauthenticated, forbidden, rate_limited
	Principal string      // empty if nobody knows who it was
	Address   string
	Method    string // of the table: an operationId, a type of frame
	Detail    string
}

// Refusals count refused attempts and remember the newest. They are this node's
// alone and in memory: an attempt that is refused must cost the log nothing. Safe
// from any goroutine; a nil one forgets everything.
type Refusals struct {
	mu     sync.Mutex
	counts map[schema.Code]uint64
	newest []Refusal // a ring
	next   int
}

// refusalsKept bounds the remembered attempts.
const refusalsKept = 200

// Note counts an attempt.
func (r *Refusals) Note(n Refusal) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[schema.Code]uint64{}
	}
	r.counts[n.Code]++
	if len(r.newest) < refusalsKept {
		r.newest = append(r.newest, n)
		return
	}
	r.newest[r.next] = n
	r.next = (r.next + 1) % refusalsKept
}

// Count is how many attempts were refused with a code.
func (r *Refusals) Count(code schema.Code) uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[code]
}

// Newest lists the remembered attempts, the newest first.
func (r *Refusals) Newest() []Refusal {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Refusal, 0, len(r.newest))
	for i := range r.newest {
		out = append(out, r.newest[(r.next+len(r.newest)-1-i)%len(r.newest)])
	}
	return out
}
