package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pulse/gateway/httpapi"
	pb "pulse/proto/pulse/v1"
)

// backend is a state with one task whose events can be added to.
type backend struct {
	mu     sync.Mutex
	events []*pb.EventRow
	wakes  map[chan struct{}]bool
	key    string // the last one asked for
}

func (b *backend) Submit(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	out := make([]*pb.Result, len(cmds))
	for i, c := range cmds {
		out[i] = &pb.Result{Index: 9, Body: &pb.Result_Task{Task: &pb.TaskResult{Task: &pb.TaskView{
			Task: &pb.TaskRow{Id: make([]byte, 16), Revision: 1, State: pb.TaskState_TASK_STATE_WAITING}, Payload: c.GetSubmitTask().GetPayload(),
		}}}}
	}
	return out, nil
}

func (b *backend) Read(_ context.Context, q *pb.Query) (*pb.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &pb.Answer{Index: uint64(len(b.events)) + 1}
	switch body := q.Body.(type) {
	case *pb.Query_GetKey:
		b.key = body.GetKey.Key
		a.Body = &pb.Answer_Key{Key: &pb.KeyView{Key: b.key}}
	case *pb.Query_ListTaskEvents:
		list := &pb.EventList{}
		for _, ev := range b.events {
			if ev.Version > body.ListTaskEvents.AfterVersion {
				list.Events = append(list.Events, ev)
			}
		}
		a.Body = &pb.Answer_Events{Events: list}
	}
	return a, nil
}

func (b *backend) Subscribe([]byte) (<-chan struct{}, func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wake := make(chan struct{}, 1)
	b.wakes[wake] = true
	return wake, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.wakes, wake)
	}
}

func (b *backend) AppliedIndex() uint64 { return 7 }

func (b *backend) add(state pb.TaskState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := uint64(len(b.events)) + 1
	b.events = append(b.events, &pb.EventRow{Index: n, Version: n, AggregateId: make([]byte, 16), TaskAfter: &pb.TaskRow{State: state}})
	for wake := range b.wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func runAPI(t *testing.T) (*backend, *Server, *http.Client, func(string) *bufio.ReadWriter) {
	t.Helper()
	b := &backend{wakes: map[chan struct{}]bool{}}
	api, err := httpapi.New(httpapi.Options{Backend: b, Authenticate: Loopback{}.Authenticate, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s, l, c := run(t, newConfig(func(cfg *Config) { cfg.API = api }))
	return b, s, c, func(head string) *bufio.ReadWriter {
		conn, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		return bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriterSize(conn, 1))
	}
}

const (
	submitPath = "/v1/namespaces/default/queues/default/tasks"
	watchPath  = "/v1/namespaces/default/tasks/00000000000000000000000000000001/watch"
)

func TestABodyOfOneByteASecondIsLetGo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]slowBody{
		"it is read":                 {"POST " + submitPath, "Host: 127.0.0.1", 408, 10 * time.Second},
		"it is a batch":              {"POST " + submitPath + ":batch", "Host: 127.0.0.1", 408, 30 * time.Second},
		"nothing reads it":           {"GET /v1/namespaces/default/keys/k", "Host: 127.0.0.1", 200, 0},
		"there is no such route":     {"POST /nowhere", "Host: 127.0.0.1", 404, 0},
		"it is of another host":      {"POST " + submitPath, "Host: evil.example", 403, 0},
		"its key has the wrong form": {"POST " + submitPath, "Host: 127.0.0.1\r\nIdempotency-Key: a b", 400, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, c.run)
		})
	}
}

// slowBody is a request whose body comes a byte a second.
type slowBody struct {
	line, headers string
	status        int
	within        time.Duration // the server waits for the body
}

func (c slowBody) run(t *testing.T) {
	_, _, _, dial := runAPI(t)
	conn := dial(c.line + " HTTP/1.1\r\n" + c.headers + "\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
	started := time.Now()
	tired := make(chan struct{})
	go func() {
		defer close(tired)
		for range 100 {
			if _, err := conn.Write([]byte(" ")); err != nil || conn.Flush() != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}()
	answer, err := http.ReadResponse(conn.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	// net/http reads for a while what nobody else did before it answers.
	if took := time.Since(started); answer.StatusCode != c.status || took > c.within+10*time.Second {
		t.Errorf("%d after %s: %s", answer.StatusCode, took, body)
	}
	<-tired // the server has closed the connection
	if took := time.Since(started); took > c.within+15*time.Second {
		t.Errorf("the connection was open for %s", took)
	}
}

func TestABodyIsAskedForOnlyIfItIsWanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, _, dial := runAPI(t)
		for length, want := range map[int]string{100: "100 Continue", 2 << 20: "413 Request Entity Too Large"} {
			conn := dial(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", submitPath, length))
			line, err := conn.ReadString('\n')
			if err != nil || !strings.Contains(line, want) {
				t.Errorf("%d bytes: %q, %v", length, line, err)
			}
		}
	})
}

func TestAConnectionIsUsedAgainAfterABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, s, c, _ := runAPI(t)
		for i := range 3 {
			body := `{"handler":"h","handler_version":"1","payload_version":"1","payload":1.50}`
			req, err := http.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1"+submitPath, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			answer, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != 201 || !bytes.Contains(text, []byte(`"payload":1.50`)) {
				t.Fatalf("request %d: %d %s", i, answer.StatusCode, text)
			}
			time.Sleep(time.Minute) // longer than the deadlines of the request before
		}
		if n := s.Connections(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestAKeyKeepsItsSlashOnTheWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _, c, _ := runAPI(t)
		for escaped, want := range map[string]string{"a%2Fb": "a/b", "..%2F..%2Fx": "../../x", "%2E%2E": ".."} {
			status, body, header := fetch(t, c, "GET", "http://127.0.0.1/v1/namespaces/default/keys/"+escaped)
			if status != 200 || b.key != want || header.Get("X-Pulse-Index") != "1" {
				t.Errorf("%s: %d %s, asked for %q", escaped, status, body, b.key)
			}
		}
	})
}

func TestAStreamOutlivesTheDeadlineOfAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _, _, dial := runAPI(t)
		b.add(pb.TaskState_TASK_STATE_WAITING)
		conn := dial("GET " + watchPath + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		answer, err := http.ReadResponse(conn.Reader, nil)
		if err != nil || answer.StatusCode != 200 {
			t.Fatalf("%v %v", answer, err)
		}
		go func() {
			time.Sleep(10 * time.Minute)
			b.add(pb.TaskState_TASK_STATE_RUNNING)
			time.Sleep(10 * time.Minute)
			b.add(pb.TaskState_TASK_STATE_SUCCEEDED)
		}()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if beats := strings.Count(string(text), ": heartbeat"); beats < 70 || beats > 80 || strings.Count(string(text), "data: ") != 3 {
			t.Errorf("%d heartbeats in 20 minutes:\n%s", beats, text)
		}
	})
}

func TestAReaderThatTakesNothingIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, _, dial := runAPI(t)
		b.add(pb.TaskState_TASK_STATE_WAITING)
		conn := dial("GET " + watchPath + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		started := time.Now()
		if _, err := conn.ReadByte(); err != nil { // the first byte, and no more
			t.Fatal(err)
		}
		for s.Connections() > 0 && time.Since(started) < 5*time.Minute {
			time.Sleep(time.Second)
		}
		if took := time.Since(started); s.Connections() != 0 || took > time.Minute {
			t.Errorf("%d connections after %s", s.Connections(), took)
		}
	})
}

func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, _, dial := runAPI(t)
		b.add(pb.TaskState_TASK_STATE_WAITING)
		conn := dial("GET " + watchPath + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		ended := make(chan string)
		go func() {
			answer, err := http.ReadResponse(conn.Reader, nil)
			if err != nil {
				ended <- err.Error()
				return
			}
			text, err := io.ReadAll(answer.Body)
			if err != nil {
				ended <- err.Error()
				return
			}
			ended <- string(text)
		}()
		synctest.Wait()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if text := <-ended; !strings.Contains(text, "id: 1.0.1") {
			t.Errorf("the stream ended with %q", text)
		}
	})
}
