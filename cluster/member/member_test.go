package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pulse/test/calm"
	"pulse/test/ports"
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
	deadline := time.After(calm.Patience)
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
		t.Log(err) // on a busy machine it takes longer than it waits
	}
	until(t, a, "b's new format", func([]Node) bool { n, _ := a.Member("b"); return n.Format == 7 })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, a, "c has left", count(2))
}

func TestAGoodbyeThatTakesTooLongIsNoFailure(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	b := start(t, config("b", a.Addr()))
	until(t, b, "two members", count(2))
	if err := b.close(time.Nanosecond); err != nil {
		t.Errorf("nobody could be told in no time at all, and that fails the end: %v", err)
	}
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
	twin.Self.RPC, twin.TakenFor = "rpc-elsewhere", time.Second
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

// Machines that are switched off are waited for beside the others, not before them:
// each takes ten seconds, and a server that is restarted meanwhile is missed.
func TestMachinesThatAreSwitchedOffHoldNobodyUp(t *testing.T) {
	t.Parallel()
	off := ports.Silent(t)
	a := start(t, config("a"))
	cfg := config("b")
	for i := range 30 {
		cfg.Join = append(cfg.Join, fmt.Sprintf("127.0.0.%d:%s", 2+i, off))
	}
	cfg.Join = append(cfg.Join, a.Addr())
	cfg.RejoinEvery = time.Hour // joining has to do it
	started := make(chan *List, 1)
	go func() {
		l, err := Start(context.Background(), cfg)
		if err != nil {
			t.Error(err)
		}
		started <- l
	}()
	until(t, a, "b is there", count(2))
	select {
	case b := <-started:
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
	case <-time.After(calm.Patience):
		t.Fatal("a node with members does not start, because others are switched off")
	}
}

func TestANodeThatComesBackIsFoundAgain(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	cb := config("b", a.Addr())
	cb.Bind = ports.Free(t, "127.0.0.1")
	b := start(t, cb)
	until(t, a, "two members", count(2))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, a, "b is gone", count(1))
	// It comes back at its address and is told nobody to join: a dials it.
	cb.Join = nil
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
	d := (*delegate)(&List{logger: slog.New(slog.DiscardHandler), nodes: map[string]Node{}, known: map[string]lastSeen{}, changed: make(chan struct{})})
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

// A name is taken by a node that is there, not by the memory of one.
func TestANodeThatIsGoneLeavesItsName(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	b := start(t, config("b", a.Addr()))
	until(t, a, "two members", count(2))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, a, "b is gone", count(1))
	elsewhere := config("b", a.Addr())
	elsewhere.Self.RPC = "rpc-elsewhere"
	start(t, elsewhere)
	until(t, a, "b is back elsewhere", func([]Node) bool { n, _ := a.Member("b"); return n.RPC == "rpc-elsewhere" })
}

// Gateways that see each other and no voter go on looking for one.
func TestGatewaysAmongThemselvesHaveNotFoundTheirCluster(t *testing.T) {
	t.Parallel()
	addr := ports.Free(t, "127.0.0.1") // for the voter that comes later
	g1 := config("g1", addr)
	g1.Self.Role = Gateway
	first := start(t, g1)
	g2 := config("g2", first.Addr(), addr)
	g2.Self.Role = Gateway
	second := start(t, g2)
	until(t, first, "the other gateway", count(2))
	late := config("a")
	late.Bind = addr
	start(t, late)
	for _, l := range []*List{first, second} {
		until(t, l, "the voter", count(3))
	}
}

// A gateway is not looked for when it is gone: others come under new names, and
// there would be no end to it.
func TestOnlyVotersAreLookedForForEver(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	g := config("g", a.Addr())
	g.Self.Role = Gateway
	gone := start(t, g)
	b := start(t, config("b", a.Addr()))
	until(t, a, "three members", count(3))
	for _, l := range []*List{gone, b} {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, a, "both are gone", count(1))
	if missing, alone := a.missing(); !alone || len(missing) != 1 || missing[0] != b.Addr() {
		t.Errorf("looks for %v (alone %t), want %s", missing, alone, b.Addr())
	}
}

// A server that was told to join nobody, or itself, as the first of a cluster is,
// sees the others at once if it has seen them before. They know nothing of it:
// those that do miss it only later, and do not look for it either.
func TestANodeThatComesBackSeesTheOthersAtOnce(t *testing.T) {
	t.Parallel()
	b := start(t, config("b"))
	c := start(t, config("c", b.Addr()))
	before := config("a", b.Addr())
	before.Remember = filepath.Join(t.TempDir(), "members.json")
	a, err := Start(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	until(t, a, "three members", count(3))
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	after := config("d")
	after.Remember, after.RejoinEvery = before.Remember, time.Hour
	d := start(t, after)
	until(t, d, "the others are seen again", func(members []Node) bool {
		sees := func(id string) bool {
			return slices.ContainsFunc(members, func(n Node) bool { return n.ID == id })
		}
		return sees("b") && sees("c")
	})
	for _, l := range []*List{b, c} {
		until(t, l, "it is seen", func([]Node) bool { _, ok := l.Member("d"); return ok })
	}
}

// A node that is killed and comes back at another address before the others have
// missed it waits until they do.
func TestANodeThatComesBackElsewhereWaitsUntilItIsMissed(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	c := start(t, config("c", a.Addr()))
	before := start(t, config("b", a.Addr()))
	until(t, a, "three members", count(3))
	until(t, c, "three members", count(3))
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	moved := config("b", a.Addr())
	moved.Self.RPC, moved.TakenFor = "rpc-elsewhere", time.Minute
	b := start(t, moved)
	for _, l := range []*List{a, c} {
		until(t, l, "b is seen where it is now", func([]Node) bool { n, _ := l.Member("b"); return n.RPC == "rpc-elsewhere" })
	}
	until(t, b, "it sees the others", count(3))
}

// A server that is killed and started again at once with another port for HTTP answers
// at its old place in gossip: nobody would ever miss what it was before.
func TestANodeThatComesBackChangedAtItsGossipAddressIsNotInItsOwnWay(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	c := start(t, config("c", a.Addr()))
	first := config("b", a.Addr())
	first.Bind = ports.Free(t, "127.0.0.1")
	before := start(t, first)
	until(t, a, "three members", count(3))
	until(t, c, "three members", count(3))
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	after := first
	after.Self.HTTP, after.TakenFor = "http-elsewhere", time.Second
	b := start(t, after)
	for _, l := range []*List{a, c} {
		until(t, l, "b is seen as it is now", func([]Node) bool { n, _ := l.Member("b"); return n.HTTP == "http-elsewhere" })
	}
	until(t, b, "it sees the others", count(3))
}

// What gossip takes for dead is still called where it was: it may be alive, and
// nobody else knows where it is.
func TestAVoterIsCalledWhereItWasLastSeen(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	b := start(t, config("b", a.Addr()))
	gateway := config("g", a.Addr())
	gateway.Self.Role = Gateway
	g := start(t, gateway)
	until(t, a, "three members", count(3))
	for _, l := range []*List{b, g} {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, a, "both are gone", count(1))
	if addr, ok := a.RPC("b"); addr != "rpc-b" || !ok {
		t.Errorf("b is called at %q, %t", addr, ok)
	}
	if addr, ok := a.RPC("g"); ok { // it may be gone for good, and others come under new names
		t.Errorf("a gateway that is gone is called at %q", addr)
	}
	if addr, ok := a.RPC("x"); ok {
		t.Errorf("a node that never was is called at %q", addr)
	}
}

// A file that is damaged costs a warning.
func TestWhatIsRememberedMayBeDamaged(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "{", `{"b":{"gossip":"nowhere"}}`, `{"a":{"gossip":"127.0.0.1:1"}}`, `{"b":{"gossip":"127.0.0.1:1","rpc":"x"}}`} {
		c := config("a")
		c.Remember = filepath.Join(t.TempDir(), "members.json")
		if err := os.WriteFile(c.Remember, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := start(t, c).Members(); len(got) != 1 {
			t.Errorf("%q: members are %+v", content, got)
		}
	}
}
