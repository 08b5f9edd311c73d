package apiv1

import (
	"pulse/schema"
	"pulse/schema/access"
)

const (
	// TokenNameCharsMax bounds the name of an access token.
	TokenNameCharsMax = 128
	// GrantsMax bounds the grants of one token, GrantQueuesMax the queues of one.
	GrantsMax      = 64
	GrantQueuesMax = 64
)

// NewToken is the body of POST /v1/tokens.
type NewToken struct {
	Name      string
	Grants    access.Grants
	ExpiresAt schema.Time // 0 = never
}

// DecodeToken reads {name, grants: [{role, namespace, queues?}], expires_at?}.
func DecodeToken(body []byte) (NewToken, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return NewToken{}, refusal
	}
	var t NewToken
	start := r.at
	if !r.enter() {
		return t, r.refusal()
	}
	named, granted := false, false
	for r.member() {
		switch string(r.name) {
		case "name":
			named = true
			text, at, ok := r.text(TokenNameCharsMax)
			t.Name = string(text)
			if ok && blank(t.Name) {
				r.fault(at, "must say what the token is for")
			}
		case "grants":
			granted = true
			r.grants(&t.Grants)
		case "expires_at":
			r.time(&t.ExpiresAt)
		default:
			r.unknown()
		}
	}
	if !named {
		r.missing(start, "name")
	}
	if !granted {
		r.missing(start, "grants")
	}
	return t, r.refusal()
}

func (r *reader) grants(dst *access.Grants) {
	start := r.at
	if !r.enterArray() {
		return
	}
	for r.element() {
		if len(*dst) == GrantsMax {
			r.fault(start, "must have at most %d grants", GrantsMax)
			r.rest()
			return
		}
		*dst = append(*dst, r.grant())
	}
	if len(*dst) == 0 {
		r.fault(start, "must grant something")
	}
}

func (r *reader) grant() (g access.Grant) {
	start := r.at
	if !r.enter() {
		return g
	}
	queuesAt := -1
	role, namespace := false, false
	for r.member() {
		switch string(r.name) {
		case "role":
			role = true
			var role string
			r.word(&role, roleWords...)
			g.Role = access.Role(role)
		case "namespace":
			namespace = true
			text, at, ok := r.text(NameCharsMax)
			if ok && string(text) != access.Everywhere && !ValidName(string(text)) {
				r.fault(at, "%s; or * for all namespaces", nameRule)
			}
			g.Namespace = string(text)
		case "queues":
			queuesAt = r.at
			r.queueNames(&g.Queues)
		default:
			r.unknown()
		}
	}
	if !role {
		r.missing(start, "role")
	}
	if !namespace {
		r.missing(start, "namespace")
	}
	if queuesAt >= 0 && g.Role != "" && g.Role != access.Worker {
		r.fault(queuesAt, "is for the role worker alone")
	}
	return g
}

var roleWords = func() (out []string) {
	for _, role := range access.Roles {
		out = append(out, string(role))
	}
	return out
}()

func (r *reader) queueNames(dst *[]string) {
	start := r.at
	if !r.enterArray() {
		return
	}
	for r.element() {
		if len(*dst) == GrantQueuesMax {
			r.fault(start, "must have at most %d queues", GrantQueuesMax)
			r.rest()
			return
		}
		text, at, ok := r.text(NameCharsMax)
		if ok && !ValidName(string(text)) {
			r.fault(at, nameRule)
		}
		*dst = append(*dst, string(text))
	}
}

// Content is what two requests for a token have in common if they are equal.
func (t *NewToken) Content() Content {
	c := begin("pulse.token.create")
	c.text("name", t.Name)
	for _, g := range t.Grants {
		c.text("grant", g.String())
	}
	if t.ExpiresAt != 0 {
		c.number("expires_at", int64(t.ExpiresAt))
	}
	return c.sum()
}

// Quota is the quota of a namespace; 0 is no bound.
type Quota struct {
	TasksWaiting, PayloadBytes, Workers int64
}

// quotaMax bounds the numbers of a quota.
const quotaMax = 1<<53 - 1

// DecodeNamespace reads {quota?: {tasks_waiting?, payload_bytes?, workers?}}; an
// empty body is {}. A quota is replaced as a whole, so what it leaves out has no
// bound; without one it stays as it is.
func DecodeNamespace(body []byte) (*Quota, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return nil, refusal
	}
	var quota *Quota
	if r.enter() {
		for r.member() {
			if string(r.name) != "quota" {
				r.unknown()
				continue
			}
			quota = &Quota{}
			r.quota(quota)
		}
	}
	return quota, r.refusal()
}

func (r *reader) quota(q *Quota) {
	if !r.enter() {
		return
	}
	for r.member() {
		switch string(r.name) {
		case "tasks_waiting":
			r.count(&q.TasksWaiting, 0, quotaMax)
		case "payload_bytes":
			r.count(&q.PayloadBytes, 0, quotaMax)
		case "workers":
			r.count(&q.Workers, 0, quotaMax)
		default:
			r.unknown()
		}
	}
}

// NamespaceContent is what two PUTs of a namespace have in common if they are equal.
func NamespaceContent(name string, q *Quota) Content {
	c := begin("pulse.namespace.put")
	c.text("target", name)
	if q != nil {
		c.number("tasks_waiting", q.TasksWaiting)
		c.number("payload_bytes", q.PayloadBytes)
		c.number("workers", q.Workers)
	}
	return c.sum()
}
