package gateway

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// listener accepts within the limits and knows every connection there is,
// whoever has taken it over.
type listener struct {
	net.Listener
	max        int
	addressMax int
	refused    atomic.Uint64
	close      sync.Once

	mu      sync.Mutex
	closed  bool // by abort: nothing is accepted any more
	conns   map[*conn]struct{}
	address map[netip.Addr]int // connections of one address; loopback is not counted
}

func newListener(l net.Listener, cfg *Config) *listener {
	return &listener{
		Listener: l, max: cfg.ConnectionsMax, addressMax: cfg.AddressMax,
		conns: make(map[*conn]struct{}), address: make(map[netip.Addr]int),
	}
}

// Close closes the port, and is no error the second time.
func (l *listener) Close() error {
	var err error
	l.close.Do(func() { err = l.Listener.Close() })
	return err
}

// Accept returns the next connection that is within the limits. One that is not
// is closed at once: to answer it would cost what the limit is to save.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, from: accountOf(raw.RemoteAddr()), listener: l}
		if l.add(c) {
			return c, nil
		}
		l.refused.Add(1)
		_ = raw.Close() // there is nobody to tell
	}
}

func (l *listener) add(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) >= l.max || c.from.IsValid() && l.address[c.from] >= l.addressMax {
		return false
	}
	l.conns[c] = struct{}{}
	if c.from.IsValid() {
		l.address[c.from]++
	}
	return true
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.conns[c]; !open {
		return
	}
	delete(l.conns, c)
	if !c.from.IsValid() {
		return
	}
	if l.address[c.from]--; l.address[c.from] == 0 {
		delete(l.address, c.from)
	}
}

// abort closes the port and every connection.
func (l *listener) abort() {
	_ = l.Close() // closed is what it is to be
	l.mu.Lock()
	l.closed = true
	open := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // likewise
	}
}

func (l *listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// accountOf is the address a connection counts for: an IPv6 host has a whole
// /64. Loopback, and what has no address, counts for none.
func accountOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if ip.IsLoopback() {
		return netip.Addr{}
	}
	if ip.Is6() {
		if prefix, err := ip.WithZone("").Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return ip
}

// conn gives its place back when it is closed.
type conn struct {
	net.Conn
	from     netip.Addr
	listener *listener
	once     sync.Once
}

func (c *conn) Close() error {
	c.once.Do(func() { c.listener.remove(c) })
	return c.Conn.Close()
}
