// Package access says who may do what in Pulse: the roles, what each allows, and
// the one table of every method of every surface with the permission it needs.
//
// A caller has grants: a role in one namespace, or in all of them. A method needs
// one permission; a role that is granted where the method acts has to contain it.
// Whatever no line names is refused: a method without a line serves nobody.
//
// The package decides and knows nothing else: not how a caller is recognised, not
// how it is told. It is a value and may be used from any goroutine.
package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pulse/schema"
)

// Role is what a grant gives.
type Role string

// The roles. Each is for one kind of caller, and none contains another except
// that an admin may do everything in its namespaces.
const (
	Reader    Role = "reader"    // looks at everything, changes nothing
	Submitter Role = "submitter" // an application: submits, follows, cancels and retries tasks
	Operator  Role = "operator"  // a person on call: settles, cancels, retries, pauses, drains
	Worker    Role = "worker"    // takes work, from single queues if they are named
	Admin     Role = "admin"     // everything in its namespaces; in all of them, the cluster too
)

// Roles are all roles, the least powerful first.
var Roles = []Role{Reader, Submitter, Operator, Worker, Admin}

// Everywhere is the namespace of a grant that holds in all of them.
const Everywhere = "*"

// Grant is a role and where it holds.
type Grant struct {
	Role Role
	// Namespace is the name of one, or Everywhere.
	Namespace string
	// Queues are the only ones a worker may serve; empty is all of the namespace.
	Queues []string
}

// String is the grant as it is written and read by ParseGrant: ROLE@NAMESPACE or,
// for a worker, worker@NAMESPACE/QUEUE,QUEUE.
func (g Grant) String() string {
	out := string(g.Role) + "@" + g.Namespace
	if len(g.Queues) > 0 {
		out += "/" + strings.Join(g.Queues, ",")
	}
	return out
}

// ParseGrant reads what String writes. Names are not checked here.
func ParseGrant(text string) (Grant, error) {
	role, where, ok := strings.Cut(text, "@")
	namespace, queues, some := strings.Cut(where, "/")
	switch {
	case !ok || namespace == "":
		return Grant{}, fmt.Errorf("%q is no grant: give ROLE@NAMESPACE, like reader@billing, or ROLE@%s for all namespaces", text, Everywhere)
	case !slices.Contains(Roles, Role(role)):
		return Grant{}, fmt.Errorf("%q is no role: give %s", role, orOf(Roles))
	case some && Role(role) != Worker:
		return Grant{}, fmt.Errorf("%q names queues, which only a worker's grant does", text)
	case some && queues == "":
		return Grant{}, fmt.Errorf("%q names no queue after the slash", text)
	}
	g := Grant{Role: Role(role), Namespace: namespace}
	if some {
		g.Queues = strings.Split(queues, ",")
	}
	return g, nil
}

// Permission is what a method needs.
type Permission string

// The permissions.
const (
	// Open is of what is served to whoever reaches it.
	Open Permission = "open"
	// Node is of what nodes of the cluster ask each other: no role contains it.
	Node Permission = "node"

	Self      Permission = "self"       // who one is
	Look      Permission = "look"       // how the cluster stands
	Read      Permission = "read"       // everything in a namespace, payloads too
	FindQueue Permission = "find-queue" // one queue and its id
	Work      Permission = "work"       // take tasks and finish them
	Submit    Permission = "submit"     // new tasks
	Steer     Permission = "steer"      // cancel, retry, run now
	Settle    Permission = "settle"     // review
	Operate   Permission = "operate"    // pause, resume, drain, free
	Audit     Permission = "audit"      // who changed what
	Configure Permission = "configure"  // make, change and delete queues
	Tokens    Permission = "tokens"     // make and revoke access tokens
	// Command is over the whole cluster: namespaces, servers, backups. Only a grant
	// that holds everywhere gives it.
	Command Permission = "command"
)

// contains is what each role allows. An admin's line is all that is in one.
var contains = map[Role][]Permission{
	Reader:    {Self, Look, Read, FindQueue},
	Submitter: {Self, Look, Read, FindQueue, Submit, Steer},
	Operator:  {Self, Look, Read, FindQueue, Steer, Settle, Operate, Audit},
	Worker:    {Self, FindQueue, Work},
	Admin:     {Self, Look, Read, FindQueue, Work, Submit, Steer, Settle, Operate, Audit, Configure, Tokens, Command},
}

// Contains says whether a role has a permission.
func (r Role) Contains(p Permission) bool { return slices.Contains(contains[r], p) }

// With lists the roles that have a permission.
func With(p Permission) []Role {
	var out []Role
	for _, r := range Roles {
		if r.Contains(p) {
			out = append(out, r)
		}
	}
	return out
}

// Grants is what one caller may do. None is nothing.
type Grants []Grant

// All may do everything everywhere.
var All = Grants{{Role: Admin, Namespace: Everywhere}}

// In says whether the caller has a permission in a namespace. Queue is the one
// that is acted on, or empty if the whole namespace is.
func (g Grants) In(p Permission, namespace, queue string) bool {
	return slices.ContainsFunc(g, func(one Grant) bool {
		return p != Command && one.Role.Contains(p) && (one.Namespace == Everywhere || one.Namespace == namespace && namespace != "") &&
			(len(one.Queues) == 0 || queue != "" && slices.Contains(one.Queues, queue))
	})
}

// Somewhere says whether the caller has a permission in any namespace.
func (g Grants) Somewhere(p Permission) bool {
	return slices.ContainsFunc(g, func(one Grant) bool { return p != Command && one.Role.Contains(p) })
}

// Over says whether the caller has a permission everywhere.
func (g Grants) Over(p Permission) bool {
	return slices.ContainsFunc(g, func(one Grant) bool {
		return one.Namespace == Everywhere && len(one.Queues) == 0 && one.Role.Contains(p)
	})
}

// Sees says whether the caller may know of a namespace: it has some right in it.
func (g Grants) Sees(namespace string) bool {
	return slices.ContainsFunc(g, func(one Grant) bool {
		return one.Namespace == Everywhere || one.Namespace == namespace
	})
}

// Cover says whether who has these grants may give others to somebody: an admin
// may, in its own namespaces.
func (g Grants) Cover(others Grants) bool {
	for _, other := range others {
		if other.Namespace == Everywhere && !g.Over(Tokens) || !g.In(Tokens, other.Namespace, "") {
			return false
		}
	}
	return len(others) > 0 || g.Over(Tokens)
}

// Strings are the grants as text, for the record.
func (g Grants) Strings() []string {
	out := make([]string, 0, len(g))
	for _, one := range g {
		out = append(out, one.String())
	}
	return out
}

// Scope is where a method acts, as far as its path tells.
type Scope uint8

// The scopes.
const (
	// Namespaced acts in the namespace that the request names. What it finds there
	// is found under that namespace's key, so a row of another is no row.
	Namespaced Scope = iota
	// Filtered concerns several namespaces: any grant opens it, and what is answered
	// or done is checked item by item.
	Filtered
	// Clusterwide needs a grant that holds everywhere.
	Clusterwide
)

// Rule is a line of the table.
type Rule struct {
	Permission Permission
	Scope      Scope
}

// Allows decides about one request: nil, or a refusal that says what is missing.
func (r Rule) Allows(g Grants, namespace, queue string) *schema.Error {
	allowed := false
	switch {
	case r.Permission == Open:
		return nil
	case r.Permission == "" || r.Permission == Node:
	case r.Scope == Clusterwide:
		allowed = g.Over(r.Permission)
	case r.Scope == Filtered:
		allowed = g.Somewhere(r.Permission)
	default:
		allowed = g.In(r.Permission, namespace, queue)
	}
	if allowed {
		return nil
	}
	return r.refusal(g, namespace, queue)
}

func (r Rule) refusal(g Grants, namespace, queue string) *schema.Error {
	roles := With(r.Permission)
	if len(roles) == 0 {
		return schema.Errorf(schema.Forbidden, "nobody may do this here")
	}
	where, target := "in all namespaces", Everywhere
	switch {
	case r.Scope == Filtered:
		where, target = "in some namespace", "NAMESPACE"
	case r.Scope == Namespaced:
		where, target = fmt.Sprintf("in namespace %q", namespace), namespace
		if queue != "" && g.anyQueue(r.Permission, namespace) {
			where = fmt.Sprintf("for queue %q of namespace %q", queue, namespace)
			target += "/" + queue
		}
	}
	return schema.Errorf(schema.Forbidden, "this needs the role %s %s, and the caller has %s: an admin makes a token for it, 'pulse token create NAME --grant %s@%s'",
		orOf(roles), where, cmp.Or(strings.Join(g.Strings(), " and "), "none"), roles[0], target)
}

// anyQueue says whether the caller has a permission in a namespace, at least for
// some of its queues.
func (g Grants) anyQueue(p Permission, namespace string) bool {
	return slices.ContainsFunc(g, func(one Grant) bool {
		return one.Role.Contains(p) && (one.Namespace == Everywhere || one.Namespace == namespace)
	})
}

func orOf(roles []Role) string {
	words := make([]string, 0, len(roles))
	for _, r := range roles {
		words = append(words, string(r))
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return words[0]
}
