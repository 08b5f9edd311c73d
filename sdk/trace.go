package sdk

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"pulse/schema/workerv1"
)

// propagator reads and writes W3C Trace Context.
var propagator = propagation.TraceContext{}

// tracerName is the instrumentation scope of the SDK's spans.
const tracerName = "pulse/sdk"

// beginSpan begins the span of a run, as a child of where the task was
// submitted. end is given the outcome. The span names the task and how it
// ended, not what it carries or answers.
func (a *attempt) beginSpan(ctx context.Context) (_ context.Context, end func(*workerv1.Finish)) {
	if a.traceparent != "" {
		ctx = propagator.Extract(ctx, propagation.MapCarrier{"traceparent": a.traceparent, "tracestate": a.tracestate})
	}
	o := a.w.options
	if _, none := o.TracerProvider.(noop.TracerProvider); none && a.traceparent == "" && !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, func(*workerv1.Finish) {} // no span, and none to be the child of
	}
	ctx, span := o.TracerProvider.Tracer(tracerName).Start(ctx, "process "+o.Queue, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("messaging.system", "pulse"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.destination.name", o.Queue),
		attribute.String("messaging.message.id", a.task.ID),
		attribute.String("messaging.client.id", a.w.identity.id.String()),
		attribute.String("pulse.namespace", o.Namespace),
		attribute.String("pulse.handler", a.task.Handler),
		attribute.String("pulse.attempt.id", a.task.AttemptID),
		attribute.Int("pulse.attempt.number", a.task.AttemptCount),
	))
	return ctx, func(f *workerv1.Finish) {
		if f != nil && f.Outcome != workerv1.OutcomeSucceeded {
			span.SetAttributes(attribute.String("error.type", f.ErrorCode))
			span.SetStatus(codes.Error, string(f.Outcome))
		}
		span.End()
	}
}
