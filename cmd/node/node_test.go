package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulse/cluster"
	"pulse/test/calm"
)

// patience bounds every wait of these tests. It is not how long they take; a whole
// test takes several times as long at most.
const patience = calm.Patience

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually looks again and again until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx := soon(t); !holds(); {
		select {
		case <-ctx.Done():
			t.Fatalf("in vain: %s", what)
		case <-tick.C:
		}
	}
}

func startNode(t *testing.T, cfg Config) *Node {
	t.Helper()
	n := startAnyway(t, cfg)
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

// startAnyway starts a node that may end in a way of its own.
func startAnyway(t *testing.T, cfg Config) *Node {
	t.Helper()
	cfg.HTTPAddr = "127.0.0.1:0"
	ctx := soon(t)
	n, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestANodeStartsStopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	first := startNode(t, cfg)
	if !strings.HasPrefix(first.URL(), "http://127.0.0.1:") || first.ID() != DefaultNodeID {
		t.Errorf("node %q at %q", first.ID(), first.URL())
	}
	if err := first.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("a closed node says %v", err)
	}
	if err := first.Close(soon(t)); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := first.WaitReady(soon(t)); err == nil {
		t.Error("a closed node is ready")
	}
	second := startNode(t, cfg)
	if second.Status().AppliedIndex == 0 {
		t.Error("the second start knows nothing of the first")
	}
}

// A node that finds, while it starts, that it is of a cluster that was given up ends with
// that and not with the fact that it is closed.
func TestWhoWaitsForANodeIsToldWhyItEnded(t *testing.T) {
	t.Parallel()
	n := startAnyway(t, testConfig(t))
	why := errors.New("this data directory is of a cluster that was given up for lost")
	n.fail(why)
	if err := n.WaitReady(soon(t)); !errors.Is(err, why) {
		t.Errorf("a node that ended because %q says %v", why, err)
	}
}

func TestARefusedStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg.HTTPAddr = taken.Addr().String()
	if _, err := Start(soon(t), cfg); err == nil || !strings.Contains(err.Error(), "HTTPAddr") {
		t.Errorf("start on a port in use: %v", err)
	}
	// The directory is free and untouched by raft.
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "raft")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("raft's directory: %v", err)
	}
	startNode(t, cfg)
}

func TestAnAddressThatOthersReachIsRefusedWithoutCredentials(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.HTTPAddr = "0.0.0.0:0"
	if _, err := Start(soon(t), cfg); err == nil || !strings.Contains(err.Error(), "nobody is asked who he is") {
		t.Errorf("start: %v", err)
	}
}

func TestTwoNodesDoNotShareADirectory(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	startNode(t, cfg)
	cfg.HTTPAddr = "127.0.0.1:0"
	if _, err := Start(soon(t), cfg); !errors.Is(err, ErrInUse) {
		t.Errorf("second start: %v", err)
	}
}

func TestAStartThatIsCalledOffStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Start(ctx, testConfig(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v", err)
	}
}

// A slow disk ends no process that has been given time for it.
func TestAWriteMayTakeAsLongAsItIsGiven(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	n.watchdog.Slow("write a file", cluster.DefaultWriteLimit)
}

func TestALostListenerStopsTheNode(t *testing.T) {
	t.Parallel()
	n := startAnyway(t, testConfig(t))
	if err := n.front.listener.Close(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- n.Wait() }()
	select {
	case err := <-waited:
		if err == nil {
			t.Error("the node stopped without a reason")
		}
	case <-soon(t).Done():
		t.Fatal("the node goes on without a listener")
	}
}
