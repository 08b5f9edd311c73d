// Package pipenet is a network in memory for the tests of the gateway: a
// listener whose connections are pipes, with addresses as a socket has. Pipes
// wait inside a synctest bubble where sockets do not, so that ten seconds of
// silence cost nothing. Nothing but tests imports it.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// Listener hands out the server's ends of pipes. Safe from any goroutine.
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen makes a listener that nobody has dialled.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial connects from 127.0.0.1; its signature is that of http.Transport.
func (l *Listener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return l.DialFrom(ctx, "127.0.0.1")
}

// DialFrom connects from the given IP address.
func (l *Listener) DialFrom(ctx context.Context, from string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- conn{Conn: server, remote: &net.TCPAddr{IP: net.ParseIP(from), Port: 40000}}:
		return client, nil
	case <-l.done:
	case <-ctx.Done():
	}
	_ = client.Close()
	_ = server.Close()
	return nil, net.ErrClosed
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections stay open.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7400} }

type conn struct {
	net.Conn
	remote net.Addr
}

func (c conn) RemoteAddr() net.Addr { return c.remote }
