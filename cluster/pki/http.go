package pki

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"
)

// HTTPOptions of the HTTP port.
type HTTPOptions struct {
	// Files as HTTPFiles lays them out. CA is whose client certificates are
	// believed; without it none is asked for.
	Files Files
	// Cluster is the one that clients have to be of. Empty: the CA decides alone.
	Cluster  string
	OnReload func(Reload) // as in Options
}

// HTTPIdentity is what a node shows to clients, workers and browsers, and by what
// it judges those of them that show a certificate. It may be used from any
// goroutine, needs no closing, and follows its files.
type HTTPIdentity struct {
	options HTTPOptions
	desk    *desk

	mu     sync.Mutex // guards judged
	judged map[[sha256.Size]byte]judgement
}

// judgement is what was found out about a chain.
type judgement struct {
	papers *papers // by which it was judged
	at     time.Time
	id     string
}

const (
	// judgedFor bounds how long a certificate that has ended is still let in. A
	// new list of the withdrawn is heeded at once.
	judgedFor = time.Second
	// judgedMax bounds the memory of who was let in; beyond it, it begins anew.
	judgedMax = 4096
)

// OpenHTTP reads the certificates of the HTTP port.
func OpenHTTP(o HTTPOptions) (*HTTPIdentity, error) {
	if o.Files.Cert == "" || o.Files.Key == "" {
		return nil, errors.New("pki: the HTTP port needs a certificate and a key: give both")
	}
	if o.Files.CA == "" {
		o.Files.CRL = "" // there is nobody whose list it could be
	}
	d, err := openDesk(o.Files, func(p *papers, now time.Time) error {
		leaf := p.cert.Leaf
		switch {
		case now.After(leaf.NotAfter), now.Before(leaf.NotBefore):
			return explain(leaf, x509.CertificateInvalidError{Cert: leaf, Reason: x509.Expired}, now)
		case len(leaf.DNSNames)+len(leaf.IPAddresses) == 0:
			return fmt.Errorf("%w: it has no host name and no address, so no client would accept it: make one with the names that clients use", ErrWrongName)
		}
		return nil
	}, o.OnReload)
	if err != nil {
		return nil, err
	}
	return &HTTPIdentity{options: o, desk: d, judged: map[[sha256.Size]byte]judgement{}}, nil
}

// Validity is the life of the certificate that is in use. As with an Identity,
// asking looks at the files.
func (h *HTTPIdentity) Validity() (notBefore, notAfter time.Time) { return h.desk.validity() }

// ServerConfig for the HTTP port. Clients in other people's networks may be
// older, so TLS 1.2 is let in. A client certificate is asked for and not judged
// here: Client does that, where the answer can say what is wrong with it.
func (h *HTTPIdentity) ServerConfig() *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return h.desk.papers().cert, nil
		},
	}
	if h.options.Files.CA != "" {
		c.ClientAuth = tls.RequestClientCert
	}
	return c
}

// Client says which client's certificate was shown on a connection, or why it is
// not believed. Asked at each request it notices those that have ended or were
// withdrawn since the connection was made.
func (h *HTTPIdentity) Client(s *tls.ConnectionState) (id string, err error) {
	if h.options.Files.CA == "" {
		return "", errors.New("pki: this port has no client CA")
	}
	p, now := h.desk.papers(), time.Now()
	key := sum(s.PeerCertificates)
	h.mu.Lock()
	known, ok := h.judged[key]
	h.mu.Unlock()
	if ok && known.papers == p && now.Sub(known.at) < judgedFor {
		return known.id, nil
	}
	if id, err = h.judge(p, s.PeerCertificates, now); err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.judged) >= judgedMax {
		clear(h.judged)
	}
	h.judged[key] = judgement{papers: p, at: now, id: id}
	return id, nil
}

func (h *HTTPIdentity) judge(p *papers, chain []*x509.Certificate, now time.Time) (id string, err error) {
	if err := p.verify(chain, x509.ExtKeyUsageClientAuth, now); err != nil {
		return "", err
	}
	n, err := nameIn(chain[0])
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrWrongName, err)
	case n.role != clientRole, h.options.Cluster != "" && n.cluster != h.options.Cluster:
		return "", fmt.Errorf("%w: it is of %s, which is no client of this cluster", ErrWrongName, n)
	}
	return n.id, nil
}

func sum(chain []*x509.Certificate) (out [sha256.Size]byte) {
	h := sha256.New()
	for _, c := range chain {
		_, _ = h.Write(c.Raw) // a hash never fails
	}
	h.Sum(out[:0])
	return out
}
