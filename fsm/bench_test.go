package fsm

import (
	"bytes"
	"encoding/binary"
	"testing"

	pb "pulse/proto/pulse/v1"
)

// BenchmarkLife applies whole lives of tasks, 128 at a time: an entry that
// submits (and thereby leases) them, one that starts and one that finishes.
func BenchmarkLife(b *testing.B) {
	const width = 128
	m, err := Open(Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	index := uint64(0)
	apply := func(cmds []*pb.Command) Outcome {
		index++
		data, err := EncodeEntry(&pb.Entry{Term: 1, TimeUs: storyStart + int64(index), Commands: cmds})
		if err != nil {
			b.Fatal(err)
		}
		return m.Apply(index, 1, data)
	}
	apply([]*pb.Command{{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{ClusterId: []byte("c")}}}})
	queue := m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: DefaultName}}}).GetQueue().Queue
	instance := bytes.Repeat([]byte{1}, 16)
	res := apply([]*pb.Command{{Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
		InstanceId: instance, SecretHash: []byte("s"), QueueId: queue.Id, Capacity: 256, GatewayId: "g", GatewayIncarnation: []byte("i"),
		Capabilities: []*pb.Capability{{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}},
	}}}}).Results[0].GetSession()
	session := &pb.SessionRef{InstanceId: instance, SessionId: res.SessionId}
	payload := append(append([]byte{'"'}, bytes.Repeat([]byte{'x'}, 198)...), '"')
	message := uint64(0)
	id := func() []byte {
		message++
		return binary.BigEndian.AppendUint64(make([]byte, 8), message)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += width {
		var cmds []*pb.Command
		for range width {
			cmds = append(cmds, &pb.Command{Id: id(), NamespaceId: queue.NamespaceId, Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{
				Queue: DefaultName, Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: payload,
			}}})
		}
		out := apply(cmds)
		if len(out.Effects) != width {
			b.Fatalf("%d effects", len(out.Effects))
		}
		cmds = nil
		var finish []*pb.Command
		for _, e := range out.Effects {
			ref := &pb.AttemptRef{TaskId: e.TaskID[:], AttemptId: e.AttemptID[:], Epoch: out.Index}
			cmds = append(cmds, &pb.Command{Id: id(), NamespaceId: queue.NamespaceId, Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: session, Ref: ref}}})
			finish = append(finish, &pb.Command{Id: id(), NamespaceId: queue.NamespaceId, Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
				Session: session, Ref: ref, Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Result: []byte(`{"ok":true}`),
			}}})
		}
		apply(cmds)
		if r := apply(finish).Results[0]; r.Code != "" {
			b.Fatal(r)
		}
	}
}
