package fsm

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	pb "pulse/proto/pulse/v1"
)

const killEnv = "PULSE_TEST_KILL" // directory, entries and the entry after which the process kills itself

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		fmt.Fprintln(os.Stderr, applyUntilKilled(dir)) //nolint:forbidigo // the end of a child that should not have come to it
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// smallMemTable makes flushes and compactions happen within a test.
const smallMemTable = 256 << 10

// applyUntilKilled replays a log into the store of dir and kills the process in
// the middle.
func applyUntilKilled(dir string) error {
	log, err := readLog(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(os.Getenv(killEnv + "_AFTER"))
	if err != nil {
		return err
	}
	m, err := Open(Options{Dir: filepath.Join(dir, "state"), MemTableBytes: smallMemTable})
	if err != nil {
		return err
	}
	for i, data := range log[:last] {
		m.Apply(uint64(i+1), 1, data)
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func readLog(path string) (log [][]byte, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(data)).Decode(&log)
	}
	return log, err
}

// The store may be behind the log when the process is killed, but it is always
// that of one index: the log from there on makes the same state of it.
func TestAKilledStoreIsBroughtUpByTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log [][]byte
	whole, err := Open(Options{Dir: filepath.Join(dir, "whole"), MemTableBytes: smallMemTable})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = whole.Close() }()
	liveLives(t, whole, 40, func(data []byte) { log = append(log, data) })
	var file bytes.Buffer
	if err := errors.Join(gob.NewEncoder(&file).Encode(log), os.WriteFile(filepath.Join(dir, "log"), file.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	want, err := whole.ScanHash()
	if err != nil {
		t.Fatal(err)
	}
	behind, ahead := 0, 0
	for round := range 4 {
		last := 1 + rand.IntN(len(log)-1)
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killEnv+"="+dir, killEnv+"_AFTER="+strconv.Itoa(last))
		if out, err := child.CombinedOutput(); child.ProcessState == nil || child.ProcessState.Success() || len(out) > 0 {
			t.Fatalf("round %d: the child ended by %v: %s", round, err, out)
		}
		m, err := Open(Options{Dir: filepath.Join(dir, "state"), MemTableBytes: smallMemTable})
		if err != nil {
			t.Fatal(err)
		}
		at := int(m.AppliedIndex())
		if at < last {
			behind++
		}
		if at > 0 {
			ahead++
		}
		live, err := m.RebuiltIndexes()
		if got := m.DumpIndexes(); err != nil || got != live {
			t.Errorf("round %d: the indexes at %d are not those of the rows: %v", round, at, err)
		}
		for i := at; i < len(log); i++ {
			m.Apply(uint64(i+1), 1, log[i])
		}
		got, err := m.ScanHash()
		if err != nil || got != want || !bytes.Equal(m.StateHash(), whole.StateHash()) {
			t.Errorf("round %d: killed after %d the store was at %d, and the log from there on makes another state of it (%v)", round, last, at, err)
		}
		if err := errors.Join(m.Close(), os.RemoveAll(filepath.Join(dir, "state"))); err != nil {
			t.Fatal(err)
		}
	}
	if behind == 0 || ahead == 0 {
		t.Errorf("%d stores were behind the log and %d were not empty: this test has seen nothing", behind, ahead)
	}
}

// liveLives applies entries in which 32 tasks at a time are submitted, started
// and, most of them, finished, and hands each entry to log.
func liveLives(t *testing.T, m *Machine, rounds int, log func([]byte)) {
	t.Helper()
	index, message := uint64(0), uint64(0)
	apply := func(cmds []*pb.Command) Outcome {
		index++
		data, err := EncodeEntry(&pb.Entry{Term: 1, TimeUs: storyStart + int64(index)*1e5, Commands: cmds})
		if err != nil {
			t.Fatal(err)
		}
		log(data)
		return m.Apply(index, 1, data)
	}
	command := func(q *pb.QueueRow, c *pb.Command) *pb.Command {
		message++
		c.Id, c.NamespaceId = binary.BigEndian.AppendUint64(make([]byte, 8), message), q.GetNamespaceId()
		return c
	}
	apply([]*pb.Command{{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{ClusterId: []byte("c")}}}})
	q := m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: DefaultName}}}).GetQueue().Queue
	instance := bytes.Repeat([]byte{1}, 16)
	apply([]*pb.Command{command(q, &pb.Command{Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: "short", Settings: &pb.QueueSettings{
		LeaseDurationMs: 30_000, OfferDurationMs: 30_000, MaxWaiting: 10_000, RetentionMs: 1000, DefaultDeadlineMs: 60_000, DefaultRetry: q.Settings.DefaultRetry,
	}}}})})
	q = m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: "short"}}}).GetQueue().Queue
	id := apply([]*pb.Command{{Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
		InstanceId: instance, SecretHash: []byte("s"), QueueId: q.Id, Capacity: 256, GatewayId: "g", GatewayIncarnation: []byte("i"),
		Capabilities: []*pb.Capability{{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}},
	}}}}).Results[0].GetSession().GetSessionId()
	session := &pb.SessionRef{InstanceId: instance, SessionId: id}
	random := rand.New(rand.NewPCG(1, 2))
	finished := 0
	for range rounds {
		var submit, start, finish []*pb.Command
		for range 32 {
			payload := make([]byte, 300)
			for i := range payload {
				payload[i] = byte(random.Uint32())
			}
			submit = append(submit, command(q, &pb.Command{Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{
				Queue: "short", Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: payload,
			}}}))
		}
		out := apply(submit)
		for _, e := range out.Effects {
			ref := &pb.AttemptRef{TaskId: e.TaskID[:], AttemptId: e.AttemptID[:], Epoch: out.Index}
			start = append(start, command(q, &pb.Command{Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: session, Ref: ref}}}))
			if random.IntN(8) > 0 {
				finish = append(finish, command(q, &pb.Command{Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
					Session: session, Ref: ref, Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Result: []byte(`{"ok":true}`),
				}}}))
			}
		}
		apply(start)
		for _, r := range apply(finish).Results {
			if r.Code == "" {
				finished++
			}
		}
	}
	if finished < 100 {
		t.Fatalf("%d tasks of this log finish", finished)
	}
}
