package sdk

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// TLSFiles name the PEM files by which a client or worker believes the nodes it
// calls and says who it is: a client's directory, as "pulse cluster init-tls"
// makes it, has them all. They are looked at again while they are in use: new
// ones count for the next connection, no restart is needed.
type TLSFiles struct {
	CACert     string // certificates to believe instead of the system's: http-ca.pem
	ClientCert string // what to show: client.pem
	ClientKey  string // its key: client.key
}

const (
	tlsFileBytesMax = 1 << 20
	tlsLookEvery    = time.Second
	idlePerHost     = 4096 // as many as calls at a time: each waits for its answer on one
)

// HTTPClient makes the client that ClientOptions and WorkerOptions would make of
// the files, for those who share one among several.
func (f TLSFiles) HTTPClient(logger *slog.Logger) (*http.Client, error) {
	if (f.ClientCert == "") != (f.ClientKey == "") {
		return nil, errors.New("pulse: a client certificate and its key go together: give both TLSFiles.ClientCert and ClientKey, or none")
	}
	if logger == nil {
		logger = slog.Default()
	}
	t := &tlsTransport{files: f, logger: logger, looked: time.Now()}
	raw, err := t.read()
	if err != nil {
		return nil, err
	}
	first, err := t.understand(raw)
	if err != nil {
		return nil, err
	}
	t.now.Store(first)
	return &http.Client{Transport: t}, nil
}

// tlsTransport sends requests by the newest good files.
type tlsTransport struct {
	files  TLSFiles
	logger *slog.Logger
	now    atomic.Pointer[tlsPapers]

	mu       sync.Mutex // one looks at a time; guards what is below
	looked   time.Time
	reported string
}

// tlsPapers are files as they were read, and the transport made of them.
type tlsPapers struct {
	raw  [3][]byte
	http *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *tlsTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.newest().http.RoundTrip(r)
}

// CloseIdleConnections is what http.Client looks for.
func (t *tlsTransport) CloseIdleConnections() { t.now.Load().http.CloseIdleConnections() }

// newest looks at the files first if nobody has for a while. Whoever comes while
// another looks does not wait. Files that make no sense, as while they are being
// copied, leave those before in use.
func (t *tlsTransport) newest() *tlsPapers {
	old := t.now.Load()
	if t.files == (TLSFiles{}) || !t.mu.TryLock() {
		return old
	}
	defer t.mu.Unlock()
	if time.Since(t.looked) < tlsLookEvery {
		return old
	}
	t.looked = time.Now()
	raw, err := t.read()
	if err == nil && same(raw, old.raw) {
		t.reported = ""
		return old
	}
	var papers *tlsPapers
	if err == nil {
		papers, err = t.understand(raw)
	}
	if err != nil {
		if err.Error() != t.reported {
			t.reported = err.Error()
			t.logger.Warn("new certificate files are not used, those before stay in use", "error", err)
		}
		return old
	}
	t.reported = ""
	t.now.Store(papers)
	old.http.CloseIdleConnections()
	t.logger.Info("new certificate files are in use")
	return papers
}

func same(a, b [3][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func (t *tlsTransport) read() (raw [3][]byte, err error) {
	for i, path := range []string{t.files.CACert, t.files.ClientCert, t.files.ClientKey} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return raw, fmt.Errorf("pulse: %w", err)
		}
		if info.Size() > tlsFileBytesMax {
			return raw, fmt.Errorf("pulse: %s has more than %d bytes: is it the right file?", path, tlsFileBytesMax)
		}
		if raw[i], err = os.ReadFile(path); err != nil {
			return raw, fmt.Errorf("pulse: %w", err)
		}
	}
	return raw, nil
}

func (t *tlsTransport) understand(raw [3][]byte) (*tlsPapers, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, idlePerHost
	// One connection of HTTP/2 for everything would go on being used for minutes
	// when packets get lost; of several of HTTP/1.1 the one that fails is closed.
	transport.ForceAttemptHTTP2 = false
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true)
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if t.files.CACert != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(raw[0]) {
			return nil, fmt.Errorf("pulse: %s holds no certificate in PEM form", t.files.CACert)
		}
	}
	if t.files.ClientCert != "" {
		pair, err := tls.X509KeyPair(raw[1], raw[2])
		if err != nil {
			return nil, fmt.Errorf("pulse: %s with %s: %w", t.files.ClientCert, t.files.ClientKey, err)
		}
		// Shown whatever the node says it wants: its answer says what is wrong.
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return &tlsPapers{raw: raw, http: transport}, nil
}
