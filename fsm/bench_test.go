package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	pb "pulse/proto/pulse/v1"
)

// BenchmarkLife applies whole lives of tasks: an entry that submits (and thereby
// leases) them, one that starts and one that finishes. Tasks that come with an
// Idempotency-Key are what clients send. Beside the time it says what does not
// depend on other work on the machine: processor time, which includes garbage
// collection and the store's own goroutines, and bytes written to files.
func BenchmarkLife(b *testing.B) {
	for _, c := range []struct {
		name  string
		width int
		keyed bool
	}{{"128", 128, false}, {"128-keyed", 128, true}, {"40-keyed", 40, true}, {"1-keyed", 1, true}} {
		b.Run(c.name, func(b *testing.B) {
			l := newLife(b)
			l.width, l.keyed = c.width, c.keyed
			b.ReportAllocs()
			b.ResetTimer()
			before := used(b)
			for done := 0; done < b.N; done += l.width {
				_, data := l.entry(b, l.submissions())
				start, finish := l.answers(l.apply(data))
				_, data = l.entry(b, start)
				l.apply(data)
				_, data = l.entry(b, finish)
				if r := l.apply(data).Results[0]; r.Code != "" {
					b.Fatal(r)
				}
			}
			after := used(b)
			b.ReportMetric((after.cpuUs-before.cpuUs)/float64(b.N), "cpu-us/op")
			b.ReportMetric((after.written-before.written)/1024/float64(b.N), "writtenKB/op")
		})
	}
}

// BenchmarkLivesOverlap applies lives of tasks as a busy cluster sees them: thousands
// wait, a thousand run, and each entry submits some, starts some and finishes some.
// What a task costs the store shows here, because its life is longer than what
// waits to be written.
func BenchmarkLivesOverlap(b *testing.B) {
	const backlog, running = 5_000, 1_024
	l := newLife(b)
	l.width, l.keyed = 40, true
	var start, finish []*pb.Command
	step := func(cmds []*pb.Command) {
		_, data := l.entry(b, cmds)
		out := l.apply(data)
		for _, r := range out.Results {
			if r.Code != "" {
				b.Fatal(r)
			}
		}
		started, finished := l.answers(out)
		start, finish = append(start, started...), append(finish, finished...)
	}
	l.capacity(b, running)
	for done := 0; done < backlog; done += l.width {
		step(l.submissions())
	}
	for from := 0; from < len(start); from += l.width {
		step(start[from:min(from+l.width, len(start))])
	}
	start = start[:0]
	b.ReportAllocs()
	b.ResetTimer()
	before := used(b)
	for done := 0; done < b.N; done += l.width {
		cmds := append(l.submissions(), start...)
		start = start[:0]
		n := min(l.width, len(finish)-l.width) // those of the last step start first
		step(append(cmds, finish[:n]...))
		finish = finish[n:]
	}
	after := used(b)
	b.ReportMetric((after.cpuUs-before.cpuUs)/float64(b.N), "cpu-us/op")
	b.ReportMetric((after.written-before.written)/1024/float64(b.N), "writtenKB/op")
}

// usage is what the process has used since it began.
type usage struct{ cpuUs, written float64 }

func used(t testing.TB) (u usage) {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	u.cpuUs = float64(r.Utime.Nano()+r.Stime.Nano()) / 1e3
	io, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("this system does not count what a process writes: ", err)
	}
	if _, err := fmt.Sscanf(string(io), "rchar: %g\nwchar: %g", new(float64), &u.written); err != nil {
		t.Fatal(err)
	}
	return u
}

// BenchmarkEntry encodes and decodes an entry of 128 submissions.
func BenchmarkEntry(b *testing.B) {
	l := newLife(b)
	e, data := l.entry(b, l.submissions())
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := EncodeEntry(e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := DecodeEntry(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// life makes entries that submit, start and finish the same number of tasks.
type life struct {
	m       *Machine
	width   int
	index   uint64
	message uint64
	keyed   bool
	queue   *pb.QueueRow
	session *pb.SessionRef
	payload []byte
}

func newLife(t testing.TB) *life {
	t.Helper()
	l := newLifeIn(t, filepath.Join(t.TempDir(), "state"))
	t.Cleanup(func() { _ = l.m.Close() }) // the test is over
	return l
}

func newLifeIn(t testing.TB, dir string) *life {
	t.Helper()
	m, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l := &life{m: m, width: 128, payload: fmt.Appendf(nil, "%q", bytes.Repeat([]byte{'x'}, 198))}
	one := func(c *pb.Command) *pb.Result {
		_, data := l.entry(t, []*pb.Command{c})
		return l.apply(data).Results[0]
	}
	one(&pb.Command{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{ClusterId: []byte("c")}}})
	l.queue = m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: DefaultName}}}).GetQueue().Queue
	instance := bytes.Repeat([]byte{1}, 16)
	res := one(&pb.Command{Body: &pb.Command_RegisterSession{RegisterSession: &pb.RegisterSession{
		InstanceId: instance, SecretHash: []byte("s"), QueueId: l.queue.Id, Capacity: 256, GatewayId: "g", GatewayIncarnation: []byte("i"),
		Capabilities: []*pb.Capability{{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}},
	}}}).GetSession()
	l.session = &pb.SessionRef{InstanceId: instance, SessionId: res.SessionId}
	return l
}

// capacity says how many tasks the session takes.
func (l *life) capacity(t testing.TB, n uint32) {
	t.Helper()
	_, data := l.entry(t, []*pb.Command{{NamespaceId: l.queue.NamespaceId, Body: &pb.Command_SetCapacity{
		SetCapacity: &pb.SetCapacity{Session: l.session, Sequence: 1, Capacity: n},
	}}})
	if r := l.apply(data).Results[0]; r.Code != "" {
		t.Fatal(r)
	}
}

func (l *life) entry(t testing.TB, cmds []*pb.Command) (*pb.Entry, []byte) {
	t.Helper()
	l.index++
	e := &pb.Entry{Term: 1, TimeUs: storyStart + int64(l.index), Commands: cmds}
	data, err := EncodeEntry(e)
	if err != nil {
		t.Fatal(err)
	}
	return e, data
}

func (l *life) apply(data []byte) Outcome { return l.m.Apply(l.index, 1, data) }

func (l *life) command(c *pb.Command) *pb.Command {
	l.message++
	c.Id, c.NamespaceId = binary.BigEndian.AppendUint64(make([]byte, 8), l.message), l.queue.NamespaceId
	return c
}

func (l *life) submissions() (cmds []*pb.Command) {
	for range l.width {
		c := l.command(&pb.Command{Body: &pb.Command_SubmitTask{SubmitTask: &pb.SubmitTask{
			Queue: DefaultName, Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: l.payload,
		}}})
		if l.keyed {
			hash := sha256.Sum256(c.Id)
			c.IdempotencyKey, c.ContentHash = "bench-"+strconv.FormatUint(l.message, 36), hash[:]
		}
		cmds = append(cmds, c)
	}
	return cmds
}

// answers are the starts and finishes of what an entry has leased.
func (l *life) answers(out Outcome) (start, finish []*pb.Command) {
	for _, e := range out.Effects {
		ref := &pb.AttemptRef{TaskId: e.TaskID[:], AttemptId: e.AttemptID[:], Epoch: out.Index}
		start = append(start, l.command(&pb.Command{Body: &pb.Command_StartAttempt{StartAttempt: &pb.StartAttempt{Session: l.session, Ref: ref}}}))
		finish = append(finish, l.command(&pb.Command{Body: &pb.Command_FinishAttempt{FinishAttempt: &pb.FinishAttempt{
			Session: l.session, Ref: ref, Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Result: []byte(`{"ok":true}`),
		}}}))
	}
	return start, finish
}

// BenchmarkOpen opens the state of 100,000 waiting tasks, as a restart does.
func BenchmarkOpen(b *testing.B) {
	const tasks = 100_000
	dir := filepath.Join(b.TempDir(), "state")
	l := newLifeIn(b, dir)
	l.keyed = true // as clients' submissions are
	for done := 0; done < tasks; done += l.width {
		_, data := l.entry(b, l.submissions())
		l.apply(data)
	}
	if err := l.m.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		m, err := Open(Options{Dir: dir, Beside: func(read func()) { go read() }})
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/tasks, "ns/task")
}
