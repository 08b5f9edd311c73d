package conformance

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pulse/cmd/node"
	"pulse/gateway/wsconn"
	"pulse/test/calm"
	"pulse/test/ports"
)

// patience bounds every wait for something that has to happen. It is not how
// long things take.
const patience = calm.Patience

// through is what the tests connect to. A gateway answers as a server does, so the
// same tests hold it to the same contract.
var through = flag.String("through", "server", "what is tested: a server, or a gateway in front of one")

// house is a real node in this process, and what it takes to come back to it.
type house struct {
	config node.Config
	node   *node.Node
	addr   string // host:port of HTTP

	// The server behind a gateway, if that is what is tested.
	serverConfig node.Config
	server       *node.Node
}

func openHouse(dir string, adjust func(*node.Config)) (*house, error) {
	h := &house{config: node.Config{
		DataDir: dir, HTTPAddr: "127.0.0.1:0", ElectionTimeout: 50 * time.Millisecond, WriteLimit: calm.Patience, Logger: faults.logger(),
		Limits: wsconn.Limits{ExemptLoopback: true}, // all tests come from one address
	}}
	if adjust != nil {
		adjust(&h.config)
	}
	if *through == "gateway" {
		if err := h.build(); err != nil {
			return nil, err
		}
	}
	if err := h.start(); err != nil {
		return nil, err
	}
	h.config.HTTPAddr = h.addr // a node that starts again is where it was
	return h, nil
}

// build puts a gateway in front of the server that would have been tested.
func (h *house) build() error {
	addrs := make([]string, 6)
	for i := range addrs {
		var err error
		if addrs[i], err = ports.Find("127.0.0.1"); err != nil {
			return err
		}
	}
	secret := []byte(strings.Repeat("conformance ", 4))
	server := node.Config{
		NodeID: "server", DataDir: h.config.DataDir, HTTPAddr: addrs[0], RaftAddr: addrs[1], ClusterSecret: secret,
		ElectionTimeout: h.config.ElectionTimeout, WriteLimit: h.config.WriteLimit, Logger: h.config.Logger,
		Cluster: &node.ClusterConfig{RPCAddr: addrs[2], GossipAddr: addrs[3], BootstrapExpect: 1},
	}
	h.serverConfig = server
	h.config.NodeID, h.config.DataDir, h.config.ClusterSecret = "gateway", "", secret
	h.config.Cluster = &node.ClusterConfig{
		Gateway: true, RPCAddr: addrs[4], GossipAddr: addrs[5], Join: []string{server.Cluster.GossipAddr},
	}
	return nil
}

func (h *house) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if h.serverConfig.Cluster != nil {
		var err error
		if h.server, err = node.Start(ctx, h.serverConfig); err != nil {
			return err
		}
	}
	n, err := node.Start(ctx, h.config)
	if err != nil {
		return err
	}
	h.node, h.addr = n, n.Addr()
	return nil
}

// ready waits until the node has a leader.
func (h *house) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return h.node.WaitReady(ctx)
}

func (h *house) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := h.node.Close(ctx)
	if h.server != nil {
		err = errors.Join(err, h.server.Close(ctx))
	}
	return err
}

// own is a node of the test's own, for what would disturb others.
func own(t *testing.T, adjust func(*node.Config)) *house {
	t.Helper()
	h := leaderless(t, adjust)
	if err := h.ready(); err != nil {
		t.Fatal(err)
	}
	return h
}

// leaderless is own without waiting for a leader.
func leaderless(t *testing.T, adjust func(*node.Config)) *house {
	t.Helper()
	h, err := openHouse(t.TempDir(), adjust)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Errorf("stop the node: %v", err)
		}
	})
	return h
}

// restart stops the node in an orderly way and starts it on the same data.
func (h *house) restart(t *testing.T) {
	t.Helper()
	if err := errors.Join(h.stop(), h.start()); err != nil {
		t.Fatal(err)
	}
	if err := h.ready(); err != nil {
		t.Fatal(err)
	}
}

// common is the node that most tests share; each has a namespace of its own in
// it. It is started by the first of them.
var common struct {
	once sync.Once
	dir  string
	*house
	err error
}

func shared(t *testing.T) *house {
	t.Helper()
	common.once.Do(func() {
		if common.dir, common.err = os.MkdirTemp("", "pulse-conformance-"); common.err != nil { //nolint:usetesting // outlives the test that starts it
			return
		}
		if common.house, common.err = openHouse(common.dir, nil); common.err == nil {
			common.err = common.ready()
		}
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.house
}

func closeShared() error {
	if common.dir == "" {
		return nil
	}
	var err error
	if common.house != nil {
		err = common.stop()
	}
	return errors.Join(err, os.RemoveAll(common.dir))
}

// record keeps what nodes log as errors: a fault of the house, a panic that was
// caught, a frame that could not be encoded.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

var faults record

func (r *record) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelError}))
}

// Write implements io.Writer for the handler.
func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.FieldsFunc(r.text.String(), func(c rune) bool { return c == '\n' })
}
