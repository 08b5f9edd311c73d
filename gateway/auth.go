package gateway

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"pulse/gateway/session"
	"pulse/schema"
	"pulse/schema/access"
)

// Authenticator finds out in whose name a request speaks.
type Authenticator interface {
	// Authenticate returns who asks, or why they may not (unauthenticated).
	// It is called for each request of every surface, from any goroutine. A
	// client certificate in r.TLS has been shown and not yet been judged.
	Authenticate(r *http.Request) (session.Identity, *schema.Error)
	// DemandsCredential says that nobody is let in without a credential. Only then
	// may a server listen on an address that others can reach.
	DemandsCredential() bool
}

// Certificates lets in whoever shows a client certificate of the cluster, from
// wherever they come. Certificates carry no rights: whoever has one may do
// everything, and the record names it.
type Certificates struct {
	// Judge finds whose certificate was shown, or why it is not believed. It
	// is asked at each request, so that one that has ended or was withdrawn is
	// no good on an open connection either.
	Judge func(*tls.ConnectionState) (name string, err error)
}

var _ Authenticator = Certificates{}

// Authenticate goes by the certificate of the connection.
func (c Certificates) Authenticate(r *http.Request) (session.Identity, *schema.Error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return session.Identity{}, schema.Errorf(schema.Unauthenticated,
			"show a token in Authorization: Bearer (PULSE_TOKEN; an admin makes one with 'pulse token create'), or a client certificate of this cluster ('pulse cluster add-client'; PULSE_CLIENT_CERT and PULSE_CLIENT_KEY)")
	}
	name, err := c.Judge(r.TLS)
	if err != nil {
		return session.Identity{}, schema.Errorf(schema.Unauthenticated, "the client certificate is not accepted: %v", err)
	}
	return session.Identity{Principal: "client/" + name, Grants: access.All}, nil
}

// DemandsCredential is true.
func (Certificates) DemandsCredential() bool { return true }

// Loopback lets whoever is on the machine itself do everything, without a
// credential, and nobody else.
type Loopback struct{}

var _ Authenticator = Loopback{}

// Authenticate goes by the address the request came from.
func (Loopback) Authenticate(r *http.Request) (session.Identity, *schema.Error) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return session.Identity{}, schema.Errorf(schema.Unauthenticated, "this node serves its own machine alone")
	}
	return session.Anonymous, nil
}

// DemandsCredential is false.
func (Loopback) DemandsCredential() bool { return false }

// CheckListen refuses an address that others can reach unless a credential is
// demanded. It looks at an address that is bound: what a name stands for is
// known only then.
func CheckListen(addr net.Addr, auth Authenticator) error {
	if auth.DemandsCredential() {
		return nil
	}
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("gateway: %s can be reached from other machines and nobody is asked who he is: listen on 127.0.0.1, or give the node certificates (--certs), so that clients show theirs", addr)
}
