package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"pulse/cmd/node"
	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	"pulse/schema"
	"pulse/sdk"
	"pulse/test/calm"
	"pulse/test/ports"
	"pulse/test/secrets"
)

// A submission goes to one server, its worker hangs on another, and a third may lead:
// it is one trace all the same. And of all the secrets of the run none is written down
// anywhere: not in the servers' logs, metrics, traces, debug bundles, snapshots and
// files, not in a backup, not in what the API tells.
func TestTracesOfAClusterAreWholeAndItsSecretsNowhere(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*calm.Patience)
	defer cancel()
	clusterSecret := make([]byte, 32)
	_, _ = rand.Read(clusterSecret)
	spans := tracetest.NewInMemoryExporter()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	logged, dir := new(secrets.Log), t.TempDir()
	nodes := startThree(ctx, t, dir, clusterSecret, func(c *node.Config) {
		c.Traces = traces
		c.Logger = slog.New(slog.NewJSONHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	leader, follower, other := order(t, nodes)

	text, err := os.ReadFile(filepath.Join(dir, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	admin := strings.TrimSpace(string(text))
	client := func(n *node.Node, token string) *sdk.Client {
		return sdk.NewClient(sdk.ClientOptions{Addrs: []string{n.URL()}, Token: token, Logger: slog.New(slog.DiscardHandler)})
	}
	for { // until the first token is in force
		if _, err = client(leader, admin).Caller(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	app, err := client(follower, admin).CreateToken(ctx, sdk.TokenSpec{Name: "app", Grants: []sdk.Grant{{Role: "submitter", Namespace: "default"}}})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := client(other, admin).CreateToken(ctx, sdk.TokenSpec{Name: "fleet", Grants: []sdk.Grant{{Role: "worker", Namespace: "default"}}})
	if err != nil {
		t.Fatal(err)
	}

	instance := rawHello(ctx, t, other, client(leader, admin), fleet.Secret)
	worker := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{other.URL()}, Token: fleet.Secret, Capacity: 4, Logger: slog.New(slog.DiscardHandler), TracerProvider: traces})
	worker.Handle("h", "1", "1", func(context.Context, *sdk.Task) (any, error) { return "result-that-is-private", nil })
	life, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = worker.Run(life) })
	tracked, span := traces.Tracer("test").Start(ctx, "order")
	task, err := client(follower, app.Secret).Submit(tracked, sdk.TaskSpec{Handler: "h", Payload: "payload-that-is-private"})
	span.End()
	if err != nil {
		t.Fatal(err)
	}
	if done, err := client(follower, app.Secret).Wait(ctx, task.ID); err != nil || done.State != sdk.StateSucceeded {
		t.Fatalf("%+v, %v", done, err)
	}
	attempts, err := client(leader, admin).Attempts(ctx, task.ID)
	if err != nil || len(attempts) != 1 {
		t.Fatal(attempts, err)
	}

	// Where things are written down.
	places := map[string][]byte{}
	for id, n := range nodes {
		for _, path := range []string{"/metrics", "/v1/tokens", "/v1/audit", "/v1/audit/refused", "/v1/cluster", "/v1/cluster/members", "/v1/namespaces/default/workers", "/v1/namespaces/default/tasks/" + task.ID + "/attempts"} {
			places[id+path] = []byte(page(ctx, t, n.URL()+path, admin))
		}
		bundle, err := client(n, admin).Debug(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range unpacked(t, bundle) {
			places["the bundle's "+name] = content
		}
	}
	backup, err := client(follower, admin).Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if places["the backup"], err = io.ReadAll(backup); err != nil {
		t.Fatal(err)
	}
	end()
	running.Wait()
	for _, n := range nodes {
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	whole(t, spans.GetSpans().Snapshots())
	if places["the traces"], err = json.Marshal(spans.GetSpans()); err != nil {
		t.Fatal(err)
	}
	places["the traces in full"] = fmt.Appendf(nil, "%+v", spans.GetSpans())
	places["the logs"] = logged.Bytes()
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "admin.token" {
			return err
		}
		places[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(places) < 60 || len(places["the backup"]) < 1000 || len(places["the logs"]) < 1000 {
		t.Fatalf("only %d places to look in", len(places))
	}

	lease, err := session.NewLeaseKey(clusterSecret)
	if err != nil {
		t.Fatal(err)
	}
	attempt, err := hex.DecodeString(attempts[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	leaseSecret := lease.Mint(schema.ID(attempt), attempts[0].Epoch)
	searched := map[string][]byte{"the cluster": clusterSecret, "an instance": instance, "a lease": leaseSecret[:]}
	for name, token := range map[string]string{"the first token": admin, "the token app": app.Secret, "the token fleet": fleet.Secret} {
		if searched[name], err = hex.DecodeString(token[len(token)-64:]); err != nil {
			t.Fatal(err)
		}
	}
	for _, found := range secrets.Find(places, searched) {
		t.Error(found)
	}
	// What tasks carry is in the state and nowhere else.
	for place, content := range places {
		state := strings.HasPrefix(place, dir) || place == "the backup" || strings.Contains(place, "/attempts")
		for _, private := range []string{"payload-that-is-private", "result-that-is-private"} {
			if !state && bytes.Contains(content, []byte(private)) {
				t.Errorf("%q is in %s", private, place)
			}
		}
	}
}

// whole checks that the spans of a submission, its commit, its wait and its run hang
// together, whichever servers they come from.
func whole(t *testing.T, spans []sdktrace.ReadOnlySpan) {
	t.Helper()
	find := func(name string, parent sdktrace.ReadOnlySpan) sdktrace.ReadOnlySpan {
		t.Helper()
		var found []sdktrace.ReadOnlySpan
		for _, s := range spans {
			if s.Name() == name && (parent == nil || s.Parent().SpanID() == parent.SpanContext().SpanID() && s.SpanContext().TraceID() == parent.SpanContext().TraceID()) {
				found = append(found, s)
			}
		}
		if len(found) != 1 {
			t.Fatalf("%d spans %q in their place", len(found), name)
		}
		return found[0]
	}
	submit := find("submit default", find("order", nil))
	for _, name := range []string{"commit", "wait h", "run h", "process default"} {
		find(name, submit)
	}
}

// startThree starts three servers that ask everybody for a token.
func startThree(ctx context.Context, t *testing.T, dir string, secret []byte, change func(*node.Config)) map[string]*node.Node {
	t.Helper()
	nodes, join := map[string]*node.Node{}, []string(nil)
	var mu sync.Mutex
	var starting sync.WaitGroup
	for i, id := range []string{"a", "b", "c"} {
		cfg := node.Config{
			NodeID: id, DataDir: filepath.Join(dir, id), HTTPAddr: ports.Free(t, "127.0.0.1"), RaftAddr: ports.Free(t, "127.0.0.1"), ClusterSecret: secret,
			ElectionTimeout: calm.Office, WriteLimit: calm.Patience, RequireToken: true, SnapshotEntries: 20, Limits: wsconn.Limits{ExemptLoopback: true},
			Cluster: &node.ClusterConfig{RPCAddr: ports.Free(t, "127.0.0.1"), GossipAddr: ports.Free(t, "127.0.0.1"), BootstrapExpect: 3, Join: join},
		}
		change(&cfg)
		if i == 0 {
			join, cfg.BootstrapTokenFile = []string{cfg.Cluster.GossipAddr}, filepath.Join(dir, "admin.token")
		}
		starting.Go(func() {
			n, err := node.Start(ctx, cfg)
			if err == nil {
				t.Cleanup(func() { _ = n.Close(context.Background()) })
				err = n.WaitReady(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			if nodes[id] = n; err != nil {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	if starting.Wait(); t.Failed() {
		t.FailNow()
	}
	return nodes
}

// order is who leads, and the two others.
func order(t *testing.T, nodes map[string]*node.Node) (leader, one, other *node.Node) {
	t.Helper()
	for id := nodes["a"].Status().LeaderID; ; id = nodes["a"].Status().LeaderID {
		if leader = nodes[id]; leader != nil {
			break
		}
	}
	for _, n := range nodes {
		switch {
		case n == leader:
		case one == nil:
			one = n
		default:
			other = n
		}
	}
	return leader, one, other
}

// rawHello registers a worker whose secret is known here, and returns the secret.
func rawHello(ctx context.Context, t *testing.T, n *node.Node, admin *sdk.Client, token string) []byte {
	t.Helper()
	queue, err := admin.Queue(ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	ws, _, err := websocket.Dial(ctx, n.URL()+"/v1/worker", &websocket.DialOptions{ //nolint:bodyclose // the library has closed it
		Subprotocols: []string{"pulse.worker.v1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	secret, id := make([]byte, 32), make([]byte, 16)
	_, _ = rand.Read(secret)
	_, _ = rand.Read(id)
	frame := fmt.Sprintf(`{"protocol_version":"1","type":"worker.hello","message_id":"%x","body":{"instance_id":"%x","instance_secret":%q,"queue_id":%q,"capacity":1,"capabilities":[{"handler":"nothing","handler_version":"1","payload_version":"1"}]}}`,
		id, id, base64.RawURLEncoding.EncodeToString(secret), queue.ID)
	if err := ws.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
		t.Fatal(err)
	}
	if _, answer, err := ws.Read(ctx); err != nil || !bytes.Contains(answer, []byte("worker.welcome")) {
		t.Fatalf("%s %v", answer, err)
	}
	return secret
}

// page asks for one until there is one: during an election there is none of some.
func page(ctx context.Context, t *testing.T, url, token string) string {
	t.Helper()
	for {
		status, body := pageOnce(ctx, t, url, token)
		switch status {
		case http.StatusOK:
			return body
		case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			<-time.After(50 * time.Millisecond)
		default:
			t.Fatalf("%s: %d %s", url, status, body)
		}
	}
}

func pageOnce(ctx context.Context, t *testing.T, url, token string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
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
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return res.StatusCode, string(body)
}

// unpacked are the files of a bundle; what is zipped in it is unzipped.
func unpacked(t *testing.T, bundle io.ReadCloser) map[string][]byte {
	t.Helper()
	defer bundle.Close()
	out := map[string][]byte{}
	zipped, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(zipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(h.Name, ".gz") {
			inner, err := gzip.NewReader(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			if content, err = io.ReadAll(inner); err != nil {
				t.Fatal(err)
			}
		}
		out[h.Name] = content
	}
}
