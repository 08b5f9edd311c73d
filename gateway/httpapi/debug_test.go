package httpapi

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pulse/gateway/session"
	"pulse/schema"
	"pulse/schema/access"
)

func TestTheLogLevelIsChangedWhileTheNodeRuns(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	level := new(slog.LevelVar)
	level.Set(slog.LevelError)
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level}))
	r := newRig(t, func(o *Options) { o.Logger, o.LogLevel = logger, level })
	if w := r.do("GET", "/v1/cluster/log-level", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"level":"error"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.do("PUT", "/v1/cluster/log-level", `{"level":"debug"}`); w.Code != 200 || !strings.Contains(w.Body.String(), `"level":"debug"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !logger.Enabled(context.Background(), slog.LevelDebug) || !strings.Contains(log.String(), `"is":"debug"`) {
		t.Errorf("nothing has changed: %s", log.String())
	}
	for _, body := range []string{`{}`, `{"level":"loud"}`, `{"level":"info","more":1}`, ``} {
		if w := r.do("PUT", "/v1/cluster/log-level", body); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	}
	if level.Level() != slog.LevelDebug {
		t.Error("a refused change has changed the level")
	}
	none := newRig(t, func(o *Options) { o.LogLevel = nil })
	for _, c := range [][2]string{{"GET", ""}, {"PUT", `{"level":"debug"}`}} {
		if w := none.do(c[0], "/v1/cluster/log-level", c[1]); w.Code != http.StatusConflict || strings.Contains(w.Body.String(), `"retryable":true`) {
			t.Errorf("%s without a level: %d %s", c[0], w.Code, w.Body)
		}
	}
}

func TestProfilesAreTakenAndBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := httptest.NewRecorder() // its answer as text is one of two media types, and the document has one
	r.handler.ServeHTTP(w, request("GET", "/debug/pprof/goroutine?debug=1", ""))
	if w.Code != 200 || !strings.Contains(w.Body.String(), "goroutine profile") {
		t.Errorf("%d %.200s", w.Code, w.Body)
	}
	if w := r.do("GET", "/debug/pprof/heap", ""); w.Code != 200 || w.Body.Len() == 0 || w.Body.Bytes()[0] != 0x1f {
		t.Errorf("a heap profile is no gzip: %d, %d bytes", w.Code, w.Body.Len())
	}
	for target, want := range map[string]int{
		"/debug/pprof/nothing": 404, "/debug/pprof/cmdline": 404, "/debug/pprof/": 404, "/debug/pprof": 404,
		"/debug/pprof/cpu?seconds=0": 400, "/debug/pprof/cpu?seconds=3600": 400, "/debug/pprof/trace?seconds=x": 400,
		"/debug/pprof/goroutine?debug=2": 400, "/debug/pprof/heap?gc=1": 400,
	} {
		if w := r.do("GET", target, ""); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

// A profile and the log level are for those who command the cluster.
func TestDebuggingIsForAdmins(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *Options) {
		o.Authenticate = func(*http.Request) (session.Identity, *schema.Error) {
			return session.Identity{Principal: "somebody", Grants: access.Grants{{Role: access.Operator, Namespace: access.Everywhere}}}, nil
		}
	})
	for _, c := range [][3]string{
		{"GET", "/debug/pprof/heap", ""}, {"GET", "/v1/cluster/log-level", ""}, {"PUT", "/v1/cluster/log-level", `{"level":"debug"}`},
	} {
		if w := r.do(c[0], c[1], c[2]); w.Code != http.StatusForbidden {
			t.Errorf("%s %s: %d for an operator", c[0], c[1], w.Code)
		}
	}
}
