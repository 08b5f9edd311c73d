package wsconn

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// CloseCode is a WebSocket close code.
type CloseCode int

// The codes a surface closes with.
const (
	CloseNormal         CloseCode = 1000
	CloseGoingAway      CloseCode = 1001 // this process is shutting down
	CloseProtocolError  CloseCode = 1002
	CloseUnsupported    CloseCode = 1003 // a binary message
	CloseInvalidPayload CloseCode = 1007 // not UTF-8
	ClosePolicy         CloseCode = 1008
	CloseTooBig         CloseCode = 1009
)

// Config says how connections are kept. The zero value of a field means the
// default named beside it.
type Config struct {
	// Subprotocol is the one spoken here. A request that does not offer it is
	// refused with 426.
	Subprotocol string
	// Extended is a variant of Subprotocol that is spoken with a peer that offers
	// it as well. Empty: none.
	Extended string
	// CheckOrigin decides about the Origin header, which only browsers send.
	// Nil allows no Origin and the origin of the requested host.
	CheckOrigin func(*http.Request) bool

	// FrameBytesMax bounds one message from the peer: 1 MiB. A longer one is
	// reported to the surface without its content, and nothing is read after it.
	FrameBytesMax int
	// QueueFramesMax and QueueBytesMax bound what waits to be written: 1,024
	// frames, 4 MiB. One frame always fits an empty queue.
	QueueFramesMax int
	QueueBytesMax  int

	PingEvery   time.Duration // 10 s without a message or control frame of the peer
	LiveFor     time.Duration // 30 s since the last message or pong; then the peer is cut off
	WriteWithin time.Duration // 10 s for one flush
	FullFor     time.Duration // 5 s with a full queue; then the peer is cut off
	CloseWithin time.Duration // 5 s for the peer to answer a close frame

	// ConnectionsMax bounds the open connections of this process: 50,000.
	ConnectionsMax int
	// Limiter holds single addresses to their share. Nil means no such limit.
	Limiter *Limiter
	// Counters are counted up; nil makes a set of its own.
	Counters *Counters
}

// Counters tell an operator what the connections of this process did. Open is
// a gauge, all others only grow.
type Counters struct {
	Open          atomic.Int64
	Accepted      atomic.Uint64
	Refused       atomic.Uint64 // upgrades refused, for whatever reason
	FramesIn      atomic.Uint64
	FramesOut     atomic.Uint64
	BytesIn       atomic.Uint64
	BytesOut      atomic.Uint64
	Flushes       atomic.Uint64 // system calls that carried FramesOut
	OffersRefused atomic.Uint64 // frames that found the queue full
	QueueFullCuts atomic.Uint64 // peers that left their queue full
	WriteCuts     atomic.Uint64 // peers that did not take a flush in time
	SilentCuts    atomic.Uint64 // peers not heard of for LiveFor
}

// complete fills in the defaults.
func (c Config) complete() (Config, error) {
	if c.Subprotocol == "" {
		return c, fmt.Errorf("wsconn: Subprotocol is missing")
	}
	if c.CheckOrigin == nil {
		c.CheckOrigin = sameHost
	}
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
	for _, f := range []struct {
		name  string
		value *int
		is    int
	}{
		{"FrameBytesMax", &c.FrameBytesMax, 1 << 20},
		{"QueueFramesMax", &c.QueueFramesMax, 1024},
		{"QueueBytesMax", &c.QueueBytesMax, 4 << 20},
		{"ConnectionsMax", &c.ConnectionsMax, 50_000},
	} {
		if *f.value == 0 {
			*f.value = f.is
		}
		if *f.value < 0 {
			return c, fmt.Errorf("wsconn: %s is negative", f.name)
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		is    time.Duration
	}{
		{"PingEvery", &c.PingEvery, 10 * time.Second},
		{"LiveFor", &c.LiveFor, 30 * time.Second},
		{"WriteWithin", &c.WriteWithin, 10 * time.Second},
		{"FullFor", &c.FullFor, 5 * time.Second},
		{"CloseWithin", &c.CloseWithin, 5 * time.Second},
	} {
		if *f.value == 0 {
			*f.value = f.is
		}
		if *f.value < 0 {
			return c, fmt.Errorf("wsconn: %s is negative", f.name)
		}
	}
	if c.PingEvery >= c.LiveFor {
		return c, fmt.Errorf("wsconn: PingEvery (%s) must be below LiveFor (%s), or a healthy peer is cut off", c.PingEvery, c.LiveFor)
	}
	return c, nil
}
