package gateway

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"pulse/gateway/session"
	"pulse/schema"
)

// Authenticator finds out in whose name a request speaks.
type Authenticator interface {
	// Authenticate returns who asks, or why they may not (unauthenticated).
	// It is called for each request of every surface, from any goroutine.
	Authenticate(r *http.Request) (session.Identity, *schema.Error)
	// DemandsToken says that nobody is let in without a credential. Only then
	// may a server listen on an address that others can reach.
	DemandsToken() bool
}

// Loopback lets whoever is on the machine itself do everything, without a
// token, and nobody else.
type Loopback struct{}

var _ Authenticator = Loopback{}

// Authenticate goes by the address the request came from.
func (Loopback) Authenticate(r *http.Request) (session.Identity, *schema.Error) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return session.Identity{}, schema.Errorf(schema.Unauthenticated, "a token is needed from another machine")
	}
	return session.Anonymous, nil
}

// DemandsToken is false.
func (Loopback) DemandsToken() bool { return false }

// CheckListen refuses an address that others can reach unless a token is
// demanded. It looks at an address that is bound: what a name stands for is
// known only then.
func CheckListen(addr net.Addr, auth Authenticator) error {
	if auth.DemandsToken() {
		return nil
	}
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("gateway: %s can be reached from other machines and no token is demanded: listen on 127.0.0.1, or configure tokens", addr)
}
