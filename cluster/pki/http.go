package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// HTTPOptions of the HTTP port.
type HTTPOptions struct {
	// Files as HTTPFiles lays them out. CA is whose client certificates are
	// believed; without it none is asked for.
	Files Files
	// RequireClient turns away whoever shows no client certificate. Otherwise one
	// that is shown has to be good, and the token decides all the same.
	RequireClient bool
	OnReload      func(Reload) // as in Options
}

// HTTPIdentity is what a node shows to clients, workers and browsers. It may be
// used from any goroutine, needs no closing, and follows its files.
type HTTPIdentity struct {
	options HTTPOptions
	desk    *desk
}

// OpenHTTP reads the certificates of the HTTP port.
func OpenHTTP(o HTTPOptions) (*HTTPIdentity, error) {
	if o.Files.Cert == "" || o.Files.Key == "" {
		return nil, errors.New("pki: the HTTP port needs a certificate and a key: give both")
	}
	if o.RequireClient && o.Files.CA == "" {
		return nil, errors.New("pki: client certificates are required but no CA is given for them: give the client CA's file")
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
	return &HTTPIdentity{o, d}, nil
}

// NotAfter is when the certificate ends that is in use. As with an Identity,
// asking looks at the files.
func (h *HTTPIdentity) NotAfter() time.Time { return h.desk.papers().cert.Leaf.NotAfter }

// ServerConfig for the HTTP port. Clients in other people's networks may be
// older, so TLS 1.2 is let in.
func (h *HTTPIdentity) ServerConfig() *tls.Config {
	c := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: h.options.Files.CA != "", // see Identity.ServerConfig
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return h.desk.papers().cert, nil
		},
	}
	if h.options.Files.CA == "" {
		return c
	}
	c.ClientAuth = tls.RequestClientCert
	if h.options.RequireClient {
		c.ClientAuth = tls.RequireAnyClientCert
	}
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return nil // ClientAuth has seen to it
		}
		if err := h.desk.papers().verify(s.PeerCertificates, x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
			return fmt.Errorf("pki: the client is not believed: %w", err)
		}
		return nil
	}
	return c
}
