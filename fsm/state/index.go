package state

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	pb "pulse/proto/pulse/v1"
)

// What the hot path needs is in memory, in ordered structures that are a pure
// function of the rows: putting a row takes its old version out of them and
// its new one in. Nothing here is ever written anywhere.

// Waiter is a ready task in an ordered list.
type Waiter struct {
	AvailableAt int64
	ID          ID
}

func waiterLess(a, b Waiter) bool {
	if a.AvailableAt != b.AvailableAt {
		return a.AvailableAt < b.AvailableAt
	}
	return bytes.Compare(a.ID[:], b.ID[:]) < 0
}

// priorities is the number of base priorities, 0..9.
const priorities = 10

// lists holds ready tasks, one ordered list for each base priority.
type lists struct {
	of [priorities]*waiters
	n  int
}

func (l *lists) add(priority uint32, w Waiter) {
	if l.of[priority] == nil {
		l.of[priority] = &waiters{}
	}
	l.of[priority].Add(w)
	l.n++
}

func (l *lists) remove(priority uint32, w Waiter) {
	if l.of[priority] == nil || !l.of[priority].Delete(w) {
		panic("state: a ready task is missing from its list")
	}
	l.n--
	if l.of[priority].Len() == 0 {
		l.of[priority] = nil
	}
}

func (l *lists) min(priority uint32) (Waiter, bool) {
	if l.of[priority] == nil {
		return Waiter{}, false
	}
	return l.of[priority].Min()
}

// Candidate is the best task of a queue that some session can take now.
type Candidate struct {
	Waiter   Waiter
	Priority uint32 // effective
	queue    *Queue
	class    *class
	keyed    bool
}

// Better says whether c goes before d: effective priority (9 first), then
// available_at, then id.
func (c Candidate) Better(d Candidate) bool {
	if c.Priority != d.Priority {
		return c.Priority > d.Priority
	}
	return waiterLess(c.Waiter, d.Waiter)
}

// effective is the priority after ageing. stepMs 0 means no ageing.
func effective(priority uint32, availableAt, now, stepMs int64) uint32 {
	if stepMs <= 0 || now <= availableAt {
		return priority
	}
	steps := (now - availableAt) / (stepMs * 1000)
	if steps >= priorities {
		return priorities - 1
	}
	return min(priorities-1, priority+uint32(steps))
}

// best compares the heads of the lists.
func (l *lists) best(now, ageingMs int64) (Candidate, bool) {
	var best Candidate
	found := false
	for p := priorities - 1; p >= 0; p-- {
		w, ok := l.min(uint32(p))
		if !ok {
			continue
		}
		c := Candidate{Waiter: w, Priority: effective(uint32(p), w.AvailableAt, now, ageingMs)}
		if !found || c.Better(best) {
			best, found = c, true
		}
		if ageingMs <= 0 {
			break
		}
	}
	return best, found
}

// capKey is a capability as a map key.
type capKey struct{ handler, version, payload string }

func capOf(c *pb.Capability) capKey {
	return capKey{c.Handler, c.HandlerVersion, c.PayloadVersion}
}

func taskCap(t *pb.TaskRow) capKey {
	return capKey{t.Handler, t.HandlerVersion, t.PayloadVersion}
}

func capCompare(a, b capKey) int {
	return cmp.Or(cmp.Compare(a.handler, b.handler), cmp.Compare(a.version, b.version),
		cmp.Compare(a.payload, b.payload))
}

// class is one capability of one queue: the ready tasks that ask for it and
// the sessions that offer it.
type class struct {
	cap     capKey
	plain   lists                      // tasks without a key
	keyed   lists                      // for each free key, the first waiters of this class
	any     *btree.BTreeG[sessionItem] // eligible sessions without concurrency_keys
	keys    *btree.BTreeG[sessionItem] // eligible sessions with them
	capable int                        // connected sessions that do not drain
	// capableKeys counts those of them that declared concurrency_keys.
	capableKeys int
	groups      int // waiter groups of keys that point here
	waiting     int // ready tasks of those groups, behind held keys too
}

func (c *class) unused() bool {
	return c.plain.n == 0 && c.keyed.n == 0 && c.capable == 0 && c.groups == 0
}

// sessionItem is an eligible session in the order of choice: lowest load, then
// least recently assigned, then id.
type sessionItem struct {
	active, capacity uint32
	index            uint64
	place            uint32
	instance         *Instance
}

func sessionLess(a, b sessionItem) bool {
	// active/capacity compared by cross-multiplication: no floats in here.
	if l, r := uint64(a.active)*uint64(b.capacity), uint64(b.active)*uint64(a.capacity); l != r {
		return l < r
	}
	if a.index != b.index {
		return a.index < b.index
	}
	if a.place != b.place {
		return a.place < b.place
	}
	return bytes.Compare(a.instance.Row.SessionId, b.instance.Row.SessionId) < 0
}

func itemOf(i *Instance) sessionItem {
	r := i.Row
	return sessionItem{r.Active, r.Capacity, r.AssignedIndex, r.AssignedPlace, i}
}

// Queue is a queue and what is going on in it.
type Queue struct {
	Row         *pb.QueueRow
	Waiting     uint64
	Active      uint64
	NeedsReview uint64
	Delayed     uint64 // of Waiting, those parked by their submission
	Backoff     uint64 // of Waiting, those parked until a retry
	Instances   int
	classes     map[capKey]*class
	order       []*class // by capability
}

func newQueue(row *pb.QueueRow) *Queue {
	return &Queue{Row: row, classes: map[capKey]*class{}}
}

// ID is the queue's id.
func (q *Queue) ID() ID { return ID(q.Row.Id) }

func (q *Queue) class(k capKey) *class {
	c := q.classes[k]
	if c == nil {
		opt := btree.Options{NoLocks: true}
		c = &class{
			cap:  k,
			any:  btree.NewBTreeGOptions(sessionLess, opt),
			keys: btree.NewBTreeGOptions(sessionLess, opt),
		}
		q.classes[k] = c
		at, _ := slices.BinarySearchFunc(q.order, k, func(c *class, k capKey) int { return capCompare(c.cap, k) })
		q.order = slices.Insert(q.order, at, c)
	}
	return c
}

func (q *Queue) drop(c *class) {
	if !c.unused() {
		return
	}
	delete(q.classes, c.cap)
	at, _ := slices.BinarySearchFunc(q.order, c.cap, func(c *class, k capKey) int { return capCompare(c.cap, k) })
	q.order = slices.Delete(q.order, at, at+1)
}

// Best is the task of this queue that goes next, among those that some session
// can take now. A task behind a held key or without a capable session is in no
// list that this looks at.
func (q *Queue) Best(now int64) (Candidate, bool) {
	if q.Row.Paused || q.limited() {
		return Candidate{}, false
	}
	var best Candidate
	found := false
	ageing := q.Row.Settings.AgeingMs
	consider := func(l *lists, c *class, keyed bool) {
		cand, ok := l.best(now, ageing)
		if ok && (!found || cand.Better(best)) {
			cand.queue, cand.class, cand.keyed = q, c, keyed
			best, found = cand, true
		}
	}
	for _, c := range q.order {
		if c.any.Len()+c.keys.Len() > 0 {
			consider(&c.plain, c, false)
		}
		if c.keys.Len() > 0 {
			consider(&c.keyed, c, true)
		}
	}
	return best, found
}

func (q *Queue) limited() bool {
	limit := uint64(q.Row.Settings.MaxActive)
	return limit != 0 && q.Active >= limit
}

// Session is the session that takes the candidate.
func (c Candidate) Session() *Instance {
	k, okKeys := c.class.keys.Min()
	if c.keyed {
		if !okKeys {
			panic("state: a candidate without a session")
		}
		return k.instance
	}
	a, okAny := c.class.any.Min()
	switch {
	case okAny && (!okKeys || sessionLess(a, k)):
		return a.instance
	case okKeys:
		return k.instance
	}
	panic("state: a candidate without a session")
}

// instanceKey names an instance: identities are unique in a namespace.
type instanceKey struct{ ns, id ID }

func instanceKeyLess(a, b instanceKey) bool {
	if c := bytes.Compare(a.ns[:], b.ns[:]); c != 0 {
		return c < 0
	}
	return bytes.Compare(a.id[:], b.id[:]) < 0
}

// Instance is a worker process, its row and its live attempts.
type Instance struct {
	Row      *pb.InstanceRow
	Attempts []ID // live, rising
}

func (i *Instance) key() instanceKey { return instanceKey{ID(i.Row.NamespaceId), ID(i.Row.Id)} }

func (i *Instance) addAttempt(id ID) {
	at, found := slices.BinarySearchFunc(i.Attempts, id, idCompare)
	if !found {
		i.Attempts = slices.Insert(i.Attempts, at, id)
	}
}

func (i *Instance) dropAttempt(id ID) {
	if at, found := slices.BinarySearchFunc(i.Attempts, id, idCompare); found {
		i.Attempts = slices.Delete(i.Attempts, at, at+1)
	}
}

func idCompare(a, b ID) int { return bytes.Compare(a[:], b[:]) }

func idLess(a, b ID) bool { return idCompare(a, b) < 0 }

// capable: connected and taking work; draining is not capable, capacity 0 is
// capable but busy.
func capable(r *pb.InstanceRow) bool { return r.Connected && !r.Draining }

// eligible: can be given a task right now. A session that let an offer lapse and
// was not heard of since is tried with one at a time.
func eligible(r *pb.InstanceRow) bool {
	return capable(r) && r.HoldUntilUs == 0 && r.Active < r.Capacity && !(r.Hold && r.Active > 0)
}

// keyName names a concurrency key.
type keyName struct {
	ns  ID
	key string
}

// Key is a concurrency key that is held or waited for.
type Key struct {
	Row     *pb.KeyRow // nil: free
	Waiters int
	groups  []*keyGroup // by queue, then capability
}

// keyGroup holds the waiters of one key that ask for one class.
type keyGroup struct {
	queue *Queue
	class *class
	lists lists
}

func (k *Key) group(q *Queue, c *class) *keyGroup {
	at, found := slices.BinarySearchFunc(k.groups, q, func(g *keyGroup, q *Queue) int {
		return cmp.Or(bytes.Compare(g.queue.Row.Id, q.Row.Id), capCompare(g.class.cap, c.cap))
	})
	if found {
		return k.groups[at]
	}
	g := &keyGroup{queue: q, class: c}
	k.groups = slices.Insert(k.groups, at, g)
	c.groups++
	return g
}

func (k *Key) dropGroup(g *keyGroup) {
	k.groups = slices.DeleteFunc(k.groups, func(x *keyGroup) bool { return x == g })
	g.class.groups--
}

// Attempt is a live attempt.
type Attempt struct {
	Row *pb.AttemptRow
}

// Namespace is a namespace and the tasks of it that a person asks for most.
type Namespace struct {
	Row    *pb.NamespaceRow
	active *btree.BTreeG[ID] // LEASED and RUNNING tasks
	review *btree.BTreeG[ID] // NEEDS_REVIEW tasks

	// What its quota bounds.
	waiting, payloadBytes, workers uint64
}

func newNamespace(row *pb.NamespaceRow) *Namespace {
	opt := btree.Options{NoLocks: true}
	return &Namespace{
		Row:    row,
		active: btree.NewBTreeGOptions(idLess, opt),
		review: btree.NewBTreeGOptions(idLess, opt),
	}
}

// gateway is a gateway process and the sessions it holds.
type gateway struct {
	row      *pb.GatewayRow // nil: not known (yet), but sessions name it
	sessions *btree.BTreeG[instanceKey]
}

// addReady puts a ready task where matching finds it.
func (s *State) addReady(t *pb.TaskRow) {
	q := s.queues[ID(t.QueueId)]
	c := q.class(taskCap(t))
	w := Waiter{t.AvailableAtUs, ID(t.Id)}
	s.touch(q)
	if t.ConcurrencyKey == "" {
		c.plain.add(t.Priority, w)
		return
	}
	name := keyName{ID(t.NamespaceId), t.ConcurrencyKey}
	k := s.keys[name]
	if k == nil {
		k = &Key{}
		s.keys[name] = k
	}
	g := k.group(q, c)
	head, had := g.lists.min(t.Priority)
	g.lists.add(t.Priority, w)
	k.Waiters++
	c.waiting++
	if k.Row != nil || (had && waiterLess(head, w)) {
		return
	}
	if had {
		c.keyed.remove(t.Priority, head)
	}
	c.keyed.add(t.Priority, w)
}

// removeReady is the reverse of addReady.
func (s *State) removeReady(t *pb.TaskRow) {
	q := s.queues[ID(t.QueueId)]
	c := q.class(taskCap(t))
	w := Waiter{t.AvailableAtUs, ID(t.Id)}
	defer func() { q.drop(c) }()
	if t.ConcurrencyKey == "" {
		c.plain.remove(t.Priority, w)
		return
	}
	name := keyName{ID(t.NamespaceId), t.ConcurrencyKey}
	k := s.keys[name]
	g := k.group(q, c)
	head, _ := g.lists.min(t.Priority)
	g.lists.remove(t.Priority, w)
	k.Waiters--
	c.waiting--
	if k.Row == nil && head == w {
		c.keyed.remove(t.Priority, w)
		if next, ok := g.lists.min(t.Priority); ok {
			c.keyed.add(t.Priority, next)
		}
	}
	if g.lists.n == 0 {
		k.dropGroup(g)
	}
	s.dropKey(name, k)
}

func (s *State) dropKey(name keyName, k *Key) {
	if k.Row == nil && k.Waiters == 0 {
		delete(s.keys, name)
	}
}

// setKey records a key's holder, or with nil that it is free. Its first
// waiters leave the lists that matching looks at, or come back to them.
func (s *State) setKey(name keyName, row *pb.KeyRow) {
	k := s.keys[name]
	if k == nil {
		k = &Key{}
		s.keys[name] = k
	}
	was, is := k.Row != nil, row != nil
	k.Row = row
	if is {
		s.held[name] = k
	} else {
		delete(s.held, name)
	}
	if was != is {
		for _, g := range k.groups {
			for p := range uint32(priorities) {
				head, ok := g.lists.min(p)
				switch {
				case !ok:
				case is:
					g.class.keyed.remove(p, head)
				default:
					g.class.keyed.add(p, head)
				}
			}
			if !is {
				s.touch(g.queue)
			}
		}
	}
	s.dropKey(name, k)
}

// indexInstance puts a session where matching finds it. The instance's row
// must be the new one.
func (s *State) indexInstance(i *Instance) {
	q := s.queues[ID(i.Row.QueueId)]
	q.Instances++
	can, free := capable(i.Row), eligible(i.Row)
	if can {
		item := itemOf(i)
		for _, capability := range i.Row.Capabilities {
			c := q.class(capOf(capability))
			c.capable++
			if i.Row.ConcurrencyKeys {
				c.capableKeys++
			}
			switch {
			case !free:
			case i.Row.ConcurrencyKeys:
				c.keys.Set(item)
			default:
				c.any.Set(item)
			}
		}
		if free {
			s.touch(q)
		}
	}
	if i.Row.SessionId != nil && i.Row.EndedAtUs == 0 {
		s.sessions[ID(i.Row.SessionId)] = i
	}
	if i.Row.Connected {
		s.namespaces[ID(i.Row.NamespaceId)].workers++
		s.gateway(i.Row.GatewayId).sessions.Set(i.key())
	}
	s.setTimer(instanceTimer(i.Row))
}

// unindexInstance is the reverse; dropClasses has to follow.
func (s *State) unindexInstance(i *Instance) {
	q := s.queues[ID(i.Row.QueueId)]
	q.Instances--
	if capable(i.Row) {
		item := itemOf(i)
		for _, capability := range i.Row.Capabilities {
			c := q.class(capOf(capability))
			c.capable--
			if i.Row.ConcurrencyKeys {
				c.capableKeys--
			}
			c.keys.Delete(item)
			c.any.Delete(item)
		}
	}
	delete(s.sessions, ID(i.Row.SessionId))
	if i.Row.Connected {
		s.namespaces[ID(i.Row.NamespaceId)].workers--
		g := s.gateway(i.Row.GatewayId)
		g.sessions.Delete(i.key())
		s.dropGateway(i.Row.GatewayId, g)
	}
	s.clearTimer(instanceTimer(i.Row))
}

// dropClasses lets the classes go that nothing but this row used.
func (s *State) dropClasses(i *pb.InstanceRow) {
	q := s.queues[ID(i.QueueId)]
	for _, capability := range i.Capabilities {
		if c := q.classes[capOf(capability)]; c != nil {
			q.drop(c)
		}
	}
}

func (s *State) gateway(id string) *gateway {
	g := s.gateways[id]
	if g == nil {
		g = &gateway{sessions: btree.NewBTreeGOptions(instanceKeyLess, btree.Options{NoLocks: true})}
		s.gateways[id] = g
	}
	return g
}

func (s *State) dropGateway(id string, g *gateway) {
	if g.row == nil && g.sessions.Len() == 0 {
		delete(s.gateways, id)
	}
}

// indexTask adds what a task row means for the structures in memory. Of one that is
// not active it may have no more than taskOutline reads, and keeps none of it.
func (s *State) indexTask(t *pb.TaskRow) {
	s.schedules.indexRun(t)
	q, n := s.queues[ID(t.QueueId)], s.namespaces[ID(t.NamespaceId)]
	if !Terminal(t.State) {
		n.payloadBytes += uint64(t.PayloadBytes)
	}
	switch t.State {
	case pb.TaskState_TASK_STATE_WAITING:
		q.Waiting++
		n.waiting++
		switch t.Park {
		case pb.Park_PARK_DELAYED:
			q.Delayed++
		case pb.Park_PARK_BACKOFF:
			q.Backoff++
		default:
			s.addReady(t)
		}
	case pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING:
		q.Active++
		n.active.Set(ID(t.Id))
		s.tasks[ID(t.Id)] = t
	case pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		q.NeedsReview++
		n.review.Set(ID(t.Id))
	default: // of what is over nothing is kept in memory
	}
}

func (s *State) unindexTask(t *pb.TaskRow) {
	s.schedules.unindexRun(t)
	q, n := s.queues[ID(t.QueueId)], s.namespaces[ID(t.NamespaceId)]
	if !Terminal(t.State) {
		n.payloadBytes -= uint64(t.PayloadBytes)
	}
	switch t.State {
	case pb.TaskState_TASK_STATE_WAITING:
		q.Waiting--
		n.waiting--
		delete(s.ready, ID(t.Id))
		switch t.Park {
		case pb.Park_PARK_DELAYED:
			q.Delayed--
		case pb.Park_PARK_BACKOFF:
			q.Backoff--
		default:
			s.removeReady(t)
		}
	case pb.TaskState_TASK_STATE_LEASED, pb.TaskState_TASK_STATE_RUNNING:
		q.Active--
		n.active.Delete(ID(t.Id))
		delete(s.tasks, ID(t.Id))
		s.touch(q) // max_active has room again
	case pb.TaskState_TASK_STATE_NEEDS_REVIEW:
		q.NeedsReview--
		n.review.Delete(ID(t.Id))
	default: // of what is over nothing is kept in memory
	}
}
