package node

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pulse/schema"
	"pulse/schema/access"
	"pulse/sdk"
	"pulse/test/secrets"
)

// secretNode is a node that asks everybody for a token, with a log that says all.
func secretNode(t *testing.T) (n *Node, log *secrets.Log, admin access.Token) {
	t.Helper()
	cfg := testConfig(t)
	log = new(secrets.Log)
	cfg.Logger = slog.New(slog.NewJSONHandler(io.MultiWriter(log, t.Output()), &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.RequireToken, cfg.BootstrapTokenFile = true, filepath.Join(t.TempDir(), "admin.token")
	cfg.SnapshotEntries = 20
	n = startNode(t, cfg)
	info, err := os.Stat(cfg.BootstrapTokenFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token's file: %v %v", info, err)
	}
	text, err := os.ReadFile(cfg.BootstrapTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	admin, ok := access.ParseToken(strings.TrimSpace(string(text)))
	if !ok {
		t.Fatal("the file holds no token")
	}
	eventually(t, "the first token is in force", func() bool {
		_, err := clientWith(n, admin.Reveal()).Caller(soon(t))
		return err == nil
	})
	return n, log, admin
}

func clientWith(n *Node, token string) *sdk.Client {
	return sdk.NewClient(sdk.ClientOptions{Addrs: []string{n.URL()}, Token: token, Logger: slog.New(slog.DiscardHandler)})
}

func TestTokensFromTheFirstToTheLast(t *testing.T) {
	t.Parallel()
	n, log, admin := secretNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	root := clientWith(n, admin.Reveal())

	t.Log("nobody gets in without one, on this machine neither")
	if _, err := clientWith(n, "").Caller(ctx); !errors.Is(err, schema.Unauthenticated) {
		t.Errorf("without a token: %v", err)
	}
	made := func(name string, grants ...sdk.Grant) *sdk.Token {
		token, err := root.CreateToken(ctx, sdk.TokenSpec{Name: name, Grants: grants})
		if err != nil || token.Secret == "" {
			t.Fatalf("%s: %+v %v", name, token, err)
		}
		return token
	}
	app := made("app", sdk.Grant{Role: "submitter", Namespace: "default"})
	fleet := made("fleet", sdk.Grant{Role: "worker", Namespace: "default", Queues: []string{"default"}})
	local := made("local admin", sdk.Grant{Role: "admin", Namespace: "default"})

	t.Log("a worker works and an application submits, each with its token and no more")
	w := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{n.URL()}, Token: fleet.Secret, Capacity: 2, Logger: slog.New(slog.DiscardHandler)})
	w.Handle("h", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) { return task.Payload(), nil })
	working, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(working) })
	t.Cleanup(func() { stop(); running.Wait() })
	client := clientWith(n, app.Secret)
	submit := func() error {
		task, err := client.Submit(ctx, sdk.TaskSpec{Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: map[string]int{"a": 1}})
		if err != nil {
			return err
		}
		_, err = client.Wait(ctx, task.ID)
		return err
	}
	if err := submit(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PauseQueue(ctx, "default"); !errors.Is(err, schema.Forbidden) || !strings.Contains(err.Error(), "operator") {
		t.Errorf("an application pauses: %v", err)
	}
	if _, err := clientWith(n, fleet.Secret).Submit(ctx, sdk.TaskSpec{Handler: "h", HandlerVersion: "1", PayloadVersion: "1"}); !errors.Is(err, schema.Forbidden) {
		t.Errorf("a worker submits: %v", err)
	}
	if _, err := clientWith(n, local.Secret).CreateToken(ctx, sdk.TokenSpec{Name: "more", Grants: []sdk.Grant{{Role: "reader", Namespace: "*"}}}); !errors.Is(err, schema.Forbidden) {
		t.Errorf("a namespace's admin gives rights everywhere: %v", err)
	}
	if _, err := clientWith(n, local.Secret).RevokeToken(ctx, admin.ID.String()); !errors.Is(err, schema.NotFound) {
		t.Errorf("a namespace's admin revokes the cluster's: %v", err)
	}
	if err := bootstrapAgain(t, n); err != nil {
		t.Error(err)
	}

	t.Log("revoked, a token ends what is open within seconds")
	watching := make(chan string, 1)
	go func() { watching <- streamWith(n, app.Secret) }()
	eventually(t, "the stream is open", func() bool { return n.front.api.Waiters() == 1 })
	for _, token := range []*sdk.Token{fleet, app} {
		if _, err := root.RevokeToken(ctx, token.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-watching; !strings.Contains(got, ": pulse") {
		t.Errorf("the stream said %q", got)
	}
	eventually(t, "the worker's connection is closed", func() bool { return n.hub.Counters().Sessions.Load() == 0 })
	if err := submit(); !errors.Is(err, schema.Unauthenticated) {
		t.Errorf("a submission: %v", err)
	}

	t.Log("all of it is on record, and what was refused is counted")
	var actions []string
	for change, err := range root.Audit(ctx, sdk.AuditFilter{Action: "pulse.token."}) {
		if err != nil {
			t.Fatal(err)
		}
		actions = append(actions, strings.TrimPrefix(change.Action, "pulse.token.")+" by "+map[string]string{"bootstrap": "bootstrap", "token/" + admin.ID.String(): "admin"}[change.Principal])
	}
	if want := []string{"Revoke by admin", "Revoke by admin", "Create by admin", "Create by admin", "Create by admin", "Create by bootstrap"}; !slices.Equal(actions, want) {
		t.Errorf("on record: %v", actions)
	}
	for change, err := range clientWith(n, local.Secret).Audit(ctx, sdk.AuditFilter{}) {
		if err != nil || !slices.Equal(change.Namespaces, []string{"default"}) {
			t.Errorf("a namespace's admin sees %+v %v", change, err)
		}
	}
	if n.front.refusals.Count(schema.Forbidden) < 3 || n.front.refusals.Count(schema.Unauthenticated) < 2 {
		t.Errorf("refused: %+v", n.front.refusals.Newest())
	}

	backup, err := root.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := io.ReadAll(backup)
	if err = errors.Join(err, backup.Close()); err != nil {
		t.Fatal(err)
	}
	searched := map[string][]byte{"the cluster": n.dir.secret}
	for name, text := range map[string]string{"admin": admin.Reveal(), "app": app.Secret, "fleet": fleet.Secret, "local": local.Secret} {
		raw, err := hex.DecodeString(text[39:])
		if err != nil {
			t.Fatal(err)
		}
		searched["the token "+name] = raw
	}
	places := map[string][]byte{"log": log.Bytes(), "backup": copied, "metrics": []byte(metricsOf(t, n)), "audit and refusals": []byte(bodyWith(t, n, admin.Reveal(), "/v1/audit") + bodyWith(t, n, admin.Reveal(), "/v1/audit/refused") + bodyWith(t, n, admin.Reveal(), "/v1/tokens"))}
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	places["log at the end"] = log.Bytes()
	err = filepath.WalkDir(n.cfg.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) == secretFile {
			return err
		}
		data, err := os.ReadFile(path)
		places[path] = data
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(places) < 8 || len(copied) < 1000 {
		t.Fatalf("only %d places to look in", len(places))
	}
	for _, found := range secrets.Find(places, searched) {
		t.Error(found)
	}
}

func metricsOf(t *testing.T, n *Node) string {
	t.Helper()
	_, body := call(t, n, http.MethodGet, "/metrics", "", http.StatusOK)
	return body
}

func bodyWith(t *testing.T, n *Node, token, path string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(soon(t), http.MethodGet, n.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %s %v", path, res.StatusCode, body, err)
	}
	return string(body)
}

// streamWith reads the namespace's events to the stream's end.
func streamWith(n *Node, token string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL()+"/v1/namespaces/default/events", nil)
	if err != nil {
		return err.Error()
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "cut off: " + err.Error()
	}
	return string(body)
}

// bootstrapAgain shows that no file makes a second first token.
func bootstrapAgain(t *testing.T, n *Node) error {
	t.Helper()
	other := access.NewToken()
	done, err := n.tryToken(soon(t), other)
	if !done || !errors.Is(err, schema.Conflict) {
		return errors.New("another first token was taken")
	}
	if _, err := clientWith(n, other.Reveal()).Caller(soon(t)); !errors.Is(err, schema.Unauthenticated) {
		return errors.New("it is in force")
	}
	return nil
}

func TestAFileWithTheFirstTokenIsTakenOrRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	made, err := tokenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := tokenFile(path)
	if err != nil || again.Reveal() != made.Reveal() {
		t.Errorf("the same file gives another token: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tokenFile(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file for everybody: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad"), []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tokenFile(filepath.Join(dir, "bad")); err == nil || strings.Contains(err.Error(), "hello") {
		t.Errorf("a file without a token: %v", err)
	}
}
