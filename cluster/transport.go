package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// raftTimeout bounds one exchange between servers, and the opening of a
	// connection with its greeting.
	raftTimeout = 10 * time.Second
	// dialTimeout is how long nothing at all may come back from an address. The
	// kernel asks again after one second, then two, then four: to begin anew is to
	// find a machine sooner that is back, or a server at its new address.
	dialTimeout = 3 * time.Second
	// greetTimeout is what an arriving connection has for its greeting.
	greetTimeout = 5 * time.Second
	// greetingsMax bounds connections that have not greeted yet; more wait in
	// the kernel's queue.
	greetingsMax  = 64
	raftPoolConns = 3
	// beatsInTimeout is how many heartbeats raft sends at most in a heartbeat timeout,
	// and half of them at least.
	beatsInTimeout = 10
)

// Secure guards raft's connections: when one is handed out, both ends have shown
// who they are.
type Secure interface {
	// Listen hands out the connections of this cluster's nodes alone. Closing
	// it closes the inner listener.
	Listen(net.Listener) (net.Listener, error)
	// Client is for calling exactly that server.
	Client(serverID string) (*tls.Config, error)
}

// openTransport makes the transport that the config asks for, and what is beneath it
// if that is TCP.
func openTransport(cfg *Config, logger hclog.Logger) (raft.Transport, *streamLayer, error) {
	if cfg.Transport != nil {
		return cfg.Transport, nil, nil
	}
	if cfg.Listen == "" {
		// A lone voter calls nobody: no port has to be opened for it.
		_, t := raft.NewInmemTransport(raft.ServerAddress(cfg.ID))
		return t, nil, nil
	}
	stream, err := listenStream(cfg.Listen, cfg.Advertise, cfg.ClusterID, cfg.Secure)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: listen for raft at %s: %w", cfg.Listen, err)
	}
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:  stream,
		MaxPool: raftPoolConns,
		Timeout: raftTimeout,
		Logger:  logger.Named("net"),
		// Deep pipelines multiply the latency of a commit under load.
		MaxRPCsInFlight: 2,
	})
	return named{network, newBeats(cfg.HeartbeatTimeout / beatsInTimeout)}, stream, nil
}

// named puts the id of the server that raft means before each address, because
// raft's stream layer is told addresses alone and a certificate is of an id.
type named struct {
	*raft.NetworkTransport
	beats *beats
}

var _ raft.WithPreVote = named{}

func nameTarget(id raft.ServerID, target raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + target
}

// nameIn takes a named address apart.
func nameIn(address raft.ServerAddress) (id, hostport string) {
	id, hostport, found := strings.Cut(string(address), "@")
	if !found {
		return "", string(address)
	}
	return id, hostport
}

func (t named) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, nameTarget(id, target))
	if err != nil {
		return nil, err
	}
	return pipeline{p, raftTimeout}, nil
}

// pipeline is one that does not wait for ever. Raft stops taking its answers when one
// of them is a refusal, and closes it after the request that it is just making. That
// one waits for the answers to be taken: no entry would ever be sent to the server
// again, while heartbeats keep it from standing, and raft would not stop.
type pipeline struct {
	raft.AppendPipeline
	limit time.Duration // the answer that is waited for comes within raftTimeout, or never
}

func (p pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	over := time.AfterFunc(p.limit, func() { _ = p.Close() }) // it is given up
	defer over.Stop()
	return p.AppendPipeline.AppendEntries(args, resp)
}

func (t named) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	call := func() error { return t.NetworkTransport.AppendEntries(id, nameTarget(id, target), args, resp) }
	if isHeartbeat(args) {
		return t.beats.send(id, call)
	}
	return call()
}

func (t named) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.NetworkTransport.RequestVote(id, nameTarget(id, target), args, resp)
}

func (t named) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.NetworkTransport.RequestPreVote(id, nameTarget(id, target), args, resp)
}

func (t named) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.NetworkTransport.InstallSnapshot(id, nameTarget(id, target), args, resp, data)
}

func (t named) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, nameTarget(id, target), args, resp)
}

// streamLayer is TCP with a greeting. Both ends send the same 40 bytes, which
// name the protocol and the cluster, before anything else: a server of another
// cluster is turned away before it can vote, and a process that no longer runs,
// whose connections the kernel still accepts, is noticed by its silence. It is
// no authentication: that is Secure's, and comes before it.
type streamLayer struct {
	listener  net.Listener
	secure    Secure // nil: plain text
	advertise net.Addr
	greeting  []byte
	greeted   chan net.Conn
	lost      chan struct{} // capacity 1: a connection that came from another server is closed
	slots     chan struct{}
	stop      chan struct{}
	once      sync.Once
	all       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

var _ raft.StreamLayer = (*streamLayer)(nil)

// hostAddr is an address for others. A name is theirs to look up, each time that
// they connect.
type hostAddr string

func (hostAddr) Network() string  { return "tcp" }
func (a hostAddr) String() string { return string(a) }

// reachable says whether others can do something with an address.
func reachable(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host == "" || port == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("others cannot reach %s: set Advertise", addr)
	}
	return nil
}

func listenStream(listen, advertise string, clusterID []byte, secure Secure) (*streamLayer, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	forOthers := net.Addr(hostAddr(advertise))
	if advertise == "" {
		forOthers = l.Addr()
	}
	if err := reachable(forOthers.String()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l = briefListener{l}
	if secure != nil {
		guarded, err := secure.Listen(l)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l = guarded
	}
	label := sha256.Sum256(append([]byte("pulse raft cluster "), clusterID...))
	s := &streamLayer{
		listener:  l,
		secure:    secure,
		advertise: forOthers,
		greeting:  append([]byte("pulsert1"), label[:]...),
		greeted:   make(chan net.Conn),
		lost:      make(chan struct{}, 1),
		slots:     make(chan struct{}, greetingsMax),
		stop:      make(chan struct{}),
		conns:     map[net.Conn]struct{}{},
	}
	s.all.Go(s.accept)
	return s, nil
}

// briefListener hands out brief connections.
type briefListener struct{ net.Listener }

func (l briefListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return brief(conn), nil
}

func (s *streamLayer) accept() {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.stop:
			return
		}
		conn, err := s.listener.Accept()
		if err != nil {
			<-s.slots
			select {
			case <-s.stop:
				return
			case <-time.After(50 * time.Millisecond): // out of descriptors, most likely
			}
			continue
		}
		s.all.Go(func() {
			defer func() { <-s.slots }()
			tracked, err := s.greet(conn, greetTimeout)
			if err != nil {
				return // closed by greet; a stranger is no news
			}
			tracked.arrived.Store(true)
			select {
			case s.greeted <- tracked:
			case <-s.stop:
				_ = tracked.Close()
			}
		})
	}
}

// greet exchanges greetings and takes the connection into the books.
func (s *streamLayer) greet(conn net.Conn, limit time.Duration) (*trackedConn, error) {
	c := &trackedConn{Conn: conn, layer: s}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	select {
	case <-s.stop: // closing walks the books once
		return nil, errors.Join(net.ErrClosed, c.Close())
	default:
	}
	err := conn.SetDeadline(time.Now().Add(limit))
	if err == nil {
		_, err = conn.Write(s.greeting)
	}
	theirs := make([]byte, len(s.greeting))
	if err == nil {
		_, err = io.ReadFull(conn, theirs)
	}
	if err == nil && !bytes.Equal(theirs, s.greeting) {
		err = fmt.Errorf("%s is no server of this cluster", conn.RemoteAddr())
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Accept returns the next connection that has greeted.
func (s *streamLayer) Accept() (net.Conn, error) {
	select {
	case c := <-s.greeted:
		return c, nil
	case <-s.stop:
		return nil, net.ErrClosed
	}
}

// Dial connects, shakes hands if that is asked for, and greets.
func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	limit := time.Now().Add(timeout)
	id, hostport := nameIn(address)
	conn, err := net.DialTimeout("tcp", hostport, min(timeout, dialTimeout))
	if err != nil {
		return nil, unreachable{err}
	}
	conn = brief(conn)
	if s.secure != nil {
		if conn, err = s.shake(conn, id, limit); err != nil {
			return nil, fmt.Errorf("server %s at %s: %w", id, hostport, err)
		}
	}
	greeted, err := s.greet(conn, time.Until(limit))
	if refused(err) {
		return nil, fmt.Errorf("server %s at %s does not believe this one, its log says why: %w", id, hostport, err)
	}
	if err != nil {
		return nil, err
	}
	return greeted, nil
}

// shake makes sure that the other end is the server that is meant.
func (s *streamLayer) shake(conn net.Conn, id string, limit time.Time) (net.Conn, error) {
	config, err := s.secure.Client(id)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithDeadline(context.Background(), limit)
	defer cancel()
	t := tls.Client(conn, config)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return t, nil
}

// refused says that the other end has ended the handshake. In TLS 1.3 a client
// hears of it only when it reads.
func refused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// Addr is the address for others.
func (s *streamLayer) Addr() net.Addr { return s.advertise }

// Close closes the listener and every connection and waits for the greetings
// under way.
func (s *streamLayer) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		err = s.listener.Close()
		s.mu.Lock()
		open := make([]net.Conn, 0, len(s.conns))
		for c := range s.conns {
			open = append(open, c)
		}
		s.mu.Unlock()
		for _, c := range open {
			_ = c.Close() // its user sees the error
		}
		s.all.Wait()
	})
	return err
}

// trackedConn leaves the books when it is closed.
type trackedConn struct {
	net.Conn
	layer   *streamLayer
	arrived atomic.Bool // opened by the other end, which has greeted: raft closes it when that end has
}

func (c *trackedConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.conns, c)
	c.layer.mu.Unlock()
	if c.arrived.Load() {
		select {
		case c.layer.lost <- struct{}{}:
		default:
		}
	}
	return c.Conn.Close()
}
