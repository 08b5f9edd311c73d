package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Options say what a Handler works with. Backend, Authenticate and Logger are
// required; the zero value of a number or duration means the default beside it.
type Options struct {
	Backend session.Backend
	// Authenticate finds out in whose name a request speaks. Health, metrics,
	// the OpenAPI document and its page are served to whoever reaches them.
	Authenticate func(*http.Request) (session.Identity, *schema.Error)
	Logger       *slog.Logger

	// Cluster answers for this node. Nil leaves /v1/cluster out of service and
	// makes /readyz say what this process knows by itself.
	Cluster Cluster
	// Metrics serves /metrics. Nil leaves it out.
	Metrics http.Handler
	// Observe is told of every answer; route is a pattern such as
	// "POST /v1/namespaces/{ns}/queues/{queue}/tasks", or "" if none matched.
	Observe func(method, route string, status int, took time.Duration)
	// Unauthenticated is told of every failed authentication; false says that
	// there were too many from where it came, and the answer is rate_limited.
	Unauthenticated func(*http.Request) bool
	// LogLevel is that of Logger, to be changed while the process runs. Nil: it is
	// not.
	LogLevel *slog.LevelVar
	// Tracer makes the spans of submissions. Nil makes none; the trace context of
	// a caller goes on to the worker all the same.
	Tracer trace.Tracer
	// Refusals take note of what is refused because of who asks. Nil forgets it.
	Refusals *session.Refusals
	// Owed keeps what is to go on record when there is a leader again. Nil keeps
	// nothing; the log says what is lost.
	Owed Owed
	// Version is what the OpenAPI document says of this build: "dev".
	Version string

	CallTimeout  time.Duration // 10 s for one call of the backend
	BatchTimeout time.Duration // 30 s for one call with a batch
	BodyWithin   time.Duration // 10 s for a body to arrive; three times that for a batch
	WriteWithin  time.Duration // 30 s for an answer, or one part of a stream, to be taken
	Heartbeat    time.Duration // 15 s without an event, then a stream carries a comment

	// InFlightMax bounds the requests served at a time, long polls and
	// streams not counted: 4,096. Beyond it they are refused as unavailable.
	InFlightMax int
	// WaitersMax bounds the long polls and streams: 10,000.
	WaitersMax int
	// BodyBytesMax bounds the bodies that are held at a time: 256 MiB.
	BodyBytesMax int64
	// BackupsMax bounds the backups that are made at a time: 1.
	BackupsMax int
}

// Owed is a list of commands that go on record, filled by cmd/node. Keep returns
// once the command outlives the process, or why it does not.
type Owed interface {
	Keep(*pb.Command) error
}

// Cluster is what the API asks of the node it runs on, filled by cmd/node.
type Cluster interface {
	// Status describes this node and what it knows of the others.
	Status(ctx context.Context) NodeStatus
	// Ready says whether this node can serve, or why not.
	Ready(ctx context.Context) (ready bool, reasons []string)
	// Backup writes a consistent, verified copy of the state. After an error w
	// holds nothing that is to be kept. Errors are *schema.Error as far as
	// they are meant for the caller.
	Backup(ctx context.Context, w io.Writer) error
	// Debug writes, as a tar.gz, what helps to find out what is wrong with this
	// node. No secret and no payload is in it.
	Debug(ctx context.Context, w io.Writer) error
	// Members lists the nodes that are alive and the servers that should be.
	Members(ctx context.Context) []MemberStatus
	// Transfer hands leadership to a server, or to the first that can take it if
	// id is empty. Errors are as with Backup; so are those of Remove.
	Transfer(ctx context.Context, id string) (leaderID string, err error)
	// Remove takes a server out of the cluster.
	Remove(ctx context.Context, id string, force bool) error
}

// complete checks the options and fills in the defaults.
func (o Options) complete() (Options, error) {
	switch {
	case o.Backend == nil:
		return o, errors.New("httpapi: Backend is missing: give the router")
	case o.Authenticate == nil:
		return o, errors.New("httpapi: Authenticate is missing: give the listener's authenticator")
	case o.Logger == nil:
		return o, errors.New("httpapi: Logger is missing: give one, slog.DiscardHandler for silence")
	}
	if o.Observe == nil {
		o.Observe = func(string, string, int, time.Duration) {}
	}
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if o.Unauthenticated == nil {
		o.Unauthenticated = func(*http.Request) bool { return true }
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		is    time.Duration
	}{
		{"CallTimeout", &o.CallTimeout, 10 * time.Second},
		{"BatchTimeout", &o.BatchTimeout, 30 * time.Second},
		{"BodyWithin", &o.BodyWithin, 10 * time.Second},
		{"WriteWithin", &o.WriteWithin, 30 * time.Second},
		{"Heartbeat", &o.Heartbeat, 15 * time.Second},
	} {
		if *f.value < 0 {
			return o, fmt.Errorf("httpapi: %s is %s: give a positive duration, or 0 for %s", f.name, *f.value, f.is)
		}
		if *f.value == 0 {
			*f.value = f.is
		}
	}
	for _, f := range []struct {
		name  string
		value *int
		is    int
	}{
		{"InFlightMax", &o.InFlightMax, 4096},
		{"WaitersMax", &o.WaitersMax, 10_000},
		{"BackupsMax", &o.BackupsMax, 1},
	} {
		if *f.value < 0 {
			return o, fmt.Errorf("httpapi: %s is %d: give a positive number, or 0 for %d", f.name, *f.value, f.is)
		}
		if *f.value == 0 {
			*f.value = f.is
		}
	}
	if o.BodyBytesMax == 0 {
		o.BodyBytesMax = 256 << 20
	}
	if o.BodyBytesMax < batchBytesMax {
		return o, fmt.Errorf("httpapi: BodyBytesMax is %d: one batch may have %d", o.BodyBytesMax, batchBytesMax)
	}
	return o, nil
}

// Validate names the field that is wrong.
func (o Options) Validate() error {
	_, err := o.complete()
	return err
}
