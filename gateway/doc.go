// Package gateway is the front of a node: one listener for clients, workers and
// people. It owns the connections and what every request has to pass before a
// surface sees it: limits on connections, deadlines, the host and origin a
// browser may name, and the route by path and subprotocol.
//
//	listener ─ limits ─ http.Server ─ guard ─┬─ /v1/worker, by subprotocol
//	                                         ├─ /console, if there is one
//	                                         └─ everything else: httpapi
//
// Promises. Without an Authenticator that demands a credential nothing but a loopback
// address is served. Abort closes every connection at once, those that were
// taken over by WebSocket too, so that a node that must not answer any more does
// not. Shutdown ends streams first, then waits for what is being answered.
//
// Serve runs on its caller's goroutine and returns when the server is closed;
// each connection has one of its own, which net/http owns.
//
// The package knows no domain word: who may do what is decided by the surfaces,
// with the identity the Authenticator found.
package gateway
