package cluster

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema/workerv1"
	"pulse/test/model"
)

// The log is the order of everything that happened, so what it led to needs no
// search: this reads the log of a stopped node, applies it once more to an empty
// machine and to the reference model, and holds against each other
//
//   - the state of the live nodes and the one that the log makes,
//   - each answer of the machine and the model's,
//   - each answer that a client or worker got and the model's.

// replayTasksMax bounds what the model is asked to do: it answers every question
// by looking at everything.
const replayTasksMax = 6000

// entry is one of the log, decoded.
type entry struct {
	index, term uint64
	data        []byte
	body        *pb.Entry
}

// readLog reads the log of a stopped node up to an index.
func readLog(dir string, to uint64) (out []entry, err error) {
	dir = filepath.Join(dir, "raft", "wal")
	meta := &metadb.BoltMetaDB{}
	log, err := wal.Open(dir, wal.WithLogger(hclog.NewNullLogger()), wal.WithMetaStore(meta))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close(), meta.Close()) }()
	first, err := log.FirstIndex()
	if err != nil {
		return nil, err
	}
	if first != 1 {
		return nil, fmt.Errorf("the log begins at %d", first)
	}
	for index := first; index <= to; index++ {
		var l raft.Log
		if err := log.GetLog(index, &l); err != nil {
			return nil, fmt.Errorf("entry %d: %w", index, err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		body, err := fsm.DecodeEntry(l.Data)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", index, err)
		}
		out = append(out, entry{l.Index, l.Term, l.Data, body})
	}
	return out, nil
}

// replay holds the log of a stopped cluster against everything else. s is where
// the nodes stood when they all agreed.
func (w *world) replay(t *testing.T, p *process, s standing) {
	t.Helper()
	began := time.Now()
	var at uint64
	if _, err := fmt.Sscan(s.At, &at); err != nil {
		t.Fatalf("state index %q: %v", s.At, err)
	}
	entries, err := readLog(p.dir, at)
	if err != nil {
		t.Errorf("log of %s: %v", p.id, err)
		return
	}
	m, err := fsm.Open(fsm.Options{Dir: t.TempDir(), NodeID: "replay", MemTableBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	r := &replayed{t: t, model: model.New(), operations: map[workerv1.ID][]model.Result{}, submitted: map[string]bool{}}
	for _, e := range entries {
		out := m.Apply(e.index, e.term, e.data)
		if !r.follow(m, e, &out) {
			return
		}
	}
	if got := hex.EncodeToString(m.StateHash()); got != s.Hash {
		t.Errorf("the log of %s makes state %s at %s, the nodes have %s", p.id, got, s.At, s.Hash)
	}
	answers := r.compare(w)
	t.Logf("%d log entries with %d commands replayed in %s: one state, every answer the model's, %d answers that workers and clients got among them",
		len(entries), r.commands, time.Since(began).Round(time.Millisecond), answers)
}

// replayed is the model on its way through the log.
type replayed struct {
	t          *testing.T
	model      *model.Model
	commands   int
	operations map[workerv1.ID][]model.Result // of workers, by message id
	submitted  map[string]bool                // tasks
}

// follow applies one entry to the model and holds its answers against the
// machine's.
func (r *replayed) follow(m *fsm.Machine, e entry, out *fsm.Outcome) bool {
	if len(r.model.Openings) == 0 {
		a := m.Query(&pb.Query{Namespace: fsm.DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: fsm.DefaultName}}})
		if q := a.GetQueue(); q != nil {
			r.model.DefaultQueue = model.SettingsOf(q.Queue.Settings)
		}
	}
	want := r.model.Apply(e.index, e.term, e.body)
	if !r.bind(e, out) {
		a, b, c, d, f := r.model.Fresh()
		r.t.Errorf("entry %d made other things than the model: it has %d namespaces, %d queues, %d tasks, %d attempts, %d sessions", e.index, a, b, c, d, f)
		return false
	}
	for i, c := range e.body.Commands {
		r.commands++
		if d := unlike(out.Results[i], &want[i]); d != "" {
			r.t.Errorf("entry %d, command %d (%T): %s", e.index, i, c.Body, d)
			return false
		}
		id := workerv1.ID(c.Id)
		r.operations[id] = append(r.operations[id], want[i])
		if task := want[i].Task; task != nil && c.GetSubmitTask() != nil {
			r.submitted[hex.EncodeToString(task.ID[:])] = true
		}
	}
	return true
}

// bind tells the model the ids that the machine made, and the delays it chose.
func (r *replayed) bind(e entry, out *fsm.Outcome) bool {
	var namespaces, queues, tasks, attempts, sessions []model.ID
	after := map[model.ID]*pb.TaskRow{}
	for _, ev := range out.Events {
		id := model.ID(ev.AggregateId)
		if ev.TaskAfter != nil {
			after[id] = ev.TaskAfter
		}
		for _, f := range ev.Facts {
			switch k := f.Kind.(type) {
			case *pb.Fact_NamespaceCreated:
				namespaces = append(namespaces, id)
			case *pb.Fact_QueueCreated:
				queues = append(queues, id)
			case *pb.Fact_Submitted:
				tasks = append(tasks, id)
			case *pb.Fact_Leased:
				attempts = append(attempts, model.ID(k.Leased.AttemptId))
			}
		}
	}
	for i, c := range e.body.Commands {
		if res := out.Results[i]; c.GetRegisterSession() != nil && res.Code == "" {
			sessions = append(sessions, model.ID(res.GetSession().SessionId))
		}
	}
	if !r.model.Bind(namespaces, queues, tasks, attempts, sessions) {
		return false
	}
	for _, t := range r.model.Tasks {
		if t.Backoff != nil && (after[t.ID] == nil || !t.SettleBackoff(after[t.ID].AvailableAtUs)) {
			r.t.Errorf("entry %d: task %x waits for another time than was promised", e.index, t.ID)
			return false
		}
	}
	return true
}

// unlike says how an answer differs from the model's.
func unlike(got *pb.Result, want *model.Result) string {
	if got.Code != want.Code || got.Replayed != want.Replayed {
		return fmt.Sprintf("answered %q (replayed: %t), the model %q (%t)", got.Code, got.Replayed, want.Code, want.Replayed)
	}
	if v := got.GetTask(); want.Task != nil && v != nil {
		row := v.Task.Task
		if model.ID(row.Id) != want.Task.ID || row.State != want.After.State || row.Revision != want.After.Revision || v.Duplicate != want.Duplicate {
			return fmt.Sprintf("task %x %s revision %d, the model %x %s %d", row.Id, row.State, row.Revision, want.Task.ID, want.After.State, want.After.Revision)
		}
	}
	op := got.GetOperation()
	if (op != nil) != (want.Receipt != nil) {
		return fmt.Sprintf("operation %v, the model %v", op, want.Receipt)
	}
	if op != nil {
		a, b := op.Receipt, want.Receipt
		if op.Deduplicated != want.Deduplicated || a.Operation != b.Operation || a.TaskState != b.TaskState || a.AttemptState != b.AttemptState ||
			a.TaskRevision != b.TaskRevision || a.LeaseUntilUs != b.LeaseUntil || a.Disposition != b.Disposition || a.Index != b.Index {
			return fmt.Sprintf("receipt %v, the model %+v", a, b)
		}
	}
	if want.Session != nil && (got.GetSession() == nil || got.GetSession().Epoch != want.Session.Epoch) {
		return fmt.Sprintf("session %v, the model has epoch %d", got.GetSession(), want.Session.Epoch)
	}
	return ""
}

// compare holds what clients and workers were told against the model's answers,
// and returns how many answers that were.
func (r *replayed) compare(w *world) (answers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		switch {
		case e.kind == opSubmit:
			answers++
			if !r.submitted[e.task] {
				r.t.Errorf("task %s was acknowledged and is not in the log", e.task)
			}
		case e.message != workerv1.ID{} && e.err == nil:
			answers++
			if !r.answered(e) {
				r.t.Errorf("task %s epoch %d: a worker was answered %s to its %s; the log has %d such operations that say otherwise",
					e.task, e.epoch, e.outcome(), e.kind, len(r.operations[e.message]))
			}
		}
	}
	return answers
}

// answered says whether the log has an operation with the answer that a worker
// got. A gateway refuses some by itself; an acknowledgement is always the log's.
func (r *replayed) answered(e event) bool {
	for _, res := range r.operations[e.message] {
		switch b := e.answer.Body.(type) {
		case *workerv1.Ack:
			x := b.Result.Receipt
			if y := res.Receipt; y != nil && x.TaskRevision == y.TaskRevision && y.Disposition.String() == "DISPOSITION_"+string(x.Disposition) {
				return true
			}
		case *workerv1.Error:
			if res.Code == string(b.Code) {
				return true
			}
		}
	}
	_, refused := e.answer.Body.(*workerv1.Error)
	return refused && len(r.operations[e.message]) == 0
}
