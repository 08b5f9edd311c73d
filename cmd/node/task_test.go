package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// object is a JSON object as it came, numbers as text.
type object map[string]any

func (o object) get(path string) any {
	var v any = map[string]any(o)
	for part := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[part]
	}
	return v
}

func (o object) text(path string) string { s, _ := o.get(path).(string); return s }

func decode(t *testing.T, data []byte) object {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var o object
	if err := d.Decode(&o); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return o
}

// call makes one HTTP request and expects a status.
func call(t *testing.T, n *Node, method, path, body string, want int) (object, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(soon(t), method, n.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != want {
		t.Fatalf("%s %s: %s\n%s", method, path, resp.Status, data)
	}
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return nil, string(data)
	}
	return decode(t, data), string(data)
}

// worker is a worker of frames and nothing else.
type worker struct {
	t       *testing.T
	ws      *websocket.Conn
	session string
	id      string // instance
	secret  string
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func dial(t *testing.T, n *Node) *worker {
	t.Helper()
	ws, _, err := websocket.Dial(soon(t), strings.Replace(n.URL(), "http", "ws", 1)+"/v1/worker", &websocket.DialOptions{Subprotocols: []string{"pulse.worker.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = ws.CloseNow() })
	return &worker{t: t, ws: ws, id: newID(), secret: strings.Repeat("a", 42) + "A"}
}

func (w *worker) send(kind string, body any) (messageID string) {
	w.t.Helper()
	messageID = newID()
	frame := map[string]any{"protocol_version": "1", "type": kind, "message_id": messageID, "body": body}
	if w.session != "" {
		frame["session_id"] = w.session
	}
	data, err := json.Marshal(frame)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.ws.Write(soon(w.t), websocket.MessageText, data); err != nil {
		w.t.Fatal(err)
	}
	return messageID
}

func (w *worker) read(kind string) object {
	w.t.Helper()
	_, data, err := w.ws.Read(soon(w.t))
	if err != nil {
		w.t.Fatalf("waiting for %s: %v", kind, err)
	}
	frame := decode(w.t, data)
	if frame.text("type") != kind {
		w.t.Fatalf("waiting for %s, got %s", kind, data)
	}
	return frame
}

// ack reads the answer to a frame.
func (w *worker) ack(messageID string) object {
	w.t.Helper()
	frame := w.read("ack")
	if frame.text("reply_to") != messageID {
		w.t.Fatalf("answer to %s, want %s", frame.text("reply_to"), messageID)
	}
	return frame
}

func (w *worker) hello(queueID string) object {
	w.t.Helper()
	id := w.send("worker.hello", map[string]any{
		"instance_id": w.id, "instance_secret": w.secret, "queue_id": queueID, "capacity": 4, "cancellation_notifications": true,
		"capabilities": []any{map[string]string{"handler": "echo", "handler_version": "1", "payload_version": "1"}},
	})
	welcome := w.read("worker.welcome")
	if welcome.text("reply_to") != id {
		w.t.Fatalf("welcome %v", welcome)
	}
	w.session = welcome.text("session_id")
	return welcome
}

// attempt is what a worker says an attempt by.
func attempt(assign object) map[string]any {
	return map[string]any{
		"task_id": assign.text("body.task.id"), "attempt_id": assign.text("body.attempt_id"),
		"epoch": assign.text("body.epoch"), "lease_secret": assign.text("body.lease_secret"),
	}
}

const (
	queuePath = "/v1/namespaces/default/queues/default"
	tasksPath = "/v1/namespaces/default/tasks/"
)

func queueID(t *testing.T, n *Node) string {
	t.Helper()
	q, _ := call(t, n, "GET", queuePath, "", 200)
	return q.text("id")
}

func TestATaskGoesFromSubmissionToItsResult(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	w := dial(t, n)
	w.hello(queueID(t, n))

	task, _ := call(t, n, "POST", queuePath+"/tasks", `{"handler":"echo","handler_version":"1","payload_version":"1","payload":{"amount":2.50}}`, 201)
	assign := w.read("task.assign")
	if assign.text("body.task.id") != task.text("id") {
		t.Fatalf("assigned %v", assign)
	}
	started := w.ack(w.send("task.start", attempt(assign)))
	if started.text("body.receipt.task_state") != "RUNNING" {
		t.Fatalf("start answered %v", started)
	}
	finished := w.ack(w.send("task.finish", map[string]any{
		"ref": attempt(assign), "outcome": "SUCCEEDED", "result": json.RawMessage(`{"paid":2.50}`), "error_code": "",
	}))
	if finished.text("body.receipt.task_state") != "SUCCEEDED" || finished.text("body.receipt.disposition") != "APPLIED" {
		t.Fatalf("finish answered %v", finished)
	}

	done, raw := call(t, n, "GET", tasksPath+task.text("id")+"?wait_state=terminal&timeout_ms=5000", "", 200)
	if done.text("state") != "SUCCEEDED" || !strings.Contains(raw, `"paid":2.50`) || !strings.Contains(raw, `"amount":2.50`) {
		t.Errorf("the task is %s", raw)
	}
	events, _ := call(t, n, "GET", tasksPath+task.text("id")+"/events", "", 200)
	if list, _ := events.get("events").([]any); len(list) < 4 {
		t.Errorf("events %v", events)
	}
}

func TestARestartKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	n := startNode(t, cfg)
	w := dial(t, n)
	w.hello(queueID(t, n))
	task, _ := call(t, n, "POST", queuePath+"/tasks", `{"handler":"echo","handler_version":"1","payload_version":"1","payload":{}}`, 201)
	assign := w.read("task.assign")
	w.ack(w.send("task.start", attempt(assign)))

	if err := n.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	_, _, err := w.ws.Read(soon(t))
	if code := websocket.CloseStatus(err); code != websocket.StatusGoingAway {
		t.Errorf("the worker's connection ended with %v", err)
	}

	n = startNode(t, cfg)
	again, _ := call(t, n, "GET", tasksPath+task.text("id"), "", 200)
	if again.text("state") != "RUNNING" {
		t.Fatalf("after the restart the task is %v", again)
	}
	// The same worker comes back and ends what it began, with the secret it was
	// given by the first process.
	back := dial(t, n)
	back.id, back.secret = w.id, w.secret
	back.hello(queueID(t, n))
	finished := back.ack(back.send("task.finish", map[string]any{"ref": attempt(assign), "outcome": "SUCCEEDED", "result": map[string]any{}, "error_code": ""}))
	if finished.text("body.receipt.task_state") != "SUCCEEDED" {
		t.Errorf("finish answered %v", finished)
	}
}

func TestAWorkerThatDoesNotStartIsToldAgain(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	w := dial(t, n)
	w.hello(queueID(t, n))
	// The repeat comes after a third of the offer, and long before the offer has ended.
	settings := `{"offer_duration_ms":12000,"lease_duration_ms":12000}`
	call(t, n, "PUT", queuePath, settings, 200)
	call(t, n, "POST", queuePath+"/tasks", `{"handler":"echo","handler_version":"1","payload_version":"1","payload":{}}`, 201)
	first, second := w.read("task.assign"), w.read("task.assign")
	for _, same := range []string{"body.attempt_id", "body.epoch", "body.lease_secret"} {
		if first.text(same) == "" || first.text(same) != second.text(same) {
			t.Errorf("%s is %q, then %q", same, first.text(same), second.text(same))
		}
	}
	if first.text("message_id") == second.text("message_id") {
		t.Error("a repeat came under the same message id")
	}
}

func TestACancelReachesARunningWorker(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	w := dial(t, n)
	w.hello(queueID(t, n))
	task, _ := call(t, n, "POST", queuePath+"/tasks", `{"handler":"echo","handler_version":"1","payload_version":"1","payload":{}}`, 201)
	assign := w.read("task.assign")
	w.ack(w.send("task.start", attempt(assign)))
	call(t, n, "POST", tasksPath+task.text("id")+":cancel", `{}`, 200)
	if told := w.read("task.cancel"); told.text("body.attempt_id") != assign.text("body.attempt_id") {
		t.Errorf("told %v", told)
	}
	finished := w.ack(w.send("task.finish", map[string]any{"ref": attempt(assign), "outcome": "CANCELLED", "result": map[string]any{}, "error_code": "stopped"}))
	if finished.text("body.receipt.task_state") != "CANCELLED" {
		t.Errorf("finish answered %v", finished)
	}
}

func TestHealthReadinessAndMetricsAreServed(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	call(t, n, "GET", "/healthz", "", 200)
	call(t, n, "GET", "/readyz", "", 200)
	status, _ := call(t, n, "GET", "/v1/cluster", "", 200)
	if status.text("node.role") != "leader" {
		t.Errorf("status %v", status)
	}
	for _, want := range []string{"pulse_leader 1", "pulse_ready 1", `pulse_tasks_waiting{namespace="default",queue="default",reason="ready"} 0`,
		`pulse_http_requests_total{method="GET",route="GET /v1/cluster",status="200"} 1`, "go_goroutines"} {
		// A request is counted when it is done, its answer may be read before.
		eventually(t, want+" is among the metrics", func() bool { return strings.Contains(metricsOf(t, n), want) })
	}
	if strings.Contains(metricsOf(t, n), string(n.dir.secret)) {
		t.Error("the cluster secret is among the metrics")
	}
}

func TestACloseEndsLongPollsAndStreams(t *testing.T) {
	t.Parallel()
	n := startAnyway(t, testConfig(t))
	task, _ := call(t, n, "POST", queuePath+"/tasks", `{"handler":"echo","handler_version":"1","payload_version":"1","payload":{}}`, 201)
	ended := make(chan error, 2)
	for _, path := range []string{tasksPath + task.text("id") + "?wait_state=terminal&timeout_ms=60000", tasksPath + task.text("id") + "/watch"} {
		go func() {
			req, err := http.NewRequestWithContext(context.Background(), "GET", n.URL()+path, nil)
			if err == nil {
				var resp *http.Response
				if resp, err = http.DefaultClient.Do(req); err == nil {
					_, err = io.ReadAll(resp.Body)
					err = errors.Join(err, resp.Body.Close())
				}
			}
			ended <- err
		}()
	}
	eventually(t, "both watchers wait", func() bool { return n.front.api.Waiters() == 2 })
	if err := n.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("a watcher ended with %v", err)
			}
		case <-soon(t).Done():
			t.Fatal("a watcher outlived its node")
		}
	}
}
