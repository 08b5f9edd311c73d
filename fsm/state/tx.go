package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// Tx is the change one log entry makes. Reads see its own writes. It is always
// committed: whoever puts a row has made all refusals before. A store that
// cannot be read or holds damaged rows panics, which stops the node.
type Tx struct {
	s      *State
	meta   *pb.MetaRow
	order  []*change      // by first touch
	events []*pb.EventRow // by place
}

// change is what has become of one key: what the store does not know yet, and what
// the entry that is being applied makes of that. The store may be written in the
// middle of an entry, and must see nothing of it then.
type change struct {
	key     string
	settled version // of the entries before; of no meaning unless pends
	now     version // of this entry; of no meaning unless touched
	pends   bool
	touched bool
	fresh   bool // the store does not have the key: deleting it needs no write
	born    bool // the state had no such row before this entry
}

// version is a row at one time.
type version struct {
	row  proto.Message // nil with raw
	raw  []byte        // the value; of a row it is encoded at commit
	gone bool
}

// Begin starts the change of entry index at cluster time now.
func (s *State) Begin(index, term uint64, now int64) *Tx {
	if err := s.timers.extend(s, now); err != nil {
		panic(err)
	}
	if err := s.readRemembered(); err != nil {
		panic(err)
	}
	m := proto.CloneOf(s.meta)
	m.AppliedIndex, m.AppliedTerm = index, term
	m.ClockUs = max(m.ClockUs, now)
	clear(s.scratch.order)
	return &Tx{s: s, meta: m, order: s.scratch.order[:0]}
}

// scratch is what entries use one after another.
type scratch struct {
	order []*change
	short shortened
	event []byte
	block []byte
}

// Now is the cluster clock of the entry.
func (tx *Tx) Now() int64 { return tx.meta.ClockUs }

// Number is the fencing number of the entry: fence base + index.
func (tx *Tx) Number() uint64 { return tx.meta.FenceBase + tx.meta.AppliedIndex }

// Meta is the meta row of the entry, to be changed in place.
func (tx *Tx) Meta() *pb.MetaRow { return tx.meta }

// State gives the indexes, which already hold the entry's changes.
func (tx *Tx) State() *State { return tx.s }

// Commit hands the entry's rows, the new state hash and the applied index to
// what is pending for the store, and writes that once it is enough.
func (tx *Tx) Commit() error {
	s := tx.s
	if err := tx.encode(); err != nil {
		return err
	}
	h := sha256.New()
	head := append(make([]byte, 0, 256), s.meta.StateHash...)
	head = binary.BigEndian.AppendUint64(head, tx.meta.AppliedIndex)
	head = binary.BigEndian.AppendUint64(head, uint64(tx.meta.ClockUs))
	_, _ = h.Write(head) // a hash never fails
	for _, c := range tx.order {
		head = c.addTo(h, head[:0])
		s.pending.commit(c)
	}
	tx.meta.StateHash = h.Sum(nil)
	s.pending.touched = 0
	s.meta = tx.meta
	s.scratch.order = tx.order
	if !s.pending.full() {
		return nil
	}
	return s.settle()
}

// encode makes the values of all rows.
func (tx *Tx) encode() error {
	for _, c := range tx.order {
		if c.now.row == nil || c.now.gone {
			continue
		}
		var err error
		if c.now.raw, err = tx.s.pending.encode(c.now.row); err != nil {
			return fmt.Errorf("encode state row %x: %w", c.key, err)
		}
	}
	return tx.encodeFeed()
}

// addTo feeds the change to the running state hash. buf is room for the key.
func (c *change) addTo(h hash.Hash, buf []byte) []byte {
	v := &c.now
	if v.gone && c.born {
		return buf
	}
	size := uint32(math.MaxUint32) // of a row that is gone
	if !v.gone {
		size = uint32(len(v.raw))
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(c.key)))
	buf = binary.BigEndian.AppendUint32(buf, size)
	buf = append(buf, c.key...)
	_, _ = h.Write(buf) // a hash never fails
	if !v.gone {
		_, _ = h.Write(v.raw)
	}
	return buf
}

// RaiseApplied records, durably, that the state stands at a later place of the
// log than its last entry.
func (s *State) RaiseApplied(index uint64) error {
	if index <= s.meta.AppliedIndex {
		return nil
	}
	if err := s.settle(); err != nil {
		return err
	}
	m := proto.CloneOf(s.meta)
	m.AppliedIndex = index
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode meta row: %w", err)
	}
	if err := s.db.Set(MetaKey, data, pebble.NoSync); err != nil {
		return fmt.Errorf("write meta row: %w", err)
	}
	s.meta, s.settled = m, index
	return s.flush()
}

// change finds or makes what becomes of a key in this entry.
func (tx *Tx) change(key []byte) *change {
	c := tx.s.pending.rows[string(key)]
	if c == nil {
		c = tx.s.pending.take()
		c.key = string(key)
		tx.s.pending.rows[c.key] = c
	}
	if !c.touched {
		c.touched = true
		tx.order = append(tx.order, c)
		tx.s.pending.touched++
	}
	return c
}

func (tx *Tx) put(key []byte, row proto.Message) *change {
	c := tx.change(key)
	c.now = version{row: row}
	return c
}

func (tx *Tx) putRaw(key, value []byte) {
	tx.change(key).now = version{raw: value}
}

// putNew is put for a key that the state is known not to have.
func (tx *Tx) putNew(key []byte, row proto.Message) *change {
	c := tx.changeNew(key)
	c.now = version{row: row}
	return c
}

func (tx *Tx) putRawNew(key, value []byte) {
	tx.changeNew(key).now = version{raw: value}
}

func (tx *Tx) changeNew(key []byte) *change {
	n := len(tx.order)
	c := tx.change(key)
	if len(tx.order) > n { // else it came and went in this entry, and how it came is known
		c.born = true
		c.fresh = !c.pends
	}
	return c
}

func (tx *Tx) del(key []byte) {
	tx.change(key).now = version{gone: true}
}

// known finds what the entry, or one before it that the store has not seen yet,
// did to a key.
func (tx *Tx) known(key []byte) *version {
	c := tx.s.pending.rows[string(key)]
	switch {
	case c == nil:
		return nil
	case c.touched:
		return &c.now
	}
	return &c.settled
}

// inEntry finds what the entry did to a key.
func (tx *Tx) inEntry(key []byte) *version {
	if c := tx.s.pending.rows[string(key)]; c != nil && c.touched {
		return &c.now
	}
	return nil
}

// read finds a row in the entry's changes or in the state.
func read[T any, P rowPtr[T]](tx *Tx, key []byte) P {
	if v := tx.known(key); v != nil {
		if v.gone {
			return nil
		}
		return v.row.(P)
	}
	row := P(new(T))
	ok, err := getRow(tx.s.db, key, row)
	if err != nil {
		panic(err)
	}
	if !ok {
		return nil
	}
	return row
}

func (tx *Tx) readRaw(key []byte) ([]byte, bool) {
	if c := tx.known(key); c != nil {
		return c.raw, !c.gone
	}
	value, ok, err := getRaw(tx.s.db, key)
	if err != nil {
		panic(err)
	}
	return value, ok
}

// keysUnder lists the keys with a prefix, the entry's own changes included.
func (tx *Tx) keysUnder(prefix []byte) [][]byte {
	var out [][]byte
	iter, err := tx.s.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: prefixEnd(prefix)})
	if err != nil {
		panic(fmt.Errorf("read state: %w", err))
	}
	for iter.First(); iter.Valid(); iter.Next() {
		if v := tx.inEntry(iter.Key()); v == nil || !v.gone {
			out = append(out, bytes.Clone(iter.Key()))
		}
	}
	if err := iter.Close(); err != nil {
		panic(fmt.Errorf("read state: %w", err))
	}
	stored := len(out)
	for _, c := range tx.order {
		if !c.now.gone && strings.HasPrefix(c.key, string(prefix)) {
			if _, found := slices.BinarySearchFunc(out[:stored], []byte(c.key), bytes.Compare); !found {
				out = append(out, []byte(c.key))
			}
		}
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}

// anyUnder says whether keysUnder would find anything.
func (tx *Tx) anyUnder(prefix []byte) bool {
	for _, c := range tx.order {
		if !c.now.gone && strings.HasPrefix(c.key, string(prefix)) {
			return true
		}
	}
	iter, err := tx.s.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: prefixEnd(prefix)})
	if err != nil {
		panic(fmt.Errorf("read state: %w", err))
	}
	found := false
	for iter.First(); iter.Valid() && !found; iter.Next() {
		v := tx.inEntry(iter.Key())
		found = v == nil || !v.gone
	}
	if err := iter.Close(); err != nil {
		panic(fmt.Errorf("read state: %w", err))
	}
	return found
}

// moveTimer replaces a timer by another; both may be absent.
func (tx *Tx) moveTimer(from, to Timer) {
	if from == to {
		return
	}
	if from.Due != 0 {
		tx.s.clearTimer(from)
		if from.Kind.stored() {
			tx.del(timerKey(from))
		}
	}
	if to.Due != 0 {
		tx.s.setTimer(to)
		if to.Kind.stored() {
			tx.putRawNew(timerKey(to), timerValue(to))
		}
	}
}

// PutNamespace adds or replaces a namespace.
func (tx *Tx) PutNamespace(row *pb.NamespaceRow) {
	id := ID(row.Id)
	if n := tx.s.namespaces[id]; n != nil {
		n.Row = row
	} else {
		tx.s.namespaces[id] = newNamespace(row)
		tx.s.nsByName[row.Name] = id
	}
	tx.put(key1(tableNamespace, id), row)
}

// DeleteNamespace removes a namespace that has nothing in it any more, and the
// rows of its deleted queues.
func (tx *Tx) DeleteNamespace(id ID) {
	n := tx.s.namespaces[id]
	delete(tx.s.nsByName, n.Row.Name)
	delete(tx.s.namespaces, id)
	var queues []ID
	for qid, q := range tx.s.queues { // order-free: sorted below
		if ID(q.Row.NamespaceId) == id {
			queues = append(queues, qid)
		}
	}
	slices.SortFunc(queues, idCompare)
	for _, qid := range queues {
		tx.s.Matched(tx.s.queues[qid])
		delete(tx.s.queues, qid)
		tx.del(key1(tableQueue, qid))
	}
	for _, key := range tx.keysUnder(key1(tableIdempotency, id)) {
		if row := read[pb.IdempotencyRow](tx, key); row != nil {
			tx.DeleteIdempotency(row)
		}
	}
	tx.del(key1(tableNamespace, id))
}

// HasTasks says whether the namespace has tasks, live or retained.
func (tx *Tx) HasTasks(id ID) bool {
	return tx.anyUnder(key1(tableTask, id)) || tx.anyUnder(key1(tableDone, id))
}

// PutQueue adds or replaces a queue.
func (tx *Tx) PutQueue(row *pb.QueueRow) {
	id := ID(row.Id)
	q := tx.s.queues[id]
	if q == nil {
		q = newQueue(row)
		tx.s.queues[id] = q
	}
	q.Row = row
	name := queueName{ID(row.NamespaceId), row.Name}
	if row.DeletedAtUs == 0 {
		tx.s.queueByName[name] = id
	} else if tx.s.queueByName[name] == id {
		delete(tx.s.queueByName, name)
	}
	tx.s.touch(q)
	tx.put(key1(tableQueue, id), row)
}

// Task finds a task of a namespace, whatever its state.
func (tx *Tx) Task(ns, id ID) *pb.TaskRow {
	t := tx.s.tasks[id]
	if t == nil {
		t = tx.s.ready[id]
	}
	if t != nil {
		if ID(t.NamespaceId) != ns {
			return nil
		}
		return t
	}
	if t := read[pb.TaskRow](tx, key2(tableTask, ns, id)); t != nil {
		return t
	}
	return read[pb.TaskRow](tx, key2(tableDone, ns, id))
}

// PutTask replaces old by row; old is nil for a new task.
func (tx *Tx) PutTask(old, row *pb.TaskRow) {
	ns, id := ID(row.NamespaceId), ID(row.Id)
	var from Timer
	if old != nil {
		tx.s.unindexTask(old)
		from = taskTimer(old)
	}
	tx.s.indexTask(row)
	tx.s.ready.put(row, tx.s.queues[ID(row.QueueId)])
	tx.moveTimer(from, taskTimer(row))
	if Terminal(row.State) {
		if old != nil && !Terminal(old.State) {
			tx.del(key2(tableTask, ns, id))
		}
		tx.put(key2(tableDone, ns, id), row)
		return
	}
	key := key2(tableTask, ns, id)
	if old == nil {
		tx.putNew(key, row)
	} else {
		tx.put(key, row)
	}
}

// PurgeTask removes a task that is over, with its payload, result, attempts,
// receipts and evidence. Its events stay until they leave the feed.
func (tx *Tx) PurgeTask(row *pb.TaskRow) {
	ns, id := ID(row.NamespaceId), ID(row.Id)
	tx.s.unindexTask(row)
	tx.moveTimer(taskTimer(row), Timer{})
	tx.del(key2(tableDone, ns, id))
	tx.del(key1(tablePayload, id))
	if row.ResultBytes > 0 {
		tx.del(key1(tableResult, id))
	}
	if row.Traced {
		tx.del(key1(tableTrace, id))
	}
	for _, table := range []byte{tableAttempt, tableAttemptBody, tableEvidence, tableEvidenceRes} {
		for _, key := range tx.keysUnder(key1(table, id)) {
			tx.del(key)
		}
	}
	if row.BusinessKey != "" {
		tx.del(keyText(tableBusiness, ns, row.BusinessKey))
	}
}

// PutPayload stores a task's payload, once.
func (tx *Tx) PutPayload(task ID, data []byte) { tx.putRaw(key1(tablePayload, task), data) }

// Payload reads a task's payload.
func (tx *Tx) Payload(task ID) []byte {
	data, _ := tx.readRaw(key1(tablePayload, task))
	return data
}

// PutTrace stores the trace context that a task came with.
func (tx *Tx) PutTrace(task ID, trace *pb.TraceContext) { tx.put(key1(tableTrace, task), trace) }

// Trace reads it; nil if there is none.
func (tx *Tx) Trace(task ID) *pb.TraceContext {
	return read[pb.TraceContext](tx, key1(tableTrace, task))
}

// PutResult stores the result a task ended with.
func (tx *Tx) PutResult(task ID, data []byte) { tx.putRaw(key1(tableResult, task), data) }

// Result reads it.
func (tx *Tx) Result(task ID) []byte {
	data, _ := tx.readRaw(key1(tableResult, task))
	return data
}

// PutAttemptResult stores the result of a finish that did not end its task.
func (tx *Tx) PutAttemptResult(task, attempt ID, data []byte) {
	tx.putRaw(key2(tableAttemptBody, task, attempt), data)
}

// Attempt finds an attempt of a task.
func (tx *Tx) Attempt(task, id ID) *pb.AttemptRow {
	if a := tx.s.attempts[id]; a != nil {
		if ID(a.Row.TaskId) != task {
			return nil
		}
		return a.Row
	}
	return read[pb.AttemptRow](tx, key2(tableAttempt, task, id))
}

// PutAttempt replaces old by row; old is nil for a new attempt. An attempt
// that is over leaves memory.
func (tx *Tx) PutAttempt(old, row *pb.AttemptRow) {
	id := ID(row.Id)
	instance := tx.s.instances[instanceKey{ID(row.NamespaceId), ID(row.InstanceId)}]
	var from Timer
	if old != nil {
		from = attemptTimer(old)
	}
	tx.moveTimer(from, attemptTimer(row))
	switch {
	case !AttemptLive(row.State):
		delete(tx.s.attempts, id)
		if instance != nil {
			instance.dropAttempt(id)
		}
	case old == nil:
		tx.s.attempts[id] = &Attempt{Row: row}
		instance.addAttempt(id)
	default:
		tx.s.attempts[id].Row = row
	}
	key := key2(tableAttempt, ID(row.TaskId), id)
	if old == nil {
		tx.putNew(key, row)
	} else {
		tx.put(key, row)
	}
}

// PutReceipt keeps the receipt of an operation with its attempt, whose row a is; of
// renewals the latest renewalsMax are kept.
func (tx *Tx) PutReceipt(a *pb.AttemptRow, row *pb.ReceiptRow, renewalsMax int) {
	key := key2(tableAttempt, ID(a.TaskId), ID(a.Id))
	if v := tx.inEntry(key); v == nil || v.row != proto.Message(a) { // else the row is of this entry and nobody else's yet
		a = CopyAttempt(a)
		tx.put(key, a)
		if live := tx.s.attempts[ID(a.Id)]; live != nil {
			live.Row = a
		}
	}
	at, _ := slices.BinarySearchFunc(a.Receipts, row, receiptOrder)
	receipts := make([]*pb.ReceiptRow, 0, len(a.Receipts)+1)
	receipts = append(append(append(receipts, a.Receipts[:at]...), row), a.Receipts[at:]...)
	if row.Operation == pb.Operation_OPERATION_RENEW {
		receipts = latestRenewals(receipts, renewalsMax)
	}
	a.Receipts = receipts
}

// latestRenewals drops the oldest renewal if there are more than limit.
func latestRenewals(receipts []*pb.ReceiptRow, limit int) []*pb.ReceiptRow {
	renewals, oldest := 0, -1
	for i, r := range receipts {
		if r.Operation == pb.Operation_OPERATION_RENEW {
			if oldest < 0 {
				oldest = i
			}
			renewals++
		}
	}
	if renewals > limit {
		return slices.Delete(receipts, oldest, oldest+1)
	}
	return receipts
}

// EvidenceCount counts the evidence kept with an attempt.
func (tx *Tx) EvidenceCount(task, attempt ID) int {
	return len(tx.keysUnder(key2(tableEvidence, task, attempt)))
}

// PutEvidence keeps a late finish with its attempt.
func (tx *Tx) PutEvidence(task, attempt ID, row *pb.EvidenceRow, result []byte) {
	tx.put(key3(tableEvidence, task, attempt, ID(row.MessageId)), row)
	tx.putRaw(key3(tableEvidenceRes, task, attempt, ID(row.MessageId)), result)
}

// PutInstance adds an instance or replaces its row.
func (tx *Tx) PutInstance(row *pb.InstanceRow) {
	k := instanceKey{ID(row.NamespaceId), ID(row.Id)}
	i := tx.s.instances[k]
	if i == nil {
		i = &Instance{}
		tx.s.instances[k] = i
	} else {
		old := i.Row
		tx.s.unindexInstance(i)
		// Most often it comes back to where it was.
		defer tx.s.dropClasses(old)
	}
	i.Row = row
	tx.s.indexInstance(i)
	tx.put(key2(tableInstance, k.ns, k.id), row)
}

// DeleteInstance forgets an instance without live attempts.
func (tx *Tx) DeleteInstance(i *Instance) {
	if len(i.Attempts) > 0 {
		panic("state: an instance with live attempts cannot be forgotten")
	}
	k := i.key()
	tx.s.unindexInstance(i)
	tx.s.dropClasses(i.Row)
	delete(tx.s.instances, k)
	tx.del(key2(tableInstance, k.ns, k.id))
}

// PutGateway adds or replaces a gateway's row.
func (tx *Tx) PutGateway(row *pb.GatewayRow) {
	g := tx.s.gateway(row.Id)
	if g.row != nil {
		tx.s.clearTimer(gatewayTimer(g.row))
	}
	g.row = row
	tx.s.setTimer(gatewayTimer(row))
	tx.put(gatewayKey(row.Id), row)
}

// DeleteGateway forgets a gateway.
func (tx *Tx) DeleteGateway(id string) {
	g := tx.s.gateway(id)
	if g.row != nil {
		tx.s.clearTimer(gatewayTimer(g.row))
		g.row = nil
		tx.del(gatewayKey(id))
	}
	tx.s.dropGateway(id, g)
}

// HoldKey records who holds a key.
func (tx *Tx) HoldKey(row *pb.KeyRow) {
	ns := ID(row.NamespaceId)
	tx.s.setKey(keyName{ns, row.Key}, row)
	tx.put(keyText(tableKey, ns, row.Key), row)
}

// FreeKey records that nobody holds a key.
func (tx *Tx) FreeKey(ns ID, key string) {
	tx.s.setKey(keyName{ns, key}, nil)
	tx.del(keyText(tableKey, ns, key))
}

// Business finds the task that carries a business key.
func (tx *Tx) Business(ns ID, key string) (ID, bool) {
	data, ok := tx.readRaw(keyText(tableBusiness, ns, key))
	if !ok {
		return ID{}, false
	}
	return ID(data), true
}

// PutBusiness records it.
func (tx *Tx) PutBusiness(ns ID, key string, task ID) {
	tx.putRaw(keyText(tableBusiness, ns, key), task[:])
}

// Idempotency finds the answer remembered under an Idempotency-Key.
func (tx *Tx) Idempotency(ns ID, key string) *pb.IdempotencyRow {
	if !tx.s.remembered.may(idempotencyID(ns, key)) {
		return nil
	}
	return read[pb.IdempotencyRow](tx, keyText(tableIdempotency, ns, key))
}

// PutIdempotency remembers an answer.
func (tx *Tx) PutIdempotency(row *pb.IdempotencyRow) {
	timer := idempotencyTimer(row)
	tx.put(keyText(tableIdempotency, ID(row.NamespaceId), row.Key), row)
	tx.moveTimer(Timer{}, timer)
	tx.s.remembered.add(timer.ID, timer.Due)
}

// ForgetIdempotency is DeleteIdempotency for a row whose time has come: those of
// earlier times are gone.
func (tx *Tx) ForgetIdempotency(row *pb.IdempotencyRow) {
	tx.DeleteIdempotency(row)
	tx.s.remembered.forget(row.ExpiresAtUs)
}

// DeleteIdempotency forgets one.
func (tx *Tx) DeleteIdempotency(row *pb.IdempotencyRow) {
	tx.moveTimer(idempotencyTimer(row), Timer{})
	tx.del(keyText(tableIdempotency, ID(row.NamespaceId), row.Key))
}
