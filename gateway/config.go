package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"pulse/schema"
)

// API is the HTTP API as the server needs it.
type API interface {
	http.Handler
	// Drain ends what waits for something to happen.
	Drain()
	// Refuse answers with an error, in the form all errors of the API have.
	Refuse(w http.ResponseWriter, r *http.Request, status int, refusal *schema.Error)
	// Stamp sets the headers that every answer has.
	Stamp(w http.ResponseWriter, r *http.Request)
}

// Config of a Server. API, Auth and Logger are required; the zero value of a
// number or duration means the default named beside it.
type Config struct {
	API API
	// Workers serve GET /v1/worker, by the subprotocol a client offers. A
	// request that offers none of them is refused with 426.
	Workers map[string]http.Handler
	// Console serves /console/ and a browser that asks for /; nil leaves both
	// to API.
	Console http.Handler

	// Auth finds out who asks. The surfaces ask it; the server only wants to
	// know whether it demands a credential.
	Auth Authenticator
	// TLS serves HTTPS; nil is plain HTTP.
	TLS *tls.Config
	// Hosts are names, beside localhost and loopback addresses, under which
	// a node that demands no credential may be reached. A name that its owner points at
	// 127.0.0.1 would otherwise let any page on the web speak to it.
	Hosts []string
	// Origins are those of pages that may call, beside the server's own,
	// like https://console.example.
	Origins []string

	Logger *slog.Logger

	HeaderWithin time.Duration // 5 s for the headers of a request
	WriteWithin  time.Duration // 60 s for an answer; streams set their own
	IdleFor      time.Duration // 2 min between two requests of a connection
	LeaveWithin  time.Duration // 300 ms, after Shutdown was called, for clients that say nothing

	// ConnectionsMax bounds the connections: 65,536. AddressMax bounds those
	// of one address: 16,384, an IPv6 /64 being one, loopback unbounded.
	ConnectionsMax int
	AddressMax     int
}

// headerBytesMax bounds the headers of a request.
const headerBytesMax = 32 << 10

// complete checks the config and fills in the defaults.
func (c Config) complete() (Config, error) {
	switch {
	case c.API == nil:
		return c, errors.New("gateway: API is missing: give an httpapi.Handler")
	case c.Auth == nil:
		return c, errors.New("gateway: Auth is missing: give gateway.Loopback or one that demands a credential")
	case c.Logger == nil:
		return c, errors.New("gateway: Logger is missing: give one, slog.DiscardHandler for silence")
	}
	for _, origin := range c.Origins {
		if _, ok := originOf(origin); !ok {
			return c, fmt.Errorf("gateway: Origins has %q: give a scheme and a host, like https://console.example", origin)
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		is    time.Duration
	}{
		{"HeaderWithin", &c.HeaderWithin, 5 * time.Second},
		{"WriteWithin", &c.WriteWithin, 60 * time.Second},
		{"IdleFor", &c.IdleFor, 2 * time.Minute},
		{"LeaveWithin", &c.LeaveWithin, 300 * time.Millisecond},
	} {
		if *f.value < 0 {
			return c, fmt.Errorf("gateway: %s is %s: give a positive duration, or 0 for %s", f.name, *f.value, f.is)
		}
		if *f.value == 0 {
			*f.value = f.is
		}
	}
	for _, f := range []struct {
		name  string
		value *int
		is    int
	}{
		{"ConnectionsMax", &c.ConnectionsMax, 1 << 16},
		{"AddressMax", &c.AddressMax, 1 << 14},
	} {
		if *f.value < 0 {
			return c, fmt.Errorf("gateway: %s is %d: give a positive number, or 0 for %d", f.name, *f.value, f.is)
		}
		if *f.value == 0 {
			*f.value = f.is
		}
	}
	return c, nil
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	_, err := c.complete()
	return err
}
