package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	pb "pulse/proto/pulse/v1"
)

// requestFits says whether a body is one the document describes.
func requestFits(t *testing.T, route *route, body []byte) error {
	t.Helper()
	s, err := theSpec()
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := s.schemaAt("/paths/" + escapePointer(route.path) + "/" + strings.ToLower(route.method) + "/requestBody/content/application~1json/schema")
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

func TestWhatTheDocumentAsksForIsTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, g := range bodyRoutes(r) {
		route, _, _ := r.handler.mux.find(g.method, request(g.method, g.target, "").URL.EscapedPath())
		body := strings.Replace(g.body, `{"handler":"x"},`, "", 1) // the golden batch has an item that is refused
		if err := requestFits(t, route, []byte(body)); err != nil {
			t.Errorf("%s: %s is taken, but %v", g.name, g.body, err)
		}
		if err := requestFits(t, route, []byte(`{"colour":1}`)); err == nil {
			t.Errorf("%s: the document lets unknown members through", g.name)
		}
	}
}

// FuzzSubmit sends any body to the hottest route: it is refused as documented,
// or it fits the document, becomes one command and comes back byte for byte.
func FuzzSubmit(f *testing.F) {
	for _, body := range badBodies {
		if len(body) < 4096 {
			f.Add([]byte(body))
		}
	}
	for _, g := range goldens {
		if strings.HasPrefix(g.name, "submit") {
			f.Add([]byte(g.body))
		}
	}
	var r *rig
	f.Fuzz(func(t *testing.T, body []byte) {
		if r == nil {
			r = newRig(t)
		}
		r.t, r.commands = t, nil // inputs come one after another
		req := httptest.NewRequest("POST", tasksPath, bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		w := newRecorder()
		r.handler.ServeHTTP(w, req)
		r.conforms(req, w)
		commands := r.commanded()
		switch w.Code {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
			if len(commands) != 0 {
				t.Fatal("refused, and a command all the same")
			}
		case http.StatusCreated:
			route, _, _ := r.handler.mux.find("POST", tasksPath)
			if err := requestFits(t, route, body); err != nil {
				t.Fatalf("taken, but %v", err)
			}
			payload := commands[0].GetSubmitTask().GetPayload()
			if len(commands) != 1 || !bytes.Contains(body, payload) || !bytes.Contains(w.Body.Bytes(), append([]byte(`"payload":`), payload...)) {
				t.Fatalf("%d commands, payload %s", len(commands), payload)
			}
		default:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}

// sink is a response that keeps nothing.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }

func benchmarkPost(b *testing.B, target, body string, tasks int) {
	backend := newBackend()
	view := sampleTask(pb.TaskState_TASK_STATE_LEASED)
	view.Payload = nil
	result := &pb.Result{Index: 80, Body: &pb.Result_Task{Task: &pb.TaskResult{Task: view}}}
	results := make([]*pb.Result, tasks)
	for i := range results {
		results[i] = result
	}
	h, err := New(Options{Backend: quick{backend, results}, Logger: discard, Authenticate: anonymous})
	if err != nil {
		b.Fatal(err)
	}
	text := []byte(body)
	reader := bytes.NewReader(text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset(text)
		req, err := http.NewRequest("POST", "http://127.0.0.1"+target, nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Body, req.ContentLength = io.NopCloser(reader), int64(len(text))
		req.Header["Content-Type"] = []string{"application/json"}
		req.Header["Idempotency-Key"] = []string{"0123456789abcdef0123456789abcdef"}
		w := &sink{header: http.Header{}}
		h.ServeHTTP(w, req)
		if w.status/100 != 2 {
			b.Fatal(w.status)
		}
	}
	b.ReportMetric(float64(b.N*tasks)/b.Elapsed().Seconds(), "tasks/s")
}

// quick answers without remembering.
type quick struct {
	*fakeBackend
	results []*pb.Result
}

func (q quick) Submit(context.Context, []*pb.Command) ([]*pb.Result, error) { return q.results, nil }

const benchTask = `{"handler":"charge","handler_version":"1","payload_version":"1","payload":{"order":"0123456789","amount":19.90,"currency":"EUR","lines":[1,2,3,4,5,6,7,8]},"business_key":"order-0123456789"}`

func BenchmarkSubmit(b *testing.B) { benchmarkPost(b, tasksPath, benchTask, 1) }

func BenchmarkSubmitBatch(b *testing.B) {
	benchmarkPost(b, tasksPath+":batch", `{"tasks":[`+strings.TrimSuffix(strings.Repeat(benchTask+",", 1000), ",")+`]}`, 1000)
}
