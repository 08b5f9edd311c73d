// Package access tries, on a real node, every method of the HTTP API as every role
// in every place, and worker tokens on the WebSocket, and holds what happens against
// the table. Its mutants break rules of access and must be found.
package access

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"pulse/cmd/node"
	"pulse/gateway/wsconn"
	"pulse/schema/access"
	"pulse/sdk"
	"pulse/test/calm"
	"pulse/test/mutant"
)

// house is a node that asks everybody for a token.
type house struct {
	url   string
	admin *sdk.Client
}

func build(t *testing.T) *house {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admin.token")
	ctx, cancel := context.WithTimeout(t.Context(), 2*calm.Patience)
	defer cancel()
	n, err := node.Start(ctx, node.Config{
		DataDir: t.TempDir(), HTTPAddr: "127.0.0.1:0", ElectionTimeout: 50 * time.Millisecond, WriteLimit: calm.Patience, RequireToken: true, BootstrapTokenFile: file,
		Limits: wsconn.Limits{ExemptLoopback: true}, // all of these are tried from one address
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{url: n.URL(), admin: sdk.NewClient(sdk.ClientOptions{Addrs: []string{n.URL()}, Token: strings.TrimSpace(string(text)), Namespace: "mine", Logger: slog.New(slog.DiscardHandler)})}
	for { // until the first token is in force
		if _, err = h.admin.Caller(ctx); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range []string{"mine", "theirs"} {
		if _, err := h.admin.PutNamespace(ctx, ns); err != nil {
			t.Fatal(err)
		}
		if status, body := h.call(t, strings.TrimSpace(string(text)), http.MethodPut, "/v1/namespaces/"+ns+"/queues/default", "{}"); status != http.StatusCreated {
			t.Fatalf("queue: %d %s", status, body)
		}
	}
	return h
}

func (h *house) token(t *testing.T, role access.Role, namespace string, queues ...string) *sdk.Token {
	t.Helper()
	token, err := h.admin.CreateToken(t.Context(), sdk.TokenSpec{Name: "t", Grants: []sdk.Grant{{Role: string(role), Namespace: namespace, Queues: queues}}})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// call makes a request and reads its answer, of a stream only that it has begun.
func (h *house) call(t *testing.T, token, method, path, body string) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		return res.StatusCode, ""
	}
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, string(data)
}

type method struct{ id, verb, path string }

// methods are those of the node's own description.
func (h *house) methods(t *testing.T) (all []method) {
	t.Helper()
	_, text := h.call(t, "", http.MethodGet, "/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("0", 31) + "1"
	fill := strings.NewReplacer("{ns}", "mine", "{queue}", "default", "{id}", id, "{instance_id}", id, "{key}", "k", "{schedule}", "s", "{name}", "s")
	for path, verbs := range doc.Paths {
		for verb, op := range verbs {
			all = append(all, method{op.OperationID, strings.ToUpper(verb), fill.Replace(path)})
		}
	}
	slices.SortFunc(all, func(a, b method) int { return strings.Compare(a.id, b.id) })
	if len(all) < 45 {
		t.Fatalf("only %d methods", len(all))
	}
	return all
}

func TestEveryMethodAsEveryRoleOnARealNode(t *testing.T) {
	t.Parallel()
	h := build(t)
	methods := h.methods(t)
	try := func(role access.Role, where string, queues ...string) {
		token := ""
		if role != "" {
			token = h.token(t, role, where, queues...).Secret
		}
		for _, m := range methods {
			rule, listed := access.HTTP[m.id]
			if !listed {
				t.Fatalf("%s is not in the table", m.id)
			}
			here := where == "mine" && rule.Scope == access.Namespaced || where == access.Everywhere
			named := len(queues) == 0 || strings.Contains(m.path, "/queues/"+queues[0])
			may := rule.Permission == access.Open || role.Contains(rule.Permission) && (here && named || rule.Scope == access.Filtered)
			want := http.StatusForbidden
			switch {
			case may && slices.Contains([]string{"debug-node", "delete-queue", "delete-namespace"}, m.id):
				continue // it takes long, or what the others need
			case may:
				want = 0
			case role == "":
				want = http.StatusUnauthorized
			}
			body := ""
			if m.verb != http.MethodGet {
				body = "{}"
			}
			status, text := h.call(t, token, m.verb, m.path, body)
			refused := status == http.StatusForbidden || status == http.StatusUnauthorized
			if refused != (want != 0) || refused && status != want {
				t.Errorf(mutant.Found+"the matrix: %s (%s %s) as %s@%s%v: %d %s", m.id, m.verb, m.path, role, where, queues, status, text)
			}
		}
	}
	try("", "")
	for _, role := range access.Roles {
		for _, where := range []string{"mine", "theirs", access.Everywhere} {
			try(role, where)
		}
	}
	try(access.Worker, "mine", "default")
	try(access.Worker, "mine", "other")
}

func TestWhatIsNoTokenLetsNobodyIn(t *testing.T) {
	t.Parallel()
	h := build(t)
	good := h.token(t, access.Admin, access.Everywhere)
	gone := h.token(t, access.Admin, access.Everywhere)
	if _, err := h.admin.RevokeToken(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"a wrong secret": good.Secret[:len(good.Secret)-4] + map[bool]string{true: "0000", false: "1111"}[!strings.HasSuffix(good.Secret, "0000")],
		"a revoked one":  gone.Secret, "an unknown one": access.NewToken().Reveal(), "the id alone": good.ID, "text": "x",
	} {
		for _, path := range []string{"/v1/caller", "/v1/namespaces/mine/tasks", "/v1/tokens"} {
			if status, body := h.call(t, token, http.MethodGet, path, ""); status != http.StatusUnauthorized {
				t.Errorf(mutant.Found+"credentials: GET %s with %s: %d %s", path, name, status, body)
			}
		}
	}
}

// A command that was let in just before its token was revoked meets the revocation
// in the log: changes stop at once, wherever they come in.
func TestNothingIsChangedAfterARevocation(t *testing.T) {
	t.Parallel()
	h := build(t)
	token := h.token(t, access.Submitter, "mine")
	const task = `{"handler":"h","handler_version":"1","payload_version":"1","payload":{}}`
	submit := func() int {
		status, _ := h.call(t, token.Secret, http.MethodPost, "/v1/namespaces/mine/queues/default/tasks", task)
		return status
	}
	if status := submit(); status != http.StatusCreated {
		t.Fatalf("a good token: %d", status)
	}
	var trying sync.WaitGroup
	var mu sync.Mutex
	late, over := 0, false
	for range 4 {
		trying.Go(func() {
			for range 50 {
				mu.Lock()
				after := over
				mu.Unlock()
				if submit() == http.StatusCreated && after {
					mu.Lock()
					late++
					mu.Unlock()
				}
			}
		})
	}
	if _, err := h.admin.RevokeToken(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	over = true
	mu.Unlock()
	trying.Wait()
	if late > 0 {
		t.Errorf(mutant.Found+"submitting: %d tasks were taken after the revocation was answered", late)
	}
}

// dial opens a worker's connection; status is that of the answer.
func (h *house) dial(t *testing.T, token string) (ws *websocket.Conn, status int) {
	t.Helper()
	ws, res, err := websocket.Dial(t.Context(), h.url+"/v1/worker", &websocket.DialOptions{
		Subprotocols: []string{"pulse.worker.v1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		if res == nil {
			t.Fatal(err)
		}
		return nil, res.StatusCode
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	return ws, res.StatusCode
}

// hello registers and returns the type and code of the answer.
func (h *house) hello(t *testing.T, ws *websocket.Conn, namespace string) (kind, code string) {
	t.Helper()
	queue, err := h.admin.Queue(t.Context(), "default")
	if namespace != "mine" {
		other := sdk.NewClient(sdk.ClientOptions{Addrs: []string{h.url}, Token: h.token(t, access.Admin, namespace).Secret, Namespace: namespace})
		queue, err = other.Queue(t.Context(), "default")
	}
	if err != nil {
		t.Fatal(err)
	}
	id := access.NewToken().ID
	frame := fmt.Sprintf(`{"protocol_version":"1","type":"worker.hello","message_id":%q,"body":{"instance_id":%q,"instance_secret":%q,"queue_id":%q,"capacity":1,"capabilities":[{"handler":"h","handler_version":"1","payload_version":"1"}]}}`,
		id, id, strings.Repeat("A", 43), queue.ID)
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
		t.Fatal(err)
	}
	return h.read(t, ws)
}

func (h *house) read(t *testing.T, ws *websocket.Conn) (kind, code string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
	defer cancel()
	_, data, err := ws.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Type  string
		Error struct{ Code string }
	}
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&f); err != nil {
		t.Fatal(err)
	}
	return f.Type, f.Error.Code
}

func TestWorkerTokensOnTheWebSocket(t *testing.T) {
	t.Parallel()
	h := build(t)
	for _, role := range access.Roles {
		ws, status := h.dial(t, h.token(t, role, "mine").Secret)
		if (ws != nil) != role.Contains(access.Work) || ws == nil && status != http.StatusForbidden {
			t.Errorf(mutant.Found+"connecting: a %s: %d", role, status)
		}
	}
	if ws, status := h.dial(t, access.NewToken().Reveal()); ws != nil || status != http.StatusUnauthorized {
		t.Errorf(mutant.Found+"connecting: an unknown token: %d", status)
	}
	for _, c := range []struct {
		name, namespace, kind, code string
		token                       *sdk.Token
	}{
		{"its namespace", "mine", "worker.welcome", "", h.token(t, access.Worker, "mine")},
		{"its queue", "mine", "worker.welcome", "", h.token(t, access.Worker, "mine", "default")},
		{"everywhere", "mine", "worker.welcome", "", h.token(t, access.Worker, access.Everywhere)},
		{"another queue", "mine", "error", "forbidden", h.token(t, access.Worker, "mine", "other")},
		{"another namespace", "theirs", "error", "forbidden", h.token(t, access.Worker, "mine")},
	} {
		ws, _ := h.dial(t, c.token.Secret)
		if ws == nil {
			t.Errorf(mutant.Found+"connecting: %s: refused", c.name)
			continue
		}
		if kind, code := h.hello(t, ws, c.namespace); kind != c.kind || code != c.code {
			t.Errorf(mutant.Found+"a hello: %s: %s %s", c.name, kind, code)
		}
		if c.kind != "worker.welcome" {
			continue
		}
		// Revoked, it is told and closed with 1008.
		if _, err := h.admin.RevokeToken(t.Context(), c.token.ID); err != nil {
			t.Fatal(err)
		}
		if kind, code := h.read(t, ws); kind != "error" || code != "unauthenticated" {
			t.Errorf(mutant.Found+"a revocation: %s %s", kind, code)
		}
		ctx, cancel := context.WithTimeout(t.Context(), calm.Patience)
		_, _, err := ws.Read(ctx)
		cancel()
		if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf(mutant.Found+"a revocation: closed with %v", err)
		}
	}
}
