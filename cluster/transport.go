package cluster

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// raftTimeout bounds one exchange between servers, and the opening of a
	// connection with its greeting.
	raftTimeout = 10 * time.Second
	// greetTimeout is what an arriving connection has for its greeting.
	greetTimeout = 5 * time.Second
	// greetingsMax bounds connections that have not greeted yet; more wait in
	// the kernel's queue.
	greetingsMax  = 64
	raftPoolConns = 3
)

// openTransport makes the transport that the config asks for.
func openTransport(cfg *Config, logger hclog.Logger) (raft.Transport, error) {
	if cfg.Transport != nil {
		return cfg.Transport, nil
	}
	if cfg.Listen == "" {
		// A lone voter calls nobody: no port has to be opened for it.
		_, t := raft.NewInmemTransport(raft.ServerAddress(cfg.ID))
		return t, nil
	}
	stream, err := listenStream(cfg.Listen, cfg.Advertise, cfg.ClusterID)
	if err != nil {
		return nil, fmt.Errorf("cluster: listen for raft at %s: %w", cfg.Listen, err)
	}
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:  stream,
		MaxPool: raftPoolConns,
		Timeout: raftTimeout,
		Logger:  logger.Named("net"),
		// Deep pipelines multiply the latency of a commit under load.
		MaxRPCsInFlight: 2,
	}), nil
}

// streamLayer is TCP with a greeting. Both ends send the same 40 bytes, which
// name the protocol and the cluster, before anything else: a server of another
// cluster is turned away before it can vote, and a process that no longer runs,
// whose connections the kernel still accepts, is noticed by its silence. It is
// no authentication.
type streamLayer struct {
	listener  net.Listener
	advertise net.Addr
	greeting  []byte
	greeted   chan net.Conn
	slots     chan struct{}
	stop      chan struct{}
	once      sync.Once
	all       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

var _ raft.StreamLayer = (*streamLayer)(nil)

func listenStream(listen, advertise string, clusterID []byte) (*streamLayer, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	label := sha256.Sum256(append([]byte("pulse raft cluster "), clusterID...))
	s := &streamLayer{
		listener:  l,
		advertise: l.Addr(),
		greeting:  append([]byte("pulsert1"), label[:]...),
		greeted:   make(chan net.Conn),
		slots:     make(chan struct{}, greetingsMax),
		stop:      make(chan struct{}),
		conns:     map[net.Conn]struct{}{},
	}
	if advertise != "" {
		if s.advertise, err = net.ResolveTCPAddr("tcp", advertise); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	if a, ok := s.advertise.(*net.TCPAddr); !ok || a.IP == nil || a.IP.IsUnspecified() {
		return nil, errors.Join(fmt.Errorf("others cannot reach %s: set Advertise", s.advertise), l.Close())
	}
	s.all.Go(s.accept)
	return s, nil
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
			select {
			case s.greeted <- tracked:
			case <-s.stop:
				_ = tracked.Close()
			}
		})
	}
}

// greet exchanges greetings and takes the connection into the books.
func (s *streamLayer) greet(conn net.Conn, limit time.Duration) (net.Conn, error) {
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

// Dial connects and greets.
func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	limit := time.Now().Add(timeout)
	conn, err := net.DialTimeout("tcp", string(address), timeout)
	if err != nil {
		return nil, err
	}
	return s.greet(conn, time.Until(limit))
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
	layer *streamLayer
}

func (c *trackedConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.conns, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
