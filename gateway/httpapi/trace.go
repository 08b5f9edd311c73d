package httpapi

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// A submission carries W3C Trace Context to the worker that will run the task: in
// the header of the request for all its tasks, or beside a task for that one. With
// a tracer the gateway puts a span of its own in between. Spans name queues, ids
// and codes, never payloads, keys or notes.

// propagator reads and writes traceparent and tracestate.
var propagator = propagation.TraceContext{}

// submitting begins the span of a submission of so many tasks. The returned end
// is given what the request is answered with.
func (e *exchange) submitting(tasks int) (end func(error)) {
	e.traceFrom = propagator.Extract(e.r.Context(), propagation.HeaderCarrier(e.r.Header))
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", "pulse"),
		attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.operation.name", "submit"),
		attribute.String("messaging.destination.name", e.queue),
		attribute.String("pulse.namespace", e.ns),
		attribute.String("http.request.method", e.r.Method),
		attribute.String("http.route", e.route.path),
	}
	if tasks != 1 {
		attributes = append(attributes, attribute.Int("messaging.batch.message_count", tasks))
	}
	ctx, span := e.h.opt.Tracer.Start(e.traceFrom, "submit "+e.queue, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
	e.trace = ctx
	return func(err error) {
		fail(span, err)
		span.End()
	}
}

// fail marks a span with the code of a refusal; its message may name what a
// client sent.
func fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	code := string(asRefusal(err).Code)
	span.SetAttributes(attribute.String("error.type", code))
	span.SetStatus(codes.Error, code)
}

// traceContext is what goes with a task into the log; nil if it has none. A span
// that nobody asked for and nobody keeps is none.
func (e *exchange) traceContext(s *apiv1.Submission) *pb.TraceContext {
	ctx := e.trace
	if s.TraceParent != "" {
		from := propagator.Extract(e.r.Context(), propagation.MapCarrier{"traceparent": s.TraceParent, "tracestate": s.TraceState})
		var span trace.Span
		ctx, span = e.h.opt.Tracer.Start(from, "create "+e.queue, trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithLinks(trace.LinkFromContext(e.trace)),
			trace.WithAttributes(
				attribute.String("messaging.system", "pulse"),
				attribute.String("messaging.operation.type", "create"),
				attribute.String("messaging.operation.name", "create"),
				attribute.String("messaging.destination.name", e.queue),
				attribute.String("pulse.namespace", e.ns),
			))
		span.End()
	}
	own := trace.SpanContextFromContext(ctx)
	if !own.IsValid() {
		return nil
	}
	if !own.IsSampled() && s.TraceParent == "" && !trace.SpanContextFromContext(e.traceFrom).IsValid() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	out := &pb.TraceContext{Parent: carrier["traceparent"], State: carrier["tracestate"]}
	if !schema.ValidTraceState(out.State) {
		out.State = ""
	}
	return out
}

// committing spans the way of commands through the log and back.
func (e *exchange) committing(ctx context.Context, commands int) (context.Context, func(results []*pb.Result, err error)) {
	if e.trace == nil {
		return ctx, func([]*pb.Result, error) {}
	}
	ctx, span := e.h.opt.Tracer.Start(trace.ContextWithSpan(ctx, trace.SpanFromContext(e.trace)), "commit",
		trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attribute.Int("pulse.commands", commands)))
	return ctx, func(results []*pb.Result, err error) {
		var refusal *schema.Error
		if err != nil && !errors.As(err, &refusal) {
			err = schema.Errorf(schema.ResultUnknown, "no answer")
		}
		fail(span, err)
		if len(results) > 0 {
			span.SetAttributes(attribute.Int64("pulse.index", int64(results[len(results)-1].GetIndex())))
			if task := results[0].GetTask().GetTask().GetTask(); len(results) == 1 && len(task.GetId()) == 16 {
				trace.SpanFromContext(e.trace).SetAttributes(attribute.String("messaging.message.id", schema.ID(task.GetId()).String()))
			}
		}
		span.End()
	}
}
