package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/test/calm"
)

var _ Machine = (*fsm.Machine)(nil)

// realNode is a lone voter with the real machine.
type realNode struct {
	*Node
	machine *fsm.Machine
	dir     string
	effects chan fsm.Effect
	over    bool

	mu     sync.Mutex
	hashes map[uint64][]byte
}

func startReal(t *testing.T, dir string) *realNode {
	t.Helper()
	m, err := fsm.Open(fsm.Options{Dir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	r := &realNode{machine: m, dir: dir, effects: make(chan fsm.Effect, 10000), hashes: map[uint64][]byte{}}
	cfg := testConfig(t, dir)
	cfg.Machine = m
	cfg.OnApply = func(o fsm.Outcome, leader bool) {
		r.mu.Lock()
		r.hashes[o.Index] = m.StateHash()
		r.mu.Unlock()
		if leader {
			for _, e := range o.Effects {
				r.effects <- e
			}
		}
	}
	if r.Node, err = Open(cfg); err != nil {
		t.Fatal(errors.Join(err, m.Close()))
	}
	t.Cleanup(func() { r.shut(t) })
	eventually(t, "the node leads", func() bool { return r.office.Load() != nil })
	return r
}

func (r *realNode) shut(t *testing.T) {
	t.Helper()
	if r.over {
		return
	}
	r.over = true
	ctx, cancel := context.WithTimeout(context.Background(), calm.Patience)
	defer cancel()
	if err := errors.Join(r.Close(ctx), r.machine.Close()); err != nil {
		t.Error(err)
	}
}

func newID() []byte {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	return id
}

// propose proposes one command and wants it accepted.
func (r *realNode) propose(t *testing.T, c *pb.Command) *pb.Result {
	t.Helper()
	c.Id = newID()
	if c.NamespaceId == nil && c.GetRegisterSession() == nil {
		c.Namespace = fsm.DefaultName
	}
	results, err := r.Propose(t.Context(), []*pb.Command{c})
	if err != nil || results[0].Code != "" {
		t.Fatalf("%T: %v, %v", c.Body, results, err)
	}
	return results[0]
}

func task(payload string) *pb.Command {
	return &pb.Command{Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{
		Queue: fsm.DefaultName, Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: []byte(payload),
	}}}
}

func (r *realNode) task(t *testing.T, id []byte) *pb.TaskView {
	t.Helper()
	a, err := r.Query(t.Context(), &pb.Query{Namespace: fsm.DefaultName, Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: id}}})
	if err != nil || a.Code != "" {
		t.Fatalf("%v, %v", a, err)
	}
	return a.GetTask()
}

// hashAt is the state hash after the entry with this index, if this process
// applied it.
func (r *realNode) hashAt(index uint64) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hashes[index]
}

func TestATaskGoesThroughTheRealMachine(t *testing.T) {
	t.Parallel()
	r := startReal(t, t.TempDir())
	a, err := r.Query(t.Context(), &pb.Query{Namespace: fsm.DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: fsm.DefaultName}}})
	if err != nil || a.GetQueue() == nil {
		t.Fatalf("%v, %v", a, err)
	}
	instance := newID()
	session := r.propose(t, &pb.Command{Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
		InstanceId: instance, SecretHash: make([]byte, 32), QueueId: a.GetQueue().Queue.Id, Capacity: 10,
		GatewayId: "g", GatewayIncarnation: newID(),
		Capabilities: []*pb.Capability{{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}},
	}}}).GetSession()

	// One commit from submission to the effect that tells the worker.
	submitted := r.propose(t, task(`{"n":2.50}`))
	id := submitted.GetTask().Task.Task.Id
	var effect fsm.Effect
	select {
	case effect = <-r.effects:
	default:
		t.Fatal("the result is there and the assignment is not")
	}
	if effect.Kind != fsm.EffectAssign || !bytes.Equal(effect.TaskID[:], id) {
		t.Fatalf("effect %+v", effect)
	}
	delivery := r.machine.Delivery(effect).GetAssign()
	ref := &pb.AttemptRef{TaskId: id, AttemptId: delivery.AttemptId, Epoch: delivery.Epoch}
	who := &pb.SessionRef{InstanceId: instance, SessionId: session.SessionId}
	in := func(c *pb.Command) *pb.Command {
		c.NamespaceId = session.NamespaceId
		return c
	}
	r.propose(t, in(&pb.Command{Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: who, Ref: ref}}}))
	r.propose(t, in(&pb.Command{Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
		Session: who, Ref: ref, Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Result: []byte(`1.50`),
	}}}))
	done := r.task(t, id)
	if done.Task.State != pb.TaskState_TASK_STATE_SUCCEEDED || string(done.Result) != "1.50" {
		t.Fatalf("task %v", done)
	}
}

func TestADelayedTaskOfTheRealMachineFallsDueByItself(t *testing.T) {
	t.Parallel()
	r := startReal(t, t.TempDir())
	c := task(`1`)
	c.GetSubmitTask().DelayMs = 200
	id := r.propose(t, c).GetTask().Task.Task.Id
	if park := r.task(t, id).Task.Park; park != pb.Park_PARK_DELAYED {
		t.Fatalf("park %v", park)
	}
	eventually(t, "the delay is over", func() bool { return r.task(t, id).Task.Park == pb.Park_PARK_UNSPECIFIED })
}

func TestTheRealMachineComesBackFromEveryMixOfStateSnapshotAndLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startReal(t, dir)
	submit := func() {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range 10 {
					r.propose(t, task(fmt.Sprint(i)))
				}
			})
		}
		all.Wait()
	}
	submit()
	early := filepath.Join(t.TempDir(), "early")
	if _, err := r.machine.Checkpoint(early); err != nil {
		t.Fatal(err)
	}
	submit()
	var backup bytes.Buffer
	header, err := r.Backup(t.Context(), &backup)
	if err != nil {
		t.Fatal(err)
	}
	submit()
	hash, applied := r.machine.StateHash(), r.machine.AppliedIndex()
	r.shut(t)

	for _, tc := range []struct {
		name     string
		prepare  func(state string) error
		restores uint64
	}{
		{"the state as it was", func(string) error { return nil }, 0},
		{"a state older than the snapshot", func(state string) error {
			store := oneOf(t, filepath.Join(state, "store-*"))
			return errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(early)))
		}, 1},
		{"no state", os.RemoveAll, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			copied := t.TempDir()
			if err := errors.Join(os.CopyFS(copied, os.DirFS(dir)), tc.prepare(filepath.Join(copied, "state"))); err != nil {
				t.Fatal(err)
			}
			again := startReal(t, copied)
			if got := again.counters.Restores.Load(); got != tc.restores {
				t.Fatalf("restored %d times", got)
			}
			// The hash chain says that the very same entries made the state.
			if got := again.hashAt(applied); got != nil && !bytes.Equal(got, hash) {
				t.Fatal("the state is another one")
			} else if got == nil && tc.restores > 0 {
				t.Fatal("the last entry was not applied again")
			}
			a, err := again.Query(t.Context(), &pb.Query{
				Namespace: fsm.DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: fsm.DefaultName}},
			})
			if err != nil || a.GetQueue().Waiting != 240 {
				t.Fatalf("%d tasks wait, want 240: %v", a.GetQueue().GetWaiting(), err)
			}
		})
	}

	restored, err := fsm.Open(fsm.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	if err := restored.Restore(&backup, header.AppliedIndex); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(restored.StateHash(), header.StateHash[:]) || restored.AppliedIndex() != header.AppliedIndex {
		t.Error("the backup restores to another state")
	}
	if err := restored.Close(); err != nil {
		t.Fatal(err)
	}
}
