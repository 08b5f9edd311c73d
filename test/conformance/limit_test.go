package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulse/cmd/node"
	"pulse/gateway/wsconn"
)

// Section 8: limits, and what becomes of a connection that breaks them.

const (
	frameBytesMax    = 1 << 20
	businessBytesMax = 256 << 10
)

// padded fills a text with blanks at its end.
func padded(text []byte, size int) []byte {
	return append(text, strings.Repeat(" ", size-len(text))...)
}

// text is a frame with the result of a finish put in as it is.
func (l *link) text(a attempt, id, result string) []byte {
	l.t.Helper()
	f := l.envelope(id, "task.finish", finish(a, "SUCCEEDED", object{"result": "<here>"}))
	data, err := json.Marshal(f)
	if err != nil {
		l.t.Fatal(err)
	}
	return []byte(strings.Replace(string(data), `"\u003chere\u003e"`, result, 1))
}

// finishText sends a finish with a result as it is, and waits for the answer.
func (l *link) finishText(a attempt, result string) frame {
	l.t.Helper()
	id := newID()
	return l.answer(id, l.sendText(id, "task.finish", l.text(a, id, result)))
}

func TestAFrameHasAtMostOneMebibyte(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	a := w.run(p.submit(nil).ID)
	renewal := func(id string) []byte {
		data, err := json.Marshal(w.envelope(id, "task.renew", a.ref()))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	id := newID()
	if f := w.answer(id, w.sendText(id, "task.renew", padded(renewal(id), frameBytesMax))); f.Error != nil {
		t.Errorf("a frame of 1 MiB: %s", f)
	}
	w.sendText("", "", padded(renewal(newID()), frameBytesMax+1))
	w.closes("too_large", 1009)
	w.connect(nil)
	if l := w.renew(a).Lease; !l.Active {
		t.Errorf("the attempt: %+v", l)
	}
}

func TestBusinessJSONHasAtMost256KiBAsSentAndIsKeptAsSent(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	exact := string(padded([]byte(`{ "x" : 1.50 ,"y":[ ]`), businessBytesMax-1)) + "}"
	for _, c := range []struct {
		name, value string
		fits        bool
	}{
		{"exactly", exact, true},
		{"a byte more", exact[:20] + " " + exact[20:], false},
		{"a string", `"` + strings.Repeat("é", businessBytesMax/2-1) + `"`, true},
	} {
		body := `{"handler":"work","handler_version":"1","payload_version":"1","payload":` + c.value + `}`
		submitted := p.call("POST", p.tasks(), body)
		carrier := p.submit(nil)
		if c.fits {
			carrier = submitted.ok(http.StatusCreated).task()
			if string(carrier.Payload) != c.value {
				t.Errorf("%s: the payload came back with %d bytes", c.name, len(carrier.Payload))
			}
		} else {
			submitted.refused("too_large")
		}
		a := w.run(carrier.ID)
		if c.fits && string(a.Task.Payload) != c.value {
			t.Errorf("%s: the payload was delivered with %d bytes", c.name, len(a.Task.Payload))
		}
		f := w.finishText(a, c.value)
		if !c.fits {
			f.refusal(t, "too_large") // and the connection stays
			w.finish(succeeded(a))
			continue
		}
		if got := p.task(carrier.ID); f.Error != nil || string(got.Result) != c.value {
			t.Errorf("%s: %s, the result came back with %d bytes", c.name, f, len(got.Result))
		}
	}
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// values are texts in the place of business JSON, and what becomes of a frame
// with them: it is taken, it is refused, or nothing of it can be trusted.
var values = []struct {
	name, text string
	fate       string
}{
	{"a number's text", `[2.50,1E5,-0,-0.0,1e-400,0.1000000000000000055511151231257827]`, "taken"},
	{"beyond 64 bits", `12345678901234567890`, "taken"},
	{"64 digits", strings.Repeat("9", 64), "taken"},
	{"65 digits", strings.Repeat("9", 65), "refused"},
	{"a million digits", strings.Repeat("9", 200_000), "refused"},
	{"1e400", `1e400`, "refused"},
	{"1e999999999", `1e999999999`, "refused"},
	{"the largest double", `1.7976931348623157e308`, "taken"},
	{"NaN", `NaN`, "lost"},
	{"Infinity", `-Infinity`, "lost"},
	{"hexadecimal", `0x10`, "lost"},
	{"a leading zero", `01`, "lost"},
	{"null", `null`, "refused"},
	{"null inside", `{"a":null}`, "taken"},
	{"a name twice", `{"a":1,"a":1}`, "refused"},
	{"a name twice, escaped", `{"a":1,"\u0061":2}`, "refused"},
	{"a name twice, deep", `[{"x":{"y":1,"y":2}}]`, "refused"},
	{"a lone high surrogate", `"\ud800"`, "refused"},
	{"a lone low surrogate", `"\udc00\ud800"`, "refused"},
	{"a surrogate pair", `"\ud83d\ude42"`, "taken"},
	{"nul escaped", `{"\u0000":"\u0000"}`, "taken"},
	{"nul", "\"\x00\"", "lost"},
	{"a control character", "\"\x1f\"", "lost"},
	{"escapes as they were sent", `"\u0041\/\u00e9é\t"`, "taken"},
	{"blanks as they were sent", " {\n\t\"a\" : [ 1 , 2 ] } ", "taken"},
	{"markup", `"<script>&\u2028"`, "taken"},
	{"bad UTF-8", "\"\xc3\x28\"", "not UTF-8"},
	{"overlong UTF-8", "\"\xc0\xaf\"", "not UTF-8"},
	{"a surrogate in UTF-8", "\"\xed\xa0\x80\"", "not UTF-8"},
	{"a byte order mark", "\xef\xbb\xbf1", "lost"},
	{"nothing", ``, "lost"},
	{"two values", `1 2`, "lost"},
	{"a comma too many", `[1,]`, "lost"},
	{"a comment", `/**/1`, "lost"},
	{"single quotes", `{'a':1}`, "lost"},
	{"an open string", `"`, "lost"},
	{"wide", `{"a":[` + strings.Repeat("0,", 60_000) + `0]}`, "taken"},
	{"wide with names", wide(20_000), "taken"},
}

func wide(n int) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		fmt.Fprintf(&b, `"%x":0,`, i)
	}
	return b.String() + `"":0}`
}

func TestBusinessJSONIsHeldToStrictRules(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	cases := slices.Clone(values)
	// The root of a frame or body is at depth 1: a result is at 3, a payload at 2.
	// Too deep a text is not followed to its end, so nothing of it can be trusted.
	for _, depth := range []struct {
		n    int
		fate string
	}{{62, "taken"}, {63, "refused"}, {64, "refused"}, {1000, "refused"}, {100_000, "lost"}} {
		cases = append(cases, struct{ name, text, fate string }{"depth " + strconv.Itoa(depth.n), nested(depth.n), depth.fate})
	}
	for _, c := range cases {
		t.Logf("%s is %s", c.name, c.fate)
		submitted := p.call("POST", p.tasks(), `{"handler":"work","handler_version":"1","payload_version":"1","payload":`+c.text+`}`)
		var carrier task
		switch deepest := c.name == "depth 63"; {
		case c.fate == "taken" || deepest:
			carrier = submitted.ok(http.StatusCreated).task()
			if want := strings.TrimSpace(c.text); string(carrier.Payload) != want {
				t.Errorf("%s: the payload came back as %.200s", c.name, carrier.Payload)
			}
		default:
			if p := submitted.refused("invalid_argument"); len(p.Violations) == 0 {
				t.Errorf("%s: no violations: %+v", c.name, p)
			}
			carrier = p.submit(nil)
		}
		a := w.run(carrier.ID)
		id := newID()
		text := w.text(a, id, c.text)
		switch c.fate {
		case "taken":
			if !sameText(a.Task.Payload, carrier.Payload) {
				t.Errorf("%s: the payload was delivered as %.200s", c.name, a.Task.Payload)
			}
			f := w.answer(id, w.sendText(id, "task.finish", text))
			if got := p.task(carrier.ID); f.Error != nil || string(got.Result) != strings.TrimSpace(c.text) {
				t.Errorf("%s: %s; the result came back as %.200s", c.name, f, got.Result)
			}
			continue
		case "refused": // non-fatal, with reply_to
			w.answer(id, w.sendText(id, "task.finish", text)).refusal(t, "invalid_frame")
			w.alive()
		case "lost":
			w.sendText("", "", text)
			w.closes("invalid_frame", 1008)
			w.connect(nil)
		case "not UTF-8":
			w.sendText("", "", text)
			w.closes("invalid_frame", 1007)
			w.connect(nil)
		}
		if got := p.task(carrier.ID); got.State != "RUNNING" || got.Revision != "3" {
			t.Errorf("%s: the task was touched: %+v", c.name, got)
		}
		w.finish(succeeded(a))
	}
}

// mutations are the bodies that come of a value by one change in one place.
func mutations(value any, path string, yield func(path string, changed any)) {
	for _, other := range []any{nil, false, 0, -1, 1.5, "", "x", " ", object{}, []any{}, []any{nil}} {
		yield(path, other)
	}
	switch v := value.(type) {
	case object:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			without := maps.Clone(v)
			delete(without, name)
			yield(path+"/"+name+" left out", without)
			mutations(v[name], path+"/"+name, func(path string, changed any) {
				with := maps.Clone(v)
				with[name] = changed
				yield(path, with)
			})
		}
		with := maps.Clone(v)
		with["more"] = 1
		yield(path+" and more", with)
	case string:
		yield(path+" upper case", strings.ToUpper(v))
		yield(path+" longer", v+"0")
		yield(path+" with a blank", v+" ")
		yield(path+" huge", strings.Repeat("a", 5000))
	}
}

func TestAFrameThatBreaksTheSchemaIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 120_000, "offer_duration_ms": 120_000})
	w := p.worker(nil)
	a := w.take(p.submit(nil).ID)
	before := p.task(a.Task.ID)
	tried := 0
	bodies := map[string]object{
		"worker.hello": w.hello, "worker.capacity": capacityBody(1, 4, false),
		"task.start": a.ref(), "task.renew": a.ref(), "worker.resume": a.ref(), "task.finish": failed(a),
	}
	for _, kind := range slices.Sorted(maps.Keys(bodies)) {
		text, err := json.Marshal(bodies[kind])
		if err != nil {
			t.Fatal(err)
		}
		var body object // as plain JSON values
		if err := json.Unmarshal(text, &body); err != nil {
			t.Fatal(err)
		}
		mutations(body, "/body", func(path string, changed any) {
			id := newID()
			text, err := json.Marshal(merged(w.envelope(id, kind, nil), object{"body": changed}))
			if err != nil {
				t.Fatal(err)
			}
			if valid(fromClient, text) == nil {
				return // still a frame
			}
			tried++
			if f := w.answer(id, w.sendText(id, "", text)); f.Error == nil || f.Error.Code != "invalid_frame" {
				t.Errorf("%s with %s: %s\n%.500s", kind, path, f, text)
			}
		})
	}
	if tried < 300 {
		t.Errorf("only %d frames were tried", tried)
	}
	if after := p.task(a.Task.ID); after.Revision != before.Revision {
		t.Errorf("the task was touched: %+v", after)
	}
	if v := p.workerView(w.id()); v.Capacity != 4 || v.SessionID != w.SessionID {
		t.Errorf("worker %+v", v)
	}
	w.start(a)
}

func TestWhatIsWrongAroundABody(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	good := w.envelope(newID(), "worker.capacity", capacityBody(1, 4, false))
	for name, c := range map[string]struct {
		members object
		code    string
		fatal   bool
	}{
		"no version":                  {object{"protocol_version": nil}, "invalid_frame", false},
		"another version":             {object{"protocol_version": "2"}, "unsupported_version", false},
		"a version as a number":       {object{"protocol_version": 1}, "unsupported_version", false},
		"another version, no id":      {object{"protocol_version": "2", "message_id": nil}, "unsupported_version", true},
		"another version, wrong type": {object{"protocol_version": "2", "type": "worker.dance"}, "unsupported_version", false},
		"no type":                     {object{"type": nil}, "invalid_frame", false},
		"an unknown type":             {object{"type": "worker.dance"}, "invalid_frame", false},
		"a type of the server":        {object{"type": "worker.welcome"}, "invalid_frame", false},
		"no session":                  {object{"session_id": nil}, "invalid_frame", false},
		"a session that is no id":     {object{"session_id": "x"}, "invalid_frame", false},
		"an unknown member":           {object{"more": 1}, "invalid_frame", false},
		"a member of the server":      {object{"reply_to": newID()}, "invalid_frame", false},
		"no body":                     {object{"body": nil}, "invalid_frame", false},
		"no id":                       {object{"message_id": nil}, "invalid_frame", true},
		"an id that is none":          {object{"message_id": "x"}, "invalid_frame", true},
		"an id in upper case":         {object{"message_id": strings.Repeat("AB", 16)}, "invalid_frame", true},
		"an id of zero length":        {object{"message_id": ""}, "invalid_frame", true},
	} {
		f := merged(merged(good, object{"message_id": newID(), "session_id": w.SessionID}), c.members)
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if !c.fatal {
			id := f["message_id"].(string)
			answer := w.answer(id, w.sendText(id, "", text))
			if answer.Error == nil || answer.Error.Code != c.code {
				t.Errorf("%s: %s, want %s", name, answer, c.code)
			}
			continue
		}
		t.Log(name)
		w.sendText("", "", text)
		w.closes(c.code, 1008)
		w.connect(nil)
	}
	for _, text := range []string{"", " ", "{}", "[]", "null", "1", `"x"`, "{", "}", `{"a":}`, string([]byte{0})} {
		t.Logf("%q", text)
		w.sendText("", "", []byte(text))
		w.closes("invalid_frame", 1008)
		w.connect(nil)
	}
	// With two ids nobody knows which is meant.
	w.sendText("", "", []byte(`{"protocol_version":"1","type":"worker.capacity","message_id":"`+newID()+`","message_id":"`+newID()+`","body":{}}`))
	w.closes("invalid_frame", 1008)
	w.connect(nil)
	w.capacity(1, 4, false)
}

func TestAFullQueueTakesNoMoreTasks(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"max_waiting": 2})
	p.submit(nil)
	delayed := p.submit(object{"delay_ms": 60_000}) // waits too
	for range 2 {
		p.call("POST", p.tasks(), work(nil)).refused("queue_full")
	}
	p.beside("other", nil).submit(nil)
	p.cancel(delayed.ID)
	p.submit(nil)
	p.act(delayed.ID, "retry", object{}).refused("queue_full")
}

// slowSocket is a connection whose receive buffer is small, so that a reader who
// stops reading is felt by the server soon.
func slowSocket(t *testing.T, addr string) *socket {
	t.Helper()
	s := connect(t, addr)
	if err := s.conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAReaderThatStaysFullIsDisconnectedAndItsWorkStaysLeased(t *testing.T) {
	t.Parallel()
	p := newPlace(t, object{"lease_duration_ms": 60_000, "offer_duration_ms": 60_000})
	w := &worker{link: listen(t, slowSocket(t, p.house.addr)), place: p, hello: p.newHello(object{"capacity": 256}), taken: map[string]bool{}}
	w.acked(newID(), "worker.hello", w.hello)
	running := p.submit(nil)
	a := w.run(running.ID)
	w.mu.Lock() // its reader stops at the next frame
	large := `"` + strings.Repeat("x", 250<<10) + `"`
	for range 100 {
		p.call("POST", p.tasks(), `{"handler":"work","handler_version":"1","payload_version":"1","payload":`+large+`}`).ok(http.StatusCreated)
	}
	p.until("the disconnection", func() (bool, any) {
		v := p.workerView(w.id())
		return v.State == "disconnected", v
	})
	checkTask(t, p.task(running.ID), "RUNNING", "3", 1, false)
	w.mu.Unlock()
	w.drop()
	p.call("POST", "/queues/work:pause", nil).ok(0) // so that the flood stays where it is
	w.connect(object{"capacity": 1})
	w.finish(succeeded(a))
}

func TestAnAddressIsHeldToItsShareOfBadFramesAndHandshakes(t *testing.T) {
	t.Parallel()
	h := own(t, func(c *node.Config) {
		c.Limits = wsconn.Limits{FaultBurst: 4, FaultsPerSecond: 0.01, HandshakeBurst: 3, HandshakesPerSecond: 0.01, PendingMax: 2}
	})
	p := h.place(t, nil)
	first, second := p.dial(), p.dial()
	refused := func(why string) {
		t.Helper()
		_, res, err := upgrade(h.addr, "Sec-WebSocket-Protocol: "+subprotocol)
		if err != nil || res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" {
			t.Fatalf("%s: %v, %v", why, res, err)
		}
	}
	refused("two connections wait for a hello")
	for _, l := range []*link{first, second} {
		l.acked(newID(), "worker.hello", p.newHello(nil))
	}
	third := p.dial()
	refused("three handshakes were made")
	for range 4 {
		id := newID()
		third.answer(id, third.sendText(id, "", []byte(`{"protocol_version":"1","type":"x","message_id":"`+id+`"}`))).refusal(t, "invalid_frame")
	}
	id := newID()
	third.answer(id, third.sendText(id, "", []byte(`{"protocol_version":"1","type":"x","message_id":"`+id+`"}`))).refusal(t, "invalid_frame")
	third.closes("rate_limited", 1008)
	first.alive() // what behaves is left alone
}

func TestOneConnectionMayGetEightHellosWrong(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	w := p.worker(nil)
	l := p.dial()
	for range 8 {
		l.refused("forbidden", "worker.hello", merged(w.hello, object{"instance_secret": newSecret()}))
	}
	l.closes("rate_limited", 1008)
	w.alive()
}

func TestUpgradesThatAreNone(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"no subprotocol":      {nil, 426},
		"another subprotocol": {[]string{"Sec-WebSocket-Protocol: pulse.worker.v2"}, 426},
		"another origin":      {[]string{"Sec-WebSocket-Protocol: " + subprotocol, "Origin: http://evil.example"}, 403},
	} {
		_, res, err := upgrade(p.house.addr, c.headers...)
		if err != nil || res.StatusCode != c.status || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %v, %v", name, res, err)
		}
	}
	a, err := p.try("GET", "/v1/worker", nil)
	if err != nil || a.status != http.StatusUpgradeRequired {
		t.Errorf("a plain GET: %d, %v", a.status, err)
	}
	// Extensions are not spoken, several subprotocols may be offered.
	s, _, err := upgrade(p.house.addr, "Sec-WebSocket-Protocol: other, "+subprotocol, "Sec-WebSocket-Extensions: permessage-deflate")
	if err != nil || s == nil {
		t.Fatal(err)
	}
	listen(t, s).acked(newID(), "worker.hello", p.newHello(nil))
}

func TestANumberOfAQueueHasItsRange(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	for name, bad := range map[string][]any{
		"lease_duration_ms": {999, 120_001, "1000", 1.5}, "offer_duration_ms": {999, 30_001}, "max_active": {-1}, "max_waiting": {0, -1},
		"retention_ms": {0, -1}, "default_deadline_ms": {0, time.Hour.Milliseconds() * 24 * 366 * 10}, "ageing_ms": {-1}, "unknown": {1},
	} {
		for _, value := range bad {
			p.call("PUT", "/queues/bad", object{name: value}).violates("/" + name)
		}
	}
	p.call("GET", "/queues/bad", nil).refused("not_found")
}
