package node

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// tracerName is the instrumentation scope of every span of a node.
	tracerName = "pulse"
	// spansWaiting bounds the spans that wait for the context of their task to be
	// read; beyond it they are left out rather than hold up the applying.
	spansWaiting = 4096
	// runsKnown bounds the attempts whose end is awaited to span them.
	runsKnown = 100_000
)

// taskSpans tells, out of what the leader applies, how long a traced task waited
// and how long a worker had it, whether or not the worker traces. The times are
// the cluster clock's. What is lost with a leader is a span, never a fact.
type taskSpans struct {
	tracer trace.Tracer
	read   func(task fsm.ID) (*pb.TraceContext, error)
	queue  chan taskSpan

	// started belongs to the apply goroutine: when attempts began.
	started map[fsm.ID]int64
}

// taskSpan is a span before the context of its task is known.
type taskSpan struct {
	task       fsm.ID
	name       string
	from, till int64 // Unix microseconds
	failed     string
	attributes []attribute.KeyValue
}

func newTaskSpans(provider trace.TracerProvider, read func(fsm.ID) (*pb.TraceContext, error)) *taskSpans {
	return &taskSpans{tracer: provider.Tracer(tracerName), read: read, queue: make(chan taskSpan, spansWaiting), started: map[fsm.ID]int64{}}
}

// applied is called by the apply goroutine and never blocks.
func (s *taskSpans) applied(o fsm.Outcome, leader bool) {
	if !leader {
		clear(s.started) // their ends are another's to tell
		return
	}
	for _, ev := range o.Events {
		if ev.Aggregate == pb.Aggregate_AGGREGATE_TASK && ev.TaskAfter.GetTraced() {
			s.event(ev)
		}
	}
}

func (s *taskSpans) event(ev *pb.EventRow) {
	for _, fact := range ev.Facts {
		switch k := fact.Kind.(type) {
		case *pb.Fact_Started:
			attempt := fsm.ID(k.Started.AttemptId)
			if len(s.started) < runsKnown {
				s.started[attempt] = ev.TimeUs
			}
			s.offer(ev, "wait", attempt, ev.TaskAfter.AvailableAtUs, ev.TimeUs, "")
		case *pb.Fact_Succeeded:
			s.ended(ev, k.Succeeded.AttemptId, "")
		case *pb.Fact_Cancelled:
			s.ended(ev, k.Cancelled.AttemptId, "cancelled")
		case *pb.Fact_AttemptFailed:
			s.ended(ev, k.AttemptFailed.AttemptId, k.AttemptFailed.ErrorCode)
		case *pb.Fact_AttemptUnknown:
			s.ended(ev, k.AttemptUnknown.AttemptId, k.AttemptUnknown.ErrorCode)
		case *pb.Fact_AttemptExpired:
			s.ended(ev, k.AttemptExpired.AttemptId, "expired")
		default: // no attempt begins or ends
		}
	}
}

func (s *taskSpans) ended(ev *pb.EventRow, id []byte, failed string) {
	if len(id) != 16 {
		return
	}
	attempt := fsm.ID(id)
	from, known := s.started[attempt]
	delete(s.started, attempt)
	if known {
		s.offer(ev, "run", attempt, from, ev.TimeUs, failed)
	}
}

func (s *taskSpans) offer(ev *pb.EventRow, name string, attempt fsm.ID, from, till int64, failed string) {
	span := taskSpan{
		task: fsm.ID(ev.AggregateId), name: name + " " + ev.TaskAfter.Handler, from: min(from, till), till: till, failed: failed,
		attributes: []attribute.KeyValue{
			attribute.String("messaging.system", "pulse"),
			attribute.String("messaging.message.id", schema.ID(ev.AggregateId).String()),
			attribute.String("pulse.handler", ev.TaskAfter.Handler),
			attribute.String("pulse.attempt.id", schema.ID(attempt).String()),
			attribute.Int("pulse.attempt.number", int(ev.TaskAfter.AttemptCount)),
			attribute.Int64("pulse.index", int64(ev.Index)),
		},
	}
	select {
	case s.queue <- span:
	default: // more than can be told; the tasks go on
	}
}

// run makes the spans until ctx ends.
func (s *taskSpans) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case span := <-s.queue:
			s.make(span)
		}
	}
}

func (s *taskSpans) make(t taskSpan) {
	from, err := s.read(t.task)
	if err != nil || from == nil {
		return // purged meanwhile
	}
	parent := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": from.Parent, "tracestate": from.State})
	_, span := s.tracer.Start(parent, t.name, trace.WithTimestamp(time.UnixMicro(t.from)), trace.WithAttributes(t.attributes...))
	if t.failed != "" {
		span.SetAttributes(attribute.String("error.type", t.failed))
		span.SetStatus(codes.Error, t.failed)
	}
	span.End(trace.WithTimestamp(time.UnixMicro(t.till)))
}
