package rpc

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pulse/schema/access"
)

// tokenHeader carries proof that the caller knows the cluster secret. It stands
// beside mutual TLS, not instead of it: the one says which node is calling, the
// other that it belongs here.
const tokenHeader = "pulse-cluster-token"

// Token is what nodes of one cluster show each other, derived from its secret.
type Token struct{ value string }

// NewToken derives the token.
func NewToken(secret []byte) (Token, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "pulse rpc token v1", 32)
	if err != nil {
		return Token{}, fmt.Errorf("derive the rpc token: %w", err)
	}
	return Token{base64.RawURLEncoding.EncodeToString(key)}, nil
}

// String keeps the token out of logs.
func (Token) String() string { return "[redacted]" }

// GoString keeps it out of %#v.
func (Token) GoString() string { return "[redacted]" }

// GetRequestMetadata adds the token to a call.
func (t Token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{tokenHeader: t.value}, nil
}

// RequireTransportSecurity is the listener's decision, which may be on loopback.
func (Token) RequireTransportSecurity() bool { return false }

// check refuses a call without the token, before a message of it is read.
func (t Token) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	shown := md.Get(tokenHeader)
	if len(shown) != 1 || subtle.ConstantTimeCompare([]byte(shown[0]), []byte(t.value)) != 1 {
		return status.Error(codes.Unauthenticated, "not a node of this cluster")
	}
	return nil
}

// admit refuses a method that is not for nodes, and a caller that is none.
func (t Token) admit(ctx context.Context, method string) error {
	if access.RPC[method].Permission != access.Node {
		return status.Error(codes.PermissionDenied, "nobody may call this method")
	}
	return t.check(ctx)
}

func (t Token) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := t.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (t Token) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := t.admit(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, s)
}

// shaken are the credentials of connections that have shaken hands before the
// server gets them, so that one listener bounds and logs the handshakes of every
// port alike. Handlers find who called in their peer's AuthInfo.
type shaken struct {
	credentials.TransportCredentials // for plain connections
}

// ServerHandshake finds the handshake done.
func (s shaken) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return s.TransportCredentials.ServerHandshake(conn)
	}
	return conn, credentials.TLSInfo{
		State:          t.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// Clone implements credentials.TransportCredentials.
func (s shaken) Clone() credentials.TransportCredentials {
	return shaken{s.TransportCredentials.Clone()}
}
