package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"pulse/cmd/node"
	"pulse/sdk"
	"pulse/test/calm"
)

// collector is a receiver of OTLP, over HTTP and gRPC.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
	about []string // services that sent
	raw   bytes.Buffer
}

func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	c.raw.Write(text)
	for _, resource := range r.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				c.about = append(c.about, a.Value.GetStringValue())
			}
		}
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(body)
	}
	text, err := io.ReadAll(body)
	req := &collectorpb.ExportTraceServiceRequest{}
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(text, req) != nil {
		http.Error(w, "no OTLP", http.StatusBadRequest)
		return
	}
	if _, err := c.Export(r.Context(), req); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// serve listens for a protocol and returns the endpoint to name.
func (c *collector) serve(t *testing.T, protocol string) string {
	t.Helper()
	if protocol == "http/protobuf" {
		s := httptest.NewServer(c)
		t.Cleanup(s.Close)
		return s.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return "http://" + l.Addr().String()
}

// find returns the spans with a name and a parent; a nil parent is any.
func (c *collector) find(name string, parent []byte) (found []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name && (parent == nil || bytes.Equal(s.ParentSpanId, parent)) {
			found = append(found, s)
		}
	}
	return found
}

func one(t *testing.T, c *collector, name string, parent []byte) *tracepb.Span {
	t.Helper()
	found := c.find(name, parent)
	if len(found) != 1 {
		var all []string
		for _, s := range c.spans {
			all = append(all, s.Name+" under "+hex.EncodeToString(s.ParentSpanId))
		}
		t.Fatalf("%d spans %q under %x; there are\n%s", len(found), name, parent, strings.Join(all, "\n"))
	}
	return found[0]
}

func attributes(s *tracepb.Span) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// One trace goes from whoever submits through the log to the worker, and to what
// the worker submits itself. Neither payloads nor results are in it.
//
//nolint:paralleltest // the settings are the environment's
func TestATraceGoesThroughTheLogToTheWorker(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			received := &collector{}
			t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.serve(t, protocol))
			t.Setenv("OTEL_SERVICE_NAME", "pulse-in-a-test")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			traces, stop, err := tracesFromEnv(ctx, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			n, err := node.Start(ctx, node.Config{DataDir: t.TempDir(), HTTPAddr: "127.0.0.1:0", ElectionTimeout: 50 * time.Millisecond, WriteLimit: calm.Patience, Logger: slog.New(slog.DiscardHandler), Traces: traces})
			if err != nil {
				t.Fatal(err)
			}
			if err := n.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			client := sdk.NewClient(sdk.ClientOptions{Addr: n.URL()})
			var inner *sdk.TaskInfo
			worker := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{n.URL()}, Logger: slog.New(slog.DiscardHandler), TracerProvider: traces})
			worker.Handle("outer", "1", "1", func(ctx context.Context, _ *sdk.Task) (_ any, err error) {
				inner, err = client.Submit(ctx, sdk.TaskSpec{Handler: "inner", Payload: "payload-that-is-private"})
				return "result-that-is-private", err
			})
			worker.Handle("inner", "1", "1", func(context.Context, *sdk.Task) (any, error) {
				return nil, sdk.Failed("not_today", errors.New("result-that-is-private"))
			})
			life, end := context.WithCancel(ctx)
			var running sync.WaitGroup
			running.Go(func() { _ = worker.Run(life) })

			spanCtx, span := traces.Tracer("test").Start(ctx, "order", trace.WithSpanKind(trace.SpanKindClient))
			outer, err := client.Submit(spanCtx, sdk.TaskSpec{Handler: "outer", Payload: "payload-that-is-private"})
			span.End()
			if err != nil {
				t.Fatal(err)
			}
			if done, err := client.Wait(ctx, outer.ID); err != nil || done.State != sdk.StateSucceeded {
				t.Fatalf("%+v, %v", done, err)
			}
			if _, err := client.Wait(ctx, inner.ID); err != nil {
				t.Fatal(err)
			}
			alone := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			batch, err := client.SubmitBatch(ctx, "", []sdk.TaskSpec{{Handler: "outer", TraceParent: alone, TraceState: "vendor=1"}})
			if err != nil || batch[0].Err != nil {
				t.Fatal(err, batch)
			}
			if _, err := client.Wait(ctx, batch[0].Task.ID); err != nil {
				t.Fatal(err)
			}
			end()
			running.Wait()
			if err := n.Close(ctx); err != nil {
				t.Fatal(err)
			}
			stop()

			order := one(t, received, "order", nil)
			submit := one(t, received, "submit default", order.SpanId)
			one(t, received, "commit", submit.SpanId)
			wait := one(t, received, "wait outer", submit.SpanId)
			run := one(t, received, "run outer", submit.SpanId)
			process := one(t, received, "process default", submit.SpanId)
			nested := one(t, received, "submit default", process.SpanId)
			failed := one(t, received, "process default", nested.SpanId)
			for _, s := range []*tracepb.Span{submit, wait, run, process, nested, failed} {
				if !bytes.Equal(s.TraceId, order.TraceId) {
					t.Errorf("%s is in another trace", s.Name)
				}
			}
			for span, want := range map[*tracepb.Span]map[string]string{
				submit: {"messaging.system": "pulse", "messaging.operation.type": "send", "messaging.destination.name": "default", "messaging.message.id": outer.ID,
					"http.request.method": "POST", "http.route": "/v1/namespaces/{ns}/queues/{queue}/tasks"},
				process: {"messaging.operation.type": "process", "messaging.message.id": outer.ID, "pulse.handler": "outer"},
				run:     {"messaging.message.id": outer.ID, "pulse.handler": "outer"},
				failed:  {"error.type": "not_today"},
			} {
				for key, value := range want {
					if got := attributes(span)[key]; got != value {
						t.Errorf("%s has %s %q, want %q", span.Name, key, got, value)
					}
				}
			}
			if submit.Kind != tracepb.Span_SPAN_KIND_PRODUCER || process.Kind != tracepb.Span_SPAN_KIND_CONSUMER {
				t.Errorf("kinds %v, %v", submit.Kind, process.Kind)
			}
			if failed.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || process.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
				t.Errorf("statuses %v, %v", failed.Status, process.Status)
			}
			if wait.EndTimeUnixNano < wait.StartTimeUnixNano || run.StartTimeUnixNano != wait.EndTimeUnixNano {
				t.Error("the run does not begin where the wait ends")
			}
			create := one(t, received, "create default", []byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7})
			if own := one(t, received, "process default", create.SpanId); hex.EncodeToString(own.TraceId) != alone[3:35] || own.TraceState != "vendor=1" {
				t.Errorf("a task of a batch is in trace %x with state %q", own.TraceId, own.TraceState)
			}
			for _, private := range []string{"payload-that-is-private", "result-that-is-private"} {
				if bytes.Contains(received.raw.Bytes(), []byte(private)) {
					t.Errorf("%q is in a span", private)
				}
			}
			if !slices.Contains(received.about, "pulse-in-a-test") {
				t.Errorf("sent by %q", received.about)
			}
		})
	}
}

// Without an exporter nothing is made, and the context of the caller reaches the
// handler all the same.
func TestATraceIsHandedOnWithoutAnExporter(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := node.Start(ctx, node.Config{DataDir: t.TempDir(), HTTPAddr: "127.0.0.1:0", ElectionTimeout: 50 * time.Millisecond, WriteLimit: calm.Patience, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(context.WithoutCancel(ctx)) }()
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	client := sdk.NewClient(sdk.ClientOptions{Addr: n.URL()})
	worker := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{n.URL()}, Logger: slog.New(slog.DiscardHandler)})
	worker.Handle("where", "1", "1", func(ctx context.Context, _ *sdk.Task) (any, error) {
		sc := trace.SpanContextFromContext(ctx)
		return sc.TraceID().String() + " " + sc.SpanID().String(), nil
	})
	life, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = worker.Run(life) })
	defer running.Wait()
	defer end()

	from, span := sdktrace.NewTracerProvider().Tracer("test").Start(ctx, "order")
	want := `"` + span.SpanContext().TraceID().String() + " " + span.SpanContext().SpanID().String() + `"`
	task, err := client.Submit(from, sdk.TaskSpec{Handler: "where"})
	if err != nil {
		t.Fatal(err)
	}
	if task, err = client.Wait(ctx, task.ID); err != nil || string(task.Result) != want {
		t.Fatalf("the handler is at %s (%v), want %s", task.Result, err, want)
	}
	again, err := client.Retry(ctx, task.ID)
	if err != nil {
		t.Fatal(err)
	}
	if again, err = client.Wait(ctx, again.ID); err != nil || string(again.Result) != want {
		t.Fatalf("the retry is at %s (%v), want %s", again.Result, err, want)
	}
	plain, err := client.Submit(ctx, sdk.TaskSpec{Handler: "where"})
	if err != nil {
		t.Fatal(err)
	}
	if plain, err = client.Wait(ctx, plain.ID); err != nil || !strings.HasPrefix(string(plain.Result), `"0000`) {
		t.Fatalf("a task without a trace is at %s (%v)", plain.Result, err)
	}
}

//nolint:paralleltest // the settings are the environment's
func TestAWrongSettingOfTracesIsNamed(t *testing.T) {
	for name, value := range map[string]string{"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
			t.Setenv(name, value)
			if _, _, err := tracesFromEnv(t.Context(), slog.Default()); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Setenv("OTEL_TRACES_EXPORTER", "")
	if provider, _, err := tracesFromEnv(t.Context(), slog.Default()); provider != nil || err != nil {
		t.Errorf("%v, %v", provider, err)
	}
}
