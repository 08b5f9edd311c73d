// Package httpapi is Pulse's HTTP API: JSON under /v1, server-sent events,
// problem+json, health, the OpenAPI document and a page that shows it.
//
// A Handler turns a request into commands and queries of session.Backend and
// their results into answers. Everything that can be judged without the state is
// judged here, before the log: who asks and whether the caller's roles allow it,
// sizes, the strict rules for JSON, names, numbers, ranges. What needs the state
// is left to it.
//
//	request ─ find the route ─ authenticate ─ allow ─ read the body within its
//	bounds ─ decode strictly (schema/apiv1) ─ Backend ─ write
//
// Promises. An answer about /v1 has X-Pulse-Index, an error is problem+json
// with a code of the catalogue, and an error other than result_unknown means
// that nothing happened. Business JSON leaves byte for byte as it came: answers
// with a payload in them are appended by hand (encode.go), because encoding/json
// compacts what it embeds. The OpenAPI document is made from the same table of
// routes (routes.go) that requests are matched against.
//
// Every request is served on its own goroutine, and the package starts no
// other. Long polls and streams are bounded in number and end when the client
// leaves, when their time is over, or by Drain.
//
// The package knows nothing of listeners, TLS, hosts and origins: that is
// package gateway. It reads no clock but to measure and to bound its own waits.
package httpapi
