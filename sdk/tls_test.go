package sdk

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
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue makes a certificate and its key, in PEM.
func (a authority) issue(t *testing.T, name string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// serveAs answers with the name in the certificate that a caller has shown.
func serveAs(t *testing.T, a authority) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, who+" by "+r.Proto)
	}))
	certPEM, keyPEM := a.issue(t, "node")
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func TestCertificateFilesAreFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := TLSFiles{CACert: filepath.Join(dir, "ca"), ClientCert: filepath.Join(dir, "cert"), ClientKey: filepath.Join(dir, "key")}
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	atFirst, atSecond := serveAs(t, first), serveAs(t, second)
	putAll := func(a authority, name string) {
		certPEM, keyPEM := a.issue(t, name)
		put(t, files.CACert, a.pem)
		put(t, files.ClientCert, certPEM)
		put(t, files.ClientKey, keyPEM)
	}
	putAll(first, "one")
	var log bytes.Buffer
	c, err := files.HTTPClient(slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	transport := c.Transport.(*tlsTransport)
	look := func() {
		transport.mu.Lock()
		defer transport.mu.Unlock()
		transport.looked = time.Time{}
	}
	if got := ask(t, c, atFirst.URL); got != "one by HTTP/1.1" {
		t.Error(got)
	}
	if got := ask(t, c, atSecond.URL); !strings.Contains(got, "unknown authority") {
		t.Error(got)
	}

	// In the middle of a copy the files do not fit together.
	certPEM, keyPEM := second.issue(t, "two")
	put(t, files.ClientCert, certPEM)
	for range 3 {
		look()
		if got := ask(t, c, atFirst.URL); got != "one by HTTP/1.1" {
			t.Error(got)
		}
	}
	if n := strings.Count(log.String(), "not used"); n != 1 {
		t.Errorf("it was said %d times: %s", n, &log)
	}
	put(t, files.ClientKey, keyPEM)
	put(t, files.CACert, append(first.pem, second.pem...))
	look()
	for _, s := range []*httptest.Server{atFirst, atSecond} {
		if got := ask(t, c, s.URL); got != "two by HTTP/1.1" {
			t.Error(got)
		}
	}
	put(t, files.CACert, second.pem)
	look()
	if got := ask(t, c, atFirst.URL); !strings.Contains(got, "unknown authority") {
		t.Errorf("an authority that is believed no more: %s", got)
	}
	c.CloseIdleConnections()
}

func TestWrongCertificateFilesAreNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAuthority(t, "a")
	certPEM, _ := a.issue(t, "x")
	_, otherKey := a.issue(t, "y")
	cert, key, text := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "text")
	put(t, cert, certPEM)
	put(t, key, otherKey)
	put(t, text, []byte("hello"))
	for want, files := range map[string]TLSFiles{
		"go together":                     {ClientCert: cert},
		"no such file":                    {CACert: filepath.Join(dir, "nowhere")},
		"text holds no certificate":       {CACert: text},
		"private key does not match":      {ClientCert: cert, ClientKey: key},
		"both TLS and HTTPClient are set": {CACert: cert},
	} {
		options := ClientOptions{TLS: files}
		if strings.HasPrefix(want, "both") {
			options.HTTPClient = http.DefaultClient
		}
		if _, err := NewClient(options).Cluster(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		w := NewWorker(WorkerOptions{TLS: files, HTTPClient: options.HTTPClient})
		w.Handle("h", "1", "1", func(context.Context, *Task) (any, error) { return nil, nil })
		if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a worker: %v, want %q", err, want)
		}
	}
}
