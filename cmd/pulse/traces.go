package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushWithin bounds how long the last spans are waited for.
const flushWithin = 5 * time.Second

// tracesFromEnv makes what takes the spans of this process, as the standard
// variables of OpenTelemetry say: OTEL_TRACES_EXPORTER=otlp turns it on,
// OTEL_EXPORTER_OTLP_PROTOCOL chooses between http/protobuf and grpc, and the
// exporter itself reads OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS, _CERTIFICATE and
// their like, the SDK OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES. Without the first the provider is nil. stop sends
// what is left.
func tracesFromEnv(ctx context.Context, logger *slog.Logger) (provider trace.TracerProvider, stop func(), err error) {
	stop = func() {}
	switch wanted := os.Getenv("OTEL_TRACES_EXPORTER"); {
	case os.Getenv("OTEL_SDK_DISABLED") == "true", wanted == "", wanted == "none":
		return nil, stop, nil
	case wanted != "otlp":
		return nil, stop, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: give otlp, or none", wanted)
	}
	client, err := otlpClient()
	if err != nil {
		return nil, stop, err
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, stop, fmt.Errorf("traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "pulse"), attribute.String("service.version", version),
	), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, stop, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	// A collector that is away costs spans and a line in the log, nothing else.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Warn("traces are not exported", "error", err) }))
	made := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return made, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
		defer cancel()
		if err := made.Shutdown(ctx); err != nil {
			logger.Warn("the last traces are not exported", "error", err)
		}
	}, nil
}

func otlpClient() (otlptrace.Client, error) {
	name, protocol := "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		name, protocol = "OTEL_EXPORTER_OTLP_PROTOCOL", os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	switch protocol {
	case "", "http/protobuf":
		return otlptracehttp.NewClient(), nil
	case "grpc":
		return otlptracegrpc.NewClient(), nil
	}
	return nil, fmt.Errorf("%s is %q: give http/protobuf or grpc", name, protocol)
}
