package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"time"

	"pulse/schema"
	"pulse/schema/apiv1"
)

// What is for those who look after one node: its log level and its profiles. Both
// are of the node that is asked, not of the cluster.

// profileSecondsMax bounds a profile over time; one that is asked for without a
// length takes profileSeconds.
const (
	profileSeconds    = 10
	profileSecondsMax = 60
)

// profiles are what the Go runtime keeps, and the two that are taken over time.
var profiles = []string{"allocs", "block", "cpu", "goroutine", "heap", "mutex", "threadcreate", "trace"}

// getProfile is GET /debug/pprof/{profile}. It carries no payload of a task: a
// profile names functions, not values.
func getProfile(e *exchange) error {
	if !slices.Contains(profiles, e.profile) {
		return schema.Errorf(schema.NotFound, "there is no profile %q: ask for one of %s", e.profile, joined(profiles))
	}
	seconds := profileSeconds
	if text := e.query.get("seconds"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > profileSecondsMax {
			e.query.fault("seconds", "must be 1 to %d", profileSecondsMax)
		}
		seconds = n
	}
	if debug := e.query.get("debug"); debug != "" && debug != "0" && debug != "1" {
		// At 2 goroutines come with their arguments.
		e.query.fault("debug", "must be 0 or 1")
	}
	if err := e.query.err(); err != nil {
		return err
	}
	query := e.r.URL.Query()
	query.Del("seconds")
	var serve http.Handler
	switch e.profile {
	case "cpu":
		serve = http.HandlerFunc(pprof.Profile)
		query.Set("seconds", strconv.Itoa(seconds))
	case "trace":
		serve = http.HandlerFunc(pprof.Trace)
		query.Set("seconds", strconv.Itoa(seconds))
	default:
		serve, seconds = pprof.Handler(e.profile), 0
	}
	e.r = e.r.Clone(e.r.Context())
	e.r.URL.RawQuery = query.Encode()
	return e.passWithin(serve, time.Duration(seconds)*time.Second+e.h.opt.WriteWithin)
}

// getLogLevel is GET /v1/cluster/log-level.
func getLogLevel(e *exchange) error {
	if e.h.opt.LogLevel == nil {
		return noLogLevel()
	}
	if err := e.query.err(); err != nil {
		return err
	}
	return e.answerShape(LogLevel{Level: levelName(e.h.opt.LogLevel.Level()), NodeID: e.nodeID()})
}

// putLogLevel is PUT /v1/cluster/log-level. It holds until the process ends.
func putLogLevel(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	asked, refusal := apiv1.DecodeLogLevel(body)
	if refusal != nil {
		return refusal
	}
	if e.h.opt.LogLevel == nil {
		return noLogLevel()
	}
	was := e.h.opt.LogLevel.Level()
	e.h.opt.LogLevel.Set(asked.Level)
	// At whatever level, the change itself is there to be read.
	e.h.opt.Logger.Log(e.r.Context(), max(asked.Level, slog.LevelInfo), "log level changed", "was", levelName(was), "is", levelName(asked.Level), "by", e.who.Principal)
	node := e.nodeID()
	e.recordAnyway(deed{action: "pulse.cluster.LogLevel", target: node}, levelName(was)+" to "+levelName(asked.Level))
	return e.answerShape(LogLevel{Level: levelName(asked.Level), NodeID: node})
}

func (e *exchange) nodeID() string {
	if e.h.opt.Cluster == nil {
		return ""
	}
	return e.h.opt.Cluster.Status(e.r.Context()).ID
}

func noLogLevel() error {
	return schema.Errorf(schema.Conflict, "the log level of this process cannot be changed while it runs; start it anew with another one")
}

// levelName is a level as flags and the API spell it.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}
