package conformance

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulse/schema"
)

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

func newSecret() string {
	var secret [32]byte
	_, _ = rand.Read(secret[:])
	return base64.RawURLEncoding.EncodeToString(secret[:])
}

// link is one connection of a worker. Its goroutine reads until the connection
// is over and holds every frame to the contract; the test's own goroutine sends
// and waits.
type link struct {
	t    *testing.T
	sock *socket

	mu      sync.Mutex
	changed chan struct{}     // closed and replaced with every frame
	asked   map[string]*asked // frames sent, by message id
	seen    map[string]bool   // message ids of the server
	session string            // once welcomed
	assigns []attempt
	cancels []cancellation
	last    *frame // an error that answers nothing: the connection has to end
	end     error  // why reading ended
	secrets []string
}

// asked is a frame that was sent, once or several times.
type asked struct {
	kind    string
	times   int
	answers []frame
}

// attempt is what an assignment offers.
type attempt struct {
	Task             task
	AttemptID        string `json:"attempt_id"`
	Epoch            string
	LeaseSecret      string    `json:"lease_secret"`
	LeaseUntil       time.Time `json:"lease_until"`
	ServerTime       time.Time `json:"server_time"`
	ConcurrencyToken string    `json:"concurrency_token"`

	messageID string
	heard     time.Time
}

func (a attempt) ref() object {
	return object{"task_id": a.Task.ID, "attempt_id": a.AttemptID, "epoch": a.Epoch, "lease_secret": a.LeaseSecret}
}

// cancellation is the body of task.cancel.
type cancellation struct {
	TaskID      string `json:"task_id"`
	AttemptID   string `json:"attempt_id"`
	Epoch       string
	RequestedAt time.Time `json:"requested_at"`
}

// lease is the authority an attempt has.
type lease struct {
	Active            bool
	State             string
	LeaseUntil        time.Time `json:"lease_until"`
	ServerTime        time.Time `json:"server_time"`
	CancelRequestedAt time.Time `json:"cancel_requested_at"`
}

type receipt struct {
	Operation    string
	TaskState    string    `json:"task_state"`
	AttemptState string    `json:"attempt_state"`
	TaskRevision string    `json:"task_revision"`
	LeaseUntil   time.Time `json:"lease_until"`
	Disposition  string
}

// result is the answer to start, renew and finish.
type result struct {
	Receipt      receipt
	Lease        lease
	Deduplicated bool
}

// welcome is the body of worker.welcome.
type welcome struct {
	SessionID     string    `json:"session_id"`
	Epoch         string    `json:"epoch"`
	ServerTime    time.Time `json:"server_time"`
	ExpiresAt     time.Time `json:"expires_at"`
	LeaseDuration int64     `json:"lease_duration_ms"`
	Draining      bool
}

// dial opens a connection that has not said hello.
func (p *place) dial() *link {
	p.t.Helper()
	var headers []string
	if p.token != "" {
		headers = append(headers, "Authorization: Bearer "+p.token)
	}
	return listen(p.t, connect(p.t, p.house.addr, headers...))
}

// listen reads a socket from now on.
func listen(t *testing.T, sock *socket) *link {
	l := &link{
		t: t, sock: sock, changed: make(chan struct{}),
		asked: map[string]*asked{}, seen: map[string]bool{},
	}
	var reading sync.WaitGroup
	reading.Go(l.read)
	t.Cleanup(func() {
		_ = sock.conn.Close()
		reading.Wait()
	})
	return l
}

func (l *link) read() {
	for {
		text, err := l.sock.read()
		l.mu.Lock()
		if err == nil {
			err = l.take(text)
		} else if l.last != nil && !errors.As(err, new(*closed)) {
			err = fmt.Errorf("after a fatal error there was no close frame: %w", err)
		}
		if err != nil {
			l.end = err
		}
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
		if err != nil {
			_ = l.sock.conn.Close()
			return
		}
	}
}

// take holds a frame to the contract: the schema, and the rules it cannot say.
// l.mu is held.
func (l *link) take(text []byte) error {
	broken := func(format string, args ...any) error {
		err := fmt.Errorf(format+": %.300s", append(args, text)...)
		l.t.Error(err)
		return err
	}
	if err := valid(fromServer, text); err != nil {
		return broken("a frame breaks the schema (%v)", err)
	}
	var f frame
	if err := json.Unmarshal(text, &f); err != nil {
		return broken("a frame cannot be read (%v)", err)
	}
	if l.last != nil {
		return broken("a frame after a fatal error")
	}
	if l.seen[f.MessageID] {
		return broken("a message id is used twice")
	}
	l.seen[f.MessageID] = true
	question := l.asked[f.ReplyTo]
	switch {
	case f.ReplyTo != "" && (question == nil || len(question.answers) == question.times):
		return broken("an answer to a frame that nobody sent or that has its answer")
	case f.SessionID != l.session && f.Type != "worker.welcome":
		return broken("a frame of another session than %q", l.session)
	case f.ReplyTo != "" && f.Error == nil:
		if err := f.answers(question.kind); err != nil {
			return broken("%v", err)
		}
	}
	switch f.Type {
	case "worker.welcome":
		var w welcome
		if err := json.Unmarshal(f.Body, &w); err != nil || l.session != "" || w.SessionID != f.SessionID {
			return broken("a welcome in session %q", l.session)
		}
		l.session = f.SessionID
	case "task.assign":
		a := attempt{messageID: f.MessageID, heard: time.Now()}
		if err := json.Unmarshal(f.Body, &a); err != nil {
			return broken("%v", err)
		}
		l.secrets = append(l.secrets, a.LeaseSecret)
		l.assigns = append(l.assigns, a)
	case "task.cancel":
		var c cancellation
		if err := json.Unmarshal(f.Body, &c); err != nil {
			return broken("%v", err)
		}
		l.cancels = append(l.cancels, c)
	case "error":
		for _, secret := range l.secrets {
			if strings.Contains(f.Error.Message, secret) {
				return broken("an error tells a secret")
			}
		}
		if _, known := schema.Lookup(schema.Code(f.Error.Code)); !known {
			return broken("a code that is not in the catalogue")
		}
		if f.ReplyTo == "" || schema.Code(f.Error.Code).Fatal() {
			l.last = &f
		}
	}
	if question != nil {
		question.answers = append(question.answers, f)
	}
	return nil
}

// await waits until the connection has what a test waits for.
func (l *link) await(what string, have func() bool) {
	l.t.Helper()
	if !l.within(patience, have) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t.Fatalf("waited for %s; the connection: last error %v, end %v", what, l.last, l.end)
	}
}

// within waits for a condition at most that long, or until the connection is
// over. have is called with l.mu held.
func (l *link) within(d time.Duration, have func() bool) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		ok, over, changed := have(), l.end != nil, l.changed
		l.mu.Unlock()
		if ok || over {
			return ok
		}
		select {
		case <-changed:
		case <-timeout.C:
			return false
		}
	}
}

// envelope is a frame with a body.
func (l *link) envelope(id, kind string, body any) object {
	f := object{"protocol_version": "1", "type": kind, "message_id": id, "body": body}
	if kind != "worker.hello" {
		l.mu.Lock()
		f["session_id"] = l.session
		l.mu.Unlock()
	}
	return f
}

// send sends a frame that keeps the contract, and returns how often it was sent
// before.
func (l *link) send(f object) (before int) {
	l.t.Helper()
	text, err := json.Marshal(f)
	if err == nil {
		err = valid(fromClient, text)
	}
	if err != nil {
		l.t.Fatalf("this test breaks the contract: %v", err)
	}
	return l.sendText(f["message_id"].(string), f["type"].(string), text)
}

// sendText sends what need not keep the contract. A frame that has to be
// answered has an id.
func (l *link) sendText(id, kind string, text []byte) (before int) {
	l.t.Helper()
	l.mu.Lock()
	q := l.asked[id]
	if q == nil {
		q = &asked{kind: kind}
		if id != "" {
			l.asked[id] = q
		}
	}
	before = q.times
	q.times++
	l.mu.Unlock()
	if err := l.sock.sendText(text); err != nil {
		l.t.Logf("send: %v", err) // whoever waits for the answer will see
	}
	return before
}

// answer waits for the answer to the n-th sending of a frame.
func (l *link) answer(id string, n int) (f frame) {
	l.t.Helper()
	l.await("the answer to "+l.asked[id].kind, func() bool {
		if len(l.asked[id].answers) <= n {
			return false
		}
		f = l.asked[id].answers[n]
		return true
	})
	return f
}

// ask sends a frame under an id and waits for its answer.
func (l *link) ask(id, kind string, body any) frame {
	l.t.Helper()
	return l.answer(id, l.send(l.envelope(id, kind, body)))
}

// acked is ask for what has to succeed.
func (l *link) acked(id, kind string, body any) frame {
	l.t.Helper()
	f := l.ask(id, kind, body)
	if f.Error != nil {
		l.t.Fatalf("%s was refused: %s (%s)", kind, f.Error.Code, f.Error.Message)
	}
	return f
}

// refused is ask for what has to fail with a code.
func (l *link) refused(code, kind string, body any) {
	l.t.Helper()
	l.ask(newID(), kind, body).refusal(l.t, code)
}

func (f frame) refusal(t *testing.T, code string) {
	t.Helper()
	if f.Error == nil || f.Error.Code != code {
		t.Fatalf("the answer is %s, want %s", f, code)
	}
}

// closes waits for the end of the connection: a last error with this code that
// answers nothing (none: ""), and a close frame.
func (l *link) closes(code string, status int) {
	l.t.Helper()
	l.await("the end of the connection", func() bool { return l.end != nil })
	l.mu.Lock()
	defer l.mu.Unlock()
	var end *closed
	if !errors.As(l.end, &end) || end.code != status {
		l.t.Fatalf("the connection ended with %v (last error %v), want %d", l.end, l.last, status)
	}
	got := ""
	if l.last != nil && l.last.ReplyTo == "" {
		got = l.last.Error.Code
	}
	if got != code {
		l.t.Fatalf("before the close came %v, want %q", l.last, code)
	}
}

// alive says that the connection is still served.
func (l *link) alive() {
	l.t.Helper()
	l.refused("conflict", "worker.hello", someHello())
}

// someHello is a hello that keeps the contract, of a queue that does not exist.
func someHello() object {
	return object{
		"instance_id": newID(), "instance_secret": newSecret(), "queue_id": newID(), "capacity": 4,
		"cancellation_notifications": true, "concurrency_keys": true,
		"capabilities": []object{capability("work", "1", "1")},
	}
}

func capability(handler, version, payload string) object {
	return object{"handler": handler, "handler_version": version, "payload_version": payload}
}

// worker is one worker process: an identity, and its connection of the moment.
type worker struct {
	*link
	place *place
	hello object
	welcome
	taken map[string]bool // attempts that take has returned
}

// newHello is a hello for the queue of this place, with members laid over it.
func (p *place) newHello(members object) object {
	return merged(merged(someHello(), object{"queue_id": p.queueID}), members)
}

// worker connects one that takes up to four tasks, wants to hear of cancels and
// can use keys, unless the members of its hello say otherwise.
func (p *place) worker(members object) *worker {
	p.t.Helper()
	w := &worker{place: p, hello: p.newHello(members), taken: map[string]bool{}}
	w.connect(nil)
	return w
}

func (w *worker) id() string { return w.hello["instance_id"].(string) }

// connect makes another connection the worker's own. Members are laid over its
// hello, this once.
func (w *worker) connect(members object) {
	w.place.t.Helper()
	l := w.place.dial()
	l.secrets = append(l.secrets, w.hello["instance_secret"].(string))
	f := l.acked(newID(), "worker.hello", merged(w.hello, members))
	w.link, w.welcome = l, welcome{}
	f.into(w.t, &w.welcome)
}

func (f frame) into(t *testing.T, value any) {
	t.Helper()
	if err := json.Unmarshal(f.Body, value); err != nil {
		t.Fatal(err)
	}
}

// drop ends the connection without a word.
func (w *worker) drop() {
	w.t.Helper()
	_ = w.sock.conn.Close()
	w.await("the end of the connection", func() bool { return w.end != nil })
}

// take waits for an attempt of the task that it has not returned before.
func (w *worker) take(taskID string) (a attempt) {
	w.t.Helper()
	w.await("an assignment of "+taskID, func() bool {
		for _, a = range w.assigns {
			if a.Task.ID == taskID && !w.taken[a.AttemptID] {
				w.taken[a.AttemptID] = true
				return true
			}
		}
		return false
	})
	return a
}

// offers are the assignments on this connection so far, repeats included.
func (l *link) offers() []attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.assigns)
}

// hints counts the cancellations on this connection so far.
func (l *link) hints() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.cancels)
}

// told are the deliveries of an attempt on this connection so far.
func (l *link) told(attemptID string) []attempt {
	return slices.DeleteFunc(l.offers(), func(a attempt) bool { return a.AttemptID != attemptID })
}

// cancelled waits for the word that an attempt should stop.
func (l *link) cancelled(a attempt) (c cancellation) {
	l.t.Helper()
	l.await("a cancellation of "+a.AttemptID, func() bool {
		for _, c = range l.cancels {
			if c.AttemptID == a.AttemptID {
				return true
			}
		}
		return false
	})
	if c.TaskID != a.Task.ID || c.Epoch != a.Epoch || c.RequestedAt.IsZero() {
		l.t.Errorf("cancellation %+v of attempt %+v", c, a)
	}
	return c
}

// operate is start, renew or finish under a new id, which has to succeed.
func (w *worker) operate(kind string, body any) result {
	w.t.Helper()
	return w.operateAs(newID(), kind, body)
}

func (w *worker) operateAs(id, kind string, body any) (r result) {
	w.t.Helper()
	w.acked(id, kind, body).into(w.t, &r)
	return r
}

func (w *worker) start(a attempt) result {
	w.t.Helper()
	return w.operate("task.start", a.ref())
}

func (w *worker) renew(a attempt) result {
	w.t.Helper()
	return w.operate("task.renew", a.ref())
}

func (w *worker) finish(body object) result {
	w.t.Helper()
	return w.operate("task.finish", body)
}

func (w *worker) resume(a attempt) (l lease) {
	w.t.Helper()
	w.acked(newID(), "worker.resume", a.ref()).into(w.t, &l)
	return l
}

// capacity replaces the capacity.
func (w *worker) capacity(sequence int, capacity int, drain bool) (v welcome) {
	w.t.Helper()
	w.acked(newID(), "worker.capacity", capacityBody(sequence, capacity, drain)).into(w.t, &v)
	return v
}

func capacityBody(sequence int, capacity int, drain bool) object {
	return object{"sequence": fmt.Sprint(sequence), "capacity": capacity, "drain": drain}
}

// run takes a task and starts it.
func (w *worker) run(taskID string) attempt {
	w.t.Helper()
	a := w.take(taskID)
	w.start(a)
	return a
}

// Bodies of finish.

func finish(a attempt, outcome string, members object) object {
	body := object{"ref": a.ref(), "outcome": outcome, "result": object{}}
	if outcome != "SUCCEEDED" {
		body["error_code"] = strings.ToLower(outcome)
	}
	return merged(body, members)
}

func succeeded(a attempt) object { return finish(a, "SUCCEEDED", nil) }
func unknown(a attempt) object   { return finish(a, "UNKNOWN", nil) }
func cancelled(a attempt) object { return finish(a, "CANCELLED", nil) }
func failed(a attempt) object    { return finish(a, "FAILED", nil) }
func retryable(a attempt) object { return finish(a, "FAILED", object{"retryable": true}) }

// sameText compares the JSON of two values, as a client would see it.
func sameText(a, b json.RawMessage) bool { return bytes.Equal(a, b) }

// kinds are the types of frames the server has sent on a connection.
func (l *link) kinds() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := map[string]bool{}
	for _, q := range l.asked {
		for _, f := range q.answers {
			found[f.Type] = true
		}
	}
	if len(l.assigns) > 0 {
		found["task.assign"] = true
	}
	if len(l.cancels) > 0 {
		found["task.cancel"] = true
	}
	return slices.Sorted(maps.Keys(found))
}
