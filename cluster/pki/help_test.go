package pki

import (
	"bytes"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// newCluster makes a directory with nodes n1, n2 and n3.
func newCluster(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	_, err := Init(dir, InitOptions{Cluster: name, Nodes: []NodeSpec{
		{"n1", []string{"n1.example.org", "10.0.0.1"}}, {"n2", []string{"n2.example.org"}}, {"n3", []string{"n3.example.org"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// open reads a node's certificates from the operator's directory.
func open(t *testing.T, dir, id string) *Identity {
	t.Helper()
	return openAt(t, filepath.Join(dir, id), id, nil)
}

func openAt(t *testing.T, dir, id string, onReload func(Reload)) *Identity {
	t.Helper()
	i, err := Open(Options{Files: NodeFiles(dir), NodeID: id, OnReload: onReload})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// calling is the config with which one node calls another.
func calling(t *testing.T, i *Identity, peer string) *tls.Config {
	t.Helper()
	c, err := i.ClientConfig(peer)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// showing is a client that believes everybody and shows a given certificate.
func showing(t *testing.T, certFile, keyFile string) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	// Even when the server says that it wants others.
	return &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &cert, nil
	}}
}

// meeting is what became of a handshake.
type meeting struct {
	server, client error
	peer           string // whom the server saw
	seen           tls.ConnectionState
}

func (m meeting) ok() bool { return m.server == nil && m.client == nil }

// meet lets a client and a server shake hands and say a word each.
func meet(server, client *tls.Config) (m meeting) {
	a, b := newPipe()
	if client.ServerName == "" {
		client.ServerName = "pulse.invalid"
	}
	s, c := tls.Server(a, server), tls.Client(b, client)
	word := []byte("w")
	var both sync.WaitGroup
	both.Go(func() {
		defer a.Close()
		if m.server = s.Handshake(); m.server != nil {
			return
		}
		m.peer, _ = PeerID(s)
		m.seen = s.ConnectionState()
		if _, m.server = s.Write(word); m.server == nil {
			_, m.server = s.Read(make([]byte, 1))
		}
	})
	both.Go(func() {
		defer b.Close()
		if m.client = c.Handshake(); m.client != nil {
			return
		}
		// In TLS 1.3 a client learns here whether the server believes it.
		if _, m.client = c.Read(make([]byte, 1)); m.client == nil {
			_, m.client = c.Write(word)
		}
	})
	both.Wait()
	return m
}

// copyDir is what an operator does after a change: the files one by one.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// issueAs puts a certificate with other names or times into a node's directory,
// signed by the true authority.
func issueAs(t *testing.T, dir string, k kind, holder string, l leaf, validity time.Duration) {
	t.Helper()
	v, err := openVault(dir)
	must(t, err)
	_, err = v.issueTo(holder, k, l, l.commonName, validity)
	must(t, err)
}

// newPipe is a connection with room for what was written and is not read yet, as
// a kernel has. Unlike a real one it works in a bubble.
func newPipe() (a, b net.Conn) {
	left, right := newHalf(), newHalf()
	return &pipeConn{in: left, out: right}, &pipeConn{in: right, out: left}
}

type half struct {
	mu     sync.Mutex
	wake   *sync.Cond
	data   bytes.Buffer
	closed bool
}

func newHalf() *half {
	h := &half{}
	h.wake = sync.NewCond(&h.mu)
	return h
}

func (h *half) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.wake.Broadcast()
}

// pipeConn is one end. It knows no deadlines: contexts end what is tested here.
type pipeConn struct{ in, out *half }

func (c *pipeConn) Read(p []byte) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	for c.in.data.Len() == 0 && !c.in.closed {
		c.in.wake.Wait()
	}
	return c.in.data.Read(p)
}

func (c *pipeConn) Write(p []byte) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.closed {
		return 0, net.ErrClosed
	}
	c.out.wake.Broadcast()
	return c.out.data.Write(p)
}

func (c *pipeConn) Close() error {
	c.in.close()
	c.out.close()
	return nil
}

func (c *pipeConn) LocalAddr() net.Addr              { return pipeAddr("local") }
func (c *pipeConn) RemoteAddr() net.Addr             { return pipeAddr("10.0.0.9:5000") }
func (c *pipeConn) SetDeadline(time.Time) error      { return nil }
func (c *pipeConn) SetReadDeadline(time.Time) error  { return nil }
func (c *pipeConn) SetWriteDeadline(time.Time) error { return nil }

type pipeAddr string

func (a pipeAddr) Network() string { return "pipe" }
func (a pipeAddr) String() string  { return string(a) }
