package conformance

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// What no library would send. Each kind of abuse gets the answer that section 8
// or the WebSocket protocol has for it, soon and cheaply, and leaves the process
// as it was.

// abuse is done to a connection that has a session.
type abuse struct {
	name  string
	bytes []byte // put on the connection as they are
	code  string // of the last error, if there is one
	close int    // 0: the connection stays
}

// join is frames side by side.
func join(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

// huge is the beginning of a frame that announces more than it will have.
func huge(length uint64) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{fin | opText, 0x80 | 127}, length), 0, 0, 0, 0)
}

// parts cuts a message into frames of at most n bytes.
func parts(text []byte, n int) (out []byte) {
	first := byte(opText)
	for ; len(text) > n; text = text[n:] {
		out = append(out, wire(first, text[:n])...)
		first = opContinue
	}
	return append(out, wire(first|fin, text)...)
}

func abuses() []abuse {
	const text = `{"a":"é"}`
	all := []abuse{
		{"an unmasked frame", append(head(fin|opText, 0, 2), "{}"...), "", 1002},
		{"the compressed bit", wire(fin|0x40|opText, []byte("{}")), "", 1002},
		{"a reserved bit", wire(fin|0x20|opText, []byte("{}")), "", 1002},
		{"another reserved bit", wire(fin|0x10|opText, []byte("{}")), "", 1002},
		{"a length of 2^63", huge(1 << 63), "", 1002},
		{"a length of 2^64-1", huge(1<<64 - 1), "", 1002},
		{"a length of 2^62 and more than fits", join(huge(1<<62), make([]byte, frameBytesMax+1)), "too_large", 1009},
		{"a continuation of nothing", wire(fin|opContinue, []byte("{}")), "", 1002},
		{"a message within a message", join(wire(opText, []byte("{")), wire(fin|opText, []byte("}"))), "", 1002},
		{"an unknown data frame", wire(fin|0x3, []byte("{}")), "", 1002},
		{"an unknown control frame", wire(fin|0xb, nil), "", 1002},
		{"a ping in parts", wire(opPing, []byte("x")), "", 1002},
		{"a ping that is too long", wire(fin|opPing, make([]byte, 126)), "", 1002},
		{"half a close code", wire(fin|opClose, []byte{3}), "", 1002},
		{"a close code nobody may send", wire(fin|opClose, []byte{1005 >> 8, 1005 & 0xff}), "", 1002},
		{"a binary frame", wire(fin|opBinary, []byte("{}")), "invalid_frame", 1003},
		{"a binary frame in parts", join(wire(opBinary, []byte("{")), wire(fin|opContinue, []byte("}"))), "invalid_frame", 1003},
		{"bad UTF-8 in one part", wire(fin|opText, []byte("{\"a\":\"\xe9\"}")), "invalid_frame", 1007},
		{"bad UTF-8 across parts", join(wire(opText, []byte("{\"a\":\"\xc3")), wire(fin|opContinue, []byte("\"}"))), "invalid_frame", 1007},
		{"good UTF-8 across parts", parts([]byte(text), 1), "invalid_frame", 1008},
		{"too much in parts", parts(padded([]byte("{}"), frameBytesMax+1), 1000), "too_large", 1009},
		{"too much in one part", wire(fin|opText, padded([]byte("{}"), frameBytesMax+1)), "too_large", 1009},
		{"nothing in many parts", join(wire(opText, nil), bytes.Repeat(wire(opContinue, nil), 5000), wire(fin|opContinue, nil)), "invalid_frame", 1008},
		{"an empty frame", wire(fin|opText, nil), "invalid_frame", 1008},
		{"many pings", bytes.Repeat(wire(fin|opPing, []byte("ping")), 2000), "", 0},
		{"pongs nobody asked for", bytes.Repeat(wire(fin|opPong, []byte("pong")), 2000), "", 0},
	}
	for _, v := range values {
		if v.fate != "lost" && v.fate != "not UTF-8" {
			continue
		}
		status := 1008
		if v.fate == "not UTF-8" {
			status = 1007
		}
		all = append(all, abuse{v.name, wire(fin|opText, []byte(v.text)), "invalid_frame", status})
	}
	for name, text := range map[string]string{
		"a million arrays":    strings.Repeat("[", frameBytesMax),
		"a million objects":   strings.Repeat(`{"":`, frameBytesMax/4),
		"a million digits":    strings.Repeat("9", frameBytesMax),
		"a long string":       `"` + strings.Repeat("x", frameBytesMax-2) + `"`,
		"as wide as it gets":  `{"` + strings.Repeat(`":0,"`, frameBytesMax/5-2) + `":0}`,
		"wide and all bad":    "[" + strings.Repeat("1e400,", frameBytesMax/6-4) + "0]",
		"names, names, names": wide(70_000),
	} {
		all = append(all, abuse{name, wire(fin|opText, []byte(text)), "invalid_frame", 1008})
	}
	return all
}

// do does it to a new connection of the worker, and returns how long the answer
// took.
func (a abuse) do(w *worker) time.Duration {
	w.t.Helper()
	w.connect(nil)
	began := time.Now()
	if err := w.sock.write(a.bytes); err != nil && a.close == 0 {
		w.t.Errorf("%s: %v", a.name, err)
	}
	if a.close == 0 {
		w.alive()
	} else {
		w.closes(a.code, a.close)
	}
	return time.Since(began)
}

// broken are requests no library would send, and the status they get; 0 is a
// connection that is closed without one.
var broken = map[string]struct {
	text   string
	status int
}{
	"no HTTP":                {"hello\r\n\r\n", 400},
	"binary":                 {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
	"no host":                {"GET /healthz HTTP/1.1\r\n\r\n", 400},
	"two hosts":              {"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
	"another name":           {"GET /v1/cluster HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403},
	"two lengths":            {"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400},
	"a negative length":      {"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400},
	"a header with a line":   {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA B: c\r\n\r\n", 400},
	"headers without end":    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", 431},
	"a path without end":     {"GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 431},
	"a chunk that is none":   {"POST /v1/namespaces/default/queues/default/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
	"a method that is none":  {"DANCE /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405},
	"a path out of its tree": {"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404},
	"another WebSocket version": {"GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 7\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: pulse.worker.v1\r\n\r\n", 400},
	"a WebSocket without a key": {"GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: pulse.worker.v1\r\nConnection: close\r\n\r\n", 400},
}

// say puts a text on a new connection and returns the status of the answer.
func say(addr, text string) (int, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	// The server may have answered and closed before all of it was taken.
	_, _ = io.WriteString(conn, text)
	answer, err := io.ReadAll(conn)
	if err != nil && len(answer) == 0 {
		return 0, err
	}
	var status int
	if _, err := fmt.Sscanf(string(answer), "HTTP/1.1 %d", &status); err != nil {
		return 0, fmt.Errorf("%.100q: %w", answer, err)
	}
	return status, nil
}

// bodies are bad bodies of a submission with the code they get.
func bodies() map[string]string {
	all := map[string]string{
		"":   "invalid_argument",
		"{}": "invalid_argument",
		`{"handler":"work","handler_version":"1","payload_version":"1","payload":"` + strings.Repeat("x", businessBytesMax) + `"}`: "too_large",
		`{"handler":"` + strings.Repeat("x", frameBytesMax) + `"}`:                                                                 "too_large",
		strings.Repeat("[", frameBytesMax-1):                                                                                       "invalid_argument",
	}
	for _, v := range values {
		if v.fate != "taken" {
			all[v.text] = "invalid_argument"
			all[`{"payload":`+v.text+`}`] = "invalid_argument"
		}
	}
	return all
}

func TestAbuseIsAnsweredAndLeavesTheProcessAsItWas(t *testing.T) {
	// Not parallel: it counts what the process has.
	h := own(t, nil)
	p := h.place(t, nil)
	w := p.worker(nil)
	task := p.submit(nil)
	a := w.run(task.ID)
	cases := abuses()
	fastest := make([]time.Duration, len(cases))
	round := func() {
		for i, c := range cases {
			took := c.do(w)
			if fastest[i] == 0 || took < fastest[i] {
				fastest[i] = took
			}
		}
		for name, c := range broken {
			if status, err := say(h.addr, c.text); err != nil || status != c.status {
				t.Errorf("%s: status %d, %v; want %d", name, status, err, c.status)
			}
		}
		for body, code := range bodies() {
			p.call("POST", p.tasks(), body).refused(code)
		}
		for range 20 { // and who leaves in the middle
			w.connect(nil)
			_ = w.sock.write(huge(1000))
			w.drop()
		}
		w.drop()
		p.client.CloseIdleConnections()
	}
	round()
	base := settledProcess(t, 0)
	for range 3 {
		round()
	}
	after := settledProcess(t, base.goroutines)
	if after.heap > base.heap+base.heap/10+2<<20 {
		t.Errorf("the heap has %d bytes, it had %d", after.heap, base.heap)
	}
	for i, c := range cases {
		// A quiet machine takes 10 ms at most; what is not bounded takes many seconds.
		if fastest[i] > pace*pace*time.Second {
			t.Errorf("%s was answered after %s", c.name, fastest[i])
		}
	}
	// The process serves, and what was under way has not been touched.
	w.connect(nil)
	checkTask(t, p.task(task.ID), "RUNNING", "3", 1, false)
	w.finish(succeeded(a))
	next := p.submit(nil)
	w.finish(succeeded(w.run(next.ID)))
	var list struct{ Tasks []json.RawMessage }
	p.call("GET", "/tasks", nil).ok(http.StatusOK).into(&list)
	if len(list.Tasks) != 2 {
		t.Errorf("there are %d tasks, want 2", len(list.Tasks))
	}
}

// process is what this process has.
type process struct {
	goroutines int
	heap       uint64
}

// settledProcess waits until the goroutines are no more than most (0: until
// their number stays), and measures.
func settledProcess(t *testing.T, most int) process {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for last, same := 0, 0; ; {
		<-tick.C
		now := runtime.NumGoroutine()
		if same++; now != last {
			last, same = now, 0
		}
		if most == 0 && same == 20 || most > 0 && now <= most {
			break
		}
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, there were %d\n%s", now, most, stacks[:runtime.Stack(stacks, true)])
		}
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what has finalizers goes with the second
	runtime.ReadMemStats(&m)
	return process{runtime.NumGoroutine(), m.HeapAlloc}
}

func TestBadInputCostsLittleMemory(t *testing.T) {
	// Not parallel: it counts what the process allocates.
	h := own(t, nil)
	p := h.place(t, nil)
	for _, c := range abuses() {
		if c.close == 0 || strings.Contains(c.name, "parts") {
			continue // a thousand frames of their own
		}
		least := ^uint64(0)
		for range 3 {
			s := connect(t, h.addr)
			hello, err := json.Marshal(object{"protocol_version": "1", "type": "worker.hello", "message_id": newID(), "body": p.newHello(nil)})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.sendText(hello); err != nil {
				t.Fatal(err)
			}
			if _, err := s.read(); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = s.write(c.bytes)
			for err = nil; err == nil; {
				_, err = s.read()
			}
			runtime.ReadMemStats(&after)
			if !errors.As(err, new(*closed)) {
				t.Fatalf("%s: %v", c.name, err)
			}
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		// Twice for the buffer, which grows with what arrives, and four times for
		// the scan of it.
		if limit := uint64(6*len(c.bytes) + 128<<10); least > limit {
			t.Errorf("%s: %d bytes cost %d", c.name, len(c.bytes), least)
		}
	}
}

func TestOneByteFragmentsAreAFrame(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	l := p.dial()
	hello := l.envelope(newID(), "worker.hello", p.newHello(nil))
	text, err := json.Marshal(hello)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	id := hello["message_id"].(string)
	l.asked[id] = &asked{kind: "worker.hello", times: 1}
	l.mu.Unlock()
	for frames := range slicesOf(parts(text, 1), 7) { // and one byte of TCP after the other
		for i := range frames {
			if err := l.sock.write(frames[i : i+1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if f := l.answer(id, 0); f.Type != "worker.welcome" {
		t.Errorf("answered with %s", f)
	}
}

// slicesOf cuts bytes into slices of n.
func slicesOf(data []byte, n int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for ; len(data) > 0; data = data[min(n, len(data)):] {
			if !yield(data[:min(n, len(data))]) {
				return
			}
		}
	}
}
