package httpapi

import (
	"slices"

	"pulse/schema"
)

// Verb is what a route does, as roles allow it. Nothing is allowed that no role
// names.
type Verb string

// The verbs. A caller may do what its roles name; admin names everything.
const (
	VerbRead   Verb = "read"
	VerbSubmit Verb = "submit" // tasks, manual retries too
	VerbCancel Verb = "cancel"
	VerbReview Verb = "review"
	VerbAdmin  Verb = "admin" // queues, namespaces, workers, keys, the cluster
)

// allow refuses what the caller's roles do not name, and what is not in the
// caller's namespaces and queues.
func (e *exchange) allow(verb Verb) error {
	if !slices.Contains(e.who.Roles, string(verb)) && !slices.Contains(e.who.Roles, string(VerbAdmin)) {
		return schema.Errorf(schema.Forbidden, "this needs the role %s", verb)
	}
	if len(e.who.Namespaces) > 0 && !e.route.anyNamespace && !slices.Contains(e.who.Namespaces, e.ns) {
		return schema.Errorf(schema.Forbidden, "the caller has no right in this namespace")
	}
	if len(e.who.Queues) > 0 && !slices.Contains(e.who.Queues, e.queue) {
		return schema.Errorf(schema.Forbidden, "the caller has a right in single queues only")
	}
	return nil
}

// sees says whether the caller may know of a namespace.
func (e *exchange) sees(namespace string) bool {
	return len(e.who.Namespaces) == 0 || slices.Contains(e.who.Namespaces, namespace)
}
