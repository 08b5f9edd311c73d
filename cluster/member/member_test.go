package member

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func config(id string, join ...string) Config {
	return Config{
		Self:   Node{ID: id, Role: Voter, RPC: "rpc-" + id, HTTP: "http-" + id, ClusterID: "c1"},
		Bind:   "127.0.0.1:0",
		Secret: []byte("a secret of the cluster, 32 byte"),
		Join:   join, Logger: slog.New(slog.DiscardHandler), RejoinEvery: 50 * time.Millisecond,
	}
}

func start(t *testing.T, cfg Config) *List {
	t.Helper()
	l, err := Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Kill() })
	return l
}

// until waits for a condition on the members.
func until(t *testing.T, l *List, what string, ok func([]Node) bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		changed := l.Changed()
		if ok(l.Members()) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: members are %+v", what, l.Members())
		}
	}
}

func count(n int) func([]Node) bool { return func(m []Node) bool { return len(m) == n } }

func TestMembersFindEachOtherAndSeeChanges(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	b := start(t, config("b", a.Addr()))
	c := start(t, config("c", a.Addr()))
	for _, l := range []*List{a, b, c} {
		until(t, l, "three members", count(3))
	}
	if n, ok := c.Member("b"); !ok || n.RPC != "rpc-b" || n.Role != Voter {
		t.Errorf("c sees b as %+v", n)
	}
	if err := b.Update(func(n *Node) { n.Format = 7 }); err != nil {
		t.Fatal(err)
	}
	until(t, a, "b's new format", func([]Node) bool { n, _ := a.Member("b"); return n.Format == 7 })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, a, "c has left", count(2))
}

func TestAStrangerIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	other := config("b", a.Addr())
	other.Self.ClusterID = "c2"
	if _, err := Start(context.Background(), other); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("a node of another cluster gets %v", err)
	}
	twin := config("a", a.Addr())
	twin.Self.RPC = "rpc-elsewhere"
	if _, err := Start(context.Background(), twin); !errors.Is(err, ErrTaken) {
		t.Errorf("a second node with the id gets %v", err)
	}
	// Another secret: no gossip is understood, nobody is let in.
	wrong := config("x", a.Addr())
	wrong.Secret = []byte("another secret, as long as it is")
	start(t, wrong)
	if got := a.Members(); len(got) != 1 {
		t.Errorf("members are %+v", got)
	}
}

func TestANodeThatComesBackIsFoundAgain(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	cb := config("b", a.Addr())
	b := start(t, cb)
	until(t, a, "two members", count(2))
	addr := b.Addr()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, a, "b is gone", count(1))
	// It comes back at its address and is told nobody to join: a dials it.
	cb.Join, cb.Bind = nil, addr
	start(t, cb)
	until(t, a, "b is back", count(2))
}

func TestAWrongConfigNamesTheField(t *testing.T) {
	t.Parallel()
	for field, spoil := range map[string]func(*Config){
		"Self.ID": func(c *Config) { c.Self.ID = "" }, "Self.Role": func(c *Config) { c.Self.Role = "king" },
		"Secret": func(c *Config) { c.Secret = nil }, "Bind": func(c *Config) { c.Bind = "here" },
		"Advertise": func(c *Config) { c.Advertise = "there" }, "Logger": func(c *Config) { c.Logger = nil },
	} {
		c := config("a")
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("without a good %s: %v", field, err)
		}
	}
}

func TestMetaOfAnyLengthIsSafe(t *testing.T) {
	t.Parallel()
	d := (*delegate)(&List{logger: slog.New(slog.DiscardHandler), nodes: map[string]Node{}, known: map[string]string{}, changed: make(chan struct{})})
	for _, meta := range []string{"", "{", "[]", `{"i":"other"}`, strings.Repeat("x", 600), "\x00\x01\x02"} {
		if err := d.NotifyAlive(node("a", meta)); err == nil {
			t.Errorf("meta %q is let in", meta)
		}
		d.NotifyUpdate(node("a", meta))
	}
	if len(d.nodes) != 0 {
		t.Errorf("nodes %v", d.nodes)
	}
}
