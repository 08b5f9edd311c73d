package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulse/cluster/pki"
)

// pages is a log that a test reads.
type pages struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *pages) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// issueCluster makes the certificates of nodes at loopback and of one client.
func issueCluster(t *testing.T, name string, ids ...string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), name)
	o := pki.InitOptions{Cluster: name, Clients: []string{"admin"}}
	for _, id := range ids {
		o.Nodes = append(o.Nodes, pki.NodeSpec{ID: id, Hosts: []string{"localhost"}})
	}
	if _, err := pki.Init(dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

// secured makes the configs of servers that found a cluster with certificates,
// and the log of all of them.
func secured(t *testing.T, dir string, ids ...string) (map[string]Config, *pages) {
	t.Helper()
	log := new(pages)
	configs := several(t, ids...)
	for id, c := range configs {
		c.ClusterSecret, c.Certs = nil, filepath.Join(dir, id)
		c.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(log, t.Output()), &slog.HandlerOptions{Level: slog.LevelInfo}))
		configs[id] = c
	}
	return configs, log
}

// pair reads a certificate and its key.
func pair(t *testing.T, dir, kind string) *tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, kind+".pem"), filepath.Join(dir, kind+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return &cert
}

// sign makes a certificate of a node by the true authority, with any name and life.
func sign(t *testing.T, dir, name string, begin, end time.Time) *tls.Certificate {
	t.Helper()
	read := func(file string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, "ca", file))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		return block.Bytes
	}
	authority, err := x509.ParseCertificate(read("node-ca-1.pem"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := x509.ParsePKCS8PrivateKey(read("node-ca-1.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "made by hand"}, NotBefore: begin, NotAfter: end,
		URIs: []*url.URL{uri}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, authority, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// knock connects with a certificate (nil: none) and says whether it was let in: the
// other side neither ends the handshake nor the connection.
func knock(t *testing.T, addr string, show *tls.Certificate) (err error) {
	t.Helper()
	dialer := &net.Dialer{Timeout: patience}
	conn, err := tls.DialWithDialer(dialer, "tcp", addr, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if show == nil {
				return new(tls.Certificate), nil
			}
			return show, nil
		},
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// Both ports speak first, to those that they let in.
	_, err = conn.Read(make([]byte, 1))
	return err
}

func TestNodePortsLetInNodesOfTheirClusterAlone(t *testing.T) {
	t.Parallel()
	dir, other := issueCluster(t, "one", "a", "b", "c", "d"), issueCluster(t, "two", "a", "b")
	configs, log := secured(t, dir, "a", "b", "c")
	nodes := up(t, configs)
	client := clientOf(t, dir, pair(t, filepath.Join(dir, "clients", "admin"), "client"))
	for id, n := range nodes {
		// Whoever leads, each takes it: it forwards.
		if code, body := ask(t, client, http.MethodPost, n.URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
			t.Fatalf("submitted through %s: %d %s", id, code, body)
		}
	}

	withdrawn := pair(t, filepath.Join(dir, "d"), "node")
	if err := pki.Revoke(dir, "d"); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	strangers := []struct {
		name string
		show *tls.Certificate
		says string // the log, of why
	}{
		{"somebody without a certificate", nil, "client didn't provide a certificate"},
		{"a client of the cluster", pair(t, filepath.Join(dir, "clients", "admin"), "client"), `certificate is of another authority: \"admin\"`},
		{"what a node shows to clients", pair(t, filepath.Join(dir, "b"), "http"), `certificate is of another authority: \"b\"`},
		{"a node of another cluster", pair(t, filepath.Join(other, "b"), "node"), `issued by \"Pulse node CA`},
		{"another cluster's name under this CA", sign(t, dir, "pulse://two/node/b", now.Add(-time.Hour), now.Add(time.Hour)), "the other side is pulse://two/node/b, wanted is pulse://one/node/b"},
		{"a client's name under the node CA", sign(t, dir, "pulse://one/client/b", now.Add(-time.Hour), now.Add(time.Hour)), "the other side is pulse://one/client/b, wanted is pulse://one/node/b"},
		{"a certificate that has ended", sign(t, dir, "pulse://one/node/b", now.Add(-2*time.Hour), now.Add(-time.Hour)), "the certificate has ended"},
		{"a certificate that is not good yet", sign(t, dir, "pulse://one/node/b", now.Add(time.Hour), now.Add(2*time.Hour)), "the certificate is not good yet"},
		{"a node that was withdrawn", withdrawn, "the certificate was withdrawn"},
	}
	a := configs["a"]
	for port, addr := range map[string]string{"raft": a.RaftAddr, "rpc": a.Cluster.RPCAddr} {
		if err := knock(t, addr, pair(t, filepath.Join(dir, "b"), "node")); err != nil {
			t.Errorf("a node at the %s port: %v", port, err)
		}
		for _, s := range strangers {
			// Refusals are logged once a second, so each knocks until it is noted.
			awaitLine(t, log, "at="+addr, s.says, func() {
				if err := knock(t, addr, s.show); err == nil {
					t.Fatalf("%s was let in at the %s port", s.name, port)
				}
			})
		}
		awaitLine(t, log, "at="+addr, "first record does not look like a TLS handshake", func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write([]byte("pulsert1 in plain text, as before there were certificates\n"))
			if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Error(err)
			}
		})
	}

	// A node believes nobody but the very one it calls.
	b, err := pki.Open(pki.Options{Files: pki.NodeFiles(filepath.Join(dir, "b")), NodeID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	for id, good := range map[string]bool{"a": true, "c": false} {
		config, err := b.ClientConfig(id)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", a.RaftAddr, config)
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != good || err != nil && !strings.Contains(err.Error(), "the other side is pulse://one/node/a, wanted is pulse://one/node/c") {
			t.Errorf("a answers for %s: %v", id, err)
		}
	}
	// All that did not disturb them.
	for id, n := range nodes {
		if code, body := ask(t, client, http.MethodGet, n.URL()+"/readyz", ""); code != http.StatusOK {
			t.Errorf("%s: %d %s", id, code, body)
		}
	}
}

// awaitLine does something until a line of the log has all the words.
func awaitLine(t *testing.T, log *pages, at, says string, do func()) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		do()
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "connection refused") && strings.Contains(line, at) && strings.Contains(line, says) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no line %s with %q in the log:\n%s", at, says, log)
		}
		<-time.After(200 * time.Millisecond)
	}
}

// clientOf is a client that believes a cluster's nodes and shows a certificate.
func clientOf(t *testing.T, dir string, show *tls.Certificate) *http.Client {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "clients", "admin", pki.HTTPCAFile))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(data) {
		t.Fatal("no CA")
	}
	if show != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return show, nil }
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// ask asks until there is an answer other than that of an election under way. A
// node cuts off who takes too long to ask; who was, asks again.
func ask(t *testing.T, c *http.Client, method, url, body string) (code int, answer string) {
	t.Helper()
	for until := time.Now().Add(patience); ; {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := c.Do(req)
		cutOff := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
		if cutOff && time.Now().Before(until) {
			continue
		}
		if err != nil {
			return 0, err.Error()
		}
		data, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			return 0, err.Error()
		}
		inElection := res.StatusCode == http.StatusServiceUnavailable || res.StatusCode == http.StatusGatewayTimeout
		if !inElection || time.Now().After(until) {
			return res.StatusCode, string(data)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func TestClientsAreKnownByTheirCertificates(t *testing.T) {
	t.Parallel()
	dir, other := issueCluster(t, "one", "a"), issueCluster(t, "two", "a")
	own := filepath.Join(dir, "clients", "admin")
	n := startNode(t, Config{
		NodeID: "a", Certs: filepath.Join(dir, "a"), DataDir: t.TempDir(), ElectionTimeout: 50 * time.Millisecond, WriteLimit: patience,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if !strings.HasPrefix(n.URL(), "https://") {
		t.Errorf("it is at %s", n.URL())
	}
	admin := clientOf(t, dir, pair(t, own, "client"))
	for name, c := range map[string]struct {
		client *http.Client
		path   string
		code   int
		says   string
	}{
		"a client":                             {admin, "/v1/namespaces", 200, `"default"`},
		"nobody":                               {clientOf(t, dir, nil), "/v1/namespaces", 401, "show a token in Authorization: Bearer"},
		"nobody, of its health":                {clientOf(t, dir, nil), "/healthz", 200, "ok"},
		"a client of another cluster":          {clientOf(t, dir, pair(t, filepath.Join(other, "clients", "admin"), "client")), "/v1/namespaces", 401, `issued by`},
		"a node":                               {clientOf(t, dir, pair(t, filepath.Join(dir, "a"), "node")), "/v1/namespaces", 401, "another authority"},
		"what a node shows to clients":         {clientOf(t, dir, pair(t, filepath.Join(dir, "a"), "http")), "/v1/namespaces", 401, "another authority"},
		"somebody who does not know this port": {clientOf(t, other, pair(t, own, "client")), "/v1/namespaces", 0, "unknown authority"},
	} {
		if code, body := ask(t, c.client, http.MethodGet, n.URL()+c.path, ""); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", name, code, body, c.code, c.says)
		}
	}
	if code, body := ask(t, http.DefaultClient, http.MethodGet, "http://"+n.Addr()+"/healthz", ""); code != http.StatusBadRequest {
		t.Errorf("plain text: %d %s", code, body)
	}

	// Withdrawn, a client is refused on the connection that it has.
	if err := pki.RevokeClient(dir, "admin"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; {
		code, body := ask(t, admin, http.MethodGet, n.URL()+"/v1/namespaces", "")
		if code == http.StatusUnauthorized && strings.Contains(body, "was withdrawn") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a client that was withdrawn: %d %s", code, body)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// A gateway is a node like any other here: it shows certificates at both of its
// ports, and asks for them.
func TestAGatewaySpeaksTLSAtAllItsPorts(t *testing.T) {
	t.Parallel()
	dir := issueCluster(t, "one", "a", "b", "c")
	if _, err := pki.AddGateway(dir, pki.NodeSpec{ID: "g", Hosts: []string{"localhost"}}, 0); err != nil {
		t.Fatal(err)
	}
	configs, _ := secured(t, dir, "a", "b", "c")
	up(t, configs)
	cfg := gatewayOf(t, configs, "g")
	cfg.ClusterSecret, cfg.Certs = nil, filepath.Join(dir, "g")
	g := up(t, map[string]Config{"g": cfg})["g"]
	if !strings.HasPrefix(g.URL(), "https://") {
		t.Fatalf("it is at %s", g.URL())
	}
	admin := pair(t, filepath.Join(dir, "clients", "admin"), "client")
	if code, body := ask(t, clientOf(t, dir, admin), http.MethodPost, g.URL()+"/v1/namespaces/default/queues/default/tasks", aTask); code != http.StatusCreated {
		t.Errorf("submitted by a client of the cluster: %d %s", code, body)
	}
	if code, body := ask(t, clientOf(t, dir, nil), http.MethodGet, g.URL()+"/v1/namespaces", ""); code != http.StatusUnauthorized {
		t.Errorf("asked by nobody: %d %s", code, body)
	}
	if err := knock(t, cfg.Cluster.RPCAddr, admin); err == nil {
		t.Error("a client was let in at the port for nodes")
	}
	if err := knock(t, cfg.Cluster.RPCAddr, pair(t, filepath.Join(dir, "a"), "node")); err != nil {
		t.Errorf("a node was not let in: %v", err)
	}
	// It is a node where nodes talk, and nobody where servers vote.
	own := pair(t, filepath.Join(dir, "g"), "node")
	if err := knock(t, configs["a"].Cluster.RPCAddr, own); err != nil {
		t.Errorf("a gateway was not let in at a server's port for nodes: %v", err)
	}
	if err := knock(t, configs["a"].RaftAddr, own); err == nil {
		t.Error("a gateway was let in at the port where servers vote")
	}
}

func TestANodeDoesNotStartWithWrongCertificates(t *testing.T) {
	t.Parallel()
	dir := issueCluster(t, "one", "a", "b")
	configs, _ := secured(t, dir, "a", "b")
	for says, spoil := range map[string]func(*Config){
		"it is of pulse://one/node/b and this is node a": func(c *Config) { c.Certs = filepath.Join(dir, "b") },
		"no such file": func(c *Config) { c.Certs = dir },
		"certificate of a gateway": func(c *Config) {
			c.Certs = filepath.Join(t.TempDir(), "pki", "a")
			_, err := pki.Init(filepath.Dir(c.Certs), pki.InitOptions{
				Nodes:    []pki.NodeSpec{{ID: "b", Hosts: []string{"localhost"}}},
				Gateways: []pki.NodeSpec{{ID: "a", Hosts: []string{"localhost"}}},
			})
			if err != nil {
				t.Error(err)
			}
		},
		"certificate of a server": func(c *Config) { // with which whoever has it could vote
			c.Cluster.Gateway, c.Cluster.Join, c.Cluster.BootstrapExpect, c.RaftAddr = true, []string{"127.0.0.1:1"}, 0, ""
		},
		"Advertise": func(c *Config) { c.RaftAddr = "0.0.0.0:7402" },
	} {
		c := configs["a"]
		links := *c.Cluster
		c.Cluster, c.DataDir = &links, filepath.Join(t.TempDir(), "data")
		spoil(&c)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		n, err := Start(ctx, c)
		cancel()
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
		if n != nil {
			_ = n.Close(t.Context())
		}
	}
	c := configs["a"]
	c.Cluster.Advertise = "a.example.org"
	c.RaftAddr, c.Cluster.GossipAddr, c.Cluster.RPCAddr = "0.0.0.0:7402", "[::]:7403", "10.0.0.1:7401"
	if err := c.Validate(); err != nil {
		t.Errorf("with certificates and a host for others: %v", err)
	}
}
