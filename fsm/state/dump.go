package state

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tidwall/btree"
)

// DumpIndexes writes every structure in memory in one canonical form, so that
// a rebuilt state can be held against a live one.
func (s *State) DumpIndexes() string {
	var b strings.Builder
	for _, n := range s.Namespaces() {
		fmt.Fprintf(&b, "namespace %s active %x review %x holds %d waiting %d bytes %d workers\n", n.Row.Name, n.active.Items(), n.review.Items(),
			n.waiting, n.payloadBytes, n.workers)
	}
	queues := make([]*Queue, 0, len(s.queues))
	for _, q := range s.queues { // order-free: sorted below
		queues = append(queues, q)
	}
	slices.SortFunc(queues, func(a, b *Queue) int { return idCompare(a.ID(), b.ID()) })
	for _, q := range queues {
		fmt.Fprintf(&b, "queue %x waiting %d delayed %d backoff %d active %d review %d instances %d\n",
			q.Row.Id, q.Waiting, q.Delayed, q.Backoff, q.Active, q.NeedsReview, q.Instances)
		for _, c := range q.order {
			fmt.Fprintf(&b, " class %v capable %d/%d groups %d with %d\n", c.cap, c.capable, c.capableKeys, c.groups, c.waiting)
			dumpLists(&b, "  plain", &c.plain)
			dumpLists(&b, "  keyed", &c.keyed)
			dumpSessions(&b, "  any", c.any)
			dumpSessions(&b, "  keys", c.keys)
		}
	}
	var keys []string
	for name, k := range s.keys { // order-free: sorted below
		var kb strings.Builder
		holder := []byte(nil)
		if k.Row != nil {
			holder = k.Row.TaskId
		}
		fmt.Fprintf(&kb, "key %x %q holder %x held %t waiters %d\n", name.ns, name.key, holder, s.held[name] == k, k.Waiters)
		for _, g := range k.groups {
			fmt.Fprintf(&kb, " group %x %v\n", g.queue.Row.Id, g.class.cap)
			dumpLists(&kb, "  ", &g.lists)
		}
		keys = append(keys, kb.String())
	}
	slices.Sort(keys)
	b.WriteString(strings.Join(keys, ""))
	var instances []string
	for k, i := range s.instances { // order-free: sorted below
		instances = append(instances, fmt.Sprintf("instance %x/%x attempts %x current %t\n", k.ns, k.id, i.Attempts,
			s.sessions[ID(i.Row.SessionId)] == i))
	}
	slices.Sort(instances)
	b.WriteString(strings.Join(instances, ""))
	var gateways []string
	for id, g := range s.gateways { // order-free: sorted below
		gateways = append(gateways, fmt.Sprintf("gateway %q row %t sessions %x\n", id, g.row != nil, g.sessions.Items()))
	}
	slices.Sort(gateways)
	b.WriteString(strings.Join(gateways, ""))
	for _, t := range s.Tokens(ID{}) {
		fmt.Fprintf(&b, "token %x expires %d revoked %d used %d\n", t.Id, t.ExpiresAtUs, t.RevokedAtUs, t.UsedAtUs)
	}
	for _, a := range s.LiveAttempts() {
		fmt.Fprintf(&b, "attempt %x %s until %d receipts", a.Row.Id, a.Row.State, a.Row.LeaseUntilUs)
		for _, r := range a.Row.Receipts {
			fmt.Fprintf(&b, " %x", r.MessageId)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "tasks %d\n", len(s.tasks))
	for _, c := range s.AllSchedules() {
		fmt.Fprintf(&b, "schedule %x/%x named %t next %d\n", c.Row.NamespaceId, c.Row.Id,
			s.ScheduleByName(ID(c.Row.NamespaceId), c.Row.Name) == c, c.Row.NextUs)
	}
	var open []string
	for id, n := range s.schedules.open { // order-free: sorted below
		open = append(open, fmt.Sprintf("open runs of %x: %d\n", id, n))
	}
	slices.Sort(open)
	b.WriteString(strings.Join(open, ""))
	for _, z := range s.Zones() {
		fmt.Fprintf(&b, "zone %s %s\n", z.Name, z.Release)
	}
	// Both a live and a rebuilt window reach at least this far.
	limit := s.meta.ClockUs + timerAheadUs
	s.timers.near.Scan(func(t Timer) bool {
		if !t.Kind.stored() || t.Due < limit {
			fmt.Fprintf(&b, "timer %d %d %x %x %q\n", t.Due, t.Kind, t.ID, t.NS, t.Text)
		}
		return true
	})
	return b.String()
}

func dumpLists(b *strings.Builder, name string, l *lists) {
	for p, list := range l.of {
		if list != nil {
			fmt.Fprintf(b, "%s %d:", name, p)
			list.Scan(func(w Waiter) bool {
				fmt.Fprintf(b, " %d/%x", w.AvailableAt, w.ID)
				return true
			})
			b.WriteByte('\n')
		}
	}
}

func dumpSessions(b *strings.Builder, name string, tree *btree.BTreeG[sessionItem]) {
	tree.Scan(func(i sessionItem) bool {
		fmt.Fprintf(b, "%s %x %d/%d %d.%d\n", name, i.instance.Row.SessionId, i.active, i.capacity, i.index, i.place)
		return true
	})
}

// Rows calls fn for every row in key order, until it returns false. Key and
// value are only good inside the call.
func (s *State) Rows(fn func(key, value []byte) bool) error { return s.RowsFrom(nil, fn) }

// RowsFrom does the same, beginning at a key.
func (s *State) RowsFrom(from []byte, fn func(key, value []byte) bool) error {
	iter, err := s.NewIter(&pebble.IterOptions{LowerBound: from})
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	for iter.First(); iter.Valid() && fn(iter.Key(), iter.Value()); iter.Next() {
	}
	if err := iter.Close(); err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	return nil
}

// ScanHash is SHA-256 over all rows in key order: what two replicas with the
// same log share beside the running hash.
func (s *State) ScanHash() ([32]byte, error) {
	h := sha256.New()
	err := s.Rows(func(key, value []byte) bool {
		var n [8]byte
		binary.BigEndian.PutUint32(n[:4], uint32(len(key)))
		binary.BigEndian.PutUint32(n[4:], uint32(len(value)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = h.Write(key)
		_, _ = h.Write(value)
		return true
	})
	return [32]byte(h.Sum(nil)), err
}

// RebuiltIndexes is what DumpIndexes would give after a restart now.
func (s *State) RebuiltIndexes() (string, error) {
	db, err := s.Settled()
	if err != nil {
		return "", err
	}
	again, err := load(db, nil)
	if err != nil {
		return "", err
	}
	return again.DumpIndexes(), nil
}

// NearTimers counts the due items in memory.
func (s *State) NearTimers() int { return s.timers.near.Len() }
