package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pulse/gateway/wsconn"
	"pulse/schema"
	"pulse/sdk"
)

// guarded are three servers and a gateway that ask everybody for a token, and the
// first admin.
func guarded(t *testing.T) (all map[string]*Node, admin string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admin.token")
	configs := several(t, "a", "b", "c")
	door := map[string]Config{"g": gatewayOf(t, configs, "g")}
	for _, set := range []map[string]Config{configs, door} {
		for id, c := range set {
			c.RequireToken, c.Limits = true, wsconn.Limits{ExemptLoopback: true}
			if id == "c" {
				c.BootstrapTokenFile = file
			}
			set[id] = c
		}
	}
	all = up(t, configs)
	maps.Copy(all, up(t, door))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	admin = strings.TrimSpace(string(text))
	eventually(t, "the first token is in force", func() bool {
		_, err := clientWith(all["a"], admin).Caller(soon(t))
		return err == nil
	})
	return all, admin
}

// A token holds on every node from when it is made to when it is revoked: servers
// that lead and that do not, and a gateway, which has no state of its own.
func TestTokensHoldOnEveryNodeAlike(t *testing.T) {
	t.Parallel()
	nodes, admin := guarded(t)
	ids := slices.Sorted(maps.Keys(nodes))
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	task := sdk.TaskSpec{Handler: "h", HandlerVersion: "1", PayloadVersion: "1", Payload: map[string]int{"a": 1}}
	if _, err := clientWith(nodes["a"], admin).PutNamespace(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	made := func(maker, name string, grant sdk.Grant) *sdk.Token {
		t.Helper()
		token, err := clientWith(nodes[maker], admin).CreateToken(ctx, sdk.TokenSpec{Name: name, Grants: []sdk.Grant{grant}})
		if err != nil {
			t.Fatalf("made on %s: %v", maker, err)
		}
		return token
	}

	t.Log("made on one, it is good at once on all, and each holds it to its role")
	for _, maker := range ids {
		reader, app := made(maker, "reader", sdk.Grant{Role: "reader", Namespace: "default"}), made(maker, "app", sdk.Grant{Role: "submitter", Namespace: "default"})
		for _, id := range ids {
			if _, err := clientWith(nodes[id], reader.Secret).Queue(ctx, "default"); err != nil {
				t.Errorf("made on %s, a reader reads on %s: %v", maker, id, err)
			}
			if _, err := clientWith(nodes[id], reader.Secret).Submit(ctx, task); !errors.Is(err, schema.Forbidden) {
				t.Errorf("made on %s, a reader submits on %s: %v", maker, id, err)
			}
			client := clientWith(nodes[id], app.Secret)
			if _, err := client.Submit(ctx, task); err != nil {
				t.Errorf("made on %s, an application submits on %s: %v", maker, id, err)
			}
			for what, err := range map[string]error{
				"pauses":                     second(client.PauseQueue(ctx, "default")),
				"submits elsewhere":          second(client.InNamespace("other").Submit(ctx, task)),
				"submits a batch elsewhere":  second(client.InNamespace("other").SubmitBatch(ctx, "default", []sdk.TaskSpec{task})),
				"makes a token":              second(client.CreateToken(ctx, sdk.TokenSpec{Name: "x", Grants: []sdk.Grant{{Role: "reader", Namespace: "default"}}})),
				"transfers leadership":       second(client.Transfer(ctx, "")),
				"removes a server":           client.RemoveServer(ctx, "b", true),
				"copies the whole cluster":   second(client.Backup(ctx)),
				"bundles up a whole cluster": second(client.Debug(ctx)),
			} {
				if !errors.Is(err, schema.Forbidden) {
					t.Errorf("an application %s on %s: %v", what, id, err)
				}
			}
		}
		// Revoked on another node, nothing is changed with it any more, although
		// this node may have seen it good a moment ago.
		revoker := ids[(slices.Index(ids, maker)+1)%len(ids)]
		if _, err := clientWith(nodes[revoker], admin).RevokeToken(ctx, app.ID); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if _, err := clientWith(nodes[id], app.Secret).Submit(ctx, task); !errors.Is(err, schema.Unauthenticated) {
				t.Errorf("revoked on %s, an application submits on %s: %v", revoker, id, err)
			}
		}
		eventually(t, "it reads nothing anywhere", func() bool {
			return !slices.ContainsFunc(ids, func(id string) bool {
				_, err := clientWith(nodes[id], app.Secret).Queue(ctx, "default")
				return !errors.Is(err, schema.Unauthenticated)
			})
		})
	}

	t.Log("what a token holds open on any node ends with it, the worker's work included")
	fleet := made("g", "fleet", sdk.Grant{Role: "worker", Namespace: "default", Queues: []string{"default"}})
	app := made("a", "app", sdk.Grant{Role: "submitter", Namespace: "default"})
	working, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	streams := make(chan string, len(ids))
	for _, id := range ids {
		w := sdk.NewWorker(sdk.WorkerOptions{Addrs: []string{nodes[id].URL()}, Token: fleet.Secret, Capacity: 2, Logger: slog.New(slog.DiscardHandler)})
		w.Handle("h", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) { return task.Payload(), nil })
		running.Go(func() { _ = w.Run(working) })
		go func() { streams <- streamWith(nodes[id], app.Secret) }()
	}
	for _, id := range ids {
		eventually(t, "node "+id+" has a worker and a stream", func() bool {
			return nodes[id].hub.Counters().Sessions.Load() == 1 && nodes[id].front.api.Waiters() == 1
		})
		submitted, err := clientWith(nodes[id], app.Secret).Submit(ctx, task)
		if err != nil {
			t.Fatal(err)
		}
		if done, err := clientWith(nodes["g"], app.Secret).Wait(ctx, submitted.ID); err != nil || done.State != sdk.StateSucceeded {
			t.Fatalf("submitted on %s: %+v %v", id, done, err)
		}
	}
	for _, token := range []*sdk.Token{fleet, app} {
		if _, err := clientWith(nodes["b"], admin).RevokeToken(ctx, token.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range ids {
		if got := <-streams; !strings.Contains(got, ": pulse") {
			t.Errorf("a stream said %q", got)
		}
	}
	for _, id := range ids {
		eventually(t, "node "+id+" has no worker", func() bool { return nodes[id].hub.Counters().Sessions.Load() == 0 })
	}
}

func second[T any](_ T, err error) error { return err }
