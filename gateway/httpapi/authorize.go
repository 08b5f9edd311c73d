package httpapi

// allow refuses what the caller's grants do not contain, by the route's line in
// the table. The namespace and queue are those of the path: what is found there is
// found under their keys.
func (e *exchange) allow() error {
	if refusal := e.route.rule.Allows(e.who.Grants, e.ns, e.queue); refusal != nil {
		return e.refuse(refusal)
	}
	return nil
}
