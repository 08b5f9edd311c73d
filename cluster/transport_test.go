package cluster

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	pb "pulse/proto/pulse/v1"
	"pulse/test/calm"
	"pulse/test/ports"
)

func testLayer(t *testing.T, cluster string) *streamLayer {
	t.Helper()
	s, err := listenStream("127.0.0.1:0", "", []byte(cluster), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func address(s *streamLayer) raft.ServerAddress { return raft.ServerAddress(s.Addr().String()) }

func TestServersOfOneClusterGreetEachOther(t *testing.T) {
	t.Parallel()
	a, b := testLayer(t, "one"), testLayer(t, "one")
	out, err := a.Dial(address(b), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, []byte("hello")) {
		t.Fatalf("%q, %v", got, err)
	}
	if err := errors.Join(out.Close(), in.Close()); err != nil {
		t.Fatal(err)
	}
	if len(a.conns)+len(b.conns) != 0 {
		t.Fatalf("%d and %d connections in the books", len(a.conns), len(b.conns))
	}
}

func TestServersOfOtherClustersAreTurnedAway(t *testing.T) {
	t.Parallel()
	a, b := testLayer(t, "one"), testLayer(t, "two")
	if _, err := a.Dial(address(b), time.Minute); err == nil || !strings.Contains(err.Error(), "no server of this cluster") {
		t.Fatalf("error %v", err)
	}
}

// The kernel accepts connections for a process that will never answer.
func TestASilentServerIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := testLayer(t, "one")
	began := time.Now()
	if _, err := a.Dial(raft.ServerAddress(l.Addr().String()), 100*time.Millisecond); err == nil {
		t.Fatal("it answered")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("it took %s to notice", took)
	}
}

// Strangers that say nothing hold up nobody.
func TestSilentStrangersDoNotHoldUpServers(t *testing.T) {
	t.Parallel()
	a, b := testLayer(t, "one"), testLayer(t, "one")
	for range 10 {
		conn, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	conn, err := a.Dial(address(b), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if in, err := b.Accept(); err != nil || in.RemoteAddr().String() != conn.LocalAddr().String() {
		t.Fatalf("accepted %v, %v", in, err)
	}
}

func TestClosingTheLayerClosesEverything(t *testing.T) {
	t.Parallel()
	a, b := testLayer(t, "one"), testLayer(t, "one")
	conn, err := a.Dial(address(b), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection is still open")
	}
	if _, err := b.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("error %v", err)
	}
	if _, err := a.Dial(address(b), time.Second); err == nil {
		t.Fatal("the port is still open")
	}
}

func TestAnAddressNobodyCanReachIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := listenStream("0.0.0.0:0", "", nil, nil); err == nil || !strings.Contains(err.Error(), "set Advertise") {
		t.Fatalf("error %v", err)
	}
	s, err := listenStream("0.0.0.0:0", "192.0.2.1:7000", nil, nil)
	if err != nil || s.Addr().String() != "192.0.2.1:7000" {
		t.Fatalf("%v, %v", s, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Raft takes no answer of a pipeline any more once it has seen a refusal, and may be
// about to send one more request.
func TestAPipelineWhoseAnswersNobodyTakesIsGivenUp(t *testing.T) {
	t.Parallel()
	open := func() raft.Transport {
		cfg := Config{ID: "n", ClusterID: []byte("cluster one"), Listen: ports.Free(t, "127.0.0.1")}
		tr, _, err := openTransport(&cfg, raftLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tr.(raft.WithClose).Close() })
		return tr
	}
	from, to := open(), open()
	over := make(chan struct{})
	var answering sync.WaitGroup
	t.Cleanup(func() { close(over); answering.Wait() })
	answering.Go(func() {
		for {
			select {
			case rpc := <-to.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Term: 9}, nil)
			case <-over:
				return
			}
		}
	})
	opened, err := from.AppendEntriesPipeline("n", to.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	p, ok := opened.(pipeline)
	if !ok {
		t.Fatalf("it waits as long as %T does", opened)
	}
	p.limit = 100 * time.Millisecond
	ended := make(chan error, 1)
	go func() {
		for range 10 {
			if _, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse)); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("requests without end were taken")
		}
	case <-time.After(calm.Patience):
		t.Error("it waits for ever")
	}
	_ = p.Close()
}

// startTrioTCP starts three voters that call each other over TCP. The trio's network
// is that in memory, which they do not have.
func startTrioTCP(t *testing.T) *trio {
	t.Helper()
	var servers []Server
	for _, id := range []string{"n0", "n1", "n2"} {
		servers = append(servers, Server{id, ports.Free(t, "127.0.0.1")})
	}
	c := &trio{}
	for _, s := range servers {
		c.nodes = append(c.nodes, startNode(t, t.TempDir(), func(cfg *Config) {
			cfg.ID, cfg.Bootstrap, cfg.Listen = s.ID, servers, s.Address
			cfg.HeartbeatTimeout, cfg.LeaderLeaseTimeout = calm.Office, calm.Office
		}))
	}
	return c
}

// Three voters over TCP: the same code, other addresses.
func TestThreeVotersOverTCP(t *testing.T) {
	t.Parallel()
	c := startTrioTCP(t)
	c.submit(t, "a")
	first := c.leader(t)
	first.shut(t) // on the way out it hands over
	index := c.submit(t, "b", first)
	for _, n := range c.nodes {
		if n == first {
			continue
		}
		if _, err := n.Query(t.Context(), &pb.Query{Consistency: pb.Consistency_CONSISTENCY_STALE, MinIndex: index}); err != nil {
			t.Fatal(err)
		}
	}
}
