package conformance

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pulse/cmd/node"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	"pulse/schema"
	"pulse/schema/access"
)

// Section 9: every code of the catalogue is provoked here, on each surface it
// shows on, or has a reason why nobody outside can bring it about.

var unprovokable = map[string]string{
	"session_expired": "a connection has to outlive the session it carries: its node must hang for more than a minute and come back; held in gateway/session and fsm",
	"not_leader":      "between nodes only: a node that is asked waits for a leader, or asks it, and says no_leader if there is none; held in rpc",
	"unknown_command": "needs a leader of an older version than the gateway",
	"result_unknown":  "needs a log that fails, or an office lost, with an entry under way; held in cluster, rpc and gateway/session",
	"internal":        "is a fault of the house; TestMain fails if a node logs one",
}

var provocations = map[string]func(t *testing.T){
	"invalid_frame": func(t *testing.T) {
		l := newPlace(t, nil).dial()
		id := newID()
		l.answer(id, l.sendText(id, "", []byte(`{"protocol_version":"1","message_id":"`+id+`"}`))).refusal(t, "invalid_frame")
		l.sendText("", "", []byte(`{`))
		l.closes("invalid_frame", 1008)
	},
	"invalid_argument": func(t *testing.T) {
		p := newPlace(t, nil)
		p.call("POST", p.tasks(), work(object{"priority": 10})).violates("/priority")
		p.call("POST", p.tasks(), work(object{"payload": nil})).violates("")
		p.call("POST", p.tasks(), work(object{"delay_ms": 1, "available_at": soon(0)})).refused("invalid_argument")
		p.call("POST", p.tasks(), work(object{"deadline_at": soon(-time.Hour)})).violates("/deadline_at")
		p.call("POST", p.tasks(), work(object{"start_deadline_at": soon(-time.Hour)})).violates("/start_deadline_at")
		p.call("POST", p.tasks(), work(object{"retry": object{"max_attempts": 101}})).violates("/retry/max_attempts")
		p.call("GET", "/tasks?limit=x", nil).violates("/query/limit")
		p.call("GET", "/tasks/x", nil).violates("/path/id")
		if a := p.call("POST", p.tasks(), work(nil), "Content-Encoding: gzip"); a.status != http.StatusUnsupportedMediaType {
			t.Errorf("a compressed body: %d", a.status)
		}
		if a := p.call("PATCH", p.tasks(), nil); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") == "" {
			t.Errorf("PATCH: %d, Allow %q", a.status, a.header.Get("Allow"))
		}
	},
	"unsupported_version": func(t *testing.T) {
		l := newPlace(t, nil).dial()
		id := newID()
		l.answer(id, l.sendText(id, "", []byte(`{"protocol_version":"2","type":"worker.hello","message_id":"`+id+`","body":{}}`))).refusal(t, "unsupported_version")
		l.sendText("", "", []byte(`{"protocol_version":"2"}`))
		l.closes("unsupported_version", 1008)
	},
	"unauthenticated": func(t *testing.T) {
		p := guarded(t)
		p.token = "nobody's"
		a := p.call("GET", "/tasks", nil)
		a.refused("unauthenticated")
		if a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("WWW-Authenticate is %q", a.header.Get("WWW-Authenticate"))
		}
		_, res, err := upgrade(p.house.addr, "Sec-WebSocket-Protocol: "+subprotocol)
		if err != nil || res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("without a token: %v, %v", res, err)
		}
	},
	"forbidden": func(t *testing.T) {
		p := guarded(t)
		submitter := *p
		submitter.token = "submitter"
		task := submitter.submit(nil)
		submitter.call("PUT", "/queues/more", object{}).refused("forbidden")
		submitter.act(task.ID, "review", object{"decision": "FAILED", "error_code": "x", "note": "n"}).refused("forbidden")
		elsewhere := submitter
		elsewhere.ns = "other"
		elsewhere.call("GET", "/tasks", nil).refused("forbidden")
		p.call("GET", "/tasks", nil, "Origin: http://evil.example").refused("forbidden")

		other := p.elsewhereAs("admin")
		submitter.dial().refused("forbidden", "worker.hello", other.newHello(nil)) // it may serve one namespace
		w := submitter.worker(nil)
		a := w.take(task.ID)
		a.LeaseSecret = newSecret()
		w.refused("forbidden", "task.start", a.ref())
	},
	"not_found": func(t *testing.T) {
		p := newPlace(t, nil)
		for _, path := range []string{"/tasks/" + newID(), "/queues/none", "/workers/" + newID(), "/nothing/here"} {
			p.call("GET", path, nil).refused("not_found")
		}
		p.call("POST", "/queues/none/tasks", work(nil)).refused("not_found")
		p.house.lobby(t).call("GET", "/tasks", nil).refused("not_found")
		p.dial().refused("not_found", "worker.hello", someHello())
	},
	"conflict": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		w.refused("conflict", "worker.hello", w.hello)
		p.call("DELETE", "/queues/work", nil).refused("conflict") // it has a worker
		p.call("DELETE", "", nil).refused("conflict")             // it has a queue
		a := w.run(p.submit(object{"concurrency_key": "k"}).ID)
		p.call("POST", keyPath("k")+":free", object{"note": "n"}).refused("conflict") // it is in use
		w.finish(succeeded(a))
		p.act(a.Task.ID, "cancel", object{}).refused("conflict")
	},
	"operation_conflict": func(t *testing.T) {
		p := newPlace(t, nil)
		p.call("POST", p.tasks(), work(nil), "Idempotency-Key: k").ok(http.StatusCreated)
		p.call("POST", p.tasks(), work(object{"payload": 2}), "Idempotency-Key: k").refused("operation_conflict")
		w := p.worker(nil)
		w.capacity(1, 4, false)
		w.refused("operation_conflict", "worker.capacity", capacityBody(1, 5, false))
	},
	"identity_conflict": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		p.dial().refused("identity_conflict", "worker.hello", merged(w.hello, object{"concurrency_keys": false}))
	},
	"session_required": func(t *testing.T) {
		l := newPlace(t, nil).dial()
		f := l.envelope(newID(), "worker.capacity", capacityBody(1, 1, false))
		f["session_id"] = newID()
		l.answer(f["message_id"].(string), l.send(f)).refusal(t, "session_required")
		l.closes("", 1008)
	},
	"session_superseded": func(t *testing.T) {
		w := newPlace(t, nil).worker(nil)
		old := w.link
		w.connect(nil)
		old.closes("session_superseded", 1008)
	},
	"stale_epoch": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		task := p.submit(object{"retry": again})
		a := w.run(task.ID)
		w.finish(retryable(a))
		w.take(task.ID)
		w.refused("stale_epoch", "task.renew", a.ref())
	},
	"lease_lost": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		a := w.run(p.submit(nil).ID)
		w.finish(succeeded(a))
		w.refused("lease_lost", "task.renew", a.ref())
	},
	"not_started": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		w.refused("not_started", "task.finish", succeeded(w.take(p.submit(nil).ID)))
	},
	"already_started": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		w.refused("already_started", "task.start", w.run(p.submit(nil).ID).ref())
	},
	"cancel_not_requested": func(t *testing.T) {
		p := newPlace(t, nil)
		w := p.worker(nil)
		w.refused("cancel_not_requested", "task.finish", cancelled(w.run(p.submit(nil).ID)))
	},
	"drain_is_final": func(t *testing.T) {
		w := newPlace(t, nil).worker(nil)
		w.capacity(1, 0, true)
		w.refused("drain_is_final", "worker.capacity", capacityBody(2, 4, false))
	},
	"stale_sequence": func(t *testing.T) {
		w := newPlace(t, nil).worker(nil)
		w.capacity(2, 4, false)
		w.refused("stale_sequence", "worker.capacity", capacityBody(1, 4, false))
	},
	"revision_conflict": func(t *testing.T) {
		p := newPlace(t, nil)
		task := p.submit(nil)
		problem := p.act(task.ID, "cancel", object{"expected_revision": "9"}).refused("revision_conflict")
		if problem.CurrentRevision != "1" {
			t.Errorf("the current revision is %s", problem.CurrentRevision)
		}
		p.call("PUT", "/queues/work", object{"expected_revision": "9"}).refused("revision_conflict")
		p.call("POST", "/queues/work:pause", object{"expected_revision": "9"}).refused("revision_conflict")
	},
	"queue_full": func(t *testing.T) {
		p := newPlace(t, object{"max_waiting": 1})
		p.submit(nil)
		p.call("POST", p.tasks(), work(nil)).refused("queue_full")
	},
	"rate_limited": func(t *testing.T) {
		p := guarded(t)
		p.token = "guess"
		p.until("the limit", func() (bool, any) {
			a := p.call("GET", "/tasks", nil)
			return a.status == http.StatusTooManyRequests && a.refused("rate_limited").Code != "", a.status
		})
		_, res, err := upgrade(p.house.addr, "Sec-WebSocket-Protocol: "+subprotocol, "Authorization: Bearer guess")
		if err != nil || res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" {
			t.Errorf("an upgrade: %v, %v", res, err)
		}
		q := newPlace(t, nil)
		w, l := q.worker(nil), q.dial()
		for range 8 {
			l.refused("forbidden", "worker.hello", merged(w.hello, object{"instance_secret": newSecret()}))
		}
		l.closes("rate_limited", 1008)
	},
	"too_large": func(t *testing.T) {
		p := newPlace(t, nil)
		large := strings.Repeat("x", businessBytesMax)
		p.call("POST", p.tasks(), work(object{"payload": large})).refused("too_large")
		p.call("POST", p.tasks(), padded([]byte("{}"), 2<<20)).refused("too_large")
		p.call("POST", p.tasks()+":batch", padded([]byte(`{"tasks":[]}`), 8<<20+1)).refused("too_large")
		w := p.worker(nil)
		a := w.run(p.submit(nil).ID)
		w.finishText(a, `"`+large+`"`).refusal(t, "too_large")
		w.sendText("", "", padded([]byte("{}"), frameBytesMax+1))
		w.closes("too_large", 1009)
	},
	"no_leader": func(t *testing.T) {
		h := leaderless(t, func(c *node.Config) { c.ElectionTimeout = time.Hour })
		p := h.lobby(t)
		p.call("POST", p.tasks(), work(nil)).refused("no_leader")
		p.call("GET", "/tasks", nil).refused("no_leader")
	},
	"deadline_expired": func(t *testing.T) {
		p := newPlace(t, nil)
		// A read that no node can be fresh enough for.
		p.call("GET", "/tasks?min_index=1152921504606846976", nil).refused("deadline_expired")
		// A body that does not come: HTTP has a status of its own for it.
		status, text := slowBody(t, p, 10)
		if status != http.StatusRequestTimeout || !strings.Contains(text, "urn:pulse:error:deadline_expired") {
			t.Errorf("a body that does not come: %d %s", status, text)
		}
	},
	"unavailable": func(t *testing.T) {
		// The node holds as many bodies as it can: 32 batches of 8 MiB to come.
		// Some more, for each may find a small body beside it, and on a slow disk all.
		h := own(t, nil)
		p := h.place(t, nil)
		fill := func(n int) {
			for range n {
				conn := announce(t, p, ":batch", 8<<20)
				t.Cleanup(func() { _ = conn.Close() })
			}
		}
		fill(40)
		p.until("the refusal", func() (bool, any) {
			a := p.call("POST", p.tasks(), work(nil))
			fill(1)
			return a.status == http.StatusServiceUnavailable && a.refused("unavailable").Code != "", a.status
		})
		// And a gateway that the cluster does not know takes no workers.
		l := leaderless(t, func(c *node.Config) { c.ElectionTimeout = time.Hour }).lobby(t).dial()
		l.refused("unavailable", "worker.hello", someHello())
	},
}

func TestEveryCodeIsProvokedOrHasAReasonWhyItCannotBe(t *testing.T) {
	t.Parallel()
	for _, info := range schema.Codes() {
		code := string(info.Code)
		provoke, reason := provocations[code], unprovokable[code]
		if (provoke == nil) == (reason == "") {
			t.Errorf("%s has to be in one of the two lists", code)
		}
		if status, listed := statuses[code]; listed && status != info.HTTPStatus {
			t.Errorf("%s has status %d, section 9 says %d", code, info.HTTPStatus, status)
		}
		if info.Retryable != slices.Contains(retryables, code) && code != "session_expired" && code != "unknown_command" {
			t.Errorf("%s says retryable %v", code, info.Retryable)
		}
		if provoke != nil {
			t.Run(code, func(t *testing.T) {
				t.Parallel()
				provoke(t)
			})
		}
	}
	if n := len(provocations) + len(unprovokable); n != len(schema.Codes()) {
		t.Errorf("the lists have %d codes, the catalogue %d", n, len(schema.Codes()))
	}
}

// tokens is an authenticator that demands one of its tokens.
type tokens map[string]session.Identity

func (k tokens) Authenticate(r *http.Request) (session.Identity, *schema.Error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if who, ok := k[token]; ok {
		return who, nil
	}
	return session.Identity{}, schema.Errorf(schema.Unauthenticated, "no such token")
}

func (tokens) DemandsCredential() bool { return true }

// guarded is a place of the admin in a node that demands a token. Its submitter
// may submit, read and serve there and nowhere else.
func guarded(t *testing.T) *place {
	t.Helper()
	known := tokens{"admin": {Principal: "token/admin", Grants: access.All}}
	h := own(t, func(c *node.Config) {
		c.Auth = known
		c.Limits = wsconn.Limits{FaultBurst: 4, FaultsPerSecond: 0.01}
	})
	p := h.lobby(t)
	p.token = "admin"
	// Written before anybody asks for it.
	known["submitter"] = session.Identity{
		Principal: "token/submitter", Grants: access.Grants{{Role: access.Submitter, Namespace: p.ns}, {Role: access.Worker, Namespace: p.ns}},
	}
	p.open(nil)
	return p
}

// elsewhereAs is another namespace, made with this token.
func (p *place) elsewhereAs(token string) *place {
	p.t.Helper()
	other := p.house.lobby(p.t)
	other.token = token
	other.open(nil)
	return other
}

// announce begins a request whose body does not come.
func announce(t *testing.T, p *place, suffix string, length int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.house.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	if _, err := fmt.Fprintf(conn, "POST /v1/namespaces/%s%s%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		p.ns, p.tasks(), suffix, length); err != nil {
		t.Fatal(err)
	}
	return conn
}

// slowBody is the answer to a request whose body does not come.
func slowBody(t *testing.T, p *place, length int) (status int, text string) {
	t.Helper()
	conn := announce(t, p, "", length)
	defer func() { _ = conn.Close() }()
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(answer), "HTTP/1.1 %d", &status); err != nil {
		t.Fatalf("%.100q", answer)
	}
	return status, string(answer)
}
