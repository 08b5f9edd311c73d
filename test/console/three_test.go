package console

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pulse/cmd/node"
	"pulse/gateway/wsconn"
	"pulse/sdk"
	"pulse/test/calm"
	"pulse/test/ports"
)

// three is a cluster of three servers that ask everybody for a token.
type three struct {
	nodes map[string]*node.Node
	admin string // the first token
}

// sitAtThree is a desk in front of a new cluster; its client is the first admin,
// its browser is nobody yet.
func sitAtThree(t *testing.T) (*desk, *three) {
	t.Helper()
	needChromium(t)
	c := &three{nodes: map[string]*node.Node{}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	file, join := filepath.Join(t.TempDir(), "admin.token"), []string(nil)
	var mu sync.Mutex
	var starting sync.WaitGroup
	for i, id := range []string{"node-a", "node-b", "node-c"} {
		cfg := node.Config{
			NodeID: id, DataDir: filepath.Join(t.TempDir(), id), HTTPAddr: ports.Free(t, "127.0.0.1"), RaftAddr: ports.Free(t, "127.0.0.1"),
			ClusterSecret: []byte(strings.Repeat("the secret of a test", 2)), Version: "v0.1.0", ElectionTimeout: calm.Office, WriteLimit: calm.Patience, RequireToken: true,
			Cluster: &node.ClusterConfig{RPCAddr: ports.Free(t, "127.0.0.1"), GossipAddr: ports.Free(t, "127.0.0.1"), BootstrapExpect: 3, Join: join},
			Limits:  wsconn.Limits{ExemptLoopback: true}, Logger: slog.New(slog.DiscardHandler),
		}
		if i == 0 {
			join, cfg.BootstrapTokenFile = []string{cfg.Cluster.GossipAddr}, file
		}
		starting.Go(func() {
			n, err := node.Start(ctx, cfg)
			if err == nil {
				t.Cleanup(func() { _ = n.Close(context.Background()) })
				err = n.WaitReady(ctx)
			}
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			c.nodes[id] = n
		})
	}
	if starting.Wait(); t.Failed() {
		t.FailNow()
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c.admin = strings.TrimSpace(string(text))
	d := seat(t)
	d.url, d.c = c.nodes["node-a"].URL(), c.client("node-a", c.admin)
	for ; ; err = ctx.Err() { // until the first token is in force
		if _, refused := d.c.Caller(ctx); refused == nil {
			return d, c
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (c *three) client(id, token string) *sdk.Client {
	return sdk.NewClient(sdk.ClientOptions{Addrs: []string{c.nodes[id].URL()}, Token: token, Logger: slog.New(slog.DiscardHandler)})
}

// at goes over to another node of the cluster.
func (d *desk) over(c *three, id string) { d.url = c.nodes[id].URL() }

// signIn shows a token, wherever the browser has been led to.
func (d *desk) signIn(token string) {
	d.t.Helper()
	d.at("/console/login")
	d.set(`[name=token]`, token)
	d.click("main button", "Sign in")
}

// both takes a picture in each theme.
func (d *desk) both(name string) {
	d.t.Helper()
	if os.Getenv("PULSE_SCREENSHOTS") == "" {
		return
	}
	for _, scheme := range []string{"dark", "light"} {
		d.looks(scheme, 1440)
		d.shoot(fmt.Sprintf("three-%s-%s", name, scheme))
	}
}
